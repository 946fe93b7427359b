//! What only the group itself can see: who is marked, whose lock is taken, which controllers are watched.

use std::sync::Arc;
use std::time::Duration;

use doorbell_emulator::Emulator;
use doorbell_spec::log_page::{AsyncEvent, AsyncEventKind, LogPage};
use doorbell_spec::{Clock, Transport};

use super::PollGroup;
use super::watch::{BUS_PERIOD_NS, POLLS_PER_LOOK};
use crate::controller::ControllerEvent;
use crate::{
    Controller, ControllerOptions, DmaSpace, DmaSpaceConfig, HugePolicy, Nsid, QueueConfig, QueuePair,
    Request,
};

/// A group with one member, its device with an event to report, and the clock.
fn group_with_an_event() -> (PollGroup, Arc<Emulator>, Clock) {
    let clock = Clock::virtual_time();
    let emulator = Emulator::new("size=1M".parse().expect("good"), clock.clone()).expect("made");
    let space = DmaSpace::new(DmaSpaceConfig::default().with_policy(HugePolicy::Never));
    let options = ControllerOptions::new().clock(&clock).space(&space);
    let controller = options.open_transport(emulator.clone()).expect("brought up");
    let mut group = PollGroup::new();
    group.add(queue(&controller));
    let (kind, log_page) = (AsyncEventKind::Health, LogPage::Health);
    emulator.raise_event(AsyncEvent { kind, info: 1, log_page });
    emulator.relax(&clock);
    (group, emulator, clock)
}

fn queue(controller: &Controller) -> QueuePair {
    controller.create_queue(QueueConfig::with_depth(2)).expect("a queue")
}

fn poll(group: &mut PollGroup, times: u32) {
    (0..times).for_each(|_| assert_eq!(group.poll(1, |_, _, _| ()), 0));
}

/// If one of these waited for the admin queue, this test would not end.
#[test]
fn nobody_waits_for_an_admin_queue_that_another_thread_has() {
    let (mut group, emulator, clock) = group_with_an_event();
    let shared = Arc::clone(&group.watch.controllers()[0].shared);
    let admin = shared.device.admin();
    poll(&mut group, 3 * POLLS_PER_LOOK);
    assert!(group.next_event().is_none());
    // The bus is asked all the same.
    emulator.remove();
    clock.advance(Duration::from_nanos(BUS_PERIOD_NS));
    poll(&mut group, POLLS_PER_LOOK);
    let (id, event) = group.next_event().expect("the removal");
    assert_eq!((id, event.ok()), (shared.id, Some(ControllerEvent::Removed)));
    drop(admin);
}

#[test]
fn the_controllers_are_looked_at_in_every_1024th_poll() {
    let (mut group, _emulator, _clock) = group_with_an_event();
    poll(&mut group, POLLS_PER_LOOK - 1);
    assert!(group.next_event().is_none());
    poll(&mut group, 1);
    assert!(group.next_event().is_some_and(|(_, event)| event.is_ok()));
    assert!(group.next_event().is_none());
}

#[test]
fn a_controller_is_watched_as_long_as_it_has_a_member() {
    let (mut group, _emulator, _clock) = group_with_an_event();
    let shared = Arc::clone(&group.watch.controllers()[0].shared);
    group.watch.add(&shared);
    assert_eq!(group.watch.controllers().len(), 1);
    group.watch.remove(shared.id);
    assert_eq!(group.watch.controllers().len(), 1);
    group.watch.remove(shared.id);
    assert!(group.watch.controllers().is_empty());
}

/// A mark that stayed would have its member polled for nothing the next time.
#[test]
fn a_turn_takes_the_mark_away() {
    let clock = Clock::virtual_time();
    let emulator = Emulator::new("size=1M".parse().expect("good"), clock.clone()).expect("made");
    let space = DmaSpace::new(DmaSpaceConfig::default().with_policy(HugePolicy::Never));
    let options = ControllerOptions::new().clock(&clock).space(&space);
    let controller = options.open_transport(emulator.clone()).expect("brought up");
    let namespace = controller.namespace(Nsid(1)).expect("there");
    let mut group = PollGroup::new();
    let members = [(); 3].map(|()| group.add(queue(&controller)));
    for busy in 1..=3 {
        for member in &members[..busy] {
            group.plug(1).submit(*member, Request::flush(&namespace)).expect("there is room");
        }
        emulator.step(8);
        assert_eq!(group.poll(8, |_, _, _| ()), busy);
        assert_eq!(group.due.count(), 0, "{busy} members had something");
    }
}
