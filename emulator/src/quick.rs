//! The step of a quiet controller: reads and writes that move no data, and nothing else.
//!
//! While the controller is quiet (`watch.rs`) and no fault is armed, a step need not ask what else there may
//! be: it looks at the tails, and completes what is trivial. What it meets beyond that is left to the general
//! step (`device.rs`, `serve.rs`), to which this is a short cut and no more: without it nothing would
//! change but the time that a step takes.

use doorbell_spec::QueueId;
use doorbell_spec::command::NvmOpcode;

use crate::device::{BURST, Device};
use crate::iova::Table;
use crate::queues::burst::Burst;
use crate::serve::{note, pair};
use crate::watch::Watch;

/// How far a quick step came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quickly {
    /// So many commands were completed, and there is nothing else.
    Done(usize),
    /// So many were completed, and the rest is for a general step.
    Partly(usize),
}

/// What was done of a step so far, and may be done in all.
struct Served {
    taken: usize,
    budget: usize,
}

impl Device {
    /// Completes up to `budget` trivial commands, the queue at `turn` first. The controller is quiet.
    #[inline(always)]
    pub(crate) fn step_quickly(
        &mut self,
        watch: &Watch,
        table: &Table,
        first: usize,
        budget: usize,
    ) -> Quickly {
        let served = self.serve_quickly(watch, table, first, budget);
        match served {
            Quickly::Done(taken) if taken < budget => {
                self.step_on(watch, table, first, Served { taken, budget })
            }
            _ => served,
        }
    }

    /// Goes on with the other queues after the one at `first`.
    #[inline(never)]
    fn step_on(&mut self, watch: &Watch, table: &Table, first: usize, served: Served) -> Quickly {
        let mut done = served.taken;
        let queues = watch.spots().len();
        for turn in (first + 1..queues).chain(0..first.min(queues)) {
            if watch.spots()[turn].is_still() {
                continue;
            }
            match self.serve_quickly(watch, table, turn, served.budget - done) {
                Quickly::Done(taken) => done += taken,
                Quickly::Partly(taken) => return Quickly::Partly(done + taken),
            }
            if done == served.budget {
                break;
            }
        }
        Quickly::Done(done)
    }

    /// The same for one queue, of which a doorbell has moved.
    #[inline(never)]
    fn serve_quickly(&mut self, watch: &Watch, table: &Table, turn: usize, budget: usize) -> Quickly {
        let Self { live, sqs, cqs, tally, storage, .. } = self;
        // Whatever ends this before its end is for the general step.
        self.has_backlog = true;
        let (Some(spot), Some(queue)) = (watch.spots().get(turn), live.get(turn)) else {
            return Quickly::Partly(0);
        };
        let Some(trivial) = storage.trivial() else { return Quickly::Partly(0) };
        let Some((sq, cq)) = pair(sqs, cqs, *queue) else { return Quickly::Partly(0) };
        let Some(entries) = sq.ring.view_in(table) else { return Quickly::Partly(0) };
        let Some(completions) = cq.ring.view_in(table) else { return Quickly::Partly(0) };
        if sq.id == QueueId::ADMIN {
            return Quickly::Partly(0);
        }
        let (tail, head) = spot.look();
        note(sq.hear(tail), &mut tally.tail_doorbells, &mut tally.violations);
        note(cq.hear(head), &mut tally.head_doorbells, &mut tally.violations);
        spot.note(tail, head);
        let waiting = sq.waiting();
        let mut rings = Burst { sq, cq, entries, completions };
        let quick = rings.run(trivial, rings.possible(BURST.min(budget)));
        tally.io[usize::from(NvmOpcode::Read.raw())] += quick.reads as u64;
        tally.io[usize::from(NvmOpcode::Write.raw())] += (quick.taken - quick.reads) as u64;
        tally.completions += quick.taken as u64;
        watch.begin_at(if turn + 1 == live.len() { 0 } else { turn + 1 });
        if quick.taken < waiting {
            return Quickly::Partly(quick.taken);
        }
        self.has_backlog = false;
        Quickly::Done(quick.taken)
    }
}
