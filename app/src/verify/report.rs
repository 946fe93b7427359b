//! The result of `verify`, for people and for programs.

use std::fmt::Write;
use std::ops::Range;
use std::time::Duration;

use serde_json::{Value, json};

use super::census::Census;
use super::tasks::Transfers;
use crate::memory::Memory;
use crate::target::{Opened, namespace_text};
use crate::units::{duration_text, grouped};

/// Everything that is told.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) target: String,
    pub(crate) model: String,
    pub(crate) namespace: String,
    pub(crate) nsid: u32,
    pub(crate) block_bytes: u32,
    pub(crate) range: Range<u64>,
    pub(crate) memory: Memory,
    /// The seed that was written, or that was asked for.
    pub(crate) seed: Option<u64>,
    pub(crate) passes: Vec<PassReport>,
    /// Of the last pass.
    pub(crate) census: Census,
    /// What is wrong, as sentences.
    pub(crate) problems: Vec<String>,
    pub(crate) is_interrupted: bool,
}

/// One pass: a generation written and read, or one look at everything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassReport {
    /// `None` if nothing was written.
    pub(crate) generation: Option<u64>,
    pub(crate) written: Transfers,
    pub(crate) read: Transfers,
    pub(crate) time: Duration,
}

impl Report {
    /// A report in which nothing has happened yet.
    pub(crate) fn new(opened: &Opened, range: Range<u64>, seed: Option<u64>) -> Self {
        Self {
            target: opened.target.to_string(),
            model: opened.controller.names().model,
            namespace: namespace_text(&opened.namespace),
            nsid: opened.namespace.nsid().0,
            block_bytes: opened.namespace.block_bytes(),
            range,
            memory: Memory::of(opened.controller.space()),
            seed,
            passes: Vec::new(),
            census: Census::default(),
            problems: Vec::new(),
            is_interrupted: false,
        }
    }

    /// Whether every block is right, and all of them were looked at.
    pub(crate) fn is_right(&self) -> bool {
        self.problems.is_empty() && !self.is_interrupted
    }

    /// The text for people.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |words: String| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{words}");
        };
        line(format!("verify {}  {}, {}", self.target, self.model, self.namespace));
        line(format!("  memory: {}", self.memory.text()));
        let seed = self.seed.map_or(String::new(), |seed| format!(", seed {seed}"));
        line(format!("  blocks {} to {}{seed}", self.range.start, self.range.end.saturating_sub(1)));
        for pass in &self.passes {
            line(pass.text());
        }
        for (seed, generation, count) in self.census.generations() {
            line(format!("  {} blocks of generation {generation} (seed {seed})", grouped(count)));
        }
        for (count, what) in [
            (self.census.zeros, "never written (zeros)"),
            (self.census.foreign, "never written (other data)"),
            (self.census.wrong, "wrong"),
        ] {
            if count > 0 {
                line(format!("  {} blocks {what}", grouped(count)));
            }
        }
        for problem in &self.problems {
            line(format!("ERROR: {problem}"));
        }
        match (self.is_right(), self.is_interrupted, self.seed) {
            (true, ..) if self.census.whole() == 0 => line("no block was ever written by verify".to_owned()),
            (true, ..) => line("every block is right".to_owned()),
            (false, true, _) => line(format!(
                "interrupted: `nvme-perf verify {} --check-only` tells later what is there",
                self.target
            )),
            _ => {}
        }
        text
    }

    /// The same for programs.
    pub(crate) fn json(&self) -> Value {
        let generations: Vec<_> = self
            .census
            .generations()
            .map(|(seed, generation, blocks)| {
                json!({ "seed": seed, "generation": generation, "blocks": blocks })
            })
            .collect();
        let first_wrong = self.census.first_wrong().map(|(lba, what)| json!({ "lba": lba, "what": what }));
        json!({
            "target": self.target,
            "model": self.model,
            "nsid": self.nsid,
            "block_bytes": self.block_bytes,
            "first_lba": self.range.start,
            "blocks": self.range.end - self.range.start,
            "seed": self.seed,
            "passes": self.passes.iter().map(PassReport::json).collect::<Vec<_>>(),
            "generations": generations,
            "whole_blocks": self.census.whole(),
            "zero_blocks": self.census.zeros,
            "foreign_blocks": self.census.foreign,
            "wrong_blocks": self.census.wrong,
            "first_wrong": first_wrong,
            "memory": self.memory.json(),
            "interrupted": self.is_interrupted,
            "errors": self.problems,
            "right": self.is_right(),
        })
    }
}

impl PassReport {
    fn text(&self) -> String {
        let read =
            format!("{} blocks read in {} transfers", grouped(self.read.blocks), grouped(self.read.count));
        let time = duration_text(Duration::from_millis(u64::try_from(self.time.as_millis()).unwrap_or(0)));
        match self.generation {
            Some(generation) => format!(
                "  generation {generation}: {} blocks written in {} transfers, {read}, {time}",
                grouped(self.written.blocks),
                grouped(self.written.count)
            ),
            None => format!("  {read}, {time}"),
        }
    }

    fn json(&self) -> Value {
        json!({
            "generation": self.generation,
            "written_blocks": self.written.blocks,
            "write_transfers": self.written.count,
            "read_blocks": self.read.blocks,
            "read_transfers": self.read.count,
            "seconds": self.time.as_secs_f64(),
        })
    }
}
