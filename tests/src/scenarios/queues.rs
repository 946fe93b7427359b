//! Queues of every size: how many requests they hold, and that the rings come round where they should.

use std::collections::BTreeSet;
use std::sync::Barrier;

use anyhow::{Context, Result, bail, ensure};
use doorbell::{Blocks, Controller, ControllerError, Lba, QueueConfig, Request, SubmitError};
use doorbell_spec::Clock;

use crate::scenario::scenarios;
use crate::{Place, Rig};

scenarios! {
    Nothing:
        a_ring_comes_round_many_times_at_every_small_depth,
        a_full_queue_gives_the_request_back,
        a_queue_that_is_not_polled_is_never_overrun,
        queue_numbers_are_used_again,
        a_depth_beyond_the_controller_is_refused_with_the_limit,
        an_interrupt_vector_that_does_not_exist_is_refused,
        many_queues_work_side_by_side,
        threads_create_and_delete_queues_at_once;
    Emulator:
        a_queue_of_one_entry_is_refused_with_the_reason,
        a_queue_of_two_entries_holds_one_request,
        a_queue_of_128_entries_holds_127_requests,
        a_queue_of_65536_entries_holds_65535_requests,
}

fn a_ring_comes_round_many_times_at_every_small_depth(place: &mut Place) -> Result<()> {
    let mut controller = place.controller()?;
    for depth in (1..=9).chain([31, 32, 33, 63, 64, 65]) {
        let mut rig = Rig::on(place, controller, depth)?;
        rig.exercise(u64::from(depth) * 3 + 7)?;
        let Rig { queue, controller: back, .. } = rig;
        queue.close(|_| ())?;
        controller = back;
    }
    Ok(controller.close()?)
}

fn a_full_queue_gives_the_request_back(place: &mut Place) -> Result<()> {
    let controller = place.controller()?;
    let mut rig = Rig::on(place, controller, 5)?;
    rig.write(9, &[0; 512])?;
    for lba in 0..5 {
        let buffer = rig.buffer(512)?;
        rig.submit(Request::read(&rig.namespace, Lba(lba), buffer).user_data(lba))?;
    }
    let marked = rig.filled(&[0x77; 512])?;
    let refused = rig.queue.submit(Request::write(&rig.namespace, Lba(9), marked)).err();
    let refused = refused.context("a sixth request on a queue of five")?;
    ensure!(refused.error == SubmitError::QueueFull, "{}", refused.error);
    let buffer = refused.request.into_buffer().into_dma_buf().context("the buffer came back")?;
    ensure!(buffer.as_slice() == [0x77; 512], "the buffer was changed");
    let mut ended: Vec<u64> = rig.finish()?.iter().map(|it| it.user_data).collect();
    ended.sort_unstable();
    ensure!(ended == [0, 1, 2, 3, 4], "{ended:?}");
    rig.expect(9, &[0; 512])?;
    rig.close()
}

/// The device completes everything before the host looks once: the completion queue must have room for all.
fn a_queue_that_is_not_polled_is_never_overrun(place: &mut Place) -> Result<()> {
    for depth in [1, 2, 7, 64] {
        let controller = place.controller()?;
        let mut rig = Rig::on(place, controller, depth)?;
        for _ in 0..5 {
            let mut accepted = 0;
            while rig.queue.submit(Request::write_zeroes(&rig.namespace, Lba(0), Blocks(1))).is_ok() {
                accepted += 1;
                rig.controller.transport().relax(place.clock());
            }
            ensure!(accepted == depth, "{accepted} requests on a queue of {depth}");
            (0..1000).for_each(|_| rig.controller.transport().relax(place.clock()));
            let ended = rig.finish()?;
            ensure!(ended.len() == depth as usize && ended.iter().all(|it| it.result.is_ok()), "{ended:?}");
        }
        let stats = rig.queue.stats();
        ensure!(stats.spurious_completions == 0 && stats.malformed_completions == 0, "{stats:?}");
        rig.close()?;
    }
    Ok(())
}

fn queue_numbers_are_used_again(place: &mut Place) -> Result<()> {
    let controller = place.controller()?;
    let config = || QueueConfig::with_depth(4);
    let most = controller.queue_pairs_max();
    ensure!(most >= 3, "the place's controller grants only {most} queues");
    let first = controller.create_queue(config())?;
    let second = controller.create_queue(config())?;
    let third = controller.create_queue(config())?;
    ensure!([first.id().0, second.id().0, third.id().0] == [1, 2, 3]);
    second.close(|_| ())?;
    ensure!(controller.create_queue(config())?.id().0 == 2);
    drop((first, third));
    for _ in 0..100 {
        ensure!(controller.create_queue(config())?.id().0 == 1);
    }
    Ok(controller.close()?)
}

fn a_depth_beyond_the_controller_is_refused_with_the_limit(place: &mut Place) -> Result<()> {
    let controller = place.controller()?;
    let limit = controller.depth_max();
    for wrong in [0, limit + 1, 65_536, u32::MAX] {
        match controller.create_queue(QueueConfig::with_depth(wrong)) {
            Err(ControllerError::Depth { asked, max }) => ensure!((asked, max) == (wrong, limit)),
            other => bail!("a depth of {wrong}, with {limit} possible: {other:?}"),
        }
    }
    controller.create_queue(QueueConfig::with_depth(limit))?;
    ensure!(controller.create_queue(QueueConfig::with_depth(1))?.id().0 == 1, "a number was lost");
    Ok(controller.close()?)
}

fn an_interrupt_vector_that_does_not_exist_is_refused(place: &mut Place) -> Result<()> {
    let controller = place.controller()?;
    let have = controller.interrupt_vectors();
    let mut config = QueueConfig::with_depth(4);
    config.interrupt_vector = Some(u16::try_from(have)?);
    match controller.create_queue(config) {
        Err(ControllerError::NoSuchVector { vectors, .. }) => ensure!(vectors == have),
        other => bail!("vector {have} of {have}: {other:?}"),
    }
    Ok(controller.close()?)
}

fn many_queues_work_side_by_side(place: &mut Place) -> Result<()> {
    let controller = place.controller()?;
    let count = controller.queue_pairs_max().min(64);
    let namespace = controller.namespaces()[0];
    let mut queues = (0..count)
        .map(|_| controller.create_queue(QueueConfig::with_depth(3)))
        .collect::<Result<Vec<_>, _>>()?;
    let deadline = place.clock().deadline(std::time::Duration::from_secs(30));
    for round in 0..7_u64 {
        for (index, queue) in queues.iter_mut().enumerate() {
            let mut buffer = controller.space().allocate(512)?;
            buffer.as_mut_slice().fill(u8::try_from(index)? ^ u8::try_from(round)?);
            let request = Request::write(&namespace, Lba(index as u64), buffer).user_data(index as u64);
            queue.submit(request).map_err(|refused| refused.error)?;
        }
        for (index, queue) in queues.iter_mut().enumerate() {
            while queue.outstanding() > 0 {
                let mut own = true;
                queue.poll(8, |_, it| own &= it.user_data == index as u64 && it.result.is_ok());
                ensure!(own, "queue {index} had another's completion, or a failed one");
                ensure!(!deadline.passed(place.clock()), "queue {index} does not end");
                controller.transport().relax(place.clock());
            }
        }
    }
    drop(queues);
    let mut rig = Rig::on(place, controller, 8)?;
    for index in 0..u64::from(count) {
        rig.expect(index, &[u8::try_from(index)? ^ 6; 512])?;
    }
    rig.close()
}

/// 64 threads share the 31 places of the admin queue.
fn threads_create_and_delete_queues_at_once(place: &mut Place) -> Result<()> {
    let (transport, options) = place.threaded()?;
    let controller = options.queue_pairs(64).open_transport(transport)?;
    let threads = controller.queue_pairs_max().min(64) as usize;
    let start = Barrier::new(threads);
    let ids: Vec<Result<BTreeSet<u16>>> = std::thread::scope(|scope| {
        let work = || -> Result<BTreeSet<u16>> {
            start.wait();
            (0..3).map(|_| one_request_on_a_queue_of_its_own(&controller)).collect()
        };
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        handles.into_iter().map(|it| it.join().expect("the thread has not panicked")).collect()
    });
    for of_thread in ids {
        ensure!(of_thread?.iter().all(|id| (1..=threads).contains(&usize::from(*id))));
    }
    Ok(controller.close()?)
}

fn one_request_on_a_queue_of_its_own(controller: &Controller) -> Result<u16> {
    let clock = Clock::monotonic();
    let deadline = clock.deadline(std::time::Duration::from_secs(60));
    let mut queue = controller.create_queue(QueueConfig::with_depth(2))?;
    let buffer = controller.space().allocate(512)?;
    let request = Request::read(&controller.namespaces()[0], Lba(0), buffer);
    queue.submit(request).map_err(|refused| refused.error)?;
    while queue.outstanding() > 0 {
        queue.poll(1, |_, it| assert!(it.result.is_ok()));
        ensure!(!deadline.passed(&clock), "the request does not end");
        controller.transport().relax(&clock);
    }
    let id = queue.id().0;
    queue.close(|_| ())?;
    Ok(id)
}

fn a_queue_of_one_entry_is_refused_with_the_reason(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=1M,mqes_z=0")?;
    match place.options().open_transport(emulator) {
        Err(ControllerError::Unsupported { why }) => ensure!(why.contains("MQES"), "{why}"),
        other => bail!("MQES 0: {other:?}"),
    }
    Ok(())
}

fn a_queue_of_two_entries_holds_one_request(place: &mut Place) -> Result<()> {
    holds(place, 1)
}

fn a_queue_of_128_entries_holds_127_requests(place: &mut Place) -> Result<()> {
    holds(place, 127)
}

fn a_queue_of_65536_entries_holds_65535_requests(place: &mut Place) -> Result<()> {
    holds(place, 65_535)
}

/// Fills the largest queue of a controller with this MQES several times, and lets its rings come round.
fn holds(place: &mut Place, mqes_z: u16) -> Result<()> {
    let depth = u32::from(mqes_z);
    let mut rig = Rig::emulated(place, &format!("backend=null,size=1G,mqes_z={mqes_z:#x}"), depth)?;
    ensure!(rig.controller.depth_max() == depth, "{}", rig.controller.depth_max());
    for round in 0..3 {
        for number in 0..u64::from(depth) {
            let request = Request::write_zeroes(&rig.namespace, Lba(number), Blocks(1)).user_data(number);
            rig.submit(request).with_context(|| format!("request {number} of round {round}"))?;
        }
        let error = rig.refused(Request::flush(&rig.namespace))?;
        ensure!(error == SubmitError::QueueFull, "{error}");
        let mut seen = vec![false; depth as usize];
        for completion in rig.finish()? {
            completion.result?;
            let seen = &mut seen[usize::try_from(completion.user_data)?];
            ensure!(!*seen, "request {} ended twice", completion.user_data);
            *seen = true;
        }
        ensure!(seen.iter().all(|it| *it), "a request did not end in round {round}");
    }
    rig.close()
}
