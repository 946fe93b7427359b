#![expect(unsafe_code)]
//! The registers with their meaning, and waiting for them.
//!
//! All that the driver tells a device by its transport is told here, and what it tells by doorbells and queue
//! entries goes through the doorbells that are mapped here.
//
// UNSAFETY: calls the unsafe methods of `Transport`, which decide what memory the device accesses.

use std::sync::Arc;
use std::time::Duration;

use doorbell_spec::register::{self, ALL_ONES, Aqa, Cap, Cc, Crto, Csts, Version, doorbell_bytes};
use doorbell_spec::{BusError, BusMastering, Clock, Doorbells, QueueId, Transport};

use super::admin::{ADMIN_ENTRIES, Admin};
use super::claim::Claim;
use crate::error::ControllerError;

/// Typed access to the registers. A register that reads all ones is a removed device.
///
/// Invariants, which the unsafe calls rest on:
///
/// * *alone*: whoever has this has claimed the transport. Clones are of the one driver, and live in its
///   `Device`;
/// * *kept*: the addresses that the device is given are of the admin queue here, and of queues, lists and
///   buffers in the entries that the driver posts. All of it is held by the driver, which parks what the
///   device does not give back, and frees it when the device is quiet or never (`device.rs`).
#[derive(Clone, Debug)]
pub(crate) struct Registers {
    /// Ends with the last clone. Before the transport, whose place in memory it names.
    _claim: Arc<Claim>,
    transport: Arc<dyn Transport>,
    clock: Clock,
}

/// What CSTS.RDY is waited to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    Ready,
    NotReady,
}

impl Registers {
    /// Claims the transport: fails if somebody in this process drives it.
    pub(crate) fn claim(transport: Arc<dyn Transport>, clock: Clock) -> Result<Self, ControllerError> {
        Ok(Self { _claim: Arc::new(Claim::of(&transport)?), transport, clock })
    }

    pub(crate) fn cap(&self, step: &'static str) -> Result<Cap, ControllerError> {
        match self.transport.read64(register::CAP).map_err(|source| bus(step, source))? {
            u64::MAX => Err(ControllerError::Removed { step }),
            bits => Ok(Cap::from_bits(bits)),
        }
    }

    pub(crate) fn version(&self, step: &'static str) -> Result<Version, ControllerError> {
        self.read(register::VS, step).map(Version::from_bits)
    }

    pub(crate) fn cc(&self, step: &'static str) -> Result<Cc, ControllerError> {
        self.read(register::CC, step).map(Cc::from_bits)
    }

    pub(crate) fn csts(&self, step: &'static str) -> Result<Csts, ControllerError> {
        self.read(register::CSTS, step).map(Csts::from_bits)
    }

    pub(crate) fn crto(&self, step: &'static str) -> Result<Crto, ControllerError> {
        self.read(register::CRTO, step).map(Crto::from_bits)
    }

    pub(crate) fn set_cc(&self, cc: Cc, step: &'static str) -> Result<(), ControllerError> {
        // SAFETY:
        // - alone: see the type;
        // - kept: an enabled device uses the admin queue that `set_admin_queues` told it of.
        let written = unsafe { self.transport.write32(register::CC, cc.into_bits()) };
        written.map_err(|source| bus(step, source))
    }

    /// Tells the controller, which is disabled, where its admin queues are and how many entries they have.
    ///
    /// The caller keeps `admin` until the device is quiet.
    pub(crate) fn set_admin_queues(&self, admin: &Admin, step: &'static str) -> Result<(), ControllerError> {
        let bus = |source| bus(step, source);
        let (submission, completion) = admin.ring_addresses();
        let entries_z = ADMIN_ENTRIES - 1;
        let aqa = Aqa::new().with_submission_entries_z(entries_z).with_completion_entries_z(entries_z);
        // SAFETY:
        // - alone: see the type;
        // - kept: both rings have that many entries, and live in `admin`, which is the device's own part.
        unsafe { self.transport.write32(register::AQA, aqa.into_bits()) }.map_err(bus)?;
        // SAFETY: as above.
        unsafe { self.transport.write64(register::ASQ, submission.0) }.map_err(bus)?;
        // SAFETY: as above.
        unsafe { self.transport.write64(register::ACQ, completion.0) }.map_err(bus)
    }

    /// Maps the doorbells of the admin queue and of so many I/O queues.
    ///
    /// They stay within the driver, whose rings alone ring them.
    pub(crate) fn doorbells(&self, cap: Cap, queues: u32) -> Result<Doorbells, ControllerError> {
        let last = QueueId(u16::try_from(queues).unwrap_or(u16::MAX));
        let bytes = doorbell_bytes(last, cap.doorbell_stride());
        // SAFETY:
        // - alone: see the type; the doorbells live in the controller's `Shared` and in its queues' rings,
        //   which live no longer than the device's claim;
        // - a ring (`queue/ring.rs`) rings its tail for entries that it has posted, whose memory is kept, and
        //   its head for completions that it has read.
        let mapped = unsafe { self.transport.doorbells(bytes) };
        mapped.map_err(|source| bus("mapping the doorbells", source))
    }

    /// Gives the device the right to DMA, or takes it. It is given when the device is disabled.
    pub(crate) fn set_bus_mastering(&self, mastering: BusMastering) -> Result<(), BusError> {
        // SAFETY:
        // - alone: see the type;
        // - it is turned on in bring-up alone, between disabling the device and enabling it.
        unsafe { self.transport.set_bus_mastering(mastering) }
    }

    /// Waits until CSTS.RDY is as wanted. A fatal status ends the wait for ready at once.
    pub(crate) fn wait_ready(
        &self,
        wanted: Readiness,
        span: Duration,
        step: &'static str,
    ) -> Result<(), ControllerError> {
        self.wait(span, step, ", the time that the controller asks for in CAP.TO and CRTO", |csts| {
            if csts.fatal() && wanted == Readiness::Ready {
                return Err(ControllerError::Fatal { step });
            }
            Ok(csts.ready() == (wanted == Readiness::Ready))
        })
    }

    /// Waits until `done` says so of CSTS, looking at least twice.
    pub(crate) fn wait(
        &self,
        span: Duration,
        step: &'static str,
        hint: &'static str,
        mut done: impl FnMut(Csts) -> Result<bool, ControllerError>,
    ) -> Result<(), ControllerError> {
        let deadline = self.clock.deadline(span);
        loop {
            // The clock first: a thread that was held up between the two looks once more.
            let late = deadline.passed(&self.clock);
            if done(self.csts(step)?)? {
                return Ok(());
            }
            if late {
                return Err(ControllerError::Timeout { step, span: deadline.span(), hint });
            }
            self.relax();
        }
    }

    /// Between two looks of a wait.
    pub(crate) fn relax(&self) {
        let before = self.clock.now();
        self.transport.relax(&self.clock);
        if self.clock.is_virtual() && self.clock.now() == before {
            // A transport that moves by itself, with a clock that does not: a wait would never end.
            self.clock.advance(RELAX_SPAN);
        }
    }

    fn read(&self, offset: u32, step: &'static str) -> Result<u32, ControllerError> {
        match self.transport.read32(offset).map_err(|source| bus(step, source))? {
            ALL_ONES => Err(ControllerError::Removed { step }),
            bits => Ok(bits),
        }
    }
}

/// How far a virtual clock that nobody else moves goes between two looks.
const RELAX_SPAN: Duration = Duration::from_micros(10);

/// Gives a bus error the step it happened in.
pub(crate) fn bus(step: &'static str, source: BusError) -> ControllerError {
    match source {
        BusError::Removed => ControllerError::Removed { step },
        source => ControllerError::Bus { step, source },
    }
}
