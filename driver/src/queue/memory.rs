#![expect(unsafe_code)]
//! Memory that the device reads or writes while the driver does: rings and PRP lists.
//!
//! Such memory is seen only as atomics or as copied plain values; no Rust reference to its bytes exists.
//! Every access is checked against the length of the buffer, so that a wrong index is a panic of ours and
//! not a stray write.
//
// UNSAFETY: turns a DMA buffer into a shared view, which safe slices cannot express.

use std::hint::cold_path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use doorbell_hugepages::DmaBuf;
use doorbell_spec::{CompletionEntry, Iova, SubmissionEntry};

use super::entry::Look;

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

    #[cfg(test)]
    fn load_dword(&self, index: usize, order: Ordering) -> u32 {
        debug_assert!(index < self.bytes / 4);
        // SAFETY: callers pass an index inside of the buffer (asserted there).
        let cell = unsafe { self.base.cast::<AtomicU32>().add(index) };
        // SAFETY: aligned to 4 and alive (see `new`); only accessed atomically, or by the device.
        let cell = unsafe { cell.as_ref() };
        cell.load(order)
    }
}

/// A place in a ring of entries that goes round and round.
///
/// Invariant: `next` is the place of an entry from the memory's start on and before `end`, which is at most
/// the end of the memory.
#[derive(Debug)]
struct Cursor<T> {
    next: NonNull<T>,
    end: NonNull<T>,
    memory: SharedMemory,
}

// SAFETY: the pointer leads into the memory, which moves with the cursor; all access is through `&mut self`
// or by atomics.
unsafe impl<T> Send for Cursor<T> {}

impl<T> Cursor<T> {
    fn new(memory: SharedMemory, entries: u32) -> Self {
        let start: NonNull<T> = memory.base.cast();
        let is_within = entries > 0 && entries as usize <= memory.bytes / size_of::<T>();
        assert!(is_within, "a ring beyond its memory");
        // SAFETY: so many entries lie within the memory, which is one allocation.
        let end = unsafe { start.add(entries as usize) };
        Self { next: start, end, memory }
    }

    fn start(&self) -> NonNull<T> {
        self.memory.base.cast()
    }

    /// The index of the next entry.
    #[inline]
    fn index(&self) -> u32 {
        self.distance(self.next)
    }

    #[inline]
    fn distance(&self, to: NonNull<T>) -> u32 {
        let bytes = to.addr().get() - self.start().addr().get();
        #[expect(clippy::cast_possible_truncation, reason = "a ring has at most 65,536 entries")]
        let entries = (bytes / size_of::<T>()) as u32;
        entries
    }

    /// Moves on by one, and round the end.
    #[inline]
    fn advance(&mut self) -> Round {
        // SAFETY: at most one past the last entry, and that only until the next line.
        self.next = unsafe { self.next.add(1) };
        if self.next == self.end {
            cold_path();
            self.next = self.start();
            return Round::Next;
        }
        Round::Same
    }
}

/// Whether a cursor has begun another round of its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    Same,
    Next,
}

/// The entries of a submission queue, written in turn, forever round.
#[derive(Debug)]
pub(crate) struct SubmissionCursor(Cursor<SubmissionEntry>);

impl SubmissionCursor {
    /// The start of a ring of `entries` entries.
    pub(crate) fn new(memory: SharedMemory, entries: u32) -> Self {
        Self(Cursor::new(memory, entries))
    }

    pub(crate) fn memory(&self) -> &SharedMemory {
        &self.0.memory
    }

    /// The index of the next entry.
    #[inline]
    pub(crate) fn index(&self) -> u32 {
        self.0.index()
    }

    /// The next entry's address: tells places apart at less cost than the index.
    #[inline]
    pub(crate) fn address(&self) -> usize {
        self.0.next.addr().get()
    }

    /// Copies an entry into place and moves on. The device looks at it after its doorbell is rung.
    #[inline]
    pub(crate) fn write(&mut self, entry: &SubmissionEntry) {
        // SAFETY:
        // - the place is within the memory (see `Cursor`), valid for writes and aligned to 8 (see `new`);
        // - a device that keeps to the protocol does not read it before the doorbell's release store.
        unsafe { self.0.next.write(*entry) };
        self.0.advance();
    }
}

/// The entries of a completion queue, read in turn, forever round.
#[derive(Debug)]
pub(crate) struct CompletionCursor {
    place: Cursor<[AtomicU32; 4]>,
    /// What the last dword of the next entry is compared with: the phase, and above it whatever else the
    /// queue pair expects (see [`SlotUse`](super::slot::SlotUse)).
    expected: u64,
}

/// The phase tag within the last dword of an entry.
const PHASE: u64 = 1 << 16;

/// The bits that a device writes.
const SAID: u64 = u32::MAX as u64;

impl CompletionCursor {
    pub(crate) fn new(memory: SharedMemory, entries: u32) -> Self {
        Self { place: Cursor::new(memory, entries), expected: PHASE }
    }

    pub(crate) fn memory(&self) -> &SharedMemory {
        &self.place.memory
    }

    /// The index of the next entry to be read.
    #[inline]
    pub(crate) fn index(&self) -> u32 {
        self.place.index()
    }

    /// The next entry's address: tells places apart at less cost than the index.
    #[inline]
    pub(crate) fn address(&self) -> usize {
        self.place.next.addr().get()
    }

    /// Whether the device has written another entry.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        !is_absent(u64::from(self.dwords()[3].load(Ordering::Relaxed)) ^ self.expected)
    }

    /// Expects `bits` above what the device writes: a batch, or [`NEVER`](super::slot::NEVER) as well, but
    /// not the kind of a use: what equals a slot's use is then a plain request, on which `Slot::end_usual`
    /// rests.
    pub(crate) fn expect(&mut self, bits: u64) {
        self.expected = self.expected & SAID | bits & !SAID;
    }

    /// What is expected above what the device writes.
    #[inline]
    pub(crate) fn expected(&self) -> u64 {
        self.expected & !SAID
    }

    /// The last dword of the next entry without its phase, if the device has written it, together with
    /// what is expected above it.
    #[inline]
    pub(crate) fn difference(&self) -> u64 {
        self.difference_of(self.look().last())
    }

    /// A look at the next entry.
    #[inline]
    pub(crate) fn look(&self) -> Look<'_, [AtomicU32; 4]> {
        Look::at(self.dwords())
    }

    /// What [`difference`](Self::difference) is for an entry with this last dword.
    #[inline]
    pub(crate) fn difference_of(&self, last: u32) -> u64 {
        u64::from(last) ^ self.expected
    }

    /// Goes on to the next entry.
    #[inline]
    pub(crate) fn advance(&mut self) {
        // The phase flips each time the ring comes round (NVMe Base 2.0, 3.3.3.2.3).
        if self.place.advance() == Round::Next {
            self.expected ^= PHASE;
        }
    }

    /// The next entry as a whole, if the device has written it.
    pub(crate) fn take(&mut self) -> Option<CompletionEntry> {
        let look = self.look();
        if is_absent(self.difference_of(look.last())) {
            return None;
        }
        let entry = look.entry();
        self.advance();
        Some(entry)
    }

    #[inline]
    fn dwords(&self) -> &[AtomicU32; 4] {
        // SAFETY:
        // - the place is within the memory (see `Cursor`), aligned to 8 and alive (see `new`);
        // - it is only accessed atomically, or by the device.
        unsafe { self.place.next.as_ref() }
    }
}

/// Whether a [`difference`](CompletionCursor::difference) says that the device has written nothing.
#[inline]
pub(crate) fn is_absent(difference: u64) -> bool {
    difference & PHASE != 0
}
