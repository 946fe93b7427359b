//! Command identifiers: a bitmap of free slots, and a generation per slot.
//!
//! Invariants: a bit is set exactly while its slot is free; a slot is handed out to one command at a
//! time; an identifier never is 0xFFFF, which the error log uses for "no command" (NVMe Base 2.0,
//! 3.3.3.1). One thread owns the bitmap: nothing here is atomic.
//!
//! The low bits of an identifier are the slot. The bits left over by the depth are the slot's
//! generation, which moves on whenever the slot is released, so that a late or duplicate completion is
//! told from a current one until the generation has come round.

use doorbell_spec::Cid;

use super::slot::SlotUse;

/// The index of a command's slot: less than the queue's depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SlotIndex(pub(crate) u32);

impl SlotIndex {
    /// No slot: a queue is at most 65,535 deep.
    pub(crate) const NOWHERE: Self = Self(u32::MAX);

    #[inline]
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Whether identifiers carry a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Generations {
    /// They do: a late or duplicate completion is recognised.
    #[default]
    On,
    /// They do not: for a device that needs identifiers below the queue's depth.
    Off,
}

/// The free slots of one queue.
#[derive(Debug)]
pub(crate) struct CommandIds {
    total: u32,
    free: Box<[u64]>,
    hint: usize,
}

/// Identifiers taken from one word of the bitmap at once and not yet used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IdBatch {
    word: usize,
    mask: u64,
}

/// Whether the slot of a request that completes may go to the next request of the same queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reuse(u32);

impl Reuse {
    /// It may: nobody else could have it.
    pub(crate) const ALWAYS: Self = Self(0);
    /// Only if nobody waits for it.
    pub(crate) const ASK: Self = Self(ASK);

    #[inline]
    fn bits(self) -> u32 {
        self.0
    }
}

/// Room for one slot that was just released, which whoever acquires one next takes first. One number, since
/// every completion goes through here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vacated(u32);

/// Set beside a slot that others may wait for: the one who takes it must ask.
const ASK: u32 = 1 << 16;

impl Vacated {
    pub(crate) const NONE: Self = Self(u32::MAX);

    /// Puts a slot in, where none is.
    #[inline]
    pub(crate) fn put(&mut self, slot: SlotIndex, reuse: Reuse) {
        debug_assert_eq!(*self, Self::NONE, "a slot would be lost");
        self.0 = slot.0 | reuse.bits();
    }

    /// Takes the slot if there is one that nobody else can wait for.
    #[inline]
    pub(crate) fn take_own(&mut self) -> Option<SlotIndex> {
        let Self(slot) = *self;
        if slot >= ASK {
            return None;
        }
        *self = Self::NONE;
        Some(SlotIndex(slot))
    }

    /// Takes the slot if there is one.
    pub(crate) fn take(&mut self) -> Option<SlotIndex> {
        let Self(slot) = std::mem::replace(self, Self::NONE);
        (slot != Self::NONE.0).then_some(SlotIndex(slot & !ASK))
    }

    #[inline]
    pub(crate) fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// How many slots are in here.
    pub(crate) fn len(self) -> u32 {
        u32::from(!self.is_none())
    }
}

impl CommandIds {
    /// All of `depth` slots free.
    pub(crate) fn new(depth: u16) -> Self {
        let depth = usize::from(depth);
        let free = (0..depth.div_ceil(WORD_BITS))
            .map(|word| match depth - word * WORD_BITS {
                rest if rest >= WORD_BITS => u64::MAX,
                rest => (1 << rest) - 1,
            })
            .collect();
        Self { total: u32::try_from(depth).unwrap_or(u32::MAX), free, hint: 0 }
    }

    /// Takes one free slot.
    #[inline]
    pub(crate) fn acquire(&mut self) -> Option<SlotIndex> {
        let word = self.word_with_free()?;
        let bits = &mut self.free[word];
        let slot = slot_at(word, bits.trailing_zeros());
        *bits &= *bits - 1;
        Some(slot)
    }

    /// Takes what one word has free if `count` requests are expected: a batch has one word's slots, and
    /// taking all of them costs no more than taking some. None are taken if none are expected.
    #[inline]
    pub(crate) fn acquire_batch(&mut self, count: u32) -> IdBatch {
        if count == 0 {
            return IdBatch::default();
        }
        let Some(word) = self.word_with_free() else { return IdBatch::default() };
        let mask = std::mem::take(&mut self.free[word]);
        IdBatch { word, mask }
    }

    /// Gives the unused rest of a batch back.
    #[inline]
    pub(crate) fn release_batch(&mut self, batch: IdBatch) {
        if let Some(bits) = self.free.get_mut(batch.word) {
            debug_assert_eq!(*bits & batch.mask, 0, "a slot of the batch was free already");
            *bits |= batch.mask;
        }
    }

    /// Gives a slot back. The slot must have been acquired and not yet released.
    #[inline]
    pub(crate) fn release(&mut self, slot: SlotIndex) {
        let (word, bit) = (slot.index() / WORD_BITS, slot.index() % WORD_BITS);
        debug_assert_eq!(self.free[word] & 1 << bit, 0, "slot {} was free already", slot.0);
        self.free[word] |= 1 << bit;
    }

    /// How many slots there are.
    pub(crate) fn total(&self) -> u32 {
        self.total
    }

    /// How many slots are free. Counts bits: not for the hot path.
    pub(crate) fn available(&self) -> u32 {
        self.free.iter().map(|word| word.count_ones()).sum()
    }

    /// The next word, from the hint on, that has a free slot.
    #[inline]
    fn word_with_free(&mut self) -> Option<usize> {
        if self.free[self.hint] != 0 { Some(self.hint) } else { self.next_word_with_free() }
    }

    #[inline(never)]
    fn next_word_with_free(&mut self) -> Option<usize> {
        let words = self.free.len();
        let word = (self.hint + 1..words).chain(0..self.hint).find(|word| self.free[*word] != 0)?;
        self.hint = word;
        Some(word)
    }
}

impl IdBatch {
    /// Takes the next identifier of the batch.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<SlotIndex> {
        if self.mask == 0 {
            return None;
        }
        let slot = slot_at(self.word, self.mask.trailing_zeros());
        self.mask &= self.mask - 1;
        Some(slot)
    }

    /// Whether none is left in it.
    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.mask == 0
    }

    /// How many identifiers are left in it.
    pub(crate) fn len(self) -> u32 {
        self.mask.count_ones()
    }
}

/// How a slot and its generation make an identifier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CidLayout {
    slot_mask: u32,
    /// From an identifier to the free slot's use with the next generation.
    step: u64,
    /// Such uses from here on do not exist.
    end: u64,
}

impl CidLayout {
    /// The layout for `depth` slots.
    pub(crate) fn new(depth: u16, generations: Generations) -> Self {
        let slot_bits = u16::BITS - depth.saturating_sub(1).leading_zeros();
        // The generation of all ones is left out: with the last slot it would make 0xFFFF. At least one
        // generation remains, which is the same as none.
        let count = match generations {
            Generations::On => ((1_u64 << (u16::BITS - slot_bits)) - 1).max(1),
            Generations::Off => 1,
        };
        let free = SlotUse::free(Cid(0)).bits();
        let (step, end) = (free + (1 << slot_bits), free + (count << slot_bits));
        Self { slot_mask: (1 << slot_bits) - 1, step, end }
    }

    /// The first identifier of a slot.
    pub(crate) fn first(self, slot: SlotIndex) -> Cid {
        #[expect(clippy::cast_possible_truncation, reason = "a queue is at most 65,535 deep")]
        let cid = slot.0 as u16;
        Cid(cid)
    }

    /// The slot that an identifier names. May be beyond the depth: the device chose it.
    #[inline]
    pub(crate) fn slot(self, cid: Cid) -> SlotIndex {
        self.slot_in(u64::from(cid.0))
    }

    /// The same of an identifier with other things above it.
    #[inline]
    pub(crate) fn slot_in(self, low_bits: u64) -> SlotIndex {
        #[expect(clippy::cast_possible_truncation, reason = "the mask has 16 bits")]
        SlotIndex(low_bits as u32 & self.slot_mask)
    }

    /// The identifier of the same slot in the next generation.
    #[inline]
    pub(crate) fn next(self, cid: Cid) -> Cid {
        self.free_after(cid).cid()
    }

    /// The use of a free slot whose last command had this identifier.
    #[inline]
    pub(super) fn free_after(self, cid: Cid) -> SlotUse {
        // The kind of use is in the upper bits of both: one addition and one comparison for all of it.
        let next = SlotUse::of_bits(u64::from(cid.0) + self.step);
        if next.bits() < self.end { next } else { first_again(cid, self.slot_mask) }
    }
}

/// The identifier that follows the last generation. Seldom: a call, so that the usual case is a branch.
#[cold]
#[inline(never)]
fn first_again(cid: Cid, slot_mask: u32) -> SlotUse {
    #[expect(clippy::cast_possible_truncation, reason = "a part of 16 bits")]
    let slot = (u32::from(cid.0) & slot_mask) as u16;
    SlotUse::free(Cid(slot))
}

const WORD_BITS: usize = u64::BITS as usize;

#[expect(clippy::cast_possible_truncation, reason = "a queue is at most 65,535 deep")]
#[inline]
fn slot_at(word: usize, bit: u32) -> SlotIndex {
    SlotIndex((word * WORD_BITS) as u32 + bit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_slot_is_handed_out_once_and_comes_back() {
        for depth in [1_u16, 2, 31, 63, 64, 65, 127, 128, 129, 1000, 65_535] {
            let mut ids = CommandIds::new(depth);
            let mut taken = BTreeSet::new();
            while let Some(slot) = ids.acquire() {
                assert!(slot.0 < u32::from(depth) && taken.insert(slot));
            }
            assert_eq!(taken.len(), usize::from(depth));
            assert_eq!(ids.available(), 0);
            taken.iter().for_each(|slot| ids.release(*slot));
            assert_eq!(ids.available(), u32::from(depth));
        }
    }

    #[test]
    fn a_batch_takes_what_one_word_has_and_gives_the_rest_back() {
        let mut ids = CommandIds::new(70);
        assert_eq!(ids.acquire_batch(0).len(), 0, "nothing is expected");
        let mut first = ids.acquire_batch(32);
        assert_eq!((first.len(), ids.available()), (64, 6));
        let used = first.take().expect("one of 64");
        ids.release_batch(first);
        assert_eq!(ids.available(), 69);
        assert_eq!(ids.acquire_batch(1000).len(), 63);
        assert_eq!(ids.acquire_batch(1000).len(), 6);
        assert_eq!(ids.acquire_batch(1).len(), 0);
        ids.release(used);
        assert_eq!(ids.acquire_batch(8).take(), Some(used));
    }

    #[test]
    fn an_identifier_names_its_slot_and_is_never_all_ones() {
        for depth in [1_u16, 2, 3, 64, 65, 1023, 1024, 32_768, 32_769, 65_535] {
            let layout = CidLayout::new(depth, Generations::On);
            for slot in [0, depth / 2, depth - 1].map(|slot| SlotIndex(u32::from(slot))) {
                let mut cid = layout.first(slot);
                for _ in 0..70_000 {
                    assert_eq!(layout.slot(cid), slot);
                    assert_ne!(cid.0, u16::MAX);
                    cid = layout.next(cid);
                }
            }
        }
    }

    #[test]
    fn a_released_slot_does_not_repeat_its_identifier_soon() {
        let layout = CidLayout::new(128, Generations::On);
        let mut seen = BTreeSet::new();
        let mut cid = layout.first(SlotIndex(127));
        while seen.insert(cid) {
            cid = layout.next(cid);
        }
        assert_eq!(seen.len(), 511);
    }

    #[test]
    fn without_generations_identifiers_stay_below_the_depth() {
        let layout = CidLayout::new(100, Generations::Off);
        let cid = layout.first(SlotIndex(99));
        assert_eq!((cid, layout.next(cid)), (Cid(99), Cid(99)));
    }
}
