//! What the controller has seen: counts, refused accesses, and what the host did against the rules.
//!
//! Lists are bounded, so that a hostile host cannot fill memory; totals go on counting.

use std::collections::BTreeMap;
use std::fmt;

use doorbell_spec::{Cid, QueueId};

use crate::iova::access::{AccessFault, AccessFaults};

/// A snapshot of what a controller has seen since it was made.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// Admin commands taken, by opcode.
    pub admin_commands: BTreeMap<u8, u64>,
    /// I/O commands taken, by opcode.
    pub io_commands: BTreeMap<u8, u64>,
    /// Completions posted, on all queues.
    pub completions: u64,
    /// How often a tail doorbell was seen to have moved, on all queues.
    pub tail_doorbells: u64,
    /// How often a head doorbell was seen to have moved, on all queues.
    pub head_doorbells: u64,
    /// How often a doorbell register was seen to be rung for a queue that has a shadow doorbell.
    pub shadowed_rings: u64,
    /// Commands that were taken and will complete, event requests included. What a fault dropped is not
    /// among them.
    pub outstanding: u64,
    /// Event requests among them.
    pub event_requests: u64,
    /// How often the controller was enabled.
    pub enables: u64,
    /// The first accesses to memory that were refused.
    pub access_faults: Vec<AccessFault>,
    /// How many accesses were refused in all.
    pub access_faults_total: u64,
    /// The first things that the host did against the rules.
    pub violations: Vec<Violation>,
    /// How many there were in all.
    pub violations_total: u64,
    /// Why the controller failed (CSTS.CFS), if it did since it was last reset.
    pub fatal: Option<&'static str>,
}

impl Report {
    /// Commands of all queues.
    #[must_use]
    pub fn commands(&self) -> u64 {
        self.admin_commands.values().chain(self.io_commands.values()).sum()
    }

    /// Whether the host kept all the rules that the controller can check.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.access_faults_total == 0 && self.violations_total == 0
    }
}

/// Something that a host must not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// A tail doorbell beyond the queue.
    TailOutOfRange {
        /// The queue.
        queue: QueueId,
        /// What was written.
        value: u32,
        /// How many entries there are.
        entries: u32,
    },
    /// A tail that runs over entries which the device has not fetched, or goes back.
    SubmissionOverrun {
        /// The queue.
        queue: QueueId,
        /// The tail before.
        tail: u32,
        /// What was written.
        value: u32,
    },
    /// A head doorbell beyond the queue.
    HeadOutOfRange {
        /// The queue.
        queue: QueueId,
        /// What was written.
        value: u32,
        /// How many entries there are.
        entries: u32,
    },
    /// A head that claims more completions than were posted.
    CompletionOverrun {
        /// The queue.
        queue: QueueId,
        /// What was written.
        value: u32,
        /// How many entries were posted and not yet claimed.
        posted: u32,
    },
    /// A doorbell was written before its queue existed.
    DoorbellWithoutQueue {
        /// The queue that was created later.
        queue: QueueId,
        /// What was written.
        value: u32,
    },
    /// A command identifier that another outstanding command of the queue has.
    CidInUse {
        /// The queue.
        queue: QueueId,
        /// The identifier.
        cid: Cid,
    },
    /// A command identifier that is not below the queue's size, on a device that needs that.
    CidAboveDepth {
        /// The queue.
        queue: QueueId,
        /// The identifier.
        cid: Cid,
        /// How many entries there are.
        entries: u32,
    },
    /// A queue's memory is not mapped while the queue exists.
    QueueUnmapped {
        /// The queue.
        queue: QueueId,
    },
    /// A pointer against the rules of PRPs: not aligned as it has to be.
    BadPrp {
        /// The queue.
        queue: QueueId,
        /// The command.
        cid: Cid,
        /// The pointer.
        prp: u64,
    },
    /// More event requests than AERL allows.
    TooManyEventRequests,
    /// A register was written that cannot be written, or not now.
    RegisterWrite {
        /// Its offset.
        offset: u32,
        /// What was written.
        value: u32,
    },
    /// The controller was enabled with a configuration that it cannot have.
    BadConfiguration {
        /// What is wrong with it.
        what: &'static str,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TailOutOfRange { queue, value, entries } => {
                write!(f, "tail doorbell of queue {queue} was set to {value}, but it has {entries} entries")
            }
            Self::SubmissionOverrun { queue, tail, value } => {
                write!(
                    f,
                    "tail doorbell of queue {queue} went from {tail} to {value}, over unfetched entries"
                )
            }
            Self::HeadOutOfRange { queue, value, entries } => {
                write!(f, "head doorbell of queue {queue} was set to {value}, but it has {entries} entries")
            }
            Self::CompletionOverrun { queue, value, posted } => {
                write!(f, "head doorbell of queue {queue} was set to {value} with {posted} entries posted")
            }
            Self::DoorbellWithoutQueue { queue, value } => {
                write!(f, "a doorbell of queue {queue} was set to {value} before the queue existed")
            }
            Self::CidInUse { queue, cid } => {
                write!(f, "command identifier {cid} of queue {queue} was used twice at a time")
            }
            Self::CidAboveDepth { queue, cid, entries } => {
                write!(f, "command identifier {cid} of queue {queue} is not below its {entries} entries")
            }
            Self::QueueUnmapped { queue } => {
                write!(f, "the memory of queue {queue} is not mapped while the queue exists")
            }
            Self::BadPrp { queue, cid, prp } => {
                write!(f, "command {cid} of queue {queue} has the ill-aligned pointer {prp:#x}")
            }
            Self::TooManyEventRequests => f.write_str("more event requests than AERL allows"),
            Self::RegisterWrite { offset, value } => {
                write!(f, "register {offset:#x} cannot be set to {value:#x} now")
            }
            Self::BadConfiguration { what } => write!(f, "enabled with {what}"),
        }
    }
}

/// The counters behind a [`Report`], as the device keeps them.
pub(crate) struct Tally {
    pub(crate) admin: [u64; 256],
    pub(crate) io: [u64; 256],
    pub(crate) completions: u64,
    pub(crate) tail_doorbells: u64,
    pub(crate) head_doorbells: u64,
    pub(crate) shadowed_rings: u64,
    pub(crate) enables: u64,
    pub(crate) violations: Violations,
}

/// What the host did against the rules, the first of it in full.
#[derive(Debug, Default)]
pub(crate) struct Violations {
    first: Vec<Violation>,
    total: u64,
}

impl Violations {
    #[cold]
    pub(crate) fn add(&mut self, violation: Violation) {
        self.total += 1;
        if self.first.len() < VIOLATIONS_KEPT {
            tracing::warn!(%violation, "the host broke a rule");
            self.first.push(violation);
        }
    }
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            admin: [0; 256],
            io: [0; 256],
            completions: 0,
            tail_doorbells: 0,
            head_doorbells: 0,
            shadowed_rings: 0,
            enables: 0,
            violations: Violations::default(),
        }
    }

    pub(crate) fn report(&self, faults: AccessFaults) -> Report {
        let by_opcode = |counts: &[u64; 256]| -> BTreeMap<u8, u64> {
            (0..=u8::MAX).zip(*counts).filter(|(_, count)| *count > 0).collect()
        };
        Report {
            admin_commands: by_opcode(&self.admin),
            io_commands: by_opcode(&self.io),
            completions: self.completions,
            tail_doorbells: self.tail_doorbells,
            head_doorbells: self.head_doorbells,
            enables: self.enables,
            access_faults: faults.first,
            access_faults_total: faults.total,
            violations: self.violations.first.clone(),
            violations_total: self.violations.total,
            ..Report::default()
        }
    }
}

/// So many violations are kept in full; the rest is counted.
const VIOLATIONS_KEPT: usize = 64;
