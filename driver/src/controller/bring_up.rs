//! From a device on its bus to a controller that takes requests (NVMe Base 2.0, 3.5.1).

use std::sync::Arc;

use doorbell_hugepages::DmaSpace;
use doorbell_spec::feature::{AsyncEventConfig, Feature, QueueCounts};
use doorbell_spec::identify::{
    IdentifyController, IdentifyKind, IdentifyNamespace, NAMESPACE_LIST_ENTRIES, OAES_NAMESPACE_ATTRIBUTES,
};
use doorbell_spec::register::{Cap, DoorbellKind, Version, doorbell_index};
use doorbell_spec::{BusMastering, Doorbells, Nsid, QueueId, SubmissionEntry, Transport};

use super::admin::{ADMIN_ENTRIES, Admin, Line};
use super::device::{Device, DeviceParts, disable};
use super::options::ControllerOptions;
use super::registers::{Registers, bus};
use super::shadow::Shadows;
use super::shared::{Shared, SharedParts, next_controller_id};
use crate::error::ControllerError;
use crate::namespace::{ControllerId, Namespace};
use crate::queue::{CompletionRing, QueueDoorbell, SharedMemory, SubmissionRing};

/// The most namespaces that are looked at: a hostile list could go on for ever.
const NAMESPACES_MAX: usize = 16 * 1024;

impl Shared {
    /// Takes the device over, step by step. A failure leaves it disabled.
    pub(super) fn bring_up(
        transport: Arc<dyn Transport>,
        space: DmaSpace,
        options: &ControllerOptions,
    ) -> Result<Arc<Self>, ControllerError> {
        let device = start(transport, space, options)?;
        let identify = identify_controller(&device)?;
        let id = next_controller_id();
        let namespaces = find_namespaces(&device, &identify, id)?;
        let queues_granted = negotiate_queues(&device, options.queue_pairs)?;
        let doorbells = device.registers.doorbells(device.cap, queues_granted)?;
        let shadows = Shadows::configure(&device, &identify, queues_granted, options)?;
        listen_for_events(&device, &identify)?;
        let of_controller = identify.transfer_bytes_max(device.cap.page_bytes_min()).unwrap_or(u64::MAX);
        Ok(Self::new(SharedParts {
            clock: options.clock.clone(),
            generations: options.generations,
            transfer_bytes_max: of_controller.min(options.transfer_bytes_max),
            identify,
            doorbells,
            shadows,
            device,
            queues_granted,
            id,
            namespaces,
        }))
    }
}

/// Resets the controller, gives it its admin queues and enables it.
fn start(
    transport: Arc<dyn Transport>,
    space: DmaSpace,
    options: &ControllerOptions,
) -> Result<Device, ControllerError> {
    const STEP: &str = "bring-up";
    let clock = options.clock.clone();
    let registers = Registers::claim(Arc::clone(&transport), clock.clone())?;
    let cap = registers.cap(STEP)?;
    let version = registers.version(STEP)?;
    let page_bytes = check_supported(cap)?;
    // Whoever had the device before may have left it running: it must forget that memory first.
    disable(&registers, cap)?;
    let attachment = space.attach(transport.mapper())?;
    let ring = |bytes: usize| ring_memory(&space, bytes, page_bytes);
    let doorbells = registers.doorbells(cap, 0)?;
    let [sq_doorbell, cq_doorbell] = doorbell_pair(&doorbells, None, cap, QueueId::ADMIN)?;
    let entries = u32::from(ADMIN_ENTRIES);
    let sq = SubmissionRing::new(QueueId(0), ring(usize::from(ADMIN_ENTRIES) * 64)?, entries, sq_doorbell);
    let cq = CompletionRing::new(ring(usize::from(ADMIN_ENTRIES) * 16)?, entries, cq_doorbell);
    let line = Line {
        registers: registers.clone(),
        clock,
        timeout: options.admin_timeout,
        generations: options.generations,
    };
    let admin = Admin::new(sq, cq, space.allocate(4096)?, line);
    let parts = DeviceParts { transport, registers, cap, version, space, page_bytes, attachment, admin };
    let device = Device::new(parts);
    device.registers.set_admin_queues(&device.admin(), STEP)?;
    device.registers.set_bus_mastering(BusMastering::On).map_err(|source| bus(STEP, source))?;
    device.enable()?;
    Ok(device)
}

/// Checks what can be checked in CAP, and answers the memory page to use in bytes.
fn check_supported(cap: Cap) -> Result<u64, ControllerError> {
    let unsupported = |why: String| Err(ControllerError::Unsupported { why });
    // Bit 0: NVM. Bit 6: whatever Identify lists.
    if cap.command_sets() & 0b0100_0001 == 0 {
        return unsupported(format!("it has no NVM command set (CAP.CSS is {:#04x})", cap.command_sets()));
    }
    if cap.queue_entries_max() < 2 {
        return unsupported(
            "its queues hold one entry (CAP.MQES is 0), which cannot hold a command".to_owned(),
        );
    }
    let page_bytes = cap.page_bytes_min();
    if cap.page_min() > cap.page_max() || page_bytes > PAGE_BYTES_MAX {
        let max = PAGE_BYTES_MAX / 1024;
        return unsupported(format!(
            "its smallest memory page is {} KiB (CAP.MPSMIN {}, MPSMAX {}), and up to {max} KiB is supported",
            page_bytes / 1024,
            cap.page_min(),
            cap.page_max()
        ));
    }
    Ok(page_bytes)
}

/// The largest memory page that PRP lists are laid out for: each slot has a list of one page.
const PAGE_BYTES_MAX: u64 = 64 * 1024;

/// Zeroed memory for a ring, aligned to the controller's memory page (NVMe Base 2.0, 3.1.3.9).
pub(super) fn ring_memory(
    space: &DmaSpace,
    bytes: usize,
    page_bytes: u64,
) -> Result<SharedMemory, ControllerError> {
    let page = usize::try_from(page_bytes).unwrap_or(usize::MAX);
    // Buffers are aligned to 4 KiB; a larger page is found inside of a longer buffer.
    let slack = page - 4096;
    let buffer = space.allocate(bytes.saturating_add(slack))?;
    SharedMemory::new(buffer, bytes, page).ok_or_else(|| ControllerError::Unsupported {
        why: format!("memory for a ring could not be aligned to {page} bytes"),
    })
}

/// The two doorbells of a queue that the device does not know yet: of its tail, and of its head.
pub(super) fn doorbell_pair(
    doorbells: &Doorbells,
    shadows: Option<&Shadows>,
    cap: Cap,
    queue: QueueId,
) -> Result<[QueueDoorbell; 2], ControllerError> {
    let at = |kind| -> Result<QueueDoorbell, ControllerError> {
        let index = doorbell_index(queue, kind, cap.doorbell_stride());
        let register = doorbells.at(index).ok_or_else(|| ControllerError::Unsupported {
            why: format!("the doorbells of queue {queue} lie beyond BAR0"),
        })?;
        let mut doorbell = QueueDoorbell::plain(register);
        if let Some(shadows) = shadows {
            shadows.give(&mut doorbell, index);
        }
        Ok(doorbell)
    };
    Ok([at(DoorbellKind::SubmissionTail)?, at(DoorbellKind::CompletionHead)?])
}

fn identify_controller(device: &Device) -> Result<Box<IdentifyController>, ControllerError> {
    let entry = SubmissionEntry::identify(IdentifyKind::Controller, Nsid(0));
    let data = device.admin().fetch("Identify Controller", entry)?;
    let identify = Box::new(IdentifyController::from_data(&data));
    let holds = |sizes: u8, wanted: u8| sizes & 0x0f <= wanted && wanted <= sizes >> 4;
    if !holds(identify.submission_entry, 6) || !holds(identify.completion_entry, 4) {
        let why = format!(
            "its queue entries are not 64 and 16 bytes (SQES {:#04x}, CQES {:#04x})",
            identify.submission_entry, identify.completion_entry
        );
        return Err(ControllerError::Unsupported { why });
    }
    if !matches!(identify.controller_type, 0 | 1) {
        let why = format!("it is not an I/O controller (CNTRLTYPE {})", identify.controller_type);
        return Err(ControllerError::Unsupported { why });
    }
    Ok(identify)
}

/// Identifies all active namespaces. One that makes no sense is left out with a warning, so that it does
/// not cost the others.
pub(super) fn find_namespaces(
    device: &Device,
    identify: &IdentifyController,
    id: ControllerId,
) -> Result<Vec<Namespace>, ControllerError> {
    let mut found = Vec::new();
    for nsid in active_namespaces(device, identify)? {
        let entry = SubmissionEntry::identify(IdentifyKind::Namespace, nsid);
        let data = match device.admin().fetch("Identify Namespace", entry) {
            Ok(data) => data,
            Err(error @ ControllerError::Admin { .. }) => {
                tracing::warn!(%nsid, %error, "namespace left out");
                continue;
            }
            Err(error) => return Err(error),
        };
        match Namespace::from_identify(id, nsid, identify, &IdentifyNamespace::from_data(&data)) {
            Ok(namespace) => found.extend(namespace),
            Err(error) => tracing::warn!(%error, "namespace left out"),
        }
    }
    Ok(found)
}

/// The identifiers of all active namespaces: from the list, page by page, or for a controller older than
/// 1.1 all numbers up to NN.
fn active_namespaces(device: &Device, identify: &IdentifyController) -> Result<Vec<Nsid>, ControllerError> {
    let mut found = Vec::new();
    if device.version.into_bits() < VERSION_1_1.into_bits() {
        let count = identify.namespace_count.min(u32::try_from(NAMESPACES_MAX).unwrap_or(u32::MAX));
        return Ok((1..=count).map(Nsid).collect());
    }
    let mut after = Nsid(0);
    while found.len() < NAMESPACES_MAX {
        let entry = SubmissionEntry::identify(IdentifyKind::ActiveNamespaces, after);
        let data = device.admin().fetch("Identify Active Namespace List", entry)?;
        let before = found.len();
        for bytes in data.chunks_exact(4) {
            let nsid = Nsid(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
            // A list that does not ascend would never end (NVMe Base 2.0, 5.17.2.3).
            if nsid <= after || nsid >= NSID_RESERVED {
                break;
            }
            after = nsid;
            found.push(nsid);
        }
        if found.len() - before < NAMESPACE_LIST_ENTRIES {
            break;
        }
    }
    found.truncate(NAMESPACES_MAX);
    Ok(found)
}

/// Identifiers from here on are not namespaces.
const NSID_RESERVED: Nsid = Nsid(0xffff_fffe);

/// The first version that has the active namespace list.
const VERSION_1_1: Version = Version::new().with_major(1).with_minor(1);

/// Asks for queue pairs and answers how many there are.
fn negotiate_queues(device: &Device, wanted: u16) -> Result<u32, ControllerError> {
    let asked = QueueCounts::new().with_submission_z(wanted - 1).with_completion_z(wanted - 1);
    let entry = SubmissionEntry::set_features(Feature::NumberOfQueues, Nsid(0), asked.into_bits());
    let answer = device.admin().execute("Set Features (Number of Queues)", entry)?;
    let granted = QueueCounts::from_bits(answer.dw0);
    if granted.submission_z() == u16::MAX || granted.completion_z() == u16::MAX {
        let why = "it grants 65,536 queues, a number that the specification does not allow".to_owned();
        return Err(ControllerError::Unsupported { why });
    }
    Ok(granted.pairs().min(u32::from(wanted)))
}

/// Turns events on as far as the controller has them, and arms the requests. A controller that refuses
/// has no events, and that is all.
fn listen_for_events(device: &Device, identify: &IdentifyController) -> Result<(), ControllerError> {
    let namespaces = identify.async_events & OAES_NAMESPACE_ATTRIBUTES != 0;
    let wanted = AsyncEventConfig::new().with_health(HEALTH_WARNINGS).with_namespace_attributes(namespaces);
    let entry = SubmissionEntry::set_features(Feature::AsyncEvents, Nsid(0), wanted.into_bits());
    let mut admin = device.admin();
    match admin.execute("Set Features (Asynchronous Event Configuration)", entry) {
        Err(error @ ControllerError::Admin { .. }) => {
            tracing::debug!(%error, "events stay as the controller has them");
        }
        outcome => drop(outcome?),
    }
    admin.arm_events(identify.event_limit());
    Ok(())
}

/// All critical warnings of the SMART log that every version has (bits 4:0).
const HEALTH_WARNINGS: u8 = 0x1f;
