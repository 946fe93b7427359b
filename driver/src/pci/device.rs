//! One PCI device, read from sysfs.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::{Machine, PciAddress, VFIO_DRIVER, sysfs};

/// A PCI device as sysfs described it at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciDevice {
    /// Where it is.
    pub address: PciAddress,
    /// PCI vendor ID.
    pub vendor_id: u16,
    /// PCI device ID.
    pub device_id: u16,
    /// What it is.
    pub class: PciClass,
    /// The driver that holds it, if one does.
    pub driver: Option<String>,
    /// The devices that the IOMMU cannot tell apart from it, itself included; `None` without an IOMMU.
    pub iommu_group: Option<IommuGroup>,
    /// The NUMA node that it hangs on, where the machine has several.
    pub numa_node: Option<u32>,
    /// The size of its first memory window in bytes, 0 if it has none.
    pub bar0_bytes: u64,
}

/// A PCI class code: base class, subclass and programming interface, 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PciClass(pub u32);

/// The devices that an IOMMU isolates only together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IommuGroup {
    /// The group's number, as in `/dev/vfio/12`.
    pub id: u32,
    /// All its devices, by address.
    pub members: Vec<PciAddress>,
    /// What the group isolates.
    pub isolation: Isolation,
}

/// Whether a group's devices are behind an IOMMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// They are.
    Iommu,
    /// They are not: the group was made up by VFIO's no-IOMMU mode.
    Nothing,
}

/// Why a device could not be found or described.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PciError {
    /// Not a PCI address.
    #[error(
        "`{text}` is not a PCI address: write domain:bus:device.function in hexadecimal, such as \
         0000:01:00.0 or 01:00.0"
    )]
    BadAddress {
        /// What was given.
        text: String,
    },
    /// Nothing there.
    #[error("there is no PCI device {address}; `nvme-perf list` shows the NVMe controllers")]
    NotFound {
        /// Where nothing is.
        address: PciAddress,
    },
    /// Another kind of device.
    #[error(
        "{address} is not an NVMe controller, it is {class}; `nvme-perf list` shows the NVMe controllers"
    )]
    NotNvme {
        /// Where it is.
        address: PciAddress,
        /// What it is.
        class: PciClass,
    },
    /// The device is not behind an IOMMU.
    #[error(
        "{address} is not behind an IOMMU, so it cannot be given to a program safely: enable VT-d or AMD-Vi \
         in the firmware's setup and boot with `intel_iommu=on` (Intel) on the kernel's command line; VFIO's \
         no-IOMMU mode is not supported"
    )]
    NoIommu {
        /// Where it is.
        address: PciAddress,
    },
    /// The kernel's description cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The kernel's description is not of the known form.
    #[error("{} says `{text}`, which is not of the form expected there", path.display())]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// What stands in it.
        text: String,
    },
}

impl PciDevice {
    /// Whether it is an NVMe controller with NVM Express' register interface.
    #[must_use]
    pub fn is_nvme(&self) -> bool {
        self.class == PciClass::NVME
    }

    /// Whether vfio-pci holds it, so that a program may open it.
    #[must_use]
    pub fn is_bound_to_vfio(&self) -> bool {
        self.driver.as_deref() == Some(VFIO_DRIVER)
    }

    /// Its group, if that is one of an IOMMU.
    ///
    /// # Errors
    /// [`PciError::NoIommu`].
    pub fn isolated_group(&self) -> Result<&IommuGroup, PciError> {
        match &self.iommu_group {
            Some(group) if group.isolation == Isolation::Iommu => Ok(group),
            _ => Err(PciError::NoIommu { address: self.address }),
        }
    }
}

impl Machine {
    /// All NVMe controllers, by address, whoever holds them.
    ///
    /// A device that disappears meanwhile is left out.
    ///
    /// # Errors
    /// sysfs cannot be read.
    pub fn scan(&self) -> Result<Vec<PciDevice>, PciError> {
        let mut controllers = Vec::new();
        for name in sysfs::names(&self.pci("devices"))? {
            let Ok(address) = name.parse::<PciAddress>() else { continue };
            match self.device(address) {
                Ok(device) if device.is_nvme() => controllers.push(device),
                Ok(_) => {}
                Err(_) if !self.device_path(address).exists() => {}
                Err(error) => return Err(error),
            }
        }
        controllers.sort_unstable_by_key(|device| device.address);
        Ok(controllers)
    }

    /// The device at `address`, of whatever kind.
    ///
    /// # Errors
    /// There is none, or sysfs cannot be read.
    pub fn device(&self, address: PciAddress) -> Result<PciDevice, PciError> {
        let folder = self.device_path(address);
        if !folder.exists() {
            return Err(PciError::NotFound { address });
        }
        // IDs have 16 bits; the kernel prints no more.
        let id = |name: &str| sysfs::hex(&folder.join(name)).map(|id| (id & 0xFFFF) as u16);
        // Machines without NUMA say -1, and some kernels have no such file.
        let node = sysfs::text(&folder.join("numa_node")).ok();
        Ok(PciDevice {
            address,
            vendor_id: id("vendor")?,
            device_id: id("device")?,
            class: PciClass(sysfs::hex(&folder.join("class"))?),
            driver: sysfs::link_name(&folder.join("driver"))?,
            iommu_group: self.iommu_group(address)?,
            numa_node: node.and_then(|node| node.parse().ok()),
            bar0_bytes: sysfs::text(&folder.join("resource")).map_or(0, |table| first_window_bytes(&table)),
        })
    }

    /// The NVMe controller at `address`.
    ///
    /// # Errors
    /// There is none, or it is another kind of device, or sysfs cannot be read.
    pub fn controller(&self, address: PciAddress) -> Result<PciDevice, PciError> {
        let device = self.device(address)?;
        if device.is_nvme() { Ok(device) } else { Err(PciError::NotNvme { address, class: device.class }) }
    }

    fn iommu_group(&self, address: PciAddress) -> Result<Option<IommuGroup>, PciError> {
        let link = self.device_path(address).join("iommu_group");
        let Some(number) = sysfs::link_name(&link)? else { return Ok(None) };
        let Ok(id) = number.parse() else {
            return Err(PciError::Malformed { path: link, text: number });
        };
        let members = sysfs::names(&link.join("devices"))?;
        // Only VFIO itself names a group, and a made-up one it names like this.
        let made_up = sysfs::text(&link.join("name")).is_ok_and(|name| name == "vfio-noiommu");
        Ok(Some(IommuGroup {
            id,
            members: members.iter().filter_map(|name| name.parse().ok()).collect(),
            isolation: if made_up { Isolation::Nothing } else { Isolation::Iommu },
        }))
    }
}

impl PciClass {
    /// An NVMe controller with NVM Express' register interface (PCIe Transport 1.0, 3.8.1.1.1).
    pub const NVME: Self = Self(0x01_0802);

    /// Whether it is a bridge between PCI buses, which never stands in the way of its IOMMU group.
    #[must_use]
    pub const fn is_pci_bridge(self) -> bool {
        self.0 >> 8 == 0x0604
    }

    const fn name(self) -> &'static str {
        match (self.0 >> 8, self.0 & 0xFF) {
            (0x0108, 0x02) => "an NVMe controller",
            (0x0108, 0x03) => "an NVMe administrative controller",
            (0x0108, _) => "a non-volatile memory controller without NVMe's registers",
            (0x0106, _) => "a SATA controller",
            (0x0104, _) => "a RAID controller",
            (0x0100..=0x01FF, _) => "a storage controller",
            (0x0200..=0x02FF, _) => "a network controller",
            (0x0300..=0x03FF, _) => "a display controller",
            (0x0400..=0x04FF, _) => "a multimedia device",
            (0x0600..=0x06FF, _) => "a bridge",
            (0x0C03, _) => "a USB controller",
            _ => "another kind of device",
        }
    }
}

impl fmt::Display for PciClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (class {:06x})", self.name(), self.0)
    }
}

/// The length of the first line of a `resource` table: first address, last address, flags.
fn first_window_bytes(table: &str) -> u64 {
    let mut numbers = table
        .split_whitespace()
        .map(|word| word.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok()));
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(first), Some(last)) if last > first => (last - first).saturating_add(1),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::FakeMachine;
    use super::*;

    #[test]
    fn scan_finds_the_controllers_and_what_holds_them() {
        let fake = FakeMachine::new();
        fake.controller("0000:02:00.0", Some("nvme"), Some(12));
        fake.controller("0000:01:00.0", None, None);
        fake.device("0000:00:1f.2", 0x01_0601, Some("ahci"), Some(3));
        let found = fake.machine().scan().expect("readable");
        assert_eq!(
            found.iter().map(|d| d.address.to_string()).collect::<Vec<_>>(),
            ["0000:01:00.0", "0000:02:00.0"]
        );
        let second = &found[1];
        assert_eq!((second.vendor_id, second.device_id), (0x1B36, 0x0010));
        assert_eq!(second.driver.as_deref(), Some("nvme"));
        assert_eq!(second.bar0_bytes, 0x4000);
        assert_eq!(second.numa_node, None);
        let group = second.isolated_group().expect("has an IOMMU");
        assert_eq!((group.id, group.members.as_slice()), (12, [second.address].as_slice()));
        assert!(found[0].isolated_group().expect_err("has none").to_string().contains("intel_iommu=on"));
    }

    #[test]
    fn a_machine_without_pci_has_no_controllers() {
        let folder = tempfile::tempdir().expect("temporary folder");
        assert_eq!(Machine::at(folder.path()).scan().expect("nothing to read"), []);
    }

    #[test]
    fn other_kinds_of_devices_are_named() {
        let fake = FakeMachine::new();
        let address = fake.device("0000:00:1f.2", 0x01_0601, Some("ahci"), None);
        let error = fake.machine().controller(address).expect_err("not NVMe").to_string();
        assert!(error.contains("a SATA controller (class 010601)"), "{error}");
        let absent = "0000:7f:00.0".parse().expect("address");
        assert!(matches!(fake.machine().controller(absent), Err(PciError::NotFound { .. })));
    }

    #[test]
    fn the_no_iommu_mode_is_recognised() {
        let fake = FakeMachine::new();
        let address = fake.controller("0000:01:00.0", Some("vfio-pci"), Some(0));
        fake.write("sys/kernel/iommu_groups/0/name", "vfio-noiommu\n");
        let device = fake.machine().controller(address).expect("there");
        assert!(matches!(device.isolated_group(), Err(PciError::NoIommu { .. })));
    }

    #[test]
    fn a_broken_description_is_an_error_and_never_a_panic() {
        let fake = FakeMachine::new();
        let address = fake.controller("0000:01:00.0", Some("nvme"), Some(1));
        fake.write("sys/bus/pci/devices/0000:01:00.0/vendor", "0xzzzz\n");
        assert!(matches!(fake.machine().device(address), Err(PciError::Malformed { .. })));
        for table in ["", "0x", "0x5 0x4", "0x0 0xffffffffffffffff", "nonsense", "0x10 nonsense"] {
            let _ = first_window_bytes(table);
        }
    }
}
