//! The way of an I/O command through the device: taken, executed, completed.
//!
//! This is the hot path. For a command without latency and faults it is one copy of the entry, one look at
//! the namespace, and one completion; whether a command is such is decided once per burst.

use std::time::Duration;

use doorbell_spec::command::NvmOpcode;
use doorbell_spec::{Cid, QueueId, Status, SubmissionEntry};

use crate::device::{Device, Step};
use crate::fault::CommandSite;
use crate::flight::Parked;
use crate::nvm::Bench;
use crate::outcome::Outcome;
use crate::queues::burst::Burst;
use crate::queues::{CompletionQueue, Look, SubmissionQueue};
use crate::report::Violation;
use crate::twist::{Fate, Twist};

impl Device {
    /// Takes up to `burst` commands of an I/O queue. Answers how many.
    pub(crate) fn serve(&mut self, step: &Step<'_>, queue: QueueId, burst: usize) -> usize {
        let Self { sqs, cqs, tally, storage, flight, shadow, .. } = self;
        let Some((sq, cq)) = pair(sqs, cqs, queue) else { return 0 };
        let bells = step.bells(shadow);
        note(sq.look(&bells), &mut tally.tail_doorbells, &mut tally.violations);
        note(cq.look(&bells), &mut tally.head_doorbells, &mut tally.violations);
        step.window.watch.note(sq.turn, sq.bell.rung(), cq.bell.rung());
        if sq.is_empty() {
            return 0;
        }
        let (Ok(entries), Ok(completions)) = (sq.ring.view(step.dma), cq.ring.view(step.dma)) else {
            self.fail("the memory of an I/O queue is not mapped");
            return 0;
        };
        let is_plain = !flight.has_latency()
            && !step.faults.is_armed()
            && sq.parked == 0
            && cq.held.is_empty()
            && !self.config.cid_below_depth.is_on();
        let (true, Some(entries), Some(completions)) = (is_plain, entries, completions) else {
            return self.serve_carefully(step, queue, burst);
        };
        let mut rings = Burst { sq, cq, entries, completions };
        let count = rings.possible(burst);
        let mut taken = 0;
        while taken < count {
            if let Some(trivial) = storage.trivial() {
                let quick = rings.run(trivial, count - taken);
                taken += quick.taken;
                tally.io[usize::from(NvmOpcode::Read.raw())] += quick.reads as u64;
                tally.io[usize::from(NvmOpcode::Write.raw())] += (quick.taken - quick.reads) as u64;
                if taken == count {
                    break;
                }
            }
            let Some(entry) = rings.take() else { break };
            taken += 1;
            tally.io[usize::from(entry.opcode)] += 1;
            let mut bench = Bench { dma: step.dma, violations: &mut tally.violations, queue };
            let outcome = storage.execute(&entry, &mut bench);
            if !outcome.status.is_success() {
                self.admin.note_error(queue, &entry, outcome.status);
            }
            let completion = outcome.entry(queue, rings.sq.head_field(), entry.cid);
            if rings.complete(completion).is_none() {
                break;
            }
        }
        self.has_backlog |= !rings.sq.is_empty();
        tally.completions += taken as u64;
        taken
    }

    /// The same with everything that may happen to a command on its way.
    #[inline(never)]
    fn serve_carefully(&mut self, step: &Step<'_>, queue: QueueId, burst: usize) -> usize {
        step.window.watch.disturb();
        // What is left for the next turn is looked at then, whatever it is.
        self.has_backlog = true;
        let mut taken = 0;
        while taken < burst {
            let Some((sq, cq)) = pair(&mut self.sqs, &mut self.cqs, queue) else { break };
            // A queue may have as many commands in flight as it has entries; the rest waits in its ring.
            let is_busy = cq.is_full() || !cq.held.is_empty() || sq.parked >= sq.ring.entries();
            if sq.is_empty() || is_busy {
                break;
            }
            let Ok(entry) = sq.ring.fetch(step.dma, sq.head) else { break };
            sq.advance();
            taken += 1;
            self.tally.io[usize::from(entry.opcode)] += 1;
            if let Some(status) = self.check_cid(queue, &entry) {
                self.finish(step, queue, &entry, Outcome::refused(status), Twist::None);
                continue;
            }
            if !self.take(step, queue, &entry) {
                break;
            }
        }
        taken
    }

    /// Asks the fault plan what becomes of a command, and parks it or executes it at once. Answers whether
    /// the device goes on.
    pub(crate) fn take(&mut self, step: &Step<'_>, queue: QueueId, entry: &SubmissionEntry) -> bool {
        let site = CommandSite { queue, entry };
        let (extra, twist) = match Fate::of(step.faults.on_command(site)) {
            Fate::Goes(extra, twist) => (extra, twist),
            Fate::Last => {
                self.mark_parked(queue, entry.cid);
                self.put_off.push(Parked { queue, entry: *entry, twist: Twist::None });
                return true;
            }
            Fate::Pauses(time) => {
                let now = step.clock.now();
                self.mark_parked(queue, entry.cid);
                self.flight.park(Parked { queue, entry: *entry, twist: Twist::None }, now, time);
                self.registers.pause(now.after(time));
                return false;
            }
            Fate::Lost => return true,
            Fate::Fatal => {
                self.fail("fault plan");
                return false;
            }
            Fate::Gone => {
                self.remove(step.window);
                return false;
            }
        };
        let parked = Parked { queue, entry: *entry, twist };
        if extra.is_zero() && self.flight.service(queue, entry.opcode) == Duration::ZERO {
            self.execute(step, &parked);
        } else {
            self.mark_parked(queue, entry.cid);
            self.flight.park(parked, step.clock.now(), extra);
        }
        true
    }

    /// What is wrong with a command's identifier, if anything. It is reported; a conflict is also answered.
    pub(crate) fn check_cid(&mut self, queue: QueueId, entry: &SubmissionEntry) -> Option<Status> {
        let sq = sq_mut(&mut self.sqs, queue)?;
        let cid = Cid(entry.cid);
        let entries = sq.ring.entries();
        if sq.parked > 0 && sq.parked_cids.contains(entry.cid) {
            self.tally.violations.add(Violation::CidInUse { queue, cid });
            return Some(Status::COMMAND_ID_CONFLICT);
        }
        if self.config.cid_below_depth.is_on() && u32::from(entry.cid) >= entries {
            self.tally.violations.add(Violation::CidAboveDepth { queue, cid, entries });
            return Some(Status::INVALID_FIELD);
        }
        None
    }

    /// Executes and completes a command whose time has come.
    pub(crate) fn complete_parked(&mut self, step: &Step<'_>, parked: &Parked) {
        self.unpark(parked);
        self.execute(step, parked);
    }

    /// Completes what the fault plan has put off until the end of a step, the last one first.
    pub(crate) fn complete_put_off(&mut self, step: &Step<'_>) {
        while let Some(parked) = self.put_off.pop() {
            if self.flight.service(parked.queue, parked.entry.opcode).is_zero() {
                self.complete_parked(step, &parked);
            } else {
                self.flight.park(parked, step.clock.now(), Duration::ZERO);
            }
        }
    }

    fn mark_parked(&mut self, queue: QueueId, cid: u16) {
        if let Some(sq) = sq_mut(&mut self.sqs, queue) {
            sq.parked += 1;
            sq.parked_cids.insert(cid);
        }
    }

    /// Takes a command out of its queue's count of parked ones.
    pub(crate) fn unpark(&mut self, parked: &Parked) {
        if let Some(sq) = sq_mut(&mut self.sqs, parked.queue) {
            sq.parked = sq.parked.saturating_sub(1);
            sq.parked_cids.remove(parked.entry.cid);
        }
    }

    fn execute(&mut self, step: &Step<'_>, parked: &Parked) {
        let (queue, entry) = (parked.queue, &parked.entry);
        if let Twist::Status(status) = parked.twist {
            self.finish(step, queue, entry, Outcome::failed(status), parked.twist);
            return;
        }
        let is_corrupt = parked.twist == Twist::Corrupt;
        let is_write = entry.opcode == NvmOpcode::Write.raw();
        if queue == QueueId::ADMIN {
            if let Some(outcome) = self.execute_admin(step, entry) {
                self.finish(step, queue, entry, outcome, parked.twist);
            }
            return;
        }
        // A corrupted read sees a bit flipped that is whole again afterwards; a write stores it flipped.
        if is_corrupt && !is_write {
            self.storage.flip_block(entry);
        }
        let mut bench = Bench { dma: step.dma, violations: &mut self.tally.violations, queue };
        let outcome = self.storage.execute(entry, &mut bench);
        if is_corrupt {
            self.storage.flip_block(entry);
        }
        self.finish(step, queue, entry, outcome, parked.twist);
    }

    /// Completes a command of any queue: posts its completion, or holds it while there is no room.
    pub(crate) fn finish(
        &mut self,
        step: &Step<'_>,
        queue: QueueId,
        entry: &SubmissionEntry,
        outcome: Outcome,
        twist: Twist,
    ) {
        if !outcome.status.is_success() {
            self.admin.note_error(queue, entry, outcome.status);
        }
        let Some((sq, cq)) = pair(&mut self.sqs, &mut self.cqs, queue) else { return };
        let mut completion = outcome.entry(queue, sq.head_field(), entry.cid);
        twist.apply(&mut completion);
        cq.held.push_back(completion);
        if twist == Twist::Duplicate {
            cq.held.push_back(completion);
        }
        let cq_id = sq.cq;
        self.drain_held(step, cq_id);
    }

    /// Posts held completions as far as there is room. Answers how many.
    pub(crate) fn drain_held(&mut self, step: &Step<'_>, cq_id: QueueId) -> usize {
        let Some(cq) = self.cqs.get_mut(usize::from(cq_id.0)).and_then(Option::as_deref_mut) else {
            return 0;
        };
        if cq.held.is_empty() {
            return 0;
        }
        if cq.is_full() {
            let look = cq.look(&step.bells(&self.shadow));
            note(look, &mut self.tally.head_doorbells, &mut self.tally.violations);
        }
        let mut posted = 0;
        while !cq.is_full() {
            let Some(completion) = cq.held.pop_front() else { break };
            if cq.ring.refresh(step.dma).is_err() || cq.post(step.dma, completion).is_err() {
                self.registers.fail("the memory of a completion queue is not mapped");
                break;
            }
            posted += 1;
        }
        self.has_held |= !cq.held.is_empty();
        self.tally.completions += posted as u64;
        posted
    }

    /// Posts what waits for room on any queue, also one whose submission queues are gone.
    pub(crate) fn release_held(&mut self, step: &Step<'_>) -> usize {
        if !std::mem::take(&mut self.has_held) {
            return 0;
        }
        let queues = 0..u16::try_from(self.cqs.len()).unwrap_or(u16::MAX);
        queues.map(|queue| self.drain_held(step, QueueId(queue))).sum()
    }
}

/// Counts or reports what a look at a doorbell has found.
#[inline]
pub(crate) fn note(look: Look, moves: &mut u64, violations: &mut crate::report::Violations) {
    match look {
        Look::Same => {}
        Look::Moved => *moves += 1,
        Look::Wrong(violation) => violations.add(violation),
    }
}

/// A submission queue that exists.
pub(crate) fn sq_mut(
    sqs: &mut [Option<Box<SubmissionQueue>>],
    queue: QueueId,
) -> Option<&mut SubmissionQueue> {
    sqs.get_mut(usize::from(queue.0))?.as_deref_mut()
}

/// A submission queue that exists, and the completion queue that it completes into.
#[inline]
pub(crate) fn pair<'a>(
    sqs: &'a mut [Option<Box<SubmissionQueue>>],
    cqs: &'a mut [Option<Box<CompletionQueue>>],
    queue: QueueId,
) -> Option<(&'a mut SubmissionQueue, &'a mut CompletionQueue)> {
    let sq = sqs.get_mut(usize::from(queue.0))?.as_deref_mut()?;
    let cq = cqs.get_mut(usize::from(sq.cq.0))?.as_deref_mut()?;
    Some((sq, cq))
}
