//! Blocks in a file, read and written at positions through a buffer of our own.
//!
//! The host's memory is never handed to the system, since nothing but copies may touch it. What was written
//! is permanent after a flush; without a volatile write cache the file is opened so that every write is.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use doorbell_spec::Status;

use crate::config::Toggle;
use crate::iova::access::Dma;
use crate::prp::Piece;

/// A file as a store of bytes.
pub(crate) struct FileBackend {
    file: File,
    buffer: Box<[u8]>,
}

impl FileBackend {
    /// Opens `path`, or creates it with `bytes` bytes. Answers the store and its size.
    ///
    /// A file that is larger than `bytes` is used in part; one that is smaller is made as large.
    pub(crate) fn open(
        path: &Path,
        bytes: Option<u64>,
        cache: Toggle,
        protection: Toggle,
    ) -> io::Result<(Self, u64)> {
        let mut options = OpenOptions::new();
        options.read(true);
        if !protection.is_on() {
            options.write(true).create(true).truncate(false);
        }
        if !cache.is_on() {
            options.custom_flags(libc::O_DSYNC);
        }
        let file = options.open(path)?;
        let have = file.metadata()?.len();
        let bytes = match bytes {
            Some(bytes) if bytes > have => {
                file.set_len(bytes)?;
                bytes
            }
            Some(bytes) => bytes,
            None if have == 0 => {
                let text = "the file is new or empty, and no size is given; add size=1G";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
            None => have,
        };
        Ok((Self { file, buffer: vec![0; BUFFER_BYTES].into_boxed_slice() }, bytes))
    }

    /// The stored bytes from `offset` on: at least one, at most `bytes`.
    pub(crate) fn part(&mut self, offset: u64, bytes: usize) -> Result<&[u8], Status> {
        let buffer = &mut self.buffer[..bytes.min(BUFFER_BYTES)];
        self.file.read_exact_at(buffer, offset).map_err(|_| Status::UNRECOVERED_READ_ERROR)?;
        Ok(buffer)
    }

    /// Copies a piece of host memory in.
    pub(crate) fn write(&mut self, offset: u64, piece: Piece, dma: &Dma<'_>) -> Result<(), Status> {
        for start in (0..piece.bytes).step_by(BUFFER_BYTES) {
            let buffer = &mut self.buffer[..BUFFER_BYTES.min(piece.bytes - start)];
            dma.read(piece.iova.offset(start as u64), buffer).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
            self.file.write_all_at(buffer, offset + start as u64).map_err(|_| Status::WRITE_FAULT)?;
        }
        Ok(())
    }

    /// Writes zeros.
    pub(crate) fn zero(&mut self, offset: u64, bytes: u64) -> Result<(), Status> {
        let end = offset.saturating_add(bytes);
        let mut at = offset;
        self.buffer.fill(0);
        while at < end {
            let length = usize::try_from(end - at).unwrap_or(usize::MAX).min(BUFFER_BYTES);
            self.file.write_all_at(&self.buffer[..length], at).map_err(|_| Status::WRITE_FAULT)?;
            at += length as u64;
        }
        Ok(())
    }

    /// Makes everything written permanent.
    pub(crate) fn flush(&mut self) -> Result<(), Status> {
        self.file.sync_data().map_err(|_| Status::WRITE_FAULT)
    }

    /// Flips the lowest bit of a byte.
    pub(crate) fn flip(&mut self, offset: u64) -> Result<(), Status> {
        let mut byte = [0];
        self.file.read_exact_at(&mut byte, offset).map_err(|_| Status::UNRECOVERED_READ_ERROR)?;
        byte[0] ^= 1;
        self.file.write_all_at(&byte, offset).map_err(|_| Status::WRITE_FAULT)
    }
}

const BUFFER_BYTES: usize = 256 * 1024;
