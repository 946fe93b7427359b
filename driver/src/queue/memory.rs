#![expect(unsafe_code)]
//! Memory that the device reads or writes while the driver does: rings and PRP lists.
//!
//! Such memory is seen only as atomics or as copied plain values; no Rust reference to its bytes exists.
//! Every access is checked against the length of the buffer, so that a wrong index is a panic of ours and
//! not a stray write.
//
// UNSAFETY: turns a DMA buffer into a shared view, which safe slices cannot express.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use doorbell_hugepages::DmaBuf;
use doorbell_spec::{CompletionEntry, Iova, SubmissionEntry};

/// A DMA buffer shared with the device, seen from the first multiple of `alignment` in it on.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    base: NonNull<u8>,
    bytes: usize,
    iova: Iova,
    memory: Arc<DmaBuf>,
}

// SAFETY:
// - the memory belongs to this value alone on the host's side, and moves with it;
// - all access goes through `&self` methods that use atomics, or `&mut self`.
unsafe impl Send for SharedMemory {}

impl SharedMemory {
    /// Takes a buffer over. Its view starts at the first address that is a multiple of `alignment` (a
    /// power of two) for the device, and is `None` if the buffer is too short for `bytes` from there.
    pub(crate) fn new(memory: DmaBuf, bytes: usize, alignment: usize) -> Option<Self> {
        let start = memory.iova().0;
        let skip = usize::try_from(start.next_multiple_of(alignment as u64) - start).ok()?;
        let end = skip.checked_add(bytes)?;
        if end > memory.len() || !skip.is_multiple_of(8) || !memory.as_ptr().addr().get().is_multiple_of(8) {
            return None;
        }
        // SAFETY: skip <= end <= the length of the buffer, which is one allocation.
        let base = unsafe { memory.as_ptr().add(skip) };
        Some(Self { base, bytes, iova: memory.iova().offset(skip as u64), memory: Arc::new(memory) })
    }

    /// Where the device sees the first byte.
    pub(crate) fn iova(&self) -> Iova {
        self.iova
    }

    /// A share of the memory's ownership: while it exists, the memory is not freed.
    pub(crate) fn keeper(&self) -> Arc<DmaBuf> {
        Arc::clone(&self.memory)
    }

    /// Stores a qword (index in qwords), in no order to other stores.
    #[inline]
    pub(crate) fn store_qword(&self, index: usize, value: u64) {
        assert!(index < self.bytes / 8, "qword {index} is beyond the shared memory");
        // SAFETY: inside of the buffer by the assertion.
        let cell = unsafe { self.base.cast::<AtomicU64>().add(index) };
        // SAFETY: aligned to 8 and alive (see `new`); only accessed atomically, or by the device.
        let cell = unsafe { cell.as_ref() };
        cell.store(value, Ordering::Relaxed);
    }

    /// Loads a qword (index in qwords): what the device would see.
    #[cfg(test)]
    pub(crate) fn load_qword(&self, index: usize) -> u64 {
        let half = |at| u64::from(self.load_dword(index * 2 + at, Ordering::Relaxed));
        half(1) << 32 | half(0)
    }

    /// Loads a dword (index in dwords), in no order to other loads.
    #[inline]
    fn load_dword(&self, index: usize, order: Ordering) -> u32 {
        debug_assert!(index < self.bytes / 4);
        // SAFETY: callers pass an index inside of the buffer (asserted there).
        let cell = unsafe { self.base.cast::<AtomicU32>().add(index) };
        // SAFETY: aligned to 4 and alive (see `new`); only accessed atomically, or by the device.
        let cell = unsafe { cell.as_ref() };
        cell.load(order)
    }

    /// Copies a submission entry into place `index`. The device looks at it after its doorbell is rung.
    #[inline]
    pub(crate) fn write_submission(&mut self, index: usize, entry: &SubmissionEntry) {
        assert!(
            index < self.bytes / size_of::<SubmissionEntry>(),
            "submission entry {index} is beyond the ring"
        );
        // SAFETY: inside of the buffer by the assertion.
        let place = unsafe { self.base.cast::<SubmissionEntry>().add(index) };
        // SAFETY:
        // - the place is valid for writes and aligned to 8 (see `new`);
        // - a device that keeps to the protocol does not read it before the doorbell's release store.
        unsafe { place.write(*entry) };
    }

    /// Reads completion entry `index` if its phase tag equals `phase`.
    #[inline]
    pub(crate) fn read_completion(&self, index: usize, phase: bool) -> Option<CompletionEntry> {
        assert!(
            index < self.bytes / size_of::<CompletionEntry>(),
            "completion entry {index} is beyond the ring"
        );
        // The acquire load keeps the loads of the other dwords behind that of the phase tag: the device
        // writes the dword with the tag last (NVMe Base 2.0, 3.3.3.2), the software controller by a
        // release store.
        let dw3 = self.load_dword(index * 4 + 3, Ordering::Acquire);
        if (dw3 >> 16 & 1 == 1) != phase {
            return None;
        }
        let dword = |at| self.load_dword(index * 4 + at, Ordering::Relaxed);
        Some(CompletionEntry::from_dwords(dword(0), dword(1), dword(2), dw3))
    }
}
