//! Tests of the arguments that QEMU gets.

use super::*;

/// The arguments for this machine, with one channel and one monitor.
fn arguments_of(machine: &Machine, accelerator: Accelerator) -> Vec<String> {
    let mut images = Images::new();
    for controller in &machine.controllers {
        for namespace in controller.namespaces.iter().filter(|namespace| namespace.backing == Backing::File) {
            let file = format!("/tmp/a,b/{}-{}", device_id(controller.address), namespace.nsid);
            images.insert((controller.address, namespace.nsid), file.into());
        }
    }
    arguments(&Boot {
        machine,
        kernel: Path::new("/k/vmlinuz"),
        initramfs: Path::new("/t/initramfs"),
        console_log: Path::new("/tmp/a,b/console"),
        accelerator,
        images: &images,
        channels: &[(Channel::Stdout, 7), (Channel::Control, 8)],
        monitors: &[9],
        monitor_socket: None,
    })
    .unwrap()
}

/// The values of all options of this name.
fn values<'a>(arguments: &'a [String], name: &str) -> Vec<&'a str> {
    arguments.windows(2).filter(|pair| pair[0] == name).map(|pair| pair[1].as_str()).collect()
}

fn value<'a>(arguments: &'a [String], name: &str) -> &'a str {
    let [value] = values(arguments, name)[..] else { panic!("{name} is not there exactly once") };
    value
}

#[test]
fn the_default_machine_has_its_iommu_and_both_controllers_with_their_namespaces() {
    let arguments = arguments_of(&Machine::load("default").unwrap(), Accelerator::Tcg);
    let devices = values(&arguments, "-device");
    for device in [
        "intel-iommu,intremap=on,aw-bits=39",
        "nvme,id=nvme-00-04.0,bus=pcie.0,addr=04.0,serial=nvme-00-04.0",
        "nvme-ns,id=nvme-00-04.0-ns1-device,bus=nvme-00-04.0,nsid=1,drive=nvme-00-04.0-ns1,\
         logical_block_size=512,physical_block_size=512",
        "nvme-ns,id=nvme-00-04.0-ns2-device,bus=nvme-00-04.0,nsid=2,drive=nvme-00-04.0-ns2,\
         logical_block_size=4096,physical_block_size=4096",
        "nvme,id=nvme-00-05.0,bus=pcie.0,addr=05.0,serial=nvme-00-05.0",
        "virtio-serial-pci,id=channels,bus=pcie.0,addr=1e.0",
        "virtserialport,bus=channels.0,nr=2,chardev=doorbell.control,name=doorbell.control",
    ] {
        assert!(devices.contains(&device), "{device} is not in {devices:#?}");
    }
    // An IOMMU translates only for devices that come after it.
    let position = |start: &str| devices.iter().position(|device| device.starts_with(start)).unwrap();
    assert!(position("intel-iommu") < position("nvme,"));
    assert_eq!(value(&arguments, "-m"), "2147483648B");
    assert_eq!(value(&arguments, "-smp"), "2");
    assert!(value(&arguments, "-append").ends_with(" hugepagesz=2M hugepages=256"));
    assert!(values(&arguments, "-chardev").contains(&"socket,id=monitor0,fd=9"));
}

#[test]
fn interrupts_are_split_from_the_kernel_under_kvm_only() {
    let machine = Machine::load("wide").unwrap();
    let kvm = arguments_of(&machine, Accelerator::Kvm);
    let tcg = arguments_of(&machine, Accelerator::Tcg);
    assert_eq!((value(&kvm, "-machine"), value(&kvm, "-cpu")), ("q35,kernel-irqchip=split", "host"));
    assert_eq!((value(&tcg, "-machine"), value(&tcg, "-accel")), ("q35", "tcg,thread=multi"));
    assert!(values(&kvm, "-device").contains(&"intel-iommu,intremap=on,aw-bits=48"));
}

#[test]
fn commas_in_paths_do_not_split_an_option() {
    let arguments = arguments_of(&Machine::load("default").unwrap(), Accelerator::Tcg);
    assert!(values(&arguments, "-chardev").contains(&"file,id=console,path=/tmp/a,,b/console"));
    let disk: Value = serde_json::from_str(values(&arguments, "-blockdev")[0]).unwrap();
    assert_eq!(disk["file"]["filename"], "/tmp/a,b/nvme-00-04.0-1");
    assert_eq!((&disk["driver"], &disk["node-name"]), (&json!("raw"), &json!("nvme-00-04.0-ns1")));
}

#[test]
fn every_property_of_a_controller_and_a_namespace_reaches_its_device() {
    let machine = Machine::parse(
        "m",
        r#"
        summary = "everything"
        memory = "4G"
        vcpus = 1
        [hugepages]
        "1G" = 2
        [iommu]
        width = 48
        [[controller]]
        address = "0000:01:00.0"
        root_port = "0000:00:06.0"
        owner = "vfio"
        serial = "S1"
        max_ioqpairs = 3
        mdts = 5
        msix = 9
        [[controller.namespace]]
        nsid = 7
        block = 4096
        size = "64M"
        backing = "null-co"
        metadata = 16
        metadata_extended = true
        protection = 2
        zones = { size = "8M", capacity = "6M", max_open = 3, max_active = 4 }
    "#,
    )
    .unwrap();
    let arguments = arguments_of(&machine, Accelerator::Tcg);
    let devices = values(&arguments, "-device");
    for device in [
        "nvme-subsys,id=nvme-01-00.0-subsystem,nqn=nvme-01-00.0-subsystem",
        "pcie-root-port,id=port-06,bus=pcie.0,addr=06.0,chassis=1,slot=1",
        "nvme,id=nvme-01-00.0,bus=port-06,addr=00.0,serial=S1,subsys=nvme-01-00.0-subsystem,\
         max_ioqpairs=3,mdts=5,msix_qsize=9",
        "nvme-ns,id=nvme-01-00.0-ns7-device,bus=nvme-01-00.0,nsid=7,drive=nvme-01-00.0-ns7,\
         logical_block_size=4096,physical_block_size=4096,ms=16,mset=1,pi=2,\
         zoned=on,zoned.zone_size=8388608,zoned.zone_capacity=6291456,zoned.max_open=3,zoned.max_active=4",
    ] {
        assert!(devices.contains(&device), "{device} is not in {devices:#?}");
    }
    let disk: Value = serde_json::from_str(value(&arguments, "-blockdev")).unwrap();
    assert_eq!(disk["driver"], "null-co");
    assert_eq!((&disk["size"], &disk["read-zeroes"]), (&json!(64 << 20), &json!(true)));
    assert!(value(&arguments, "-append").ends_with(" hugepagesz=1G hugepages=2"));
}
