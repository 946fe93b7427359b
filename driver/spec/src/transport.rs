#![expect(unsafe_code)]
//! The bus: how a controller's registers, doorbells and interrupts are reached.
//!
//! The trait is small so that tracing, recording and faults can wrap it. Nothing on the I/O path calls
//! through it: doorbells are handed out once and then rung by plain stores.
//
// UNSAFETY: declares unsafe methods, whose contract is which memory a device may write; one calls another.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::{Clock, Doorbells, Mapper};

/// A controller on its bus. One value per controller; it owns the device until it is dropped.
///
/// Offsets are those of BAR0 (PCIe Transport 1.0, 3.1). A read of a device that is gone answers
/// all ones, as PCIe does, or [`BusError::Removed`]; both mean the same.
///
/// # Memory
/// A device writes memory by itself, at addresses that it was told: in registers, and in entries of queues.
/// So what tells a device something is `unsafe`: registers, doorbells and the right to DMA. The rest is not.
///
/// **A caller** of those guarantees, from the call on until the device has been disabled (CSTS.RDY is 0 after
/// CC.EN was cleared) or reset, or its memory was taken back (see [`Mapper::unmap`]):
///
/// * *nobody else drives the device*: no other code writes its registers or rings its doorbells;
/// * *every address that the device is given is of memory kept for it*: memory that [`Transport::mapper`]
///   has mapped, which is neither freed nor lent to anybody while the device may access it; or it is an
///   address at which nothing is mapped, nor will be.
///
/// **An implementor** guarantees:
///
/// * a call does what is written here to the one device, and nothing else makes that device access memory;
/// * what a caller frees memory by is true: what CC and CSTS read as, and `Ok` of [`Transport::reset`];
/// * [`Transport::mapper`] answers the one thing that translates the device's addresses;
/// * a new transport's device has no right to DMA: whoever had it before may have left it running.
///
/// Whoever wraps a transport passes the guarantees of its own caller on, and sees to it that there is one
/// caller: two wrappers of one device are two drivers. Safe code can read registers:
///
/// ```
/// fn look(device: &dyn doorbell_spec::Transport) -> bool {
///     device.read32(doorbell_spec::register::CC).is_ok()
/// }
/// ```
/// ```compile_fail,E0133
/// fn stray(device: &dyn doorbell_spec::Transport) -> bool {
///     device.write32(doorbell_spec::register::CC, 1).is_ok()
/// }
/// ```
/// ```compile_fail,E0133
/// fn stray(device: &dyn doorbell_spec::Transport) {
///     device.doorbells(8).unwrap().at(0).unwrap().ring(1);
/// }
/// ```
pub trait Transport: Send + Sync + fmt::Debug {
    /// What and where the device is.
    fn identity(&self) -> Identity;

    /// Reads the dword at `offset` (a multiple of 4, below 0x1000).
    ///
    /// # Errors
    /// The device is gone, or the bus refused.
    fn read32(&self, offset: u32) -> Result<u32, BusError>;

    /// Writes the dword at `offset` (a multiple of 4, below 0x1000). Does not wait for its effect.
    ///
    /// # Errors
    /// The device is gone, or the bus refused.
    ///
    /// # Safety
    /// - the caller alone drives the device;
    /// - whatever memory the device accesses because of the write is kept for it: at the addresses in ASQ and
    ///   ACQ, when CC enables it, there are the whole queues that AQA tells of.
    ///
    /// The implementor writes this register of this device, and no other. See "Memory" above.
    unsafe fn write32(&self, offset: u32, value: u32) -> Result<(), BusError>;

    /// Reads a 64-bit register as two dwords, the low one first (PCIe Transport 1.0, 3.1: allowed).
    ///
    /// # Errors
    /// As [`Transport::read32`].
    fn read64(&self, offset: u32) -> Result<u64, BusError> {
        let low = self.read32(offset)?;
        let high = self.read32(offset + 4)?;
        Ok(u64::from(high) << 32 | u64::from(low))
    }

    /// Writes a 64-bit register as two dwords, the low one first.
    ///
    /// # Errors
    /// As [`Transport::write32`].
    ///
    /// # Safety
    /// As [`Transport::write32`], of both halves.
    unsafe fn write64(&self, offset: u32, value: u64) -> Result<(), BusError> {
        #[expect(clippy::cast_possible_truncation)]
        let low = value as u32;
        // SAFETY: the caller's promise, which is about both halves.
        unsafe { self.write32(offset, low)? };
        // SAFETY: as above.
        unsafe { self.write32(offset + 4, (value >> 32) as u32) }
    }

    /// Maps the doorbell registers: at least `bytes` of BAR0 from offset 0x1000 on.
    ///
    /// # Errors
    /// BAR0 is smaller than that, or cannot be mapped there.
    ///
    /// # Safety
    /// [`Doorbell::ring`](crate::Doorbell::ring) is safe, so its caller is vouched for here. As long as one
    /// of these doorbells may be rung:
    /// - the caller alone drives the device;
    /// - a submission queue's tail is only moved past entries that stand in the queue, and all memory that
    ///   they name is kept for the device until they have completed;
    /// - a completion queue's head is only moved past completions that have been read.
    ///
    /// The implementor hands out this device's doorbells, and no other's. See "Memory" above.
    unsafe fn doorbells(&self, bytes: usize) -> Result<Doorbells, BusError>;

    /// The memory side of the bus. Controllers that share one answer clones of one `Arc`.
    fn mapper(&self) -> Arc<dyn Mapper>;

    /// Turns bus mastering (the device's right to DMA) on or off. It is off in a new transport.
    ///
    /// # Errors
    /// The device is gone, or the bus refused.
    ///
    /// # Safety
    /// It may always be turned off. To turn it on:
    /// - the caller alone drives the device;
    /// - the device is disabled, or whatever it was told by anybody since it last was is true now: its next
    ///   access of memory may be one that it was told to make long ago.
    ///
    /// The implementor guarantees that the device accesses no memory while it is off. See "Memory" above.
    unsafe fn set_bus_mastering(&self, mastering: BusMastering) -> Result<(), BusError>;

    /// How many interrupt vectors the device has; 0 if none can be used.
    fn interrupt_vectors(&self) -> u32;

    /// Signals `event` (an eventfd) whenever `vector` fires, or stops doing so with `None`.
    ///
    /// # Errors
    /// There is no such vector, or the bus refused.
    fn set_interrupt(&self, vector: u32, event: Option<BorrowedFd<'_>>) -> Result<(), BusError>;

    /// Resets the function. All registers are back at their defaults and all DMA has ended when it
    /// returns `Ok`. Does not bring the controller up again.
    ///
    /// Safe, since a device that has forgotten everything accesses nothing; but not kind to a driver, whose
    /// requests fail.
    ///
    /// # Errors
    /// The device is gone or cannot be reset.
    fn reset(&self) -> Result<(), BusError>;

    /// The next thing that happened to the device as a whole, if any. Never waits.
    fn poll_event(&self) -> Option<BusEvent>;

    /// Called between two looks of a wait on the control plane, never on the I/O path.
    ///
    /// A device made of software that shares the caller's thread moves here, and moves a virtual clock; a
    /// real one lets some microseconds pass.
    fn relax(&self, clock: &Clock);
}

/// What a device is, for logs, `list` and the choice of quirks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The target as the user would type it, such as `0000:01:00.0` or `emu:`.
    pub name: String,
    /// PCI vendor ID.
    pub vendor_id: u16,
    /// PCI device ID.
    pub device_id: u16,
    /// The NUMA node that the device hangs on, where it is known.
    pub numa_node: Option<u32>,
}

/// Whether the device may access memory by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusMastering {
    /// It may.
    On,
    /// It may not: every DMA access fails.
    Off,
}

/// Something that happened to the device as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BusEvent {
    /// Somebody asked for the device back (hot removal, unbind): close it soon.
    RemovalRequested,
    /// The device is gone.
    Removed,
}

/// Why the bus did not do as asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BusError {
    /// The device is gone.
    #[error("the device was removed")]
    Removed,
    /// A register outside of BAR0, or not aligned.
    #[error(
        "register offset {offset:#x} is outside of BAR0 ({bar_bytes:#x} bytes), or not aligned to 4 bytes"
    )]
    BadOffset {
        /// The offset asked for.
        offset: u32,
        /// The size of the window.
        bar_bytes: u64,
    },
    /// The doorbells do not fit into BAR0.
    #[error("BAR0 can map {have_bytes} bytes of doorbells, but {need_bytes} are needed for this many queues")]
    DoorbellWindow {
        /// What is needed.
        need_bytes: usize,
        /// What is there.
        have_bytes: usize,
    },
    /// There is no such interrupt vector.
    #[error("interrupt vector {vector} does not exist: the device has {vectors}")]
    NoSuchVector {
        /// The vector asked for.
        vector: u32,
        /// How many there are.
        vectors: u32,
    },
    /// The bus cannot do this at all.
    #[error("{what} is not possible on this device")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
    },
    /// The operating system refused.
    #[error("{action} failed")]
    Os {
        /// What was tried.
        action: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}
