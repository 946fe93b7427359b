//! The end of a queue with requests outstanding: each is answered exactly once, and no memory is lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use doorbell::{IoError, Lba, QueueConfig, Request, SubmitError};
use doorbell_emulator::fault::{Action, Match, Point, Rule};

use crate::scenario::scenarios;
use crate::successor::Successor;
use crate::{Place, Rig};

scenarios! {
    Nothing:
        a_queue_closed_with_requests_outstanding_answers_each_once,
        a_queue_dropped_with_requests_outstanding_gives_its_memory_back;
    Emulator:
        a_controller_taken_over_with_requests_in_flight_is_clean_for_10000_commands,
        requests_that_the_device_holds_are_answered_at_close,
        a_device_that_fails_under_load_answers_each_request_once,
        a_device_that_is_pulled_under_load_answers_each_request_once,
        a_callback_that_submits_again_does_not_keep_a_failed_queue_alive,
        buffers_are_parked_while_the_device_may_write_to_them,
}

fn a_queue_closed_with_requests_outstanding_answers_each_once(place: &mut Place) -> Result<()> {
    let mut controller = place.controller()?;
    for turns in 0..20 {
        let mut rig = Rig::on(place, controller, 32)?;
        let mut answers = submit_reads(&mut rig, 32)?;
        for _ in 0..turns {
            rig.controller.transport().relax(place.clock());
        }
        if turns % 3 == 2 {
            rig.turn().into_iter().for_each(|it| *answers.entry(it.user_data).or_default() += 1);
        }
        let Rig { queue, controller: back, .. } = rig;
        let mut buffers = true;
        queue.close(|it| {
            *answers.entry(it.user_data).or_default() += 1;
            buffers &= it.buffer.bytes() == 4096 && matches!(it.result, Ok(_) | Err(IoError::QueueClosed));
        })?;
        ensure!(buffers, "an answer without its buffer, or with another error");
        ensure!(
            answers.len() == 32 && answers.values().all(|it| *it == 1),
            "after {turns} turns: {answers:?}"
        );
        controller = back;
    }
    Ok(controller.close()?)
}

fn a_queue_dropped_with_requests_outstanding_gives_its_memory_back(place: &mut Place) -> Result<()> {
    let transport = place.transport()?;
    let space = place.space();
    let controller = place.options().space(&space).open_transport(transport)?;
    for _ in 0..3 {
        let before = space.stats().used_bytes;
        let mut queue = controller.create_queue(QueueConfig::with_depth(16))?;
        let namespace = controller.namespaces()[0];
        for lba in 0..16 {
            let request = Request::read(&namespace, Lba(lba), space.allocate(4096)?);
            queue.submit(request).map_err(|refused| refused.error)?;
        }
        drop(queue);
        ensure!(space.stats().used_bytes == before, "{:?}", space.stats());
    }
    controller.close()?;
    ensure!(space.stats().used_bytes == 0, "{:?}", space.stats());
    Ok(())
}

/// As after `kill -9`: nobody has told the device, and whoever comes next must not be disturbed. (A device
/// that is forgotten stays open in its process, so that this cannot be done to a PCI function: a test of its
/// own kills a process in QEMU.)
fn a_controller_taken_over_with_requests_in_flight_is_clean_for_10000_commands(
    place: &mut Place,
) -> Result<()> {
    let transport = place.transport()?;
    let options = place.options();
    let controller = options.open_transport(transport.clone())?;
    let mut rig = Rig::on(place, controller, 32)?;
    submit_reads(&mut rig, 32)?;
    std::mem::forget(rig);
    let controller = options.open_transport(Arc::new(Successor(transport)))?;
    let mut rig = Rig::on(place, controller, 64)?;
    rig.exercise(5000)?;
    let stats = rig.queue.stats();
    ensure!((stats.completed, stats.failed) == (10_000, 0), "{stats:?}");
    ensure!((stats.spurious_completions, stats.malformed_completions) == (0, 0), "{stats:?}");
    rig.close()
}

fn requests_that_the_device_holds_are_answered_at_close(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=1M,latency=1s")?;
    let space = place.space();
    let controller = place.options().space(&space).open_transport(emulator.clone())?;
    let mut rig = Rig::on(place, controller, 8)?;
    let mut answers = submit_reads(&mut rig, 8)?;
    emulator.step(64);
    let Rig { queue, controller, .. } = rig;
    queue.close(|it| *answers.entry(it.user_data).or_default() += 1)?;
    ensure!(answers.len() == 8 && answers.values().all(|it| *it == 1), "{answers:?}");
    place.clock().advance(Duration::from_secs(2));
    emulator.step(64);
    controller.close()?;
    ensure!(space.stats().used_bytes == 0, "{:?}", space.stats());
    Ok(())
}

fn a_device_that_fails_under_load_answers_each_request_once(place: &mut Place) -> Result<()> {
    fails_under_load(place, Action::Fatal)
}

fn a_device_that_is_pulled_under_load_answers_each_request_once(place: &mut Place) -> Result<()> {
    fails_under_load(place, Action::AllOnes)
}

/// The device fails at its 5th, 25th, … command; from then on every request ends with an error.
fn fails_under_load(place: &mut Place, action: Action) -> Result<()> {
    for skip in [0, 5, 25, 31] {
        let emulator = place.emulator("size=1M,latency=10us")?;
        let controller = place.options().open_transport(emulator.clone())?;
        let mut rig = Rig::on(place, controller, 32)?;
        emulator.faults().arm(Rule::new(Match { point: Point::Io, skip, ..Match::default() }, action));
        let mut answers = submit_reads(&mut rig, 32)?;
        let ended = rig.finish()?;
        for completion in &ended {
            *answers.entry(completion.user_data).or_default() += 1;
            ensure!(matches!(completion.result, Ok(_) | Err(IoError::ControllerFailed)), "{completion:?}");
        }
        ensure!(answers.len() == 32 && answers.values().all(|it| *it == 1), "{action:?}: {answers:?}");
        ensure!(ended.iter().any(|it| it.result.is_err()));
        let error = rig.refused(Request::flush(&rig.namespace))?;
        ensure!(error == SubmitError::ControllerFailed, "{error}");
        ensure!(rig.controller.create_queue(QueueConfig::default()).is_err());
    }
    Ok(())
}

/// The callback answers every failure with a new request, for ever; polling still comes to an end.
fn a_callback_that_submits_again_does_not_keep_a_failed_queue_alive(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=1M")?;
    let controller = place.options().open_transport(emulator.clone())?;
    let mut rig = Rig::on(place, controller, 8)?;
    let namespace = rig.namespace;
    for _ in 0..8 {
        rig.submit(Request::flush(&namespace))?;
    }
    // While it works, a poll ends although each completion makes a new request.
    for _ in 0..10 {
        emulator.step(64);
        let ended = rig.queue.poll(5, |plug, _| {
            plug.submit(Request::flush(&namespace)).map_err(|refused| refused.error).expect("there is room");
        });
        ensure!(ended == 5, "{ended} instead of 5");
    }
    emulator.remove();
    let (mut ended, mut again) = (0, 0);
    let deadline = place.clock().deadline(Duration::from_secs(5));
    while rig.queue.outstanding() > 0 {
        ended += rig.queue.poll(usize::MAX, |plug, _| {
            again += u32::from(plug.submit(Request::flush(&namespace)).is_ok());
        });
        if deadline.passed(place.clock()) {
            bail!("{} requests are still there", rig.queue.outstanding());
        }
        rig.controller.transport().relax(place.clock());
    }
    ensure!(ended >= 8, "{ended} requests of at least 8 were answered");
    ensure!(again <= 16, "{again} requests were accepted by a controller that is gone");
    Ok(())
}

fn buffers_are_parked_while_the_device_may_write_to_them(place: &mut Place) -> Result<()> {
    // Longer than the driver waits for the queue's end.
    let emulator = place.emulator("size=1M,latency=60s")?;
    let space = place.space();
    let controller = place.options().space(&space).open_transport(emulator.clone())?;
    let mut rig = Rig::on(place, controller, 8)?;
    let pool = space.pool(4096, 8)?;
    for lba in 0..8 {
        let buffer = pool.take().expect("eight blocks are free");
        rig.submit(Request::read(&rig.namespace, Lba(lba), buffer))?;
    }
    emulator.step(64);
    // The device no longer answers on its admin queue, but goes on with its reads.
    emulator.faults().arm(Rule::new(Match { point: Point::Admin, ..Match::default() }, Action::Drop));
    let Rig { queue, controller, .. } = rig;
    let mut without = 0;
    let closed = queue.close(|it| without += u32::from(it.buffer.bytes() == 0));
    ensure!(closed.is_err() && without > 0, "{closed:?}, {without} answers without their buffer");
    ensure!(pool.available() < 8, "a buffer was given back that the device may write to");
    place.clock().advance(Duration::from_secs(90));
    ensure!(emulator.step(64) == 8, "the device has not written to the buffers: this tests nothing");
    drop(controller);
    ensure!(pool.available() == 8, "{} of 8 are free after the end", pool.available());
    Ok(())
}

fn submit_reads(rig: &mut Rig, count: u64) -> Result<BTreeMap<u64, u32>> {
    for number in 0..count {
        let buffer = rig.buffer(4096)?;
        rig.submit(Request::read(&rig.namespace, Lba(number), buffer).user_data(number))?;
    }
    Ok(BTreeMap::new())
}
