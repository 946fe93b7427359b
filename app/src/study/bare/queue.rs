#![expect(unsafe_code)]
//! A bare queue pair: two rings, two doorbells, and a block of memory for each place in the ring.
//!
//! Invariants: `tail` and `head` are below the number of entries; whoever submits keeps at most one entry
//! less outstanding than there are.
//
// UNSAFETY: writes and reads memory that the device shares, through pointers, without the driver's views.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use doorbell::spec::command::NvmOpcode;
use doorbell::spec::{CompletionEntry, Doorbell, Iova, SubmissionEntry};
use doorbell::{Blocks, DmaBuf, DmaError, DmaSpace, Lba, Nsid};

/// A submission queue and its completion queue.
#[derive(Debug)]
pub(super) struct BareQueue {
    submissions: DmaBuf,
    completions: DmaBuf,
    /// A block for every entry.
    _blocks: DmaBuf,
    /// Where the device finds the first of them.
    first_block: Iova,
    block_bytes: u32,
    entries: u32,
    doorbells: [Doorbell; 2],
    tail: u32,
    head: u32,
    /// The phase tag of a new entry, in its place.
    phase: u32,
    /// What the completions said, all of them together: 0 if all is well.
    odd: u32,
}

impl BareQueue {
    /// A queue of so many entries (2 to 4,096), each with a block of `block_bytes` (512 to 4,096).
    pub(super) fn new(
        space: &DmaSpace,
        entries: u32,
        block_bytes: u32,
        doorbells: [Doorbell; 2],
    ) -> Result<Self, DmaError> {
        assert!((2..=4096).contains(&entries) && (512..=4096).contains(&block_bytes), "a ring as described");
        let memory = |bytes_each: usize| space.allocate(entries as usize * bytes_each);
        let blocks = memory(block_bytes as usize)?;
        Ok(Self {
            submissions: memory(size_of::<SubmissionEntry>())?,
            completions: memory(size_of::<CompletionEntry>())?,
            first_block: blocks.iova(),
            _blocks: blocks,
            block_bytes,
            entries,
            doorbells,
            tail: 0,
            head: 0,
            phase: PHASE,
            odd: 0,
        })
    }

    /// Where the device finds its submission entries.
    pub(super) fn submissions(&self) -> Iova {
        self.submissions.iova()
    }

    /// Where the device puts its completions.
    pub(super) fn completions(&self) -> Iova {
        self.completions.iova()
    }

    /// Whether every completion has said that all is well.
    pub(super) fn all_succeeded(&self) -> bool {
        self.odd == 0
    }

    /// Reads a block each from these addresses on: writes their entries, and rings once.
    #[inline]
    pub(super) fn submit(&mut self, reads: impl Iterator<Item = Lba>) {
        let blocks_each = Blocks(self.block_bytes / super::workload::BLOCK_BYTES);
        for lba in reads {
            let mut entry = SubmissionEntry::block_range(NvmOpcode::Read, Nsid(1), lba, blocks_each, 0);
            entry.prp1 = self.first_block.offset(u64::from(self.tail * self.block_bytes)).0;
            self.post(entry);
        }
        self.doorbells[0].ring(self.tail);
    }

    /// One command of any kind: writes its entry, and rings.
    pub(super) fn command(&mut self, entry: SubmissionEntry) {
        self.post(entry);
        self.doorbells[0].ring(self.tail);
    }

    /// Reads what has completed, at most `most` entries, and rings once. Answers how many.
    #[inline]
    pub(super) fn reap(&mut self, most: usize) -> usize {
        // Kept in registers: an acquire load would have them stored before each.
        let Self { mut head, mut phase, mut odd, .. } = *self;
        let start: NonNull<[AtomicU32; 4]> = self.completions.as_ptr().cast();
        let mut reaped = 0;
        while reaped < most {
            // SAFETY: the head is below the number of entries, for which there is memory.
            let place = unsafe { start.add(head as usize) };
            // SAFETY: inside of the buffer and aligned; both sides use its dwords as atomics.
            let dwords = unsafe { place.as_ref() };
            // The acquire load keeps the other loads behind that of the phase tag, which is written last.
            let last = dwords[3].load(Ordering::Acquire);
            if last & PHASE != phase {
                break;
            }
            let [result, reserved, _] = [0, 1, 2].map(|at| dwords[at].load(Ordering::Relaxed));
            odd |= result | reserved | last >> 17;
            reaped += 1;
            head += 1;
            if head == self.entries {
                head = 0;
                phase ^= PHASE;
            }
        }
        if reaped > 0 {
            (self.head, self.phase, self.odd) = (head, phase, odd);
            self.doorbells[1].ring(head);
        }
        reaped
    }

    /// Writes an entry at the tail, whose place is its identifier.
    #[inline]
    fn post(&mut self, mut entry: SubmissionEntry) {
        #[expect(clippy::cast_possible_truncation, reason = "there are at most 4,096 entries")]
        let cid = self.tail as u16;
        entry.cid = cid;
        let start: NonNull<SubmissionEntry> = self.submissions.as_ptr().cast();
        // SAFETY: the tail is below the number of entries, for which there is memory.
        let place = unsafe { start.add(self.tail as usize) };
        // SAFETY:
        // - inside of the buffer, which is aligned to 4 KiB, and to which no Rust reference exists;
        // - the device does not read it before the doorbell's release store.
        unsafe { place.write(entry) };
        self.tail += 1;
        if self.tail == self.entries {
            self.tail = 0;
        }
    }
}

/// The phase tag in the last dword of an entry.
const PHASE: u32 = 1 << 16;
