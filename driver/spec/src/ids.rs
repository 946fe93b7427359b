//! Newtypes for the numbers that are easily confused: an index, a count and an address never mix.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($raw:ty), $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $raw);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    };
}

number!(
    /// An address as a device sees it: translated by an IOMMU, or by the software controller's own table.
    Iova(u64),
    "{:#x}"
);
number!(
    /// A command identifier as it stands in an entry (NVMe Base 2.0, 3.3.3.1): slot and generation.
    Cid(u16),
    "{}"
);
number!(
    /// A queue identifier; 0 is the admin queue (NVMe Base 2.0, 3.3.3).
    QueueId(u16),
    "{}"
);
number!(
    /// A namespace identifier; 0 names none, `0xFFFF_FFFF` all (NVMe Base 2.0, 3.2.1.3).
    Nsid(u32),
    "{}"
);
number!(
    /// The address of a logical block within its namespace.
    Lba(u64),
    "{}"
);
number!(
    /// A count of logical blocks. One-based, unlike the field that carries it on the wire.
    Blocks(u32),
    "{}"
);

impl Iova {
    /// The address `bytes` further on. Wraps, since an address from a device may be anything.
    #[must_use]
    pub const fn offset(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl Nsid {
    /// Names every namespace of a controller (NVMe Base 2.0, 3.2.1.3).
    pub const ALL: Self = Self(u32::MAX);
}

impl QueueId {
    /// The admin queue.
    pub const ADMIN: Self = Self(0);
}
