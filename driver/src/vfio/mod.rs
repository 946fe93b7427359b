//! The bus to a real controller: Linux's VFIO.
//!
//! ```text
//!   VfioTransport ── device file ──▶ registers (pread/pwrite), doorbells (mapped), MSI-X, reset
//!        │
//!        └── VfioMapper (one per IOMMU group) ── container ──▶ IOMMU: IOVA ⇄ memory of this process
//! ```
//!
//! Invariants:
//! * an IOMMU group has one container in this process, whose [`VfioMapper`] its devices share; another
//!   process cannot open the group meanwhile, and this one cannot open a device twice;
//! * a device file is closed before its group, and the group before its container, and nothing in that
//!   panics, whether the device is still there or not;
//! * registers are reached by system calls, which answer with an error where a mapping would raise SIGBUS;
//!   only the doorbells are mapped.
//!
//! What holds when the device goes away: an orderly removal (`echo 1 > remove`, hot-unplug by button,
//! unbinding) waits in the kernel until the transport is dropped, and is announced by
//! [`BusEvent::RemovalRequested`](doorbell_spec::BusEvent::RemovalRequested). A device that vanishes at once
//! reads as all ones, or as [`BusError::Removed`](doorbell_spec::BusError::Removed); a doorbell that is rung
//! then goes nowhere. Ringing a doorbell raises SIGBUS only if somebody else turns the device's memory
//! decoding or power off under the driver, which is not caught here.
//!
//! The `vfio-ioctls` crate opens container, group and device and describes the device's regions. The rest is
//! done with system calls of our own on the same files, since the crate drops the errors of register access,
//! interrupts and reset, does not tell what the IOMMU can map, and panics when a device file is closed after
//! its device has left sysfs (see `opener.rs`).
//!
//! Not built: VFIO's no-IOMMU mode, iommufd, and hot reset of a whole bus.

mod config_space;
mod container;
mod error;
mod interrupts;
mod ioctl;
mod iommu_info;
mod opener;
mod region;
mod registry;
mod transport;
mod window;

pub use container::VfioMapper;
pub use error::VfioError;
pub use transport::VfioTransport;
