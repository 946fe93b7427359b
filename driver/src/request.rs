//! Requests: an operation on a namespace, the caller's number, the memory, and options that can grow.

use doorbell_hugepages::DmaBuf;
use doorbell_spec::dsm::{DsmRange, RANGES_MAX};
use doorbell_spec::{Blocks, Lba};
use zerocopy::IntoBytes;

use crate::buffer::Buffer;
use crate::namespace::{Geometry, Namespace};

/// What is asked of the device. Built by the constructors, completed by [`crate::QueuePair`].
#[derive(Debug)]
#[must_use = "a request does nothing until it is submitted"]
pub struct Request {
    pub(crate) operation: Operation,
    pub(crate) namespace: Geometry,
    pub(crate) lba: Lba,
    /// Blocks of an operation without data; operations with data take it from the buffer.
    pub(crate) blocks: Blocks,
    pub(crate) buffer: Buffer,
    pub(crate) user_data: u64,
    pub(crate) options: RequestOptions,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
    /// Compares memory with the device.
    Compare,
    /// Zeroes blocks without data.
    WriteZeroes,
    /// Tells the device that blocks are no longer needed.
    Deallocate,
    /// Makes everything that completed before durable.
    Flush,
}

/// Options of a request. All have defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestOptions {
    /// Which of the queue's deadlines applies.
    pub timeout_class: TimeoutClass,
    /// Whether somebody waits for it.
    pub io_class: IoClass,
    /// Whether a write must be durable before it completes.
    pub durability: Durability,
    /// What to do with it if a reset comes between.
    pub replay: ReplayPolicy,
}

/// Which of a queue's (at most four) deadlines a request has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeoutClass {
    /// Reads and writes.
    #[default]
    Standard,
    /// Requests that must fail early to be of use.
    Short,
    /// Large transfers, flushes.
    Long,
    /// Deallocation and the like, which some devices take minutes for.
    Background,
}

/// Whether somebody waits for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoClass {
    /// Somebody waits: a query, a commit.
    #[default]
    Sync,
    /// Nobody waits: flush of dirty pages, compaction, prefetch.
    Async,
}

/// Whether a write must be durable before it completes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// It may sit in the device's volatile cache until a flush.
    #[default]
    Cached,
    /// Force unit access: it is on the media when it completes (NVM Command Set 1.0, 3.2.6).
    ForceUnitAccess,
}

/// What happens to a request that was under way when the controller had to be reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplayPolicy {
    /// It completes as unknown: the caller decides.
    #[default]
    Never,
    /// It is submitted again: the caller says that doing it twice does no harm.
    Idempotent,
}

/// Why a list of ranges cannot become a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeallocateError {
    /// Too many or no ranges.
    #[error("one request deallocates 1 to {RANGES_MAX} ranges, not {ranges}")]
    RangeCount {
        /// How many were given.
        ranges: usize,
    },
    /// The buffer cannot hold the list.
    #[error("a list of {ranges} ranges needs a buffer of {need_bytes} bytes, this one has {have_bytes}")]
    BufferTooShort {
        /// How many were given.
        ranges: usize,
        /// 16 bytes a range.
        need_bytes: usize,
        /// The buffer's length.
        have_bytes: usize,
    },
    /// A range lies beyond the namespace.
    #[error("{blocks} blocks from {lba} on lie beyond the namespace")]
    OutOfRange {
        /// Where the range starts.
        lba: Lba,
        /// How long it is.
        blocks: Blocks,
    },
}

impl Request {
    /// Reads from `lba` on into `buffer`, whose length is a multiple of the block size.
    #[inline]
    pub fn read(namespace: &Namespace, lba: Lba, buffer: impl Into<Buffer>) -> Self {
        Self::new(Operation::Read, namespace, lba, Blocks(0), buffer.into())
    }

    /// Writes `buffer`, whose length is a multiple of the block size, from `lba` on.
    #[inline]
    pub fn write(namespace: &Namespace, lba: Lba, buffer: impl Into<Buffer>) -> Self {
        Self::new(Operation::Write, namespace, lba, Blocks(0), buffer.into())
    }

    /// Compares `buffer` with the blocks from `lba` on; a difference is the status `COMPARE_FAILURE`.
    pub fn compare(namespace: &Namespace, lba: Lba, buffer: impl Into<Buffer>) -> Self {
        Self::new(Operation::Compare, namespace, lba, Blocks(0), buffer.into())
    }

    /// Makes `blocks` blocks from `lba` on read as zeros.
    pub fn write_zeroes(namespace: &Namespace, lba: Lba, blocks: Blocks) -> Self {
        Self::new(Operation::WriteZeroes, namespace, lba, blocks, Buffer::None)
    }

    /// Makes all writes of the namespace that completed before this was submitted durable.
    pub fn flush(namespace: &Namespace) -> Self {
        Self::new(Operation::Flush, namespace, Lba(0), Blocks(0), Buffer::None)
    }

    /// Tells the device that the blocks of `ranges` (1 to 256) are no longer needed. What they read as
    /// afterwards is up to the device. The list is written into `list`, 16 bytes a range.
    ///
    /// # Errors
    /// Too many ranges, too short a buffer, or a range beyond the namespace; the buffer comes back.
    pub fn deallocate(
        namespace: &Namespace,
        ranges: &[(Lba, Blocks)],
        mut list: DmaBuf,
    ) -> Result<Self, (DeallocateError, DmaBuf)> {
        if let Err(error) = check_ranges(namespace, ranges, list.len()) {
            return Err((error, list));
        }
        let entry_bytes = size_of::<DsmRange>();
        for ((lba, blocks), place) in ranges.iter().zip(list.as_mut_slice().chunks_exact_mut(entry_bytes)) {
            let entry = DsmRange { attributes: 0, blocks: blocks.0, lba: lba.0 };
            place.copy_from_slice(entry.as_bytes());
        }
        let count = Blocks(u32::try_from(ranges.len()).unwrap_or(u32::MAX));
        Ok(Self::new(Operation::Deallocate, namespace, Lba(0), count, Buffer::Whole(list)))
    }

    /// A number of the caller's that comes back in the completion. 0 unless set.
    #[inline]
    pub fn user_data(mut self, user_data: u64) -> Self {
        self.user_data = user_data;
        self
    }

    /// The options.
    #[inline]
    pub fn options(mut self, options: RequestOptions) -> Self {
        self.options = options;
        self
    }

    /// Makes a write durable before it completes.
    #[inline]
    pub fn force_unit_access(mut self) -> Self {
        self.options.durability = Durability::ForceUnitAccess;
        self
    }

    /// Takes the memory out again, for a request that was refused.
    #[must_use]
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }

    #[inline]
    fn new(operation: Operation, namespace: &Namespace, lba: Lba, blocks: Blocks, buffer: Buffer) -> Self {
        let options = RequestOptions::default();
        Self { operation, namespace: namespace.geometry, lba, blocks, buffer, user_data: 0, options }
    }
}

fn check_ranges(
    namespace: &Namespace,
    ranges: &[(Lba, Blocks)],
    have_bytes: usize,
) -> Result<(), DeallocateError> {
    let count = ranges.len();
    if !(1..=RANGES_MAX).contains(&count) {
        return Err(DeallocateError::RangeCount { ranges: count });
    }
    let need_bytes = count * size_of::<DsmRange>();
    if need_bytes > have_bytes {
        return Err(DeallocateError::BufferTooShort { ranges: count, need_bytes, have_bytes });
    }
    match ranges.iter().find(|(lba, blocks)| !namespace.contains(*lba, u64::from(blocks.0))) {
        Some(&(lba, blocks)) => Err(DeallocateError::OutOfRange { lba, blocks }),
        None => Ok(()),
    }
}
