//! Faults by rule: which event, how often, and what then.
//!
//! This file says what a rule is; `plan.rs` decides which rule fires, `text.rs` writes and reads rules; the
//! device applies what was decided (`twist.rs`, `registers.rs`). Every random choice comes from the
//! rule's own seed, so that a printed plan replays the same run.

mod plan;
mod text;

use std::ops::RangeInclusive;
use std::time::Duration;

use doorbell_spec::{Nsid, QueueId, Status};

pub(crate) use plan::{CommandSite, FaultView};
pub use plan::{FaultPlan, RuleId};
pub use text::RuleError;

/// One rule of a fault plan.
///
/// ```
/// use doorbell_emulator::fault::{Action, Match, Rule};
///
/// let rule = Rule::new(Match { opcode: Some(0x02), count: Some(3), ..Match::default() }, Action::Drop);
/// assert_eq!(rule.to_string().parse::<Rule>()?, rule);
/// # Ok::<(), doorbell_emulator::fault::RuleError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Which events.
    pub matches: Match,
    /// What happens to them.
    pub action: Action,
}

impl Rule {
    /// A rule that does `action` to what `matches`.
    #[must_use]
    pub fn new(matches: Match, action: Action) -> Self {
        Self { matches, action }
    }
}

/// Which events a rule is about. What is left out matches everything; the default is every command.
#[derive(Clone, Debug, PartialEq)]
pub struct Match {
    /// What kind of event.
    pub point: Point,
    /// Commands of one queue only.
    pub queue: Option<QueueId>,
    /// Commands of this opcode only.
    pub opcode: Option<u8>,
    /// Commands for this namespace only.
    pub nsid: Option<Nsid>,
    /// Commands that touch one of these blocks only.
    pub lbas: Option<RangeInclusive<u64>>,
    /// Accesses to the register at this offset only.
    pub register: Option<u32>,
    /// The first so many matching events are spared.
    pub skip: u64,
    /// The rule fires at most so often; `None` is without limit.
    pub count: Option<u64>,
    /// How likely the rule fires for an event that matches, 0 to 1.
    pub probability: f64,
    /// Where the choice starts from.
    pub seed: u64,
}

impl Default for Match {
    fn default() -> Self {
        Self {
            point: Point::Command,
            queue: None,
            opcode: None,
            nsid: None,
            lbas: None,
            register: None,
            skip: 0,
            count: None,
            probability: 1.0,
            seed: 0,
        }
    }
}

/// The events that a rule can be about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Point {
    /// The device takes a command of any queue.
    Command,
    /// The device takes a command of the admin queue.
    Admin,
    /// The device takes a command of an I/O queue.
    Io,
    /// The host reads a register. Only `Fatal` and `AllOnes` make sense.
    RegisterRead,
    /// The host writes a register. Only `Fatal` and `AllOnes` make sense.
    RegisterWrite,
    /// The host sets CC.EN. Only `Fatal`, `AllOnes`, `NeverReady` and `Delay` make sense.
    Enable,
}

/// What a rule does. An action that makes no sense at its point does nothing, but is counted as fired.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Action {
    /// The command is not executed and completes with this status.
    Status(Status),
    /// The command (or the enabling) takes this much longer, and holds nothing else up. An abort finds it.
    Delay(Duration),
    /// The controller does nothing for so long from when it takes the command, and says nothing of it: no
    /// other command is taken or completed, whatever its latency. Then it goes on, with this command too.
    Pause(Duration),
    /// The command completes after all others that are taken in the same step; of several, the last one
    /// first.
    Reorder,
    /// The command is lost: it is not executed, never completes, and no abort finds it.
    Drop,
    /// The command is completed twice.
    Duplicate,
    /// The completion carries this identifier.
    WrongCid(u16),
    /// The completion carries this head of the submission queue.
    WrongSqHead(u16),
    /// The completion carries this submission queue.
    WrongSqId(u16),
    /// The completion is written with the phase of the round before.
    WrongPhase,
    /// One bit of the data of a read, or of the data that a write stores, is flipped.
    Corrupt,
    /// The controller fails: CSTS.CFS, and no more commands are processed.
    Fatal,
    /// The device is gone: all registers read as ones, and it touches no memory any more.
    AllOnes,
    /// The controller does not become ready.
    NeverReady,
}
