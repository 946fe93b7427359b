#![expect(unsafe_code)]
//! A transport that notes how much memory there is whenever the controller is disabled: until then, the
//! device may use whatever it was told of.
//
// UNSAFETY: implements unsafe methods, and passes their contract on.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use doorbell::DmaSpace;
use doorbell_spec::register::{CC, Cc};
use doorbell_spec::{BusError, BusEvent, BusMastering, Clock, Doorbells, Identity, Mapper, Transport};

/// A device whose end is looked at.
#[derive(Debug)]
pub(crate) struct Onlooker {
    device: Arc<dyn Transport>,
    space: DmaSpace,
    used_bytes: Mutex<Vec<u64>>,
}

impl Onlooker {
    /// Looks at a device and at the space that its driver uses.
    pub(crate) fn new(device: Arc<dyn Transport>, space: &DmaSpace) -> Arc<Self> {
        Arc::new(Self { device, space: space.clone(), used_bytes: Mutex::default() })
    }

    /// How many bytes of the space were in use each time that the controller was disabled.
    pub(crate) fn used_bytes(&self) -> Vec<u64> {
        self.used_bytes.lock().expect("no panic").clone()
    }
}

impl Transport for Onlooker {
    fn identity(&self) -> Identity {
        self.device.identity()
    }

    fn read32(&self, offset: u32) -> Result<u32, BusError> {
        self.device.read32(offset)
    }

    unsafe fn write32(&self, offset: u32, value: u32) -> Result<(), BusError> {
        if offset == CC && !Cc::from_bits(value).enable() {
            self.used_bytes.lock().expect("no panic").push(self.space.stats().used_bytes);
        }
        // SAFETY: the caller's promise, word for word.
        unsafe { self.device.write32(offset, value) }
    }

    unsafe fn doorbells(&self, bytes: usize) -> Result<Doorbells, BusError> {
        // SAFETY: as in `write32`.
        unsafe { self.device.doorbells(bytes) }
    }

    fn mapper(&self) -> Arc<dyn Mapper> {
        self.device.mapper()
    }

    unsafe fn set_bus_mastering(&self, mastering: BusMastering) -> Result<(), BusError> {
        // SAFETY: as in `write32`.
        unsafe { self.device.set_bus_mastering(mastering) }
    }

    fn interrupt_vectors(&self) -> u32 {
        self.device.interrupt_vectors()
    }

    fn set_interrupt(&self, vector: u32, event: Option<BorrowedFd<'_>>) -> Result<(), BusError> {
        self.device.set_interrupt(vector, event)
    }

    fn reset(&self) -> Result<(), BusError> {
        self.device.reset()
    }

    fn poll_event(&self) -> Option<BusEvent> {
        self.device.poll_event()
    }

    fn relax(&self, clock: &Clock) {
        self.device.relax(clock);
    }
}
