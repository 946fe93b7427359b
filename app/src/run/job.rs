//! A job: one thread, pinned to a core, that keeps its queue pairs full until the run is over.
//!
//! The loop makes no system call and allocates nothing: queues, buffers and histograms exist before it
//! starts, and the clock is read once for each poll that found something (and every 64th that did not).

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use core_affinity::CoreId;
use doorbell::{Clock, SubmitError};
use nix::sys::resource::{UsageWho, getrusage};

use super::lane::{Lane, Part, Remains};
use super::live::{Control, Live};
use super::tally::Tally;

/// A job that is ready to run.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) lanes: Vec<Lane>,
    pub(crate) limits: Limits,
    pub(crate) core: Option<CoreId>,
    pub(crate) live: Arc<Live>,
    pub(crate) control: Arc<Control>,
    pub(crate) clock: Clock,
}

/// When a job ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) ramp: Duration,
    /// Of the measured part.
    pub(crate) runtime: Option<Duration>,
    /// I/Os of the measured part.
    pub(crate) number_ios: Option<u64>,
    pub(crate) io_timeout: Duration,
    pub(crate) on_error: OnError,
    pub(crate) idling: Idling,
}

/// What a failed I/O means for the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnError {
    Stop,
    Continue,
}

/// What a job does while it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idling {
    /// It polls on.
    Spin,
    /// It lets others run now and then: there are more spinning threads than cores.
    Yield,
}

/// What a job came to.
#[derive(Debug)]
pub(crate) struct JobReport {
    pub(crate) tally: Tally,
    /// From the start of the measured part to the last completion.
    pub(crate) elapsed_ns: u64,
    /// One for each device.
    pub(crate) remains: Vec<Remains>,
    pub(crate) cpu: Cpu,
    pub(crate) end: End,
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Everything that was submitted completed.
    Finished,
    /// The device completed nothing for too long.
    Stalled,
    /// The driver took no more requests.
    Refused(SubmitError),
}

/// Processor time and what the system did for a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cpu {
    /// How long the thread has run or could have run: the sum of all threads.
    pub(crate) wall_seconds: f64,
    pub(crate) user_seconds: f64,
    pub(crate) system_seconds: f64,
    pub(crate) context_switches: u64,
    pub(crate) major_faults: u64,
    pub(crate) minor_faults: u64,
}

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Ramp,
    Measured,
    /// Nothing more is submitted.
    Draining,
}

/// The state of the loop.
struct Course {
    phase: Phase,
    measured_from: u64,
    /// The end of the current phase.
    until: u64,
    /// I/Os that may still be submitted.
    quota: u64,
    /// When something completed last.
    progress_at: u64,
    end: End,
}

impl Job {
    /// Runs to the end. All jobs start together.
    pub(crate) fn run(mut self, start: &Barrier) -> JobReport {
        if let Some(core) = self.core {
            // A job that could not be pinned runs all the same.
            core_affinity::set_for_current(core);
        }
        let mut tally = Tally::new();
        start.wait();
        let (cpu_before, begun) = (Cpu::of_thread(), Instant::now());
        let course = self.drive(&mut tally);
        let wall_seconds = begun.elapsed().as_secs_f64();
        let cpu = Cpu { wall_seconds, ..Cpu::of_thread().since(cpu_before) };
        let remains = self.lanes.into_iter().map(|lane| lane.close(&mut tally)).collect();
        self.live.publish(tally.read.count(), tally.write.count());
        let elapsed_ns = course.progress_at.saturating_sub(course.measured_from);
        JobReport { tally, elapsed_ns, remains, cpu, end: course.end }
    }

    fn drive(&mut self, tally: &mut Tally) -> Course {
        let mut course = Course::begin(&self.limits, self.clock.now().0);
        let mut empty_turns = 0u32;
        loop {
            let reaped = self.turn(&mut course, tally);
            if course.phase == Phase::Draining && self.lanes.iter().all(|lane| lane.in_flight() == 0) {
                if reaped > 0 {
                    course.progress_at = self.clock.now().0;
                }
                return course;
            }
            if reaped == 0 {
                empty_turns = empty_turns.wrapping_add(1);
                if !empty_turns.is_multiple_of(EMPTY_TURNS_PER_LOOK) {
                    continue;
                }
                if self.limits.idling == Idling::Yield {
                    std::thread::yield_now();
                }
            }
            let now = self.clock.now().0;
            if reaped > 0 {
                course.progress_at = now;
                self.live.publish(tally.read.count(), tally.write.count());
            } else if now.saturating_sub(course.progress_at) > nanos(self.limits.io_timeout) {
                course.end = End::Stalled;
                self.control.halt();
                return course;
            }
            self.steer(&mut course, now, tally);
        }
    }

    /// Reaps and refills every lane once.
    #[inline]
    fn turn(&mut self, course: &mut Course, tally: &mut Tally) -> usize {
        let mut reaped = 0;
        for lane in &mut self.lanes {
            reaped += lane.reap(tally);
            let outcome = match course.phase {
                Phase::Ramp => lane.refill(Part::Ramp, u64::MAX, tally),
                Phase::Measured => {
                    lane.refill(Part::Measured, course.quota, tally).inspect(|count| course.quota -= count)
                }
                Phase::Draining => continue,
            };
            if let Err(error) = outcome {
                course.end = End::Refused(error);
                course.phase = Phase::Draining;
                self.control.halt();
            }
        }
        if course.quota == 0 {
            course.phase = Phase::Draining;
        }
        reaped
    }

    /// Goes on to the next phase when it is time.
    #[inline]
    fn steer(&self, course: &mut Course, now: u64, tally: &Tally) {
        if course.phase == Phase::Ramp && now >= course.until {
            course.measure(&self.limits, now);
        } else if course.phase == Phase::Measured && now >= course.until {
            course.phase = Phase::Draining;
        }
        if self.limits.on_error == OnError::Stop && !tally.failures.reasons().is_empty() {
            self.control.halt();
        }
        if self.control.is_over() {
            course.phase = Phase::Draining;
        }
    }
}

impl Course {
    fn begin(limits: &Limits, now: u64) -> Self {
        let mut course = Self {
            phase: Phase::Ramp,
            measured_from: now,
            until: now.saturating_add(nanos(limits.ramp)),
            quota: limits.number_ios.unwrap_or(u64::MAX),
            progress_at: now,
            end: End::Finished,
        };
        if limits.ramp.is_zero() {
            course.measure(limits, now);
        }
        course
    }

    fn measure(&mut self, limits: &Limits, now: u64) {
        self.phase = Phase::Measured;
        self.measured_from = now;
        self.until = limits.runtime.map_or(u64::MAX, |runtime| now.saturating_add(nanos(runtime)));
    }
}

impl Cpu {
    /// What the calling thread has used so far; nothing if the system does not say.
    fn of_thread() -> Self {
        let Ok(usage) = getrusage(UsageWho::RUSAGE_THREAD) else { return Self::default() };
        let count = |value: i64| u64::try_from(value).unwrap_or(0);
        #[expect(clippy::cast_precision_loss)]
        let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        Self {
            wall_seconds: 0.0,
            user_seconds: seconds(usage.user_time()),
            system_seconds: seconds(usage.system_time()),
            context_switches: count(
                usage.voluntary_context_switches() + usage.involuntary_context_switches(),
            ),
            major_faults: count(usage.major_page_faults()),
            minor_faults: count(usage.minor_page_faults()),
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            wall_seconds: self.wall_seconds - before.wall_seconds,
            user_seconds: self.user_seconds - before.user_seconds,
            system_seconds: self.system_seconds - before.system_seconds,
            context_switches: self.context_switches - before.context_switches,
            major_faults: self.major_faults - before.major_faults,
            minor_faults: self.minor_faults - before.minor_faults,
        }
    }

    /// Adds what another thread has used.
    pub(crate) fn add(&mut self, other: &Self) {
        self.wall_seconds += other.wall_seconds;
        self.user_seconds += other.user_seconds;
        self.system_seconds += other.system_seconds;
        self.context_switches += other.context_switches;
        self.major_faults += other.major_faults;
        self.minor_faults += other.minor_faults;
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Turns that found nothing between two looks at the clock.
const EMPTY_TURNS_PER_LOOK: u32 = 64;
