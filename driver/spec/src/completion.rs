//! Completion queue entries (NVMe Base 2.0, 3.3.3.2).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Status;

/// One entry of a completion queue: 16 bytes, little-endian. The device writes the last dword last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct CompletionEntry {
    /// DW0: the command's result.
    pub dw0: u32,
    /// DW1: the command's result, upper half where a command has one.
    pub dw1: u32,
    /// SQHD: how far the device has read the submission queue.
    pub sq_head: u16,
    /// SQID: which submission queue the command came from.
    pub sq_id: u16,
    /// CID: which command.
    pub cid: u16,
    /// Bit 0 is the phase tag; the rest is the status.
    pub status_and_phase: u16,
}

const _: () = assert!(size_of::<CompletionEntry>() == 16);

impl CompletionEntry {
    /// The phase tag: flips each time the device comes round the ring.
    #[inline]
    #[must_use]
    pub const fn phase(&self) -> bool {
        self.status_and_phase & 1 == 1
    }

    /// The status without the phase tag.
    #[inline]
    #[must_use]
    pub const fn status(&self) -> Status {
        Status::from_raw(self.status_and_phase >> 1)
    }

    /// The third dword of the entry: submission queue and its head.
    #[inline]
    #[must_use]
    pub const fn dw2(&self) -> u32 {
        (self.sq_id as u32) << 16 | self.sq_head as u32
    }

    /// The last dword of the entry: identifier, status and phase.
    #[inline]
    #[must_use]
    pub const fn dw3(&self) -> u32 {
        (self.status_and_phase as u32) << 16 | self.cid as u32
    }

    /// Puts an entry together from its four dwords.
    #[inline]
    #[must_use]
    pub const fn from_dwords(dw0: u32, dw1: u32, dw2: u32, dw3: u32) -> Self {
        #[expect(clippy::cast_possible_truncation)]
        Self {
            dw0,
            dw1,
            sq_head: dw2 as u16,
            sq_id: (dw2 >> 16) as u16,
            cid: dw3 as u16,
            status_and_phase: (dw3 >> 16) as u16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dwords_and_fields_agree_with_the_bytes() {
        let entry = CompletionEntry::from_dwords(1, 2, 0x0004_0003, 0x4281_0005);
        assert_eq!((entry.sq_head, entry.sq_id, entry.cid), (3, 4, 5));
        assert!(entry.phase());
        assert_eq!(entry.status().raw(), 0x2140);
        assert_eq!((entry.dw2(), entry.dw3()), (0x0004_0003, 0x4281_0005));
        assert_eq!(entry.as_bytes()[12..16], [5, 0, 0x81, 0x42]);
    }
}
