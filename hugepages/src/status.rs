//! How many huge pages the system has: the kernel's counters in sysfs.
//!
//! Documentation/admin-guide/mm/hugetlbpage.rst. The root folder is a parameter, so that everything here
//! can be tested on an ordinary folder.

use std::io;
use std::path::{Path, PathBuf};

use crate::PageKind;

/// The kernel's huge page pools.
#[derive(Clone, Debug)]
pub struct HugepagePools {
    root: PathBuf,
}

/// The state of one pool of huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HugepageStatus {
    /// The pages it consists of.
    pub page: PageKind,
    /// The NUMA node, or `None` for the whole machine.
    pub node: Option<u32>,
    /// How many pages there are.
    pub total: u64,
    /// How many of them are not in use. Some may be promised, see `reserved`.
    pub free: u64,
    /// How many of the free ones are promised to mappings that have not touched them yet. The kernel does
    /// not say this for a node: it is 0 there.
    pub reserved: u64,
}

impl HugepageStatus {
    /// How many pages an allocation can have now.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.free.saturating_sub(self.reserved)
    }

    /// The size of the pool in bytes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.total.saturating_mul(self.page.bytes() as u64)
    }
}

impl Default for HugepagePools {
    fn default() -> Self {
        Self::system()
    }
}

impl HugepagePools {
    /// Those of this machine.
    #[must_use]
    pub fn system() -> Self {
        Self::at("/sys")
    }

    /// Those below `root`, which is laid out as `/sys` is.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The state of one pool. `page` is [`PageKind::Huge2M`] or [`PageKind::Huge1G`].
    ///
    /// # Errors
    /// The system has no huge pages of that size, or there is no such node: an [`io::Error`] of the kind
    /// `NotFound`. Anything else that reading the files may say.
    pub fn status(&self, page: PageKind, node: Option<u32>) -> io::Result<HugepageStatus> {
        let folder = self.folder(page, node);
        Ok(HugepageStatus {
            page,
            node,
            total: read_number(&folder.join("nr_hugepages"))?,
            free: read_number(&folder.join("free_hugepages"))?,
            reserved: match node {
                None => read_number(&folder.join("resv_hugepages"))?,
                Some(_) => 0,
            },
        })
    }

    /// The state of every pool that the system has, for the whole machine: of 2 MiB and of 1 GiB pages.
    #[must_use]
    pub fn all(&self) -> Vec<HugepageStatus> {
        let sizes = [PageKind::Huge2M, PageKind::Huge1G];
        sizes.into_iter().filter_map(|page| self.status(page, None).ok()).collect()
    }

    pub(crate) fn folder(&self, page: PageKind, node: Option<u32>) -> PathBuf {
        self.root.join(pool_folder(page, node))
    }
}

/// The folder of a pool, from the root of sysfs on.
pub(crate) fn pool_folder(page: PageKind, node: Option<u32>) -> PathBuf {
    let pool = format!("hugepages/hugepages-{}kB", page.bytes() >> 10);
    match node {
        None => Path::new("kernel/mm").join(pool),
        Some(node) => Path::new("devices/system/node").join(format!("node{node}")).join(pool),
    }
}

fn read_number(path: &Path) -> io::Result<u64> {
    let text = std::fs::read_to_string(path)?;
    let said = || format!("{} says {text:?}, which is not a number", path.display());
    text.trim().parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, said()))
}
