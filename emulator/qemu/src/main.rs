//! Entry: the launcher on the host, and `/init` in the guest, are the same program.

use std::ffi::OsString;
use std::process::ExitCode;

use nvme_qemu::{cli, guest, process};

fn main() -> ExitCode {
    if nix::unistd::getpid().as_raw() == 1 {
        guest::init()
    }
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next().as_ref().and_then(|first| first.to_str()) {
        Some(process::EXEC_QEMU) => process::exec_qemu(arguments.collect::<Vec<OsString>>()),
        Some(guest::terminal::SESSION) => guest::terminal::session(arguments.collect::<Vec<OsString>>()),
        _ => cli::main(),
    }
}
