#![expect(unsafe_code)]
//! The software controller as a bus: registers, doorbells, memory and interrupts without a bus.
//
// UNSAFETY: implements unsafe methods; calls nothing unsafe.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use doorbell_spec::register::DOORBELLS;
use doorbell_spec::{BusError, BusEvent, BusMastering, Clock, Doorbells, Identity, Mapper, Transport};

use crate::admin::identify::VENDOR_ID;
use crate::emulator::Emulator;

impl Transport for Emulator {
    fn identity(&self) -> Identity {
        Identity { name: self.name.clone(), vendor_id: VENDOR_ID, device_id: DEVICE_ID, numa_node: None }
    }

    fn read32(&self, offset: u32) -> Result<u32, BusError> {
        check_offset(offset)?;
        let (now, faults) = (self.shared.clock.now(), self.shared.faults.view());
        Ok(self.shared.lock().read_register(offset, now, &self.shared.window, faults))
    }

    unsafe fn write32(&self, offset: u32, value: u32) -> Result<(), BusError> {
        check_offset(offset)?;
        let (now, faults) = (self.shared.clock.now(), self.shared.faults.view());
        self.shared.lock().write_register(offset, value, now, &self.shared.window, faults);
        self.wake();
        Ok(())
    }

    unsafe fn doorbells(&self, bytes: usize) -> Result<Doorbells, BusError> {
        self.shared.window.hand_out(bytes)
    }

    fn mapper(&self) -> Arc<dyn Mapper> {
        Arc::<crate::IovaSpace>::clone(&self.shared.space)
    }

    /// Bus mastering is off until it is turned on, as on a device that nobody has set up yet.
    unsafe fn set_bus_mastering(&self, mastering: BusMastering) -> Result<(), BusError> {
        self.shared.lock().mastering = mastering;
        Ok(())
    }

    fn interrupt_vectors(&self) -> u32 {
        u32::try_from(self.shared.lock().vectors.len()).unwrap_or(0)
    }

    fn set_interrupt(&self, vector: u32, event: Option<BorrowedFd<'_>>) -> Result<(), BusError> {
        let event = match event {
            Some(event) => {
                let owned = event.try_clone_to_owned();
                let action = "keeping the interrupt's eventfd";
                Some(File::from(owned.map_err(|source| BusError::Os { action, source })?))
            }
            None => None,
        };
        let mut device = self.shared.lock();
        let vectors = u32::try_from(device.vectors.len()).unwrap_or(0);
        device.set_vector(vector, event).ok_or(BusError::NoSuchVector { vector, vectors })
    }

    fn reset(&self) -> Result<(), BusError> {
        let mut device = self.shared.lock();
        if device.is_removed {
            return Err(BusError::Removed);
        }
        device.reset_function(&self.shared.window);
        Ok(())
    }

    fn poll_event(&self) -> Option<BusEvent> {
        self.shared.lock().bus_events.pop_front()
    }

    fn relax(&self, clock: &Clock) {
        if self.worker.is_some() {
            self.wake();
            std::thread::sleep(RELAX_THREADED);
            return;
        }
        let mut device = self.shared.lock();
        let done = match self.shared.step(&mut device, 0, RELAX_BUDGET) {
            0 => self.shared.step_again(&mut device, RELAX_BUDGET),
            done => done,
        };
        let due = device.next_due();
        drop(device);
        if clock.is_virtual() {
            // Time always moves, or a wait for something that never comes would never end. It does not jump
            // far, or a wait would find late what it should have given up for.
            let span = match due {
                _ if done > 0 => VIRTUAL_BUSY,
                Some(due) => Duration::from_nanos(due.since(clock.now())).clamp(VIRTUAL_BUSY, VIRTUAL_MAX),
                None => VIRTUAL_IDLE,
            };
            clock.advance(span);
        } else if done == 0 {
            std::thread::yield_now();
        }
    }
}

fn check_offset(offset: u32) -> Result<(), BusError> {
    if offset >= DOORBELLS || !offset.is_multiple_of(4) {
        return Err(BusError::BadOffset { offset, bar_bytes: u64::from(DOORBELLS) });
    }
    Ok(())
}

const DEVICE_ID: u16 = 0x0001;
const RELAX_BUDGET: usize = 64;
/// How far a virtual clock moves when something was done,
const VIRTUAL_BUSY: Duration = Duration::from_micros(5);
/// when nothing is due,
const VIRTUAL_IDLE: Duration = Duration::from_micros(50);
/// and at most when something is.
const VIRTUAL_MAX: Duration = Duration::from_millis(1);
/// How long a waiting host leaves the processor to the controller's thread.
const RELAX_THREADED: Duration = Duration::from_micros(10);
