//! A made-up machine in a temporary folder, with a thread that plays the kernel's part in binding.
//!
//! `drivers_probe` and each driver's `unbind` are named pipes: a write reaches the thread, which moves the
//! `driver` links as the kernel would.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use nix::sys::stat::Mode;

use super::{Machine, PciAddress};

pub(super) struct FakeMachine {
    folder: tempfile::TempDir,
    kernel: Vec<(PathBuf, JoinHandle<()>)>,
}

/// How the made-up kernel behaves.
#[derive(Clone)]
pub(super) struct Behaviour {
    /// Whether vfio-pci takes a device that is pinned to it.
    pub vfio_takes: Arc<AtomicBool>,
}

impl FakeMachine {
    pub(super) fn new() -> Self {
        let fake = Self { folder: tempfile::tempdir().expect("temporary folder"), kernel: Vec::new() };
        fake.write("proc/self/mountinfo", "");
        fake
    }

    pub(super) fn machine(&self) -> Machine {
        Machine::at(self.folder.path())
    }

    pub(super) fn path(&self, below: &str) -> PathBuf {
        self.folder.path().join(below)
    }

    pub(super) fn write(&self, below: &str, text: &str) {
        let path = self.path(below);
        fs::create_dir_all(path.parent().expect("below the root")).expect("folder");
        fs::write(path, text).expect("file");
    }

    pub(super) fn link(&self, below: &str, target: &str) {
        let path = self.path(below);
        fs::create_dir_all(path.parent().expect("below the root")).expect("folder");
        symlink(target, path).expect("link");
    }

    pub(super) fn read(&self, below: &str) -> String {
        fs::read_to_string(self.path(below)).expect("file")
    }

    /// An NVMe controller.
    pub(super) fn controller(&self, address: &str, driver: Option<&str>, group: Option<u32>) -> PciAddress {
        self.device(address, 0x01_0802, driver, group)
    }

    /// A device of any class.
    pub(super) fn device(
        &self,
        address: &str,
        class: u32,
        driver: Option<&str>,
        group: Option<u32>,
    ) -> PciAddress {
        let folder = format!("sys/bus/pci/devices/{address}");
        self.write(&format!("{folder}/vendor"), "0x1b36\n");
        self.write(&format!("{folder}/device"), "0x0010\n");
        self.write(&format!("{folder}/class"), &format!("{class:#08x}\n"));
        self.write(&format!("{folder}/numa_node"), "-1\n");
        self.write(&format!("{folder}/driver_override"), "(null)\n");
        self.write(
            &format!("{folder}/resource"),
            "0x00000000fe000000 0x00000000fe003fff 0x0000000000140204\n0x0 0x0 0x0\n",
        );
        if let Some(driver) = driver {
            self.link(&format!("{folder}/driver"), &format!("../../drivers/{driver}"));
        }
        if let Some(group) = group {
            self.link(&format!("{folder}/iommu_group"), &format!("../../../../kernel/iommu_groups/{group}"));
            self.write(&format!("sys/kernel/iommu_groups/{group}/devices/{address}"), "");
        }
        address.parse().expect("address")
    }

    /// A disk.
    pub(super) fn block(&self, name: &str, number: &str) {
        self.write(&format!("sys/class/block/{name}/dev"), &format!("{number}\n"));
    }

    /// A partition, which sysfs shows both by itself and inside its disk.
    pub(super) fn partition(&self, disk: &str, name: &str, number: &str) {
        self.block(name, number);
        self.write(&format!("sys/class/block/{disk}/{name}/partition"), "1\n");
    }

    /// A process with some nodes open.
    pub(super) fn process(&self, pid: u32, command: &str, open: &[&str]) {
        self.write(&format!("proc/{pid}/comm"), &format!("{command}\n"));
        for (number, node) in open.iter().enumerate() {
            let target = self.path(node);
            self.link(&format!("proc/{pid}/fd/{number}"), target.to_str().expect("text"));
        }
    }

    pub(super) fn driver_of(&self, address: PciAddress) -> Option<String> {
        self.machine().device(address).expect("there").driver
    }

    /// Starts the kernel with the drivers nvme and vfio-pci.
    pub(super) fn start_kernel(&mut self) -> Behaviour {
        let behaviour = Behaviour { vfio_takes: Arc::new(AtomicBool::new(true)) };
        for driver in ["nvme", "vfio-pci"] {
            self.serve(&format!("sys/bus/pci/drivers/{driver}/unbind"), |device| {
                fs::remove_file(device.join("driver")).expect("was bound");
            });
        }
        let rules = behaviour.clone();
        self.serve("sys/bus/pci/drivers_probe", move |device| {
            let pin = fs::read_to_string(device.join("driver_override")).expect("pin");
            let driver = match pin.trim() {
                "vfio-pci" if rules.vfio_takes.load(Ordering::SeqCst) => "vfio-pci",
                "" | "(null)" => "nvme",
                _ => return,
            };
            symlink(format!("../../drivers/{driver}"), device.join("driver")).expect("was not bound");
        });
        behaviour
    }

    /// Makes a pipe and calls `act` with the folder of each device whose address is written to it.
    fn serve(&mut self, below: &str, act: impl Fn(&Path) + Send + 'static) {
        let pipe = self.path(below);
        fs::create_dir_all(pipe.parent().expect("below the root")).expect("folder");
        nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).expect("pipe");
        let devices = self.path("sys/bus/pci/devices");
        let heard = pipe.clone();
        let thread = thread::spawn(move || {
            loop {
                match fs::read_to_string(&heard).expect("pipe").as_str() {
                    END => return,
                    address => act(&devices.join(address)),
                }
            }
        });
        self.kernel.push((pipe, thread));
    }
}

impl Drop for FakeMachine {
    fn drop(&mut self) {
        for (pipe, thread) in self.kernel.drain(..) {
            if !thread.is_finished() {
                fs::write(pipe, END).expect("the thread reads");
            }
            drop(thread.join());
        }
    }
}

const END: &str = "end";
