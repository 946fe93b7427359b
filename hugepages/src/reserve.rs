//! Reserving huge pages: what `nvme-perf setup --hugepages 512M` does.
//!
//! Writes the pool's `nr_hugepages` and reads back what the kernel gave, since it gives fewer without an
//! error when memory is fragmented.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::on;
use crate::page::Size;
use crate::{HugepagePools, HugepageStatus, PageKind};

/// What became of a request for huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Reservation {
    /// How many pages the pool was to have.
    pub asked_pages: u64,
    /// The pool before.
    pub before: HugepageStatus,
    /// The pool now.
    pub after: HugepageStatus,
}

/// Whether a pool may become smaller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shrink {
    /// A pool that is larger than asked for stays as it is: others may count on it.
    #[default]
    Keep,
    /// The pool gets the size asked for. Pages in use stay until they are freed.
    Allow,
}

/// Why no huge pages could be reserved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// Ordinary pages are not reserved.
    #[error("ordinary pages need no reservation; ask for pages of 2 MiB or 1 GiB")]
    Ordinary,
    /// The system has no such pages, or no such node.
    #[error("this system has no {page}{}: {} does not exist", on(*node), folder.display())]
    NoPool {
        /// The pages asked for.
        page: PageKind,
        /// The node asked for.
        node: Option<u32>,
        /// What was looked for.
        folder: PathBuf,
    },
    /// Only root may.
    #[error("only root may reserve huge pages ({} is not writable): run it with sudo", file.display())]
    NotPermitted {
        /// The file that could not be written.
        file: PathBuf,
    },
    /// The kernel refused.
    #[error("reserving {pages} {page}{} failed", on(*node))]
    Os {
        /// How many pages were asked for.
        pages: u64,
        /// What pages.
        page: PageKind,
        /// On which node.
        node: Option<u32>,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// Makes the machine's pool of `page` (of `node`, if one is given) at least `bytes` large, rounded up to
/// whole pages. Never makes it smaller.
///
/// # Errors
/// There is no such pool, the caller is not root, or the kernel refused. That the kernel gave fewer pages
/// than asked for is not an error: see [`Reservation::is_complete`].
pub fn reserve(bytes: u64, page: PageKind, node: Option<u32>) -> Result<Reservation, ReserveError> {
    HugepagePools::system().reserve(bytes, page, node, Shrink::Keep)
}

impl HugepagePools {
    /// As [`reserve()`], on these pools, and smaller if `shrink` allows it. Zero bytes with [`Shrink::Allow`]
    /// empty the pool.
    ///
    /// # Errors
    /// As [`reserve()`].
    pub fn reserve(
        &self,
        bytes: u64,
        page: PageKind,
        node: Option<u32>,
        shrink: Shrink,
    ) -> Result<Reservation, ReserveError> {
        if page == PageKind::Ordinary {
            return Err(ReserveError::Ordinary);
        }
        let asked_pages = bytes.div_ceil(page.bytes() as u64);
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => ReserveError::NoPool { page, node, folder: self.folder(page, node) },
            _ => ReserveError::Os { pages: asked_pages, page, node, source },
        };
        let before = self.status(page, node).map_err(failed)?;
        let write = match shrink {
            Shrink::Keep => asked_pages > before.total,
            Shrink::Allow => asked_pages != before.total,
        };
        if !write {
            return Ok(Reservation { asked_pages, before, after: before });
        }
        let file = self.folder(page, node).join("nr_hugepages");
        write_number(&file, asked_pages).map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                ReserveError::NotPermitted { file }
            }
            _ => failed(source),
        })?;
        let after = self.status(page, node).map_err(failed)?;
        Ok(Reservation { asked_pages, before, after })
    }
}

impl Reservation {
    /// Whether the pool has all the pages that were asked for.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.after.total >= self.asked_pages
    }
}

impl fmt::Display for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked_pages, before, after } = self;
        let place = on(after.node);
        let bytes = Size(after.total_bytes());
        write!(
            f,
            "{} {}{place} ({bytes}), {} free; before: {}, {} free",
            after.total, after.page, after.free, before.total, before.free
        )?;
        if !self.is_complete() {
            write!(
                f,
                "; {asked_pages} were asked for, but the kernel found no more contiguous memory: try again \
                 after `echo 1 | sudo tee /proc/sys/vm/compact_memory`, or reserve them soon after boot"
            )?;
        }
        Ok(())
    }
}

fn write_number(file: &Path, number: u64) -> io::Result<()> {
    // Not created if it is missing, as `fs::write` would outside of sysfs.
    let mut file = std::fs::OpenOptions::new().write(true).truncate(true).open(file)?;
    io::Write::write_all(&mut file, number.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A folder laid out as sysfs is, with one pool.
    fn pools(page: PageKind, node: Option<u32>, total: u64) -> (tempfile::TempDir, HugepagePools, PathBuf) {
        let root = tempfile::tempdir().expect("a temporary folder");
        let pools = HugepagePools::at(root.path());
        let folder = pools.folder(page, node);
        fs::create_dir_all(&folder).expect("a folder");
        for (name, value) in [("nr_hugepages", total), ("free_hugepages", total), ("resv_hugepages", 1)] {
            fs::write(folder.join(name), format!("{value}\n")).expect("a file");
        }
        (root, pools, folder)
    }

    #[test]
    fn a_larger_pool_is_written_and_read_back() {
        let (_root, pools, folder) = pools(PageKind::Huge2M, None, 4);
        let made = pools.reserve((512 << 20) - 1, PageKind::Huge2M, None, Shrink::Keep).expect("writable");
        assert_eq!((made.asked_pages, made.before.total, made.after.total), (256, 4, 256));
        assert!(made.is_complete());
        assert_eq!(fs::read_to_string(folder.join("nr_hugepages")).expect("there"), "256");
        assert!(made.to_string().starts_with("256 huge pages of 2 MiB (512M), 4 free"), "{made}");
    }

    #[test]
    fn a_larger_pool_is_kept_unless_asked() {
        let (_root, pools, _) = pools(PageKind::Huge1G, Some(1), 8);
        let kept = pools.reserve(1 << 30, PageKind::Huge1G, Some(1), Shrink::Keep).expect("nothing to do");
        assert_eq!((kept.after.total, kept.after.reserved, kept.is_complete()), (8, 0, true));
        let less = pools.reserve(1 << 30, PageKind::Huge1G, Some(1), Shrink::Allow).expect("writable");
        assert_eq!(less.after.total, 1);
        let none = pools.reserve(0, PageKind::Huge1G, Some(1), Shrink::Allow).expect("writable");
        assert_eq!(none.after.total, 0);
    }

    #[test]
    fn what_is_not_there_is_said() {
        let (_root, pools, _) = pools(PageKind::Huge2M, None, 4);
        let no_node = pools.reserve(1, PageKind::Huge2M, Some(7), Shrink::Keep).expect_err("no node 7");
        assert!(no_node.to_string().contains("on NUMA node 7"), "{no_node}");
        let no_size = pools.reserve(1, PageKind::Huge1G, None, Shrink::Keep).expect_err("no such pages");
        assert!(matches!(no_size, ReserveError::NoPool { .. }));
        let ordinary = pools.reserve(1, PageKind::Ordinary, None, Shrink::Keep).expect_err("no such pool");
        assert!(matches!(ordinary, ReserveError::Ordinary));
        let all = pools.all();
        assert_eq!((all.len(), all[0].total, all[0].available()), (1, 4, 3));
    }

    #[test]
    fn a_counter_that_is_no_number_is_an_error() {
        let (_root, pools, folder) = pools(PageKind::Huge2M, None, 4);
        fs::write(folder.join("free_hugepages"), "many\n").expect("writable");
        let error = pools.status(PageKind::Huge2M, None).expect_err("not a number");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn fewer_pages_than_asked_for_are_reported() {
        let (_root, pools, _) = pools(PageKind::Huge2M, None, 4);
        let status = pools.status(PageKind::Huge2M, None).expect("there");
        let partly = Reservation { asked_pages: 256, before: status, after: status };
        assert!(!partly.is_complete());
        assert!(partly.to_string().contains("256 were asked for"), "{partly}");
    }
}
