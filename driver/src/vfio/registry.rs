//! What this process has open: one container for each IOMMU group, each device once.
//!
//! The kernel lets a group be opened once, so devices of one group must share what was opened first. The
//! registry holds no container open: it knows them weakly, and the mappers' owners decide.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use doorbell_spec::Clock;
use vfio_ioctls::VfioContainer;

use super::container::VfioMapper;
use super::error::VfioError;
use super::opener::{self, OpenDevice};
use crate::pci::{Machine, PciAddress, PciDevice};

/// A device that is open in this process, until this is dropped.
#[derive(Debug)]
pub(super) struct Slot(PciAddress);

/// A device, its group's memory, and its place in the registry. Dropped in this order.
#[derive(Debug)]
pub(super) struct Opened {
    pub device: OpenDevice,
    pub mapper: Arc<VfioMapper>,
    pub slot: Slot,
}

/// Opens `device`, which vfio-pci holds, in its group's container.
pub(super) fn open(machine: &Machine, device: &PciDevice) -> Result<Opened, VfioError> {
    let address = device.address;
    let group = device.isolated_group()?.id;
    let mut registry = lock();
    if !registry.devices.insert(address) {
        return Err(VfioError::AlreadyOpen { address });
    }
    // From here on every way out that fails drops the slot, which takes the lock: after ours is let go.
    let slot = Slot(address);
    let result = registry.open_in_group(machine, device, group);
    drop(registry);
    let (device, mapper) = result?;
    Ok(Opened { device, mapper, slot })
}

#[derive(Default)]
struct Registry {
    groups: HashMap<u32, Weak<VfioMapper>>,
    devices: HashSet<PciAddress>,
}

impl Registry {
    fn open_in_group(
        &mut self,
        machine: &Machine,
        device: &PciDevice,
        group: u32,
    ) -> Result<(OpenDevice, Arc<VfioMapper>), VfioError> {
        let address = device.address;
        let path = machine.device_path(address);
        if let Some(mapper) = self.groups.get(&group).and_then(Weak::upgrade) {
            let opened = opener::open(mapper.container(), &path);
            return Ok((opened.map_err(|source| explain(machine, device, group, source))?, mapper));
        }
        let (opened, container) =
            open_fresh(&path, machine.clock()).map_err(|source| explain(machine, device, group, source))?;
        let mapper = VfioMapper::new(container, group).map_err(|source| VfioError::Os {
            address,
            action: "reading the IOMMU's limits",
            source,
        })?;
        let mapper = Arc::new(mapper);
        self.groups.insert(group, Arc::downgrade(&mapper));
        Ok((opened, mapper))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        lock().devices.remove(&self.0);
    }
}

/// Opens a device in a new container. A group that is busy is tried again for a moment: its last owner may
/// just be closing it, in this process or a dying one.
fn open_fresh(
    path: &Path,
    clock: &Clock,
) -> Result<(OpenDevice, Arc<VfioContainer>), vfio_ioctls::VfioError> {
    let deadline = clock.deadline(BUSY);
    loop {
        // No KVM or other hypervisor takes part.
        let container = Arc::new(VfioContainer::new(None)?);
        match opener::open(&container, path) {
            Ok(opened) => return Ok((opened, container)),
            Err(error) if is_busy(&error) && !deadline.passed(clock) => {
                drop(container);
                thread::sleep(LOOK_AGAIN);
                clock.advance(LOOK_AGAIN);
            }
            Err(error) => return Err(error),
        }
    }
}

fn is_busy(error: &vfio_ioctls::VfioError) -> bool {
    use vfio_ioctls::VfioError::OpenGroup;
    matches!(error, OpenGroup(source, _) if source.raw_os_error() == Some(libc::EBUSY))
}

fn explain(machine: &Machine, device: &PciDevice, group: u32, source: vfio_ioctls::VfioError) -> VfioError {
    use vfio_ioctls::VfioError as Crate;
    let address = device.address;
    let node = match &source {
        Crate::OpenContainer(_) => machine.container_path(),
        _ => machine.group_path(group),
    };
    match source {
        Crate::OpenContainer(source) | Crate::OpenGroup(source, _) => match source.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => VfioError::NotPermitted { node, source },
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => VfioError::NoVfio { node },
            Some(libc::EBUSY) => {
                let open = machine.processes_with_open(std::slice::from_ref(&node));
                let holders = open.into_iter().map(|(process, _)| process).collect();
                VfioError::GroupHeld { address, node, holders }
            }
            _ => VfioError::Os { address, action: "opening the IOMMU group", source },
        },
        Crate::GroupViable => {
            // If the group has become viable since, there is nobody to name.
            let blockers = machine.blockers(device, &[address]).unwrap_or_default();
            VfioError::GroupNotViable { address, group, blockers }
        }
        Crate::ContainerSetIOMMU(error) if error.errno() == libc::EPERM => {
            VfioError::UnsafeInterrupts { address }
        }
        source => VfioError::Open { address, source },
    }
}

static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);

fn lock() -> MutexGuard<'static, Registry> {
    // Each change is a single insertion or removal, so a panic elsewhere leaves nothing half done.
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a busy group is tried again.
const BUSY: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(10);
