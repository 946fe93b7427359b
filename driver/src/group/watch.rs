//! The controllers of a group's members: their admin queues move here, and their events wait here.
//!
//! A poll looks at them rarely, and never waits: another thread may have a controller's admin queue for as
//! long as one of its commands takes. Whatever may wait is left to
//! [`PollGroup::next_event`](super::PollGroup::next_event).

use std::sync::Arc;

use doorbell_spec::Nanos;

use crate::controller::{ControllerEvent, Shared};
use crate::error::ControllerError;
use crate::namespace::ControllerId;

/// Polls of the group between two looks at its controllers.
const POLLS_PER_LOOK: u32 = 1024;

/// How often the bus is asked for events of its own, which may be a system call.
const BUS_PERIOD_NS: u64 = 100_000_000;

/// Events of a controller that are given out after one look: so that whoever takes all that there are comes
/// to an end, however many the device makes.
const EVENTS_PER_LOOK: u32 = 8;

/// The controllers of a group.
#[derive(Debug)]
pub(super) struct Watch {
    controllers: Vec<Watched>,
    polls_left: u32,
    /// Whether any controller may have an event.
    has_news: bool,
}

/// One controller.
#[derive(Debug)]
struct Watched {
    shared: Arc<Shared>,
    /// How many members are its queue pairs.
    members: usize,
    /// How many events may be fetched from it before it must be looked at again.
    events_left: u32,
    bus_asked_at: Nanos,
    /// Whether its failure has been told.
    is_end_told: bool,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self { controllers: Vec::new(), polls_left: POLLS_PER_LOOK, has_news: false }
    }

    /// Has another member's controller.
    pub(super) fn add(&mut self, shared: &Arc<Shared>) {
        if let Some(known) = self.controllers.iter_mut().find(|it| it.shared.id == shared.id) {
            known.members += 1;
            return;
        }
        self.controllers.push(Watched {
            shared: Arc::clone(shared),
            members: 1,
            events_left: 0,
            bus_asked_at: shared.clock.now(),
            is_end_told: false,
        });
    }

    /// Forgets a controller with its last member. Events that nobody has fetched stay with the controller.
    pub(super) fn remove(&mut self, id: ControllerId) {
        self.controllers.retain_mut(|it| {
            if it.shared.id == id {
                it.members -= 1;
            }
            it.members > 0
        });
    }

    /// Counts a poll, and says whether it is time to look at the controllers.
    #[inline]
    pub(super) fn is_due(&mut self) -> bool {
        self.polls_left = self.polls_left.wrapping_sub(1);
        self.polls_left == 0
    }

    /// Looks at the controllers if it is time.
    #[inline]
    pub(super) fn look_if_due(&mut self) {
        if self.polls_left == 0 {
            self.look();
        }
    }

    #[cold]
    #[inline(never)]
    fn look(&mut self) {
        self.polls_left = POLLS_PER_LOOK;
        for it in &mut self.controllers {
            if it.has_news() {
                it.events_left = EVENTS_PER_LOOK;
                self.has_news = true;
            }
        }
    }

    /// See [`PollGroup::next_event`](super::PollGroup::next_event).
    pub(super) fn next_event(&mut self) -> Option<(ControllerId, Result<ControllerEvent, ControllerError>)> {
        if !self.has_news {
            return None;
        }
        for it in &mut self.controllers {
            if let Some(event) = it.next_event() {
                return Some((it.shared.id, event));
            }
        }
        self.has_news = false;
        None
    }
}

impl Watched {
    /// Whether there may be something to fetch.
    fn has_news(&mut self) -> bool {
        if !self.shared.is_running() {
            return !self.is_end_told;
        }
        let now = self.shared.clock.now();
        let is_bus_due = now.since(self.bus_asked_at) >= BUS_PERIOD_NS;
        if is_bus_due {
            self.bus_asked_at = now;
        }
        // Both: the admin queue moves here.
        self.shared.has_event() || is_bus_due
    }

    fn next_event(&mut self) -> Option<Result<ControllerEvent, ControllerError>> {
        self.events_left = self.events_left.checked_sub(1)?;
        let event = self.shared.next_event_if_free().transpose();
        // A failed controller says so for ever.
        let is_end = !self.shared.is_running() && matches!(event, Some(Err(_)));
        if event.is_none() || is_end && self.is_end_told {
            self.events_left = 0;
            return None;
        }
        self.is_end_told |= is_end;
        event
    }
}

#[cfg(all(test, feature = "emulator"))]
mod tests {
    use super::*;
    use crate::{ControllerOptions, DmaSpace, DmaSpaceConfig, HugePolicy, PollGroup, QueueConfig};
    use doorbell_emulator::Emulator;
    use doorbell_spec::log_page::{AsyncEvent, AsyncEventKind, LogPage};
    use doorbell_spec::{Clock, Transport};

    /// A group with one member, its device with an event to report, and the clock.
    fn group_with_an_event() -> (PollGroup, Arc<Emulator>, Clock) {
        let clock = Clock::virtual_time();
        let emulator = Emulator::new("size=1M".parse().expect("good"), clock.clone()).expect("made");
        let space = DmaSpace::new(DmaSpaceConfig::default().with_policy(HugePolicy::Never));
        let options = ControllerOptions::new().clock(&clock).space(&space);
        let controller = options.open_transport(emulator.clone()).expect("brought up");
        let mut group = PollGroup::new();
        group.add(controller.create_queue(QueueConfig::with_depth(2)).expect("a queue"));
        let (kind, log_page) = (AsyncEventKind::Health, LogPage::Health);
        emulator.raise_event(AsyncEvent { kind, info: 1, log_page });
        emulator.relax(&clock);
        (group, emulator, clock)
    }

    fn poll(group: &mut PollGroup, times: u32) {
        (0..times).for_each(|_| assert_eq!(group.poll(1, |_, _, _| ()), 0));
    }

    /// If one of these waited for the admin queue, this test would not end.
    #[test]
    fn nobody_waits_for_an_admin_queue_that_another_thread_has() {
        let (mut group, emulator, clock) = group_with_an_event();
        let shared = Arc::clone(&group.watch.controllers[0].shared);
        let admin = shared.device.admin();
        poll(&mut group, 3 * POLLS_PER_LOOK);
        assert!(group.next_event().is_none());
        // The bus is asked all the same.
        emulator.remove();
        clock.advance(std::time::Duration::from_nanos(BUS_PERIOD_NS));
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
        let shared = Arc::clone(&group.watch.controllers[0].shared);
        group.watch.add(&shared);
        assert_eq!(group.watch.controllers.len(), 1);
        group.watch.remove(shared.id);
        assert_eq!(group.watch.controllers.len(), 1);
        group.watch.remove(shared.id);
        assert!(group.watch.controllers.is_empty());
    }
}
