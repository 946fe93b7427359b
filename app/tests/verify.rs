//! `nvme-perf verify` as its user sees it: good devices, bad ones, and images that are checked later.

mod program;

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use program::{fault_file, json, nvme_perf};
use serde_json::Value;

/// A namespace in a file: the target's name, and the file.
fn image(folder: &Path, size: &str, block_bytes: u32) -> (String, PathBuf) {
    let path = folder.join("image");
    (format!("emu:backend=file,path={},size={size},lba={block_bytes}", path.display()), path)
}

#[test]
fn every_block_of_every_format_is_right() {
    for (target, options) in [
        ("emu:size=16M,lba=512", &["--generations", "3"][..]),
        ("emu:size=16M,lba=4096", &["--bs", "4k", "--iodepth", "1"]),
        ("emu:size=16M,lba=512,mdts=64k", &["--bsrange", "512-1m", "--iodepth", "100"]),
        ("emu:size=16M,lba=512,noiob=24", &["--bsrange", "512-64k"]),
        ("emu:size=1M,lba=65536", &[]),
        ("emu:size=16M,mqes=2", &["--generations", "2"]),
    ] {
        let mut args = vec!["verify", target, "--output-format=json"];
        args.extend_from_slice(options);
        let result = json(&args);
        assert_eq!(
            (&result["right"], &result["wrong_blocks"]),
            (&Value::Bool(true), &Value::from(0)),
            "{target}"
        );
        assert_eq!(result["whole_blocks"], result["blocks"], "{target}");
    }
}

#[test]
fn a_device_that_forgets_is_found_out() {
    let run = nvme_perf(&["verify", "emu:backend=null,size=1M"]);
    assert_eq!(run.status, 1, "{run:?}");
    assert!(
        run.stdout.contains("2,048 of 2,048 blocks are wrong; the first is block 0: expected"),
        "{run:?}"
    );
}

#[test]
fn a_device_that_corrupts_is_found_out() {
    let (_folder, target) = fault_file("opcode = 0x01\nskip = 20\ncount = 1\naction = \"corrupt\"");
    let run = nvme_perf(&["verify", &target, "--size", "8m"]);
    assert_eq!(run.status, 1, "{run:?}");
    assert!(run.stdout.contains("blocks are wrong; the first is block"), "{run:?}");
}

#[test]
fn a_failed_transfer_is_an_error_that_names_the_blocks() {
    let (_folder, target) = fault_file("opcode = 0x02\nskip = 5\ncount = 1\naction = \"status:2/81\"");
    let run = nvme_perf(&["verify", &target]);
    assert_eq!(run.status, 1, "{run:?}");
    assert!(
        run.stderr.contains("the transfer of") && run.stderr.contains("unrecovered read error"),
        "{run:?}"
    );
    let (_folder, target) = fault_file("opcode = 0x01\nskip = 5\naction = \"drop\"");
    let run = nvme_perf(&["verify", &target, "--io_timeout", "300ms"]);
    assert_eq!(run.status, 1, "{run:?}");
    assert!(run.stderr.contains("completed nothing for 300 ms"), "{run:?}");
}

#[test]
fn an_image_can_be_checked_later_by_its_blocks_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let (target, path) = image(folder.path(), "4M", 512);
    let written = json(&["verify", &target, "--generations", "3", "--output-format=json"]);
    let checked = json(&["verify", &target, "--check-only", "--complete", "--output-format=json"]);
    assert_eq!(checked["generations"], written["generations"]);
    assert_eq!(checked["whole_blocks"], 8192);

    let other_seed = nvme_perf(&["verify", &target, "--check-only", "--seed", "1"]);
    assert_eq!(other_seed.status, 1, "{other_seed:?}");

    // A block of zeros, where every block must have been written.
    let file = OpenOptions::new().write(true).open(&path).expect("there");
    file.write_all_at(&[0; 512], 77 * 512).expect("writable");
    let run = nvme_perf(&["verify", &target, "--check-only"]);
    assert_eq!(run.status, 1, "{run:?}");
    assert!(run.stdout.contains("the first is block 77"), "{run:?}");

    // A flipped bit.
    file.write_all_at(b"!", 5 * 512 + 100).expect("writable");
    let run = nvme_perf(&["verify", &target, "--check-only"]);
    assert!(run.stdout.contains("1 of 8,192 blocks are wrong; the first is block 5"), "{run:?}");
}

#[test]
fn a_part_can_be_verified_and_the_rest_stays_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let (target, path) = image(folder.path(), "4M", 512);
    json(&["verify", &target, "--offset", "1m", "--size", "2m", "--output-format=json"]);
    let bytes = std::fs::read(&path).expect("there");
    assert!(bytes[..1 << 20].iter().chain(&bytes[3 << 20..]).all(|byte| *byte == 0));
    assert!(bytes[1 << 20..3 << 20].chunks(512).all(|block| block.starts_with(b"DBELLVFY")));
    let all = json(&["verify", &target, "--check-only", "--output-format=json"]);
    assert_eq!((&all["whole_blocks"], &all["zero_blocks"]), (&Value::from(4096), &Value::from(4096)));
    assert_eq!(nvme_perf(&["verify", &target, "--check-only", "--complete"]).status, 1);
}

#[test]
fn a_run_that_was_killed_leaves_old_and_new_blocks_and_no_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let (target, _) = image(folder.path(), "32M", 512);
    for millis in [300, 700, 1100] {
        let mut child = program::command(&["verify", &target, "--generations", "1000"])
            .stdout(Stdio::null())
            .spawn()
            .expect("the program starts");
        std::thread::sleep(Duration::from_millis(millis));
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        let run = nvme_perf(&["verify", &target, "--check-only"]);
        assert_eq!(run.status, 0, "after {millis} ms: {run:?}");
    }
}

#[test]
fn an_interrupt_ends_it_and_says_how_to_go_on() {
    let mut child = program::command(&["verify", "emu:size=256M", "--generations", "10000"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).expect("a small number"));
    std::thread::sleep(Duration::from_millis(1000));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("it runs");
    let mut text = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut text).expect("text");
    assert_eq!(child.wait().expect("it ends").code(), Some(1));
    assert!(text.contains("interrupted") && text.contains("--check-only"), "{text}");
}
