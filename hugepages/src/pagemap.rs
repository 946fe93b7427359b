//! Physical addresses of the process's own memory, from `/proc/self/pagemap`.
//!
//! Only VFIO's no-IOMMU mode needs them. An entry is 64 bits for each ordinary page: bit 63 says that the
//! page is present, bits 54..0 are its frame number, which the kernel shows as 0 to a process without
//! `CAP_SYS_ADMIN` (Documentation/admin-guide/mm/pagemap.rst).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;

use crate::PageKind;

/// Why a physical address could not be found out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PagemapError {
    /// The kernel hides frame numbers from this process.
    #[error(
        "physical addresses are hidden from this process: it needs CAP_SYS_ADMIN; run it as root, or use an \
         IOMMU, which needs no physical addresses"
    )]
    NotPermitted,
    /// The page is not in memory.
    #[error("the page at {address:#x} is not in memory")]
    NotPresent {
        /// Its address in the process.
        address: usize,
    },
    /// `/proc/self/pagemap` cannot be read.
    #[error("reading /proc/self/pagemap failed")]
    Os {
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// An open pagemap of this process.
pub(crate) struct Pagemap {
    file: File,
}

impl Pagemap {
    pub(crate) fn open() -> Result<Self, PagemapError> {
        Self::open_at(Path::new("/proc/self/pagemap"))
    }

    fn open_at(path: &Path) -> Result<Self, PagemapError> {
        match File::open(path) {
            Ok(file) => Ok(Self { file }),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(PagemapError::NotPermitted),
            Err(source) => Err(PagemapError::Os { source }),
        }
    }

    /// The physical address behind `address`. It stays right only while the page cannot be moved.
    pub(crate) fn physical(&self, address: NonNull<u8>) -> Result<u64, PagemapError> {
        let address = address.addr().get();
        let page_bytes = PageKind::Ordinary.bytes();
        let mut entry = [0; 8];
        let offset = (address / page_bytes) as u64 * 8;
        self.file.read_exact_at(&mut entry, offset).map_err(|source| PagemapError::Os { source })?;
        decode(u64::from_ne_bytes(entry), address, page_bytes)
    }
}

fn decode(entry: u64, address: usize, page_bytes: usize) -> Result<u64, PagemapError> {
    const PRESENT: u64 = 1 << 63;
    const FRAME: u64 = (1 << 55) - 1;
    if entry & PRESENT == 0 {
        return Err(PagemapError::NotPresent { address });
    }
    let frame = entry & FRAME;
    if frame == 0 {
        return Err(PagemapError::NotPermitted);
    }
    let in_page = (address % page_bytes) as u64;
    frame.checked_mul(page_bytes as u64).and_then(|start| start.checked_add(in_page)).ok_or(
        PagemapError::Os {
            source: io::Error::new(io::ErrorKind::InvalidData, "a frame number beyond 64 bits"),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_decoded() {
        assert_eq!(decode(1 << 63 | 0x1234, 0x7000_0010, 4096).expect("present"), 0x0123_4010);
        assert!(matches!(decode(0x1234, 0, 4096), Err(PagemapError::NotPresent { .. })));
        assert!(matches!(decode(1 << 63, 0, 4096), Err(PagemapError::NotPermitted)));
    }

    #[test]
    fn a_frame_beyond_64_bits_is_an_error() {
        assert!(matches!(decode(u64::MAX, 0, 1 << 16), Err(PagemapError::Os { .. })));
    }

    #[test]
    fn an_ordinary_page_of_this_process_has_an_address_for_root_only() {
        let page = vec![1_u8; 3 * PageKind::Ordinary.bytes()];
        let inside = NonNull::from(&page[PageKind::Ordinary.bytes()]);
        let found = Pagemap::open().and_then(|map| map.physical(inside));
        if nix::unistd::geteuid().is_root() {
            let physical = found.expect("root may see frame numbers");
            let page_bytes = PageKind::Ordinary.bytes();
            assert_eq!(physical % page_bytes as u64, (inside.addr().get() % page_bytes) as u64);
        } else {
            let said = found.expect_err("hidden").to_string();
            assert!(said.contains("CAP_SYS_ADMIN"), "{said}");
        }
    }
}
