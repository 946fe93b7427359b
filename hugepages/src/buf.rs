#![expect(unsafe_code)]
//! [`DmaBuf`]: memory that its holder and no device touches.
//
// UNSAFETY: makes slices of mapped memory, and takes itself apart when it is dropped; the proof of the
// former is the ownership that `DmaBuf` stands for.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use doorbell_spec::Iova;

use crate::SpaceId;
use crate::mapping::HostAddress;
use crate::pool::Home;

/// The largest buffer, in bytes: just below 2 GiB.
pub const MAX_BUFFER_BYTES: usize = (u32::MAX / 2) as usize;

/// A buffer in memory that devices can reach. Goes back to its pool when it is dropped, on any thread.
///
/// # The contract
/// Whoever holds a `DmaBuf` owns its memory: **no live command names it**, so no device reads or writes it,
/// and Rust references into it are sound. A driver that gives a command to a device takes the `DmaBuf` from
/// its caller, makes no reference into it, and keeps it (not only its address) until the device is known
/// to be done with it: on completion, never merely on a timeout or an abort. If it cannot find out, it
/// keeps the buffer for ever, at worst with [`std::mem::forget`], which is safe and leaks the memory.
///
/// The memory is always initialised: zero when its pool is made, and afterwards whatever was written last.
/// Memory that both sides touch at the same time (a ring) is held as a `DmaBuf` and used through
/// [`DmaBuf::as_ptr`] alone.
pub struct DmaBuf {
    /// Knows everything else about the block. Taken out when the buffer is dropped.
    home: ManuallyDrop<Arc<Home>>,
    address: HostAddress,
}

const _: () = assert!(size_of::<DmaBuf>() == 16, "a buffer travels through queues: it is kept small");

impl DmaBuf {
    /// The block `index` of `home`, which was just taken from the home's queue.
    #[inline]
    pub(crate) fn new(home: &Arc<Home>, index: u32) -> Self {
        Self { address: home.block(index), home: ManuallyDrop::new(Arc::clone(home)) }
    }

    /// Its length in bytes; never 0.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.home.block_bytes() as usize
    }

    /// Its length in blocks of 2^`block_shift` bytes, or `None` if it is not made of whole ones.
    #[inline]
    #[must_use]
    pub fn blocks(&self, block_shift: u32) -> Option<u64> {
        // The mask is what the processor does by itself: for a shift of 64 and more the answer is `None`.
        let blocks = u64::from(self.home.block_bytes()) >> (block_shift & 63);
        (block_shift <= self.home.grain_shift()).then_some(blocks)
    }

    /// Never: there are no buffers of 0 bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// What devices call its first byte, a multiple of 4. All of it is contiguous for them.
    #[inline]
    #[must_use]
    pub fn iova(&self) -> Iova {
        self.home.iova(self.address)
    }

    /// The same as [`iova`](DmaBuf::iova) for a buffer of this space whose pool is contiguous for devices, as
    /// all are behind an IOMMU; `None` for all others. For those who ask for every request.
    #[inline]
    #[must_use]
    pub fn iova_in(&self, space: SpaceId) -> Option<Iova> {
        self.home.iova_in(space, self.address)
    }

    /// The space it belongs to: the address means something only to devices attached there.
    #[inline]
    #[must_use]
    pub fn space(&self) -> SpaceId {
        self.home.space()
    }

    /// Where it starts in the process. Valid for reads and writes of [`DmaBuf::len`] bytes for as long as
    /// the buffer is not dropped, whatever slices were made of it before.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.address.0
    }

    /// Its contents.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY:
        // - the block is `len` bytes of one mapping, which the home's lease keeps alive;
        // - mapped memory is always initialised;
        // - nobody writes it: other threads have no `&mut self`, other buffers have other blocks (see
        //   `pool`), and no live command names it (the contract above).
        unsafe { std::slice::from_raw_parts(self.address.0.as_ptr(), self.len()) }
    }

    /// Its contents, to be changed.
    #[inline]
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY:
        // - as for `as_slice`; moreover `&mut self` says that no other reference into the block exists.
        unsafe { std::slice::from_raw_parts_mut(self.address.0.as_ptr(), self.len()) }
    }
}

impl Drop for DmaBuf {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the home is there until the buffer is dropped, which happens once, and is not used again.
        let home = unsafe { ManuallyDrop::take(&mut self.home) };
        give_back(home, self.address);
    }
}

/// Takes the buffer's parts by value: a driver moves buffers all the time and drops them seldom, and a drop
/// that needed a buffer's own address would keep it out of registers.
#[inline(never)]
fn give_back(home: Arc<Home>, block: HostAddress) {
    home.give_back(block);
}

impl Deref for DmaBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl DerefMut for DmaBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

impl fmt::Debug for DmaBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaBuf")
            .field("iova", &self.iova())
            .field("bytes", &self.len())
            .finish_non_exhaustive()
    }
}
