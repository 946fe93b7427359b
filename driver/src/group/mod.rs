//! Many queue pairs, of one controller or of many, polled by one thread.
//!
//! ```text
//!   poll ─► who has something? ─► turns: a share of the budget each ─► callback ─► GroupPlug ─► any member
//!     └──► every 1024th: the controllers' admin queues ─► next_event
//! ```
//!
//! Invariant: the queue pairs stand side by side without a gap, a member's key finds its place.

mod marks;
mod plug;
mod poll;
mod roster;
#[cfg(all(test, feature = "emulator"))]
mod tests;
mod watch;

use crate::controller::ControllerEvent;
use crate::error::ControllerError;
use crate::namespace::ControllerId;
use crate::queue::QueuePair;

use marks::Marks;
pub use plug::GroupPlug;
use plug::{Ledger, Others};
pub use roster::Member;
use watch::Watch;

/// Queue pairs that one thread polls together, fairly: its own one on every SSD, say.
///
/// Polling the group also moves the admin queues of the controllers behind its members, without waiting for
/// anybody; what they report is fetched with [`next_event`](PollGroup::next_event). The I/O path
/// ([`poll`](PollGroup::poll), [`plug`](PollGroup::plug)) allocates nothing, takes no lock that it would
/// have to wait for, and makes no system call.
///
/// The members' controllers may be of one `DmaSpace` or of several. One that fails or is removed is no
/// concern of the others: its requests end with errors. Dropping the group drops the queue pairs.
///
/// ```
/// use doorbell::{ControllerOptions, DmaSpace, DmaSpaceConfig, Lba, Nsid};
/// use doorbell::{PollGroup, QueueConfig, Request};
///
/// // Two SSDs that see the same memory, and a queue pair on each.
/// let options = ControllerOptions::new().space(&DmaSpace::new(DmaSpaceConfig::default()));
/// let ssds = [options.open("emu:size=64M")?, options.open("emu:size=64M")?];
/// let namespaces = [ssds[0].namespace(Nsid(1))?, ssds[1].namespace(Nsid(1))?];
/// let mut group = PollGroup::new();
/// let first = group.add(ssds[0].create_queue(QueueConfig::with_depth(32))?);
/// let second = group.add(ssds[1].create_queue(QueueConfig::with_depth(32))?);
///
/// // Eight blocks are read from the first one, and each is written to the second when it has come.
/// let pool = ssds[0].space().pool(4096, 8)?;
/// let mut plug = group.plug(8);
/// for number in 0..8 {
///     let block = pool.take().expect("eight are free");
///     let read = Request::read(&namespaces[0], Lba(number * 8), block).user_data(number);
///     plug.submit(first, read).map_err(|refused| refused.error)?;
/// }
/// plug.finish();
/// let mut written = 0;
/// while written < 8 {
///     group.poll(64, |plug, member, completion| {
///         completion.result.expect("the device does as it is told");
///         if member == first {
///             let (number, block) = (completion.user_data, completion.buffer);
///             let write = Request::write(&namespaces[1], Lba(number * 8), block);
///             plug.submit(second, write).expect("there is room for 32");
///         } else {
///             written += 1;
///         }
///     });
///     while let Some((controller, event)) = group.next_event() {
///         println!("{controller:?}: {event:?}");
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Like a queue pair it may move to another thread, and cannot be used by two at once:
///
/// ```
/// fn moved_to_another_thread<T: Send>() {}
/// moved_to_another_thread::<doorbell::PollGroup>();
/// ```
/// ```compile_fail,E0277
/// fn shared_between_threads<T: Sync>() {}
/// shared_between_threads::<doorbell::PollGroup>();
/// ```
#[derive(Debug)]
pub struct PollGroup {
    /// By position. Declared before the controllers' watch: queue pairs go first.
    seats: Vec<Seat>,
    ledger: Ledger,
    /// Members that have something, or are owed a look, and have not yet had their turn.
    due: Marks,
    /// The position from which on the next turn is given.
    next: usize,
    watch: Watch,
}

/// A member with its queue pair.
#[derive(Debug)]
struct Seat {
    member: Member,
    queue: QueuePair,
}

impl PollGroup {
    /// A group without members.
    #[must_use]
    pub fn new() -> Self {
        Self {
            seats: Vec::new(),
            ledger: Ledger::default(),
            due: Marks::default(),
            next: 0,
            watch: Watch::new(),
        }
    }

    /// Takes a queue pair in, with whatever it has outstanding. Allocates.
    pub fn add(&mut self, queue: QueuePair) -> Member {
        self.watch.add(&queue.shared);
        let member = self.ledger.roster.add(self.seats.len());
        self.seats.push(Seat { member, queue });
        self.due.make_room(self.seats.len());
        self.ledger.posted.marks.make_room(self.seats.len());
        member
    }

    /// Gives a queue pair back as it is, with whatever it has outstanding. `None` if there is no such
    /// member. Does not change the other members' keys.
    pub fn remove(&mut self, member: Member) -> Option<QueuePair> {
        let position = self.ledger.roster.remove(member)?;
        let last = self.seats.len() - 1;
        self.due.swap_remove(position, last);
        self.ledger.posted.marks.swap_remove(position, last);
        let Seat { queue, .. } = self.seats.swap_remove(position);
        if let Some(moved) = self.seats.get(position) {
            self.ledger.roster.moved(moved.member, position);
        }
        self.watch.remove(queue.shared.id);
        Some(queue)
    }

    /// A member's queue pair, to look at.
    #[must_use]
    pub fn queue(&self, member: Member) -> Option<&QueuePair> {
        Some(&self.seats.get(self.ledger.roster.position(member)?)?.queue)
    }

    /// A member's queue pair, for everything that a queue pair can do.
    #[must_use]
    pub fn queue_mut(&mut self, member: Member) -> Option<&mut QueuePair> {
        Some(&mut self.seats.get_mut(self.ledger.roster.position(member)?)?.queue)
    }

    /// Which controller a member's queue pair belongs to.
    #[must_use]
    pub fn controller(&self, member: Member) -> Option<ControllerId> {
        Some(self.queue(member)?.shared.id)
    }

    /// The members, in no particular order.
    pub fn members(&self) -> impl ExactSizeIterator<Item = Member> + '_ {
        self.seats.iter().map(|seat| seat.member)
    }

    /// How many members there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.seats.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.seats.is_empty()
    }

    /// Ends the group and gives all queue pairs back, each as it is.
    pub fn into_queues(self) -> impl ExactSizeIterator<Item = (Member, QueuePair)> {
        self.seats.into_iter().map(|seat| (seat.member, seat.queue))
    }

    /// Says that about `expected` requests follow, for whatever members. For one request,
    /// `group.plug(1).submit(member, request)` rings at once.
    ///
    /// The first one for a member takes command identifiers for an even part of them at once; those that are
    /// not used go back at the end. A number that turns out wrong costs a little speed and nothing else.
    #[inline]
    pub fn plug(&mut self, expected: u32) -> GroupPlug<'_> {
        let Self { seats, ledger, .. } = self;
        // Whatever a plug that was forgotten has left behind.
        ledger.posted.ring_all(Others::all(seats));
        let share = match u32::try_from(seats.len()) {
            Ok(0 | 1) | Err(_) => expected,
            Ok(members) => expected.div_ceil(members),
        };
        GroupPlug::over(seats, ledger, share)
    }

    /// The next event of a member's controller, or its failure, which is told once in each group. Never waits
    /// for an event; if there is one, it may wait for admin commands, as
    /// [`Controller::poll_event`](crate::Controller::poll_event) does.
    ///
    /// It finds what [`poll`](PollGroup::poll) has seen: every 1024th looks at the controllers. So it costs
    /// next to nothing where there is nothing, and can be called after each poll. Ten times a second at most
    /// it asks the bus for events as well, which may be a system call.
    ///
    /// Each event is given once: to whoever asks first, be it this group, another one with a queue pair of
    /// the same controller, or `Controller::poll_event`. None is lost with a group: what nobody has fetched
    /// stays with the controller.
    pub fn next_event(&mut self) -> Option<(ControllerId, Result<ControllerEvent, ControllerError>)> {
        self.watch.next_event()
    }
}

impl Default for PollGroup {
    fn default() -> Self {
        Self::new()
    }
}
