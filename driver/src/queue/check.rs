//! What is checked before a request is accepted, and how much of it one command can carry.
//!
//! After [`check`] has accepted a request, every cut that [`command_blocks`] makes is possible: no request
//! fails half-way for a reason that could have been seen at its start.

use doorbell_hugepages::SpaceId;
use doorbell_spec::Lba;
use doorbell_spec::dsm::{DsmRange, RANGES_MAX};
use doorbell_spec::identify::{ONCS_COMPARE, ONCS_DATASET_MANAGEMENT, ONCS_WRITE_ZEROES};

use super::prp::{DataRange, PrpLists, shaped_prefix};
use crate::buffer::{Buffer, Segments};
use crate::error::SubmitError;
use crate::namespace::{Geometry, NamespaceKey};
use crate::request::{Operation, Request};

/// What the controller can do, as far as a queue needs to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// What the namespaces of the controller have in common.
    pub(crate) controller: NamespaceKey,
    pub(crate) space: SpaceId,
    /// Memory page (CC.MPS) in bytes.
    pub(crate) page_bytes: u64,
    /// The offset within it.
    pub(crate) page_mask: u64,
    /// The most data of one command.
    pub(crate) transfer_bytes_max: u64,
    /// The memory page again; two of them are the most that a request that goes the short way covers. 0 if
    /// not every such request is one command, or if the controller has failed.
    pub(crate) quick_page: u64,
    /// ONCS.
    pub(crate) nvm_commands: u16,
}

/// The longest list of ranges: what is behind it in the buffer is not the device's business.
const DEALLOCATE_BYTES_MAX: u64 = (RANGES_MAX * size_of::<DsmRange>()) as u64;

/// Blocks of a command that a 16-bit zero-based count can say.
pub(crate) const COMMAND_BLOCKS_MAX: u64 = 65_536;

/// Checks a request and answers how many blocks it covers (0 for flush and deallocate).
#[inline]
pub(crate) fn check(request: &Request, limits: &Limits) -> Result<u64, SubmitError> {
    let namespace = &request.namespace;
    if !namespace.key.is_of(limits.controller) {
        return Err(SubmitError::OtherController);
    }
    if !request.buffer.belongs_to(limits.space) {
        return Err(SubmitError::OtherSpace);
    }
    let blocks = match request.operation {
        Operation::Read | Operation::Write => data_blocks(request, limits)?,
        Operation::Compare => {
            supported(request.operation, limits, ONCS_COMPARE)?;
            data_blocks(request, limits)?
        }
        Operation::WriteZeroes => {
            supported(request.operation, limits, ONCS_WRITE_ZEROES)?;
            u64::from(request.blocks.0)
        }
        Operation::Deallocate => {
            supported(request.operation, limits, ONCS_DATASET_MANAGEMENT)?;
            shape(&request.buffer, limits, u64::from(namespace.block_bytes()))?;
            return Ok(0);
        }
        Operation::Flush => return Ok(0),
    };
    if blocks == 0 {
        return Err(SubmitError::Empty);
    }
    if !namespace.contains(request.lba, blocks) {
        return Err(SubmitError::OutOfRange { lba: request.lba, blocks, capacity: namespace.blocks });
    }
    Ok(blocks)
}

fn supported(operation: Operation, limits: &Limits, oncs_bit: u16) -> Result<(), SubmitError> {
    if limits.nvm_commands & oncs_bit == 0 {
        return Err(SubmitError::Unsupported { operation });
    }
    Ok(())
}

/// Checks the memory of a request with data and answers how many blocks it is.
#[inline]
fn data_blocks(request: &Request, limits: &Limits) -> Result<u64, SubmitError> {
    let namespace = &request.namespace;
    if namespace.key.metadata_bytes() != 0 {
        return Err(SubmitError::Metadata);
    }
    if request.operation == Operation::Read && matches!(request.buffer, Buffer::Shared(_)) {
        return Err(SubmitError::SharedForReading);
    }
    let bytes = request.buffer.bytes();
    let block_bytes = namespace.block_bytes();
    if !bytes.is_multiple_of(u64::from(block_bytes)) {
        return Err(SubmitError::UnalignedLength { bytes, block_bytes });
    }
    let transfer_bytes_max = limits.transfer_bytes_max;
    if u64::from(block_bytes) > transfer_bytes_max {
        return Err(SubmitError::BlockTooLarge { block_bytes, transfer_bytes_max });
    }
    shape(&request.buffer, limits, u64::from(block_bytes))?;
    Ok(bytes >> namespace.block_shift())
}

/// Checks that PRPs can describe the memory, cut at ends of blocks where need be.
#[inline]
fn shape(buffer: &Buffer, limits: &Limits, block_bytes: u64) -> Result<(), SubmitError> {
    match buffer.segments() {
        Segments::One(segment) if segment.iova.0.is_multiple_of(4) => Ok(()),
        Segments::One(_) => Err(SubmitError::UnalignedAddress { piece: 0 }),
        segments @ Segments::Many(pieces) => {
            let aligned = |piece| segments.at(piece).is_none_or(|it| it.iova.0.is_multiple_of(4));
            if let Some(piece) = (0..pieces.len()).find(|piece| !aligned(*piece)) {
                return Err(SubmitError::UnalignedAddress { piece });
            }
            let bytes = buffer.bytes();
            let mut offset = 0;
            while offset < bytes {
                let rest = DataRange { segments, offset, bytes: bytes - offset };
                offset += shaped_prefix(rest, limits.page_bytes, block_bytes).map_err(|piece| {
                    SubmitError::PieceNotPageShaped { piece, page_bytes: limits.page_bytes }
                })?;
            }
            Ok(())
        }
    }
}

/// A part of a request that is still to be submitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remainder<'a> {
    pub(crate) operation: Operation,
    pub(crate) namespace: &'a Geometry,
    pub(crate) buffer: &'a Buffer,
    /// The request's first block.
    pub(crate) lba: Lba,
    /// Blocks of it that are submitted already.
    pub(crate) done: u64,
    /// Blocks of it that are not.
    pub(crate) left: u64,
}

impl<'a> Remainder<'a> {
    /// All of a request that [`check`] found to cover `blocks`.
    #[inline]
    pub(crate) fn all(request: &'a Request, blocks: u64) -> Self {
        Self {
            operation: request.operation,
            namespace: &request.namespace,
            buffer: &request.buffer,
            lba: request.lba,
            done: 0,
            left: blocks,
        }
    }

    /// The first `blocks` blocks of it, as memory.
    #[inline]
    pub(crate) fn data(&self, blocks: u64) -> DataRange<'a> {
        let shift = self.namespace.block_shift();
        DataRange {
            segments: self.buffer.segments(),
            offset: self.done << shift,
            bytes: match self.operation {
                // The buffer may be much longer than the list in it.
                Operation::Deallocate => self.buffer.bytes().min(DEALLOCATE_BYTES_MAX),
                _ => blocks << shift,
            },
        }
    }
}

/// How many blocks the next command of a request can carry: at least 1, at most what is left.
#[inline]
pub(crate) fn command_blocks(rest: &Remainder<'_>, limits: &Limits, lists: &PrpLists) -> u64 {
    let mut blocks = rest.left.min(COMMAND_BLOCKS_MAX);
    let namespace = rest.namespace;
    if matches!(rest.operation, Operation::WriteZeroes | Operation::Flush | Operation::Deallocate) {
        return blocks;
    }
    if namespace.key.boundary() > 0 {
        let boundary = u64::from(namespace.key.boundary());
        blocks = blocks.min(boundary - (rest.lba.0 + rest.done) % boundary);
    }
    let block_bytes = u64::from(namespace.block_bytes());
    let data = rest.data(blocks);
    let start = data.segments.at(0).map_or(0, |segment| segment.iova.0.wrapping_add(data.offset));
    let in_lists = match data.segments {
        Segments::One(_) => lists.bytes_max(doorbell_spec::Iova(start)),
        // Pieces may each start in the middle of a page that the one before it ended in; the entries of
        // a list are then still one per page, but the first may cover as little as 4 bytes.
        Segments::Many(_) => lists.bytes_max(doorbell_spec::Iova(limits.page_bytes - 4)),
    };
    let bytes_max = limits.transfer_bytes_max.min(in_lists);
    // At least one: `check` has refused blocks that are larger than a transfer, and the list page of a
    // slot alone describes more than the largest block.
    blocks = blocks.min((bytes_max / block_bytes).max(1));
    match data.segments {
        Segments::One(_) => blocks,
        Segments::Many(_) => {
            let shaped = shaped_prefix(rest.data(blocks), limits.page_bytes, block_bytes);
            shaped.map_or(1, |bytes| (bytes / block_bytes).clamp(1, blocks))
        }
    }
}
