//! What a run came to: everything that the text and the JSON are made from.

use std::time::Duration;

use super::job::{Cpu, End, JobReport};
use super::lane::Remains;
use super::live::Control;
use super::offsets::Direction;
use super::plan::Plan;
use super::tally::{Failure, Tally};
use super::watch::Samples;
use crate::calendar::Moment;
use crate::memory::Memory;
use crate::target::namespace_text;

/// The outcome of all jobs together.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) tally: Tally,
    /// Of the measured part: the longest of all jobs.
    pub(crate) elapsed: Duration,
    pub(crate) devices: Vec<DeviceOutcome>,
    pub(crate) cpu: Cpu,
    pub(crate) samples: Samples,
    pub(crate) ended_at: Moment,
    pub(crate) is_interrupted: bool,
    /// Sentences about what went wrong. A run without any is a good one.
    pub(crate) problems: Vec<String>,
    pub(crate) unanswered: u64,
    /// fio's `error`: 0, or the number of the error that comes closest.
    pub(crate) error: u32,
}

/// What concerns one device.
#[derive(Debug)]
pub(crate) struct DeviceOutcome {
    pub(crate) target: String,
    pub(crate) model: String,
    pub(crate) namespace: String,
    pub(crate) nsid: u32,
    pub(crate) block_bytes: u32,
    pub(crate) commands: u64,
    pub(crate) submission_doorbells: u64,
    pub(crate) completion_doorbells: u64,
    /// Whether the controller has shadow doorbells, and the moves that needed no register because of them.
    pub(crate) has_shadow_doorbells: bool,
    pub(crate) submission_doorbells_saved: u64,
    pub(crate) completion_doorbells_saved: u64,
    pub(crate) queue_pairs: u32,
    pub(crate) unanswered: u64,
    pub(crate) memory: Memory,
}

impl Outcome {
    /// Adds the reports of all jobs up.
    pub(crate) fn of(plan: &Plan, reports: Vec<JobReport>, samples: Samples, control: &Control) -> Self {
        let mut tally = Tally::new();
        let mut cpu = Cpu::default();
        let mut elapsed_ns = 0;
        let mut devices: Vec<_> = plan.devices.iter().map(DeviceOutcome::of).collect();
        let mut unanswered = 0;
        let mut problems = Vec::new();
        let mut error = 0;
        for report in &reports {
            tally.add(&report.tally);
            cpu.add(&report.cpu);
            elapsed_ns = elapsed_ns.max(report.elapsed_ns);
            for (device, remains) in devices.iter_mut().zip(&report.remains) {
                device.add(remains);
                unanswered += remains.unanswered;
            }
            if let End::Refused(refusal) = report.end {
                let sentence = format!("the driver took no more requests: {refusal}");
                if !problems.contains(&sentence) {
                    problems.push(sentence);
                }
                error = ERROR_IO;
            }
        }
        if reports.iter().any(|report| report.end == End::Stalled) {
            let silent = devices.iter().filter(|device| device.unanswered > 0);
            problems.extend(silent.map(|device| stalled(plan, device)));
            error = ERROR_TIMED_OUT;
        }
        if tally.failures.total() > 0 {
            problems.extend(tally.failures.reasons().iter().map(failure_text));
            error = ERROR_IO;
        }
        Self {
            tally,
            elapsed: Duration::from_nanos(elapsed_ns),
            devices,
            cpu,
            samples,
            ended_at: Moment::now(),
            is_interrupted: control.is_interrupted(),
            problems,
            unanswered,
            error,
        }
    }

    /// I/Os that are part of the result.
    pub(crate) fn total_ios(&self) -> u64 {
        self.tally.read.count() + self.tally.write.count()
    }

    /// I/Os per second of a direction.
    #[expect(clippy::cast_precision_loss)]
    pub(crate) fn iops(&self, direction: Direction) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.tally.of(direction).count() as f64 / seconds } else { 0.0 }
    }

    /// How often a doorbell register was rung for each I/O, of both kinds.
    #[expect(clippy::cast_precision_loss)]
    pub(crate) fn doorbells_per_io(&self) -> (f64, f64) {
        let counted = self.total_ios() + self.tally.ramp_reads + self.tally.ramp_writes;
        let ios = counted + self.tally.failures.total() + self.unanswered;
        let sum = |of: fn(&DeviceOutcome) -> u64| self.devices.iter().map(of).sum::<u64>() as f64;
        if ios == 0 {
            return (0.0, 0.0);
        }
        let submissions = sum(|device| device.submission_doorbells) / ios as f64;
        (submissions, sum(|device| device.completion_doorbells) / ios as f64)
    }

    /// How many of 100 rings the shadow doorbells saved; `None` if there are no such.
    #[expect(clippy::cast_precision_loss)]
    pub(crate) fn doorbells_saved_percent(&self) -> Option<f64> {
        let devices = || self.devices.iter().filter(|device| device.has_shadow_doorbells);
        let saved: u64 =
            devices().map(|it| it.submission_doorbells_saved + it.completion_doorbells_saved).sum();
        let rung: u64 = devices().map(|it| it.submission_doorbells + it.completion_doorbells).sum();
        (saved + rung > 0).then(|| saved as f64 * 100.0 / (saved + rung) as f64)
    }

    /// User and system time of the jobs, in percent of the time that they ran: ramp and end included.
    pub(crate) fn cpu_percent(&self) -> (f64, f64) {
        let seconds = self.cpu.wall_seconds;
        if seconds <= 0.0 {
            return (0.0, 0.0);
        }
        (self.cpu.user_seconds * 100.0 / seconds, self.cpu.system_seconds * 100.0 / seconds)
    }
}

impl DeviceOutcome {
    fn of(device: &super::plan::Device) -> Self {
        let opened = &device.opened;
        Self {
            target: opened.target.to_string(),
            model: opened.controller.names().model,
            namespace: namespace_text(&opened.namespace),
            nsid: opened.namespace.nsid().0,
            block_bytes: opened.namespace.block_bytes(),
            commands: 0,
            submission_doorbells: 0,
            completion_doorbells: 0,
            has_shadow_doorbells: opened.controller.has_shadow_doorbells(),
            submission_doorbells_saved: 0,
            completion_doorbells_saved: 0,
            queue_pairs: 0,
            unanswered: 0,
            memory: device.memory.clone(),
        }
    }

    fn add(&mut self, remains: &Remains) {
        self.commands += remains.stats.commands;
        self.submission_doorbells += remains.stats.submission_doorbells;
        self.completion_doorbells += remains.stats.completion_doorbells;
        self.submission_doorbells_saved += remains.stats.submission_doorbells_saved;
        self.completion_doorbells_saved += remains.stats.completion_doorbells_saved;
        self.queue_pairs += 1;
        self.unanswered += remains.unanswered;
    }
}

fn stalled(plan: &Plan, device: &DeviceOutcome) -> String {
    let DeviceOutcome { target, unanswered, .. } = device;
    format!(
        "{target} completed nothing for {}: {unanswered} I/Os are outstanding and are not counted; if it is \
         only slow, use a longer --io_timeout",
        crate::units::duration_text(plan.options.io_timeout)
    )
}

/// One reason for failures, as a sentence.
fn failure_text(failure: &Failure) -> String {
    let (one, many) = match failure.direction {
        Direction::Read => ("read", "reads"),
        Direction::Write => ("write", "writes"),
    };
    match failure.count {
        1 => format!("1 {one} failed: {}", failure.error),
        count => format!("{count} {many} failed, the first with: {}", failure.error),
    }
}

/// EIO.
const ERROR_IO: u32 = 5;
/// ETIMEDOUT.
const ERROR_TIMED_OUT: u32 = 110;
