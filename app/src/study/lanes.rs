//! Doorbell as a load: queue pairs that one thread keeps full of random reads.
//!
//! Requests are submitted in batches: when so many have come back, as many go out. Offsets are drawn before
//! anything is measured, so that drawing them is not what is measured.

use doorbell::{Controller, DmaBuf, Lba, Namespace, QueuePair, Request};

use super::contest::{Load, Totals};
use crate::random::Random;

/// How a batch is submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// Every request by itself, with a doorbell of its own.
    Single,
    /// In a plug that is told nothing: command IDs are taken one at a time.
    Plug,
    /// In a plug that is told how many follow.
    CountedPlug,
}

/// Queues of one thread, on one controller or several.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// Declared first: queues go before their controllers.
    pub(super) lanes: Vec<Lane>,
    pub(super) controllers: Vec<Controller>,
}

/// One queue pair and its buffers.
#[derive(Debug)]
pub(super) struct Lane {
    queue: QueuePair,
    namespace: Namespace,
    style: Style,
    batch: usize,
    idle: Vec<DmaBuf>,
    depth: usize,
    offsets: Offsets,
    /// Requests that failed or were refused; a load with one does not count.
    failed: u64,
}

/// Random block addresses, round and round.
#[derive(Debug)]
pub(super) struct Offsets {
    table: Box<[Lba; OFFSETS]>,
    next: usize,
}

impl Lane {
    /// A lane that keeps as many requests outstanding as there are buffers.
    pub(super) fn new(queue: QueuePair, namespace: Namespace, style: Style, idle: Vec<DmaBuf>) -> Self {
        let depth = idle.len();
        let blocks_each =
            idle.first().map_or(1, |buffer| buffer.len() as u64 / u64::from(namespace.block_bytes()));
        let offsets = Offsets::draw(namespace.blocks(), blocks_each);
        let batch = depth.min(BATCH);
        Self { queue, namespace, style, batch, idle, depth, offsets, failed: 0 }
    }

    #[inline]
    fn reap(&mut self) -> usize {
        let Self { queue, idle, failed, batch, .. } = self;
        queue.poll(*batch, |_, completion| {
            *failed += u64::from(completion.result.is_err());
            if let Some(buffer) = completion.buffer.into_dma_buf() {
                idle.push(buffer);
            }
        })
    }

    /// Submits one batch.
    #[inline]
    fn submit(&mut self) {
        let Self { queue, namespace, style, batch, idle, offsets, failed, .. } = self;
        let requests = (0..*batch)
            .filter_map(|_| idle.pop())
            .map(|buffer| Request::read(namespace, offsets.next(), buffer));
        match style {
            Style::Single => {
                requests.for_each(|request| *failed += u64::from(queue.submit(request).is_err()))
            }
            Style::Plug | Style::CountedPlug => {
                let expected = if *style == Style::Plug { 0 } else { *batch };
                let mut plug = queue.plug(u32::try_from(expected).unwrap_or(u32::MAX));
                requests.for_each(|request| *failed += u64::from(plug.submit(request).is_err()));
            }
        }
    }
}

impl Load for Lanes {
    fn fill(&mut self) {
        for lane in &mut self.lanes {
            while lane.idle.len() >= lane.batch {
                lane.submit();
            }
        }
    }

    #[inline(never)]
    fn turn(&mut self) -> usize {
        let mut reaped = 0;
        for lane in &mut self.lanes {
            reaped += lane.reap();
            if lane.idle.len() >= lane.batch {
                lane.submit();
            }
        }
        reaped
    }

    fn reap(&mut self) -> usize {
        self.lanes
            .iter_mut()
            .map(|lane| {
                lane.reap();
                lane.depth - lane.idle.len()
            })
            .sum()
    }

    fn totals(&self) -> anyhow::Result<Totals> {
        let mut totals = Totals::default();
        for lane in &self.lanes {
            anyhow::ensure!(
                lane.failed == 0,
                "{} requests failed or were refused: this is a bug in Doorbell",
                lane.failed
            );
            let stats = lane.queue.stats();
            totals.requests += stats.completed;
            totals.submission_doorbells += stats.submission_doorbells;
            totals.completion_doorbells += stats.completion_doorbells;
        }
        Ok(totals)
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
