//! The short way of most requests: a read or write of a whole buffer that fits into two pages.
//!
//! Everything that [`check`](super::check::check) would find wrong makes a request take the long way, which
//! then says what it is; so does everything that needs a PRP list, a split or a look at another kind of
//! buffer.

use doorbell_hugepages::DmaBuf;
use doorbell_spec::Lba;

use super::check::Limits;
use super::prp::{DataPointer, NO_PAGE, POISON};
use crate::namespace::Geometry;

/// A command without a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quick {
    pub(super) blocks: u64,
    pub(super) pointer: DataPointer,
}

impl Quick {
    /// What the command of a read or write is, if it may go the short way.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a part of the submission, which is inlined too")]
    pub(super) fn of(namespace: &Geometry, lba: Lba, buffer: &DmaBuf, limits: &Limits) -> Option<Self> {
        let (start, bytes) = (buffer.iova().0, buffer.len() as u64);
        let blocks = bytes >> namespace.block_shift;
        // Everything that must be 0 at once: another controller, an optimal boundary, metadata, an address
        // that is not aligned, part of a block.
        let odd = u64::from(namespace.controller.0 ^ limits.controller.0)
            | u64::from(namespace.boundary)
            | u64::from(namespace.metadata_bytes)
            | start & 3
            | bytes ^ blocks << namespace.block_shift;
        let page_mask = limits.page_bytes - 1;
        // The end relative to the first page. Within two pages it is far below 65,536 blocks.
        let end = (start & page_mask) + bytes;
        if odd != 0
            || end > limits.quick_end
            || buffer.space() != limits.space
            || !namespace.contains(lba, blocks)
        {
            return None;
        }
        let second = (start & !page_mask) + limits.page_bytes;
        let prp2 = if end > limits.page_bytes { second } else { POISON };
        Some(Self { blocks, pointer: DataPointer { prp1: start, prp2, chain: NO_PAGE } })
    }
}
