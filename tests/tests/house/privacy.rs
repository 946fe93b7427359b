//! Nothing of the machine that a file was written on is in the file: no home folder, no checkout's path, no
//! host that the public does not reach.

use std::path::Path;

use crate::report;
use crate::sources::{all_files, root};

/// Hosts that a file may name, sub-domains included.
const PUBLIC_HOSTS: [&str; 22] = [
    "github.com",
    "githubusercontent.com",
    "github.io",
    "docs.rs",
    "crates.io",
    "rust-lang.org",
    "rustup.rs",
    "nvmexpress.org",
    "kernel.org",
    "qemu.org",
    "gitlab.com",
    "spdk.io",
    "lwn.net",
    "pcisig.com",
    "debian.org",
    "ubuntu.com",
    "python.org",
    "man7.org",
    "keepachangelog.com",
    "semver.org",
    "apache.org",
    "w3.org",
];

#[test]
fn no_file_names_the_folders_of_the_machine_it_was_written_on() {
    let mut wanted = vec!["/home/".to_owned(), "/Users/".to_owned()];
    wanted.extend(long_path(&root()));
    wanted.extend(std::env::var_os("HOME").and_then(|home| long_path(Path::new(&home))));
    let this_file = file!().rsplit('/').next().unwrap_or_default();
    let mut findings = Vec::new();
    for file in all_files().iter().filter(|file| !file.name.ends_with(this_file)) {
        for (number, line) in file.text.lines().enumerate() {
            let found = wanted.iter().filter(|it| line.contains(it.as_str()) && !line.contains("/home/user"));
            findings.extend(found.map(|it| format!("{}:{}: {it}", file.name, number + 1)));
        }
    }
    report("paths are relative, or are those of every machine", &findings);
}

/// A path that is somebody's own: `/root` and `/src` are everybody's.
fn long_path(path: &Path) -> Option<String> {
    let parts = path.components().count();
    (parts > 2).then(|| path.to_string_lossy().into_owned())
}

#[test]
fn every_host_that_a_file_names_is_public() {
    let mut findings = Vec::new();
    for file in all_files() {
        for host in hosts(&file.text) {
            let is_public = PUBLIC_HOSTS.iter().any(|it| host == *it || host.ends_with(&format!(".{it}")));
            if !is_public && !host.ends_with("example.com") && host != "localhost" {
                findings.push(format!("{}: {host}", file.name));
            }
        }
    }
    findings.dedup();
    report("a host that is not known here: is it public? Then list it", &findings);
}

fn hosts(text: &str) -> Vec<String> {
    let after = text.split("://").skip(1);
    let host = |rest: &str| {
        let end = rest.find(|it: char| !it.is_ascii_alphanumeric() && it != '.' && it != '-');
        rest[..end.unwrap_or(rest.len())].trim_end_matches('.').to_owned()
    };
    after.map(host).filter(|host| host.contains('.')).collect()
}

#[test]
fn every_crate_comes_from_the_public_registry() {
    let lock =
        std::fs::read_to_string(root().join("Cargo.lock")).expect("the lock file is part of the sources");
    let sources = lock.lines().filter_map(|line| line.strip_prefix("source = "));
    let mut seen = 0;
    for source in sources {
        seen += 1;
        assert_eq!(source, "\"registry+https://github.com/rust-lang/crates.io-index\"");
    }
    assert!(seen > 20, "{seen} crates: the lock file was not understood");
}
