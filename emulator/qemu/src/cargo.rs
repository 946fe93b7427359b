//! Builds the workspace's own programs that run in the guest.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Builds a program of a package with cargo and gives its path. Without the sources (an installed launcher),
/// the program is looked for beside this one.
pub fn build(package: &str, program: &str, profile: &str) -> Result<PathBuf> {
    let manifest = Path::new(MANIFEST);
    if !manifest.exists() {
        let beside = std::env::current_exe()?.with_file_name(program);
        if beside.exists() {
            return Ok(beside);
        }
        bail!(
            "{program} is not beside this program and cannot be built; \
             in a checkout: cargo run --bin nvme-qemu"
        );
    }
    // Cargo shows its own progress; without a terminal only the command's output belongs on standard error.
    let terminal = std::io::stderr().is_terminal();
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--profile", profile, "--package", package, "--bin", program])
        .args(["--message-format", "json-render-diagnostics", "--manifest-path"])
        .arg(manifest)
        .stdin(Stdio::null())
        .stderr(if terminal { Stdio::inherit() } else { Stdio::piped() })
        .output()
        .with_context(|| format!("cannot run cargo to build {program}; see https://rustup.rs"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{program} does not build\n{said}This shows it again: \
             cargo build --profile {profile} --package {package}"
        );
    }
    executable(&String::from_utf8_lossy(&output.stdout), program)
        .with_context(|| format!("cargo did not say where it put {program}"))
}

/// The path of a program in cargo's messages.
fn executable(messages: &str, program: &str) -> Option<PathBuf> {
    messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find_map(|message| {
        let path = Path::new(message.get("executable")?.as_str()?);
        (path.file_name()? == program).then(|| path.to_owned())
    })
}

const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found_among_other_messages() {
        let messages = "{\"reason\":\"compiler-artifact\",\"executable\":null}\n\
            {\"reason\":\"compiler-artifact\",\"executable\":\"/t/release/other\"}\nnot json\n\
            {\"reason\":\"compiler-artifact\",\"executable\":\"/t/release/nvme-perf\"}\n\
            {\"reason\":\"build-finished\",\"success\":true}\n";
        assert_eq!(executable(messages, "nvme-perf"), Some("/t/release/nvme-perf".into()));
        assert_eq!(executable(messages, "nvme"), None);
    }
}
