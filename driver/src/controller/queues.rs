//! Making queue pairs (NVMe Base 2.0, 5.4 and 5.5).

use std::sync::Arc;

use doorbell_hugepages::DmaBuf;
use doorbell_spec::{QueueId, SubmissionEntry};

use super::bring_up::{doorbell_pair, ring_memory};
use super::shared::{QueueEnd, Shared};
use crate::error::ControllerError;
use crate::namespace::{NamespaceKey, PLAIN_BYTES_MIN};
use crate::queue::{
    CompletionRing, Limits, PrpLists, QueueConfig, QueuePair, QueueParts, SlotSource, SubmissionRing,
};

/// Requests of the largest size whose PRP lists a queue holds at once, beyond one page each.
const LONG_LISTS: u64 = 8;

/// Makes a queue pair. Whatever fails, nothing of it is left on the device or here.
pub(super) fn create(shared: &Arc<Shared>, config: QueueConfig) -> Result<QueuePair, ControllerError> {
    if !shared.is_running() {
        return Err(ControllerError::ControllerFailed);
    }
    let depth = depth(shared, &config)?;
    if !(1..=QueueConfig::PLUG_LIMIT_MAX).contains(&config.plug_limit) {
        return Err(ControllerError::PlugLimit {
            asked: config.plug_limit,
            max: QueueConfig::PLUG_LIMIT_MAX,
        });
    }
    let vectors = shared.device.transport.interrupt_vectors();
    if let Some(vector) = config.interrupt_vector
        && u32::from(vector) >= vectors
    {
        return Err(ControllerError::NoSuchVector { vector, vectors });
    }
    let mut claim = Claim { shared, id: shared.acquire_queue()?, told: Vec::new() };
    let queue = build(&mut claim, config, depth)?;
    // Whatever comes now, the queue pair sees to it.
    std::mem::take(&mut claim.told);
    std::mem::forget(claim);
    Ok(queue)
}

/// A queue that is being made. Whatever ends that, also a panic of the transport: its number can be used
/// again, or the device may have it, and the memory that it was told of is not freed.
struct Claim<'a> {
    shared: &'a Arc<Shared>,
    id: QueueId,
    told: Vec<Arc<DmaBuf>>,
}

impl Claim<'_> {
    /// What becomes of it after an admin command has failed: one that the device refused has done nothing, of
    /// any other nobody knows.
    fn after(&mut self, error: ControllerError) -> ControllerError {
        if matches!(error, ControllerError::Admin { .. }) {
            self.told.clear();
        }
        error
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let end = if self.told.is_empty() { QueueEnd::Deleted } else { QueueEnd::Stuck };
        self.told.drain(..).for_each(|keeper| self.shared.park(super::Parked::Memory(keeper)));
        self.shared.release_queue(self.id, end);
    }
}

fn depth(shared: &Shared, config: &QueueConfig) -> Result<u16, ControllerError> {
    let max = shared.depth_max();
    let asked = match (&config.shared_ids, config.depth) {
        (None, depth) => depth.unwrap_or(QueueConfig::DEPTH_DEFAULT.min(max)),
        (Some(ids), depth) => {
            let ids = u32::from(ids.ids());
            if let Some(asked) = depth.filter(|depth| *depth != ids) {
                return Err(ControllerError::SharedDepth { asked, ids });
            }
            ids
        }
    };
    match u16::try_from(asked) {
        Ok(depth) if (1..=max).contains(&asked) => Ok(depth),
        _ => Err(ControllerError::Depth { asked, max }),
    }
}

fn build(claim: &mut Claim<'_>, config: QueueConfig, depth: u16) -> Result<QueuePair, ControllerError> {
    let (shared, id) = (claim.shared, claim.id);
    // Before the device has any part of it: this can fail.
    let source = match &config.shared_ids {
        Some(ids) => SlotSource::shared(ids.lane()?, depth),
        None => SlotSource::private(depth),
    };
    let device = &shared.device;
    let entries = u32::from(depth) + 1;
    let memory = |bytes| ring_memory(&device.space, bytes, device.page_bytes);
    let [sq_doorbell, cq_doorbell] =
        doorbell_pair(&shared.doorbells, shared.shadows.as_ref(), device.cap, id)?;
    let sq = SubmissionRing::new(id, memory(entries as usize * 64)?, entries, sq_doorbell);
    let cq = CompletionRing::new(memory(entries as usize * 16)?, entries, cq_doorbell);
    let extra = extra_list_pages(shared, depth);
    let list_bytes = PrpLists::memory_bytes(depth, extra, device.page_bytes);
    let lists = PrpLists::new(memory(list_bytes)?, depth, extra, device.page_bytes);
    let create_cq = SubmissionEntry::create_completion_queue(id, entries, cq.iova(), config.interrupt_vector);
    claim.told.extend([sq.keeper(), cq.keeper()]);
    shared
        .with_admin(|admin| admin.execute("Create I/O Completion Queue", create_cq))
        .map_err(|error| claim.after(error))?;
    let create_sq = SubmissionEntry::create_submission_queue(id, entries, sq.iova());
    if let Err(error) = shared.with_admin(|admin| admin.execute("Create I/O Submission Queue", create_sq)) {
        return Err(match shared.delete_completion_queue(id) {
            Ok(()) => claim.after(error),
            Err(_) => error,
        });
    }
    let two_pages = 2 * device.page_bytes;
    let limits = Limits {
        controller: NamespaceKey::of_controller(shared.id),
        space: device.space.id(),
        page_bytes: device.page_bytes,
        page_mask: device.page_bytes - 1,
        transfer_bytes_max: shared.transfer_bytes_max,
        quick_page: if two_pages > shared.transfer_bytes_max.min(PLAIN_BYTES_MIN) {
            0
        } else {
            device.page_bytes
        },
        nvm_commands: shared.identify.nvm_commands,
    };
    let clock = config.clock.clone().unwrap_or_else(|| shared.clock.clone());
    let shared = Arc::clone(shared);
    Ok(QueuePair::new(QueueParts { shared, id, depth, limits, clock, sq, cq, lists, source, config }))
}

/// PRP list pages beyond one a slot: enough for a few of the largest requests at once. When they are
/// used up, requests are cut smaller.
fn extra_list_pages(shared: &Shared, depth: u16) -> u16 {
    let page_bytes = shared.device.page_bytes;
    let entries = shared.transfer_bytes_max.div_ceil(page_bytes);
    let pages_each = entries.div_ceil(page_bytes / 8 - 1).saturating_sub(1);
    // The default of 2 MiB fits into one page at any offset: 512 entries beside PRP1.
    let pages_each = if entries <= page_bytes / 8 { 0 } else { pages_each };
    u16::try_from(pages_each * LONG_LISTS.min(u64::from(depth))).unwrap_or(u16::MAX - 1)
}
