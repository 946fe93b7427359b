//! The result of a run as fio prints it, so that the tools people have keep working.
//!
//! All jobs are one entry of `jobs`, as with fio's `group_reporting`. What fio has no word for stands under
//! `doorbell`. `slat` is 0: the clock is read once for a batch of submissions, and a request's time starts
//! when its doorbell is rung, so that `clat` and `lat` are the same.

use serde::Serialize;
use serde_json::{Value, json};

use super::offsets::Direction;
use super::outcome::{DeviceOutcome, Outcome};
use super::plan::Plan;
use super::tables::{Entries, batch_table, depth_table, latency_tables};
use super::tally::Latencies;
use super::text::PERCENTILES;
use super::watch::Spread;
use crate::units::{duration_text, size_option};

/// The whole document.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
    #[serde(rename = "fio version")]
    version: &'static str,
    timestamp: u64,
    timestamp_ms: u64,
    time: String,
    #[serde(rename = "global options")]
    global_options: Value,
    jobs: [JobEntry; 1],
    disk_util: [(); 0],
    doorbell: Value,
}

#[derive(Debug, Serialize)]
struct JobEntry {
    jobname: String,
    groupid: u32,
    error: u32,
    eta: u32,
    elapsed: u64,
    #[serde(rename = "job options")]
    options: Entries<String>,
    read: DirectionEntry,
    write: DirectionEntry,
    trim: DirectionEntry,
    sync: SyncEntry,
    job_runtime: u64,
    usr_cpu: f64,
    sys_cpu: f64,
    ctx: u64,
    majf: u64,
    minf: u64,
    iodepth_level: Entries<f64>,
    iodepth_submit: Entries<f64>,
    iodepth_complete: Entries<f64>,
    latency_ns: Entries<f64>,
    latency_us: Entries<f64>,
    latency_ms: Entries<f64>,
    latency_depth: u32,
    latency_target: u32,
    latency_percentile: f64,
    latency_window: u32,
}

#[derive(Debug, Default, Serialize)]
struct DirectionEntry {
    io_bytes: u64,
    io_kbytes: u64,
    bw_bytes: u64,
    bw: u64,
    iops: f64,
    runtime: u64,
    total_ios: u64,
    short_ios: u64,
    drop_ios: u64,
    slat_ns: Statistics,
    clat_ns: Statistics,
    lat_ns: Statistics,
    bw_min: u64,
    bw_max: u64,
    bw_agg: f64,
    bw_mean: f64,
    bw_dev: f64,
    bw_samples: usize,
    iops_min: u64,
    iops_max: u64,
    iops_mean: f64,
    iops_stddev: f64,
    iops_samples: usize,
}

#[derive(Debug, Default, Serialize)]
struct Statistics {
    min: u64,
    max: u64,
    mean: f64,
    stddev: f64,
    #[serde(rename = "N")]
    count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    percentile: Option<Entries<u64>>,
}

#[derive(Debug, Default, Serialize)]
struct SyncEntry {
    total_ios: u64,
    lat_ns: Statistics,
}

/// The result as fio's JSON.
pub(crate) fn document(plan: &Plan, outcome: &Outcome) -> Document {
    Document {
        version: concat!("nvme-perf ", env!("CARGO_PKG_VERSION")),
        timestamp: outcome.ended_at.seconds,
        timestamp_ms: outcome.ended_at.millis,
        time: outcome.ended_at.text.clone(),
        global_options: json!({ "ioengine": "doorbell", "group_reporting": "1" }),
        jobs: [job(plan, outcome)],
        disk_util: [],
        doorbell: own(plan, outcome),
    }
}

fn job(plan: &Plan, outcome: &Outcome) -> JobEntry {
    let tally = &outcome.tally;
    let both = tally.both();
    let (usr_cpu, sys_cpu) = outcome.cpu_percent();
    let targets: Vec<_> = outcome.devices.iter().map(|device| device.target.as_str()).collect();
    let [latency_ns, latency_us, latency_ms] = latency_tables(&both);
    JobEntry {
        jobname: targets.join(" "),
        groupid: 0,
        error: outcome.error,
        eta: 0,
        elapsed: outcome.elapsed.as_secs() + u64::from(outcome.elapsed.subsec_nanos() > 0),
        options: job_options(plan),
        read: direction(plan, outcome, Direction::Read),
        write: direction(plan, outcome, Direction::Write),
        trim: DirectionEntry::default(),
        sync: SyncEntry::default(),
        job_runtime: millis(outcome) * u64::from(plan.options.numjobs),
        usr_cpu,
        sys_cpu,
        ctx: outcome.cpu.context_switches,
        majf: outcome.cpu.major_faults,
        minf: outcome.cpu.minor_faults,
        iodepth_level: depth_table(&tally.depth_levels),
        iodepth_submit: batch_table(&tally.submit_levels),
        iodepth_complete: batch_table(&tally.complete_levels),
        latency_ns,
        latency_us,
        latency_ms,
        latency_depth: plan.depth,
        latency_target: 0,
        latency_percentile: 100.0,
        latency_window: 0,
    }
}

fn job_options(plan: &Plan) -> Entries<String> {
    let options = &plan.options;
    let mut entries = vec![
        ("rw".to_owned(), options.rw.name().to_owned()),
        ("bs".to_owned(), size_option(options.bs)),
        ("iodepth".to_owned(), plan.depth.to_string()),
        ("iodepth_batch".to_owned(), options.iodepth_batch.to_string()),
        ("numjobs".to_owned(), options.numjobs.to_string()),
        ("rwmixread".to_owned(), options.rwmixread.to_string()),
        ("randseed".to_owned(), options.seed.to_string()),
    ];
    let time = |time| duration_text(time).replace(' ', "");
    entries.extend(plan.runtime.map(|runtime| ("runtime".to_owned(), time(runtime))));
    entries.extend(options.number_ios.map(|count| ("number_ios".to_owned(), count.to_string())));
    if !options.ramp_time.is_zero() {
        entries.push(("ramp_time".to_owned(), time(options.ramp_time)));
    }
    Entries(entries)
}

#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn direction(plan: &Plan, outcome: &Outcome, direction: Direction) -> DirectionEntry {
    let latencies = outcome.tally.of(direction);
    let count = latencies.count();
    if count == 0 {
        return DirectionEntry::default();
    }
    let bs = plan.options.bs;
    let iops = outcome.iops(direction);
    let mut samples = match direction {
        Direction::Read => outcome.samples.reads.clone(),
        Direction::Write => outcome.samples.writes.clone(),
    };
    if samples.is_empty() {
        samples.push(iops);
    }
    let rates = Spread::of(&samples);
    let kib_each = bs as f64 / 1024.0;
    DirectionEntry {
        io_bytes: count * bs,
        io_kbytes: count * bs / 1024,
        bw_bytes: (iops * bs as f64) as u64,
        bw: (iops * kib_each) as u64,
        iops,
        runtime: millis(outcome),
        total_ios: count,
        short_ios: 0,
        drop_ios: 0,
        slat_ns: Statistics::default(),
        clat_ns: statistics(latencies).with_percentiles(latencies),
        lat_ns: statistics(latencies),
        bw_min: (rates.min * kib_each) as u64,
        bw_max: (rates.max * kib_each) as u64,
        bw_agg: 100.0,
        bw_mean: rates.mean * kib_each,
        bw_dev: rates.deviation * kib_each,
        bw_samples: rates.count,
        iops_min: rates.min as u64,
        iops_max: rates.max as u64,
        iops_mean: rates.mean,
        iops_stddev: rates.deviation,
        iops_samples: rates.count,
    }
}

fn statistics(latencies: &Latencies) -> Statistics {
    Statistics {
        min: latencies.min(),
        max: latencies.max(),
        mean: latencies.mean(),
        stddev: latencies.deviation(),
        count: latencies.count(),
        percentile: None,
    }
}

impl Statistics {
    fn with_percentiles(mut self, latencies: &Latencies) -> Self {
        let entry = |percent: &f64| (format!("{percent:.6}"), latencies.percentile(*percent));
        self.percentile = Some(Entries(PERCENTILES.iter().map(entry).collect()));
        self
    }
}

fn millis(outcome: &Outcome) -> u64 {
    u64::try_from(outcome.elapsed.as_millis()).unwrap_or(u64::MAX)
}

/// What fio has no word for. `total_ios` of both directions, `ramp_ios`, `failed_ios`, `unanswered_ios` and
/// `bringup_reads` are together what the devices were asked for; `commands` is more where I/Os were split.
fn own(plan: &Plan, outcome: &Outcome) -> Value {
    let tally = &outcome.tally;
    let (submission, completion) = outcome.doorbells_per_io();
    json!({
        "targets": outcome.devices.iter().map(device).collect::<Vec<_>>(),
        "plug": plan.options.iodepth_batch,
        "plug_limit": plan.options.plug_limit,
        "doorbells_per_io": submission,
        "completion_doorbells_per_io": completion,
        "commands": outcome.devices.iter().map(|device| device.commands).sum::<u64>(),
        "ramp_ios": tally.ramp_reads + tally.ramp_writes,
        "ramp_reads": tally.ramp_reads,
        "ramp_writes": tally.ramp_writes,
        "failed_ios": tally.failures.total(),
        "unanswered_ios": outcome.unanswered,
        // Bringing a controller up takes admin commands, and none that reads its data.
        "bringup_reads": 0,
        "interrupted": outcome.is_interrupted,
        "errors": outcome.problems,
    })
}

fn device(device: &DeviceOutcome) -> Value {
    json!({
        "target": device.target,
        "model": device.model,
        "nsid": device.nsid,
        "block_bytes": device.block_bytes,
        "queue_pairs": device.queue_pairs,
        "commands": device.commands,
        "submission_doorbells": device.submission_doorbells,
        "completion_doorbells": device.completion_doorbells,
        "shadow_doorbells": device.has_shadow_doorbells,
        "submission_doorbells_saved": device.submission_doorbells_saved,
        "completion_doorbells_saved": device.completion_doorbells_saved,
        "memory": device.memory.json(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::tally::Tally;
    use super::*;

    #[test]
    fn percentiles_have_fios_keys() {
        let mut tally = Tally::new();
        tally.read.record(500);
        let value =
            serde_json::to_value(statistics(&tally.read).with_percentiles(&tally.read)).expect("JSON");
        assert_eq!(value["percentile"]["99.000000"], 500);
        assert_eq!(value["percentile"].as_object().map(serde_json::Map::len), Some(17));
        assert_eq!((&value["N"], &value["min"]), (&json!(1), &json!(500)));
    }
}
