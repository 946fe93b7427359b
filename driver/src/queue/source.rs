//! Where a queue pair's slots come from: its own bitmap, or one that it shares with others.

use super::ids::{CommandIds, IdBatch, Reuse, SlotIndex};
use crate::ids::{IdLane, IdToken};

/// The free slots of a queue pair, and those that a plug has reserved.
#[derive(Debug)]
pub(crate) enum SlotSource {
    /// A bitmap of its own.
    Private { ids: CommandIds, reserve: IdBatch },
    /// Identifiers that several queue pairs draw from one set.
    Shared(Box<SharedSlots>),
}

/// A way to the shared identifiers, and those that this queue pair has.
#[derive(Debug)]
pub(crate) struct SharedSlots {
    lane: IdLane,
    /// By identifier, which is the slot.
    held: Box<[Option<IdToken>]>,
    /// Whether a request was refused for want of an identifier since somebody last looked.
    refused: bool,
}

impl SlotSource {
    pub(crate) fn private(depth: u16) -> Self {
        Self::Private { ids: CommandIds::new(depth), reserve: IdBatch::default() }
    }

    pub(crate) fn shared(lane: IdLane, ids: u16) -> Self {
        let held = (0..ids).map(|_| None).collect();
        Self::Shared(Box::new(SharedSlots { lane, held, refused: false }))
    }

    pub(super) fn reuse(&self) -> Reuse {
        match self {
            Self::Private { .. } => Reuse::ALWAYS,
            Self::Shared(_) => Reuse::ASK,
        }
    }

    /// Takes a slot: of the reserve, if there is one. Whoever shares identifiers and finds none is in line
    /// for one from then on.
    #[inline]
    pub(super) fn acquire(&mut self) -> Option<SlotIndex> {
        match self {
            Self::Private { ids, reserve } => reserve.take().or_else(|| ids.acquire()),
            Self::Shared(shared) => shared.acquire(),
        }
    }

    /// Reserves slots for about `expected` requests, unless there is a reserve.
    #[inline]
    pub(super) fn reserve(&mut self, expected: u32) {
        match self {
            Self::Private { ids, reserve } if reserve.is_empty() => *reserve = ids.acquire_batch(expected),
            Self::Private { .. } => {}
            Self::Shared(shared) => {
                shared.lane.reserve(expected);
            }
        }
    }

    /// Gives the reserve back.
    #[inline]
    pub(super) fn release_reserve(&mut self) {
        match self {
            Self::Private { reserve, .. } if reserve.is_empty() => {}
            Self::Private { ids, reserve } => ids.release_batch(std::mem::take(reserve)),
            Self::Shared(shared) => shared.lane.release_reserve(),
        }
    }

    /// Gives a slot back.
    #[inline]
    pub(super) fn release(&mut self, slot: SlotIndex) {
        match self {
            Self::Private { ids, .. } => ids.release(slot),
            Self::Shared(shared) => shared.release(slot),
        }
    }

    /// Whether a slot that is about to be given back may be used again instead.
    pub(super) fn may_keep(&self) -> bool {
        match self {
            Self::Private { .. } => true,
            Self::Shared(shared) => !shared.lane.somebody_waits(),
        }
    }

    /// How many slots are in use. Counted when asked for; not for the I/O path.
    pub(super) fn in_use(&self) -> usize {
        match self {
            Self::Private { ids, reserve } => (ids.total() - ids.available() - reserve.len()) as usize,
            Self::Shared(shared) => shared.held.iter().flatten().count(),
        }
    }

    /// Leaves the line if nothing has asked for an identifier since this was last called: one that is handed
    /// over to somebody who does not want it any more would be of no use to anybody.
    pub(super) fn give_up_waiting(&mut self) {
        if let Self::Shared(shared) = self
            && !std::mem::take(&mut shared.refused)
        {
            shared.lane.stop_waiting();
        }
    }
}

impl SharedSlots {
    #[inline(never)]
    fn acquire(&mut self) -> Option<SlotIndex> {
        let Some(token) = self.lane.acquire_or_wait() else {
            self.refused = true;
            return None;
        };
        let slot = SlotIndex(u32::from(token.id()));
        let place = self.held.get_mut(slot.index())?;
        debug_assert!(place.is_none(), "slot {} is in use", slot.0);
        *place = Some(token);
        Some(slot)
    }

    #[inline(never)]
    fn release(&mut self, slot: SlotIndex) {
        if let Some(token) = self.held.get_mut(slot.index()).and_then(Option::take) {
            self.lane.release(token);
        }
    }
}
