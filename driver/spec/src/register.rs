//! Controller registers in BAR0 (NVMe Base 2.0, 3.1.3; PCIe Transport 1.0, 3.1).
//!
//! Fields named `_z` are zero-based, as on the wire.

use bitfield_struct::bitfield;
use std::time::Duration;

/// Offset of CAP, Controller Capabilities (64 bits).
pub const CAP: u32 = 0x00;
/// Offset of VS, Version.
pub const VS: u32 = 0x08;
/// Offset of INTMS, Interrupt Mask Set.
pub const INTMS: u32 = 0x0c;
/// Offset of INTMC, Interrupt Mask Clear.
pub const INTMC: u32 = 0x10;
/// Offset of CC, Controller Configuration.
pub const CC: u32 = 0x14;
/// Offset of CSTS, Controller Status.
pub const CSTS: u32 = 0x1c;
/// Offset of NSSR, NVM Subsystem Reset.
pub const NSSR: u32 = 0x20;
/// Offset of AQA, Admin Queue Attributes.
pub const AQA: u32 = 0x24;
/// Offset of ASQ, Admin Submission Queue Base Address (64 bits).
pub const ASQ: u32 = 0x28;
/// Offset of ACQ, Admin Completion Queue Base Address (64 bits).
pub const ACQ: u32 = 0x30;
/// Offset of CRTO, Controller Ready Timeouts.
pub const CRTO: u32 = 0x68;
/// Offset of the first doorbell; everything before it is a register.
pub const DOORBELLS: u32 = 0x1000;

/// What every field of a removed PCIe device reads as.
pub const ALL_ONES: u32 = u32::MAX;

/// CAP, Controller Capabilities (NVMe Base 2.0, 3.1.3.1).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Cap {
    /// MQES: the most entries an I/O queue may have, zero-based.
    pub mqes_z: u16,
    /// CQR: queues must be physically contiguous.
    pub contiguous_queues: bool,
    /// AMS: arbitration mechanisms beyond round robin.
    #[bits(2)]
    pub arbitration: u8,
    #[bits(5)]
    __: u8,
    /// TO: the longest time to become ready or not ready, in 500 ms units.
    pub timeout_500ms: u8,
    /// DSTRD: doorbells are 4 << DSTRD bytes apart.
    #[bits(4)]
    pub doorbell_stride: u8,
    /// NSSRS: the subsystem can be reset.
    pub subsystem_reset: bool,
    /// CSS: command sets; bit 0 is the NVM command set, bit 6 says that CC.CSS picks from a list.
    pub command_sets: u8,
    /// BPS: has boot partitions.
    pub boot_partitions: bool,
    /// CPS: scope of a power cut.
    #[bits(2)]
    pub power_scope: u8,
    /// MPSMIN: the smallest memory page is 4096 << MPSMIN bytes.
    #[bits(4)]
    pub page_min: u8,
    /// MPSMAX: the largest memory page is 4096 << MPSMAX bytes.
    #[bits(4)]
    pub page_max: u8,
    /// PMRS: has a persistent memory region.
    pub persistent_memory: bool,
    /// CMBS: has a controller memory buffer.
    pub memory_buffer: bool,
    /// NSSS: supports NVM subsystem shutdown.
    pub subsystem_shutdown: bool,
    /// CRMS bit 0: controller ready with media.
    pub ready_with_media: bool,
    /// CRMS bit 1: controller ready independent of media.
    pub ready_independent: bool,
    #[bits(3)]
    __: u8,
}

impl Cap {
    /// The most entries an I/O queue may have, one-based.
    #[must_use]
    pub const fn queue_entries_max(self) -> u32 {
        self.mqes_z() as u32 + 1
    }

    /// The smallest memory page in bytes.
    #[must_use]
    pub const fn page_bytes_min(self) -> u64 {
        4096 << self.page_min()
    }

    /// The time that CAP.TO allows for becoming ready.
    #[must_use]
    pub const fn timeout(self) -> Duration {
        Duration::from_millis(500 * self.timeout_500ms() as u64)
    }
}

/// VS, Version (NVMe Base 2.0, 3.1.3.2).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Version {
    /// Tertiary version.
    pub tertiary: u8,
    /// Minor version.
    pub minor: u8,
    /// Major version.
    pub major: u16,
}

/// CC, Controller Configuration (NVMe Base 2.0, 3.1.3.5).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Cc {
    /// EN: process commands.
    pub enable: bool,
    #[bits(3)]
    __: u8,
    /// CSS: the command set selected; 0 is NVM.
    #[bits(3)]
    pub command_set: u8,
    /// MPS: memory pages are 4096 << MPS bytes.
    #[bits(4)]
    pub page: u8,
    /// AMS: arbitration mechanism selected; 0 is round robin.
    #[bits(3)]
    pub arbitration: u8,
    /// SHN: shutdown notification, see [`Shutdown`].
    #[bits(2)]
    pub shutdown: u8,
    /// IOSQES: submission entries are 2^n bytes.
    #[bits(4)]
    pub submission_entry: u8,
    /// IOCQES: completion entries are 2^n bytes.
    #[bits(4)]
    pub completion_entry: u8,
    /// CRIME: ready independent of media.
    pub ready_independent: bool,
    #[bits(7)]
    __: u8,
}

/// Values of CC.SHN (NVMe Base 2.0, 3.1.3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Shutdown {
    /// No notification.
    None = 0,
    /// Normal shutdown: finish, flush, stop.
    Normal = 1,
    /// Abrupt shutdown.
    Abrupt = 2,
}

/// CSTS, Controller Status (NVMe Base 2.0, 3.1.3.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Csts {
    /// RDY: commands are processed.
    pub ready: bool,
    /// CFS: the controller has failed for good; only a reset helps.
    pub fatal: bool,
    /// SHST: how far a shutdown is, see [`Csts::shutdown_complete`].
    #[bits(2)]
    pub shutdown_status: u8,
    /// NSSRO: an NVM subsystem reset occurred.
    pub subsystem_reset_occurred: bool,
    /// PP: processing is paused.
    pub processing_paused: bool,
    /// ST: what kind of shutdown SHST reports.
    pub shutdown_type: bool,
    #[bits(25)]
    __: u32,
}

impl Csts {
    /// SHST value while a shutdown is under way.
    pub const SHUTDOWN_OCCURRING: u8 = 1;
    /// SHST value when a shutdown has completed.
    pub const SHUTDOWN_COMPLETE: u8 = 2;

    /// Whether a shutdown has completed (SHST = 10b).
    #[must_use]
    pub const fn shutdown_complete(self) -> bool {
        self.shutdown_status() == Self::SHUTDOWN_COMPLETE
    }

    /// Whether this is what a device that is no longer there answers.
    #[must_use]
    pub const fn is_removed(self) -> bool {
        self.into_bits() == ALL_ONES
    }
}

/// AQA, Admin Queue Attributes (NVMe Base 2.0, 3.1.3.8).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Aqa {
    /// ASQS: entries of the admin submission queue, zero-based.
    #[bits(12)]
    pub submission_entries_z: u16,
    #[bits(4)]
    __: u8,
    /// ACQS: entries of the admin completion queue, zero-based.
    #[bits(12)]
    pub completion_entries_z: u16,
    #[bits(4)]
    __: u8,
}

/// CRTO, Controller Ready Timeouts (NVMe Base 2.0, 3.1.3.19).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Crto {
    /// CRWMT: longest time until ready with media, in 500 ms units.
    pub with_media_500ms: u16,
    /// CRIMT: longest time until ready independent of media, in 500 ms units.
    pub independent_500ms: u16,
}

/// Which of a queue's two doorbells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoorbellKind {
    /// The submission queue's tail.
    SubmissionTail,
    /// The completion queue's head.
    CompletionHead,
}

/// The dword index, from offset 0x1000 on, of a queue's doorbell (PCIe Transport 1.0, 3.1.2).
#[must_use]
pub const fn doorbell_index(queue: crate::QueueId, kind: DoorbellKind, stride: u8) -> usize {
    let pair = 2 * queue.0 as usize;
    let which = match kind {
        DoorbellKind::SubmissionTail => pair,
        DoorbellKind::CompletionHead => pair + 1,
    };
    which << stride
}

/// Bytes of BAR0 from offset 0x1000 that hold the doorbells of queues 0..=`last`.
#[must_use]
pub const fn doorbell_bytes(last: crate::QueueId, stride: u8) -> usize {
    (doorbell_index(last, DoorbellKind::CompletionHead, stride) + 1) * 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::QueueId;

    #[test]
    fn fields_lie_where_the_specification_puts_them() {
        let cap = Cap::from_bits(0x1800_0030_2801_07ff | 2 << 32);
        assert_eq!(cap.queue_entries_max(), 2048);
        assert!(cap.contiguous_queues());
        assert_eq!(cap.timeout(), Duration::from_secs(20));
        assert_eq!(cap.doorbell_stride(), 2);
        assert_eq!(cap.command_sets(), 1);
        assert!(cap.ready_with_media() && cap.ready_independent());
        assert_eq!(Cap::new().with_page_min(2).into_bits(), 2 << 48);
        assert_eq!(
            Cc::new().with_enable(true).with_submission_entry(6).with_completion_entry(4).into_bits(),
            0x46_0001
        );
        assert_eq!(Cc::new().with_shutdown(Shutdown::Normal as u8).into_bits(), 1 << 14);
        assert_eq!(Csts::from_bits(0x0b).shutdown_status(), Csts::SHUTDOWN_COMPLETE);
        assert_eq!(
            Aqa::new().with_submission_entries_z(31).with_completion_entries_z(31).into_bits(),
            0x001f_001f
        );
    }

    #[test]
    fn the_largest_queue_does_not_overflow() {
        assert_eq!(Cap::new().with_mqes_z(0xffff).queue_entries_max(), 65_536);
        assert_eq!(Cap::new().with_mqes_z(0).queue_entries_max(), 1);
    }

    #[test]
    fn doorbells_follow_the_stride() {
        for stride in 0..=15_u8 {
            for queue in [0_u16, 1, 2, 511, 1023, u16::MAX] {
                let bytes = 4_usize << stride;
                let tail = (2 * usize::from(queue)) * bytes;
                let at = |kind| doorbell_index(QueueId(queue), kind, stride) * 4;
                assert_eq!(at(DoorbellKind::SubmissionTail), tail);
                assert_eq!(at(DoorbellKind::CompletionHead), tail + bytes);
                assert_eq!(doorbell_bytes(QueueId(queue), stride), tail + bytes + 4);
            }
        }
    }
}
