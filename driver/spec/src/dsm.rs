//! Dataset Management ranges (NVM Command Set 1.0, 3.2.3).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// CDW11 bit 2 (AD): the ranges may be deallocated.
pub const ATTRIBUTE_DEALLOCATE: u32 = 1 << 2;

/// The most ranges one command may carry.
pub const RANGES_MAX: usize = 256;

/// One range: 16 bytes, little-endian.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct DsmRange {
    /// Context attributes: hints that most devices ignore.
    pub attributes: u32,
    /// Length in logical blocks, one-based.
    pub blocks: u32,
    /// First logical block.
    pub lba: u64,
}

const _: () = assert!(size_of::<DsmRange>() * RANGES_MAX == 4096);
