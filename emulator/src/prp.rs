//! Data pointers: the pieces of memory that PRP1, PRP2 and PRP lists name (NVMe Base 2.0, 4.1.1).
//!
//! Every rule is checked: PRP1 is dword aligned; a second data pointer and every list entry, the pointer to
//! the next list included, has no offset; the first list pointer is qword aligned. Pages are those of CC.MPS.
//! The walk ends by itself: each list page but the first has at least 512 entries.

use doorbell_spec::{Iova, Status, SubmissionEntry};

use crate::iova::access::{Access, Dma};

/// A run of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) iova: Iova,
    pub(crate) bytes: usize,
}

/// Why the pieces of a command could not be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PrpError {
    /// The pointer is not aligned as it has to be.
    Alignment(u64),
    /// A list is not in mapped memory.
    Unmapped,
}

impl PrpError {
    pub(crate) fn status(self) -> Status {
        match self {
            Self::Alignment(_) => Status::INVALID_PRP_OFFSET.with_do_not_retry(),
            Self::Unmapped => Status::DATA_TRANSFER_ERROR,
        }
    }
}

/// The pieces of one command. Kept between commands, so that walking allocates nothing in the long run.
#[derive(Debug, Default)]
pub(crate) struct Pieces(Vec<Piece>);

impl Pieces {
    /// The pieces found last.
    pub(crate) fn as_slice(&self) -> &[Piece] {
        &self.0
    }

    /// Finds the pieces of the `bytes` bytes that `entry` points to. Does not look at the data.
    pub(crate) fn walk(
        &mut self,
        entry: &SubmissionEntry,
        bytes: usize,
        page_bytes: usize,
        dma: &Dma<'_>,
    ) -> Result<(), PrpError> {
        self.0.clear();
        if bytes == 0 {
            return Ok(());
        }
        if !entry.prp1.is_multiple_of(4) {
            return Err(PrpError::Alignment(entry.prp1));
        }
        let first = bytes.min(page_bytes - offset_in_page(entry.prp1, page_bytes));
        self.push(entry.prp1, first);
        let left = bytes - first;
        if left == 0 {
            return Ok(());
        }
        if left <= page_bytes {
            return self.push_page(entry.prp2, left, page_bytes);
        }
        self.walk_list(entry.prp2, left, page_bytes, dma)
    }

    fn walk_list(
        &mut self,
        list: u64,
        bytes: usize,
        page_bytes: usize,
        dma: &Dma<'_>,
    ) -> Result<(), PrpError> {
        if !list.is_multiple_of(8) {
            return Err(PrpError::Alignment(list));
        }
        let (mut at, mut left) = (list, bytes);
        loop {
            // How many entries are still needed, and how many this list page can hold.
            let needed = left.div_ceil(page_bytes);
            let slots = (page_bytes - offset_in_page(at, page_bytes)) / ENTRY_BYTES;
            let data_entries = if needed <= slots { needed } else { slots - 1 };
            left -= self.walk_list_page(at, data_entries, left, page_bytes, dma)?;
            if left == 0 {
                return Ok(());
            }
            let mut next = [0; ENTRY_BYTES];
            let link = Iova(at).offset((data_entries * ENTRY_BYTES) as u64);
            dma.read(link, &mut next).map_err(|_| PrpError::Unmapped)?;
            at = u64::from_le_bytes(next);
            if offset_in_page(at, page_bytes) != 0 {
                return Err(PrpError::Alignment(at));
            }
        }
    }

    /// Takes `entries` data pointers from one list page; answers how many bytes they are good for.
    fn walk_list_page(
        &mut self,
        list: u64,
        entries: usize,
        bytes: usize,
        page_bytes: usize,
        dma: &Dma<'_>,
    ) -> Result<usize, PrpError> {
        let mut buffer = [0; CHUNK_ENTRIES * ENTRY_BYTES];
        let mut taken = 0;
        for start in (0..entries).step_by(CHUNK_ENTRIES) {
            let count = CHUNK_ENTRIES.min(entries - start);
            let chunk = &mut buffer[..count * ENTRY_BYTES];
            dma.read(Iova(list).offset((start * ENTRY_BYTES) as u64), chunk)
                .map_err(|_| PrpError::Unmapped)?;
            for raw in chunk.as_chunks::<ENTRY_BYTES>().0 {
                let length = page_bytes.min(bytes - taken);
                self.push_page(u64::from_le_bytes(*raw), length, page_bytes)?;
                taken += length;
            }
        }
        Ok(taken)
    }

    fn push_page(&mut self, prp: u64, bytes: usize, page_bytes: usize) -> Result<(), PrpError> {
        if offset_in_page(prp, page_bytes) != 0 {
            return Err(PrpError::Alignment(prp));
        }
        self.push(prp, bytes);
        Ok(())
    }

    /// Adds a piece, joined with the last one where they touch.
    fn push(&mut self, prp: u64, bytes: usize) {
        if let Some(last) = self.0.last_mut()
            && last.iova.0.checked_add(last.bytes as u64) == Some(prp)
        {
            last.bytes += bytes;
            return;
        }
        self.0.push(Piece { iova: Iova(prp), bytes });
    }

    /// Makes sure that all pieces can be accessed, before any of them is.
    pub(crate) fn check(&self, dma: &Dma<'_>, access: Access) -> Result<(), Status> {
        for piece in &self.0 {
            dma.check(piece.iova, piece.bytes, access).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
        }
        Ok(())
    }
}

/// `page_bytes` is a power of two of at most 128 MiB, so that the offset fits.
fn offset_in_page(address: u64, page_bytes: usize) -> usize {
    #[expect(clippy::cast_possible_truncation)]
    let offset = (address & (page_bytes as u64 - 1)) as usize;
    offset
}

const ENTRY_BYTES: usize = 8;
const CHUNK_ENTRIES: usize = 512;
