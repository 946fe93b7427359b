//! How a command ended: status and result.

use doorbell_spec::{CompletionEntry, QueueId, Status};

/// What a completion will say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) status: Status,
    pub(crate) dw0: u32,
    pub(crate) dw1: u32,
}

impl Outcome {
    /// The command succeeded and has no result.
    pub(crate) const DONE: Self = Self { status: Status::SUCCESS, dw0: 0, dw1: 0 };

    /// The command succeeded, with this result.
    pub(crate) fn with_result(dw0: u32) -> Self {
        Self { dw0, ..Self::DONE }
    }

    /// The host did something that will not work the next time either.
    pub(crate) fn refused(status: Status) -> Self {
        Self { status: status.with_do_not_retry(), ..Self::DONE }
    }

    /// Something went wrong that may work the next time.
    pub(crate) fn failed(status: Status) -> Self {
        Self { status, ..Self::DONE }
    }

    /// The completion entry, without the phase.
    #[inline]
    pub(crate) fn entry(self, sq_id: QueueId, sq_head: u16, cid: u16) -> CompletionEntry {
        CompletionEntry {
            dw0: self.dw0,
            dw1: self.dw1,
            sq_head,
            sq_id: sq_id.0,
            cid,
            status_and_phase: self.status.raw() << 1,
        }
    }
}
