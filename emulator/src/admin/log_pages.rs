//! Get Log Page (NVMe Base 2.0, 5.16): errors, health, firmware, changed namespaces, commands' effects.

use std::collections::VecDeque;

use doorbell_spec::command::{AdminOpcode, NvmOpcode};
use doorbell_spec::log_page::{ErrorEntry, HealthPage, LogPage};
use doorbell_spec::{QueueId, Status, SubmissionEntry};
use zerocopy::{FromZeros, IntoBytes};

use super::events::CHANGED_MAX;
use crate::config::{ONCS_VERIFY, ShadowDoorbells};
use crate::device::{Device, Step};

/// The latest failed commands, newest first.
#[derive(Default)]
pub(crate) struct ErrorLog {
    entries: VecDeque<ErrorEntry>,
    count: u64,
}

impl ErrorLog {
    pub(crate) fn add(&mut self, queue: QueueId, entry: &SubmissionEntry, status: Status) {
        self.count += 1;
        let mut error = ErrorEntry::default();
        (error.error_count, error.sq_id, error.cid) = (self.count, queue.0, entry.cid);
        (error.status_and_phase, error.parameter_location) = (status.raw() << 1, u16::MAX);
        error.lba = if queue == QueueId::ADMIN { 0 } else { entry.lba().0 };
        error.nsid = entry.nsid;
        self.entries.truncate(usize::from(ERROR_ENTRIES_Z));
        self.entries.push_front(error);
    }
}

impl Device {
    pub(super) fn log_page(&mut self, step: &Step<'_>, entry: &SubmissionEntry) -> Result<u32, Status> {
        let page = LogPage::from_raw((entry.cdw10 & 0xff) as u8);
        let offset = u64::from(entry.cdw13) << 32 | u64::from(entry.cdw12);
        let dwords = u64::from(entry.cdw11 & 0xffff) << 16 | u64::from(entry.cdw10 >> 16);
        let bytes = dwords.saturating_add(1).saturating_mul(4);
        if !offset.is_multiple_of(4) {
            return Err(Status::INVALID_FIELD.with_do_not_retry());
        }
        let content = self.log_content(page)?;
        let offset = usize::try_from(offset).ok().filter(|offset| *offset <= content.len());
        let rest = &content[offset.ok_or(Status::INVALID_FIELD.with_do_not_retry())?..];
        if bytes > self.storage.transfer_bytes_max.min(LOG_BYTES_MAX) as u64 {
            return Err(Status::INVALID_FIELD.with_do_not_retry());
        }
        // What is asked for beyond the page's end reads as zeros.
        let mut data = vec![0; usize::try_from(bytes).unwrap_or(0)];
        for (to, from) in data.iter_mut().zip(rest) {
            *to = *from;
        }
        self.answer(step, entry, &data)?;
        if entry.cdw10 & RETAIN == 0 {
            self.admin.events.unmask(page);
            if page == LogPage::ChangedNamespaces {
                self.admin.events.changed.clear();
            }
        }
        Ok(0)
    }

    fn log_content(&self, page: LogPage) -> Result<Vec<u8>, Status> {
        Ok(match page {
            LogPage::Error => {
                let mut data: Vec<u8> = Vec::new();
                for error in &self.admin.errors.entries {
                    data.extend_from_slice(error.as_bytes());
                }
                data.resize((usize::from(ERROR_ENTRIES_Z) + 1) * size_of::<ErrorEntry>(), 0);
                data
            }
            LogPage::Health => self.health().as_bytes().to_vec(),
            LogPage::FirmwareSlot => {
                let mut data = vec![0; 512];
                data[0] = 1;
                data[8..16].fill(b' ');
                for (to, from) in data[8..16].iter_mut().zip(self.config.firmware.bytes()) {
                    *to = from;
                }
                data
            }
            LogPage::ChangedNamespaces => self.changed_namespaces(),
            LogPage::CommandEffects => self.command_effects(),
            LogPage::Other(SUPPORTED_PAGES) => {
                let mut data = vec![0; 1024];
                for page in [0, 1, 2, 3, 4, 5] {
                    data[page * 4] = 1;
                }
                data
            }
            LogPage::Other(_) => return Err(Status::INVALID_LOG_PAGE.with_do_not_retry()),
        })
    }

    fn health(&self) -> HealthPage {
        let mut health = HealthPage::new_zeroed();
        health.temperature_kelvin = TEMPERATURE_KELVIN.to_le_bytes();
        (health.spare_percent, health.spare_threshold_percent) = (100, 10);
        let count = |opcode: NvmOpcode| u128::from(self.tally.io[usize::from(opcode.raw())]);
        health.host_reads = (count(NvmOpcode::Read) + count(NvmOpcode::Compare)).to_le_bytes();
        health.host_writes = count(NvmOpcode::Write).to_le_bytes();
        health.power_cycles = 1_u128.to_le_bytes();
        health.error_entries = u128::from(self.admin.errors.count).to_le_bytes();
        health
    }

    fn changed_namespaces(&self) -> Vec<u8> {
        let changed = &self.admin.events.changed;
        let mut data = vec![0; CHANGED_MAX * 4];
        let slots = data.as_chunks_mut::<4>().0;
        if changed.len() > CHANGED_MAX {
            slots[0] = [0xff; 4];
            return data;
        }
        for (slot, nsid) in slots.iter_mut().zip(changed) {
            *slot = nsid.0.to_le_bytes();
        }
        data
    }

    /// Commands Supported and Effects (5.16.1.6): a dword each, bit 0 says supported, bit 1 changes data.
    fn command_effects(&self) -> Vec<u8> {
        let mut data = vec![0; 4096];
        for opcode in ADMIN_OPCODES {
            data[usize::from(opcode.raw()) * 4] = 1;
        }
        let has_shadows = self.config.shadow_doorbells != ShadowDoorbells::Off;
        data[usize::from(AdminOpcode::DoorbellBufferConfig.raw()) * 4] = u8::from(has_shadows);
        let oncs = self.storage.oncs;
        use doorbell_spec::identify::{ONCS_COMPARE, ONCS_DATASET_MANAGEMENT, ONCS_WRITE_ZEROES};
        for (opcode, is_there, effects) in [
            (NvmOpcode::Flush, true, 1),
            (NvmOpcode::Write, true, 3),
            (NvmOpcode::Read, true, 1),
            (NvmOpcode::Compare, oncs & ONCS_COMPARE != 0, 1),
            (NvmOpcode::WriteZeroes, oncs & ONCS_WRITE_ZEROES != 0, 3),
            (NvmOpcode::DatasetManagement, oncs & ONCS_DATASET_MANAGEMENT != 0, 3),
            (NvmOpcode::Verify, oncs & ONCS_VERIFY != 0, 1),
        ] {
            data[1024 + usize::from(opcode.raw()) * 4] = if is_there { effects } else { 0 };
        }
        data
    }
}

/// CDW10 bit 15, RAE.
const RETAIN: u32 = 1 << 15;
/// ELPE: entries of the error log, zero-based.
pub(crate) const ERROR_ENTRIES_Z: u8 = 63;
/// No log page is longer; asking for much more at once is refused.
const LOG_BYTES_MAX: usize = 64 * 1024;
const SUPPORTED_PAGES: u8 = 0x00;
const TEMPERATURE_KELVIN: u16 = 308;
const ADMIN_OPCODES: [AdminOpcode; 10] = [
    AdminOpcode::DeleteSubmissionQueue,
    AdminOpcode::CreateSubmissionQueue,
    AdminOpcode::GetLogPage,
    AdminOpcode::DeleteCompletionQueue,
    AdminOpcode::CreateCompletionQueue,
    AdminOpcode::Identify,
    AdminOpcode::Abort,
    AdminOpcode::SetFeatures,
    AdminOpcode::GetFeatures,
    AdminOpcode::AsyncEventRequest,
];
