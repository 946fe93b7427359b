//! What is behind the lock of a space: its regions, the mappers attached, and the addresses in use.
//!
//! Invariants: every region is mapped into every attached mapper; a region is retired when its last lease
//! ends; an address range is freed only when no mapper can hold a mapping of it.
//!
//! Mappers are called with the lock held, so that attaching and allocating cannot miss each other. A mapper
//! therefore must not call into the space. If one panics, what it was given is leaked, not freed.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use doorbell_spec::{Addressing, Iova, Mapper, MapperLimits};

use crate::error::AddressingName;
use crate::iova::{self, COMMON_WINDOW, IovaRanges};
use crate::mapping::HostAddress;
use crate::region::{Memory, Place, Reach, Region, Sharing};
use crate::{Detached, DmaError, DmaStats, PageKind};

#[derive(Debug, Default)]
pub(crate) struct State {
    regions: BTreeMap<RegionId, Region>,
    regions_made: u64,
    attached: Vec<Attached>,
    addresses: IovaRanges,
    used_bytes: u64,
    used_bytes_max: u64,
    leaked_bytes: u64,
    pub(crate) fell_back: Option<String>,
}

/// A region's name within its space; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RegionId(u64);

/// A range of a region that belongs to one pool or buffer.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) region: RegionId,
    pub(crate) range: Range<usize>,
    pub(crate) address: HostAddress,
    pub(crate) place: Place,
}

#[derive(Debug)]
struct Attached {
    mapper: Arc<dyn Mapper>,
    limits: MapperLimits,
    count: usize,
}

impl State {
    /// Maps everything into `mapper`, or counts one more attachment of it.
    pub(crate) fn attach(&mut self, mapper: Arc<dyn Mapper>, first_piece: PageKind) -> Result<(), DmaError> {
        if let Some(known) = self.attached.iter_mut().find(|known| same(&known.mapper, &mapper)) {
            known.count += 1;
            return Ok(());
        }
        let limits = mapper.limits();
        self.check_windows(&limits, first_piece)?;
        for region in self.regions.values() {
            region.check(&limits.windows, granule(&limits))?;
        }
        // It is entered first: should the mapper panic half-way, what it has been given is asked back
        // before it is freed.
        self.attached.push(Attached { mapper: Arc::clone(&mapper), limits, count: 1 });
        let mut failed = None;
        for (index, region) in self.regions.values_mut().enumerate() {
            if let Err(error) = region.map_into(&*mapper) {
                failed = Some((index, error));
                break;
            }
        }
        let Some((mapped, error)) = failed else { return Ok(()) };
        for region in self.regions.values_mut().take(mapped) {
            // The region notes it when it could not be taken back; the first error is the one to report.
            let _ = region.unmap_from(&*mapper);
        }
        self.attached.pop();
        Err(DmaError::Map(error))
    }

    /// Ends one attachment of `mapper`, and takes everything back from it with the last one.
    pub(crate) fn detach(&mut self, mapper: &Arc<dyn Mapper>) -> Result<Detached, DmaError> {
        let Some(index) = self.attached.iter().position(|known| same(&known.mapper, mapper)) else {
            return Ok(Detached::Unmapped);
        };
        self.attached[index].count -= 1;
        if self.attached[index].count > 0 {
            return Ok(Detached::StillShared);
        }
        let mut still = None;
        let mut bytes = 0;
        for region in self.regions.values_mut() {
            if let Err(error) = region.unmap_from(&**mapper) {
                bytes += region.bytes();
                still.get_or_insert(error);
            }
        }
        self.attached.remove(index);
        still.map_or(Ok(Detached::Unmapped), |source| Err(DmaError::StillMapped { bytes, source }))
    }

    /// Takes a range from a region that several allocations share.
    pub(crate) fn carve_shared(&mut self, bytes: usize) -> Option<Grant> {
        let shared = self.regions.iter_mut().filter(|(_, region)| {
            // A device that is not ours any more may write into a doubtful region.
            region.sharing == Sharing::Shared && region.reach() == Reach::Known
        });
        let (id, range) =
            shared.into_iter().find_map(|(&id, region)| Some((id, region.carver.take(bytes)?)))?;
        Some(self.grant(id, range))
    }

    /// Adds memory, at any free address unless `physical` gives them, and takes a range of `bytes` from it.
    pub(crate) fn admit(
        &mut self,
        memory: Memory,
        align: usize,
        physical: Option<Place>,
        (sharing, bytes): (Sharing, usize),
    ) -> Result<Grant, DmaError> {
        let place = match physical {
            Some(place) => place,
            None => match self.choose(memory.bytes(), align) {
                Ok(iova) => Place::Whole(iova),
                Err(error) => {
                    give_up(memory);
                    return Err(error);
                }
            },
        };
        let mut region = Region::new(memory, place, sharing);
        if let Err(error) = self.map_everywhere(&mut region) {
            let foreign = region.kind().is_none();
            let bytes = region.bytes();
            return Err(match (self.end(region), error) {
                (Reach::Doubtful, DmaError::Map(source)) if foreign => {
                    DmaError::StillMapped { bytes, source }
                }
                (_, error) => error,
            });
        }
        self.regions_made += 1;
        let id = RegionId(self.regions_made);
        let range = region.carver.take(bytes);
        self.regions.insert(id, region);
        let range = range.expect("a new region is as large as what it was made for");
        Ok(self.grant(id, range))
    }

    /// Takes a range back, and retires its region when that was the last one.
    pub(crate) fn give_back(&mut self, id: RegionId, range: Range<usize>) -> Result<(), DmaError> {
        let region = self.regions.get_mut(&id).expect("a grant keeps its region");
        if region.kind().is_some() {
            self.used_bytes -= range.len() as u64;
        }
        region.carver.give_back(range);
        if !region.carver.is_unused() {
            return Ok(());
        }
        let mut region = self.regions.remove(&id).expect("it was there a moment ago");
        let mut still = None;
        for attached in &self.attached {
            if let Err(error) = region.unmap_from(&*attached.mapper) {
                still.get_or_insert(error);
            }
        }
        let bytes = region.bytes();
        self.end(region);
        still.map_or(Ok(()), |source| Err(DmaError::StillMapped { bytes, source }))
    }

    pub(crate) fn stats(&self) -> DmaStats {
        let mut stats = DmaStats {
            used_bytes: self.used_bytes,
            used_bytes_max: self.used_bytes_max,
            leaked_bytes: self.leaked_bytes,
            regions: self.regions.len(),
            mappers: self.attached.len(),
            fell_back: self.fell_back.clone(),
            ..DmaStats::default()
        };
        for region in self.regions.values() {
            let bytes = region.bytes() as u64;
            stats.mapped_bytes += bytes;
            *match region.kind() {
                Some(PageKind::Ordinary) => &mut stats.ordinary_bytes,
                Some(PageKind::Huge2M) => &mut stats.huge_2m_bytes,
                Some(PageKind::Huge1G) => &mut stats.huge_1g_bytes,
                None => &mut stats.foreign_bytes,
            } += bytes;
        }
        stats
    }

    fn grant(&mut self, id: RegionId, range: Range<usize>) -> Grant {
        let region = &self.regions[&id];
        if region.kind().is_some() {
            self.used_bytes += range.len() as u64;
            self.used_bytes_max = self.used_bytes_max.max(self.used_bytes);
        }
        let address = region.address().offset(range.start);
        Grant { region: id, range, address, place: region.place().clone() }
    }

    fn choose(&mut self, bytes: usize, align: usize) -> Result<Iova, DmaError> {
        let granules = self.attached.iter().map(|attached| granule(&attached.limits));
        let align = granules.max().unwrap_or(1).max(align as u64);
        let windows = self.windows();
        self.addresses
            .take(bytes as u64, align, &windows)
            .ok_or_else(|| DmaError::NoAddresses { bytes, windows: iova::written(&windows) })
    }

    /// What every attached device reaches.
    fn windows(&self) -> Vec<RangeInclusive<u64>> {
        self.attached
            .iter()
            .fold(vec![COMMON_WINDOW], |windows, attached| iova::common(&windows, &attached.limits.windows))
    }

    fn check_windows(&self, limits: &MapperLimits, first_piece: PageKind) -> Result<(), DmaError> {
        if limits.addressing == Addressing::Physical {
            return Ok(());
        }
        let space_windows = self.windows();
        let both = iova::common(&space_windows, &limits.windows);
        let piece_bytes = first_piece.piece_bytes() as u64;
        let align = granule(limits).max(first_piece.bytes() as u64);
        match IovaRanges::default().take(piece_bytes, align, &both) {
            Some(_) => Ok(()),
            None => Err(DmaError::NoCommonWindow {
                windows: iova::written(&limits.windows),
                space_windows: iova::written(&space_windows),
            }),
        }
    }

    /// Maps a new region into every mapper, or into none.
    fn map_everywhere(&mut self, region: &mut Region) -> Result<(), DmaError> {
        for attached in &self.attached {
            region.check(&attached.limits.windows, granule(&attached.limits))?;
        }
        for (index, attached) in self.attached.iter().enumerate() {
            if let Err(error) = region.map_into(&*attached.mapper) {
                for earlier in &self.attached[..index] {
                    // The region notes it when it could not be taken back.
                    let _ = region.unmap_from(&*earlier.mapper);
                }
                return Err(DmaError::Map(error));
            }
        }
        Ok(())
    }

    /// Ends a region that is in no attached mapper any more, and frees its addresses if nobody holds them.
    fn end(&mut self, region: Region) -> Reach {
        let bytes = region.bytes() as u64;
        let own = region.kind().is_some();
        let whole = match region.place() {
            Place::Whole(iova) => Some(*iova),
            Place::Pages { .. } => None,
        };
        let reach = region.retire();
        match reach {
            Reach::Known => whole.into_iter().for_each(|iova| self.addresses.free(iova)),
            Reach::Doubtful if own => self.leaked_bytes += bytes,
            Reach::Doubtful => {}
        }
        reach
    }
}

/// Refuses a mapper whose addresses are of another sort than the space's.
pub(crate) fn check_addressing(device: Addressing, space: Addressing) -> Result<(), DmaError> {
    if device == space {
        return Ok(());
    }
    Err(DmaError::MixedAddressing { device: AddressingName(device), space: AddressingName(space) })
}

/// Gives memory back that no device has seen.
pub(crate) fn give_up(memory: Memory) {
    if let Memory::Own(mapping) = memory {
        mapping.release();
    }
}

/// Whether both are the same mapper. The data is compared and not the table of methods, of which the
/// compiler may make several.
fn same(a: &Arc<dyn Mapper>, b: &Arc<dyn Mapper>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))
}

fn granule(limits: &MapperLimits) -> u64 {
    // A mapper that says 0 means "any"; one that says no power of two is rounded up to be safe.
    limits.granule.max(1).checked_next_power_of_two().unwrap_or(1 << 63)
}
