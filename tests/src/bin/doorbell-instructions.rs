//! What `tests/instructions` counts: reads of a null device, with the driver's part in functions of its own.
//!
//! `doorbell-instructions io DEPTH COUNT` runs about COUNT reads at a depth, `doorbell-instructions
//! empty-poll COUNT` polls an idle queue COUNT times. The software controller and the choice of blocks stay
//! outside of the functions that are counted; making the request, and taking the buffer back, are inside.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use doorbell::{
    Buffer, Clock, ControllerOptions, DmaBuf, DmaSpace, DmaSpaceConfig, HugePolicy, Lba, Namespace, Nsid,
    QueueConfig, QueuePair, Request,
};
use doorbell_emulator::{Emulator, EmulatorConfig};

/// Requests per doorbell, as in the published comparisons.
const BATCH: usize = 32;

/// One queue, its device, and buffers that are not in flight.
struct Rig {
    device: Arc<Emulator>,
    queue: QueuePair,
    namespace: Namespace,
    idle: Vec<DmaBuf>,
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
    let mut lbas = vec![Lba(0); batch];
    let (mut state, mut outstanding, mut done) = (1_u64, 0, 0);
    while done < count {
        while outstanding + batch <= depth {
            for lba in &mut lbas {
                // Knuth's linear congruential generator: the offsets only have to be spread.
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *lba = Lba((state >> 20) % (rig.namespace.blocks() - 8));
            }
            counted_submit(&mut rig, &lbas);
            outstanding += batch;
        }
        rig.device.step(batch);
        let reaped = counted_poll(&mut rig, batch);
        outstanding -= reaped;
        done += reaped as u64;
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

/// Submits one read of 4 KiB for each block address, with one doorbell.
#[inline(never)]
fn counted_submit(rig: &mut Rig, lbas: &[Lba]) {
    let mut plug = rig.queue.plug(u32::try_from(lbas.len()).unwrap_or(u32::MAX));
    for lba in lbas {
        let Some(buffer) = rig.idle.pop() else { return };
        let request = Request::read(&rig.namespace, *lba, buffer).user_data(lba.0);
        assert!(plug.submit(request).is_ok(), "a read was refused");
    }
}

/// Reaps up to `budget` reads, and keeps their buffers.
#[inline(never)]
fn counted_poll(rig: &mut Rig, budget: usize) -> usize {
    let idle = &mut rig.idle;
    rig.queue.poll(budget, |_, completion| {
        assert!(completion.result.is_ok(), "a read failed");
        if let Buffer::Whole(buffer) = completion.buffer {
            idle.push(buffer);
        }
    })
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
        let idle = (0..depth).map(|_| pool.take()).collect::<Option<Vec<_>>>().context("no buffers")?;
        Ok(Self { device, queue, namespace, idle })
    }
}
