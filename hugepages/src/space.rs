//! [`DmaSpace`]: the memory that a set of devices shares, at the same addresses for all of them.
//!
//! There is one lock, around [`State`]. Memory is taken from the system outside of it, since that can take
//! seconds; mapping happens inside, so that an attachment and an allocation at the same time both see each
//! other.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use doorbell_spec::{Addressing, Iova, Mapper};

use crate::carve::GRAIN_BYTES;
use crate::lease::{Contents, Lease};
use crate::mapping::{Mapping, MappingError};
use crate::pagemap::Pagemap;
use crate::region::{Memory, Place, Sharing};
use crate::state::{State, check_addressing, give_up};
use crate::{DmaBuf, DmaError, DmaPool, DmaStats, HugePolicy, HugepagePools, PageKind};

/// Memory that devices may touch. Cheap to clone; all clones are the same space.
///
/// A space belongs to no device: every mapper that is attached sees all of the space's memory at the same
/// addresses, whether it was attached before or after the memory was allocated. The space, its pools and its
/// buffers keep each other alive; they may be dropped in any order and on any thread.
#[derive(Clone)]
pub struct DmaSpace {
    pub(crate) shared: Arc<Shared>,
}

/// What a space's memory is made of. Start from `Default`: preferably huge pages of 2 MiB, on any NUMA
/// node, with translated addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DmaSpaceConfig {
    /// Whether huge pages are used.
    pub policy: HugePolicy,
    /// The pages preferred. [`PageKind::Ordinary`] is as good as [`HugePolicy::Never`].
    pub page: PageKind,
    /// The NUMA node that all memory is to lie on, strictly; `None` leaves it to the system.
    pub numa_node: Option<u32>,
    /// What devices' addresses are. [`Addressing::Physical`] is for VFIO's no-IOMMU mode alone: it needs
    /// root and huge pages, and no buffer can be larger than one of them.
    pub addressing: Addressing,
}

/// Which space a buffer belongs to. Never used twice within a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpaceId(u64);

impl SpaceId {
    /// No space has this one.
    pub(crate) const NOWHERE: Self = Self(u64::MAX);
}

/// The right of one mapper's devices to reach a space's memory; it ends when this is dropped.
///
/// Dropping reports a failure to unmap only to the log. Where it matters whether the device can still reach
/// the memory, use [`Attachment::detach`].
#[must_use = "the device loses the memory when this is dropped"]
pub struct Attachment {
    shared: Arc<Shared>,
    /// `None` once detached.
    mapper: Option<Arc<dyn Mapper>>,
}

/// What the end of an [`Attachment`] meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detached {
    /// The mapper holds none of the space's memory any more.
    Unmapped,
    /// Another attachment of the same mapper remains, and so do the mappings.
    StillShared,
}

pub(crate) struct Shared {
    pub(crate) id: SpaceId,
    pub(crate) config: DmaSpaceConfig,
    /// The only lock of this crate. Mappers are called while it is held.
    state: Mutex<State>,
}

impl DmaSpace {
    /// An empty space. Takes no memory yet.
    #[must_use]
    pub fn new(config: DmaSpaceConfig) -> Self {
        static SPACES: AtomicU64 = AtomicU64::new(1);
        let id = SpaceId(SPACES.fetch_add(1, Ordering::Relaxed));
        Self { shared: Arc::new(Shared { id, config, state: Mutex::default() }) }
    }

    /// Which space this is. The driver compares it with [`DmaBuf::space`], since a buffer of another space
    /// has the address of somebody else's memory.
    #[must_use]
    pub fn id(&self) -> SpaceId {
        self.shared.id
    }

    /// The configuration that it was made with.
    #[must_use]
    pub fn config(&self) -> &DmaSpaceConfig {
        &self.shared.config
    }

    /// Maps all existing and all future memory of the space into `mapper`.
    ///
    /// The same `Arc` attached again is counted and not mapped twice. The mapper is called with the space's
    /// lock held: it must not call into the space.
    ///
    /// # Errors
    /// The mapper cannot reach the memory that exists, or leaves no room for more; its addresses are of
    /// another sort than the space's; or mapping failed, in which case what was mapped has been undone.
    pub fn attach(&self, mapper: Arc<dyn Mapper>) -> Result<Attachment, DmaError> {
        let config = &self.shared.config;
        check_addressing(mapper.limits().addressing, config.addressing)?;
        self.shared.lock().attach(Arc::clone(&mapper), config.first_page())?;
        Ok(Attachment { shared: Arc::clone(&self.shared), mapper: Some(mapper) })
    }

    /// A pool of `count` blocks of `block_bytes` each, a power of two from 4 on or a multiple of 64.
    ///
    /// The blocks are zeroed. Each is contiguous for devices; blocks of 4096 bytes and more start on a
    /// 4 KiB boundary, smaller ones of a power of two on a multiple of their size. Memory and queue of the
    /// pool are complete when this returns; taking and giving back makes no system call.
    ///
    /// # Errors
    /// A size of 0, a size or a number beyond the limits, no memory of the kind required, no room in what
    /// the attached devices reach, or a mapper that refused. Nothing is left behind then.
    pub fn pool(&self, block_bytes: usize, count: usize) -> Result<DmaPool, DmaError> {
        DmaPool::create(&self.shared, block_bytes, count)
    }

    /// One buffer of `bytes`, for rings and lists: zeroed, on a 4 KiB boundary, contiguous for devices.
    ///
    /// Small buffers share a region of memory, large ones have their own. At most
    /// [`crate::MAX_BUFFER_BYTES`].
    ///
    /// # Errors
    /// As [`DmaSpace::pool`].
    pub fn allocate(&self, bytes: usize) -> Result<DmaBuf, DmaError> {
        DmaPool::single(&self.shared, bytes)
    }

    /// What the space holds now.
    #[must_use]
    pub fn stats(&self) -> DmaStats {
        self.shared.lock().stats()
    }
}

impl DmaSpaceConfig {
    /// With another policy.
    #[must_use]
    pub fn with_policy(mut self, policy: HugePolicy) -> Self {
        self.policy = policy;
        self
    }

    /// With other pages preferred.
    #[must_use]
    pub fn with_page(mut self, page: PageKind) -> Self {
        self.page = page;
        self
    }

    /// With all memory on this NUMA node.
    #[must_use]
    pub fn with_numa_node(mut self, node: Option<u32>) -> Self {
        self.numa_node = node;
        self
    }

    /// With other addresses.
    #[must_use]
    pub fn with_addressing(mut self, addressing: Addressing) -> Self {
        self.addressing = addressing;
        self
    }

    /// Refuses what cannot work together.
    pub(crate) fn check(&self) -> Result<(), DmaError> {
        match (self.addressing, self.first_page()) {
            (Addressing::Physical, PageKind::Ordinary) => Err(DmaError::PhysicalNeedsHugePages),
            _ => Ok(()),
        }
    }

    /// The pages that are tried first.
    pub(crate) fn first_page(&self) -> PageKind {
        match self.policy {
            HugePolicy::Never => PageKind::Ordinary,
            HugePolicy::Require | HugePolicy::Prefer => self.page,
        }
    }

    /// The pages that are tried when there are none of `page`.
    fn next_page(&self, page: PageKind) -> Option<PageKind> {
        match (self.policy, self.addressing) {
            (HugePolicy::Prefer, Addressing::Translated) => page.smaller(),
            _ => None,
        }
    }
}

impl Default for DmaSpaceConfig {
    fn default() -> Self {
        Self {
            policy: HugePolicy::Prefer,
            page: PageKind::Huge2M,
            numa_node: None,
            addressing: Addressing::Translated,
        }
    }
}

impl Attachment {
    /// Takes the memory back from the device, and says whether that worked.
    ///
    /// # Errors
    /// [`DmaError::StillMapped`]: the device may still reach some memory. The space never frees that
    /// memory; what a live command of the device names must not be handed out again either, which is
    /// the caller's part.
    pub fn detach(mut self) -> Result<Detached, DmaError> {
        match self.mapper.take() {
            Some(mapper) => self.shared.lock().detach(&mapper),
            None => Ok(Detached::Unmapped),
        }
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if let Some(mapper) = self.mapper.take() {
            // What could not be unmapped has been logged, and is never freed.
            let _ = self.shared.lock().detach(&mapper);
        }
    }
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock (of a mapper, or a bug of ours) leaves regions leaked and never freed, so
        // that the state may still be used: the alternative is a panic in somebody's drop.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A range of at least `bytes`, contiguous for devices unless addresses are physical and it is larger
    /// than a page.
    pub(crate) fn lease(self: &Arc<Self>, bytes: usize) -> Result<Lease, DmaError> {
        let rounded =
            bytes.checked_next_multiple_of(GRAIN_BYTES).filter(|&rounded| rounded <= MAX_REGION_BYTES);
        let bytes =
            rounded.ok_or(DmaError::TooLarge { what: "memory", bytes, max_bytes: MAX_REGION_BYTES })?;
        if let Some(grant) = self.lock().carve_shared(bytes) {
            return Ok(Lease::new(self, grant, Contents::Left));
        }
        let (mapping, sharing) = self.obtain(bytes)?;
        let align = mapping.kind().bytes();
        let memory = Memory::Own(mapping);
        let physical = match self.config.addressing {
            Addressing::Translated => None,
            Addressing::Physical => match physical_pages(&memory, align) {
                Ok(place) => Some(place),
                Err(error) => {
                    give_up(memory);
                    return Err(error);
                }
            },
        };
        let grant = self.lock().admit(memory, align, physical, (sharing, bytes))?;
        Ok(Lease::new(self, grant, Contents::Zero))
    }

    /// Memory from the system for an allocation of `bytes`, of the best kind that the policy allows.
    fn obtain(&self, bytes: usize) -> Result<(Mapping, Sharing), DmaError> {
        let config = &self.config;
        let node = config.numa_node;
        let mut page = config.first_page();
        let mut preferred_error = None;
        loop {
            let piece_bytes = page.piece_bytes();
            let (region_bytes, sharing) = if bytes <= piece_bytes {
                (piece_bytes, Sharing::Shared)
            } else {
                (bytes.next_multiple_of(page.bytes()), Sharing::Single)
            };
            let error = match Mapping::create(page, region_bytes, node) {
                Ok(mapping) => {
                    preferred_error.iter().for_each(|error| self.note_fall_back(page, error));
                    return Ok((mapping, sharing));
                }
                Err(error) => explain(error, page, region_bytes, node),
            };
            page = match (config.next_page(page), &error) {
                (Some(smaller), DmaError::NoHugePages { .. }) => smaller,
                _ => return Err(error),
            };
            preferred_error.get_or_insert(error);
        }
    }

    fn note_fall_back(&self, used: PageKind, error: &DmaError) {
        let reason = format!("{used} are used: {error}");
        let mut state = self.lock();
        if state.fell_back.is_none() {
            tracing::warn!("{reason}");
            state.fell_back = Some(reason);
        }
    }
}

fn physical_pages(memory: &Memory, page_bytes: usize) -> Result<Place, DmaError> {
    if let Memory::Own(mapping) = memory {
        mapping.lock().map_err(|error| explain(error, mapping.kind(), mapping.bytes(), None))?;
    }
    let pagemap = Pagemap::open()?;
    let starts = (0..memory.bytes() / page_bytes)
        .map(|page| pagemap.physical(memory.address().offset(page * page_bytes).0).map(Iova))
        .collect::<Result<_, _>>()?;
    Ok(Place::Pages { page_bytes, starts })
}

fn explain(error: MappingError, page: PageKind, bytes: usize, node: Option<u32>) -> DmaError {
    match error {
        MappingError::NoPages(source) if page == PageKind::Ordinary => {
            DmaError::OutOfMemory { bytes, node, source }
        }
        MappingError::NoPages(source) => no_huge_pages(page, bytes, node, source),
        MappingError::Os { action, source } => DmaError::Os { action, bytes, page, node, source },
    }
}

fn no_huge_pages(page: PageKind, bytes: usize, node: Option<u32>, source: io::Error) -> DmaError {
    // A system without such pages has none free.
    let status = HugepagePools::system().status(page, node).ok();
    DmaError::NoHugePages {
        page,
        need_pages: page.pages_for(bytes),
        free_pages: status.map_or(0, |status| status.available()),
        total_pages: status.map_or(0, |status| status.total),
        node,
        source,
    }
}

impl fmt::Debug for DmaSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaSpace").field("id", &self.shared.id).field("config", &self.shared.config).finish()
    }
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attachment").field("space", &self.shared.id).field("mapper", &self.mapper).finish()
    }
}

/// The largest region, which is larger than the window of addresses that all devices have.
pub(crate) const MAX_REGION_BYTES: usize = 1 << 40;
