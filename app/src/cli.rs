//! The command line: which subcommands there are, and which file each one is in.

use clap::{Parser, Subcommand};

use crate::bind::{self, BIND_HELP, BindOptions, UNBIND_HELP, UnbindOptions};
use crate::identify::{self, IDENTIFY_HELP, IdentifyOptions};
use crate::list::{self, LIST_HELP, ListOptions};
use crate::run::{self, RUN_HELP, RunOptions};
use crate::setup::{self, SETUP_HELP, SetupOptions};
#[cfg(feature = "emulator")]
use crate::study::{self, STUDY_HELP, StudyOptions};
use crate::verify::{self, VERIFY_HELP, VerifyOptions};

/// Measures and verifies NVMe controllers from userspace.
#[derive(Debug, Parser)]
#[command(name = "nvme-perf", version, max_term_width = 100, after_help = HELP)]
#[command(disable_help_subcommand = true)]
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
    /// Reproduce published comparisons on the built-in software controller.
    #[cfg(feature = "emulator")]
    #[command(after_help = STUDY_HELP)]
    Study(StudyOptions),
    /// Show the NVMe controllers of this machine, and what uses them.
    #[command(after_help = LIST_HELP)]
    List(ListOptions),
    /// Take a controller from the kernel and bind it to vfio-pci.
    #[command(after_help = BIND_HELP)]
    Bind(BindOptions),
    /// Give a controller back to the kernel.
    #[command(after_help = UNBIND_HELP)]
    Unbind(UnbindOptions),
    /// Show what a controller and its namespaces say of themselves.
    #[command(after_help = IDENTIFY_HELP)]
    Identify(IdentifyOptions),
    /// Reserve huge pages, or show what the machine is missing.
    #[command(after_help = SETUP_HELP)]
    Setup(SetupOptions),
}

impl Cli {
    /// Does what was asked for.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Run(options) => run::run(&options),
            Command::Verify(options) => verify::run(&options),
            #[cfg(feature = "emulator")]
            Command::Study(options) => study::run(&options),
            Command::List(options) => list::run(&options),
            Command::Bind(options) => bind::bind(&options),
            Command::Unbind(options) => bind::unbind(&options),
            Command::Identify(options) => identify::run(&options),
            Command::Setup(options) => setup::run(&options),
        }
    }
}

const HELP: &str = "\
The first three commands:
  nvme-perf run emu:              measure the built-in software controller: no root, no set-up
  nvme-perf list                  the NVMe controllers of this machine, and what uses them
  nvme-perf run 0000:01:00.0      measure a real one, after `nvme-perf bind` and `nvme-perf setup`

A TARGET is emu: (or emu:key=value,…, or emu:@file.toml), or a PCI address. RUST_LOG=debug shows what the
driver does. Exit status: 0 if all went well, 2 for a mistake in the command line, 1 for everything else.
";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_subcommand_ends_its_help_with_examples() {
        for subcommand in Cli::command().get_subcommands() {
            let help = subcommand.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:\n  "), "{}", subcommand.get_name());
        }
    }
}
