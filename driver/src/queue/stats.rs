//! Counters of a queue pair: written by the thread that owns it, read by any.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::latency::{LatencyCounts, LatencyHistogram};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// The live counters. One thread writes, so that no atomic read-modify-write is needed.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)+
            pub(super) latencies: LatencyCounts,
        }

        /// Counters of a queue pair at one moment. They are read one by one, not as a whole.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct QueueStats {
            $($(#[$doc])* pub $name: u64,)+
        }

        impl Counters {
            pub(super) fn new(latencies: LatencyCounts) -> Self {
                Self { latencies, ..Self::default() }
            }

            /// What they are now.
            pub(crate) fn snapshot(&self) -> QueueStats {
                QueueStats { $($name: self.$name.read(),)+ }
            }
        }
    };
}

counters!(
    /// Commands written into the submission queue; a split request has several.
    commands,
    /// Requests that ended well.
    completed,
    /// Requests that ended with an error.
    failed,
    /// Rings of the submission queue's doorbell register.
    submission_doorbells,
    /// Rings of the completion queue's doorbell register.
    completion_doorbells,
    /// Moves of the submission queue that the device was told of by the doorbell's shadow alone.
    submission_doorbells_saved,
    /// Moves of the completion queue that the device was told of by the doorbell's shadow alone.
    completion_doorbells_saved,
    /// Rings of either register that made up for a shadow which the device may not have seen: it had been
    /// silent for long. Counted above too. Many of them are a slow device, or one that has shadow doorbells
    /// wrong.
    doorbells_repeated,
    /// Completions that named no live command (duplicate, late, or an identifier nobody gave out).
    spurious_completions,
    /// Completions that named another queue, or a submission queue head outside of the ring.
    malformed_completions,
);

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds; only the owner of the queue calls this.
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Looks at the statistics of a queue pair from anywhere, without stopping the thread that owns it.
///
/// Outlives the queue pair: it then shows what there was at the end.
#[derive(Clone, Debug)]
pub struct QueueMonitor {
    counters: Arc<Counters>,
}

impl QueueMonitor {
    pub(super) fn new(counters: Arc<Counters>) -> Self {
        Self { counters }
    }

    /// The counters now.
    #[must_use]
    pub fn stats(&self) -> QueueStats {
        self.counters.snapshot()
    }

    /// The latencies so far. Empty if the queue pair was made with
    /// [`Statistics::Off`](super::Statistics::Off).
    #[must_use]
    pub fn latencies(&self) -> LatencyHistogram {
        self.counters.latencies.snapshot()
    }
}
