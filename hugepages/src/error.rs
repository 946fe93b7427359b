//! Why memory could not be had.

use std::io;

use doorbell_spec::{Addressing, Iova, MapError};

use crate::PageKind;
use crate::page::Size;
use crate::pagemap::PagemapError;

/// Why memory for a device could not be allocated, mapped or registered. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DmaError {
    /// Zero bytes or zero blocks were asked for.
    #[error("{what} of zero bytes cannot be allocated")]
    Empty {
        /// What was asked for.
        what: &'static str,
    },
    /// More than one buffer, pool or region can hold.
    #[error("{what} of {bytes} bytes is too large: the limit is {max_bytes} bytes")]
    TooLarge {
        /// What was asked for.
        what: &'static str,
        /// How large it was to be.
        bytes: usize,
        /// How large it may be.
        max_bytes: usize,
    },
    /// A pool of more blocks than it can count.
    #[error("a pool of {count} blocks is too large: the limit is {max_count} blocks")]
    TooManyBlocks {
        /// How many blocks were asked for.
        count: usize,
        /// How many there may be.
        max_count: usize,
    },
    /// Blocks that would not be aligned.
    #[error(
        "blocks of {block_bytes} bytes are not possible: use a power of two from 4 on, or a multiple of 64"
    )]
    BadBlockSize {
        /// The size asked for.
        block_bytes: usize,
    },
    /// There are not enough huge pages.
    #[error(
        "{page} are needed, {need_pages} of them, but {free_pages} of {total_pages} are free{}; {}",
        on(*node),
        remedy(*page, [*need_pages, *free_pages, *total_pages], *node)
    )]
    NoHugePages {
        /// What pages are needed.
        page: PageKind,
        /// How many are needed.
        need_pages: u64,
        /// How many are free and not promised to somebody else.
        free_pages: u64,
        /// How many there are.
        total_pages: u64,
        /// The NUMA node they were to be on.
        node: Option<u32>,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The system is out of memory.
    #[error("the system has no {bytes} bytes of memory left{}", on(*node))]
    OutOfMemory {
        /// How much was needed.
        bytes: usize,
        /// The NUMA node it was to be on.
        node: Option<u32>,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// No range of device addresses is free in what all attached devices can reach.
    #[error(
        "no {bytes} bytes of device addresses are free in what every attached device reaches ({windows})"
    )]
    NoAddresses {
        /// How much was needed.
        bytes: usize,
        /// The ranges, written out.
        windows: String,
    },
    /// A device cannot reach memory that exists.
    #[error(
        "the device cannot reach {bytes} bytes of this space's memory at {iova}: its ranges are {windows}"
    )]
    Unreachable {
        /// Where the memory lies.
        iova: Iova,
        /// How long it is.
        bytes: usize,
        /// The device's ranges, written out.
        windows: String,
    },
    /// A device shares too small a range of addresses with the space and the devices in it.
    #[error("the device's ranges ({windows}) leave no room for DMA memory in this space's ({space_windows})")]
    NoCommonWindow {
        /// The device's ranges, written out.
        windows: String,
        /// The ranges of the space and of the devices in it, written out.
        space_windows: String,
    },
    /// A device maps in larger units than the memory is made of.
    #[error(
        "the device maps memory in units of {granule} bytes, which does not divide {bytes} bytes at {iova}; \
         use huge pages"
    )]
    Granule {
        /// The device's unit in bytes.
        granule: u64,
        /// Where the memory lies.
        iova: Iova,
        /// How long it is.
        bytes: usize,
    },
    /// A device that sees physical addresses in a space of translated ones, or the reverse.
    #[error(
        "the device uses {device} addresses and the space {space} ones; devices without an IOMMU need \
         a space of their own"
    )]
    MixedAddressing {
        /// What the device uses.
        device: AddressingName,
        /// What the space uses.
        space: AddressingName,
    },
    /// Physical addresses need huge pages.
    #[error("a space of physical addresses needs huge pages, and its policy or page kind forbids them")]
    PhysicalNeedsHugePages,
    /// A buffer that would not be contiguous in physical memory.
    #[error("a buffer of {bytes} bytes does not fit into one of the {page}, as physical addresses require")]
    LargerThanPage {
        /// The size of the buffer.
        bytes: usize,
        /// The pages of the space.
        page: PageKind,
    },
    /// Foreign memory cannot be used with physical addresses.
    #[error("memory that is not the space's own cannot be registered in a space of physical addresses")]
    PhysicalForeign,
    /// Foreign memory that does not start and end on a page.
    #[error(
        "{bytes} bytes at {address:#x} are not whole pages of {page_bytes} bytes, which registration requires"
    )]
    Unaligned {
        /// Where the memory starts in the process.
        address: usize,
        /// How long it is.
        bytes: usize,
        /// The unit that is required.
        page_bytes: u64,
    },
    /// A physical address could not be found out.
    #[error(transparent)]
    Pagemap(#[from] PagemapError),
    /// A device's bus refused to map.
    #[error(transparent)]
    Map(MapError),
    /// A device's bus refused to take mappings back: the device may still reach that memory.
    #[error("{bytes} bytes could not be taken back from the device, which may still reach them")]
    StillMapped {
        /// How much memory it is. It is never freed.
        bytes: usize,
        /// What the bus said first.
        #[source]
        source: MapError,
    },
    /// The operating system refused.
    #[error("{action} failed for {bytes} bytes of {page}{}", on(*node))]
    Os {
        /// What was tried.
        action: &'static str,
        /// How much memory was to be had.
        bytes: usize,
        /// What it was to be made of.
        page: PageKind,
        /// The NUMA node it was to be on.
        node: Option<u32>,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// [`Addressing`] in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressingName(pub Addressing);

impl std::fmt::Display for AddressingName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            Addressing::Translated => "translated",
            Addressing::Physical => "physical",
        })
    }
}

pub(crate) fn on(node: Option<u32>) -> String {
    node.map(|node| format!(" on NUMA node {node}")).unwrap_or_default()
}

/// The commands that raise the number of huge pages so that those needed can be had.
fn remedy(page: PageKind, [need, free, total]: [u64; 3], node: Option<u32>) -> String {
    if free >= need {
        return "the process may be in a control group that is allowed fewer: look at `hugetlb.*.max` and \
                `hugetlb.*.rsvd.max` there"
            .to_owned();
    }
    // A reservation to the very page would be too small for whatever comes next.
    let step = (ADVISED_STEP_BYTES / page.bytes() as u64).max(1);
    let pages = total.saturating_add(need - free).next_multiple_of(step);
    let bytes = Size(pages.saturating_mul(page.bytes() as u64));
    let file = crate::status::pool_folder(page, node).join("nr_hugepages");
    match (page, node) {
        (PageKind::Huge2M, None) => format!(
            "reserve them with `sudo nvme-perf setup --hugepages {bytes}` or \
             `sudo sysctl vm.nr_hugepages={pages}`"
        ),
        _ => format!("reserve them with `echo {pages} | sudo tee /sys/{}`", file.display()),
    }
}

const ADVISED_STEP_BYTES: u64 = 512 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(page: PageKind, need_pages: u64, free_pages: u64, node: Option<u32>) -> String {
        let source = io::ErrorKind::OutOfMemory.into();
        DmaError::NoHugePages { page, need_pages, free_pages, total_pages: 16, node, source }.to_string()
    }

    #[test]
    fn missing_pages_are_counted_and_the_commands_named() {
        assert_eq!(
            missing(PageKind::Huge2M, 250, 2, None),
            "huge pages of 2 MiB are needed, 250 of them, but 2 of 16 are free; reserve them with \
             `sudo nvme-perf setup --hugepages 1G` or `sudo sysctl vm.nr_hugepages=512`"
        );
        assert_eq!(
            missing(PageKind::Huge1G, 4, 0, Some(1)),
            "huge pages of 1 GiB are needed, 4 of them, but 0 of 16 are free on NUMA node 1; reserve them \
             with `echo 20 | sudo tee \
             /sys/devices/system/node/node1/hugepages/hugepages-1048576kB/nr_hugepages`"
        );
    }

    #[test]
    fn pages_that_are_free_but_refused_point_at_the_control_group() {
        assert!(missing(PageKind::Huge2M, 4, 16, None).contains("control group"));
    }
}
