//! Identify data structures (NVMe Base 2.0, 5.17.2; NVM Command Set 1.0, 4.1.5).
//!
//! The structures are the wire's, byte for byte; the accessors give the meaning, one-based. Anything in
//! them may be nonsense when the device is hostile: accessors never overflow and never panic.

use bitfield_struct::bitfield;
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// What an Identify command returns, always in this many bytes.
pub const IDENTIFY_BYTES: usize = 4096;

/// Entries of a namespace list.
pub const NAMESPACE_LIST_ENTRIES: usize = 1024;

/// CNS: which structure is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IdentifyKind {
    /// One namespace of the NVM command set.
    Namespace,
    /// The controller.
    Controller,
    /// The active namespaces with identifiers greater than NSID, ascending, up to 1,024.
    ActiveNamespaces,
    /// Descriptors of a namespace: EUI64, NGUID, UUID, command set.
    NamespaceDescriptors,
    /// A structure that this crate has no name for.
    Other(u8),
}

impl IdentifyKind {
    /// The meaning of a CNS value.
    #[must_use]
    pub const fn from_raw(raw: u8) -> Self {
        match raw {
            0x00 => Self::Namespace,
            0x01 => Self::Controller,
            0x02 => Self::ActiveNamespaces,
            0x03 => Self::NamespaceDescriptors,
            other => Self::Other(other),
        }
    }

    /// The CNS value.
    #[must_use]
    pub const fn raw(self) -> u8 {
        match self {
            Self::Namespace => 0x00,
            Self::Controller => 0x01,
            Self::ActiveNamespaces => 0x02,
            Self::NamespaceDescriptors => 0x03,
            Self::Other(raw) => raw,
        }
    }
}

/// ONCS bit: Compare is supported.
pub const ONCS_COMPARE: u16 = 1 << 0;
/// ONCS bit: Dataset Management is supported.
pub const ONCS_DATASET_MANAGEMENT: u16 = 1 << 2;
/// ONCS bit: Write Zeroes is supported.
pub const ONCS_WRITE_ZEROES: u16 = 1 << 3;
/// OACS bit: Doorbell Buffer Config is supported.
pub const OACS_DOORBELL_BUFFER: u16 = 1 << 8;
/// VWC bit: a volatile write cache is present.
pub const VWC_PRESENT: u8 = 1 << 0;
/// OAES bit: namespace attribute notices are sent.
pub const OAES_NAMESPACE_ATTRIBUTES: u32 = 1 << 8;
/// CTRATT, NSFEAT bit: the namespace's own atomic units (NAWUN and so on) are defined.
pub const NSFEAT_ATOMICS: u8 = 1 << 1;

/// Identify Controller (NVMe Base 2.0, 5.17.2.1).
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IdentifyController {
    /// VID: PCI vendor.
    pub vendor_id: u16,
    /// SSVID: PCI subsystem vendor.
    pub subsystem_vendor_id: u16,
    /// SN: ASCII, padded with spaces.
    pub serial: [u8; 20],
    /// MN: ASCII, padded with spaces.
    pub model: [u8; 40],
    /// FR: ASCII, padded with spaces.
    pub firmware: [u8; 8],
    /// RAB: recommended arbitration burst.
    pub arbitration_burst: u8,
    /// IEEE OUI.
    pub ieee: [u8; 3],
    /// CMIC: multi-path and sharing capabilities.
    pub sharing: u8,
    /// MDTS: largest transfer, as a power of two in units of CAP.MPSMIN; 0 is no limit.
    pub mdts: u8,
    /// CNTLID.
    pub controller_id: u16,
    /// VER.
    pub version: u32,
    /// RTD3R: time to resume, in microseconds.
    pub resume_latency_us: u32,
    /// RTD3E: time to shut down, in microseconds.
    pub shutdown_latency_us: u32,
    /// OAES: optional asynchronous events.
    pub async_events: u32,
    /// CTRATT: controller attributes.
    pub attributes: u32,
    /// RRLS: read recovery levels.
    pub read_recovery: u16,
    reserved_102: [u8; 9],
    /// CNTRLTYPE: 1 is an I/O controller, 0 is not reported.
    pub controller_type: u8,
    /// FGUID.
    pub fru_guid: [u8; 16],
    /// CRDT1 to CRDT3: retry delays in units of 100 ms.
    pub retry_delays_100ms: [u16; 3],
    reserved_134: [u8; 122],
    /// OACS: optional admin commands.
    pub admin_commands: u16,
    /// ACL: outstanding aborts, zero-based.
    pub abort_limit_z: u8,
    /// AERL: outstanding event requests, zero-based.
    pub event_limit_z: u8,
    /// FRMW: firmware updates.
    pub firmware_updates: u8,
    /// LPA: log page attributes.
    pub log_attributes: u8,
    /// ELPE: error log entries, zero-based.
    pub error_entries_z: u8,
    /// NPSS: power states, zero-based.
    pub power_states_z: u8,
    /// AVSCC.
    pub admin_vendor_config: u8,
    /// APSTA.
    pub power_transition: u8,
    /// WCTEMP, kelvin.
    pub warning_temperature_kelvin: u16,
    /// CCTEMP, kelvin.
    pub critical_temperature_kelvin: u16,
    reserved_270: [u8; 10],
    /// TNVMCAP, bytes, little-endian.
    pub total_capacity: [u8; 16],
    /// UNVMCAP, bytes, little-endian.
    pub unallocated_capacity: [u8; 16],
    reserved_312: [u8; 200],
    /// SQES: submission entry sizes as powers of two, required in the low half, largest in the high.
    pub submission_entry: u8,
    /// CQES: completion entry sizes, likewise.
    pub completion_entry: u8,
    /// MAXCMD.
    pub outstanding_max: u16,
    /// NN: the largest namespace identifier.
    pub namespace_count: u32,
    /// ONCS: optional NVM commands.
    pub nvm_commands: u16,
    /// FUSES: fused operations.
    pub fused: u16,
    /// FNA: format attributes.
    pub format_attributes: u8,
    /// VWC: volatile write cache.
    pub volatile_write_cache: u8,
    /// AWUN: atomic write unit, in blocks, zero-based.
    pub atomic_write_z: u16,
    /// AWUPF: atomic write unit across a power failure, in blocks, zero-based.
    pub atomic_write_power_fail_z: u16,
    /// NVSCC.
    pub vendor_config: u8,
    /// NWPC.
    pub write_protection: u8,
    /// ACWU: atomic compare and write unit, in blocks, zero-based.
    pub atomic_compare_z: u16,
    /// OCFS: copy formats.
    pub copy_formats: u16,
    /// SGLS: scatter gather lists.
    pub sgl_support: u32,
    /// MNAN: most namespaces attached.
    pub namespaces_max: u32,
    reserved_544: [u8; 224],
    /// SUBNQN: UTF-8, padded with zeros.
    pub subsystem_name: [u8; 256],
    reserved_1024: [u8; 3072],
}

const _: () = assert!(size_of::<IdentifyController>() == IDENTIFY_BYTES);
const _: () = assert!(std::mem::offset_of!(IdentifyController, admin_commands) == 256);
const _: () = assert!(std::mem::offset_of!(IdentifyController, total_capacity) == 280);
const _: () = assert!(std::mem::offset_of!(IdentifyController, submission_entry) == 512);
const _: () = assert!(std::mem::offset_of!(IdentifyController, sgl_support) == 536);
const _: () = assert!(std::mem::offset_of!(IdentifyController, subsystem_name) == 768);

impl IdentifyController {
    /// All zeros: the start of a controller's own answer.
    #[must_use]
    pub fn zeroed() -> Self {
        Self::new_zeroed()
    }

    /// Reads the structure from the bytes a device returned.
    #[must_use]
    pub fn from_data(data: &[u8; IDENTIFY_BYTES]) -> Self {
        zerocopy::transmute!(*data)
    }

    /// The largest data transfer of one command in bytes, `None` if there is no limit.
    ///
    /// `page_bytes_min` is CAP.MPSMIN in bytes, the unit of MDTS. A limit too large for 64 bits is none.
    #[must_use]
    pub fn transfer_bytes_max(&self, page_bytes_min: u64) -> Option<u64> {
        match self.mdts {
            0 => None,
            power if u32::from(power) > page_bytes_min.leading_zeros() => None,
            power => page_bytes_min.checked_shl(u32::from(power)).filter(|bytes| *bytes > 0),
        }
    }

    /// How many event requests may be outstanding, one-based.
    #[must_use]
    pub fn event_limit(&self) -> u32 {
        u32::from(self.event_limit_z) + 1
    }

    /// RTD3E as a time, `None` if the controller does not say.
    #[must_use]
    pub fn shutdown_latency(&self) -> Option<Duration> {
        (self.shutdown_latency_us > 0).then(|| Duration::from_micros(u64::from(self.shutdown_latency_us)))
    }

    /// Whether an optional NVM command (an `ONCS_` bit) is supported.
    #[must_use]
    pub fn supports(&self, oncs_bit: u16) -> bool {
        self.nvm_commands & oncs_bit != 0
    }

    /// Whether writes may sit in a volatile cache until a flush.
    #[must_use]
    pub fn has_volatile_write_cache(&self) -> bool {
        self.volatile_write_cache & VWC_PRESENT != 0
    }
}

/// Identify Namespace of the NVM command set (NVM Command Set 1.0, 4.1.5.1).
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IdentifyNamespace {
    /// NSZE: size in blocks. 0 means that there is no such namespace.
    pub blocks: u64,
    /// NCAP: capacity in blocks.
    pub capacity: u64,
    /// NUSE: blocks in use.
    pub used: u64,
    /// NSFEAT: features.
    pub features: u8,
    /// NLBAF: LBA formats, zero-based.
    pub formats_z: u8,
    /// FLBAS: the format in use, see [`IdentifyNamespace::format`].
    pub format_in_use: u8,
    /// MC: metadata capabilities.
    pub metadata_capabilities: u8,
    /// DPC: protection capabilities.
    pub protection_capabilities: u8,
    /// DPS: protection in use; bits 2:0 are 0 when it is off.
    pub protection: u8,
    /// NMIC.
    pub sharing: u8,
    /// RESCAP.
    pub reservations: u8,
    /// FPI.
    pub format_progress: u8,
    /// DLFEAT: what deallocated blocks read as; bits 2:0 = 1 is zeros.
    pub deallocate_features: u8,
    /// NAWUN, blocks, zero-based.
    pub atomic_write_z: u16,
    /// NAWUPF, blocks, zero-based.
    pub atomic_write_power_fail_z: u16,
    /// NACWU, blocks, zero-based.
    pub atomic_compare_z: u16,
    /// NABSN, blocks, zero-based; 0 is no boundary.
    pub atomic_boundary_z: u16,
    /// NABO, blocks.
    pub atomic_boundary_offset: u16,
    /// NABSPF, blocks, zero-based.
    pub atomic_boundary_power_fail_z: u16,
    /// NOIOB: optimal I/O boundary in blocks; 0 is none.
    pub optimal_boundary: u16,
    /// NVMCAP, bytes, little-endian.
    pub capacity_bytes: [u8; 16],
    /// NPWG, blocks, zero-based.
    pub write_granularity_z: u16,
    /// NPWA, blocks, zero-based.
    pub write_alignment_z: u16,
    /// NPDG, blocks, zero-based.
    pub deallocate_granularity_z: u16,
    /// NPDA, blocks, zero-based.
    pub deallocate_alignment_z: u16,
    /// NOWS, blocks, zero-based.
    pub optimal_write_z: u16,
    reserved_74: [u8; 25],
    /// NSATTR: bit 0 is write protected.
    pub attributes: u8,
    reserved_100: [u8; 4],
    /// NGUID.
    pub nguid: [u8; 16],
    /// EUI64.
    pub eui64: [u8; 8],
    /// LBAF: the formats.
    pub formats: [LbaFormat; 64],
    reserved_384: [u8; 3712],
}

const _: () = assert!(size_of::<IdentifyNamespace>() == IDENTIFY_BYTES);
const _: () = assert!(std::mem::offset_of!(IdentifyNamespace, write_granularity_z) == 64);
const _: () = assert!(std::mem::offset_of!(IdentifyNamespace, nguid) == 104);
const _: () = assert!(std::mem::offset_of!(IdentifyNamespace, formats) == 128);

impl IdentifyNamespace {
    /// All zeros: the start of a controller's own answer, and what an inactive namespace looks like.
    #[must_use]
    pub fn zeroed() -> Self {
        Self::new_zeroed()
    }

    /// Reads the structure from the bytes a device returned.
    #[must_use]
    pub fn from_data(data: &[u8; IDENTIFY_BYTES]) -> Self {
        zerocopy::transmute!(*data)
    }

    /// The LBA format in use: bits 3:0 of FLBAS, and bits 6:5 where there are more than 16 formats.
    #[must_use]
    pub fn format(&self) -> LbaFormat {
        let low = self.format_in_use & 0x0f;
        let high = if self.formats_z > 15 { (self.format_in_use >> 5) & 3 } else { 0 };
        self.formats[usize::from(high << 4 | low)]
    }

    /// Whether metadata travels at the end of each block (an extended LBA) rather than apart.
    #[must_use]
    pub fn metadata_interleaved(&self) -> bool {
        self.format_in_use & 1 << 4 != 0
    }
}

/// One LBA format (NVM Command Set 1.0, 4.1.5.1, figure "LBA Format").
#[bitfield(u32)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct LbaFormat {
    /// MS: metadata bytes per block.
    pub metadata_bytes: u16,
    /// LBADS: blocks are 2^n bytes; less than 9 is not in use.
    pub block_shift: u8,
    /// RP: relative performance, 0 is best.
    #[bits(2)]
    pub performance: u8,
    #[bits(6)]
    __: u8,
}

/// The text of a padded identify field, without control characters that a device might send.
#[must_use]
pub fn field_text(field: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(field)
        .chars()
        .map(|c| if c.is_control() || c == char::REPLACEMENT_CHARACTER { ' ' } else { c })
        .collect();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfer_limit_is_in_units_of_the_smallest_page() {
        let mut identify = IdentifyController::zeroed();
        assert_eq!(identify.transfer_bytes_max(4096), None);
        identify.mdts = 5;
        assert_eq!(identify.transfer_bytes_max(4096), Some(128 * 1024));
        assert_eq!(identify.transfer_bytes_max(16_384), Some(512 * 1024));
        for mdts in 1..=u8::MAX {
            identify.mdts = mdts;
            assert!(identify.transfer_bytes_max(4096 << 15).is_none_or(|bytes| bytes >= 4096));
        }
    }

    #[test]
    fn the_format_index_uses_the_upper_bits_only_when_there_are_many() {
        let mut namespace = IdentifyNamespace::zeroed();
        namespace.formats[3] = LbaFormat::new().with_block_shift(12);
        namespace.formats[35] = LbaFormat::new().with_block_shift(9).with_metadata_bytes(8);
        namespace.format_in_use = 0x53;
        assert_eq!(namespace.format().block_shift(), 12);
        assert!(namespace.metadata_interleaved());
        namespace.formats_z = 40;
        assert_eq!((namespace.format().block_shift(), namespace.format().metadata_bytes()), (9, 8));
    }

    #[test]
    fn hostile_text_is_made_harmless() {
        assert_eq!(field_text(b"QEMU NVMe Ctrl   \0\0"), "QEMU NVMe Ctrl");
        assert_eq!(field_text(b"\x1b[31mred\xff"), "[31mred");
    }

    #[test]
    fn any_bytes_make_a_structure() {
        let data = [0xff; IDENTIFY_BYTES];
        let controller = IdentifyController::from_data(&data);
        assert_eq!(controller.event_limit(), 256);
        assert_eq!(IdentifyNamespace::from_data(&data).format().block_shift(), 0xff);
    }
}
