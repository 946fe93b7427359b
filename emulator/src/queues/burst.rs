//! Commands of one queue, one after the other, through both of its rings at once.
//!
//! Reads and writes that move no data are most of what a measurement sends. They are completed in a loop
//! of their own, which takes three words of the entry, and keeps head, tail and phase in registers.

use doorbell_spec::{CompletionEntry, SubmissionEntry};

use super::ring::{Peek, View};
use super::{CompletionQueue, SubmissionQueue};

/// A submission queue and the completion queue that it completes into, both in one mapping.
pub(crate) struct Burst<'a> {
    pub(crate) sq: &'a mut SubmissionQueue,
    pub(crate) cq: &'a mut CompletionQueue,
    pub(crate) entries: View<'a>,
    pub(crate) completions: View<'a>,
}

/// Reads and writes that are complete as soon as they are looked at: of one namespace, inside of it, short
/// enough, and without flags.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trivial {
    /// The first eight bytes of a Write without flags, the identifier apart. A Read has one more.
    first: u64,
    /// The last block.
    last: u64,
    /// The most blocks of a command, zero-based; not more than the namespace has.
    blocks_max_z: u64,
}

/// How many trivial commands there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quick {
    pub(crate) taken: usize,
    pub(crate) reads: usize,
}

impl Burst<'_> {
    /// How many commands can be taken and completed now, `most` at most.
    #[inline]
    pub(crate) fn possible(&self, most: usize) -> usize {
        most.min(self.sq.waiting()).min(self.cq.room())
    }

    /// Completes trivial commands, up to `most` and up to the first that is not trivial. `most` is possible.
    #[inline(always)]
    pub(crate) fn run(&mut self, trivial: &Trivial, most: usize) -> Quick {
        let (entries, completions, trivial) = (self.entries, self.completions, *trivial);
        let (sq, cq) = (&mut *self.sq, &mut *self.cq);
        let (sq_entries, cq_entries) = (sq.ring.entries(), cq.ring.entries());
        let sq_id = u32::from(sq.id.0) << 16;
        let (mut head, mut tail) = (sq.head, cq.tail);
        let mut phase = u32::from(cq.phase) << 16;
        let (mut taken, mut opcodes) = (0, 0);
        while taken < most {
            let Some(peek) = entries.peek(head) else { break };
            if !trivial.covers(&peek) {
                break;
            }
            let next = if head + 1 == sq_entries { 0 } else { head + 1 };
            if completions.post_done(tail, sq_id | next, phase | peek.cid()).is_none() {
                break;
            }
            head = next;
            tail += 1;
            if tail == cq_entries {
                (tail, phase) = (0, phase ^ 1 << 16);
            }
            taken += 1;
            opcodes += peek.opcode();
        }
        // Not more than there was room for and than was waiting, which is less than 65,536.
        #[expect(clippy::cast_possible_truncation)]
        let count = taken as u32;
        (sq.head, sq.waiting) = (head, sq.waiting - count);
        (cq.tail, cq.room, cq.phase) = (tail, cq.room - count, phase != 0);
        cq.is_fresh = true;
        // A Write is 1, a Read is 2.
        Quick { taken, reads: opcodes - taken }
    }

    /// Copies the next entry out, and steps over it.
    pub(crate) fn take(&mut self) -> Option<SubmissionEntry> {
        let entry = self.entries.fetch(self.sq.head)?;
        self.sq.advance();
        Some(entry)
    }

    /// Posts a completion, for which there is room.
    pub(crate) fn complete(&mut self, entry: CompletionEntry) -> Option<()> {
        self.cq.post_in(&self.completions, entry)
    }
}

impl Trivial {
    /// Commands of up to `blocks_max` blocks of a namespace of `blocks` blocks; `None` if there can be none.
    pub(crate) fn new(nsid: u32, blocks: u64, blocks_max: usize) -> Option<Self> {
        let last = blocks.checked_sub(1)?;
        let blocks_max_z = (blocks_max as u64).checked_sub(1)?.min(last).min(u64::from(u16::MAX));
        Some(Self { first: u64::from(nsid) << 32 | WRITE, last, blocks_max_z })
    }

    #[inline]
    fn covers(&self, peek: &Peek) -> bool {
        let blocks_z = peek.blocks_z();
        (peek.first & !CID).wrapping_sub(self.first) < 2
            && blocks_z <= self.blocks_max_z
            && peek.lba <= self.last - blocks_z
    }
}

/// Opcode 1; Read follows it.
const WRITE: u64 = 1;
/// Where the command identifier is in an entry's first eight bytes.
const CID: u64 = 0xffff_0000;

#[cfg(test)]
mod tests {
    use doorbell_spec::command::NvmOpcode;
    use doorbell_spec::{Blocks, Lba, Nsid};

    use super::*;

    fn peek(opcode: NvmOpcode, nsid: u32, lba: u64, blocks: u32) -> Peek {
        let entry = SubmissionEntry::block_range(opcode, Nsid(nsid), Lba(lba), Blocks(blocks), 0);
        Peek::of(&SubmissionEntry { cid: 7, ..entry })
    }

    #[test]
    fn only_what_lies_inside_is_trivial() {
        let trivial = Trivial::new(3, 64, 32).expect("possible");
        for opcode in [NvmOpcode::Read, NvmOpcode::Write] {
            for (lba, blocks, expected) in [
                (0, 1, true),
                (0, 32, true),
                (0, 33, false),
                (32, 32, true),
                (33, 32, false),
                (63, 1, true),
                (63, 2, false),
                (64, 1, false),
                (u64::MAX, 1, false),
                (u64::MAX - 31, 32, false),
            ] {
                assert_eq!(trivial.covers(&peek(opcode, 3, lba, blocks)), expected, "{lba} {blocks}");
            }
            assert!(!trivial.covers(&peek(opcode, 2, 0, 1)));
        }
        for opcode in [NvmOpcode::Flush, NvmOpcode::Compare, NvmOpcode::WriteUncorrectable] {
            assert!(!trivial.covers(&peek(opcode, 3, 0, 1)));
        }
        let mut flagged = SubmissionEntry::block_range(NvmOpcode::Read, Nsid(3), Lba(0), Blocks(1), 0);
        flagged.flags = 1;
        assert!(!trivial.covers(&Peek::of(&flagged)));
    }

    #[test]
    fn a_namespace_of_no_blocks_and_one_that_is_small_have_their_limits() {
        assert!(Trivial::new(1, 0, 32).is_none() && Trivial::new(1, 64, 0).is_none());
        let small = Trivial::new(1, 2, usize::MAX).expect("possible");
        assert!(small.covers(&peek(NvmOpcode::Read, 1, 0, 2)));
        assert!(!small.covers(&peek(NvmOpcode::Read, 1, 0, 3)));
        let large = Trivial::new(1, u64::MAX, usize::MAX).expect("possible");
        assert!(large.covers(&peek(NvmOpcode::Read, 1, 0, 65_536)));
    }
}
