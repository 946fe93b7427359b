//! Plugs: several requests, one doorbell.
//!
//! Invariant: all state of a plug lives in the queue pair, the plug itself is only a borrow. So a plug
//! that is forgotten loses nothing: whoever uses the queue next rings what it has left behind.

use std::hint::cold_path;

use doorbell_spec::Nanos;

use super::config::Statistics;
use super::pair::{NOT_POLLING, QueuePair};
use super::slot::Owner;
use super::submit::{Rejected, RequestHandle};
use crate::request::Request;

/// A request of so many bytes is rung at once, with everything before it.
pub(super) const REQUEST_BYTES_MAX: u64 = 128 * 1024;

/// Collects requests and rings the doorbell once for all of them, see [`QueuePair::plug`].
///
/// It rings when it is dropped, holds 32 requests (or [`plug_limit`](super::QueueConfig::plug_limit)), holds
/// one of 128 KiB or more, or the queue is full.
#[derive(Debug)]
pub struct Plug<'a> {
    queue: &'a mut QueuePair,
    nesting: Nesting,
}

/// Whether a plug's end rings the doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nesting {
    Outermost,
    Inner,
}

impl QueuePair {
    /// Says that about `expected` requests follow, so that their command identifiers are taken at once (64
    /// at most at a time); those that are not used go back at the end. With 0, each is taken by itself.
    ///
    /// A number that turns out wrong costs a little speed and nothing else.
    #[inline]
    pub fn plug(&mut self, expected: u32) -> Plug<'_> {
        self.flush_plug();
        self.look_at_state();
        self.source.reserve(expected);
        Plug { queue: self, nesting: Nesting::Outermost }
    }

    /// Ends whatever plug there was: gives unused identifiers back and rings.
    #[inline]
    pub(crate) fn flush_plug(&mut self) {
        self.source.release_reserve();
        self.ring();
    }

    /// Whether any command is posted and not yet rung.
    #[inline]
    pub(crate) fn has_unrung(&self) -> bool {
        self.sq.has_unrung()
    }

    /// How many commands are posted and not yet rung.
    #[inline]
    pub(crate) fn unrung_count(&self) -> usize {
        self.sq.unrung() as usize
    }

    /// Rings the doorbell if something was posted, and starts the clock of those requests.
    #[inline]
    pub(super) fn ring(&mut self) {
        if self.sq.has_unrung() {
            self.ring_posted();
        }
    }

    fn ring_posted(&mut self) {
        // Within a poll, its reading of the clock is the time.
        let now = if self.polled_at == NOT_POLLING { self.reading() } else { self.polled_at };
        self.sq.ring(&self.counters);
        self.batches.rung(now);
        if self.batches.is_time_for_visit() {
            self.look_at_one_slot();
        }
        self.look_at_state();
    }

    /// Notes a posted command, and rings if the plug is full.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "two instructions of every submission")]
    pub(super) fn posted(&mut self) {
        if self.batches.posted() {
            cold_path();
            self.batch_is_full();
        }
    }

    #[inline(never)]
    fn batch_is_full(&mut self) {
        if self.config.statistics != Statistics::PerRequest {
            // A batch is what a plug holds.
            return self.ring_posted();
        }
        // Each request is a batch of its own, with its own time, also within a poll.
        let now = self.reading();
        self.batches.begin_next(now);
        if self.batches.is_time_for_visit() {
            self.look_at_one_slot();
        }
        if self.sq.unrung() >= self.config.plug_limit {
            self.ring_posted();
        }
    }

    /// The time for statistics, which is 0 if there are none.
    #[inline]
    pub(super) fn reading(&self) -> Nanos {
        match self.config.statistics {
            Statistics::Off => Nanos(0),
            Statistics::Cached | Statistics::PerRequest => self.clock.now(),
        }
    }

    /// Gives a command that has grown old its own time, if it lives in the slot whose turn it is.
    #[inline(never)]
    fn look_at_one_slot(&mut self) {
        let index = self.batches.next_visit();
        let Some(slot) = self.slots.get_mut(index) else { return };
        let used = slot.used();
        if used.owner() != Owner::Nobody && !used.is_old() && self.batches.is_old(used.batch()) {
            slot.grow_old();
            self.slots.detail(index).rung_at = self.batches.time(used.batch());
        }
    }

    #[inline]
    fn look_at_state(&mut self) {
        if !self.shared.is_running() {
            self.refuse_all();
        }
    }

    /// Sends every request the long way, which refuses it, now that the controller takes none.
    pub(super) fn refuse_all(&mut self) {
        self.limits.quick_page = 0;
    }

    /// Rings if a command of so many bytes must not wait.
    pub(super) fn posted_bytes(&mut self, bytes: u64) {
        if bytes >= REQUEST_BYTES_MAX {
            self.ring();
        }
    }
}

impl Plug<'_> {
    /// Submits a request. The doorbell may be rung later, at the latest when the plug ends.
    ///
    /// # Errors
    /// As [`QueuePair::submit`]; the request comes back. A queue that is full has been rung.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a request that is built in place never becomes memory")]
    pub fn submit(&mut self, request: Request) -> Result<RequestHandle, Rejected> {
        self.queue.post(request)
    }

    /// A plug within this one. Its end rings nothing; the outermost one's does.
    #[inline]
    pub fn plug(&mut self, expected: u32) -> Plug<'_> {
        self.queue.source.reserve(expected);
        Plug { queue: self.queue, nesting: Nesting::Inner }
    }

    /// Ends the plug: rings the doorbell if something waits for it. The same as dropping it.
    #[inline]
    pub fn finish(self) {}

    /// The queue's depth, for those who are handed a plug.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.queue.depth()
    }

    /// The queue behind it.
    #[inline]
    pub(crate) fn queue(&mut self) -> &mut QueuePair {
        self.queue
    }

    /// A plug for use inside of a poll, which rings at its own end.
    #[inline]
    pub(crate) fn inner(queue: &mut QueuePair) -> Plug<'_> {
        Plug { queue, nesting: Nesting::Inner }
    }
}

impl Drop for Plug<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.nesting == Nesting::Outermost {
            self.queue.flush_plug();
        }
    }
}
