//! Shadow doorbells (NVMe Base 2.0, 5.8): a page of host memory in which the host says where its queues
//! stand, and a page in which the controller says when it wants to be rung.
//!
//! Both pages are laid out as the doorbell registers are. The controller looks at the shadows whenever it
//! moves. Before it rests it sets the event indexes to where the queues stand, so that the next store is
//! rung, and looks once more (`go_idle`); when it finds something, it sets them back behind the queue,
//! where they ask for nothing.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use doorbell_spec::{Iova, QueueId, Status, SubmissionEntry};

use crate::config::{ShadowDoorbells, Toggle};
use crate::device::{Device, Step};
use crate::iova::access::{Dma, Refused};
use crate::queues::bell::{Bell, Bells};
use crate::queues::ring::Ring;
use crate::report::Violation;
use crate::serve::note;

/// The two pages of a host.
pub(crate) struct Shadow {
    doorbells: Ring,
    events: Ring,
    polling: Toggle,
    /// How often registers were seen to be rung since.
    rings: Cell<u64>,
}

/// Whether there is something to do after all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// The controller may rest until it is rung.
    Quiet,
    /// The host has said something meanwhile.
    Disturbed,
}

impl Shadow {
    fn new(entry: &SubmissionEntry, page_bytes: usize, polling: Toggle) -> Self {
        let words = u32::try_from(page_bytes / size_of::<u32>()).unwrap_or(0);
        let page = |iova| Ring::new(Iova(iova), words, size_of::<u32>());
        Self { doorbells: page(entry.prp1), events: page(entry.prp2), polling, rings: Cell::new(0) }
    }

    /// Renews the translations. Refused: one of the pages is not mapped.
    fn refresh(&mut self, dma: &Dma<'_>) -> Result<(), Refused> {
        self.doorbells.refresh(dma)?;
        self.events.refresh(dma)
    }

    /// Whether idle queues are looked at without being rung for.
    pub(crate) fn is_polled(&self) -> bool {
        self.polling.is_on()
    }

    /// Counts a register that was rung.
    pub(crate) fn note_ring(&self) {
        self.rings.set(self.rings.get() + 1);
    }

    /// Where a queue stands; `None` if the page cannot be reached.
    pub(crate) fn load(&self, dma: &Dma<'_>, word: usize) -> Option<u32> {
        // The acquire load's partner is the host's release store of its shadow.
        cell(&self.doorbells, dma, word).map(|cell| u32::from_le(cell.load(Ordering::Acquire)))
    }

    /// Puts a shadow to where its queue stands.
    pub(crate) fn store(&self, dma: &Dma<'_>, word: usize, value: u32) {
        if let Some(cell) = cell(&self.doorbells, dma, word) {
            cell.store(value.to_le(), Ordering::Release);
        }
    }

    /// Sets an event index.
    pub(crate) fn store_event(&self, dma: &Dma<'_>, word: usize, value: u32) {
        if let Some(cell) = cell(&self.events, dma, word) {
            cell.store(value.to_le(), Ordering::Release);
        }
    }
}

/// A dword of one of the pages. Without bus mastering there is none, and nobody to blame for it.
fn cell<'a>(page: &Ring, dma: &'a Dma<'_>, word: usize) -> Option<&'a AtomicU32> {
    if dma.is_master() { page.dword(dma, word) } else { None }
}

impl Device {
    /// Doorbell Buffer Config (5.8). A second one replaces the first.
    pub(crate) fn configure_doorbell_buffers(
        &mut self,
        step: &Step<'_>,
        entry: &SubmissionEntry,
    ) -> Result<u32, Status> {
        if self.config.shadow_doorbells == ShadowDoorbells::Off {
            return Err(Status::INVALID_OPCODE.with_do_not_retry());
        }
        let page_bytes = self.storage.page_bytes;
        let is_page = |iova: u64| iova.is_multiple_of(page_bytes as u64);
        if !is_page(entry.prp1) || !is_page(entry.prp2) || entry.prp1 == entry.prp2 {
            return Err(Status::INVALID_FIELD.with_do_not_retry());
        }
        let mut shadow = Shadow::new(entry, page_bytes, self.config.shadow_polling);
        shadow.refresh(step.dma).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
        // The new shadows begin where the queues stand, so that must be known to the last.
        self.look_at_all(step);
        self.forget_shadow();
        self.shadow = Some(shadow);
        let Self { sqs, cqs, shadow, config, .. } = self;
        let bells = step.bells(shadow);
        let has = |queue| has_shadow(config.shadow_doorbells, queue);
        for sq in sqs.iter_mut().flatten().filter(|sq| has(sq.id)) {
            sq.bell.follow(&bells, sq.tail);
        }
        for cq in cqs.iter_mut().flatten().filter(|cq| has(cq.id)) {
            cq.follow(&bells);
        }
        Ok(0)
    }

    fn look_at_all(&mut self, step: &Step<'_>) {
        let Self { sqs, cqs, shadow, tally, .. } = self;
        let bells = step.bells(shadow);
        for sq in sqs.iter_mut().flatten() {
            note(sq.look(&bells), &mut tally.tail_doorbells, &mut tally.violations);
        }
        for cq in cqs.iter_mut().flatten() {
            note(cq.look(&bells), &mut tally.head_doorbells, &mut tally.violations);
        }
    }

    /// Begins to look at the shadow of a queue that is being created; it should be zero already.
    pub(crate) fn claim_shadow(&mut self, step: &Step<'_>, queue: QueueId, bell: &mut Bell) {
        let Some(shadow) = self.shadow.as_ref().filter(|_| has_shadow(self.config.shadow_doorbells, queue))
        else {
            return;
        };
        if let Some(value) = shadow.load(step.dma, bell.word()).filter(|value| *value != 0) {
            self.tally.violations.add(Violation::DoorbellWithoutQueue { queue, value });
        }
        bell.follow(&Bells { window: step.window, dma: step.dma, shadow: Some(shadow) }, 0);
    }

    /// Finds the pages again after mappings have changed. Does nothing without bus mastering: the device
    /// cannot look then, and that is nobody's fault.
    pub(crate) fn refresh_shadow(&mut self, dma: &Dma<'_>) {
        let Some(shadow) = self.shadow.as_mut().filter(|_| dma.is_master()) else { return };
        if shadow.refresh(dma).is_err() {
            self.fail("the memory of the shadow doorbells is not mapped");
        }
    }

    /// Looks at shadows no more, as after a reset. Their memory stays as it is.
    pub(crate) fn forget_shadow(&mut self) {
        if let Some(shadow) = self.shadow.take() {
            self.tally.shadowed_rings += shadow.rings.get();
        }
    }

    /// How often registers were rung for queues with shadows.
    pub(crate) fn shadowed_rings(&self) -> u64 {
        self.tally.shadowed_rings + self.shadow.as_ref().map_or(0, |shadow| shadow.rings.get())
    }

    /// What a controller does before it rests: asks to be rung, and looks once more.
    pub(crate) fn go_idle(&mut self, step: &Step<'_>) -> Rest {
        let is_processing = !self.is_removed && self.registers.is_processing();
        let Self { sqs, cqs, shadow, .. } = self;
        let Some(shadow) = shadow.as_ref().filter(|_| is_processing && step.dma.is_master()) else {
            return Rest::Quiet;
        };
        let bells = Bells { window: step.window, dma: step.dma, shadow: Some(shadow) };
        let mut is_rung = false;
        for sq in sqs.iter_mut().flatten() {
            is_rung |= sq.bell.arm(&bells);
        }
        // The head of a completion queue is of interest only to who waits for room.
        for cq in cqs.iter_mut().flatten().filter(|cq| cq.is_full() || !cq.held.is_empty()) {
            is_rung |= cq.bell.arm(&bells);
        }
        // The stores of the event indexes may not pass the loads of the shadows. The partner is the host's
        // full barrier between its store of a shadow and its load of the event index: one of both sees the
        // other.
        fence(Ordering::SeqCst);
        let mut has_news = false;
        for sq in sqs.iter_mut().flatten() {
            has_news |= sq.bell.look_again(&bells);
        }
        for cq in cqs.iter_mut().flatten() {
            has_news |= cq.bell.look_again(&bells);
        }
        if is_rung || has_news { Rest::Disturbed } else { Rest::Quiet }
    }
}

fn has_shadow(offer: ShadowDoorbells, queue: QueueId) -> bool {
    offer == ShadowDoorbells::On || queue != QueueId::ADMIN
}
