//! What a space holds, in numbers.

/// The state of a [`crate::DmaSpace`] at one moment. Sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DmaStats {
    /// Memory that devices can reach: all of the below, without `leaked_bytes`.
    pub mapped_bytes: u64,
    /// The part of it that is made of ordinary pages.
    pub ordinary_bytes: u64,
    /// The part of it that is made of huge pages of 2 MiB.
    pub huge_2m_bytes: u64,
    /// The part of it that is made of huge pages of 1 GiB.
    pub huge_1g_bytes: u64,
    /// The part of it that callers registered.
    pub foreign_bytes: u64,
    /// How much of the space's own memory belongs to a pool or a buffer. A pool counts as a whole; what
    /// its users hold of it is [`crate::DmaPool::available`].
    pub used_bytes: u64,
    /// The most that `used_bytes` has been.
    pub used_bytes_max: u64,
    /// Memory that is never freed, since a device did not let go of it.
    pub leaked_bytes: u64,
    /// The number of regions, each of which is one mapping in every mapper (one for each page, where
    /// addresses are physical).
    pub regions: usize,
    /// The number of mappers attached; one that is attached twice counts once.
    pub mappers: usize,
    /// Why smaller pages than preferred are in use: a sentence that ends with the command that mends it.
    pub fell_back: Option<String>,
}
