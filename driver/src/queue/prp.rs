//! Physical Region Pages: how a command names its memory (NVMe Base 2.0, 4.1.1).
//!
//! The first entry may have an offset into its page, every other entry is a whole page. One entry goes
//! into PRP1; a second into PRP2; more than two into a list that PRP2 points to. A list that does not fit
//! into a page ends with a pointer to the next one.
//!
//! Every slot has one list page of its own; longer lists take further pages from a bounded pool. Lists lie
//! in DMA memory. What is unused holds [`POISON`], so that a device that reads too far faults at the IOMMU
//! and does not find yesterday's buffer.

use std::sync::Arc;

use doorbell_hugepages::DmaBuf;
use doorbell_spec::Iova;

use super::ids::SlotIndex;
use super::memory::SharedMemory;
use crate::buffer::{Segment, Segments};

/// An address that no IOMMU translates and no machine has.
pub(crate) const POISON: u64 = 0xffff_ffff_ffff_f000;

/// A part of a request's memory: `bytes` from `offset` on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataRange<'a> {
    pub(crate) segments: Segments<'a>,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// The two data pointers of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataPointer {
    pub(crate) prp1: u64,
    pub(crate) prp2: u64,
    /// The first of the extra list pages that the command holds, or [`NO_PAGE`].
    pub(crate) chain: u16,
}

/// No extra list page.
pub(crate) const NO_PAGE: u16 = u16::MAX;

impl DataPointer {
    /// A command without data.
    pub(crate) const NONE: Self = Self { prp1: 0, prp2: 0, chain: NO_PAGE };
}

/// The list pages of one queue.
#[derive(Debug)]
pub(crate) struct PrpLists {
    memory: SharedMemory,
    page_bytes: u64,
    slots: usize,
    /// For each extra page the one after it: in the free list, or in a command's chain.
    next: Box<[u16]>,
    free: u16,
    free_count: usize,
}

impl PrpLists {
    /// Bytes of memory for one page a slot and `extra` further ones.
    pub(crate) fn memory_bytes(slots: u16, extra: u16, page_bytes: u64) -> usize {
        (usize::from(slots) + usize::from(extra)) * usize::try_from(page_bytes).unwrap_or(usize::MAX)
    }

    /// Lists in `memory`, which is aligned to a page and has [`PrpLists::memory_bytes`].
    pub(crate) fn new(memory: SharedMemory, slots: u16, extra: u16, page_bytes: u64) -> Self {
        let next = (0..extra).map(|page| if page + 1 == extra { NO_PAGE } else { page + 1 }).collect();
        let free = if extra == 0 { NO_PAGE } else { 0 };
        Self { memory, page_bytes, slots: usize::from(slots), next, free, free_count: usize::from(extra) }
    }

    /// Keeps the lists' memory from being freed.
    pub(crate) fn keeper(&self) -> Arc<DmaBuf> {
        self.memory.keeper()
    }

    /// The most bytes that a command can be given now, from `iova` on, with the list pages that are free.
    pub(crate) fn bytes_max(&self, iova: Iova) -> u64 {
        let per_page = self.page_bytes / 8;
        // A chain of n pages spends an entry of each but the last on the pointer to the next.
        let entries = (self.free_count as u64 + 1) * (per_page - 1) + 1;
        let in_first_page = self.page_bytes - iova.0 % self.page_bytes;
        in_first_page + entries * self.page_bytes
    }

    /// Describes `data` for the command in `slot`. The caller has checked its shape (see
    /// [`shaped_prefix`]) and that it is no longer than [`PrpLists::bytes_max`].
    #[inline]
    pub(crate) fn describe(&mut self, slot: SlotIndex, data: DataRange<'_>) -> DataPointer {
        let mut pages = Pages::new(data, self.page_bytes);
        let Some(prp1) = pages.next() else { return DataPointer::NONE };
        let Some(second) = pages.next() else {
            return DataPointer { prp1, prp2: POISON, chain: NO_PAGE };
        };
        let Some(third) = pages.next() else {
            return DataPointer { prp1, prp2: second, chain: NO_PAGE };
        };
        self.write_list(slot, prp1, [second, third], pages)
    }

    /// Writes the list of all pages but the first.
    fn write_list(&mut self, slot: SlotIndex, prp1: u64, first: [u64; 2], pages: Pages<'_>) -> DataPointer {
        let per_page = usize::try_from(self.page_bytes / 8).unwrap_or(usize::MAX);
        let list = slot.index() * per_page;
        let (mut base, mut at) = (list, 0);
        let (mut chain, mut last_page) = (NO_PAGE, NO_PAGE);
        let mut entries = first.into_iter().chain(pages).peekable();
        while let Some(entry) = entries.next() {
            // The last place of a page belongs to an entry only if that entry is the last of all.
            if at + 1 == per_page && entries.peek().is_some() {
                let page = self.take_page();
                debug_assert_ne!(page, NO_PAGE, "bytes_max promised a page");
                let next_base = (self.slots + usize::from(page)) * per_page;
                self.memory.store_qword(base + at, self.memory.iova().offset(next_base as u64 * 8).0);
                match last_page {
                    NO_PAGE => chain = page,
                    last => self.next[usize::from(last)] = page,
                }
                (base, at, last_page) = (next_base, 0, page);
            }
            self.memory.store_qword(base + at, entry);
            at += 1;
        }
        if at < per_page {
            self.memory.store_qword(base + at, POISON);
        }
        DataPointer { prp1, prp2: self.memory.iova().offset(list as u64 * 8).0, chain }
    }

    /// Gives the extra pages of a command back.
    #[inline]
    pub(crate) fn release(&mut self, chain: u16) {
        let mut page = chain;
        while page != NO_PAGE {
            let next = self.next[usize::from(page)];
            self.next[usize::from(page)] = self.free;
            self.free = page;
            self.free_count += 1;
            page = next;
        }
    }

    /// What the device finds at a place of the lists' memory.
    #[cfg(test)]
    pub(super) fn read_qword(&self, index: usize) -> u64 {
        self.memory.load_qword(index)
    }

    fn take_page(&mut self) -> u16 {
        let page = self.free;
        if page != NO_PAGE {
            self.free = self.next[usize::from(page)];
            self.next[usize::from(page)] = NO_PAGE;
            self.free_count -= 1;
        }
        page
    }
}

/// How many of `data`'s bytes PRPs can describe in one command, a multiple of `block_bytes`.
///
/// Within a command, one segment must end and the next begin at a page boundary, unless they touch. Where
/// they do not, the command must end there, and it can if a block ends there too.
///
/// Answers the index of the segment that cannot follow its predecessor when not even one block fits.
pub(crate) fn shaped_prefix(data: DataRange<'_>, page_bytes: u64, block_bytes: u64) -> Result<u64, usize> {
    let Some((mut index, mut segment)) = seek(data.segments, data.offset) else { return Err(0) };
    let mut covered = segment.bytes;
    while covered < data.bytes {
        index += 1;
        let Some(next) = data.segments.at(index) else { break };
        let end = segment.iova.0.wrapping_add(segment.bytes);
        let touches = end == next.iova.0;
        let on_pages = end.is_multiple_of(page_bytes) && next.iova.0.is_multiple_of(page_bytes);
        if !touches && !on_pages && next.bytes > 0 {
            let whole = covered - covered % block_bytes;
            return if whole == 0 || whole != covered { Err(index) } else { Ok(whole) };
        }
        covered += next.bytes;
        segment = if next.bytes > 0 { next } else { segment };
    }
    let usable = covered.min(data.bytes);
    Ok(usable - usable % block_bytes)
}

/// The segment at `offset`, with what comes before the offset cut away.
fn seek(segments: Segments<'_>, offset: u64) -> Option<(usize, Segment)> {
    let mut before = 0;
    let mut index = 0;
    loop {
        let segment = segments.at(index)?;
        if offset < before + segment.bytes {
            let skip = offset - before;
            return Some((index, Segment { iova: segment.iova.offset(skip), bytes: segment.bytes - skip }));
        }
        before += segment.bytes;
        index += 1;
    }
}

/// The PRP entries of a range, one after the other.
struct Pages<'a> {
    segments: Segments<'a>,
    index: usize,
    segment: Segment,
    left: u64,
    page_bytes: u64,
}

impl<'a> Pages<'a> {
    #[inline]
    fn new(data: DataRange<'a>, page_bytes: u64) -> Self {
        let (segments, left) = (data.segments, data.bytes);
        match segments {
            Segments::One(segment) => {
                let segment = Segment {
                    iova: segment.iova.offset(data.offset),
                    bytes: segment.bytes.saturating_sub(data.offset),
                };
                Self { segments, index: 0, segment, left, page_bytes }
            }
            Segments::Many(_) => {
                let (index, segment) =
                    seek(segments, data.offset).unwrap_or((0, Segment { iova: Iova(0), bytes: 0 }));
                Self { segments, index, segment, left, page_bytes }
            }
        }
    }

    /// Moves `bytes` on, over as many segments as that takes.
    #[inline]
    fn advance(&mut self, mut bytes: u64) {
        self.left -= bytes;
        while bytes >= self.segment.bytes && self.left > 0 {
            bytes -= self.segment.bytes;
            self.index += 1;
            match self.segments.at(self.index) {
                Some(next) => self.segment = next,
                None => {
                    self.left = 0;
                    return;
                }
            }
        }
        self.segment = Segment {
            iova: self.segment.iova.offset(bytes),
            bytes: self.segment.bytes.saturating_sub(bytes),
        };
    }
}

impl Iterator for Pages<'_> {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        if self.left == 0 {
            return None;
        }
        let entry = self.segment.iova.0;
        let in_page = self.page_bytes - entry % self.page_bytes;
        self.advance(in_page.min(self.left));
        Some(entry)
    }
}
