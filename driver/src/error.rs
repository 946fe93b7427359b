//! Errors of the control plane: opening, configuring and closing a controller.

use std::time::Duration;

use doorbell_hugepages::DmaError;
use doorbell_spec::{BusError, QueueId, Status};

use crate::namespace::NamespaceError;
use crate::target::TargetError;

/// Why a controller could not be opened or did not do as asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControllerError {
    /// The target string names no device.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// Another `Controller` of this process drives the device through the same transport.
    #[error("{name} is driven by another `Controller` of this process; share that one")]
    InUse {
        /// The device.
        name: String,
    },
    /// The device could not be taken over through VFIO.
    #[error(transparent)]
    Vfio(#[from] crate::vfio::VfioError),
    /// The software controller could not be made.
    #[cfg(feature = "emulator")]
    #[error(transparent)]
    Emulator(#[from] doorbell_emulator::EmulatorError),
    /// The bus failed.
    #[error("{step}: {source}")]
    Bus {
        /// What was under way.
        step: &'static str,
        /// What the bus said.
        source: BusError,
    },
    /// Memory for the device could not be had.
    #[error(transparent)]
    Memory(#[from] DmaError),
    /// The device is gone: its registers read as all ones.
    #[error("the device was removed (its registers read all ones) during {step}")]
    Removed {
        /// What was under way.
        step: &'static str,
    },
    /// CSTS.CFS is set.
    #[error(
        "the controller reports a fatal error (CSTS.CFS) during {step}; reset it, or power-cycle the device"
    )]
    Fatal {
        /// What was under way.
        step: &'static str,
    },
    /// A wait ended without what it waited for.
    #[error("{step} did not finish within {} ms{}", span.as_millis(), hint)]
    Timeout {
        /// What was under way.
        step: &'static str,
        /// How long was waited.
        span: Duration,
        /// Where the limit comes from.
        hint: &'static str,
    },
    /// The controller is of a kind that cannot be driven.
    #[error("this controller cannot be driven: {why}")]
    Unsupported {
        /// What is missing.
        why: String,
    },
    /// An admin command failed.
    #[error("{command} failed: {status}")]
    Admin {
        /// Which one.
        command: &'static str,
        /// The device's word.
        status: Status,
    },
    /// All queue pairs that the controller grants are in use.
    #[error(
        "the controller grants {granted} I/O queue pairs and all are in use; \
         use fewer threads (`--numjobs`), or share queues"
    )]
    NoQueueLeft {
        /// How many there are.
        granted: u32,
    },
    /// The depth asked for is more than the controller's queues hold.
    #[error("a queue of this controller holds 1 to {max} requests, not {asked} (`--iodepth`)")]
    Depth {
        /// What was asked for.
        asked: u32,
        /// What is possible.
        max: u32,
    },
    /// A depth that is not the number of the identifiers that the queue shares.
    #[error(
        "a queue with shared identifiers is as deep as there are of them: {ids}, not {asked}; \
         leave `QueueConfig::depth` out"
    )]
    SharedDepth {
        /// What was asked for.
        asked: u32,
        /// How many identifiers there are.
        ids: u32,
    },
    /// The shared identifiers have no place for another queue.
    #[error(transparent)]
    SharedIds(#[from] crate::ids::SharedIdsError),
    /// A plug's limit that is out of range.
    #[error("a plug holds 1 to {max} requests, not {asked} (`QueueConfig::plug_limit`)")]
    PlugLimit {
        /// What was asked for.
        asked: u32,
        /// What is possible.
        max: u32,
    },
    /// An interrupt vector that does not exist.
    #[error("interrupt vector {vector} does not exist: the device has {vectors}")]
    NoSuchVector {
        /// What was asked for.
        vector: u16,
        /// How many there are.
        vectors: u32,
    },
    /// The namespace cannot be used.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// The controller has failed or was closed: every call answers so.
    #[error("the controller has failed and answers no further call; open it again")]
    ControllerFailed,
    /// Queue pairs are still open.
    #[error("{open} queue pairs are still open (the first is {first}); close them before the controller")]
    QueuesOpen {
        /// How many.
        open: usize,
        /// One of them.
        first: QueueId,
    },
}

/// Why a request was not accepted. The request comes back unharmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// As many requests are outstanding as the queue is deep. Poll, then submit again.
    #[error("the queue is full: poll it, then submit again")]
    QueueFull,
    /// There is nothing to transfer.
    #[error("the request transfers nothing")]
    Empty,
    /// The request's blocks do not lie within the namespace.
    #[error("{blocks} blocks from {lba} on lie beyond the namespace's {capacity} blocks")]
    OutOfRange {
        /// First block.
        lba: doorbell_spec::Lba,
        /// How many.
        blocks: u64,
        /// The namespace's size in blocks.
        capacity: u64,
    },
    /// The buffer is not made of whole blocks.
    #[error("{bytes} bytes are not a multiple of the block size, {block_bytes} bytes")]
    UnalignedLength {
        /// The buffer's length.
        bytes: u64,
        /// The namespace's block.
        block_bytes: u32,
    },
    /// One block is more than one command can transfer.
    #[error(
        "one block, {block_bytes} bytes, is more than a command can transfer, {transfer_bytes_max} bytes \
         (MDTS, or `ControllerOptions::transfer_bytes_max`)"
    )]
    BlockTooLarge {
        /// The namespace's block.
        block_bytes: u32,
        /// The most data of one command.
        transfer_bytes_max: u64,
    },
    /// A piece of the buffer does not start at a multiple of 4 bytes (NVMe Base 2.0, 4.1.1).
    #[error("piece {piece} of the buffer does not start at a multiple of 4 bytes")]
    UnalignedAddress {
        /// Which one, from 0.
        piece: usize,
    },
    /// Two pieces meet inside of a page and inside of a block, which PRPs cannot describe.
    #[error(
        "piece {piece} of the buffer does not continue its predecessor: pieces must meet at a page boundary \
         ({page_bytes} bytes) of both, or at the end of a block"
    )]
    PieceNotPageShaped {
        /// The later of the two, from 0.
        piece: usize,
        /// The controller's memory page.
        page_bytes: u64,
    },
    /// The request writes to memory that is shared for reading.
    #[error("a read cannot use a shared buffer: others read it at the same time")]
    SharedForReading,
    /// The namespace belongs to another controller.
    #[error("the namespace belongs to another controller")]
    OtherController,
    /// The buffer is memory of another space than the controller's: the device cannot see it.
    #[error("the buffer belongs to another DmaSpace than the controller; open both in one space")]
    OtherSpace,
    /// The device does not do this.
    #[error("the controller does not support {operation:?}")]
    Unsupported {
        /// What was asked for.
        operation: crate::request::Operation,
    },
    /// Blocks carry metadata, which requests cannot transfer yet.
    #[error("the namespace has metadata, which requests cannot transfer")]
    Metadata,
    /// The controller has failed or was removed.
    #[error("the controller has failed and takes no further request; open it again")]
    ControllerFailed,
    /// The queue pair that a [`Member`](crate::Member) names is not in the group, or not any more.
    #[error("the group has no such member: it was removed, or is another group's; use what `add` answered")]
    NoSuchMember,
}
