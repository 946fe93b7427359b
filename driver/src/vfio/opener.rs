#![expect(unsafe_code)]
//! Opening a device with `vfio-ioctls`, and keeping only the file.
//!
//! The crate's `VfioDevice` looks its group up in sysfs again when it is dropped, and panics if the device
//! has left it. So the crate opens and describes the device, and is then shown another `VfioOps` than a
//! container: its drop finds nothing to do, and the file is ours.
//
// UNSAFETY: takes over a file descriptor that the crate has given up.

use std::any::Any;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use vfio_bindings::bindings::vfio as sys;
use vfio_ioctls::{VfioContainer, VfioDevice, VfioOps};

use super::interrupts::Vectors;
use super::region::Region;

/// A device file and what the kernel says of it.
#[derive(Debug)]
pub(super) struct OpenDevice {
    pub file: File,
    pub bar0: Region,
    pub config: Region,
    pub vectors: Vectors,
    /// How many events the kernel has for asking for the device back: 1, or 0 on an old one.
    pub request_events: u32,
}

/// Opens the device that sysfs shows at `path`, in `container`.
pub(super) fn open(
    container: &Arc<VfioContainer>,
    path: &Path,
) -> Result<OpenDevice, vfio_ioctls::VfioError> {
    let opening = Arc::new(Opening { container: Arc::clone(container), done: AtomicBool::new(false) });
    let attach_ioas = false;
    let device = VfioDevice::new(path, Arc::clone(&opening) as Arc<dyn VfioOps>, attach_ioas)?;
    opening.done.store(true, Ordering::SeqCst);
    let bar0 = Region::of(&device, sys::VFIO_PCI_BAR0_REGION_INDEX);
    let config = Region::of(&device, sys::VFIO_PCI_CONFIG_REGION_INDEX);
    let vectors = Vectors::of(&device);
    let request_events = device.get_irq_info(sys::VFIO_PCI_REQ_IRQ_INDEX).map_or(0, |info| info.count);
    let descriptor = device.as_raw_fd();
    drop(device);
    // SAFETY:
    // - the descriptor is open: `VfioDevice` keeps it in a `ManuallyDrop`, and its drop, which closes it
    //   only for a container or an iommufd, has seen neither;
    // - nobody else owns it.
    let file = unsafe { File::from_raw_fd(descriptor) };
    Ok(OpenDevice { file, bar0, config, vectors, request_events })
}

/// A container while a device is being opened in it, and nothing afterwards.
struct Opening {
    container: Arc<VfioContainer>,
    done: AtomicBool,
}

impl VfioOps for Opening {
    fn as_any(&self) -> &dyn Any {
        if self.done.load(Ordering::SeqCst) { self } else { &*self.container }
    }
}
