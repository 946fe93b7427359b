//! Completions in any order, and completions that must not be: late, twice, for nobody.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use doorbell::{Buffer, Generations, IoError, Lba, Request};
use doorbell_emulator::Emulator;
use doorbell_emulator::fault::{Action, Match, Point, Rule};
use doorbell_spec::Status;

use crate::bytes::pattern;
use crate::scenario::scenarios;
use crate::{Place, Random, Rig};

scenarios! {
    Nothing:
        a_poll_takes_no_more_than_its_budget,
        latencies_are_measured_from_the_doorbell_on;
    Emulator:
        commands_that_complete_out_of_order_are_told_apart,
        a_completion_that_comes_twice_is_counted_and_dropped,
        a_late_duplicate_does_not_end_the_next_request_of_its_slot,
        identifiers_that_nobody_gave_out_are_counted_and_dropped,
        a_command_that_was_not_rung_is_not_ended_by_a_made_up_completion,
        a_wrong_submission_queue_head_is_counted_and_believed_by_nobody,
        a_completion_with_the_wrong_phase_is_not_taken,
        a_device_that_needs_small_identifiers_gets_them,
        a_status_is_given_with_its_name_and_block,
        the_waiter_of_a_request_may_be_gone,
}

fn a_poll_takes_no_more_than_its_budget(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    for _ in 0..20 {
        rig.submit(Request::flush(&rig.namespace))?;
    }
    for _ in 0..3000 {
        rig.controller.transport().relax(place.clock());
    }
    ensure!(rig.queue.poll(0, |_, _| ()) == 0);
    let counts = [7, 7, 7, 7].map(|budget| rig.queue.poll(budget, |_, _| ()));
    ensure!(counts == [7, 7, 6, 0], "{counts:?}");
    rig.close()
}

fn latencies_are_measured_from_the_doorbell_on(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    let clock = place.clock().clone();
    let start = clock.now();
    let mut plug = rig.queue.plug(4);
    plug.submit(Request::flush(&rig.namespace)).map_err(|refused| refused.error)?;
    // Time that passes here is the caller's, not the device's.
    clock.advance(Duration::from_secs(5));
    let ringing = clock.now();
    drop(plug);
    let ended = rig.finish()?;
    let (latency, whole) = (ended[0].latency_ns, clock.now().since(start));
    ensure!(latency > 0 && latency <= clock.now().since(ringing), "{latency} ns of {whole}");
    rig.close()
}

/// Each command takes its own time, so that the order of completions has nothing to do with that of the
/// requests, while the rings come round some 80 times.
fn commands_that_complete_out_of_order_are_told_apart(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=16M")?;
    for (seed, delay_us) in [(1, 50), (2, 20), (3, 7)] {
        let matches = Match { point: Point::Io, probability: 0.4, seed, ..Match::default() };
        emulator.faults().arm(Rule::new(matches, Action::Delay(Duration::from_micros(delay_us))));
    }
    let controller = place.options().open_transport(emulator)?;
    let mut rig = Rig::on(place, controller, 61)?;
    let mut random = Random::new(5);
    let (mut last, mut disorder) = (0, 0);
    for number in 0..5000_u64 {
        let content = pattern(number, 512);
        let request = Request::write(&rig.namespace, Lba(number), rig.filled(&content)?).user_data(number);
        rig.accept(request, |it| {
            disorder += u32::from(it.user_data < last);
            last = it.user_data;
            Ok(())
        })?;
        if random.below(8) == 0 {
            rig.turn().into_iter().try_for_each(|it| it.result.map(drop))?;
        }
    }
    rig.finish()?.into_iter().try_for_each(|it| it.result.map(drop))?;
    ensure!(disorder > 100, "only {disorder} completions were out of order: this tests nothing");
    for number in 0..5000 {
        rig.expect(number, &pattern(number, 512))?;
    }
    let stats = rig.queue.stats();
    ensure!(stats.spurious_completions == 0 && stats.completed == 10_000, "{stats:?}");
    rig.close()
}

fn a_completion_that_comes_twice_is_counted_and_dropped(place: &mut Place) -> Result<()> {
    // At a depth of 65,535 no bits are left for generations: a duplicate is only seen while its slot is free.
    for depth in [1, 2, 31, 64, 1000] {
        let emulator = place.emulator("size=1M")?;
        let controller = place.options().open_transport(emulator.clone())?;
        let mut rig = Rig::on(place, controller, depth)?;
        let matches = Match { point: Point::Io, count: Some(3), ..Match::default() };
        let rule = emulator.faults().arm(Rule::new(matches, Action::Duplicate));
        let mut answers = BTreeMap::new();
        for number in 0..10 {
            let completion = rig.run(Request::flush(&rig.namespace).user_data(number))?;
            completion.result?;
            *answers.entry(completion.user_data).or_insert(0) += 1;
        }
        rig.turn();
        ensure!(emulator.faults().fired(rule) == 3);
        ensure!(answers.len() == 10 && answers.values().all(|it| *it == 1), "{answers:?}");
        ensure!(rig.queue.stats().spurious_completions == 3, "{:?}", rig.queue.stats());
        rig.exercise(20)?;
        rig.close()?;
    }
    Ok(())
}

/// Both completions are in the queue before the host looks, and the callback of the first one submits into
/// the slot that it has just freed.
fn a_late_duplicate_does_not_end_the_next_request_of_its_slot(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=1M")?;
    let controller = place.options().open_transport(emulator.clone())?;
    // The completion queue has room for two, so that the duplicate is there as early as the first.
    let mut rig = Rig::on(place, controller, 2)?;
    let namespace = rig.namespace;
    emulator
        .faults()
        .arm(Rule::new(Match { point: Point::Io, count: Some(1), ..Match::default() }, Action::Duplicate));
    rig.submit(Request::flush(&namespace).user_data(1))?;
    emulator.step(8);
    let mut buffer = Some(rig.filled(&[9; 512])?);
    let ended = rig.queue.poll(1, |plug, completion| {
        assert_eq!(completion.user_data, 1);
        let buffer = buffer.take().expect("one completion");
        plug.submit(Request::write(&namespace, Lba(0), buffer).user_data(2)).expect("the slot is free");
    });
    ensure!(ended == 1);
    // The duplicate is all that is there: it belongs to nobody, and the write has not been executed.
    let ended = rig.queue.poll(1, |_, completion| panic!("{completion:?} ended by a duplicate"));
    ensure!(ended == 0 && rig.queue.outstanding() == 1);
    ensure!(rig.queue.stats().spurious_completions == 1, "{:?}", rig.queue.stats());
    let ended = rig.finish()?;
    ensure!(ended.len() == 1 && ended[0].user_data == 2, "{ended:?}");
    rig.expect(0, &[9; 512])?;
    rig.close()
}

fn identifiers_that_nobody_gave_out_are_counted_and_dropped(place: &mut Place) -> Result<()> {
    const DEPTH: u16 = 20;
    for cid in [DEPTH - 1, DEPTH, DEPTH + 1, 31, 32, 0x7fff, 0xfffe, 0xffff] {
        let emulator = place.emulator("size=1M")?;
        let controller = place.options().open_transport(emulator.clone())?;
        let mut rig = Rig::on(place, controller, DEPTH.into())?;
        let matches = Match { point: Point::Io, count: Some(1), ..Match::default() };
        emulator.faults().arm(Rule::new(matches, Action::WrongCid(cid)));
        let buffer = rig.buffer(512)?;
        rig.submit(Request::read(&rig.namespace, Lba(0), buffer).user_data(77))?;
        for _ in 0..200 {
            let ended = rig.turn();
            ensure!(ended.is_empty(), "identifier {cid:#x} ended {ended:?}");
        }
        ensure!(rig.queue.stats().spurious_completions == 1, "{cid:#x}: {:?}", rig.queue.stats());
        // Its own completion never comes: the request stays, and everything else works beside it.
        for number in 0..100 {
            rig.submit(Request::flush(&rig.namespace).user_data(number))?;
            let ended = turn_until(&mut rig, 1)?;
            ensure!(ended == [number], "{ended:?}");
        }
        ensure!(rig.queue.outstanding() == 1);
        let mut left = Vec::new();
        rig.queue.close(|it| left.push((it.user_data, it.result, it.buffer.bytes())))?;
        ensure!(left == [(77, Err(IoError::QueueClosed), 512)], "{left:?}");
        rig.controller.close()?;
    }
    Ok(())
}

/// The callback of the first completion posts a command, whose doorbell is rung when the poll ends; the
/// second completion, which is already there, names that command before the device can know of it.
fn a_command_that_was_not_rung_is_not_ended_by_a_made_up_completion(place: &mut Place) -> Result<()> {
    // Which identifier the command will have is the driver's business: the device guesses them all.
    for cid in 0..64 {
        let emulator = place.emulator("size=1M")?;
        let controller = place.options().open_transport(emulator.clone())?;
        let mut rig = Rig::on(place, controller, 8)?;
        let namespace = rig.namespace;
        let matches = Match { point: Point::Io, skip: 1, count: Some(1), ..Match::default() };
        emulator.faults().arm(Rule::new(matches, Action::WrongCid(cid)));
        rig.submit(Request::flush(&namespace).user_data(1))?;
        rig.submit(Request::flush(&namespace).user_data(2))?;
        emulator.step(8);
        let mut ended = Vec::new();
        rig.queue.poll(8, |plug, completion| {
            ended.push(completion.user_data);
            if completion.user_data == 1 {
                plug.submit(Request::flush(&namespace).user_data(3)).expect("there is room");
            }
        });
        ensure!(ended.first() == Some(&1) && !ended.contains(&3), "identifier {cid}: {ended:?} ended");
        let ended = turn_until(&mut rig, 1)?;
        ensure!(ended == [3], "identifier {cid}: {ended:?}");
    }
    Ok(())
}

fn turn_until(rig: &mut Rig, count: usize) -> Result<Vec<u64>> {
    let mut ended = Vec::new();
    for _ in 0..1000 {
        ended.extend(rig.turn().iter().map(|it| it.user_data));
        if ended.len() >= count {
            return Ok(ended);
        }
    }
    anyhow::bail!("{} of {count} requests have ended", ended.len())
}

fn a_wrong_submission_queue_head_is_counted_and_believed_by_nobody(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=1M")?;
    let controller = place.options().open_transport(emulator.clone())?;
    let mut rig = Rig::on(place, controller, 8)?;
    for (head, malformed) in [(9, 1), (0xffff, 2), (3, 2), (8, 2)] {
        let matches = Match { point: Point::Io, count: Some(1), ..Match::default() };
        emulator.faults().arm(Rule::new(matches, Action::WrongSqHead(head)));
        rig.succeed(Request::flush(&rig.namespace))?;
        ensure!(rig.queue.stats().malformed_completions == malformed, "{head}: {:?}", rig.queue.stats());
        rig.exercise(30)?;
    }
    rig.close()
}

fn a_completion_with_the_wrong_phase_is_not_taken(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=1M")?;
    let controller = place.options().open_transport(emulator.clone())?;
    let mut rig = Rig::on(place, controller, 8)?;
    rig.exercise(3)?;
    emulator
        .faults()
        .arm(Rule::new(Match { point: Point::Io, count: Some(1), ..Match::default() }, Action::WrongPhase));
    let buffer = rig.buffer(512)?;
    rig.submit(Request::read(&rig.namespace, Lba(0), buffer).user_data(5))?;
    for _ in 0..500 {
        let ended = rig.turn();
        ensure!(ended.is_empty(), "an entry of the round before was taken: {ended:?}");
    }
    let mut left = Vec::new();
    rig.queue.close(|it| left.push((it.user_data, it.buffer.bytes())))?;
    ensure!(left == [(5, 512)], "{left:?}");
    Ok(rig.controller.close()?)
}

fn a_device_that_needs_small_identifiers_gets_them(place: &mut Place) -> Result<()> {
    let open = |place: &mut Place, generations| -> Result<(std::sync::Arc<Emulator>, Rig)> {
        let emulator = place.emulator("size=1M,cid_below_depth=on")?;
        let controller = place.options().generations(generations).open_transport(emulator.clone())?;
        Ok((emulator, Rig::on(place, controller, 24)?))
    };
    let (emulator, mut rig) = open(place, Generations::Off)?;
    rig.exercise(500)?;
    rig.close()?;
    ensure!(emulator.report().is_clean(), "{:?}", emulator.report());
    // The same device, driven as one that has no such need, complains: what was tested above exists.
    place.expect_violations();
    ensure!(open(place, Generations::On).is_err());
    Ok(())
}

fn a_status_is_given_with_its_name_and_block(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=1M")?;
    let controller = place.options().open_transport(emulator.clone())?;
    let mut rig = Rig::on(place, controller, 8)?;
    let status = Status::UNRECOVERED_READ_ERROR.with_do_not_retry();
    let lbas = Some(7..=7);
    emulator
        .faults()
        .arm(Rule::new(Match { point: Point::Io, lbas, ..Match::default() }, Action::Status(status)));
    let buffer = rig.buffer(4096)?;
    let completion = rig.run(Request::read(&rig.namespace, Lba(3), buffer))?;
    let error = completion.result.err().context("a read of a bad block succeeded")?;
    ensure!(error == IoError::Status { status, lba: Lba(3) }, "{error:?}");
    ensure!(matches!(completion.buffer, Buffer::Whole(_)));
    let name = status.name().context("a name")?;
    ensure!(error.to_string().contains(name) || error.to_string().contains("nrecovered"), "{error}");
    rig.close()
}

/// Nobody is left who waits for a request: its completion changes nothing but the memory it owns.
fn the_waiter_of_a_request_may_be_gone(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=1M,latency=1ms")?;
    let controller = place.options().open_transport(emulator.clone())?;
    let mut rig = Rig::on(place, controller, 8)?;
    let buffer = rig.buffer(512)?;
    let handle =
        rig.queue.submit(Request::read(&rig.namespace, Lba(0), buffer)).map_err(|refused| refused.error)?;
    ensure!(rig.queue.cancel(handle) == doorbell::Cancelled::UnderWay);
    let ended = rig.finish()?;
    ensure!(ended.len() == 1 && ended[0].buffer.bytes() == 512, "{ended:?}");
    ensure!(rig.queue.cancel(handle) == doorbell::Cancelled::Ended);
    // The slot has another request now: an old handle does not reach it.
    rig.submit(Request::flush(&rig.namespace))?;
    ensure!(rig.queue.cancel(handle) == doorbell::Cancelled::Ended);
    rig.finish()?;
    rig.close()
}
