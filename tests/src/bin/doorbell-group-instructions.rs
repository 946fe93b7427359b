//! What `tests/group-instructions` counts: reads through a group of one and without a group, reads of one
//! busy member beside idle ones, reads that are answered by a request for another member, and polls of idle
//! queues.
//!
//! `doorbell-group-instructions plain|one DEPTH COUNT`, `busy IDLE COUNT`, `mirror COUNT`,
//! `plain-empty COUNT`, `empty MEMBERS COUNT`. The software controllers stay outside of what is counted.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use doorbell::{
    Buffer, Clock, Controller, ControllerOptions, DmaPool, DmaSpace, DmaSpaceConfig, HugePolicy, Lba, Member,
    Namespace, Nsid, PollGroup, QueueConfig, QueuePair, Request,
};
use doorbell_emulator::Emulator;

/// Requests per doorbell, as in the published comparisons.
const BATCH: usize = 32;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["plain", depth, count] => run_plain(depth.parse()?, count.parse()?),
        ["one", depth, count] => run_reads(depth.parse()?, 0, count.parse()?),
        ["busy", idle, count] => run_reads(128, idle.parse()?, count.parse()?),
        ["mirror", count] => run_mirror(count.parse()?),
        ["plain-empty", count] => poll_plain_empty(count.parse()?),
        ["empty", members, count] => poll_empty(members.parse()?, count.parse()?),
        _ => bail!(
            "usage: plain|one DEPTH COUNT | busy IDLE COUNT | mirror COUNT | plain-empty COUNT | \
             empty MEMBERS COUNT"
        ),
    }
}

/// A device, and what its requests need.
struct Side {
    device: Arc<Emulator>,
    controller: Controller,
    namespace: Namespace,
    pool: DmaPool,
}

impl Side {
    fn new(space: &DmaSpace, depth: usize) -> Result<Self> {
        let config = "backend=null,size=1G,mqes=2048,queues=100".parse()?;
        let device = Emulator::new(config, Clock::monotonic())?;
        let options = ControllerOptions::new().space(space).queue_pairs(100);
        let controller = options.open_transport(device.clone())?;
        let namespace = controller.namespace(Nsid(1))?;
        let pool = space.pool(4096, depth)?;
        Ok(Self { device, controller, namespace, pool })
    }

    fn queue(&self, depth: usize) -> Result<QueuePair> {
        Ok(self.controller.create_queue(QueueConfig::with_depth(u32::try_from(depth)?))?)
    }

    /// Has as many reads outstanding as there are buffers.
    fn fill(&self, queue: &mut QueuePair, lbas: &[Lba]) -> Result<()> {
        for lba in lbas.iter().cycle() {
            let Some(buffer) = self.pool.take() else { break };
            let request = Request::read(&self.namespace, *lba, buffer);
            queue.submit(request).map_err(|refused| refused.error)?;
        }
        Ok(())
    }
}

fn space() -> DmaSpace {
    DmaSpace::new(DmaSpaceConfig::default().with_policy(HugePolicy::Never))
}

fn run_plain(depth: usize, count: u64) -> Result<()> {
    let side = Side::new(&space(), depth)?;
    let mut queue = side.queue(depth)?;
    let lbas = vec![Lba(8); depth.min(BATCH)];
    side.fill(&mut queue, &lbas)?;
    let mut done = 0;
    while done < count {
        side.device.step(lbas.len());
        done += counted_plain(&mut queue, &side.namespace, &lbas) as u64;
    }
    Ok(())
}

#[inline(never)]
fn counted_plain(queue: &mut QueuePair, namespace: &Namespace, lbas: &[Lba]) -> usize {
    let mut next = lbas.iter();
    queue.poll(lbas.len(), |plug, completion| {
        let (Ok(_), Buffer::Whole(buffer)) = (completion.result, completion.buffer) else { return };
        let Some(lba) = next.next() else { return };
        let request = Request::read(namespace, *lba, buffer).user_data(completion.user_data);
        assert!(plug.submit(request).is_ok(), "a read was refused");
    })
}

fn run_reads(depth: usize, idle: usize, count: u64) -> Result<()> {
    let side = Side::new(&space(), depth)?;
    let mut group = PollGroup::new();
    for _ in 0..idle / 2 {
        group.add(side.queue(8)?);
    }
    let busy = group.add(side.queue(depth)?);
    for _ in idle / 2..idle {
        group.add(side.queue(8)?);
    }
    let lbas = vec![Lba(8); depth.min(BATCH)];
    side.fill(group.queue_mut(busy).context("a member")?, &lbas)?;
    let mut done = 0;
    while done < count {
        side.device.step(lbas.len());
        done += counted_group(&mut group, &side.namespace, &lbas) as u64;
    }
    Ok(())
}

#[inline(never)]
fn counted_group(group: &mut PollGroup, namespace: &Namespace, lbas: &[Lba]) -> usize {
    let mut next = lbas.iter();
    group.poll(lbas.len(), |plug, member, completion| {
        let (Ok(_), Buffer::Whole(buffer)) = (completion.result, completion.buffer) else { return };
        let Some(lba) = next.next() else { return };
        let request = Request::read(namespace, *lba, buffer).user_data(completion.user_data);
        assert!(plug.submit(member, request).is_ok(), "a read was refused");
    })
}

/// Reads of the first side whose buffers are then read into from the second, and so on.
fn run_mirror(count: u64) -> Result<()> {
    let space = space();
    let sides = [Side::new(&space, BATCH)?, Side::new(&space, BATCH)?];
    let mut group = PollGroup::new();
    let members = [group.add(sides[0].queue(BATCH)?), group.add(sides[1].queue(BATCH)?)];
    sides[0].fill(group.queue_mut(members[0]).context("a member")?, &[Lba(8)])?;
    let mut done = 0;
    while done < count {
        for side in &sides {
            side.device.step(BATCH);
        }
        done += counted_mirror(&mut group, [&sides[0].namespace, &sides[1].namespace], members) as u64;
    }
    Ok(())
}

#[inline(never)]
fn counted_mirror(group: &mut PollGroup, namespaces: [&Namespace; 2], members: [Member; 2]) -> usize {
    group.poll(BATCH, |plug, member, completion| {
        let (Ok(_), Buffer::Whole(buffer)) = (completion.result, completion.buffer) else { return };
        let other = usize::from(member == members[0]);
        let request = Request::read(namespaces[other], Lba(8), buffer).user_data(completion.user_data);
        assert!(plug.submit(members[other], request).is_ok(), "a read was refused");
    })
}

fn poll_plain_empty(count: u64) -> Result<()> {
    let side = Side::new(&space(), 8)?;
    let mut queue = side.queue(8)?;
    for _ in 0..count {
        counted_plain_empty(&mut queue);
    }
    Ok(())
}

#[inline(never)]
fn counted_plain_empty(queue: &mut QueuePair) {
    queue.poll(BATCH, |_, _| ());
}

fn poll_empty(members: usize, count: u64) -> Result<()> {
    let side = Side::new(&space(), 8)?;
    let mut group = PollGroup::new();
    for _ in 0..members {
        group.add(side.queue(8)?);
    }
    for _ in 0..count {
        counted_empty(&mut group);
    }
    Ok(())
}

#[inline(never)]
fn counted_empty(group: &mut PollGroup) {
    group.poll(BATCH, |_, _, _| ());
}
