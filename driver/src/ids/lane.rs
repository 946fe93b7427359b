//! One submitter's way to the shared identifiers: what the I/O path calls.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;

use super::Set;
use super::sync::{Arc, AtomicU64, Ordering, Padded};
use super::words::{Batch, first};

/// One submitter's access to a [`SharedIds`](crate::SharedIds).
///
/// Belongs to one thread at a time: it can be sent to another, and not be shared. When it is dropped its
/// reserve goes back, its wait ends, and an identifier that it was handed goes to the next.
///
/// ```compile_fail,E0277
/// fn shared<T: Sync>() {}
/// shared::<doorbell::IdLane>();
/// ```
#[derive(Debug)]
pub struct IdLane {
    set: Arc<Set>,
    /// The bits of what is reserved, in memory that others can read, who count what is active. This lane
    /// alone writes it, and who counts takes it as it comes: all accesses are relaxed.
    reserve: Arc<Padded<AtomicU64>>,
    /// The word that the reserve's bits belong to, and the number of its bit 0.
    reserve_word: usize,
    reserve_base: u16,
    /// The words that it looks at first.
    home: Range<usize>,
    /// The word of them that had a free identifier last.
    hint: usize,
    /// The word of another lane that had one last.
    foreign_hint: usize,
    index: usize,
    /// It has begun to wait, and has neither fetched what it was handed nor given up.
    is_waiting: bool,
    /// It counts as active for the fair share.
    is_active: bool,
    not_sync: PhantomData<Cell<()>>,
}

/// An identifier of a set, held until it is released.
///
/// It cannot be copied, so it is released once:
///
/// ```compile_fail,E0382
/// fn twice(lane: &mut doorbell::IdLane, token: doorbell::IdToken) {
///     lane.release(token);
///     lane.release(token);
/// }
/// ```
///
/// Any lane of its set can release it. One that is dropped instead is never free again.
#[derive(Debug)]
#[must_use = "an identifier is free again only when its token is released"]
pub struct IdToken {
    set: u64,
    id: u16,
    lane: u16,
}

impl IdToken {
    /// The identifier: less than the number that the set was made with.
    #[inline]
    #[must_use]
    pub fn id(&self) -> u16 {
        self.id
    }
}

impl IdLane {
    pub(super) fn new(set: Arc<Set>, index: usize) -> Self {
        let home = set.words.home(index, set.lanes.len());
        Self {
            reserve: Arc::clone(&set.lanes[index].reserve),
            reserve_word: home.start,
            reserve_base: 0,
            hint: home.start,
            foreign_hint: home.end,
            home,
            index,
            is_waiting: false,
            is_active: false,
            not_sync: PhantomData,
            set,
        }
    }

    /// Takes one identifier: of the reserve, or what was handed over to the lane that waits, or a free one.
    ///
    /// `None` if there is none, or the lane still waits, or has its fair share. Never waits by itself. An
    /// identifier that is on its way to a waiter at this moment may be overlooked.
    #[inline]
    pub fn acquire(&mut self) -> Option<IdToken> {
        let id = self.acquire_id()?;
        #[expect(clippy::cast_possible_truncation, reason = "less than LANES_MAX")]
        let lane = self.index as u16;
        Some(IdToken { set: self.set.tag, id, lane })
    }

    /// Takes one identifier, or begins to wait for one: [`IdLane::acquire`] answers it when it was handed
    /// over.
    ///
    /// While the lane waits, identifiers that are released go to whoever has waited longest. A lane that
    /// waits already stays where it is in line.
    pub fn acquire_or_wait(&mut self) -> Option<IdToken> {
        let token = self.acquire();
        if token.is_some() || self.is_waiting {
            return token;
        }
        self.activate();
        self.is_waiting = true;
        self.set.waiters.join(self.index);
        // What became free before it was seen to wait is handed out now, and perhaps to it.
        self.set.serve(self.home.start);
        self.acquire()
    }

    /// Whether the lane waits, or was handed an identifier and has not fetched it.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// Whether any lane of the set waits.
    #[inline]
    pub(crate) fn somebody_waits(&self) -> bool {
        self.set.waiters.any()
    }

    /// Stops to wait. An identifier that was handed over meanwhile goes to the next in line.
    pub fn stop_waiting(&mut self) {
        if !self.is_waiting {
            return;
        }
        self.is_waiting = false;
        if let Some(id) = self.set.waiters.leave(self.index) {
            self.set.give_back(self.set.words.batch_of(id));
        }
    }

    /// Has up to `count` identifiers (64 at most) in reserve for the next calls of [`IdLane::acquire`], and
    /// answers how many.
    ///
    /// They are taken from one word in one atomic step, so they may be fewer than there are free. A reserve
    /// that is not empty stays as it is, and a lane that waits reserves nothing. What is not used must be
    /// given back soon, with [`IdLane::release_reserve`]: nobody else gets it, not even those who wait.
    #[inline]
    pub fn reserve(&mut self, count: u32) -> u32 {
        if self.reserve.0.load(Ordering::Relaxed) != 0 || count == 0 || self.is_waiting {
            return self.reserved();
        }
        let Some(batch) = self.take(count) else { return 0 };
        self.set_reserve(batch);
        batch.mask.count_ones()
    }

    /// How many identifiers are in reserve.
    #[inline]
    #[must_use]
    pub fn reserved(&self) -> u32 {
        self.reserve.0.load(Ordering::Relaxed).count_ones()
    }

    /// Gives the reserve back in one atomic step, or to those who wait.
    #[inline]
    pub fn release_reserve(&mut self) {
        let mask = self.reserve.0.load(Ordering::Relaxed);
        if mask != 0 {
            self.reserve.0.store(0, Ordering::Relaxed);
            self.count_given(self.index, mask.count_ones());
            self.set.give_back(Batch { word: self.reserve_word, mask });
        }
    }

    /// Releases an identifier: to the longest waiter if somebody waits.
    ///
    /// The token of another set is ignored and counted, see
    /// [`SharedIds::foreign_releases`](crate::SharedIds::foreign_releases).
    #[inline]
    pub fn release(&mut self, token: IdToken) {
        if self.is_ours(&token) {
            self.count_given(usize::from(token.lane), 1);
            self.set.give_back(self.set.words.batch_of(token.id));
        }
    }

    /// Releases an identifier into the lane's reserve, for its own next [`IdLane::acquire`]: no atomic
    /// operation is needed for either.
    ///
    /// Identifiers of several words go back a word at a time. While somebody waits, and with a fair share,
    /// this is the same as [`IdLane::release`]. What is said of [`IdLane::reserve`] holds here as well.
    #[inline]
    pub fn recycle(&mut self, token: IdToken) {
        if self.set.waiters.any() || self.set.shares.is_some() {
            return self.release(token);
        }
        if !self.is_ours(&token) {
            return;
        }
        let Batch { word, mask } = self.set.words.batch_of(token.id);
        let reserved = self.reserve.0.load(Ordering::Relaxed);
        if reserved != 0 && word == self.reserve_word {
            self.reserve.0.store(reserved | mask, Ordering::Relaxed);
        } else {
            self.release_reserve();
            self.set_reserve(Batch { word, mask });
        }
    }

    #[inline]
    fn acquire_id(&mut self) -> Option<u16> {
        let mask = self.reserve.0.load(Ordering::Relaxed);
        if mask == 0 {
            return self.acquire_unreserved();
        }
        self.reserve.0.store(mask & (mask - 1), Ordering::Relaxed);
        Some(first(self.reserve_base, mask))
    }

    #[inline(never)]
    fn acquire_unreserved(&mut self) -> Option<u16> {
        if !self.is_waiting
            && self.set.shares.is_none()
            && let Some(batch) = self.set.words.take(self.hint, 1)
        {
            return Some(self.set.words.first(batch));
        }
        self.acquire_otherwise()
    }

    /// The same for a lane that waits, or has a fair share, or whose current word is empty.
    #[inline(never)]
    fn acquire_otherwise(&mut self) -> Option<u16> {
        if self.is_waiting {
            self.take_handed()
        } else {
            self.take(1).map(|batch| self.set.words.first(batch))
        }
    }

    #[inline]
    fn set_reserve(&mut self, batch: Batch) {
        self.reserve_word = batch.word;
        self.reserve_base = self.set.words.base(batch.word);
        self.reserve.0.store(batch.mask, Ordering::Relaxed);
    }

    #[cold]
    #[inline(never)]
    fn take_handed(&mut self) -> Option<u16> {
        let id = self.set.waiters.take_handed(self.index)?;
        self.is_waiting = false;
        if let Some(shares) = &self.set.shares {
            shares.take(self.index, 1);
        }
        Some(id)
    }

    /// Takes up to `count` free identifiers of one word, within the fair share if there is one.
    #[inline]
    fn take(&mut self, count: u32) -> Option<Batch> {
        if self.set.shares.is_some() { self.take_share(count) } else { self.take_free(count) }
    }

    #[inline]
    fn take_share(&mut self, count: u32) -> Option<Batch> {
        self.activate();
        let allowed = self.set.shares.as_ref()?.allowed(self.index);
        if allowed == 0 {
            return None;
        }
        let batch = self.take_free(count.min(allowed))?;
        let taken = if count == 1 { 1 } else { batch.mask.count_ones() };
        self.set.shares.as_ref()?.take(self.index, taken);
        Some(batch)
    }

    #[inline]
    fn take_free(&mut self, count: u32) -> Option<Batch> {
        self.set.words.take(self.hint, count).or_else(|| self.take_elsewhere(count))
    }

    /// Goes on with the other home words from the hint on, then with the words of others.
    #[cold]
    #[inline(never)]
    fn take_elsewhere(&mut self, count: u32) -> Option<Batch> {
        let home = self.home.clone();
        if let Some(batch) = self.search((self.hint + 1..home.end).chain(home.start..self.hint), count) {
            self.hint = batch.word;
            return Some(batch);
        }
        let all = (self.foreign_hint..self.set.words.len()).chain(0..self.foreign_hint);
        let batch = self.search(all.filter(|word| !home.contains(word)), count)?;
        self.foreign_hint = batch.word;
        Some(batch)
    }

    /// Takes from the first word that has something.
    fn search(&self, mut words: impl Iterator<Item = usize>, count: u32) -> Option<Batch> {
        words.find_map(|word| self.set.words.take(word, count))
    }

    fn activate(&mut self) {
        if let Some(shares) = &self.set.shares
            && !self.is_active
        {
            self.is_active = true;
            shares.join();
        }
    }

    #[inline]
    fn count_given(&self, lane: usize, count: u32) {
        if let Some(shares) = &self.set.shares {
            shares.give(lane, count);
        }
    }

    #[inline]
    fn is_ours(&self, token: &IdToken) -> bool {
        let is_ours = token.set == self.set.tag;
        if !is_ours {
            self.set.foreign_releases.fetch_add(1, Ordering::Relaxed);
        }
        is_ours
    }
}

impl Drop for IdLane {
    fn drop(&mut self) {
        self.stop_waiting();
        self.release_reserve();
        if let Some(shares) = &self.set.shares
            && self.is_active
        {
            // The others' shares have grown, which may let one of them go on that waits.
            shares.leave();
            self.set.serve(self.home.start);
        }
        // Release: who gets the lane next finds it given up. Its partner is in `SharedIds::lane`.
        self.set.lanes[self.index].in_use.store(false, Ordering::Release);
    }
}
