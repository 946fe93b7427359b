//! A polled-mode userspace NVMe driver.
