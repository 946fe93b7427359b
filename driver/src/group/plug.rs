//! A plug over several queue pairs.
//!
//! Invariant: as with a single queue pair, all that a plug has posted is known to the queue pairs themselves.
//! The marks here only say where to look at the end; if they are lost with a forgotten plug, the next call on
//! each queue pair rings what it finds.

use super::Seat;
use super::marks::Marks;
use super::roster::{Member, Roster};
use crate::error::SubmitError;
use crate::queue::{Plug, QueuePair, Rejected, RequestHandle};
use crate::request::Request;

/// The most requests of all members together that wait for their doorbells: twice a single queue's.
const REQUESTS_MAX: usize = 64;

/// Collects requests for the members of a group, and rings each member's doorbell once for its part: see
/// [`PollGroup::plug`](crate::PollGroup::plug), and [`PollGroup::poll`](crate::PollGroup::poll), which hands
/// one to its callback.
///
/// A member's doorbell is rung when that member's own limit is reached (32 requests, or one of 128 KiB or
/// more, or its queue is full); all are rung when 64 requests of all members together wait, and at the end.
/// However it ends (an early return, a panic, even `mem::forget`), nothing stays behind: the next call on a
/// member's queue pair rings what it finds.
#[derive(Debug)]
pub struct GroupPlug<'a> {
    others: Others<'a>,
    /// The member that is being polled, if one is.
    here: Option<Here<'a>>,
    ledger: &'a mut Ledger,
    /// How many requests may be for each member.
    share: u32,
}

/// The member that is being polled.
#[derive(Debug)]
struct Here<'a> {
    member: Member,
    queue: &'a mut QueuePair,
}

/// The members of a group, without the one that is being polled.
#[derive(Debug)]
pub(super) struct Others<'a> {
    pub(super) before: &'a mut [Seat],
    pub(super) after: &'a mut [Seat],
}

/// Who stands where, and who waits for a doorbell.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) roster: Roster,
    pub(super) posted: Posted,
}

/// Where requests wait for a doorbell that a plug's end will ring.
#[derive(Debug, Default)]
pub(super) struct Posted {
    pub(super) marks: Marks,
    /// Requests at marked positions that are not rung.
    unrung: usize,
}

impl<'a> Others<'a> {
    /// All of a group, while nobody is polled.
    #[inline]
    pub(super) fn all(seats: &'a mut [Seat]) -> Self {
        Self { before: seats, after: &mut [] }
    }

    /// The same, for the length of a call.
    ///
    /// Calls that the compiler does not put in place are given this, by value, and not the plug: one whose
    /// address is given to nobody stays in registers, and costs a callback nothing.
    #[inline]
    fn lend(&mut self) -> Others<'_> {
        Others { before: self.before, after: self.after }
    }

    #[inline]
    fn at(&mut self, position: usize) -> Option<&mut QueuePair> {
        let polled = self.before.len();
        let seat = match position.checked_sub(polled) {
            None => &mut self.before[position],
            Some(beyond) => self.after.get_mut(beyond.checked_sub(1)?)?,
        };
        Some(&mut seat.queue)
    }
}

impl Posted {
    /// Rings every marked member, and gives back the identifiers that the plug had taken for it.
    #[inline]
    pub(super) fn ring_all(&mut self, others: Others<'_>) {
        if self.marks.count() > 0 {
            self.ring_marked(others);
        }
    }

    #[inline(never)]
    fn ring_marked(&mut self, mut others: Others<'_>) {
        while let Some(position) = self.marks.take_from(0) {
            if let Some(queue) = others.at(position) {
                queue.flush_plug();
            }
        }
        self.unrung = 0;
    }

    /// Counts another request, and says whether it may be time to ring: not before half of them wait, since
    /// a member that is polled holds at most the other half.
    #[inline]
    fn is_full_with_another(&mut self) -> bool {
        self.unrung += 1;
        self.unrung >= REQUESTS_MAX / 2
    }

    /// Rings all if so many wait, together with those of the member that is polled.
    #[inline(never)]
    fn ring_if_full(&mut self, others: Others<'_>, here: Option<&mut QueuePair>) {
        let of_here = here.as_ref().map_or(0, |queue| queue.unrung_count());
        if self.unrung + of_here >= REQUESTS_MAX {
            self.ring_all(others);
            here.map(QueuePair::flush_plug);
        }
    }

    /// Finds out how many wait, after a member has rung by itself.
    #[cold]
    #[inline(never)]
    fn recount(&mut self, mut others: Others<'_>) {
        let unrung = |position| others.at(position).map_or(0, |queue| queue.unrung_count());
        self.unrung = self.marks.positions().map(unrung).sum();
    }

    /// Forgets what waits for a member whose turn it is: the poll of its own queue rings it.
    #[inline]
    pub(super) fn leave_to_poll(&mut self, position: usize, queue: &QueuePair) {
        if self.marks.count() > 0 && self.marks.take(position) {
            self.unrung = self.unrung.saturating_sub(queue.unrung_count());
        }
    }
}

impl<'a> GroupPlug<'a> {
    /// A plug over all of a group for about `share` requests a member.
    #[inline]
    pub(super) fn over(seats: &'a mut [Seat], ledger: &'a mut Ledger, share: u32) -> Self {
        Self { others: Others::all(seats), here: None, ledger, share }
    }

    /// The plug that is handed to a callback while `member` is polled. Its end rings nothing: the poll does.
    #[inline]
    pub(super) fn within_poll(
        (member, queue): (Member, &'a mut QueuePair),
        others: Others<'a>,
        ledger: &'a mut Ledger,
    ) -> Self {
        Self { others, here: Some(Here { member, queue }), ledger, share: 0 }
    }

    /// Submits a request to a member: in a callback, to the one that is polled or to any other. The doorbell
    /// may be rung later, at the latest when the plug or the poll ends.
    ///
    /// # Errors
    /// As [`QueuePair::submit`], or the group has no such member; the request comes back. A queue that is
    /// full has been rung.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a request that is built in place never becomes memory")]
    pub fn submit(&mut self, member: Member, request: Request) -> Result<RequestHandle, Rejected> {
        if let Some(here) = &mut self.here
            && here.member == member
        {
            return post(here.queue, request);
        }
        let Ledger { roster, posted } = &mut *self.ledger;
        let Some(queue) = roster.position(member).and_then(|position| {
            let queue = self.others.at(position)?;
            if posted.marks.set(position) {
                begin(queue, self.share);
            }
            Some(queue)
        }) else {
            return Err(Rejected { error: SubmitError::NoSuchMember, request });
        };
        match post(queue, request) {
            Ok(handle) => {
                if !queue.has_unrung() {
                    // Its own limit is reached, and all of its requests are rung.
                    posted.recount(self.others.lend());
                } else if posted.is_full_with_another() {
                    let here = self.here.as_mut().map(|here| &mut *here.queue);
                    posted.ring_if_full(self.others.lend(), here);
                }
                Ok(handle)
            }
            Err(rejected) => {
                posted.recount(self.others.lend());
                Err(rejected)
            }
        }
    }

    /// Ends the plug: rings where something waits for it. The same as dropping it.
    #[inline]
    pub fn finish(self) {}
}

impl Drop for GroupPlug<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.here.is_none() {
            self.ledger.posted.ring_all(self.others.lend());
        }
    }
}

/// Posts a request, and leaves the doorbell to whoever ends the plug or the poll.
#[inline(always)]
#[expect(clippy::inline_always, reason = "a request that is built in place never becomes memory")]
fn post(queue: &mut QueuePair, request: Request) -> Result<RequestHandle, Rejected> {
    Plug::inner(queue).submit(request)
}

/// Prepares a queue pair for the first request of a plug.
#[inline(never)]
fn begin(queue: &mut QueuePair, share: u32) {
    // Whatever an earlier plug has left behind is not this one's, and not counted by it.
    queue.flush_plug();
    if share > 0 {
        // Takes the identifiers, and rings nothing at its end.
        Plug::inner(queue).plug(share).finish();
    }
}
