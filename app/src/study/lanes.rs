//! Doorbell as a load: queue pairs that one thread polls in turn and keeps full of random reads.
//!
//! Requests are submitted in batches: when so many have come back, as many go out.

use doorbell::{Controller, QueuePair};

use super::contest::{Load, Totals};
use super::reads::Reads;

/// How a batch is submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// Every request by itself, with a doorbell of its own.
    Single,
    /// In a plug that is told nothing: command IDs are taken one at a time.
    Plug,
    /// In a plug that is told how many follow.
    CountedPlug,
    /// Each request follows one that has completed, through the plug of the poll that finds it.
    Following,
}

/// Queues of one thread.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// Declared first: queues go before their controllers.
    pub(super) lanes: Vec<Lane>,
    pub(super) controllers: Vec<Controller>,
}

/// One queue pair and what it reads.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) queue: QueuePair,
    pub(super) reads: Reads,
    pub(super) style: Style,
}

impl Lane {
    #[inline]
    fn reap(&mut self) -> usize {
        let Self { queue, reads, .. } = self;
        queue.poll(reads.batch(), |_, completion| reads.take_back(completion))
    }

    /// Reaps, and submits as many.
    #[inline]
    fn follow(&mut self) -> usize {
        let Self { queue, reads, .. } = self;
        queue.poll(reads.batch(), |plug, completion| {
            if let Some(request) = reads.after(completion)
                && plug.submit(request).is_err()
            {
                reads.refused();
            }
        })
    }

    /// Submits one batch.
    #[inline]
    fn submit(&mut self) {
        let Self { queue, reads, style } = self;
        if *style == Style::Single {
            for _ in 0..reads.batch() {
                if let Some(request) = reads.next()
                    && queue.submit(request).is_err()
                {
                    reads.refused();
                }
            }
            return;
        }
        let mut plug = queue.plug(style.expected(reads.batch()));
        for _ in 0..reads.batch() {
            if let Some(request) = reads.next()
                && plug.submit(request).is_err()
            {
                reads.refused();
            }
        }
    }
}

impl Style {
    /// What a plug is told of a batch of so many.
    #[inline]
    pub(super) fn expected(self, batch: usize) -> u32 {
        match self {
            Self::CountedPlug | Self::Following => u32::try_from(batch).unwrap_or(u32::MAX),
            Self::Single | Self::Plug => 0,
        }
    }
}

impl Load for Lanes {
    fn fill(&mut self) {
        for lane in &mut self.lanes {
            while lane.reads.has_batch() {
                lane.submit();
            }
        }
    }

    #[inline(never)]
    fn turn(&mut self) -> usize {
        let mut reaped = 0;
        for lane in &mut self.lanes {
            if lane.style == Style::Following {
                reaped += lane.follow();
                continue;
            }
            reaped += lane.reap();
            if lane.reads.has_batch() {
                lane.submit();
            }
        }
        reaped
    }

    fn reap(&mut self) -> usize {
        let mut outstanding = 0;
        for lane in &mut self.lanes {
            lane.reap();
            outstanding += lane.reads.outstanding();
        }
        outstanding
    }

    fn totals(&self) -> anyhow::Result<Totals> {
        let mut totals = Totals::default();
        for lane in &self.lanes {
            lane.reads.check()?;
            totals.add(Totals::of(lane.queue.stats()));
        }
        Ok(totals)
    }
}
