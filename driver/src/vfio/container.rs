#![expect(unsafe_code)]
//! The memory side of VFIO: a container, which is one set of IOMMU tables.
//
// UNSAFETY: implements unsafe methods, and passes the contract of one on to the system call.

use std::fmt::Write;
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;

use doorbell_spec::{Addressing, HostRegion, Iova, MapError, Mapper, MapperLimits};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use vfio_ioctls::VfioContainer;

use super::ioctl;
use super::iommu_info::IommuInfo;

/// The memory that the devices of one IOMMU group can reach.
///
/// Keeps the group: as long as one clone of its `Arc` lives, no other process can open the group's devices,
/// and what is mapped stays mapped.
pub struct VfioMapper {
    container: Arc<VfioContainer>,
    group: u32,
    windows: Vec<RangeInclusive<u64>>,
    granule: u64,
}

impl VfioMapper {
    /// The mapper of `container`, whose IOMMU must be set, which the first device in it sees to.
    pub(super) fn new(container: Arc<VfioContainer>, group: u32) -> io::Result<Self> {
        let IommuInfo { windows, granule, .. } = IommuInfo::parse(&ioctl::iommu_info(&container)?);
        Ok(Self { container, group, windows, granule })
    }

    /// The number of the IOMMU group, as in `/dev/vfio/12`.
    #[must_use]
    pub fn group(&self) -> u32 {
        self.group
    }

    pub(super) fn container(&self) -> &Arc<VfioContainer> {
        &self.container
    }

    fn holds(&self, iova: Iova, bytes: u64) -> bool {
        // No bytes at all are for the kernel to refuse.
        let Some(last) = iova.0.checked_add(bytes.saturating_sub(1)) else { return false };
        self.windows.iter().any(|window| window.contains(&iova.0) && window.contains(&last))
    }

    fn explain(&self, source: io::Error, iova: Iova, bytes: usize) -> MapError {
        match source.raw_os_error() {
            Some(libc::EEXIST) => MapError::Overlap { iova, bytes },
            Some(libc::ENOSPC) => MapError::EntryLimit { limit: entry_limit() },
            Some(libc::ENOMEM) => match lock_limit(bytes as u64) {
                Some((need_bytes, limit_bytes)) => MapError::MemoryLockLimit { need_bytes, limit_bytes },
                None => MapError::Os { action: "DMA mapping", iova, bytes, source },
            },
            _ => MapError::Os { action: "DMA mapping", iova, bytes, source },
        }
    }
}

impl Mapper for VfioMapper {
    fn limits(&self) -> MapperLimits {
        let info = ioctl::iommu_info(&self.container).map(|info| IommuInfo::parse(&info));
        MapperLimits {
            windows: self.windows.clone(),
            entries_left: info.ok().and_then(|info| info.entries_left),
            granule: self.granule,
            addressing: Addressing::Translated,
        }
    }

    unsafe fn map(&self, iova: Iova, region: HostRegion<'_>) -> Result<(), MapError> {
        let bytes = region.bytes;
        if !self.holds(iova, bytes as u64) {
            return Err(MapError::OutsideWindows { iova, bytes, windows: written(&self.windows) });
        }
        // SAFETY: the memory and its lifetime are the caller's promise, word for word.
        let result = unsafe { ioctl::map_dma(&self.container, iova.0, region.address, bytes as u64) };
        result.map_err(|source| self.explain(source, iova, bytes))
    }

    unsafe fn unmap(&self, iova: Iova, bytes: usize) -> Result<(), MapError> {
        match ioctl::unmap_dma(&self.container, iova.0, bytes as u64) {
            Ok(unmapped) if unmapped == bytes as u64 => Ok(()),
            // The kernel answers 0 where nothing is mapped, and refuses to cut a mapping in two.
            Ok(_) => Err(MapError::NotMapped { iova, bytes }),
            Err(source) if source.raw_os_error() == Some(libc::EINVAL) => {
                Err(MapError::NotMapped { iova, bytes })
            }
            Err(source) => Err(MapError::Os { action: "DMA unmapping", iova, bytes, source }),
        }
    }
}

impl std::fmt::Debug for VfioMapper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VfioMapper").field("group", &self.group).finish_non_exhaustive()
    }
}

fn written(windows: &[RangeInclusive<u64>]) -> String {
    let mut text = String::new();
    for (index, window) in windows.iter().enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        // Writing to a string does not fail.
        let _ = write!(text, "{comma}{:#x}..={:#x}", window.start(), window.end());
    }
    text
}

/// What the process needs to lock and may lock, in bytes, if that is why `more` bytes were refused.
fn lock_limit(more: u64) -> Option<(u64, u64)> {
    let (limit, _) = getrlimit(Resource::RLIMIT_MEMLOCK).ok()?;
    if limit == RLIM_INFINITY {
        return None;
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let need = locked_bytes(&status).saturating_add(more);
    // With room to spare it was the machine's memory that ran out.
    (need > limit).then_some((need, limit))
}

/// The locked memory in a process's status: `VmLck:     1234 kB`.
fn locked_bytes(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

/// How many mappings a container may have.
fn entry_limit() -> u64 {
    let text = fs::read_to_string("/sys/module/vfio_iommu_type1/parameters/dma_entry_limit");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(ENTRY_LIMIT_DEFAULT)
}

/// Linux's `U16_MAX` for `dma_entry_limit`.
const ENTRY_LIMIT_DEFAULT: u64 = 65_535;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_memory_is_read_from_the_status() {
        assert_eq!(locked_bytes("VmPeak:\t 1 kB\nVmLck:\t    2048 kB\nVmPin:\t 0 kB\n"), 2 << 20);
        for text in ["", "VmLck:", "VmLck: x kB", "VmLck: 18446744073709551615 kB"] {
            let _ = locked_bytes(text);
        }
    }

    #[test]
    fn windows_are_written_out() {
        assert_eq!(written(&[0..=0xFF, 0x1000..=0x1FFF]), "0x0..=0xff, 0x1000..=0x1fff");
    }
}
