//! The registers with their meaning, and waiting for them.

use std::sync::Arc;
use std::time::Duration;

use doorbell_spec::register::{self, ALL_ONES, Aqa, Cap, Cc, Crto, Csts, Version};
use doorbell_spec::{BusError, Clock, Iova, Transport};

use crate::error::ControllerError;

/// Typed access to the registers. A register that reads all ones is a removed device.
#[derive(Clone, Debug)]
pub(crate) struct Registers {
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
    pub(crate) fn new(transport: Arc<dyn Transport>, clock: Clock) -> Self {
        Self { transport, clock }
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
        self.transport.write32(register::CC, cc.into_bits()).map_err(|source| bus(step, source))
    }

    /// Tells the controller where its admin queues are and how many entries they have.
    pub(crate) fn set_admin_queues(
        &self,
        aqa: Aqa,
        submission: Iova,
        completion: Iova,
        step: &'static str,
    ) -> Result<(), ControllerError> {
        let bus = |source| bus(step, source);
        self.transport.write32(register::AQA, aqa.into_bits()).map_err(bus)?;
        self.transport.write64(register::ASQ, submission.0).map_err(bus)?;
        self.transport.write64(register::ACQ, completion.0).map_err(bus)
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
