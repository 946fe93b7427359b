//! Shadow doorbells: no ring is missed, few registers are rung, and a controller that has them wrong is coped
//! with.

use std::sync::Barrier;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use doorbell::{
    AdminShadow, Controller, ControllerError, IoError, Lba, Nsid, QueueConfig, QueuePair, QueueStats,
    Request, ShadowDoorbells,
};
use doorbell_emulator::fault::{Action, Match, Point, Rule};
use doorbell_spec::command::AdminOpcode;
use doorbell_spec::{Clock, Status};

use crate::onlooker::Onlooker;
use crate::scenario::scenarios;
use crate::{Place, Random, Rig};

scenarios! {
    Nothing:
        rings_of_any_size_come_round_by_shadows,
        no_ring_is_missed_between_threads,
        shadows_are_not_used_when_they_are_not_wanted,
        the_admin_queue_works_with_its_shadows_and_without,
        a_reset_ends_the_shadows_and_bring_up_makes_new_ones,
        a_queue_that_is_made_again_starts_with_shadows_at_zero;
    Emulator:
        every_kind_of_controller_with_shadows_works,
        every_stride_has_its_shadows,
        a_controller_that_refuses_its_shadows_is_driven_without,
        a_controller_that_does_not_answer_is_no_controller,
        a_controller_that_ignores_its_shadows_is_found_out,
        a_reset_in_the_midst_of_use_ends_every_request,
        the_pages_are_freed_only_after_the_device_has_let_go,
        a_bring_up_that_fails_later_frees_the_pages_last,
        the_device_writes_no_event_index_after_close;
}

fn shadowed(place: &mut Place) -> Result<Controller> {
    let transport = place.shadowed()?;
    let controller = place.options().open_transport(transport)?;
    ensure!(controller.has_shadow_doorbells(), "the place's controller has no shadow doorbells");
    Ok(controller)
}

fn saved(stats: &QueueStats) -> u64 {
    stats.submission_doorbells_saved + stats.completion_doorbells_saved
}

fn rung(stats: &QueueStats) -> u64 {
    stats.submission_doorbells + stats.completion_doorbells
}

/// Also rings whose size is no power of two. The device sleeps whenever it has nothing to do, and the queue's
/// clock stands still: a ring that is missed is never made up for.
fn rings_of_any_size_come_round_by_shadows(place: &mut Place) -> Result<()> {
    let mut controller = shadowed(place)?;
    let mut random = Random::new(5);
    for depth in (1..=12).chain([31, 32, 62]) {
        let mut rig = Rig::on(place, controller, depth)?;
        rig.queue = frozen(&rig.controller, depth, rig.queue)?;
        for _ in 0..40 {
            let count = 1 + random.below(u64::from(depth));
            let mut plug = rig.queue.plug(0);
            for _ in 0..count {
                plug.submit(Request::flush(&rig.namespace)).map_err(|refused| refused.error)?;
            }
            drop(plug);
            let ended = rig.finish()?;
            ensure!(ended.len() as u64 == count && ended.iter().all(|it| it.result.is_ok()));
        }
        let stats = rig.queue.stats();
        ensure!(stats.doorbells_repeated == 0 && rung(&stats) > 0, "depth {depth}: {stats:?}");
        rig.queue.close(|_| ())?;
        controller = rig.controller;
    }
    Ok(controller.close()?)
}

/// A queue in the place of another, with a clock that stands still.
fn frozen(controller: &Controller, depth: u32, instead_of: QueuePair) -> Result<QueuePair> {
    instead_of.close(|_| ())?;
    let mut config = QueueConfig::with_depth(depth);
    config.clock = Some(Clock::virtual_time());
    Ok(controller.create_queue(config)?)
}

/// Two threads and a device that moves by itself, with clocks that stand still: whoever needs a ring gets it.
fn no_ring_is_missed_between_threads(place: &mut Place) -> Result<()> {
    let requests = if place.is_in_process() { 30_000 } else { 3_000 };
    let (transport, options) = place.threaded_shadowed()?;
    let controller = options.open_transport(transport)?;
    ensure!(controller.has_shadow_doorbells());
    let start = Barrier::new(2);
    let outcomes: Vec<Result<QueueStats>> = std::thread::scope(|scope| {
        let work = |depth| {
            start.wait();
            flush_again_and_again(&controller, depth, requests)
        };
        let handles = [1, 5].map(|depth| scope.spawn(move || work(depth)));
        handles.into_iter().map(|it| it.join().expect("the thread has not panicked")).collect()
    });
    for stats in outcomes {
        let stats = stats?;
        ensure!(stats.completed == requests && stats.doorbells_repeated == 0, "{stats:?}");
        ensure!(rung(&stats) + saved(&stats) >= 2 * requests / 5, "{stats:?}");
    }
    Ok(controller.close()?)
}

fn flush_again_and_again(controller: &Controller, depth: u32, requests: u64) -> Result<QueueStats> {
    let clock = Clock::monotonic();
    let deadline = clock.deadline(Duration::from_secs(120));
    let namespace = controller.namespace(Nsid(1))?;
    let mut config = QueueConfig::with_depth(depth);
    config.clock = Some(Clock::virtual_time());
    let mut queue = controller.create_queue(config)?;
    let mut left = requests;
    while left > 0 || queue.outstanding() > 0 {
        while left > 0 && queue.submit(Request::flush(&namespace)).is_ok() {
            left -= 1;
        }
        queue.poll(usize::MAX, |_, it| assert!(it.result.is_ok()));
        ensure!(!deadline.passed(&clock), "{left} requests are left after two minutes: {:?}", queue.stats());
    }
    let stats = queue.stats();
    queue.close(|_| ())?;
    Ok(stats)
}

fn shadows_are_not_used_when_they_are_not_wanted(place: &mut Place) -> Result<()> {
    let transport = place.shadowed()?;
    let options = place.options().shadow_doorbells(ShadowDoorbells::Never);
    let controller = options.open_transport(transport)?;
    ensure!(!controller.has_shadow_doorbells());
    let mut rig = Rig::on(place, controller, 16)?;
    rig.exercise(100)?;
    let stats = rig.queue.stats();
    ensure!(saved(&stats) == 0 && rung(&stats) > 0, "{stats:?}");
    rig.close()
}

fn the_admin_queue_works_with_its_shadows_and_without(place: &mut Place) -> Result<()> {
    for admin in [AdminShadow::Mirrored, AdminShadow::RegisterOnly] {
        let transport = place.shadowed()?;
        let controller = place.options().admin_shadow(admin).open_transport(transport)?;
        ensure!(controller.has_shadow_doorbells());
        use_admin_queue(place, controller)?;
    }
    Ok(())
}

/// More commands than its ring has entries, with event requests outstanding.
fn use_admin_queue(place: &Place, controller: Controller) -> Result<()> {
    for _ in 0..70 {
        controller.health()?;
    }
    for _ in 0..10 {
        controller.create_queue(QueueConfig::with_depth(3))?.close(|_| ())?;
    }
    let mut rig = Rig::on(place, controller, 4)?;
    rig.exercise(20)?;
    rig.close()
}

/// The place of a stale EventIdx: the same memory, and a device that was told of it before.
fn a_reset_ends_the_shadows_and_bring_up_makes_new_ones(place: &mut Place) -> Result<()> {
    let transport = place.shadowed()?;
    let space = place.space();
    for round in 0..4 {
        let controller = place.options().space(&space).open_transport(transport.clone())?;
        ensure!(controller.has_shadow_doorbells());
        let mut rig = Rig::on(place, controller, 5)?;
        rig.queue = frozen(&rig.controller, 5, rig.queue)?;
        rig.exercise(23 + round)?;
        rig.close()?;
        ensure!(space.stats().used_bytes == 0, "{:?}", space.stats());
        if round == 1 {
            transport.reset()?;
        }
    }
    Ok(())
}

/// The software controller reports a shadow that is not zero when its queue is created.
fn a_queue_that_is_made_again_starts_with_shadows_at_zero(place: &mut Place) -> Result<()> {
    let controller = shadowed(place)?;
    let mut rig = Rig::on(place, controller, 6)?;
    for round in 0..20 {
        rig.queue = frozen(&rig.controller, 6, rig.queue)?;
        ensure!(rig.queue.id().0 == 1, "{}", rig.queue.id());
        rig.exercise(round)?;
    }
    rig.close()
}

fn every_kind_of_controller_with_shadows_works(place: &mut Place) -> Result<()> {
    for offer in ["on", "io_only"] {
        for polling in ["on", "off"] {
            for admin in [AdminShadow::Mirrored, AdminShadow::RegisterOnly] {
                let config = format!("size=1M,shadow_doorbells={offer},shadow_polling={polling}");
                let emulator = place.emulator(&config)?;
                let controller = place.options().admin_shadow(admin).open_transport(emulator)?;
                use_admin_queue(place, controller)?;
            }
        }
    }
    Ok(())
}

fn every_stride_has_its_shadows(place: &mut Place) -> Result<()> {
    for stride in 0..=8 {
        let config = format!("size=1M,queues=1,stride={stride},shadow_doorbells=on,shadow_polling=off");
        let mut rig = Rig::emulated(place, &config, 7)?;
        ensure!(rig.controller.has_shadow_doorbells());
        rig.exercise(40)?;
        ensure!(saved(&rig.queue.stats()) > 0, "stride {stride}: {:?}", rig.queue.stats());
        rig.close()?;
    }
    Ok(())
}

/// A fault at Doorbell Buffer Config.
fn at_config(action: Action) -> Rule {
    let opcode = Some(AdminOpcode::DoorbellBufferConfig.raw());
    Rule::new(Match { point: Point::Admin, opcode, ..Match::default() }, action)
}

fn a_controller_that_refuses_its_shadows_is_driven_without(place: &mut Place) -> Result<()> {
    for status in [Status::INVALID_FIELD, Status::INVALID_OPCODE, Status::INTERNAL_ERROR] {
        let emulator = place.emulator("size=1M,shadow_doorbells=on")?;
        emulator.faults().arm(at_config(Action::Status(status)));
        let controller = place.options().open_transport(emulator)?;
        ensure!(!controller.has_shadow_doorbells());
        let mut rig = Rig::on(place, controller, 8)?;
        rig.exercise(50)?;
        ensure!(saved(&rig.queue.stats()) == 0, "{:?}", rig.queue.stats());
        rig.close()?;
    }
    Ok(())
}

/// It may have taken the pages or not: nothing it says can be relied on any more.
fn a_controller_that_does_not_answer_is_no_controller(place: &mut Place) -> Result<()> {
    let space = place.space();
    let emulator = place.emulator("size=1M,shadow_doorbells=on")?;
    emulator.faults().arm(at_config(Action::Drop));
    match place.options().space(&space).open_transport(emulator) {
        Err(ControllerError::Timeout { step, .. }) => ensure!(step == "Doorbell Buffer Config", "{step}"),
        other => bail!("a controller that does not answer: {other:?}"),
    }
    ensure!(space.stats().used_bytes == 0, "{:?}", space.stats());
    Ok(())
}

/// It accepts the command and does nothing of the kind. Only the first request finds it awake.
fn a_controller_that_ignores_its_shadows_is_found_out(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=1M,shadow_doorbells=on")?;
    emulator.faults().arm(at_config(Action::Status(Status::SUCCESS)));
    let controller = place.options().open_transport(emulator)?;
    ensure!(controller.has_shadow_doorbells(), "it said so");
    let mut rig = Rig::on(place, controller, 4)?;
    let mut slow = 0;
    for _ in 0..200 {
        let start = place.clock().now();
        ensure!(rig.run(Request::flush(&rig.namespace))?.result.is_ok());
        let took = place.since(start);
        ensure!(took < Duration::from_millis(100), "a request took {took:?}");
        slow += u32::from(took > Duration::from_millis(15));
    }
    let stats = rig.queue.stats();
    ensure!((1..=4).contains(&slow), "{slow} requests of 200 waited for a ring: {stats:?}");
    ensure!((2..=8).contains(&stats.doorbells_repeated), "{stats:?}");
    rig.exercise(50)?;
    rig.close()
}

fn a_reset_in_the_midst_of_use_ends_every_request(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=1M,shadow_doorbells=on,latency=1ms")?;
    let space = place.space();
    let controller = place.options().space(&space).open_transport(emulator.clone())?;
    let mut rig = Rig::on(place, controller, 16)?;
    for lba in 0..16 {
        let buffer = rig.buffer(512)?;
        rig.submit(Request::read(&rig.namespace, Lba(lba), buffer))?;
    }
    emulator.step(8);
    doorbell::Transport::reset(&*emulator)?;
    let ended = rig.finish()?;
    let failed = ended.iter().filter(|it| it.result == Err(IoError::ControllerFailed)).count();
    ensure!(ended.len() == 16 && failed > 0, "{failed} of {} failed", ended.len());
    drop(rig);
    ensure!(space.stats().used_bytes == 0, "{:?}", space.stats());
    // The device is as good as new, and the shadows are new ones.
    let controller = place.options().space(&space).open_transport(emulator)?;
    let mut rig = Rig::on(place, controller, 16)?;
    rig.exercise(50)?;
    rig.close()
}

/// A queue that the device does not delete goes on in its shadow, until the controller is disabled.
fn the_pages_are_freed_only_after_the_device_has_let_go(place: &mut Place) -> Result<()> {
    let space = place.space();
    let emulator = place.emulator("size=1M,shadow_doorbells=on,shutdown=50ms")?;
    let controller = place.options().space(&space).open_transport(emulator.clone())?;
    let with_pages = space.stats().used_bytes;
    let mut rig = Rig::on(place, controller, 16)?;
    rig.exercise(20)?;
    let opcode = Some(AdminOpcode::DeleteSubmissionQueue.raw());
    let lost = Match { point: Point::Admin, opcode, ..Match::default() };
    emulator.faults().arm(Rule::new(lost, Action::Drop));
    let Rig { queue, controller, .. } = rig;
    ensure!(queue.close(|_| ()).is_err(), "the deletion was lost, and close did not say so");
    ensure!(space.stats().used_bytes >= with_pages, "{:?}", space.stats());
    for _ in 0..20 {
        // It rests and wakes, and writes EventIdx each time.
        emulator.step(8);
    }
    drop(controller);
    ensure!(space.stats().used_bytes == 0, "{:?}", space.stats());
    Ok(())
}

/// The device knows the pages, and goes on with them until it is disabled.
fn a_bring_up_that_fails_later_frees_the_pages_last(place: &mut Place) -> Result<()> {
    let mut used_at_the_end = |wanted| -> Result<u64> {
        let space = place.space();
        let emulator = place.emulator("size=1M,shadow_doorbells=on")?;
        let opcode = Some(AdminOpcode::SetFeatures.raw());
        // The second one is the configuration of events, after the shadows.
        let lost = Match { point: Point::Admin, opcode, skip: 1, ..Match::default() };
        emulator.faults().arm(Rule::new(lost, Action::Drop));
        let onlooker = Onlooker::new(emulator, &space);
        let options = place.options().space(&space).shadow_doorbells(wanted);
        // The admin queue would keep the pages, too.
        let options = options.admin_shadow(AdminShadow::RegisterOnly);
        ensure!(options.open_transport(onlooker.clone()).is_err(), "a command was lost");
        ensure!(space.stats().used_bytes == 0, "{:?}", space.stats());
        onlooker.used_bytes().pop().context("it was disabled")
    };
    let without = used_at_the_end(ShadowDoorbells::Never)?;
    let with = used_at_the_end(ShadowDoorbells::WhenOffered)?;
    ensure!(with == without + 2 * 4096, "{with} bytes when it was disabled, and {without} without shadows");
    Ok(())
}

fn the_device_writes_no_event_index_after_close(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=1M,shadow_doorbells=on")?;
    let controller = place.options().open_transport(emulator.clone())?;
    let mut rig = Rig::on(place, controller, 16)?;
    rig.exercise(20)?;
    rig.close()?;
    // Its memory is gone, so that a look at the pages would be an access fault in the report.
    for _ in 0..20 {
        emulator.step(8);
        place.clock().advance(Duration::from_millis(1));
    }
    ensure!(emulator.report().is_clean(), "{:?}", emulator.report());
    Ok(())
}
