//! The controller as a whole: what one step does, and what reset, failure and removal mean.
//!
//! A step completes what is due, then goes round the submission queues and takes what the doorbells announce
//! (round robin, in bursts). All of it happens under the device's lock, with one read guard on the address
//! table. The part of it that runs per I/O command is in `serve.rs`.

use std::collections::VecDeque;
use std::fs::File;

use doorbell_spec::{BusEvent, BusMastering, Clock, Nanos, QueueId};

use crate::admin::Admin;
use crate::config::{EmulatorConfig, Toggle};
use crate::error::EmulatorError;
use crate::fault::{Action, FaultView, Point};
use crate::flight::{Flight, Parked};
use crate::iova::access::Dma;
use crate::namespace::Namespace;
use crate::nvm::Storage;
use crate::queues::bell::Bells;
use crate::queues::{CompletionQueue, SubmissionQueue};
use crate::registers::{Effect, Registers};
use crate::report::{Report, Tally, Violation};
use crate::serve::{pair, sq_mut};
use crate::shadow::Shadow;
use crate::watch::Spot;
use crate::window::Window;

/// Everything behind the device's lock.
pub(crate) struct Device {
    pub(crate) config: EmulatorConfig,
    pub(crate) registers: Registers,
    pub(crate) sqs: Vec<Option<Box<SubmissionQueue>>>,
    pub(crate) cqs: Vec<Option<Box<CompletionQueue>>>,
    /// Submission queues that exist, in the order they are served.
    pub(crate) live: Vec<QueueId>,
    pub(crate) flight: Flight,
    /// Commands that the fault plan has put off until the end of the step, oldest first.
    pub(crate) put_off: Vec<Parked>,
    pub(crate) storage: Storage,
    /// What the host has configured with Doorbell Buffer Config.
    pub(crate) shadow: Option<Shadow>,
    pub(crate) admin: Admin,
    pub(crate) tally: Tally,
    pub(crate) mastering: BusMastering,
    /// The eventfd of each interrupt vector.
    pub(crate) vectors: Vec<Option<File>>,
    /// How many of them there are.
    pub(crate) armed_vectors: usize,
    /// The state of the address table that the queues were last looked at in.
    generation: u64,
    /// Queues that were reported as unmapped since the last reset.
    pub(crate) lost: Vec<QueueId>,
    /// Whether a queue may have commands that were announced and not taken.
    pub(crate) has_backlog: bool,
    /// Whether completions wait for room.
    pub(crate) has_held: bool,
    pub(crate) is_removed: bool,
    pub(crate) bus_events: VecDeque<BusEvent>,
}

/// What a step may use.
pub(crate) struct Step<'a> {
    pub(crate) dma: &'a Dma<'a>,
    pub(crate) window: &'a Window,
    pub(crate) clock: &'a Clock,
    pub(crate) faults: FaultView<'a>,
}

impl<'a> Step<'a> {
    /// Where doorbells are looked at.
    #[inline]
    pub(crate) fn bells(&'a self, shadow: &'a Option<Shadow>) -> Bells<'a> {
        Bells { window: self.window, dma: self.dma, shadow: shadow.as_ref() }
    }
}

/// Whether another round may find more to do at once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    Nothing,
    /// A queue was served as long as it may be in one turn.
    Possible,
}

impl Device {
    pub(crate) fn new(config: EmulatorConfig) -> Result<Self, EmulatorError> {
        let cache = if config.has_write_cache() { Toggle::On } else { Toggle::Off };
        let namespaces: Result<Vec<Namespace>, EmulatorError> =
            config.namespaces.iter().map(|namespace| Namespace::new(namespace, cache)).collect();
        let mut storage = Storage::new(namespaces?, config.oncs, cache);
        storage.transfer_bytes_max = transfer_bytes_max(&config);
        let flight = Flight::new(&config.latency);
        // Commands that take time, or whose identifiers are looked at, are not trivial.
        if !flight.has_latency() && !config.cid_below_depth.is_on() {
            storage.shortcuts = Toggle::On;
        }
        storage.refresh_trivial();
        Ok(Self {
            registers: Registers::new(&config),
            sqs: std::iter::repeat_with(|| None).take(usize::from(config.submission_queues) + 1).collect(),
            cqs: std::iter::repeat_with(|| None).take(usize::from(config.completion_queues) + 1).collect(),
            live: Vec::new(),
            flight,
            put_off: Vec::new(),
            storage,
            shadow: None,
            admin: Admin::new(&config, cache),
            tally: Tally::new(),
            mastering: BusMastering::Off,
            vectors: std::iter::repeat_with(|| None).take(usize::from(config.vectors)).collect(),
            armed_vectors: 0,
            generation: 0,
            lost: Vec::new(),
            has_backlog: false,
            has_held: false,
            is_removed: false,
            bus_events: VecDeque::new(),
            config,
        })
    }

    /// Takes and completes commands, `budget` at most. Answers how many it was.
    pub(crate) fn step(&mut self, step: &Step<'_>, budget: usize) -> usize {
        let mut done = 0;
        if !step.window.watch.is_quiet(step.dma.generation()) {
            let Some(completed) = self.attend(step, budget) else { return 0 };
            done = completed;
        }
        while done < budget {
            let (taken, rest) = self.go_round(step, budget - done);
            done += taken;
            if rest == Rest::Nothing {
                break;
            }
        }
        if !self.put_off.is_empty() && self.registers.is_processing() {
            self.complete_put_off(step);
        }
        if self.armed_vectors > 0 {
            self.raise_interrupts();
        }
        if self.has_backlog {
            step.window.watch.disturb();
        } else if !step.window.watch.is_quiet(step.dma.generation()) {
            self.settle(step);
        }
        done
    }

    /// Does everything that is not announced by a doorbell. `None`: the controller does nothing.
    #[inline(never)]
    fn attend(&mut self, step: &Step<'_>, budget: usize) -> Option<usize> {
        if self.is_removed {
            return None;
        }
        if self.registers.has_timer() {
            self.registers.advance(step.clock.now());
        }
        if self.registers.is_processing() && step.dma.generation() != self.generation {
            self.look_for_lost_queues(step);
            self.refresh_shadow(step.dma);
        }
        if !self.registers.is_processing() {
            return None;
        }
        let mut done = self.release_held(step);
        if !self.flight.is_empty() {
            done += self.complete_due(step, budget);
        }
        Some(done + self.deliver_events(step))
    }

    /// Notes whether only a doorbell can make the controller move from now on.
    #[inline(never)]
    fn settle(&mut self, step: &Step<'_>) {
        let is_quiet = self.registers.is_processing()
            && !self.registers.has_timer()
            && !self.has_held
            && self.flight.is_empty()
            && self.put_off.is_empty()
            && self.admin.events.is_silent()
            && self.shadow.is_none()
            && step.dma.is_master();
        if is_quiet {
            step.window.watch.settle(step.dma.generation());
        }
    }

    /// Tells the watch which submission queues there are. To be called whenever one comes or goes.
    pub(crate) fn watch_queues(&mut self, window: &Window) {
        let Self { live, sqs, cqs, .. } = self;
        for (turn, queue) in live.iter().enumerate() {
            if let Some(sq) = sq_mut(sqs, *queue) {
                sq.turn = turn;
            }
        }
        let words = |queue: &QueueId| {
            let (sq, cq) = pair(sqs, cqs, *queue)?;
            Some((sq.bell.word(), cq.bell.word()))
        };
        window.watch(live.iter().filter_map(words));
        self.has_backlog = true;
    }

    /// Reports queues whose memory was unmapped while they exist, also those that are idle: a real device
    /// would write there sooner or later.
    #[cold]
    fn look_for_lost_queues(&mut self, step: &Step<'_>) {
        self.generation = step.dma.generation();
        let sqs = self.sqs.iter().flatten().map(|sq| (sq.id, sq.ring.is_mapped(step.dma)));
        let cqs = self.cqs.iter().flatten().map(|cq| (cq.id, cq.ring.is_mapped(step.dma)));
        let mut lost: Vec<QueueId> =
            sqs.chain(cqs).filter(|(_, is_there)| !is_there).map(|(id, _)| id).collect();
        lost.sort_unstable();
        lost.dedup();
        for queue in lost {
            if !self.lost.contains(&queue) {
                self.tally.violations.add(Violation::QueueUnmapped { queue });
                self.lost.push(queue);
            }
        }
    }

    /// Serves each submission queue once, starting where the last round ended.
    fn go_round(&mut self, step: &Step<'_>, budget: usize) -> (usize, Rest) {
        let (mut done, mut rest) = (0, Rest::Nothing);
        let watch = &step.window.watch;
        // With shadows there is more to look at than the registers.
        let looks_everywhere = std::mem::take(&mut self.has_backlog) || self.shadow.is_some();
        for round in 1..=self.live.len() {
            // A command may have deleted queues meanwhile.
            let turn = if watch.first() < self.live.len() { watch.first() } else { 0 };
            watch.begin_at(if turn + 1 == self.live.len() { 0 } else { turn + 1 });
            if !looks_everywhere && watch.spots().get(turn).is_some_and(Spot::is_still) {
                continue;
            }
            let Some(queue) = self.live.get(turn).copied() else { break };
            let burst = BURST.min(budget - done);
            let taken = if queue == QueueId::ADMIN {
                self.serve_admin(step, burst)
            } else {
                self.serve(step, queue, burst)
            };
            done += taken;
            if taken == burst {
                rest = Rest::Possible;
            }
            if done >= budget || !self.registers.is_processing() {
                // Whose turn did not come may have been left with commands.
                self.has_backlog |= looks_everywhere && round < self.live.len();
                return (done, Rest::Nothing);
            }
        }
        (done, rest)
    }

    /// Completes what is due by now.
    fn complete_due(&mut self, step: &Step<'_>, budget: usize) -> usize {
        let now = step.clock.now();
        let mut done = 0;
        while done < budget && self.registers.is_processing() {
            let Some(parked) = self.flight.take_due(now) else { break };
            self.complete_parked(step, &parked);
            done += 1;
        }
        done
    }

    /// When something will happen by itself next.
    pub(crate) fn next_due(&mut self) -> Option<Nanos> {
        if self.is_removed {
            return None;
        }
        let flight = if self.registers.is_processing() { self.flight.next_due() } else { None };
        [self.registers.next_due(), flight].into_iter().flatten().min()
    }

    /// Reads a register, as the host does.
    pub(crate) fn read_register(
        &mut self,
        offset: u32,
        now: Nanos,
        window: &Window,
        faults: FaultView<'_>,
    ) -> u32 {
        self.apply_register_fault(faults.on_register(Point::RegisterRead, offset), window);
        if self.is_removed {
            return doorbell_spec::register::ALL_ONES;
        }
        self.registers.advance(now);
        self.registers.read(offset)
    }

    /// Writes a register, as the host does.
    pub(crate) fn write_register(
        &mut self,
        offset: u32,
        value: u32,
        now: Nanos,
        window: &Window,
        faults: FaultView<'_>,
    ) {
        self.apply_register_fault(faults.on_register(Point::RegisterWrite, offset), window);
        if self.is_removed {
            return;
        }
        self.registers.advance(now);
        match self.registers.write(offset, value, now, &mut self.tally) {
            Effect::None => {}
            Effect::Reset => self.reset_controller(window),
            Effect::Enabled => {
                self.start(window);
                self.apply_register_fault(faults.on_register(Point::Enable, offset), window);
            }
            Effect::Shutdown => {
                if self.storage.flush_all().is_err() {
                    self.registers.fail("the flush of an orderly shutdown failed");
                }
            }
        }
    }

    fn apply_register_fault(&mut self, action: Option<Action>, window: &Window) {
        match action {
            Some(Action::AllOnes) => self.remove(window),
            Some(Action::Fatal) => self.registers.fail("fault plan"),
            Some(Action::NeverReady) => self.registers.stall(),
            Some(Action::Delay(time)) => self.registers.delay(time),
            _ => {}
        }
    }

    /// A controller reset: every queue and command is gone (NVMe Base 2.0, 3.7.2).
    pub(crate) fn reset_controller(&mut self, window: &Window) {
        for queue in std::mem::take(&mut self.live) {
            self.delete_sq(queue, window);
        }
        for index in 0..self.cqs.len() {
            if let Some(cq) = self.cqs[index].take() {
                window.clear(cq.bell.word());
            }
        }
        self.watch_queues(window);
        self.has_held = false;
        self.lost.clear();
        self.forget_shadow();
        self.flight.clear();
        self.put_off.clear();
        self.admin.reset(&self.config);
    }

    /// A function reset: a controller reset that leaves no register as it was.
    pub(crate) fn reset_function(&mut self, window: &Window) {
        self.reset_controller(window);
        self.registers.reset_function();
    }

    /// The device is pulled out.
    pub(crate) fn remove(&mut self, window: &Window) {
        if !self.is_removed {
            self.reset_controller(window);
            self.is_removed = true;
            self.bus_events.push_back(BusEvent::Removed);
        }
    }

    /// Fails (CSTS.CFS): nothing is processed until the next reset.
    #[cold]
    pub(crate) fn fail(&mut self, why: &'static str) {
        self.registers.fail(why);
    }

    pub(crate) fn report(&self, faults: crate::iova::access::AccessFaults) -> Report {
        let event_requests = self.admin.events.outstanding() as u64;
        Report {
            outstanding: (self.flight.len() + self.put_off.len()) as u64 + event_requests,
            event_requests,
            fatal: self.registers.fatal,
            shadowed_rings: self.shadowed_rings(),
            ..self.tally.report(faults)
        }
    }
}

/// MDTS in bytes; the unit is the smallest page (NVMe Base 2.0, 5.17.2.1).
fn transfer_bytes_max(config: &EmulatorConfig) -> usize {
    if config.mdts == 0 {
        return usize::MAX;
    }
    let power = u32::from(config.mdts) + u32::from(config.page_min) + 12;
    if power >= usize::BITS { usize::MAX } else { 1 << power }
}

/// So many commands of one queue are taken before the next queue's turn.
pub(crate) const BURST: usize = 32;
