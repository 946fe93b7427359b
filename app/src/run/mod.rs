//! `nvme-perf run`: measures what devices do under a load.
//!
//! ```text
//!   options ── plan ── job (thread) ── lane (queue pair) ── tally ──▶ outcome ── text, JSON
//!                         └── live counters ──▶ watch (samples, progress line)
//! ```
//!
//! Invariant: an I/O is counted exactly if the device said that it completed. `total_ios`, the I/Os of the
//! ramp time and the failed ones are together what the devices were asked for.

mod job;
mod json;
mod lane;
mod live;
mod offsets;
mod options;
mod outcome;
mod picture;
mod plan;
mod tables;
mod tally;
mod text;
mod watch;

use std::sync::{Arc, Barrier, mpsc};

use anyhow::Context;
use core_affinity::CoreId;
use doorbell::{Clock, QueueConfig};

use crate::failure::reported;
use crate::interrupt::Interrupt;
use crate::output::{Format, Output};
use crate::random::Random;
use job::{Idling, Job, JobReport, Limits, OnError};
use lane::Lane;
use live::{Control, Live};
pub(crate) use options::{RUN_HELP, RunOptions};
use outcome::Outcome;
use plan::{Device, Plan};

/// Runs and writes the result.
pub(crate) fn run(options: &RunOptions) -> anyhow::Result<()> {
    let mut plan = Plan::make(options)?;
    let mut jobs = Vec::with_capacity(usize::from(options.numjobs));
    let control = Arc::new(Control::new(Interrupt::install()?));
    let clock = Clock::monotonic();
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let limits = limits(&plan, cores.len());
    for number in 0..options.numjobs {
        jobs.push(Job {
            lanes: lanes(&plan, number)?,
            limits,
            core: core(&cores, number),
            live: Arc::new(Live::default()),
            control: Arc::clone(&control),
            clock: clock.clone(),
        });
    }
    plan.note_memory();
    let mut output = Output::open(options.output.as_deref())?;
    let live: Vec<_> = jobs.iter().map(|job| Arc::clone(&job.live)).collect();
    let (ended, is_ended) = mpsc::channel();
    let threads = start(jobs, &ended)?;
    drop(ended);
    let samples = watch::watch(&plan, &live, &is_ended);
    let mut reports: Vec<JobReport> = Vec::with_capacity(threads.len());
    for thread in threads {
        reports.push(thread.join().map_err(|_| anyhow::anyhow!("a job ended by a bug in nvme-perf"))?);
    }
    let outcome = Outcome::of(&plan, reports, samples, &control);
    match options.output_format {
        Format::Normal => output.write(&text::text(&plan, &outcome))?,
        Format::Json => {
            output.write_json(&json::document(&plan, &outcome))?;
            for problem in &outcome.problems {
                tracing::error!("{problem}");
            }
        }
    }
    close(plan);
    if outcome.problems.is_empty() { Ok(()) } else { Err(reported()) }
}

fn limits(plan: &Plan, cores: usize) -> Limits {
    let options = &plan.options;
    // An emulated controller is a thread that spins, too.
    let emulated = plan.devices.iter().filter(|device| device.opened.target.is_emulated()).count();
    let is_crowded = usize::from(options.numjobs) + emulated > cores;
    Limits {
        ramp: options.ramp_time,
        runtime: plan.runtime,
        number_ios: options.number_ios,
        io_timeout: options.io_timeout,
        on_error: if options.continue_on_error { OnError::Continue } else { OnError::Stop },
        idling: if is_crowded { Idling::Yield } else { Idling::Spin },
    }
}

/// The core of a job: one each as far as they go, then from the first again.
fn core(cores: &[CoreId], job: u16) -> Option<CoreId> {
    cores.get(usize::from(job) % cores.len().max(1)).copied()
}

/// The queue pairs and buffers of one job.
fn lanes(plan: &Plan, job: u16) -> anyhow::Result<Vec<Lane>> {
    plan.devices.iter().enumerate().map(|(index, device)| lane(plan, index, device, job)).collect()
}

fn lane(plan: &Plan, index: usize, device: &Device, job: u16) -> anyhow::Result<Lane> {
    let options = &plan.options;
    let opened = &device.opened;
    let offsets = plan.offsets(index, job)?;
    let mut config = QueueConfig::with_depth(device.queue_depth);
    config.plug_limit = options.plug_limit;
    let queue = opened.controller.create_queue(config)?;
    let block_bytes = usize::try_from(options.bs).unwrap_or(usize::MAX);
    let count = usize::try_from(plan.depth).unwrap_or(usize::MAX);
    let pool = opened.controller.space().pool(block_bytes, count)?;
    let mut random = Random::of(options.seed, u64::from(job), !(index as u64));
    let mut buffers = Vec::with_capacity(count);
    while let Some(mut buffer) = pool.take() {
        if options.rw.read_percent(options.rwmixread) < 100 {
            // A device that compresses must have something to do.
            buffer.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
        }
        buffers.push(buffer);
    }
    let batch = usize::try_from(options.iodepth_batch).unwrap_or(usize::MAX);
    Ok(Lane::new(queue, opened.namespace, offsets, buffers, batch))
}

fn start(
    jobs: Vec<Job>,
    ended: &mpsc::Sender<()>,
) -> anyhow::Result<Vec<std::thread::JoinHandle<JobReport>>> {
    let barrier = Arc::new(Barrier::new(jobs.len()));
    let mut threads = Vec::with_capacity(jobs.len());
    for (number, job) in jobs.into_iter().enumerate() {
        let (barrier, ended) = (Arc::clone(&barrier), ended.clone());
        let thread = std::thread::Builder::new().name(format!("job {number}")).spawn(move || {
            // Dropped when the job ends, in whatever way.
            let _ended = ended;
            job.run(&barrier)
        });
        // Those that wait at the barrier end with the process.
        threads.push(thread.context("the system starts no more threads; use a smaller --numjobs")?);
    }
    Ok(threads)
}

/// Shuts the controllers down. What was measured stands, whatever they say to that.
fn close(plan: Plan) {
    for device in plan.devices {
        if let Err(error) = device.opened.controller.close() {
            tracing::warn!("{}: shutting down: {error}", device.opened.target);
        }
    }
}
