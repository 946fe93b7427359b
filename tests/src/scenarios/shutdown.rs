//! Shutdown: notified, bounded, and no memory freed that the device may still reach.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use doorbell::{ControllerError, Lba, Request};
use doorbell_emulator::fault::{Action, Match, Point, Rule};
use doorbell_spec::Transport;
use doorbell_spec::command::AdminOpcode;
use doorbell_spec::register::{CC, CSTS};

use crate::scenario::scenarios;
use crate::{Place, Rig};

scenarios! {
    Nothing:
        close_gives_all_memory_back;
    Emulator:
        the_controller_is_told_before_it_is_disabled,
        a_shutdown_that_takes_long_is_waited_for,
        a_shutdown_that_never_ends_returns_within_rtd3e,
        a_controller_with_open_queues_is_not_closed,
        rings_are_freed_only_after_the_device_has_let_go,
        the_device_reaches_no_memory_after_close,
}

fn close_gives_all_memory_back(place: &mut Place) -> Result<()> {
    let transport = place.transport()?;
    let space = place.space();
    let controller = place.options().space(&space).open_transport(transport)?;
    let mut rig = Rig::on(place, controller, 16)?;
    rig.exercise(40)?;
    rig.close()?;
    let stats = space.stats();
    ensure!((stats.used_bytes, stats.leaked_bytes, stats.mappers) == (0, 0, 0), "{stats:?}");
    Ok(())
}

fn the_controller_is_told_before_it_is_disabled(place: &mut Place) -> Result<()> {
    // A shutdown takes a moment, so that one which is not waited for is seen.
    let emulator = place.emulator("size=1M,shutdown=50ms")?;
    let controller = place.options().open_transport(emulator.clone())?;
    let start = place.clock().now();
    controller.close()?;
    ensure!(place.since(start) >= Duration::from_millis(50), "{:?}", place.since(start));
    ensure!(emulator.read32(CC)? & 1 == 0 && emulator.read32(CSTS)? & 1 == 0, "it is still enabled");
    Ok(())
}

fn a_shutdown_that_takes_long_is_waited_for(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=1M,rtd3e=10s,shutdown=9s")?;
    place.options().open_transport(emulator)?.close()?;
    Ok(())
}

fn a_shutdown_that_never_ends_returns_within_rtd3e(place: &mut Place) -> Result<()> {
    let space = place.space();
    let emulator = place.emulator("size=1M,rtd3e=3s,shutdown=never,to=500ms")?;
    let controller = place.options().space(&space).open_transport(emulator)?;
    let start = place.clock().now();
    match controller.close() {
        Err(ControllerError::Timeout { span, .. }) => ensure!(span == Duration::from_secs(3), "{span:?}"),
        other => bail!("a shutdown that never ends: {other:?}"),
    }
    let took = place.since(start);
    ensure!(took >= Duration::from_secs(3) && took < Duration::from_secs(5), "{took:?}");
    // It was disabled all the same, and so the memory is free.
    ensure!(space.stats().used_bytes == 0, "{:?}", space.stats());
    Ok(())
}

fn a_controller_with_open_queues_is_not_closed(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=1M")?;
    let controller = place.options().open_transport(emulator)?;
    let mut rig = Rig::on(place, controller, 4)?;
    let queue = rig.controller.create_queue(Default::default())?;
    drop(queue);
    let Rig { mut queue, namespace, controller, .. } = rig;
    match controller.close() {
        Err(ControllerError::QueuesOpen { open: 1, first }) => ensure!(first == queue.id(), "{first:?}"),
        other => bail!("closed under an open queue: {other:?}"),
    }
    // The queue still works, and the controller goes with it.
    queue.submit(Request::flush(&namespace)).map_err(|refused| refused.error)?;
    rig = Rig::emulated(place, "size=1M", 4)?;
    rig.close()
}

/// A queue whose deletion the device does not confirm keeps its memory until the controller is disabled.
fn rings_are_freed_only_after_the_device_has_let_go(place: &mut Place) -> Result<()> {
    for lost in [AdminOpcode::DeleteSubmissionQueue, AdminOpcode::DeleteCompletionQueue] {
        let space = place.space();
        let emulator = place.emulator("size=1M,latency=1s")?;
        let controller = place.options().space(&space).open_transport(emulator.clone())?;
        let before = space.stats().used_bytes;
        let mut rig = Rig::on(place, controller, 16)?;
        let with_queue = space.stats().used_bytes;
        ensure!(with_queue > before, "a queue takes memory");
        let buffer = rig.buffer(512)?;
        rig.submit(Request::read(&rig.namespace, Lba(0), buffer))?;
        emulator.step(8);
        let opcode = Some(lost.raw());
        emulator
            .faults()
            .arm(Rule::new(Match { point: Point::Admin, opcode, ..Match::default() }, Action::Drop));
        let Rig { queue, controller, .. } = rig;
        let mut ended = 0;
        let closed = queue.close(|_| ended += 1);
        ensure!(closed.is_err(), "{lost:?} was lost, and close did not say so");
        ensure!(ended == 1, "one request ended {ended} times");
        ensure!(space.stats().used_bytes >= with_queue, "memory was freed before {lost:?} had completed");
        // The device goes on: whatever it writes now goes where it was told to.
        place.clock().advance(Duration::from_secs(2));
        emulator.step(64);
        drop(controller);
        ensure!(space.stats().used_bytes == 0, "{:?}", space.stats());
    }
    Ok(())
}

fn the_device_reaches_no_memory_after_close(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=1M,latency=1ms")?;
    let controller = place.options().open_transport(emulator.clone())?;
    let mut rig = Rig::on(place, controller, 16)?;
    for lba in 0..8 {
        let buffer = rig.buffer(512)?;
        rig.submit(Request::read(&rig.namespace, Lba(lba), buffer))?;
    }
    emulator.step(4);
    drop(rig);
    place.clock().advance(Duration::from_secs(1));
    let moved = emulator.step(64);
    ensure!(moved == 0, "the device completed {moved} commands of queues that are gone");
    let report = emulator.report();
    report.is_clean().then_some(()).with_context(|| format!("{report:?}"))
}
