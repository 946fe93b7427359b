//! Which processes have a device node open.

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Machine, sysfs};

/// A running program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its process ID.
    pub pid: u32,
    /// Its name as the kernel keeps it: at most 15 bytes.
    pub command: String,
}

impl Machine {
    /// The processes that have one of `nodes` open, each with the node, by process ID.
    ///
    /// Sees only the processes that the caller may look into: without root those of the same user.
    /// Processes that end meanwhile are left out.
    #[must_use]
    pub fn processes_with_open(&self, nodes: &[PathBuf]) -> Vec<(Process, PathBuf)> {
        let wanted: HashSet<&Path> = nodes.iter().map(PathBuf::as_path).collect();
        let mut found = Vec::new();
        if wanted.is_empty() {
            return found;
        }
        // A /proc that cannot be listed names nobody; the kernel's own checks still hold.
        for name in sysfs::names(&self.proc("")).unwrap_or_default() {
            let Ok(pid) = name.parse::<u32>() else { continue };
            for node in open_files(&self.proc(&name).join("fd")) {
                if wanted.contains(&*node) {
                    let command = sysfs::text(&self.proc(&name).join("comm")).unwrap_or_default();
                    found.push((Process { pid, command }, node));
                }
            }
        }
        found.sort_unstable_by(|a, b| (a.0.pid, &a.1).cmp(&(b.0.pid, &b.1)));
        found.dedup();
        found
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.command.is_empty() {
            write!(f, "process {}", self.pid)
        } else {
            write!(f, "process {} ({})", self.pid, self.command)
        }
    }
}

fn open_files(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
}
