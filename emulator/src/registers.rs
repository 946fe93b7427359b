//! The register file and the life of the controller: disabled, enabling, ready, shut down, failed
//! (NVMe Base 2.0, 3.1.3, 3.5 and 3.6).
//!
//! Time passes lazily: every access and every step first moves the state to the present.

use std::time::Duration;

use doorbell_spec::Nanos;
use doorbell_spec::register::{
    self, ACQ, AQA, ASQ, Aqa, CAP, CC, CRTO, CSTS, Cap, Cc, Crto, Csts, INTMC, INTMS, NSSR, VS, Version,
};

use crate::config::{EmulatorConfig, Progress};
use crate::report::{Tally, Violation};

/// The registers of one controller.
pub(crate) struct Registers {
    pub(crate) cap: Cap,
    crto: Crto,
    interrupt_mask: u32,
    pub(crate) cc: Cc,
    aqa: Aqa,
    asq: u64,
    acq: u64,
    state: State,
    shutdown: Shutdown,
    subsystem_reset_occurred: bool,
    /// Nothing is processed until then: a fault.
    paused_until: Option<Nanos>,
    pub(crate) fatal: Option<&'static str>,
    ready: Progress,
    disable_delay: Duration,
    shutdown_time: Progress,
    /// What `state`, `shutdown` and `fatal` come to, kept for the hot path by `settle`.
    is_processing: bool,
    has_timer: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Disabled,
    /// Ready at that time, or never.
    Enabling(Option<Nanos>),
    Ready,
    /// No longer ready at that time.
    Disabling(Nanos),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shutdown {
    None,
    /// Complete at that time, or never.
    Occurring(Option<Nanos>),
    Complete,
}

/// What a write means for the rest of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing.
    None,
    /// CC.EN went from 0 to 1, with an acceptable configuration.
    Enabled,
    /// A controller reset: everything stops at once.
    Reset,
    /// A normal shutdown was notified.
    Shutdown,
}

/// What the admin queues are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdminRings {
    pub(crate) sq_entries: u32,
    pub(crate) sq_base: u64,
    pub(crate) cq_entries: u32,
    pub(crate) cq_base: u64,
}

impl Registers {
    pub(crate) fn new(config: &EmulatorConfig) -> Self {
        let timeout = config.timeout_500ms;
        let cap = Cap::new()
            .with_mqes_z(config.mqes_z)
            .with_contiguous_queues(config.contiguous_queues.is_on())
            .with_timeout_500ms(timeout)
            .with_doorbell_stride(config.stride)
            .with_subsystem_reset(config.subsystem_reset.is_on())
            .with_command_sets(1)
            .with_page_min(config.page_min)
            .with_page_max(config.page_max)
            .with_ready_with_media(true);
        let crto = Crto::new().with_with_media_500ms(config.crto_500ms.unwrap_or(u16::from(timeout)));
        Self {
            cap,
            crto,
            interrupt_mask: 0,
            cc: Cc::new(),
            aqa: Aqa::new(),
            asq: 0,
            acq: 0,
            state: State::Disabled,
            shutdown: Shutdown::None,
            subsystem_reset_occurred: false,
            paused_until: None,
            fatal: None,
            ready: config.ready,
            disable_delay: config.disable_delay,
            shutdown_time: config.shutdown,
            is_processing: false,
            has_timer: false,
        }
    }

    /// Every change of the state ends with this.
    fn settle(&mut self) {
        self.is_processing = self.state == State::Ready
            && self.fatal.is_none()
            && self.shutdown != Shutdown::Complete
            && self.paused_until.is_none();
        self.has_timer = self.next_due().is_some();
    }

    /// Whether time alone will change the state.
    #[inline]
    pub(crate) fn has_timer(&self) -> bool {
        self.has_timer
    }

    /// Back to how a function reset leaves them: everything at its default.
    pub(crate) fn reset_function(&mut self) {
        self.cc = Cc::new();
        (self.aqa, self.asq, self.acq, self.interrupt_mask) = (Aqa::new(), 0, 0, 0);
        (self.state, self.shutdown, self.fatal) = (State::Disabled, Shutdown::None, None);
        (self.subsystem_reset_occurred, self.paused_until) = (false, None);
        self.settle();
    }

    /// Moves the state to the present.
    pub(crate) fn advance(&mut self, now: Nanos) {
        match self.state {
            State::Enabling(Some(due)) if due <= now && self.fatal.is_none() => self.state = State::Ready,
            State::Disabling(due) if due <= now => self.state = State::Disabled,
            _ => {}
        }
        self.paused_until = self.paused_until.filter(|until| *until > now);
        if matches!(self.shutdown, Shutdown::Occurring(Some(due)) if due <= now) {
            self.shutdown = Shutdown::Complete;
        }
        self.settle();
    }

    /// When the state will move by itself next.
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        let state = match self.state {
            State::Enabling(due) if self.fatal.is_none() => due,
            State::Disabling(due) => Some(due),
            _ => None,
        };
        let shutdown = match self.shutdown {
            Shutdown::Occurring(due) => due,
            _ => None,
        };
        [state, shutdown, self.paused_until].into_iter().flatten().min()
    }

    /// Whether commands are processed now.
    #[inline]
    pub(crate) fn is_processing(&self) -> bool {
        self.is_processing
    }

    /// Fails for good, until the next reset.
    pub(crate) fn fail(&mut self, why: &'static str) {
        if self.fatal.is_none() {
            tracing::warn!(why, "the controller has failed (CSTS.CFS)");
            self.fatal = Some(why);
        }
        self.settle();
    }

    /// Processes nothing until then: a fault.
    pub(crate) fn pause(&mut self, until: Nanos) {
        self.paused_until = Some(until);
        self.settle();
    }

    /// Never becomes ready, though it was enabled: a fault.
    pub(crate) fn stall(&mut self) {
        if matches!(self.state, State::Enabling(_)) {
            self.state = State::Enabling(None);
        }
        self.settle();
    }

    /// Becomes ready so much later: a fault.
    pub(crate) fn delay(&mut self, time: Duration) {
        if let State::Enabling(Some(due)) = self.state {
            self.state = State::Enabling(Some(due.after(time)));
        }
        self.settle();
    }

    /// The dword at an offset; 0 where nothing is defined.
    pub(crate) fn read(&self, offset: u32) -> u32 {
        match offset {
            CAP => low(self.cap.into_bits()),
            0x04 => high(self.cap.into_bits()),
            VS => Version::new().with_major(2).into_bits(),
            INTMS | INTMC => self.interrupt_mask,
            CC => self.cc.into_bits(),
            CSTS => self.csts().into_bits(),
            AQA => self.aqa.into_bits(),
            ASQ => low(self.asq),
            0x2c => high(self.asq),
            ACQ => low(self.acq),
            0x34 => high(self.acq),
            CRTO => self.crto.into_bits(),
            _ => 0,
        }
    }

    fn csts(&self) -> Csts {
        let status = match self.shutdown {
            Shutdown::None => 0,
            Shutdown::Occurring(_) => Csts::SHUTDOWN_OCCURRING,
            Shutdown::Complete => Csts::SHUTDOWN_COMPLETE,
        };
        Csts::new()
            .with_ready(matches!(self.state, State::Ready | State::Disabling(_)))
            .with_fatal(self.fatal.is_some())
            .with_shutdown_status(status)
            .with_subsystem_reset_occurred(self.subsystem_reset_occurred)
    }

    /// Writes the dword at an offset.
    pub(crate) fn write(&mut self, offset: u32, value: u32, now: Nanos, tally: &mut Tally) -> Effect {
        match offset {
            INTMS => self.interrupt_mask |= value,
            INTMC => self.interrupt_mask &= !value,
            CC => {
                let effect = self.write_cc(Cc::from_bits(value), now, tally);
                self.settle();
                return effect;
            }
            // NSSRO is cleared by writing 1 to it; the rest of CSTS cannot be written.
            CSTS if Csts::from_bits(value).subsystem_reset_occurred() => {
                self.subsystem_reset_occurred = false
            }
            NSSR if self.cap.subsystem_reset() && value == SUBSYSTEM_RESET => {
                self.reset_function();
                self.subsystem_reset_occurred = true;
                return Effect::Reset;
            }
            AQA | ASQ | 0x2c | ACQ | 0x34 if !self.cc.enable() => match offset {
                AQA => self.aqa = Aqa::from_bits(value & 0x0fff_0fff),
                ASQ => self.asq = self.asq & !LOW | u64::from(value),
                0x2c => self.asq = self.asq & LOW | u64::from(value) << 32,
                ACQ => self.acq = self.acq & !LOW | u64::from(value),
                _ => self.acq = self.acq & LOW | u64::from(value) << 32,
            },
            _ => tally.violations.add(Violation::RegisterWrite { offset, value }),
        }
        Effect::None
    }

    fn write_cc(&mut self, cc: Cc, now: Nanos, tally: &mut Tally) -> Effect {
        let before = self.cc;
        self.cc = cc;
        if cc.shutdown() != 0 && before.shutdown() != cc.shutdown() {
            self.shutdown = Shutdown::Occurring(due(self.shutdown_time, now));
        }
        if before.enable() && !cc.enable() {
            return self.disable(now);
        }
        if !before.enable() && cc.enable() {
            return self.enable(now, tally);
        }
        let frozen = |cc: Cc| (cc.command_set(), cc.page(), cc.arbitration());
        if cc.enable() && frozen(before) != frozen(cc) {
            // The page size that is in force stays what it was.
            self.cc = cc
                .with_command_set(before.command_set())
                .with_page(before.page())
                .with_arbitration(before.arbitration());
            tally.violations.add(Violation::RegisterWrite { offset: CC, value: cc.into_bits() });
        }
        if cc.shutdown() == register::Shutdown::Normal as u8 && before.shutdown() != cc.shutdown() {
            return Effect::Shutdown;
        }
        Effect::None
    }

    fn disable(&mut self, now: Nanos) -> Effect {
        let was_ready = self.state == State::Ready;
        (self.fatal, self.paused_until) = (None, None);
        self.shutdown = Shutdown::None;
        // Nothing is accessed any more from here on; readiness may take its time to fall.
        self.state = if was_ready && !self.disable_delay.is_zero() {
            State::Disabling(now.after(self.disable_delay))
        } else {
            State::Disabled
        };
        Effect::Reset
    }

    fn enable(&mut self, now: Nanos, tally: &mut Tally) -> Effect {
        self.shutdown = Shutdown::None;
        self.state = State::Enabling(due(self.ready, now));
        if let Some(what) = self.bad_configuration() {
            tally.violations.add(Violation::BadConfiguration { what });
            self.fail("enabled with a configuration that the controller cannot have");
            return Effect::None;
        }
        tally.enables += 1;
        Effect::Enabled
    }

    fn bad_configuration(&self) -> Option<&'static str> {
        let page = u64::from(self.cc.page());
        let misaligned = |base: u64| !base.is_multiple_of(4096 << page);
        if self.cc.command_set() != 0 {
            return Some("a command set that CAP.CSS does not offer");
        }
        if self.cc.arbitration() != 0 {
            return Some("an arbitration mechanism that CAP.AMS does not offer");
        }
        if !(self.cap.page_min()..=self.cap.page_max()).contains(&self.cc.page()) {
            return Some("a page size outside of CAP.MPSMIN to CAP.MPSMAX");
        }
        if self.aqa.submission_entries_z() == 0 || self.aqa.completion_entries_z() == 0 {
            return Some("an admin queue of one entry");
        }
        if misaligned(self.asq) || misaligned(self.acq) {
            return Some("an admin queue that is not aligned to a page");
        }
        None
    }

    /// The admin queues as AQA, ASQ and ACQ describe them.
    pub(crate) fn admin_rings(&self) -> AdminRings {
        AdminRings {
            sq_entries: u32::from(self.aqa.submission_entries_z()) + 1,
            sq_base: self.asq,
            cq_entries: u32::from(self.aqa.completion_entries_z()) + 1,
            cq_base: self.acq,
        }
    }

    /// The page size of CC.MPS in bytes.
    pub(crate) fn page_bytes(&self) -> usize {
        4096 << self.cc.page()
    }
}

fn due(progress: Progress, now: Nanos) -> Option<Nanos> {
    match progress {
        Progress::After(time) => Some(now.after(time)),
        Progress::Never => None,
    }
}

#[expect(clippy::cast_possible_truncation)]
fn low(value: u64) -> u32 {
    value as u32
}

fn high(value: u64) -> u32 {
    low(value >> 32)
}

const LOW: u64 = 0xffff_ffff;
/// "NVMe": what NSSR must be written with (NVMe Base 2.0, 3.1.3.7).
const SUBSYSTEM_RESET: u32 = 0x4e56_4d65;
