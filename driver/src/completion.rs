//! What a request came to.

use doorbell_spec::{Lba, Status};

use crate::buffer::Buffer;

/// The end of a request: exactly one for each that was accepted.
#[derive(Debug)]
pub struct Completion {
    /// The caller's number.
    pub user_data: u64,
    /// What the device said: DW0 of the completion, or why the request failed.
    pub result: Result<u32, IoError>,
    /// The request's memory. [`Buffer::None`] if it had none, or if the device may still reach it: then
    /// it is parked until the controller is closed.
    pub buffer: Buffer,
    /// From the doorbell to the poll that found the completion, in nanoseconds. Exact to within a batch.
    pub latency_ns: u64,
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IoError {
    /// The device refused it. Of a request that was split, the lowest block whose part failed.
    #[error("{status}, at block {lba}")]
    Status {
        /// The device's word.
        status: Status,
        /// First block of the command that failed.
        lba: Lba,
    },
    /// The queue was closed before the device had answered.
    #[error("the queue was closed before the device answered")]
    QueueClosed,
    /// The caller cancelled it before all of it was submitted.
    #[error("cancelled")]
    Cancelled,
    /// The controller failed or was removed; whether the request took effect is unknown.
    #[error("the controller failed before it answered; whether the request took effect is unknown")]
    ControllerFailed,
}
