//! Doorbells: rung for the last command, once for many, at the place where the device looks.

use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Result, ensure};
use doorbell::{Blocks, Lba, Nsid, QueueConfig, QueueStats, Request};

use crate::scenario::scenarios;
use crate::{Place, Rig};

scenarios! {
    Nothing:
        every_prefix_of_a_plug_is_rung_for_its_last_command,
        a_plug_that_ends_by_an_error_has_been_rung,
        a_plug_that_ends_by_a_panic_is_rung,
        a_plug_that_is_forgotten_is_rung_by_whatever_comes_next,
        plugs_nest_and_the_outermost_rings,
        a_large_request_rings_at_once,
        a_poll_rings_once_for_everything_its_callback_submits;
    Emulator:
        every_doorbell_stride_works,
        doorbells_of_1024_queues_lie_where_the_device_looks,
}

/// How often the queue's tail was rung, by whatever means.
fn submission_rings(rig: &Rig) -> u64 {
    let stats = rig.queue.stats();
    stats.submission_doorbells + stats.submission_doorbells_saved
}

/// How often a queue's head was rung, by whatever means.
fn completion_rings(stats: &QueueStats) -> u64 {
    stats.completion_doorbells + stats.completion_doorbells_saved
}

fn every_prefix_of_a_plug_is_rung_for_its_last_command(place: &mut Place) -> Result<()> {
    let controller = place.controller()?;
    let mut rig = Rig::on(place, controller, 100)?;
    for count in 1..=100_u64 {
        for expected in [0, 1, count, 1000] {
            let before = submission_rings(&rig);
            let mut plug = rig.queue.plug(u32::try_from(expected)?);
            for number in 0..count {
                let request = Request::write_zeroes(&rig.namespace, Lba(number), Blocks(1));
                plug.submit(request).map_err(|refused| refused.error)?;
            }
            drop(plug);
            let rings = submission_rings(&rig) - before;
            ensure!(rings == count.div_ceil(32), "{rings} rings for {count} requests");
            let ended = rig.finish()?;
            ensure!(ended.len() as u64 == count && ended.iter().all(|it| it.result.is_ok()));
        }
    }
    rig.close()
}

fn a_plug_that_ends_by_an_error_has_been_rung(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    let wrong = Request::write_zeroes(&rig.namespace, Lba(u64::MAX), Blocks(1));
    let mut plug = rig.queue.plug(8);
    for number in 0..3 {
        let request = Request::write_zeroes(&rig.namespace, Lba(number), Blocks(1));
        plug.submit(request).map_err(|refused| refused.error)?;
    }
    ensure!(plug.submit(wrong).is_err(), "a request beyond the namespace was accepted");
    drop(plug);
    ensure!(rig.finish()?.len() == 3);
    rig.close()
}

fn a_plug_that_ends_by_a_panic_is_rung(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    let namespace = rig.namespace;
    let queue = &mut rig.queue;
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let mut plug = queue.plug(8);
        plug.submit(Request::flush(&namespace)).map_err(|refused| refused.error).expect("there is room");
        std::panic::resume_unwind(Box::new("somebody's mistake"));
    }));
    ensure!(panicked.is_err());
    ensure!(submission_rings(&rig) == 1, "the doorbell was not rung");
    ensure!(rig.finish()?.len() == 1);
    rig.close()
}

fn a_plug_that_is_forgotten_is_rung_by_whatever_comes_next(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    for next in 0..3 {
        let mut plug = rig.queue.plug(8);
        for _ in 0..3 {
            plug.submit(Request::flush(&rig.namespace)).map_err(|refused| refused.error)?;
        }
        std::mem::forget(plug);
        ensure!(rig.queue.outstanding() == 3, "{}", rig.queue.outstanding());
        let expected = match next {
            0 => 3,
            1 => {
                rig.submit(Request::flush(&rig.namespace))?;
                4
            }
            _ => {
                let mut plug = rig.queue.plug(1);
                plug.submit(Request::flush(&rig.namespace)).map_err(|refused| refused.error)?;
                drop(plug);
                4
            }
        };
        let ended = rig.finish()?;
        ensure!(ended.len() == expected && ended.iter().all(|it| it.result.is_ok()), "{ended:?}");
    }
    // All identifiers that the forgotten plugs had taken are back.
    for _ in 0..rig.queue.depth() {
        rig.submit(Request::flush(&rig.namespace))?;
    }
    rig.finish()?;
    let mut plug = rig.queue.plug(4);
    plug.submit(Request::flush(&rig.namespace)).map_err(|refused| refused.error)?;
    std::mem::forget(plug);
    let mut left = 0;
    rig.queue.close(|_| left += 1)?;
    ensure!(left == 1, "the queue's end answered {left} requests");
    Ok(rig.controller.close()?)
}

fn plugs_nest_and_the_outermost_rings(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    let mut outer = rig.queue.plug(2);
    outer.submit(Request::flush(&rig.namespace)).map_err(|refused| refused.error)?;
    let mut inner = outer.plug(2);
    inner.submit(Request::flush(&rig.namespace)).map_err(|refused| refused.error)?;
    inner.plug(1).submit(Request::flush(&rig.namespace)).map_err(|refused| refused.error)?;
    inner.finish();
    outer.submit(Request::flush(&rig.namespace)).map_err(|refused| refused.error)?;
    outer.finish();
    ensure!(submission_rings(&rig) == 1, "{:?}", rig.queue.stats());
    ensure!(rig.finish()?.len() == 4);
    rig.close()
}

fn a_large_request_rings_at_once(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    let (small, large) = (rig.buffer(4096)?, rig.buffer(128 * 1024)?);
    let mut plug = rig.queue.plug(8);
    plug.submit(Request::read(&rig.namespace, Lba(0), small)).map_err(|refused| refused.error)?;
    plug.submit(Request::read(&rig.namespace, Lba(0), large)).map_err(|refused| refused.error)?;
    std::mem::forget(plug);
    ensure!(submission_rings(&rig) == 1, "{:?}", rig.queue.stats());
    ensure!(rig.finish()?.len() == 2);
    rig.close()
}

/// Completions ring once a poll, and so do the requests that the callback submits.
fn a_poll_rings_once_for_everything_its_callback_submits(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    let namespace = rig.namespace;
    for number in 0..16 {
        rig.submit(Request::write_zeroes(&namespace, Lba(number), Blocks(1)))?;
    }
    (0..1000).for_each(|_| rig.controller.transport().relax(place.clock()));
    let (submitted_before, before) = (submission_rings(&rig), rig.queue.stats());
    let mut again = 0;
    let ended = rig.queue.poll(16, |plug, _| {
        again += u32::from(plug.submit(Request::flush(&namespace)).is_ok());
    });
    let (submitted, after) = (submission_rings(&rig), rig.queue.stats());
    ensure!((ended, again) == (16, 16), "{ended} ended and {again} followed");
    ensure!(submitted - submitted_before == 1, "{after:?}");
    ensure!(completion_rings(&after) - completion_rings(&before) == 1, "{after:?}");
    ensure!(rig.finish()?.len() == 16);
    rig.close()
}

fn every_doorbell_stride_works(place: &mut Place) -> Result<()> {
    for stride in 0..=15 {
        let emulator = place.emulator(&format!("size=1M,stride={stride},queues=5"))?;
        let controller = place.options().open_transport(emulator)?;
        let mut rig = Rig::on(place, controller, 3)?;
        let others = (0..4)
            .map(|_| rig.controller.create_queue(QueueConfig::with_depth(3)))
            .collect::<Result<Vec<_>, _>>()?;
        rig.exercise(10)?;
        for queue in others {
            let first = std::mem::replace(&mut rig.queue, queue);
            rig.exercise(10)?;
            first.close(|_| ())?;
        }
        rig.close()?;
    }
    Ok(())
}

fn doorbells_of_1024_queues_lie_where_the_device_looks(place: &mut Place) -> Result<()> {
    for stride in [0, 5] {
        let emulator = place.emulator(&format!("size=1M,queues=1024,stride={stride}"))?;
        let controller = place.options().queue_pairs(1024).open_transport(emulator.clone())?;
        ensure!(controller.queue_pairs_max() == 1024);
        let namespace = controller.namespace(Nsid(1))?;
        let mut queues = (0..1024)
            .map(|_| controller.create_queue(QueueConfig::with_depth(2)))
            .collect::<Result<Vec<_>, _>>()?;
        for (number, queue) in queues.iter_mut().enumerate() {
            let request = Request::write_zeroes(&namespace, Lba(number as u64), Blocks(1));
            queue.submit(request).map_err(|refused| refused.error)?;
        }
        while emulator.step(4096) > 0 {}
        for queue in &mut queues {
            let mut ended = 0;
            queue.poll(4, |_, completion| ended += u32::from(completion.result.is_ok()));
            ensure!(ended == 1, "queue {} completed {ended} requests", queue.id());
        }
        drop(queues);
        controller.close()?;
    }
    Ok(())
}
