//! The options of `verify`.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use doorbell::{Namespace, Target};

use super::passes::GENERATIONS_MAX;
use crate::failure::usage;
use crate::output::Format;
use crate::target::{Leave, Shadows};
use crate::units::{
    Amount, parse_amount, parse_positive_amount, parse_positive_duration, parse_positive_size, size_option,
    size_text,
};

/// What `nvme-perf verify` was asked for.
#[derive(Args, Clone, Debug)]
pub(crate) struct VerifyOptions {
    /// The device: `emu:`, or a PCI address such as 0000:01:00.0.
    #[arg(value_name = "TARGET")]
    pub(crate) target: Target,

    /// Write nothing: check what an earlier run has left, also one that was cut off.
    #[arg(long, alias = "check_only", conflicts_with = "generations")]
    pub(crate) check_only: bool,

    /// With --check-only: a block that was never written is wrong, too.
    #[arg(long, requires = "check_only")]
    pub(crate) complete: bool,

    /// The size of each transfer [default: see --bsrange]
    #[arg(long, alias = "blocksize", value_name = "SIZE", value_parser = parse_positive_size)]
    pub(crate) bs: Option<u64>,

    /// The sizes of transfers, mixed [default: from one block to 1m]
    #[arg(long, value_name = "MIN-MAX", value_parser = parse_range, conflicts_with = "bs")]
    pub(crate) bsrange: Option<(u64, u64)>,

    /// How many transfers are outstanding at once.
    #[arg(long, value_name = "N", default_value_t = 32)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(crate) iodepth: u32,

    /// How many passes: the first writes every block, each later one about half of them again.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=GENERATIONS_MAX))]
    pub(crate) generations: u64,

    /// The part of the namespace, as a size or a percentage [default: all from the offset on]
    #[arg(long, value_name = "SIZE", value_parser = parse_positive_amount)]
    pub(crate) size: Option<Amount>,

    /// Where that part starts, as a size or a percentage.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_amount)]
    pub(crate) offset: Amount,

    /// Stands in every block, and decides data and transfers [default: another one each time]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// The namespace [default: the first one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) nsid: Option<u32>,

    /// End with an error when the device completes nothing for so long.
    #[arg(
        long = "io_timeout",
        alias = "io-timeout",
        value_name = "TIME",
        default_value = "30s",
        value_parser = parse_positive_duration
    )]
    pub(crate) io_timeout: Duration,

    /// Whether queues are moved by shadow doorbells.
    #[arg(long, alias = "shadow_doorbells", value_enum, value_name = "WHEN")]
    #[arg(default_value_t = Shadows::WhenOffered)]
    pub(crate) shadow_doorbells: Shadows,

    /// Allow to overwrite a device that is not emulated.
    #[arg(long, alias = "allow_write")]
    pub(crate) allow_write: bool,

    /// The form of the result.
    #[arg(long, value_enum, value_name = "FORM", default_value_t = Format::Normal)]
    pub(crate) output_format: Format,

    /// Write the result to a file.
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// Reads `512-1m`.
fn parse_range(text: &str) -> Result<(u64, u64), String> {
    let (min, max) = text.split_once('-').ok_or("write two sizes, such as 512-1m")?;
    let (min, max) = (parse_positive_size(min)?, parse_positive_size(max)?);
    if min > max { Err("the first size is larger than the second".to_owned()) } else { Ok((min, max)) }
}

impl VerifyOptions {
    /// Whether devices that are not emulated may be overwritten.
    pub(crate) fn leave(&self) -> Leave {
        if self.allow_write { Leave::Given } else { Leave::NotGiven }
    }

    /// The lengths of transfers, in blocks.
    pub(crate) fn lengths(&self, namespace: &Namespace) -> anyhow::Result<RangeInclusive<u64>> {
        let block_bytes = u64::from(namespace.block_bytes());
        let in_blocks = |option: &str, bytes: u64| {
            if bytes > TRANSFER_BYTES_MAX {
                return Err(usage(format!("--{option} is at most {}", size_option(TRANSFER_BYTES_MAX))));
            }
            whole_blocks(option, bytes, block_bytes)
        };
        match (self.bs, self.bsrange) {
            (Some(bs), _) => in_blocks("bs", bs).map(|blocks| blocks..=blocks),
            (None, Some((min, max))) => Ok(in_blocks("bsrange", min)?..=in_blocks("bsrange", max)?),
            (None, None) => Ok(1..=(DEFAULT_BYTES_MAX / block_bytes)),
        }
    }

    /// The blocks that are verified: first and end.
    pub(crate) fn range(&self, namespace: &Namespace) -> anyhow::Result<std::ops::Range<u64>> {
        let block_bytes = u64::from(namespace.block_bytes());
        let whole = namespace.bytes();
        let blocks = |option: &str, amount: Amount| match amount {
            Amount::Bytes(bytes) => whole_blocks(option, bytes, block_bytes),
            Amount::Percent(_) => Ok(amount.of(whole) / block_bytes),
        };
        let start = blocks("offset", self.offset)?;
        let rest = namespace.blocks().saturating_sub(start);
        if rest == 0 {
            let whole = size_text(whole);
            return Err(usage(format!(
                "--offset is at or beyond the end of the namespace, which has {whole}"
            )));
        }
        let count = self.size.map_or(Ok(rest), |size| blocks("size", size))?;
        let count = if matches!(self.size, Some(Amount::Percent(_))) { count.min(rest) } else { count };
        if count > rest || count == 0 {
            let most = size_option(rest * block_bytes);
            return Err(usage(format!(
                "--size must name at least a block and end within the namespace, which has {}; from this \
                 offset on, use --size {most} or less",
                size_text(whole)
            )));
        }
        Ok(start..start + count)
    }
}

fn whole_blocks(option: &str, bytes: u64, block_bytes: u64) -> anyhow::Result<u64> {
    if bytes.is_multiple_of(block_bytes) {
        return Ok(bytes / block_bytes);
    }
    let next = bytes.checked_next_multiple_of(block_bytes).unwrap_or(block_bytes);
    Err(usage(format!(
        "--{option}: {} is not a multiple of the block, {block_bytes} bytes; use {}",
        size_option(bytes),
        size_option(next)
    )))
}

/// The largest transfer that can be asked for.
const TRANSFER_BYTES_MAX: u64 = 64 << 20;
/// The largest transfer if nothing is asked for.
const DEFAULT_BYTES_MAX: u64 = 1 << 20;

/// What stands below the options.
pub(crate) const VERIFY_HELP: &str = "\
Examples:
  nvme-perf verify emu:size=64M                            a dry run
  nvme-perf verify 0000:01:00.0 --allow-write              the whole namespace; destroys what is on it
  nvme-perf verify 0000:01:00.0 --allow-write --generations 5 --size 10g
  nvme-perf verify 0000:01:00.0 --check-only               later: after a power cut, on another machine

Every block carries its number, a generation, the run's seed and a checksum, so that --check-only needs
nothing but the device. After a crash in the middle of a write, a block may be old or new; a block that is
anything else, or older than a flush allows, is wrong. Exit status 0 only if every block is right.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_two_sizes_in_order() {
        assert_eq!(parse_range("512-1m"), Ok((512, 1 << 20)));
        assert_eq!(parse_range("4k-4k"), Ok((4096, 4096)));
        for text in ["", "4k", "-", "8k-4k", "0-4k", "4k-x"] {
            assert!(parse_range(text).is_err(), "{text}");
        }
    }

    #[test]
    fn odd_sizes_are_refused_with_the_next_even_one() {
        assert_eq!(whole_blocks("bs", 8192, 4096).expect("whole"), 2);
        let error = whole_blocks("bs", 4097, 4096).expect_err("odd").to_string();
        assert!(error.contains("--bs") && error.contains("use 8k"), "{error}");
    }
}
