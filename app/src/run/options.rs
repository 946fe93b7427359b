//! The options of `run`, named as fio names them.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use doorbell::{QueueConfig, Target};

use crate::output::Format;
use crate::target::{Leave, Shadows};
use crate::units::{
    Amount, parse_amount, parse_duration, parse_positive_amount, parse_positive_duration, parse_positive_size,
};

/// What `nvme-perf run` was asked for.
#[derive(Args, Clone, Debug)]
pub(crate) struct RunOptions {
    /// The devices: `emu:` (built in, needs nothing), or a PCI address such as 0000:01:00.0.
    #[arg(required = true, value_name = "TARGET")]
    pub(crate) targets: Vec<Target>,

    /// The pattern of the I/Os.
    #[arg(long, alias = "readwrite", value_enum, default_value_t = Pattern::Randread)]
    pub(crate) rw: Pattern,

    /// How many of 100 I/Os of a mixed pattern are reads.
    #[arg(long, value_name = "PERCENT", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) rwmixread: u8,

    /// The size of an I/O, a multiple of the namespace's block.
    #[arg(long, alias = "blocksize", value_name = "SIZE", default_value = "4k")]
    #[arg(value_parser = parse_positive_size)]
    pub(crate) bs: u64,

    /// How many I/Os each job keeps outstanding on each target [default: 128, or what the controller allows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(crate) iodepth: Option<u32>,

    /// How many I/Os one poll reaps and submits again, at most: they share the doorbell of the completion
    /// queue, and that of the submission queue as far as --plug-limit lets them.
    #[arg(
        long,
        alias = "iodepth-batch",
        alias = "iodepth_batch_submit",
        value_name = "N",
        long = "iodepth_batch",
        default_value_t = 32,
        value_parser = clap::value_parser!(u32).range(1..=65_535)
    )]
    pub(crate) iodepth_batch: u32,

    /// How many I/Os wait for one ring of the submission doorbell, at most. 1 rings for each: what a ring
    /// costs on the way to the device (a register beyond the bus; in a virtual machine an exit) is then paid
    /// for each.
    #[arg(long, alias = "plug_limit", value_name = "N", default_value_t = QueueConfig::PLUG_LIMIT_MAX)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(QueueConfig::PLUG_LIMIT_MAX)))]
    pub(crate) plug_limit: u32,

    /// How many jobs: a thread, pinned to a core, with a queue pair on every target, each.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) numjobs: u16,

    /// The part of the namespace that is used, as a size or a percentage [default: all from the offset on]
    #[arg(long, value_name = "SIZE", value_parser = parse_positive_amount)]
    pub(crate) size: Option<Amount>,

    /// Where that part starts, as a size or a percentage.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_amount)]
    pub(crate) offset: Amount,

    /// How long to run, such as 3s, 500ms or 2m [default: 5s, unless --number_ios is given]
    #[arg(long, value_name = "TIME", value_parser = parse_positive_duration)]
    pub(crate) runtime: Option<Duration>,

    /// End each job after so many I/Os, or after --runtime if that is given and comes first.
    #[arg(
        long = "number_ios",
        alias = "number-ios",
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub(crate) number_ios: Option<u64>,

    /// Run so long before anything is measured.
    #[arg(
        long = "ramp_time",
        alias = "ramp-time",
        value_name = "TIME",
        default_value = "0",
        value_parser = parse_duration
    )]
    pub(crate) ramp_time: Duration,

    /// End with an error when a device completes nothing for so long.
    #[arg(
        long = "io_timeout",
        alias = "io-timeout",
        value_name = "TIME",
        default_value = "30s",
        value_parser = parse_positive_duration
    )]
    pub(crate) io_timeout: Duration,

    /// Go on after an I/O has failed, until the run is over. The exit status tells of it all the same.
    #[arg(long = "continue_on_error", alias = "continue-on-error")]
    pub(crate) continue_on_error: bool,

    /// Decides the random offsets and data: the same seed gives the same I/Os.
    #[arg(long, alias = "randseed", value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// The namespace [default: the first of each controller]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) nsid: Option<u32>,

    /// Whether queues are moved by shadow doorbells.
    #[arg(long, alias = "shadow_doorbells", value_enum, value_name = "WHEN")]
    #[arg(default_value_t = Shadows::WhenOffered)]
    pub(crate) shadow_doorbells: Shadows,

    /// Allow a pattern that writes to overwrite a device that is not emulated.
    #[arg(long, alias = "allow_write")]
    pub(crate) allow_write: bool,

    /// The form of the result.
    #[arg(long, value_enum, value_name = "FORM", default_value_t = Format::Normal)]
    pub(crate) output_format: Format,

    /// Write the result to a file.
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

impl RunOptions {
    /// Whether devices that are not emulated may be overwritten.
    pub(crate) fn leave(&self) -> Leave {
        if self.allow_write { Leave::Given } else { Leave::NotGiven }
    }
}

/// fio's patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pattern {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random reads.
    Randread,
    /// Random writes.
    Randwrite,
    /// Sequential reads and writes, mixed.
    #[value(alias = "readwrite")]
    Rw,
    /// Random reads and writes, mixed.
    Randrw,
}

impl Pattern {
    /// The name that fio knows it by.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Randread => "randread",
            Self::Randwrite => "randwrite",
            Self::Rw => "rw",
            Self::Randrw => "randrw",
        }
    }

    /// Whether the offsets are random.
    pub(crate) const fn is_random(self) -> bool {
        matches!(self, Self::Randread | Self::Randwrite | Self::Randrw)
    }

    /// How many of 100 I/Os are reads, of which a mixed pattern has `mix`.
    pub(crate) const fn read_percent(self, mix: u8) -> u8 {
        match self {
            Self::Read | Self::Randread => 100,
            Self::Write | Self::Randwrite => 0,
            Self::Rw | Self::Randrw => mix,
        }
    }
}

/// How long a run is when nothing says so.
pub(crate) const RUNTIME_DEFAULT: Duration = Duration::from_secs(5);

/// The depth when nothing says so, if the controller allows it.
pub(crate) const IODEPTH_DEFAULT: u32 = 128;

/// What stands below the options.
pub(crate) const RUN_HELP: &str = "\
Examples:
  nvme-perf run emu:                                       what this machine can do, in 5 s
  nvme-perf run emu:backend=null,size=1G,latency=80us --iodepth 32
  nvme-perf run 0000:01:00.0 --rw randread --bs 4k --iodepth 32 --runtime 10s
  nvme-perf run 0000:01:00.0 --plug-limit 1 --shadow-doorbells never     what doorbells cost
  nvme-perf run 0000:01:00.0 --rw randrw --rwmixread 70 --numjobs 2 --allow-write
  nvme-perf run emu: --runtime 2s --output-format=json     what fio prints

How it differs from fio:
  The default pattern is randread, and the depth is per job and per target. A run ends by time or by number
  of I/Os, never because all of --size was done once. Random offsets may repeat (fio's norandommap). The jobs
  of a sequential pattern each go round their own equal slice of --size. The result is one for all jobs, as
  with fio's group_reporting. The first I/O that fails ends the run, unless --continue_on_error is given.
  Ctrl-C ends a run with the result up to then; a second one kills it.
";
