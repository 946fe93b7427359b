//! What `tests/instructions` counts: reads of a null device, with the driver's part in functions of its own.
//!
//! `doorbell-instructions io DEPTH COUNT` runs about COUNT reads at a depth, `doorbell-instructions
//! empty-poll COUNT` polls an idle queue COUNT times. The software controller and the choice of blocks stay
//! outside of the functions that are counted; making the request is inside.

use std::sync::Arc;

use anyhow::{Result, bail};
use doorbell::{
    Buffer, Clock, ControllerOptions, DmaPool, DmaSpace, DmaSpaceConfig, HugePolicy, Lba, Namespace, Nsid,
    QueueConfig, QueuePair, Request,
};
use doorbell_emulator::{Emulator, EmulatorConfig};

/// Requests per doorbell, as in the published comparisons.
const BATCH: usize = 32;

/// One queue, its device, and buffers for all of its depth.
struct Rig {
    device: Arc<Emulator>,
    queue: QueuePair,
    namespace: Namespace,
    pool: DmaPool,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["io", depth, count] => run_reads(depth.parse()?, count.parse()?),
        ["empty-poll", count] => poll_empty(count.parse()?),
        _ => bail!("usage: doorbell-instructions io DEPTH COUNT | empty-poll COUNT"),
    }
}

fn run_reads(depth: usize, count: u64) -> Result<()> {
    let mut rig = Rig::new(depth)?;
    let batch = depth.min(BATCH);
    rig.fill()?;
    let mut done = 0;
    while done < count {
        rig.device.step(batch);
        done += counted_turn(&mut rig.queue, &rig.namespace, batch) as u64;
    }
    Ok(())
}

fn poll_empty(count: u64) -> Result<()> {
    let mut rig = Rig::new(1)?;
    for _ in 0..count {
        counted_empty_poll(&mut rig.queue);
    }
    Ok(())
}

/// Reaps a batch of reads, and submits another for each with its buffer, with one doorbell for all: the
/// closed loop of a thread that keeps its queue full.
///
/// The caller's number is where the buffer is read from, again and again: so no choice of places is counted.
#[inline(never)]
fn counted_turn(queue: &mut QueuePair, namespace: &Namespace, batch: usize) -> usize {
    let mut failed = 0;
    let reaped = queue.poll(batch, |plug, completion| {
        failed += u32::from(completion.result.is_err());
        let Buffer::Whole(buffer) = completion.buffer else { return };
        let place = completion.user_data;
        let request = Request::read(namespace, Lba(place), buffer).user_data(place);
        assert!(plug.submit(request).is_ok(), "a read was refused");
    });
    assert_eq!(failed, 0, "a read failed");
    reaped
}

/// Polls a queue that has nothing.
#[inline(never)]
fn counted_empty_poll(queue: &mut QueuePair) {
    queue.poll(BATCH, |_, _| ());
}

impl Rig {
    fn new(depth: usize) -> Result<Self> {
        let config: EmulatorConfig = "backend=null,size=1G,mqes=2048".parse()?;
        let device = Emulator::new(config, Clock::monotonic())?;
        let space = DmaSpace::new(DmaSpaceConfig::default().with_policy(HugePolicy::Never));
        let controller = ControllerOptions::new().space(&space).open_transport(device.clone())?;
        let namespace = controller.namespace(Nsid(1))?;
        let queue = controller.create_queue(QueueConfig::with_depth(u32::try_from(depth)?))?;
        let pool = space.pool(4096, depth)?;
        Ok(Self { device, queue, namespace, pool })
    }

    /// Has as many reads outstanding as there are buffers.
    fn fill(&mut self) -> Result<()> {
        let mut state = 1_u64;
        while let Some(buffer) = self.pool.take() {
            // Knuth's linear congruential generator: the places only have to be spread.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let place = (state >> 20) % (self.namespace.blocks() - 8);
            let request = Request::read(&self.namespace, Lba(place), buffer).user_data(place);
            self.queue.submit(request).map_err(|refused| refused.error)?;
        }
        Ok(())
    }
}
