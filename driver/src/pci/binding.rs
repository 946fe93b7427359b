//! Moving a controller between the kernel's driver and vfio-pci.
//!
//! All checks come first, so that a refusal changes nothing. Then, for each device: `driver_override` names
//! the driver that is wanted, `unbind` takes the device from the one that has it, `drivers_probe` makes the
//! kernel look again, and the `driver` link tells what came of it. A step that fails takes back those
//! before it.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::handover::{Failure, Holder, NO_PIN, PROBING};
use super::{Machine, PciAddress, PciDevice, PciError, Usage, VFIO_DRIVER};

/// Whether a device in use is taken all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// A device in use is refused.
    No,
    /// It is taken from its users, who lose what they have not written.
    Yes,
}

/// A controller that vfio-pci holds now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Where it is.
    pub address: PciAddress,
    /// The driver that held it before, [`VFIO_DRIVER`] if it was bound already.
    pub previous_driver: Option<String>,
    /// The node that a program must be able to open to use it, such as `/dev/vfio/12`.
    pub group_node: PathBuf,
}

/// A controller that the kernel holds again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Where it is.
    pub address: PciAddress,
    /// The driver that holds it now.
    pub driver: String,
}

/// A device whose driver keeps its IOMMU group from being used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// Where it is.
    pub address: PciAddress,
    /// The driver that holds it.
    pub driver: String,
}

/// What the machine looks like after a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// As before.
    NothingChanged,
    /// Not as before.
    Changed {
        /// Which device is now held by what, or why that cannot be told.
        what: String,
    },
}

/// Why a device was not bound or given back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The device is not there, not NVMe or not behind an IOMMU.
    #[error(transparent)]
    Device(#[from] PciError),
    /// Somebody uses it.
    #[error("{address} is in use: {usage}; unmount or stop that first, or take it all the same with --force")]
    InUse {
        /// Where it is.
        address: PciAddress,
        /// By what.
        usage: Usage,
    },
    /// The kernel has no vfio-pci driver at the moment.
    #[error("the kernel's vfio-pci driver is not loaded: `sudo modprobe vfio-pci`")]
    DriverMissing,
    /// Another device of the same IOMMU group is held by a driver that may do DMA.
    #[error(
        "the IOMMU group {group} of {address} is not viable because of {}: bind all its controllers in \
         one call, and take other devices from their drivers",
        Listed(blockers)
    )]
    GroupNotViable {
        /// The device that was asked for.
        address: PciAddress,
        /// Its group.
        group: u32,
        /// What stands in the way.
        blockers: Vec<Blocker>,
    },
    /// The caller may not change drivers.
    #[error("changing the driver of {address} needs root: run the command with sudo; nothing changed")]
    NotPermitted {
        /// Where it is.
        address: PciAddress,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// No driver of the kernel took the device back.
    #[error("no driver of the kernel took {address}, which has none now: `sudo modprobe nvme`")]
    NoKernelDriver {
        /// Where it is.
        address: PciAddress,
    },
    /// A step failed.
    #[error("{step} of {address} failed; {outcome}")]
    Failed {
        /// Where it is.
        address: PciAddress,
        /// Which step.
        step: &'static str,
        /// What the machine looks like now.
        outcome: Outcome,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl Machine {
    /// Binds one controller: see [`Machine::bind_all`].
    ///
    /// # Errors
    /// As [`Machine::bind_all`].
    pub fn bind(&self, address: PciAddress, force: Force) -> Result<Bound, BindError> {
        let bound = self.bind_all(&[address], force)?;
        // One address in, one answer out.
        bound.into_iter().next().ok_or(BindError::Device(PciError::NotFound { address }))
    }

    /// Takes controllers from their drivers and binds them to vfio-pci: all of them or none.
    ///
    /// Controllers of one IOMMU group are bound in one call, since each blocks the others. One that is bound
    /// already stays so. Takes up to ten seconds a device. Does not load vfio-pci, and does not change who
    /// may open the group's node: that is the administrator's decision.
    ///
    /// # Errors
    /// A device is not there, not NVMe, not behind an IOMMU, in use (unless forced), or in a group with
    /// others; vfio-pci is not loaded; the caller is not root; the kernel did not do as asked. The machine
    /// is then as before, or the error says in what it differs.
    pub fn bind_all(&self, addresses: &[PciAddress], force: Force) -> Result<Vec<Bound>, BindError> {
        let mut devices = Vec::new();
        for (index, address) in addresses.iter().enumerate() {
            if addresses[..index].contains(address) {
                continue;
            }
            let device = self.controller(*address)?;
            let group = self.check(&device, addresses, force)?;
            devices.push((device, self.group_path(group)));
        }
        let mut taken = Vec::new();
        let mut bound = Vec::new();
        for (device, group_node) in devices {
            if !device.is_bound_to_vfio() {
                taken.push(self.before(&device));
                self.hand_over(device.address, VFIO_DRIVER, Holder::Vfio)
                    .map_err(|failure| self.take_back(device.address, failure, &taken))?;
            }
            bound.push(Bound { address: device.address, previous_driver: device.driver, group_node });
        }
        Ok(bound)
    }

    /// Gives the controller at `address` back to the kernel's own driver.
    ///
    /// One that the kernel's driver holds already stays as it is. Takes up to ten seconds.
    ///
    /// # Errors
    /// The device is not there, or driven by a process (unless forced), or no driver of the kernel took it.
    /// A forced restore of a device that a process does not let go of times out; the kernel finishes it when
    /// that process closes the device, and may keep this process from ending until then.
    pub fn restore(&self, address: PciAddress, force: Force) -> Result<Restored, BindError> {
        let device = self.controller(address)?;
        if device.is_bound_to_vfio() && force == Force::No {
            let usage = self.usage(&device)?;
            if !usage.is_empty() {
                return Err(BindError::InUse { address, usage });
            }
        }
        if let Some(driver) = device.driver.clone()
            && !device.is_bound_to_vfio()
            && self.pin(address) != VFIO_DRIVER
        {
            return Ok(Restored { address, driver });
        }
        match self.hand_over(address, NO_PIN, Holder::Kernel) {
            Ok(()) => {}
            Err(Failure { step: PROBING, source }) if source.kind() == io::ErrorKind::TimedOut => {
                return Err(BindError::NoKernelDriver { address });
            }
            Err(failure) => return Err(self.take_back(address, failure, &[self.before(&device)])),
        }
        // It was there a moment ago; whoever takes it away now is told so.
        let driver = self.device(address)?.driver.ok_or(BindError::NoKernelDriver { address })?;
        Ok(Restored { address, driver })
    }

    /// What keeps the group of `device` from being used, if only `together` are moved to vfio-pci.
    ///
    /// # Errors
    /// The device is not behind an IOMMU, or sysfs cannot be read.
    pub fn blockers(&self, device: &PciDevice, together: &[PciAddress]) -> Result<Vec<Blocker>, PciError> {
        let mut blockers = Vec::new();
        for member in &device.isolated_group()?.members {
            if together.contains(member) {
                continue;
            }
            let neighbour = self.device(*member)?;
            let Some(driver) = neighbour.driver else { continue };
            if !neighbour.class.is_pci_bridge() && !HARMLESS_DRIVERS.contains(&&*driver) {
                blockers.push(Blocker { address: *member, driver });
            }
        }
        Ok(blockers)
    }

    /// Everything that can be known before anything is changed. Answers the group's number.
    fn check(&self, device: &PciDevice, together: &[PciAddress], force: Force) -> Result<u32, BindError> {
        let address = device.address;
        let group = device.isolated_group()?.id;
        if force == Force::No && !device.is_bound_to_vfio() {
            let usage = self.usage(device)?;
            if !usage.is_empty() {
                return Err(BindError::InUse { address, usage });
            }
        }
        if !self.pci("drivers").join(VFIO_DRIVER).exists() {
            return Err(BindError::DriverMissing);
        }
        let blockers = self.blockers(device, together)?;
        if !blockers.is_empty() {
            return Err(BindError::GroupNotViable { address, group, blockers });
        }
        Ok(group)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingChanged => f.write_str("nothing changed on the machine"),
            Self::Changed { what } => f.write_str(what),
        }
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (driven by {})", self.address, self.driver)
    }
}

/// Blockers in a sentence.
pub(crate) struct Listed<'a>(pub &'a [Blocker]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("a device that another driver held");
        }
        for (index, blocker) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{blocker}")?;
        }
        Ok(())
    }
}

/// Drivers that do no DMA of their own, so that the kernel lets their devices share a group with ours.
const HARMLESS_DRIVERS: [&str; 4] = [VFIO_DRIVER, "pcieport", "pci-stub", "shpchp"];

#[cfg(test)]
mod tests;
