//! Where a comparison takes place: which core drives, which core is the controller, and who moves it.
//!
//! A controller is moved by one thread for all controllers of a round, pinned to a core of its own, which
//! serves those of the variant whose slice it is and spins in between: there is no nap to wake from and no
//! second controller to share the core with. Inline, the driver's thread moves it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle};

use anyhow::Context;
use core_affinity::CoreId;
use doorbell::Clock;
use doorbell::emulator::Emulator;

/// Which thread moves the controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// One of their own.
    TwoThreads,
    /// The driver's.
    Inline,
}

impl Place {
    /// Where that is, in the name of a comparison.
    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::TwoThreads => "two threads",
            Self::Inline => "inline",
        }
    }
}

/// Whether there is a core for each thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crowd {
    /// There is: threads spin.
    Roomy,
    /// Threads that have nothing to do let others run.
    Crowded,
}

/// The machine as the studies use it.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub(super) clock: Clock,
    pub(super) crowd: Crowd,
    driver: Option<CoreId>,
    device: Option<CoreId>,
}

/// The thread that moves controllers. Ends when it is dropped.
#[derive(Debug)]
pub(super) struct DeviceThread {
    /// The side that is served.
    side: Arc<AtomicUsize>,
    handle: Option<JoinHandle<()>>,
}

impl Site {
    /// Looks at the machine. Asks for its cores before any thread is pinned.
    pub(super) fn find() -> Self {
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        let crowd = if cores.len() < 2 { Crowd::Crowded } else { Crowd::Roomy };
        // The system's own work is rather done on the first core: the driver, which is measured, is not
        // there.
        Self {
            clock: Clock::monotonic(),
            crowd,
            driver: cores.get(1).copied(),
            device: cores.first().copied(),
        }
    }

    /// Gives the calling thread the driver's core, as far as that is possible.
    pub(super) fn take_driver_core(&self) {
        take(self.driver);
    }

    /// Starts the thread that moves the controllers of either side; it serves the first.
    pub(super) fn start_device(&self, sides: [Vec<Arc<Emulator>>; 2]) -> anyhow::Result<DeviceThread> {
        let side = Arc::new(AtomicUsize::new(0));
        let (told, core, crowd) = (Arc::clone(&side), self.device, self.crowd);
        let serve = move || {
            take(core);
            serve(&sides, &told, crowd);
        };
        let handle = Builder::new().name("study-device".to_owned()).spawn(serve);
        let handle = handle.context("the system starts no more threads")?;
        Ok(DeviceThread { side, handle: Some(handle) })
    }
}

impl DeviceThread {
    /// Serves the controllers of this side (0 or 1) from now on.
    pub(super) fn turn_to(&self, side: usize) {
        self.side.store(side, Ordering::Release);
    }
}

impl Drop for DeviceThread {
    fn drop(&mut self) {
        self.side.store(END, Ordering::Release);
        if let Some(handle) = self.handle.take() {
            // A panic of the thread has been printed; the driver has found that nothing completes.
            let _ = handle.join();
        }
    }
}

/// Keeps the calling thread on a core. Where the system does not allow that, it runs all the same: the
/// comparison of the baseline with itself says whether that was good enough.
fn take(core: Option<CoreId>) {
    if let Some(core) = core {
        core_affinity::set_for_current(core);
    }
}

/// Moves the controllers of the side asked for, until asked for one that is not there.
fn serve(sides: &[Vec<Arc<Emulator>>; 2], asked: &AtomicUsize, crowd: Crowd) {
    while let Some(controllers) = sides.get(asked.load(Ordering::Acquire)) {
        let done: usize = controllers.iter().map(|controller| controller.step(BUDGET)).sum();
        if done == 0 && crowd == Crowd::Crowded {
            std::thread::yield_now();
        }
    }
}

/// The side that is not there.
const END: usize = usize::MAX;

/// Commands of one step, as the controller's own thread takes them.
const BUDGET: usize = 256;
