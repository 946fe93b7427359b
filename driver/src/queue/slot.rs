//! What a slot is used for, as one number: so that the usual completion is one comparison.
//!
//! From the low end: 16 bits, the identifier of the slot's command, or of its next one; 16 zero bits; 28
//! bits, the number of the command's batch; 4 bits, the kind of use.
//!
//! A completion's last dword, its expected phase taken out, is the identifier alone if the command succeeded;
//! everything else that a device can say leaves a bit in the second 16. With the number of the batch that
//! is expected above it, it equals the use of a slot if and only if that slot's command is a plain request of
//! this batch, has this identifier, generation included, and succeeded.

use doorbell_spec::Cid;

use super::batch::BatchNumber;

/// What a slot is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotUse(u64);

/// What a slot's command is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// No command lives in the slot.
    Nobody,
    /// A request of one command whose memory is one whole buffer, described without a list.
    Plain,
    /// Any other request that fits into one command.
    Request,
    /// A part of a split request.
    Part,
}

const KIND_SHIFT: u32 = 60;
const PLAIN: u64 = 0;
const REQUEST: u64 = 1;
const PART: u64 = 2;
const NOBODY: u64 = 3;
const KIND_MASK: u64 = 3;
/// Set where the slot keeps the command's time itself, since its batch is old.
const OLD: u64 = 4 << KIND_SHIFT;

/// A bit that no slot's use has: what is expected to have it is never found.
pub(super) const NEVER: u64 = 8 << KIND_SHIFT;

impl SlotUse {
    /// Free; the next command has this identifier.
    #[inline]
    pub(crate) fn free(next: Cid) -> Self {
        Self(u64::from(next.0) | NOBODY << KIND_SHIFT)
    }

    /// From [`SlotUse::bits`].
    #[inline]
    pub(super) fn of_bits(bits: u64) -> Self {
        Self(bits)
    }

    #[inline]
    pub(super) fn bits(self) -> u64 {
        self.0
    }

    /// A plain request.
    #[inline]
    pub(super) fn plain(cid: Cid, batch: BatchNumber) -> Self {
        const { assert!(PLAIN == 0, "a plain use is the identifier and the batch") };
        Self(u64::from(cid.0) | batch.bits())
    }

    /// Any other request of one command.
    pub(super) fn request(cid: Cid, batch: BatchNumber) -> Self {
        Self(u64::from(cid.0) | batch.bits() | REQUEST << KIND_SHIFT)
    }

    /// A part of a split request.
    pub(super) fn part(cid: Cid, batch: BatchNumber) -> Self {
        Self(u64::from(cid.0) | batch.bits() | PART << KIND_SHIFT)
    }

    /// The same, of a command that has grown old.
    pub(super) fn grown_old(self) -> Self {
        Self(self.0 | OLD)
    }

    /// Whether the slot keeps the command's time itself.
    pub(super) fn is_old(self) -> bool {
        self.0 & OLD != 0
    }

    /// The identifier of the slot's command, or of its next one.
    #[inline]
    pub(crate) fn cid(self) -> Cid {
        #[expect(clippy::cast_possible_truncation, reason = "the identifier is the low 16 bits")]
        let cid = self.0 as u16;
        Cid(cid)
    }

    /// The batch of the slot's command.
    #[inline]
    pub(super) fn batch(self) -> BatchNumber {
        BatchNumber::within(self.0)
    }

    /// What the slot's command is part of.
    #[inline]
    pub(crate) fn owner(self) -> Owner {
        match self.0 >> KIND_SHIFT & KIND_MASK {
            PLAIN => Owner::Plain,
            REQUEST => Owner::Request,
            PART => Owner::Part,
            _ => Owner::Nobody,
        }
    }

    /// Whether this is a plain request that has not grown old.
    #[inline]
    pub(super) fn is_plain(self) -> bool {
        self.0 >> KIND_SHIFT == PLAIN
    }

    /// Whether this is exactly what `difference` names: see the head of this file.
    #[inline]
    pub(super) fn is(self, difference: u64) -> bool {
        self.0 == difference
    }

    /// Tells the slot's command from all others that had the slot: identifier and batch.
    #[inline]
    pub(super) fn identity(self) -> u64 {
        self.0 & !(KIND_MASK << KIND_SHIFT | OLD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_says_what_it_was_made_of() {
        for cid in [0, 1, 0x8000, 0xfffe].map(Cid) {
            assert_eq!((SlotUse::free(cid).cid(), SlotUse::free(cid).owner()), (cid, Owner::Nobody));
            for batch in [0, 1 << 32, 0x0fff_ffff << 32].map(BatchNumber::within) {
                for (used, owner) in [
                    (SlotUse::plain(cid, batch), Owner::Plain),
                    (SlotUse::request(cid, batch), Owner::Request),
                    (SlotUse::part(cid, batch), Owner::Part),
                ] {
                    for it in [used, used.grown_old()] {
                        assert_eq!((it.cid(), it.batch(), it.owner()), (cid, batch, owner));
                        assert_eq!(it.identity(), used.identity());
                    }
                    assert!(used.grown_old().is_old() && !used.is_old());
                }
            }
        }
    }

    #[test]
    fn nothing_a_device_says_names_a_slot_that_is_not_a_plain_request_of_the_batch() {
        let (cid, batch) = (Cid(0x1234), BatchNumber::within(7 << 32));
        let others = [
            SlotUse::free(cid),
            SlotUse::request(cid, batch),
            SlotUse::part(cid, batch),
            SlotUse::plain(cid, batch).grown_old(),
            SlotUse::plain(Cid(0x1235), batch),
            SlotUse::plain(cid, BatchNumber::within(8 << 32)),
        ];
        // Whatever a device writes reaches the low half only.
        for said in (0..=u16::MAX).map(|high| u64::from(high) << 16 | u64::from(cid.0)) {
            let difference = said | batch.bits();
            assert_eq!(SlotUse::plain(cid, batch).is(difference), said >> 16 == 0);
            assert!(others.iter().all(|other| !other.is(difference)));
            assert!(!SlotUse::plain(cid, batch).is(difference | NEVER));
        }
    }
}
