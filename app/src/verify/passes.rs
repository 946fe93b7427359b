//! Which blocks a pass writes, and in which transfers.
//!
//! The first pass (generation 1) writes every block. A later one writes about half of them: groups of 256
//! blocks, chosen by the seed, the generation and the group's number alone. So whoever reads the blocks later
//! knows which generation each of them must have, without having seen the run.
//!
//! Invariant: the pieces of a pass hold every block of it exactly once.

use std::ops::{Range, RangeInclusive};

use crate::random::Random;

/// The passes of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passes {
    seed: u64,
}

/// Some neighbouring blocks, transferred together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) lba: u64,
    pub(crate) blocks: u64,
}

/// The pieces of a pass, in an order in which several places of the range take turns.
#[derive(Clone, Debug)]
pub(crate) struct Pieces {
    lanes: Vec<Range<u64>>,
    lengths: RangeInclusive<u64>,
    random: Random,
    selection: Selection,
}

/// Which blocks the pieces hold.
#[derive(Clone, Copy, Debug)]
enum Selection {
    All,
    Pass { passes: Passes, generation: u64 },
}

impl Passes {
    /// Those of a run with this seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Whether the pass of this generation writes the block.
    pub(crate) fn writes(&self, generation: u64, lba: u64) -> bool {
        match generation {
            0 => false,
            1 => true,
            later => Random::of(!self.seed, later, lba / GROUP_BLOCKS).next() & 1 == 0,
        }
    }

    /// The generation that a block has after the pass of `generation`, which is at least 1.
    pub(crate) fn latest(&self, generation: u64, lba: u64) -> u64 {
        (1..=generation).rev().find(|pass| self.writes(*pass, lba)).unwrap_or(1)
    }

    /// The next generation after `generation` that the block has. `None` if that is too far off to matter.
    pub(crate) fn next_after(&self, generation: u64, lba: u64) -> Option<u64> {
        (1..=PASSES_AHEAD)
            .filter_map(|ahead| generation.checked_add(ahead))
            .find(|pass| self.writes(*pass, lba))
    }

    /// The pieces that the pass of `generation` writes.
    pub(crate) fn to_write(self, generation: u64, range: Range<u64>, lengths: RangeInclusive<u64>) -> Pieces {
        let random = Random::of(self.seed, generation, 0);
        let selection = match generation {
            1 => Selection::All,
            _ => Selection::Pass { passes: self, generation },
        };
        Pieces { lanes: lanes(range), lengths, random, selection }
    }

    /// The pieces in which all blocks are read after that pass. They are cut otherwise than those written.
    pub(crate) fn to_read(self, generation: u64, range: Range<u64>, lengths: RangeInclusive<u64>) -> Pieces {
        let random = Random::of(self.seed, generation, 1);
        Pieces { lanes: lanes(range), lengths, random, selection: Selection::All }
    }
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        loop {
            let count = u64::try_from(self.lanes.len()).unwrap_or(u64::MAX);
            if count == 0 {
                return None;
            }
            let index = usize::try_from(self.random.below(count)).unwrap_or(0);
            let lane = self.lanes[index].clone();
            let Some(stretch) = self.selection.first_stretch(lane.clone(), *self.lengths.end()) else {
                self.lanes.swap_remove(index);
                continue;
            };
            let blocks = self.length().min(stretch.end - stretch.start);
            self.lanes[index].start = stretch.start + blocks;
            return Some(Piece { lba: stretch.start, blocks });
        }
    }
}

impl Pieces {
    /// A length: short ones and long ones are equally frequent, and one in 16 is the longest.
    fn length(&mut self) -> u64 {
        let (min, max) = (*self.lengths.start(), *self.lengths.end());
        let span = max - min;
        if span == 0 || self.random.below(16) == 0 {
            return max;
        }
        let bits = self.random.below(u64::from(64 - span.leading_zeros()) + 1);
        min + self.random.below(1 << bits.min(63)).min(span)
    }
}

impl Selection {
    /// The first blocks of the lane that belong together and are selected, `most` of them at most.
    fn first_stretch(&self, lane: Range<u64>, most: u64) -> Option<Range<u64>> {
        if lane.is_empty() {
            return None;
        }
        let Self::Pass { passes, generation } = self else { return Some(lane) };
        let group_end = |lba: u64| (lba / GROUP_BLOCKS + 1).saturating_mul(GROUP_BLOCKS).min(lane.end);
        let mut start = lane.start;
        while start < lane.end && !passes.writes(*generation, start) {
            start = group_end(start);
        }
        let mut end = start;
        while end < lane.end && end - start < most && passes.writes(*generation, end) {
            end = group_end(end);
        }
        (start < end).then_some(start..end)
    }
}

/// The range as a few parts of about the same size.
fn lanes(range: Range<u64>) -> Vec<Range<u64>> {
    let blocks = u128::from(range.end.saturating_sub(range.start));
    let cut =
        |index: u64| range.start + u64::try_from(blocks * u128::from(index) / u128::from(LANES)).unwrap_or(0);
    (0..LANES).map(|index| cut(index)..cut(index + 1)).filter(|lane| !lane.is_empty()).collect()
}

/// The most passes of one run.
pub(crate) const GENERATIONS_MAX: u64 = 65_535;
/// Blocks that a pass writes all or none of.
const GROUP_BLOCKS: u64 = 256;
/// Places of the range that take turns.
const LANES: u64 = 8;
/// A block that is not written for so many passes has a probability of 2^-64.
const PASSES_AHEAD: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_hold_every_block_exactly_once_and_keep_to_the_lengths() {
        let passes = Passes::new(11);
        for (range, lengths) in
            [(0..10_000, 1..=256), (5..6, 1..=2048), (3..5000, 8..=8), (0..7, 3..=3), (100..9999, 1..=1)]
        {
            for generation in [1, 2, 3] {
                let mut seen = vec![0u32; 10_000];
                let mut pieces = 0;
                for piece in passes.to_write(generation, range.clone(), lengths.clone()) {
                    assert!(piece.blocks >= 1 && piece.blocks <= *lengths.end());
                    (piece.lba..piece.lba + piece.blocks)
                        .for_each(|lba| seen[usize::try_from(lba).expect("small")] += 1);
                    pieces += 1;
                }
                for (lba, count) in (0..).zip(&seen) {
                    let expected = range.contains(&lba) && passes.writes(generation, lba);
                    assert_eq!(*count, u32::from(expected), "block {lba} of generation {generation}");
                }
                assert!(pieces > 0 || generation > 1);
            }
            let read: u64 = passes.to_read(2, range.clone(), lengths.clone()).map(|piece| piece.blocks).sum();
            assert_eq!(read, range.end - range.start);
        }
    }

    #[test]
    fn lengths_are_short_long_and_odd() {
        let pieces: Vec<_> = Passes::new(1).to_write(1, 0..4_000_000, 1..=2048).collect();
        let share =
            |is: fn(u64) -> bool| pieces.iter().filter(|piece| is(piece.blocks)).count() * 100 / pieces.len();
        assert!(share(|blocks| blocks == 1) >= 5);
        assert!(share(|blocks| blocks == 2048) >= 3);
        assert!(share(|blocks| blocks % 8 != 0) >= 30);
    }

    #[test]
    fn later_passes_write_about_half_and_generations_follow_from_them() {
        let passes = Passes::new(5);
        let written = (0..1_000_000).filter(|lba| passes.writes(2, *lba)).count();
        assert!((450_000..550_000).contains(&written), "{written}");
        for lba in (0..100_000).step_by(97) {
            let latest = passes.latest(5, lba);
            assert!((1..=5).contains(&latest) && passes.writes(latest, lba));
            assert!((latest + 1..=5).all(|pass| !passes.writes(pass, lba)));
            let next = passes.next_after(latest, lba).expect("soon");
            assert!(next > 5 && passes.writes(next, lba));
            assert!((latest + 1..next).all(|pass| !passes.writes(pass, lba)));
        }
    }
}
