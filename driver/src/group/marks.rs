//! Marks on positions: one bit each, found again in the order of the positions.

/// A set of positions below a limit that only grows.
///
/// Invariant: `count` is the number of bits that are set.
#[derive(Debug, Default)]
pub(super) struct Marks {
    words: Vec<u64>,
    count: usize,
}

impl Marks {
    /// Makes room for marks on so many positions.
    pub(super) fn make_room(&mut self, positions: usize) {
        let words = positions.div_ceil(WORD_BITS);
        if words > self.words.len() {
            self.words.resize(words, 0);
        }
    }

    /// Marks a position for which there is room. Says whether it had no mark before.
    #[inline]
    pub(super) fn set(&mut self, position: usize) -> bool {
        let (index, bit) = place(position);
        let word = &mut self.words[index];
        if *word & bit != 0 {
            return false;
        }
        *word |= bit;
        self.count += 1;
        true
    }

    /// Takes the mark off a position. Says whether it had one.
    #[inline]
    pub(super) fn take(&mut self, position: usize) -> bool {
        let (index, bit) = place(position);
        let word = &mut self.words[index];
        if *word & bit == 0 {
            return false;
        }
        *word &= !bit;
        self.count -= 1;
        true
    }

    /// How many there are.
    #[inline]
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The positions that have a mark.
    pub(super) fn positions(&self) -> impl Iterator<Item = usize> + '_ {
        let bits = |word: u64| (0..WORD_BITS).filter(move |bit| word >> bit & 1 == 1);
        let words = self.words.iter().enumerate();
        words.flat_map(move |(index, word)| bits(*word).map(move |bit| index * WORD_BITS + bit))
    }

    /// Takes the first mark from `position` on, and round the end.
    #[inline]
    pub(super) fn take_from(&mut self, position: usize) -> Option<usize> {
        let start = position / WORD_BITS;
        let before = (1 << (position % WORD_BITS)) - 1;
        if let Some(word) = self.words.get(start)
            && word & !before != 0
        {
            return Some(self.take_lowest(start, word & !before));
        }
        let after = start + 1..self.words.len();
        let next = after.chain(0..self.words.len()).find(|index| self.words[*index] != 0)?;
        Some(self.take_lowest(next, self.words[next]))
    }

    /// Takes the lowest of `candidates`, which are marks of one word and not none.
    #[inline]
    fn take_lowest(&mut self, index: usize, candidates: u64) -> usize {
        let bit = candidates.trailing_zeros();
        self.words[index] &= !(1 << bit);
        self.count -= 1;
        index * WORD_BITS + bit as usize
    }

    /// Follows a removal in which the last position's owner moves to `position`.
    pub(super) fn swap_remove(&mut self, position: usize, last: usize) {
        let moves = self.take(last);
        self.take(position);
        if moves && position != last {
            self.set(position);
        }
    }
}

#[inline]
fn place(position: usize) -> (usize, u64) {
    (position / WORD_BITS, 1 << (position % WORD_BITS))
}

const WORD_BITS: usize = u64::BITS as usize;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Every set of up to three of 130 positions' edges, from every start, against a plain set.
    #[test]
    fn marks_are_taken_in_order_from_any_position_and_round_the_end() {
        let edges = [0, 1, 62, 63, 64, 65, 127, 128, 129];
        for a in edges {
            for b in edges {
                for c in edges {
                    for start in (0..=131).chain([1000]) {
                        let mut marks = Marks::default();
                        marks.make_room(130);
                        let set: BTreeSet<usize> = [a, b, c].into();
                        for position in [a, b, c] {
                            marks.set(position);
                        }
                        assert_eq!(marks.count(), set.len());
                        assert!(marks.positions().eq(set.iter().copied()));
                        let first = set.range(start..).next().or(set.first());
                        assert_eq!(marks.take_from(start), first.copied(), "{set:?} from {start}");
                        assert_eq!(marks.count(), set.len() - 1);
                    }
                }
            }
        }
        let mut none = Marks::default();
        assert_eq!((none.take_from(0), none.count()), (None, 0));
    }

    #[test]
    fn the_mark_of_who_moves_goes_with_it_and_that_of_who_leaves_goes() {
        for (removed, last) in [(0, 70), (70, 70), (63, 64)] {
            for (leaver, mover) in [(false, false), (false, true), (true, false), (true, true)] {
                let mut marks = Marks::default();
                marks.make_room(71);
                if leaver {
                    marks.set(removed);
                }
                if mover {
                    marks.set(last);
                }
                marks.swap_remove(removed, last);
                let expected = if mover && removed != last { Some(removed) } else { None };
                assert_eq!((marks.take_from(0), marks.take_from(0)), (expected, None));
            }
        }
    }

    #[test]
    fn set_and_take_say_what_was_before() {
        let mut marks = Marks::default();
        marks.make_room(1);
        assert!(marks.set(0) && !marks.set(0) && marks.take(0) && !marks.take(0));
    }
}
