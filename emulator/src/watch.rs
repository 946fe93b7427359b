#![expect(unsafe_code)]
//! What a controller that has nothing to do looks at: the doorbells of its queues, and nothing else.
//!
//! Most looks find nothing, and take no lock. A step that leaves nothing behind (no command in flight, no
//! completion held, no timer, no event) notes that the controller is quiet; whoever takes the
//! controller's lock for something else ends that. As long as it is quiet, and mappings are as they were,
//! only a doorbell can make it move.
//
// UNSAFETY: looks at dwords of the doorbell window through pointers, which were checked when they were set.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The doorbells of one controller that are in use. Written under the device's lock, read by anybody.
pub(crate) struct Watch {
    is_quiet: AtomicBool,
    /// The state of the address table in which it became quiet.
    generation: AtomicU64,
    /// Whose turn is next.
    first: AtomicUsize,
    /// How many of the spots are in use.
    count: AtomicUsize,
    spots: Box<[Spot]>,
}

/// The doorbells of one submission queue, and of the completion queue that it completes into.
pub(crate) struct Spot {
    tail: Sight,
    head: Sight,
}

/// A doorbell, and what the device has seen there.
pub(crate) struct Sight {
    /// Leads to a dword of the window at all times.
    cell: AtomicPtr<AtomicU32>,
    seen: AtomicU32,
}

impl Watch {
    /// Room for so many queues; the controller is not quiet.
    ///
    /// # Safety
    /// `cell` leads to a dword that is only used as an atomic for as long as the value is.
    pub(crate) unsafe fn new(cell: NonNull<AtomicU32>, queues: usize) -> Self {
        let sight = || Sight { cell: AtomicPtr::new(cell.as_ptr()), seen: AtomicU32::new(0) };
        Self {
            is_quiet: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            first: AtomicUsize::new(0),
            count: AtomicUsize::new(0),
            spots: (0..queues).map(|_| Spot { tail: sight(), head: sight() }).collect(),
        }
    }

    /// Watches other queues from now on, each by its tail and its head. The next look at each is a real one.
    ///
    /// # Safety
    /// Each dword is only used as an atomic for as long as `self` is.
    pub(crate) unsafe fn replace<'a>(&self, queues: impl Iterator<Item = (&'a AtomicU32, &'a AtomicU32)>) {
        self.disturb();
        let mut count = 0;
        for (spot, (tail, head)) in self.spots.iter().zip(queues) {
            spot.tail.cell.store(NonNull::from(tail).as_ptr(), Ordering::Relaxed);
            spot.head.cell.store(NonNull::from(head).as_ptr(), Ordering::Relaxed);
            count += 1;
        }
        self.first.store(0, Ordering::Relaxed);
        self.count.store(count, Ordering::Release);
    }

    /// Notes what the device has seen of a queue's doorbells.
    #[inline]
    pub(crate) fn note(&self, turn: usize, tail: u32, head: u32) {
        if let Some(spot) = self.spots.get(turn) {
            spot.note(tail, head);
        }
    }

    /// The queue at this turn is the next to be looked at.
    #[inline]
    pub(crate) fn begin_at(&self, turn: usize) {
        self.first.store(turn, Ordering::Relaxed);
    }

    /// Which queue is the next to be looked at; not more than there are.
    #[inline]
    pub(crate) fn first(&self) -> usize {
        self.first.load(Ordering::Relaxed)
    }

    /// The controller has nothing left to do.
    pub(crate) fn settle(&self, generation: u64) {
        self.generation.store(generation, Ordering::Relaxed);
        // Who sees that it is quiet sees in which generation, and which queues there are.
        self.is_quiet.store(true, Ordering::Release);
    }

    /// Something may have happened to the controller.
    #[inline]
    pub(crate) fn disturb(&self) {
        self.is_quiet.store(false, Ordering::Release);
    }

    /// Whether the controller has nothing left to do, doorbells apart, in this generation.
    #[inline]
    pub(crate) fn is_quiet(&self, generation: u64) -> bool {
        self.is_quiet.load(Ordering::Acquire) && self.generation.load(Ordering::Relaxed) == generation
    }

    /// The queues that are watched, in the order of their turns.
    #[inline]
    pub(crate) fn spots(&self) -> &[Spot] {
        let count = self.count.load(Ordering::Acquire).min(self.spots.len());
        &self.spots[..count]
    }

    /// Where something is new: no queue before that one, in the order of turns, has anything to say.
    #[inline]
    pub(crate) fn first_moved(&self) -> Option<usize> {
        let moved = self.spots().iter().position(|spot| !spot.is_still())?;
        Some(moved.max(self.first()))
    }
}

impl Spot {
    /// Whether both doorbells are as the device has seen them.
    #[inline]
    pub(crate) fn is_still(&self) -> bool {
        self.tail.is_still() && self.head.is_still()
    }

    /// What the tail and the head are. What the host wrote before it rang is visible after this.
    #[inline]
    pub(crate) fn look(&self) -> (u32, u32) {
        (self.tail.look(), self.head.look())
    }

    /// Notes what the device has seen.
    #[inline]
    pub(crate) fn note(&self, tail: u32, head: u32) {
        self.tail.seen.store(tail, Ordering::Relaxed);
        self.head.seen.store(head, Ordering::Relaxed);
    }
}

impl Sight {
    #[inline]
    fn look(&self) -> u32 {
        let cell = self.cell.load(Ordering::Relaxed);
        // SAFETY: the pointer comes from `Watch::new` or `Watch::replace`, whose callers keep the dword alive
        // for as long as the watch is, and use it as an atomic only.
        let cell = unsafe { &*cell };
        // The acquire load's partner is the release store of `Doorbell::ring`.
        cell.load(Ordering::Acquire)
    }

    #[inline]
    fn is_still(&self) -> bool {
        self.look() == self.seen.load(Ordering::Relaxed)
    }
}
