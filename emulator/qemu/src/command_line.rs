//! A machine as arguments for QEMU.
//!
//! QEMU gets its end of every channel as a descriptor that is already connected, so there is no moment in
//! which a channel exists and nobody listens. The identifiers that devices and disks get are made here and
//! used by everything that asks QEMU about them: see [`device_id`] and [`disk_id`].

use std::os::fd::RawFd;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::backing::Images;
use crate::machine::{Backing, CHANNELS_DEVICE, Controller, Machine, Namespace, PciAddress};
use crate::wire::Channel;

/// Everything that QEMU has to know.
#[derive(Debug)]
pub struct Boot<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// The kernel image.
    pub kernel: &'a Path,
    /// The guest's first file system.
    pub initramfs: &'a Path,
    /// Where the kernel's console is written.
    pub console_log: &'a Path,
    /// What executes the guest's instructions.
    pub accelerator: Accelerator,
    /// The backing files.
    pub images: &'a Images,
    /// QEMU's end of the channels.
    pub channels: &'a [(Channel, RawFd)],
    /// QEMU's ends of its monitors.
    pub monitors: &'a [RawFd],
    /// A socket on which another program may use the monitor.
    pub monitor_socket: Option<&'a Path>,
}

/// What executes the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accelerator {
    /// The processor.
    Kvm,
    /// QEMU, by translation, with a thread for each virtual processor.
    Tcg,
}

/// The identifier of a controller for QEMU, for instance in `device_del`.
pub fn device_id(address: PciAddress) -> String {
    format!("nvme-{:02x}-{:02x}.{:x}", address.bus, address.device, address.function)
}

/// The identifier of a namespace's disk for QEMU.
pub fn disk_id(address: PciAddress, nsid: u32) -> String {
    format!("{}-ns{nsid}", device_id(address))
}

/// The identifier of the subsystem of a controller that can be removed. Adding the controller again names it.
pub fn subsystem_id(address: PciAddress) -> String {
    format!("{}-subsystem", device_id(address))
}

/// The identifier of a root port, which is the `bus` of the controller behind it.
pub fn root_port_id(port: PciAddress) -> String {
    format!("port-{:02x}", port.device)
}

/// The arguments, without the program's name.
pub fn arguments(boot: &Boot<'_>) -> Result<Vec<String>> {
    let machine = boot.machine;
    let mut arguments = Arguments::default();
    arguments.flags(&["-nodefaults", "-no-user-config", "-no-reboot"]);
    arguments.option("-display", "none");
    arguments.option("-nic", "none");
    let (chipset, accelerator, processor) = match boot.accelerator {
        // Interrupt remapping needs the interrupt controllers that are not in the kernel.
        Accelerator::Kvm => ("q35,kernel-irqchip=split", "kvm", "host"),
        Accelerator::Tcg => ("q35", "tcg,thread=multi", TCG_PROCESSOR),
    };
    arguments.option("-machine", chipset);
    arguments.option("-accel", accelerator);
    arguments.option("-cpu", processor);
    arguments.option("-smp", &machine.vcpus.to_string());
    arguments.option("-m", &format!("{}B", machine.memory.bytes()));
    arguments.option("-kernel", text(boot.kernel)?);
    arguments.option("-initrd", text(boot.initramfs)?);
    arguments.option("-append", &kernel_parameters(machine));
    arguments.option("-chardev", &format!("file,id=console,path={}", escaped(text(boot.console_log)?)));
    arguments.option("-serial", "chardev:console");
    arguments.option("-device", &format!("intel-iommu,intremap=on,aw-bits={}", machine.iommu.width));
    arguments.channels(boot.channels);
    arguments.monitors(boot.monitors);
    if let Some(socket) = boot.monitor_socket {
        arguments.option("-qmp", &format!("unix:{},server=on,wait=off", escaped(text(socket)?)));
    }
    for (index, port) in (1..).zip(machine.root_ports()) {
        let properties = format!("id={},bus=pcie.0,addr={:02x}.0", root_port_id(port), port.device);
        arguments.option("-device", &format!("pcie-root-port,{properties},chassis={index},slot={index}"));
    }
    for controller in &machine.controllers {
        arguments.controller(controller, boot.images)?;
    }
    Ok(arguments.0)
}

#[derive(Default)]
struct Arguments(Vec<String>);

impl Arguments {
    fn flags(&mut self, flags: &[&str]) {
        self.0.extend(flags.iter().map(|flag| (*flag).to_owned()));
    }

    fn option(&mut self, name: &str, value: &str) {
        self.0.extend([name.to_owned(), value.to_owned()]);
    }

    fn channels(&mut self, channels: &[(Channel, RawFd)]) {
        let slot = format!("addr={CHANNELS_DEVICE:02x}.0");
        self.option("-device", &format!("virtio-serial-pci,id=channels,bus=pcie.0,{slot}"));
        // Port 0 is for a console; the others are numbered from 1.
        for (number, (channel, descriptor)) in (1..).zip(channels) {
            let name = channel.port();
            self.option("-chardev", &format!("socket,id={name},fd={descriptor}"));
            let port = format!("virtserialport,bus=channels.0,nr={number},chardev={name},name={name}");
            self.option("-device", &port);
        }
    }

    fn monitors(&mut self, monitors: &[RawFd]) {
        for (number, descriptor) in monitors.iter().enumerate() {
            self.option("-chardev", &format!("socket,id=monitor{number},fd={descriptor}"));
            self.option("-mon", &format!("chardev=monitor{number},mode=control"));
        }
    }

    fn controller(&mut self, controller: &Controller, images: &Images) -> Result<()> {
        let address = controller.address;
        let id = device_id(address);
        let bus = controller.root_port.map_or_else(|| "pcie.0".to_owned(), root_port_id);
        let serial = controller.serial.clone().unwrap_or_else(|| id.clone());
        let mut device = format!("nvme,id={id},bus={bus},addr={:02x}.0,serial={serial}", address.device);
        if controller.root_port.is_some() {
            // Namespaces go with their controller when it is removed, and cannot be added to a running
            // machine; those of a subsystem stay, and are there again when the controller is.
            let subsystem = subsystem_id(address);
            self.option("-device", &format!("nvme-subsys,id={subsystem},nqn={subsystem}"));
            device.push_str(&format!(",subsys={subsystem}"));
        }
        let numbers = [
            ("max_ioqpairs", controller.max_ioqpairs),
            ("mdts", controller.mdts.map(u32::from)),
            ("msix_qsize", controller.msix.map(u32::from)),
        ];
        for (name, value) in numbers {
            if let Some(value) = value {
                device.push_str(&format!(",{name}={value}"));
            }
        }
        self.option("-device", &device);
        for namespace in &controller.namespaces {
            let disk = disk_id(address, namespace.nsid);
            let file = images.get(&(address, namespace.nsid)).map(|file| text(file)).transpose()?;
            self.option("-blockdev", &disk_node(&disk, namespace, file)?.to_string());
            self.option("-device", &namespace_device(&disk, &id, namespace));
        }
        Ok(())
    }
}

/// The block layer's node for a namespace. It is given as JSON because a file's name may contain anything.
fn disk_node(disk: &str, namespace: &Namespace, file: Option<&str>) -> Result<Value> {
    Ok(match namespace.backing {
        Backing::File => {
            let file = file.with_context(|| format!("{disk} has no backing file"))?;
            let storage = json!({"driver": "file", "filename": file, "discard": "unmap"});
            json!({"driver": "raw", "node-name": disk, "discard": "unmap", "file": storage})
        }
        Backing::NullCo => {
            let size = namespace.size.bytes();
            json!({"driver": "null-co", "node-name": disk, "size": size, "read-zeroes": true})
        }
    })
}

fn namespace_device(disk: &str, controller: &str, namespace: &Namespace) -> String {
    let Namespace { nsid, block, metadata, protection, .. } = namespace;
    let mut device = format!("nvme-ns,id={disk}-device,bus={controller},nsid={nsid},drive={disk}");
    device.push_str(&format!(",logical_block_size={block},physical_block_size={block}"));
    if *metadata > 0 {
        let extended = u8::from(namespace.metadata_extended);
        device.push_str(&format!(",ms={metadata},mset={extended},pi={protection}"));
    }
    if let Some(zones) = namespace.zones {
        let capacity = zones.capacity.unwrap_or(zones.size).bytes();
        let (open, active) = (zones.max_open, zones.max_active);
        device.push_str(&format!(",zoned=on,zoned.zone_size={}", zones.size.bytes()));
        device.push_str(&format!(
            ",zoned.zone_capacity={capacity},zoned.max_open={open},zoned.max_active={active}"
        ));
    }
    device
}

/// The kernel's parameters. A panic ends QEMU because it reboots at once and reboots are not allowed.
fn kernel_parameters(machine: &Machine) -> String {
    let mut parameters = KERNEL_PARAMETERS.to_owned();
    for (size, count) in [("2M", machine.hugepages.of_2_mib), ("1G", machine.hugepages.of_1_gib)] {
        if count > 0 {
            parameters.push_str(&format!(" hugepagesz={size} hugepages={count}"));
        }
    }
    parameters
}

/// QEMU splits most of its options at commas; a doubled comma is one that stays.
fn escaped(value: &str) -> String {
    value.replace(',', ",,")
}

fn text(path: &Path) -> Result<&str> {
    path.to_str()
        .with_context(|| format!("the path {} is not UTF-8, which QEMU's options need", path.display()))
}

/// Five-level page tables make every address translation longer, for nothing.
const TCG_PROCESSOR: &str = "max,la57=off";

const KERNEL_PARAMETERS: &str = "console=ttyS0 quiet panic=-1 oops=panic intel_iommu=on iommu=nopt \
     mitigations=off nokaslr nowatchdog tsc=reliable no_timer_check random.trust_cpu=on";

#[cfg(test)]
mod tests;
