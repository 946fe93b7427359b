#![expect(unsafe_code)]
//! DMA mapping: making a piece of the process's memory visible to a device at an address of its own.
//
// UNSAFETY: declares unsafe methods, whose contract is the memory's lifetime; calls nothing unsafe.

use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use crate::Iova;

/// A piece of this process's memory that is offered to a device.
#[derive(Clone, Copy, Debug)]
pub struct HostRegion<'a> {
    /// Where it starts in the process.
    pub address: NonNull<u8>,
    /// Its length in bytes.
    pub bytes: usize,
    /// The file behind it and the offset therein, for a device that lives in another process.
    pub backing: Option<(BorrowedFd<'a>, u64)>,
}

/// What a mapper can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapperLimits {
    /// The address ranges that may be mapped, ascending and apart. Reserved ranges are left out.
    pub windows: Vec<RangeInclusive<u64>>,
    /// How many mappings may still be made, where the mapper knows.
    pub entries_left: Option<u64>,
    /// Addresses and lengths must be multiples of this many bytes (a power of two).
    pub granule: u64,
    /// What the addresses are.
    pub addressing: Addressing,
}

/// What the addresses of a mapper are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressing {
    /// Translated: an address is whatever was chosen when the region was mapped.
    Translated,
    /// Physical (VFIO's no-IOMMU mode): the device sees the machine's memory, and nothing protects it.
    Physical,
}

/// The memory side of a bus: an IOMMU domain, a vfio-user peer or a software controller's own table.
///
/// Several controllers may share one mapper (two devices in one VFIO container); they then hold the same
/// `Arc`, by which a `DmaSpace` recognises it.
pub trait Mapper: Send + Sync + fmt::Debug {
    /// What can be mapped where.
    fn limits(&self) -> MapperLimits;

    /// Makes `region` visible to the device at `iova`. Returns when the device may use it.
    ///
    /// Does not keep the memory alive, and does not split: one call is one mapping.
    ///
    /// # Errors
    /// The limit that was hit, or what the operating system said.
    ///
    /// # Safety
    /// The caller guarantees that the region is mapped, readable and writable memory, and stays so until
    /// [`Mapper::unmap`] of the same range has returned `Ok`, or the mapper itself is gone. The
    /// implementor guarantees that the device reaches nothing outside the region through this mapping,
    /// that nobody but the device uses the region or its backing, and that a range which overlaps an existing
    /// mapping is refused: an address that was mapped means the same memory until it is unmapped.
    unsafe fn map(&self, iova: Iova, region: HostRegion<'_>) -> Result<(), MapError>;

    /// Takes a mapping back. When it returns `Ok`, the device can no longer touch the memory.
    ///
    /// `iova` and `bytes` are those of one earlier [`Mapper::map`].
    ///
    /// # Errors
    /// What the operating system said; the device may then still reach the memory.
    ///
    /// # Safety
    /// The addresses may mean other memory as soon as this returns: somebody else's, who maps it there in
    /// safe code (a second `DmaSpace`). So the caller guarantees that
    /// - the mapping is its own: it made it, and has not taken it back since;
    /// - no device that translates through this mapper will use an address of the range for what lay there:
    ///   no command that is under way names it, or the device has lost its right to DMA.
    ///
    /// The implementor guarantees that after `Ok` no device reaches the memory through this mapping.
    unsafe fn unmap(&self, iova: Iova, bytes: usize) -> Result<(), MapError>;
}

/// Why memory could not be mapped or unmapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The range lies outside what the device can address.
    #[error("the device cannot address {bytes} bytes at {iova}: its ranges are {windows}")]
    OutsideWindows {
        /// Where the mapping was to start.
        iova: Iova,
        /// How long it was to be.
        bytes: usize,
        /// The ranges, written out.
        windows: String,
    },
    /// The range overlaps a mapping that exists.
    #[error("{bytes} bytes at {iova} overlap an existing DMA mapping")]
    Overlap {
        /// Where the mapping was to start.
        iova: Iova,
        /// How long it was to be.
        bytes: usize,
    },
    /// Nothing is mapped there.
    #[error("no DMA mapping of {bytes} bytes starts at {iova}")]
    NotMapped {
        /// Where the mapping was said to start.
        iova: Iova,
        /// How long it was said to be.
        bytes: usize,
    },
    /// The process may not lock that much memory.
    #[error(
        "mapping {need_bytes} bytes for DMA exceeds the memory lock limit of {limit_bytes} bytes; \
         raise it with `sudo prlimit --pid $$ --memlock=unlimited`, or LimitMEMLOCK=infinity in the \
         service's unit"
    )]
    MemoryLockLimit {
        /// What this mapping needs.
        need_bytes: u64,
        /// RLIMIT_MEMLOCK of the process.
        limit_bytes: u64,
    },
    /// The mapper has no room for another entry.
    #[error(
        "the IOMMU container has no mapping entry left (dma_entry_limit is {limit}); use larger huge pages, \
         or `echo {} | sudo tee /sys/module/vfio_iommu_type1/parameters/dma_entry_limit`",
        limit.saturating_mul(4)
    )]
    EntryLimit {
        /// The limit in force.
        limit: u64,
    },
    /// The device is gone.
    #[error("the device was removed")]
    Removed,
    /// The operating system refused.
    #[error("{action} of {bytes} bytes at {iova} failed")]
    Os {
        /// What was tried.
        action: &'static str,
        /// Where.
        iova: Iova,
        /// How much.
        bytes: usize,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}
