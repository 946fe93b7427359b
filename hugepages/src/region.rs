#![expect(unsafe_code)]
//! One piece of memory with its device addresses, and its mapping into each device's bus.
//!
//! Invariants:
//!
//! * while a region is in a space, it is mapped into every mapper that is attached to the space;
//! * once some mapper has refused to take a mapping back, the region is [`Reach::Doubtful`] for ever: its
//!   memory is never given back to the system, and its addresses never to another region.
//
// UNSAFETY: calls a `Mapper`'s methods; their contract, the life of the memory, is what this file is about.

use std::ops::RangeInclusive;
use std::ptr::NonNull;
use std::sync::Arc;

use doorbell_spec::{HostRegion, Iova, MapError, Mapper};

use crate::carve::Carver;
use crate::mapping::{HostAddress, Mapping};
use crate::{DmaError, PageKind, iova};

/// A piece of memory that devices see.
#[derive(Debug)]
pub(crate) struct Region {
    memory: Memory,
    place: Place,
    reach: Reach,
    pub(crate) carver: Carver,
    pub(crate) sharing: Sharing,
}

/// Whose memory it is.
#[derive(Debug)]
pub(crate) enum Memory {
    /// Taken from the system by this crate.
    Own(Mapping),
    /// Registered by a caller, who keeps it alive.
    Foreign { address: HostAddress, bytes: usize },
}

/// Where devices see it.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// In one piece.
    Whole(Iova),
    /// Each page at its physical address.
    Pages { page_bytes: usize, starts: Arc<[Iova]> },
}

/// Whether several allocations may lie in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    Shared,
    Single,
}

/// Whether it is known which devices reach a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Those that are attached.
    Known,
    /// Perhaps one that is not attached any more.
    Doubtful,
}

impl Place {
    /// What devices call the byte at `offset` of the region, which the callers have checked to be in it.
    #[inline]
    pub(crate) fn at(&self, offset: usize) -> Iova {
        match self {
            Self::Whole(start) => start.offset(offset as u64),
            Self::Pages { page_bytes, starts } => {
                starts[offset / page_bytes].offset((offset % page_bytes) as u64)
            }
        }
    }
}

impl Region {
    pub(crate) fn new(memory: Memory, place: Place, sharing: Sharing) -> Self {
        let carver = Carver::new(memory.bytes());
        Self { memory, place, reach: Reach::Known, carver, sharing }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// What it is made of; `None` for foreign memory.
    pub(crate) fn kind(&self) -> Option<PageKind> {
        match &self.memory {
            Memory::Own(mapping) => Some(mapping.kind()),
            Memory::Foreign { .. } => None,
        }
    }

    pub(crate) fn address(&self) -> HostAddress {
        self.memory.address()
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) fn reach(&self) -> Reach {
        self.reach
    }

    /// Whether a device with these windows and this granule can map all of it.
    pub(crate) fn check(&self, windows: &[RangeInclusive<u64>], granule: u64) -> Result<(), DmaError> {
        for piece in self.pieces() {
            let Piece { iova, bytes, .. } = piece;
            let host = self.address().offset(piece.offset).0.addr().get() as u64;
            if [iova.0, host, bytes as u64].iter().any(|number| !number.is_multiple_of(granule)) {
                return Err(DmaError::Granule { granule, iova, bytes });
            }
            if !iova::covers(windows, iova, bytes) {
                return Err(DmaError::Unreachable { iova, bytes, windows: iova::written(windows) });
            }
        }
        Ok(())
    }

    /// Makes all of it visible to a device; on an error nothing of it is, or it is doubtful from now on.
    pub(crate) fn map_into(&mut self, mapper: &dyn Mapper) -> Result<(), MapError> {
        for (done, piece) in self.pieces().enumerate() {
            let region = self.host_region(piece);
            // SAFETY:
            // - the memory is mapped, readable and writable: our own by `Mapping::create`, foreign memory
            //   by the contract of `DmaSpace::register`;
            // - it stays so until this region has been unmapped from this mapper with `Ok`: `retire` is the
            //   only way to release it, and asks every mapper first; a doubtful region is never released.
            let mapped = unsafe { mapper.map(piece.iova, region) };
            if let Err(error) = mapped {
                self.unmap_pieces(mapper, done).unwrap_or_else(|undo| self.doubt(&undo));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Takes all of it back from a device; on an error it is doubtful from now on.
    pub(crate) fn unmap_from(&mut self, mapper: &dyn Mapper) -> Result<(), MapError> {
        let unmapped = self.unmap_pieces(mapper, usize::MAX);
        if let Err(error) = &unmapped {
            self.doubt(error);
        }
        unmapped
    }

    /// Gives the memory back to the system, unless a device may still reach it.
    ///
    /// The caller has unmapped the region from every attached mapper, and holds no buffer of it any more.
    /// Says whether the addresses may be used again.
    pub(crate) fn retire(self) -> Reach {
        if self.reach == Reach::Known
            && let Memory::Own(mapping) = self.memory
        {
            mapping.release();
        }
        // Dropping a doubtful region drops its `Mapping`, which has no `Drop`: that is the deliberate leak.
        self.reach
    }

    fn unmap_pieces(&self, mapper: &dyn Mapper, count: usize) -> Result<(), MapError> {
        let mut first_error = Ok(());
        for piece in self.pieces().take(count) {
            // SAFETY:
            // - this region has mapped the piece, and has not taken it back: it is unmapped once from each
            //   mapper, when its last lease or the mapper's attachment ends;
            // - a lease and an attachment are kept while a device may use the addresses: by the driver that
            //   told the device of them, which is the one who may let go of both.
            let unmapped = unsafe { mapper.unmap(piece.iova, piece.bytes) };
            first_error = first_error.and(unmapped);
        }
        first_error
    }

    fn doubt(&mut self, error: &MapError) {
        self.reach = Reach::Doubtful;
        let iova = self.place.at(0);
        tracing::warn!(
            bytes = self.bytes(),
            %iova,
            error = error as &dyn std::error::Error,
            "a device did not let go of DMA memory, which is never freed: the device may still write it"
        );
    }

    /// The mappings it is made of: the fewest possible.
    fn pieces(&self) -> impl Iterator<Item = Piece> + use<> {
        let (place, bytes) = (self.place.clone(), self.bytes());
        let piece_bytes = match &place {
            Place::Whole(_) => bytes,
            Place::Pages { page_bytes, .. } => *page_bytes,
        };
        (0..bytes / piece_bytes).map(move |index| {
            let offset = index * piece_bytes;
            Piece { iova: place.at(offset), offset, bytes: piece_bytes }
        })
    }

    fn host_region(&self, piece: Piece) -> HostRegion<'_> {
        let backing = match &self.memory {
            Memory::Own(mapping) => Some((mapping.file(), piece.offset as u64)),
            Memory::Foreign { .. } => None,
        };
        HostRegion { address: self.host(piece.offset), bytes: piece.bytes, backing }
    }

    fn host(&self, offset: usize) -> NonNull<u8> {
        self.address().offset(offset).0
    }
}

impl Memory {
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Own(mapping) => mapping.bytes(),
            Self::Foreign { bytes, .. } => *bytes,
        }
    }

    pub(crate) fn address(&self) -> HostAddress {
        match self {
            Self::Own(mapping) => mapping.address(),
            Self::Foreign { address, .. } => *address,
        }
    }
}

#[derive(Clone, Copy)]
struct Piece {
    iova: Iova,
    offset: usize,
    bytes: usize,
}
