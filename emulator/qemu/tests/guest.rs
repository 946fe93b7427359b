//! The whole launcher against QEMU: what a command in the guest sees, and how every end of a run looks from
//! outside.
//!
//! Without QEMU these fail with the command that installs it.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A launcher whose temporary files go to `directory`.
fn launcher(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvme-qemu"));
    command.env("TMPDIR", directory).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.arg("run");
    command
}

fn with_input(mut command: Command, input: &[u8]) -> Output {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    // Dropping it is the end of the input.
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).unwrap().next().is_none()
}

/// Prints what a driver needs, on both streams, and writes a block through the kernel's driver.
const LOOK: &str = r"
    set -e
    for device in 0000:00:04.0 0000:00:05.0; do
        readlink /sys/bus/pci/devices/$device/driver /sys/bus/pci/devices/$device/iommu_group
    done
    ls /dev/vfio
    grep HugePages_Free /proc/meminfo
    printf 'raw\r\n\000\377' >&2
    printf hello > block
    dd if=block of=/dev/disk/by-path/pci-0000:00:05.0-nvme-1 bs=512 seek=3 2> /dev/null
    dd if=/dev/nvme0n1 of=/dev/null bs=4k count=5 iflag=direct 2> /dev/null
    exit 7
";

#[test]
fn a_command_finds_the_machine_that_was_described_and_answers_for_itself() {
    let directory = tempfile::tempdir().unwrap();
    let kept = tempfile::tempdir().unwrap();
    let (image, stats) = (kept.path().join("image"), kept.path().join("stats"));
    let mut command = launcher(directory.path());
    for program in ["readlink", "ls", "grep", "dd"] {
        command.args(["--with", program]);
    }
    command.arg("--image").arg(format!("0000:00:05.0={}", image.display()));
    command.arg(format!("--blockstats={}", stats.display())).args(["--", "sh", "-c", LOOK]);
    let output = command.output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{said}");

    let lines = text(&output.stdout);
    let lines: Vec<&str> = lines.lines().map(|line| line.rsplit('/').next().unwrap()).collect();
    let group = lines[1];
    assert_eq!((lines[0], lines[2]), ("vfio-pci", "nvme"), "{lines:?}");
    assert_eq!(lines[4..6], [group, "vfio"], "{lines:?}");
    assert!(lines[6].ends_with(" 256"), "{lines:?}");

    assert!(output.stderr.starts_with(b"raw\r\n\0\xFF0000:00:04.0 rd_operations=0 "), "{said}");
    let stats: serde_json::Value = serde_json::from_slice(&std::fs::read(stats).unwrap()).unwrap();
    let kernels = &stats["0000:00:05.0"];
    assert!(kernels["rd_bytes"].as_u64().unwrap() >= 5 * 4096, "{kernels}");
    assert!(kernels["wr_operations"].as_u64().unwrap() >= 1, "{kernels}");

    let stored = std::fs::read(image).unwrap();
    assert_eq!(stored.len(), 256 << 20);
    assert_eq!(&stored[3 * 512..3 * 512 + 5], b"hello");
    assert!(is_empty(directory.path()), "temporary files were left behind");
}

#[test]
fn bytes_pass_through_unchanged_in_both_directions() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = launcher(directory.path());
    command.args(["--with", "cat", "--", "sh", "-c", "cat; kill -USR1 $$"]);
    // Every value of a byte, and more than any buffer on the way holds.
    let input: Vec<u8> = (0..4_000_003_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let output = with_input(command, &input);
    assert_eq!(output.status.code(), Some(128 + Signal::SIGUSR1 as i32), "{}", text(&output.stderr));
    assert_eq!(output.stdout.len(), input.len());
    assert!(output.stdout == input, "bytes were changed");
}

#[test]
fn a_guest_that_crashes_is_an_error_with_its_first_words() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = launcher(directory.path());
    let output = command.args(["--", "sh", "-c", "echo c > /proc/sysrq-trigger"]).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the guest ended before the command did"), "{said}");
    assert!(said.contains("Kernel panic - not syncing: sysrq triggered crash"), "{said}");
    assert!(is_empty(directory.path()), "temporary files were left behind");
}

#[test]
fn a_command_that_takes_too_long_and_a_launcher_that_is_ended_leave_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = launcher(directory.path());
    let output = command.args(["--timeout", "1", "--", "sleep", "1000"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("--timeout: the command did not end in time"), "{output:?}");
    assert!(is_empty(directory.path()), "temporary files were left behind");

    let socket_directory = tempfile::tempdir().unwrap();
    let socket = socket_directory.path().join("qmp");
    let mut command = launcher(directory.path());
    let mut child = command.arg("--qmp").arg(&socket).args(["--", "sleep", "1000"]).spawn().unwrap();
    let mut qmp = connect(&socket, &mut child);
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(128 + Signal::SIGTERM as i32), "{output:?}");
    assert!(qmp.query_blockstats().is_err(), "QEMU is still there");
    assert!(is_empty(directory.path()), "temporary files were left behind");
}

/// Connects to QEMU's monitor as soon as there is one.
fn connect(socket: &Path, child: &mut Child) -> nvme_qemu::qmp::Qmp {
    let begun = Instant::now();
    loop {
        match nvme_qemu::qmp::Qmp::connect(socket, Duration::from_secs(30)) {
            Ok(qmp) => return qmp,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(60), "{error:#}"),
        }
        assert!(child.try_wait().unwrap().is_none(), "the launcher has ended");
        std::thread::sleep(Duration::from_millis(20));
    }
}
