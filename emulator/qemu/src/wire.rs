//! What the launcher and the guest say to each other.
//!
//! The plan is a file in the guest's first file system. Once the guest runs, both sides send messages on the
//! control channel, one JSON object a line:
//!
//! | from  | message  | then                                                                            |
//! |-------|----------|---------------------------------------------------------------------------------|
//! | guest | `Ready`  | modules are loaded and devices bound; it waits                                  |
//! | host  | `Go`     | the command is started                                                          |
//! | guest | `Exited` | the command ended and all it wrote was sent; it waits for the launcher to end it |
//! | guest | `Failed` | instead of either: the machine is not as the plan says                          |

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use crate::machine::PciAddress;

/// What the guest is to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The files of the modules, in the order in which they are loaded.
    pub modules: Vec<String>,
    /// The controllers to bind to `vfio-pci`.
    pub vfio: Vec<PciAddress>,
    /// The controllers that the kernel keeps, and how many namespaces each has.
    pub kernel: Vec<(PciAddress, usize)>,
    /// The number of huge pages to find, by size in KiB.
    pub hugepages: Vec<(u64, u64)>,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// The command's environment.
    pub environment: Vec<(String, String)>,
    /// The command's working directory.
    pub directory: String,
    /// Gives the command a terminal of this size instead of separate streams.
    pub terminal: Option<TerminalSize>,
}

/// The size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Its height.
    pub rows: u16,
    /// Its width.
    pub columns: u16,
}

/// A message from the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromGuest {
    /// The machine is as the plan says.
    Ready,
    /// It is not, for this reason.
    Failed(String),
    /// The command has ended.
    Exited {
        /// Its exit status, or 128 plus the signal that ended it.
        status: u8,
        /// The bytes it wrote to its standard output. As many have to arrive before the launcher ends.
        stdout: u64,
        /// The bytes it wrote to its standard error.
        stderr: u64,
    },
}

/// A message to the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGuest {
    /// Start the command.
    Go,
}

/// Sends one message.
pub fn send(mut channel: impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    channel.write_all(&line)
}

/// The path of the plan in the guest's first file system.
pub const PLAN: &str = "/doorbell/plan.json";

/// A channel between launcher and guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// The command's standard input.
    Stdin,
    /// The command's standard output.
    Stdout,
    /// The command's standard error.
    Stderr,
    /// Messages.
    Control,
    /// QEMU's monitor, for programs in the guest.
    Qmp,
}

impl Channel {
    /// The name of the channel's port. In the guest it is found as `/dev/virtio-ports/NAME`.
    pub fn port(self) -> &'static str {
        match self {
            Self::Stdin => "doorbell.stdin",
            Self::Stdout => "doorbell.stdout",
            Self::Stderr => "doorbell.stderr",
            Self::Control => "doorbell.control",
            Self::Qmp => "doorbell.qmp",
        }
    }
}
