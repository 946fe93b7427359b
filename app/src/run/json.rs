//! The result of a run as fio prints it, so that the tools people have keep working.
//!
//! All jobs are one entry of `jobs`, as with fio's `group_reporting`. What fio has no word for stands under
//! `doorbell`. `slat` is 0: the clock is read once for a batch of submissions, and a request's time starts
//! when its doorbell is rung, so that `clat` and `lat` are the same.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::{Value, json};

use super::offsets::Direction;
use super::outcome::{DeviceOutcome, Outcome};
use super::plan::Plan;
use super::tally::{Latencies, Levels};
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

/// A map that keeps its order.
#[derive(Debug)]
struct Entries<T>(Vec<(String, T)>);

impl<T: Serialize> Serialize for Entries<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
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
    let (usr_cpu, sys_cpu) = outcome.cpu_percent(plan);
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

/// How many of 100 I/Os took so long: up to the number of units that a key names, and more than the one before.
fn latency_tables(latencies: &Latencies) -> [Entries<f64>; 3] {
    let mut low = 0;
    let mut table = |unit_ns: u64, bounds: &[u64]| {
        let entry = |bound: &u64| {
            let high = bound * unit_ns - 1;
            let count = latencies.count_between(low, high);
            low = high + 1;
            (bound.to_string(), percent(count, latencies.count()))
        };
        bounds.iter().map(entry).collect::<Vec<_>>()
    };
    let below_second = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000];
    let (nanos, micros) = (table(1, &below_second), table(1_000, &below_second));
    let mut millis = table(1_000_000, &below_second);
    millis.extend(table(1_000_000, &[2000]));
    let beyond = latencies.count_between(low, u64::MAX);
    millis.push((">=2000".to_owned(), percent(beyond, latencies.count())));
    [Entries(nanos), Entries(micros), Entries(millis)]
}

/// At what depth I/Os were submitted, in percent of all.
fn depth_table(levels: &Levels) -> Entries<f64> {
    let counts = levels.counts();
    let total = counts.iter().sum();
    let keys = ["1", "2", "4", "8", "16", "32", ">=64"];
    Entries(
        keys.iter()
            .zip(&counts[1..])
            .map(|(key, count)| ((*key).to_owned(), percent(*count, total)))
            .collect(),
    )
}

/// How many I/Os were submitted or reaped at once, in percent of all calls. fio's keys are upper bounds.
fn batch_table(levels: &Levels) -> Entries<f64> {
    let counts = levels.counts();
    let total = counts.iter().sum();
    let rows = [
        ("0", counts[0]),
        ("4", counts[1] + counts[2]),
        ("8", counts[3]),
        ("16", counts[4]),
        ("32", counts[5]),
        ("64", counts[6]),
        (">=64", counts[7]),
    ];
    Entries(rows.iter().map(|(key, count)| ((*key).to_owned(), percent(*count, total))).collect())
}

#[expect(clippy::cast_precision_loss)]
fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

/// What fio has no word for. `total_ios` of both directions, `ramp_ios`, `failed_ios`, `unanswered_ios` and
/// `bringup_reads` are together what the devices were asked for; `commands` is more where I/Os were split.
fn own(plan: &Plan, outcome: &Outcome) -> Value {
    let tally = &outcome.tally;
    let (submission, completion) = outcome.doorbells_per_io();
    json!({
        "targets": outcome.devices.iter().map(device).collect::<Vec<_>>(),
        "plug": plan.options.iodepth_batch,
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
    let memory = &device.memory;
    json!({
        "target": device.target,
        "model": device.model,
        "nsid": device.nsid,
        "block_bytes": device.block_bytes,
        "queue_pairs": device.queue_pairs,
        "commands": device.commands,
        "submission_doorbells": device.submission_doorbells,
        "completion_doorbells": device.completion_doorbells,
        "memory": {
            "hugepages": memory.ordinary_bytes == 0,
            "ordinary_bytes": memory.ordinary_bytes,
            "huge_2m_bytes": memory.huge_2m_bytes,
            "huge_1g_bytes": memory.huge_1g_bytes,
            "fell_back": memory.fell_back,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::super::tally::Tally;
    use super::*;

    fn sum(entries: &Entries<f64>) -> f64 {
        entries.0.iter().map(|(_, value)| value).sum()
    }

    #[test]
    fn every_latency_is_in_exactly_one_table() {
        let mut tally = Tally::new();
        for nanos in
            [0, 1, 2, 999, 1000, 1001, 999_999, 1_000_000, 1_999_999_999, 2_000_000_000, 9_000_000_000]
        {
            tally.read.record(nanos);
        }
        let tables = latency_tables(&tally.read);
        let total: f64 = tables.iter().map(sum).sum();
        assert!((total - 100.0).abs() < 1e-9, "{total}");
        let share = |count: u32| f64::from(count) * 100.0 / 11.0;
        assert!((sum(&tables[0]) - share(4)).abs() < 1e-9, "{:?}", tables[0]);
        assert!((tables[2].0.last().expect("a row").1 - share(2)).abs() < 1e-9);
    }

    #[test]
    fn the_tables_of_depths_have_fios_keys_and_sum_to_100() {
        let mut levels = Levels::default();
        for (value, count) in [(1, 1), (3, 1), (5, 1), (100, 5)] {
            levels.add(value, count);
        }
        let depth = depth_table(&levels);
        assert_eq!(depth.0[6], (">=64".to_owned(), 62.5));
        assert!((sum(&depth) - 100.0).abs() < 1e-9);
        let batch = batch_table(&levels);
        assert_eq!((batch.0[1].1, batch.0[2].1), (25.0, 12.5));
        assert!((sum(&batch) - 100.0).abs() < 1e-9);
    }

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
