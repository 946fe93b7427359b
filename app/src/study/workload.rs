//! Setting Doorbell up for a comparison: controllers, queue pairs, buffers.

use std::sync::Arc;

use doorbell::emulator::{Emulator, EmulatorConfig};
use doorbell::{
    Clock, Controller, ControllerOptions, DmaSpace, DmaSpaceConfig, FairShare, Nsid, QueueConfig, SharedIds,
};

use super::contest::{Contestant, Rig};
use super::group::Group;
use super::lanes::{Lane, Lanes, Style};
use super::reads::Reads;
use super::site::Place;

/// Random reads, and the queues that they go through. All of it is driven by one thread.
#[derive(Clone, Debug)]
pub(super) struct Workload {
    pub(super) controllers: usize,
    /// Queue pairs of each controller.
    pub(super) lanes_each: usize,
    /// Requests outstanding on each queue pair.
    pub(super) depth: u32,
    pub(super) read_bytes: u32,
    pub(super) style: Style,
    pub(super) ids: Ids,
    /// The rest of each queue pair's configuration.
    pub(super) queue: QueueConfig,
}

/// Where command identifiers come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ids {
    /// Each queue pair has its own.
    Private,
    /// All queue pairs draw from one set, which has as many as there are requests.
    Shared(FairShare),
}

impl Workload {
    /// Random reads of `read_bytes` at depth 128 on one queue.
    pub(super) fn reads(read_bytes: u32, style: Style) -> Self {
        let (ids, queue) = (Ids::Private, QueueConfig::default());
        Self { controllers: 1, lanes_each: 1, depth: DEPTH, read_bytes, style, ids, queue }
    }

    /// The same on so many controllers.
    pub(super) fn on_controllers(self, controllers: usize) -> Self {
        Self { controllers, ..self }
    }

    /// Sets it up on software controllers of its own. Queues on several controllers are polled as a group.
    pub(super) fn set_up(&self, place: Place) -> anyhow::Result<Box<dyn Contestant>> {
        let space = DmaSpace::new(DmaSpaceConfig::default());
        let queue = self.queue_config()?;
        let (mut lanes, mut devices) = (Lanes::default(), Vec::new());
        for _ in 0..self.controllers {
            let device = controller()?;
            let controller = ControllerOptions::new().space(&space).open_transport(device.clone())?;
            for _ in 0..self.lanes_each {
                let place = lanes.lanes.len() as u64;
                lanes.lanes.push(self.lane(&controller, &queue, place)?);
            }
            lanes.controllers.push(controller);
            devices.push(device);
        }
        if self.controllers == 1 {
            return Ok(Box::new(Rig { load: lanes, controllers: devices, place }));
        }
        let load = Group::of(lanes, self.style);
        Ok(Box::new(Rig { load, controllers: devices, place }))
    }

    fn queue_config(&self) -> anyhow::Result<QueueConfig> {
        let mut config = self.queue.clone();
        match self.ids {
            Ids::Private => config.depth = Some(self.depth),
            Ids::Shared(fair_share) => {
                let lanes = u16::try_from(self.controllers * self.lanes_each)?;
                let ids = u16::try_from(self.depth)?.saturating_mul(lanes);
                config.shared_ids = Some(SharedIds::new(ids, lanes, fair_share)?);
            }
        }
        Ok(config)
    }

    fn lane(&self, controller: &Controller, config: &QueueConfig, place: u64) -> anyhow::Result<Lane> {
        let queue = controller.create_queue(config.clone())?;
        let pool = controller.space().pool(self.read_bytes as usize, self.depth as usize)?;
        let buffers = std::iter::from_fn(|| pool.take()).collect();
        let reads = Reads::new(controller.namespace(Nsid(1))?, buffers, place);
        Ok(Lane { queue, reads, style: self.style })
    }
}

/// A software controller whose commands cost it next to nothing. It has no thread.
pub(super) fn controller() -> anyhow::Result<Arc<Emulator>> {
    let config: EmulatorConfig = "backend=null,size=1G".parse()?;
    Ok(Emulator::new(config, Clock::monotonic())?)
}

/// Bytes of a block of it.
pub(super) const BLOCK_BYTES: u32 = 512;
/// How many blocks it has.
pub(super) const BLOCKS: u64 = (1 << 30) / BLOCK_BYTES as u64;
/// Requests outstanding in the publications.
pub(super) const DEPTH: u32 = 128;
