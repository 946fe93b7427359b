//! The block devices that the kernel's nvme driver made of a controller.
//!
//! With multipath the kernel calls the disk `nvme0n1` and this controller's hidden path to it `nvme0c1n1`:
//! the first number is then the subsystem's and not the controller's, and the disk lies elsewhere in sysfs.

use super::{Machine, PciAddress, PciError, sysfs};

/// What the kernel made of one controller.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct KernelNodes {
    /// Disks and their partitions.
    pub blocks: Vec<BlockDevice>,
    /// Character devices below `/dev`: the controller's and the generic ones of its namespaces.
    pub characters: Vec<String>,
}

/// A disk or a partition.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BlockDevice {
    /// Its name in `/sys/class/block` and `/dev`.
    pub name: String,
    /// Its number as `major:minor`, as mountinfo writes it.
    pub number: String,
    /// What is built on it: `md0`, `dm-3`.
    pub holders: Vec<String>,
}

impl Machine {
    /// The nodes that the kernel made of the controller at `address`; none if it does not drive it.
    pub(super) fn kernel_nodes(&self, address: PciAddress) -> Result<KernelNodes, PciError> {
        let mut nodes = KernelNodes::default();
        let folder = self.device_path(address).join("nvme");
        for controller in sysfs::names(&folder)? {
            for name in sysfs::names(&folder.join(&controller))? {
                if let Some(disk) = disk_of(&name) {
                    self.add_disk(&disk, &mut nodes.blocks)?;
                } else if is_generic(&name) {
                    nodes.characters.push(name);
                }
            }
            nodes.characters.push(controller);
        }
        Ok(nodes)
    }

    fn add_disk(&self, disk: &str, blocks: &mut Vec<BlockDevice>) -> Result<(), PciError> {
        self.add_block(disk, blocks)?;
        for part in sysfs::names(&self.block(disk))? {
            if self.block(disk).join(&part).join("partition").exists() {
                self.add_block(&part, blocks)?;
            }
        }
        Ok(())
    }

    fn add_block(&self, name: &str, blocks: &mut Vec<BlockDevice>) -> Result<(), PciError> {
        let folder = self.block(name);
        // A path whose disk is not there (yet, or any more) serves nobody.
        if !folder.exists() || blocks.iter().any(|block| block.name == name) {
            return Ok(());
        }
        let mut holders = sysfs::names(&folder.join("holders"))?;
        for holder in &mut holders {
            // Device mapper's own names say more: "vg0-home" rather than "dm-3".
            if let Ok(title) = sysfs::text(&self.block(&*holder).join("dm/name")) {
                *holder = format!("{title} ({holder})");
            }
        }
        blocks.push(BlockDevice {
            name: name.to_owned(),
            number: sysfs::text(&folder.join("dev"))?,
            holders,
        });
        Ok(())
    }
}

/// The disk that `name` is or leads to: `nvme0n1` for itself and for the path `nvme0c3n1`.
fn disk_of(name: &str) -> Option<String> {
    let (instance, rest) = digits(name.strip_prefix("nvme")?)?;
    let rest = match rest.strip_prefix('c') {
        Some(path) => digits(path)?.1,
        None => rest,
    };
    let (namespace, end) = digits(rest.strip_prefix('n')?)?;
    end.is_empty().then(|| format!("nvme{instance}n{namespace}"))
}

/// Whether `name` is a generic character device: `ng0n1`.
fn is_generic(name: &str) -> bool {
    name.strip_prefix("ng").and_then(digits).is_some_and(|(_, rest)| rest.starts_with('n'))
}

/// Leading digits (at least one), and what follows them.
fn digits(text: &str) -> Option<(&str, &str)> {
    let end = text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

#[cfg(test)]
mod tests {
    use super::super::fake::FakeMachine;
    use super::*;

    #[test]
    fn names_lead_to_disks() {
        for (name, disk) in [
            ("nvme0n1", Some("nvme0n1")),
            ("nvme12c3n45", Some("nvme12n45")),
            ("nvme0n1p2", None),
            ("nvme0", None),
            ("nvme0c1", None),
            ("nvmen1", None),
            ("ng0n1", None),
            ("hwmon1", None),
        ] {
            assert_eq!(disk_of(name).as_deref(), disk, "{name}");
        }
    }

    #[test]
    fn a_multipath_disk_and_its_partitions_are_found_through_the_hidden_path() {
        let fake = FakeMachine::new();
        let address = fake.controller("0000:05:00.0", Some("nvme"), Some(1));
        fake.write("sys/bus/pci/devices/0000:05:00.0/nvme/nvme1/nvme0c1n1/ana_state", "optimized\n");
        fake.write("sys/bus/pci/devices/0000:05:00.0/nvme/nvme1/ng0n1/dev", "238:0\n");
        fake.block("nvme0n1", "259:0");
        fake.partition("nvme0n1", "nvme0n1p1", "259:1");
        let nodes = fake.machine().kernel_nodes(address).expect("readable");
        let names: Vec<_> = nodes.blocks.iter().map(|block| (&*block.name, &*block.number)).collect();
        assert_eq!(names, [("nvme0n1", "259:0"), ("nvme0n1p1", "259:1")]);
        assert_eq!(nodes.characters, ["ng0n1", "nvme1"]);
    }
}
