//! What is done with the blocks of each piece: written, compared with what they must be, or counted.

use doorbell::{Namespace, Request};

use super::block::{Content, Stamp, fill, read};
use super::census::Census;
use super::engine::{PieceMemory, Task, place};
use super::passes::{Passes, Piece};

/// Writes the blocks of one generation.
#[derive(Debug)]
pub(crate) struct Writing {
    pub(crate) seed: u64,
    pub(crate) generation: u64,
    pub(crate) block_bytes: usize,
    pub(crate) tally: Transfers,
}

/// Reads all blocks after the pass of a generation and compares each with what it must be.
#[derive(Debug)]
pub(crate) struct Comparing<'a> {
    pub(crate) seed: u64,
    pub(crate) generation: u64,
    pub(crate) block_bytes: usize,
    pub(crate) census: &'a mut Census,
    pub(crate) tally: Transfers,
}

/// Reads all blocks and counts what they are.
#[derive(Debug)]
pub(crate) struct Counting<'a> {
    pub(crate) block_bytes: usize,
    pub(crate) census: &'a mut Census,
    pub(crate) tally: Transfers,
}

/// How much was transferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Transfers {
    pub(crate) count: u64,
    pub(crate) blocks: u64,
}

impl Transfers {
    fn add(&mut self, piece: Piece) {
        self.count += 1;
        self.blocks += piece.blocks;
    }
}

impl Task for Writing {
    fn request(&mut self, namespace: &Namespace, piece: Piece, mut memory: PieceMemory) -> Request {
        for (lba, block) in (piece.lba..).zip(memory.data_mut().chunks_exact_mut(self.block_bytes)) {
            fill(block, Stamp { lba, generation: self.generation, seed: self.seed });
        }
        Request::write(namespace, place(piece), memory.into_range())
    }

    fn finish(&mut self, piece: Piece, _memory: &PieceMemory) {
        self.tally.add(piece);
    }
}

impl Task for Comparing<'_> {
    fn request(&mut self, namespace: &Namespace, piece: Piece, memory: PieceMemory) -> Request {
        poisoned_read(namespace, piece, memory)
    }

    fn finish(&mut self, piece: Piece, memory: &PieceMemory) {
        self.tally.add(piece);
        let passes = Passes::new(self.seed);
        check_guards(self.census, piece, memory);
        for (lba, block) in (piece.lba..).zip(memory.data().chunks_exact(self.block_bytes)) {
            let expected = Stamp { lba, generation: passes.latest(self.generation, lba), seed: self.seed };
            match read(block, lba) {
                Content::Whole(found) if found == expected => self.census.count(lba, Content::Whole(found)),
                found => self.census.note_wrong(lba, format!("expected {expected}, found {found}")),
            }
        }
    }
}

impl Task for Counting<'_> {
    fn request(&mut self, namespace: &Namespace, piece: Piece, memory: PieceMemory) -> Request {
        poisoned_read(namespace, piece, memory)
    }

    fn finish(&mut self, piece: Piece, memory: &PieceMemory) {
        self.tally.add(piece);
        check_guards(self.census, piece, memory);
        for (lba, block) in (piece.lba..).zip(memory.data().chunks_exact(self.block_bytes)) {
            self.census.count(lba, read(block, lba));
        }
    }
}

fn poisoned_read(namespace: &Namespace, piece: Piece, mut memory: PieceMemory) -> Request {
    memory.poison();
    Request::read(namespace, place(piece), memory.into_range())
}

fn check_guards(census: &mut Census, piece: Piece, memory: &PieceMemory) {
    if !memory.is_guarded() {
        census.note_overrun(piece.lba, piece.blocks);
    }
}
