//! Making queue pairs (NVMe Base 2.0, 5.4 and 5.5).

use std::sync::Arc;

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
    let id = shared.acquire_queue()?;
    build(shared, config, id, depth)
        .inspect_err(|failure| shared.release_queue(id, failure.end))
        .map_err(|failure| failure.error)
}

/// Why a queue could not be made, and whether the device still has part of it.
struct Failure {
    error: ControllerError,
    end: QueueEnd,
}

impl<E: Into<ControllerError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { error: error.into(), end: QueueEnd::Deleted }
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

fn build(shared: &Arc<Shared>, config: QueueConfig, id: QueueId, depth: u16) -> Result<QueuePair, Failure> {
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
    let keepers = || [sq.keeper(), cq.keeper()];
    let stuck = |error| {
        for keeper in keepers() {
            shared.park(super::Parked::Memory(keeper));
        }
        Failure { error, end: QueueEnd::Stuck }
    };
    // A command that the device refused has done nothing; after any other failure nobody knows.
    let after_failure = |error: ControllerError| match error {
        ControllerError::Admin { .. } => Failure::from(error),
        error => stuck(error),
    };
    shared
        .with_admin(|admin| admin.execute("Create I/O Completion Queue", create_cq))
        .map_err(after_failure)?;
    let create_sq = SubmissionEntry::create_submission_queue(id, entries, sq.iova());
    if let Err(error) = shared.with_admin(|admin| admin.execute("Create I/O Submission Queue", create_sq)) {
        return Err(match shared.delete_completion_queue(id) {
            Ok(()) => after_failure(error),
            Err(_) => stuck(error),
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
