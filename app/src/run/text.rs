//! The result of a run for people.

use std::fmt::Write;

use super::offsets::Direction;
use super::outcome::Outcome;
use super::picture::picture;
use super::plan::Plan;
use super::tally::Latencies;
use crate::units::{grouped, nanos_text};

/// The percentiles that are shown and given.
pub(crate) const PERCENTILES: [f64; 17] =
    [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99];

/// The whole text.
pub(crate) fn text(plan: &Plan, outcome: &Outcome) -> String {
    let mut text = format!("{}\n", plan.title());
    for device in &outcome.devices {
        line(&mut text, format_args!("  {}  {}, {}", device.target, device.model, device.namespace));
    }
    // Several devices share one space.
    if let Some(first) = outcome.devices.first() {
        line(&mut text, format_args!("  memory: {}", first.memory.text()));
    }
    for (direction, name) in [(Direction::Read, "read"), (Direction::Write, "write")] {
        if outcome.tally.of(direction).count() > 0 {
            text.push('\n');
            text.push_str(&section(plan, outcome, direction, name));
        }
    }
    if outcome.total_ios() == 0 {
        text.push_str("\n  no I/O was completed in the measured time\n");
    }
    text.push('\n');
    text.push_str(&footer(plan, outcome));
    text
}

#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn section(plan: &Plan, outcome: &Outcome, direction: Direction, name: &str) -> String {
    let latencies = outcome.tally.of(direction);
    let iops = outcome.iops(direction);
    let bandwidth = iops * plan.options.bs as f64;
    let mut text = String::new();
    line(
        &mut text,
        format_args!(
            "{name}: {} IOPS, {} MiB/s ({} MB/s), {} I/Os in {:.2} s",
            grouped(iops.round() as u64),
            rate_text(bandwidth / 1_048_576.0),
            rate_text(bandwidth / 1e6),
            grouped(latencies.count()),
            outcome.elapsed.as_secs_f64()
        ),
    );
    line(
        &mut text,
        format_args!(
            "  latency: min {}, mean {}, max {}, stdev {}",
            nanos_text(latencies.min() as f64),
            nanos_text(latencies.mean()),
            nanos_text(latencies.max() as f64),
            nanos_text(latencies.deviation())
        ),
    );
    text.push_str(&percentiles(latencies));
    text.push_str(&picture(latencies));
    text
}

/// Whole numbers, but a small one with a decimal.
fn rate_text(rate: f64) -> String {
    if rate < 100.0 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

/// Six percentiles a line.
#[expect(clippy::cast_precision_loss)]
fn percentiles(latencies: &Latencies) -> String {
    let mut text = String::new();
    for row in PERCENTILES.chunks(6) {
        let cells: Vec<_> = row
            .iter()
            .map(|percent| {
                let value = nanos_text(latencies.percentile(*percent) as f64);
                format!("{:>6} {value:>8}", format!("{percent}%"))
            })
            .collect();
        line(&mut text, format_args!("  {}", cells.join(" ")));
    }
    text
}

fn footer(plan: &Plan, outcome: &Outcome) -> String {
    let mut text = String::new();
    let (submission, completion) = outcome.doorbells_per_io();
    line(
        &mut text,
        format_args!(
            "doorbells per I/O: {submission:.3} to submit, {completion:.3} to reap (plugs of up to {}, polls \
             of up to {})",
            plan.options.plug_limit, plan.options.iodepth_batch
        ),
    );
    if let Some(percent) = outcome.doorbells_saved_percent() {
        line(&mut text, format_args!("shadow doorbells: {percent:.1} % of the rings were saved"));
    }
    let (user, system) = outcome.cpu_percent();
    line(
        &mut text,
        format_args!(
            "CPU of the jobs: {user:.1} % user, {system:.1} % system, {} context switches",
            grouped(outcome.cpu.context_switches)
        ),
    );
    let ramp = outcome.tally.ramp_reads + outcome.tally.ramp_writes;
    if ramp > 0 {
        line(&mut text, format_args!("not counted: {} I/Os of the ramp time", grouped(ramp)));
    }
    if outcome.is_interrupted {
        line(&mut text, format_args!("interrupted: this is the result up to then"));
    }
    for problem in &outcome.problems {
        line(&mut text, format_args!("ERROR: {problem}"));
    }
    text
}

fn line(text: &mut String, words: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{words}");
}
