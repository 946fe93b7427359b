//! Gives each controller to the driver that the plan says.
//!
//! The kernel's driver has taken all of them when this runs. Ours are unbound and given to `vfio-pci`. The
//! kernel's own are numbered anew where needed, so that the first of them is always `nvme0`, however the
//! kernel happened to count while it found them all at once.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::{wait_for, write_to};
use crate::machine::PciAddress;
use crate::wire::Plan;

/// Binds every controller of the plan.
pub fn arrange(plan: &Plan) -> Result<()> {
    for address in &plan.vfio {
        unbind(*address)?;
        bind(*address, "vfio-pci")?;
        check_vfio(*address)?;
    }
    if !(0..).zip(&plan.kernel).all(|(index, (address, _))| number(*address) == Some(index)) {
        for (address, _) in &plan.kernel {
            unbind(*address)?;
        }
        for (index, (address, _)) in (0..).zip(&plan.kernel) {
            bind(*address, "nvme")?;
            // Only when it has its number is the next one bound.
            let found = wait_for(&format!("the kernel's controller {address}"), || number(*address))?;
            ensure!(found == index, "the kernel calls {address} nvme{found} and not nvme{index}");
        }
    }
    for (address, namespaces) in &plan.kernel {
        link_namespaces(*address, *namespaces)?;
    }
    Ok(())
}

fn device(address: PciAddress) -> PathBuf {
    Path::new("/sys/bus/pci/devices").join(address.to_string())
}

/// Takes a controller away from the driver it has, if any.
fn unbind(address: PciAddress) -> Result<()> {
    let device = device(address);
    ensure!(device.exists(), "there is no PCI device {address}");
    let driver = device.join("driver");
    if driver.exists() {
        write_to(driver.join("unbind"), &address.to_string())?;
    }
    Ok(())
}

/// Gives a controller to this driver and to no other.
fn bind(address: PciAddress, driver: &str) -> Result<()> {
    write_to(device(address).join("driver_override"), driver)?;
    write_to("/sys/bus/pci/drivers_probe", &address.to_string())?;
    let bound = fs::read_link(device(address).join("driver")).ok();
    let name = bound.as_deref().and_then(Path::file_name);
    ensure!(name.is_some_and(|name| name == driver), "the driver {driver} did not take {address}");
    Ok(())
}

/// Without an IOMMU there is no group, and without a group VFIO offers nothing to open.
fn check_vfio(address: PciAddress) -> Result<()> {
    let group = fs::read_link(device(address).join("iommu_group"));
    let group = group.with_context(|| format!("{address} is behind no IOMMU"))?;
    let name = group.file_name().context("an IOMMU group has no number")?;
    let file = Path::new("/dev/vfio").join(name);
    ensure!(file.exists(), "{} is not there", file.display());
    Ok(())
}

/// The number N of a controller that the kernel calls `nvmeN`.
fn number(address: PciAddress) -> Option<u32> {
    let entries = fs::read_dir(device(address).join("nvme")).ok()?;
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix("nvme")?.parse().ok()).next()
}

/// Waits for a controller's namespaces and links them at `/dev/disk/by-path`, as a device manager would.
fn link_namespaces(address: PciAddress, count: usize) -> Result<()> {
    let what = format!("the {count} namespaces of {address}");
    let (controller, disks) = wait_for(&what, || {
        let controller = number(address)?;
        let prefix = format!("nvme{controller}n");
        let disks: Vec<String> = fs::read_dir("/sys/block")
            .ok()?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.starts_with(&prefix))
            .collect();
        (disks.len() >= count).then_some((controller, disks))
    })?;
    let directory = Path::new("/dev/disk/by-path");
    fs::create_dir_all(directory)?;
    for disk in disks {
        let nsid = fs::read_to_string(Path::new("/sys/block").join(&disk).join("nsid"));
        let nsid = nsid.with_context(|| format!("{disk} of nvme{controller} has no nsid"))?;
        wait_for(&format!("/dev/{disk}"), || Path::new("/dev").join(&disk).exists().then_some(()))?;
        symlink(format!("/dev/{disk}"), directory.join(format!("pci-{address}-nvme-{}", nsid.trim())))?;
    }
    Ok(())
}
