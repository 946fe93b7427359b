//! Doorbell beside a bare loop that moves the same bytes and keeps no books.
//!
//! Nobody published this: it says what identifiers, ownership, checks, errors and statistics cost together.
//! Both keep the queue full in the way that suits them best.

use super::bare;
use super::comparison::{Comparison, Method, Variant};
use super::figures::Goal;
use super::lanes::Style;
use super::site::Place;
use super::workload::{DEPTH, Workload};

/// The comparisons, the first of which has the study's baseline.
pub(super) fn comparisons() -> Vec<Comparison> {
    let inline = Comparison {
        name: "doorbell over bare loop, inline".to_owned(),
        method: Method::Alternate(Place::Inline),
        baseline: Variant::new("bare loop", |place| bare::set_up(place, DEPTH, READ_BYTES)),
        variant: Variant::new("doorbell", |place| {
            Workload::reads(READ_BYTES, Style::Following).set_up(place)
        }),
        published: None,
        goal: Goal::AtLeast(0.5),
        claim: "on one thread with the controller, a request takes at most twice as long as in a bare loop",
    };
    let two_threads = Comparison {
        name: "doorbell over bare loop, two threads".to_owned(),
        method: Method::Alternate(Place::TwoThreads),
        goal: Goal::AtLeast(0.8),
        claim: "with a thread for the controller, a request takes at most 1.25 times as long",
        ..inline.clone()
    };
    vec![inline, two_threads]
}

/// The page of a database.
const READ_BYTES: u32 = 4096;

/// What the text says besides.
pub(super) const NOTES: &[&str] =
    &["Instructions per read: 45 in the bare loop, and what `tests/instructions` counts in Doorbell."];
