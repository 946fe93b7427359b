//! Batched requests and IDs (Linux 2021: "block: allow batched request and tag allocation through the plug").
//!
//! The caller says how many requests follow; the plug takes so many command IDs in one step, and gives back
//! what is left over. Published: one core, two hardware threads with a device each, 512 B random reads at
//! depth 128, submitted and completed in batches of 32: a median of 1.041 times the IOPS.

use doorbell::FairShare;

use super::comparison::{Comparison, Method, Variant};
use super::figures::Goal;
use super::lanes::Style;
use super::site::Place;
use super::workload::{Ids, Workload};

/// The comparisons, the first of which has the study's baseline.
pub(super) fn comparisons() -> Vec<Comparison> {
    let both = |make: fn(usize) -> Comparison| [1, 2].map(make);
    [counted_shared, counted_private, plugged, limit_16, limit_1].into_iter().flat_map(both).collect()
}

/// On one thread with the controllers, where nothing that the driver saves is hidden behind their work.
fn counted_shared(controllers: usize) -> Comparison {
    let variant = |name: &str, style| {
        let mut workload = reads(style, controllers);
        workload.ids = Ids::Shared(FairShare::Off);
        of(name, workload)
    };
    Comparison {
        name: named("count over no count, shared IDs", controllers),
        method: Method::Alternate(Place::Inline),
        baseline: variant("plug, no count", Style::Plug),
        variant: variant("plug, count 32", Style::CountedPlug),
        published: Some(PUBLISHED),
        goal: Goal::AtLeast(1.05),
        claim: "taking the IDs of a plug at once is better than one at a time",
    }
}

fn counted_private(controllers: usize) -> Comparison {
    Comparison {
        name: named("count over no count, private IDs", controllers),
        baseline: of("plug, no count", reads(Style::Plug, controllers)),
        variant: of("plug, count 32", reads(Style::CountedPlug, controllers)),
        published: None,
        goal: Goal::AtLeast(0.99),
        claim: "telling the plug how many requests follow costs nothing where IDs are private",
        ..counted_shared(controllers)
    }
}

fn plugged(controllers: usize) -> Comparison {
    Comparison {
        name: named("plug over no plug, two threads", controllers),
        method: Method::Alternate(Place::TwoThreads),
        baseline: of("no plug", reads(Style::Single, controllers)),
        variant: of("plug, count 32", reads(Style::CountedPlug, controllers)),
        published: None,
        goal: Goal::AtLeast(1.3),
        claim: "one doorbell for a batch is better than one for each request",
    }
}

fn limit_16(controllers: usize) -> Comparison {
    Comparison {
        name: named("limit 32 over limit 16", controllers),
        method: Method::Alternate(Place::TwoThreads),
        baseline: limited("plug, limit 16", 16, controllers),
        variant: limited("plug, limit 32", 32, controllers),
        published: None,
        goal: Goal::AtLeast(0.99),
        claim: "a plug that holds 32 requests is no worse than one that rings at 16",
    }
}

fn limit_1(controllers: usize) -> Comparison {
    Comparison {
        name: named("limit 32 over limit 1", controllers),
        baseline: limited("plug, limit 1", 1, controllers),
        goal: Goal::AtLeast(1.3),
        claim: "a plug is better than one that rings for each request, with IDs at once in both",
        ..limit_16(controllers)
    }
}

fn limited(name: &str, plug_limit: u32, controllers: usize) -> Variant {
    let mut workload = reads(Style::CountedPlug, controllers);
    workload.queue.plug_limit = plug_limit;
    of(name, workload)
}

fn reads(style: Style, controllers: usize) -> Workload {
    Workload::reads(512, style).on_controllers(controllers)
}

fn of(name: &str, workload: Workload) -> Variant {
    Variant::new(name, move |place| workload.set_up(place))
}

fn named(name: &str, controllers: usize) -> String {
    if controllers == 1 { name.to_owned() } else { format!("{name}, two controllers") }
}

/// The median of what was published.
const PUBLISHED: f64 = 1.041;
