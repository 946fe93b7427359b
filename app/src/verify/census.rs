//! What the blocks of a namespace are, counted one by one, and whether they can be what a run left behind.
//!
//! A run flushes between its passes. So if any block is of generation G, all passes before G were complete
//! and durable: every block is then of the latest generation before G that writes it, or of G itself. A block
//! that is older is a write that was lost, however good it looks. This needs no record but the blocks, and
//! holds after a crash as it does after an orderly end.

use std::collections::BTreeMap;

use super::block::{Content, Stamp};
use super::passes::{GENERATIONS_MAX, Passes};

/// Counts of blocks, and the first one that is wrong.
#[derive(Clone, Debug, Default)]
pub(crate) struct Census {
    /// The seed that all blocks should have, if one was named.
    seed: Option<u64>,
    runs: BTreeMap<u64, Run>,
    pub(crate) zeros: u64,
    pub(crate) foreign: u64,
    pub(crate) wrong: u64,
    /// Reads that changed memory beside what they were to fill.
    pub(crate) overruns: u64,
    first_wrong: Option<(u64, String)>,
    /// The first block that no pass has written.
    first_unwritten: Option<u64>,
}

/// The blocks of one seed.
#[derive(Clone, Debug)]
struct Run {
    /// How many blocks each generation has.
    generations: BTreeMap<u64, u64>,
    /// The latest generation that the state of any block allows to have been begun, and that block.
    allows: (u64, Stamp),
}

impl Census {
    /// An empty one. With a seed, blocks of any other are wrong.
    pub(crate) fn new(seed: Option<u64>) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Counts block `lba`.
    pub(crate) fn count(&mut self, lba: u64, content: Content) {
        match content {
            Content::Whole(stamp) => match self.seed {
                Some(seed) if seed != stamp.seed => {
                    self.note_wrong(lba, format!("expected seed {seed}, found {stamp}"));
                }
                _ => self.count_whole(stamp),
            },
            Content::Zeros | Content::Foreign => {
                let count = if content == Content::Zeros { &mut self.zeros } else { &mut self.foreign };
                *count += 1;
                self.first_unwritten = Some(self.first_unwritten.map_or(lba, |first| first.min(lba)));
            }
            Content::Corrupt(_) => self.note_wrong(lba, format!("found {content}")),
        }
    }

    /// Counts a block that is not what it must be.
    pub(crate) fn note_wrong(&mut self, lba: u64, words: String) {
        self.wrong += 1;
        if self.first_wrong.as_ref().is_none_or(|(first, _)| lba < *first) {
            self.first_wrong = Some((lba, words));
        }
    }

    /// Counts a read that changed memory beside what it was to fill.
    pub(crate) fn note_overrun(&mut self, lba: u64, blocks: u64) {
        tracing::warn!("the read of {blocks} blocks from block {lba} on changed memory beside its own");
        self.overruns += 1;
    }

    fn count_whole(&mut self, stamp: Stamp) {
        let passes = Passes::new(stamp.seed);
        if stamp.generation > GENERATIONS_MAX || !passes.writes(stamp.generation, stamp.lba) {
            self.note_wrong(
                stamp.lba,
                format!("found {stamp}, but that generation does not write this block"),
            );
            return;
        }
        if self.runs.len() >= RUNS_MAX && !self.runs.contains_key(&stamp.seed) {
            self.note_wrong(stamp.lba, format!("found {stamp}, after blocks of {RUNS_MAX} other seeds"));
            return;
        }
        let allows = (passes.next_after(stamp.generation, stamp.lba).unwrap_or(u64::MAX), stamp);
        let run = self.runs.entry(stamp.seed).or_insert_with(|| Run { generations: BTreeMap::new(), allows });
        *run.generations.entry(stamp.generation).or_default() += 1;
        if allows.0 < run.allows.0 {
            run.allows = allows;
        }
    }

    /// The lowest block that is wrong by itself, and in what way.
    pub(crate) fn first_wrong(&self) -> Option<&(u64, String)> {
        self.first_wrong.as_ref()
    }

    /// Blocks that `verify` wrote, and in which nothing is wrong.
    pub(crate) fn whole(&self) -> u64 {
        self.runs.values().flat_map(|run| run.generations.values()).sum()
    }

    /// All blocks that were counted.
    pub(crate) fn total(&self) -> u64 {
        self.whole() + self.zeros + self.foreign + self.wrong
    }

    /// Seed, generation and number of blocks of each.
    pub(crate) fn generations(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        self.runs.iter().flat_map(|(seed, run)| {
            run.generations.iter().map(|(generation, count)| (*seed, *generation, *count))
        })
    }

    /// What is wrong with the whole, as sentences. None if the blocks can be what a run left behind.
    pub(crate) fn contradictions(&self) -> Vec<String> {
        let mut sentences = Vec::new();
        let mut past_first = Vec::new();
        for (seed, run) in &self.runs {
            let Some((&last, _)) = run.generations.last_key_value() else { continue };
            if last > run.allows.0 {
                sentences.push(format!(
                    "a write was lost: block {} is of generation {} and was to be written again by \
                     generation {}, but blocks of generation {last} of seed {seed} exist, which was begun \
                     only when that was durable",
                    run.allows.1.lba, run.allows.1.generation, run.allows.0
                ));
            }
            if last > 1 {
                past_first.push(*seed);
            }
        }
        if let (Some(seed), Some(lba)) = (past_first.first(), self.first_unwritten) {
            sentences.push(format!(
                "{} blocks were never written, the first is block {lba}, but seed {seed} is past its first \
                 pass, which writes every block; if only a part was verified, name it with --offset \
                 and --size",
                self.zeros + self.foreign
            ));
        }
        if let [first, second, ..] = past_first[..] {
            sentences.push(format!(
                "there are blocks of seed {first} and of seed {second}, both past their first pass, \
                 which writes every block"
            ));
        }
        sentences
    }
}

/// The most runs whose blocks are told apart: a device that makes seeds up must not fill the memory.
const RUNS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::super::block::Fault;
    use super::*;

    const SEED: u64 = 77;

    /// What a run leaves that ended after `done` passes and wrote some blocks of the next.
    fn census(done: u64, of_next: fn(u64) -> bool) -> Census {
        let passes = Passes::new(SEED);
        let mut census = Census::new(None);
        for lba in 0..10_000 {
            let mut generation = passes.latest(done, lba);
            if of_next(lba) && passes.writes(done + 1, lba) {
                generation = done + 1;
            }
            census.count(lba, Content::Whole(Stamp { lba, generation, seed: SEED }));
        }
        census
    }

    #[test]
    fn every_state_that_a_crash_can_leave_is_right() {
        for done in 1..6 {
            for of_next in [|_| false, |_| true, |lba| lba % 3 == 0, |lba| lba < 5000, |lba| lba == 9999] {
                let census = census(done, of_next);
                assert_eq!(census.contradictions(), Vec::<String>::new());
                assert_eq!((census.wrong, census.total(), census.whole()), (0, 10_000, 10_000));
            }
        }
    }

    #[test]
    fn a_lost_write_is_found_although_the_block_is_whole() {
        let passes = Passes::new(SEED);
        let lost = (0..10_000).find(|lba| passes.writes(3, *lba)).expect("half are");
        let mut census = Census::new(None);
        for lba in 0..10_000 {
            let generation = passes.latest(if lba == lost { 2 } else { 4 }, lba);
            census.count(lba, Content::Whole(Stamp { lba, generation, seed: SEED }));
        }
        let found = census.contradictions();
        assert!(found.len() == 1 && found[0].contains(&format!("block {lost} ")), "{found:?}");
    }

    #[test]
    fn unwritten_blocks_are_right_in_the_first_pass_only() {
        let whole = |generation| Content::Whole(Stamp { lba: 0, generation, seed: SEED });
        let passes = Passes::new(SEED);
        let second = (0..).step_by(256).find(|lba| passes.writes(2, *lba)).expect("half are");
        let mut census = Census::new(None);
        census.count(0, whole(1));
        census.count(1, Content::Zeros);
        census.count(2, Content::Foreign);
        assert!(census.contradictions().is_empty());
        census.count(second, Content::Whole(Stamp { lba: second, generation: 2, seed: SEED }));
        assert!(census.contradictions()[0].contains("2 blocks were never written, the first is block 1"));
    }

    #[test]
    fn blocks_of_two_runs_can_be_mixed_only_while_the_second_is_in_its_first_pass() {
        let mut census = census(3, |_| false);
        census.count(20_000, Content::Whole(Stamp { lba: 20_000, generation: 1, seed: 1 }));
        assert!(census.contradictions().is_empty());
        let second = (20_001..).find(|lba| Passes::new(1).writes(2, *lba)).expect("half are");
        census.count(second, Content::Whole(Stamp { lba: second, generation: 2, seed: 1 }));
        assert!(census.contradictions().iter().any(|it| it.contains("seed 1 and of seed 77")));
    }

    #[test]
    fn wrong_blocks_are_counted_and_the_lowest_is_named() {
        let mut census = Census::new(Some(SEED));
        census.count(9, Content::Corrupt(Fault::Generation));
        census.count(4, Content::Whole(Stamp { lba: 4, generation: 1, seed: 5 }));
        census.count(6, Content::Whole(Stamp { lba: 6, generation: u64::MAX, seed: SEED }));
        assert!(census.wrong >= 2);
        assert_eq!(census.first_wrong().map(|first| first.0), Some(4));
    }
}
