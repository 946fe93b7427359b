//! `nvme-perf run` as its user sees it, on the software controller: results, accounting, exit statuses.

mod program;

use std::fs;
use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use program::{fault_file, json, nvme_perf};
use serde_json::Value;

/// The I/Os that the result accounts for, which must be what the device was asked for.
fn accounted(result: &Value) -> u64 {
    let (job, own) = (&result["jobs"][0], &result["doorbell"]);
    let numbers = [
        &job["read"]["total_ios"],
        &job["write"]["total_ios"],
        &own["ramp_ios"],
        &own["failed_ios"],
        &own["unanswered_ios"],
        &own["bringup_reads"],
    ];
    numbers.iter().map(|number| number.as_u64().expect("a number")).sum()
}

#[test]
fn a_run_prints_fios_json() {
    let result = json(&["run", "emu:", "--runtime", "300ms", "--output-format=json"]);
    let job = &result["jobs"][0];
    assert_eq!(job["error"], 0);
    assert!(job["read"]["iops"].as_f64() > Some(0.0), "{job}");
    let total = job["read"]["total_ios"].as_u64().expect("a number");
    assert_eq!(job["read"]["io_bytes"], total * 4096);
    assert_eq!(job["read"]["clat_ns"]["N"], total);
    assert_eq!(job["write"]["total_ios"], 0);
    let percentiles = job["read"]["clat_ns"]["percentile"].as_object().expect("a map");
    assert!(percentiles.len() == 17 && percentiles.contains_key("99.990000"));
    for key in
        ["jobname", "groupid", "elapsed", "job options", "trim", "sync", "job_runtime", "usr_cpu", "ctx"]
    {
        assert!(!job[key].is_null(), "{key}");
    }
    for table in ["iodepth_level", "iodepth_submit", "iodepth_complete"] {
        let sum: f64 = job[table].as_object().expect("a map").values().filter_map(Value::as_f64).sum();
        assert!((sum - 100.0).abs() < 0.01, "{table}: {sum}");
    }
    assert!(result["fio version"].as_str().is_some_and(|version| version.starts_with("nvme-perf ")));
    assert_eq!(result["disk_util"], serde_json::json!([]));
}

#[test]
fn every_io_is_accounted_for() {
    for options in [
        &["--number_ios", "1000"][..],
        &["--number_ios", "777", "--ramp_time", "50ms", "--rw", "randrw"],
        &["--runtime", "100ms", "--ramp_time", "100ms", "--numjobs", "2", "--rw", "rw", "--rwmixread", "30"],
        &["--runtime", "100ms", "--iodepth", "1", "--rw", "write"],
        &["--runtime", "100ms", "--iodepth", "7", "--iodepth_batch", "3", "--bs", "16k", "--rw", "read"],
    ] {
        let mut args = vec!["run", "emu:size=64M,backend=null", "--output-format=json"];
        args.extend_from_slice(options);
        let result = json(&args);
        assert_eq!(result["doorbell"]["commands"], accounted(&result), "{options:?}");
    }
}

#[test]
fn a_number_of_ios_is_kept_exactly_and_counts_each_job() {
    let args = ["run", "emu:size=64M", "--number_ios", "500", "--numjobs", "2", "--output-format=json"];
    let result = json(&args);
    assert_eq!(result["jobs"][0]["read"]["total_ios"], 1000);
    let args = ["run", "emu:size=64M", "emu:size=64M", "--number_ios", "501", "--output-format=json"];
    let result = json(&args);
    assert_eq!(result["jobs"][0]["read"]["total_ios"], 501);
    let each = result["doorbell"]["targets"].as_array().expect("a list");
    assert!(each.len() == 2 && each.iter().all(|target| target["commands"].as_u64() > Some(0)), "{each:?}");
}

#[test]
fn large_ios_are_split_and_counted_as_one() {
    let target = "emu:size=64M,mdts=128k";
    let args =
        ["run", target, "--bs", "512k", "--iodepth", "8", "--number_ios", "200", "--output-format=json"];
    let result = json(&args);
    assert_eq!(result["jobs"][0]["read"]["total_ios"], 200);
    assert_eq!(result["doorbell"]["commands"], 800);
    assert_eq!(result["jobs"][0]["read"]["io_bytes"], 200 * 512 * 1024);
}

#[test]
fn the_latency_of_the_device_decides_the_rate() {
    let args = [
        "run",
        "emu:backend=null,size=1G,latency=5ms",
        "--iodepth",
        "4",
        "--runtime",
        "1s",
        "--output-format=json",
    ];
    let result = json(&args);
    let read = &result["jobs"][0]["read"];
    let iops = read["iops"].as_f64().expect("a number");
    // 4 at a time, 5 ms each, is 800. A busy machine may take longer, and nothing may be faster.
    assert!((400.0..=800.0).contains(&iops), "{iops}");
    assert!(read["clat_ns"]["min"].as_u64() >= Some(5_000_000), "{read}");
}

#[test]
fn batches_share_a_doorbell() {
    let doorbells = |options: [&str; 2]| {
        let args = ["run", "emu:size=64M,backend=null", "--number_ios", "6400", "--output-format=json"];
        let own = json(&[&args[..], &options].concat())["doorbell"].clone();
        ["doorbells_per_io", "completion_doorbells_per_io"].map(|key| own[key].as_f64().expect("a number"))
    };
    let rung_each = |doorbells: f64| (doorbells - 1.0).abs() < 1e-9;
    assert!(doorbells(["--iodepth_batch", "1"]).into_iter().all(rung_each));
    assert!(doorbells(["--iodepth_batch", "32"])[0] < 0.9);
    // Polls still reap as many as there are; only what is submitted no longer waits.
    let [submission, completion] = doorbells(["--plug-limit", "1"]);
    assert!(rung_each(submission) && completion < 0.9, "{submission} {completion}");
    assert!(doorbells(["--plug-limit", "5"])[0] >= 0.2);
    let run = nvme_perf(&["run", "emu:", "--plug-limit", "33"]);
    assert!(run.status == 2 && run.stderr.contains("1..=32"), "{run:?}");
}

#[test]
fn shadow_doorbells_are_used_when_they_are_offered_and_wanted() {
    let run = |target: &str, when: &str| {
        let args = ["run", target, "--number_ios", "6400", "--shadow-doorbells", when];
        json(&[&args[..], &["--output-format=json"]].concat())["doorbell"]["targets"][0].clone()
    };
    for (config, when, used) in
        [("on", "when-offered", true), ("on", "never", false), ("off", "never", false)]
    {
        let device = run(&format!("emu:size=64M,backend=null,shadow_doorbells={config}"), when);
        assert_eq!(device["shadow_doorbells"], used, "{device}");
        let saved = [&device["submission_doorbells_saved"], &device["completion_doorbells_saved"]];
        assert_eq!(saved.iter().all(|it| it.as_u64() > Some(0)), used, "{device}");
    }
}

#[test]
fn the_text_says_what_was_run_on_what_and_with_what_result() {
    let run = nvme_perf(&["run", "emu:size=64M", "--runtime", "200ms", "--rw", "randrw"]);
    assert_eq!(run.status, 0, "{run:?}");
    for words in [
        "randrw (50 % reads), 4 KiB, depth 128",
        "64 MiB",
        "read: ",
        "write: ",
        "IOPS",
        "99.99%",
        "doorbells per I/O",
    ] {
        assert!(run.stdout.contains(words), "{words}: {}", run.stdout);
    }
    assert_eq!(run.stderr, "");
}

#[test]
fn a_failed_io_fails_the_run_and_is_not_counted() {
    let (_folder, target) = fault_file("opcode = 0x02\nskip = 100\ncount = 3\naction = \"status:2/81\"");
    let run = nvme_perf(&["run", &target, "--number_ios", "5000", "--output-format=json"]);
    assert_eq!(run.status, 1, "{run:?}");
    let result: Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert_eq!(result["jobs"][0]["error"], 5);
    assert!(result["doorbell"]["failed_ios"].as_u64() >= Some(1));
    assert_eq!(result["doorbell"]["commands"], accounted(&result));
    assert!(run.stderr.contains("unrecovered read error"), "{}", run.stderr);

    let run = nvme_perf(&["run", &target, "--number_ios", "5000", "--continue_on_error"]);
    assert_eq!(run.status, 1, "{run:?}");
    assert!(run.stdout.contains("4,997 I/Os"), "{}", run.stdout);
    assert!(run.stdout.contains("ERROR: 3 reads failed"), "{}", run.stdout);
}

#[test]
fn a_device_that_stops_answering_ends_the_run() {
    let (_folder, target) = fault_file("opcode = 0x02\nskip = 1000\naction = \"drop\"");
    let begun = Instant::now();
    let args = ["run", &target, "--iodepth", "16", "--io_timeout", "300ms", "--runtime", "60s"];
    let run = nvme_perf(&args);
    assert_eq!(run.status, 1, "{run:?}");
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert!(run.stdout.contains("completed nothing for 300 ms: 16 I/Os are outstanding"), "{}", run.stdout);
    assert!(run.stdout.contains("1,000 I/Os"), "only what completed is counted: {}", run.stdout);
}

/// The device answers the deletion of the queue by aborting what it holds, which once was all that was said.
#[test]
fn a_device_that_is_too_slow_is_called_so() {
    let args = ["run", "emu:size=16M,latency=600s", "--iodepth", "16", "--io_timeout", "300ms"];
    let run = nvme_perf(&args);
    assert_eq!(run.status, 1, "{run:?}");
    assert!(run.stdout.contains("completed nothing for 300 ms: 16 I/Os are outstanding"), "{}", run.stdout);
    assert!(!run.stdout.contains("SQ deletion"), "{}", run.stdout);
}

#[test]
fn a_controller_that_dies_ends_the_run() {
    let (_folder, target) = fault_file("opcode = 0x02\nskip = 1000\naction = \"fatal\"");
    let run = nvme_perf(&["run", &target, "--runtime", "60s"]);
    assert_eq!(run.status, 1, "{run:?}");
    assert!(run.stdout.contains("ERROR: "), "{run:?}");
    assert!(!run.stderr.contains("panicked"), "{run:?}");
}

#[test]
fn an_interrupt_ends_the_run_with_its_result() {
    let mut child = program::command(&["run", "emu:size=64M", "--runtime", "60s", "--output-format=json"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).expect("a small number"));
    std::thread::sleep(Duration::from_millis(1000));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("it runs");
    let mut text = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut text).expect("text");
    assert!(child.wait().expect("it ends").success());
    let result: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(result["doorbell"]["interrupted"], true);
    assert!(result["jobs"][0]["read"]["total_ios"].as_u64() > Some(0));
    assert_eq!(result["doorbell"]["commands"], accounted(&result));
}

#[test]
fn a_result_can_go_to_a_file_and_a_bad_place_is_found_before_the_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("result.json");
    let path = file.to_str().expect("UTF-8");
    let args = ["run", "emu:size=64M", "--number_ios", "10", "--output-format=json", "--output", path];
    let run = nvme_perf(&args);
    assert_eq!((run.status, run.stdout.as_str()), (0, ""), "{run:?}");
    let result: Value = serde_json::from_str(&fs::read_to_string(&file).expect("there")).expect("JSON");
    assert_eq!(result["jobs"][0]["read"]["total_ios"], 10);

    let begun = Instant::now();
    let run = nvme_perf(&["run", "emu:", "--runtime", "60s", "--output", "/proc/no/such/folder"]);
    assert_eq!(run.status, 1);
    assert!(run.stderr.contains("--output") && begun.elapsed() < Duration::from_secs(20), "{run:?}");
}
