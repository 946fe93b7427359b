//! Identify (NVMe Base 2.0, 5.17; NVM Command Set 1.0, 4.1.5): what the controller says about itself.

use doorbell_spec::identify::{
    IDENTIFY_BYTES, IdentifyController, IdentifyKind, IdentifyNamespace, LbaFormat, NAMESPACE_LIST_ENTRIES,
    NSFEAT_ATOMICS, OACS_DOORBELL_BUFFER, OAES_NAMESPACE_ATTRIBUTES, VWC_PRESENT,
};
use doorbell_spec::register::Version;
use doorbell_spec::{Nsid, Status, SubmissionEntry};
use zerocopy::IntoBytes;

use crate::config::{EmulatorConfig, ShadowDoorbells};
use crate::device::{Device, Step};
use crate::namespace::Namespace;

impl Device {
    pub(super) fn identify(&mut self, step: &Step<'_>, entry: &SubmissionEntry) -> Result<u32, Status> {
        let nsid = Nsid(entry.nsid);
        let kind = IdentifyKind::from_raw((entry.cdw10 & 0xff) as u8);
        let mut data = [0; IDENTIFY_BYTES];
        match kind {
            IdentifyKind::Controller => data.copy_from_slice(self.identify_controller().as_bytes()),
            IdentifyKind::Namespace | IdentifyKind::Other(ALLOCATED_NAMESPACE) => {
                if let Some(index) = self.named_namespace(nsid)? {
                    let structure = identify_namespace(&self.storage.namespaces[index], &self.config);
                    data.copy_from_slice(structure.as_bytes());
                }
            }
            IdentifyKind::ActiveNamespaces | IdentifyKind::Other(ALLOCATED_NAMESPACES) => {
                self.list_namespaces(nsid, &mut data)?;
            }
            IdentifyKind::NamespaceDescriptors => {
                let index = self.named_namespace(nsid)?.ok_or(Status::INVALID_FIELD.with_do_not_retry())?;
                describe(&self.storage.namespaces[index], &mut data);
            }
            // The NVM command set defines nothing in these structures that this controller has.
            IdentifyKind::Other(COMMAND_SET_NAMESPACE) if entry.cdw11 >> 24 == 0 => {
                self.named_namespace(nsid)?;
            }
            IdentifyKind::Other(COMMAND_SET_CONTROLLER) if entry.cdw11 >> 24 == 0 => {}
            IdentifyKind::Other(_) => return Err(Status::INVALID_FIELD.with_do_not_retry()),
        }
        self.answer(step, entry, &data)
    }

    /// An active namespace, `None` for one that could exist but does not.
    fn named_namespace(&mut self, nsid: Nsid) -> Result<Option<usize>, Status> {
        if nsid.0 == 0 || nsid > self.storage.nsid_max {
            return Err(Status::INVALID_NAMESPACE.with_do_not_retry());
        }
        Ok(self.storage.find(nsid))
    }

    /// The identifiers above `after`, ascending, as many as fit.
    fn list_namespaces(&self, after: Nsid, data: &mut [u8; IDENTIFY_BYTES]) -> Result<(), Status> {
        if after.0 >= u32::MAX - 1 {
            return Err(Status::INVALID_NAMESPACE.with_do_not_retry());
        }
        let above = self.storage.namespaces.iter().filter(|namespace| namespace.nsid > after);
        let slots = data.as_chunks_mut::<4>().0;
        for (slot, namespace) in slots.iter_mut().zip(above.take(NAMESPACE_LIST_ENTRIES)) {
            *slot = namespace.nsid.0.to_le_bytes();
        }
        Ok(())
    }

    fn identify_controller(&self) -> IdentifyController {
        let config = &self.config;
        let mut id = IdentifyController::zeroed();
        (id.vendor_id, id.subsystem_vendor_id) = (VENDOR_ID, VENDOR_ID);
        pad(&mut id.serial, &config.serial);
        pad(&mut id.model, &config.model);
        pad(&mut id.firmware, &config.firmware);
        id.mdts = config.mdts;
        id.version = Version::new().with_major(2).into_bits();
        id.shutdown_latency_us = config.shutdown_latency_us;
        id.async_events = OAES_NAMESPACE_ATTRIBUTES;
        id.controller_type = IO_CONTROLLER;
        if config.shadow_doorbells != ShadowDoorbells::Off {
            id.admin_commands |= OACS_DOORBELL_BUFFER;
        }
        (id.abort_limit_z, id.event_limit_z) = (config.acl_z, config.aerl_z);
        // One firmware slot, which cannot be written.
        id.firmware_updates = 1 << 1 | 1;
        id.log_attributes = LPA_EFFECTS | LPA_EXTENDED;
        id.error_entries_z = super::log_pages::ERROR_ENTRIES_Z;
        (id.warning_temperature_kelvin, id.critical_temperature_kelvin) = (343, 353);
        let bytes: u128 = self.storage.namespaces.iter().map(capacity_bytes).sum();
        id.total_capacity = bytes.to_le_bytes();
        (id.submission_entry, id.completion_entry) = (0x66, 0x44);
        id.namespace_count = self.storage.nsid_max.0;
        id.namespaces_max = u32::try_from(self.storage.namespaces.len()).unwrap_or(u32::MAX);
        id.nvm_commands = config.oncs;
        id.volatile_write_cache = FLUSH_ALL;
        if self.storage.cache.is_on() {
            id.volatile_write_cache |= VWC_PRESENT;
        }
        (id.atomic_write_z, id.atomic_write_power_fail_z) = (config.awun_z, config.awupf_z);
        let name = format!("nqn.2026-01.io.doorbell:{}", config.serial.trim());
        for (to, from) in id.subsystem_name.iter_mut().zip(name.bytes()) {
            *to = from;
        }
        id
    }
}

fn identify_namespace(namespace: &Namespace, config: &EmulatorConfig) -> IdentifyNamespace {
    let mut id = IdentifyNamespace::zeroed();
    (id.blocks, id.capacity, id.used) = (namespace.blocks, namespace.blocks, namespace.blocks);
    // Deallocated blocks read as zeros, and Write Zeroes may deallocate.
    id.deallocate_features = 1 | 1 << 3;
    if let Some(atomic_z) = namespace.atomic_write_z {
        id.features |= NSFEAT_ATOMICS;
        (id.atomic_write_z, id.atomic_write_power_fail_z) = (atomic_z, atomic_z.min(config.awupf_z));
    }
    id.optimal_boundary = namespace.optimal_boundary;
    id.capacity_bytes = capacity_bytes(namespace).to_le_bytes();
    id.attributes = u8::from(namespace.protection.is_on());
    id.eui64 = eui64(namespace.nsid);
    let shift = u8::try_from(namespace.block_shift).unwrap_or(9);
    id.formats[0] = LbaFormat::new().with_block_shift(shift);
    id
}

fn capacity_bytes(namespace: &Namespace) -> u128 {
    u128::from(namespace.blocks) << namespace.block_shift
}

/// The descriptors of a namespace: an EUI64, and the NVM command set.
fn describe(namespace: &Namespace, data: &mut [u8; IDENTIFY_BYTES]) {
    data[0..4].copy_from_slice(&[DESCRIPTOR_EUI64, 8, 0, 0]);
    data[4..12].copy_from_slice(&eui64(namespace.nsid));
    data[12..17].copy_from_slice(&[DESCRIPTOR_COMMAND_SET, 1, 0, 0, 0]);
}

/// Locally administered, so that it clashes with no vendor's; the identifier makes it unique here.
fn eui64(nsid: Nsid) -> [u8; 8] {
    let [a, b, c, d] = nsid.0.to_be_bytes();
    [0x02, 0xdb, 0xe1, 0x01, a, b, c, d]
}

fn pad(field: &mut [u8], text: &str) {
    field.fill(b' ');
    for (to, from) in field.iter_mut().zip(text.bytes()) {
        *to = from;
    }
}

/// What the identity and the PCI header say too: not assigned to anybody.
pub(crate) const VENDOR_ID: u16 = 0x1d0b;
const IO_CONTROLLER: u8 = 1;
/// LPA bit 1: the commands' effects are logged; bit 2: log pages have long lengths and offsets.
const LPA_EFFECTS: u8 = 1 << 1;
const LPA_EXTENDED: u8 = 1 << 2;
/// VWC bits 2:1 = 11b: a flush may name all namespaces.
const FLUSH_ALL: u8 = 3 << 1;
const COMMAND_SET_NAMESPACE: u8 = 0x05;
const COMMAND_SET_CONTROLLER: u8 = 0x06;
const ALLOCATED_NAMESPACES: u8 = 0x10;
const ALLOCATED_NAMESPACE: u8 = 0x11;
const DESCRIPTOR_EUI64: u8 = 1;
const DESCRIPTOR_COMMAND_SET: u8 = 4;
