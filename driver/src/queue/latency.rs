//! How long requests took: counts by latency, written by the queue's owner and read by any thread.
//!
//! A bucket is a thirty-second of a power of two wide, so that a latency is known to about 3 %. The owner
//! adds what a poll reaped of one batch in one step: these requests were rung together and found together.

use super::stats::Counter;

/// Buckets of one power of two.
const SUB_BITS: u32 = 5;

/// Latencies from here on share the last bucket: 18 minutes.
const LATENCY_NS_MAX: u64 = (1 << 40) - 1;

/// How many buckets there are.
const BUCKETS: usize = bucket(LATENCY_NS_MAX) + 1;

/// The live counts of one queue pair. One thread writes, so that no atomic read-modify-write is needed. By
/// default there are no buckets, and what is recorded is dropped.
#[derive(Debug, Default)]
pub(super) struct LatencyCounts {
    buckets: Box<[Counter]>,
    total_ns: Counter,
}

/// Latencies of the requests that a device has answered, at one moment.
///
/// A latency is the time from the doorbell to the poll that found the completion, to within the length of a
/// batch. Requests that were cut short by the end of a queue or a controller are not among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencyHistogram {
    buckets: Vec<u64>,
    total_ns: u64,
}

/// One bucket of a [`LatencyHistogram`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencyBucket {
    /// The shortest latency that falls into it, in nanoseconds.
    pub from_ns: u64,
    /// The longest one.
    pub to_ns: u64,
    /// Requests that took so long.
    pub requests: u64,
}

impl LatencyCounts {
    pub(super) fn new() -> Self {
        let buckets = (0..BUCKETS).map(|_| Counter::default()).collect();
        Self { buckets, total_ns: Counter::default() }
    }

    /// Adds `requests` requests that took `latency_ns` each.
    #[inline]
    pub(super) fn record(&self, latency_ns: u64, requests: u64) {
        if let Some(counter) = self.buckets.get(bucket(latency_ns)) {
            counter.add(requests);
            self.total_ns.add(latency_ns.wrapping_mul(requests));
        }
    }

    pub(super) fn snapshot(&self) -> LatencyHistogram {
        let buckets = self.buckets.iter().map(Counter::read).collect();
        LatencyHistogram { buckets, total_ns: self.total_ns.read() }
    }
}

impl LatencyHistogram {
    /// How many requests are counted.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The mean in nanoseconds; `None` if nothing is counted.
    #[must_use]
    pub fn mean_ns(&self) -> Option<u64> {
        self.total_ns.checked_div(self.requests())
    }

    /// The latency in nanoseconds that `percent` per cent (0 to 100) of the requests did not exceed, to
    /// about 3 %; `None` if nothing is counted.
    #[must_use]
    pub fn percentile_ns(&self, percent: f64) -> Option<u64> {
        let requests = self.requests();
        // The product is at most the number of requests; what a float loses of it is less than a bucket.
        #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]
        let rank = (percent.clamp(0.0, 100.0) / 100.0 * requests as f64).ceil().max(1.0) as u64;
        let mut counted = 0;
        for bucket in self.iter() {
            counted += bucket.requests;
            if counted >= rank {
                return Some(bucket.to_ns);
            }
        }
        self.iter().last().map(|bucket| bucket.to_ns)
    }

    /// The buckets that are not empty, from short to long latencies.
    pub fn iter(&self) -> impl Iterator<Item = LatencyBucket> {
        let bucket = |(index, requests): (usize, &u64)| LatencyBucket {
            from_ns: from_ns(index),
            to_ns: from_ns(index + 1) - 1,
            requests: *requests,
        };
        self.buckets.iter().enumerate().map(bucket).filter(|bucket| bucket.requests > 0)
    }

    /// Adds another queue's.
    pub fn merge(&mut self, other: &Self) {
        self.buckets.resize(self.buckets.len().max(other.buckets.len()), 0);
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.total_ns = self.total_ns.wrapping_add(other.total_ns);
    }
}

/// Which bucket a latency belongs to. Those below 64 ns have one each.
#[inline]
const fn bucket(latency_ns: u64) -> usize {
    let latency_ns = if latency_ns > LATENCY_NS_MAX { LATENCY_NS_MAX } else { latency_ns };
    let exponent = u64::BITS - 1 - SUB_BITS - (latency_ns | 1 << SUB_BITS).leading_zeros();
    ((exponent as usize) << SUB_BITS) + (latency_ns >> exponent) as usize
}

/// The shortest latency of a bucket.
fn from_ns(bucket: usize) -> u64 {
    let exponent = (bucket >> SUB_BITS).saturating_sub(1);
    ((bucket - (exponent << SUB_BITS)) as u64) << exponent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_latency_falls_into_the_bucket_that_says_so() {
        let around = |power: u32| [(1_u64 << power) - 1, 1 << power, (1 << power) + 1];
        for latency_ns in (0..40).flat_map(around).chain([1000, 123_456_789, LATENCY_NS_MAX]) {
            let counts = LatencyCounts::new();
            counts.record(latency_ns, 3);
            let histogram = counts.snapshot();
            let bucket = histogram.iter().next().expect("one bucket");
            assert_eq!(bucket.requests, 3);
            assert!((bucket.from_ns..=bucket.to_ns).contains(&latency_ns), "{latency_ns} in {bucket:?}");
            assert!(bucket.to_ns - bucket.from_ns <= latency_ns / 32, "{latency_ns} in {bucket:?}");
            assert_eq!(histogram.mean_ns(), Some(latency_ns));
        }
    }

    #[test]
    fn percentiles_count_requests() {
        let counts = LatencyCounts::new();
        assert_eq!(counts.snapshot().percentile_ns(50.0), None);
        counts.record(10, 90);
        counts.record(50, 9);
        counts.record(u64::MAX, 1);
        let histogram = counts.snapshot();
        let percentiles = [0.0, 50.0, 90.0, 90.1, 99.0].map(|percent| histogram.percentile_ns(percent));
        assert_eq!(percentiles, [10, 10, 10, 50, 50].map(Some));
        assert_eq!(histogram.percentile_ns(100.0), Some(LATENCY_NS_MAX));
        assert_eq!(histogram.requests(), 100);
        let mut twice = histogram.clone();
        twice.merge(&histogram);
        assert_eq!(twice.requests(), 200);
    }

    #[test]
    fn without_buckets_nothing_is_recorded() {
        let counts = LatencyCounts::default();
        counts.record(10, 1);
        assert_eq!(counts.snapshot(), LatencyHistogram::default());
    }
}
