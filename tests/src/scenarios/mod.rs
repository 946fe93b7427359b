//! All scenarios, by theme.

mod bring_up;
mod bring_up_faults;
mod buffers;
mod closing;
mod completions;
mod doorbells;
mod features;
mod foreign;
mod group;
mod group_events;
mod group_plugs;
mod identifiers;
mod integrity;
mod namespaces;
mod queues;
mod refusals;
mod shadows;
mod shutdown;
mod sizes;
mod spaces;
mod splitting;

use crate::Scenario;

/// Every scenario there is.
#[must_use]
pub fn all() -> Vec<Scenario> {
    let parts = [
        bring_up::SCENARIOS,
        bring_up_faults::SCENARIOS,
        buffers::SCENARIOS,
        closing::SCENARIOS,
        completions::SCENARIOS,
        doorbells::SCENARIOS,
        features::SCENARIOS,
        foreign::SCENARIOS,
        group::SCENARIOS,
        group_events::SCENARIOS,
        group_plugs::SCENARIOS,
        identifiers::SCENARIOS,
        integrity::SCENARIOS,
        namespaces::SCENARIOS,
        queues::SCENARIOS,
        refusals::SCENARIOS,
        shadows::SCENARIOS,
        shutdown::SCENARIOS,
        sizes::SCENARIOS,
        spaces::SCENARIOS,
        splitting::SCENARIOS,
    ];
    let short = |scenario: &Scenario| Scenario { name: short_name(scenario.name), ..*scenario };
    parts.concat().iter().map(short).collect()
}

/// The name without the path to this module.
fn short_name(name: &'static str) -> &'static str {
    name.split_once("scenarios::").map_or(name, |(_, short)| short)
}
