#![expect(unsafe_code)]
//! One slot per command identifier: what the driver must remember while a command lives.
//!
//! What a usual request needs is one cache line; what others need besides lies apart, in [`Detail`].
//!
//! Invariant: a slot has a whole buffer exactly while its use is that of a plain request, old or not. Use and
//! buffer change together, and only here.
//
// UNSAFETY: takes a buffer out of its slot by the slot's use alone, without a second mark beside it.

use std::mem::MaybeUninit;

use doorbell_hugepages::DmaBuf;
use doorbell_spec::{Cid, Lba, Nanos};

use super::batch::BatchNumber;
use super::ids::SlotIndex;
use super::prp::NO_PAGE;
use super::slot::{Owner, SlotUse};
use crate::buffer::Buffer;

/// The memory of one command.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Slot {
    slot_use: SlotUse,
    pub(super) user_data: u64,
    pub(super) lba: Lba,
    /// The buffer of a plain request. Held so that nobody can touch or free it while the device may.
    whole: MaybeUninit<DmaBuf>,
}

const _: () = assert!(size_of::<Slot>() == 64, "a slot is one cache line");

impl Slot {
    fn new(first: Cid) -> Self {
        let whole = MaybeUninit::uninit();
        Self { slot_use: SlotUse::free(first), user_data: 0, lba: Lba(0), whole }
    }

    /// What it is used for.
    #[inline]
    pub(super) fn used(&self) -> SlotUse {
        self.slot_use
    }

    /// Begins a plain request in a free slot.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the buffer stays in registers until here")]
    pub(super) fn begin_plain(&mut self, batch: BatchNumber, whole: DmaBuf) -> Cid {
        debug_assert_eq!(self.slot_use.owner(), Owner::Nobody, "a buffer would be lost");
        let cid = self.slot_use.cid();
        self.slot_use = SlotUse::plain(cid, batch);
        self.whole.write(whole);
        cid
    }

    /// Begins any other request of one command in a free slot.
    pub(super) fn begin_request(&mut self, batch: BatchNumber) -> Cid {
        debug_assert_eq!(self.slot_use.owner(), Owner::Nobody, "a buffer would be lost");
        let cid = self.slot_use.cid();
        self.slot_use = SlotUse::request(cid, batch);
        cid
    }

    /// Begins a part of a split request in a free slot.
    pub(super) fn begin_part(&mut self, batch: BatchNumber) -> Cid {
        debug_assert_eq!(self.slot_use.owner(), Owner::Nobody, "a buffer would be lost");
        let cid = self.slot_use.cid();
        self.slot_use = SlotUse::part(cid, batch);
        cid
    }

    /// Notes that the command has grown old. It stays what it is.
    pub(super) fn grow_old(&mut self) {
        self.slot_use = self.slot_use.grown_old();
    }

    /// Ends the command if `difference` names it, see [`SlotUse::is`]: so it is a plain request. The slot is
    /// free afterwards, with the use `next`.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the buffer stays in registers from here on")]
    pub(super) fn end_usual(&mut self, difference: u64, next: SlotUse) -> Option<DmaBuf> {
        if !self.slot_use.is(difference) {
            return None;
        }
        debug_assert!(self.slot_use.is_plain() && next.owner() == Owner::Nobody);
        self.slot_use = next;
        // SAFETY:
        // - the use was that of a plain request: what is expected of a completion has the kind of a plain
        //   use, or a bit that no use has (`CompletionCursor::expect`), and was the slot's use in all bits;
        // - so there is a buffer (the invariant), and nobody takes it again, since the slot is free now.
        Some(unsafe { self.whole.assume_init_read() })
    }

    /// Ends whatever command there is, and answers its buffer if it was a plain request. The slot is free
    /// afterwards, with the use `next`.
    pub(super) fn end(&mut self, next: SlotUse) -> Option<DmaBuf> {
        debug_assert_eq!(next.owner(), Owner::Nobody);
        let used = std::mem::replace(&mut self.slot_use, next);
        if used.owner() != Owner::Plain {
            return None;
        }
        // SAFETY: the use was that of a plain request, so there is a buffer (the invariant), and nobody takes
        // it again, since the slot is free now.
        Some(unsafe { self.whole.assume_init_read() })
    }
}

/// What a request that is not plain needs besides its slot.
#[derive(Debug)]
pub(super) struct Detail {
    /// Held for the same reason.
    pub(super) buffer: Buffer,
    /// The first extra page of the command's PRP list, or [`NO_PAGE`].
    pub(super) chain: u16,
    /// Of a part: its split request.
    pub(super) split: u16,
    /// When the command was rung, once it has grown old.
    pub(super) rung_at: Nanos,
}

/// All slots of a queue pair.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Box<[Slot]>,
    details: Box<[Detail]>,
}

impl Slots {
    pub(super) fn new(first_cids: impl ExactSizeIterator<Item = Cid>) -> Self {
        let detail = || Detail { buffer: Buffer::None, chain: NO_PAGE, split: 0, rung_at: Nanos(0) };
        let details = (0..first_cids.len()).map(|_| detail()).collect();
        Self { slots: first_cids.map(Slot::new).collect(), details }
    }

    #[inline]
    pub(super) fn has(&self, index: SlotIndex) -> bool {
        index.index() < self.slots.len()
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    pub(super) fn get(&self, index: SlotIndex) -> Option<&Slot> {
        self.slots.get(index.index())
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: SlotIndex) -> Option<&mut Slot> {
        self.slots.get_mut(index.index())
    }

    /// Slot `index`, which was acquired, and so exists.
    #[inline]
    pub(super) fn at(&mut self, index: SlotIndex) -> &mut Slot {
        &mut self.slots[index.index()]
    }

    /// What belongs to slot `index` besides.
    pub(super) fn detail(&mut self, index: SlotIndex) -> &mut Detail {
        &mut self.details[index.index()]
    }

    /// Ends the command of a slot, takes its buffer, and frees the slot, with the use `next`.
    pub(super) fn end(&mut self, index: SlotIndex, next: SlotUse) -> Buffer {
        match self.slots[index.index()].end(next) {
            Some(whole) => Buffer::Whole(whole),
            None => std::mem::take(&mut self.details[index.index()].buffer),
        }
    }

    /// The first slot from `from` on whose command is one of these.
    pub(super) fn find(&self, from: usize, owners: &[Owner]) -> Option<SlotIndex> {
        let found = self.slots.get(from..)?.iter().position(|slot| owners.contains(&slot.used().owner()))?;
        u32::try_from(from + found).ok().map(SlotIndex)
    }
}
