//! Identifiers that several submitters share: one set, drawn from by queue pairs on several threads.
//!
//! ```text
//!   IdLane 0 ──┐ home words, a cache line each          somebody waits
//!              ├─► [....] [....] [....] [....] ◄─ free ◄───────┬──── release
//!   IdLane 1 ──┘ others' words when these are empty            └──► the longest waiter
//! ```
//!
//! Invariants: an identifier is free (its bit is set), or reserved by one lane, or handed to one waiter, or
//! somebody's [`IdToken`]. It goes from one state to another by one atomic operation whose outcome says who
//! has it. Nobody waits while an identifier is free that he may have.
//!
//! A lane looks into its own words first, so that cores do not share cache lines while there is enough for
//! all, and takes from the others' when its own are empty. No count of what is in use is kept: it is counted
//! from the bits when somebody asks. Nothing here locks, and nothing allocates after the set was made.

mod lane;
mod share;
mod sync;
mod waiters;
mod words;

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod model_tests;
#[cfg(all(test, not(loom)))]
mod thread_tests;

pub use lane::{IdLane, IdToken};
pub use share::FairShare;

use share::Shares;
use sync::{Arc, AtomicBool, AtomicU64, Ordering, Padded};
use waiters::Waiters;
use words::{Batch, Words};

/// A set of identifiers that several submitters share, each through an [`IdLane`] of its own.
///
/// Clones are the same set.
///
/// ```
/// use doorbell::{FairShare, SharedIds};
///
/// let ids = SharedIds::new(256, 2, FairShare::Off)?;
/// let (mut mine, mut yours) = (ids.lane()?, ids.lane()?);
///
/// // Eight at once, in one atomic step; the unused rest goes back in another.
/// assert_eq!(mine.reserve(8), 8);
/// let id = mine.acquire().expect("one of the eight");
/// assert!(id.id() < 256);
/// assert_eq!(ids.active(), 1);
/// mine.release_reserve();
///
/// // When there are no more, whoever has waited longest gets the next that is released.
/// let taken: Vec<_> = std::iter::from_fn(|| mine.acquire()).collect();
/// assert_eq!(taken.len(), 255);
/// assert!(yours.acquire_or_wait().is_none());
/// mine.release(id);
/// assert!(mine.acquire().is_none());
/// assert!(yours.acquire().is_some());
/// # Ok::<(), doorbell::SharedIdsError>(())
/// ```
#[derive(Clone, Debug)]
pub struct SharedIds(Arc<Set>);

/// What went wrong with a set of shared identifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SharedIdsError {
    /// A set of no identifiers.
    #[error("a set of 0 shared identifiers is of no use to anyone; ask for 1 to 65,535")]
    NoIds,
    /// No lanes, or more than can be.
    #[error("{lanes} lanes cannot share identifiers; ask for 1 to {}", SharedIds::LANES_MAX)]
    LaneCount {
        /// So many were asked for.
        lanes: u16,
    },
    /// Every lane is in use.
    #[error("all {lanes} lanes of the shared identifiers are in use; drop one, or make the set for more")]
    LanesInUse {
        /// So many there are.
        lanes: u16,
    },
}

/// What all lanes of a set share.
#[derive(Debug)]
struct Set {
    words: Words,
    waiters: Waiters,
    /// Only with a fair share.
    shares: Option<Shares>,
    lanes: Box<[LaneState]>,
    /// Tells this set's tokens from others'.
    tag: u64,
    foreign_releases: AtomicU64,
}

/// What others may know of a lane.
#[derive(Debug)]
struct LaneState {
    in_use: AtomicBool,
    /// The bits of the identifiers that it has reserved, all of one word. Written by the lane alone.
    reserve: Arc<Padded<AtomicU64>>,
}

impl SharedIds {
    /// The most lanes that a set can have.
    pub const LANES_MAX: u16 = 1024;

    /// A set of the identifiers 0 to `ids - 1` (1 to 65,535 of them), all free, for up to `lanes` submitters
    /// at a time (1 to [`SharedIds::LANES_MAX`]).
    ///
    /// Allocates everything the set will ever need: 128 bytes for every 64 identifiers, or for fewer if there
    /// would be fewer words than lanes, and as much for each lane.
    ///
    /// # Errors
    /// If one of the numbers is out of its range.
    pub fn new(ids: u16, lanes: u16, fair_share: FairShare) -> Result<Self, SharedIdsError> {
        if ids == 0 {
            return Err(SharedIdsError::NoIds);
        }
        if lanes == 0 || lanes > Self::LANES_MAX {
            return Err(SharedIdsError::LaneCount { lanes });
        }
        let lane =
            |_| LaneState { in_use: AtomicBool::new(false), reserve: Arc::new(Padded(AtomicU64::new(0))) };
        Ok(Self(Arc::new(Set {
            words: Words::new(ids, lanes),
            waiters: Waiters::new(lanes),
            shares: (fair_share == FairShare::On).then(|| Shares::new(ids, lanes)),
            lanes: (0..lanes).map(lane).collect(),
            tag: next_tag(),
            foreign_releases: AtomicU64::new(0),
        })))
    }

    /// A lane for one submitter, which goes back to the set when it is dropped.
    ///
    /// # Errors
    /// If as many lanes are in use as the set was made for.
    pub fn lane(&self) -> Result<IdLane, SharedIdsError> {
        // Acquire: the last owner's lane has been given up before. Its partner is in `IdLane::drop`.
        let unused = |lane: &LaneState| !lane.in_use.swap(true, Ordering::Acquire);
        let index = self.0.lanes.iter().position(unused).ok_or_else(|| {
            let lanes = u16::try_from(self.0.lanes.len()).unwrap_or(u16::MAX);
            SharedIdsError::LanesInUse { lanes }
        })?;
        Ok(IdLane::new(Arc::clone(&self.0), index))
    }

    /// How many identifiers there are, free or not.
    #[must_use]
    pub fn ids(&self) -> u16 {
        self.0.words.ids()
    }

    /// How many are in use: neither free, nor reserved, nor handed to somebody who has not fetched it yet.
    ///
    /// Counted from the bits, so that nobody pays for it who does not ask. Exact when nothing moves; each
    /// identifier that is taken or released during the count may make it wrong by one.
    #[must_use]
    pub fn active(&self) -> u32 {
        let set = &*self.0;
        let reserved = |lane: &LaneState| lane.reserve.0.load(Ordering::Relaxed).count_ones();
        let unused: u32 = set.lanes.iter().map(reserved).sum();
        let taken = u32::from(set.words.ids()).saturating_sub(set.words.available());
        taken.saturating_sub(unused + set.waiters.handed())
    }

    /// How often an [`IdToken`] of another set was released into this one, and was ignored.
    #[must_use]
    pub fn foreign_releases(&self) -> u64 {
        self.0.foreign_releases.load(Ordering::Relaxed)
    }
}

impl Set {
    /// Gives identifiers of one word back: to those who wait, or into the word in one step.
    #[inline]
    fn give_back(&self, batch: Batch) {
        // Who waits gets it past everybody who only comes along: it never is free.
        if self.waiters.any() {
            return self.hand_out(batch);
        }
        self.words.free(batch);
        // Somebody may have begun to wait meanwhile, and have looked into the word too early.
        if self.waiters.any_after_write() {
            self.serve(batch.word);
        }
    }

    /// The same while somebody seems to wait.
    #[cold]
    #[inline(never)]
    fn hand_out(&self, mut batch: Batch) {
        while batch.mask != 0 && self.waiters.hand_over(self.words.first(batch), |lane| self.may_take(lane)) {
            batch.mask &= batch.mask - 1;
        }
        if batch.mask != 0 {
            self.words.free(batch);
            self.serve(batch.word);
        }
    }

    /// Hands free identifiers to those who wait, until there are no more of the one or the other.
    ///
    /// Called by whoever has made one free, or has begun to wait, after that. Then nobody waits beside a free
    /// identifier, since of two such threads at least one sees what the other wrote:
    ///
    /// * *one frees, one begins to wait*: if the first sees nobody, then the second, who says that he waits
    ///   before he looks into the words, finds the bit.
    /// * *one frees, one holds a bit that nobody took, as below*: both look for waiters after their write.
    /// * *one takes a bit here and finds nobody, because the waiter was served by others or went away*: the
    ///   bit is set again, which is a write, and the look for waiters comes after it.
    #[cold]
    #[inline(never)]
    fn serve(&self, start: usize) {
        let may_take = |lane| self.may_take(lane);
        while self.waiters.is_anyone_left(may_take) {
            let Some(id) = self.words.take_any(start) else { return };
            if !self.waiters.hand_over(id, may_take) {
                self.words.free(self.words.batch_of(id));
            }
        }
    }

    fn may_take(&self, lane: usize) -> bool {
        self.shares.as_ref().is_none_or(|shares| shares.allowed(lane) > 0)
    }
}

/// A number for each set that is made. 64 bits do not come round.
fn next_tag() -> u64 {
    use std::sync::atomic::AtomicU64;
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
