//! QEMU machines with NVMe controllers, to run a command in.
//!
//! `nvme-qemu run -- COMMAND` boots a small virtual machine whose NVMe controllers are described by a file in
//! `machines/`, runs one command inside as root, and answers with the command's own output and exit status.
//! It needs no root, no network and no disk image: the guest's file system is made from the host's own
//! programs and lives in memory.
//!
//! ```text
//!   host                                             guest
//!   cli ── machine ── command_line ──▶ qemu ──boots──▶ kernel ── /init (this program: `guest`)
//!    │     kernel ── modules                                       loads modules, binds devices,
//!    │     programs ── image ── cpio ──▶ initramfs                 runs the command
//!    └── launch ◀── four virtio-serial channels: stdin, stdout, stderr, control ──▶
//! ```
//!
//! The parts depend on each other in that order. [`wire`] is what both sides say to each other on the control
//! channel; [`qmp`] talks to QEMU itself.
//!
//! What this does not do: it gives the guest no network, keeps nothing that the guest wrote except the
//! backing files that were named with `--image`, and knows nothing about Doorbell's driver.

pub mod backing;
pub mod blockstats;
pub mod cargo;
pub mod cli;
pub mod command_line;
pub mod cpio;
pub mod guest;
pub mod image;
pub mod kernel;
pub mod launch;
pub mod machine;
pub mod modules;
pub mod process;
pub mod programs;
pub mod progress;
pub mod qmp;
pub mod size;
pub mod streams;
pub mod wire;
