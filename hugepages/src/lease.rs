//! The hold of one pool or buffer on its part of a space's memory.

use std::ops::Range;
use std::sync::Arc;

use doorbell_spec::Iova;

use crate::SpaceId;
use crate::mapping::HostAddress;
use crate::region::Place;
use crate::space::Shared;
use crate::state::{Grant, RegionId};

/// A range of memory that is nobody else's until this is dropped. Keeps the space alive.
pub(crate) struct Lease {
    shared: Arc<Shared>,
    region: RegionId,
    /// The offsets within the region.
    range: Range<usize>,
    address: HostAddress,
    place: Place,
    space: SpaceId,
    pub(crate) contents: Contents,
}

/// What is in memory that was just leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    /// Zeros, fresh from the system.
    Zero,
    /// What its last owner left, maybe.
    Left,
}

impl Lease {
    pub(crate) fn new(shared: &Arc<Shared>, grant: Grant, contents: Contents) -> Self {
        let Grant { region, range, address, place } = grant;
        let space = shared.id;
        Self { shared: Arc::clone(shared), region, range, address, place, space, contents }
    }

    #[inline]
    pub(crate) fn space(&self) -> SpaceId {
        self.space
    }

    /// Where the range begins for the process.
    pub(crate) fn address(&self) -> HostAddress {
        self.address
    }

    /// Where the byte at `offset` of the range is for devices.
    pub(crate) fn iova(&self, offset: usize) -> Iova {
        debug_assert!(offset < self.range.len());
        self.place.at(self.range.start + offset)
    }

    /// Whether all of the range is contiguous for devices.
    pub(crate) fn is_contiguous(&self) -> bool {
        matches!(self.place, Place::Whole(_))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Memory that a device did not let go of has been logged, and is never freed.
        let _ = self.shared.lock().give_back(self.region, self.range.clone());
    }
}
