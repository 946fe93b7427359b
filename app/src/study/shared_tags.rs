//! One set of IDs for many queues, without a fair share (Linux 2024: "block: remove the fair tag sharing
//! code").
//!
//! A fair share is a counter for each queue that is changed for every request. Published: without it, 64 jobs
//! of 4 KiB random reads that complete at once reach 2.9 % more IOPS; and two queues of depth 64, whose
//! requests take 1 ms and 100 ms, reach 29,859 and 318 IOPS: close to the ratio of their times, and both make
//! progress.

use doorbell::FairShare;

use super::comparison::{Comparison, Method, Variant};
use super::figures::Goal;
use super::lanes::Style;
use super::site::Place;
use super::two_rates::{two_rates, two_rates_in_line};
use super::workload::{Ids, Workload};

/// The comparisons, the first of which has the study's baseline.
pub(super) fn comparisons() -> Vec<Comparison> {
    let shared_over_fair = Comparison {
        name: "shared over fair share, 64 jobs".to_owned(),
        method: Method::Alternate(Place::Inline),
        baseline: jobs("fair share", FairShare::On),
        variant: jobs("shared", FairShare::Off),
        published: Some(1.029),
        goal: Goal::AtLeast(1.029),
        claim: "a set of IDs without a fair share is better than one with it",
    };
    let rates = Comparison {
        name: "two rates".to_owned(),
        method: Method::Together(two_rates),
        baseline: Variant::not_alone("100 ms"),
        variant: Variant::not_alone("1 ms"),
        published: Some(PUBLISHED_RATES),
        goal: Goal::Within(80.0, 120.0),
        claim: "two queues that share IDs go on at the ratio of their times, and neither starves",
    };
    let in_line = Comparison {
        name: "two rates, in line for more".to_owned(),
        method: Method::Together(two_rates_in_line),
        published: None,
        claim: "they do so even while both ask for more IDs than there are",
        ..rates.clone()
    };
    vec![shared_over_fair, rates, in_line]
}

/// 64 queue pairs on one thread, each of which would have its share of the IDs in use in any case: so what is
/// compared is the bookkeeping, and not who gets more.
fn jobs(name: &str, fair_share: FairShare) -> Variant {
    let workload = Workload::reads(4096, Style::CountedPlug);
    let workload = Workload { lanes_each: 64, depth: DEPTH_EACH, ids: Ids::Shared(fair_share), ..workload };
    Variant::new(name, move |place| workload.set_up(place))
}

const DEPTH_EACH: u32 = 8;
/// 29,859 over 318.
const PUBLISHED_RATES: f64 = 93.9;
