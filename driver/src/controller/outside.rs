#![expect(unsafe_code)]
//! The transport as others may use it: to look, to wait and to be woken.
//!
//! Whoever writes registers or changes mappings decides which memory the device writes, which is the business
//! of the driver alone while it runs the controller: safe code must not be able to point the device at the
//! memory of somebody else's buffer.
//
// UNSAFETY: implements the unsafe `Mapper::map`, which does nothing here.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use doorbell_spec::{
    BusError, BusEvent, BusMastering, Clock, Doorbells, HostRegion, Identity, Iova, MapError, Mapper,
    MapperLimits, Transport,
};

/// A view of a transport that changes nothing about what the device does.
#[derive(Debug)]
pub(super) struct Outside(pub(super) Arc<dyn Transport>);

/// A view of a mapper that maps nothing.
#[derive(Debug)]
struct NoMapper(Arc<dyn Mapper>);

impl Transport for Outside {
    fn identity(&self) -> Identity {
        self.0.identity()
    }

    fn read32(&self, offset: u32) -> Result<u32, BusError> {
        self.0.read32(offset)
    }

    fn read64(&self, offset: u32) -> Result<u64, BusError> {
        self.0.read64(offset)
    }

    fn write32(&self, _offset: u32, _value: u32) -> Result<(), BusError> {
        refused("writing a register while the driver runs the controller")
    }

    fn write64(&self, _offset: u32, _value: u64) -> Result<(), BusError> {
        refused("writing a register while the driver runs the controller")
    }

    fn doorbells(&self, _bytes: usize) -> Result<Doorbells, BusError> {
        refused("ringing doorbells while the driver runs the controller")
    }

    fn mapper(&self) -> Arc<dyn Mapper> {
        Arc::new(NoMapper(self.0.mapper()))
    }

    fn set_bus_mastering(&self, _mastering: BusMastering) -> Result<(), BusError> {
        refused("changing bus mastering while the driver runs the controller")
    }

    fn interrupt_vectors(&self) -> u32 {
        self.0.interrupt_vectors()
    }

    fn set_interrupt(&self, vector: u32, event: Option<BorrowedFd<'_>>) -> Result<(), BusError> {
        self.0.set_interrupt(vector, event)
    }

    fn reset(&self) -> Result<(), BusError> {
        refused("a reset while the driver runs the controller")
    }

    /// Events go to `Controller::poll_event`, which must not miss one.
    fn poll_event(&self) -> Option<BusEvent> {
        None
    }

    fn relax(&self, clock: &Clock) {
        self.0.relax(clock);
    }
}

fn refused<T>(what: &'static str) -> Result<T, BusError> {
    Err(BusError::Unsupported { what })
}

impl Mapper for NoMapper {
    fn limits(&self) -> MapperLimits {
        self.0.limits()
    }

    unsafe fn map(&self, _iova: Iova, _region: HostRegion<'_>) -> Result<(), MapError> {
        Err(MapError::EntryLimit { limit: 0 })
    }

    fn unmap(&self, iova: Iova, bytes: usize) -> Result<(), MapError> {
        Err(MapError::NotMapped { iova, bytes })
    }
}
