//! What the jobs and the thread that watches them share while a run is going on.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::interrupt::Interrupt;

/// Counters of one job, written by it and read by the watcher.
///
/// A cache line pair of its own, so that no two jobs write to the same one.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Live {
    reads: AtomicU64,
    writes: AtomicU64,
}

impl Live {
    /// Says how many I/Os were measured so far. Relaxed: they are only shown, and nothing follows from them.
    #[inline]
    pub(crate) fn publish(&self, reads: u64, writes: u64) {
        self.reads.store(reads, Ordering::Relaxed);
        self.writes.store(writes, Ordering::Relaxed);
    }

    /// How many reads and writes were measured so far.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.reads.load(Ordering::Relaxed), self.writes.load(Ordering::Relaxed))
    }
}

/// How a run is ended early.
#[derive(Debug)]
pub(crate) struct Control {
    interrupt: Interrupt,
    halted: AtomicBool,
}

impl Control {
    pub(crate) fn new(interrupt: Interrupt) -> Self {
        Self { interrupt, halted: AtomicBool::new(false) }
    }

    /// Makes all jobs end, because one of them cannot go on.
    pub(crate) fn halt(&self) {
        self.halted.store(true, Ordering::Relaxed);
    }

    /// Whether to submit nothing more.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.interrupt.is_raised() || self.halted.load(Ordering::Relaxed)
    }

    /// Whether the user asked for the end.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupt.is_raised()
    }
}
