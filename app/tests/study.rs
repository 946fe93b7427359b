//! `study`: every study from the command line, its JSON, its text, and what is said of studies to come.

mod program;

use std::sync::{Mutex, PoisonError};

use program::{json, nvme_perf};
use serde_json::Value;

/// A study keeps two cores busy: two at a time would wait for each other.
static ALONE: Mutex<()> = Mutex::new(());

/// What each study must compare, by name.
const COMPARISONS: [(&str, &[&str]); 4] = [
    (
        "plug",
        &[
            "count over no count, shared IDs",
            "count over no count, shared IDs, two controllers",
            "count over no count, private IDs",
            "plug over no plug, two threads",
            "count over no count, private IDs, two controllers",
            "plug over no plug, two threads, two controllers",
            "limit 32 over limit 16",
            "limit 32 over limit 16, two controllers",
        ],
    ),
    ("shared-tags", &["shared over fair share, 64 jobs", "two rates"]),
    (
        "clock",
        &[
            "cached over off, two threads",
            "cached over off, inline",
            "cached over per request, two threads",
            "per request over off, two threads",
        ],
    ),
    ("floor", &["doorbell over bare loop, two threads", "doorbell over bare loop, inline"]),
];

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} of {value}"))
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key} of {value}"))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Everything in a comparison follows from its raw figures.
fn assert_consistent(comparison: &Value) {
    let raw: Vec<[f64; 2]> = serde_json::from_value(comparison["raw"].clone()).expect("pairs of figures");
    let rounds = comparison["rounds"].as_u64().expect("a number");
    assert!(rounds >= 7 && rounds % 2 == 1 && raw.len() as u64 == rounds, "{comparison}");
    assert!(raw.iter().flatten().all(|figure| *figure > 0.0), "{comparison}");
    let ratios: Vec<f64> = raw.iter().map(|[baseline, variant]| variant / baseline).collect();
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
    assert!(near(number(comparison, "ratio"), median(ratios.clone())), "{comparison}");
    assert!(near(number(comparison, "ratio_min"), ratios.iter().copied().fold(f64::MAX, f64::min)));
    assert!(near(number(comparison, "ratio_max"), ratios.iter().copied().fold(0.0, f64::max)));
    for (side, key) in ["baseline", "variant"].into_iter().enumerate() {
        let figures = raw.iter().map(|round| round[side]).collect();
        assert!(near(number(&comparison[key], "median"), median(figures)), "{comparison}");
        assert!(!text(&comparison[key], "name").is_empty());
    }
    assert_eq!(text(comparison, "unit"), "IOPS");
    assert!(comparison["met"].is_boolean() && comparison.get("published_ratio").is_some(), "{comparison}");
}

#[test]
fn every_study_runs_and_its_figures_add_up() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let result = json(&["study", "all", "--runtime", "2ms", "--output-format=json"]);
    let studies = result["studies"].as_array().expect("studies");
    assert_eq!(studies.len(), COMPARISONS.len());
    for (study, (name, wanted)) in studies.iter().zip(COMPARISONS) {
        assert_eq!(text(study, "name"), name);
        let comparisons = study["comparisons"].as_array().expect("comparisons");
        let names: Vec<&str> = comparisons.iter().map(|it| text(it, "name")).collect();
        assert_eq!(names[0], "A/A", "first the baseline with itself");
        for name in wanted {
            assert!(names.contains(name), "{name} is missing in {names:?}");
        }
        comparisons.iter().for_each(assert_consistent);
    }
    let plugged = studies[0]["comparisons"].as_array().into_iter().flatten();
    let plugged = plugged.filter(|it| text(it, "name").starts_with("plug over no plug"));
    for comparison in plugged {
        assert_eq!(number(&comparison["baseline"], "doorbells_per_request"), 1.0);
        assert_eq!(number(&comparison["variant"], "doorbells_per_request"), 1.0 / 32.0);
    }
}

#[test]
fn the_text_has_a_table_and_sentences_and_standard_error_says_what_runs() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let run = nvme_perf(&["study", "floor", "--runtime", "2ms"]);
    assert_eq!(run.status, 0, "{run:?}");
    for words in ["study floor: ", "COMPARISON", "PUBLISHED", "doorbell over bare loop, inline: "] {
        assert!(run.stdout.contains(words), "{words}: {}", run.stdout);
    }
    assert!(run.stderr.contains("study floor: A/A, about "), "{}", run.stderr);
    assert!(run.stderr.contains("study floor: doorbell over bare loop, inline, about "), "{}", run.stderr);
}

#[test]
fn studies_that_are_not_there_say_so() {
    for (args, words) in [
        (&["study"][..], "NAME"),
        (&["study", "remote"], "not built yet"),
        (&["study", "plug", "async-depth"], "not built yet"),
        (&["study", "kernel"], "not built yet"),
        (&["study", "brake"], "no such study"),
        (&["study", "plug", "--runtime", "0"], "--runtime"),
    ] {
        let run = nvme_perf(args);
        assert_eq!(run.status, 2, "{args:?}: {run:?}");
        assert!(run.stderr.contains(words) && run.stdout.is_empty(), "{args:?}: {run:?}");
    }
}
