#![expect(unsafe_code)]
//! The system calls of VFIO that `vfio-ioctls` does not make, or whose errors it drops.
//!
//! Each function is one call; what it means is the caller's business.
//
// UNSAFETY: makes system calls that read and write structures through pointers.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, RawFd};
use std::ptr::NonNull;

use vfio_bindings::bindings::vfio as sys;
use vfio_ioctls::VfioContainer;
use zerocopy::IntoBytes;

/// What the container's IOMMU can do, as the kernel wrote it: a `vfio_iommu_type1_info` and its chain of
/// capabilities.
pub(super) fn iommu_info(container: &VfioContainer) -> io::Result<Vec<u8>> {
    let mut bytes = size_of::<sys::vfio_iommu_type1_info>();
    // The first call tells the length, the second one fits unless the kernel changes its mind.
    for _ in 0..3 {
        let mut words = vec![0_u64; bytes.div_ceil(8)];
        let room = u32::try_from(words.len() * 8).unwrap_or(u32::MAX);
        write_dword(words.as_mut_bytes(), room);
        // SAFETY:
        // - the pointer leads to `room` writable bytes, aligned to 8;
        // - the kernel writes no more than the length that stands in the first dword.
        unsafe { call(container.as_raw_fd(), IOMMU_GET_INFO, words.as_mut_ptr().cast()) }?;
        bytes = read_dword(words.as_bytes()) as usize;
        if bytes <= words.len() * 8 {
            return Ok(words.as_bytes().to_vec());
        }
        if bytes > INFO_BYTES_MAX {
            break;
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "the description does not end"))
}

/// Lets the container's devices reach `bytes` bytes of memory at `address`, under `iova`.
///
/// # Safety
/// The memory is mapped, readable and writable, and stays so until [`unmap_dma`] of the range has returned
/// its whole length, or the container is gone.
pub(super) unsafe fn map_dma(
    container: &VfioContainer,
    iova: u64,
    address: NonNull<u8>,
    bytes: u64,
) -> io::Result<()> {
    let mut argument = sys::vfio_iommu_type1_dma_map {
        argsz: size_of::<sys::vfio_iommu_type1_dma_map>() as u32,
        flags: sys::VFIO_DMA_MAP_FLAG_READ | sys::VFIO_DMA_MAP_FLAG_WRITE,
        vaddr: address.as_ptr().expose_provenance() as u64,
        iova,
        size: bytes,
    };
    // SAFETY:
    // - the pointer leads to a structure of the kind that the call expects;
    // - the memory that it names is the caller's promise.
    unsafe { call(container.as_raw_fd(), IOMMU_MAP_DMA, (&raw mut argument).cast()) }
}

/// Takes mappings back that lie within the range, and answers how many bytes they had.
pub(super) fn unmap_dma(container: &VfioContainer, iova: u64, bytes: u64) -> io::Result<u64> {
    let mut argument = sys::vfio_iommu_type1_dma_unmap {
        argsz: size_of::<sys::vfio_iommu_type1_dma_unmap>() as u32,
        iova,
        size: bytes,
        ..Default::default()
    };
    // SAFETY:
    // - the pointer leads to a structure of the kind that the call expects, which it may write to;
    // - the call takes rights from devices only: no memory of this process changes.
    unsafe { call(container.as_raw_fd(), IOMMU_UNMAP_DMA, (&raw mut argument).cast()) }?;
    Ok(argument.size)
}

/// Resets the device's function. Returns when that is done.
pub(super) fn reset(device: &File) -> io::Result<()> {
    // SAFETY: the call has no argument.
    unsafe { call(device.as_raw_fd(), DEVICE_RESET, std::ptr::null_mut()) }
}

/// Connects the interrupts of kind `index` from number `first` on to `events`, or to nothing.
pub(super) fn set_irqs(
    device: &File,
    index: u32,
    first: u32,
    events: &[Option<BorrowedFd<'_>>],
) -> io::Result<()> {
    let count = u32::try_from(events.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let flags = sys::VFIO_IRQ_SET_DATA_EVENTFD | sys::VFIO_IRQ_SET_ACTION_TRIGGER;
    let mut words = vec![0, flags, index, first, count];
    // -1 stands for no event.
    words.extend(events.iter().map(|event| event.map_or(-1, |event| event.as_raw_fd()).cast_unsigned()));
    send_irqs(device, words)
}

/// Disconnects all interrupts of kind `index` and turns them off at the device.
pub(super) fn disable_irqs(device: &File, index: u32) -> io::Result<()> {
    let flags = sys::VFIO_IRQ_SET_DATA_NONE | sys::VFIO_IRQ_SET_ACTION_TRIGGER;
    send_irqs(device, vec![0, flags, index, 0, 0])
}

/// A new event counter, at zero, that is read without waiting.
pub(super) fn event() -> io::Result<File> {
    // SAFETY: the call has no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, and nobody else knows it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Sends a `vfio_irq_set` whose first dword, its length, is filled in here.
fn send_irqs(device: &File, mut words: Vec<u32>) -> io::Result<()> {
    let bytes = u32::try_from(words.len() * 4).unwrap_or(u32::MAX);
    write_dword(words.as_mut_bytes(), bytes);
    // SAFETY:
    // - the pointer leads to as many bytes as their first dword says, aligned to 4;
    // - the kernel only reads them.
    unsafe { call(device.as_raw_fd(), DEVICE_SET_IRQS, words.as_mut_ptr().cast()) }
}

/// One call to the kernel.
///
/// # Safety
/// `argument` is what the call `number` expects: for these, null or a pointer to a structure that starts
/// with its own length.
unsafe fn call(fd: RawFd, number: u32, argument: *mut libc::c_void) -> io::Result<()> {
    // SAFETY: the caller's promise.
    let answer = unsafe { libc::ioctl(fd, number as _, argument) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn write_dword(bytes: &mut [u8], value: u32) {
    if let Some(first) = bytes.first_chunk_mut() {
        *first = value.to_ne_bytes();
    }
}

fn read_dword(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |first| u32::from_ne_bytes(*first))
}

/// `_IO(VFIO_TYPE, VFIO_BASE + nr)`: VFIO's calls carry neither direction nor size.
const fn number(nr: u32) -> u32 {
    (sys::VFIO_TYPE as u32) << 8 | (sys::VFIO_BASE + nr)
}

const DEVICE_SET_IRQS: u32 = number(10);
const DEVICE_RESET: u32 = number(11);
const IOMMU_GET_INFO: u32 = number(12);
const IOMMU_MAP_DMA: u32 = number(13);
const IOMMU_UNMAP_DMA: u32 = number(14);
/// More than thousands of address ranges need.
const INFO_BYTES_MAX: usize = 1 << 16;

const _: () = assert!(number(13) == 0x3B71 && size_of::<sys::vfio_irq_set>() == 5 * size_of::<u32>());

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn calls_on_a_file_that_is_no_device_are_errors() {
        let file = File::open("/dev/null").expect("always there");
        assert!(reset(&file).is_err());
        assert!(disable_irqs(&file, 2).is_err());
        assert!(set_irqs(&file, 2, 0, &[None, None]).is_err());
    }

    #[test]
    fn an_event_that_did_not_happen_is_not_waited_for() {
        let mut event = event().expect("descriptor");
        let error = event.read(&mut [0; 8]).expect_err("nothing happened");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
