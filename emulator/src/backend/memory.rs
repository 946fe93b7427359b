//! Blocks in memory, in chunks that are allocated when they are first written.
//!
//! What was never written, or was zeroed as a whole chunk, takes no memory and reads as zeros.

use doorbell_spec::Status;

use crate::iova::access::Dma;
use crate::prp::Piece;

/// A sparse store of bytes.
pub(crate) struct MemoryBackend {
    chunks: Vec<Option<Box<[u8]>>>,
    chunk_bytes: u64,
}

impl MemoryBackend {
    /// A store of `bytes` zeros.
    pub(crate) fn new(bytes: u64) -> Self {
        // Large stores get large chunks, so that the table stays within a few megabytes.
        let chunk_bytes = CHUNK_BYTES_MIN.max(bytes.div_ceil(CHUNKS_MAX).next_power_of_two());
        let count = usize::try_from(bytes.div_ceil(chunk_bytes)).unwrap_or(0);
        Self { chunks: std::iter::repeat_with(|| None).take(count).collect(), chunk_bytes }
    }

    /// The stored bytes from `offset` on: at least one, at most `bytes`.
    pub(crate) fn part(&self, offset: u64, bytes: usize) -> &[u8] {
        let (index, start, length) = self.place(offset, bytes);
        match self.chunks.get(index) {
            Some(Some(chunk)) => &chunk[start..start + length],
            _ => &ZEROS[..length.min(ZEROS.len())],
        }
    }

    /// Copies a piece of host memory in.
    pub(crate) fn write(&mut self, offset: u64, piece: Piece, dma: &Dma<'_>) -> Result<(), Status> {
        let mut done = 0;
        while done < piece.bytes {
            let (index, start, length) = self.place(offset + done as u64, piece.bytes - done);
            let Some(chunk) = self.chunk(index) else { return Err(Status::INTERNAL_ERROR) };
            dma.read(piece.iova.offset(done as u64), &mut chunk[start..start + length])
                .map_err(|_| Status::DATA_TRANSFER_ERROR)?;
            done += length;
        }
        Ok(())
    }

    /// Zeroes a range; chunks that are wholly in it are given back.
    pub(crate) fn zero(&mut self, offset: u64, bytes: u64) {
        let end = offset.saturating_add(bytes);
        let mut at = offset;
        while at < end {
            let left = usize::try_from(end - at).unwrap_or(usize::MAX);
            let (index, start, length) = self.place(at, left);
            if let Some(slot) = self.chunks.get_mut(index) {
                if length as u64 == self.chunk_bytes {
                    *slot = None;
                } else if let Some(chunk) = slot {
                    chunk[start..start + length].fill(0);
                }
            }
            at += length as u64;
        }
    }

    /// Flips the lowest bit of a byte.
    pub(crate) fn flip(&mut self, offset: u64) {
        let (index, start, _) = self.place(offset, 1);
        if let Some(chunk) = self.chunk(index) {
            chunk[start] ^= 1;
        }
    }

    fn chunk(&mut self, index: usize) -> Option<&mut [u8]> {
        let bytes = usize::try_from(self.chunk_bytes).ok()?;
        let slot = self.chunks.get_mut(index)?;
        Some(slot.get_or_insert_with(|| vec![0; bytes].into_boxed_slice()))
    }

    /// The chunk of an offset, where in it the offset lies, and how many of `bytes` bytes are in it.
    fn place(&self, offset: u64, bytes: usize) -> (usize, usize, usize) {
        let start = offset & (self.chunk_bytes - 1);
        let left = usize::try_from(self.chunk_bytes - start).unwrap_or(usize::MAX);
        #[expect(clippy::cast_possible_truncation)]
        (((offset / self.chunk_bytes) as usize), start as usize, left.min(bytes))
    }
}

const CHUNK_BYTES_MIN: u64 = 1 << 20;
const CHUNKS_MAX: u64 = 1 << 18;
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_taken_on_the_first_write_and_given_back() {
        let mut memory = MemoryBackend::new(1 << 40);
        assert_eq!(memory.part((1 << 40) - 4096, 4096), [0; 4096]);
        memory.flip(5 << 20);
        assert_eq!(memory.part(5 << 20, 2), [1, 0]);
        assert_eq!(memory.chunks.iter().flatten().count(), 1);
        memory.zero(0, 1 << 40);
        assert_eq!(memory.chunks.iter().flatten().count(), 0);
        assert_eq!(memory.part(5 << 20, 2), [0, 0]);
    }

    #[test]
    fn a_part_ends_with_its_chunk() {
        let mut memory = MemoryBackend::new(4 << 20);
        memory.flip(0);
        assert_eq!(memory.part((1 << 20) - 10, 100).len(), 10);
        assert_eq!(memory.part(0, 100).len(), 100);
        memory.zero(0, 100);
        assert_eq!(memory.part(0, 1), [0]);
    }
}
