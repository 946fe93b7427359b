//! Features (NVMe Base 2.0, 5.27.1; NVM Command Set 1.0, 4.1.3).

use bitfield_struct::bitfield;

/// A feature identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Feature {
    /// Arbitration.
    Arbitration,
    /// Power Management.
    PowerManagement,
    /// Temperature Threshold.
    TemperatureThreshold,
    /// Error Recovery.
    ErrorRecovery,
    /// Volatile Write Cache: bit 0 turns it on.
    VolatileWriteCache,
    /// Number of Queues, see [`QueueCounts`].
    NumberOfQueues,
    /// Interrupt Coalescing.
    InterruptCoalescing,
    /// Interrupt Vector Configuration.
    InterruptVector,
    /// Write Atomicity Normal.
    WriteAtomicity,
    /// Asynchronous Event Configuration.
    AsyncEvents,
    /// A feature that this crate has no name for.
    Other(u8),
}

impl Feature {
    /// The identifier's meaning.
    #[must_use]
    pub const fn from_raw(raw: u8) -> Self {
        match raw {
            0x01 => Self::Arbitration,
            0x02 => Self::PowerManagement,
            0x04 => Self::TemperatureThreshold,
            0x05 => Self::ErrorRecovery,
            0x06 => Self::VolatileWriteCache,
            0x07 => Self::NumberOfQueues,
            0x08 => Self::InterruptCoalescing,
            0x09 => Self::InterruptVector,
            0x0a => Self::WriteAtomicity,
            0x0b => Self::AsyncEvents,
            other => Self::Other(other),
        }
    }

    /// The identifier as it stands in CDW10.
    #[must_use]
    pub const fn raw(self) -> u8 {
        match self {
            Self::Arbitration => 0x01,
            Self::PowerManagement => 0x02,
            Self::TemperatureThreshold => 0x04,
            Self::ErrorRecovery => 0x05,
            Self::VolatileWriteCache => 0x06,
            Self::NumberOfQueues => 0x07,
            Self::InterruptCoalescing => 0x08,
            Self::InterruptVector => 0x09,
            Self::WriteAtomicity => 0x0a,
            Self::AsyncEvents => 0x0b,
            Self::Other(raw) => raw,
        }
    }
}

/// Number of Queues, asked for in CDW11 and granted in DW0 (NVMe Base 2.0, 5.27.1.5).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct QueueCounts {
    /// NSQR or NSQA: I/O submission queues, zero-based. 0xFFFF is not allowed when asking.
    pub submission_z: u16,
    /// NCQR or NCQA: I/O completion queues, zero-based. 0xFFFF is not allowed when asking.
    pub completion_z: u16,
}

impl QueueCounts {
    /// How many pairs can be made of these, one-based.
    #[must_use]
    pub const fn pairs(self) -> u32 {
        let (sq, cq) = (self.submission_z() as u32 + 1, self.completion_z() as u32 + 1);
        if sq < cq { sq } else { cq }
    }
}

/// Which events the controller reports (NVMe Base 2.0, 5.27.1.8), as a value of CDW11.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct AsyncEventConfig {
    /// Which critical warnings of the SMART log are reported.
    pub health: u8,
    /// Namespace attributes changed.
    pub namespace_attributes: bool,
    /// Firmware is about to be activated.
    pub firmware_activation: bool,
    #[bits(22)]
    __: u32,
}
