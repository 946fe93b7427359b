//! Keeps the house tidy: walks the sources of the whole workspace and checks what no compiler checks.
//!
//! Columns, lengths of files and functions, notes left to somebody else, `unsafe` only where it was
//! declared, dependencies that point one way, no file that nobody compiles, and nothing of the machine that
//! a file was written on.

mod dependencies;
mod layout;
mod modules;
mod privacy;
mod sources;
mod unsafety;

/// Fails with all findings at once: one run shows everything there is to do.
fn report(rule: &str, findings: &[String]) {
    assert!(findings.is_empty(), "{rule}:\n  {}", findings.join("\n  "));
}
