//! Pools: blocks of one size, taken and given back without a lock and without a system call.
//!
//! Invariant: the queue holds the index of every block that nobody has; an index is in the queue or in
//! exactly one [`DmaBuf`], which puts it back when it is dropped. Hence the queue, which has room for all
//! indices, is never full, and no block is handed out twice.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_queue::ArrayQueue;
use doorbell_spec::{Addressing, Iova};

use crate::buf::MAX_BUFFER_BYTES;
use crate::carve::GRAIN_BYTES;
use crate::lease::{Contents, Lease};
use crate::mapping::HostAddress;
use crate::space::{MAX_REGION_BYTES, Shared};
use crate::{DmaBuf, DmaError, SpaceId};

/// Blocks of one size. Cheap to clone; all clones are the same pool.
///
/// Blocks that are out when the pool is dropped stay good; the memory goes with the last of them.
#[derive(Clone)]
pub struct DmaPool {
    home: Arc<Home>,
}

/// Where buffers come from and go back to.
pub(crate) struct Home {
    blocks: Blocks,
    /// The indices of the blocks that nobody has.
    free: ArrayQueue<u32>,
    /// The most blocks that were out at once. Written by whoever takes one, and only when it grows.
    taken_max: AtomicUsize,
    layout: Layout,
    lease: Lease,
}

/// What the I/O path asks of a block's home, in one cache line.
#[derive(Debug)]
#[repr(align(64))]
struct Blocks {
    base: HostAddress,
    /// What makes an address of the process one of devices when it is added, if the memory is contiguous for
    /// them.
    to_iova: u64,
    /// The space in which `to_iova` holds.
    contiguous_in: SpaceId,
    space: SpaceId,
    bytes: u32,
    /// The largest power of two that divides `bytes`, as an exponent.
    grain_shift: u32,
}

/// Where the blocks lie in the pool's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    /// From one block to the next.
    stride_bytes: usize,
    /// The same as a power of two, if it is one.
    stride_shift: Option<u32>,
    /// How many blocks there are in a page that none may cross; `None` if there is no such page.
    per_page: Option<(usize, usize)>,
}

impl DmaPool {
    /// Takes a block, or `None` if all are out. Its contents are zero at first and what the last user left
    /// later.
    #[inline]
    #[must_use]
    pub fn take(&self) -> Option<DmaBuf> {
        let index = self.home.free.pop()?;
        self.home.note_taken();
        Some(DmaBuf::new(&self.home, index))
    }

    /// How many blocks could be taken now; others may take and give back at the same time.
    #[must_use]
    pub fn available(&self) -> usize {
        self.home.free.len()
    }

    /// How many blocks have been out at once at most, as far as was seen: takers at the very same moment may
    /// each miss the other.
    #[must_use]
    pub fn taken_max(&self) -> usize {
        self.home.taken_max.load(Ordering::Relaxed)
    }

    /// The size of each block.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.home.block_bytes() as usize
    }

    /// How many blocks there are.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.home.free.capacity()
    }

    /// The space that the pool belongs to.
    #[must_use]
    pub fn space(&self) -> SpaceId {
        self.home.space()
    }

    pub(crate) fn create(shared: &Arc<Shared>, block_bytes: usize, count: usize) -> Result<Self, DmaError> {
        if block_bytes == 0 || count == 0 {
            return Err(DmaError::Empty { what: "a pool" });
        }
        let power = block_bytes.is_power_of_two() && block_bytes >= 4;
        if !power && !block_bytes.is_multiple_of(64) {
            return Err(DmaError::BadBlockSize { block_bytes });
        }
        Self::build(shared, block_bytes, count)
    }

    /// A buffer that is a pool of its own, whose memory goes when it is dropped.
    pub(crate) fn single(shared: &Arc<Shared>, bytes: usize) -> Result<DmaBuf, DmaError> {
        if bytes == 0 {
            return Err(DmaError::Empty { what: "a buffer" });
        }
        let pool = Self::build(shared, bytes, 1)?;
        Ok(pool.take().expect("nobody else has seen this pool"))
    }

    fn build(shared: &Arc<Shared>, block_bytes: usize, count: usize) -> Result<Self, DmaError> {
        let what = "a buffer";
        let length = u32::try_from(block_bytes).ok().filter(|_| block_bytes <= MAX_BUFFER_BYTES);
        let length =
            length.ok_or(DmaError::TooLarge { what, bytes: block_bytes, max_bytes: MAX_BUFFER_BYTES })?;
        let indices = u32::try_from(count).ok().filter(|_| count <= MAX_BLOCKS);
        let indices = indices.ok_or(DmaError::TooManyBlocks { count, max_count: MAX_BLOCKS })?;
        shared.config.check()?;
        let page = shared.config.first_page();
        let layout = match shared.config.addressing {
            Addressing::Translated => Layout::new(block_bytes, None),
            Addressing::Physical => Layout::new(block_bytes, Some(page.bytes())),
        };
        let layout = layout.ok_or(DmaError::LargerThanPage { bytes: block_bytes, page })?;
        let bytes = layout.total_bytes(count);
        let asked = block_bytes.saturating_mul(count);
        let bytes =
            bytes.ok_or(DmaError::TooLarge { what: "a pool", bytes: asked, max_bytes: MAX_REGION_BYTES })?;
        let lease = shared.lease(bytes)?;
        let contents = lease.contents;
        let free = ArrayQueue::new(count);
        for index in 0..indices {
            // There is room for all of them.
            let _ = free.push(index);
        }
        let blocks = Blocks::new(&lease, length);
        let home = Home { blocks, free, taken_max: AtomicUsize::new(0), layout, lease };
        let pool = Self { home: Arc::new(home) };
        if contents == Contents::Left {
            pool.zero();
        }
        Ok(pool)
    }

    fn zero(&self) {
        for _ in 0..self.capacity() {
            if let Some(index) = self.home.free.pop() {
                DmaBuf::new(&self.home, index).as_mut_slice().fill(0);
            }
        }
    }
}

impl Home {
    /// Where block `index` lies.
    #[inline]
    pub(crate) fn block(&self, index: u32) -> HostAddress {
        self.blocks.base.offset(self.layout.offset(index as usize))
    }

    /// What devices call a block.
    #[inline]
    pub(crate) fn iova(&self, block: HostAddress) -> Iova {
        let contiguous = self.iova_in(self.blocks.space, block);
        contiguous.unwrap_or_else(|| self.lease.iova(self.offset(block)))
    }

    /// The same if the home belongs to this space and is contiguous for devices.
    #[inline]
    pub(crate) fn iova_in(&self, space: SpaceId, block: HostAddress) -> Option<Iova> {
        let iova = Iova((block.0.addr().get() as u64).wrapping_add(self.blocks.to_iova));
        (self.blocks.contiguous_in == space).then_some(iova)
    }

    #[inline]
    pub(crate) fn block_bytes(&self) -> u32 {
        self.blocks.bytes
    }

    #[inline]
    pub(crate) fn grain_shift(&self) -> u32 {
        self.blocks.grain_shift
    }

    #[inline]
    pub(crate) fn space(&self) -> SpaceId {
        self.blocks.space
    }

    /// Takes a block back.
    #[inline]
    pub(crate) fn give_back(&self, block: HostAddress) {
        // `build` has seen that all indices fit.
        let index = u32::try_from(self.layout.index(self.offset(block))).unwrap_or(u32::MAX);
        // The queue has room for every index, and each exists once.
        let pushed = self.free.push(index);
        debug_assert!(pushed.is_ok(), "block {index} came back twice");
    }

    #[inline]
    fn offset(&self, block: HostAddress) -> usize {
        block.0.addr().get() - self.blocks.base.0.addr().get()
    }

    #[inline]
    fn note_taken(&self) {
        let taken = self.free.capacity() - self.free.len();
        if taken > self.taken_max.load(Ordering::Relaxed) {
            self.taken_max.fetch_max(taken, Ordering::Relaxed);
        }
    }
}

impl Blocks {
    fn new(lease: &Lease, bytes: u32) -> Self {
        let base = lease.address();
        let to_iova = lease.iova(0).0.wrapping_sub(base.0.addr().get() as u64);
        let space = lease.space();
        let contiguous_in = if lease.is_contiguous() { space } else { SpaceId::NOWHERE };
        Self { base, to_iova, contiguous_in, space, bytes, grain_shift: bytes.trailing_zeros() }
    }
}

impl Layout {
    /// `None` if a block does not fit into a page.
    fn new(block_bytes: usize, page_bytes: Option<usize>) -> Option<Self> {
        let stride_bytes = match block_bytes {
            0..GRAIN_BYTES => block_bytes,
            _ => block_bytes.checked_next_multiple_of(GRAIN_BYTES)?,
        };
        let per_page = match page_bytes {
            None => None,
            Some(page_bytes) => match page_bytes / stride_bytes {
                0 => return None,
                count => Some((count, page_bytes)),
            },
        };
        let stride_shift = stride_bytes.is_power_of_two().then(|| stride_bytes.trailing_zeros());
        Some(Self { stride_bytes, stride_shift, per_page })
    }

    /// The memory that `count` blocks need, or `None` if no number is large enough.
    fn total_bytes(&self, count: usize) -> Option<usize> {
        match self.per_page {
            // Blocks within one page need no more than what they cover.
            Some((per_page, page_bytes)) if count > per_page => {
                count.div_ceil(per_page).checked_mul(page_bytes)
            }
            _ => count.checked_mul(self.stride_bytes),
        }
    }

    #[inline]
    fn offset(&self, index: usize) -> usize {
        match self.per_page {
            None => index * self.stride_bytes,
            Some((per_page, page_bytes)) => {
                index / per_page * page_bytes + index % per_page * self.stride_bytes
            }
        }
    }

    /// Which block begins at `offset`.
    #[inline]
    fn index(&self, offset: usize) -> usize {
        match (self.per_page, self.stride_shift) {
            (None, Some(shift)) => offset >> shift,
            (None, None) => offset / self.stride_bytes,
            (Some((per_page, page_bytes)), _) => {
                offset / page_bytes * per_page + offset % page_bytes / self.stride_bytes
            }
        }
    }
}

impl fmt::Debug for DmaPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaPool")
            .field("block_bytes", &self.block_bytes())
            .field("capacity", &self.capacity())
            .field("available", &self.available())
            .finish()
    }
}

/// The most blocks of one pool: 1 TiB of the smallest transfers, in a queue of 4 GiB.
const MAX_BLOCKS: usize = 1 << 28;

#[cfg(test)]
mod tests {
    use super::*;

    /// The blocks of a layout, as ranges.
    fn ranges(layout: Layout, block_bytes: usize, count: usize) -> Vec<std::ops::Range<usize>> {
        (0..count).map(|index| layout.offset(index)).map(|start| start..start + block_bytes).collect()
    }

    #[test]
    fn blocks_never_overlap_and_stay_inside() {
        for block_bytes in [4, 64, 192, 512, 4096, 4160, 12288, 1 << 20] {
            for page_bytes in [None, Some(2 << 20)] {
                let layout = Layout::new(block_bytes, page_bytes).expect("fits");
                for count in [1, 2, 7, 513] {
                    let total = layout.total_bytes(count).expect("small");
                    let ranges = ranges(layout, block_bytes, count);
                    let indices = ranges.iter().map(|range| layout.index(range.start));
                    assert!(indices.eq(0..count), "a block's number does not follow from its place");
                    assert!(ranges.is_sorted_by(|a, b| a.end <= b.start));
                    assert!(ranges.last().expect("some").end <= total);
                    let page_bytes = page_bytes.unwrap_or(usize::MAX);
                    assert!(ranges.iter().all(|r| r.start / page_bytes == (r.end - 1) / page_bytes));
                    assert!(block_bytes < 4096 || ranges.iter().all(|r| r.start % 4096 == 0));
                }
            }
        }
    }

    #[test]
    fn sizes_that_overflow_are_refused() {
        assert_eq!(Layout::new(usize::MAX, None), None);
        assert_eq!(Layout::new((2 << 20) + 1, Some(2 << 20)), None);
        let layout = Layout::new(1 << 40, None).expect("fits");
        assert_eq!(layout.total_bytes(usize::MAX), None);
    }
}
