//! One slot per command identifier: what the driver must remember while a command lives.

use doorbell_spec::{Cid, Lba, Nanos};

use super::prp::NO_PAGE;
use crate::buffer::Buffer;

/// What a slot's command is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// No command lives in the slot.
    Nobody,
    /// A request that fits into one command.
    Request,
    /// A part of the split request with this index.
    Split(u16),
}

/// What a slot is used for, as one number: so that the most common case is one comparison.
///
/// From the low end, 16 bits each: the identifier of the slot's command, or of its next one; the kind of
/// its owner; the index of a split; the first extra page of its PRP list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotUse(u64);

const NOBODY: u64 = 0;
const REQUEST: u64 = 1;
const SPLIT: u64 = 2;

impl SlotUse {
    /// Free; the next command has this identifier.
    #[inline]
    pub(crate) fn free(next: Cid) -> Self {
        Self::new(next, NOBODY, 0, NO_PAGE)
    }

    /// A request of one command, with the extra list pages from `chain` on.
    #[inline]
    pub(crate) fn request(cid: Cid, chain: u16) -> Self {
        Self::new(cid, REQUEST, 0, chain)
    }

    /// A part of a split request.
    pub(crate) fn part(cid: Cid, split: u16, chain: u16) -> Self {
        Self::new(cid, SPLIT, split, chain)
    }

    /// The identifier of the slot's command, or of its next one.
    #[inline]
    pub(crate) fn cid(self) -> Cid {
        Cid(self.field(0))
    }

    pub(crate) fn owner(self) -> Owner {
        match u64::from(self.field(1)) {
            REQUEST => Owner::Request,
            SPLIT => Owner::Split(self.field(2)),
            _ => Owner::Nobody,
        }
    }

    /// The first extra page of the command's PRP list, or [`NO_PAGE`].
    pub(crate) fn chain(self) -> u16 {
        self.field(3)
    }

    #[inline]
    fn new(cid: Cid, kind: u64, split: u16, chain: u16) -> Self {
        Self(u64::from(cid.0) | kind << 16 | u64::from(split) << 32 | u64::from(chain) << 48)
    }

    #[inline]
    fn field(self, index: u32) -> u16 {
        #[expect(clippy::cast_possible_truncation, reason = "a field is what is cut out")]
        let field = (self.0 >> (16 * index)) as u16;
        field
    }
}

/// The memory of one command.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) slot_use: SlotUse,
    /// When its doorbell was rung; 0 until then.
    pub(crate) rung_at: Nanos,
    pub(crate) user_data: u64,
    pub(crate) lba: Lba,
    /// Held so that nobody can touch or free it while the device may.
    pub(crate) buffer: Buffer,
    /// Tells a request from all others that have had this slot.
    pub(crate) serial: u32,
}

impl Slot {
    pub(crate) fn new(first: Cid) -> Self {
        Self {
            slot_use: SlotUse::free(first),
            rung_at: Nanos(0),
            user_data: 0,
            lba: Lba(0),
            buffer: Buffer::None,
            serial: 0,
        }
    }

    /// What its command is part of.
    pub(crate) fn owner(&self) -> Owner {
        self.slot_use.owner()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_says_what_it_was_made_of() {
        for cid in [0, 1, 0x8000, 0xfffe].map(Cid) {
            for page in [0, 7, NO_PAGE] {
                assert_eq!(SlotUse::free(cid).owner(), Owner::Nobody);
                let request = SlotUse::request(cid, page);
                assert_eq!((request.cid(), request.owner(), request.chain()), (cid, Owner::Request, page));
                let part = SlotUse::part(cid, 0xffff, page);
                assert_eq!((part.cid(), part.owner(), part.chain()), (cid, Owner::Split(0xffff), page));
            }
        }
    }
}
