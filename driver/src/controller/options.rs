//! How a controller is opened.

use std::sync::Arc;
use std::time::Duration;

use doorbell_hugepages::{DmaSpace, DmaSpaceConfig};
use doorbell_spec::{Clock, Transport};

use super::{AdminShadow, Controller, ShadowDoorbells, Shared, open};
use crate::error::ControllerError;
use crate::queue::Generations;
use crate::target::Target;

/// Options of [`Controller::open`], as a builder.
///
/// ```
/// use doorbell::{ControllerOptions, DmaSpace, DmaSpaceConfig};
///
/// // Two controllers that see the same buffers.
/// let space = DmaSpace::new(DmaSpaceConfig::default());
/// let options = ControllerOptions::new().space(&space);
/// let (a, b) = (options.open("emu:size=64M")?, options.open("emu:size=64M")?);
/// assert_eq!(a.space().id(), b.space().id());
/// # Ok::<(), doorbell::ControllerError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ControllerOptions {
    pub(super) space: Option<DmaSpace>,
    pub(super) clock: Clock,
    pub(super) queue_pairs: u16,
    pub(super) transfer_bytes_max: u64,
    pub(super) admin_timeout: Duration,
    pub(super) generations: Generations,
    pub(super) shadow_doorbells: ShadowDoorbells,
    pub(super) admin_shadow: AdminShadow,
}

impl ControllerOptions {
    /// The defaults: a memory space of its own, the machine's clock, up to 64 queue pairs, commands of up
    /// to 2 MiB (or less, if the controller says so), 10 s for an admin command, shadow doorbells if the
    /// controller offers them.
    #[must_use]
    pub fn new() -> Self {
        Self {
            space: None,
            clock: Clock::monotonic(),
            queue_pairs: 64,
            transfer_bytes_max: 2 << 20,
            admin_timeout: Duration::from_secs(10),
            generations: Generations::On,
            shadow_doorbells: ShadowDoorbells::WhenOffered,
            admin_shadow: AdminShadow::Mirrored,
        }
    }

    /// The memory that the controller will see. Several controllers in one space see the same buffers.
    #[must_use]
    pub fn space(mut self, space: &DmaSpace) -> Self {
        self.space = Some(space.clone());
        self
    }

    /// The clock that every wait and every latency is measured with.
    #[must_use]
    pub fn clock(mut self, clock: &Clock) -> Self {
        self.clock = clock.clone();
        self
    }

    /// How many I/O queue pairs to ask the controller for (1 to 65,534). It may grant fewer.
    #[must_use]
    pub fn queue_pairs(mut self, count: u16) -> Self {
        self.queue_pairs = count.clamp(1, QUEUE_PAIRS_MAX);
        self
    }

    /// The most data of one command in bytes, below what the controller allows (4 KiB to 64 MiB). More
    /// than 2 MiB takes further PRP list pages for each queue.
    #[must_use]
    pub fn transfer_bytes_max(mut self, bytes: u64) -> Self {
        self.transfer_bytes_max = bytes.clamp(4096, 64 << 20);
        self
    }

    /// How long one admin command may take.
    #[must_use]
    pub fn admin_timeout(mut self, timeout: Duration) -> Self {
        self.admin_timeout = timeout;
        self
    }

    /// Whether command identifiers carry a generation, on all queues. [`Generations::Off`] is for a device
    /// that needs identifiers below the queue's depth.
    #[must_use]
    pub fn generations(mut self, generations: Generations) -> Self {
        self.generations = generations;
        self
    }

    /// Whether queues are moved by shadow doorbells. [`ShadowDoorbells::Never`] is for measuring, and for a
    /// controller that has them and has them wrong.
    #[must_use]
    pub fn shadow_doorbells(mut self, shadow_doorbells: ShadowDoorbells) -> Self {
        self.shadow_doorbells = shadow_doorbells;
        self
    }

    /// Whether the admin queue has shadow doorbells too, where there are such. Controllers differ in what
    /// they expect; the default suits all that are known.
    #[must_use]
    pub fn admin_shadow(mut self, admin_shadow: AdminShadow) -> Self {
        self.admin_shadow = admin_shadow;
        self
    }

    /// Opens the device named `target`, see [`Controller::open`].
    ///
    /// # Errors
    /// As [`Controller::open`].
    pub fn open(&self, target: &str) -> Result<Controller, ControllerError> {
        let target: Target = target.parse()?;
        self.open_transport(open::transport(&target)?)
    }

    /// Opens the device behind a transport that the caller made.
    ///
    /// # Errors
    /// As [`Controller::open`].
    pub fn open_transport(&self, transport: Arc<dyn Transport>) -> Result<Controller, ControllerError> {
        let space = match &self.space {
            Some(space) => space.clone(),
            None => {
                let node = transport.identity().numa_node;
                DmaSpace::new(DmaSpaceConfig::default().with_numa_node(node))
            }
        };
        Ok(Controller { shared: Shared::bring_up(transport, space, self)? })
    }
}

impl Default for ControllerOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// The most that Number of Queues can ask for: 0xFFFF, zero-based, is not allowed (NVMe Base 2.0, 5.27.1.5).
const QUEUE_PAIRS_MAX: u16 = 65_534;
