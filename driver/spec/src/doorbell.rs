#![expect(unsafe_code)]
//! Doorbells: the device's notice that a queue has moved (PCIe Transport 1.0, 3.1.2).
//!
//! A doorbell is one dword of memory that the device watches: a register behind a PCIe window, or plain
//! shared memory of the software controller. Both are written the same way, by one release store.
//
// UNSAFETY: a doorbell is kept as a pointer into a mapping that lives as long as the window's keeper.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The doorbell registers of one controller: from offset 0x1000 of BAR0 on.
#[derive(Clone)]
pub struct Doorbells {
    base: NonNull<AtomicU32>,
    words: usize,
    keeper: Arc<dyn Any + Send + Sync>,
}

/// One doorbell. Cheap to copy around within its owner; keeps the mapping alive.
#[derive(Clone)]
pub struct Doorbell {
    cell: NonNull<AtomicU32>,
    _keeper: Arc<dyn Any + Send + Sync>,
}

// SAFETY:
// - the pointers lead to atomics, which any thread may touch;
// - the keeper, which owns the memory, is Send and Sync itself.
unsafe impl Send for Doorbells {}
// SAFETY: as above; all access through a shared reference is atomic.
unsafe impl Sync for Doorbells {}
// SAFETY: as for `Doorbells`.
unsafe impl Send for Doorbell {}
// SAFETY: as for `Doorbells`.
unsafe impl Sync for Doorbell {}

impl Doorbells {
    /// Wraps `words` dwords at `base`, which is offset 0x1000 of the controller's BAR0.
    ///
    /// # Safety
    /// - `base` points to `words` consecutive, aligned dwords that may be read and written as atomics;
    /// - they stay so for as long as `keeper` (or a clone of it) is alive.
    #[must_use]
    pub unsafe fn new(base: NonNull<AtomicU32>, words: usize, keeper: Arc<dyn Any + Send + Sync>) -> Self {
        Self { base, words, keeper }
    }

    /// Doorbells in ordinary memory, for a controller that is made of software.
    #[must_use]
    pub fn in_memory(cells: Arc<[AtomicU32]>) -> Self {
        let base = NonNull::from(&*cells).cast();
        let words = cells.len();
        Self { base, words, keeper: Arc::new(cells) }
    }

    /// How many dwords the window has.
    #[must_use]
    pub fn words(&self) -> usize {
        self.words
    }

    /// The doorbell at dword `index` of the window, or `None` beyond its end.
    #[must_use]
    pub fn at(&self, index: usize) -> Option<Doorbell> {
        if index >= self.words {
            return None;
        }
        // SAFETY: index < words, and the window is one allocation of that many dwords (see `new`).
        let cell = unsafe { self.base.add(index) };
        Some(Doorbell { cell, _keeper: Arc::clone(&self.keeper) })
    }
}

impl Doorbell {
    /// Rings: tells the device the new tail of a submission queue or head of a completion queue.
    ///
    /// Every entry written before is visible to the device when it sees the value. Does not wait for the
    /// device, and does not read the register back.
    #[inline]
    pub fn ring(&self, value: u32) {
        // The release store keeps the entry's stores ahead of the doorbell's. Its partner is the device:
        // the software controller loads the doorbell with acquire; a PCIe device reads the entry by DMA
        // after it has seen the posted write.
        write_barrier();
        // SAFETY: the cell lies in a mapping that `_keeper` keeps alive, see `Doorbells::new`.
        let cell = unsafe { self.cell.as_ref() };
        cell.store(value, Ordering::Release);
    }
}

/// Orders stores to ordinary memory before a following store to device memory.
#[inline]
fn write_barrier() {
    // x86-64 keeps stores in order, to uncached memory too: the release store is enough. On aarch64 a
    // store-release orders only within the inner domain, and a device is outside of it.
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier has no operands and touches no memory of its own.
    unsafe {
        std::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
}

impl fmt::Debug for Doorbells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doorbells").field("words", &self.words).finish_non_exhaustive()
    }
}

impl fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Doorbell")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_reach_the_memory_and_end_with_the_window() {
        let cells: Arc<[AtomicU32]> = (0..4).map(|_| AtomicU32::new(0)).collect();
        let doorbells = Doorbells::in_memory(Arc::clone(&cells));
        let last = doorbells.at(3).expect("inside");
        assert!(doorbells.at(4).is_none());
        drop(doorbells);
        last.ring(7);
        assert_eq!(cells[3].load(Ordering::Acquire), 7);
    }
}
