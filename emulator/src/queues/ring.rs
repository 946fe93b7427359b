#![expect(unsafe_code)]
//! The memory of one queue: entries fetched and posted in host memory. A page of shadow doorbells is a ring
//! of dwords here, of which each is looked at alone.
//!
//! A ring remembers where it lies in the process, together with the generation of the address table for
//! which that is true; a stale translation is renewed before it is used. A completion's last dword, which
//! holds the phase, is stored last and with release (NVMe Base 2.0, 3.3.3.2).
//
// UNSAFETY: reads and writes queue entries through raw pointers, which the address table has proven.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use doorbell_spec::{CompletionEntry, Iova, SubmissionEntry};

use crate::iova::Table;
use crate::iova::access::{Access, Dma, Refused};

/// Where the entries of a queue are.
#[derive(Debug)]
pub(crate) struct Ring {
    iova: Iova,
    entries: u32,
    entry_bytes: usize,
    /// The whole ring in the process, if it lies in one mapping.
    host: Option<NonNull<u8>>,
    /// The generation for which `host` is right.
    generation: u64,
}

/// A ring in one mapping, for as long as the address table is held.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    host: NonNull<u8>,
    entries: u32,
    guard: PhantomData<&'a ()>,
}

// SAFETY:
// - the pointer is used only under the table's read guard and after the generation was compared, by
//   whichever thread runs the device; the memory behind it does not belong to a thread.
unsafe impl Send for Ring {}

impl Ring {
    /// A ring of `entries` entries of 64 (submission), 16 (completion) or 4 (doorbells) bytes at a
    /// page-aligned address.
    pub(crate) fn new(iova: Iova, entries: u32, entry_bytes: usize) -> Self {
        Self { iova, entries, entry_bytes, host: None, generation: u64::MAX }
    }

    /// How many entries there are.
    #[inline]
    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    /// Renews the translation if mappings have changed. Refused: part of the ring is not mapped.
    #[inline]
    pub(crate) fn refresh(&mut self, dma: &Dma<'_>) -> Result<(), Refused> {
        if self.generation == dma.generation() { Ok(()) } else { self.translate(dma) }
    }

    /// The ring for a burst of entries, `None` if it lies in several mappings.
    #[inline]
    pub(crate) fn view<'a>(&mut self, dma: &'a Dma<'_>) -> Result<Option<View<'a>>, Refused> {
        self.refresh(dma)?;
        Ok(self.host.map(|host| View { host, entries: self.entries, guard: PhantomData }))
    }

    /// The same without renewing the translation; `None` if that would be necessary.
    #[inline]
    pub(crate) fn view_in<'a>(&self, table: &'a Table) -> Option<View<'a>> {
        if self.generation != table.generation() {
            return None;
        }
        let host = self.host?;
        Some(View { host, entries: self.entries, guard: PhantomData })
    }

    #[cold]
    fn translate(&mut self, dma: &Dma<'_>) -> Result<(), Refused> {
        let bytes = self.entries as usize * self.entry_bytes;
        dma.check(self.iova, bytes, Access::Queue)?;
        self.host = dma.contiguous(self.iova, bytes);
        self.generation = dma.generation();
        Ok(())
    }

    /// Whether all of the ring is mapped.
    pub(crate) fn is_mapped(&self, dma: &Dma<'_>) -> bool {
        dma.covers(self.iova, self.entries as usize * self.entry_bytes)
    }

    /// Copies the submission entry at `index` (below the size) out of host memory.
    pub(crate) fn fetch(&self, dma: &Dma<'_>, index: u32) -> Result<SubmissionEntry, Refused> {
        let from = self.locate(dma, index)?;
        // SAFETY: `locate` answers the address of an entry of this ring, 64 bytes for this kind of queue.
        Ok(unsafe { fetch_at(from) })
    }

    /// Writes a completion at `index` (below the size), the dword with the phase last.
    pub(crate) fn post(&self, dma: &Dma<'_>, index: u32, entry: &CompletionEntry) -> Result<(), Refused> {
        let to = self.locate(dma, index)?;
        // SAFETY: `locate` answers the address of an entry of this ring, 16 bytes for this kind of queue.
        unsafe { post_at(to, entry) };
        Ok(())
    }

    /// The dword at `index` of a ring of dwords; `None` beyond its end, or if it is not mapped.
    pub(crate) fn dword<'a>(&self, dma: &'a Dma<'_>, index: usize) -> Option<&'a AtomicU32> {
        let index = u32::try_from(index).ok().filter(|index| *index < self.entries)?;
        let at = self.locate(dma, index).ok()?.cast::<u32>();
        // SAFETY:
        // - `locate` answers the address of an entry of this ring, which is a dword, aligned to its size;
        // - it stays mapped while the table's guard is held, which `dma` borrows;
        // - both sides use these dwords as atomics.
        Some(unsafe { AtomicU32::from_ptr(at.as_ptr()) })
    }

    /// The host address of an entry, all of it mapped, aligned to its size.
    fn locate(&self, dma: &Dma<'_>, index: u32) -> Result<NonNull<u8>, Refused> {
        let offset = index as usize * self.entry_bytes;
        if index < self.entries
            && self.generation == dma.generation()
            && let Some(host) = self.host
        {
            // SAFETY: index < entries, so that the entry is inside the ring, which is one mapping.
            return Ok(unsafe { host.add(offset) });
        }
        self.locate_apart(dma, offset)
    }

    /// The same for a ring that lies in several mappings. An entry never does: mappings are whole pages.
    #[cold]
    fn locate_apart(&self, dma: &Dma<'_>, offset: usize) -> Result<NonNull<u8>, Refused> {
        let iova = self.iova.offset(offset as u64);
        dma.check(iova, self.entry_bytes, Access::Queue)?;
        dma.contiguous(iova, self.entry_bytes).ok_or(Refused)
    }
}

/// The words of a read or write that say what it is, taken without the rest of the entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peek {
    /// The first eight bytes: opcode, flags, identifier, namespace.
    pub(crate) first: u64,
    /// CDW10 and CDW11.
    pub(crate) lba: u64,
    /// CDW12 and CDW13.
    length: u64,
}

impl Peek {
    #[inline]
    pub(crate) fn opcode(&self) -> usize {
        (self.first & 0xff) as usize
    }

    #[inline]
    pub(crate) fn cid(&self) -> u32 {
        (self.first >> 16 & 0xffff) as u32
    }

    /// The number of blocks, zero-based.
    #[inline]
    pub(crate) fn blocks_z(&self) -> u64 {
        self.length & 0xffff
    }

    /// The same words of an entry that was copied.
    #[cfg(test)]
    pub(crate) fn of(entry: &SubmissionEntry) -> Self {
        let bytes = zerocopy::IntoBytes::as_bytes(entry);
        // SAFETY: the entry is 64 bytes, aligned to eight.
        unsafe { peek_at(NonNull::from(bytes).cast()) }
    }
}

impl View<'_> {
    /// Takes the words of the submission entry at `index` that a read or write is made of; `None` beyond
    /// the ring's end.
    #[inline]
    pub(crate) fn peek(&self, index: u32) -> Option<Peek> {
        if index >= self.entries {
            return None;
        }
        // SAFETY: index < entries, and the ring is one mapping for as long as the guard lives.
        let from = unsafe { self.host.add(index as usize * size_of::<SubmissionEntry>()) };
        // SAFETY: as above; the view was made of a ring of 64-byte entries, aligned to pages.
        Some(unsafe { peek_at(from) })
    }

    /// Copies the submission entry at `index` out of host memory; `None` beyond the ring's end.
    #[inline]
    pub(crate) fn fetch(&self, index: u32) -> Option<SubmissionEntry> {
        if index >= self.entries {
            return None;
        }
        // SAFETY: index < entries, and the ring is one mapping for as long as the guard lives.
        let from = unsafe { self.host.add(index as usize * size_of::<SubmissionEntry>()) };
        // SAFETY: as above; the view was made of a ring of 64-byte entries.
        Some(unsafe { fetch_at(from) })
    }

    /// Writes a completion at `index`; `None` beyond the ring's end.
    #[inline]
    pub(crate) fn post(&self, index: u32, entry: &CompletionEntry) -> Option<()> {
        if index >= self.entries {
            return None;
        }
        // SAFETY: index < entries, and the ring is one mapping for as long as the guard lives.
        let to = unsafe { self.host.add(index as usize * size_of::<CompletionEntry>()) };
        // SAFETY: as above; the view was made of a ring of 16-byte entries at least.
        unsafe { post_at(to, entry) };
        Some(())
    }

    /// The same for a command that has succeeded without a result: the third and the fourth dword.
    #[inline]
    pub(crate) fn post_done(&self, index: u32, dw2: u32, dw3: u32) -> Option<()> {
        if index >= self.entries {
            return None;
        }
        // SAFETY: index < entries, and the ring is one mapping for as long as the guard lives.
        let to = unsafe { self.host.add(index as usize * size_of::<CompletionEntry>()) };
        // SAFETY: as above; the view was made of a ring of 16-byte entries at least.
        unsafe { post_dwords(to, 0, dw2, dw3) };
        Some(())
    }
}

/// Takes three words of an entry, each once.
///
/// # Safety
/// `from` leads to 64 readable bytes, aligned to eight.
#[inline]
unsafe fn peek_at(from: NonNull<u8>) -> Peek {
    // SAFETY: the first of the eight words.
    let first = unsafe { word_at(from, 0) };
    // SAFETY: the sixth of them.
    let lba = unsafe { word_at(from, 40) };
    // SAFETY: the seventh of them.
    let length = unsafe { word_at(from, 48) };
    Peek { first, lba, length }
}

/// Loads a word that the host may be writing. It was ordered after the doorbell by the acquire load that
/// announced the entry.
///
/// # Safety
/// `from + offset` leads to eight readable bytes, aligned to eight.
#[inline]
unsafe fn word_at(from: NonNull<u8>, offset: usize) -> u64 {
    // SAFETY: the caller guarantees that it is inside of the same memory.
    let word = unsafe { from.add(offset) }.cast::<u64>();
    // SAFETY: the caller guarantees that it is mapped and aligned; nobody holds a reference to host memory.
    let word = unsafe { AtomicU64::from_ptr(word.as_ptr()) };
    u64::from_le(word.load(Ordering::Relaxed))
}

/// Copies an entry out.
///
/// # Safety
/// `from` leads to 64 readable bytes.
#[inline]
unsafe fn fetch_at(from: NonNull<u8>) -> SubmissionEntry {
    let mut entry = MaybeUninit::<SubmissionEntry>::uninit();
    let to = entry.as_mut_ptr().cast::<u8>();
    // SAFETY:
    // - the caller guarantees the source, the local the target, and host memory is apart from it;
    // - the copy was ordered after the doorbell by the acquire load that announced the entry.
    unsafe { from.as_ptr().copy_to_nonoverlapping(to, size_of::<SubmissionEntry>()) };
    // SAFETY: all 64 bytes are written, and every bit pattern is an entry.
    unsafe { entry.assume_init() }
}

/// Writes an entry, the dword with the phase last.
///
/// # Safety
/// `to` leads to 16 writable bytes, aligned to 16, of which the host reads the last four as an atomic.
#[inline]
unsafe fn post_at(to: NonNull<u8>, entry: &CompletionEntry) {
    let result = u64::from(entry.dw1) << 32 | u64::from(entry.dw0);
    // SAFETY: as promised by the caller.
    unsafe { post_dwords(to, result, entry.dw2(), entry.dw3()) };
}

/// Writes an entry, the last dword last.
///
/// # Safety
/// As for `post_at`.
#[inline]
unsafe fn post_dwords(to: NonNull<u8>, result: u64, dw2: u32, dw3: u32) {
    // SAFETY: the first 8 of the 16 bytes.
    unsafe { to.cast::<u64>().write(result.to_le()) };
    // SAFETY: 8 is inside of the 16 bytes.
    let queue = unsafe { to.add(8) }.cast::<u32>();
    // SAFETY: the third dword of the entry.
    unsafe { queue.write(dw2.to_le()) };
    // SAFETY: the fourth dword of the entry.
    let last = unsafe { queue.add(1) };
    // SAFETY: aligned and mapped, and both sides use this dword as an atomic.
    let last = unsafe { AtomicU32::from_ptr(last.as_ptr()) };
    // The release store's partner is the host's acquire load of this dword: who sees the phase sees the
    // rest of the entry, and the data that the command has written.
    last.store(dw3.to_le(), Ordering::Release);
}
