//! The controller's own thread: busy while there is work, modest while there is none.
//!
//! While the controller is quiet the thread looks at the doorbells without a lock; for what it finds it takes
//! the lock once, and keeps it for as long as there is more. It spins for a moment after the last work,
//! then naps, from tens of microseconds up to a millisecond; with a command due soon it wakes in time
//! and spins until then. Where there is one processor for it and the host, spinning would only keep the
//! host from running: see [`Courtesy`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use doorbell_spec::{Clock, Nanos};

use crate::device::Device;
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

/// How the thread lets the host go on where both have one processor.
///
/// A host that yields while it has nothing to reap is best answered in kind: the two then take turns. One
/// that polls without pause keeps the processor until the scheduler takes it away, milliseconds later; a
/// thread that has slept is let in much sooner. Which host it is shows in how long a yield takes.
struct Courtesy {
    is_alone: bool,
    /// So many times more the thread sleeps without trying to yield.
    sleeps_left: u32,
    /// So many times it will sleep after the next yield that took too long.
    sleeps_next: u32,
}

impl Courtesy {
    fn new() -> Self {
        let is_alone = thread::available_parallelism().is_ok_and(|processors| processors.get() == 1);
        Self { is_alone, sleeps_left: 0, sleeps_next: SLEEPS_MIN }
    }

    /// Yields, unless this host is better slept for. Answers whether it has.
    fn yields(&mut self, clock: &Clock, now: Nanos) -> bool {
        if self.sleeps_left > 0 {
            self.sleeps_left -= 1;
            return false;
        }
        thread::yield_now();
        if clock.now().since(now) < YIELD_NANOS_MAX {
            self.sleeps_next = SLEEPS_MIN;
        } else {
            self.sleeps_left = self.sleeps_next;
            self.sleeps_next = (self.sleeps_next * 2).min(SLEEPS_MAX);
        }
        true
    }
}

fn run(shared: &Shared, stop: &AtomicBool) {
    // By default the system may end a sleep 50 µs late. If it refuses, latencies are that much worse.
    if let Err(error) = nix::sys::prctl::set_timerslack(TIMER_SLACK_NANOS) {
        tracing::debug!(%error, "the controller's thread keeps the default timer slack");
    }
    let mut courtesy = Courtesy::new();
    let mut idle_since = None;
    let mut nap = NAP_MIN;
    while !stop.load(Ordering::Relaxed) {
        let mut due = None;
        if shared.moved().is_some() {
            let Some(mut device) = shared.try_lock() else {
                thread::yield_now();
                continue;
            };
            if work(shared, &mut device) > 0 {
                (idle_since, nap) = (None, NAP_MIN);
                continue;
            }
            due = device.next_due();
        }
        let now = shared.clock.now();
        let is_fresh = now.since(*idle_since.get_or_insert(now)) < SPINNING_NANOS;
        let most = rest_max(now, due);
        if most.is_zero() || (is_fresh && !courtesy.is_alone) {
            look_for_a_while(shared);
        } else if is_fresh && courtesy.yields(&shared.clock, now) {
            // The host has had its turn.
        } else if go_idle(shared) == Rest::Quiet {
            thread::park_timeout(nap.min(most));
            nap = (nap + nap / 8).min(NAP_MAX);
        }
    }
}

/// Steps for as long as there is something to do, under one lock. Answers how many commands it was.
fn work(shared: &Shared, device: &mut Device) -> usize {
    let mut done = 0;
    for _ in 0..STEPS {
        let taken = shared.step(device, shared.moved().unwrap_or(0), BUDGET);
        done += taken;
        if (taken == 0 && !look_for_a_while(shared)) || shared.is_wanted() {
            break;
        }
    }
    done
}

/// Looks at the doorbells without taking a lock. Answers whether there is something to do.
fn look_for_a_while(shared: &Shared) -> bool {
    (0..LOOKS).any(|_| {
        std::hint::spin_loop();
        shared.moved().is_some()
    })
}

/// How long the processor may be left to others at most.
fn rest_max(now: Nanos, due: Option<Nanos>) -> Duration {
    let Some(due) = due else { return NAP_MAX };
    // With commands in flight the next one is likely close behind.
    Duration::from_nanos(due.since(now).saturating_sub(SLEEP_SLACK_NANOS)).min(NAP_IN_FLIGHT)
}

/// Tells a host with shadow doorbells to ring from now on.
fn go_idle(shared: &Shared) -> Rest {
    // A quiet controller has no shadows.
    if shared.is_quiet() {
        return Rest::Quiet;
    }
    shared.try_lock().map_or(Rest::Disturbed, |mut device| shared.go_idle(&mut device))
}

/// So many commands are taken before others may map and unmap memory.
const BUDGET: usize = 256;
/// So many steps before the device's lock is let go for a moment.
const STEPS: u32 = 64;
/// Looks at the doorbells before the clock is read.
const LOOKS: u32 = 32;
/// How long the thread stays awake after the last work.
const SPINNING_NANOS: u64 = 50_000;
const TIMER_SLACK_NANOS: u64 = 1000;
/// A sleep may last so much longer than asked for.
const SLEEP_SLACK_NANOS: u64 = 20_000;
const NAP_MIN: Duration = Duration::from_micros(20);
const NAP_IN_FLIGHT: Duration = Duration::from_micros(50);
const NAP_MAX: Duration = Duration::from_millis(1);
/// A host that yields too gives the processor back much sooner than this.
const YIELD_NANOS_MAX: u64 = 500_000;
const SLEEPS_MIN: u32 = 16;
const SLEEPS_MAX: u32 = 16_384;
