//! `nvme-perf bind` and `nvme-perf unbind`: handing a controller from the kernel's driver to vfio-pci, and
//! back.

use std::fs::OpenOptions;
use std::path::Path;

use clap::Args;
use doorbell::pci::{self, Force, PciAddress, VFIO_DRIVER};

use crate::output::Output;

/// Which controller, and whether to ask first.
#[derive(Args, Clone, Debug)]
pub(crate) struct BindOptions {
    /// The controller's PCI address, such as 0000:01:00.0 (see `nvme-perf list`).
    #[arg(value_name = "ADDRESS")]
    address: PciAddress,

    /// Take it even if something uses it: mounted file systems on it are lost.
    #[arg(long)]
    force: bool,
}

/// Which controller, and whether to wait for who drives it.
#[derive(Args, Clone, Debug)]
pub(crate) struct UnbindOptions {
    /// The controller's PCI address, such as 0000:01:00.0 (see `nvme-perf list`).
    #[arg(value_name = "ADDRESS")]
    address: PciAddress,

    /// Give it back even if a process drives it. If that does not let go within 5 s, unbind again later.
    #[arg(long)]
    force: bool,
}

/// Binds a controller to vfio-pci.
pub(crate) fn bind(options: &BindOptions) -> anyhow::Result<()> {
    let bound = pci::bind(options.address, forced(options.force))?;
    let address = bound.address;
    let mut text = match bound.previous_driver.as_deref() {
        Some(VFIO_DRIVER) => format!("{address} was bound to {VFIO_DRIVER} already\n"),
        Some(driver) => format!("{address} is bound to {VFIO_DRIVER} now, before to {driver}\n"),
        None => format!("{address} is bound to {VFIO_DRIVER} now, before to nothing\n"),
    };
    text.push_str(&format!(
        "  try it: nvme-perf run {address}\n  give it back: nvme-perf unbind {address}\n"
    ));
    if let Some(hint) = permission_hint(&bound.group_node) {
        text.push_str(&hint);
    }
    Output::standard().write(&text)
}

/// Gives a controller back to the kernel.
pub(crate) fn unbind(options: &UnbindOptions) -> anyhow::Result<()> {
    let restored = pci::restore(options.address, forced(options.force))?;
    Output::standard()
        .write(&format!("{} is held by the kernel's {} driver\n", restored.address, restored.driver))
}

fn forced(force: bool) -> Force {
    if force { Force::Yes } else { Force::No }
}

/// What an administrator types to let others use the controller. Nothing if the node is not there yet.
fn permission_hint(node: &Path) -> Option<String> {
    let opened = OpenOptions::new().read(true).write(true).open(node);
    let is_root = nix::unistd::geteuid().is_root();
    match opened {
        Ok(_) if !is_root => None,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        _ => Some(format!("  to use it without root: sudo chown \"$USER\" {}\n", node.display())),
    }
}

/// What stands below the options of `bind`.
pub(crate) const BIND_HELP: &str = "\
Examples:
  nvme-perf list
  sudo nvme-perf bind 0000:01:00.0

Until `nvme-perf unbind` or the next boot, the kernel does not see the controller's disks. A controller with a
mounted file system, swap, or a RAID or LVM on it is refused.
";

/// What stands below the options of `unbind`.
pub(crate) const UNBIND_HELP: &str = "\
Examples:
  sudo nvme-perf unbind 0000:01:00.0

A controller that a process drives is refused. One that the kernel holds already stays as it is.
";
