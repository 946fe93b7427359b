#![expect(unsafe_code)]
//! Pieces of memory from the system: a `memfd`, mapped shared, every page present before it is used.
//!
//! Invariants:
//!
//! * A [`Mapping`] has no `Drop`: memory that is merely dropped stays mapped for ever. It goes back to the
//!   system only through [`Mapping::release`], which is called where every device is known to have let go.
//!   A bug or a panic on the way there leaks memory instead of freeing what a device may still write.
//! * No page can be missing: `fallocate` takes them all, so that a lack of huge pages is an error here and
//!   not a SIGBUS at the first touch. The file is sealed, so that a peer it is shared with cannot cut it.
//! * No name and no mount: when the process is gone, however it went, so are the pages.
//
// UNSAFETY: system calls that create, advise and end mappings have no safe form.

use std::ffi::c_void;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mlock, mmap, munmap};

use crate::PageKind;

/// An address in this process. A mere number: reading or writing there is the business of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct HostAddress(pub(crate) NonNull<u8>);

// SAFETY:
// - nothing in this type reads or writes through the pointer; it may be known to any thread.
unsafe impl Send for HostAddress {}
// SAFETY: as above.
unsafe impl Sync for HostAddress {}

impl HostAddress {
    /// The address `bytes` further on.
    ///
    /// The callers stay within one mapping; should one not, the result may not be used, but is no wild null.
    #[inline]
    pub(crate) fn offset(self, bytes: usize) -> Self {
        let moved = self.0.as_ptr().wrapping_add(bytes);
        Self(NonNull::new(moved).expect("an offset within a mapping does not wrap to null"))
    }
}

/// A piece of memory, mapped read-write.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: HostAddress,
    bytes: usize,
    kind: PageKind,
    file: OwnedFd,
}

/// Why the system gave no memory.
#[derive(Debug)]
pub(crate) enum MappingError {
    /// There are not enough free pages of this kind, or the system has no such pages.
    NoPages(io::Error),
    /// Anything else.
    Os { action: &'static str, source: io::Error },
}

impl Mapping {
    /// Takes `bytes` (a multiple of the page size, not 0) of zeroed memory from the system.
    ///
    /// With `node`, all pages lie on that NUMA node. Forked children do not inherit the mapping.
    pub(crate) fn create(kind: PageKind, bytes: usize, node: Option<u32>) -> Result<Self, MappingError> {
        debug_assert!(bytes.is_multiple_of(kind.bytes()));
        if kind == PageKind::Ordinary && available_bytes().is_some_and(|available| bytes as u64 > available) {
            return Err(no_pages(Errno::ENOMEM));
        }
        let length = NonZeroUsize::new(bytes).ok_or(os("mapping memory", Errno::EINVAL))?;
        let file_bytes = i64::try_from(bytes).map_err(|_| os("sizing memory", Errno::EFBIG))?;
        let file = memfd_create(c"doorbell", memfd_flags(kind)).map_err(|errno| match errno {
            // The kernel has no huge pages (of that size).
            Errno::ENODEV | Errno::EINVAL | Errno::ENOSYS if kind != PageKind::Ordinary => no_pages(errno),
            _ => os("memfd_create", errno),
        })?;
        nix::unistd::ftruncate(&file, file_bytes).map_err(|errno| os("ftruncate of the memfd", errno))?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).map_err(|errno| os("sealing the memfd", errno))?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY:
        // - no address is asked for, so that no existing mapping is replaced;
        // - the file is our own and cannot shrink (sealed above).
        let mapped = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, &file, 0) };
        // For huge pages, mmap reserves: this is where a lack of them shows first.
        let address = mapped.map_err(|errno| lack_or_os("mmap", errno))?;
        let mapping = Self { address: HostAddress(address.cast()), bytes, kind, file };
        match mapping.make_present(node, file_bytes) {
            Ok(()) => Ok(mapping),
            Err(error) => {
                // Nobody has seen it yet, so it can go back at once.
                mapping.release();
                Err(error)
            }
        }
    }

    fn make_present(&self, node: Option<u32>, file_bytes: i64) -> Result<(), MappingError> {
        if let Some(node) = node {
            self.bind_to_node(node)?;
        }
        // Takes every page, on the node that was just chosen: mmap's reservation is for the whole machine
        // and says nothing about one node or a control group's limit.
        fallocate(&self.file, FallocateFlags::empty(), 0, file_bytes)
            .map_err(|errno| lack_or_os("fallocate", errno))?;
        self.advise(MmapAdvise::MADV_DONTFORK).map_err(|errno| os("madvise(MADV_DONTFORK)", errno))?;
        match self.advise(MmapAdvise::MADV_POPULATE_WRITE) {
            // Kernels before 5.14 do not know it: the pages are there, and the first touches fault them in.
            Ok(()) | Err(Errno::EINVAL) => Ok(()),
            Err(errno) => Err(lack_or_os("madvise(MADV_POPULATE_WRITE)", errno)),
        }
    }

    /// Keeps the pages where they are, for devices that see physical addresses.
    pub(crate) fn lock(&self) -> Result<(), MappingError> {
        // SAFETY:
        // - the range is exactly this mapping; locking changes nothing about its contents.
        let locked = unsafe { mlock(self.raw(), self.bytes) };
        locked.map_err(|errno| os("mlock", errno))
    }

    /// Gives the memory back to the system.
    ///
    /// The caller knows that no reference, no buffer and no device refers to it any more. Only
    /// `Region::retire` and a failed `create` call this.
    pub(crate) fn release(self) {
        // SAFETY:
        // - the range is exactly this mapping, which is consumed here: it is unmapped once;
        // - nothing refers into it (see above).
        let unmapped = unsafe { munmap(self.raw(), self.bytes) };
        if let Err(errno) = unmapped {
            tracing::warn!(bytes = self.bytes, %errno, "unmapping memory failed; it stays in use");
        }
    }

    pub(crate) fn address(&self) -> HostAddress {
        self.address
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn kind(&self) -> PageKind {
        self.kind
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn advise(&self, advice: MmapAdvise) -> nix::Result<()> {
        // SAFETY:
        // - the range is exactly this mapping;
        // - neither advice that is given (DONTFORK, POPULATE_WRITE) discards contents.
        unsafe { madvise(self.raw(), self.bytes, advice) }
    }

    fn bind_to_node(&self, node: u32) -> Result<(), MappingError> {
        const BITS: usize = u64::BITS as usize;
        let mut mask = [0_u64; NODES_MAX / BITS];
        let node = usize::try_from(node).unwrap_or(NODES_MAX);
        let word = mask.get_mut(node / BITS).ok_or(os(MBIND, Errno::EINVAL))?;
        *word = 1 << (node % BITS);
        // The kernel looks at one bit less than it is told (mbind(2)).
        let mask_bits = NODES_MAX + 1;
        // SAFETY:
        // - the range is exactly this mapping, and no page is there yet, so that none is moved;
        // - the mask is readable for the number of bits that is given.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.address.0.as_ptr(),
                self.bytes,
                libc::MPOL_BIND,
                mask.as_ptr(),
                mask_bits,
                0,
            )
        };
        match Errno::result(answer) {
            Ok(_) => Ok(()),
            // A kernel without NUMA has one node.
            Err(Errno::ENOSYS) if node == 0 => Ok(()),
            Err(errno) => Err(os(MBIND, errno)),
        }
    }

    fn raw(&self) -> NonNull<c_void> {
        self.address.0.cast()
    }
}

/// How much ordinary memory the system can give without pushing other programs out, if it says so.
///
/// Taking more would not fail but call the kernel's out-of-memory killer.
fn available_bytes() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

fn memfd_flags(kind: PageKind) -> MFdFlags {
    let huge = match kind {
        PageKind::Ordinary => MFdFlags::empty(),
        PageKind::Huge2M => MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_2MB,
        PageKind::Huge1G => MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_1GB,
    };
    MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING | huge
}

fn os(action: &'static str, errno: Errno) -> MappingError {
    MappingError::Os { action, source: errno.into() }
}

fn no_pages(errno: Errno) -> MappingError {
    MappingError::NoPages(errno.into())
}

fn lack_or_os(action: &'static str, errno: Errno) -> MappingError {
    match errno {
        Errno::ENOMEM | Errno::ENOSPC => no_pages(errno),
        _ => os(action, errno),
    }
}

const MBIND: &str = "binding memory to the NUMA node (mbind)";

/// More than any kernel is built for (`CONFIG_NODES_SHIFT` is at most 10).
const NODES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn ordinary(bytes: usize, node: Option<u32>) -> Result<Mapping, MappingError> {
        Mapping::create(PageKind::Ordinary, bytes, node)
    }

    #[test]
    fn memory_has_a_file_that_cannot_be_cut() {
        let mapping = ordinary(1 << 20, None).expect("memory");
        let cut = nix::unistd::ftruncate(mapping.file(), 4096);
        assert_eq!(cut, Err(Errno::EPERM));
        assert_eq!((mapping.bytes(), mapping.kind()), (1 << 20, PageKind::Ordinary));
        mapping.release();
    }

    #[test]
    fn a_node_that_does_not_exist_is_an_error() {
        for node in [1023, 1024, u32::MAX] {
            let refused = ordinary(4096, Some(node)).expect_err("no such node");
            assert!(matches!(refused, MappingError::Os { action: MBIND, .. }), "{refused:?}");
        }
        ordinary(4096, Some(0)).expect("every machine has node 0").release();
    }

    #[test]
    fn more_memory_than_there_is_is_an_error_and_not_the_end_of_the_process() {
        let available = usize::try_from(available_bytes().expect("Linux says so")).expect("64 bits");
        let page_bytes = PageKind::Ordinary.bytes();
        let too_much = (available * 2).next_multiple_of(page_bytes);
        let refused = ordinary(too_much, None).expect_err("twice of what is there");
        assert!(matches!(refused, MappingError::NoPages(_)), "{refused:?}");
    }

    #[test]
    fn released_memory_is_gone_from_the_process() {
        let mapping = ordinary(4 << 20, None).expect("memory");
        let line = format!("{:x}-", mapping.address().0.addr());
        let maps = || std::fs::read_to_string("/proc/self/maps").expect("procfs");
        let entry = maps().lines().find(|entry| entry.starts_with(&line)).map(str::to_owned);
        assert!(entry.expect("mapped").contains("memfd:doorbell"));
        mapping.release();
        assert!(!maps().lines().any(|entry| entry.starts_with(&line) && entry.contains("memfd:doorbell")));
    }
}
