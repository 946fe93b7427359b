//! The queue pair itself: its parts, its life, its end.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use doorbell_spec::{Clock, Nanos, QueueId};

use super::batch::Batches;
use super::check::Limits;
use super::config::{QueueConfig, Statistics};
use super::ids::{CidLayout, Reuse, SlotIndex, Vacated};
use super::latency::LatencyCounts;
use super::poll::EMPTY_POLLS_PER_LOOK;
use super::prp::PrpLists;
use super::reap::Tally;
use super::ring::{CompletionRing, SubmissionRing};
use super::slot::{Owner, SlotUse};
use super::slots::Slots;
use super::source::SlotSource;
use super::split::Splits;
use super::stats::{Counters, QueueMonitor, QueueStats};
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
    /// Free slots, and those that a plug has reserved.
    pub(super) source: SlotSource,
    pub(super) reuse: Reuse,
    pub(super) layout: CidLayout,
    /// The slot whose completion is being handed to the callback, which is the next to be used.
    pub(super) vacated: Vacated,
    pub(super) slots: Slots,
    pub(super) splits: Splits,
    pub(super) batches: Batches,
    /// Of the last split request.
    pub(super) serial: u32,
    /// Empty polls until the next one that looks at the controller.
    pub(super) until_look: u32,
    /// What the poll under way has reaped.
    pub(super) tally: Tally,
    /// The last reading of the clock of the poll under way.
    pub(super) polled_at: Nanos,
    /// When the controller was last asked whether it is well, or known to be.
    pub(super) checked_at: Nanos,
    /// Whether the device has completed anything since.
    pub(super) heard: bool,
    /// Entries that share one reading of the clock.
    pub(super) entries_per_reading: usize,
    pub(super) counters: Arc<Counters>,
    /// Once requests are taken out of their slots: all slots before this one are empty.
    swept: Option<usize>,
    pub(super) config: QueueConfig,
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

/// What [`QueuePair::polled_at`] is while no poll is under way. No clock reads 0.
pub(super) const NOT_POLLING: Nanos = Nanos(0);

/// Entries that share one reading of the clock, where any do.
const ENTRIES_PER_READING: usize = 32;

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
    pub(crate) source: SlotSource,
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
            reuse: parts.source.reuse(),
            source: parts.source,
            layout,
            vacated: Vacated::NONE,
            slots: Slots::new((0..u32::from(depth)).map(|slot| layout.first(SlotIndex(slot)))),
            splits: Splits::new(depth),
            batches: Batches::new(depth, &parts.config),
            serial: 0,
            until_look: EMPTY_POLLS_PER_LOOK,
            tally: Tally::default(),
            polled_at: NOT_POLLING,
            heard: false,
            entries_per_reading: match parts.config.statistics {
                Statistics::Cached => ENTRIES_PER_READING,
                Statistics::PerRequest => 1,
                Statistics::Off => usize::MAX,
            },
            counters: Arc::new(Counters::new(match parts.config.statistics {
                Statistics::Off => LatencyCounts::default(),
                Statistics::Cached | Statistics::PerRequest => LatencyCounts::new(),
            })),
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
        let commands = self.source.in_use() - self.vacated.len() as usize;
        commands - self.splits.commands() + self.splits.len()
    }

    /// What it has done so far.
    #[must_use]
    pub fn stats(&self) -> QueueStats {
        self.counters.snapshot()
    }

    /// A view of its statistics that other threads can keep and read.
    #[must_use]
    pub fn monitor(&self) -> QueueMonitor {
        QueueMonitor::new(Arc::clone(&self.counters))
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
        let mut ended = Vec::new();
        let deleted = Ending { queue: self, end: QueueEnd::Stuck, ended: &mut ended }.delete();
        // The callback may panic. Everything is in its place by now: nothing that the device may reach is
        // freed by the unwinding.
        ended.into_iter().for_each(on_completion);
        deleted
    }

    /// Reaps what the device has written, once round the ring at most.
    fn drain(&mut self) -> Vec<Completion> {
        let now = self.reading();
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
        let next = self.slots.find(from, &[Owner::Plain, Owner::Request]);
        self.swept = Some(next.map_or(self.slots.len(), SlotIndex::index));
        let index = next?;
        let user_data = self.slots.at(index).user_data;
        Some((user_data, self.vacate(index)))
    }

    /// Forgets the parts of all large requests, which are then answered whatever becomes of their parts.
    fn abandon_parts(&mut self) {
        let mut from = 0;
        while let Some(part) = self.slots.find(from, &[Owner::Part]) {
            self.vacate(part);
            from = part.index() + 1;
        }
        self.splits.abandon();
    }

    fn vacate(&mut self, index: SlotIndex) -> Buffer {
        let cid = self.slots.at(index).used().cid();
        let buffer = self.slots.end(index, SlotUse::free(cid));
        self.source.release(index);
        buffer
    }
}

/// The end of a queue pair. Whatever comes of it, also a panic of the transport, what is left of the requests
/// is answered, and nothing is freed that the device may reach.
struct Ending<'a> {
    queue: &'a mut QueuePair,
    end: QueueEnd,
    ended: &'a mut Vec<Completion>,
}

impl Ending<'_> {
    fn delete(mut self) -> Result<(), ControllerError> {
        let Self { queue, ended, .. } = &mut self;
        queue.flush_plug();
        // What was not submitted by now never is: the queue that it would go to is about to end.
        queue.splits.stop_all();
        // Deleting the submission queue makes the device complete what it has fetched from it (NVMe Base
        // 2.0, 5.7). The completion queue lives on until those completions have been read.
        let deleted = queue.shared.delete_submission_queue(queue.id);
        ended.extend(queue.drain());
        deleted?;
        queue.shared.delete_completion_queue(queue.id)?;
        self.end = QueueEnd::Deleted;
        Ok(())
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let Self { queue, end, ended } = self;
        let is_stuck = *end == QueueEnd::Stuck;
        if is_stuck {
            for keeper in [queue.sq.keeper(), queue.cq.keeper(), queue.lists.keeper()] {
                queue.shared.park(Parked::Memory(keeper));
            }
        }
        let result = Err(if is_stuck { IoError::ControllerFailed } else { IoError::QueueClosed });
        while let Some((user_data, buffer)) = queue.take_any() {
            let buffer = if is_stuck { queue.shared.park_buffer(buffer) } else { buffer };
            ended.push(Completion { user_data, result, buffer, latency_ns: 0 });
        }
        queue.shared.release_queue(queue.id, *end);
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if let Err(error) = self.shut(&mut |_| ()) {
            tracing::warn!(queue = self.id.0, %error, "queue pair not deleted; its memory stays parked");
        }
    }
}
