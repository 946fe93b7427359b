//! In which order a completion entry is read: the order alone, for any memory that an entry can be in.
//!
//! Invariant: an entry whose phase tag is new is what the device wrote before the tag. It rests on the device
//! writing the dword with the tag last (NVMe Base 2.0, 3.3.3.2); the driver's part is to load it first, once,
//! and with acquire. The other dwords can only be had through a [`Look`], so not before.
//!
//! A device that writes that dword first breaks the rule, and the driver cannot notice. What holds even then:
//! identifier, status and tag are one dword and are loaded at once, so that the command that ends is the one
//! that the device meant, with the status that it meant, and it ends once. What may be of a round before is
//! the command's result (dwords 0 and 1), and the submission queue's head and identifier, which are compared
//! with what can be before anything is done. The data is then as old as the device left it.

use std::sync::atomic::{AtomicU32, Ordering};

use doorbell_spec::CompletionEntry;

/// The four dwords of an entry that the device writes while the driver reads them.
pub(crate) trait EntryMemory {
    /// Loads the dword with the phase tag. What is loaded afterwards is not older than this.
    fn load_last(&self) -> u32;

    /// Loads one of the other dwords (0 to 2), in no order.
    fn load(&self, index: usize) -> u32;
}

impl EntryMemory for [AtomicU32; 4] {
    #[inline]
    fn load_last(&self) -> u32 {
        // The acquire load keeps those of the other dwords behind it. Its partner is the device's write: that
        // of a PCIe device does not pass those before it, that of the software controller is a release store.
        self[3].load(Ordering::Acquire)
    }

    #[inline]
    fn load(&self, index: usize) -> u32 {
        self[index].load(Ordering::Relaxed)
    }
}

/// One look at an entry: its last dword, loaded before any other.
#[derive(Debug)]
pub(crate) struct Look<'a, M> {
    memory: &'a M,
    last: u32,
}

impl<'a, M: EntryMemory> Look<'a, M> {
    /// Looks at an entry that may be new.
    #[inline]
    pub(crate) fn at(memory: &'a M) -> Self {
        Self { memory, last: memory.load_last() }
    }

    /// The dword with identifier, phase tag and status, as it was when the look began.
    #[inline]
    pub(crate) fn last(&self) -> u32 {
        self.last
    }

    /// Another dword (0 to 2). Belongs to the last one if that has the phase tag of this round.
    #[inline]
    pub(crate) fn dword(&self, index: usize) -> u32 {
        self.memory.load(index)
    }

    /// The whole entry, under the same condition.
    #[inline]
    pub(crate) fn entry(&self) -> CompletionEntry {
        let [dw0, dw1, dw2] = [0, 1, 2].map(|index| self.dword(index));
        CompletionEntry::from_dwords(dw0, dw1, dw2, self.last)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_look_keeps_the_last_dword_and_finds_the_others_in_their_places() {
        let memory = [1, 2, 0x0004_0003, 0x4281_0005].map(AtomicU32::new);
        let look = Look::at(&memory);
        memory[3].store(0, Ordering::Relaxed);
        assert_eq!(look.last(), 0x4281_0005);
        assert_eq!([0, 1, 2].map(|index| look.dword(index)), [1, 2, 0x0004_0003]);
        assert_eq!(look.entry(), CompletionEntry::from_dwords(1, 2, 0x0004_0003, 0x4281_0005));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    //! A device that posts entries on a thread of its own, and a driver that polls, in every interleaving and
    //! with every value that a load may see.

    use std::sync::Arc;

    use loom::cell::UnsafeCell;
    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::thread;

    use super::{EntryMemory, Look};

    const PHASE: u32 = 1 << 16;

    /// In which order a device writes an entry.
    #[derive(Clone, Copy)]
    enum Device {
        PhaseLast,
        /// It does not order the last dword behind the others.
        PhaseAnyTime,
        PhaseFirst,
    }

    /// How the driver loads the last dword.
    #[derive(Clone, Copy)]
    enum Driver {
        Acquire,
        /// It does not keep the other loads behind it.
        Relaxed,
    }

    /// A completion queue of one entry, and the data of the command that it ends.
    struct Shared {
        dwords: [AtomicU32; 4],
        driver: Driver,
        /// What the completion queue's head doorbell says.
        doorbell: AtomicU32,
        data: UnsafeCell<u32>,
    }

    impl EntryMemory for Shared {
        fn load_last(&self) -> u32 {
            self.dwords[3].load(match self.driver {
                Driver::Acquire => Ordering::Acquire,
                Driver::Relaxed => Ordering::Relaxed,
            })
        }

        fn load(&self, index: usize) -> u32 {
            self.dwords[index].load(Ordering::Relaxed)
        }
    }

    /// Every dword of the entry for a command is made of its identifier, so that a mixture shows.
    fn dwords(cid: u32, phase: u32) -> [u32; 4] {
        [cid, cid, cid << 16 | cid, (cid & 1) << 17 | phase | cid]
    }

    impl Shared {
        fn new(driver: Driver) -> Arc<Self> {
            let dwords = [0; 4].map(AtomicU32::new);
            Arc::new(Self { dwords, driver, doorbell: AtomicU32::new(0), data: UnsafeCell::new(0) })
        }

        /// What the software controller does in `emulator/src/queues/ring.rs`, or what it must not do.
        fn post(&self, device: Device, cid: u32, phase: u32) {
            let new = dwords(cid, phase);
            let store = |index: usize, order| self.dwords[index].store(new[index], order);
            match device {
                Device::PhaseFirst => store(3, Ordering::Release),
                Device::PhaseLast | Device::PhaseAnyTime => {}
            }
            (0..3).for_each(|index| store(index, Ordering::Relaxed));
            match device {
                Device::PhaseLast => store(3, Ordering::Release),
                Device::PhaseAnyTime => store(3, Ordering::Relaxed),
                Device::PhaseFirst => {}
            }
        }
    }

    /// Two commands are ended in the same entry, the second when the driver has told that it has read the
    /// first. Answers for each that the driver saw, in order: was every dword the device's last word?
    fn run(device: Device, driver: Driver, polls: usize) -> Vec<bool> {
        let shared = Shared::new(driver);
        let writer = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                shared.post(device, 1, PHASE);
                if shared.doorbell.load(Ordering::Acquire) == 1 {
                    shared.post(device, 2, 0);
                }
            }
        });
        let mut whole = Vec::new();
        let mut phase = PHASE;
        for _ in 0..polls {
            let look = Look::at(&*shared);
            if look.last() & PHASE != phase {
                continue;
            }
            let entry = look.entry();
            let cid = u32::try_from(whole.len()).expect("there are two") + 1;
            let [dw0, dw1, dw2, last] = dwords(cid, phase);
            // Whatever the order was, it is the next command that ends, with its own status, and once.
            assert_eq!(entry.dw3(), last, "the command and its status are one dword");
            let found = [entry.dw0, entry.dw1, u32::from(entry.sq_id) << 16 | u32::from(entry.sq_head)];
            let was_written = |at: usize| (0..=cid).any(|cid| found[at] == dwords(cid, 0)[at]);
            assert!((0..3).all(was_written), "a dword that nobody wrote");
            whole.push(found == [dw0, dw1, dw2]);
            phase ^= PHASE;
            shared.doorbell.store(cid, Ordering::Release);
        }
        writer.join().expect("it has not panicked");
        whole
    }

    #[test]
    fn an_entry_is_never_half_read() {
        loom::model(|| assert!(run(Device::PhaseLast, Driver::Acquire, 3).iter().all(|is_whole| *is_whole)));
    }

    #[test]
    #[should_panic(expected = "half-read")]
    fn a_load_without_acquire_would_be_noticed() {
        loom::model(|| {
            let whole = run(Device::PhaseLast, Driver::Relaxed, 2);
            assert!(whole.iter().all(|is_whole| *is_whole), "half-read");
        });
    }

    #[test]
    #[should_panic(expected = "half-read")]
    fn a_device_that_does_not_order_its_writes_would_be_noticed() {
        loom::model(|| {
            let whole = run(Device::PhaseAnyTime, Driver::Acquire, 2);
            assert!(whole.iter().all(|is_whole| *is_whole), "half-read");
        });
    }

    #[test]
    #[should_panic(expected = "half-read")]
    fn behind_a_phase_that_was_written_first_the_rest_may_be_old() {
        loom::model(|| {
            let whole = run(Device::PhaseFirst, Driver::Acquire, 2);
            assert!(whole.iter().all(|is_whole| *is_whole), "half-read");
        });
    }

    #[test]
    fn a_phase_that_was_written_first_ends_the_right_command_once() {
        // What `run` asserts holds whatever the device's order.
        loom::model(|| assert!(run(Device::PhaseFirst, Driver::Acquire, 2).len() <= 2));
        loom::model(|| assert!(run(Device::PhaseAnyTime, Driver::Acquire, 2).len() <= 2));
    }

    #[test]
    fn who_sees_the_phase_sees_the_data() {
        loom::model(|| {
            let shared = Shared::new(Driver::Acquire);
            let writer = thread::spawn({
                let shared = Arc::clone(&shared);
                move || {
                    shared.data.with_mut(|_| ());
                    shared.post(Device::PhaseLast, 1, PHASE);
                }
            });
            if Look::at(&*shared).last() & PHASE != 0 {
                // The checker reports a race if the device could still be writing.
                shared.data.with(|_| ());
            }
            writer.join().expect("it has not panicked");
        });
    }
}
