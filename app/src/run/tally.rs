//! What a job counts, without allocating while it counts.

use doorbell::{IoError, Lba, Status};
use hdrhistogram::Histogram;

use super::offsets::Direction;

/// Latencies of one direction, in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Latencies {
    histogram: Histogram<u64>,
    min: u64,
    max: u64,
    sum: u128,
}

/// Everything that one job, or all together, have counted.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    /// I/Os that completed well and are part of the result.
    pub(crate) read: Latencies,
    pub(crate) write: Latencies,
    /// I/Os that completed well and were submitted during the ramp time.
    pub(crate) ramp_reads: u64,
    pub(crate) ramp_writes: u64,
    pub(crate) failures: Failures,
    /// fio's tables: how deep the queue was when something was submitted, and how much at once.
    pub(crate) depth_levels: Levels,
    pub(crate) submit_levels: Levels,
    pub(crate) complete_levels: Levels,
}

/// Failed I/Os, by reason.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failures {
    reasons: Vec<Failure>,
}

/// One reason for I/Os to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) direction: Direction,
    /// The first one's, with the block where it happened.
    pub(crate) error: IoError,
    pub(crate) count: u64,
}

/// How often a number was 0, 1, 2 to 3, 4 to 7, … 64 and more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Levels([u64; 8]);

impl Latencies {
    fn new() -> Self {
        // The bounds are constants, and the precision is one that the histogram takes.
        let histogram = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("constant bounds");
        Self { histogram, min: u64::MAX, max: 0, sum: 0 }
    }

    /// Counts one. Never allocates: the histogram has its full size from the start.
    #[inline]
    pub(crate) fn record(&mut self, nanos: u64) {
        self.histogram.saturating_record(nanos);
        self.min = self.min.min(nanos);
        self.max = self.max.max(nanos);
        self.sum += u128::from(nanos);
    }

    fn add(&mut self, other: &Self) {
        // Both were made with the same bounds, so that every value of one fits into the other.
        let added = self.histogram.add(&other.histogram);
        debug_assert!(added.is_ok());
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.sum += other.sum;
    }

    /// How many there were.
    #[inline]
    pub(crate) fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The shortest; 0 if there was none.
    pub(crate) fn min(&self) -> u64 {
        if self.count() == 0 { 0 } else { self.min }
    }

    /// The longest; 0 if there was none.
    pub(crate) fn max(&self) -> u64 {
        self.max
    }

    /// The mean; 0 if there was none.
    #[expect(clippy::cast_precision_loss)]
    pub(crate) fn mean(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.sum as f64 / self.count() as f64 }
    }

    /// The standard deviation; 0 if there was none.
    pub(crate) fn deviation(&self) -> f64 {
        self.histogram.stdev()
    }

    /// The latency that `percent` of all did not exceed.
    pub(crate) fn percentile(&self, percent: f64) -> u64 {
        self.histogram.value_at_percentile(percent).clamp(self.min(), self.max)
    }

    /// How many there were from `low` to `high`, both included.
    pub(crate) fn count_between(&self, low: u64, high: u64) -> u64 {
        self.histogram.iter_recorded().fold(0, |sum, value| {
            // The end of a step of the histogram, which may lie beyond the longest latency.
            let at = value.value_iterated_to().min(self.max);
            if (low..=high).contains(&at) { sum + value.count_since_last_iteration() } else { sum }
        })
    }
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            read: Latencies::new(),
            write: Latencies::new(),
            ramp_reads: 0,
            ramp_writes: 0,
            failures: Failures { reasons: Vec::with_capacity(16) },
            depth_levels: Levels::default(),
            submit_levels: Levels::default(),
            complete_levels: Levels::default(),
        }
    }

    /// The latencies of a direction.
    pub(crate) fn of(&self, direction: Direction) -> &Latencies {
        match direction {
            Direction::Read => &self.read,
            Direction::Write => &self.write,
        }
    }

    /// Both directions as one.
    pub(crate) fn both(&self) -> Latencies {
        let mut both = self.read.clone();
        both.add(&self.write);
        both
    }

    /// Adds what another has counted.
    pub(crate) fn add(&mut self, other: &Self) {
        self.read.add(&other.read);
        self.write.add(&other.write);
        self.ramp_reads += other.ramp_reads;
        self.ramp_writes += other.ramp_writes;
        for failure in &other.failures.reasons {
            self.failures.note(*failure);
        }
        self.depth_levels.merge(&other.depth_levels);
        self.submit_levels.merge(&other.submit_levels);
        self.complete_levels.merge(&other.complete_levels);
    }
}

impl Failures {
    /// Counts failures of one reason.
    #[cold]
    pub(crate) fn note(&mut self, failure: Failure) {
        let same = |known: &&mut Failure| {
            known.direction == failure.direction && reason(known.error) == reason(failure.error)
        };
        match self.reasons.iter_mut().find(same) {
            Some(known) => known.count += failure.count,
            None => self.reasons.push(failure),
        }
    }

    /// How many there were in all.
    pub(crate) fn total(&self) -> u64 {
        self.reasons.iter().map(|failure| failure.count).sum()
    }

    /// The reasons, in the order in which they were met.
    pub(crate) fn reasons(&self) -> &[Failure] {
        &self.reasons
    }
}

/// An error without the place where it happened.
fn reason(error: IoError) -> IoError {
    match error {
        IoError::Status { status, .. } => {
            IoError::Status { status: Status::from_raw(status.kind().raw()), lba: Lba(0) }
        }
        other => other,
    }
}

impl Levels {
    /// Counts `weight` for a number of `value`.
    #[inline]
    pub(crate) fn add(&mut self, value: u64, weight: u64) {
        let level = (64 - value.leading_zeros() as usize).min(7);
        self.0[level] += weight;
    }

    fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    /// What was counted, for 0, 1, 2 to 3, 4 to 7, 8 to 15, 16 to 31, 32 to 63, and more.
    pub(crate) fn counts(&self) -> [u64; 8] {
        self.0
    }
}

/// Ten minutes: longer latencies are counted as this.
const LATENCY_NS_MAX: u64 = 600_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_known_numbers_are_right_to_a_thousandth() {
        let mut latencies = Latencies::new();
        for value in 1..=100_000u64 {
            latencies.record(value * 10);
        }
        for (percent, expected) in [(1.0, 10_000.0), (50.0, 500_000.0), (99.0, 990_000.0), (99.99, 999_900.0)]
        {
            #[expect(clippy::cast_precision_loss)]
            let found = latencies.percentile(percent) as f64;
            assert!((found / expected - 1.0).abs() < 0.001, "{percent}: {found}");
        }
        assert_eq!((latencies.min(), latencies.max(), latencies.count()), (10, 1_000_000, 100_000));
        assert!((latencies.mean() - 500_005.0).abs() < 0.1);
        assert!((latencies.deviation() / 288_675.0 - 1.0).abs() < 0.001);
        assert_eq!(latencies.count_between(0, u64::MAX), 100_000);
    }

    #[test]
    fn nothing_counted_is_all_zeros_and_the_extremes_do_not_fail() {
        let mut latencies = Latencies::new();
        assert_eq!((latencies.min(), latencies.max(), latencies.percentile(99.0)), (0, 0, 0));
        assert!(latencies.mean() == 0.0 && latencies.deviation() == 0.0);
        latencies.record(0);
        latencies.record(u64::MAX);
        assert_eq!((latencies.count(), latencies.min(), latencies.max()), (2, 0, u64::MAX));
    }

    #[test]
    fn failures_are_grouped_by_reason_and_keep_the_first_place() {
        let mut failures = Failures::default();
        let at = |status, lba| IoError::Status { status, lba: Lba(lba) };
        let note = |error| Failure { direction: Direction::Read, error, count: 1 };
        failures.note(note(at(Status::INTERNAL_ERROR, 5)));
        failures.note(note(at(Status::INTERNAL_ERROR.with_do_not_retry(), 6)));
        failures.note(note(IoError::ControllerFailed));
        assert_eq!(failures.total(), 3);
        assert_eq!(failures.reasons().len(), 2);
        assert_eq!(failures.reasons()[0], Failure { count: 2, ..note(at(Status::INTERNAL_ERROR, 5)) });
    }

    #[test]
    fn levels_are_powers_of_two() {
        let mut levels = Levels::default();
        for value in [0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, u64::MAX] {
            levels.add(value, 1);
        }
        assert_eq!(levels.counts(), [1, 1, 2, 2, 2, 2, 2, 2]);
    }

    #[test]
    fn tallies_add_up() {
        let (mut one, mut other) = (Tally::new(), Tally::new());
        one.read.record(10);
        other.read.record(30);
        other.write.record(20);
        other.ramp_reads = 4;
        one.add(&other);
        assert_eq!((one.read.count(), one.write.count(), one.ramp_reads), (2, 1, 4));
        assert_eq!((one.both().count(), one.both().min(), one.both().max()), (3, 10, 30));
    }
}
