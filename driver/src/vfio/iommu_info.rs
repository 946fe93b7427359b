//! What an IOMMU can map, read from the kernel's description of a container.
//!
//! The description is a fixed head and a chain of capabilities, linked by offsets. Every offset is checked,
//! and the chain is followed forwards only, so that any bytes at all are read to an end.

use std::ops::RangeInclusive;

use vfio_bindings::bindings::vfio as sys;

/// An IOMMU's limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IommuInfo {
    /// Addresses that can be mapped, ascending and apart.
    pub windows: Vec<RangeInclusive<u64>>,
    /// How many mappings can still be made, where the kernel says (since Linux 5.10).
    pub entries_left: Option<u64>,
    /// Mappings are multiples of this many bytes.
    pub granule: u64,
}

impl IommuInfo {
    /// Reads what the kernel wrote. What is missing or broken is taken to be as limited as VT-d is.
    pub(super) fn parse(info: &[u8]) -> Self {
        let flags = dword(info, 4).unwrap_or(0);
        let page_sizes = match qword(info, 8) {
            Some(sizes) if flags & sys::VFIO_IOMMU_INFO_PGSIZES != 0 && sizes != 0 => sizes,
            _ => PAGE_BYTES,
        };
        let mut parsed = Self {
            windows: Vec::new(),
            entries_left: None,
            granule: (1 << page_sizes.trailing_zeros()).max(PAGE_BYTES),
        };
        if flags & sys::VFIO_IOMMU_INFO_CAPS != 0 {
            parsed.follow_chain(info);
        }
        if parsed.windows.is_empty() {
            parsed.windows = NARROWEST.to_vec();
        }
        parsed
    }

    fn follow_chain(&mut self, info: &[u8]) {
        let mut at = dword(info, 16).unwrap_or(0) as usize;
        while let (Some(head), Some(next)) = (dword(info, at), dword(info, at.saturating_add(4))) {
            match head & 0xFFFF {
                _ if at == 0 => return,
                sys::VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE => self.windows = ranges(info, at),
                sys::VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL => {
                    self.entries_left = dword(info, at + 8).map(u64::from);
                }
                _ => {}
            }
            if next as usize <= at {
                return;
            }
            at = next as usize;
        }
    }
}

/// The ranges of an IOVA range capability at `at`: header (8 bytes), count, reserved, then pairs.
fn ranges(info: &[u8], at: usize) -> Vec<RangeInclusive<u64>> {
    let count = dword(info, at + 8).unwrap_or(0) as usize;
    let pairs = (0..count).map_while(|index| {
        let pair = at.checked_add(16)?.checked_add(index.checked_mul(16)?)?;
        Some(qword(info, pair)?..=qword(info, pair.checked_add(8)?)?)
    });
    let mut ranges: Vec<_> = pairs.filter(|range| !range.is_empty()).collect();
    ranges.sort_unstable_by_key(|range| *range.start());
    // The promise is "apart"; the kernel keeps it, and ranges that do not are dropped.
    let mut end = None;
    ranges.retain(|range| {
        let apart = end.is_none_or(|end| *range.start() > end);
        if apart {
            end = Some(*range.end());
        }
        apart
    });
    ranges
}

fn dword(info: &[u8], at: usize) -> Option<u32> {
    info.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

fn qword(info: &[u8], at: usize) -> Option<u64> {
    info.get(at..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
}

const PAGE_BYTES: u64 = 4096;
/// 39 bits without the interrupt window: what every VT-d can map. For kernels before 5.4, which do not say.
const NARROWEST: [RangeInclusive<u64>; 2] = [0..=0xFEDF_FFFF, 0xFEF0_0000..=(1 << 39) - 1];

#[cfg(test)]
mod tests {
    use super::*;

    /// A description as Linux 6.1 writes it for a VT-d of 39 bits.
    fn description() -> Vec<u8> {
        let mut info = Vec::new();
        let mut dwords = |values: &[u32]| values.iter().for_each(|value| info.extend(value.to_ne_bytes()));
        // Length, flags, page sizes (4 KiB, 2 MiB, 1 GiB), offset of the chain, padding.
        dwords(&[0, 3, 0x4020_1000, 0, 24, 0]);
        // Migration, then what is left, then the ranges.
        dwords(&[2 | 1 << 16, 56, 0, 0, 0, 0, 0, 0]);
        dwords(&[3 | 1 << 16, 72, 65_535, 0]);
        dwords(&[1 | 1 << 16, 0, 2, 0, 0, 0, 0xFEDF_FFFF, 0, 0xFEF0_0000, 0, 0xFFFF_FFFF, 0x7F]);
        let bytes = u32::try_from(info.len()).expect("short");
        info[..4].copy_from_slice(&bytes.to_ne_bytes());
        info
    }

    #[test]
    fn ranges_entries_and_granule_are_read() {
        assert_eq!(
            IommuInfo::parse(&description()),
            IommuInfo { windows: NARROWEST.to_vec(), entries_left: Some(65_535), granule: 4096 }
        );
    }

    #[test]
    fn every_page_size_above_the_smallest_gives_the_smallest() {
        let mut info = description();
        info[8..16].copy_from_slice(&(!0xFFFF_u64).to_ne_bytes());
        assert_eq!(IommuInfo::parse(&info).granule, 65_536);
    }

    #[test]
    fn a_kernel_that_says_nothing_is_taken_to_be_narrow() {
        let nothing = IommuInfo::parse(&[]);
        assert_eq!(nothing.windows, NARROWEST);
        assert_eq!((nothing.entries_left, nothing.granule), (None, 4096));
    }

    #[test]
    fn any_byte_in_any_place_is_read_to_an_end() {
        let good = description();
        for cut in 0..=good.len() {
            let _ = IommuInfo::parse(&good[..cut]);
        }
        for place in 0..good.len() {
            for byte in [0, 1, 24, 0x7F, 0x80, 0xFF] {
                let mut bad = good.clone();
                bad[place] = byte;
                let parsed = IommuInfo::parse(&bad);
                assert!(parsed.granule.is_power_of_two() && !parsed.windows.is_empty());
                assert!(parsed.windows.is_sorted_by(|a, b| a.end() < b.start()));
            }
        }
    }
}
