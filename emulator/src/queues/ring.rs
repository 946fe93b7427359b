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
use std::sync::atomic::{AtomicU32, Ordering};

use doorbell_spec::{CompletionEntry, Iova, SubmissionEntry};

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
pub(crate) struct View<'a> {
    host: NonNull<u8>,
    entries: u32,
    guard: PhantomData<&'a Dma<'a>>,
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

impl View<'_> {
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
    // SAFETY: the first 8 of the 16 bytes.
    unsafe { to.cast::<u64>().write(result.to_le()) };
    // SAFETY: 8 is inside of the 16 bytes.
    let queue = unsafe { to.add(8) }.cast::<u32>();
    let head_and_id = u32::from(entry.sq_id) << 16 | u32::from(entry.sq_head);
    // SAFETY: the third dword of the entry.
    unsafe { queue.write(head_and_id.to_le()) };
    // SAFETY: the fourth dword of the entry.
    let last = unsafe { queue.add(1) };
    // SAFETY: aligned and mapped, and both sides use this dword as an atomic.
    let last = unsafe { AtomicU32::from_ptr(last.as_ptr()) };
    // The release store's partner is the host's acquire load of this dword: who sees the phase sees the
    // rest of the entry, and the data that the command has written.
    last.store(entry.dw3().to_le(), Ordering::Release);
}
