//! PCI devices as Linux's sysfs shows them: finding NVMe controllers, who uses them, and handing them
//! from the kernel's driver to vfio-pci and back.
//!
//! ```text
//!   scan ── device ── usage ──▶ bind ──▶ vfio-pci ──▶ (VfioTransport) ──▶ restore ──▶ kernel driver
//! ```
//!
//! Invariants:
//! * nothing on the machine changes before every check has passed, and a change that fails half-way is
//!   taken back;
//! * every write to sysfs and every wait for its effect has a deadline, since the kernel may block both
//!   for as long as somebody holds the device;
//! * what sysfs and procfs say is input: no answer of theirs makes this code panic or loop.
//!
//! Not built: VFIO's no-IOMMU mode, SR-IOV, and devices that are not NVMe controllers.

mod address;
mod binding;
mod blocks;
mod device;
mod handover;
mod machine;
mod process;
mod sysfs;
mod usage;

#[cfg(test)]
mod fake;

pub use address::PciAddress;
pub(crate) use binding::Listed;
pub use binding::{BindError, Blocker, Bound, Force, Outcome, Restored};
pub use device::{IommuGroup, Isolation, PciClass, PciDevice, PciError};
pub use machine::Machine;
pub use process::Process;
pub use usage::{Usage, Use};

/// The driver that hands devices to userspace.
pub const VFIO_DRIVER: &str = "vfio-pci";

/// All NVMe controllers of this machine, by address.
///
/// # Errors
/// sysfs cannot be read.
pub fn scan() -> Result<Vec<PciDevice>, PciError> {
    Machine::this().scan()
}

/// Takes the controller at `address` from its driver and binds it to vfio-pci: see [`Machine::bind_all`].
///
/// # Errors
/// As [`Machine::bind_all`].
pub fn bind(address: PciAddress, force: Force) -> Result<Bound, BindError> {
    Machine::this().bind(address, force)
}

/// Gives the controller at `address` back to the kernel's driver: see [`Machine::restore`].
///
/// # Errors
/// As [`Machine::restore`].
pub fn restore(address: PciAddress, force: Force) -> Result<Restored, BindError> {
    Machine::this().restore(address, force)
}
