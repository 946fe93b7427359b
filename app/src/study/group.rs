//! Doorbell as a load on several controllers: a queue pair on each, which one thread polls as a group.
//!
//! A plug is over all of them: it goes out when each has a batch, and rings each doorbell once.

use doorbell::{Controller, Member, PollGroup};

use super::contest::{Load, Totals};
use super::lanes::Style;
use super::reads::Reads;

/// The group and what its members read.
#[derive(Debug)]
pub(super) struct Group {
    /// Declared first: queues go before their controllers.
    group: PollGroup,
    seats: Vec<(Member, Reads)>,
    style: Style,
    _controllers: Vec<Controller>,
}

impl Group {
    /// The queues of some lanes as a group. The user data of each one's reads is its place among the lanes.
    pub(super) fn of(lanes: super::lanes::Lanes, style: Style) -> Self {
        let mut group = PollGroup::new();
        let seats = lanes.lanes.into_iter().map(|lane| (group.add(lane.queue), lane.reads)).collect();
        Self { group, seats, style, _controllers: lanes.controllers }
    }

    fn batch(&self) -> usize {
        self.seats.iter().map(|(_, reads)| reads.batch()).sum()
    }

    #[inline]
    fn take_back(&mut self) -> usize {
        let budget = self.batch();
        let seats = &mut self.seats;
        self.group.poll(budget, |_, _, completion| {
            let place = usize::try_from(completion.user_data).unwrap_or(usize::MAX);
            if let Some((_, reads)) = seats.get_mut(place) {
                reads.take_back(completion);
            }
        })
    }

    #[inline]
    fn has_batch(&self) -> bool {
        self.seats.iter().all(|(_, reads)| reads.has_batch())
    }

    /// Submits a batch for each member.
    #[inline]
    fn submit(&mut self) {
        if self.style == Style::Single {
            for (member, reads) in &mut self.seats {
                for _ in 0..reads.batch() {
                    if let Some(request) = reads.next()
                        && self.group.plug(1).submit(*member, request).is_err()
                    {
                        reads.refused();
                    }
                }
            }
            return;
        }
        let mut plug = self.group.plug(self.style.expected(self.seats.iter().map(|it| it.1.batch()).sum()));
        for (member, reads) in &mut self.seats {
            for _ in 0..reads.batch() {
                if let Some(request) = reads.next()
                    && plug.submit(*member, request).is_err()
                {
                    reads.refused();
                }
            }
        }
    }
}

impl Load for Group {
    fn fill(&mut self) {
        while self.has_batch() {
            self.submit();
        }
    }

    #[inline(never)]
    fn turn(&mut self) -> usize {
        let reaped = self.take_back();
        if self.has_batch() {
            self.submit();
        }
        reaped
    }

    fn reap(&mut self) -> usize {
        self.take_back();
        self.seats.iter().map(|(_, reads)| reads.outstanding()).sum()
    }

    fn totals(&self) -> anyhow::Result<Totals> {
        let mut totals = Totals::default();
        for (member, reads) in &self.seats {
            reads.check()?;
            totals
                .add(self.group.queue(*member).map_or(Totals::default(), |queue| Totals::of(queue.stats())));
        }
        Ok(totals)
    }
}
