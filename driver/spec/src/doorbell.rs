#![expect(unsafe_code)]
//! Doorbells: the device's notice that a queue has moved (PCIe Transport 1.0, 3.1.2).
//!
//! A doorbell is one dword of memory that the device watches: a register behind a PCIe window, or plain
//! shared memory of the software controller. Both are written the same way, by one release store.
//!
//! A doorbell can have a shadow in host memory (NVMe Base 2.0, 5.8 and Annex B.5), beside which the
//! controller says when it wants the register rung too: EventIdx.
//
// UNSAFETY: a doorbell is kept as a pointer into a mapping that lives as long as the window's keeper.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// The doorbell registers of one controller: from offset 0x1000 of BAR0 on.
#[derive(Clone)]
pub struct Doorbells {
    base: NonNull<AtomicU32>,
    words: usize,
    keeper: Arc<dyn Any + Send + Sync>,
}

/// One doorbell. Cheap to copy around within its owner; keeps the mapping alive.
#[derive(Clone)]
pub struct Doorbell {
    cell: NonNull<AtomicU32>,
    _keeper: Arc<dyn Any + Send + Sync>,
}

/// The two buffers of Doorbell Buffer Config (NVMe Base 2.0, 5.8): the shadow doorbells, which the host
/// writes, and their EventIdx, which the controller does. Both have the layout of the doorbell registers.
#[derive(Clone, Debug)]
pub struct DoorbellBuffers {
    shadow: Doorbells,
    events: Doorbells,
}

/// A doorbell's shadow and its EventIdx. Keeps their memory alive.
#[derive(Clone, Debug)]
pub struct ShadowDoorbell {
    shadow: Doorbell,
    event: Doorbell,
}

// SAFETY:
// - the pointers lead to atomics, which any thread may touch;
// - the keeper, which owns the memory, is Send and Sync itself.
unsafe impl Send for Doorbells {}
// SAFETY: as above; all access through a shared reference is atomic.
unsafe impl Sync for Doorbells {}
// SAFETY: as for `Doorbells`.
unsafe impl Send for Doorbell {}
// SAFETY: as for `Doorbells`.
unsafe impl Sync for Doorbell {}

impl Doorbells {
    /// Wraps `words` dwords at `base`, which is offset 0x1000 of the controller's BAR0.
    ///
    /// # Safety
    /// - `base` points to `words` consecutive, aligned dwords that may be read and written as atomics;
    /// - they stay so for as long as `keeper` (or a clone of it) is alive.
    #[must_use]
    pub unsafe fn new(base: NonNull<AtomicU32>, words: usize, keeper: Arc<dyn Any + Send + Sync>) -> Self {
        Self { base, words, keeper }
    }

    /// Doorbells in ordinary memory, for a controller that is made of software.
    #[must_use]
    pub fn in_memory(cells: Arc<[AtomicU32]>) -> Self {
        let base = NonNull::from(&*cells).cast();
        let words = cells.len();
        Self { base, words, keeper: Arc::new(cells) }
    }

    /// How many dwords the window has.
    #[must_use]
    pub fn words(&self) -> usize {
        self.words
    }

    /// The doorbell at dword `index` of the window, or `None` beyond its end.
    #[must_use]
    pub fn at(&self, index: usize) -> Option<Doorbell> {
        if index >= self.words {
            return None;
        }
        // SAFETY: index < words, and the window is one allocation of that many dwords (see `new`).
        let cell = unsafe { self.base.add(index) };
        Some(Doorbell { cell, _keeper: Arc::clone(&self.keeper) })
    }
}

impl Doorbell {
    /// Rings: tells the device the new tail of a submission queue or head of a completion queue.
    ///
    /// Every entry written before is visible to the device when it sees the value. Does not wait for the
    /// device, and does not read the register back.
    #[inline]
    pub fn ring(&self, value: u32) {
        // The release store keeps the entry's stores ahead of the doorbell's. Its partner is the device:
        // the software controller loads the doorbell with acquire; a PCIe device reads the entry by DMA
        // after it has seen the posted write.
        write_barrier();
        self.cell().store(value, Ordering::Release);
    }

    #[inline]
    fn cell(&self) -> &AtomicU32 {
        // SAFETY: the cell lies in a mapping that `_keeper` keeps alive, see `Doorbells::new`.
        unsafe { self.cell.as_ref() }
    }
}

impl DoorbellBuffers {
    /// Two buffers of one layout.
    #[must_use]
    pub fn new(shadow: Doorbells, events: Doorbells) -> Self {
        Self { shadow, events }
    }

    /// What belongs to the doorbell at dword `index` of the register window, or `None` beyond the buffers'
    /// end.
    #[must_use]
    pub fn at(&self, index: usize) -> Option<ShadowDoorbell> {
        Some(ShadowDoorbell { shadow: self.shadow.at(index)?, event: self.events.at(index)? })
    }
}

impl ShadowDoorbell {
    /// Writes the shadow, and answers EventIdx as it is then. Whether the register must be rung is for the
    /// caller to find out (NVMe Base 2.0, Annex B.5.1). The value is whatever the controller wrote.
    ///
    /// Every entry written before is visible to a controller that sees the value.
    #[inline]
    #[must_use = "the controller may wait for its register"]
    pub fn move_to(&self, value: u32) -> u32 {
        self.shadow.ring(value);
        // The shadow's store must not pass the load of EventIdx. The partner is the controller, which writes
        // EventIdx before it looks at the shadow once more: so one of the two sees what the other wrote.
        full_barrier();
        self.event()
    }

    /// EventIdx: the controller wants its register rung when the doorbell moves on from this value.
    #[must_use]
    #[inline]
    pub fn event(&self) -> u32 {
        self.event.cell().load(Ordering::Relaxed)
    }

    /// Sets both to zero, where a queue starts.
    pub fn clear(&self) {
        self.event.cell().store(0, Ordering::Relaxed);
        self.shadow.cell().store(0, Ordering::Release);
    }
}

/// Orders stores to ordinary memory before a following store to device memory.
#[inline]
fn write_barrier() {
    // x86-64 keeps stores in order, to uncached memory too: the release store is enough. On aarch64 a
    // store-release orders only within the inner domain, and a device is outside of it.
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier has no operands and touches no memory of its own.
    unsafe {
        std::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
}

/// Orders stores to memory before following loads from it, as the device sees them.
#[inline]
fn full_barrier() {
    fence(Ordering::SeqCst);
    // The fence orders within the inner domain, see `write_barrier`.
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier has no operands and touches no memory of its own.
    unsafe {
        std::arch::asm!("dmb osh", options(nostack, preserves_flags));
    }
}

impl fmt::Debug for Doorbells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doorbells").field("words", &self.words).finish_non_exhaustive()
    }
}

impl fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Doorbell")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_reach_the_memory_and_end_with_the_window() {
        let cells: Arc<[AtomicU32]> = (0..4).map(|_| AtomicU32::new(0)).collect();
        let doorbells = Doorbells::in_memory(Arc::clone(&cells));
        let last = doorbells.at(3).expect("inside");
        assert!(doorbells.at(4).is_none());
        drop(doorbells);
        last.ring(7);
        assert_eq!(cells[3].load(Ordering::Acquire), 7);
    }

    #[test]
    fn a_shadow_is_written_and_its_event_index_answered() {
        let cells = || (0..4).map(|_| AtomicU32::new(9)).collect::<Arc<[AtomicU32]>>();
        let (shadow, events) = (cells(), cells());
        let both = [&shadow, &events].map(|cells: &Arc<[AtomicU32]>| Doorbells::in_memory(Arc::clone(cells)));
        let [first, second] = both;
        let buffers = DoorbellBuffers::new(first, second);
        assert!(buffers.at(4).is_none());
        let last = buffers.at(3).expect("inside");
        last.clear();
        let seen = || (shadow[3].load(Ordering::Acquire), events[3].load(Ordering::Acquire));
        assert_eq!(seen(), (0, 0));
        events[3].store(5, Ordering::Release);
        assert_eq!((last.move_to(7), last.event()), (5, 5));
        assert_eq!((seen(), shadow[2].load(Ordering::Acquire)), ((7, 5), 9));
    }

    /// Both sides write at the same moment and look at what the other wrote. If neither saw it, the
    /// controller would go to sleep and the host would not ring.
    #[test]
    fn of_host_and_device_one_always_sees_the_other() {
        let word = || (0..1).map(|_| AtomicU32::new(0)).collect::<Arc<[AtomicU32]>>();
        let (shadow, event) = (word(), word());
        let in_memory = |cells: &Arc<[AtomicU32]>| Doorbells::in_memory(Arc::clone(cells));
        let words = DoorbellBuffers::new(in_memory(&shadow), in_memory(&event)).at(0).expect("one");
        let arrived = [const { AtomicU32::new(0) }; 2];
        let meet = |own: usize, round| {
            arrived[own].store(round, Ordering::SeqCst);
            let mut looks = 0;
            while arrived[1 - own].load(Ordering::SeqCst) < round {
                looks += 1;
                if looks % 1000 == 0 { std::thread::yield_now() } else { std::hint::spin_loop() }
            }
        };
        let device = |round| {
            event[0].store(round, Ordering::Release);
            fence(Ordering::SeqCst);
            shadow[0].load(Ordering::Acquire)
        };
        let (host_saw, device_saw) = std::thread::scope(|scope| {
            let host = scope.spawn(|| each_round(|round| (meet(0, round), words.move_to(round)).1));
            let device_saw = each_round(|round| (meet(1, round), device(round)).1);
            (host.join().expect("no panic"), device_saw)
        });
        let lost = (1..)
            .zip(host_saw.iter().zip(&device_saw))
            .find(|(round, (host, device))| **host < *round && **device < *round);
        assert_eq!(lost, None, "neither side saw the other");
    }

    fn each_round(act: impl FnMut(u32) -> u32) -> Vec<u32> {
        (1..=30_000).map(act).collect()
    }
}
