//! Why a device could not be opened through VFIO.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::pci::{Blocker, Listed, PciAddress, PciError, Process, VFIO_DRIVER};

/// Why a device could not be opened through VFIO.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VfioError {
    /// The device is not there, not NVMe or not behind an IOMMU.
    #[error(transparent)]
    Device(#[from] PciError),
    /// Another driver holds the device, or none.
    #[error("{address} is {}, not by {VFIO_DRIVER}: `sudo nvme-perf bind {address}`", HeldBy(driver))]
    NotBound {
        /// Where it is.
        address: PciAddress,
        /// Its driver.
        driver: Option<String>,
    },
    /// This process has it open.
    #[error("{address} is open in this process already")]
    AlreadyOpen {
        /// Where it is.
        address: PciAddress,
    },
    /// There is no VFIO in this kernel at the moment.
    #[error("{} is not there, so VFIO is not loaded: `sudo modprobe vfio-pci`", node.display())]
    NoVfio {
        /// What is missing.
        node: PathBuf,
    },
    /// The caller may not open the group.
    #[error(
        "no permission to open {0}; an administrator can give it once: `sudo chown $USER {0}`",
        node.display()
    )]
    NotPermitted {
        /// What cannot be opened.
        node: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Another process has the group, and the device with it.
    #[error("{address} is in use: {}", Holders(holders, node))]
    GroupHeld {
        /// Where it is.
        address: PciAddress,
        /// The node of its group.
        node: PathBuf,
        /// Who has it open, as far as the caller may see.
        holders: Vec<Process>,
    },
    /// Another device of the group is held by a driver that may do DMA.
    #[error(
        "the IOMMU group {group} of {address} is not viable because of {}: bind all its devices to \
         {VFIO_DRIVER}",
        Listed(blockers)
    )]
    GroupNotViable {
        /// Where the device is.
        address: PciAddress,
        /// Its group.
        group: u32,
        /// What stands in the way; empty if that is gone meanwhile.
        blockers: Vec<Blocker>,
    },
    /// The IOMMU cannot keep a device from forging interrupts.
    #[error(
        "the IOMMU of {address} cannot remap interrupts, so VFIO refuses it: enable interrupt remapping in \
         the firmware's setup, or, if the device is trusted, `echo 1 | sudo tee \
         /sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts`"
    )]
    UnsafeInterrupts {
        /// Where the device is.
        address: PciAddress,
    },
    /// Something else failed while the device was opened.
    #[error("opening {address} through VFIO failed")]
    Open {
        /// Where it is.
        address: PciAddress,
        /// What the crate said.
        #[source]
        source: vfio_ioctls::VfioError,
    },
    /// The device has no registers that NVMe could use.
    #[error("BAR0 of {address} has {bytes} bytes, too few for NVMe's registers and doorbells")]
    NoRegisters {
        /// Where it is.
        address: PciAddress,
        /// What it has.
        bytes: u64,
    },
    /// A step that the operating system refused after the device was opened.
    #[error("{action} of {address} failed")]
    Os {
        /// Where it is.
        address: PciAddress,
        /// Which step.
        action: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

struct HeldBy<'a>(&'a Option<String>);

impl fmt::Display for HeldBy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(driver) => write!(f, "held by {driver}"),
            None => f.write_str("held by no driver"),
        }
    }
}

struct Holders<'a>(&'a [Process], &'a PathBuf);

impl fmt::Display for Holders<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(holders, node) = self;
        match holders {
            [] => write!(f, "a process of another user has {} open (root can see which)", node.display()),
            [first, rest @ ..] => {
                write!(f, "{first}")?;
                rest.iter().try_for_each(|other| write!(f, " and {other}"))?;
                let have = if rest.is_empty() { "has" } else { "have" };
                write!(f, " {have} {} open", node.display())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> PciAddress {
        "0000:01:00.0".parse().expect("address")
    }

    #[test]
    fn a_held_group_names_who_holds_it() {
        let error = |holders: &[(u32, &str)]| {
            let process = |&(pid, command): &(u32, &str)| Process { pid, command: command.to_owned() };
            VfioError::GroupHeld {
                address: address(),
                node: "/dev/vfio/12".into(),
                holders: holders.iter().map(process).collect(),
            }
            .to_string()
        };
        assert_eq!(error(&[(7, "spdk")]), "0000:01:00.0 is in use: process 7 (spdk) has /dev/vfio/12 open");
        assert!(
            error(&[(7, "a"), (8, "b")]).ends_with("process 7 (a) and process 8 (b) have /dev/vfio/12 open")
        );
        assert!(error(&[]).contains("another user"));
    }

    #[test]
    fn a_device_of_the_kernel_says_how_to_bind_it() {
        for (driver, said) in [(Some("nvme"), "held by nvme"), (None, "held by no driver")] {
            let error =
                VfioError::NotBound { address: address(), driver: driver.map(str::to_owned) }.to_string();
            assert!(error.contains(said) && error.ends_with("`sudo nvme-perf bind 0000:01:00.0`"), "{error}");
        }
    }
}
