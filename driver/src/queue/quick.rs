//! The short way of most requests: a read or write of a whole buffer that fits into two pages.
//!
//! Everything that [`check`](super::check::check) would find wrong makes a request take the long way, which
//! then says what it is; so does everything that needs a PRP list, a split or a look at another kind of
//! buffer.

use std::hint::cold_path;

use doorbell_hugepages::DmaBuf;
use doorbell_spec::Lba;

use super::check::Limits;
use super::prp::POISON;
use crate::namespace::Geometry;

/// A command without a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quick {
    pub(super) blocks: u64,
    pub(super) prp1: u64,
    pub(super) prp2: u64,
}

impl Quick {
    /// What the command of a read or write is, if it may go the short way.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a part of the submission, which is inlined too")]
    pub(super) fn of(namespace: &Geometry, lba: Lba, buffer: &DmaBuf, limits: &Limits) -> Option<Self> {
        let block_shift = namespace.key.plain_shift(limits.controller)?;
        let start = buffer.iova_in(limits.space)?.0;
        let blocks = buffer.blocks(block_shift)?;
        let bytes = buffer.len() as u64;
        // The end relative to the first page. Within two pages it is far below 65,536 blocks.
        let end = (start & limits.page_mask) + bytes;
        // A whole buffer starts at a multiple of 4 bytes.
        let mut prp2 = POISON;
        if end > limits.quick_page {
            cold_path();
            if end > 2 * limits.quick_page {
                return None;
            }
            prp2 = (start | limits.page_mask) + 1;
        }
        if !namespace.contains_few(lba, blocks) {
            return None;
        }
        Some(Self { blocks, prp1: start, prp2 })
    }
}
