//! A region of a device file: one BAR, or the configuration space.

use std::ops::Range;

use vfio_bindings::bindings::vfio as sys;
use vfio_ioctls::{VfioDevice, VfioRegionInfoCap};

/// Where a region lies in the device file, and which parts of it can be mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Region {
    /// Offset of its first byte in the device file.
    pub offset: u64,
    /// Its length in bytes; 0 if the device has no such region.
    pub bytes: u64,
    /// Parts that can be mapped, as offsets in the region, in no order.
    pub mappable: Vec<Range<u64>>,
}

impl Region {
    /// The region `index` of `device`.
    pub(super) fn of(device: &VfioDevice, index: u32) -> Self {
        let bytes = device.get_region_size(index);
        let mappable = if device.get_region_flags(index) & sys::VFIO_REGION_INFO_FLAG_MMAP == 0 {
            Vec::new()
        } else {
            areas(bytes, &device.get_region_caps(index))
        };
        Self { offset: device.get_region_offset(index), bytes, mappable }
    }

    /// How many bytes from `start` on can be mapped in one piece.
    pub(super) fn mappable_from(&self, start: u64) -> u64 {
        let area = self.mappable.iter().find(|area| area.contains(&start));
        area.map_or(0, |area| area.end.min(self.bytes).saturating_sub(start))
    }
}

/// The whole region, unless the kernel lists the areas that may be mapped: older ones leave out the pages
/// of an MSI-X table that lies in the region, newer ones say that it may be mapped as well.
fn areas(bytes: u64, capabilities: &[VfioRegionInfoCap]) -> Vec<Range<u64>> {
    let sparse = capabilities.iter().find_map(|capability| match capability {
        VfioRegionInfoCap::SparseMmap(sparse) => Some(&sparse.areas),
        _ => None,
    });
    match sparse {
        Some(areas) => areas.iter().map(|area| area.offset..area.offset.saturating_add(area.size)).collect(),
        None => std::iter::once(0..bytes).collect(),
    }
}

#[cfg(test)]
mod tests {
    use vfio_ioctls::{VfioRegionInfoCapSparseMmap, VfioRegionSparseMmapArea};

    use super::*;

    fn region(capabilities: &[VfioRegionInfoCap]) -> Region {
        Region { offset: 0, bytes: 0x4000, mappable: areas(0x4000, capabilities) }
    }

    fn sparse(areas: &[(u64, u64)]) -> VfioRegionInfoCap {
        let areas = areas.iter().map(|&(offset, size)| VfioRegionSparseMmapArea { offset, size }).collect();
        VfioRegionInfoCap::SparseMmap(VfioRegionInfoCapSparseMmap { areas })
    }

    #[test]
    fn without_a_list_of_areas_all_of_it_can_be_mapped() {
        assert_eq!(region(&[]).mappable_from(0x1000), 0x3000);
        assert_eq!(region(&[VfioRegionInfoCap::MsixMappable]).mappable_from(0x1000), 0x3000);
        assert_eq!(region(&[]).mappable_from(0x4000), 0);
    }

    #[test]
    fn a_hole_for_the_interrupt_table_ends_the_window() {
        let holed = region(&[sparse(&[(0, 0x2000), (0x3000, 0x1000)])]);
        assert_eq!(holed.mappable_from(0x1000), 0x1000);
        assert_eq!(holed.mappable_from(0x2000), 0);
        assert_eq!(region(&[sparse(&[])]).mappable_from(0x1000), 0);
    }

    #[test]
    fn areas_beyond_the_region_are_cut() {
        assert_eq!(region(&[sparse(&[(0x1000, u64::MAX)])]).mappable_from(0x1000), 0x3000);
    }
}
