#![expect(unsafe_code)]
//! One controller behind VFIO.
//
// UNSAFETY: implements unsafe methods; calls nothing unsafe.

use std::fs::File;
use std::hint;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use doorbell_spec::{BusError, BusEvent, BusMastering, Clock, Doorbells, Identity, Mapper, Transport};
use vfio_bindings::bindings::vfio as sys;

use super::config_space::ConfigSpace;
use super::container::VfioMapper;
use super::error::VfioError;
use super::interrupts::Vectors;
use super::region::Region;
use super::registry::{self, Opened, Slot};
use super::{ioctl, window};
use crate::pci::{Machine, PciAddress};

/// An NVMe controller that vfio-pci holds, opened by this process.
///
/// Dropping it takes the right to DMA from the device and closes it; the kernel then resets the function. It
/// does not shut the controller down, and does not unmap memory: that is done by whoever mapped it, or
/// when the last clone of the mapper goes. Doorbells that were handed out may outlive it and keep the
/// device open in the kernel.
#[derive(Debug)]
pub struct VfioTransport {
    identity: Identity,
    /// Counts the kernel's requests to give the device back.
    requests: File,
    bar0: Region,
    config: ConfigSpace,
    vector_count: u32,
    /// Held while interrupts are changed or the function is reset; taken before `command`.
    vectors: Mutex<Vectors>,
    /// Held from reading the command register to writing it.
    command: Mutex<()>,
    // The order of the last three is that of closing: the device's file, its group and container (if this
    // is their last user), and only then may this process open the device again.
    file: File,
    mapper: Arc<VfioMapper>,
    _slot: Slot,
}

impl VfioTransport {
    /// Opens the controller at `address`, which must be bound to vfio-pci (see [`crate::pci::bind`]).
    ///
    /// Afterwards its registers are reachable, INTx and bus mastering are off (the device may still run as
    /// somebody left it); nothing is mapped for DMA yet unless another device of the same group has it. Needs
    /// no privilege beyond access to the group's node. Takes up to a second if the group is busy. Does not
    /// touch NVMe's registers.
    ///
    /// # Errors
    /// There is no such device, it is not an NVMe controller, another driver or process holds it, or its
    /// IOMMU group cannot be used; the error says what mends it.
    pub fn open(address: PciAddress) -> Result<Self, VfioError> {
        let machine = Machine::this();
        let device = machine.controller(address)?;
        let group = device.isolated_group()?.id;
        if !device.is_bound_to_vfio() {
            return Err(VfioError::NotBound { address, driver: device.driver });
        }
        let blockers = machine.blockers(&device, &[address])?;
        if !blockers.is_empty() {
            return Err(VfioError::GroupNotViable { address, group, blockers });
        }
        let identity = Identity {
            name: address.to_string(),
            vendor_id: device.vendor_id,
            device_id: device.device_id,
            numa_node: device.numa_node,
        };
        Self::prepare(address, identity, registry::open(&machine, &device)?)
    }

    fn prepare(address: PciAddress, identity: Identity, opened: Opened) -> Result<Self, VfioError> {
        // In this order, so that a failure drops them in the opposite one: see the fields.
        let Opened { slot, mapper, device } = opened;
        if device.bar0.bytes < BAR0_BYTES_MIN {
            return Err(VfioError::NoRegisters { address, bytes: device.bar0.bytes });
        }
        let failed = |action| move |source| VfioError::Os { address, action, source };
        let requests = ioctl::event().map_err(failed("making an event"))?;
        if device.request_events > 0 {
            ioctl::set_irqs(&device.file, sys::VFIO_PCI_REQ_IRQ_INDEX, 0, &[Some(requests.as_fd())])
                .map_err(failed("asking for removal notices"))?;
        }
        let config = ConfigSpace::at(&device.config);
        config
            .set_command(&device.file, BusMastering::Off)
            .map_err(failed("writing the PCI command register"))?;
        Ok(Self {
            identity,
            requests,
            bar0: device.bar0,
            config,
            vector_count: device.vectors.count(),
            vectors: Mutex::new(device.vectors),
            command: Mutex::new(()),
            file: device.file,
            mapper,
            _slot: slot,
        })
    }

    /// The memory side, with what only VFIO's has.
    #[must_use]
    pub fn vfio_mapper(&self) -> &Arc<VfioMapper> {
        &self.mapper
    }

    /// Where a register lies in the device file.
    fn place(&self, offset: u32) -> Result<u64, BusError> {
        if !offset.is_multiple_of(4) || offset >= REGISTERS_END {
            return Err(BusError::BadOffset { offset, bar_bytes: self.bar0.bytes });
        }
        Ok(self.bar0.offset + u64::from(offset))
    }

    fn error(&self, action: &'static str, source: io::Error) -> BusError {
        let gone = matches!(source.raw_os_error(), Some(libc::ENODEV | libc::ENXIO));
        if gone || self.config.is_gone(&self.file) {
            BusError::Removed
        } else {
            BusError::Os { action, source }
        }
    }

    fn set_command(&self, mastering: BusMastering) -> Result<(), BusError> {
        let _guard = lock(&self.command);
        let written = self.config.set_command(&self.file, mastering);
        written.map_err(|source| self.error("writing the PCI command register", source))
    }
}

impl Transport for VfioTransport {
    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    fn read32(&self, offset: u32) -> Result<u32, BusError> {
        let mut bytes = [0; 4];
        let read = self.file.read_exact_at(&mut bytes, self.place(offset)?);
        read.map_err(|source| self.error("reading a register", source))?;
        Ok(u32::from_le_bytes(bytes))
    }

    unsafe fn write32(&self, offset: u32, value: u32) -> Result<(), BusError> {
        let written = self.file.write_all_at(&value.to_le_bytes(), self.place(offset)?);
        written.map_err(|source| self.error("writing a register", source))
    }

    unsafe fn doorbells(&self, bytes: usize) -> Result<Doorbells, BusError> {
        window::map_doorbells(&self.file, &self.bar0, bytes)
    }

    fn mapper(&self) -> Arc<dyn Mapper> {
        Arc::<VfioMapper>::clone(&self.mapper)
    }

    unsafe fn set_bus_mastering(&self, mastering: BusMastering) -> Result<(), BusError> {
        self.set_command(mastering)
    }

    fn interrupt_vectors(&self) -> u32 {
        self.vector_count
    }

    fn set_interrupt(&self, vector: u32, event: Option<BorrowedFd<'_>>) -> Result<(), BusError> {
        lock(&self.vectors).set(&self.file, vector, event)
    }

    /// Resets the function (VFIO_DEVICE_RESET) and leaves bus mastering off: the caller turns it on when the
    /// controller is ready for it. Interrupts stay connected. Takes up to a second or so.
    fn reset(&self) -> Result<(), BusError> {
        let _guard = lock(&self.vectors);
        // What the kernel saves before the reset it restores afterwards: it is not to restore mastering.
        self.set_command(BusMastering::Off)?;
        let clock = Clock::monotonic();
        let deadline = clock.deadline(RESET_RETRY);
        while let Err(source) = ioctl::reset(&self.file) {
            match source.raw_os_error() {
                // Somebody holds the function's lock for a moment, sysfs for example.
                Some(libc::EAGAIN | libc::EINTR) if !deadline.passed(&clock) => thread::sleep(RESET_PAUSE),
                Some(libc::EINVAL | libc::ENOTTY) => {
                    return Err(BusError::Unsupported { what: "a function reset" });
                }
                _ => return Err(self.error("resetting the function", source)),
            }
        }
        self.set_command(BusMastering::Off)
    }

    /// Makes one system call. Never answers [`BusEvent::Removed`]: a device that is gone shows itself in its
    /// registers.
    fn poll_event(&self) -> Option<BusEvent> {
        // The kernel fills all eight bytes, or says that it would block: then nobody has asked.
        let asked = (&self.requests).read_exact(&mut [0; 8]).is_ok();
        asked.then_some(BusEvent::RemovalRequested)
    }

    fn relax(&self, clock: &Clock) {
        // Most answers of a device come within some microseconds: less than it takes to fall asleep.
        for _ in 0..SPINS {
            hint::spin_loop();
        }
        thread::sleep(PAUSE);
        // Moves only a virtual clock, so that a wait ends under one as well.
        clock.advance(PAUSE);
    }
}

impl Drop for VfioTransport {
    fn drop(&mut self) {
        // On a device that is gone this fails, and there is nothing left to stop.
        if let Err(error) = self.set_command(BusMastering::Off) {
            tracing::debug!(device = self.identity.name, %error, "bus mastering could not be turned off");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What the locks guard is valid after every step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The controller registers end where the doorbells start (PCIe Transport 1.0, 3.1).
const REGISTERS_END: u32 = 0x1000;
/// Registers, and the two doorbells of the admin queue.
const BAR0_BYTES_MIN: u64 = 0x1008;
const SPINS: u32 = 200;
const PAUSE: Duration = Duration::from_micros(50);
const RESET_RETRY: Duration = Duration::from_secs(1);
const RESET_PAUSE: Duration = Duration::from_millis(1);
