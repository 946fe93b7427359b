#![expect(unsafe_code)]
//! What a request takes into flight, and what its completion gives back.
//!
//! Ownership is the DMA contract: while a command lives, the driver holds its buffer, and no Rust
//! reference to the bytes can exist. The completion hands the same value back. Memory of a command that
//! may still be under way is never freed: it is parked until the device is known to be quiet.
//
// UNSAFETY: declares the one unsafe constructor, for memory that is not a `DmaBuf`; takes a pointer out of
// its place when it is dropped.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use doorbell_hugepages::{DmaBuf, ForeignRegion, SpaceId};
use doorbell_spec::Iova;

/// The memory of a request: whole, a part, several pieces, shared, foreign, or none at all.
#[derive(Debug, Default)]
#[non_exhaustive]
pub enum Buffer {
    /// No memory: a flush, a write of zeroes, or a request whose memory was parked.
    #[default]
    None,
    /// All of one buffer.
    Whole(DmaBuf),
    /// A part of one buffer.
    Range(BufferRange),
    /// Several parts, transferred in this order as if they were one.
    Pieces(BufferPieces),
    /// Memory that others read at the same time: only for requests that do not write to it.
    Shared(SharedRange),
    /// Memory that was registered, see [`Buffer::foreign`].
    Foreign(ForeignRange),
}

/// A part of a buffer: `bytes` from `offset` on.
#[derive(Debug)]
pub struct BufferRange {
    buffer: DmaBuf,
    offset: u32,
    bytes: u32,
}

/// Several parts of buffers, in order. Made from a `Vec`, and becomes one again; neither allocates, unless
/// the `Vec` had room for more.
#[derive(Debug)]
pub struct BufferPieces(ByValue<Box<[BufferRange]>>);

/// A part of a buffer that several requests, also of several devices, read at once.
#[derive(Clone, Debug)]
pub struct SharedRange {
    buffer: ByValue<Arc<DmaBuf>>,
    offset: u32,
    bytes: u32,
}

/// A part of registered memory.
#[derive(Debug)]
pub struct ForeignRange {
    region: ByValue<Arc<ForeignRegion>>,
    iova: Iova,
    bytes: u32,
}

/// What is dropped by value: a drop that needed its own address would keep every [`Buffer`], on its way
/// through the driver, out of registers. The value must be small enough to be passed in two of them.
#[derive(Clone, Debug)]
struct ByValue<T>(ManuallyDrop<T>);

/// Why a part of a buffer cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes {offset} to {offset}+{bytes} do not lie within a buffer of {have_bytes} bytes")]
pub struct RangeError {
    offset: usize,
    bytes: usize,
    have_bytes: usize,
}

impl BufferRange {
    /// The part of `buffer` of `bytes` bytes from `offset` on. Gives the buffer back if it is too short.
    ///
    /// # Errors
    /// The part does not lie within the buffer.
    pub fn new(buffer: DmaBuf, offset: usize, bytes: usize) -> Result<Self, (RangeError, DmaBuf)> {
        match checked_range(buffer.len(), offset, bytes) {
            Ok((offset, bytes)) => Ok(Self { buffer, offset, bytes }),
            Err(error) => Err((error, buffer)),
        }
    }

    /// The whole buffer again.
    #[must_use]
    pub fn into_buffer(self) -> DmaBuf {
        self.buffer
    }

    fn segment(&self) -> Segment {
        Segment { iova: self.buffer.iova().offset(u64::from(self.offset)), bytes: u64::from(self.bytes) }
    }
}

impl SharedRange {
    /// The part of `buffer` of `bytes` bytes from `offset` on.
    ///
    /// # Errors
    /// The part does not lie within the buffer.
    pub fn new(buffer: Arc<DmaBuf>, offset: usize, bytes: usize) -> Result<Self, RangeError> {
        let (offset, bytes) = checked_range(buffer.len(), offset, bytes)?;
        Ok(Self { buffer: ByValue::new(buffer), offset, bytes })
    }
}

impl BufferPieces {
    /// The pieces again.
    #[must_use]
    pub fn into_vec(self) -> Vec<BufferRange> {
        self.0.into_inner().into_vec()
    }
}

impl Deref for BufferPieces {
    type Target = [BufferRange];

    fn deref(&self) -> &[BufferRange] {
        &self.0
    }
}

impl From<Vec<BufferRange>> for BufferPieces {
    fn from(pieces: Vec<BufferRange>) -> Self {
        Self(ByValue::new(pieces.into_boxed_slice()))
    }
}

impl Buffer {
    /// Memory that is not a [`DmaBuf`] but was registered with the controller's `DmaSpace`: a database's
    /// own buffer pool. `None` if the range does not lie within the region.
    ///
    /// # Safety
    /// Until the completion of the request has given the returned value back, or the controller was closed:
    /// - the memory stays mapped and is not used for anything else (the device reads or writes it);
    /// - if the request reads from the device, no Rust reference to the memory exists;
    /// - if the request writes to the device, nobody writes to the memory.
    #[must_use]
    pub unsafe fn foreign(region: &Arc<ForeignRegion>, start: NonNull<u8>, bytes: usize) -> Option<Self> {
        let iova = region.iova_of(start, bytes)?;
        let bytes = u32::try_from(bytes).ok()?;
        Some(Self::Foreign(ForeignRange { region: ByValue::new(Arc::clone(region)), iova, bytes }))
    }

    /// The buffer of a request that took one whole, or part of one.
    #[must_use]
    pub fn into_dma_buf(self) -> Option<DmaBuf> {
        match self {
            Self::Whole(buffer) => Some(buffer),
            Self::Range(range) => Some(range.buffer),
            _ => None,
        }
    }

    /// How many bytes a request would transfer.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Whole(buffer) => buffer.len() as u64,
            Self::Range(range) => u64::from(range.bytes),
            Self::Pieces(pieces) => pieces.iter().map(|piece| u64::from(piece.bytes)).sum(),
            Self::Shared(range) => u64::from(range.bytes),
            Self::Foreign(range) => u64::from(range.bytes),
        }
    }

    /// Whether all of it belongs to `space`: the same address means other memory in another space.
    #[inline]
    pub(crate) fn belongs_to(&self, space: SpaceId) -> bool {
        match self {
            Self::None => true,
            Self::Whole(buffer) => buffer.space() == space,
            Self::Range(range) => range.buffer.space() == space,
            Self::Pieces(pieces) => pieces.iter().all(|piece| piece.buffer.space() == space),
            Self::Shared(range) => range.buffer.space() == space,
            Self::Foreign(range) => range.region.space() == space,
        }
    }

    /// The first segment: all of the data, unless there are several pieces.
    #[inline]
    pub(crate) fn segments(&self) -> Segments<'_> {
        match self {
            Self::None => Segments::One(Segment { iova: Iova(0), bytes: 0 }),
            Self::Whole(buffer) => Segments::One(Segment { iova: buffer.iova(), bytes: buffer.len() as u64 }),
            Self::Range(range) => Segments::One(range.segment()),
            Self::Pieces(pieces) => Segments::Many(pieces),
            Self::Shared(range) => Segments::One(Segment {
                iova: range.buffer.iova().offset(u64::from(range.offset)),
                bytes: u64::from(range.bytes),
            }),
            Self::Foreign(range) => {
                Segments::One(Segment { iova: range.iova, bytes: u64::from(range.bytes) })
            }
        }
    }
}

impl From<DmaBuf> for Buffer {
    fn from(buffer: DmaBuf) -> Self {
        Self::Whole(buffer)
    }
}

impl From<BufferRange> for Buffer {
    fn from(range: BufferRange) -> Self {
        Self::Range(range)
    }
}

impl From<Vec<BufferRange>> for Buffer {
    fn from(pieces: Vec<BufferRange>) -> Self {
        Self::Pieces(pieces.into())
    }
}

impl From<SharedRange> for Buffer {
    fn from(range: SharedRange) -> Self {
        Self::Shared(range)
    }
}

impl<T> ByValue<T> {
    fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }

    fn into_inner(self) -> T {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the value is there, and neither used nor dropped again: `this` is not.
        unsafe { ManuallyDrop::take(&mut this.0) }
    }
}

impl<T> Deref for ByValue<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Drop for ByValue<T> {
    #[inline]
    fn drop(&mut self) {
        #[inline(never)]
        fn let_go<T>(value: T) {
            drop(value);
        }
        // SAFETY: the value is there until this is dropped, which happens once, and is not used again.
        let_go(unsafe { ManuallyDrop::take(&mut self.0) });
    }
}

/// A run of bytes that is contiguous for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) iova: Iova,
    pub(crate) bytes: u64,
}

/// The memory of a request as the device sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Segments<'a> {
    One(Segment),
    Many(&'a [BufferRange]),
}

impl Segments<'_> {
    /// Segment `index`, if there is one.
    #[inline]
    pub(crate) fn at(&self, index: usize) -> Option<Segment> {
        match self {
            Self::One(segment) => (index == 0).then_some(*segment),
            Self::Many(pieces) => pieces.get(index).map(BufferRange::segment),
        }
    }
}

fn checked_range(have_bytes: usize, offset: usize, bytes: usize) -> Result<(u32, u32), RangeError> {
    let error = RangeError { offset, bytes, have_bytes };
    let end = offset.checked_add(bytes).ok_or(error)?;
    if end > have_bytes {
        return Err(error);
    }
    Ok((u32::try_from(offset).map_err(|_| error)?, u32::try_from(bytes).map_err(|_| error)?))
}
