//! The random reads of one queue: their buffers, and where they go.
//!
//! Offsets are drawn before anything is measured, so that drawing them is not what is measured.

use doorbell::{Buffer, Completion, DmaBuf, Lba, Namespace, Request};

use crate::random::Random;

/// Reads that are outstanding or wait to be submitted: as many as there are buffers.
#[derive(Debug)]
pub(super) struct Reads {
    namespace: Namespace,
    idle: Vec<DmaBuf>,
    depth: usize,
    batch: usize,
    offsets: Offsets,
    /// Reads that failed; a load with one does not count.
    failed: u64,
    user_data: u64,
}

/// Random block addresses, round and round.
#[derive(Debug)]
pub(super) struct Offsets {
    table: Box<[Lba; OFFSETS]>,
    next: usize,
}

impl Reads {
    /// Reads into these buffers, all of one size, which carry `user_data`.
    pub(super) fn new(namespace: Namespace, buffers: Vec<DmaBuf>, user_data: u64) -> Self {
        let depth = buffers.len();
        let bytes = buffers.first().map_or(0, |buffer| buffer.len() as u64);
        let offsets = Offsets::draw(namespace.blocks(), bytes / u64::from(namespace.block_bytes()));
        Self { namespace, idle: buffers, depth, batch: depth.min(BATCH), offsets, failed: 0, user_data }
    }

    /// How many are submitted together.
    #[inline]
    pub(super) fn batch(&self) -> usize {
        self.batch
    }

    /// Whether so many wait.
    #[inline]
    pub(super) fn has_batch(&self) -> bool {
        self.idle.len() >= self.batch
    }

    /// How many are outstanding.
    pub(super) fn outstanding(&self) -> usize {
        self.depth - self.idle.len()
    }

    /// The next one, if one waits.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Request> {
        let buffer = self.idle.pop()?;
        Some(Request::read(&self.namespace, self.offsets.next(), buffer).user_data(self.user_data))
    }

    /// The one that follows another with the same buffer, once that has completed.
    #[inline]
    pub(super) fn after(&mut self, completion: Completion) -> Option<Request> {
        self.failed += u64::from(completion.result.is_err());
        let Buffer::Whole(buffer) = completion.buffer else { return None };
        Some(Request::read(&self.namespace, self.offsets.next(), buffer).user_data(self.user_data))
    }

    /// Takes one back that has completed.
    #[inline]
    pub(super) fn take_back(&mut self, completion: Completion) {
        self.failed += u64::from(completion.result.is_err());
        if let Some(buffer) = completion.buffer.into_dma_buf() {
            self.idle.push(buffer);
        }
    }

    /// Counts one that was refused.
    #[cold]
    pub(super) fn refused(&mut self) {
        self.failed += 1;
    }

    /// Whether all went well.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.failed == 0,
            "{} reads failed or were refused: this is a bug in Doorbell",
            self.failed
        );
        Ok(())
    }
}

impl Offsets {
    /// Offsets of reads of `blocks_each` blocks among `blocks`.
    pub(super) fn draw(blocks: u64, blocks_each: u64) -> Self {
        let mut random = Random::of(SEED, blocks, blocks_each);
        let slots = (blocks / blocks_each.max(1)).max(1);
        let table = Box::new(std::array::from_fn(|_| Lba(random.below(slots) * blocks_each)));
        Self { table, next: 0 }
    }

    #[inline]
    pub(super) fn next(&mut self) -> Lba {
        self.next = (self.next + 1) % OFFSETS;
        self.table[self.next]
    }
}

/// Requests that are submitted and reaped together, as in the publications.
pub(super) const BATCH: usize = 32;
/// A power of two, so that going round is a mask; small enough to stay in the nearest cache.
const OFFSETS: usize = 1024;
const SEED: u64 = 1;
