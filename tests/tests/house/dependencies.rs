//! Dependencies point one way: app, driver, emulator, hugepages, spec. The emulator knows no driver, so that
//! a wrong idea in the queue code cannot be shared by both sides of the wire.

use std::collections::BTreeMap;

use toml::Table;

use crate::report;
use crate::sources::all_files;

/// Packages of ours that each package may use, in any form of dependency.
const ALLOWED: [(&str, &[&str]); 7] = [
    ("doorbell-spec", &[]),
    ("doorbell-hugepages", &["doorbell-spec"]),
    ("doorbell-emulator", &["doorbell-spec", "doorbell-hugepages"]),
    ("doorbell", &["doorbell-spec", "doorbell-hugepages", "doorbell-emulator"]),
    ("nvme-perf", &["doorbell"]),
    ("nvme-qemu", &[]),
    (
        "doorbell-tests",
        &["doorbell", "doorbell-spec", "doorbell-hugepages", "doorbell-emulator", "nvme-qemu", "nvme-perf"],
    ),
];

#[test]
fn dependencies_point_one_way() {
    let packages = packages();
    let mut findings = Vec::new();
    for (name, uses) in &packages {
        match ALLOWED.iter().find(|(package, _)| package == name) {
            None => findings.push(format!("{name}: what may it use? Say so in this test")),
            Some((_, allowed)) => findings.extend(
                uses.iter()
                    .filter(|it| packages.contains_key(*it) && !allowed.contains(&it.as_str()))
                    .map(|it| format!("{name} uses {it}")),
            ),
        }
    }
    report("app -> driver -> emulator -> hugepages -> spec", &findings);
    assert_eq!(packages.len(), ALLOWED.len(), "a package is missing: {:?}", packages.keys());
}

/// Every package of the workspace with all that its manifest names.
fn packages() -> BTreeMap<String, Vec<String>> {
    let manifests = all_files().into_iter().filter(|file| file.name.ends_with("Cargo.toml"));
    manifests
        .filter_map(|file| {
            let table: Table = file.text.parse().expect("cargo has read the manifest");
            let name = table.get("package")?.get("name")?.as_str()?.to_owned();
            Some((name, dependencies(&table)))
        })
        .collect()
}

/// Names below every table that holds dependencies, those of targets included.
fn dependencies(table: &Table) -> Vec<String> {
    let mut found = Vec::new();
    for (key, value) in table {
        let Some(inner) = value.as_table() else { continue };
        if key.ends_with("dependencies") {
            found.extend(inner.keys().cloned());
        } else if key == "target" {
            inner.values().filter_map(|it| it.as_table()).for_each(|it| found.extend(dependencies(it)));
        }
    }
    found
}
