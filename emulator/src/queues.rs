//! Submission and completion queues as the device keeps them (NVMe Base 2.0, 3.3.1 and 3.3.2).
//!
//! What the host says about a queue comes through its doorbells and is checked against what is possible
//! before it is believed. Indexes are kept privately: nothing is read back from host memory.

pub(crate) mod bell;
pub(crate) mod burst;
pub(crate) mod ring;

use std::collections::VecDeque;

use doorbell_spec::register::{DoorbellKind, doorbell_index};
use doorbell_spec::{CompletionEntry, QueueId};

use crate::iova::access::{Dma, Refused};
use crate::report::Violation;
use bell::{Bell, Bells};
use ring::{Ring, View};

/// A submission queue.
pub(crate) struct SubmissionQueue {
    pub(crate) id: QueueId,
    pub(crate) ring: Ring,
    /// The next entry to be fetched.
    pub(crate) head: u32,
    /// The host's tail as last seen and believed.
    pub(crate) tail: u32,
    /// How many entries there are from the head to the tail.
    waiting: u32,
    /// Where its completions go.
    pub(crate) cq: QueueId,
    /// Commands taken and parked.
    pub(crate) parked: u32,
    /// The identifiers of these commands, a bit each.
    pub(crate) parked_cids: CidSet,
    pub(crate) bell: Bell,
    /// Its place in the order in which queues are served.
    pub(crate) turn: usize,
}

/// A completion queue.
pub(crate) struct CompletionQueue {
    pub(crate) id: QueueId,
    pub(crate) ring: Ring,
    /// How many submission queues complete into it.
    pub(crate) users: u32,
    /// The interrupt vector, if interrupts are on.
    pub(crate) vector: Option<u16>,
    /// Whether something was posted since the last interrupt.
    pub(crate) is_fresh: bool,
    /// Completions that wait for room, oldest first.
    pub(crate) held: VecDeque<CompletionEntry>,
    tail: u32,
    phase: bool,
    /// How many entries can be posted before the queue is full: one always stays free.
    room: u32,
    head: u32,
    pub(crate) bell: Bell,
}

/// A set of command identifiers, a bit each.
pub(crate) struct CidSet(Box<[u64; 1024]>);

/// What a look at a doorbell found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// The same as last time.
    Same,
    /// A new value.
    Moved,
    /// A value that cannot be; it is ignored.
    Wrong(Violation),
}

impl SubmissionQueue {
    pub(crate) fn new(id: QueueId, ring: Ring, cq: QueueId, stride: u8) -> Self {
        let word = doorbell_index(id, DoorbellKind::SubmissionTail, stride);
        Self {
            id,
            bell: Bell::new(word, ring.entries()),
            ring,
            head: 0,
            tail: 0,
            waiting: 0,
            cq,
            parked: 0,
            parked_cids: CidSet::new(),
            turn: 0,
        }
    }

    /// Whether there is nothing to fetch as far as the device knows.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// How many entries there are to fetch as far as the device knows.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting as usize
    }

    /// Looks at the tail doorbell.
    #[inline]
    pub(crate) fn look(&mut self, bells: &Bells<'_>) -> Look {
        match self.bell.look(bells) {
            None => Look::Same,
            Some(value) => self.believe(value),
        }
    }

    /// The same for a queue without shadow doorbells whose register has been looked at.
    #[inline(always)]
    pub(crate) fn hear(&mut self, value: u32) -> Look {
        match self.bell.hear(value) {
            None => Look::Same,
            Some(value) => self.believe(value),
        }
    }

    #[inline(always)]
    fn believe(&mut self, value: u32) -> Look {
        let entries = self.ring.entries();
        if value >= entries {
            return Look::Wrong(Violation::TailOutOfRange { queue: self.id, value, entries });
        }
        // A tail moves on and never over the head: what waits can only become more.
        let waiting = distance(self.head, value, entries);
        if waiting < self.waiting {
            return Look::Wrong(Violation::SubmissionOverrun { queue: self.id, tail: self.tail, value });
        }
        (self.tail, self.waiting) = (value, waiting);
        Look::Moved
    }

    /// Steps over the entry at the head, if there is one.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
        let next = self.head + 1;
        self.head = if next == self.ring.entries() { 0 } else { next };
    }

    /// SQHD: the head as completions carry it. A queue has at most 65,536 entries, so it fits.
    #[inline]
    pub(crate) fn head_field(&self) -> u16 {
        #[expect(clippy::cast_possible_truncation)]
        let head = self.head as u16;
        head
    }
}

impl CompletionQueue {
    pub(crate) fn new(id: QueueId, ring: Ring, vector: Option<u16>, stride: u8) -> Self {
        let word = doorbell_index(id, DoorbellKind::CompletionHead, stride);
        let room = ring.entries().saturating_sub(1);
        Self {
            id,
            bell: Bell::new(word, ring.entries()),
            ring,
            users: 0,
            vector,
            is_fresh: false,
            held: VecDeque::new(),
            tail: 0,
            phase: true,
            room,
            head: 0,
        }
    }

    /// Begins to look at the shadow of its doorbell.
    pub(crate) fn follow(&mut self, bells: &Bells<'_>) {
        self.bell.follow(bells, self.head);
    }

    /// Whether another entry would overrun the host (one entry always stays free).
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.room == 0
    }

    /// How many entries can be posted before the queue is full.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.room as usize
    }

    /// Looks at the head doorbell.
    #[inline]
    pub(crate) fn look(&mut self, bells: &Bells<'_>) -> Look {
        match self.bell.look(bells) {
            None => Look::Same,
            Some(value) => self.believe(value),
        }
    }

    /// The same for a queue without shadow doorbells whose register has been looked at.
    #[inline(always)]
    pub(crate) fn hear(&mut self, value: u32) -> Look {
        match self.bell.hear(value) {
            None => Look::Same,
            Some(value) => self.believe(value),
        }
    }

    #[inline(always)]
    fn believe(&mut self, value: u32) -> Look {
        let entries = self.ring.entries();
        if value >= entries {
            return Look::Wrong(Violation::HeadOutOfRange { queue: self.id, value, entries });
        }
        // Entries that were posted and not taken back yet are what there is no room for.
        let posted = entries - 1 - self.room;
        let freed = distance(self.head, value, entries);
        if freed > posted {
            return Look::Wrong(Violation::CompletionOverrun { queue: self.id, value, posted });
        }
        self.head = value;
        self.room += freed;
        Look::Moved
    }

    /// Posts an entry into a ring that is not full, with the phase of this round.
    pub(crate) fn post(&mut self, dma: &Dma<'_>, mut entry: CompletionEntry) -> Result<(), Refused> {
        // Bit 0 of a held entry may ask for the wrong phase: the difference is kept, not the value.
        entry.status_and_phase ^= u16::from(self.phase);
        self.ring.post(dma, self.tail, &entry)?;
        self.step_over();
        Ok(())
    }

    /// The same through a view of the ring.
    #[inline]
    pub(crate) fn post_in(&mut self, view: &View<'_>, mut entry: CompletionEntry) -> Option<()> {
        entry.status_and_phase ^= u16::from(self.phase);
        view.post(self.tail, &entry)?;
        self.step_over();
        Some(())
    }

    #[inline]
    fn step_over(&mut self) {
        self.room = self.room.saturating_sub(1);
        self.is_fresh = true;
        self.tail += 1;
        if self.tail == self.ring.entries() {
            self.tail = 0;
            self.phase = !self.phase;
        }
    }
}

impl CidSet {
    fn new() -> Self {
        Self(Box::new([0; 1024]))
    }

    #[inline]
    pub(crate) fn contains(&self, cid: u16) -> bool {
        self.0[usize::from(cid >> 6)] & 1 << (cid & 63) != 0
    }

    pub(crate) fn insert(&mut self, cid: u16) {
        self.0[usize::from(cid >> 6)] |= 1 << (cid & 63);
    }

    pub(crate) fn remove(&mut self, cid: u16) {
        self.0[usize::from(cid >> 6)] &= !(1 << (cid & 63));
    }
}

/// How many entries lie from `from` up to `to` in a ring.
#[inline]
fn distance(from: u32, to: u32, entries: u32) -> u32 {
    if to >= from { to - from } else { to + entries - from }
}

#[cfg(test)]
mod tests {
    use doorbell_spec::Iova;

    use super::*;

    fn sq(entries: u32) -> SubmissionQueue {
        SubmissionQueue::new(QueueId(1), Ring::new(Iova(0x1000), entries, 64), QueueId(1), 0)
    }

    #[test]
    fn every_tail_is_believed_or_refused_as_an_oracle_says() {
        for entries in 2..=9 {
            for head in 0..entries {
                for waiting in 0..entries {
                    for value in 0..entries + 3 {
                        let mut queue = sq(entries);
                        (queue.head, queue.tail, queue.waiting) = (head, (head + waiting) % entries, waiting);
                        // The oracle walks: it may step on until it would meet the head.
                        let mut reachable = vec![queue.tail];
                        let mut at = queue.tail;
                        while (at + 1) % entries != head {
                            at = (at + 1) % entries;
                            reachable.push(at);
                        }
                        let believed = queue.believe(value) == Look::Moved;
                        assert_eq!(
                            believed,
                            reachable.contains(&value),
                            "{entries} {head} {waiting} {value}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_head_beyond_what_was_posted_is_refused() {
        let ring = Ring::new(Iova(0x1000), 4, 16);
        let mut queue = CompletionQueue::new(QueueId(1), ring, None, 0);
        queue.room = 1;
        assert!(matches!(queue.believe(3), Look::Wrong(Violation::CompletionOverrun { posted: 2, .. })));
        assert!(matches!(queue.believe(4), Look::Wrong(Violation::HeadOutOfRange { .. })));
        assert_eq!((queue.believe(2), queue.room), (Look::Moved, 3));
        assert!(!queue.is_full());
        queue.room = 0;
        assert!(queue.is_full());
    }

    #[test]
    fn identifiers_are_kept_apart() {
        let mut set = CidSet::new();
        for cid in [0, 63, 64, 0xffff] {
            assert!(!set.contains(cid));
            set.insert(cid);
            assert!(set.contains(cid));
        }
        set.remove(64);
        assert!(!set.contains(64) && set.contains(63) && set.contains(0xffff));
    }
}
