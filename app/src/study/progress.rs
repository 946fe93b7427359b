//! What runs and how much is left: a line on the terminal, or a line for each comparison where there is none.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::progress::Progress;
use crate::units::duration_text;

/// How far all studies are.
#[derive(Debug)]
pub(super) struct Course {
    line: Progress,
    begun: Instant,
    /// How long one round takes at least.
    round: Duration,
    rounds_done: u32,
    rounds_all: u32,
}

impl Course {
    /// Nothing is done yet, of rounds that take so long at least.
    pub(super) fn begin(round: Duration, rounds_all: u32) -> Self {
        let (line, begun) = (Progress::on_terminal(), Instant::now());
        Self { line, begun, round, rounds_done: 0, rounds_all }
    }

    /// Says what begins, on whatever standard error is.
    pub(super) fn show(&self, study: &str, what: &str) {
        let words = format!("study {study}: {what}, about {} left", self.left());
        if self.line.is_visible() {
            self.line.show(f64::from(self.rounds_done) / f64::from(self.rounds_all.max(1)), words);
        } else {
            self.say(&words);
        }
    }

    /// Shows a round on a terminal, where the line is there anyway.
    pub(super) fn show_round(&self, study: &str, what: &str) {
        if self.line.is_visible() {
            self.show(study, what);
        }
    }

    /// Counts so many rounds as done.
    pub(super) fn done(&mut self, rounds: u32) {
        self.rounds_done += rounds;
    }

    /// There is more to do than was known.
    pub(super) fn add(&mut self, rounds: u32) {
        self.rounds_all += rounds;
    }

    /// A line that stays.
    pub(super) fn say(&self, words: &str) {
        self.line.clear();
        // Where standard error is closed, nobody waits for it.
        let _ = writeln!(std::io::stderr(), "{words}");
    }

    /// Takes the line away.
    pub(super) fn end(&self) {
        self.line.clear();
    }

    /// How much is left, if it goes on as it has gone so far.
    fn left(&self) -> String {
        let so_far = self.begun.elapsed().checked_div(self.rounds_done).unwrap_or_default();
        time_left(self.round.max(so_far), self.rounds_all.saturating_sub(self.rounds_done))
    }
}

fn time_left(round: Duration, rounds: u32) -> String {
    let left = round.saturating_mul(rounds);
    let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
    match (seconds / 60, seconds % 60) {
        (0, seconds) => duration_text(Duration::from_secs(seconds)),
        (minutes, seconds) => format!("{minutes} min {seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_told_in_seconds_and_minutes() {
        assert_eq!(time_left(Duration::from_millis(2), 7), "1 s");
        assert_eq!(time_left(Duration::from_secs(2), 7), "14 s");
        assert_eq!(time_left(Duration::from_secs(2), 140), "4 min 40 s");
        assert_eq!(time_left(Duration::from_secs(2), 0), "0 s");
    }
}
