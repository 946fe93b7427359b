#![expect(unsafe_code)]
//! The doorbell window: dwords that the host stores to and the device looks at.
//!
//! It is an anonymous mapping, so that a window of many megabytes (a wide stride) takes only the pages that
//! are really used.
//
// UNSAFETY: looks at dwords of a mapping of its own as atomics, and hands the same mapping out.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use doorbell_spec::{BusError, Doorbells};
use memmap2::{MmapMut, MmapOptions};

use crate::watch::Watch;

/// The doorbells of one controller.
pub(crate) struct Window {
    base: NonNull<AtomicU32>,
    words: usize,
    keeper: Arc<MmapMut>,
    /// What the device has seen of it.
    pub(crate) watch: Watch,
}

// SAFETY:
// - `base` points into the mapping that `keeper` owns, and any thread may touch its atomics.
unsafe impl Send for Window {}
// SAFETY: as above; all access is atomic.
unsafe impl Sync for Window {}

impl Window {
    /// A window of at least `bytes` bytes (more than none), all zero, of so many submission queues.
    pub(crate) fn new(bytes: usize, queues: usize) -> std::io::Result<Self> {
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        let mut mapping = MmapOptions::new().len(bytes).no_reserve_swap().map_anon()?;
        let base = NonNull::from(&mut mapping[..]).cast();
        // SAFETY: the mapping has a dword at least, and lives as long as the window, the watch with it.
        let watch = unsafe { Watch::new(base, queues) };
        Ok(Self { base, words: bytes / size_of::<AtomicU32>(), keeper: Arc::new(mapping), watch })
    }

    /// The window as the host rings it.
    pub(crate) fn hand_out(&self, bytes: usize) -> Result<Doorbells, BusError> {
        let have_bytes = self.words * size_of::<AtomicU32>();
        if bytes > have_bytes {
            return Err(BusError::DoorbellWindow { need_bytes: bytes, have_bytes });
        }
        let keeper = Arc::clone(&self.keeper);
        // SAFETY:
        // - `base` points to `words` dwords of a page-aligned mapping, which are only used as atomics;
        // - the mapping stays as long as the keeper does.
        Ok(unsafe { Doorbells::new(self.base, self.words, keeper) })
    }

    /// The doorbell at a dword index. What the host wrote before it rang is visible after this.
    #[inline]
    pub(crate) fn load(&self, word: usize) -> u32 {
        // The acquire load's partner is the release store of `Doorbell::ring`.
        self.cell(word).map_or(0, |cell| cell.load(Ordering::Acquire))
    }

    /// Watches these queues from now on, each by the dword indexes of its tail and head.
    pub(crate) fn watch(&self, queues: impl Iterator<Item = (usize, usize)>) {
        let cells = queues.filter_map(|(tail, head)| Some((self.cell(tail)?, self.cell(head)?)));
        // SAFETY: the dwords lie in the mapping, which lives as long as `self`, of which the watch is a part.
        unsafe { self.watch.replace(cells) };
    }

    /// Puts a doorbell to zero, as creating and deleting its queue does.
    pub(crate) fn clear(&self, word: usize) {
        if let Some(cell) = self.cell(word) {
            cell.store(0, Ordering::Release);
        }
    }

    /// Replaces a doorbell's value if it is still what it was. Answers whether it was.
    pub(crate) fn replace(&self, word: usize, was: u32, value: u32) -> bool {
        let order = (Ordering::AcqRel, Ordering::Acquire);
        self.cell(word).is_some_and(|cell| cell.compare_exchange(was, value, order.0, order.1).is_ok())
    }

    #[inline]
    fn cell(&self, word: usize) -> Option<&AtomicU32> {
        if word >= self.words {
            return None;
        }
        // SAFETY: word < words, so the dword lies inside the mapping.
        let cell = unsafe { self.base.add(word) };
        // SAFETY: the mapping is aligned, alive as long as `self`, and only ever used as atomics.
        Some(unsafe { cell.as_ref() })
    }
}

const PAGE: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_rung_is_seen_and_the_end_is_the_end() {
        let window = Window::new(16, 1).expect("a mapping");
        let doorbells = window.hand_out(4096).expect("a page");
        doorbells.at(3).expect("inside").ring(9);
        assert_eq!(window.load(3), 9);
        window.clear(3);
        assert_eq!((window.load(3), window.load(1024), window.load(usize::MAX)), (0, 0, 0));
        let refused = window.hand_out(4097).expect_err("beyond the end");
        assert!(matches!(refused, BusError::DoorbellWindow { need_bytes: 4097, have_bytes: 4096 }));
    }

    #[test]
    fn the_widest_stride_costs_no_memory() {
        let window = Window::new(256 << 20, 1).expect("an address range");
        window.hand_out(256 << 20).expect("all of it").at((64 << 20) - 1).expect("the last").ring(1);
        assert_eq!(window.load((64 << 20) - 1), 1);
    }
}
