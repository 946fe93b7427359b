//! One poll that finds something: what it counts, and what must happen at its end.

use doorbell_spec::Nanos;

use super::batch::BatchNumber;
use super::pair::{NOT_POLLING, QueuePair};
use super::plug::Plug;
use crate::completion::Completion;

/// A poll under way. However it ends, also by a panic of the callback, what it has reaped is counted and both
/// doorbells are rung.
///
/// Queue and tally are apart, and calls are given both: so the queue's address stays in a register.
pub(super) struct Reaping<'a> {
    queue: &'a mut QueuePair,
    tally: Tally,
}

/// What a poll knows and counts.
struct Tally {
    now: Nanos,
    /// Of a request of the expected batch.
    latency_ns: u64,
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

impl<'a> Reaping<'a> {
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "so that the queue's address stays in a register")]
    pub(super) fn begin(queue: &'a mut QueuePair, budget: usize) -> Self {
        let tally = Tally::begin(queue, budget);
        Self { queue, tally }
    }

    /// The next completion, if it is a usual one.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "this is what a poll does")]
    pub(super) fn usual(&mut self) -> Option<Completion> {
        self.queue.take_usual(self.tally.latency_ns)
    }

    /// Finds out why there is no usual completion.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "so that the queue's address stays in a register")]
    pub(super) fn unusual(&mut self) -> Next {
        if self.tally.expect_another_batch(self.queue) {
            return Next::Look;
        }
        self.tally.unusual(self.queue)
    }

    /// A plug for the callback to submit through.
    #[inline]
    pub(super) fn plug(&mut self) -> Plug<'_> {
        Plug::inner(self.queue)
    }

    /// After a completion was handed over: whether there may be another.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "this is what a poll does")]
    pub(super) fn go_on(&mut self) -> bool {
        self.queue.release_vacated();
        self.tally.until_reading -= 1;
        self.tally.until_reading != 0 || self.tally.read_again(self.queue)
    }

    /// How many completions were handed over.
    #[inline]
    pub(super) fn handed_over(&self) -> usize {
        self.tally.handed_over()
    }
}

impl Tally {
    #[inline(never)]
    fn begin(queue: &mut QueuePair, budget: usize) -> Self {
        let budget = budget.min(usize::from(queue.depth));
        queue.expect_batch_of_next();
        let mut tally = Self {
            now: Nanos(0),
            latency_ns: 0,
            until_reading: 0,
            after_reading: budget,
            counted_until: 0,
            usual: 0,
            unusual: 0,
            expected_for: budget,
        };
        tally.read_clock(queue);
        tally
    }

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

    /// Expects the batch of the next entry's command, if it is only that which makes it unusual.
    #[inline(never)]
    fn expect_another_batch(&mut self, queue: &mut QueuePair) -> bool {
        let left = self.until_reading + self.after_reading;
        // Once for each entry: a device that changes an entry while it is read must not keep us here.
        if self.expected_for == left || !queue.expect_batch_of_next() {
            return false;
        }
        self.expected_for = left;
        self.count_alike(queue);
        self.set_latency(queue);
        true
    }

    #[cold]
    #[inline(never)]
    fn unusual(&mut self, queue: &mut QueuePair) -> Next {
        // What follows is not counted as usual.
        self.count_alike(queue);
        loop {
            let completion = match queue.cq.pop() {
                Some(entry) => {
                    // Where this is the last entry before a reading, `go_on` looks after it.
                    self.counted_until -= 1;
                    queue.end_command(&entry, self.now)
                }
                // All of it was noise, which says nothing about the controller, or nothing came, or the
                // controller has failed.
                None if self.handed_over() > 0 && queue.shared.is_running() => return Next::End,
                None => match queue.next_without_entry() {
                    None => return Next::End,
                    completion => {
                        self.counted_until -= 1;
                        completion
                    }
                },
            };
            if let Some(completion) = completion {
                self.unusual += 1;
                return Next::Completion(completion);
            }
            self.until_reading -= 1;
            if self.until_reading == 0 && !self.read_again(queue) {
                return Next::End;
            }
            if !queue.cq.is_ready() {
                continue;
            }
            return Next::Look;
        }
    }

    /// Reads the clock for the next entries. False if there may be none.
    #[inline(never)]
    fn read_again(&mut self, queue: &mut QueuePair) -> bool {
        if self.after_reading == 0 {
            return false;
        }
        self.count_alike(queue);
        self.read_clock(queue);
        true
    }

    /// What arrives while a long batch is reaped has been on its way longer than the first reading says.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "called at two places")]
    fn read_clock(&mut self, queue: &mut QueuePair) {
        self.now = queue.reading();
        queue.polled_at = self.now;
        self.until_reading = queue.entries_per_reading.min(self.after_reading);
        self.counted_until = self.until_reading;
        self.after_reading -= self.until_reading;
        self.set_latency(queue);
    }

    /// The latency of the requests of the expected batch.
    #[inline]
    fn set_latency(&mut self, queue: &mut QueuePair) {
        let batch = BatchNumber::within(queue.cq.next().expected());
        self.latency_ns = self.now.since(queue.batches.time(batch));
    }

    /// Counts the usual completions that had one latency.
    #[inline]
    fn count_alike(&mut self, queue: &QueuePair) {
        let alike = self.alike();
        if alike > 0 {
            self.counted_until = self.until_reading;
            self.usual += alike;
            queue.counters.completed.add(alike as u64);
            queue.counters.latencies.record(self.latency_ns, alike as u64);
        }
    }

    #[inline(never)]
    fn end(&mut self, queue: &mut QueuePair) {
        self.count_alike(queue);
        queue.heard |= self.usual > 0;
        queue.cq.ring(&queue.counters);
        queue.flush_plug();
        queue.polled_at = NOT_POLLING;
    }
}

impl Drop for Reaping<'_> {
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "so that the queue's address stays in a register")]
    fn drop(&mut self) {
        // The callback may have panicked.
        self.queue.release_vacated();
        self.tally.end(self.queue);
    }
}
