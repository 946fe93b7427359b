//! The I/O path makes no system call: strace sees as many for a hundred thousand I/Os as for a million.
//!
//! Calls are counted for each thread. The software controller's own thread naps while it has nothing to do;
//! how often depends on time and belongs to no driver. The driver's thread is another one.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// System calls of the threads that drive queues, by name.
type Calls = BTreeMap<String, u64>;

#[test]
fn the_driving_thread_makes_no_system_call_per_io() {
    let few = calls_of_a_run(100_000);
    let many = calls_of_a_run(1_000_000);
    let total = |calls: &Calls| calls.values().sum::<u64>();
    println!("100,000 I/Os: {} calls {few:?}", total(&few));
    println!("1,000,000 I/Os: {} calls {many:?}", total(&many));
    assert!(total(&few) > 5, "a thread that is born and dies makes some calls: {few:?}");
    // The end of a run may be waited for with a call more or less; 900,000 I/Os are not so few.
    let growth = total(&many).saturating_sub(total(&few));
    assert!(growth <= 20, "900,000 I/Os more made {growth} calls more: {few:?}, then {many:?}");
}

/// Runs that many reads under strace, and answers the calls of all threads but the software controller's.
fn calls_of_a_run(ios: u64) -> Calls {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut strace = Command::new("strace");
    strace.arg("-ff").arg("-o").arg(folder.path().join("thread"));
    strace.arg(doorbell_tests::program("nvme-perf", "nvme-perf"));
    strace.args(["run", "emu:backend=null,size=1G", "--rw", "randread", "--bs", "4k", "--iodepth", "32"]);
    strace.args(["--numjobs", "1", "--number_ios", &ios.to_string(), "--output-format=json"]);
    let output = strace.output().expect("strace is missing; install it with `sudo apt-get install strace`");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).expect("nvme-perf prints JSON");
    assert_eq!(result["jobs"][0]["read"]["total_ios"], ios, "not all I/Os were done");
    calls_of_jobs(folder.path())
}

fn calls_of_jobs(folder: &Path) -> Calls {
    let mut calls = Calls::new();
    let mut jobs = 0;
    for entry in std::fs::read_dir(folder).expect("strace's files") {
        let path = entry.expect("a file of strace's").path();
        let text = std::fs::read_to_string(&path).expect("strace writes text");
        // A thread gives itself its name; the main thread has none, and waits for the jobs.
        if !text.contains("PR_SET_NAME, \"job ") {
            continue;
        }
        jobs += 1;
        for name in text.lines().filter_map(|line| line.split_once('(')).map(|(name, _)| name) {
            *calls.entry(name.to_owned()).or_default() += 1;
        }
    }
    assert_eq!(jobs, 1, "one thread drives the queue");
    calls
}
