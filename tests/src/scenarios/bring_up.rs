//! Bring-up of a controller that is well, in all the forms it may have.

use anyhow::{Result, ensure};
use doorbell::ControllerError;
use doorbell_spec::Transport;

use crate::scenario::scenarios;
use crate::{Place, Rig, by_hand};

scenarios! {
    Nothing:
        a_controller_comes_up_and_says_what_it_is,
        a_controller_can_be_opened_again_after_it_was_closed,
        a_controller_that_was_dropped_can_be_opened_again,
        a_running_controller_is_reset_before_it_is_used;
    Pci:
        intx_is_off_and_bus_mastering_is_on;
    Emulator:
        the_device_may_access_memory_only_while_it_is_driven,
        pages_above_4_kib_are_used_or_refused_with_the_reason,
        event_requests_are_as_many_as_aerl_allows,
        a_controller_with_events_outstanding_is_dropped,
        fewer_queues_than_asked_for_are_granted,
        the_smaller_of_two_queue_counts_decides,
        the_largest_number_of_queues_is_never_65536,
        queue_2_of_1_is_a_typed_error,
}

fn a_controller_comes_up_and_says_what_it_is(place: &mut Place) -> Result<()> {
    let controller = place.controller()?;
    let names = controller.names();
    ensure!(!names.model.is_empty() && !names.serial.is_empty(), "{names:?}");
    ensure!(controller.version().major() >= 1, "{:?}", controller.version());
    let namespaces = controller.namespaces();
    let found: Vec<(u32, u32)> = namespaces.iter().map(|it| (it.nsid().0, it.block_bytes())).collect();
    ensure!(found == [(1, 512), (2, 4096)], "{found:?}");
    ensure!(controller.queue_pairs_max() >= 1 && controller.depth_max() >= 1);
    Ok(controller.close()?)
}

fn a_controller_can_be_opened_again_after_it_was_closed(place: &mut Place) -> Result<()> {
    let mut transport = place.transport()?;
    for _ in 0..3 {
        let controller = place.options().open_transport(transport)?;
        let mut rig = Rig::on(place, controller, 8)?;
        rig.exercise(20)?;
        rig.close()?;
        transport = place.transport()?;
    }
    Ok(())
}

fn a_controller_that_was_dropped_can_be_opened_again(place: &mut Place) -> Result<()> {
    for _ in 0..2 {
        let mut rig = Rig::new(place)?;
        rig.exercise(20)?;
    }
    Ok(())
}

/// A process that was killed leaves its controller enabled.
fn a_running_controller_is_reset_before_it_is_used(place: &mut Place) -> Result<()> {
    let transport = place.transport()?;
    by_hand::leave_enabled(&*transport, place.clock())?;
    let controller = place.options().open_transport(transport)?;
    let mut rig = Rig::on(place, controller, 8)?;
    rig.exercise(20)?;
    rig.close()
}

fn intx_is_off_and_bus_mastering_is_on(place: &mut Place) -> Result<()> {
    const BUS_MASTER: u16 = 1 << 2;
    const INTX_DISABLE: u16 = 1 << 10;
    let rig = Rig::new(place)?;
    let command = place.pci_command()?;
    ensure!(command & BUS_MASTER != 0, "bus mastering is off: {command:#06x}");
    ensure!(command & INTX_DISABLE != 0, "INTx is on: {command:#06x}");
    rig.close()?;
    let command = place.pci_command()?;
    ensure!(command & BUS_MASTER == 0, "bus mastering is still on: {command:#06x}");
    Ok(())
}

fn the_device_may_access_memory_only_while_it_is_driven(place: &mut Place) -> Result<()> {
    place.expect_violations();
    let emulator = place.emulator("size=1M")?;
    let controller = place.options().open_transport(emulator.clone())?;
    Rig::on(place, controller, 4)?.close()?;
    ensure!(emulator.report().is_clean(), "{:?}", emulator.report());
    // Enabled by somebody else, without bus mastering, its first fetch is refused and is in the report.
    by_hand::leave_enabled(&*emulator, place.clock())?;
    by_hand::ring_admin_queue(&*emulator)?;
    emulator.relax(place.clock());
    ensure!(!emulator.report().is_clean(), "bus mastering was still on after the controller was closed");
    Ok(())
}

fn pages_above_4_kib_are_used_or_refused_with_the_reason(place: &mut Place) -> Result<()> {
    for (page, most) in [("4k", "4k"), ("8k", "64k"), ("16k", "16k"), ("64k", "128M")] {
        let mut rig = Rig::emulated(place, &format!("size=64M,mpsmin={page},mpsmax={most},mdts=0"), 8)?;
        rig.exercise(20)?;
        let content = crate::bytes::pattern(7, 1 << 20);
        rig.write(3, &content)?;
        rig.expect(3, &content)?;
        rig.close()?;
    }
    let emulator = place.emulator("mpsmin=128k,mpsmax=128k")?;
    match place.options().open_transport(emulator) {
        Err(ControllerError::Unsupported { why }) => ensure!(why.contains("128 KiB"), "{why}"),
        other => anyhow::bail!("pages of 128 KiB: {other:?}"),
    }
    Ok(())
}

fn event_requests_are_as_many_as_aerl_allows(place: &mut Place) -> Result<()> {
    for (aerl, armed) in [(0, 1), (1, 2), (3, 4), (255, 4)] {
        let emulator = place.emulator(&format!("size=1M,aerl={aerl}"))?;
        let controller = place.options().open_transport(emulator.clone())?;
        controller.poll_event()?;
        emulator.step(64);
        ensure!(emulator.report().event_requests == armed, "AERL {aerl}: {:?}", emulator.report());
        controller.close()?;
        ensure!(emulator.report().outstanding == 0, "{:?}", emulator.report());
    }
    Ok(())
}

fn a_controller_with_events_outstanding_is_dropped(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=1M")?;
    let space = place.space();
    for _ in 0..3 {
        let controller = place.options().space(&space).open_transport(emulator.clone())?;
        emulator.step(64);
        ensure!(emulator.report().event_requests > 0);
        drop(controller);
        ensure!(emulator.report().outstanding == 0, "{:?}", emulator.report());
        let stats = space.stats();
        ensure!((stats.used_bytes, stats.leaked_bytes, stats.mappers) == (0, 0, 0), "{stats:?}");
    }
    Ok(())
}

fn fewer_queues_than_asked_for_are_granted(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=1M,queues=3")?;
    let controller = place.options().queue_pairs(16).open_transport(emulator)?;
    ensure!(controller.queue_pairs_max() == 3, "{}", controller.queue_pairs_max());
    let queues =
        (0..3).map(|_| controller.create_queue(Default::default())).collect::<Result<Vec<_>, _>>()?;
    ensure!(matches!(
        controller.create_queue(Default::default()),
        Err(ControllerError::NoQueueLeft { granted: 3 })
    ));
    drop(queues);
    Ok(controller.close()?)
}

fn the_smaller_of_two_queue_counts_decides(place: &mut Place) -> Result<()> {
    for (config, pairs) in [("nsqa=5,ncqa=2", 2), ("nsqa=2,ncqa=5", 2), ("nsqa=1,ncqa=64", 1)] {
        let emulator = place.emulator(&format!("size=1M,{config}"))?;
        let controller = place.options().open_transport(emulator)?;
        ensure!(controller.queue_pairs_max() == pairs, "{config}: {}", controller.queue_pairs_max());
        let mut rig = Rig::on(place, controller, 4)?;
        rig.exercise(10)?;
        rig.close()?;
    }
    Ok(())
}

/// 0xFFFF in Number of Queues is not allowed: the software controller refuses it.
fn the_largest_number_of_queues_is_never_65536(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=1M,queues=65535")?;
    let controller = place.options().queue_pairs(u16::MAX).open_transport(emulator)?;
    ensure!(controller.queue_pairs_max() == 65_534, "{}", controller.queue_pairs_max());
    Ok(controller.close()?)
}

fn queue_2_of_1_is_a_typed_error(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=1M,queues=1")?;
    let controller = place.options().open_transport(emulator)?;
    let first = controller.create_queue(Default::default())?;
    ensure!(first.id().0 == 1, "{:?}", first.id());
    match controller.create_queue(Default::default()) {
        Err(error @ ControllerError::NoQueueLeft { granted: 1 }) => {
            ensure!(error.to_string().contains("--numjobs"), "{error}");
        }
        other => anyhow::bail!("the second queue of one: {other:?}"),
    }
    // The number is free again as soon as the queue is gone.
    drop(first);
    ensure!(controller.create_queue(Default::default())?.id().0 == 1);
    Ok(controller.close()?)
}
