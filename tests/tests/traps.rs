//! Every trap has tests, and every test that it names exists and is a test.

use std::collections::BTreeSet;

use doorbell_tests::{all, traps, workspace};

#[test]
fn every_trap_has_tests_that_exist() {
    let scenarios: BTreeSet<&str> = all().iter().map(|it| it.name).collect();
    let traps = traps();
    let mut missing = Vec::new();
    for trap in &traps {
        assert!(!trap.tests.is_empty(), "{}: {} has no test", trap.theme, trap.rule);
        for test in trap.tests {
            let exists = match test.split_once(".rs::") {
                Some((file, name)) => is_test(&format!("{file}.rs"), name),
                None => scenarios.contains(test),
            };
            if !exists {
                missing.push(format!("{test} ({})", trap.rule));
            }
        }
    }
    assert!(missing.is_empty(), "tests that do not exist:\n  {}", missing.join("\n  "));
    let mut theme = "";
    for trap in &traps {
        if trap.theme != theme {
            theme = trap.theme;
            println!("{theme}");
        }
        println!("  {}\n    {}", trap.rule, trap.tests.join("\n    "));
    }
}

/// Whether a file has a test of this name: a function with the attribute on one of the lines before it.
fn is_test(file: &str, name: &str) -> bool {
    let Ok(text) = std::fs::read_to_string(workspace().join(file)) else { return false };
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    // A program that must not compile is a test of the documentation, named by the function in it.
    let refused = format!("/// fn {name}<");
    if lines
        .windows(2)
        .any(|pair| pair[0].starts_with("/// ```compile_fail") && pair[1].starts_with(&refused))
    {
        return true;
    }
    let head = format!("fn {name}(");
    lines.iter().enumerate().filter(|(_, line)| line.starts_with(&head)).any(|(at, _)| {
        lines[..at].iter().rev().take_while(|line| line.starts_with("#[")).any(|line| *line == "#[test]")
    })
}

#[test]
fn names_of_scenarios_are_unique() {
    let names: BTreeSet<&str> = all().iter().map(|it| it.name).collect();
    assert_eq!(names.len(), all().len());
}
