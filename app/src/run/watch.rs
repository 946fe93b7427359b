//! Watching a run from outside: samples of its rate twice a second, and the progress line.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::live::Live;
use super::plan::Plan;
use crate::progress::Progress;
use crate::units::{duration_text, grouped, size_text};

/// I/Os per second of each direction, in each half second.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Samples {
    pub(crate) reads: Vec<f64>,
    pub(crate) writes: Vec<f64>,
}

/// The smallest, largest and mean of some numbers, their standard deviation and how many there are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) mean: f64,
    pub(crate) deviation: f64,
    pub(crate) count: usize,
}

/// Watches until every job has dropped its end of `ended`.
pub(crate) fn watch(plan: &Plan, live: &[Arc<Live>], ended: &Receiver<()>) -> Samples {
    let progress = Progress::on_terminal();
    let mut samples = Samples::default();
    let begun = Instant::now();
    let mut last = (begun, 0, 0);
    while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
        let now = Instant::now();
        let (reads, writes) = total(live);
        let seconds = now.duration_since(last.0).as_secs_f64();
        let (read_rate, write_rate) = (rate(reads - last.1, seconds), rate(writes - last.2, seconds));
        last = (now, reads, writes);
        if reads + writes > 0 {
            samples.reads.push(read_rate);
            samples.writes.push(write_rate);
        }
        if progress.is_visible() {
            let elapsed = now.duration_since(begun);
            let (done, words) = line(plan, elapsed, reads + writes, read_rate + write_rate);
            progress.show(done, words);
        }
    }
    progress.clear();
    samples
}

fn total(live: &[Arc<Live>]) -> (u64, u64) {
    live.iter().map(|it| it.counts()).fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1))
}

#[expect(clippy::cast_precision_loss)]
fn rate(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

/// How much is done, and the words of the progress line.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn line(plan: &Plan, elapsed: Duration, ios: u64, rate: f64) -> (f64, String) {
    let speed =
        format!("{} IOPS, {}/s", grouped(rate as u64), size_text((rate * plan.options.bs as f64) as u64));
    let ramp = plan.options.ramp_time;
    if elapsed < ramp && ios == 0 {
        return (0.0, format!("ramp, {} left", duration_text(whole_seconds(ramp - elapsed))));
    }
    let by_time =
        plan.runtime.map(|runtime| (elapsed.saturating_sub(ramp)).as_secs_f64() / runtime.as_secs_f64());
    let by_count =
        plan.options.number_ios.map(|count| ios as f64 / (count as f64 * f64::from(plan.options.numjobs)));
    let done = by_time.unwrap_or(0.0).max(by_count.unwrap_or(0.0));
    if done <= 0.0 {
        return (0.0, speed);
    }
    let left = elapsed.saturating_sub(ramp).as_secs_f64() * (1.0 / done - 1.0);
    let left = Duration::try_from_secs_f64(left.max(0.0)).unwrap_or_default();
    (done, format!("{speed}, {} left", duration_text(whole_seconds(left))))
}

fn whole_seconds(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs() + u64::from(time.subsec_nanos() > 0))
}

impl Spread {
    /// Of these numbers; all zeros if there are none.
    #[expect(clippy::cast_precision_loss)]
    pub(crate) fn of(values: &[f64]) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        let count = values.len();
        let mean = values.iter().sum::<f64>() / count as f64;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count as f64;
        Self {
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(0.0, f64::max),
            mean,
            deviation: variance.sqrt(),
            count,
        }
    }
}

/// fio's own, for the minima and maxima of its rates.
const PERIOD: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_are_what_they_say() {
        let spread = Spread::of(&[1.0, 3.0]);
        assert_eq!(spread, Spread { min: 1.0, max: 3.0, mean: 2.0, deviation: 1.0, count: 2 });
        assert_eq!(Spread::of(&[]), Spread::default());
    }

    #[test]
    fn the_time_left_is_not_shown_as_less_than_it_is() {
        assert_eq!(whole_seconds(Duration::from_millis(1)), Duration::from_secs(1));
        assert_eq!(whole_seconds(Duration::from_secs(2)), Duration::from_secs(2));
    }
}
