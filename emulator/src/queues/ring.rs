#![expect(unsafe_code)]
//! The memory of one queue: entries fetched and posted in host memory.
//!
//! A ring remembers where it lies in the process, together with the generation of the address table for
//! which that is true; a stale translation is renewed before it is used. A completion's last dword, which
//! holds the phase, is stored last and with release (NVMe Base 2.0, 3.3.3.2).
//
// UNSAFETY: reads and writes queue entries through raw pointers, which the address table has proven.

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

// SAFETY:
// - the pointer is used only under the table's read guard and after the generation was compared, by
//   whichever thread runs the device; the memory behind it does not belong to a thread.
unsafe impl Send for Ring {}

impl Ring {
    /// A ring of `entries` entries of 64 (submission) or 16 (completion) bytes at a page-aligned address.
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

    #[cold]
    fn translate(&mut self, dma: &Dma<'_>) -> Result<(), Refused> {
        let bytes = self.entries as usize * self.entry_bytes;
        dma.check(self.iova, bytes, Access::Queue)?;
        self.host = dma.contiguous(self.iova, bytes);
        self.generation = dma.generation();
        Ok(())
    }

    /// Copies the submission entry at `index` (below the size) out of host memory.
    #[inline]
    pub(crate) fn fetch(&self, dma: &Dma<'_>, index: u32) -> Result<SubmissionEntry, Refused> {
        let from = self.locate(dma, index)?.cast::<SubmissionEntry>();
        // SAFETY:
        // - `from` leads to 64 mapped bytes (`locate`), readable until the table's guard is gone;
        // - it is aligned to 64: mappings, rings and entries all are;
        // - every bit pattern is a `SubmissionEntry`, and it is copied out, not referred to.
        Ok(unsafe { from.read_volatile() })
    }

    /// Writes a completion at `index` (below the size), the dword with the phase last.
    #[inline]
    pub(crate) fn post(&self, dma: &Dma<'_>, index: u32, entry: &CompletionEntry) -> Result<(), Refused> {
        let to = self.locate(dma, index)?;
        let result = u64::from(entry.dw1) << 32 | u64::from(entry.dw0);
        // SAFETY: as in `fetch`, for 16 writable bytes; this is the first quadword of the entry.
        unsafe { to.cast::<u64>().write_volatile(result.to_le()) };
        // SAFETY: 8 is inside of the 16 bytes.
        let queue = unsafe { to.add(8) }.cast::<u32>();
        let head_and_id = u32::from(entry.sq_id) << 16 | u32::from(entry.sq_head);
        // SAFETY: as above, for the third dword of the entry.
        unsafe { queue.write_volatile(head_and_id.to_le()) };
        // SAFETY: 4 dwords is the size of the entry, and this is the last of them.
        let last = unsafe { queue.add(1) };
        // SAFETY: aligned and mapped as above; the host looks at this dword as an atomic too.
        let last = unsafe { AtomicU32::from_ptr(last.as_ptr()) };
        // The release store's partner is the host's acquire load of this dword: who sees the phase sees the
        // rest of the entry, and the data that the command has written.
        last.store(entry.dw3().to_le(), Ordering::Release);
        Ok(())
    }

    /// The host address of an entry of 64 or 16 bytes, all of it mapped, aligned to its size.
    #[inline]
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
