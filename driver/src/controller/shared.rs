//! What a controller and its queue pairs share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use doorbell_spec::identify::IdentifyController;
use doorbell_spec::{Clock, Doorbells, QueueId, SubmissionEntry};

use super::admin::Admin;
use super::bring_up::find_namespaces;
pub(crate) use super::device::Parked;
use super::device::{Device, lock};
use super::shadow::Shadows;
use crate::buffer::Buffer;
use crate::error::ControllerError;
use crate::namespace::{ControllerId, Namespace};
use crate::queue::Generations;

/// A controller that is up.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) id: ControllerId,
    pub(crate) clock: Clock,
    pub(crate) generations: Generations,
    pub(crate) identify: Box<IdentifyController>,
    pub(crate) transfer_bytes_max: u64,
    pub(crate) doorbells: Doorbells,
    pub(super) shadows: Option<Shadows>,
    pub(crate) device: Device,
    pub(super) queues: Mutex<QueueNumbers>,
    pub(super) namespaces: Mutex<Vec<Namespace>>,
    state: AtomicU8,
}

/// Which queue numbers are given out.
#[derive(Debug)]
pub(super) struct QueueNumbers {
    granted: u32,
    used: BTreeMap<u16, QueueUse>,
}

/// What a queue number is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueUse {
    Open,
    /// The device did not delete it: the number cannot be used again until a reset.
    Stuck,
}

/// What bring-up found out.
#[derive(Debug)]
pub(super) struct SharedParts {
    pub(super) clock: Clock,
    pub(super) generations: Generations,
    pub(super) identify: Box<IdentifyController>,
    pub(super) transfer_bytes_max: u64,
    pub(super) doorbells: Doorbells,
    pub(super) shadows: Option<Shadows>,
    pub(super) device: Device,
    pub(super) queues_granted: u32,
    pub(super) id: ControllerId,
    pub(super) namespaces: Vec<Namespace>,
}

impl Shared {
    pub(super) fn new(parts: SharedParts) -> Arc<Self> {
        Arc::new(Self {
            id: parts.id,
            clock: parts.clock,
            generations: parts.generations,
            identify: parts.identify,
            transfer_bytes_max: parts.transfer_bytes_max,
            doorbells: parts.doorbells,
            shadows: parts.shadows,
            device: parts.device,
            queues: Mutex::new(QueueNumbers { granted: parts.queues_granted, used: BTreeMap::new() }),
            namespaces: Mutex::new(parts.namespaces),
            state: AtomicU8::new(RUNNING),
        })
    }

    /// Whether the controller takes requests.
    #[inline]
    pub(crate) fn is_running(&self) -> bool {
        // Nothing is published by this flag: whoever sees it late is refused by the device instead.
        self.state.load(Ordering::Relaxed) == RUNNING
    }

    /// Asks CSTS whether the controller is well, and remembers if not.
    pub(crate) fn check_health(&self) {
        match self.device.registers.csts("waiting for completions") {
            Ok(csts) if csts.fatal() => self.fail("it reports a fatal error (CSTS.CFS)"),
            Ok(csts) if !csts.ready() => self.fail("it is not ready any more (CSTS.RDY): it was reset"),
            Ok(_) => {}
            Err(error) => self.fail(&error.to_string()),
        }
    }

    /// Takes no further request, for this reason.
    pub(crate) fn fail(&self, reason: &str) {
        if self.state.swap(FAILED, Ordering::Relaxed) == RUNNING {
            tracing::error!(device = %self.device.transport.identity().name, reason, "controller failed");
        }
    }

    /// Runs something on the admin queue. A controller that does not answer has failed.
    pub(crate) fn with_admin<T>(
        &self,
        work: impl FnOnce(&mut Admin) -> Result<T, ControllerError>,
    ) -> Result<T, ControllerError> {
        if !self.is_running() {
            return Err(ControllerError::ControllerFailed);
        }
        let outcome = work(&mut self.device.admin());
        self.note(outcome)
    }

    /// Takes the controller for failed if an admin command ended in any way but with an answer.
    fn note<T>(&self, outcome: Result<T, ControllerError>) -> Result<T, ControllerError> {
        if let Err(error) = &outcome
            && !matches!(error, ControllerError::Admin { .. })
        {
            self.fail(&error.to_string());
        }
        outcome
    }

    /// Looks at all namespaces anew.
    pub(super) fn find_namespaces_again(&self) -> Result<(), ControllerError> {
        let found = self.note(find_namespaces(&self.device, &self.identify, self.id))?;
        *lock(&self.namespaces) = found;
        Ok(())
    }

    pub(crate) fn delete_submission_queue(&self, id: QueueId) -> Result<(), ControllerError> {
        let entry = SubmissionEntry::delete_submission_queue(id);
        self.with_admin(|admin| admin.execute("deleting a submission queue", entry).map(drop))
    }

    pub(crate) fn delete_completion_queue(&self, id: QueueId) -> Result<(), ControllerError> {
        let entry = SubmissionEntry::delete_completion_queue(id);
        self.with_admin(|admin| admin.execute("deleting a completion queue", entry).map(drop))
    }

    /// Keeps memory until the device is quiet.
    pub(crate) fn park(&self, parked: Parked) {
        self.device.park(parked);
    }

    /// Parks a request's buffer, and answers what its completion has instead.
    pub(crate) fn park_buffer(&self, buffer: Buffer) -> Buffer {
        if !matches!(buffer, Buffer::None) {
            self.park(Parked::Buffer(buffer));
        }
        Buffer::None
    }

    pub(crate) fn namespaces(&self) -> Vec<Namespace> {
        lock(&self.namespaces).clone()
    }

    pub(crate) fn queues_granted(&self) -> u32 {
        lock(&self.queues).granted
    }

    /// The most commands outstanding on a queue: a ring of n entries holds n - 1 (NVMe Base 2.0, 3.3.1.2).
    pub(crate) fn depth_max(&self) -> u32 {
        self.device.cap.queue_entries_max() - 1
    }

    /// Takes the lowest free queue number.
    pub(super) fn acquire_queue(&self) -> Result<QueueId, ControllerError> {
        let mut queues = lock(&self.queues);
        let granted = queues.granted;
        let free = (1..=granted).filter_map(|n| u16::try_from(n).ok()).find(|n| !queues.used.contains_key(n));
        let number = free.ok_or(ControllerError::NoQueueLeft { granted })?;
        queues.used.insert(number, QueueUse::Open);
        Ok(QueueId(number))
    }

    /// Gives a queue number back, if the device has deleted the queue.
    pub(crate) fn release_queue(&self, id: QueueId, end: QueueEnd) {
        let mut queues = lock(&self.queues);
        match end {
            QueueEnd::Deleted => queues.used.remove(&id.0),
            QueueEnd::Stuck => queues.used.insert(id.0, QueueUse::Stuck),
        };
    }

    /// Refuses if somebody still has a queue pair.
    pub(super) fn refuse_while_queues_are_open(&self) -> Result<(), ControllerError> {
        let queues = lock(&self.queues);
        let mut open = queues.used.iter().filter(|(_, use_of)| **use_of == QueueUse::Open);
        match open.next() {
            None => Ok(()),
            Some((first, _)) => {
                Err(ControllerError::QueuesOpen { open: open.count() + 1, first: QueueId(*first) })
            }
        }
    }

    /// Shuts the controller down. Does nothing the second time.
    pub(super) fn shut_down(&self) -> Result<(), ControllerError> {
        if self.state.swap(CLOSED, Ordering::Relaxed) == CLOSED {
            return Ok(());
        }
        let span = self.identify.shutdown_latency().unwrap_or(SHUTDOWN_SPAN_DEFAULT);
        self.device.shut_down(span.min(SHUTDOWN_SPAN_MAX))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Err(error) = self.shut_down() {
            tracing::warn!(%error, "the controller was not shut down in order");
        }
    }
}

/// How a queue ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueEnd {
    /// The device has deleted it.
    Deleted,
    /// The device has not.
    Stuck,
}

/// A number for a controller that no other of this process has, or has had for long.
pub(super) fn next_controller_id() -> ControllerId {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    ControllerId(NEXT.fetch_add(1, Ordering::Relaxed) & ControllerId::MAX)
}

const RUNNING: u8 = 0;
const FAILED: u8 = 1;
const CLOSED: u8 = 2;

/// How long a shutdown may take if the controller does not say.
const SHUTDOWN_SPAN_DEFAULT: Duration = Duration::from_secs(5);

/// The longest a shutdown is waited for, whatever the controller says.
const SHUTDOWN_SPAN_MAX: Duration = Duration::from_secs(60);
