//! Tests of reading and checking a machine.

use super::*;

const SMALL: &str = r#"
    summary = "small"
    memory = "1G"
    vcpus = 1
    [iommu]
    width = 39
    [[controller]]
    address = "0000:00:04.0"
    owner = "vfio"
    [[controller.namespace]]
    nsid = 1
    block = 512
    size = "64M"
"#;

/// The whole chain of causes, as it is printed.
fn refusal(text: &str) -> String {
    format!("{:#}", Machine::parse("m", text).unwrap_err())
}

#[test]
fn the_built_in_machines_are_described_well() {
    let machines = Machine::built_in().unwrap();
    assert_eq!(
        machines.iter().map(|machine| machine.name.as_str()).collect::<Vec<_>>(),
        ["default", "wide", "fast"]
    );
    for machine in &machines {
        let ours: Vec<_> =
            machine.owned_by(Owner::Vfio).map(|controller| controller.address.to_string()).collect();
        let kernels: Vec<_> =
            machine.owned_by(Owner::Kernel).map(|controller| controller.address.to_string()).collect();
        assert_eq!(ours, ["0000:00:04.0"], "{}", machine.name);
        assert_eq!(kernels, ["0000:00:05.0"], "{}", machine.name);
        assert_eq!(machine.vcpus, 2);
    }
    assert_eq!(machines.iter().map(|machine| machine.iommu.width).collect::<Vec<_>>(), [39, 48, 39]);
    let blocks: Vec<_> = machines[0].controllers[0].namespaces.iter().map(|ns| (ns.nsid, ns.block)).collect();
    assert_eq!(blocks, [(1, 512), (2, 4096)]);
    assert!(
        machines[2].controllers.iter().all(|c| c.namespaces.iter().all(|ns| ns.backing == Backing::NullCo))
    );
}

#[test]
fn an_unknown_machine_is_refused_with_the_ones_there_are() {
    let error = Machine::load("fats").unwrap_err().to_string();
    assert!(error.contains("`fats`") && error.contains("default, wide, fast"), "{error}");
}

#[test]
fn an_unknown_key_is_refused_by_name_wherever_it_stands() {
    for (place, text) in [
        ("the machine", SMALL.replace("vcpus = 1", "vcpus = 1\ncpus = 2")),
        ("the IOMMU", SMALL.replace("width = 39", "width = 39\ncpus = 2")),
        ("a controller", SMALL.replace("owner =", "cpus = 2\nowner =")),
        ("a namespace", SMALL.replace("nsid = 1", "nsid = 1\ncpus = 2")),
    ] {
        let error = refusal(&text);
        assert!(error.contains("unknown field `cpus`"), "in {place}: {error}");
    }
}

#[test]
fn contradictions_are_refused() {
    let behind = SMALL.replace("owner =", "root_port = \"0000:00:06.0\"\nowner =");
    let twice = format!("{SMALL}\n[[controller]]\naddress = \"0000:00:04.0\"\nowner = \"kernel\"\n");
    for (text, reason) in [
        (SMALL.replace("width = 39", "width = 40"), "iommu.width is 40"),
        (SMALL.replace("vcpus = 1", "vcpus = 0"), "vcpus is 0"),
        (SMALL.replace("[iommu]", "[hugepages]\n\"2M\" = 512\n[iommu]"), "huge pages need 1G"),
        (SMALL.replace("block = 512", "block = 520"), "a block of 520 bytes"),
        (SMALL.replace("64M", "1000"), "not a multiple of the block"),
        (SMALL.replace("64M", "64X"), "`64X` is not a size"),
        (SMALL.replace("nsid = 1", "nsid = 0"), "nsid is 0"),
        (SMALL.replace("0000:00:04.0", "0000:00:1f.0"), "used twice"),
        (SMALL.replace("0000:00:04.0", "00:04.0"), "is not a PCI address"),
        (SMALL.replace("0000:00:04.0", "0000:02:00.0"), "has to be behind a root_port"),
        (SMALL.replace("nsid = 1", "nsid = 1\nprotection = 1"), "needs metadata"),
        (SMALL.replace("\"vfio\"", "\"us\""), "unknown variant `us`"),
        (behind, "the address will be 0000:01:00.0"),
        (twice, "the address 0000:00:04.0 is used twice"),
    ] {
        let error = refusal(&text);
        assert!(error.contains(reason), "expected `{reason}` in: {error}");
    }
}

#[test]
fn buses_behind_root_ports_are_numbered_by_the_ports_addresses() {
    let port = |port: &str, address: &str| {
        format!("[[controller]]\nroot_port = \"{port}\"\naddress = \"{address}\"\nowner = \"vfio\"\n")
    };
    let head = SMALL.split("[[controller]]").next().unwrap();
    let right =
        format!("{head}{}{}", port("0000:00:07.0", "0000:02:00.0"), port("0000:00:06.0", "0000:01:00.0"));
    let wrong =
        format!("{head}{}{}", port("0000:00:07.0", "0000:01:00.0"), port("0000:00:06.0", "0000:02:00.0"));
    assert_eq!(Machine::parse("m", &right).unwrap().root_ports().len(), 2);
    assert!(refusal(&wrong).contains("will be"));
}

#[test]
fn addresses_are_read_and_written_the_same() {
    for text in ["0000:00:04.0", "0000:01:1f.7", "0000:ff:00.0"] {
        assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), text);
    }
    for text in
        ["0000:00:20.0", "0000:00:04.8", "0001:00:04.0", "0000:0:4.0", "0000:00:+4.0", "", "0000:00:04"]
    {
        assert!(text.parse::<PciAddress>().is_err(), "{text} was taken for an address");
    }
}
