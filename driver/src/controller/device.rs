//! The device and the memory it may reach, which is freed only when the device is known to be quiet.
//!
//! Invariant: when this value is dropped, one of four things holds before any memory is freed: the
//! controller has been disabled, or its function reset, or its mappings are gone; or else the memory is
//! leaked, since a device that may still write is worse than memory that is lost.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use doorbell_hugepages::{Attachment, Detached, DmaBuf, DmaSpace};
use doorbell_spec::register::{Cap, Cc, Shutdown, Version};
use doorbell_spec::{BusError, BusMastering, Transport};

use super::admin::Admin;
use super::registers::{Readiness, Registers};
use crate::buffer::Buffer;
use crate::error::ControllerError;

/// Memory that the device may still reach although its owner is done with it.
#[derive(Debug)]
pub(crate) enum Parked {
    /// A ring, or PRP lists.
    Memory(#[expect(dead_code, reason = "held, not used")] Arc<DmaBuf>),
    /// A request's buffer.
    Buffer(#[expect(dead_code, reason = "held, not used")] Buffer),
}

/// One controller with everything it can reach.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) registers: Registers,
    pub(crate) cap: Cap,
    pub(crate) version: Version,
    pub(crate) space: DmaSpace,
    pub(crate) page_bytes: u64,
    attachment: Option<Attachment>,
    admin: Mutex<Admin>,
    parked: Mutex<Vec<Parked>>,
    quiet: Mutex<Quiet>,
}

/// Whether the device can still reach memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quiet {
    No,
    Yes,
}

/// What a device is made of.
#[derive(Debug)]
pub(crate) struct DeviceParts {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) registers: Registers,
    pub(crate) cap: Cap,
    pub(crate) version: Version,
    pub(crate) space: DmaSpace,
    pub(crate) page_bytes: u64,
    pub(crate) attachment: Attachment,
    pub(crate) admin: Admin,
}

impl Device {
    pub(crate) fn new(parts: DeviceParts) -> Self {
        Self {
            transport: parts.transport,
            registers: parts.registers,
            cap: parts.cap,
            version: parts.version,
            space: parts.space,
            page_bytes: parts.page_bytes,
            attachment: Some(parts.attachment),
            admin: Mutex::new(parts.admin),
            parked: Mutex::new(Vec::new()),
            quiet: Mutex::new(Quiet::No),
        }
    }

    /// The admin queue. Held for the length of one command, which has a deadline.
    pub(crate) fn admin(&self) -> MutexGuard<'_, Admin> {
        lock(&self.admin)
    }

    /// The admin queue, unless somebody has it: for those who must not wait.
    pub(crate) fn admin_if_free(&self) -> Option<MutexGuard<'_, Admin>> {
        match self.admin.try_lock() {
            Ok(admin) => Some(admin),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Keeps memory until the device is quiet.
    pub(crate) fn park(&self, parked: Parked) {
        lock(&self.parked).push(parked);
    }

    /// Turns the controller on and waits until it is ready.
    pub(crate) fn enable(&self) -> Result<(), ControllerError> {
        const STEP: &str = "enabling the controller";
        let command_set = if self.cap.command_sets() & 1 == 1 { 0 } else { COMMAND_SET_ALL_SUPPORTED };
        let page = u8::try_from(self.page_bytes.trailing_zeros() - 12).unwrap_or(u8::MAX);
        let cc = Cc::new()
            .with_enable(true)
            .with_command_set(command_set)
            .with_page(page)
            .with_submission_entry(6)
            .with_completion_entry(4);
        self.registers.set_cc(cc, STEP)?;
        self.registers.wait_ready(Readiness::Ready, self.ready_span(STEP)?, STEP)
    }

    /// How long the controller may take to become ready (NVMe Base 2.0, 3.5.3): the longer of CAP.TO and
    /// CRTO, since some controllers leave one of them at nothing.
    fn ready_span(&self, step: &'static str) -> Result<Duration, ControllerError> {
        let mut span = disable_span(self.cap);
        if self.cap.ready_with_media() {
            let crto = self.registers.crto(step)?;
            span = span.max(Duration::from_millis(500 * u64::from(crto.with_media_500ms())));
        }
        Ok(span)
    }

    /// Notifies the controller of the shutdown, waits for it, and disables the controller.
    pub(crate) fn shut_down(&self, span: Duration) -> Result<(), ControllerError> {
        const STEP: &str = "shutting the controller down";
        let notified = self.registers.cc(STEP).and_then(|cc| {
            self.registers.set_cc(cc.with_shutdown(Shutdown::Normal as u8), STEP)?;
            let hint = ", the time that the controller asks for in RTD3E";
            self.registers.wait(span, STEP, hint, |csts| {
                if csts.fatal() {
                    Err(ControllerError::Fatal { step: STEP })
                } else {
                    Ok(csts.shutdown_complete())
                }
            })
        });
        let disabled = disable(&self.registers, self.cap);
        if disabled.is_ok() {
            self.is_quiet();
        }
        notified.and(disabled)
    }

    /// Notes that the device can reach no memory any more, and frees what was parked.
    fn is_quiet(&self) {
        *lock(&self.quiet) = Quiet::Yes;
        lock(&self.parked).clear();
    }

    /// Makes sure that the device reaches no memory, by the mildest means that works.
    fn quiesce(&mut self) -> Quiet {
        if *lock(&self.quiet) == Quiet::Yes {
            return Quiet::Yes;
        }
        if disable(&self.registers, self.cap).is_ok() || self.transport.reset().is_ok() {
            return Quiet::Yes;
        }
        // A device that neither obeys nor can be reset: take its way to the memory. It still knows addresses,
        // and somebody else may map other memory there once ours is unmapped: so first its right to DMA.
        match self.registers.set_bus_mastering(BusMastering::Off) {
            Ok(()) | Err(BusError::Removed) => {}
            Err(error) => {
                tracing::debug!(%error, "bus mastering not turned off");
                return Quiet::No;
            }
        }
        match self.attachment.take().map(Attachment::detach) {
            Some(Ok(Detached::Unmapped)) => Quiet::Yes,
            _ => Quiet::No,
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.quiesce() == Quiet::No {
            tracing::error!("the device cannot be made quiet: the memory it may reach is leaked");
            std::mem::forget(std::mem::take(&mut *lock(&self.parked)));
            std::mem::forget(lock(&self.admin).keepers());
            std::mem::forget(self.attachment.take());
        }
        if let Err(error) = self.registers.set_bus_mastering(BusMastering::Off) {
            tracing::debug!(%error, "bus mastering not turned off");
        }
    }
}

/// Turns a controller off and waits until it is not ready: it then accesses no host memory (NVMe Base 2.0,
/// 3.1.3.5). Rings may be freed after this, and not before.
pub(crate) fn disable(registers: &Registers, cap: Cap) -> Result<(), ControllerError> {
    const STEP: &str = "disabling the controller";
    let cc = registers.cc(STEP)?;
    if cc.enable() && !registers.csts(STEP)?.ready() && !registers.csts(STEP)?.fatal() {
        // Being enabled just now: it must become ready before it may be disabled (3.5.1). Whether it does
        // or not, the next step decides.
        if let Err(error) = registers.wait_ready(Readiness::Ready, disable_span(cap), STEP) {
            tracing::debug!(%error, "the controller was enabled but did not become ready");
        }
    }
    registers.set_cc(cc.with_enable(false).with_shutdown(Shutdown::None as u8), STEP)?;
    registers.wait_ready(Readiness::NotReady, disable_span(cap), STEP)
}

/// CAP.TO, but at least one of its units.
pub(crate) fn disable_span(cap: Cap) -> Duration {
    cap.timeout().max(Duration::from_millis(500))
}

/// Locks, also when another thread panicked while it held the lock: every state behind one is whole
/// between two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// CC.CSS: all I/O command sets that the controller supports (NVMe Base 2.0, 3.1.3.5).
const COMMAND_SET_ALL_SUPPORTED: u8 = 6;
