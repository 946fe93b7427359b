//! The guest's side: this program as the first process.
//!
//! It brings the machine into the state that the plan describes, says so, runs the command with its streams
//! on the channels, and reports how it ended. The launcher then ends QEMU. Errors that come before the
//! control channel is open are written to the console, and the first process ending makes the kernel panic,
//! which ends QEMU too.

mod command;
mod devices;
mod ports;
pub mod terminal;

use std::ffi::CStr;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::mount::{MsFlags, mount};

use crate::wire::{self, Channel, FromGuest, PLAN, Plan, ToGuest};

/// The first process. It never ends.
pub fn init() -> ! {
    if let Err(error) = start() {
        eprintln!("nvme-qemu: {error:#}");
        std::process::exit(1);
    }
    loop {
        nix::unistd::pause();
    }
}

/// Opens the control channel and reports everything that follows on it.
fn start() -> Result<()> {
    mount_file_systems()?;
    let plan = std::fs::read(PLAN).with_context(|| format!("there is no {PLAN}"))?;
    let plan: Plan = serde_json::from_slice(&plan).context("the plan cannot be read")?;
    load_modules(&plan.modules)?;
    let control = ports::open(Channel::Control)?;
    if let Err(error) = serve(&plan, &control) {
        wire::send(&control, &FromGuest::Failed(format!("{error:#}"))).context("cannot report a failure")?;
    }
    Ok(())
}

fn serve(plan: &Plan, control: &File) -> Result<()> {
    ports::link_all()?;
    check_hugepages(plan)?;
    devices::arrange(plan)?;
    wire::send(control, &FromGuest::Ready)?;
    let mut line = String::new();
    BufReader::new(control).read_line(&mut line)?;
    let ToGuest::Go = serde_json::from_str(&line).map_err(|_| anyhow!("the launcher said `{line}`"))?;
    let exited = command::run(plan)?;
    wire::send(control, &exited)?;
    Ok(())
}

/// Nothing is mounted on `/tmp` and `/run`, which are in memory anyway: programs may have come from there.
fn mount_file_systems() -> Result<()> {
    let plain = MsFlags::MS_NOSUID;
    for (kind, target, options) in [
        (c"devtmpfs", "/dev", None),
        (c"proc", "/proc", None),
        (c"sysfs", "/sys", None),
        (c"tmpfs", "/dev/shm", Some(c"mode=1777")),
        (c"devpts", "/dev/pts", Some(c"ptmxmode=666")),
        (c"hugetlbfs", "/dev/hugepages", None),
    ] {
        std::fs::create_dir_all(target).with_context(|| format!("cannot create {target}"))?;
        mount(Some(kind), target, Some(kind), plain, options as Option<&CStr>)
            .with_context(|| format!("cannot mount {target}"))?;
    }
    // What a device manager would do.
    for (link, target) in [
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "fd/0"),
        ("/dev/stdout", "fd/1"),
        ("/dev/stderr", "fd/2"),
    ] {
        std::os::unix::fs::symlink(target, link).with_context(|| format!("cannot create {link}"))?;
    }
    Ok(())
}

fn load_modules(modules: &[String]) -> Result<()> {
    for path in modules {
        let file = File::open(path).with_context(|| format!("cannot open {path}"))?;
        finit_module(&file, c"", ModuleInitFlags::empty()).with_context(|| format!("cannot load {path}"))?;
    }
    Ok(())
}

fn check_hugepages(plan: &Plan) -> Result<()> {
    for (size_kib, wanted) in &plan.hugepages {
        let file = format!("/sys/kernel/mm/hugepages/hugepages-{size_kib}kB/nr_hugepages");
        let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
        let reserved: u64 = text.trim().parse().with_context(|| format!("{file} has no number"))?;
        if reserved < *wanted {
            bail!(
                "the kernel reserved {reserved} of {wanted} pages of {size_kib} KiB; \
                 give the machine more memory"
            );
        }
    }
    Ok(())
}

/// Waits, looking again and again, until something is there.
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> Result<T> {
    let begun = std::time::Instant::now();
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if begun.elapsed() > PATIENCE {
            bail!("{what} did not appear within {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

fn write_to(file: impl AsRef<Path>, text: &str) -> Result<()> {
    let file = file.as_ref();
    std::fs::write(file, text).with_context(|| format!("cannot write `{text}` to {}", file.display()))
}

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);
