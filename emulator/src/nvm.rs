//! I/O commands of the NVM command set (NVM Command Set 1.0, 3.2).
//!
//! A command is executed as a whole at the moment it is due, its data transfer included: as late as a host
//! may have to wait for it, so that a host which takes memory back early is found out.

use doorbell_spec::command::{FORCE_UNIT_ACCESS, NvmOpcode};
use doorbell_spec::dsm::{ATTRIBUTE_DEALLOCATE, DsmRange};
use doorbell_spec::identify::{ONCS_COMPARE, ONCS_DATASET_MANAGEMENT, ONCS_WRITE_ZEROES};
use doorbell_spec::{Blocks, Cid, Lba, Nsid, QueueId, Status, SubmissionEntry};
use zerocopy::IntoBytes;

use crate::config::{ONCS_VERIFY, Toggle};
use crate::iova::access::Dma;
use crate::namespace::Namespace;
use crate::outcome::Outcome;
use crate::prp::{Pieces, PrpError};
use crate::queues::burst::Trivial;
use crate::report::{Violation, Violations};

/// What the controller can do with its namespaces, and the namespaces.
pub(crate) struct Storage {
    /// Sorted by identifier.
    pub(crate) namespaces: Vec<Namespace>,
    /// NN: the largest identifier that a namespace can have.
    pub(crate) nsid_max: Nsid,
    pub(crate) oncs: u16,
    /// The largest transfer in bytes.
    pub(crate) transfer_bytes_max: usize,
    /// The page size of CC.MPS.
    pub(crate) page_bytes: usize,
    /// Whether writes may wait for a flush.
    pub(crate) cache: Toggle,
    pub(crate) pieces: Pieces,
    /// Where the namespace that was named last is.
    last_hit: usize,
    /// Whether commands may be trivial at all.
    pub(crate) shortcuts: Toggle,
    trivial: Option<Trivial>,
}

/// What a command may use besides the namespaces.
pub(crate) struct Bench<'a, 'b> {
    pub(crate) dma: &'a Dma<'b>,
    pub(crate) violations: &'a mut Violations,
    pub(crate) queue: QueueId,
}

impl Storage {
    /// `namespaces` in any order.
    pub(crate) fn new(mut namespaces: Vec<Namespace>, oncs: u16, cache: Toggle) -> Self {
        namespaces.sort_by_key(|namespace| namespace.nsid);
        let nsid_max = namespaces.last().map_or(Nsid(1), |namespace| namespace.nsid);
        Self {
            namespaces,
            nsid_max,
            oncs,
            transfer_bytes_max: usize::MAX,
            page_bytes: 4096,
            cache,
            pieces: Pieces::default(),
            last_hit: 0,
            shortcuts: Toggle::Off,
            trivial: None,
        }
    }

    /// The index of an active namespace.
    #[inline]
    pub(crate) fn find(&mut self, nsid: Nsid) -> Option<usize> {
        if self.namespaces.get(self.last_hit).is_some_and(|namespace| namespace.nsid == nsid) {
            return Some(self.last_hit);
        }
        self.last_hit = self.namespaces.binary_search_by_key(&nsid, |namespace| namespace.nsid).ok()?;
        self.refresh_trivial();
        Some(self.last_hit)
    }

    /// The same, or the status of a command that names it (NVMe Base 2.0, 3.2.1).
    #[inline]
    fn index(&mut self, nsid: Nsid) -> Result<usize, Status> {
        match self.find(nsid) {
            Some(index) => Ok(index),
            None if nsid.0 == 0 || nsid > self.nsid_max => Err(Status::INVALID_NAMESPACE.with_do_not_retry()),
            None => Err(Status::INVALID_FIELD.with_do_not_retry()),
        }
    }

    /// The Reads and Writes of the namespace that was named last for which there is nothing to execute,
    /// because it keeps no data. The hot path of measurements.
    #[inline]
    pub(crate) fn trivial(&self) -> Option<&Trivial> {
        self.trivial.as_ref()
    }

    /// Finds out which commands are trivial, after the namespaces, or the one that was named last, or what
    /// may be trivial at all have changed.
    pub(crate) fn refresh_trivial(&mut self) {
        self.trivial = self.find_trivial();
    }

    fn find_trivial(&self) -> Option<Trivial> {
        let namespace = self.namespaces.get(self.last_hit).filter(|_| self.shortcuts.is_on())?;
        if !namespace.backend.is_null() || namespace.protection.is_on() {
            return None;
        }
        let blocks_max = self.transfer_bytes_max >> namespace.block_shift;
        Trivial::new(namespace.nsid.0, namespace.blocks, blocks_max)
    }

    /// Executes an I/O command.
    pub(crate) fn execute(&mut self, entry: &SubmissionEntry, bench: &mut Bench<'_, '_>) -> Outcome {
        if entry.flags != 0 {
            // Neither fused commands nor scatter gather lists are offered.
            return Outcome::refused(Status::INVALID_FIELD);
        }
        let result = match NvmOpcode::from_raw(entry.opcode) {
            NvmOpcode::Read => self.transfer(entry, bench, Direction::Read),
            NvmOpcode::Write => self.transfer(entry, bench, Direction::Write),
            NvmOpcode::Flush => self.flush(Nsid(entry.nsid)),
            NvmOpcode::Compare if self.oncs & ONCS_COMPARE != 0 => {
                self.transfer(entry, bench, Direction::Compare)
            }
            NvmOpcode::WriteZeroes if self.oncs & ONCS_WRITE_ZEROES != 0 => self.write_zeroes(entry),
            NvmOpcode::DatasetManagement if self.oncs & ONCS_DATASET_MANAGEMENT != 0 => {
                self.dataset_management(entry, bench)
            }
            NvmOpcode::Verify if self.oncs & ONCS_VERIFY != 0 => self.verify(entry),
            _ => Err(Status::INVALID_OPCODE.with_do_not_retry()),
        };
        result.map_or_else(Outcome::failed, |()| Outcome::DONE)
    }

    /// Read, Write and Compare (3.2.4, 3.2.6, 3.2.1).
    fn transfer(
        &mut self,
        entry: &SubmissionEntry,
        bench: &mut Bench<'_, '_>,
        direction: Direction,
    ) -> Result<(), Status> {
        let index = self.index(Nsid(entry.nsid))?;
        let namespace = &mut self.namespaces[index];
        let (lba, blocks) = (entry.lba(), entry.blocks());
        let bytes = namespace.length(blocks);
        if bytes > self.transfer_bytes_max {
            return Err(Status::INVALID_FIELD.with_do_not_retry());
        }
        check_range(namespace, lba, blocks)?;
        if direction == Direction::Write && namespace.protection.is_on() {
            return Err(Status::WRITE_PROTECTED.with_do_not_retry());
        }
        if namespace.backend.is_null() {
            return Ok(());
        }
        let offset = namespace.offset(lba);
        let walked = self.pieces.walk(entry, bytes, self.page_bytes, bench.dma);
        walked.map_err(|error| bench.refuse(entry, error))?;
        match direction {
            Direction::Read => namespace.backend.read(offset, &self.pieces, bench.dma),
            Direction::Compare => namespace.backend.compare(offset, &self.pieces, bench.dma),
            Direction::Write => {
                namespace.backend.write(offset, &self.pieces, bench.dma)?;
                self.settle(index, entry)
            }
        }
    }

    /// Makes a write permanent if it asks for that. The place of a volatile cache that loses data is here:
    /// between a command that was completed and the backend's flush.
    fn settle(&mut self, index: usize, entry: &SubmissionEntry) -> Result<(), Status> {
        // Without a cache the backend's writes are permanent by themselves.
        if self.cache.is_on() && entry.cdw12 & FORCE_UNIT_ACCESS != 0 {
            return self.namespaces[index].backend.flush();
        }
        Ok(())
    }

    /// Flush (NVMe Base 2.0, 7.1), of one namespace or all.
    fn flush(&mut self, nsid: Nsid) -> Result<(), Status> {
        if nsid == Nsid::ALL {
            return self.flush_all();
        }
        let index = self.index(nsid)?;
        self.namespaces[index].backend.flush()
    }

    /// Flushes everything, as an orderly shutdown does.
    pub(crate) fn flush_all(&mut self) -> Result<(), Status> {
        self.namespaces.iter_mut().try_for_each(|namespace| namespace.backend.flush())
    }

    /// Write Zeroes (3.2.8). Deallocated blocks read as zeros, so that the deallocate bit changes nothing.
    fn write_zeroes(&mut self, entry: &SubmissionEntry) -> Result<(), Status> {
        let index = self.index(Nsid(entry.nsid))?;
        let namespace = &mut self.namespaces[index];
        check_range(namespace, entry.lba(), entry.blocks())?;
        if namespace.protection.is_on() {
            return Err(Status::WRITE_PROTECTED.with_do_not_retry());
        }
        let bytes = namespace.length(entry.blocks()) as u64;
        namespace.backend.zero(namespace.offset(entry.lba()), bytes)?;
        self.settle(index, entry)
    }

    /// Verify (3.2.5): everything that could be read is fine, and nothing is transferred.
    fn verify(&mut self, entry: &SubmissionEntry) -> Result<(), Status> {
        let index = self.index(Nsid(entry.nsid))?;
        check_range(&self.namespaces[index], entry.lba(), entry.blocks())
    }

    /// Dataset Management (3.2.3): deallocates; all other attributes are hints, and ignored.
    fn dataset_management(
        &mut self,
        entry: &SubmissionEntry,
        bench: &mut Bench<'_, '_>,
    ) -> Result<(), Status> {
        let index = self.index(Nsid(entry.nsid))?;
        let count = (entry.cdw10 & 0xff) as usize + 1;
        let mut ranges = [DsmRange::default(); doorbell_spec::dsm::RANGES_MAX];
        let bytes = ranges[..count].as_mut_bytes();
        let walked = self.pieces.walk(entry, bytes.len(), self.page_bytes, bench.dma);
        walked.map_err(|error| bench.refuse(entry, error))?;
        gather(&self.pieces, bytes, bench.dma)?;
        let namespace = &mut self.namespaces[index];
        if namespace.protection.is_on() {
            return Err(Status::WRITE_PROTECTED.with_do_not_retry());
        }
        // All ranges are looked at before any is acted on.
        for range in &ranges[..count] {
            check_range(namespace, Lba(range.lba), Blocks(range.blocks))?;
        }
        if entry.cdw11 & ATTRIBUTE_DEALLOCATE != 0 {
            for range in &ranges[..count] {
                let bytes = u64::from(range.blocks) << namespace.block_shift;
                namespace.backend.zero(namespace.offset(Lba(range.lba)), bytes)?;
            }
        }
        Ok(())
    }

    /// Flips a bit of the first block that a command names, for the fault plan.
    pub(crate) fn flip_block(&mut self, entry: &SubmissionEntry) {
        if let Some(index) = self.find(Nsid(entry.nsid))
            && self.namespaces[index].contains(entry.lba(), entry.blocks())
        {
            let namespace = &mut self.namespaces[index];
            // A store that cannot be changed is as silent as one that was.
            let _ = namespace.backend.flip(namespace.offset(entry.lba()));
        }
    }

    /// Copies an admin command's answer to where its pointers say.
    pub(crate) fn answer(
        &mut self,
        entry: &SubmissionEntry,
        data: &[u8],
        bench: &mut Bench<'_, '_>,
    ) -> Result<(), Status> {
        if data.len() > self.transfer_bytes_max {
            return Err(Status::INVALID_FIELD.with_do_not_retry());
        }
        let walked = self.pieces.walk(entry, data.len(), self.page_bytes, bench.dma);
        walked.map_err(|error| bench.refuse(entry, error))?;
        let mut rest = data;
        for piece in self.pieces.as_slice() {
            let (part, tail) = rest.split_at(piece.bytes.min(rest.len()));
            bench.dma.write(piece.iova, part).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
            rest = tail;
        }
        Ok(())
    }
}

impl Bench<'_, '_> {
    /// Notes what is wrong with a command's pointers, and says its status.
    #[cold]
    fn refuse(&mut self, entry: &SubmissionEntry, error: PrpError) -> Status {
        if let PrpError::Alignment(prp) = error {
            self.violations.add(Violation::BadPrp { queue: self.queue, cid: Cid(entry.cid), prp });
        }
        error.status()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
    Compare,
}

#[inline]
fn check_range(namespace: &Namespace, lba: Lba, blocks: Blocks) -> Result<(), Status> {
    if namespace.contains(lba, blocks) {
        return Ok(());
    }
    Err(Status::LBA_OUT_OF_RANGE.with_do_not_retry())
}

/// Copies the host's pieces into `data`, which is as long as they are together.
fn gather(pieces: &Pieces, data: &mut [u8], dma: &Dma<'_>) -> Result<(), Status> {
    let mut rest = data;
    for piece in pieces.as_slice() {
        let (part, tail) = rest.split_at_mut(piece.bytes.min(rest.len()));
        dma.read(piece.iova, part).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
        rest = tail;
    }
    Ok(())
}
