//! The machine as its pseudo file systems show it, with a root that a test may move.

use std::path::{Path, PathBuf};

use doorbell_spec::Clock;

use super::PciAddress;

/// A machine: where its `/sys`, `/proc` and `/dev` are, and the clock that waits are measured with.
///
/// [`Machine::this`] is the one that the program runs on.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
    clock: Clock,
}

impl Machine {
    /// The machine that this program runs on.
    #[must_use]
    pub fn this() -> Self {
        Self::at("/")
    }

    /// A machine whose `sys`, `proc` and `dev` lie below `root`: a container's, or a test's.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), clock: Clock::monotonic() }
    }

    /// The same machine, with waits measured by `clock`.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The clock that waits are measured with.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The directory that describes the device, whether it exists or not.
    #[must_use]
    pub fn device_path(&self, address: PciAddress) -> PathBuf {
        self.pci("devices").join(address.to_string())
    }

    /// A path below `/sys/bus/pci`.
    pub(super) fn pci(&self, below: impl AsRef<Path>) -> PathBuf {
        self.root.join("sys/bus/pci").join(below)
    }

    /// A path below `/sys/class/block`.
    pub(super) fn block(&self, below: impl AsRef<Path>) -> PathBuf {
        self.root.join("sys/class/block").join(below)
    }

    /// A path below `/proc`.
    pub(super) fn proc(&self, below: impl AsRef<Path>) -> PathBuf {
        self.root.join("proc").join(below)
    }

    /// A path below `/dev`.
    pub(super) fn dev(&self, below: impl AsRef<Path>) -> PathBuf {
        self.root.join("dev").join(below)
    }

    /// The character device by which containers are made.
    #[must_use]
    pub fn container_path(&self) -> PathBuf {
        self.dev("vfio/vfio")
    }

    /// The character device of an IOMMU group, by which its devices are opened.
    #[must_use]
    pub fn group_path(&self, group: u32) -> PathBuf {
        self.dev("vfio").join(group.to_string())
    }
}
