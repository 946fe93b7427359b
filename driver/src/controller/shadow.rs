#![expect(unsafe_code)]
//! Shadow doorbells (NVMe Base 2.0, 5.8 and Annex B.5): two buffers in host memory, which spare a controller
//! made of software most of the writes to its registers.
//!
//! Invariant: the device keeps the buffers (they are parked) until it has been disabled, and every doorbell
//! that uses them keeps them too. A controller reset ends their use: each bring-up makes new ones, all zero.
//
// UNSAFETY: shows the buffers' memory as doorbells, which live as long as the buffers.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use doorbell_spec::identify::{IdentifyController, OACS_DOORBELL_BUFFER};
use doorbell_spec::register::{DoorbellKind, doorbell_bytes, doorbell_index};
use doorbell_spec::{DoorbellBuffers, Doorbells, QueueId, SubmissionEntry};

use super::bring_up::ring_memory;
use super::device::{Device, Parked};
use super::options::ControllerOptions;
use crate::error::ControllerError;
use crate::queue::{QueueDoorbell, RegisterUse, SharedMemory};

/// Whether queues are moved by shadow doorbells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShadowDoorbells {
    /// If the controller offers them (OACS bit 8): one made of software does, so that its host need not write
    /// a register, which is slow in a virtual machine, each time.
    #[default]
    WhenOffered,
    /// By registers alone, whatever the controller offers.
    Never,
}

/// What becomes of the admin queue's doorbells once there are shadows. Controllers differ.
///
/// The specification moves all queues by shadows (Annex B.5.1). Linux and SPDK have always left the admin
/// queue to its registers, so controllers had to put up with that: QEMU's copies the registers into the
/// shadows itself, and SPDK's never looks at the admin queue's shadows. One that was made by the book may
/// know its shadows only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AdminShadow {
    /// Both are written every time, the shadow first, whatever EventIdx says: right for all of these. Admin
    /// commands are rare, so that a register that was written in vain costs nothing.
    #[default]
    Mirrored,
    /// The registers alone, as Linux and SPDK do: for a controller that is confused by more.
    RegisterOnly,
}

/// The shadow doorbells of a controller that has accepted them.
#[derive(Debug)]
pub(super) struct Shadows {
    buffers: DoorbellBuffers,
    /// How many doorbells lie in the first memory page.
    page_words: usize,
}

impl Shadows {
    /// Offers shadow doorbells to the controller as far as both sides want them, for `queues` I/O queues.
    ///
    /// A controller that offers them and then refuses the command is driven without.
    pub(super) fn configure(
        device: &Device,
        identify: &IdentifyController,
        queues: u32,
        options: &ControllerOptions,
    ) -> Result<Option<Self>, ControllerError> {
        const COMMAND: &str = "Doorbell Buffer Config";
        let is_offered = identify.admin_commands & OACS_DOORBELL_BUFFER != 0;
        if !is_offered || options.shadow_doorbells == ShadowDoorbells::Never {
            return Ok(None);
        }
        let stride = device.cap.doorbell_stride();
        let page = usize::try_from(device.page_bytes).unwrap_or(usize::MAX);
        let last = QueueId(u16::try_from(queues).unwrap_or(u16::MAX));
        let bytes = doorbell_bytes(last, stride).min(BUFFER_BYTES_MAX).next_multiple_of(page);
        let memory = || ring_memory(&device.space, bytes, device.page_bytes);
        let (shadow, events) = (memory()?, memory()?);
        let entry = SubmissionEntry::doorbell_buffer_config(shadow.iova(), events.iova());
        let buffers = DoorbellBuffers::new(view(device, &shadow, bytes), view(device, &events, bytes));
        let shadows = Self { buffers, page_words: page / 4 };
        let mut admin = device.admin();
        if options.admin_shadow == AdminShadow::Mirrored {
            // Before the command: by the time that it has completed, the controller may look at them.
            let word = |kind| shadows.buffers.at(doorbell_index(QueueId::ADMIN, kind, stride));
            admin.set_shadows(word(DoorbellKind::SubmissionTail), word(DoorbellKind::CompletionHead));
        }
        match admin.execute(COMMAND, entry) {
            Ok(_) => Ok(Some(shadows)),
            Err(error @ ControllerError::Admin { .. }) => {
                tracing::warn!(%error, "the controller offers shadow doorbells, but refuses them");
                admin.set_shadows(None, None);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Gives a queue's doorbell its shadow, which starts anew: a queue before this one may have had the same.
    ///
    /// The device knows no queue of this number.
    pub(super) fn give(&self, doorbell: &mut QueueDoorbell, index: usize) {
        let Some(words) = self.buffers.at(index) else { return };
        words.clear();
        // The controller looks at one page. Some go on beyond it, and then look at nothing else: so the
        // register is rung there for the one kind, and the shadow written for the other.
        let is_within = index < self.page_words;
        let register_use = if is_within { RegisterUse::WhenAsked } else { RegisterUse::Always };
        doorbell.set_shadow(words, register_use);
    }
}

/// A buffer as doorbells. It is kept until the device is quiet.
fn view(device: &Device, memory: &SharedMemory, bytes: usize) -> Doorbells {
    let keeper = memory.keeper();
    device.park(Parked::Memory(Arc::clone(&keeper)));
    let skip = usize::try_from(memory.iova().0 - keeper.iova().0).unwrap_or(usize::MAX);
    assert!(skip.checked_add(bytes).is_some_and(|end| end <= keeper.len()), "a view beyond its memory");
    // SAFETY: the end is within the buffer by the assertion.
    let base: NonNull<u8> = unsafe { keeper.as_ptr().add(skip) };
    let keeper: Arc<dyn Any + Send + Sync> = keeper;
    // SAFETY:
    // - so many bytes from there on lie in the buffer, and start at a memory page for the device; its pages
    //   are pages of the process too, so they are aligned;
    // - nobody has a reference into the buffer: it is in `memory`, which ends with the caller, and in
    //   keepers;
    // - it lives as long as the keeper.
    unsafe { Doorbells::new(base.cast(), bytes / 4, keeper) }
}

/// The most that a buffer is made larger than its page: all doorbells of the narrowest stride. Some
/// controllers write EventIdx of every queue, also beyond the page: there, it must not be other memory that
/// they find.
const BUFFER_BYTES_MAX: usize = 512 * 1024;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    type Words = Arc<[AtomicU32]>;

    fn words(count: usize) -> Words {
        (0..count).map(|_| AtomicU32::new(7)).collect()
    }

    /// A doorbell at this index, after it was rung for two moves of which EventIdx asks for none.
    fn rung_at(index: usize, shadow: &Words, events: &Words) -> u32 {
        let in_memory = |words: &Words| Doorbells::in_memory(Arc::clone(words));
        let register = words(1);
        let mut doorbell = QueueDoorbell::plain(in_memory(&register).at(0).expect("one"));
        let buffers = DoorbellBuffers::new(in_memory(shadow), in_memory(events));
        Shadows { buffers, page_words: 2 }.give(&mut doorbell, index);
        let Some(event) = events.get(index) else {
            assert!(!doorbell.has_shadow());
            return 0;
        };
        assert_eq!((shadow[index].load(Ordering::Acquire), event.load(Ordering::Acquire)), (0, 0));
        event.store(9, Ordering::Release);
        doorbell.ring_shadow(0, 1);
        doorbell.ring_shadow(1, 2);
        assert_eq!(shadow[index].load(Ordering::Acquire), 2);
        register[0].load(Ordering::Acquire)
    }

    #[test]
    fn beyond_the_page_the_register_is_rung_too_and_beyond_the_buffer_alone() {
        let (shadow, events) = (words(4), words(4));
        assert_eq!(
            (0..6).map(|index| rung_at(index, &shadow, &events)).collect::<Vec<_>>(),
            [7, 7, 2, 2, 0, 0]
        );
    }
}
