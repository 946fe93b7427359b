//! A polled-mode userspace NVMe driver.

pub mod pci;
pub mod vfio;
