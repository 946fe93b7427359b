#![expect(unsafe_code)]
//! The device's address space: which addresses lead where, and the [`Mapper`] that changes it.
//!
//! It is not the process's address space. An interval table says which ranges exist; an access that is not
//! wholly inside them does not happen ([`access`]). The device holds the table's read lock for the
//! length of a step, so that `unmap`, which takes the write lock, returns only when no access is under way.
//! Every change raises the table's generation, by which rings notice that their translation is stale.
//
// UNSAFETY: implements a `Mapper`'s unsafe methods, and says that host addresses may change threads.

pub(crate) mod access;

use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use doorbell_spec::{Addressing, HostRegion, Iova, MapError, Mapper, MapperLimits};

/// The memory side of a software controller. Several controllers can share one.
pub struct IovaSpace {
    /// Taken for reading by the device for a step, for writing by map and unmap. No lock is taken under it
    /// but that of the access log.
    table: RwLock<Table>,
    /// The table's generation, for who does not need the table.
    generation: AtomicU64,
    /// The highest address there is.
    last: u64,
    entries_max: Option<u64>,
}

/// The mapped ranges, sorted by address and apart.
#[derive(Default)]
pub(crate) struct Table {
    ranges: Vec<Range>,
    generation: u64,
}

/// One mapping: the addresses `first` to `last`, which lie at `host`.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    first: u64,
    last: u64,
    host: NonNull<u8>,
}

// SAFETY:
// - the pointer is only an address here; what it leads to is accessed in `access` and in rings, by copies
//   and atomics, under the rules of `Mapper::map`, which do not depend on the thread.
unsafe impl Send for Range {}
// SAFETY: as above; a shared `Range` is never written.
unsafe impl Sync for Range {}

impl Table {
    /// Changes whenever something was mapped or unmapped.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }
}

impl IovaSpace {
    /// An empty space of addresses of `bits` (32 to 64) bits, with room for so many mappings.
    #[must_use]
    pub fn new(bits: u8, entries_max: Option<u64>) -> Self {
        let last = u64::MAX >> (64 - bits.clamp(32, 64));
        Self { table: RwLock::default(), generation: AtomicU64::new(0), last, entries_max }
    }

    /// The table as it is now. While the guard lives, nothing can be mapped or unmapped.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes whenever something was mapped or unmapped.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn count_change(&self, table: &mut Table) {
        table.generation += 1;
        self.generation.store(table.generation, Ordering::Release);
    }

    /// How many mappings there are.
    #[must_use]
    pub fn mappings(&self) -> usize {
        self.read().ranges.len()
    }

    fn check(&self, iova: Iova, region: &HostRegion<'_>) -> Result<Range, MapError> {
        let bytes = region.bytes;
        let outside = || MapError::OutsideWindows {
            iova,
            bytes,
            windows: format!("{GRANULE:#x}..={:#x}, in multiples of {GRANULE} bytes", self.last),
        };
        let length = u64::try_from(bytes).map_err(|_| outside())?;
        if length == 0 || !length.is_multiple_of(GRANULE) || !iova.0.is_multiple_of(GRANULE) {
            return Err(outside());
        }
        let last = iova.0.checked_add(length - 1).ok_or_else(outside)?;
        if iova.0 < GRANULE || last > self.last {
            return Err(outside());
        }
        if !region.address.addr().get().is_multiple_of(HOST_ALIGNMENT) {
            let source =
                io::Error::new(io::ErrorKind::InvalidInput, "the memory is not aligned to 4096 bytes");
            return Err(MapError::Os { action: "DMA mapping", iova, bytes, source });
        }
        Ok(Range { first: iova.0, last, host: region.address })
    }
}

impl Mapper for IovaSpace {
    fn limits(&self) -> MapperLimits {
        let used = u64::try_from(self.mappings()).unwrap_or(u64::MAX);
        MapperLimits {
            windows: vec![RangeInclusive::new(GRANULE, self.last)],
            entries_left: self.entries_max.map(|most| most.saturating_sub(used)),
            granule: GRANULE,
            addressing: Addressing::Translated,
        }
    }

    unsafe fn map(&self, iova: Iova, region: HostRegion<'_>) -> Result<(), MapError> {
        let range = self.check(iova, &region)?;
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(limit) = self.entries_max.filter(|limit| table.ranges.len() as u64 >= *limit) {
            return Err(MapError::EntryLimit { limit });
        }
        let at = table.ranges.partition_point(|other| other.last < range.first);
        if table.ranges.get(at).is_some_and(|other| other.first <= range.last) {
            return Err(MapError::Overlap { iova, bytes: region.bytes });
        }
        table.ranges.insert(at, range);
        self.count_change(&mut table);
        Ok(())
    }

    unsafe fn unmap(&self, iova: Iova, bytes: usize) -> Result<(), MapError> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let at = table.ranges.partition_point(|other| other.first < iova.0);
        let found = table.ranges.get(at).is_some_and(|range| {
            range.first == iova.0 && Some(range.last - range.first) == (bytes as u64).checked_sub(1)
        });
        if !found {
            return Err(MapError::NotMapped { iova, bytes });
        }
        table.ranges.remove(at);
        self.count_change(&mut table);
        Ok(())
    }
}

impl fmt::Debug for IovaSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IovaSpace").field("mappings", &self.mappings()).field("last", &self.last).finish()
    }
}

/// Addresses and lengths are multiples of this.
const GRANULE: u64 = 4096;
const HOST_ALIGNMENT: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(4096))]
    struct Page([u8; 8192]);

    fn region(page: &mut Page, bytes: usize) -> HostRegion<'static> {
        HostRegion { address: NonNull::from(&mut page.0).cast(), bytes, backing: None }
    }

    fn map(space: &IovaSpace, iova: u64, region: HostRegion<'_>) -> Result<(), MapError> {
        // SAFETY: no device accesses memory through this space, it is only a table here.
        unsafe { space.map(Iova(iova), region) }
    }

    fn unmap(space: &IovaSpace, iova: u64, bytes: usize) -> Result<(), MapError> {
        // SAFETY: as above.
        unsafe { space.unmap(Iova(iova), bytes) }
    }

    #[test]
    fn ranges_stay_apart_and_are_taken_back_whole() {
        let (space, mut page) = (IovaSpace::new(39, Some(2)), Page([0; 8192]));
        assert!(map(&space, 0x10_000, region(&mut page, 8192)).is_ok());
        for iova in [0x10_000, 0x11_000, 0xf000] {
            let overlap = map(&space, iova, region(&mut page, 8192));
            assert!(matches!(overlap, Err(MapError::Overlap { .. })), "{iova:#x}");
        }
        assert!(map(&space, 0x12_000, region(&mut page, 4096)).is_ok());
        assert!(matches!(
            map(&space, 0x20_000, region(&mut page, 4096)),
            Err(MapError::EntryLimit { limit: 2 })
        ));
        assert!(matches!(unmap(&space, 0x10_000, 4096), Err(MapError::NotMapped { .. })));
        assert!(matches!(unmap(&space, 0x11_000, 4096), Err(MapError::NotMapped { .. })));
        assert!(unmap(&space, 0x10_000, 8192).is_ok());
        assert!(matches!(unmap(&space, 0x10_000, 8192), Err(MapError::NotMapped { .. })));
        assert_eq!((space.mappings(), space.limits().entries_left), (1, Some(1)));
    }

    #[test]
    fn what_cannot_be_addressed_is_refused() {
        let (space, mut page) = (IovaSpace::new(39, None), Page([0; 8192]));
        for iova in [0, 0x800, (1 << 39) - 4096, 1 << 39, u64::MAX - 4095] {
            let refused = map(&space, iova, region(&mut page, 8192));
            assert!(matches!(refused, Err(MapError::OutsideWindows { .. })), "{iova:#x}");
        }
        assert!(map(&space, 0x1000, region(&mut page, 0)).is_err());
        assert!(map(&space, 0x1000, region(&mut page, 100)).is_err());
        let mut crooked = region(&mut page, 4096);
        // SAFETY: 8 bytes further on is inside the same array of 8,192.
        crooked.address = unsafe { crooked.address.add(8) };
        assert!(matches!(map(&space, 0x1000, crooked), Err(MapError::Os { .. })));
        assert!(map(&space, (1 << 39) - 8192, region(&mut page, 8192)).is_ok());
    }
}
