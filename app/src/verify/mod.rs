//! `nvme-perf verify`: writes blocks that say what they are, reads them back, and checks every one.
//!
//! ```text
//!   options ── passes (which blocks when) ── engine ── tasks ── block (format) ──▶ census ── report
//! ```
//!
//! The format of the blocks is defined in [`block`]; nothing else is kept, so that a later `--check-only`
//! needs only the device.

mod block;
mod census;
mod engine;
mod options;
mod passes;
mod report;
mod tasks;

use std::ops::{Range, RangeInclusive};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use doorbell::ControllerOptions;

use crate::failure::reported;
use crate::interrupt::Interrupt;
use crate::output::{Format, Output};
use crate::progress::Progress;
use crate::random::mix;
use crate::target::{Intent, check_leave, open};
use crate::units::{duration_text, grouped, size_text};
use census::Census;
use engine::{Engine, EngineConfig, PassEnd, Task};
pub(crate) use options::{VERIFY_HELP, VerifyOptions};
use passes::{Passes, Pieces};
use report::{PassReport, Report};
use tasks::{Comparing, Counting, Transfers, Writing};

/// Verifies and writes the result.
pub(crate) fn run(options: &VerifyOptions) -> anyhow::Result<()> {
    let intent = if options.check_only { Intent::Read } else { Intent::Overwrite };
    check_leave(&options.target, intent, options.leave())?;
    let controller_options =
        ControllerOptions::new().queue_pairs(1).shadow_doorbells(options.shadow_doorbells.into());
    let opened = open(&options.target, options.nsid, intent, &controller_options)?;
    let range = options.range(&opened.namespace)?;
    let lengths = options.lengths(&opened.namespace)?;
    let seed = options.seed.unwrap_or_else(fresh_seed);
    let config = EngineConfig {
        depth: options.iodepth,
        piece_bytes_max: *lengths.end() * u64::from(opened.namespace.block_bytes()),
        io_timeout: options.io_timeout,
        seed,
    };
    let engine = Engine::new(&opened, &config, Interrupt::install()?)?;
    let mut output = Output::open(options.output.as_deref())?;
    let told_seed = if options.check_only { options.seed } else { Some(seed) };
    let report = Report::new(&opened, range.clone(), told_seed);
    let mut verification = Verification {
        engine,
        passes: Passes::new(seed),
        seed,
        range,
        lengths,
        meter: Meter::new(u64::from(opened.namespace.block_bytes())),
        report,
    };
    let done = if options.check_only {
        verification.check_only(options)
    } else {
        verification.write_and_check(options.generations)
    };
    verification.meter.progress.clear();
    let Verification { report, engine, .. } = verification;
    drop(engine);
    done?;
    match options.output_format {
        Format::Normal => output.write(&report.text())?,
        Format::Json => output.write_json(&report.json())?,
    }
    if let Err(error) = opened.controller.close() {
        tracing::warn!("{}: shutting down: {error}", options.target);
    }
    if report.is_right() { Ok(()) } else { Err(reported()) }
}

/// A verification under way.
struct Verification {
    engine: Engine,
    passes: Passes,
    seed: u64,
    range: Range<u64>,
    lengths: RangeInclusive<u64>,
    meter: Meter,
    report: Report,
}

impl Verification {
    fn write_and_check(&mut self, generations: u64) -> anyhow::Result<()> {
        let blocks = self.range.end - self.range.start;
        // Later passes write about half.
        let later = (generations - 1).saturating_mul(blocks + blocks / 2);
        self.meter.expect(blocks.saturating_mul(2).saturating_add(later));
        let block_bytes = self.meter.block_bytes();
        for generation in 1..=generations {
            let begun = Instant::now();
            let tally = Transfers::default();
            let mut writing = Writing { seed: self.seed, generation, block_bytes, tally };
            let pieces = self.passes.to_write(generation, self.range.clone(), self.lengths.clone());
            let mut end = self.pass(pieces, &mut writing, &format!("writing generation {generation}"))?;
            // Durable before anything of a later generation is: this is what `census` relies on.
            self.engine.flush()?;
            let mut census = Census::new(Some(self.seed));
            let mut comparing =
                Comparing { seed: self.seed, generation, block_bytes, census: &mut census, tally };
            if end == PassEnd::Complete {
                let pieces = self.passes.to_read(generation, self.range.clone(), self.lengths.clone());
                end = self.pass(pieces, &mut comparing, &format!("checking generation {generation}"))?;
            }
            let read = comparing.tally;
            let written = writing.tally;
            let pass = PassReport { generation: Some(generation), written, read, time: begun.elapsed() };
            self.report.passes.push(pass);
            if end == PassEnd::Complete || census.wrong > 0 {
                self.judge(census);
            }
            if end == PassEnd::Interrupted {
                self.report.is_interrupted = true;
            }
            if !self.report.is_right() {
                break;
            }
        }
        Ok(())
    }

    fn check_only(&mut self, options: &VerifyOptions) -> anyhow::Result<()> {
        self.meter.expect(self.range.end - self.range.start);
        let begun = Instant::now();
        let mut census = Census::new(options.seed);
        let tally = Transfers::default();
        let mut counting = Counting { block_bytes: self.meter.block_bytes(), census: &mut census, tally };
        let pieces = self.passes.to_read(1, self.range.clone(), self.lengths.clone());
        let end = self.pass(pieces, &mut counting, "checking")?;
        let read = counting.tally;
        let written = Transfers::default();
        self.report.passes.push(PassReport { generation: None, written, read, time: begun.elapsed() });
        self.report.is_interrupted = end == PassEnd::Interrupted;
        if end == PassEnd::Complete {
            self.report.problems.extend(census.contradictions());
            let unwritten = census.zeros + census.foreign;
            if options.complete && unwritten > 0 {
                self.report.problems.push(format!("{} blocks were never written", grouped(unwritten)));
            }
        }
        self.judge(census);
        Ok(())
    }

    fn pass(&mut self, mut pieces: Pieces, task: &mut dyn Task, words: &str) -> anyhow::Result<PassEnd> {
        let Self { engine, meter, .. } = self;
        engine.pass(&mut pieces, task, &mut |blocks| meter.tell(blocks, words))
    }

    /// Says what is wrong with the blocks themselves, and keeps the census for the report.
    fn judge(&mut self, census: Census) {
        if let Some((lba, what)) = census.first_wrong() {
            let wrong = grouped(census.wrong);
            let total = grouped(census.total());
            self.report
                .problems
                .insert(0, format!("{wrong} of {total} blocks are wrong; the first is block {lba}: {what}"));
        }
        if census.overruns > 0 {
            self.report.problems.push(format!(
                "{} reads changed memory outside of what they were to fill",
                grouped(census.overruns)
            ));
        }
        self.report.census = census;
    }
}

/// How far a verification is, on the progress line.
struct Meter {
    progress: Progress,
    block_bytes: u64,
    done: u64,
    expected: u64,
    begun: Instant,
    shown: Instant,
}

impl Meter {
    fn new(block_bytes: u64) -> Self {
        let now = Instant::now();
        Self { progress: Progress::on_terminal(), block_bytes, done: 0, expected: 0, begun: now, shown: now }
    }

    fn block_bytes(&self) -> usize {
        usize::try_from(self.block_bytes).unwrap_or(usize::MAX)
    }

    fn expect(&mut self, blocks: u64) {
        self.expected = blocks;
    }

    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn tell(&mut self, blocks: u64, words: &str) {
        self.done += blocks;
        if !self.progress.is_visible() || self.shown.elapsed() < Duration::from_millis(500) {
            return;
        }
        self.shown = Instant::now();
        let seconds = self.begun.elapsed().as_secs_f64();
        let part = self.done as f64 / self.expected.max(1) as f64;
        let speed = size_text((self.done as f64 * self.block_bytes as f64 / seconds) as u64);
        let left = Duration::try_from_secs_f64((seconds / part - seconds).max(0.0)).unwrap_or_default();
        let left = duration_text(Duration::from_secs(left.as_secs() + 1));
        self.progress.show(part, format!("{words}, {speed}/s, {left} left"));
    }
}

/// A seed that no run before has had.
fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // The low 64 bits of the nanoseconds are enough until the year 2554. 53 bits are what every reader of
    // JSON keeps.
    let nanos = u64::try_from(now.as_nanos()).unwrap_or(0);
    mix(nanos ^ u64::from(std::process::id()).rotate_left(40)) >> 11
}
