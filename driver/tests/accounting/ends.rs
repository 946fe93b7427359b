//! Ends of queues and controllers: in order, by failure, by panic, in any order of drops, or never.

use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use doorbell::{
    Controller, ControllerError, ControllerEvent, DmaPool, IoError, Lba, Nsid, QueueConfig, QueuePair,
    Request, SubmitError,
};
use doorbell_emulator::NamespaceConfig;
use doorbell_emulator::fault::Action;
use doorbell_spec::Status;

use crate::elsewhere;
use crate::rig::{CREATE_CQ, CREATE_SQ, DELETE_CQ, DELETE_SQ, IDENTIFY, READ, Random, Rig, rig};

/// A queue of this depth with a read in every slot.
fn full_queue(rig: &Rig, depth: u32, pool: &DmaPool) -> QueuePair {
    let namespace = rig.controller.namespace(Nsid(1)).expect("a namespace");
    let mut queue = rig.controller.create_queue(QueueConfig::with_depth(depth)).expect("a queue");
    for number in 0..u64::from(depth) {
        let buffer = pool.take().expect("blocks enough");
        queue.submit(Request::read(&namespace, Lba(number), buffer).user_data(number)).expect("room");
    }
    queue
}

/// The memory of a queue that the device had not deleted was freed when the callback of its close panicked.
#[test]
fn a_panic_while_closing_frees_nothing_that_the_device_has() {
    for (opcode, action) in [
        (DELETE_SQ, Action::Drop),
        (DELETE_SQ, Action::Status(Status::INTERNAL_ERROR)),
        (DELETE_CQ, Action::Drop),
        (DELETE_CQ, Action::Status(Status::INTERNAL_ERROR)),
    ] {
        let rig = rig("size=16M");
        let pool = rig.space.pool(4096, 8).expect("memory");
        let queue = full_queue(&rig, 8, &pool);
        let used = rig.space.stats().used_bytes;
        rig.on_admin(opcode, 0, action);
        let closed = catch_unwind(AssertUnwindSafe(|| queue.close(|_| panic!("the callback's own"))));
        assert!(closed.is_err());
        assert_eq!(rig.space.stats().used_bytes, used, "rings were freed under the device ({opcode:#x})");
        drop(rig.controller);
        assert_eq!(pool.available(), 8, "the controller is off: everything came back");
    }
}

/// The number of a queue that was closed in order was lost when the callback of its close panicked.
#[test]
fn a_panic_while_closing_leaves_the_controller_closable() {
    let rig = rig("size=16M");
    let pool = rig.space.pool(4096, 8).expect("memory");
    let queue = full_queue(&rig, 8, &pool);
    assert!(catch_unwind(AssertUnwindSafe(|| queue.close(|_| panic!("the callback's own")))).is_err());
    assert_eq!(pool.available(), 8);
    rig.controller.close().expect("no queue is open");
    assert!(rig.device.report().is_clean());
}

#[test]
fn closing_answers_every_request_once() {
    for stepped in [0, 3, 8] {
        let rig = rig("size=16M");
        let pool = rig.space.pool(4096, 8).expect("memory");
        let queue = full_queue(&rig, 8, &pool);
        rig.device.step(stepped);
        let mut answered = Vec::new();
        queue.close(|completion| answered.push(completion.user_data)).expect("the device deletes it");
        answered.sort_unstable();
        assert_eq!(answered, (0..8).collect::<Vec<_>>());
        assert_eq!(pool.available(), 8);
        rig.controller.close().expect("no queue is open");
    }
}

#[test]
fn a_failed_controller_answers_everything_within_budgets() {
    let rig = rig("size=16M,mdts=1");
    let pool = rig.space.pool(4096, 40).expect("memory");
    let mut queue = full_queue(&rig, 40, &pool);
    rig.lose_io(READ);
    rig.device.step(100);
    rig.device.remove();
    let mut answered = 0;
    for _ in 0..10_000 {
        rig.clock.advance(Duration::from_millis(1));
        let before = answered;
        let completed = queue.poll(3, |plug, completion| {
            answered += 1;
            assert_eq!(completion.result, Err(IoError::ControllerFailed));
            assert_eq!(completion.buffer.bytes(), 0, "the device may still have it");
            // Submitting again is refused, and does not make the drain endless.
            let again = rig.controller.namespaces()[0];
            let refused = plug.submit(Request::flush(&again)).expect_err("failed");
            assert_eq!(refused.error, SubmitError::ControllerFailed);
        });
        assert!(completed <= 3 && answered - before == completed);
        assert_eq!(queue.outstanding(), 40 - answered);
    }
    assert_eq!((answered, pool.available()), (40, 0));
    queue.close(|_| panic!("everything was answered")).expect_err("the device is gone");
    drop(rig.controller);
    assert_eq!(pool.available(), 40);
}

/// Large requests and their parts, when the controller is gone in the middle of them.
#[test]
fn a_failed_controller_answers_large_requests_once() {
    let rig = rig("size=64M,mdts=1");
    let namespace = rig.controller.namespace(Nsid(1)).expect("a namespace");
    let pool = rig.space.pool(64 << 10, 8).expect("memory");
    let mut queue = rig.controller.create_queue(QueueConfig::with_depth(13)).expect("a queue");
    let mut accepted = 0;
    for _ in 0..8 {
        let buffer = pool.take().expect("what was refused came back");
        accepted += usize::from(queue.submit(Request::read(&namespace, Lba(0), buffer)).is_ok());
    }
    assert_eq!((accepted, queue.outstanding()), (2, 2), "8 parts each, in 13 slots");
    rig.device.remove();
    rig.clock.advance(Duration::from_secs(1));
    let mut answered = 0;
    for _ in 0..1000 {
        answered += queue.poll(1, |_, completion| {
            assert_eq!(completion.result, Err(IoError::ControllerFailed));
        });
        assert_eq!(queue.outstanding(), 2 - answered);
    }
    assert_eq!(answered, 2);
}

/// The parts that had ended by then made room for others, which were posted to a queue that was no more.
#[test]
fn closing_in_the_midst_of_a_large_request_posts_no_more_of_it() {
    let rig = rig("size=64M,mdts=5");
    let namespace = rig.controller.namespace(Nsid(1)).expect("a namespace");
    for stepped in [0, 1, 2] {
        let mut queue = rig.controller.create_queue(QueueConfig::with_depth(2)).expect("a queue");
        let buffer = rig.space.allocate(4 << 20).expect("memory");
        queue.submit(Request::read(&namespace, Lba(0), buffer)).expect("room");
        rig.device.step(stepped);
        let monitor = queue.monitor();
        let mut ends = Vec::new();
        queue.close(|completion| ends.push((completion.result, completion.buffer.bytes()))).expect("deleted");
        assert_eq!(ends, [(Err(IoError::QueueClosed), 4 << 20)]);
        assert_eq!(monitor.stats().commands, 2, "{:?}", monitor.stats());
        rig.device.step(100);
        assert!(rig.device.report().is_clean(), "{:?}", rig.device.report().violations);
    }
}

/// Nobody looked at CSTS.RDY: after a reset from elsewhere, requests hung for ever.
#[test]
fn a_controller_that_somebody_else_reset_has_failed() {
    let rig = rig("size=16M");
    let pool = rig.space.pool(4096, 4).expect("memory");
    let mut queue = full_queue(&rig, 4, &pool);
    elsewhere::disable(&*rig.device).expect("a register");
    rig.finish(&mut queue, |completion| assert_eq!(completion.result, Err(IoError::ControllerFailed)));
}

/// An identify that was lost after an event failed the admin queue and not the controller.
#[test]
fn a_lost_command_while_handling_an_event_fails_the_controller() {
    let rig = rig("size=16M");
    let pool = rig.space.pool(4096, 1).expect("memory");
    let mut queue = full_queue(&rig, 1, &pool);
    rig.lose_io(READ);
    let mut added = NamespaceConfig::default();
    added.nsid = Nsid(9);
    added.bytes = Some(1 << 20);
    rig.device.attach_namespace(&added).expect("a free number");
    rig.device.step(100);
    rig.device.step(100);
    rig.on_admin(IDENTIFY, 0, Action::Drop);
    let polled = rig.controller.poll_event();
    assert!(matches!(polled, Err(ControllerError::Timeout { .. })), "{polled:?}");
    let buffer = rig.space.allocate(4096).expect("memory");
    let namespace = rig.controller.namespaces()[0];
    let refused = queue.submit(Request::read(&namespace, Lba(0), buffer)).expect_err("failed");
    assert_eq!(refused.error, SubmitError::ControllerFailed);
}

#[test]
fn an_event_brings_the_new_namespace() {
    let rig = rig("size=16M");
    let mut added = NamespaceConfig::default();
    added.nsid = Nsid(9);
    added.bytes = Some(1 << 20);
    rig.device.attach_namespace(&added).expect("a free number");
    // It takes the requests first, and has an event for them afterwards.
    rig.device.step(100);
    rig.device.step(100);
    assert_eq!(rig.controller.poll_event().expect("alive"), Some(ControllerEvent::NamespacesChanged));
    assert_eq!(rig.controller.namespaces().len(), 2);
    assert_eq!(rig.controller.poll_event().expect("alive"), None);
}

/// Every step of making a queue fails, and every number and byte comes back that the device cannot have.
#[test]
fn a_queue_that_cannot_be_made_leaves_nothing_behind() {
    for opcode in [CREATE_CQ, CREATE_SQ] {
        let rig = rig("size=16M,queues=2");
        let used = rig.space.stats().used_bytes;
        rig.on_admin(opcode, 0, Action::Status(Status::INTERNAL_ERROR));
        for _ in 0..10 {
            let failed = rig.controller.create_queue(QueueConfig::default()).expect_err("refused");
            assert!(matches!(failed, ControllerError::Admin { .. }), "{failed:?}");
        }
        assert_eq!(rig.space.stats().used_bytes, used);
        rig.device.faults().disarm_all();
        let create = || rig.controller.create_queue(QueueConfig::default());
        let both = (create().expect("the first"), create().expect("the second"));
        assert!(matches!(create(), Err(ControllerError::NoQueueLeft { granted: 2 })));
        drop(both);
        create().expect("the number came back");
    }
}

#[test]
fn a_queue_that_may_exist_keeps_its_memory() {
    for opcode in [CREATE_CQ, CREATE_SQ] {
        let rig = rig("size=16M");
        let used = rig.space.stats().used_bytes;
        rig.on_admin(opcode, 0, Action::Drop);
        let failed = rig.controller.create_queue(QueueConfig::default()).expect_err("no answer");
        assert!(matches!(failed, ControllerError::Timeout { .. }), "{failed:?}");
        assert!(rig.space.stats().used_bytes > used, "the device may have taken the rings");
        let failed = rig.controller.create_queue(QueueConfig::default()).expect_err("failed");
        assert!(matches!(failed, ControllerError::ControllerFailed));
        let space = rig.space.clone();
        drop(rig);
        assert_eq!(space.stats().used_bytes, 0, "the controller is off");
    }
}

/// Nothing of a leaked queue pair is freed, and nothing hangs.
#[test]
fn a_queue_pair_that_was_forgotten_keeps_its_memory_for_ever() {
    let rig = rig("size=16M");
    let pool = rig.space.pool(4096, 8).expect("memory");
    let queue = full_queue(&rig, 8, &pool);
    let used = rig.space.stats().used_bytes;
    forget(queue);
    let refused = rig.controller.close().expect_err("a queue is open");
    assert!(matches!(refused, ControllerError::QueuesOpen { open: 1, .. }), "{refused:?}");
    assert_eq!((rig.space.stats().used_bytes, pool.available()), (used, 0));
    // The device goes on, into memory that is still there.
    rig.device.step(100);
    assert!(rig.device.report().is_clean());
}

#[test]
fn everything_may_be_dropped_in_any_order() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let rig = rig("size=16M");
        let pool = rig.space.pool(4096, 8).expect("memory");
        let depth = u32::try_from(1 + random.below(8)).expect("small");
        let queue = full_queue(&rig, depth, &pool);
        let second = rig.controller.create_queue(QueueConfig::with_depth(3)).expect("a queue");
        rig.device.step(usize::try_from(random.below(4)).expect("small"));
        if random.one_in(4) {
            rig.device.remove();
        }
        let Rig { device, space, controller, .. } = rig;
        let kept = space.clone();
        let mut parts: Vec<Box<dyn std::any::Any>> =
            vec![Box::new(queue), Box::new(second), Box::new(pool), Box::new(space), Box::new(controller)];
        while !parts.is_empty() {
            let at = usize::try_from(random.below(parts.len() as u64)).expect("small");
            drop(parts.swap_remove(at));
            device.step(8);
        }
        let stats = kept.stats();
        assert_eq!((stats.used_bytes, stats.leaked_bytes, stats.mappers), (0, 0, 0), "seed {seed}");
        assert!(device.report().is_clean(), "seed {seed}: {:?}", device.report());
    }
}

#[test]
fn closing_a_controller_twice_over_is_one_shutdown() {
    let rig = rig("size=16M");
    let controller: Controller = rig.controller;
    controller.close().expect("no queue is open");
    assert_eq!(rig.space.stats().used_bytes, 0);
}
