//! What uses a controller, so that nobody's disk is taken away.
//!
//! Each kind of use is found where the kernel shows it: mounts, swap, holders (RAID, device mapper), open
//! device nodes. What is mounted in another mount namespace, or claimed in a way that none of these show, is
//! found by asking for the disk exclusively: the kernel refuses that to all but the first.

use std::fmt;
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::blocks::{BlockDevice, KernelNodes};
use super::{Machine, PciDevice, PciError, Process, sysfs};

/// All uses of one device. Empty if nothing uses it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage(pub Vec<Use>);

/// One way in which a device is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Use {
    /// A file system is mounted.
    Mounted {
        /// The disk or partition.
        device: String,
        /// Where.
        at: PathBuf,
        /// Which kind of file system.
        kind: String,
    },
    /// The kernel swaps to it.
    Swap {
        /// The disk or partition.
        device: String,
    },
    /// Another block device is built on it: a RAID, a logical volume, an encrypted disk.
    Held {
        /// The disk or partition.
        device: String,
        /// What is built on it.
        holder: String,
    },
    /// A process has it open.
    Open {
        /// The device node.
        node: PathBuf,
        /// Who.
        process: Process,
    },
    /// The kernel says that it is claimed, but nothing that this process can see claims it: a mount in
    /// another mount namespace (a container's), for example.
    Claimed {
        /// The disk or partition.
        device: String,
    },
}

impl Usage {
    /// Whether nothing uses the device.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Machine {
    /// What uses `device` now: its disks if the kernel's driver holds it, the process that drives it if
    /// vfio-pci does.
    ///
    /// Open nodes are seen for those processes that the caller may look into (all, for root), claims if it
    /// may open the disk. A RAID that is not assembled and a file system that is not mounted are no use.
    ///
    /// # Errors
    /// sysfs cannot be read.
    pub fn usage(&self, device: &PciDevice) -> Result<Usage, PciError> {
        if device.is_bound_to_vfio() {
            return Ok(Usage(self.open_nodes(&self.vfio_nodes(device)?)));
        }
        let nodes = self.kernel_nodes(device.address)?;
        let mut uses = Vec::new();
        self.add_mounts(&nodes.blocks, &mut uses)?;
        self.add_swap(&nodes.blocks, &mut uses)?;
        for block in &nodes.blocks {
            uses.extend(
                block
                    .holders
                    .iter()
                    .map(|holder| Use::Held { device: block.name.clone(), holder: holder.clone() }),
            );
        }
        uses.extend(self.open_nodes(&self.device_nodes(&nodes)));
        if uses.is_empty() {
            self.add_claims(&nodes.blocks, &mut uses);
        }
        Ok(Usage(uses))
    }

    fn vfio_nodes(&self, device: &PciDevice) -> Result<Vec<PathBuf>, PciError> {
        let group = device.iommu_group.iter().flat_map(|group| {
            [self.group_path(group.id), self.dev("vfio").join(format!("noiommu-{}", group.id))]
        });
        // The newer way in, without groups: /dev/vfio/devices/vfio0.
        let names = sysfs::names(&self.device_path(device.address).join("vfio-dev"))?;
        Ok(group.chain(names.iter().map(|name| self.dev("vfio/devices").join(name))).collect())
    }

    fn device_nodes(&self, nodes: &KernelNodes) -> Vec<PathBuf> {
        let blocks = nodes.blocks.iter().map(|block| &block.name);
        blocks.chain(&nodes.characters).map(|name| self.dev(name)).collect()
    }

    fn open_nodes(&self, nodes: &[PathBuf]) -> Vec<Use> {
        let open = self.processes_with_open(nodes);
        open.into_iter().map(|(process, node)| Use::Open { node, process }).collect()
    }

    fn add_mounts(&self, blocks: &[BlockDevice], uses: &mut Vec<Use>) -> Result<(), PciError> {
        let table = sysfs::text(&self.proc("self/mountinfo"))?;
        for mount in table.lines().filter_map(Mount::parse) {
            // Some file systems (btrfs) have a number of their own and name the disk only as their source.
            let source = self.block_name(&mount.source);
            let on =
                |block: &&BlockDevice| block.number == mount.number || Some(&block.name) == source.as_ref();
            if let Some(block) = blocks.iter().find(on) {
                uses.push(Use::Mounted { device: block.name.clone(), at: mount.at, kind: mount.kind });
            }
        }
        Ok(())
    }

    fn add_swap(&self, blocks: &[BlockDevice], uses: &mut Vec<Use>) -> Result<(), PciError> {
        // A kernel without swap has no such file.
        if !self.proc("swaps").exists() {
            return Ok(());
        }
        // The first line is the heading. Swap files show up as the mount that they lie in.
        for line in sysfs::text(&self.proc("swaps"))?.lines().skip(1) {
            let source = line.split_whitespace().next().map(unescape);
            let name = source.and_then(|source| self.block_name(&source));
            if let Some(block) = blocks.iter().find(|block| Some(&block.name) == name.as_ref()) {
                uses.push(Use::Swap { device: block.name.clone() });
            }
        }
        Ok(())
    }

    fn add_claims(&self, blocks: &[BlockDevice], uses: &mut Vec<Use>) {
        for block in blocks {
            // Without O_CREAT, O_EXCL on a block device asks for sole use, as mount does.
            let claim =
                fs::OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(self.dev(&block.name));
            // Any other error (no permission, no node) says nothing about use.
            if claim.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) {
                uses.push(Use::Claimed { device: block.name.clone() });
            }
        }
    }

    /// The block device's name that a path like `/dev/nvme0n1p1` or `/dev/disk/by-id/…` leads to.
    fn block_name(&self, path: &str) -> Option<String> {
        let below = Path::new(path).strip_prefix("/dev").ok()?;
        let node = self.dev(below);
        let node = fs::canonicalize(&node).unwrap_or(node);
        Some(node.file_name()?.to_string_lossy().into_owned())
    }
}

/// A line of mountinfo: ID, parent, major:minor, root, mount point, options, optional fields, a hyphen, kind
/// of file system, source, more options.
struct Mount {
    number: String,
    at: PathBuf,
    kind: String,
    source: String,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(' ');
        let number = fields.nth(2)?.to_owned();
        let at = PathBuf::from(unescape(fields.nth(1)?));
        let mut after = fields.skip_while(|field| *field != "-").skip(1);
        Some(Self { number, at, kind: after.next()?.to_owned(), source: unescape(after.next()?) })
    }
}

/// Undoes the kernel's escapes for white space and backslashes: `\040` is a space.
fn unescape(text: &str) -> String {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let octal = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok();
        match tail.get(..3).filter(|_| *first == b'\\').and_then(octal) {
            Some(byte) => {
                plain.push(byte);
                rest = &tail[3..];
            }
            None => {
                plain.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("nothing uses it");
        }
        for (index, one) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{one}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mounted { device, at, kind } => {
                write!(f, "{device} is mounted on {} ({kind})", at.display())
            }
            Self::Swap { device } => write!(f, "{device} is swap space"),
            Self::Held { device, holder } => write!(f, "{device} is part of {holder}"),
            Self::Open { node, process } => write!(f, "{process} has {} open", node.display()),
            Self::Claimed { device } => {
                write!(f, "{device} is claimed by something not visible from here (a container's mount?)")
            }
        }
    }
}

#[cfg(test)]
mod tests;
