//! The bus: how a controller's registers, doorbells and interrupts are reached.
//!
//! The trait is small so that tracing, recording and faults can wrap it. Nothing on the I/O path calls
//! through it: doorbells are handed out once and then rung by plain stores.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::{Clock, Doorbells, Mapper};

/// A controller on its bus. One value per controller; it owns the device until it is dropped.
///
/// Offsets are those of BAR0 (PCIe Transport 1.0, 3.1). A read of a device that is gone answers
/// all ones, as PCIe does, or [`BusError::Removed`]; both mean the same.
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
    fn write32(&self, offset: u32, value: u32) -> Result<(), BusError>;

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
    fn write64(&self, offset: u32, value: u64) -> Result<(), BusError> {
        #[expect(clippy::cast_possible_truncation)]
        self.write32(offset, value as u32)?;
        self.write32(offset + 4, (value >> 32) as u32)
    }

    /// Maps the doorbell registers: at least `bytes` of BAR0 from offset 0x1000 on.
    ///
    /// # Errors
    /// BAR0 is smaller than that, or cannot be mapped there.
    fn doorbells(&self, bytes: usize) -> Result<Doorbells, BusError>;

    /// The memory side of the bus. Controllers that share one answer clones of one `Arc`.
    fn mapper(&self) -> Arc<dyn Mapper>;

    /// Turns bus mastering (the device's right to DMA) on or off.
    ///
    /// # Errors
    /// The device is gone, or the bus refused.
    fn set_bus_mastering(&self, mastering: BusMastering) -> Result<(), BusError>;

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
