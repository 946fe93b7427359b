//! Log pages (NVMe Base 2.0, 5.16.1) and asynchronous events (5.2).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A log page identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogPage {
    /// Error Information: entries of [`ErrorEntry`].
    Error,
    /// SMART / Health Information: [`HealthPage`].
    Health,
    /// Firmware Slot Information.
    FirmwareSlot,
    /// Changed Namespace List: 1,024 namespace identifiers.
    ChangedNamespaces,
    /// Commands Supported and Effects.
    CommandEffects,
    /// A log page that this crate has no name for.
    Other(u8),
}

impl LogPage {
    /// The identifier's meaning.
    #[must_use]
    pub const fn from_raw(raw: u8) -> Self {
        match raw {
            0x01 => Self::Error,
            0x02 => Self::Health,
            0x03 => Self::FirmwareSlot,
            0x04 => Self::ChangedNamespaces,
            0x05 => Self::CommandEffects,
            other => Self::Other(other),
        }
    }

    /// The identifier as it stands in CDW10.
    #[must_use]
    pub const fn raw(self) -> u8 {
        match self {
            Self::Error => 0x01,
            Self::Health => 0x02,
            Self::FirmwareSlot => 0x03,
            Self::ChangedNamespaces => 0x04,
            Self::CommandEffects => 0x05,
            Self::Other(raw) => raw,
        }
    }
}

/// One entry of the Error Information log: 64 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct ErrorEntry {
    /// How many errors there have been when this one happened; 0 marks an unused entry.
    pub error_count: u64,
    /// Submission queue of the command, 0xFFFF if none.
    pub sq_id: u16,
    /// The command's identifier.
    pub cid: u16,
    /// Its status, with the phase bit of the completion.
    pub status_and_phase: u16,
    /// Where in the command the error lies.
    pub parameter_location: u16,
    /// First block that failed.
    pub lba: u64,
    /// Its namespace.
    pub nsid: u32,
    /// Vendor specific log page, if any.
    pub vendor_page: u8,
    /// Transport type.
    pub transport_type: u8,
    reserved: [u8; 2],
    /// Command specific.
    pub command_specific: u64,
    /// Transport specific.
    pub transport_specific: u16,
    reserved_tail: [u8; 22],
}

const _: () = assert!(size_of::<ErrorEntry>() == 64);

/// SMART / Health Information: 512 bytes. Counters are 128 bits wide, little-endian.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HealthPage {
    /// Critical warnings, a bit each.
    pub critical_warning: u8,
    /// Composite temperature in kelvin, little-endian.
    pub temperature_kelvin: [u8; 2],
    /// Available spare in percent.
    pub spare_percent: u8,
    /// Available spare threshold in percent.
    pub spare_threshold_percent: u8,
    /// Percentage used; may exceed 100.
    pub used_percent: u8,
    /// Endurance group critical warnings.
    pub endurance_warning: u8,
    reserved: [u8; 25],
    /// Units of 1,000 x 512 bytes read.
    pub data_units_read: [u8; 16],
    /// Units of 1,000 x 512 bytes written.
    pub data_units_written: [u8; 16],
    /// Read commands.
    pub host_reads: [u8; 16],
    /// Write commands.
    pub host_writes: [u8; 16],
    /// Minutes busy.
    pub busy_minutes: [u8; 16],
    /// Power cycles.
    pub power_cycles: [u8; 16],
    /// Hours powered on.
    pub power_on_hours: [u8; 16],
    /// Unsafe shutdowns.
    pub unsafe_shutdowns: [u8; 16],
    /// Media and data integrity errors.
    pub media_errors: [u8; 16],
    /// Error log entries over the controller's life.
    pub error_entries: [u8; 16],
    reserved_tail: [u8; 320],
}

const _: () = assert!(size_of::<HealthPage>() == 512);

/// What an asynchronous event is about: DW0 of the completion of an event request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// What kind.
    pub kind: AsyncEventKind,
    /// The details, by kind.
    pub info: u8,
    /// The log page whose reading clears the event.
    pub log_page: LogPage,
}

/// Kinds of asynchronous events (NVMe Base 2.0, 5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEventKind {
    /// The controller found an error that belongs to no command.
    Error,
    /// Health: reliability, temperature or spare.
    Health,
    /// A notice: namespaces changed (info 0), firmware activation (info 1), and so on.
    Notice,
    /// Of an I/O command set.
    CommandSet,
    /// Vendor specific.
    Vendor,
    /// A kind that this crate has no name for.
    Other(u8),
}

impl AsyncEvent {
    /// `info` of a notice that namespaces have changed.
    pub const NAMESPACE_CHANGED: u8 = 0;

    /// Takes DW0 apart.
    #[must_use]
    pub const fn from_dw0(dw0: u32) -> Self {
        let kind = match dw0 & 7 {
            0 => AsyncEventKind::Error,
            1 => AsyncEventKind::Health,
            2 => AsyncEventKind::Notice,
            6 => AsyncEventKind::CommandSet,
            7 => AsyncEventKind::Vendor,
            #[expect(clippy::cast_possible_truncation)]
            other => AsyncEventKind::Other(other as u8),
        };
        #[expect(clippy::cast_possible_truncation)]
        Self { kind, info: (dw0 >> 8) as u8, log_page: LogPage::from_raw((dw0 >> 16) as u8) }
    }

    /// Puts DW0 together.
    #[must_use]
    pub const fn dw0(self) -> u32 {
        let kind = match self.kind {
            AsyncEventKind::Error => 0,
            AsyncEventKind::Health => 1,
            AsyncEventKind::Notice => 2,
            AsyncEventKind::CommandSet => 6,
            AsyncEventKind::Vendor => 7,
            AsyncEventKind::Other(raw) => raw & 7,
        };
        kind as u32 | (self.info as u32) << 8 | (self.log_page.raw() as u32) << 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_the_round_trip() {
        for dw0 in [0x0004_0002_u32, 0x0002_0101, 0x00ff_0003, 0x0000_0007] {
            assert_eq!(AsyncEvent::from_dw0(dw0).dw0(), dw0);
        }
        let changed = AsyncEvent::from_dw0(0x0004_0002);
        assert_eq!((changed.kind, changed.log_page), (AsyncEventKind::Notice, LogPage::ChangedNamespaces));
    }
}
