//! Where the next I/O goes, and in which direction.
//!
//! Invariant: every offset is a multiple of the I/O's size from the region's start, and the I/O ends within
//! the region.

use doorbell::Lba;

use crate::random::Random;

/// A part of a namespace, cut into I/Os of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// Its first block.
    pub(crate) start: Lba,
    /// How many I/Os fit into it; at least 1.
    pub(crate) slots: u64,
    /// Blocks of one I/O.
    pub(crate) slot_blocks: u64,
}

/// Which way the data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the device.
    Read,
    /// To the device.
    Write,
}

/// One I/O to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Io {
    pub(crate) lba: Lba,
    pub(crate) direction: Direction,
}

/// An endless sequence of I/Os in a region.
#[derive(Clone, Debug)]
pub(crate) struct Offsets {
    region: Region,
    order: Order,
    read_percent: u8,
    random: Random,
}

#[derive(Clone, Copy, Debug)]
enum Order {
    /// Round and round from the first to the last; the next one is kept.
    Sequential {
        next: u64,
    },
    Random,
}

impl Region {
    /// The slice of the region that is job `job`'s of `jobs`. All slices together are the region, and no two
    /// overlap. `None` if there are more jobs than I/Os that fit.
    pub(crate) fn slice(&self, job: u64, jobs: u64) -> Option<Self> {
        let cut = |index: u64| u128::from(self.slots) * u128::from(index) / u128::from(jobs);
        let first = u64::try_from(cut(job)).ok()?;
        let slots = u64::try_from(cut(job + 1)).ok()? - first;
        let start = Lba(self.start.0 + first * self.slot_blocks);
        (slots > 0).then_some(Self { start, slots, ..*self })
    }
}

impl Offsets {
    /// Each I/O follows the one before it.
    pub(crate) fn sequential(region: Region, read_percent: u8, random: Random) -> Self {
        Self { region, order: Order::Sequential { next: 0 }, read_percent, random }
    }

    /// Each I/O is anywhere, with the same probability.
    pub(crate) fn random(region: Region, read_percent: u8, random: Random) -> Self {
        Self { region, order: Order::Random, read_percent, random }
    }

    /// The next I/O.
    #[inline]
    pub(crate) fn next(&mut self) -> Io {
        let slot = match &mut self.order {
            Order::Sequential { next } => {
                let slot = *next;
                *next = if slot + 1 < self.region.slots { slot + 1 } else { 0 };
                slot
            }
            Order::Random => self.random.below(self.region.slots),
        };
        let direction = match self.read_percent {
            100 => Direction::Read,
            0 => Direction::Write,
            percent if self.random.below(100) < u64::from(percent) => Direction::Read,
            _ => Direction::Write,
        };
        Io { lba: Lba(self.region.start.0 + slot * self.region.slot_blocks), direction }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: Region = Region { start: Lba(100), slots: 1000, slot_blocks: 8 };

    #[test]
    fn a_sequential_run_reads_every_block_exactly_once_a_round() {
        for jobs in [1, 2, 3, 7, 1000] {
            let mut seen = vec![0u32; 1000];
            for job in 0..jobs {
                let slice = REGION.slice(job, jobs).expect("enough for each");
                let mut offsets = Offsets::sequential(slice, 100, Random::new(1));
                for _ in 0..slice.slots {
                    let lba = offsets.next().lba.0 - 100;
                    assert_eq!(lba % 8, 0);
                    seen[usize::try_from(lba / 8).expect("small")] += 1;
                }
                assert_eq!(offsets.next().lba, slice.start, "the second round starts at the start");
            }
            assert!(seen.iter().all(|count| *count == 1), "{jobs} jobs");
        }
        assert_eq!(REGION.slice(0, 1001), None);
    }

    #[test]
    fn random_offsets_are_aligned_within_the_region_and_everywhere() {
        let mut offsets = Offsets::random(REGION, 100, Random::of(5, 0, 0));
        let mut seen = vec![0u32; 1000];
        for _ in 0..100_000 {
            let lba = offsets.next().lba.0 - 100;
            assert_eq!(lba % 8, 0);
            seen[usize::try_from(lba / 8).expect("small")] += 1;
        }
        // 100 on average each, with a standard deviation of 10.
        assert!(seen.iter().all(|count| (40..=160).contains(count)), "{seen:?}");
        let chi_square: f64 = seen.iter().map(|&count| (f64::from(count) - 100.0).powi(2) / 100.0).sum();
        assert!((800.0..1200.0).contains(&chi_square), "{chi_square}");
    }

    #[test]
    fn jobs_have_streams_of_their_own() {
        let stream = |job| {
            let mut offsets = Offsets::random(REGION, 100, Random::of(5, job, 0));
            (0..50).map(|_| offsets.next().lba.0).collect::<Vec<_>>()
        };
        assert_ne!(stream(0), stream(1));
        assert_eq!(stream(0), stream(0));
    }

    #[test]
    fn the_mix_is_what_was_asked_for() {
        for percent in [0u8, 1, 30, 50, 99, 100] {
            let mut offsets = Offsets::random(REGION, percent, Random::new(9));
            let reads = (0..20_000).filter(|_| offsets.next().direction == Direction::Read).count();
            let wanted = usize::from(percent) * 200;
            assert!(reads.abs_diff(wanted) < 400, "{percent} %: {reads}");
            assert!((1..100).contains(&percent) || reads == wanted);
        }
    }

    #[test]
    fn the_largest_region_does_not_overflow() {
        let region = Region { start: Lba(0), slots: u64::MAX >> 9, slot_blocks: 1 };
        let last = region.slice(1023, 1024).expect("large");
        assert_eq!(last.start.0 + last.slots, u64::MAX >> 9);
        let mut offsets = Offsets::random(region, 100, Random::new(1));
        assert!((0..1000).map(|_| offsets.next().lba.0).max() > Some(u64::MAX >> 11));
    }
}
