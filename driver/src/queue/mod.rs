//! Queue pairs: a submission queue, a completion queue, the commands between them.
//!
//! ```text
//!   submit ─► check ─► slot + CID ─► PRPs ─► entry in the ring ─┐ plug
//!                                                               ▼
//!                                                     doorbell, once a batch
//!   callback ◄─ buffer, latency ◄─ slot by CID ◄─ entry by phase (poll)
//! ```
//!
//! A queue pair belongs to one thread. Everything it needs is allocated when it is made.

mod batch;
mod check;
mod config;
mod doorbell;
mod entry;
mod ids;
mod latency;
mod memory;
mod pair;
mod plug;
mod poll;
mod prp;
mod quick;
mod reap;
mod ring;
mod slot;
mod slots;
mod source;
mod split;
mod stats;
mod submit;

#[cfg(test)]
mod prp_tests;
#[cfg(all(test, feature = "emulator"))]
mod wrap_tests;

pub(crate) use check::Limits;
pub use config::{ClassWeights, QueueConfig, Statistics};
pub(crate) use doorbell::{QueueDoorbell, RegisterUse};
pub use ids::Generations;
pub(crate) use ids::{CidLayout, CommandIds, SlotIndex};
pub use latency::{LatencyBucket, LatencyHistogram};
pub(crate) use memory::SharedMemory;
pub use pair::QueuePair;
pub(crate) use pair::QueueParts;
pub use plug::Plug;
pub(crate) use prp::PrpLists;
pub(crate) use ring::{CompletionRing, SubmissionRing};
pub(crate) use source::SlotSource;
pub(crate) use stats::Counters;
pub use stats::{QueueMonitor, QueueStats};
pub use submit::{Cancelled, Rejected, RequestHandle};
