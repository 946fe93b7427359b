//! Where blocks are kept: nowhere, in memory, or in a file.
//!
//! An enum, not a trait object: the choice is known when a command runs, and costs a branch.

pub(crate) mod file;
pub(crate) mod memory;

use doorbell_spec::Status;

use crate::iova::access::{Access, Dma};
use crate::prp::{Piece, Pieces};
use file::FileBackend;
use memory::MemoryBackend;

/// One namespace's store.
pub(crate) enum Backend {
    /// Keeps nothing and transfers nothing.
    Null,
    /// Keeps blocks in memory.
    Memory(MemoryBackend),
    /// Keeps blocks in a file.
    File(FileBackend),
}

impl Backend {
    /// Whether data is transferred at all.
    #[inline]
    pub(crate) fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Copies the bytes from `offset` on to the host's pieces.
    pub(crate) fn read(&mut self, offset: u64, pieces: &Pieces, dma: &Dma<'_>) -> Result<(), Status> {
        pieces.check(dma, Access::Write)?;
        self.for_each_part(offset, pieces.as_slice(), |piece, data| {
            dma.write(piece.iova, data).map_err(|_| Status::DATA_TRANSFER_ERROR)
        })
    }

    /// Compares the bytes from `offset` on with the host's pieces.
    pub(crate) fn compare(&mut self, offset: u64, pieces: &Pieces, dma: &Dma<'_>) -> Result<(), Status> {
        pieces.check(dma, Access::Read)?;
        self.for_each_part(offset, pieces.as_slice(), |piece, data| {
            let mut hosts = [0; COMPARE_BYTES];
            for (start, part) in (0..).step_by(COMPARE_BYTES).zip(data.chunks(COMPARE_BYTES)) {
                let hosts = &mut hosts[..part.len()];
                dma.read(piece.iova.offset(start), hosts).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
                if hosts != part {
                    return Err(Status::COMPARE_FAILURE);
                }
            }
            Ok(())
        })
    }

    /// Copies the host's pieces to the bytes from `offset` on. Writes nothing unless all of it can be read.
    pub(crate) fn write(&mut self, offset: u64, pieces: &Pieces, dma: &Dma<'_>) -> Result<(), Status> {
        pieces.check(dma, Access::Read)?;
        let mut at = offset;
        for piece in pieces.as_slice() {
            match self {
                Self::Null => return Ok(()),
                Self::Memory(memory) => memory.write(at, *piece, dma)?,
                Self::File(file) => file.write(at, *piece, dma)?,
            }
            at += piece.bytes as u64;
        }
        Ok(())
    }

    /// Turns `bytes` bytes from `offset` on to zeros.
    pub(crate) fn zero(&mut self, offset: u64, bytes: u64) -> Result<(), Status> {
        match self {
            Self::Null => Ok(()),
            Self::Memory(memory) => {
                memory.zero(offset, bytes);
                Ok(())
            }
            Self::File(file) => file.zero(offset, bytes),
        }
    }

    /// Makes everything written so far permanent.
    pub(crate) fn flush(&mut self) -> Result<(), Status> {
        match self {
            Self::Null | Self::Memory(_) => Ok(()),
            Self::File(file) => file.flush(),
        }
    }

    /// Flips the lowest bit of the byte at `offset`: what the fault plan's `Corrupt` does.
    pub(crate) fn flip(&mut self, offset: u64) -> Result<(), Status> {
        match self {
            Self::Null => Ok(()),
            Self::Memory(memory) => {
                memory.flip(offset);
                Ok(())
            }
            Self::File(file) => file.flip(offset),
        }
    }

    /// Walks the pieces and the stored bytes side by side. A part never spans two pieces.
    fn for_each_part(
        &mut self,
        offset: u64,
        pieces: &[Piece],
        mut visit: impl FnMut(Piece, &[u8]) -> Result<(), Status>,
    ) -> Result<(), Status> {
        let mut at = offset;
        for piece in pieces {
            let mut rest = *piece;
            while rest.bytes > 0 {
                let data = match self {
                    Self::Null => return Ok(()),
                    Self::Memory(memory) => memory.part(at, rest.bytes),
                    Self::File(file) => file.part(at, rest.bytes)?,
                };
                visit(Piece { bytes: data.len(), ..rest }, data)?;
                at += data.len() as u64;
                rest = Piece { iova: rest.iova.offset(data.len() as u64), bytes: rest.bytes - data.len() };
            }
        }
        Ok(())
    }
}

const COMPARE_BYTES: usize = 4096;
