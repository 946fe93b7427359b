//! The options of `study`, and the names of the studies.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::output::Format;
use crate::units::parse_positive_duration;

/// What `nvme-perf study` was asked for.
#[derive(Args, Clone, Debug)]
pub(crate) struct StudyOptions {
    /// The studies: plug, shared-tags, clock, floor, or all of them.
    #[arg(required = true, value_name = "NAME", value_parser = parse_names)]
    names: Vec<Names>,

    /// How long each of the two variants runs in each of the seven rounds of a comparison.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_positive_duration)]
    pub(super) runtime: Duration,

    /// The form of the result.
    #[arg(long, value_enum, value_name = "FORM", default_value_t = Format::Normal)]
    pub(super) output_format: Format,

    /// Write the result to a file.
    #[arg(long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
}

/// A study that can be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Plug,
    SharedTags,
    Clock,
    Floor,
}

/// What one word of the command line names.
#[derive(Clone, Debug)]
struct Names(Vec<Name>);

impl StudyOptions {
    /// The studies in the order they were named, each once.
    pub(super) fn names(&self) -> Vec<Name> {
        let mut names = Vec::new();
        for name in self.names.iter().flat_map(|names| &names.0) {
            if !names.contains(name) {
                names.push(*name);
            }
        }
        names
    }
}

impl Name {
    /// Every study, in the order that `all` runs them.
    pub(super) const ALL: [Self; 4] = [Self::Plug, Self::SharedTags, Self::Clock, Self::Floor];

    /// The word that names it.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Plug => "plug",
            Self::SharedTags => "shared-tags",
            Self::Clock => "clock",
            Self::Floor => "floor",
        }
    }
}

fn parse_names(word: &str) -> Result<Names, String> {
    if word == "all" {
        return Ok(Names(Name::ALL.to_vec()));
    }
    if let Some(name) = Name::ALL.into_iter().find(|name| name.word() == word) {
        return Ok(Names(vec![name]));
    }
    let words = Name::ALL.map(Name::word).join(", ");
    if let Some((_, needs)) = LATER.iter().find(|(name, _)| *name == word) {
        return Err(format!("this study needs {needs}, which is not built yet; choose of {words}, or all"));
    }
    Err(format!("there is no such study; choose of {words}, or all"))
}

/// Studies whose subject is not built yet, and what that is.
const LATER: [(&str, &str); 4] = [
    ("remote", "submission from other threads"),
    ("async-depth", "the scheduler of I/O classes"),
    ("streams", "the merging of neighbouring requests"),
    ("kernel", "the targets `kernel:`"),
];

/// What stands below the options.
pub(crate) const STUDY_HELP: &str = "\
Studies:
  plug         Several requests share a doorbell, and take their command IDs at once because the plug was
               told how many follow (Linux 2021: 4 % more IOPS). Doorbells per request stand beside it.
  shared-tags  Queues that share one set of IDs need no bookkeeping to be fair (Linux 2024: 2.9 % more
               IOPS): completions of 1 ms and of 100 ms come at a ratio of about 100, and neither starves.
  clock        The time is read once for a batch, not for each request (Linux 2024: 9 % more IOPS), so
               that latency statistics cost next to nothing.
  floor        Doorbell beside a bare loop that writes the same entries and rings the same doorbells, and
               does nothing else: what IDs, ownership, checks and statistics cost together.

Examples:
  nvme-perf study plug
  nvme-perf study clock floor --runtime 200ms
  nvme-perf study all --runtime 1s --output-format=json

How it is measured:
  On the built-in software controller; no device is touched. Both variants are settings of the library,
  and run in short slices that alternate (A B B A), for --runtime each, seven times over. The ratio is
  the median of the ratios of the rounds; its least and largest stand beside it. Each study first
  compares its baseline with itself (A/A): where that is off by more than 1 %, the machine is too noisy
  and it is measured again, four times at most. Nothing else should run meanwhile, and two cores are
  needed: one for the driver, one for the controller.
  `tests/instructions` in the sources counts the driver's instructions, which no noise changes.
";

#[cfg(test)]
mod tests {
    use super::*;

    fn named(words: &[&str]) -> Vec<Name> {
        let names = words.iter().map(|word| parse_names(word).expect(word)).collect();
        let runtime = Duration::from_secs(1);
        StudyOptions { names, runtime, output_format: Format::Normal, output: None }.names()
    }

    #[test]
    fn every_study_is_named_once_and_in_order() {
        assert_eq!(named(&["all"]), Name::ALL);
        assert_eq!(named(&["clock", "plug", "clock"]), [Name::Clock, Name::Plug]);
        assert_eq!(named(&["floor", "all"])[..2], [Name::Floor, Name::Plug]);
        for name in Name::ALL {
            assert!(
                STUDY_HELP.contains(&format!("\n  {} ", name.word())),
                "{} is not explained",
                name.word()
            );
        }
    }

    #[test]
    fn what_is_not_built_says_so_and_what_is_unknown_lists_what_there_is() {
        for word in ["remote", "async-depth", "streams", "kernel"] {
            let text = parse_names(word).expect_err(word);
            assert!(text.contains("not built yet") && text.contains("shared-tags"), "{text}");
        }
        assert!(parse_names("plugs").expect_err("unknown").contains("no such study"));
    }
}
