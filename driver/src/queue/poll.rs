//! From an entry in the completion queue to the caller's callback.

use doorbell_spec::{Cid, CompletionEntry, Nanos};

use super::ids::SlotIndex;
use super::pair::QueuePair;
use super::plug::Plug;
use super::prp::NO_PAGE;
use super::slot::{Owner, SlotUse};
use crate::completion::{Completion, IoError};

/// Empty polls between two readings of the clock.
const EMPTY_POLLS_PER_LOOK: u32 = 64;

/// Entries that share one reading of the clock.
const ENTRIES_PER_READING: usize = 32;

/// How long the device may say nothing before a poll asks CSTS whether it is still well.
const SILENCE_NS_MAX: u64 = 20_000_000;

impl QueuePair {
    /// Hands completed requests to `on_completion`, at most `budget` of them, and answers how many.
    ///
    /// Never waits. The callback may submit through the plug it is given; the doorbells of both queues
    /// are rung once, at the end. Completions that name no live command are counted and dropped; they
    /// use up the budget too, so that a device that floods the queue cannot keep a poll from ending. A
    /// budget beyond the queue's depth is the depth: without hearing of the poll's end, no device that
    /// keeps to the protocol can complete more.
    ///
    /// When the controller has failed or was removed, outstanding requests complete with
    /// [`IoError::ControllerFailed`].
    #[inline]
    pub fn poll(&mut self, budget: usize, mut on_completion: impl FnMut(&mut Plug<'_>, Completion)) -> usize {
        if self.begin_poll() { self.poll_ready(budget, &mut on_completion) } else { 0 }
    }

    /// What every poll begins with. Rings what a forgotten plug has left behind, and says whether there is
    /// something to do: an entry of the device, or the look at the controller that an empty poll owes now and
    /// then.
    #[inline]
    pub(crate) fn begin_poll(&mut self) -> bool {
        self.end_forgotten_plug();
        if self.cq.is_ready() {
            return true;
        }
        self.empty_polls = self.empty_polls.wrapping_add(1);
        self.empty_polls.is_multiple_of(EMPTY_POLLS_PER_LOOK)
    }

    /// A poll that has something to do. Apart, so that an empty one is short.
    ///
    /// The callback is called at one place only, so that the compiler puts it there.
    #[inline(never)]
    pub(crate) fn poll_ready(
        &mut self,
        budget: usize,
        on_completion: &mut impl FnMut(&mut Plug<'_>, Completion),
    ) -> usize {
        let budget = budget.min(usize::from(self.depth));
        let mut now = self.clock.now();
        let mut guard = RingAtEnd { plug: Plug::inner(self), completed: 0 };
        let mut otherwise = 0;
        let mut entries_left = budget;
        while guard.completed + otherwise < budget {
            let queue = guard.plug.queue();
            let entry = if entries_left == 0 { None } else { queue.cq.pop() };
            let completion = if let Some(entry) = entry {
                // What arrives while a long batch is reaped has been on its way longer than `now` says.
                let reaped = budget - entries_left;
                if reaped > 0 && reaped.is_multiple_of(ENTRIES_PER_READING) {
                    now = queue.clock.now();
                }
                entries_left -= 1;
                let cid = Cid(entry.cid);
                let index = queue.layout.slot(cid);
                // The common case: a request of one command, whose command has succeeded, and nobody waits
                // for its slot. All else is known to `end_command`.
                if let Some(slot) = queue.slots.get_mut(index.index())
                    && slot.slot_use == SlotUse::request(cid, NO_PAGE)
                    && slot.rung_at != Nanos(0)
                    && queue.sq.is_from(queue.id, &entry)
                    && entry.status().is_success()
                    && !queue.splits.is_waiting()
                {
                    slot.slot_use = SlotUse::free(queue.layout.next(cid));
                    queue.checked_at = now;
                    queue.ids.release(index);
                    guard.completed += 1;
                    Completion {
                        user_data: slot.user_data,
                        result: Ok(entry.dw0),
                        buffer: std::mem::take(&mut slot.buffer),
                        latency_ns: now.since(slot.rung_at),
                    }
                } else {
                    let Some(completion) = queue.end_command(&entry, now) else { continue };
                    otherwise += 1;
                    completion
                }
            } else {
                if queue.checked_at == now && queue.shared.is_running() {
                    break;
                }
                // All of it was noise, which says nothing about the controller, or nothing came, or the
                // controller has failed.
                let Some(completion) = queue.next_without_entry(now) else { break };
                otherwise += 1;
                completion
            };
            on_completion(&mut guard.plug, completion);
        }
        guard.completed + otherwise
    }

    /// Ends the command that an entry names, if there is such a one. Answers the request's completion if
    /// that was all of it.
    #[cold]
    #[inline(never)]
    pub(super) fn end_command(&mut self, entry: &CompletionEntry, now: Nanos) -> Option<Completion> {
        let cid = Cid(entry.cid);
        let index = self.layout.slot(cid);
        let live = self
            .slots
            .get(index.index())
            .is_some_and(|slot| slot.owner() != Owner::Nobody && slot.slot_use.cid() == cid);
        if !self.sq.is_from(self.id, entry) {
            self.counters.malformed_completions.add(1);
            // The head is only counted: nothing here relies on it. Another queue's completion is not ours.
            if entry.sq_id != self.id.0 {
                return None;
            }
        }
        // A command that was not rung cannot have been completed: the device made that up.
        if !live || self.slots[index.index()].rung_at == Nanos(0) {
            self.counters.spurious_completions.add(1);
            return None;
        }
        self.checked_at = now;
        let completion = self.take_completion(index, entry, now);
        self.release_slot(index);
        match &completion {
            Some(Completion { result: Ok(_), .. }) => self.counters.completed.add(1),
            Some(_) => self.counters.failed.add(1),
            None => {}
        }
        // Parts of large requests go first: their request was accepted before anything that the callback
        // may submit.
        self.continue_splits();
        completion
    }

    fn take_completion(
        &mut self,
        index: SlotIndex,
        entry: &CompletionEntry,
        now: Nanos,
    ) -> Option<Completion> {
        let slot = &mut self.slots[index.index()];
        let status = entry.status();
        let lba = slot.lba;
        if let Owner::Split(split) = slot.owner() {
            return self.splits.part_ended(split, lba, status, slot.rung_at, now);
        }
        let result = if status.is_success() { Ok(entry.dw0) } else { Err(IoError::Status { status, lba }) };
        Some(Completion {
            user_data: slot.user_data,
            result,
            buffer: std::mem::take(&mut slot.buffer),
            latency_ns: now.since(slot.rung_at),
        })
    }

    fn release_slot(&mut self, index: SlotIndex) {
        let slot = &mut self.slots[index.index()];
        self.lists.release(slot.slot_use.chain());
        slot.slot_use = SlotUse::free(self.layout.next(slot.slot_use.cid()));
        self.ids.release(index);
    }

    /// Looks whether the controller is still well. Answers a request that ends without a completion of the
    /// device: one that was cancelled, or any if the controller has failed.
    #[cold]
    #[inline(never)]
    fn next_without_entry(&mut self, now: Nanos) -> Option<Completion> {
        if let Some(completion) = self.splits.take_over(now) {
            self.counters.failed.add(1);
            return Some(completion);
        }
        if self.shared.is_running() && now.since(self.checked_at) > SILENCE_NS_MAX {
            self.checked_at = now;
            if self.outstanding() > 0 {
                self.shared.check_health();
                self.ring_again();
            }
        }
        self.continue_splits();
        self.flush_plug();
        if self.shared.is_running() { None } else { self.next_failed() }
    }

    /// Answers an outstanding request of a controller that will not. Its memory is parked: nobody knows
    /// whether the device still reaches it.
    fn next_failed(&mut self) -> Option<Completion> {
        let (user_data, buffer) = self.take_any()?;
        self.counters.failed.add(1);
        let buffer = self.shared.park_buffer(buffer);
        Some(Completion { user_data, result: Err(IoError::ControllerFailed), buffer, latency_ns: 0 })
    }
}

/// Rings both doorbells when a poll ends, also when it ends by a panic of the callback.
struct RingAtEnd<'a> {
    plug: Plug<'a>,
    /// Requests that ended well and are not yet counted.
    completed: usize,
}

impl Drop for RingAtEnd<'_> {
    #[inline]
    fn drop(&mut self) {
        let queue = self.plug.queue();
        queue.counters.completed.add(self.completed as u64);
        queue.cq.ring(&queue.counters);
        queue.end_forgotten_plug();
    }
}
