//! Submission queue entries (NVMe Base 2.0, 3.3.3.1) and the commands that fill them.
//!
//! The constructors set what the command defines; the command identifier and the data pointer are the
//! queue's business. Counts are one-based here and zero-based in the entry.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::feature::Feature;
use crate::identify::IdentifyKind;
use crate::{Blocks, Cid, Iova, Lba, Nsid, QueueId};

/// One entry of a submission queue: 64 bytes, little-endian.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct SubmissionEntry {
    /// OPC: the opcode.
    pub opcode: u8,
    /// FUSE and PSDT: 0 for a command that is not fused and uses PRPs.
    pub flags: u8,
    /// CID: comes back in the completion.
    pub cid: u16,
    /// NSID.
    pub nsid: u32,
    /// CDW2.
    pub cdw2: u32,
    /// CDW3.
    pub cdw3: u32,
    /// MPTR: metadata.
    pub metadata: u64,
    /// PRP1, the first data pointer.
    pub prp1: u64,
    /// PRP2: the second data page, or the list of the rest.
    pub prp2: u64,
    /// CDW10.
    pub cdw10: u32,
    /// CDW11.
    pub cdw11: u32,
    /// CDW12.
    pub cdw12: u32,
    /// CDW13.
    pub cdw13: u32,
    /// CDW14.
    pub cdw14: u32,
    /// CDW15.
    pub cdw15: u32,
}

const _: () = assert!(size_of::<SubmissionEntry>() == 64);

macro_rules! opcodes {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $value:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$vdoc])* $variant,)+
            /// An opcode that this crate has no name for.
            Other(u8),
        }

        impl $name {
            /// The opcode's meaning.
            #[must_use]
            pub const fn from_raw(raw: u8) -> Self {
                match raw {
                    $($value => Self::$variant,)+
                    other => Self::Other(other),
                }
            }

            /// The opcode as it stands in an entry.
            #[must_use]
            pub const fn raw(self) -> u8 {
                match self {
                    $(Self::$variant => $value,)+
                    Self::Other(raw) => raw,
                }
            }
        }
    };
}

opcodes!(
    /// Admin commands (NVMe Base 2.0, 5, figure "Opcodes for Admin Commands").
    AdminOpcode {
        /// Delete I/O Submission Queue.
        DeleteSubmissionQueue = 0x00,
        /// Create I/O Submission Queue.
        CreateSubmissionQueue = 0x01,
        /// Get Log Page.
        GetLogPage = 0x02,
        /// Delete I/O Completion Queue.
        DeleteCompletionQueue = 0x04,
        /// Create I/O Completion Queue.
        CreateCompletionQueue = 0x05,
        /// Identify.
        Identify = 0x06,
        /// Abort.
        Abort = 0x08,
        /// Set Features.
        SetFeatures = 0x09,
        /// Get Features.
        GetFeatures = 0x0a,
        /// Asynchronous Event Request.
        AsyncEventRequest = 0x0c,
        /// Namespace Management.
        NamespaceManagement = 0x0d,
        /// Firmware Commit.
        FirmwareCommit = 0x10,
        /// Firmware Image Download.
        FirmwareDownload = 0x11,
        /// Device Self-test.
        SelfTest = 0x14,
        /// Namespace Attachment.
        NamespaceAttachment = 0x15,
        /// Keep Alive.
        KeepAlive = 0x18,
        /// Doorbell Buffer Config.
        DoorbellBufferConfig = 0x7c,
        /// Format NVM.
        FormatNvm = 0x80,
        /// Security Send.
        SecuritySend = 0x81,
        /// Security Receive.
        SecurityReceive = 0x82,
        /// Sanitize.
        Sanitize = 0x84,
    }
);

opcodes!(
    /// I/O commands of the NVM command set (NVM Command Set 1.0, 3).
    NvmOpcode {
        /// Flush.
        Flush = 0x00,
        /// Write.
        Write = 0x01,
        /// Read.
        Read = 0x02,
        /// Write Uncorrectable.
        WriteUncorrectable = 0x04,
        /// Compare.
        Compare = 0x05,
        /// Write Zeroes.
        WriteZeroes = 0x08,
        /// Dataset Management.
        DatasetManagement = 0x09,
        /// Verify.
        Verify = 0x0c,
        /// Copy.
        Copy = 0x19,
    }
);

/// CDW12 bit 30: force unit access (NVM Command Set 1.0, 3.2.4 and 3.2.6).
pub const FORCE_UNIT_ACCESS: u32 = 1 << 30;
/// CDW12 bit 25 of Write Zeroes: deallocate (NVM Command Set 1.0, 3.2.8).
pub const DEALLOCATE: u32 = 1 << 25;

impl SubmissionEntry {
    /// An entry with this opcode and namespace, everything else zero.
    #[inline]
    #[must_use]
    pub fn with_opcode(opcode: u8, nsid: Nsid) -> Self {
        Self { opcode, nsid: nsid.0, ..Self::default() }
    }

    /// A command on a range of logical blocks: Read, Write, Compare, Write Zeroes, Verify.
    ///
    /// `blocks` is one-based and must be 1 to 65,536; `control` are the bits of CDW12 above bit 15.
    #[inline]
    #[must_use]
    pub fn block_range(opcode: NvmOpcode, nsid: Nsid, lba: Lba, blocks: Blocks, control: u32) -> Self {
        debug_assert!((1..=65_536).contains(&blocks.0), "the block count of a command is 1 to 65,536");
        #[expect(clippy::cast_possible_truncation)]
        Self {
            cdw10: lba.0 as u32,
            cdw11: (lba.0 >> 32) as u32,
            cdw12: (blocks.0.wrapping_sub(1) & 0xffff) | control,
            ..Self::with_opcode(opcode.raw(), nsid)
        }
    }

    /// Flush (NVMe Base 2.0, 7.1).
    #[inline]
    #[must_use]
    pub fn flush(nsid: Nsid) -> Self {
        Self::with_opcode(NvmOpcode::Flush.raw(), nsid)
    }

    /// Dataset Management that deallocates `ranges` (1 to 256) ranges (NVM Command Set 1.0, 3.2.3).
    #[must_use]
    pub fn deallocate(nsid: Nsid, ranges: u16) -> Self {
        debug_assert!((1..=256).contains(&ranges), "dataset management takes 1 to 256 ranges");
        Self {
            cdw10: u32::from(ranges.wrapping_sub(1) & 0xff),
            cdw11: crate::dsm::ATTRIBUTE_DEALLOCATE,
            ..Self::with_opcode(NvmOpcode::DatasetManagement.raw(), nsid)
        }
    }

    /// Identify (NVMe Base 2.0, 5.17). The data is 4096 bytes.
    #[must_use]
    pub fn identify(kind: IdentifyKind, nsid: Nsid) -> Self {
        Self { cdw10: u32::from(kind.raw()), ..Self::with_opcode(AdminOpcode::Identify.raw(), nsid) }
    }

    /// Create I/O Completion Queue, physically contiguous (NVMe Base 2.0, 5.4).
    ///
    /// `entries` is one-based. Without a vector, interrupts of the queue are off.
    #[must_use]
    pub fn create_completion_queue(queue: QueueId, entries: u32, ring: Iova, vector: Option<u16>) -> Self {
        Self {
            prp1: ring.0,
            cdw10: u32::from(queue.0) | entries.wrapping_sub(1) << 16,
            cdw11: 1 | vector.map_or(0, |vector| 1 << 1 | u32::from(vector) << 16),
            ..Self::with_opcode(AdminOpcode::CreateCompletionQueue.raw(), Nsid(0))
        }
    }

    /// Create I/O Submission Queue, physically contiguous, completing into the queue of the same number
    /// (NVMe Base 2.0, 5.5). `entries` is one-based.
    #[must_use]
    pub fn create_submission_queue(queue: QueueId, entries: u32, ring: Iova) -> Self {
        Self {
            prp1: ring.0,
            cdw10: u32::from(queue.0) | entries.wrapping_sub(1) << 16,
            cdw11: 1 | u32::from(queue.0) << 16,
            ..Self::with_opcode(AdminOpcode::CreateSubmissionQueue.raw(), Nsid(0))
        }
    }

    /// Delete I/O Submission Queue (NVMe Base 2.0, 5.7).
    #[must_use]
    pub fn delete_submission_queue(queue: QueueId) -> Self {
        let opcode = AdminOpcode::DeleteSubmissionQueue.raw();
        Self { cdw10: u32::from(queue.0), ..Self::with_opcode(opcode, Nsid(0)) }
    }

    /// Delete I/O Completion Queue (NVMe Base 2.0, 5.6).
    #[must_use]
    pub fn delete_completion_queue(queue: QueueId) -> Self {
        let opcode = AdminOpcode::DeleteCompletionQueue.raw();
        Self { cdw10: u32::from(queue.0), ..Self::with_opcode(opcode, Nsid(0)) }
    }

    /// Abort a command of `queue` (NVMe Base 2.0, 5.1). Its success alone proves nothing: CDW0 bit 0 of
    /// the completion says whether the command was aborted.
    #[must_use]
    pub fn abort(queue: QueueId, cid: Cid) -> Self {
        Self {
            cdw10: u32::from(queue.0) | u32::from(cid.0) << 16,
            ..Self::with_opcode(AdminOpcode::Abort.raw(), Nsid(0))
        }
    }

    /// Set Features, not saved (NVMe Base 2.0, 5.27).
    #[must_use]
    pub fn set_features(feature: Feature, nsid: Nsid, value: u32) -> Self {
        Self {
            cdw10: u32::from(feature.raw()),
            cdw11: value,
            ..Self::with_opcode(AdminOpcode::SetFeatures.raw(), nsid)
        }
    }

    /// Get Features, the current value (NVMe Base 2.0, 5.15).
    #[must_use]
    pub fn query_features(feature: Feature, nsid: Nsid) -> Self {
        Self { cdw10: u32::from(feature.raw()), ..Self::with_opcode(AdminOpcode::GetFeatures.raw(), nsid) }
    }

    /// Get Log Page from its start; `bytes` is a multiple of 4 from 4 on (NVMe Base 2.0, 5.16).
    #[must_use]
    pub fn query_log_page(page: crate::log_page::LogPage, nsid: Nsid, bytes: u32) -> Self {
        let dwords_z = (bytes / 4).wrapping_sub(1);
        Self {
            cdw10: u32::from(page.raw()) | dwords_z << 16,
            cdw11: dwords_z >> 16,
            ..Self::with_opcode(AdminOpcode::GetLogPage.raw(), nsid)
        }
    }

    /// Asynchronous Event Request (NVMe Base 2.0, 5.2).
    #[must_use]
    pub fn async_event_request() -> Self {
        Self::with_opcode(AdminOpcode::AsyncEventRequest.raw(), Nsid(0))
    }

    /// Doorbell Buffer Config (NVMe Base 2.0, 5.8). Both buffers start at a memory page, and have the layout
    /// of the doorbell registers: `shadow` is what the host writes, `events` what the controller does.
    #[must_use]
    pub fn doorbell_buffer_config(shadow: Iova, events: Iova) -> Self {
        let opcode = AdminOpcode::DoorbellBufferConfig.raw();
        Self { prp1: shadow.0, prp2: events.0, ..Self::with_opcode(opcode, Nsid(0)) }
    }

    /// CDW10 and CDW11 as the starting LBA of a block command.
    #[must_use]
    pub const fn lba(&self) -> Lba {
        Lba((self.cdw11 as u64) << 32 | self.cdw10 as u64)
    }

    /// The block count of a block command, one-based.
    #[must_use]
    pub const fn blocks(&self) -> Blocks {
        Blocks((self.cdw12 & 0xffff) + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_counts_are_zero_based_on_the_wire() {
        let entry = SubmissionEntry::block_range(
            NvmOpcode::Read,
            Nsid(3),
            Lba(0x1_2345_6789),
            Blocks(65_536),
            FORCE_UNIT_ACCESS,
        );
        assert_eq!((entry.cdw10, entry.cdw11, entry.cdw12), (0x2345_6789, 1, 0x4000_ffff));
        assert_eq!((entry.lba(), entry.blocks()), (Lba(0x1_2345_6789), Blocks(65_536)));
        assert_eq!(entry.as_bytes()[4], 3);
    }

    #[test]
    fn queue_creation_carries_size_vector_and_partner() {
        let cq = SubmissionEntry::create_completion_queue(QueueId(5), 65_536, Iova(0x1000), Some(9));
        assert_eq!((cq.cdw10, cq.cdw11, cq.prp1), (0xffff_0005, 0x0009_0003, 0x1000));
        let silent = SubmissionEntry::create_completion_queue(QueueId(5), 2, Iova(0x1000), None);
        assert_eq!((silent.cdw10, silent.cdw11), (0x0001_0005, 1));
        let sq = SubmissionEntry::create_submission_queue(QueueId(5), 2, Iova(0x2000));
        assert_eq!((sq.cdw10, sq.cdw11), (0x0001_0005, 0x0005_0001));
    }

    #[test]
    fn doorbell_buffers_are_the_two_data_pointers() {
        let entry = SubmissionEntry::doorbell_buffer_config(Iova(0x1000), Iova(0x2000));
        assert_eq!((entry.opcode, entry.prp1, entry.prp2), (0x7c, 0x1000, 0x2000));
    }

    #[test]
    fn every_opcode_survives_the_round_trip() {
        for raw in 0..=u8::MAX {
            assert_eq!(AdminOpcode::from_raw(raw).raw(), raw);
            assert_eq!(NvmOpcode::from_raw(raw).raw(), raw);
        }
    }

    #[test]
    fn long_log_pages_use_both_halves_of_the_count() {
        let entry = SubmissionEntry::query_log_page(crate::log_page::LogPage::Error, Nsid::ALL, 4 << 17);
        assert_eq!((entry.cdw10 >> 16, entry.cdw11), (0xffff, 1));
    }
}
