//! The tool end to end in QEMU's machines, and what others say about it: QEMU's own counters, and a checker
//! that reads the backing files afterwards.
//!
//! Without QEMU these fail with the command that installs it.

use std::path::Path;
use std::process::{Command, Output};

use doorbell_tests::{program, workspace};
use serde_json::Value;

/// Runs a command line of the shell in the machine, with programs from outside.
fn in_guest(options: &[&str], programs: &[&str], script: &str) -> Output {
    let mut launcher = Command::new(program("nvme-qemu", "nvme-qemu"));
    launcher.args(["run", "--profile", "dev", "--timeout", "10m"]).args(options);
    programs.iter().for_each(|name| {
        launcher.args(["--with", name]);
    });
    launcher.args(["--", "sh", "-e", "-c", script]);
    launcher.output().expect("the launcher runs")
}

/// What a run that must succeed printed.
fn succeed(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// Whole namespaces of 512-byte and of 4096-byte blocks, in transfers from one block to 1 MiB.
#[test]
fn what_verify_wrote_through_vfio_is_in_the_backing_files() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let images = [(1, 512, folder.path().join("one")), (2, 4096, folder.path().join("two"))];
    let named: Vec<String> = images
        .iter()
        .flat_map(|(nsid, _, file)| ["--image".to_owned(), format!("0000:00:04.0/{nsid}={}", file.display())])
        .collect();
    let options: Vec<&str> = named.iter().map(String::as_str).collect();
    let script = "for nsid in 1 2; do
            nvme-perf verify 0000:00:04.0 --allow-write --nsid $nsid --seed 90$nsid
        done";
    succeed(&in_guest(&options, &["nvme-perf"], script));
    for (nsid, block, file) in &images {
        let said = check(file, *block, 900 + nsid);
        let blocks = (128_u64 << 20) / u64::from(*block);
        assert!(said.contains(&format!("{blocks} blocks of {block} bytes are right")), "{said}");
    }
}

fn check(image: &Path, block: u32, seed: u32) -> String {
    let mut checker = Command::new(workspace().join("tests/check_image.py"));
    checker.arg(image).args(["--block", &block.to_string(), "--seed", &seed.to_string()]);
    succeed(&checker.output().expect("Python 3 is missing; install it with `sudo apt-get install python3`"))
}

/// Bring-up reads no block, so the two counts are equal.
#[test]
fn qemu_counts_as_many_reads_and_writes_as_the_tool() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (kind, counter, options) in
        [("randread", "rd_operations", ""), ("randwrite", "wr_operations", "--allow-write")]
    {
        let stats = folder.path().join(kind);
        let script = format!(
            "nvme-perf run 0000:00:04.0 --rw {kind} --bs 4k --iodepth 32 --number_ios 5000 {options} \
             --output-format=json"
        );
        let option = format!("--blockstats={}", stats.display());
        let output = in_guest(&[&option], &["nvme-perf"], &script);
        let result: Value = serde_json::from_str(&succeed(&output)).expect("JSON and nothing else");
        let job = &result["jobs"][0];
        let direction = if kind == "randread" { &job["read"] } else { &job["write"] };
        assert_eq!((&job["error"], &direction["total_ios"]), (&Value::from(0), &Value::from(5000)));
        let stats = std::fs::read(stats).expect("the launcher wrote what QEMU counted");
        let stats: Value = serde_json::from_slice(&stats).expect("JSON");
        let ours = &stats["0000:00:04.0"];
        assert_eq!(ours[counter], 5000, "{ours}");
        assert_eq!(
            ours["rd_operations"].as_u64().zip(ours["wr_operations"].as_u64()).map(|(r, w)| r + w),
            Some(5000)
        );
    }
}

/// The memory of the run is huge pages of the guest, in use while it lasts.
///
/// A process that is killed leaves an enabled controller and requests in flight; whoever comes next finds all
/// huge pages free again, and everything it writes is right.
#[test]
fn a_killed_process_costs_the_next_one_nothing() {
    let script = "
        free() { sed -n 's/^HugePages_Free: *//p' /proc/meminfo; }
        all=$(free)
        for round in 1 2 3; do
            nvme-perf run 0000:00:04.0 --rw randwrite --bs 4k --iodepth 64 --runtime 300s --allow-write \
                > /dev/null 2>&1 &
            until [ $(free) -lt $all ]; do kill -0 $!; done
            kill -9 $!
            wait $! || true
            [ $(free) -eq $all ]
        done
        nvme-perf verify 0000:00:04.0 --allow-write --nsid 1 --size 16M
        [ $(free) -eq $all ]
        echo all pages are back";
    let said = succeed(&in_guest(&[], &["nvme-perf", "sed"], script));
    assert!(said.contains("all pages are back"), "{said}");
}

/// The tests of the VFIO transport and of binding, which need a machine of their own.
#[test]
fn the_vfio_transport_and_binding_work_in_the_machine() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["test", "--package", "doorbell", "--test", "vfio", "--no-run", "--message-format", "json"])
        .current_dir(workspace())
        .output()
        .expect("cargo runs, since it runs this test");
    let messages = succeed(&built);
    let tests = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find_map(|message| Some(message.get("executable")?.as_str()?.to_owned()))
        .expect("cargo says where the tests are");
    let said = succeed(&in_guest(&[], &[&tests], &format!("{tests} --ignored --test-threads=1")));
    assert!(said.contains("test result: ok."), "{said}");
    println!("{said}");
}
