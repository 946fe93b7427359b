//! The QEMU process: found, started, and never left behind.
//!
//! It dies with the launcher in every case. If the launcher ends in an orderly way or by an error, dropping
//! [`Qemu`] kills it. If the launcher is killed, the kernel kills it: the launcher starts itself once more,
//! and that process asks to be killed with its parent before it becomes QEMU. (Asking between fork and exec
//! would need unsafe code.)

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::getppid;

use crate::command_line::Accelerator;
use crate::programs;

/// A running QEMU. Dropping it kills it and waits until it is gone.
#[derive(Debug)]
pub struct Qemu {
    child: Child,
}

impl Qemu {
    /// Starts QEMU with these arguments. What it prints goes to `log`; `inherited` are the descriptors that
    /// its arguments name, which the caller closes afterwards. The calling thread has to live as long as QEMU
    /// shall.
    pub fn start(arguments: &[String], log: &Path, inherited: &[BorrowedFd<'_>]) -> Result<Self> {
        let program = find()?;
        let output = File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
        for descriptor in inherited {
            fcntl(descriptor.as_fd(), FcntlArg::F_SETFD(FdFlag::empty()))
                .context("cannot pass a channel on")?;
        }
        let child = Command::new("/proc/self/exe")
            .arg(EXEC_QEMU)
            .arg(std::process::id().to_string())
            .arg(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            // A Ctrl-C is for the launcher, which ends QEMU; it is not for QEMU itself.
            .process_group(0)
            .spawn()
            .context("cannot start QEMU")?;
        Ok(Self { child })
    }

    /// Waits for it to end by itself.
    pub fn wait(&mut self, patience: Duration) -> Result<Option<ExitStatus>> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // Both fail only when it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where QEMU is.
pub fn find() -> Result<PathBuf> {
    programs::find(QEMU).with_context(|| {
        format!("QEMU is not installed ({QEMU} is not in PATH): sudo apt-get install {PACKAGE}")
    })
}

/// The process that becomes QEMU: the launcher's process number, QEMU's path, its arguments.
pub fn exec_qemu(arguments: Vec<OsString>) -> ExitCode {
    let [parent, program, arguments @ ..] = &arguments[..] else { return ExitCode::FAILURE };
    // The launcher waits for signals in a thread and has them blocked, which exec would pass on.
    let prepared = prctl::set_pdeathsig(Signal::SIGKILL).and_then(|()| SigSet::all().thread_unblock());
    // If the launcher died before the request was made, nobody would kill this process.
    let orphan = parent.to_str().and_then(|parent| parent.parse().ok()) != Some(getppid().as_raw());
    if prepared.is_err() || orphan {
        return ExitCode::FAILURE;
    }
    let error = Command::new(program).args(arguments).exec();
    eprintln!("cannot execute {}: {error}", PathBuf::from(program).display());
    ExitCode::FAILURE
}

/// KVM if it really works here: the device can be opened and the processor can virtualize. In a virtual
/// machine without nested virtualization the device may open all the same, and the guest then hangs.
pub fn accelerator() -> Accelerator {
    let open = File::options().read(true).write(true).open("/dev/kvm").is_ok();
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    if open && can_virtualize(&processor) { Accelerator::Kvm } else { Accelerator::Tcg }
}

fn can_virtualize(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().filter(|line| line.starts_with("flags"));
    flags.flat_map(str::split_whitespace).any(|flag| flag == "vmx" || flag == "svm")
}

/// The first argument that makes this program become QEMU. It is not for users.
pub const EXEC_QEMU: &str = "__exec-qemu";

const QEMU: &str = "qemu-system-x86_64";
const PACKAGE: &str = "qemu-system-x86";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kvm_needs_a_processor_that_says_it_can() {
        assert!(can_virtualize("processor\t: 0\nflags\t\t: fpu vmx sse\n"));
        assert!(can_virtualize("flags\t\t: fpu svm\n"));
        assert!(!can_virtualize("model name\t: vmx svm\nflags\t\t: fpu svm_lock hypervisor\n"));
    }
}
