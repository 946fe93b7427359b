//! The controller's own thread: busy while there is work, modest while there is none.
//!
//! It spins for a moment after the last work, then yields, then naps, from tens of microseconds up to a
//! millisecond. With a command due soon it only yields, so that latencies are kept. On a machine with one
//! processor the yields are what lets the host run at all.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use doorbell_spec::Nanos;

use crate::emulator::Shared;

/// The running thread. Dropping it ends the thread and waits for it.
pub(crate) struct Worker {
    thread: Thread,
    handle: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

impl Worker {
    pub(crate) fn start(shared: Arc<Shared>) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let handle =
            thread::Builder::new().name("nvme-emulator".to_owned()).spawn(move || run(&shared, &told))?;
        Ok(Self { thread: handle.thread().clone(), handle: Some(handle), stop })
    }

    /// Ends a nap.
    pub(crate) fn wake(&self) {
        self.thread.unpark();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wake();
        if let Some(handle) = self.handle.take() {
            // A panic of the thread has been printed; there is nobody here to hand it to.
            let _ = handle.join();
        }
    }
}

fn run(shared: &Shared, stop: &AtomicBool) {
    let mut idle_since = shared.clock.now();
    let mut empty_rounds = 0_u32;
    let mut nap = NAP_MIN;
    while !stop.load(Ordering::Relaxed) {
        let Some(mut device) = shared.try_lock() else {
            thread::yield_now();
            continue;
        };
        if shared.step(&mut device, BUDGET) > 0 {
            empty_rounds = 0;
            continue;
        }
        empty_rounds += 1;
        if empty_rounds < SPINS {
            drop(device);
            std::hint::spin_loop();
            continue;
        }
        let due = device.next_due();
        drop(device);
        let now = shared.clock.now();
        if empty_rounds == SPINS {
            (idle_since, nap) = (now, NAP_MIN);
        }
        empty_rounds = empty_rounds.min(u32::MAX - 1);
        rest(now, idle_since, due, &mut nap);
    }
}

/// Leaves the processor to others for a while that fits how long nothing has happened.
fn rest(now: Nanos, idle_since: Nanos, due: Option<Nanos>, nap: &mut Duration) {
    if now.since(idle_since) < YIELDING_NANOS {
        thread::yield_now();
        return;
    }
    let until_due = due.map_or(u64::MAX, |due| due.since(now));
    if until_due < SLEEP_SLACK_NANOS {
        thread::yield_now();
        return;
    }
    let most = Duration::from_nanos(until_due - SLEEP_SLACK_NANOS / 2);
    // With commands in flight the next one is likely close behind.
    let limit = if due.is_some() { NAP_MIN } else { NAP_MAX };
    thread::park_timeout((*nap).min(most).min(limit));
    *nap = (*nap * 2).min(NAP_MAX);
}

/// So many commands are taken before the device's lock is let go for a moment.
const BUDGET: usize = 256;
/// Empty rounds before the thread yields: some tens of microseconds.
const SPINS: u32 = 200;
/// How long it yields before it naps.
const YIELDING_NANOS: u64 = 2_000_000;
/// A sleep may last so much longer than asked for.
const SLEEP_SLACK_NANOS: u64 = 150_000;
const NAP_MIN: Duration = Duration::from_micros(20);
const NAP_MAX: Duration = Duration::from_millis(1);
