//! MSI-X vectors, connected to event descriptors one at a time.
//!
//! The kernel allocates vectors when the first is connected. Where it cannot add to them later (before Linux
//! 6.5, or on some platforms), all are disconnected and connected again; an interrupt that falls into that
//! moment would be lost, so every event is signalled once: a wake-up too many is harmless.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use doorbell_spec::BusError;
use vfio_bindings::bindings::vfio as sys;
use vfio_ioctls::VfioDevice;

use super::ioctl;

/// The interrupt vectors of a device.
#[derive(Debug)]
pub(super) struct Vectors {
    count: u32,
    growth: Growth,
    /// What is connected, by vector. As long as what the kernel has allocated, empty if nothing is.
    connected: Vec<Option<OwnedFd>>,
}

/// What the kernel can do when a vector beyond the allocated ones is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Growth {
    InPlace,
    FromScratch,
}

impl Vectors {
    /// The vectors that `device` has; none if they cannot signal events.
    pub(super) fn of(device: &VfioDevice) -> Self {
        let (count, flags) =
            device.get_irq_info(sys::VFIO_PCI_MSIX_IRQ_INDEX).map_or((0, 0), |info| (info.count, info.flags));
        let usable = flags & sys::VFIO_IRQ_INFO_EVENTFD != 0;
        let fixed = flags & sys::VFIO_IRQ_INFO_NORESIZE != 0;
        Self {
            // MSI-X has no more (PCI Local Bus 3.0, 6.8.2).
            count: if usable { count.min(VECTORS_MAX) } else { 0 },
            growth: if fixed { Growth::FromScratch } else { Growth::InPlace },
            connected: Vec::new(),
        }
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Connects `vector` to `event`, or disconnects it.
    pub(super) fn set(
        &mut self,
        device: &File,
        vector: u32,
        event: Option<BorrowedFd<'_>>,
    ) -> Result<(), BusError> {
        if vector >= self.count {
            return Err(BusError::NoSuchVector { vector, vectors: self.count });
        }
        let failed = |source| BusError::Os { action: "setting an interrupt vector", source };
        // A copy of our own: the caller may close its descriptor, and reconnecting needs it later.
        let event = event.map(|event| event.try_clone_to_owned()).transpose().map_err(failed)?;
        let index = vector as usize;
        if let Some(slot) = self.connected.get_mut(index) {
            ioctl::set_irqs(device, MSIX, vector, &[event.as_ref().map(AsFd::as_fd)]).map_err(failed)?;
            *slot = event;
        } else if event.is_some() {
            self.grow(device, vector, event).map_err(failed)?;
        }
        if !self.connected.is_empty() && self.connected.iter().all(Option::is_none) {
            ioctl::disable_irqs(device, MSIX).map_err(failed)?;
            self.connected.clear();
        }
        Ok(())
    }

    /// Connects a vector beyond those that the kernel has allocated.
    fn grow(&mut self, device: &File, vector: u32, event: Option<OwnedFd>) -> io::Result<()> {
        let before = self.connected.len();
        self.connected.resize_with(vector as usize, || None);
        self.connected.push(event);
        let result = if before > 0 && self.growth == Growth::InPlace {
            let added = self.connected[before..].iter().map(|event| event.as_ref().map(AsFd::as_fd));
            // At most VECTORS_MAX.
            ioctl::set_irqs(device, MSIX, before as u32, &added.collect::<Vec<_>>())
        } else {
            self.connect_all(device, before)
        };
        if result.is_err() {
            self.connected.truncate(before);
            if before > 0 && self.growth == Growth::FromScratch && self.connect_all(device, 0).is_err() {
                // Nothing is connected any more, and the next call starts afresh.
                self.connected.clear();
            }
        }
        result
    }

    /// Connects everything again, after disconnecting the `before` vectors that were.
    fn connect_all(&mut self, device: &File, before: usize) -> io::Result<()> {
        if before > 0 {
            ioctl::disable_irqs(device, MSIX)?;
        }
        let all: Vec<_> = self.connected.iter().map(|event| event.as_ref().map(AsFd::as_fd)).collect();
        ioctl::set_irqs(device, MSIX, 0, &all)?;
        for event in self.connected.iter().take(before).flatten() {
            // An event that cannot take the signal has others waiting to be seen.
            drop(
                event.try_clone().map(File::from).and_then(|mut event| event.write_all(&1_u64.to_ne_bytes())),
            );
        }
        Ok(())
    }
}

const MSIX: u32 = sys::VFIO_PCI_MSIX_IRQ_INDEX;
const VECTORS_MAX: u32 = 2048;

#[cfg(test)]
mod tests {
    use super::*;

    fn vectors(count: u32) -> Vectors {
        Vectors { count, growth: Growth::FromScratch, connected: Vec::new() }
    }

    #[test]
    fn a_vector_that_does_not_exist_is_refused() {
        let file = File::open("/dev/null").expect("always there");
        for (count, vector) in [(0, 0), (4, 4), (4, u32::MAX)] {
            let result = vectors(count).set(&file, vector, None);
            assert!(matches!(result, Err(BusError::NoSuchVector { .. })));
        }
    }

    #[test]
    fn a_refused_connection_leaves_no_trace_and_disconnecting_nothing_is_fine() {
        let file = File::open("/dev/null").expect("always there");
        let mut vectors = vectors(4);
        vectors.set(&file, 3, Some(file.as_fd())).expect_err("not a device");
        assert!(vectors.connected.is_empty());
        vectors.set(&file, 3, None).expect("nothing to do");
    }
}
