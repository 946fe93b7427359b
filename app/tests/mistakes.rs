//! What was typed wrongly: exit status 2, a sentence that names the option and what to type, nothing else.

mod program;

use program::{Run, command, nvme_perf};
use std::process::Stdio;

/// Nobody sees Rust's own words.
fn assert_plain(run: &Run, args: &[&str]) {
    for word in ["panicked", "RUST_BACKTRACE", "unwrap", "Error {", "Some(", "src/"] {
        assert!(!run.stderr.contains(word), "{args:?}: {}", run.stderr);
    }
    assert!(run.stdout.is_empty(), "a failed command prints no result: {args:?}: {}", run.stdout);
}

#[test]
fn mistakes_are_status_2_and_say_what_to_type() {
    let cases: &[(&[&str], &str)] = &[
        (&["run"], "TARGET"),
        (&["run", "nvme0"], "use a PCI address"),
        (&["run", "/dev/nvme0n1"], "emu:"),
        (&["run", "kernel:/dev/nvme0n1"], "not supported yet"),
        (&["run", "emu:bogus=1"], "bogus"),
        (&["run", "emu:size=0"], "size"),
        (&["run", "emu:size"], "key=value"),
        (&["run", "emu:", "--bs", "0"], "--bs"),
        (&["run", "emu:", "--bs", "1000"], "use --bs 1k"),
        (&["run", "emu:lba=4096", "--bs", "512"], "use --bs 4k"),
        (&["run", "emu:", "--bs", "4x"], "such as 4k"),
        (&["run", "emu:", "--bs", "18446744073709551615"], "--bs"),
        (&["run", "emu:", "--bs", "16777215t"], "--bs"),
        (&["verify", "emu:", "--bs", "16777215t"], "at most 64m"),
        (&["run", "emu:", "--size", "18446744073709551615"], "--size"),
        (&["run", "emu:", "--size", "0"], "--size"),
        (&["run", "emu:", "--size", "1000"], "--size 1k"),
        (&["run", "emu:", "--size", "2g"], "use --size 1g"),
        (&["run", "emu:", "--size", "101%"], "100%"),
        (&["run", "emu:", "--size", "512"], "--bs 4k does not fit"),
        (&["run", "emu:", "--offset", "1g"], "--offset 1g"),
        (&["run", "emu:", "--offset", "100"], "--offset 512"),
        (&["run", "emu:", "--offset", "512m", "--size", "513m"], "use --size 512m"),
        (&["run", "emu:", "--iodepth", "0"], "--iodepth"),
        (&["run", "emu:", "--iodepth", "1024"], "use --iodepth 1023"),
        (&["run", "emu:mqes=2", "--iodepth", "2"], "use --iodepth 1"),
        (&["run", "emu:", "--rwmixread", "101"], "0..=100"),
        (&["run", "emu:", "--rw", "sideways"], "randread"),
        (&["run", "emu:", "--numjobs", "0"], "--numjobs"),
        (&["run", "emu:queues=2", "--numjobs", "3"], "use --numjobs 2"),
        (&["run", "emu:size=8k", "--numjobs", "3", "--rw", "read"], "fewer jobs"),
        (&["run", "emu:", "--nsid", "2"], "--nsid 2"),
        (&["run", "emu:", "--nsid", "0"], "--nsid"),
        (&["run", "emu:", "--runtime", "0"], "--runtime"),
        (&["run", "emu:", "--runtime", "soon"], "such as 3s"),
        (&["run", "emu:", "--number_ios", "0"], "--number_ios"),
        (&["run", "emu:", "--output-format", "xml"], "json"),
        (&["run", "0000:01:00.0", "--rw", "randwrite"], "--allow-write"),
        (&["run", "0000:01:00.0", "--rw", "rw"], "--allow-write"),
        (&["run", "0000:01:00.0", "01:00.0"], "named twice"),
        (&["verify"], "TARGET"),
        (&["verify", "0000:01:00.0"], "--allow-write"),
        (&["verify", "emu:", "--bs", "1000"], "use 1k"),
        (&["verify", "emu:", "--bsrange", "8k-4k"], "--bsrange"),
        (&["verify", "emu:", "--bs", "4k", "--bsrange", "4k-8k"], "cannot be used with"),
        (&["verify", "emu:", "--check-only", "--generations", "2"], "cannot be used with"),
        (&["verify", "emu:", "--offset", "1g"], "--offset"),
        (&["verify", "emu:", "--size", "2g"], "use --size 1g"),
        (&["verify", "emu:", "--generations", "0"], "--generations"),
        (&["identify", "emu:", "--nsid", "9"], "--nsid 9"),
        (&["bind", "nvme0"], "0000:01:00.0"),
        (&["unbind", "0000:01:00.8"], "0000:01:00.0"),
        (&["setup", "--hugepages", "0"], "--hugepages"),
        (&["setup", "--hugepages", "1G", "--hugepage-size", "4k"], "2M"),
        (&["setup", "--numa-node", "0"], "--hugepages"),
        (&["fly"], "fly"),
        (&[], "Usage"),
    ];
    for (args, words) in cases {
        let run = nvme_perf(args);
        assert_eq!(run.status, 2, "{args:?}: {run:?}");
        assert!(run.stderr.contains(words), "{args:?} should say {words:?}: {}", run.stderr);
        assert_plain(&run, args);
    }
}

#[test]
fn what_is_not_there_is_status_1_and_says_what_to_do() {
    let cases: &[(&[&str], &str)] = &[
        (&["run", "ffff:ff:1f.7"], "nvme-perf list"),
        (&["verify", "ffff:ff:1f.7", "--allow-write"], "nvme-perf list"),
        (&["identify", "ffff:ff:1f.7"], "nvme-perf list"),
        (&["bind", "ffff:ff:1f.7"], "nvme-perf list"),
        (&["unbind", "ffff:ff:1f.7"], "nvme-perf list"),
        (&["run", "emu:@/no/such/file.toml"], "/no/such/file.toml"),
        (&["run", "emu:backend=file,path=/no/such/folder/image,size=1M"], "/no/such/folder/image"),
        (&["run", "emu:never_ready=on,to=0.5s"], "enabling the controller"),
        (&["run", "emu:readonly=on", "--rw", "write"], "--nsid"),
        (&["run", "emu:", "--output", "/"], "--output /"),
        (&["verify", "emu:", "--output", "/no/such/folder/x"], "--output"),
    ];
    for (args, words) in cases {
        let run = nvme_perf(args);
        assert_eq!(run.status, 1, "{args:?}: {run:?}");
        assert!(run.stderr.contains(words), "{args:?} should say {words:?}: {}", run.stderr);
        assert!(run.stderr.starts_with("nvme-perf: ") && run.stderr.lines().count() == 1, "{}", run.stderr);
        assert_plain(&run, args);
    }
}

#[test]
fn a_reader_that_goes_away_is_no_news() {
    let mut child = command(&["run", "emu:size=64M", "--number_ios", "10"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn help_and_the_small_commands_work_everywhere() {
    for (args, words) in [
        (&["--help"][..], "The first three commands:"),
        (&["run", "--help"], "nvme-perf run emu:"),
        (&["verify", "--help"], "--check-only"),
        (&["--version"], "nvme-perf"),
        (&["setup"], "huge pages"),
        (&["list"], "NVMe"),
        (&["list", "--output-format=json"], "controllers"),
        (&["identify", "emu:nsid=1+3"], "namespace 3"),
        (&["identify", "emu:", "--output-format=json"], "\"transfer_bytes_max\""),
    ] {
        let run = nvme_perf(args);
        assert_eq!(run.status, 0, "{args:?}: {run:?}");
        let found = run.stdout.contains(words) || (args[0] == "list" && run.stdout.contains("ADDRESS"));
        assert!(found, "{args:?}: {}", run.stdout);
    }
}
