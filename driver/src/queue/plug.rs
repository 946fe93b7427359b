//! Plugs: several requests, one doorbell.
//!
//! Invariant: all state of a plug lives in the queue pair, the plug itself is only a borrow. So a plug
//! that is forgotten loses nothing: whoever uses the queue next rings what it has left behind.

use doorbell_spec::Nanos;

use super::ids::SlotIndex;
use super::pair::QueuePair;
use super::submit::{Rejected, RequestHandle};
use crate::request::Request;

/// The most requests that wait for one ring of the doorbell.
pub(super) const REQUESTS_MAX: usize = 32;

/// A request of so many bytes is rung at once, with everything before it.
pub(super) const REQUEST_BYTES_MAX: u64 = 128 * 1024;

/// Collects requests and rings the doorbell once for all of them, see [`QueuePair::plug`].
///
/// It rings when it is dropped, holds 32 requests, holds one of 128 KiB or more, or the queue is full.
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

/// Slots whose commands are posted and not yet rung, in order.
#[derive(Debug)]
pub(super) struct Unrung {
    slots: [SlotIndex; REQUESTS_MAX],
    count: usize,
}

const _: () = assert!(REQUESTS_MAX.is_power_of_two(), "an index is masked");

impl Unrung {
    pub(super) fn new() -> Self {
        Self { slots: [SlotIndex(0); REQUESTS_MAX], count: 0 }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds one, of at most [`REQUESTS_MAX`], and says whether that was the last for which there is room.
    #[inline]
    fn push(&mut self, slot: SlotIndex) -> bool {
        self.slots[self.count & (REQUESTS_MAX - 1)] = slot;
        self.count += 1;
        self.count == REQUESTS_MAX
    }

    fn slots(&self) -> &[SlotIndex] {
        self.slots.get(..self.count).unwrap_or(&self.slots)
    }
}

impl QueuePair {
    /// Says that about `expected` requests follow. Takes so many command identifiers at once (64 at most
    /// at a time); those that are not used go back at the end.
    ///
    /// A number that turns out wrong costs a little speed and nothing else.
    #[inline]
    pub fn plug(&mut self, expected: u32) -> Plug<'_> {
        self.flush_plug();
        self.batch = self.ids.acquire_batch(expected);
        Plug { queue: self, nesting: Nesting::Outermost }
    }

    /// Ends whatever plug there was: gives unused identifiers back and rings.
    #[inline]
    pub(crate) fn flush_plug(&mut self) {
        if !self.batch.is_empty() {
            self.ids.release_batch(std::mem::take(&mut self.batch));
        }
        self.ring();
    }

    /// How many commands are posted and not yet rung.
    #[inline]
    pub(crate) fn unrung_count(&self) -> usize {
        self.unrung.count
    }

    /// The same as [`flush_plug`](Self::flush_plug) for a call that usually finds nothing to end.
    #[inline]
    pub(super) fn end_forgotten_plug(&mut self) {
        if !self.unrung.is_empty() || !self.batch.is_empty() {
            self.flush_plug();
        }
    }

    /// Rings the doorbell if something was posted, and starts the clock of those requests.
    #[inline]
    pub(super) fn ring(&mut self) {
        if !self.unrung.is_empty() {
            self.ring_posted();
        }
    }

    fn ring_posted(&mut self) {
        // 0 is "not rung".
        let now = self.clock.now().max(Nanos(1));
        self.counters.commands.add(self.unrung.slots().len() as u64);
        for slot in self.unrung.slots() {
            self.slots[slot.index()].rung_at = now;
        }
        self.unrung.count = 0;
        self.sq.ring(&self.counters);
    }

    /// Notes a posted command, and rings if the plug is full.
    #[inline]
    pub(super) fn posted(&mut self, slot: SlotIndex) {
        if self.unrung.push(slot) {
            self.ring_posted();
        }
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
    #[expect(clippy::result_large_err, reason = "the request goes back to its caller as it came")]
    pub fn submit(&mut self, request: Request) -> Result<RequestHandle, Rejected> {
        self.queue.post(request)
    }

    /// A plug within this one. Its end rings nothing; the outermost one's does.
    #[inline]
    pub fn plug(&mut self, expected: u32) -> Plug<'_> {
        if self.queue.batch.is_empty() {
            self.queue.batch = self.queue.ids.acquire_batch(expected);
        }
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
