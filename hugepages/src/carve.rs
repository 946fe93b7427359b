//! Which bytes of a region are free: a first-fit list, so that small allocations share one region.
//!
//! Invariants: free ranges do not touch each other (neighbours are joined), and together with the ranges
//! given out they make up the region. Everything is in units of [`GRAIN_BYTES`].

use std::collections::BTreeMap;
use std::ops::Range;

/// The unit of allocation and its alignment: NVMe's smallest page, so that a ring may start anywhere.
pub(crate) const GRAIN_BYTES: usize = 4096;

/// The free list of one region.
#[derive(Debug)]
pub(crate) struct Carver {
    bytes: usize,
    /// Start to end of each free range.
    free: BTreeMap<usize, usize>,
}

impl Carver {
    /// A region of `bytes` (a multiple of the grain), all of it free.
    pub(crate) fn new(bytes: usize) -> Self {
        debug_assert!(bytes > 0 && bytes.is_multiple_of(GRAIN_BYTES));
        Self { bytes, free: BTreeMap::from([(0, bytes)]) }
    }

    /// Takes the first free range of `bytes`, rounded up to whole grains.
    pub(crate) fn take(&mut self, bytes: usize) -> Option<Range<usize>> {
        let bytes = bytes.checked_next_multiple_of(GRAIN_BYTES).filter(|&bytes| bytes > 0)?;
        let (&start, &end) = self.free.iter().find(|&(start, end)| end - start >= bytes)?;
        self.free.remove(&start);
        let taken = start..start + bytes;
        if taken.end < end {
            self.free.insert(taken.end, end);
        }
        Some(taken)
    }

    /// Gives back a range that [`Carver::take`] gave, whole.
    pub(crate) fn give_back(&mut self, range: Range<usize>) {
        let Range { mut start, mut end } = range;
        let before = self.free.range(..=start).next_back().map(|(&start, &end)| (start, end));
        let after = self.free.range(start..).next().map(|(&start, &end)| (start, end));
        // A range that is free already would be handed out twice: that is our own bug, and worth a crash.
        assert!(end <= self.bytes && start < end, "{start}..{end} is not in the region");
        assert!(before.is_none_or(|(_, before_end)| before_end <= start), "{start}..{end} given back twice");
        assert!(after.is_none_or(|(after_start, _)| end <= after_start), "{start}..{end} given back twice");
        if let Some((before_start, before_end)) = before
            && before_end == start
        {
            start = before_start;
        }
        if let Some((after_start, after_end)) = after
            && after_start == end
        {
            self.free.remove(&after_start);
            end = after_end;
        }
        self.free.insert(start, end);
    }

    /// Whether nothing is given out.
    pub(crate) fn is_unused(&self) -> bool {
        self.free.get(&0) == Some(&self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_are_rounded_up_and_the_first_hole_is_taken() {
        let mut carver = Carver::new(4 * GRAIN_BYTES);
        let first = carver.take(1).expect("room");
        let second = carver.take(GRAIN_BYTES + 1).expect("room");
        assert_eq!((first.clone(), second.clone()), (0..4096, 4096..12288));
        carver.give_back(first);
        assert_eq!(carver.take(4096), Some(0..4096));
        assert_eq!(carver.take(8192), None);
    }

    #[test]
    fn nothing_and_too_much_are_refused() {
        let mut carver = Carver::new(GRAIN_BYTES);
        assert_eq!(carver.take(0), None);
        assert_eq!(carver.take(usize::MAX), None);
        assert_eq!(carver.take(GRAIN_BYTES + 1), None);
        assert!(carver.is_unused());
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn giving_back_twice_is_a_bug() {
        let mut carver = Carver::new(4 * GRAIN_BYTES);
        let range = carver.take(GRAIN_BYTES).expect("room");
        carver.give_back(range.clone());
        carver.give_back(range);
    }

    proptest! {
        #[test]
        fn ranges_never_overlap_and_all_come_back(
            steps in prop::collection::vec(
                (any::<bool>(), 1_usize..5 * GRAIN_BYTES, any::<prop::sample::Index>()),
                1..200,
            )
        ) {
            let grains = 32;
            let mut carver = Carver::new(grains * GRAIN_BYTES);
            let mut held: Vec<Range<usize>> = Vec::new();
            let mut owned = vec![false; grains];
            for (take, bytes, which) in steps {
                if take {
                    if let Some(range) = carver.take(bytes) {
                        prop_assert_eq!(range.len(), bytes.next_multiple_of(GRAIN_BYTES));
                        let grains = &mut owned[range.start / GRAIN_BYTES..range.end / GRAIN_BYTES];
                        prop_assert!(grains.iter().all(|used| !used));
                        grains.fill(true);
                        held.push(range);
                    } else {
                        let need = bytes.div_ceil(GRAIN_BYTES);
                        prop_assert!(owned.split(|&used| used).all(|hole| hole.len() < need));
                    }
                } else if !held.is_empty() {
                    let range = held.swap_remove(which.index(held.len()));
                    owned[range.start / GRAIN_BYTES..range.end / GRAIN_BYTES].fill(false);
                    carver.give_back(range);
                }
                prop_assert_eq!(carver.is_unused(), held.is_empty());
            }
            held.into_iter().for_each(|range| carver.give_back(range));
            prop_assert!(carver.is_unused());
        }
    }
}
