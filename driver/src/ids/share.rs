//! The fair share of a classic shared tag set: a lane may hold what comes to each of the active lanes.
//!
//! It costs a counter per request and a division, and leaves identifiers unused while a lane could use them.
//! It is there to be compared with, and is off unless asked for.

use super::sync::{AtomicU32, Ordering, Padded};

/// Whether a lane may take everything, or only its share while others are active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FairShare {
    /// Whoever asks gets, and those who wait are served in order.
    #[default]
    Off,
    /// At most the number of identifiers divided by that of active lanes, rounded up, and at least 4. A lane
    /// is active from its first identifier until it is dropped. What it has reserved counts as well.
    On,
}

/// The least share, however many lanes are active.
const SHARE_MIN: u32 = 4;

/// How many identifiers each lane holds.
///
/// Only the lane itself counts what it takes, also what it was handed (when it fetches that): so what it is
/// allowed cannot be exceeded by a race. Anyone may count what it gives back.
#[derive(Debug)]
pub(super) struct Shares {
    ids: u32,
    active_lanes: Padded<AtomicU32>,
    held: Box<[Padded<AtomicU32>]>,
}

impl Shares {
    pub(super) fn new(ids: u16, lanes: u16) -> Self {
        Self {
            ids: u32::from(ids),
            active_lanes: Padded(AtomicU32::new(0)),
            held: (0..lanes).map(|_| Padded(AtomicU32::new(0))).collect(),
        }
    }

    pub(super) fn join(&self) {
        self.active_lanes.0.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn leave(&self) {
        self.active_lanes.0.fetch_sub(1, Ordering::SeqCst);
    }

    /// How many more a lane may take.
    #[inline]
    pub(super) fn allowed(&self, lane: usize) -> u32 {
        let lanes = self.active_lanes.0.load(Ordering::SeqCst).max(1);
        let share = self.ids.div_ceil(lanes).max(SHARE_MIN);
        share.saturating_sub(self.held[lane].0.load(Ordering::SeqCst))
    }

    #[inline]
    pub(super) fn take(&self, lane: usize, count: u32) {
        self.held[lane].0.fetch_add(count, Ordering::SeqCst);
    }

    #[inline]
    pub(super) fn give(&self, lane: usize, count: u32) {
        self.held[lane].0.fetch_sub(count, Ordering::SeqCst);
    }
}
