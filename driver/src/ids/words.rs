//! The bitmap: which identifiers of a shared set are free.
//!
//! Invariant: a bit is set exactly while its identifier is free. It is cleared by one atomic operation, whose
//! outcome says who got it; so nobody gets an identifier that somebody else has.
//!
//! A word has 64 bits of which only so many are used that every lane has a word of its own, if there are
//! identifiers enough.

use std::ops::Range;

use super::sync::{AtomicU64, Ordering, Padded};

/// The free identifiers, a bit each, a cache line for each word.
///
/// The bit of an identifier is its number modulo 64, also where a word has fewer, so that nothing has to be
/// subtracted.
#[derive(Debug)]
pub(super) struct Words {
    words: Box<[Padded<AtomicU64>]>,
    /// The binary logarithm of how many identifiers a word has.
    shift: u32,
    ids: u16,
}

/// Identifiers of one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) word: usize,
    pub(super) mask: u64,
}

/// The lowest identifier of a mask that is not 0, whose bit 0 has this number.
#[inline]
pub(super) fn first(base: u16, mask: u64) -> u16 {
    #[expect(clippy::cast_possible_truncation, reason = "the index of a bit is less than 64")]
    let bit = mask.trailing_zeros() as u16;
    base.wrapping_add(bit)
}

impl Words {
    /// All of `ids` identifiers (at least 1) free, for `lanes` lanes (at least 1).
    pub(super) fn new(ids: u16, lanes: u16) -> Self {
        let enough = |shift: &u32| u32::from(ids).div_ceil(1 << shift) >= u32::from(lanes);
        let shift = (0..=SHIFT_MAX).rev().find(enough).unwrap_or(0);
        let word = |first: u16| {
            let count = u32::from(ids - first).min(1 << shift);
            Padded(AtomicU64::new(u64::MAX >> (u64::BITS - count) << (first % WORD_BITS)))
        };
        Self { words: (0..ids).step_by(1 << shift).map(word).collect(), shift, ids }
    }

    /// How many identifiers there are, free or not.
    pub(super) fn ids(&self) -> u16 {
        self.ids
    }

    /// How many words there are: at least one.
    pub(super) fn len(&self) -> usize {
        self.words.len()
    }

    /// The words that a lane looks at first. Where there are fewer words than lanes, several lanes share one.
    pub(super) fn home(&self, lane: usize, lanes: usize) -> Range<usize> {
        let bound = |lane| self.words.len() * lane / lanes;
        bound(lane)..bound(lane + 1).max(bound(lane) + 1)
    }

    /// Takes the lowest `count` free identifiers (1 or more) of a word in one step, or all if it has fewer.
    #[inline]
    pub(super) fn take(&self, word: usize, count: u32) -> Option<Batch> {
        let free = &self.words[word].0;
        // A `SeqCst` load, as is that of a failed exchange: who waits has said so before it looks here, see
        // `Set::serve`. Retries only while others changed the word, each of whom got on by that.
        let mut seen = free.load(Ordering::SeqCst);
        while seen != 0 {
            let mask = lowest_bits(seen, count);
            // Acquire: what the last owner did with an identifier happens before. Its partner is in `free`.
            match free.compare_exchange_weak(seen, seen & !mask, Ordering::Acquire, Ordering::SeqCst) {
                Ok(_) => return Some(Batch { word, mask }),
                Err(now) => seen = now,
            }
        }
        None
    }

    /// Takes one identifier of any word, of `start` first.
    pub(super) fn take_any(&self, start: usize) -> Option<u16> {
        (start..self.len()).chain(0..start).find_map(|word| self.take(word, 1)).map(|batch| self.first(batch))
    }

    /// Makes identifiers of one word free, in one step. They must have been taken from it.
    #[inline]
    pub(super) fn free(&self, batch: Batch) {
        // SeqCst contains the release that is the partner of `take`, and orders this before the look for
        // somebody who waits.
        let before = self.words[batch.word].0.fetch_or(batch.mask, Ordering::SeqCst);
        debug_assert_eq!(before & batch.mask, 0, "an identifier of word {} was free already", batch.word);
    }

    /// One identifier as a batch.
    #[inline]
    pub(super) fn batch_of(&self, id: u16) -> Batch {
        Batch { word: usize::from(id) >> self.shift, mask: 1 << (id % WORD_BITS) }
    }

    /// The lowest identifier of a batch that is not empty.
    #[inline]
    pub(super) fn first(&self, batch: Batch) -> u16 {
        first(self.base(batch.word), batch.mask)
    }

    /// The number that bit 0 of a word has, or would have.
    #[inline]
    pub(super) fn base(&self, word: usize) -> u16 {
        #[expect(clippy::cast_possible_truncation, reason = "there are at most 65,535 identifiers")]
        let first = (word << self.shift) as u16;
        first - first % WORD_BITS
    }

    /// How many are free, as far as can be said while others take and free.
    pub(super) fn available(&self) -> u32 {
        self.words.iter().map(|word| word.0.load(Ordering::Relaxed).count_ones()).sum()
    }
}

const WORD_BITS: u16 = 64;

const SHIFT_MAX: u32 = WORD_BITS.ilog2();

/// The lowest `count` set bits (1 or more) of `bits`, which has some, or all if there are fewer.
#[inline]
fn lowest_bits(bits: u64, count: u32) -> u64 {
    if count == 1 {
        return bits & bits.wrapping_neg();
    }
    if count >= u64::BITS {
        return bits;
    }
    // Most often they follow one another. Where the end of the word cuts them off, these are all there are.
    let run = ((1 << count) - 1) << bits.trailing_zeros();
    if bits & run == run { run } else { lowest_with_gaps(bits, count) }
}

/// The same without a turn for each bit: whole bytes at a time, then at most seven bits.
#[inline(never)]
fn lowest_with_gaps(bits: u64, count: u32) -> u64 {
    const EACH_BYTE: u64 = 0x0101_0101_0101_0101;
    let pairs = bits - (bits >> 1 & (EACH_BYTE * 0x55));
    let nibbles = (pairs & (EACH_BYTE * 0x33)) + (pairs >> 2 & (EACH_BYTE * 0x33));
    let bytes = (nibbles + (nibbles >> 4)) & (EACH_BYTE * 0x0f);
    // Byte i holds how many bits are set in the bytes up to and with the i-th: at most 64.
    let sums = bytes.wrapping_mul(EACH_BYTE);
    if u64::from(count) >= sums >> 56 {
        return bits;
    }
    // The top bit of byte i says that the i-th byte and all before it are wanted whole; the last one is not.
    let tops = EACH_BYTE << 7;
    let reached = ((u64::from(count) * EACH_BYTE) | tops) - sums;
    let whole = reached & tops;
    let start = (whole >> 7).wrapping_mul(EACH_BYTE) >> 56 << 3;
    let wanted_before = sums << 8 >> start & 0xff;
    let mut rest = bits >> start;
    for _ in wanted_before..u64::from(count) {
        rest &= rest - 1;
    }
    bits & !(rest << start)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn one_by_one(bits: u64, count: u32) -> u64 {
        (0..count).fold(0, |taken, _| {
            let rest = bits & !taken;
            taken | rest & rest.wrapping_neg()
        })
    }

    #[test]
    fn the_lowest_bits_are_those_that_are_found_one_by_one() {
        let mut state = 1_u64;
        let mut patterns = vec![1, 1 << 63, u64::MAX, 0x8000_0000_0000_0001, 0xff00_ff00_ff00_ff00];
        for _ in 0..2_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            patterns.extend([state, state & state << 7, state | state >> 9, state & state >> 5 & state << 3]);
        }
        for bits in patterns.into_iter().filter(|bits| *bits != 0) {
            for count in 1..=64 {
                assert_eq!(lowest_bits(bits, count), one_by_one(bits, count), "{count} of {bits:#x}");
            }
        }
    }

    #[test]
    fn every_lane_has_words_of_its_own_if_there_are_identifiers_enough() {
        for (ids, lanes) in
            [(1, 1), (1, 5), (3, 2), (64, 2), (100, 3), (1024, 64), (65_535, 7), (65_535, 1024)]
        {
            let words = Words::new(ids, lanes);
            assert_eq!(words.available(), u32::from(ids));
            let lanes = usize::from(lanes);
            let homes: Vec<_> = (0..lanes).map(|lane| words.home(lane, lanes)).collect();
            assert!(homes.iter().all(|home| !home.is_empty() && home.end <= words.len()));
            if usize::from(ids) >= lanes {
                assert_eq!((homes[0].start, homes[lanes - 1].end), (0, words.len()));
                assert!(homes.windows(2).all(|pair| pair[0].end == pair[1].start));
            }
        }
    }

    #[test]
    fn every_identifier_has_a_place_of_its_own() {
        for (ids, lanes) in [(1, 1), (3, 2), (70, 1), (100, 3), (1024, 64), (65_535, 5)] {
            let words = Words::new(ids, lanes);
            for id in 0..ids {
                assert_eq!(words.first(words.batch_of(id)), id);
            }
            let taken: Vec<u16> = std::iter::from_fn(|| words.take_any(0)).collect();
            assert_eq!(taken, (0..ids).collect::<Vec<_>>());
            taken.iter().for_each(|id| words.free(words.batch_of(*id)));
            assert_eq!(words.available(), u32::from(ids));
        }
    }
}
