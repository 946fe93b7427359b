//! The result of the studies: JSON for programs, tables and sentences for people.

use std::collections::BTreeMap;

use serde::Serialize;

use super::comparison::{A_A, Comparison, Measured, NOISE_MAX};
use super::contest::Totals;
use crate::table::Table;
use crate::units::grouped;

/// All studies.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) studies: Vec<StudyReport>,
}

/// One study.
#[derive(Debug, Serialize)]
pub(super) struct StudyReport {
    pub(super) name: &'static str,
    #[serde(skip)]
    pub(super) title: &'static str,
    /// Whether its baseline, compared with itself, was level to within 1 %.
    pub(super) quiet: bool,
    pub(super) comparisons: Vec<ComparisonReport>,
    /// What the text says below the tables.
    #[serde(skip)]
    pub(super) notes: &'static [&'static str],
}

/// One comparison.
#[derive(Debug, Serialize)]
pub(super) struct ComparisonReport {
    name: String,
    unit: &'static str,
    baseline: Side,
    variant: Side,
    ratio: f64,
    ratio_min: f64,
    ratio_max: f64,
    rounds: usize,
    published_ratio: Option<f64>,
    goal_ratio: Option<f64>,
    met: bool,
    raw: Vec<[f64; 2]>,
    #[serde(skip)]
    claim: &'static str,
}

/// One of its two variants; the columns are further keys of it.
#[derive(Debug, Serialize)]
struct Side {
    name: String,
    median: f64,
    #[serde(flatten)]
    columns: BTreeMap<&'static str, f64>,
}

impl ComparisonReport {
    /// The result of a comparison that was measured.
    pub(super) fn of(comparison: &Comparison, measured: &Measured) -> Self {
        let figures = &measured.figures;
        let side = |index: usize, name: &str| Side {
            name: name.to_owned(),
            median: figures.median_of(index),
            columns: columns(measured.totals[index]),
        };
        let ratio = figures.ratio();
        Self {
            name: comparison.name.clone(),
            unit: "IOPS",
            baseline: side(0, &comparison.baseline.name),
            variant: side(1, &comparison.variant.name),
            ratio,
            ratio_min: figures.ratio_min(),
            ratio_max: figures.ratio_max(),
            rounds: figures.rounds.len(),
            published_ratio: comparison.published,
            goal_ratio: comparison.goal.least(),
            met: comparison.goal.is_met(ratio),
            raw: figures.rounds.clone(),
            claim: comparison.claim,
        }
    }

    /// Whether it is what was asked for.
    pub(super) fn is_met(&self) -> bool {
        self.met
    }

    /// A sentence that says whether the effect is there.
    fn sentence(&self) -> String {
        let (ratio, min, max) = (self.ratio, self.ratio_min, self.ratio_max);
        let spread = format!("{ratio:.3} ({min:.3} to {max:.3})");
        let is_itself = self.name.starts_with(A_A);
        let verdict = match self.goal_ratio {
            None => spread,
            Some(_) if is_itself && self.met => format!("yes, {spread}"),
            Some(_) if is_itself => format!("no, {spread}: the figures are to be taken with care"),
            Some(goal) if self.met => format!("yes, {spread}, and {goal} was hoped for"),
            Some(goal) => format!("no, {spread}, and {goal} was hoped for"),
        };
        format!("{}: {}: {verdict}.", self.name, self.claim)
    }
}

impl Report {
    /// Tables and sentences.
    pub(super) fn text(&self) -> String {
        self.studies.iter().map(StudyReport::text).collect::<Vec<_>>().join("\n")
    }
}

impl StudyReport {
    fn text(&self) -> String {
        let mut table = Table::new(&[
            "  COMPARISON",
            "VARIANT",
            "MEDIAN IOPS",
            "DOORBELLS/REQUEST",
            "RATIO",
            "MIN",
            "MAX",
            "PUBLISHED",
            "GOAL",
            "MET",
        ]);
        let number = |ratio: Option<f64>| ratio.map_or_else(|| "-".to_owned(), |ratio| ratio.to_string());
        for it in &self.comparisons {
            table.add(vec![
                format!("  {}", it.name),
                it.baseline.name.clone(),
                it.baseline.median_text(),
                it.baseline.doorbells_text(),
            ]);
            table.add(vec![
                String::new(),
                it.variant.name.clone(),
                it.variant.median_text(),
                it.variant.doorbells_text(),
                format!("{:.3}", it.ratio),
                format!("{:.3}", it.ratio_min),
                format!("{:.3}", it.ratio_max),
                number(it.published_ratio),
                number(it.goal_ratio),
                if it.met { "yes" } else { "no" }.to_owned(),
            ]);
        }
        let mut text = format!("study {}: {}\n\n{}\n", self.name, self.title, table.text());
        let sentences = self.comparisons.iter().map(ComparisonReport::sentence);
        for sentence in sentences.chain(self.notes.iter().map(|note| (*note).to_owned())) {
            text.push_str("  ");
            text.push_str(&sentence);
            text.push('\n');
        }
        if !self.quiet {
            text.push_str(&format!("  {}\n", too_noisy()));
        }
        text
    }
}

impl Side {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate is neither")]
    fn median_text(&self) -> String {
        grouped(self.median.round() as u64)
    }

    fn doorbells_text(&self) -> String {
        self.columns.get(DOORBELLS).map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"))
    }
}

/// What a study says of a machine on which its baseline differs from itself.
pub(super) fn too_noisy() -> String {
    format!(
        "The machine is too noisy: the baseline differs from itself by more than {} %; end what else runs, \
         and run this again.",
        NOISE_MAX * 100.0
    )
}

#[expect(clippy::cast_precision_loss, reason = "far fewer than 2^53")]
fn columns(totals: Totals) -> BTreeMap<&'static str, f64> {
    let each = |count: u64| count as f64 / totals.requests.max(1) as f64;
    BTreeMap::from([
        (DOORBELLS, each(totals.submission_doorbells)),
        ("completion_doorbells_per_request", each(totals.completion_doorbells)),
    ])
}

const DOORBELLS: &str = "doorbells_per_request";

#[cfg(test)]
mod tests {
    use super::super::comparison::{Method, Variant};
    use super::super::figures::{Figures, Goal};
    use super::super::site::Place;
    use super::*;
    use serde_json::json;

    fn variant(name: &str) -> Variant {
        Variant::new(name, |_| anyhow::bail!("not to be set up"))
    }

    fn comparison() -> Comparison {
        Comparison {
            name: "count over no count".to_owned(),
            method: Method::Alternate(Place::Inline),
            baseline: variant("plug, no count"),
            variant: variant("plug, count 32"),
            published: Some(1.041),
            goal: Goal::AtLeast(1.05),
            claim: "the count pays",
        }
    }

    fn measured(rounds: Vec<[f64; 2]>) -> Measured {
        let totals = Totals { requests: 64, submission_doorbells: 2, completion_doorbells: 4 };
        Measured {
            figures: Figures { rounds },
            totals: [Totals { submission_doorbells: 64, ..totals }, totals],
        }
    }

    fn report() -> Report {
        let comparison = comparison();
        let itself =
            ComparisonReport::of(&comparison.with_itself(A_A.to_owned()), &measured(vec![[100.0, 102.0]]));
        let itself_is_level = itself.is_met();
        let rounds = vec![[100.0, 106.0], [100.0, 104.0], [200.0, 216.0]];
        let comparisons = vec![itself, ComparisonReport::of(&comparison, &measured(rounds))];
        let title = "a title";
        let study = StudyReport { name: "plug", title, quiet: itself_is_level, comparisons, notes: &[] };
        Report { studies: vec![study] }
    }

    #[test]
    fn the_json_is_as_described_with_columns_in_the_variants() {
        let value = serde_json::to_value(report()).expect("JSON");
        let expected = json!({
            "name": "count over no count", "unit": "IOPS",
            "baseline": {
                "name": "plug, no count", "median": 100.0,
                "doorbells_per_request": 1.0, "completion_doorbells_per_request": 0.0625
            },
            "variant": {
                "name": "plug, count 32", "median": 106.0,
                "doorbells_per_request": 0.03125, "completion_doorbells_per_request": 0.0625
            },
            "ratio": 1.06, "ratio_min": 1.04, "ratio_max": 1.08, "rounds": 3,
            "published_ratio": 1.041, "goal_ratio": 1.05, "met": true,
            "raw": [[100.0, 106.0], [100.0, 104.0], [200.0, 216.0]]
        });
        assert_eq!(value["studies"][0]["comparisons"][1], expected);
        assert_eq!(value["studies"][0]["name"], "plug");
        let itself = &value["studies"][0]["comparisons"][0];
        assert_eq!((&itself["name"], &itself["met"]), (&json!("A/A"), &json!(false)));
        assert_eq!(itself["published_ratio"], json!(null));
    }

    #[test]
    fn the_text_has_a_sentence_for_each_comparison_and_one_for_noise() {
        let text = report().text();
        assert!(text.contains("count over no count: the count pays: yes, 1.060 (1.040 to 1.080)"), "{text}");
        assert!(
            text.contains("A/A: the machine is quiet enough to tell a difference of 1 %: no, 1.020"),
            "{text}"
        );
        assert!(text.contains(&too_noisy()), "{text}");
        assert!(text.contains("1.000") && text.contains("0.031"), "doorbells per request: {text}");
    }
}
