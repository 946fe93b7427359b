//! A namespace: what a request needs to know of it, as a small value.

use doorbell_spec::identify::{IdentifyController, IdentifyNamespace, NSFEAT_ATOMICS};
use doorbell_spec::{Blocks, Lba, Nsid};

/// A namespace of one controller. A snapshot: a change of the namespace shows in the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    pub(crate) geometry: Geometry,
    atomics: AtomicUnits,
    write_protected: bool,
}

/// What a request carries of its namespace: as little as it needs, since it is copied into each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) blocks: u64,
    pub(crate) key: NamespaceKey,
    nsid: WideNsid,
}

/// A namespace's identifier in a word of the size of the others, so that all three are copied alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WideNsid(u64);

const _: () = assert!(size_of::<Geometry>() == 24, "a copy of it travels with each request");

impl Geometry {
    fn new(nsid: Nsid, blocks: u64, key: NamespaceKey) -> Self {
        Self { blocks, key, nsid: WideNsid(u64::from(nsid.0)) }
    }

    #[inline]
    pub(crate) fn nsid(&self) -> Nsid {
        #[expect(clippy::cast_possible_truncation, reason = "an identifier was put in")]
        let nsid = self.nsid.0 as u32;
        Nsid(nsid)
    }

    #[inline]
    pub(crate) fn block_shift(&self) -> u32 {
        self.key.block_shift()
    }

    #[inline]
    pub(crate) fn block_bytes(&self) -> u32 {
        1 << self.block_shift()
    }

    /// Whether a namespace that is not looked at closely has `blocks` blocks from `lba` on: as many as make
    /// up [`PLAIN_BYTES_MIN`] at most.
    #[inline]
    pub(crate) fn contains_few(&self, lba: Lba, blocks: u64) -> bool {
        debug_assert!(blocks <= self.blocks);
        lba.0 <= self.blocks.wrapping_sub(blocks)
    }

    #[inline]
    pub(crate) fn contains(&self, lba: Lba, blocks: u64) -> bool {
        self.blocks.checked_sub(blocks).is_some_and(|last| lba.0 <= last)
    }
}

/// Tells a controller from all others that this process has opened, see
/// [`Controller::id`](crate::Controller::id). One that is opened again has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ControllerId(pub(crate) u32);

impl ControllerId {
    /// The last one. After 33 million controllers, a process begins again.
    pub(crate) const MAX: u32 = (1 << 25) - 1;
}

/// What a [`NamespaceKey`] says besides the controller.
#[derive(Clone, Copy, Debug)]
struct Format {
    block_shift: u8,
    boundary: u16,
    metadata_bytes: u16,
    size: Size,
}

/// Whether a namespace is smaller than [`PLAIN_BYTES_MIN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Usual,
    Small,
}

/// Controller and format of a namespace in one number, so that all is checked by one comparison.
///
/// From the low end: 6 bits, the block size as a power of two; 1 bit, set if the namespace is very small; 16
/// bits, the optimal boundary in blocks; 16 bits, the bytes of metadata of a block; 25 bits, the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NamespaceKey(u64);

impl NamespaceKey {
    const SHIFT_BITS: u32 = 6;
    const SMALL: u64 = 1 << Self::SHIFT_BITS;
    const BOUNDARY_AT: u32 = 7;
    const METADATA_AT: u32 = 23;
    const CONTROLLER_AT: u32 = 39;

    /// The key that all of a controller's namespaces begin with.
    pub(crate) fn of_controller(controller: ControllerId) -> Self {
        Self(u64::from(controller.0) << Self::CONTROLLER_AT)
    }

    fn new(controller: ControllerId, format: Format) -> Self {
        let Format { block_shift, boundary, metadata_bytes, size } = format;
        let small = if size == Size::Small { Self::SMALL } else { 0 };
        let boundary = u64::from(boundary) << Self::BOUNDARY_AT;
        let metadata = u64::from(metadata_bytes) << Self::METADATA_AT;
        Self(Self::of_controller(controller).0 | metadata | boundary | small | u64::from(block_shift))
    }

    /// The block size, as a power of two, of a namespace of this controller without a boundary or metadata
    /// that is not very small.
    #[inline]
    pub(crate) fn plain_shift(self, of_controller: Self) -> Option<u32> {
        let rest = self.0 ^ of_controller.0;
        (rest < Self::SMALL).then_some(rest as u32)
    }

    /// Whether a namespace belongs to this controller.
    pub(crate) fn is_of(self, of_controller: Self) -> bool {
        (self.0 ^ of_controller.0) >> Self::CONTROLLER_AT == 0
    }

    /// Optimal boundary in blocks; 0 is none.
    pub(crate) fn boundary(self) -> u16 {
        (self.0 >> Self::BOUNDARY_AT) as u16
    }

    pub(crate) fn metadata_bytes(self) -> u16 {
        (self.0 >> Self::METADATA_AT) as u16
    }

    fn block_shift(self) -> u32 {
        (self.0 & (Self::SMALL - 1)) as u32
    }
}

/// What is written or compared as one, in blocks (NVM Command Set 1.0, 2.1.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicUnits {
    /// Writes up to this size are not mixed with other writes (AWUN or NAWUN).
    pub normal: Blocks,
    /// Writes up to this size are whole or absent after a power failure (AWUPF or NAWUPF).
    pub power_fail: Blocks,
    /// Fused compare and write up to this size are atomic (ACWU or NACWU).
    pub compare_and_write: Blocks,
    /// Writes that cross a multiple of this are not atomic (NABSN); `None` if there is no boundary.
    pub boundary: Option<Blocks>,
}

/// Why a namespace cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NamespaceError {
    /// There is no such namespace.
    #[error("namespace {nsid} does not exist; this controller has {present}")]
    NotFound {
        /// The one asked for.
        nsid: Nsid,
        /// Those that exist, written out.
        present: String,
    },
    /// Blocks carry metadata, which requests cannot transfer yet.
    #[error(
        "namespace {nsid} has {metadata_bytes} bytes of metadata per block, which is not supported; \
         reformat it with `nvme format` to a format without metadata"
    )]
    Metadata {
        /// Which one.
        nsid: Nsid,
        /// MS of its format.
        metadata_bytes: u16,
    },
    /// The device describes it in a way that makes no sense.
    #[error("namespace {nsid} reports {what}, which the specification does not allow")]
    Nonsense {
        /// Which one.
        nsid: Nsid,
        /// What is wrong.
        what: String,
    },
}

impl Namespace {
    /// Takes the identify data apart. Answers `None` for a namespace that is not active.
    pub(crate) fn from_identify(
        controller: ControllerId,
        nsid: Nsid,
        of_controller: &IdentifyController,
        data: &IdentifyNamespace,
    ) -> Result<Option<Self>, NamespaceError> {
        if data.blocks == 0 {
            return Ok(None);
        }
        let format = data.format();
        let block_shift = format.block_shift();
        if !(BLOCK_SHIFT_MIN..=BLOCK_SHIFT_MAX).contains(&block_shift) {
            let what = format!("blocks of 2^{block_shift} bytes");
            return Err(NamespaceError::Nonsense { nsid, what });
        }
        if data.blocks > u64::MAX >> block_shift {
            let what = format!("{} blocks of 2^{block_shift} bytes", data.blocks);
            return Err(NamespaceError::Nonsense { nsid, what });
        }
        let format = Format {
            block_shift,
            boundary: data.optimal_boundary,
            metadata_bytes: format.metadata_bytes(),
            size: if data.blocks << block_shift < PLAIN_BYTES_MIN { Size::Small } else { Size::Usual },
        };
        let geometry = Geometry::new(nsid, data.blocks, NamespaceKey::new(controller, format));
        Ok(Some(Self {
            geometry,
            atomics: AtomicUnits::of(of_controller, data),
            write_protected: data.attributes & 1 == 1,
        }))
    }

    /// Its identifier.
    #[must_use]
    pub fn nsid(&self) -> Nsid {
        self.geometry.nsid()
    }

    /// Bytes per logical block: a power of two from 512 on.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.geometry.block_bytes()
    }

    /// Its size in logical blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.geometry.blocks
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.geometry.blocks << self.geometry.block_shift()
    }

    /// Metadata bytes per block; only 0 can be read and written.
    #[must_use]
    pub fn metadata_bytes(&self) -> u16 {
        self.geometry.key.metadata_bytes()
    }

    /// The boundary (NOIOB) that requests are split at, `None` if there is none.
    #[must_use]
    pub fn optimal_boundary(&self) -> Option<Blocks> {
        let boundary = self.geometry.key.boundary();
        (boundary > 0).then_some(Blocks(u32::from(boundary)))
    }

    /// What is written as one.
    #[must_use]
    pub fn atomic_units(&self) -> AtomicUnits {
        self.atomics
    }

    /// Whether the device said that it refuses writes.
    #[must_use]
    pub fn is_write_protected(&self) -> bool {
        self.write_protected
    }

    /// Whether `blocks` from `lba` on lie within the namespace.
    #[inline]
    #[must_use]
    pub fn contains(&self, lba: Lba, blocks: u64) -> bool {
        self.geometry.contains(lba, blocks)
    }
}

impl AtomicUnits {
    fn of(controller: &IdentifyController, namespace: &IdentifyNamespace) -> Self {
        let own = namespace.features & NSFEAT_ATOMICS != 0;
        let pick = |of_namespace: u16, of_controller: u16| {
            let zero_based = if own && of_namespace != 0 { of_namespace } else { of_controller };
            Blocks(u32::from(zero_based) + 1)
        };
        let boundary = own && namespace.atomic_boundary_z != 0;
        Self {
            normal: pick(namespace.atomic_write_z, controller.atomic_write_z),
            power_fail: pick(namespace.atomic_write_power_fail_z, controller.atomic_write_power_fail_z),
            compare_and_write: pick(namespace.atomic_compare_z, controller.atomic_compare_z),
            boundary: boundary.then(|| Blocks(u32::from(namespace.atomic_boundary_z) + 1)),
        }
    }
}

/// Smaller namespaces are looked at closely, so that elsewhere no request that goes the short way can be
/// larger than its namespace.
pub(crate) const PLAIN_BYTES_MIN: u64 = 128 * 1024;

/// The smallest block of the specification (LBADS below 9 is "not in use").
const BLOCK_SHIFT_MIN: u8 = 9;
/// The largest block accepted: 64 KiB. Larger ones have not been seen, and would not fit into a request.
const BLOCK_SHIFT_MAX: u8 = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_spec::identify::LbaFormat;

    fn identify(block_shift: u8, blocks: u64) -> IdentifyNamespace {
        let mut data = IdentifyNamespace::zeroed();
        data.blocks = blocks;
        data.formats[0] = LbaFormat::new().with_block_shift(block_shift);
        data
    }

    fn parse(data: &IdentifyNamespace) -> Result<Option<Namespace>, NamespaceError> {
        let controller = IdentifyController::zeroed();
        Namespace::from_identify(ControllerId(0), Nsid(1), &controller, data)
    }

    #[test]
    fn sizes_that_make_no_sense_are_refused() {
        for shift in 0..=u8::MAX {
            let accepted = parse(&identify(shift, 100)).is_ok();
            assert_eq!(accepted, (9..=16).contains(&shift), "2^{shift} bytes");
        }
        assert!(parse(&identify(12, u64::MAX)).is_err());
        assert!(parse(&identify(12, u64::MAX >> 12)).is_ok());
        assert_eq!(parse(&identify(0, 0)), Ok(None));
    }

    #[test]
    fn a_key_says_what_it_was_made_of() {
        let (mine, other) = (ControllerId(5), ControllerId(ControllerId::MAX));
        let of_mine = NamespaceKey::of_controller(mine);
        for block_shift in BLOCK_SHIFT_MIN..=BLOCK_SHIFT_MAX {
            for (boundary, metadata_bytes) in [(0, 0), (1, 0), (u16::MAX, 0), (0, 1), (0, u16::MAX)] {
                for size in [Size::Usual, Size::Small] {
                    let format = Format { block_shift, boundary, metadata_bytes, size };
                    let key = NamespaceKey::new(mine, format);
                    assert_eq!((key.block_shift(), key.boundary()), (block_shift.into(), boundary));
                    assert_eq!(key.metadata_bytes(), metadata_bytes);
                    let plain = boundary == 0 && metadata_bytes == 0 && size == Size::Usual;
                    assert_eq!(key.plain_shift(of_mine), plain.then_some(block_shift.into()));
                    assert!(key.is_of(of_mine));
                    let theirs = NamespaceKey::new(other, format);
                    assert!(!theirs.is_of(of_mine) && theirs.plain_shift(of_mine).is_none());
                }
            }
        }
    }

    #[test]
    fn ranges_are_checked_without_overflow() {
        let namespace = parse(&identify(9, 100)).expect("fine").expect("active");
        assert!(namespace.contains(Lba(99), 1));
        assert!(!namespace.contains(Lba(99), 2));
        assert!(!namespace.contains(Lba(u64::MAX), 1));
        assert!(!namespace.contains(Lba(1), u64::MAX));
    }

    #[test]
    fn atomic_units_of_the_namespace_win_where_it_has_its_own() {
        let mut controller = IdentifyController::zeroed();
        controller.atomic_write_z = 7;
        let mut data = identify(9, 100);
        data.atomic_write_z = 15;
        data.atomic_boundary_z = 31;
        assert_eq!(AtomicUnits::of(&controller, &data).normal, Blocks(8));
        assert_eq!(AtomicUnits::of(&controller, &data).boundary, None);
        data.features = NSFEAT_ATOMICS;
        let own = AtomicUnits::of(&controller, &data);
        assert_eq!((own.normal, own.boundary), (Blocks(16), Some(Blocks(32))));
        assert_eq!(own.power_fail, Blocks(1));
    }
}
