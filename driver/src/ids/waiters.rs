//! Who waits for an identifier, and since when.
//!
//! Invariants: `count` is never less than the number of lanes whose place says that they wait; a place goes
//! from waiting to handed by one compare-and-exchange, so that a wait ends with one identifier; only the
//! lane itself ends what it was handed.
//!
//! There is no queue to keep in order: a place holds a ticket, and the lowest ticket has waited longest. So
//! there is no lock either, a wait costs one place however often it is given up and begun again, and nobody
//! has to leave a queue from its middle. Finding the longest waiter looks at every place, which is done only
//! while somebody waits.

use super::sync::{AtomicU32, AtomicU64, Ordering, Padded, write_before_load};

/// The places of all lanes.
#[derive(Debug)]
pub(super) struct Waiters {
    /// How many wait. What a release looks at: everything else is for when this is not zero.
    count: Padded<AtomicU32>,
    next_ticket: AtomicU64,
    places: Box<[AtomicU64]>,
}

/// What a place says, in 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The lane does not wait.
    Idle,
    /// It waits since this ticket was the next.
    Waiting(u64),
    /// It was given this identifier and has not fetched it yet.
    Handed(u16),
}

impl Place {
    fn to_bits(self) -> u64 {
        match self {
            Self::Idle => 0,
            Self::Waiting(ticket) => ticket << 2 | 1,
            Self::Handed(id) => u64::from(id) << 2 | 2,
        }
    }

    fn from_bits(bits: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "the other bits were never set")]
        match bits & 3 {
            0 => Self::Idle,
            1 => Self::Waiting(bits >> 2),
            _ => Self::Handed((bits >> 2) as u16),
        }
    }
}

impl Waiters {
    /// Nobody waits, of so many lanes.
    pub(super) fn new(lanes: u16) -> Self {
        Self {
            count: Padded(AtomicU32::new(0)),
            next_ticket: AtomicU64::new(0),
            places: (0..lanes).map(|_| AtomicU64::new(Place::Idle.to_bits())).collect(),
        }
    }

    /// Whether somebody may wait. Says no too late or too early: whoever relies on it asks
    /// [`Waiters::any_after_write`] later.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.count.0.load(Ordering::Relaxed) != 0
    }

    /// The same after a `SeqCst` write of the caller. If it says no, whoever begins to wait from now on sees
    /// that write.
    #[inline]
    pub(super) fn any_after_write(&self) -> bool {
        write_before_load();
        self.count.0.load(Ordering::SeqCst) != 0
    }

    /// A lane that does not wait begins to. What was free before must be looked at afterwards.
    pub(super) fn join(&self, lane: usize) {
        // Counted before it can be seen waiting: the count may be too high, and never too low.
        self.count.0.fetch_add(1, Ordering::SeqCst);
        let ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        self.places[lane].store(Place::Waiting(ticket).to_bits(), Ordering::SeqCst);
        write_before_load();
    }

    /// A lane stops to wait. Answers what it had been handed, which is the caller's to pass on.
    pub(super) fn leave(&self, lane: usize) -> Option<u16> {
        let before = self.places[lane].swap(Place::Idle.to_bits(), Ordering::AcqRel);
        match Place::from_bits(before) {
            Place::Idle => None,
            Place::Waiting(_) => {
                self.count.0.fetch_sub(1, Ordering::SeqCst);
                None
            }
            Place::Handed(id) => Some(id),
        }
    }

    /// What a lane that waits was handed; it waits no more then.
    #[inline]
    pub(super) fn take_handed(&self, lane: usize) -> Option<u16> {
        // Acquire: what the last owner did with the identifier happens before. Its partner is in `hand_over`.
        let Place::Handed(id) = Place::from_bits(self.places[lane].load(Ordering::Acquire)) else {
            return None;
        };
        self.places[lane].store(Place::Idle.to_bits(), Ordering::Relaxed);
        Some(id)
    }

    /// Hands an identifier to the lane that has waited longest of those that `may` have one. False if there
    /// is no such lane; the identifier is still the caller's then.
    pub(super) fn hand_over(&self, id: u16, may: impl Fn(usize) -> bool) -> bool {
        while let Some((lane, seen)) = self.longest(&may) {
            let place = &self.places[lane];
            let handed = Place::Handed(id).to_bits();
            // The ticket is part of the comparison: a wait that was given up and begun again is another one.
            if place.compare_exchange(seen, handed, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                self.count.0.fetch_sub(1, Ordering::SeqCst);
                return true;
            }
        }
        false
    }

    /// Whether somebody waits who `may` have an identifier, seen after a `SeqCst` write of the caller.
    pub(super) fn is_anyone_left(&self, may: impl Fn(usize) -> bool) -> bool {
        write_before_load();
        self.longest(&may).is_some()
    }

    /// The lowest ticket's lane of those that may, and what its place says.
    fn longest(&self, may: &impl Fn(usize) -> bool) -> Option<(usize, u64)> {
        let waits = |bits: &u64| matches!(Place::from_bits(*bits), Place::Waiting(_));
        let places = self.places.iter().map(|place| place.load(Ordering::SeqCst)).enumerate();
        // With the same low bits, the lower ticket is the lower number.
        places.filter(|(lane, bits)| waits(bits) && may(*lane)).min_by_key(|(_, bits)| *bits)
    }

    /// How many identifiers were handed over and not fetched yet.
    pub(super) fn handed(&self) -> u32 {
        let is_handed =
            |place: &AtomicU64| matches!(Place::from_bits(place.load(Ordering::Relaxed)), Place::Handed(_));
        self.places.iter().map(|place| u32::from(is_handed(place))).sum()
    }
}
