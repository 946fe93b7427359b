//! A group's poll: who has something, and who gets how much.

use super::marks::WORD_BITS;
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
    #[inline]
    pub fn poll(
        &mut self,
        budget: usize,
        mut on_completion: impl FnMut(&mut GroupPlug<'_>, Member, Completion),
    ) -> usize {
        if self.watch.is_due() {
            return self.poll_many(budget, &mut on_completion);
        }
        let [seat] = self.seats.as_mut_slice() else { return self.poll_many(budget, &mut on_completion) };
        // A thread with one SSD should not pay for those with many.
        if !seat.queue.begin_poll() {
            return 0;
        }
        let nobody = Others { before: &mut [], after: &mut [] };
        seat.turn(budget, nobody, &mut self.ledger, &mut on_completion)
    }

    /// A poll of any group, with all that may have to be done.
    #[inline(never)]
    fn poll_many(
        &mut self,
        budget: usize,
        on_completion: &mut impl FnMut(&mut GroupPlug<'_>, Member, Completion),
    ) -> usize {
        self.watch.look_if_due();
        if !self.begin_polls() {
            return 0;
        }
        RingAtEnd(self).0.deal(budget, on_completion)
    }

    /// Looks at every member, and marks those that have something. Says whether anybody has a mark.
    ///
    /// Who is marked and does not get a turn, because the budget is used up, keeps the mark.
    #[inline(never)]
    fn begin_polls(&mut self) -> bool {
        let mut any = 0;
        for (word, seats) in self.due.words_mut().iter_mut().zip(self.seats.chunks_mut(WORD_BITS)) {
            for (bit, seat) in seats.iter_mut().enumerate() {
                if seat.queue.begin_poll() {
                    *word |= 1 << bit;
                }
            }
            any |= *word;
        }
        any != 0
    }

    /// Gives each marked member a turn, until the budget is used up.
    #[inline]
    fn deal(
        &mut self,
        budget: usize,
        on_completion: &mut impl FnMut(&mut GroupPlug<'_>, Member, Completion),
    ) -> usize {
        let mut waiting = self.due.count();
        let mut left = budget;
        let mut first = None;
        while left > 0
            && let Some(position) = self.due.take_from(self.next)
        {
            first = first.or(Some(position));
            // Before the turn: a callback that panics each time keeps nobody from theirs.
            self.next = position + 1;
            let (before, rest) = self.seats.split_at_mut(position);
            let Some((seat, after)) = rest.split_first_mut() else { break };
            self.ledger.posted.leave_to_poll(position, &seat.queue);
            let share = (left / waiting.max(1)).max(1);
            waiting = waiting.saturating_sub(1);
            let others = Others { before, after };
            left -= seat.turn(share, others, &mut self.ledger, on_completion);
        }
        if let Some(first) = first
            && waiting == 0
        {
            // All had a turn. Next time another one is first.
            self.next = first + 1;
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
            let mut plug = GroupPlug::within_poll((member, plug.queue()), others, ledger);
            on_completion(&mut plug, member, completion);
        })
    }
}

/// Rings for what callbacks have submitted to other members than their own, also when one of them panics.
struct RingAtEnd<'a>(&'a mut PollGroup);

impl Drop for RingAtEnd<'_> {
    #[inline]
    fn drop(&mut self) {
        let PollGroup { seats, ledger, .. } = &mut *self.0;
        ledger.posted.ring_all(&mut Others::all(seats));
    }
}
