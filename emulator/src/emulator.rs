//! The controller as its user sees it: made, moved, looked at, and pulled out.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use doorbell_spec::log_page::AsyncEvent;
use doorbell_spec::{Clock, Nanos, Nsid};

use crate::config::{EmulatorConfig, NamespaceConfig, Toggle, doorbell_window_bytes};
use crate::device::{Device, Step};
use crate::error::EmulatorError;
use crate::fault::FaultPlan;
use crate::iova::access::{AccessLog, Dma};
use crate::iova::{IovaSpace, Table};
use crate::namespace::Namespace;
use crate::quick::Quickly;
use crate::report::Report;
use crate::shadow::Rest;
use crate::thread::Worker;
use crate::window::Window;

/// A software NVMe controller. It is a [`doorbell_spec::Transport`]; see there for the bus side.
///
/// ```
/// use doorbell_emulator::{Emulator, EmulatorConfig};
/// use doorbell_spec::{Clock, Transport, register};
///
/// let clock = Clock::virtual_time();
/// let device = Emulator::new(EmulatorConfig::default(), clock.clone())?;
/// assert_eq!(device.read32(register::VS)?, 0x0002_0000);
/// device.relax(&clock);
/// assert!(device.report().is_clean());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Emulator {
    pub(crate) shared: Arc<Shared>,
    /// Ends, and is waited for, when the last owner lets go.
    pub(crate) worker: Option<Worker>,
    pub(crate) name: String,
}

/// What the controller's thread and its users share.
pub(crate) struct Shared {
    /// The controller itself. Under it, in this order: the address table (for reading), then the fault
    /// plan or the access log.
    device: Mutex<Device>,
    pub(crate) space: Arc<IovaSpace>,
    pub(crate) window: Window,
    pub(crate) faults: FaultPlan,
    pub(crate) clock: Clock,
    accesses: AccessLog,
    /// How many users wait for `device`; the controller's thread lets them go first.
    waiting: AtomicUsize,
}

impl Emulator {
    /// A controller that moves only in [`Emulator::step`] and in `Transport::relax`.
    ///
    /// # Errors
    /// The configuration does not fit together, or a namespace's file cannot be used.
    pub fn new(config: EmulatorConfig, clock: Clock) -> Result<Arc<Self>, EmulatorError> {
        let space = Arc::new(IovaSpace::new(config.iova_bits, config.map_entries));
        Self::in_space(config, clock, space)
    }

    /// The same in an address space that other controllers are in too, as two devices of one IOMMU group are.
    ///
    /// # Errors
    /// As [`Emulator::new`].
    pub fn in_space(
        config: EmulatorConfig,
        clock: Clock,
        space: Arc<IovaSpace>,
    ) -> Result<Arc<Self>, EmulatorError> {
        let name = format!("emu:{}", config.source);
        Ok(Arc::new(Self { shared: Arc::new(Shared::new(config, clock, space)?), worker: None, name }))
    }

    /// A controller with a thread of its own and the machine's clock. The thread ends when the last `Arc` is
    /// dropped.
    ///
    /// # Errors
    /// As [`Emulator::new`], or no thread can be made.
    pub fn spawn(config: EmulatorConfig) -> Result<Arc<Self>, EmulatorError> {
        let space = Arc::new(IovaSpace::new(config.iova_bits, config.map_entries));
        let name = format!("emu:{}", config.source);
        let shared = Arc::new(Shared::new(config, Clock::monotonic(), space)?);
        let worker = Worker::start(Arc::clone(&shared))
            .map_err(|source| EmulatorError::Os { action: "starting the controller's thread", source })?;
        Ok(Arc::new(Self { shared, worker: Some(worker), name }))
    }

    /// Takes and completes at most about `budget` commands. Answers how many it was.
    ///
    /// A controller with a thread of its own may be stepped too, but need not be.
    // Out of line, so that its instructions can be counted by name.
    #[inline(never)]
    pub fn step(&self, budget: usize) -> usize {
        self.shared.moved().map_or(0, |turn| self.shared.step_from(turn, budget))
    }

    /// When something will happen by itself next: a delayed completion, readiness, the end of a shutdown.
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        self.shared.lock().next_due()
    }

    /// The fault plan. Rules take effect from the next step or register access on.
    #[must_use]
    pub fn faults(&self) -> &FaultPlan {
        &self.shared.faults
    }

    /// The clock that latencies are measured with.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// What the controller has seen so far.
    #[must_use]
    pub fn report(&self) -> Report {
        let faults = self.shared.accesses.snapshot();
        self.shared.enter().report(faults)
    }

    /// Raises an asynchronous event, as the hardware would. It is reported when the host has asked for it.
    pub fn raise_event(&self, event: AsyncEvent) {
        self.shared.lock().admin.events.raise(event);
        self.wake();
    }

    /// Adds a namespace and reports the change.
    ///
    /// # Errors
    /// The configuration is not possible, or the identifier is in use.
    pub fn attach_namespace(&self, config: &NamespaceConfig) -> Result<(), EmulatorError> {
        EmulatorConfig { namespaces: vec![config.clone()], ..EmulatorConfig::default() }.validate()?;
        let mut device = self.shared.lock();
        let cache = if device.storage.cache.is_on() { Toggle::On } else { Toggle::Off };
        let namespaces = &mut device.storage.namespaces;
        let Err(at) = namespaces.binary_search_by_key(&config.nsid, |namespace| namespace.nsid) else {
            return Err(EmulatorError::Namespace { nsid: config.nsid, problem: "exists already" });
        };
        namespaces.insert(at, Namespace::new(config, cache)?);
        device.storage.nsid_max = device.storage.nsid_max.max(config.nsid);
        device.storage.refresh_trivial();
        device.namespace_changed(config.nsid);
        drop(device);
        self.wake();
        Ok(())
    }

    /// Takes a namespace away, with its data, and reports the change.
    ///
    /// # Errors
    /// There is no such namespace.
    pub fn detach_namespace(&self, nsid: Nsid) -> Result<(), EmulatorError> {
        let mut device = self.shared.lock();
        let Some(at) = device.storage.find(nsid) else {
            return Err(EmulatorError::Namespace { nsid, problem: "does not exist" });
        };
        device.storage.namespaces.remove(at);
        device.storage.refresh_trivial();
        device.namespace_changed(nsid);
        drop(device);
        self.wake();
        Ok(())
    }

    /// Pulls the device out: registers read as ones and nothing is accessed any more, for good.
    pub fn remove(&self) {
        self.shared.lock().remove(&self.shared.window);
    }

    /// Lets a sleeping controller look at its doorbells at once.
    pub(crate) fn wake(&self) {
        if let Some(worker) = &self.worker {
            worker.wake();
        }
    }
}

impl Shared {
    fn new(config: EmulatorConfig, clock: Clock, space: Arc<IovaSpace>) -> Result<Self, EmulatorError> {
        config.validate()?;
        let queues = usize::from(config.submission_queues) + 1;
        let window = Window::new(doorbell_window_bytes(&config), queues)
            .map_err(|source| EmulatorError::Os { action: "mapping memory for doorbells", source })?;
        let faults = FaultPlan::default();
        for rule in &config.faults {
            faults.arm(rule.clone());
        }
        let device = Mutex::new(Device::new(config)?);
        let (accesses, waiting) = (AccessLog::default(), AtomicUsize::new(0));
        Ok(Self { device, space, window, faults, clock, accesses, waiting })
    }

    /// Where a step would begin; `None` if it would find nothing. Takes no lock.
    #[inline]
    pub(crate) fn moved(&self) -> Option<usize> {
        if self.is_quiet() { self.window.watch.first_moved() } else { Some(0) }
    }

    /// Whether only a doorbell can make the controller move.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.window.watch.is_quiet(self.space.generation())
    }

    /// Whether somebody waits for the device.
    pub(crate) fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Waits for the device, to do something to it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Device> {
        let guard = self.enter();
        self.window.watch.disturb();
        guard
    }

    /// Waits for the device, to step it or to look at it. The controller's own thread uses
    /// [`Shared::try_lock`] instead.
    #[inline]
    pub(crate) fn enter(&self) -> MutexGuard<'_, Device> {
        if let Ok(guard) = self.device.try_lock() {
            return guard;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // A panic under the lock would be a bug of ours; the device goes on as well as it can.
        let guard = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Takes the device if nobody else wants it: a thread that steps all the time would starve the others.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Device>> {
        if self.is_wanted() {
            return None;
        }
        self.device.try_lock().ok()
    }

    /// One step of a device that is locked.
    #[inline(always)]
    pub(crate) fn step(&self, device: &mut Device, turn: usize, budget: usize) -> usize {
        let table = self.space.read();
        let mut done = 0;
        if self.window.watch.is_quiet(table.generation()) && !self.faults.is_armed() {
            match device.step_quickly(&self.window.watch, &table, turn, budget) {
                Quickly::Done(taken) if device.armed_vectors == 0 => return taken,
                Quickly::Done(taken) | Quickly::Partly(taken) => done = taken,
            }
        }
        self.step_generally(device, &table, budget - done) + done
    }

    #[inline(never)]
    fn step_generally(&self, device: &mut Device, table: &Table, budget: usize) -> usize {
        let dma = Dma::new(table, &self.accesses, device.mastering);
        let step = Step { dma: &dma, window: &self.window, clock: &self.clock, faults: self.faults.view() };
        device.step(&step, budget)
    }

    /// A step that begins with the queue at `turn`, and what comes before a rest if it finds nothing.
    #[inline(never)]
    pub(crate) fn step_from(&self, turn: usize, budget: usize) -> usize {
        let mut device = self.enter();
        match self.step(&mut device, turn, budget) {
            0 => self.step_again(&mut device, budget),
            done => done,
        }
    }

    /// What a step does that has found nothing: tells the host to ring from now on, and looks once more.
    #[inline(never)]
    pub(crate) fn step_again(&self, device: &mut Device, budget: usize) -> usize {
        if self.go_idle(device) == Rest::Quiet {
            return 0;
        }
        self.step_generally(device, &self.space.read(), budget)
    }

    /// Makes sure that the host rings if it wants something from now on, before a rest.
    pub(crate) fn go_idle(&self, device: &mut Device) -> Rest {
        if device.shadow.is_none() {
            return Rest::Quiet;
        }
        self.with_step(device, |device, step| device.go_idle(step))
    }

    #[inline]
    fn with_step<T>(&self, device: &mut Device, act: impl FnOnce(&mut Device, &Step<'_>) -> T) -> T {
        let table = self.space.read();
        let dma = Dma::new(&table, &self.accesses, device.mastering);
        let step = Step { dma: &dma, window: &self.window, clock: &self.clock, faults: self.faults.view() };
        act(device, &step)
    }
}

impl fmt::Debug for Emulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Emulator").field("name", &self.name).finish_non_exhaustive()
    }
}
