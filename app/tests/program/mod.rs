//! Starting the program and reading what it says.

use std::process::{Command, Stdio};

use serde_json::Value;

/// What the program said, and how it ended.
#[derive(Debug)]
pub struct Run {
    /// The exit status; -1 if a signal ended it.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// The program with these arguments and nothing of the caller's environment that changes what it says.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvme-perf"));
    command.args(args).env_remove("RUST_LOG").env_remove("RUST_BACKTRACE").stdin(Stdio::null());
    command
}

/// Runs the program to its end.
pub fn nvme_perf(args: &[&str]) -> Run {
    let output = command(args).output().expect("the program starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the program writes UTF-8");
    Run {
        status: output.status.code().unwrap_or(-1),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// Runs the program, which must succeed, and reads its JSON.
#[allow(dead_code, reason = "not every test program reads JSON")]
pub fn json(args: &[&str]) -> Value {
    let run = nvme_perf(args);
    assert_eq!(run.status, 0, "{args:?}: {run:?}");
    serde_json::from_str(&run.stdout).expect("the program writes JSON")
}

/// A target with one fault rule, and the folder that its file lies in.
#[allow(dead_code, reason = "not every test program needs faults")]
pub fn fault_file(rule: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("device.toml");
    let text = format!("size = \"64M\"\n\n[[fault]]\n{rule}\n");
    std::fs::write(&path, text).expect("writable");
    let target = format!("emu:@{}", path.display());
    (folder, target)
}
