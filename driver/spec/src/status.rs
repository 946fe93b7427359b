//! Command status: type, code, name (NVMe Base 2.0, 3.3.3.2.1; NVM Command Set 1.0, 3.1).

use std::fmt;

/// The status of a completed command: 15 bits of the completion's last dword.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Status(u16);

/// Status code type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatusType {
    /// Generic command status.
    Generic,
    /// Status of this command only.
    CommandSpecific,
    /// Media and data integrity errors.
    Media,
    /// Path related.
    Path,
    /// Vendor specific.
    Vendor,
    /// Reserved by the specification.
    Reserved(u8),
}

macro_rules! statuses {
    ($($(#[$doc:meta])* $constant:ident = $sct:literal, $sc:literal, $text:literal;)+) => {
        impl Status {
            $($(#[$doc])* pub const $constant: Self = Self::of($sct, $sc);)+
        }

        /// Every status that the specification names: type, code, name, meaning.
        const NAMES: &[(u8, u8, &str, &str)] = &[$(($sct, $sc, stringify!($constant), $text),)+];
    };
}

impl Status {
    /// A status of this type and code, without DNR, More and CRD.
    #[must_use]
    pub const fn of(status_type: u8, code: u8) -> Self {
        Self((status_type as u16 & 7) << 8 | code as u16)
    }

    /// From the 15 bits above the phase tag.
    #[inline]
    #[must_use]
    pub const fn from_raw(raw: u16) -> Self {
        Self(raw & 0x7fff)
    }

    /// The 15 bits as they stand above the phase tag.
    #[must_use]
    pub const fn raw(self) -> u16 {
        self.0
    }

    /// The same with "do not retry" set.
    #[must_use]
    pub const fn with_do_not_retry(self) -> Self {
        Self(self.0 | 1 << 14)
    }

    /// Whether the command succeeded.
    #[inline]
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 & 0x7ff == 0
    }

    /// SCT, the status code type.
    #[must_use]
    pub const fn status_type(self) -> StatusType {
        match (self.0 >> 8) & 7 {
            0 => StatusType::Generic,
            1 => StatusType::CommandSpecific,
            2 => StatusType::Media,
            3 => StatusType::Path,
            7 => StatusType::Vendor,
            other => StatusType::Reserved(other as u8),
        }
    }

    /// SC, the status code.
    #[must_use]
    pub const fn code(self) -> u8 {
        #[expect(clippy::cast_possible_truncation)]
        let code = self.0 as u8;
        code
    }

    /// Type and code, without DNR, More and CRD: what two statuses are compared by.
    #[must_use]
    pub const fn kind(self) -> Self {
        Self(self.0 & 0x7ff)
    }

    /// DNR: repeating the command would fail again.
    #[must_use]
    pub const fn do_not_retry(self) -> bool {
        self.0 & 1 << 14 != 0
    }

    /// M: the Error Information log says more.
    #[must_use]
    pub const fn more(self) -> bool {
        self.0 & 1 << 13 != 0
    }

    /// CRD: which of the controller's retry delays applies (0: none).
    #[must_use]
    pub const fn retry_delay_index(self) -> u8 {
        ((self.0 >> 11) & 3) as u8
    }

    /// The specification's name as an identifier, or `None` for a code that it does not name.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        self.entry().map(|entry| entry.2)
    }

    /// The specification's meaning in words, or `None` for a code that it does not name.
    #[must_use]
    pub fn meaning(self) -> Option<&'static str> {
        self.entry().map(|entry| entry.3)
    }

    fn entry(self) -> Option<&'static (u8, u8, &'static str, &'static str)> {
        NAMES.iter().find(|(sct, sc, ..)| Self::of(*sct, *sc) == self.kind())
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sct = (self.0 >> 8) & 7;
        match self.meaning() {
            Some(meaning) => write!(f, "{meaning} ({sct:x}/{:02x}h)", self.code())?,
            None => write!(f, "unnamed status ({sct:x}/{:02x}h)", self.code())?,
        }
        if self.do_not_retry() {
            f.write_str(", do not retry")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({})", self)
    }
}

statuses! {
    /// The command succeeded.
    SUCCESS = 0, 0x00, "successful completion";
    /// The opcode is not supported.
    INVALID_OPCODE = 0, 0x01, "invalid command opcode";
    /// A field of the command is wrong.
    INVALID_FIELD = 0, 0x02, "invalid field in command";
    /// The identifier is in use.
    COMMAND_ID_CONFLICT = 0, 0x03, "command ID conflict";
    /// Data or metadata could not be transferred.
    DATA_TRANSFER_ERROR = 0, 0x04, "data transfer error";
    /// Power is about to be lost.
    ABORTED_POWER_LOSS = 0, 0x05, "commands aborted due to power loss notification";
    /// Something inside of the device went wrong.
    INTERNAL_ERROR = 0, 0x06, "internal error";
    /// Aborted on request.
    ABORT_REQUESTED = 0, 0x07, "command abort requested";
    /// Aborted because its queue was deleted.
    ABORTED_QUEUE_DELETED = 0, 0x08, "command aborted due to SQ deletion";
    /// A fused command failed.
    ABORTED_FAILED_FUSED = 0, 0x09, "command aborted due to failed fused command";
    /// The other half of a fused command is missing.
    ABORTED_MISSING_FUSED = 0, 0x0a, "command aborted due to missing fused command";
    /// No such namespace, or its format does not fit.
    INVALID_NAMESPACE = 0, 0x0b, "invalid namespace or format";
    /// The commands came in a wrong order.
    COMMAND_SEQUENCE_ERROR = 0, 0x0c, "command sequence error";
    /// An SGL segment descriptor is wrong.
    INVALID_SGL_SEGMENT = 0, 0x0d, "invalid SGL segment descriptor";
    /// An SGL has too many or too few descriptors.
    INVALID_SGL_COUNT = 0, 0x0e, "invalid number of SGL descriptors";
    /// The data SGL has the wrong length.
    INVALID_DATA_SGL_LENGTH = 0, 0x0f, "data SGL length invalid";
    /// The metadata SGL has the wrong length.
    INVALID_METADATA_SGL_LENGTH = 0, 0x10, "metadata SGL length invalid";
    /// An SGL descriptor type is not supported.
    INVALID_SGL_TYPE = 0, 0x11, "SGL descriptor type invalid";
    /// The controller memory buffer was used wrongly.
    INVALID_MEMORY_BUFFER_USE = 0, 0x12, "invalid use of controller memory buffer";
    /// A PRP offset is wrong.
    INVALID_PRP_OFFSET = 0, 0x13, "PRP offset invalid";
    /// More than the atomic write unit.
    ATOMIC_WRITE_UNIT_EXCEEDED = 0, 0x14, "atomic write unit exceeded";
    /// Access was denied.
    OPERATION_DENIED = 0, 0x15, "operation denied";
    /// An SGL offset is wrong.
    INVALID_SGL_OFFSET = 0, 0x16, "SGL offset invalid";
    /// The host identifier has an inconsistent format.
    HOST_ID_INCONSISTENT = 0, 0x18, "host identifier inconsistent format";
    /// The keep-alive timer ran out.
    KEEP_ALIVE_EXPIRED = 0, 0x19, "keep alive timer expired";
    /// The keep-alive timeout is wrong.
    INVALID_KEEP_ALIVE = 0, 0x1a, "keep alive timeout invalid";
    /// Aborted because of a preempt.
    ABORTED_PREEMPT = 0, 0x1b, "command aborted due to preempt and abort";
    /// A sanitize has failed.
    SANITIZE_FAILED = 0, 0x1c, "sanitize failed";
    /// A sanitize is running.
    SANITIZE_IN_PROGRESS = 0, 0x1d, "sanitize in progress";
    /// The data block granularity of an SGL is wrong.
    INVALID_SGL_GRANULARITY = 0, 0x1e, "SGL data block granularity invalid";
    /// The command is not supported for a queue in the controller memory buffer.
    NOT_SUPPORTED_IN_BUFFER = 0, 0x1f, "command not supported for queue in CMB";
    /// The namespace is write protected.
    WRITE_PROTECTED = 0, 0x20, "namespace is write protected";
    /// The command was interrupted; retry it.
    COMMAND_INTERRUPTED = 0, 0x21, "command interrupted";
    /// A passing transport error.
    TRANSIENT_TRANSPORT_ERROR = 0, 0x22, "transient transport error";
    /// Forbidden by command and feature lockdown.
    LOCKDOWN = 0, 0x23, "command prohibited by command and feature lockdown";
    /// The media is not ready.
    ADMIN_MEDIA_NOT_READY = 0, 0x24, "admin command media not ready";
    /// The range lies beyond the end of the namespace.
    LBA_OUT_OF_RANGE = 0, 0x80, "LBA out of range";
    /// The namespace's capacity is exceeded.
    CAPACITY_EXCEEDED = 0, 0x81, "capacity exceeded";
    /// The namespace is not ready.
    NAMESPACE_NOT_READY = 0, 0x82, "namespace not ready";
    /// A reservation conflicts.
    RESERVATION_CONFLICT = 0, 0x83, "reservation conflict";
    /// A format is running.
    FORMAT_IN_PROGRESS = 0, 0x84, "format in progress";
    /// The value size is wrong.
    INVALID_VALUE_SIZE = 0, 0x85, "invalid value size";
    /// The key size is wrong.
    INVALID_KEY_SIZE = 0, 0x86, "invalid key size";
    /// The key does not exist.
    KEY_NOT_FOUND = 0, 0x87, "KV key does not exist";
    /// Unrecovered error.
    UNRECOVERED_ERROR = 0, 0x88, "unrecovered error";
    /// The key exists.
    KEY_EXISTS = 0, 0x89, "key exists";

    /// The completion queue does not exist.
    COMPLETION_QUEUE_INVALID = 1, 0x00, "completion queue invalid";
    /// The queue identifier is wrong or in use.
    INVALID_QUEUE_ID = 1, 0x01, "invalid queue identifier";
    /// The queue size is wrong.
    INVALID_QUEUE_SIZE = 1, 0x02, "invalid queue size";
    /// More aborts outstanding than ACL allows.
    ABORT_LIMIT_EXCEEDED = 1, 0x03, "abort command limit exceeded";
    /// More event requests outstanding than AERL allows.
    EVENT_LIMIT_EXCEEDED = 1, 0x05, "asynchronous event request limit exceeded";
    /// The firmware slot is wrong.
    INVALID_FIRMWARE_SLOT = 1, 0x06, "invalid firmware slot";
    /// The firmware image is wrong.
    INVALID_FIRMWARE_IMAGE = 1, 0x07, "invalid firmware image";
    /// The interrupt vector is wrong.
    INVALID_INTERRUPT_VECTOR = 1, 0x08, "invalid interrupt vector";
    /// The log page is not supported.
    INVALID_LOG_PAGE = 1, 0x09, "invalid log page";
    /// The LBA format is not supported.
    INVALID_FORMAT = 1, 0x0a, "invalid format";
    /// Firmware needs a conventional reset.
    FIRMWARE_NEEDS_RESET = 1, 0x0b, "firmware activation requires conventional reset";
    /// The queue cannot be deleted now.
    INVALID_QUEUE_DELETION = 1, 0x0c, "invalid queue deletion";
    /// The feature's value cannot be saved.
    FEATURE_NOT_SAVEABLE = 1, 0x0d, "feature identifier not saveable";
    /// The feature's value cannot be changed.
    FEATURE_NOT_CHANGEABLE = 1, 0x0e, "feature not changeable";
    /// The feature is not per namespace.
    FEATURE_NOT_PER_NAMESPACE = 1, 0x0f, "feature not namespace specific";
    /// Firmware needs a subsystem reset.
    FIRMWARE_NEEDS_SUBSYSTEM_RESET = 1, 0x10, "firmware activation requires NVM subsystem reset";
    /// Firmware needs a controller reset.
    FIRMWARE_NEEDS_CONTROLLER_RESET = 1, 0x11, "firmware activation requires controller level reset";
    /// Firmware needs more time than allowed.
    FIRMWARE_NEEDS_TIME = 1, 0x12, "firmware activation requires maximum time violation";
    /// The firmware may not be activated.
    FIRMWARE_PROHIBITED = 1, 0x13, "firmware activation prohibited";
    /// Ranges overlap.
    OVERLAPPING_RANGE = 1, 0x14, "overlapping range";
    /// Not enough unallocated capacity.
    NAMESPACE_CAPACITY = 1, 0x15, "namespace insufficient capacity";
    /// No namespace identifier is free.
    NAMESPACE_ID_UNAVAILABLE = 1, 0x16, "namespace identifier unavailable";
    /// The namespace is attached.
    NAMESPACE_ATTACHED = 1, 0x18, "namespace already attached";
    /// The namespace is private.
    NAMESPACE_PRIVATE = 1, 0x19, "namespace is private";
    /// The namespace is not attached.
    NAMESPACE_NOT_ATTACHED = 1, 0x1a, "namespace not attached";
    /// Thin provisioning is not supported.
    THIN_NOT_SUPPORTED = 1, 0x1b, "thin provisioning not supported";
    /// The controller list is wrong.
    INVALID_CONTROLLER_LIST = 1, 0x1c, "controller list invalid";
    /// A self-test is running.
    SELF_TEST_IN_PROGRESS = 1, 0x1d, "device self-test in progress";
    /// The boot partition may not be written.
    BOOT_PARTITION_PROHIBITED = 1, 0x1e, "boot partition write prohibited";
    /// The controller identifier is wrong.
    INVALID_CONTROLLER_ID = 1, 0x1f, "invalid controller identifier";
    /// The secondary controller's state is wrong.
    INVALID_SECONDARY_STATE = 1, 0x20, "invalid secondary controller state";
    /// The number of controller resources is wrong.
    INVALID_RESOURCE_COUNT = 1, 0x21, "invalid number of controller resources";
    /// The resource identifier is wrong.
    INVALID_RESOURCE_ID = 1, 0x22, "invalid resource identifier";
    /// Not while the persistent memory region is enabled.
    SANITIZE_PROHIBITED = 1, 0x23, "sanitize prohibited while PMR is enabled";
    /// The ANA group is wrong.
    INVALID_ANA_GROUP = 1, 0x24, "ANA group identifier invalid";
    /// Attaching failed.
    ANA_ATTACH_FAILED = 1, 0x25, "ANA attach failed";
    /// Capacity is short.
    INSUFFICIENT_CAPACITY = 1, 0x26, "insufficient capacity";
    /// Too many namespaces attached.
    ATTACHMENT_LIMIT_EXCEEDED = 1, 0x27, "namespace attachment limit exceeded";
    /// Not possible while locked down.
    EXECUTION_PROHIBITED = 1, 0x28, "prohibition of command execution not supported";
    /// The I/O command set is not supported.
    COMMAND_SET_NOT_SUPPORTED = 1, 0x29, "I/O command set not supported";
    /// The I/O command set is not enabled.
    COMMAND_SET_NOT_ENABLED = 1, 0x2a, "I/O command set not enabled";
    /// The combination of command sets was rejected.
    COMMAND_SET_REJECTED = 1, 0x2b, "I/O command set combination rejected";
    /// The I/O command set is wrong.
    INVALID_COMMAND_SET = 1, 0x2c, "invalid I/O command set";
    /// The identifier is not available.
    IDENTIFIER_UNAVAILABLE = 1, 0x2d, "identifier unavailable";
    /// Attributes of the command conflict.
    CONFLICTING_ATTRIBUTES = 1, 0x80, "conflicting attributes";
    /// Protection information does not fit.
    INVALID_PROTECTION = 1, 0x81, "invalid protection information";
    /// Writing to a read-only range.
    READ_ONLY_RANGE = 1, 0x82, "attempted write to read only range";
    /// The command's size limit was exceeded.
    COMMAND_SIZE_EXCEEDED = 1, 0x83, "command size limit exceeded";
    /// The zone's boundary was crossed.
    ZONE_BOUNDARY_ERROR = 1, 0xb8, "zoned boundary error";
    /// The zone is full.
    ZONE_FULL = 1, 0xb9, "zone is full";
    /// The zone is read only.
    ZONE_READ_ONLY = 1, 0xba, "zone is read only";
    /// The zone is offline.
    ZONE_OFFLINE = 1, 0xbb, "zone is offline";
    /// Not at the zone's write pointer.
    ZONE_INVALID_WRITE = 1, 0xbc, "zone invalid write";
    /// Too many active zones.
    TOO_MANY_ACTIVE_ZONES = 1, 0xbd, "too many active zones";
    /// Too many open zones.
    TOO_MANY_OPEN_ZONES = 1, 0xbe, "too many open zones";
    /// The zone's state does not allow that.
    INVALID_ZONE_TRANSITION = 1, 0xbf, "invalid zone state transition";

    /// The data could not be written.
    WRITE_FAULT = 2, 0x80, "write fault";
    /// The data could not be read.
    UNRECOVERED_READ_ERROR = 2, 0x81, "unrecovered read error";
    /// The guard of the protection information is wrong.
    GUARD_CHECK_ERROR = 2, 0x82, "end-to-end guard check error";
    /// The application tag is wrong.
    APPLICATION_TAG_ERROR = 2, 0x83, "end-to-end application tag check error";
    /// The reference tag is wrong.
    REFERENCE_TAG_ERROR = 2, 0x84, "end-to-end reference tag check error";
    /// The data differ.
    COMPARE_FAILURE = 2, 0x85, "compare failure";
    /// Access was denied.
    ACCESS_DENIED = 2, 0x86, "access denied";
    /// The block is deallocated or was never written.
    DEALLOCATED_BLOCK = 2, 0x87, "deallocated or unwritten logical block";
    /// The storage tag is wrong.
    STORAGE_TAG_ERROR = 2, 0x88, "end-to-end storage tag check error";

    /// An internal error of the path.
    PATH_INTERNAL_ERROR = 3, 0x00, "internal path error";
    /// The namespace is gone for good on this path.
    ANA_PERSISTENT_LOSS = 3, 0x01, "asymmetric access persistent loss";
    /// The namespace cannot be reached on this path.
    ANA_INACCESSIBLE = 3, 0x02, "asymmetric access inaccessible";
    /// The path is changing.
    ANA_TRANSITION = 3, 0x03, "asymmetric access transition";
    /// The controller found a pathing error.
    CONTROLLER_PATHING_ERROR = 3, 0x60, "controller pathing error";
    /// The host found a pathing error.
    HOST_PATHING_ERROR = 3, 0x70, "host pathing error";
    /// The host aborted the command.
    ABORTED_BY_HOST = 3, 0x71, "command aborted by host";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_told_apart() {
        let status = Status::from_raw(1 << 14 | 1 << 13 | 2 << 11 | 2 << 8 | 0x81);
        assert_eq!(status.kind(), Status::UNRECOVERED_READ_ERROR);
        assert_eq!(status.status_type(), StatusType::Media);
        assert!(status.do_not_retry() && status.more() && !status.is_success());
        assert_eq!(status.retry_delay_index(), 2);
        assert_eq!(status.to_string(), "unrecovered read error (2/81h), do not retry");
    }

    #[test]
    fn every_code_is_representable_and_no_name_is_given_twice() {
        for raw in 0..=0x7fff {
            let status = Status::from_raw(raw);
            assert_eq!(status.raw(), raw);
            assert!(!status.to_string().is_empty());
        }
        for (index, a) in NAMES.iter().enumerate() {
            assert!(NAMES[index + 1..].iter().all(|b| (a.0, a.1) != (b.0, b.1) && a.2 != b.2), "{a:?}");
        }
    }

    #[test]
    fn do_not_retry_alone_is_still_success() {
        assert!(Status::SUCCESS.with_do_not_retry().is_success());
        assert!(!Status::INVALID_OPCODE.is_success());
    }
}
