//! Creating and deleting I/O queues (NVMe Base 2.0, 5.4 to 5.7).

use doorbell_spec::{Iova, QueueId, Status, SubmissionEntry};

use crate::device::{Device, Step};
use crate::outcome::Outcome;
use crate::queues::ring::Ring;
use crate::queues::{CompletionQueue, SubmissionQueue};
use crate::report::Violation;
use crate::serve::sq_mut;
use crate::twist::Twist;
use crate::window::Window;

impl Device {
    pub(super) fn create_completion_queue(
        &mut self,
        step: &Step<'_>,
        entry: &SubmissionEntry,
    ) -> Result<u32, Status> {
        let (queue, entries) = queue_and_size(entry);
        let granted = self.admin.features.queues.completion_z();
        if queue.0 == 0 || queue.0 - 1 > granted || self.cqs[usize::from(queue.0)].is_some() {
            return Err(Status::INVALID_QUEUE_ID.with_do_not_retry());
        }
        self.check_ring(entry, entries)?;
        check_entry_size(self.registers.cc.completion_entry(), 4)?;
        let vector = (entry.cdw11 >> 16) as u16;
        let has_interrupts = entry.cdw11 & INTERRUPTS_ENABLED != 0;
        if has_interrupts && vector >= self.config.vectors {
            return Err(Status::INVALID_INTERRUPT_VECTOR.with_do_not_retry());
        }
        let mut ring = Ring::new(Iova(entry.prp1), entries, 16);
        ring.refresh(step.dma).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
        let vector = has_interrupts.then_some(vector);
        let mut cq = CompletionQueue::new(queue, ring, vector, self.config.stride);
        self.claim_doorbell(queue, cq.bell.word(), step.window);
        self.claim_shadow(step, queue, &mut cq.bell);
        self.cqs[usize::from(queue.0)] = Some(Box::new(cq));
        Ok(0)
    }

    pub(super) fn create_submission_queue(
        &mut self,
        step: &Step<'_>,
        entry: &SubmissionEntry,
    ) -> Result<u32, Status> {
        let (queue, entries) = queue_and_size(entry);
        let granted = self.admin.features.queues.submission_z();
        if queue.0 == 0 || queue.0 - 1 > granted || self.sqs[usize::from(queue.0)].is_some() {
            return Err(Status::INVALID_QUEUE_ID.with_do_not_retry());
        }
        let cq_id = QueueId((entry.cdw11 >> 16) as u16);
        if cq_id == QueueId::ADMIN || usize::from(cq_id.0) >= self.cqs.len() {
            return Err(Status::INVALID_QUEUE_ID.with_do_not_retry());
        }
        if self.cqs[usize::from(cq_id.0)].is_none() {
            return Err(Status::COMPLETION_QUEUE_INVALID.with_do_not_retry());
        }
        self.check_ring(entry, entries)?;
        check_entry_size(self.registers.cc.submission_entry(), 6)?;
        let mut ring = Ring::new(Iova(entry.prp1), entries, size_of::<SubmissionEntry>());
        ring.refresh(step.dma).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
        let mut sq = SubmissionQueue::new(queue, ring, cq_id, self.config.stride);
        self.claim_doorbell(queue, sq.bell.word(), step.window);
        self.claim_shadow(step, queue, &mut sq.bell);
        if let Some(cq) = &mut self.cqs[usize::from(cq_id.0)] {
            cq.users += 1;
            // Room for every command that can be in flight, so that completing never allocates.
            cq.held.reserve(entries as usize);
        }
        self.flight.make_room(entries);
        self.sqs[usize::from(queue.0)] = Some(Box::new(sq));
        self.live.push(queue);
        self.watch_queues(step.window);
        Ok(0)
    }

    /// What both kinds of queue need of their memory.
    fn check_ring(&self, entry: &SubmissionEntry, entries: u32) -> Result<(), Status> {
        // A queue has at least two entries (3.3.3.1), and at most MQES.
        if entries < 2 || entries > self.registers.cap.queue_entries_max() {
            return Err(Status::INVALID_QUEUE_SIZE.with_do_not_retry());
        }
        // Queues in pieces are not offered, whatever CAP.CQR says.
        if entry.cdw11 & PHYSICALLY_CONTIGUOUS == 0 {
            return Err(Status::INVALID_FIELD.with_do_not_retry());
        }
        if !entry.prp1.is_multiple_of(self.storage.page_bytes as u64) {
            return Err(Status::INVALID_PRP_OFFSET.with_do_not_retry());
        }
        Ok(())
    }

    /// Puts a new queue's doorbell to zero; it should be zero already.
    fn claim_doorbell(&mut self, queue: QueueId, word: usize, window: &Window) {
        let value = window.load(word);
        if value != 0 {
            self.tally.violations.add(Violation::DoorbellWithoutQueue { queue, value });
        }
        window.clear(word);
    }

    /// Everything that was taken from the queue is completed before the deletion is.
    pub(super) fn delete_submission_queue(
        &mut self,
        step: &Step<'_>,
        entry: &SubmissionEntry,
    ) -> Result<u32, Status> {
        let queue = QueueId((entry.cdw10 & 0xffff) as u16);
        if queue == QueueId::ADMIN || sq_mut(&mut self.sqs, queue).is_none() {
            return Err(Status::INVALID_QUEUE_ID.with_do_not_retry());
        }
        self.complete_put_off(step);
        while let Some(parked) = self.flight.abort_any(queue) {
            self.unpark(&parked);
            let aborted = Outcome::failed(Status::ABORTED_QUEUE_DELETED);
            self.finish(step, queue, &parked.entry, aborted, Twist::None);
        }
        self.live.retain(|live| *live != queue);
        self.delete_sq(queue, step.window);
        self.watch_queues(step.window);
        Ok(0)
    }

    /// Takes a submission queue away.
    pub(crate) fn delete_sq(&mut self, queue: QueueId, window: &Window) {
        let Some(sq) = self.sqs.get_mut(usize::from(queue.0)).and_then(Option::take) else { return };
        window.clear(sq.bell.word());
        if let Some(Some(cq)) = self.cqs.get_mut(usize::from(sq.cq.0)) {
            cq.users = cq.users.saturating_sub(1);
        }
    }

    pub(super) fn delete_completion_queue(
        &mut self,
        step: &Step<'_>,
        entry: &SubmissionEntry,
    ) -> Result<u32, Status> {
        let queue = QueueId((entry.cdw10 & 0xffff) as u16);
        let slot = self.cqs.get_mut(usize::from(queue.0)).filter(|_| queue != QueueId::ADMIN);
        match slot {
            Some(Some(cq)) if cq.users > 0 => Err(Status::INVALID_QUEUE_DELETION.with_do_not_retry()),
            Some(slot @ Some(_)) => {
                if let Some(cq) = slot.take() {
                    step.window.clear(cq.bell.word());
                }
                Ok(0)
            }
            _ => Err(Status::INVALID_QUEUE_ID.with_do_not_retry()),
        }
    }
}

/// CC must name the size of entries, a power of two, before there are queues of them (5.4, 5.5).
fn check_entry_size(named: u8, needed: u8) -> Result<(), Status> {
    if named == needed { Ok(()) } else { Err(Status::INVALID_FIELD.with_do_not_retry()) }
}

/// CDW10: the identifier, and the one-based size.
fn queue_and_size(entry: &SubmissionEntry) -> (QueueId, u32) {
    (QueueId((entry.cdw10 & 0xffff) as u16), (entry.cdw10 >> 16) + 1)
}

/// CDW11 bit 0, PC.
const PHYSICALLY_CONTIGUOUS: u32 = 1 << 0;
/// CDW11 bit 1, IEN.
const INTERRUPTS_ENABLED: u32 = 1 << 1;
