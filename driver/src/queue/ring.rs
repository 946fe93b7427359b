//! The two rings of a queue pair (NVMe Base 2.0, 3.3.1).
//!
//! Invariants: at most `entries - 1` commands are outstanding (the queue's depth), so neither ring is ever
//! overrun, whatever the device says about its head; the tail that was rung is kept beside the tail that
//! was written, so that nothing posted is forgotten.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use doorbell_hugepages::DmaBuf;
use doorbell_spec::{CompletionEntry, Iova, QueueId, SubmissionEntry};

use super::doorbell::{Again, QueueDoorbell};
use super::entry::Look;
use super::memory::{CompletionCursor, SharedMemory, SubmissionCursor};
use super::stats::Counters;

/// A submission queue as the host sees it.
#[derive(Debug)]
pub(crate) struct SubmissionRing {
    cursor: SubmissionCursor,
    doorbell: QueueDoorbell,
    entries: u32,
    /// The queue's number, in its place within DW2 of a completion.
    number: u32,
    /// The tail that the device knows, as an index and as a place in the ring.
    rung: u32,
    rung_address: usize,
}

impl SubmissionRing {
    /// An empty ring of `entries` (2 to 65,536) entries in `memory`, of the queue `id`.
    pub(crate) fn new(id: QueueId, memory: SharedMemory, entries: u32, doorbell: QueueDoorbell) -> Self {
        debug_assert!((2..=65_536).contains(&entries));
        let cursor = SubmissionCursor::new(memory, entries);
        let rung_address = cursor.address();
        let number = u32::from(id.0) << 16;
        Self { cursor, doorbell, entries, number, rung: 0, rung_address }
    }

    /// Writes an entry at the tail. Does not ring, and does not look for room: the command's slot is it.
    #[inline]
    pub(crate) fn post(&mut self, entry: &SubmissionEntry) {
        self.cursor.write(entry);
    }

    /// Whether something was posted that the device does not know of.
    #[inline]
    pub(crate) fn has_unrung(&self) -> bool {
        self.cursor.address() != self.rung_address
    }

    /// How many entries were posted that the device does not know of.
    pub(crate) fn unrung(&self) -> u32 {
        let tail = self.cursor.index();
        if tail >= self.rung { tail - self.rung } else { tail + self.entries - self.rung }
    }

    /// Tells the device about everything posted, and counts it. Does nothing if it knows already.
    #[inline]
    pub(crate) fn ring(&mut self, counters: &Counters) {
        if !self.has_unrung() {
            return;
        }
        let tail = self.cursor.index();
        counters.commands.add(u64::from(self.unrung()));
        if self.doorbell.has_shadow() {
            self.ring_shadow(tail, counters);
        } else {
            self.doorbell.ring(tail);
            counters.submission_doorbells.add(1);
        }
        self.rung = tail;
        self.rung_address = self.cursor.address();
    }

    #[inline(never)]
    fn ring_shadow(&mut self, tail: u32, counters: &Counters) {
        let told = self.doorbell.ring_shadow(self.rung, tail);
        told.count(&counters.submission_doorbells, &counters.submission_doorbells_saved);
    }

    /// Tells the device by its register what it was last told by the doorbell's shadow alone.
    pub(crate) fn ring_again(&mut self) -> Again {
        self.doorbell.ring_again(self.rung)
    }

    /// Its doorbell, and the tail that was last rung.
    pub(crate) fn doorbell(&mut self) -> (&mut QueueDoorbell, u32) {
        (&mut self.doorbell, self.rung)
    }

    /// Where the device finds the ring.
    pub(crate) fn iova(&self) -> Iova {
        self.cursor.memory().iova()
    }

    /// Keeps the ring's memory from being freed.
    pub(crate) fn keeper(&self) -> Arc<DmaBuf> {
        self.cursor.memory().keeper()
    }

    /// Whether DW2 of a completion, its submission queue and head, is one that this queue can have.
    #[inline]
    pub(crate) fn is_from(&self, dw2: u32) -> bool {
        // Both fields in one comparison: another number makes the difference larger than any ring.
        dw2 ^ self.number < self.entries
    }
}

/// A completion queue as the host sees it.
#[derive(Debug)]
pub(crate) struct CompletionRing {
    cursor: CompletionCursor,
    doorbell: QueueDoorbell,
    /// The head that the device knows, as an index and as a place in the ring.
    told: u32,
    told_address: usize,
}

impl CompletionRing {
    /// An empty ring of `entries` (2 to 65,536) entries in `memory`, which must be zeroed.
    pub(crate) fn new(memory: SharedMemory, entries: u32, doorbell: QueueDoorbell) -> Self {
        debug_assert!((2..=65_536).contains(&entries));
        let cursor = CompletionCursor::new(memory, entries);
        let told_address = cursor.address();
        Self { cursor, doorbell, told: 0, told_address }
    }

    /// Whether there is an entry to take.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.cursor.is_ready()
    }

    /// A look at the next entry.
    #[inline]
    pub(crate) fn look(&self) -> Look<'_, [AtomicU32; 4]> {
        self.cursor.look()
    }

    /// See [`CompletionCursor::difference_of`].
    #[inline]
    pub(crate) fn difference_of(&self, last: u32) -> u64 {
        self.cursor.difference_of(last)
    }

    /// The next entry, to be looked at and taken piece by piece.
    #[inline]
    pub(crate) fn next(&mut self) -> &mut CompletionCursor {
        &mut self.cursor
    }

    /// Takes the next entry if the device has written one. Does not tell the device.
    pub(crate) fn pop(&mut self) -> Option<CompletionEntry> {
        self.cursor.take()
    }

    /// Where the device finds the ring.
    pub(crate) fn iova(&self) -> Iova {
        self.cursor.memory().iova()
    }

    /// Keeps the ring's memory from being freed.
    pub(crate) fn keeper(&self) -> Arc<DmaBuf> {
        self.cursor.memory().keeper()
    }

    /// Tells the device how far the host has read. Does nothing if it knows already.
    #[inline]
    pub(crate) fn ring(&mut self, counters: &Counters) {
        if self.cursor.address() == self.told_address {
            return;
        }
        let head = self.cursor.index();
        if self.doorbell.has_shadow() {
            self.ring_shadow(head, counters);
        } else {
            self.doorbell.ring(head);
            counters.completion_doorbells.add(1);
        }
        self.told = head;
        self.told_address = self.cursor.address();
    }

    #[inline(never)]
    fn ring_shadow(&mut self, head: u32, counters: &Counters) {
        let told = self.doorbell.ring_shadow(self.told, head);
        told.count(&counters.completion_doorbells, &counters.completion_doorbells_saved);
    }

    /// Tells the device by its register what it was last told by the doorbell's shadow alone.
    pub(crate) fn ring_again(&mut self) -> Again {
        self.doorbell.ring_again(self.told)
    }

    /// Its doorbell, and the head that was last rung.
    pub(crate) fn doorbell(&mut self) -> (&mut QueueDoorbell, u32) {
        (&mut self.doorbell, self.told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_hugepages::{DmaSpace, DmaSpaceConfig};
    use doorbell_spec::Doorbells;
    use std::sync::atomic::Ordering;

    /// A ring's memory with the doorbell that belongs to it.
    fn parts(bytes: usize) -> (SharedMemory, Arc<[AtomicU32]>) {
        let space = DmaSpace::new(DmaSpaceConfig::default());
        let buffer = space.allocate(bytes).expect("memory");
        let cells: Arc<[AtomicU32]> = (0..1).map(|_| AtomicU32::new(u32::MAX)).collect();
        (SharedMemory::new(buffer, bytes, 4096).expect("aligned"), cells)
    }

    fn doorbell(cells: &Arc<[AtomicU32]>) -> QueueDoorbell {
        QueueDoorbell::plain(Doorbells::in_memory(Arc::clone(cells)).at(0).expect("one doorbell"))
    }

    #[test]
    fn the_tail_wraps_at_the_real_size_and_is_rung_once() {
        for entries in [2_u32, 3, 128, 65_536] {
            let (memory, cells) = parts(entries as usize * 64);
            let mut ring = SubmissionRing::new(QueueId(3), memory, entries, doorbell(&cells));
            assert!(!ring.has_unrung());
            for posted in 1..=2 * entries + 1 {
                ring.post(&SubmissionEntry::default());
                assert!(ring.has_unrung() && ring.unrung() == 1);
                ring.ring(&Counters::default());
                assert!(!ring.has_unrung() && ring.unrung() == 0);
                assert_eq!(cells[0].load(Ordering::Acquire), posted % entries);
            }
            let dw2 = |sq_id: u16, sq_head: u16| u32::from(sq_id) << 16 | u32::from(sq_head);
            let last = u16::try_from(entries - 1).expect("16 bits");
            assert!(ring.is_from(dw2(3, last)));
            assert!(!ring.is_from(dw2(2, 0)) && !ring.is_from(dw2(u16::MAX, 0)));
            assert_eq!(ring.is_from(dw2(3, u16::MAX)), entries == 65_536);
        }
    }

    #[test]
    fn completions_are_taken_by_phase_over_several_rounds() {
        let entries = 5_u32;
        let (memory, cells) = parts(entries as usize * 16);
        let mut ring = CompletionRing::new(memory, entries, doorbell(&cells));
        let mut phase = 1_u64;
        for round in 0..4_u64 {
            for at in 0..u64::from(entries) {
                assert_eq!(ring.pop(), None, "the device has not written entry {at} of round {round}");
                let index = usize::try_from(at).expect("small");
                let cid = round * 16 + at;
                ring.cursor.memory().store_qword(index * 2, at);
                ring.cursor.memory().store_qword(index * 2 + 1, phase << 48 | cid << 32 | at);
                let entry = ring.pop().expect("written");
                assert_eq!((u64::from(entry.cid), u64::from(entry.sq_head)), (cid, at));
                ring.ring(&Counters::default());
                assert_eq!(u64::from(cells[0].load(Ordering::Acquire)), (at + 1) % u64::from(entries));
            }
            phase ^= 1;
        }
    }
}
