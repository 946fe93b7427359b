//! A group's poll: who has something, and who gets how much.

use std::mem::ManuallyDrop;

use super::plug::{GroupPlug, Ledger, Others};
use super::roster::Member;
use super::{PollGroup, Seat};
use crate::completion::Completion;

impl PollGroup {
    /// Hands completed requests of all members to `on_completion`, at most `budget` of them, and answers
    /// how many.
    ///
    /// Never waits, and makes no system call. The callback is told which member a completion is from, and may
    /// submit through the plug it is given: to the same member, or to any other. At the end each member that
    /// was polled or submitted to rings its doorbells once.
    ///
    /// Fair: the members that have something share the budget. Each in its turn gets an equal part of what is
    /// left, and what it does not use is left to those after it; who is first changes from call to call. With
    /// a budget of at least as many as there are members, each gets a turn in every call, whatever the
    /// others do; with a budget of `b` and `n` members, in one of `n / b` calls, rounded up. So an answer of
    /// less than `budget` does not say that nothing is left, but 0 says that nothing was found. Within its
    /// turn a member is polled as [`QueuePair::poll`](crate::QueuePair::poll) says.
    ///
    /// Each turn rings, so a budget of 32 a member gives a busy group batches of 32.
    #[inline]
    pub fn poll(
        &mut self,
        budget: usize,
        mut on_completion: impl FnMut(&mut GroupPlug<'_>, Member, Completion),
    ) -> usize {
        let is_look_due = self.watch.is_due();
        if let [seat] = self.seats.as_mut_slice()
            && !is_look_due
        {
            // A thread with one SSD should not pay for those with many.
            if !seat.queue.begin_poll() {
                return 0;
            }
            let nobody = Others { before: &mut [], after: &mut [] };
            return seat.turn(budget, nobody, &mut self.ledger, &mut on_completion);
        }
        match self.begin_polls() {
            Due::Nobody => 0,
            Due::One(position) => self.poll_one(position, budget, &mut on_completion),
            Due::Several => self.deal(budget, &mut on_completion),
        }
    }

    /// Looks at every member, and marks those that have something.
    ///
    /// Who is marked and does not get a turn, because the budget is used up, keeps the mark.
    #[inline(never)]
    fn begin_polls(&mut self) -> Due {
        self.watch.look_if_due();
        let mut last = None;
        for (position, seat) in self.seats.iter_mut().enumerate() {
            if seat.queue.begin_poll() {
                self.due.set(position);
                last = Some(position);
            }
        }
        match (self.due.count(), last) {
            (0, _) => Due::Nobody,
            (1, Some(only)) => Due::One(only),
            _ => Due::Several,
        }
    }

    /// Gives the only marked member its turn, with the whole budget.
    #[inline(never)]
    fn poll_one(
        &mut self,
        position: usize,
        budget: usize,
        on_completion: &mut impl FnMut(&mut GroupPlug<'_>, Member, Completion),
    ) -> usize {
        let ringing = RingAtEnd(self);
        let PollGroup { seats, due, next, ledger, .. } = &mut *ringing.0;
        due.take(position);
        *next = position + 1;
        let (before, rest) = seats.split_at_mut(position);
        let Some((seat, after)) = rest.split_first_mut() else { return 0 };
        seat.turn(budget, Others { before, after }, ledger, on_completion)
    }

    /// Gives each marked member a turn, until the budget is used up.
    #[inline(never)]
    fn deal(
        &mut self,
        budget: usize,
        on_completion: &mut impl FnMut(&mut GroupPlug<'_>, Member, Completion),
    ) -> usize {
        let ringing = RingAtEnd(self);
        let PollGroup { seats, due, next, ledger, .. } = &mut *ringing.0;
        let mut left = budget;
        let mut first = None;
        while left > 0 {
            let waiting = due.count();
            let Some(position) = due.take_from(*next) else { break };
            first = first.or(Some(position));
            // Before the turn: a callback that panics each time keeps nobody from theirs.
            *next = position + 1;
            let (before, rest) = seats.split_at_mut(position);
            let Some((seat, after)) = rest.split_first_mut() else { break };
            ledger.posted.leave_to_poll(position, &seat.queue);
            let share = (left / waiting).max(1);
            left -= seat.turn(share, Others { before, after }, ledger, on_completion);
        }
        if let Some(first) = first
            && due.count() == 0
        {
            // All had a turn. Next time another one is first.
            *next = first + 1;
        }
        budget - left
    }
}

impl Seat {
    /// Polls the member that has something.
    ///
    /// However it is called, it is one function for the poll of the queue pair, which has the callback in it:
    /// two would have the compiler call the callback, and not put it there.
    #[inline]
    fn turn(
        &mut self,
        share: usize,
        others: Others<'_>,
        ledger: &mut Ledger,
        on_completion: &mut impl FnMut(&mut GroupPlug<'_>, Member, Completion),
    ) -> usize {
        let member = self.member;
        let Others { before, after } = others;
        self.queue.poll_ready(share, &mut move |plug, completion| {
            let others = Others { before, after };
            // Its end has nothing to do. Not even the call to find that out may be there when the callback
            // panics: it would take the plug's address.
            let mut plug = ManuallyDrop::new(GroupPlug::within_poll((member, plug.queue()), others, ledger));
            on_completion(&mut plug, member, completion);
        })
    }
}

/// Who has something.
#[derive(Clone, Copy)]
enum Due {
    Nobody,
    /// The member at this position, and no other.
    One(usize),
    Several,
}

/// Rings for what callbacks have submitted to other members than their own, also when one of them panics.
struct RingAtEnd<'a>(&'a mut PollGroup);

impl Drop for RingAtEnd<'_> {
    #[inline]
    fn drop(&mut self) {
        let PollGroup { seats, ledger, .. } = &mut *self.0;
        ledger.posted.ring_all(Others::all(seats));
    }
}
