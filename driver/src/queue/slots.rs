//! One slot per command identifier: what the driver must remember while a command lives.
//!
//! What a usual request needs is one cache line; what others need besides lies apart, in [`Detail`].

use std::mem::ManuallyDrop;

use doorbell_hugepages::DmaBuf;
use doorbell_spec::{Cid, Lba, Nanos};

use super::ids::SlotIndex;
use super::prp::NO_PAGE;
use super::slot::{Owner, SlotUse};
use crate::buffer::Buffer;

/// The memory of one command.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Slot {
    pub(super) slot_use: SlotUse,
    pub(super) user_data: u64,
    pub(super) lba: Lba,
    /// The buffer of a plain request. Held so that nobody can touch or free it while the device may. Put in
    /// where nothing is (the slot was free), so that no old value has to be dropped.
    pub(super) whole: ManuallyDrop<Option<DmaBuf>>,
}

const _: () = assert!(size_of::<Slot>() == 64, "a slot is one cache line");

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
        let slot = |cid| Slot {
            slot_use: SlotUse::free(cid),
            user_data: 0,
            lba: Lba(0),
            whole: ManuallyDrop::new(None),
        };
        Self { slots: first_cids.map(slot).collect(), details }
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

    /// Takes the buffer out of a slot.
    pub(super) fn take_buffer(&mut self, index: SlotIndex) -> Buffer {
        match self.slots[index.index()].whole.take() {
            Some(whole) => Buffer::Whole(whole),
            None => std::mem::take(&mut self.details[index.index()].buffer),
        }
    }

    /// The first slot from `from` on whose command is one of these.
    pub(super) fn find(&self, from: usize, owners: &[Owner]) -> Option<SlotIndex> {
        let found =
            self.slots.get(from..)?.iter().position(|slot| owners.contains(&slot.slot_use.owner()))?;
        u32::try_from(from + found).ok().map(SlotIndex)
    }
}
