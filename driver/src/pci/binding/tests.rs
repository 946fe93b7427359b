//! Binding and restoring on a made-up machine with a made-up kernel.

use std::sync::atomic::Ordering;

use doorbell_spec::Clock;

use super::super::fake::FakeMachine;
use super::*;

const A: &str = "0000:01:00.0";
const B: &str = "0000:02:00.0";
const PIN: &str = "sys/bus/pci/devices/0000:01:00.0/driver_override";

#[test]
fn a_controller_goes_to_vfio_and_back() {
    let mut fake = FakeMachine::new();
    let address = fake.controller(A, Some("nvme"), Some(12));
    fake.start_kernel();
    let machine = fake.machine();

    let bound = machine.bind(address, Force::No).expect("free");
    assert_eq!(bound.previous_driver.as_deref(), Some("nvme"));
    assert!(bound.group_node.ends_with("dev/vfio/12"));
    assert_eq!(fake.driver_of(address).as_deref(), Some(VFIO_DRIVER));
    assert_eq!(fake.read(PIN), "vfio-pci\n");

    let again = machine.bind(address, Force::No).expect("bound already");
    assert_eq!(again.previous_driver.as_deref(), Some(VFIO_DRIVER));

    let restored = machine.restore(address, Force::No).expect("free");
    assert_eq!(restored.driver, "nvme");
    assert_eq!(fake.read(PIN), "\n");
    assert_eq!(machine.restore(address, Force::No).expect("restored already"), restored);
}

#[test]
fn a_controller_without_a_driver_is_bound_too() {
    let mut fake = FakeMachine::new();
    let address = fake.controller(A, None, Some(12));
    fake.start_kernel();
    let bound = fake.machine().bind(address, Force::No).expect("free");
    assert_eq!(bound.previous_driver, None);
    assert_eq!(fake.driver_of(address).as_deref(), Some(VFIO_DRIVER));
}

#[test]
fn a_mounted_disk_is_refused_unless_forced_and_nothing_changes() {
    let mut fake = FakeMachine::new();
    let address = fake.controller(A, Some("nvme"), Some(12));
    fake.write("sys/bus/pci/devices/0000:01:00.0/nvme/nvme0/nvme0n1/nsid", "1\n");
    fake.block("nvme0n1", "259:0");
    fake.write("proc/self/mountinfo", "40 21 259:0 / /data rw - xfs /dev/nvme0n1 rw\n");
    fake.start_kernel();
    let machine = fake.machine();

    let error = machine.bind(address, Force::No).expect_err("in use").to_string();
    assert!(error.contains("nvme0n1 is mounted on /data (xfs)") && error.contains("--force"), "{error}");
    assert_eq!(fake.driver_of(address).as_deref(), Some("nvme"));
    assert_eq!(fake.read(PIN), "(null)\n");

    machine.bind(address, Force::Yes).expect("forced");
    assert_eq!(fake.driver_of(address).as_deref(), Some(VFIO_DRIVER));
}

#[test]
fn a_missing_vfio_driver_is_not_loaded_in_silence() {
    let fake = FakeMachine::new();
    let address = fake.controller(A, Some("nvme"), Some(12));
    let error = fake.machine().bind(address, Force::No).expect_err("not loaded").to_string();
    assert!(error.contains("sudo modprobe vfio-pci"), "{error}");
    assert_eq!(fake.read(PIN), "(null)\n");
}

#[test]
fn a_controller_without_an_iommu_is_refused() {
    let mut fake = FakeMachine::new();
    let address = fake.controller(A, Some("nvme"), None);
    fake.start_kernel();
    let error = fake.machine().bind(address, Force::Yes).expect_err("no IOMMU").to_string();
    assert!(error.contains("intel_iommu=on"), "{error}");
}

#[test]
fn a_group_that_is_not_viable_names_the_device_that_blocks_it() {
    let mut fake = FakeMachine::new();
    let address = fake.controller(A, Some("nvme"), Some(12));
    fake.device("0000:00:1f.6", 0x02_0000, Some("e1000e"), Some(12));
    fake.device("0000:00:1c.0", 0x06_0400, Some("pcieport"), Some(12));
    fake.device("0000:00:1f.0", 0x06_0100, None, Some(12));
    fake.start_kernel();
    let error = fake.machine().bind(address, Force::Yes).expect_err("blocked").to_string();
    assert!(
        error.contains("group 12") && error.contains("because of 0000:00:1f.6 (driven by e1000e):"),
        "{error}"
    );
    assert!(!error.contains("1c.0") && !error.contains("1f.0 "), "{error}");
    assert_eq!(fake.driver_of(address).as_deref(), Some("nvme"));
}

#[test]
fn two_controllers_of_one_group_are_bound_together() {
    let mut fake = FakeMachine::new();
    let first = fake.controller(A, Some("nvme"), Some(12));
    let second = fake.controller(B, Some("nvme"), Some(12));
    fake.start_kernel();
    let machine = fake.machine();
    let alone = machine.bind(first, Force::No).expect_err("the other blocks");
    assert!(matches!(alone, BindError::GroupNotViable { ref blockers, .. } if blockers[0].address == second));
    let bound = machine.bind_all(&[first, second, first], Force::No).expect("together");
    assert_eq!(bound.len(), 2);
    assert_eq!(fake.driver_of(second).as_deref(), Some(VFIO_DRIVER));
}

#[test]
fn a_failure_half_way_puts_back_what_was_there() {
    let mut fake = FakeMachine::new();
    let address = fake.controller(A, Some("nvme"), Some(12));
    let behaviour = fake.start_kernel();
    behaviour.vfio_takes.store(false, Ordering::SeqCst);
    // The first wait is in vain and ends by this clock; the one that puts things back needs a probe only.
    let machine = fake.machine().with_clock(Clock::virtual_time());
    let error = machine.bind(address, Force::No).expect_err("vfio-pci does not take it");
    let text = error.to_string();
    assert_eq!(text, format!("binding of {A} failed; nothing changed on the machine"));
    assert!(std::error::Error::source(&error).is_some());
    assert_eq!(fake.driver_of(address).as_deref(), Some("nvme"));
    assert_eq!(fake.read(PIN), "\n");
}

#[test]
fn a_driver_that_does_not_let_go_is_an_error_in_bounded_time() {
    let fake = FakeMachine::new();
    let address = fake.controller(A, Some("nvme"), Some(12));
    fake.write("sys/bus/pci/drivers/vfio-pci/unbind", "");
    // A file takes the write and does nothing, like a driver that hangs.
    fake.write("sys/bus/pci/drivers/nvme/unbind", "");
    let machine = fake.machine().with_clock(Clock::virtual_time());
    let text = machine.bind(address, Force::No).expect_err("hangs").to_string();
    assert!(text.starts_with(&format!("unbinding of {A} failed; {A} is held by nvme now")), "{text}");
}

#[test]
fn a_device_that_a_process_drives_is_not_given_back() {
    let mut fake = FakeMachine::new();
    let address = fake.controller(A, Some(VFIO_DRIVER), Some(12));
    fake.process(99, "nvme-perf", &["dev/vfio/12"]);
    fake.start_kernel();
    let text = fake.machine().restore(address, Force::No).expect_err("driven").to_string();
    assert!(text.contains("process 99 (nvme-perf)"), "{text}");
    assert_eq!(fake.driver_of(address).as_deref(), Some(VFIO_DRIVER));
    fake.machine().restore(address, Force::Yes).expect("forced");
    assert_eq!(fake.driver_of(address).as_deref(), Some("nvme"));
}

#[test]
fn a_kernel_without_the_nvme_driver_is_named() {
    let fake = FakeMachine::new();
    let address = fake.controller(A, None, Some(12));
    fake.write("sys/bus/pci/drivers_probe", "");
    let machine = fake.machine().with_clock(Clock::virtual_time());
    let text = machine.restore(address, Force::No).expect_err("no driver").to_string();
    assert!(text.contains("sudo modprobe nvme"), "{text}");
}

#[test]
fn a_caller_without_the_right_is_told_so_and_nothing_is_reported_as_changed() {
    let fake = FakeMachine::new();
    let address = fake.controller(A, Some("nvme"), Some(12));
    let machine = fake.machine();
    let before = machine.before(&machine.device(address).expect("there"));
    // What a caller other than root gets from sysfs; root, who may run this test, may write to anything.
    let failure = Failure { step: "a step", source: io::ErrorKind::PermissionDenied.into() };
    let error = machine.take_back(address, failure, &[before]);
    assert!(matches!(error, BindError::NotPermitted { .. }), "{error}");
}
