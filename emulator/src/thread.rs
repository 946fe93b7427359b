//! The controller's own thread: busy while there is work, modest while there is none.
//!
//! It spins for a moment after the last work, then naps, from tens of microseconds up to a millisecond; with
//! a command due soon it wakes in time and spins until then. It never yields: a scheduler takes that for a
//! wish to come last, and the next turn is milliseconds away when the machine is busy, whereas a thread that
//! slept is let in at once. On a machine with one processor the naps are what lets the host run.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use doorbell_spec::Nanos;

use crate::emulator::Shared;
use crate::shadow::Rest;

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
    // By default the system may end a sleep 50 µs late. If it refuses, latencies are that much worse.
    if let Err(error) = nix::sys::prctl::set_timerslack(TIMER_SLACK_NANOS) {
        tracing::debug!(%error, "the controller's thread keeps the default timer slack");
    }
    let mut idle_since = None;
    let mut nap = NAP_MIN;
    while !stop.load(Ordering::Relaxed) {
        let Some(mut device) = shared.try_lock() else {
            thread::yield_now();
            continue;
        };
        let mut rounds = 0;
        let mut done = 0;
        while rounds < ROUNDS && done == 0 {
            done = shared.step(&mut device, 0, BUDGET);
            rounds += 1;
        }
        if done > 0 {
            (idle_since, nap) = (None, NAP_MIN);
            continue;
        }
        let due = device.next_due();
        let now = shared.clock.now();
        let since = *idle_since.get_or_insert(now);
        let Some(most) = rest_until(now, since, due) else {
            drop(device);
            std::hint::spin_loop();
            continue;
        };
        let rest = shared.go_idle(&mut device);
        drop(device);
        if rest == Rest::Quiet {
            thread::park_timeout(nap.min(most));
            nap = (nap + nap / 8).min(NAP_MAX);
        }
    }
}

/// How long the processor may be left to others at most, if at all.
fn rest_until(now: Nanos, idle_since: Nanos, due: Option<Nanos>) -> Option<Duration> {
    let until_due = due.map_or(u64::MAX, |due| due.since(now));
    if now.since(idle_since) < SPINNING_NANOS || until_due < SLEEP_SLACK_NANOS {
        return None;
    }
    let most = Duration::from_nanos(until_due - SLEEP_SLACK_NANOS);
    // With commands in flight the next one is likely close behind.
    let limit = if due.is_some() { NAP_IN_FLIGHT } else { NAP_MAX };
    Some(most.min(limit))
}

/// So many commands are taken before the device's lock is let go for a moment.
const BUDGET: usize = 256;
/// Empty looks at the doorbells before the lock is let go and the clock is read.
const ROUNDS: u32 = 8;
/// How long the thread spins after the last work.
const SPINNING_NANOS: u64 = 50_000;
const TIMER_SLACK_NANOS: u64 = 1000;
/// A sleep may last so much longer than asked for.
const SLEEP_SLACK_NANOS: u64 = 20_000;
const NAP_MIN: Duration = Duration::from_micros(20);
const NAP_IN_FLIGHT: Duration = Duration::from_micros(50);
const NAP_MAX: Duration = Duration::from_millis(1);
