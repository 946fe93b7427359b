#![expect(unsafe_code)]
//! A transport as another process would have it: the same device, by a way that nobody in here has claimed.
//
// UNSAFETY: implements unsafe methods, and passes their contract on.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use doorbell_spec::{BusError, BusEvent, BusMastering, Clock, Doorbells, Identity, Mapper, Transport};

/// The device of a driver that is no more, for the one that comes next.
#[derive(Debug)]
pub(crate) struct Successor(pub(crate) Arc<dyn Transport>);

impl Transport for Successor {
    fn identity(&self) -> Identity {
        self.0.identity()
    }

    fn read32(&self, offset: u32) -> Result<u32, BusError> {
        self.0.read32(offset)
    }

    unsafe fn write32(&self, offset: u32, value: u32) -> Result<(), BusError> {
        // SAFETY: the caller's promise, word for word: the one who drove the device is no more.
        unsafe { self.0.write32(offset, value) }
    }

    unsafe fn doorbells(&self, bytes: usize) -> Result<Doorbells, BusError> {
        // SAFETY: as in `write32`.
        unsafe { self.0.doorbells(bytes) }
    }

    fn mapper(&self) -> Arc<dyn Mapper> {
        self.0.mapper()
    }

    unsafe fn set_bus_mastering(&self, mastering: BusMastering) -> Result<(), BusError> {
        // SAFETY: as in `write32`.
        unsafe { self.0.set_bus_mastering(mastering) }
    }

    fn interrupt_vectors(&self) -> u32 {
        self.0.interrupt_vectors()
    }

    fn set_interrupt(&self, vector: u32, event: Option<BorrowedFd<'_>>) -> Result<(), BusError> {
        self.0.set_interrupt(vector, event)
    }

    fn reset(&self) -> Result<(), BusError> {
        self.0.reset()
    }

    fn poll_event(&self) -> Option<BusEvent> {
        self.0.poll_event()
    }

    fn relax(&self, clock: &Clock) {
        self.0.relax(clock);
    }
}
