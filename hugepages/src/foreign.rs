#![expect(unsafe_code)]
//! Memory of somebody else's that devices may touch, such as a database's own buffer pool.
//
// UNSAFETY: declares the unsafe entry whose contract is the life of that memory; calls nothing unsafe.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use doorbell_spec::{Addressing, Iova};

use crate::mapping::HostAddress;
use crate::region::{Memory, Sharing};
use crate::space::{DmaSpace, Shared};
use crate::state::RegionId;
use crate::{DmaError, PageKind, SpaceId};

/// Memory registered with [`DmaSpace::register`]. Dropping it takes the memory back from all devices.
///
/// A failure to do so is then only logged. Use [`ForeignRegion::unregister`] before the memory is freed.
#[must_use = "the memory is taken back from the devices when this is dropped"]
pub struct ForeignRegion {
    shared: Arc<Shared>,
    /// `None` once unregistered.
    region: Option<RegionId>,
    address: HostAddress,
    bytes: usize,
    iova: Iova,
}

impl DmaSpace {
    /// Lets the attached devices, now and later, reach `bytes` bytes of memory at `address`.
    ///
    /// Both are multiples of the system's page size, so that a device reaches nothing beside them. Does not
    /// keep the memory alive, does not touch its contents, and does not keep it from being shared with a
    /// forked child (use `madvise(MADV_DONTFORK)`).
    ///
    /// # Errors
    /// Memory that is empty or not whole pages, a space of physical addresses, no room in what the attached
    /// devices reach, or a mapper that refused. After [`DmaError::StillMapped`] a device may reach the memory
    /// although this failed: it may then never be freed.
    ///
    /// # Safety
    /// - the range is mapped, readable and writable memory of this process, and stays so until
    ///   [`ForeignRegion::unregister`] has returned `Ok`, or the region was dropped and no unmapping failed;
    /// - while a command that names a part of it is live, that part is not written by anybody else, nor read
    ///   if the command writes it, nor covered by a Rust reference that says otherwise.
    pub unsafe fn register(&self, address: NonNull<u8>, bytes: usize) -> Result<ForeignRegion, DmaError> {
        if bytes == 0 {
            return Err(DmaError::Empty { what: "a registration" });
        }
        if self.shared.config.addressing == Addressing::Physical {
            return Err(DmaError::PhysicalForeign);
        }
        let page_bytes = PageKind::Ordinary.bytes();
        let start = address.addr().get();
        let whole = start.is_multiple_of(page_bytes) && bytes.is_multiple_of(page_bytes);
        if !whole || start.checked_add(bytes).is_none() {
            return Err(DmaError::Unaligned { address: start, bytes, page_bytes: page_bytes as u64 });
        }
        let memory = Memory::Foreign { address: HostAddress(address), bytes };
        let align = alignment(start, bytes);
        let grant = self.shared.lock().admit(memory, align, None, (Sharing::Single, bytes))?;
        Ok(ForeignRegion {
            shared: Arc::clone(&self.shared),
            region: Some(grant.region),
            address: grant.address,
            bytes,
            iova: grant.place.at(0),
        })
    }
}

impl ForeignRegion {
    /// What devices call the memory at `start`, or `None` if the `bytes` bytes there are not all registered
    /// here. Any part is contiguous for devices.
    #[must_use]
    pub fn iova_of(&self, start: NonNull<u8>, bytes: usize) -> Option<Iova> {
        let offset = start.addr().get().checked_sub(self.address.0.addr().get())?;
        let end = offset.checked_add(bytes)?;
        (end <= self.bytes && bytes > 0).then(|| self.iova.offset(offset as u64))
    }

    /// The length of the memory in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The space that the memory is registered in.
    #[must_use]
    pub fn space(&self) -> SpaceId {
        self.shared.id
    }

    /// Takes the memory back from all devices.
    ///
    /// # Errors
    /// [`DmaError::StillMapped`]: a device may still reach the memory, which may then never be freed.
    pub fn unregister(mut self) -> Result<(), DmaError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), DmaError> {
        match self.region.take() {
            Some(region) => self.shared.lock().give_back(region, 0..self.bytes),
            None => Ok(()),
        }
    }
}

impl Drop for ForeignRegion {
    fn drop(&mut self) {
        // What could not be unmapped has been logged; more cannot be said here, hence `unregister`.
        let _ = self.end();
    }
}

/// The largest page that an IOMMU could map this memory with.
fn alignment(start: usize, bytes: usize) -> usize {
    [PageKind::Huge1G, PageKind::Huge2M, PageKind::Ordinary]
        .map(PageKind::bytes)
        .into_iter()
        .find(|&page_bytes| start.is_multiple_of(page_bytes) && bytes >= page_bytes)
        .unwrap_or(PageKind::Ordinary.bytes())
}

impl fmt::Debug for ForeignRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForeignRegion").field("iova", &self.iova).field("bytes", &self.bytes).finish()
    }
}
