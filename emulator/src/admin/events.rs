//! Asynchronous events (NVMe Base 2.0, 5.2): requests that wait, events that are pending, and the log page
//! whose reading lets the next event of a kind through.

use std::collections::VecDeque;

use doorbell_spec::log_page::{AsyncEvent, AsyncEventKind, LogPage};
use doorbell_spec::{Nsid, QueueId, Status, SubmissionEntry};

use crate::device::{Device, Step};
use crate::outcome::Outcome;
use crate::report::Violation;
use crate::twist::Twist;

/// Requests and events.
pub(crate) struct Events {
    /// Identifiers of the outstanding requests, oldest first.
    requests: VecDeque<u16>,
    requests_max: usize,
    pending: VecDeque<AsyncEvent>,
    /// Kinds that were reported and whose log page was not read since.
    masked: Vec<AsyncEvent>,
    /// Namespaces that changed since their log page was read, ascending.
    pub(crate) changed: Vec<Nsid>,
}

impl Events {
    pub(crate) fn new(requests_max: usize) -> Self {
        Self {
            requests: VecDeque::with_capacity(requests_max),
            requests_max,
            pending: VecDeque::with_capacity(PENDING_MAX),
            masked: Vec::new(),
            changed: Vec::new(),
        }
    }

    pub(crate) fn reset(&mut self) {
        self.requests.clear();
        self.pending.clear();
        self.masked.clear();
    }

    /// How many requests are outstanding.
    pub(crate) fn outstanding(&self) -> usize {
        self.requests.len()
    }

    /// Whether a request with this identifier is outstanding.
    pub(crate) fn holds(&self, cid: u16) -> bool {
        self.requests.contains(&cid)
    }

    /// Takes a request back.
    pub(crate) fn take_request(&mut self, cid: u16) -> bool {
        let before = self.requests.len();
        self.requests.retain(|request| *request != cid);
        self.requests.len() < before
    }

    /// Raises an event. The same event is pending once at most.
    pub(crate) fn raise(&mut self, event: AsyncEvent) {
        if !self.pending.contains(&event) && self.pending.len() < PENDING_MAX {
            self.pending.push_back(event);
        }
    }

    /// Notes that a namespace has changed.
    pub(crate) fn note_changed(&mut self, nsid: Nsid) {
        if let Err(at) = self.changed.binary_search(&nsid) {
            // One more than the log page can hold tells it to say "too many".
            if self.changed.len() <= CHANGED_MAX {
                self.changed.insert(at, nsid);
            }
        }
    }

    /// Lets the next event that this log page belongs to through.
    pub(crate) fn unmask(&mut self, page: LogPage) {
        self.masked.retain(|event| event.log_page != page);
    }

    /// Whether there is nothing that could be reported, now or when a log page has been read.
    pub(crate) fn is_silent(&self) -> bool {
        self.pending.is_empty() || self.requests.is_empty()
    }

    /// An event that can be reported now, and the request to report it with.
    fn next(&mut self) -> Option<(u16, AsyncEvent)> {
        if self.requests.is_empty() {
            return None;
        }
        let masks = |kind: AsyncEventKind| self.masked.iter().any(|masked| masked.kind == kind);
        let at = self.pending.iter().position(|event| !masks(event.kind))?;
        let event = self.pending.remove(at)?;
        self.masked.push(event);
        Some((self.requests.pop_front()?, event))
    }
}

impl Device {
    /// An event request waits until there is something to report.
    pub(super) fn event_request(&mut self, entry: &SubmissionEntry) -> Option<Outcome> {
        let events = &mut self.admin.events;
        if events.requests.len() >= events.requests_max {
            self.tally.violations.add(Violation::TooManyEventRequests);
            return Some(Outcome::refused(Status::EVENT_LIMIT_EXCEEDED));
        }
        events.requests.push_back(entry.cid);
        None
    }

    /// Reports events for which there are requests. Answers how many.
    pub(crate) fn deliver_events(&mut self, step: &Step<'_>) -> usize {
        let mut delivered = 0;
        while let Some((cid, event)) = self.admin.events.next() {
            let request = SubmissionEntry { cid, ..SubmissionEntry::async_event_request() };
            let outcome = Outcome::with_result(event.dw0());
            self.finish(step, QueueId::ADMIN, &request, outcome, Twist::None);
            delivered += 1;
        }
        delivered
    }

    /// A namespace came, went or changed its size: noted for the log, reported if the host wants it.
    pub(crate) fn namespace_changed(&mut self, nsid: Nsid) {
        self.admin.events.note_changed(nsid);
        if self.admin.features.events.namespace_attributes() {
            self.admin.events.raise(AsyncEvent {
                kind: AsyncEventKind::Notice,
                info: AsyncEvent::NAMESPACE_CHANGED,
                log_page: LogPage::ChangedNamespaces,
            });
        }
    }
}

/// So many different events can be pending.
const PENDING_MAX: usize = 16;
/// Entries of the Changed Namespace List.
pub(crate) const CHANGED_MAX: usize = 1024;
