//! The command line: which subcommands there are, and which file each one is in.

use clap::{Parser, Subcommand};

use crate::run::{RUN_HELP, RunOptions};
use crate::verify::{VERIFY_HELP, VerifyOptions};

/// Measures and verifies NVMe controllers from userspace.
#[derive(Debug, Parser)]
#[command(name = "nvme-perf", version, max_term_width = 100, after_help = HELP, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure IOPS, bandwidth and latency.
    #[command(after_help = RUN_HELP)]
    Run(Box<RunOptions>),
    /// Write blocks that say what they are, read them back, and check every one.
    #[command(after_help = VERIFY_HELP)]
    Verify(Box<VerifyOptions>),
}

impl Cli {
    /// Does what was asked for.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Run(options) => crate::run::run(&options),
            Command::Verify(options) => crate::verify::run(&options),
        }
    }
}

const HELP: &str = "\
The first three commands:
  nvme-perf run emu:              measure the built-in software controller: no root, no set-up
  nvme-perf list                  the NVMe controllers of this machine, and what uses them
  nvme-perf run 0000:01:00.0      measure a real one, after `nvme-perf bind` and `nvme-perf setup`

RUST_LOG=debug shows what the driver does.
";
