//! One poll that finds something: what it counts, and what must happen at its end.
//!
//! Invariant: all of it lives in the queue pair. So a poll whose callback panics can be ended from outside,
//! and nothing that it has reaped is lost.

use doorbell_spec::Nanos;

use super::batch::BatchNumber;
use super::pair::{NOT_POLLING, QueuePair};
use crate::completion::Completion;

/// What a poll knows and counts.
#[derive(Debug, Default)]
pub(super) struct Tally {
    now: Nanos,
    /// Of a request of the expected batch.
    pub(super) latency_ns: u64,
    /// Entries left until the clock is read again.
    until_reading: usize,
    /// Entries left after that.
    after_reading: usize,
    /// What `until_reading` was when the usual completions were last counted.
    counted_until: usize,
    /// Usual completions that are counted.
    usual: usize,
    /// Completions that were not usual.
    unusual: usize,
    /// For which entry another batch was expected, as the number of entries left.
    expected_for: usize,
    state: State,
}

/// Whether a poll is under way, or was cut short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Ended,
    Begun,
}

/// What a poll does next.
pub(super) enum Next {
    /// Hands this over.
    Completion(Completion),
    /// Looks again for a usual completion.
    Look,
    /// Ends.
    End,
}

impl Tally {
    /// Usual completions that are not counted yet.
    #[inline]
    fn alike(&self) -> usize {
        // Saturating: between an unusual entry and what comes after it there is one entry less than none.
        self.counted_until.saturating_sub(self.until_reading)
    }

    #[inline]
    fn handed_over(&self) -> usize {
        self.usual + self.alike() + self.unusual
    }
}

impl QueuePair {
    /// Begins a poll of at most `budget` entries.
    #[inline(never)]
    pub(super) fn begin_reaping(&mut self, budget: usize) {
        let budget = budget.min(usize::from(self.depth));
        self.expect_batch_of_next();
        let tally = &mut self.tally;
        (tally.after_reading, tally.expected_for) = (budget, budget);
        (tally.usual, tally.unusual) = (0, 0);
        tally.state = State::Begun;
        self.read_clock();
    }

    /// Ends a poll whose callback has panicked.
    #[inline]
    pub(super) fn end_what_was_cut_short(&mut self) {
        if self.tally.state == State::Begun {
            // What the callback was given was handed over. Saturating: this is no time for another panic.
            self.tally.until_reading = self.tally.until_reading.saturating_sub(1);
            self.end_reaping();
        }
    }

    /// Finds out why there is no usual completion.
    #[inline]
    pub(super) fn unusual(&mut self) -> Next {
        if self.expect_another_batch() { Next::Look } else { self.take_unusual() }
    }

    /// After a completion was handed over: whether there may be another.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "this is what a poll does")]
    pub(super) fn go_on(&mut self) -> bool {
        self.release_vacated();
        self.tally.until_reading -= 1;
        self.tally.until_reading != 0 || self.read_again()
    }

    /// Expects the batch of the next entry's command, if it is only that which makes it unusual.
    #[inline(never)]
    fn expect_another_batch(&mut self) -> bool {
        let left = self.tally.until_reading + self.tally.after_reading;
        // Once for each entry: a device that changes an entry while it is read must not keep us here.
        if self.tally.expected_for == left || !self.expect_batch_of_next() {
            return false;
        }
        self.tally.expected_for = left;
        self.count_alike();
        self.set_latency();
        true
    }

    #[cold]
    #[inline(never)]
    fn take_unusual(&mut self) -> Next {
        // What follows is not counted as usual.
        self.count_alike();
        self.expect_nothing_old();
        let mut is_used_up = false;
        loop {
            let entry = if is_used_up { None } else { self.cq.pop() };
            let completion = match entry {
                Some(entry) => {
                    // Where this is the last entry before a reading, `go_on` looks after it.
                    self.tally.counted_until -= 1;
                    self.end_command(&entry, self.tally.now)
                }
                // Otherwise all of it was noise, which says nothing about the controller, or nothing came, or
                // the controller has failed.
                None if self.tally.handed_over() > 0 && self.shared.is_running() => return Next::End,
                None => match self.next_without_entry() {
                    None => return Next::End,
                    completion => {
                        self.tally.counted_until -= 1;
                        completion
                    }
                },
            };
            if let Some(completion) = completion {
                self.tally.unusual += 1;
                return Next::Completion(completion);
            }
            self.tally.until_reading -= 1;
            if self.tally.until_reading == 0 && !self.read_again() {
                // A flood of noise must not keep anybody from seeing that the controller has failed.
                (self.tally.until_reading, self.tally.counted_until, is_used_up) = (1, 1, true);
                continue;
            }
            if self.cq.is_ready() {
                return Next::Look;
            }
        }
    }

    /// Batch numbers come round: what was expected long ago would some day be expected of a batch that is not
    /// rung yet. Of every so many commands that end one is unusual, or else what is expected changes anyway.
    fn expect_nothing_old(&mut self) {
        let batch = BatchNumber::within(self.cq.next().expected());
        if self.batches.is_old(batch) {
            self.expect_of(self.batches.last_rung());
            self.set_latency();
        }
    }

    /// Reads the clock for the next entries. False if there may be none.
    #[inline(never)]
    fn read_again(&mut self) -> bool {
        if self.tally.after_reading == 0 {
            return false;
        }
        self.count_alike();
        self.read_clock();
        true
    }

    /// What arrives while a long batch is reaped has been on its way longer than the first reading says.
    #[inline]
    fn read_clock(&mut self) {
        let now = self.reading();
        self.polled_at = now;
        let tally = &mut self.tally;
        tally.now = now;
        tally.until_reading = self.entries_per_reading.min(tally.after_reading);
        tally.counted_until = tally.until_reading;
        tally.after_reading -= tally.until_reading;
        self.set_latency();
    }

    /// The latency of the requests of the expected batch.
    #[inline]
    fn set_latency(&mut self) {
        let batch = BatchNumber::within(self.cq.next().expected());
        self.tally.latency_ns = self.tally.now.since(self.batches.time(batch));
    }

    /// Counts the usual completions that had one latency.
    #[inline]
    fn count_alike(&mut self) {
        let alike = self.tally.alike();
        if alike > 0 {
            self.tally.counted_until = self.tally.until_reading;
            self.tally.usual += alike;
            self.counters.completed.add(alike as u64);
            self.counters.latencies.record(self.tally.latency_ns, alike as u64);
        }
    }

    /// Counts what the poll has reaped, rings both doorbells, and answers how many completions it has handed
    /// over.
    #[inline(never)]
    pub(super) fn end_reaping(&mut self) -> usize {
        self.count_alike();
        self.tally.state = State::Ended;
        self.heard |= self.tally.usual > 0;
        // Where the poll was cut short.
        self.release_vacated();
        self.cq.ring(&self.counters);
        self.flush_plug();
        self.polled_at = NOT_POLLING;
        self.tally.usual + self.tally.unusual
    }
}
