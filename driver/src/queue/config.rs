//! What a queue pair is made with.

use doorbell_spec::Clock;

use crate::ids::SharedIds;

/// The configuration of a queue pair. `QueueConfig::default()` suits most.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QueueConfig {
    /// How many commands may be outstanding: 1 to the controller's limit. `None` is 128, or the
    /// controller's limit if that is less.
    pub depth: Option<u32>,
    /// How the I/O classes share the queue.
    pub class_weights: ClassWeights,
    /// The interrupt vector that completions signal; `None` (the default) for a polled queue.
    pub interrupt_vector: Option<u16>,
    /// The clock that latencies are measured with; `None` is the controller's.
    pub clock: Option<Clock>,
    /// How latencies are measured.
    pub statistics: Statistics,
    /// How many requests a plug holds before it rings by itself: 1 to
    /// [`PLUG_LIMIT_MAX`](QueueConfig::PLUG_LIMIT_MAX), which is the default.
    pub plug_limit: u32,
    /// Command identifiers that several queue pairs, on any threads and controllers, draw from one set. The
    /// queue is as deep as there are of them, and [`depth`](QueueConfig::depth) says nothing else. `None`
    /// (the default) for identifiers of its own.
    ///
    /// A request that finds none free is refused with [`QueueFull`](crate::SubmitError::QueueFull), and the
    /// queue pair is in line from then on: the next that is released goes to whoever has waited longest. It
    /// leaves the line when it is polled for a while and nothing was submitted again.
    pub shared_ids: Option<SharedIds>,
}

/// How the latencies of a queue pair's requests are measured. Counters are kept in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Statistics {
    /// The clock is read once per poll that reaps, again after every 32 completions of it, and once when a
    /// batch is rung outside of a poll; what rings within a poll has the poll's last reading. A latency is
    /// right to within the length of a batch, its callbacks included.
    #[default]
    Cached,
    /// The clock is read for every request when it is posted, and for every completion.
    PerRequest,
    /// No clock and no histogram: completions have the latency 0.
    Off,
}

/// How the I/O classes share a queue, as parts of its depth while both want it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassWeights {
    /// Requests that somebody waits for.
    pub sync: u16,
    /// Requests that nobody waits for.
    pub r#async: u16,
}

impl QueueConfig {
    /// The depth if none is asked for.
    pub const DEPTH_DEFAULT: u32 = 128;

    /// The most requests that wait for one ring of the doorbell.
    pub const PLUG_LIMIT_MAX: u32 = 32;

    /// The default with this depth.
    #[must_use]
    pub fn with_depth(depth: u32) -> Self {
        Self { depth: Some(depth), ..Self::default() }
    }
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            depth: None,
            class_weights: ClassWeights { sync: 1, r#async: 1 },
            interrupt_vector: None,
            clock: None,
            statistics: Statistics::Cached,
            plug_limit: Self::PLUG_LIMIT_MAX,
            shared_ids: None,
        }
    }
}
