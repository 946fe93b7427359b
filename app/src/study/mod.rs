//! `study`: published comparisons, reproduced on the software controller, both variants in one run.
//!
//! ```text
//!   plug, shared_tags, clock, floor ── comparisons ──▶ comparison (rounds, slices) ── figures ──▶ report
//!                                                        │ sets up, runs
//!                     workload, lanes, group, bare ──┴── contest (a closed loop) ── site (cores, device)
//! ```
//!
//! Every variant is a setting of the library that anybody can choose; nothing here is faster or slower than
//! what a user would get. What a bare loop costs stands beside it in `bare`.

mod bare;
mod clock;
mod comparison;
mod contest;
mod figures;
mod floor;
mod group;
mod lanes;
mod options;
mod plug;
mod progress;
mod reads;
mod report;
mod shared_tags;
mod site;
mod two_rates;
mod workload;

use std::time::Duration;

use crate::output::{Format, Output};
use comparison::{A_A, Comparison, ROUNDS};
use options::Name;
pub(crate) use options::{STUDY_HELP, StudyOptions};
use progress::Course;
use report::{ComparisonReport, Report, StudyReport};
use site::Site;

/// A study: its name, what it is about, its comparisons.
struct Study {
    name: Name,
    title: &'static str,
    /// At least one; the first has the study's baseline.
    comparisons: Vec<Comparison>,
    /// What the text says besides.
    notes: &'static [&'static str],
}

/// Runs the studies and writes the result.
pub(crate) fn run(options: &StudyOptions) -> anyhow::Result<()> {
    let mut output = Output::open(options.output.as_deref())?;
    let site = Site::find();
    site.take_driver_core();
    let studies: Vec<Study> = options.names().into_iter().map(Study::named).collect();
    let rounds = studies.iter().map(Study::rounds).sum();
    let mut run = Run { site, runtime: options.runtime, course: Course::begin(2 * options.runtime, rounds) };
    let reports: anyhow::Result<Vec<StudyReport>> = studies.iter().map(|study| run.study(study)).collect();
    run.course.end();
    let report = Report { studies: reports? };
    match options.output_format {
        Format::Normal => output.write(&report.text()),
        Format::Json => output.write_json(&report),
    }
}

/// The run of all studies.
struct Run {
    site: Site,
    runtime: Duration,
    course: Course,
}

impl Run {
    fn study(&mut self, study: &Study) -> anyhow::Result<StudyReport> {
        let mut comparisons = Vec::new();
        for itself in study.with_themselves() {
            comparisons.push(self.with_itself(study, &itself)?);
        }
        let quiet = comparisons.iter().all(ComparisonReport::is_met);
        for comparison in &study.comparisons {
            comparisons.push(self.comparison(study, comparison)?);
        }
        let (name, title, notes) = (study.name.word(), study.title, study.notes);
        Ok(StudyReport { name, title, quiet, comparisons, notes })
    }

    /// Compares the baseline with itself, again and again while the machine is too noisy, but not for ever.
    fn with_itself(&mut self, study: &Study, comparison: &Comparison) -> anyhow::Result<ComparisonReport> {
        for _ in 1..ATTEMPTS {
            let report = self.comparison(study, comparison)?;
            if report.is_met() {
                return Ok(report);
            }
            self.course.say(&format!(
                "study {}: {} It is measured again.",
                study.name.word(),
                report::too_noisy()
            ));
            self.course.add(comparison.rounds_timed());
        }
        self.comparison(study, comparison)
    }

    fn comparison(&mut self, study: &Study, comparison: &Comparison) -> anyhow::Result<ComparisonReport> {
        let Self { site, runtime, course } = self;
        let name = study.name.word();
        course.show(name, &comparison.name);
        let measured = comparison.measure(site, *runtime, |round| {
            course.show_round(name, &format!("{}, round {} of {ROUNDS}", comparison.name, round + 1));
        })?;
        course.done(comparison.rounds_timed());
        Ok(ComparisonReport::of(comparison, &measured))
    }
}

impl Study {
    fn named(name: Name) -> Self {
        let (title, comparisons) = match name {
            Name::Plug => {
                ("several requests share a doorbell and take their IDs at once (2021)", plug::comparisons())
            }
            Name::SharedTags => (
                "queues share one set of IDs, without bookkeeping to be fair (2024)",
                shared_tags::comparisons(),
            ),
            Name::Clock => ("the time is read once for a batch of requests (2024)", clock::comparisons()),
            Name::Floor => ("Doorbell beside a bare loop that keeps no books", floor::comparisons()),
        };
        let notes = if name == Name::Floor { floor::NOTES } else { &[] };
        Self { name, title, comparisons, notes }
    }

    /// Rounds that take time, of all comparisons.
    fn rounds(&self) -> u32 {
        let themselves = self.with_themselves();
        self.comparisons.iter().chain(&themselves).map(Comparison::rounds_timed).sum()
    }

    /// The study's baseline with itself; and another one, if the study takes place elsewhere too, since both
    /// places have noise of their own.
    fn with_themselves(&self) -> Vec<Comparison> {
        let mut placed = self.comparisons.iter().filter_map(|it| Some((it.method.place()?, it)));
        let first = placed.next();
        let elsewhere = placed.find(|(place, _)| first.is_some_and(|(first, _)| *place != first));
        let first = first.map(|(_, it)| it.with_itself(A_A.to_owned()));
        let elsewhere = elsewhere.map(|(place, it)| it.with_itself(format!("{A_A}, {}", place.words())));
        first.into_iter().chain(elsewhere).collect()
    }
}

/// How often the baseline is compared with itself at most.
const ATTEMPTS: u32 = 4;
