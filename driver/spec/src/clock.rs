//! The time, passed in wherever something waits.
//!
//! A test drives driver and device with one virtual clock; everything else uses the machine's monotonic
//! one. The type is concrete so that the hot path reads it without a virtual call.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::tsc::{self, TscRate};

/// A point in time in nanoseconds since an arbitrary start, comparable within one [`Clock`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Nanoseconds from `earlier` to here, 0 if `earlier` is in fact later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The point `span` later; saturates at the end of time.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

/// A source of time. Clones share it.
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    Monotonic(Instant),
    /// The processor's counter, from a reading that counts as time 0.
    Counter {
        rate: TscRate,
        start_ticks: u64,
    },
    Virtual(Arc<AtomicU64>),
}

impl Clock {
    /// The machine's monotonic clock, counted from now: the processor's counter where it is invariant and
    /// Linux trusts it, the system's clock otherwise.
    ///
    /// The counter's rate is measured once, for 5 ms, at the first call in a process; it is then right to
    /// about one part in ten thousand. Within one clock, readings of one thread never go back.
    #[must_use]
    pub fn monotonic() -> Self {
        match TscRate::of_this_machine() {
            Some(rate) => {
                let start_ticks = tsc::ticks().wrapping_sub(rate.ticks(START_NS));
                Self(Source::Counter { rate, start_ticks })
            }
            None => Self::system(),
        }
    }

    /// The system's monotonic clock, counted from now, whatever the processor has.
    #[must_use]
    pub fn system() -> Self {
        Self(Source::Monotonic(Instant::now()))
    }

    /// A clock that stands still until [`Clock::advance`] moves it.
    #[must_use]
    pub fn virtual_time() -> Self {
        Self(Source::Virtual(Arc::new(AtomicU64::new(START_NS))))
    }

    /// The time now.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Nanos {
        match &self.0 {
            Source::Counter { rate, start_ticks } => {
                // Another core may be some ticks behind the one that was read first, but not a second.
                Nanos(rate.nanos(tsc::ticks().wrapping_sub(*start_ticks)))
            }
            Source::Monotonic(start) => Nanos(system_ns(start)),
            Source::Virtual(now) => Nanos(now.load(Ordering::Relaxed)),
        }
    }

    /// Moves a virtual clock forward; it stops at the end of time. Does nothing to a real one, which moves
    /// by itself.
    pub fn advance(&self, span: Duration) {
        if let Source::Virtual(now) = &self.0 {
            let later = |now| Some(Nanos(now).after(span).0);
            // The closure always answers a new value, so this does not fail.
            let _ = now.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
        }
    }

    /// Whether somebody has to [`advance`](Clock::advance) this clock.
    #[must_use]
    pub fn is_virtual(&self) -> bool {
        matches!(self.0, Source::Virtual(_))
    }

    /// A deadline `span` from now.
    #[must_use]
    pub fn deadline(&self, span: Duration) -> Deadline {
        Deadline { at: self.now().after(span), span }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_virtual() { "Clock(virtual)" } else { "Clock(monotonic)" })
    }
}

/// The system's clock. Apart, so that a reading of the processor's counter saves no registers for this call.
#[cold]
#[inline(never)]
fn system_ns(start: &Instant) -> u64 {
    // A process that runs for 584 years may complain.
    #[expect(clippy::cast_possible_truncation)]
    let elapsed_ns = start.elapsed().as_nanos() as u64;
    START_NS + elapsed_ns
}

/// What every clock reads at its start: one second, so that no reading is 0 and "never" can be told from
/// "at the start".
const START_NS: u64 = 1_000_000_000;

/// The end of a wait. Remembers how long the wait was meant to be, for the error that reports it.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Nanos,
    span: Duration,
}

impl Deadline {
    /// Whether the time is up.
    #[must_use]
    pub fn passed(&self, clock: &Clock) -> bool {
        clock.now() >= self.at
    }

    /// How long the whole wait was allowed to take.
    #[must_use]
    pub const fn span(&self) -> Duration {
        self.span
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_clock_moves_only_when_told() {
        let clock = Clock::virtual_time();
        let deadline = clock.deadline(Duration::from_millis(5));
        let start = clock.now();
        assert_eq!(clock.now(), start);
        clock.clone().advance(Duration::from_millis(4));
        assert!(!deadline.passed(&clock));
        clock.advance(Duration::from_millis(1));
        assert!(deadline.passed(&clock));
        assert_eq!(clock.now().since(start), 5_000_000);
    }

    /// It wrapped, and every deadline of the past was in the future again.
    #[test]
    fn a_virtual_clock_stops_at_the_end_of_time() {
        let clock = Clock::virtual_time();
        let deadline = clock.deadline(Duration::MAX);
        for span in [Duration::MAX, Duration::from_nanos(u64::MAX), Duration::from_nanos(1)] {
            clock.advance(span);
            assert_eq!(clock.now(), Nanos(u64::MAX));
            assert!(deadline.passed(&clock));
        }
    }

    #[test]
    fn a_real_clock_never_reads_zero_and_ignores_advance() {
        for clock in [Clock::monotonic(), Clock::system()] {
            clock.advance(Duration::from_secs(3600));
            let now = clock.now();
            assert!(now.0 >= START_NS && now.0 < 3_600_000_000_000);
            assert!((0..1000).map(|_| clock.now()).is_sorted());
        }
    }
}
