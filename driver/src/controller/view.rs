//! The transport of a running controller, as others may use it: to look, to wait and to be woken.

use std::os::fd::BorrowedFd;

use doorbell_spec::{BusError, Clock, Identity, Transport};

/// A view of a controller's transport that changes nothing about what the device does, or what the driver
/// hears of it.
///
/// What it leaves out is the driver's business as long as the controller runs: writing registers, doorbells,
/// mappings, bus mastering, a reset, and events, which come from
/// [`Controller::poll_event`](crate::Controller::poll_event) and
/// [`PollGroup::next_event`](crate::PollGroup::next_event) alone.
#[derive(Clone, Copy, Debug)]
pub struct TransportView<'a>(pub(super) &'a dyn Transport);

impl TransportView<'_> {
    /// See [`Transport::identity`].
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.0.identity()
    }

    /// See [`Transport::read32`].
    ///
    /// # Errors
    /// The device is gone, or the bus refused.
    pub fn read32(&self, offset: u32) -> Result<u32, BusError> {
        self.0.read32(offset)
    }

    /// See [`Transport::read64`].
    ///
    /// # Errors
    /// The device is gone, or the bus refused.
    pub fn read64(&self, offset: u32) -> Result<u64, BusError> {
        self.0.read64(offset)
    }

    /// See [`Transport::interrupt_vectors`].
    #[must_use]
    pub fn interrupt_vectors(&self) -> u32 {
        self.0.interrupt_vectors()
    }

    /// See [`Transport::set_interrupt`].
    ///
    /// # Errors
    /// There is no such vector, or the bus refused.
    pub fn set_interrupt(&self, vector: u32, event: Option<BorrowedFd<'_>>) -> Result<(), BusError> {
        self.0.set_interrupt(vector, event)
    }

    /// See [`Transport::relax`].
    pub fn relax(&self, clock: &Clock) {
        self.0.relax(clock);
    }
}
