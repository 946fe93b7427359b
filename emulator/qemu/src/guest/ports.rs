//! The channels as the guest sees them: ports of a virtio device, each with a name.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::wait_for;
use crate::wire::Channel;

/// Opens the port of a channel. The ports appear one after the other once the module is loaded.
pub fn open(channel: Channel) -> Result<File> {
    let name = channel.port();
    let device = wait_for(&format!("the channel {name}"), || {
        let ports = ports().ok()?;
        ports.into_iter().find(|(port, _)| port == name).map(|(_, device)| device)
    })?;
    // The node is made a moment after the entry in sysfs.
    wait_for(&format!("{}", device.display()), || device.exists().then_some(()))?;
    let opened = File::options().read(true).write(true).open(&device);
    opened.with_context(|| format!("cannot open the channel {name} at {}", device.display()))
}

/// Makes `/dev/virtio-ports/NAME` for every port there is.
pub fn link_all() -> Result<()> {
    std::fs::create_dir_all(LINKS)?;
    for (name, device) in ports()? {
        std::os::unix::fs::symlink(&device, Path::new(LINKS).join(&name))
            .with_context(|| format!("cannot link the channel {name}"))?;
    }
    Ok(())
}

fn ports() -> Result<Vec<(String, PathBuf)>> {
    let mut ports = Vec::new();
    for entry in std::fs::read_dir("/sys/class/virtio-ports")? {
        let entry = entry?;
        let name = std::fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        // A port gets its name in a message of its own, after it has appeared.
        if !name.trim().is_empty() {
            ports.push((name.trim().to_owned(), Path::new("/dev").join(entry.file_name())));
        }
    }
    Ok(ports)
}

const LINKS: &str = "/dev/virtio-ports";
