//! Batches: commands that are rung together, and so share the time at which they began.
//!
//! A slot keeps the number of its command's batch, not the time. This tells what no table of times could:
//! a command of a batch that was not rung cannot have been completed, whatever the device says. And it makes
//! the usual completion cheap, which is of the same batch as the one before it.
//!
//! Invariants: the time of batch `n` stands at `n` modulo the table's length until that many further batches
//! have begun; the queue pair looks at one slot for every fourth new batch, and gives a command that has
//! grown old a time of its own (see [`Batches::is_old`]), long before its batch's place is taken by another.

use doorbell_spec::Nanos;

use super::config::{QueueConfig, Statistics};
use super::ids::SlotIndex;

/// The number of a batch, in the place that it has in a [`SlotUse`](super::slot::SlotUse).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchNumber(u64);

/// Batches that begin from one look at a slot to the next.
const BATCHES_PER_VISIT: u64 = 4;

const _: () = assert!(BATCHES_PER_VISIT.is_power_of_two(), "a number is masked");

/// The bits of a [`SlotUse`](super::slot::SlotUse) that are a batch's number.
const MASK: u64 = 0x0fff_ffff << SHIFT;
const SHIFT: u32 = 32;

impl BatchNumber {
    pub(super) const FIRST: Self = Self(0);

    /// The batch in a slot's use.
    #[inline]
    pub(super) fn within(bits: u64) -> Self {
        Self(bits & MASK)
    }

    #[inline]
    pub(super) fn bits(self) -> u64 {
        self.0
    }

    #[inline]
    fn next(self) -> Self {
        Self(self.0.wrapping_add(1 << SHIFT) & MASK)
    }

    /// The batch of this number, for tests of what comes after very many.
    #[cfg(test)]
    pub(super) fn numbered(number: u64) -> Self {
        Self(number << SHIFT & MASK)
    }

    /// How many batches have begun since.
    #[inline]
    fn age(self, current: Self) -> u64 {
        (current.0.wrapping_sub(self.0) & MASK) >> SHIFT
    }
}

/// The batches of one queue pair.
#[derive(Debug)]
pub(super) struct Batches {
    /// The one that commands are posted to.
    current: BatchNumber,
    /// How many before the current one are not rung either: some only where each request is a batch.
    unrung_before: u64,
    /// When each batch was rung; 0 where nobody measures.
    times: Box<[Nanos]>,
    /// Commands that can be posted before somebody must look.
    room: u32,
    size_max: u32,
    /// Which slot is looked at next.
    visited: u32,
    slots: u32,
}

impl Batches {
    pub(super) fn new(depth: u16, config: &QueueConfig) -> Self {
        let size_max = match config.statistics {
            Statistics::PerRequest => 1,
            Statistics::Cached | Statistics::Off => config.plug_limit,
        };
        // See `is_old`: a command is found old before a quarter is over that it may stay unseen for.
        let unseen_max = BATCHES_PER_VISIT as usize * usize::from(depth);
        let length = 4 * unseen_max.max(2 * QueueConfig::PLUG_LIMIT_MAX as usize);
        let times = vec![Nanos(0); length.next_power_of_two()].into_boxed_slice();
        Self {
            current: BatchNumber::FIRST,
            unrung_before: 0,
            times,
            room: size_max,
            size_max,
            visited: 0,
            slots: u32::from(depth),
        }
    }

    /// The batch that commands are posted to.
    #[inline]
    pub(super) fn current(&self) -> BatchNumber {
        self.current
    }

    /// Goes to a batch that comes after very many. No command may be outstanding.
    #[cfg(test)]
    pub(super) fn go_to(&mut self, batch: BatchNumber) {
        self.current = batch;
    }

    /// Notes a posted command, and says whether the batch is full.
    #[inline]
    pub(super) fn posted(&mut self) -> bool {
        self.room = self.room.wrapping_sub(1);
        self.room == 0
    }

    /// Begins another batch; the one before is not rung yet, but its time is `now`.
    pub(super) fn begin_next(&mut self, now: Nanos) {
        self.close(now);
        self.unrung_before += 1;
    }

    /// Notes that everything posted was rung, and begins another batch.
    #[inline]
    pub(super) fn rung(&mut self, now: Nanos) {
        self.close(now);
        self.unrung_before = 0;
    }

    #[inline]
    fn close(&mut self, now: Nanos) {
        let place = self.place(self.current);
        if let Some(time) = self.times.get_mut(place) {
            *time = now;
        }
        self.current = self.current.next();
        self.room = self.size_max;
    }

    /// Whether the commands of a batch were rung.
    #[inline]
    pub(super) fn is_rung(&self, batch: BatchNumber) -> bool {
        batch.age(self.current) > self.unrung_before
    }

    /// The batch that was rung last, or one that no command has if none was.
    #[inline]
    pub(super) fn last_rung(&self) -> BatchNumber {
        BatchNumber(self.current.0.wrapping_sub((self.unrung_before + 1) << SHIFT) & MASK)
    }

    /// When a batch was rung that is not old.
    #[inline]
    pub(super) fn time(&self, batch: BatchNumber) -> Nanos {
        self.times.get(self.place(batch)).copied().unwrap_or_default()
    }

    /// Whether a slot is to be looked at now that another batch begins.
    #[inline]
    pub(super) fn is_time_for_visit(&self) -> bool {
        self.current.bits() & (BATCHES_PER_VISIT - 1) << SHIFT == 0
    }

    /// The slot to look at: each has its turn.
    pub(super) fn next_visit(&mut self) -> SlotIndex {
        let visit = self.visited;
        self.visited = if visit + 1 == self.slots { 0 } else { visit + 1 };
        SlotIndex(visit)
    }

    /// Whether a command of this batch must have its own time before its slot is looked at again, which is
    /// when all other slots have been, a quarter of the table's length at most.
    #[inline]
    pub(super) fn is_old(&self, batch: BatchNumber) -> bool {
        batch.age(self.current) >= self.times.len() as u64 / 2
    }

    #[inline]
    fn place(&self, batch: BatchNumber) -> usize {
        let number = (batch.0 >> SHIFT) as usize;
        number & (self.times.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batches(depth: u16, statistics: Statistics) -> Batches {
        Batches::new(depth, &QueueConfig { statistics, ..QueueConfig::default() })
    }

    #[test]
    fn a_batch_has_its_time_until_a_command_of_it_was_found_old() {
        for depth in [1, 2, 63, 64, 65, 1000] {
            let mut batches = batches(depth, Statistics::Cached);
            let slow = batches.current();
            batches.rung(Nanos(7));
            let mut age = 1;
            // The worst case: the slot is looked at just before its command is old.
            while !batches.is_old(slow)
                || age < batches.times.len() as u64 / 2 + BATCHES_PER_VISIT * u64::from(depth)
            {
                assert_eq!(batches.time(slow), Nanos(7), "depth {depth}, after {age} batches");
                assert!(batches.is_rung(slow));
                batches.rung(Nanos(1000 + age));
                age += 1;
            }
            assert_eq!(batches.time(slow), Nanos(7), "depth {depth}, at the end");
        }
    }

    #[test]
    fn every_slot_is_visited_in_turn() {
        for depth in [1, 2, 5] {
            let mut batches = batches(depth, Statistics::Cached);
            for round in 0..3 * depth {
                assert_eq!(batches.next_visit(), SlotIndex(u32::from(round % depth)));
            }
        }
    }

    #[test]
    fn what_was_posted_since_the_last_ring_is_not_rung() {
        let mut batches = batches(4, Statistics::PerRequest);
        let posted = [(); 3].map(|()| {
            let batch = batches.current();
            assert!(batches.posted(), "each request is a batch");
            batches.begin_next(Nanos(5));
            batch
        });
        assert!(posted.iter().all(|batch| !batches.is_rung(*batch)) && !batches.is_rung(batches.current()));
        assert_eq!(batches.last_rung().next(), posted[0], "the one before all of them");
        batches.rung(Nanos(6));
        assert_eq!(batches.last_rung().next(), batches.current());
        assert!(posted.iter().all(|batch| batches.is_rung(*batch) && batches.time(*batch) == Nanos(5)));
        assert!(!batches.is_rung(batches.current()));
    }

    #[test]
    fn numbers_come_round() {
        let mut batches = batches(4, Statistics::Cached);
        batches.go_to(BatchNumber::numbered(u64::MAX));
        let last = batches.current();
        batches.rung(Nanos(9));
        assert_eq!(batches.current(), BatchNumber::FIRST);
        assert!(batches.is_rung(last) && !batches.is_rung(batches.current()));
        assert_eq!(batches.time(last), Nanos(9));
    }
}
