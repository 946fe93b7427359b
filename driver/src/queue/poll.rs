//! From an entry in the completion queue to the caller's callback.

use std::hint::cold_path;

use doorbell_spec::{Cid, CompletionEntry, Nanos};

use super::ids::SlotIndex;
use super::memory::is_absent;
use super::pair::QueuePair;
use super::plug::Plug;
use super::prp::NO_PAGE;
use super::reap::Next;
use super::slot::Owner;
use super::slots::Slot;
use crate::buffer::Buffer;
use crate::completion::{Completion, IoError};

/// Empty polls between two readings of the clock.
pub(super) const EMPTY_POLLS_PER_LOOK: u32 = 64;

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
        self.ring();
        if self.cq.is_ready() {
            return true;
        }
        self.until_look -= 1;
        self.until_look == 0 && self.look()
    }

    /// Looks whether the controller is still well, and whether a poll has something to do without a
    /// completion of the device.
    #[cold]
    #[inline(never)]
    fn look(&mut self) -> bool {
        self.until_look = EMPTY_POLLS_PER_LOOK;
        self.source.give_up_waiting();
        let now = self.clock.now();
        if std::mem::take(&mut self.heard) {
            self.checked_at = now;
        }
        let waiting = self.splits.is_waiting() || self.splits.is_any_over();
        let silent = now.since(self.checked_at) > SILENCE_NS_MAX;
        waiting || silent || !self.shared.is_running()
    }

    /// A poll that has something to do. Apart, so that an empty one is short.
    #[inline(never)]
    pub(crate) fn poll_ready(
        &mut self,
        budget: usize,
        on_completion: &mut impl FnMut(&mut Plug<'_>, Completion),
    ) -> usize {
        // The callback may panic. The guard is out here, so that the queue pair's address stays in a register
        // in there.
        let guard = EndIfCutShort(self);
        guard.0.reap(budget, on_completion)
    }

    /// The callback is called at one place only, so that the compiler puts it there.
    #[inline(never)]
    fn reap(&mut self, budget: usize, on_completion: &mut impl FnMut(&mut Plug<'_>, Completion)) -> usize {
        if budget == 0 {
            return 0;
        }
        self.begin_reaping(budget);
        loop {
            let completion = if let Some(completion) = self.take_usual() {
                completion
            } else {
                cold_path();
                match self.unusual() {
                    Next::Completion(completion) => completion,
                    Next::Look => continue,
                    Next::End => break,
                }
            };
            on_completion(&mut Plug::inner(self), completion);
            if !self.go_on() {
                break;
            }
        }
        self.end_reaping()
    }

    /// Takes the next completion if it is the usual one: of a plain request that was rung in the expected
    /// batch, has succeeded, and whose slot nobody waits for. Leaves all else as it is.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "this is what a poll does")]
    fn take_usual(&mut self) -> Option<Completion> {
        let look = self.cq.look();
        let difference = self.cq.difference_of(look.last());
        #[expect(clippy::cast_possible_truncation, reason = "the identifier is the low 16 bits")]
        let cid = Cid(difference as u16);
        let index = self.layout.slot_in(difference);
        let slot = self.slots.get_mut(index)?;
        if !slot.used().is(difference) || !self.sq.is_from(look.dword(2)) {
            return None;
        }
        let next_use = self.layout.free_after(cid);
        let result = Ok(look.dword(0));
        let buffer = Buffer::Whole(slot.end_usual(difference, next_use)?);
        self.cq.next().advance();
        self.vacated.put(index, self.reuse);
        Some(Completion { user_data: slot.user_data, result, buffer, latency_ns: self.tally.latency_ns })
    }

    /// Gives back the slot of the request that was handed over, unless the callback has used it again.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "two instructions of every completion")]
    pub(super) fn release_vacated(&mut self) {
        if !self.vacated.is_none() {
            self.release_unused();
        }
    }

    #[inline(never)]
    fn release_unused(&mut self) {
        if let Some(index) = self.vacated.take() {
            self.source.release(index);
        }
    }

    /// Expects the batch of the command that the next entry names, if that would make it the usual one.
    #[inline]
    pub(super) fn expect_batch_of_next(&mut self) -> bool {
        let next = self.cq.next();
        let difference = next.difference();
        if is_absent(difference) || self.splits.is_waiting() {
            return false;
        }
        #[expect(clippy::cast_possible_truncation, reason = "the identifier is the low 16 bits")]
        let index = self.layout.slot(Cid(difference as u16));
        let Some(used) = self.slots.get(index).map(Slot::used) else { return false };
        let batch = used.batch();
        if !used.is_plain() || !self.batches.is_rung(batch) {
            return false;
        }
        next.expect(batch.bits());
        used.is(next.difference())
    }

    /// Ends the command that an entry names, if there is such a one. Answers the request's completion if
    /// that was all of it.
    #[cold]
    #[inline(never)]
    pub(super) fn end_command(&mut self, entry: &CompletionEntry, now: Nanos) -> Option<Completion> {
        let cid = Cid(entry.cid);
        let index = self.layout.slot(cid);
        if !self.sq.is_from(entry.dw2()) {
            self.counters.malformed_completions.add(1);
            // The head is only counted: nothing here relies on it. Another queue's completion is not ours.
            if entry.sq_id != self.id.0 {
                return None;
            }
        }
        let used = self.slots.get(index).map(Slot::used);
        let live = used.filter(|used| used.owner() != Owner::Nobody && used.cid() == cid);
        // A command that was not rung cannot have been completed: the device made that up.
        let rung = live.filter(|used| used.is_old() || self.batches.is_rung(used.batch()));
        let Some(used) = rung else {
            self.counters.spurious_completions.add(1);
            return None;
        };
        self.heard = true;
        let rung_at = match used.is_old() {
            true => self.slots.detail(index).rung_at,
            false => self.batches.time(used.batch()),
        };
        let completion = self.take_completion(index, entry, Times { rung_at, now });
        self.release_slot(index);
        if let Some(completion) = &completion {
            let counter =
                if completion.result.is_ok() { &self.counters.completed } else { &self.counters.failed };
            counter.add(1);
            self.counters.latencies.record(completion.latency_ns, 1);
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
        times: Times,
    ) -> Option<Completion> {
        let status = entry.status();
        let slot = self.slots.at(index);
        let (user_data, lba, used) = (slot.user_data, slot.lba, slot.used());
        let buffer = self.slots.end(index, self.layout.free_after(used.cid()));
        if used.owner() == Owner::Part {
            let split = self.slots.detail(index).split;
            return self.splits.part_ended(split, lba, status, times.rung_at, times.now);
        }
        let result = if status.is_success() { Ok(entry.dw0) } else { Err(IoError::Status { status, lba }) };
        Some(Completion { user_data, result, buffer, latency_ns: times.now.since(times.rung_at) })
    }

    fn release_slot(&mut self, index: SlotIndex) {
        let chain = std::mem::replace(&mut self.slots.detail(index).chain, NO_PAGE);
        self.lists.release(chain);
        self.source.release(index);
    }

    /// Looks whether the controller is still well. Answers a request that ends without a completion of the
    /// device: one that was cancelled, or any if the controller has failed.
    #[cold]
    #[inline(never)]
    pub(super) fn next_without_entry(&mut self) -> Option<Completion> {
        if let Some(completion) = self.splits.take_over(self.reading()) {
            self.counters.failed.add(1);
            return Some(completion);
        }
        let now = self.clock.now();
        if std::mem::take(&mut self.heard) {
            self.checked_at = now;
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
        if self.shared.is_running() {
            return None;
        }
        self.refuse_all();
        // Until nothing is outstanding, every poll has something to do.
        self.until_look = 1;
        self.next_failed()
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

/// Ends a poll whose callback panics.
struct EndIfCutShort<'a>(&'a mut QueuePair);

impl Drop for EndIfCutShort<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.end_what_was_cut_short();
    }
}

/// From when to when a command took.
#[derive(Clone, Copy)]
struct Times {
    rung_at: Nanos,
    now: Nanos,
}
