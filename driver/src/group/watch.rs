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
pub(super) const POLLS_PER_LOOK: u32 = 1024;

/// How often the bus is asked for events of its own, which may be a system call.
pub(super) const BUS_PERIOD_NS: u64 = 100_000_000;

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
pub(super) struct Watched {
    pub(super) shared: Arc<Shared>,
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

    #[cfg(test)]
    pub(super) fn controllers(&self) -> &[Watched] {
        &self.controllers
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
