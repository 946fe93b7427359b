#![expect(unsafe_code)]
//! Accesses of the device to memory: copies in and out through the table of mapped ranges.
//!
//! Nothing is touched before the whole access is known to be inside mapped ranges. What is not is recorded
//! and answered with an error; it is never performed in part. The last range that was hit is tried first.
//! No Rust reference to host memory is ever formed: the host may write it at any time.
//
// UNSAFETY: copies bytes to and from host memory, at addresses that the table has proven to be mapped.

use std::cell::Cell;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};

use doorbell_spec::Iova;

use super::Table;

/// The device's view of memory for the length of a step.
pub(crate) struct Dma<'a> {
    table: &'a Table,
    generation: u64,
    last_hit: Cell<usize>,
    log: &'a AccessLog,
    is_master: bool,
}

/// An access that the device wanted and did not get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessFault {
    /// Where it began.
    pub iova: Iova,
    /// How long it was.
    pub bytes: usize,
    /// What it was for.
    pub access: Access,
}

/// What the device wanted to do with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Access {
    /// Read data, or a list of pointers.
    Read,
    /// Write data.
    Write,
    /// Fetch from or post to a queue, or look at its shadow doorbell.
    Queue,
}

/// The accesses that were refused, the first of them in full.
#[derive(Debug, Default)]
pub(crate) struct AccessLog(Mutex<AccessFaults>);

/// See [`AccessLog`].
#[derive(Clone, Debug, Default)]
pub(crate) struct AccessFaults {
    pub(crate) first: Vec<AccessFault>,
    pub(crate) total: u64,
}

/// The access was refused and is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused;

impl AccessLog {
    pub(crate) fn snapshot(&self) -> AccessFaults {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    #[cold]
    fn record(&self, fault: AccessFault) {
        let mut faults = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        faults.total += 1;
        if faults.first.len() < FAULTS_KEPT {
            faults.first.push(fault);
        }
    }
}

impl<'a> Dma<'a> {
    /// A view through `table`. Without bus mastering every access is refused.
    pub(crate) fn new(table: &'a Table, log: &'a AccessLog, mastering: doorbell_spec::BusMastering) -> Self {
        let is_master = mastering == doorbell_spec::BusMastering::On;
        let generation = if is_master { table.generation } else { GENERATION_NONE };
        Self { table, generation, last_hit: Cell::new(0), log, is_master }
    }

    /// Changes whenever something was mapped or unmapped, and is never right without bus mastering: what was
    /// translated for one generation holds for as long as it is the same.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether the device may access memory at all.
    pub(crate) fn is_master(&self) -> bool {
        self.is_master
    }

    /// Reads memory into `data`.
    pub(crate) fn read(&self, iova: Iova, data: &mut [u8]) -> Result<(), Refused> {
        self.check(iova, data.len(), Access::Read)?;
        let mut done = 0;
        while done < data.len() {
            let part = &mut data[done..];
            let Some((host, have)) = self.translate(iova.offset(done as u64)) else { break };
            let bytes = have.min(part.len());
            // SAFETY:
            // - `host` and the `bytes` behind it lie in one mapping, whose memory `Mapper::map`'s caller
            //   keeps readable until `unmap` has returned, which waits for the table's guard;
            // - `part` is memory of ours, which no host region can overlap.
            unsafe { ptr::copy_nonoverlapping(host.as_ptr(), part.as_mut_ptr(), bytes) };
            done += bytes;
        }
        Ok(())
    }

    /// Writes `data` to memory.
    pub(crate) fn write(&self, iova: Iova, data: &[u8]) -> Result<(), Refused> {
        self.check(iova, data.len(), Access::Write)?;
        let mut done = 0;
        while done < data.len() {
            let part = &data[done..];
            let Some((host, have)) = self.translate(iova.offset(done as u64)) else { break };
            let bytes = have.min(part.len());
            // SAFETY:
            // - `host` and the `bytes` behind it lie in one mapping, whose memory `Mapper::map`'s caller
            //   keeps writable until `unmap` has returned, which waits for the table's guard;
            // - `part` is memory of ours, which no host region can overlap.
            unsafe { ptr::copy_nonoverlapping(part.as_ptr(), host.as_ptr(), bytes) };
            done += bytes;
        }
        Ok(())
    }

    /// Makes sure that the whole of an access would succeed; records it otherwise.
    #[inline]
    pub(crate) fn check(&self, iova: Iova, bytes: usize, access: Access) -> Result<(), Refused> {
        let mut at = iova.0;
        let mut left = bytes;
        while left > 0 {
            let Some((_, have)) = self.translate(Iova(at)).filter(|_| self.is_master) else {
                self.log.record(AccessFault { iova, bytes, access });
                return Err(Refused);
            };
            if have >= left {
                return Ok(());
            }
            left -= have;
            // The end of the address space cannot be mapped past: what wraps there hits address 0, which is
            // never mapped.
            at = at.wrapping_add(have as u64);
        }
        Ok(())
    }

    /// Whether all of a range is mapped. Records nothing.
    pub(crate) fn covers(&self, iova: Iova, bytes: usize) -> bool {
        let (mut at, mut left) = (iova.0, bytes);
        while left > 0 {
            let Some((_, have)) = self.translate(Iova(at)) else { return false };
            left = left.saturating_sub(have);
            at = at.wrapping_add(have as u64);
        }
        true
    }

    /// The host address of `bytes` bytes that lie in one mapping.
    pub(crate) fn contiguous(&self, iova: Iova, bytes: usize) -> Option<NonNull<u8>> {
        self.translate(iova).filter(|(_, have)| *have >= bytes && self.is_master).map(|(host, _)| host)
    }

    /// Where an address leads, and how many bytes of the same mapping begin there.
    #[inline]
    fn translate(&self, iova: Iova) -> Option<(NonNull<u8>, usize)> {
        let ranges = &self.table.ranges;
        let hit =
            ranges.get(self.last_hit.get()).filter(|range| range.first <= iova.0 && iova.0 <= range.last);
        let range = match hit {
            Some(range) => range,
            None => {
                let at = ranges.partition_point(|range| range.last < iova.0);
                let range = ranges.get(at).filter(|range| range.first <= iova.0)?;
                self.last_hit.set(at);
                range
            }
        };
        let skip = usize::try_from(iova.0 - range.first).ok()?;
        let have = usize::try_from(range.last - iova.0).ok()?.saturating_add(1);
        // SAFETY: `skip` is inside of the mapping, which is one region of the process.
        let host = unsafe { range.host.add(skip) };
        Some((host, have))
    }
}

impl fmt::Display for AccessFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {} bytes at {}, which is not mapped", self.access, self.bytes, self.iova)
    }
}

/// So many refused accesses are kept in full; the rest is counted.
const FAULTS_KEPT: usize = 64;
/// No table gets there: it would take so many calls of map and unmap.
const GENERATION_NONE: u64 = u64::MAX - 1;
