//! One slot per command identifier: what the driver must remember while a command lives.

use doorbell_spec::{Cid, Lba, Nanos};

use super::prp::NO_PAGE;
use crate::buffer::Buffer;

/// What a slot's command is part of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Owner {
    /// No command lives in the slot.
    #[default]
    Nobody,
    /// A request that fits into one command.
    Request,
    /// A part of the split request with this index.
    Split(u16),
}

/// The memory of one command.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) owner: Owner,
    /// The identifier of the slot's command, or of its next one. Moves on when the slot is released.
    pub(crate) cid: Cid,
    /// Extra PRP list pages.
    pub(crate) chain: u16,
    pub(crate) lba: Lba,
    pub(crate) user_data: u64,
    /// When its doorbell was rung; 0 until then.
    pub(crate) rung_at: Nanos,
    /// Held so that nobody can touch or free it while the device may.
    pub(crate) buffer: Buffer,
    /// Tells a request from all others that have had this slot.
    pub(crate) serial: u32,
}

impl Slot {
    pub(crate) fn new(cid: Cid) -> Self {
        Self {
            owner: Owner::Nobody,
            cid,
            chain: NO_PAGE,
            lba: Lba(0),
            user_data: 0,
            rung_at: Nanos(0),
            buffer: Buffer::None,
            serial: 0,
        }
    }
}
