//! What the fault plan does to one command, between the device's taking it and its completion.

use std::time::Duration;

use doorbell_spec::{CompletionEntry, Status};

use crate::fault::Action;

/// What is done differently when a command is executed and completed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Twist {
    /// Nothing.
    #[default]
    None,
    /// It is not executed, and completes with this status.
    Status(Status),
    /// It is completed twice.
    Duplicate,
    /// The completion's identifier is this.
    Cid(u16),
    /// The completion's head is this.
    SqHead(u16),
    /// The completion's queue is this.
    SqId(u16),
    /// The completion's phase is wrong.
    Phase,
    /// A bit of its data is flipped.
    Corrupt,
}

/// What becomes of a command that was just taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fate {
    /// It goes its way, so much later and with this twist.
    Goes(Duration, Twist),
    /// It goes its way after the others of this step.
    Last,
    /// It goes its way when the controller has done nothing for so long.
    Pauses(Duration),
    /// It is never heard of again.
    Lost,
    /// The controller fails.
    Fatal,
    /// The device disappears.
    Gone,
}

impl Fate {
    /// What an action of the fault plan means for a command.
    pub(crate) fn of(action: Option<Action>) -> Self {
        let twist = match action {
            None | Some(Action::NeverReady) => Twist::None,
            Some(Action::Delay(time)) => return Self::Goes(time, Twist::None),
            Some(Action::Pause(time)) => return Self::Pauses(time),
            Some(Action::Reorder) => return Self::Last,
            Some(Action::Drop) => return Self::Lost,
            Some(Action::Fatal) => return Self::Fatal,
            Some(Action::AllOnes) => return Self::Gone,
            Some(Action::Status(status)) => Twist::Status(status),
            Some(Action::Duplicate) => Twist::Duplicate,
            Some(Action::WrongCid(cid)) => Twist::Cid(cid),
            Some(Action::WrongSqHead(head)) => Twist::SqHead(head),
            Some(Action::WrongSqId(queue)) => Twist::SqId(queue),
            Some(Action::WrongPhase) => Twist::Phase,
            Some(Action::Corrupt) => Twist::Corrupt,
        };
        Self::Goes(Duration::ZERO, twist)
    }
}

impl Twist {
    /// Changes the completion, whose phase is a difference to the right one.
    pub(crate) fn apply(self, entry: &mut CompletionEntry) {
        match self {
            Self::Cid(cid) => entry.cid = cid,
            Self::SqHead(head) => entry.sq_head = head,
            Self::SqId(queue) => entry.sq_id = queue,
            Self::Phase => entry.status_and_phase ^= 1,
            Self::None | Self::Status(_) | Self::Duplicate | Self::Corrupt => {}
        }
    }
}
