//! Interrupts: an eventfd for each vector, signalled once a step for each queue that has news.

use std::fs::File;
use std::io::Write;

use crate::device::Device;

impl Device {
    /// Sets or takes away a vector's eventfd. `None`: there is no such vector.
    pub(crate) fn set_vector(&mut self, vector: u32, event: Option<File>) -> Option<()> {
        let slot = self.vectors.get_mut(usize::try_from(vector).ok()?)?;
        *slot = event;
        self.armed_vectors = self.vectors.iter().flatten().count();
        Some(())
    }

    /// Signals the vectors of the completion queues that something was posted to.
    pub(crate) fn raise_interrupts(&mut self) {
        if self.armed_vectors == 0 {
            return;
        }
        for cq in self.cqs.iter_mut().flatten() {
            let is_fresh = std::mem::take(&mut cq.is_fresh);
            let vector = cq.vector.filter(|_| is_fresh);
            let event = vector.and_then(|vector| self.vectors.get_mut(usize::from(vector)));
            if let Some(Some(event)) = event {
                // A full counter means that the host has not looked since: it will.
                let _ = event.write(&1_u64.to_ne_bytes());
            }
        }
    }
}
