//! A variant while it runs: a closed loop over its queues, measured slice by slice.

use std::sync::Arc;

use doorbell::QueueStats;
use doorbell::emulator::Emulator;
use doorbell::spec::Nanos;

use super::site::{Crowd, Place, Site};

/// What a variant does. Written once for each kind of loop, and compiled into [`Rig::run`].
pub(super) trait Load {
    /// Submits as much as there is room for.
    fn fill(&mut self);

    /// Reaps what has completed, and submits as many. Answers how many that were.
    fn turn(&mut self) -> usize;

    /// Reaps without submitting. Answers how many are outstanding still.
    fn reap(&mut self) -> usize;

    /// What it has done so far, or why that does not count.
    fn totals(&self) -> anyhow::Result<Totals>;
}

/// What a load has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) requests: u64,
    pub(super) submission_doorbells: u64,
    pub(super) completion_doorbells: u64,
}

/// What was measured in one slice, or in several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Slice {
    pub(super) requests: u64,
    pub(super) nanos: u64,
}

impl Slice {
    /// Adds another slice.
    pub(super) fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.nanos += other.nanos;
    }

    /// Requests per second.
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^53")]
    pub(super) fn rate(self) -> f64 {
        self.requests as f64 * 1e9 / self.nanos.max(1) as f64
    }
}

impl Totals {
    /// What a queue pair has done.
    pub(super) fn of(stats: QueueStats) -> Self {
        Self {
            requests: stats.completed,
            submission_doorbells: stats.submission_doorbells,
            completion_doorbells: stats.completion_doorbells,
        }
    }

    /// Adds what was done elsewhere.
    pub(super) fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.submission_doorbells += other.submission_doorbells;
        self.completion_doorbells += other.completion_doorbells;
    }
}

/// A variant that is set up: what the harness sees of it.
pub(super) trait Contestant {
    /// Its controllers, for the thread that moves them.
    fn controllers(&self) -> &[Arc<Emulator>];

    /// Runs for so many nanoseconds, warm-up and draining not counted.
    fn run(&mut self, site: &Site, span_ns: u64) -> anyhow::Result<Slice>;

    /// What it has done so far.
    fn totals(&self) -> anyhow::Result<Totals>;
}

/// A load and the controllers that it is for.
#[derive(Debug)]
pub(super) struct Rig<L> {
    // Declared in this order: queues go before their controllers.
    pub(super) load: L,
    pub(super) controllers: Vec<Arc<Emulator>>,
    pub(super) place: Place,
}

impl<L: Load> Contestant for Rig<L> {
    fn controllers(&self) -> &[Arc<Emulator>] {
        &self.controllers
    }

    fn run(&mut self, site: &Site, span_ns: u64) -> anyhow::Result<Slice> {
        let Self { load, controllers, place } = self;
        let course = Course { site, span_ns };
        match place {
            Place::TwoThreads => course.run(load, || 0),
            Place::Inline => course.run(load, || controllers.iter().map(|it| it.step(INLINE_BUDGET)).sum()),
        }
    }

    fn totals(&self) -> anyhow::Result<Totals> {
        self.load.totals()
    }
}

/// The way through one slice.
struct Course<'a> {
    site: &'a Site,
    span_ns: u64,
}

impl Course<'_> {
    /// Fills the queues, warms up, measures, and drains. `step` moves the controllers, if nobody else does.
    fn run(&self, load: &mut impl Load, mut step: impl FnMut() -> usize) -> anyhow::Result<Slice> {
        load.fill();
        let (_, from) = self.phase(load, &mut step, |requests, _| requests >= WARM_UP_REQUESTS)?;
        let end = from.0.saturating_add(self.span_ns);
        let (requests, until) = self.phase(load, &mut step, |requests, now| requests > 0 && now.0 >= end)?;
        let since = self.site.clock.now();
        while load.reap() > 0 {
            if step() == 0 && self.site.crowd == Crowd::Crowded {
                std::thread::yield_now();
            }
            self.check_progress(since, self.site.clock.now())?;
        }
        Ok(Slice { requests, nanos: until.since(from) })
    }

    /// Turns until `is_over` says so of the requests of this phase and the time, which it is asked now and
    /// then. Answers both.
    #[inline]
    fn phase(
        &self,
        load: &mut impl Load,
        step: &mut impl FnMut() -> usize,
        is_over: impl Fn(u64, Nanos) -> bool,
    ) -> anyhow::Result<(u64, Nanos)> {
        let (mut requests, mut seen) = (0, 0);
        let mut progress_at = self.site.clock.now();
        loop {
            for _ in 0..TURNS_PER_LOOK {
                let reaped = load.turn();
                let stepped = step();
                requests += reaped as u64;
                if reaped + stepped == 0 && self.site.crowd == Crowd::Crowded {
                    std::thread::yield_now();
                }
            }
            let now = self.site.clock.now();
            if is_over(requests, now) {
                return Ok((requests, now));
            }
            if requests > seen {
                (seen, progress_at) = (requests, now);
            }
            self.check_progress(progress_at, now)?;
        }
    }

    /// A controller that completes nothing does not keep a study from ending.
    fn check_progress(&self, since: Nanos, now: Nanos) -> anyhow::Result<()> {
        anyhow::ensure!(
            now.since(since) < SILENCE_NS_MAX,
            "the software controller has completed nothing for 30 s; is the machine busy with something else?"
        );
        Ok(())
    }
}

/// Turns between two looks at the clock.
const TURNS_PER_LOOK: u32 = 8;
/// Requests before a slice is measured: the caches and the other thread have seen every queue entry some
/// times.
const WARM_UP_REQUESTS: u64 = 512;
/// Commands of one step of an inline controller: all that a turn has submitted, on any number of queues.
const INLINE_BUDGET: usize = 4096;
const SILENCE_NS_MAX: u64 = 30_000_000_000;
