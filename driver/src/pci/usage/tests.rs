//! Every kind of use, on a made-up machine.

use super::super::fake::FakeMachine;
use super::*;

/// A controller with one disk of two partitions, driven by the kernel.
fn machine_with_disk() -> (FakeMachine, PciDevice) {
    let fake = FakeMachine::new();
    let address = fake.controller("0000:05:00.0", Some("nvme"), Some(1));
    fake.write("sys/bus/pci/devices/0000:05:00.0/nvme/nvme0/nvme0n1/nsid", "1\n");
    fake.block("nvme0n1", "259:0");
    fake.partition("nvme0n1", "nvme0n1p1", "259:1");
    fake.partition("nvme0n1", "nvme0n1p2", "259:2");
    let device = fake.machine().device(address).expect("there");
    (fake, device)
}

#[test]
fn an_idle_disk_is_not_in_use() {
    let (fake, device) = machine_with_disk();
    let usage = fake.machine().usage(&device).expect("readable");
    assert_eq!(usage, Usage::default());
    assert!(usage.is_empty());
}

#[test]
fn a_mounted_partition_is_found_by_its_number_and_named() {
    let (fake, device) = machine_with_disk();
    fake.write(
        "proc/self/mountinfo",
        "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
         40 21 259:1 / /mnt/my\\040data rw,relatime shared:9 master:2 - ext4 /dev/root rw\n",
    );
    let usage = fake.machine().usage(&device).expect("readable");
    assert_eq!(usage.to_string(), "nvme0n1p1 is mounted on /mnt/my data (ext4)");
}

#[test]
fn a_file_system_with_a_number_of_its_own_is_found_by_its_source() {
    let (fake, device) = machine_with_disk();
    fake.write("dev/nvme0n1p2", "");
    fake.link("dev/disk/by-id/a-disk-part2", "../../nvme0n1p2");
    fake.write("proc/self/mountinfo", "40 21 0:35 / /data rw - btrfs /dev/disk/by-id/a-disk-part2 rw\n");
    let usage = fake.machine().usage(&device).expect("readable");
    assert_eq!(usage.to_string(), "nvme0n1p2 is mounted on /data (btrfs)");
}

#[test]
fn swap_raid_and_device_mapper_are_found() {
    let (fake, device) = machine_with_disk();
    fake.write("proc/swaps", "Filename Type Size Used Priority\n/dev/nvme0n1p1 partition 100 0 -2\n");
    fake.write("sys/class/block/nvme0n1p2/holders/md127", "");
    fake.write("sys/class/block/nvme0n1/holders/dm-3", "");
    fake.write("sys/class/block/dm-3/dm/name", "vg0-home\n");
    let usage = fake.machine().usage(&device).expect("readable");
    assert_eq!(
        usage.to_string(),
        "nvme0n1p1 is swap space, nvme0n1 is part of vg0-home (dm-3), nvme0n1p2 is part of md127"
    );
}

#[test]
fn a_process_with_the_disk_open_is_named() {
    let (fake, device) = machine_with_disk();
    fake.process(4711, "fio", &["dev/null", "dev/nvme0n1"]);
    fake.process(4712, "bash", &["dev/null"]);
    let usage = fake.machine().usage(&device).expect("readable");
    let text = usage.to_string();
    assert!(text.starts_with("process 4711 (fio) has ") && text.ends_with("/dev/nvme0n1 open"), "{text}");
    assert_eq!(usage.0.len(), 1);
}

#[test]
fn the_process_that_drives_a_device_through_vfio_is_named() {
    let fake = FakeMachine::new();
    let address = fake.controller("0000:04:00.0", Some("vfio-pci"), Some(7));
    fake.process(99, "nvme-perf", &["dev/vfio/vfio", "dev/vfio/7"]);
    fake.process(100, "other", &["dev/vfio/70"]);
    let machine = fake.machine();
    let usage = machine.usage(&machine.device(address).expect("there")).expect("readable");
    let text = usage.to_string();
    assert!(text.starts_with("process 99 (nvme-perf) has ") && text.ends_with("/dev/vfio/7 open"), "{text}");
    assert_eq!(usage.0.len(), 1);
}

#[test]
fn broken_tables_are_skipped_without_a_panic() {
    let (fake, device) = machine_with_disk();
    fake.write(
        "proc/self/mountinfo",
        "\n1\n1 2\n1 2 259:1\n1 2 259:1 /\n1 2 259:1 / /x\n1 2 259:1 / /x rw -\n",
    );
    fake.write("proc/swaps", "");
    assert!(fake.machine().usage(&device).expect("readable").is_empty());
    for text in ["\\", "\\0", "\\04", "\\040", "\\999", "\\777", "a\\é", ""] {
        let _ = unescape(text);
    }
    assert_eq!(unescape("a\\040b\\134"), "a b\\");
}
