//! What runs and how much is left: a line on the terminal, or a line for each comparison where there is none.

use std::io::Write;
use std::time::Duration;

use crate::progress::Progress;
use crate::units::duration_text;

/// How far all studies are.
#[derive(Debug)]
pub(super) struct Course {
    line: Progress,
    /// How long one round takes.
    round: Duration,
    rounds_done: usize,
    rounds_all: usize,
}

impl Course {
    /// Nothing is done yet.
    pub(super) fn begin(round: Duration, rounds_all: usize) -> Self {
        Self { line: Progress::on_terminal(), round, rounds_done: 0, rounds_all }
    }

    /// Says what begins, on whatever standard error is.
    pub(super) fn show(&self, study: &str, what: &str) {
        let words = format!("study {study}: {what}, about {} left", self.left());
        if self.line.is_visible() {
            #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
            self.line.show(self.rounds_done as f64 / self.rounds_all.max(1) as f64, words);
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

    /// Counts a round as done.
    pub(super) fn round_done(&mut self) {
        self.rounds_done += 1;
    }

    /// There is more to do than was known.
    pub(super) fn add(&mut self, rounds: usize) {
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

    fn left(&self) -> String {
        let rounds = u32::try_from(self.rounds_all.saturating_sub(self.rounds_done)).unwrap_or(u32::MAX);
        let left = self.round.saturating_mul(rounds);
        let seconds = Duration::from_secs(left.as_secs() + u64::from(left.subsec_nanos() > 0));
        match (seconds.as_secs() / 60, seconds.as_secs() % 60) {
            (0, _) => duration_text(seconds),
            (minutes, seconds) => format!("{minutes} min {seconds} s"),
        }
    }
}
