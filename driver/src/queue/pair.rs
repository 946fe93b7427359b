//! The queue pair itself: its parts, its life, its end.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use doorbell_spec::{Clock, Nanos, QueueId};

use super::check::Limits;
use super::config::QueueConfig;
use super::ids::{CidLayout, CommandIds, IdBatch, SlotIndex};
use super::plug::Unrung;
use super::prp::PrpLists;
use super::ring::{CompletionRing, SubmissionRing};
use super::slot::{Owner, Slot, SlotUse};
use super::split::Splits;
use super::stats::{Counters, QueueStats};
use crate::buffer::Buffer;
use crate::completion::{Completion, IoError};
use crate::controller::{Parked, QueueEnd, Shared};
use crate::error::ControllerError;

/// A submission queue and its completion queue, driven by one thread.
///
/// `Send` but not `Sync`: it may move to another thread, but two threads cannot use it at once. No call
/// of the I/O path ([`submit`](QueuePair::submit), [`plug`](QueuePair::plug), [`poll`](QueuePair::poll))
/// allocates, locks, waits or makes a system call.
///
/// ```compile_fail
/// fn shared_between_threads<T: Sync>() {}
/// shared_between_threads::<doorbell::QueuePair>();
/// ```
///
/// Dropping it deletes the queues on the device, which waits for two admin commands;
/// [`close`](QueuePair::close) does the same and reports what was outstanding.
#[derive(Debug)]
pub struct QueuePair {
    pub(crate) shared: Arc<Shared>,
    pub(super) id: QueueId,
    pub(super) number: QueueNumber,
    pub(super) depth: u16,
    pub(super) limits: Limits,
    pub(super) clock: Clock,
    pub(super) sq: SubmissionRing,
    pub(super) cq: CompletionRing,
    pub(super) lists: PrpLists,
    pub(super) ids: CommandIds,
    pub(super) layout: CidLayout,
    /// Identifiers that a plug has taken and not used.
    pub(super) batch: IdBatch,
    pub(super) slots: Box<[Slot]>,
    pub(super) splits: Splits,
    /// Slots whose commands are posted and not yet rung.
    pub(super) unrung: Unrung,
    pub(super) serial: u32,
    pub(super) empty_polls: u32,
    /// When the controller was last asked whether it is well.
    pub(super) checked_at: Nanos,
    pub(super) counters: Arc<Counters>,
    /// Once requests are taken out of their slots: all slots before this one are empty.
    swept: Option<usize>,
    config: QueueConfig,
    closed: bool,
    /// Not `Sync`, whatever the parts are.
    _one_thread: PhantomData<Cell<()>>,
}

/// Tells a queue pair from all others of the process, also from those that had its identifier before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueNumber(u32);

impl QueueNumber {
    fn next() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// What the controller makes a queue pair from.
#[derive(Debug)]
pub(crate) struct QueueParts {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: QueueId,
    pub(crate) depth: u16,
    pub(crate) limits: Limits,
    pub(crate) clock: Clock,
    pub(crate) sq: SubmissionRing,
    pub(crate) cq: CompletionRing,
    pub(crate) lists: PrpLists,
    pub(crate) config: QueueConfig,
}

impl QueuePair {
    pub(crate) fn new(parts: QueueParts) -> Self {
        let depth = parts.depth;
        let layout = CidLayout::new(depth, parts.shared.generations);
        Self {
            shared: parts.shared,
            id: parts.id,
            number: QueueNumber::next(),
            depth,
            limits: parts.limits,
            checked_at: parts.clock.now(),
            clock: parts.clock,
            sq: parts.sq,
            cq: parts.cq,
            lists: parts.lists,
            ids: CommandIds::new(depth),
            layout,
            batch: IdBatch::default(),
            slots: (0..depth).map(|slot| Slot::new(layout.first(SlotIndex(slot)))).collect(),
            splits: Splits::new(depth),
            unrung: Unrung::new(),
            serial: 0,
            empty_polls: 0,
            counters: Arc::new(Counters::default()),
            swept: None,
            config: parts.config,
            closed: false,
            _one_thread: PhantomData,
        }
    }

    /// Its identifier on the controller: 1 and up.
    #[must_use]
    pub fn id(&self) -> QueueId {
        self.id
    }

    /// How many commands can be outstanding.
    #[must_use]
    pub fn depth(&self) -> u32 {
        u32::from(self.depth)
    }

    /// The configuration it was made with.
    #[must_use]
    pub fn config(&self) -> &QueueConfig {
        &self.config
    }

    /// Requests that were accepted and not yet completed. Counted when asked for; not for the I/O path.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        let held = self.ids.available() + self.batch.len();
        let commands = usize::from(self.depth) - held as usize;
        commands - self.splits.commands() + self.splits.len()
    }

    /// What it has done so far.
    #[must_use]
    pub fn stats(&self) -> QueueStats {
        self.counters.snapshot()
    }

    /// Deletes the queues on the device and hands every outstanding request back.
    ///
    /// Requests that the device has answered meanwhile complete as usual, the others with
    /// [`IoError::QueueClosed`]. If the device does not delete the queues, their memory and that of the
    /// outstanding requests stays parked until the controller is closed; such requests complete with
    /// [`IoError::ControllerFailed`] and without their buffer. Waits for two admin commands at most.
    ///
    /// # Errors
    /// The device did not delete the queues; every request was handed back all the same.
    pub fn close(mut self, mut on_completion: impl FnMut(Completion)) -> Result<(), ControllerError> {
        self.shut(&mut on_completion)
    }

    fn shut(&mut self, on_completion: &mut dyn FnMut(Completion)) -> Result<(), ControllerError> {
        if std::mem::replace(&mut self.closed, true) {
            return Ok(());
        }
        self.flush_plug();
        // Deleting the submission queue makes the device complete what it has fetched from it (NVMe Base
        // 2.0, 5.7). The completion queue lives on until those completions have been read.
        let deleted = self.shared.delete_submission_queue(self.id);
        let mut ended = self.drain();
        let deleted = deleted.and_then(|()| self.shared.delete_completion_queue(self.id));
        if deleted.is_err() {
            for keeper in [self.sq.keeper(), self.cq.keeper(), self.lists.keeper()] {
                self.shared.park(Parked::Memory(keeper));
            }
        }
        let result = Err(if deleted.is_ok() { IoError::QueueClosed } else { IoError::ControllerFailed });
        while let Some((user_data, buffer)) = self.take_any() {
            let buffer = if deleted.is_ok() { buffer } else { self.shared.park_buffer(buffer) };
            ended.push(Completion { user_data, result, buffer, latency_ns: 0 });
        }
        let end = if deleted.is_ok() { QueueEnd::Deleted } else { QueueEnd::Stuck };
        self.shared.release_queue(self.id, end);
        // The callback may panic. Everything is in its place by now: nothing that the device may reach is
        // freed by the unwinding.
        ended.into_iter().for_each(on_completion);
        deleted
    }

    /// Reaps what the device has written, once round the ring at most.
    fn drain(&mut self) -> Vec<Completion> {
        let now = self.clock.now();
        let mut ended = Vec::new();
        for _ in 0..=u32::from(self.depth) {
            let Some(entry) = self.cq.pop() else { break };
            ended.extend(self.end_command(&entry, now));
        }
        self.cq.ring(&self.counters);
        ended
    }

    /// Takes any outstanding request out of its slots. Its commands may still be with the device: only
    /// for a queue that will submit nothing more.
    pub(super) fn take_any(&mut self) -> Option<(u64, Buffer)> {
        let from = match self.swept {
            Some(from) => from,
            None => {
                self.abandon_parts();
                0
            }
        };
        if let Some(request) = self.splits.take_any() {
            self.swept = Some(from);
            return Some(request);
        }
        let next = self.slots[from..].iter().position(|slot| slot.owner() == Owner::Request);
        let index = next.map(|offset| from + offset);
        self.swept = Some(index.unwrap_or(self.slots.len()));
        let slot = &mut self.slots[index?];
        let request = (slot.user_data, std::mem::take(&mut slot.buffer));
        self.vacate(index?);
        Some(request)
    }

    /// Forgets the parts of all large requests, which are then answered whatever becomes of their parts.
    fn abandon_parts(&mut self) {
        for part in 0..self.slots.len() {
            if matches!(self.slots[part].owner(), Owner::Split(_)) {
                self.vacate(part);
            }
        }
        self.splits.abandon();
    }

    fn vacate(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.slot_use = SlotUse::free(slot.slot_use.cid());
        self.ids.release(SlotIndex(u16::try_from(index).unwrap_or(u16::MAX)));
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if let Err(error) = self.shut(&mut |_| ()) {
            tracing::warn!(queue = self.id.0, %error, "queue pair not deleted; its memory stays parked");
        }
    }
}
