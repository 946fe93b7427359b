//! The description of a machine: what a file in `machines/` says, checked.
//!
//! Three machines are built in, so that the program runs from any directory; a path to a `.toml` file of the
//! user's is as good. A key that is not known, a value out of range and two things that contradict each other
//! are refused here, with the machine's name: after [`Machine::load`] the description can be turned into a
//! command line without asking again.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Deserializer, de};

use crate::size::Size;

/// A virtual machine.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The name by which it was asked for; not part of the file.
    #[serde(skip)]
    pub name: String,
    /// One line for the list of machines.
    pub summary: String,
    /// The guest's memory.
    pub memory: Size,
    /// The number of virtual processors.
    pub vcpus: u32,
    /// Huge pages that the guest's kernel reserves when it boots.
    #[serde(default)]
    pub hugepages: Hugepages,
    /// The IOMMU in front of every controller.
    pub iommu: Iommu,
    /// Whether programs in the guest find QEMU's own monitor at `/dev/virtio-ports/doorbell.qmp`, to remove
    /// and add devices while they run.
    #[serde(default)]
    pub guest_qmp: bool,
    /// The NVMe controllers.
    #[serde(default, rename = "controller")]
    pub controllers: Vec<Controller>,
}

/// Numbers of huge pages, by their size.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hugepages {
    /// Pages of 2 MiB.
    #[serde(default, rename = "2M")]
    pub of_2_mib: u64,
    /// Pages of 1 GiB.
    #[serde(default, rename = "1G")]
    pub of_1_gib: u64,
}

/// The IOMMU of a machine.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Iommu {
    /// The number of address bits that it translates: 39 or 48, the two that QEMU's has.
    pub width: u8,
}

/// An NVMe controller. What is not given is as QEMU has it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Controller {
    /// Its address in the guest.
    pub address: PciAddress,
    /// Who drives it when the command starts.
    pub owner: Owner,
    /// The address of the root port that it is behind. Only such a controller can be removed and added.
    pub root_port: Option<PciAddress>,
    /// The serial number; the address if not given.
    pub serial: Option<String>,
    /// The number of I/O queue pairs that it offers.
    pub max_ioqpairs: Option<u32>,
    /// The largest transfer, as a power of two of 4 KiB; 0 is no limit.
    pub mdts: Option<u8>,
    /// The number of interrupt vectors.
    pub msix: Option<u16>,
    /// Its namespaces.
    #[serde(default, rename = "namespace")]
    pub namespaces: Vec<Namespace>,
}

/// Who drives a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Owner {
    /// A program, through VFIO: the controller is bound to `vfio-pci`.
    Vfio,
    /// The guest's kernel: its namespaces are block devices.
    Kernel,
}

/// A namespace of a controller.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Namespace {
    /// The number by which commands name it, from 1.
    pub nsid: u32,
    /// The size of a logical block in bytes.
    pub block: u32,
    /// The capacity. A backing file that was named with `--image` and exists already decides it instead.
    pub size: Size,
    /// What stores it.
    #[serde(default)]
    pub backing: Backing,
    /// Bytes of metadata for each block.
    #[serde(default)]
    pub metadata: u16,
    /// Whether metadata follows each block in the data buffer, instead of having a buffer of its own.
    #[serde(default)]
    pub metadata_extended: bool,
    /// The type of protection information, 0 to 3; 0 is none.
    #[serde(default)]
    pub protection: u8,
    /// Makes it a zoned namespace.
    pub zones: Option<Zones>,
}

/// What stores a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backing {
    /// A raw file on the host, sparse.
    #[default]
    File,
    /// Nothing: reads give zeroes, writes are forgotten, and both are as quick as they can be.
    NullCo,
}

/// The zones of a namespace.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Zones {
    /// The size of a zone.
    pub size: Size,
    /// How much of a zone can be written; all of it if not given.
    pub capacity: Option<Size>,
    /// The number of zones that can be open at once; 0 is no limit.
    #[serde(default)]
    pub max_open: u32,
    /// The number of zones that can be active at once; 0 is no limit.
    #[serde(default)]
    pub max_active: u32,
}

/// The address of a PCI function, such as `0000:00:04.0`. The domain is always 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciAddress {
    /// The bus.
    pub bus: u8,
    /// The device on the bus, below 32.
    pub device: u8,
    /// The function of the device, below 8.
    pub function: u8,
}

impl Machine {
    /// The machine of this name, or the one described by this file if the name ends in `.toml`.
    pub fn load(name: &str) -> Result<Self> {
        if is_file(name) {
            let text =
                std::fs::read_to_string(name).with_context(|| format!("cannot read machine {name}"))?;
            return Self::parse(name, &text);
        }
        let (name, text) = built_in(name)?;
        Self::parse(name, text)
    }

    /// Whether there can be such a machine: a file is not looked for.
    pub fn check_name(name: &str) -> Result<()> {
        if is_file(name) { Ok(()) } else { built_in(name).map(drop) }
    }

    /// The machines that are built in.
    pub fn built_in() -> Result<Vec<Self>> {
        BUILT_IN.iter().map(|(name, text)| Self::parse(name, text)).collect()
    }

    /// Reads and checks a description.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let described: Self =
            toml::from_str(text).with_context(|| format!("machine {name} is not described well"))?;
        let machine = Self { name: name.to_owned(), ..described };
        machine.check().with_context(|| format!("machine {name} cannot be built"))?;
        Ok(machine)
    }

    /// The controllers of one owner, in the order of the file.
    pub fn owned_by(&self, owner: Owner) -> impl Iterator<Item = &Controller> {
        self.controllers.iter().filter(move |controller| controller.owner == owner)
    }

    /// The root ports that controllers are behind, in the order in which buses are numbered.
    pub fn root_ports(&self) -> BTreeSet<PciAddress> {
        self.controllers.iter().filter_map(|controller| controller.root_port).collect()
    }

    /// Checks that files of this many bytes fit into the guest's memory. While it boots they are there twice.
    pub fn check_files(&self, bytes: usize) -> Result<()> {
        let free = self.memory.bytes() - self.reserved() - MEMORY_BESIDE_HUGEPAGES.bytes() / 2;
        let name = &self.name;
        ensure!(2 * bytes as u64 <= free, "{} MiB of files do not fit into machine {name}", bytes >> 20);
        Ok(())
    }

    /// The bytes that are reserved as huge pages.
    fn reserved(&self) -> u64 {
        let Hugepages { of_2_mib, of_1_gib } = self.hugepages;
        of_2_mib.saturating_mul(2 << 20).saturating_add(of_1_gib.saturating_mul(1 << 30))
    }

    fn check(&self) -> Result<()> {
        ensure!((1..=64).contains(&self.vcpus), "vcpus is {}, not 1 to 64", self.vcpus);
        ensure!(matches!(self.iommu.width, 39 | 48), "iommu.width is {}, not 39 or 48", self.iommu.width);
        let reserved = self.reserved();
        ensure!(
            self.memory.bytes() >= reserved.saturating_add(MEMORY_BESIDE_HUGEPAGES.bytes()),
            "memory is {}, but the huge pages need {} and the guest itself {MEMORY_BESIDE_HUGEPAGES}",
            self.memory,
            Size::from_bytes(reserved)
        );
        let mut taken = RESERVED_DEVICES.map(|device| PciAddress { bus: 0, device, function: 0 }).to_vec();
        taken.extend(self.root_ports());
        for port in self.root_ports() {
            ensure!(
                port.bus == 0 && port.function == 0,
                "root port {port} is not function 0 of a device on bus 00"
            );
            ensure!(
                !RESERVED_DEVICES.contains(&port.device),
                "root port {port} is an address that QEMU uses"
            );
        }
        for controller in &self.controllers {
            let address = controller.address;
            ensure!(!taken.contains(&address), "the address {address} is used twice");
            taken.push(address);
            self.check_place(controller).with_context(|| format!("controller {address}"))?;
            controller.check().with_context(|| format!("controller {address}"))?;
        }
        Ok(())
    }

    /// Buses behind root ports get their numbers from the firmware, in the order of the ports' addresses: a
    /// description that says otherwise would name a device that is not there.
    fn check_place(&self, controller: &Controller) -> Result<()> {
        let address = controller.address;
        ensure!(address.function == 0, "a controller is function 0 of its device");
        let Some(port) = controller.root_port else {
            ensure!(address.bus == 0, "bus {:02x} has to be behind a root_port", address.bus);
            return Ok(());
        };
        let bus = 1 + self.root_ports().iter().position(|known| *known == port).unwrap_or(0);
        ensure!(
            usize::from(address.bus) == bus && address.device == 0,
            "behind root port {port} the address will be 0000:{bus:02x}:00.0"
        );
        Ok(())
    }
}

impl Controller {
    fn check(&self) -> Result<()> {
        let mut nsids = BTreeSet::new();
        for namespace in &self.namespaces {
            let nsid = namespace.nsid;
            ensure!((1..=256).contains(&nsid), "nsid is {nsid}, not 1 to 256");
            ensure!(nsids.insert(nsid), "nsid {nsid} is used twice");
            namespace.check().with_context(|| format!("namespace {nsid}"))?;
        }
        ensure!(self.max_ioqpairs != Some(0), "max_ioqpairs is 0");
        ensure!(self.mdts.is_none_or(|mdts| mdts < 20), "mdts is a power of two, below 20");
        ensure!(self.msix.is_none_or(|vectors| (1..=2048).contains(&vectors)), "msix is not 1 to 2048");
        if let Some(serial) = &self.serial {
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
            ensure!(
                (1..=20).contains(&serial.len()) && serial.chars().all(plain),
                "serial is not 1 to 20 letters, digits, dots and dashes"
            );
        }
        Ok(())
    }
}

impl Namespace {
    fn check(&self) -> Result<()> {
        let block = u64::from(self.block);
        ensure!(
            (512..=65536).contains(&block) && block.is_power_of_two(),
            "a block of {block} bytes is not possible"
        );
        let size = self.size.bytes();
        ensure!(size > 0 && size.is_multiple_of(block), "size {} is not a multiple of the block", self.size);
        ensure!(self.protection <= 3, "protection is {}, not 0 to 3", self.protection);
        ensure!(self.protection == 0 || self.metadata >= 8, "protection needs metadata of at least 8 bytes");
        ensure!(self.metadata > 0 || !self.metadata_extended, "metadata_extended is set but metadata is 0");
        if let Some(zones) = self.zones {
            let zone = zones.size.bytes();
            ensure!(zone > 0 && zone.is_multiple_of(block), "a zone is not a multiple of the block");
            ensure!(zone <= size, "a zone is larger than the namespace");
            ensure!(
                zones.capacity.is_none_or(|capacity| capacity <= zones.size),
                "zone capacity exceeds the zone"
            );
        }
        Ok(())
    }
}

impl FromStr for PciAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is not a PCI address like 0000:00:04.0");
        let rest = text.strip_prefix("0000:").ok_or_else(bad)?;
        let (bus, rest) = rest.split_once(':').ok_or_else(bad)?;
        let (device, function) = rest.split_once('.').ok_or_else(bad)?;
        let number = |part: &str, digits: usize, limit: u8| {
            let plain = part.len() == digits && part.bytes().all(|byte| byte.is_ascii_hexdigit());
            u8::from_str_radix(part, 16).ok().filter(|value| plain && *value <= limit).ok_or_else(bad)
        };
        Ok(Self {
            bus: number(bus, 2, 0xFF)?,
            device: number(device, 2, 31)?,
            function: number(function, 1, 7)?,
        })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0000:{:02x}:{:02x}.{:x}", self.bus, self.device, self.function)
    }
}

impl<'de> Deserialize<'de> for PciAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl serde::Serialize for PciAddress {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Whether a machine of this name is described by a file of the user's.
fn is_file(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == "toml")
}

/// The name and the description of a machine that is built in.
fn built_in(name: &str) -> Result<(&'static str, &'static str)> {
    let Some(found) = BUILT_IN.iter().find(|(known, _)| *known == name) else {
        bail!(
            "there is no machine `{name}`, only {}; one of your own is given as --machine FILE.toml",
            BUILT_IN.map(|(known, _)| known).join(", ")
        )
    };
    Ok(*found)
}

const BUILT_IN: [(&str, &str); 3] = [
    ("default", include_str!("../machines/default.toml")),
    ("wide", include_str!("../machines/wide.toml")),
    ("fast", include_str!("../machines/fast.toml")),
];

/// Devices of bus 00 that are the machine's own: the host bridge, our channels, and the south bridge.
const RESERVED_DEVICES: [u8; 3] = [0, CHANNELS_DEVICE, 0x1F];

/// The device on bus 00 that carries the channels between launcher and guest.
pub const CHANNELS_DEVICE: u8 = 0x1E;

/// What the guest's kernel, its file system in memory and a program need beside huge pages.
const MEMORY_BESIDE_HUGEPAGES: Size = Size::from_bytes(384 << 20);

#[cfg(test)]
mod tests;
