#![expect(unsafe_code)]
//! From a software controller to one with an I/O queue pair, in as few steps as NVMe has (NVMe Base 2.0,
//! 3.5.1). It knows the controller: nothing is identified, and nothing is negotiated.
//!
//! Invariants, which the unsafe calls rest on:
//!
//! * *alone*: the controller was made for this and is given to nobody who drives it; others only move it;
//! * *kept*: the controller is told of the memory of the two queues alone, which lives in this value and goes
//!   after the device has lost its right to DMA.
//
// UNSAFETY: tells a device which memory to use, through the unsafe methods of `Transport`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use doorbell::emulator::Emulator;
use doorbell::hugepages::Attachment;
use doorbell::spec::register::{self, Aqa, Cap, Cc, Csts, DoorbellKind, doorbell_bytes, doorbell_index};
use doorbell::spec::{BusMastering, Doorbell, Doorbells, SubmissionEntry};
use doorbell::{Clock, DmaSpace, DmaSpaceConfig, QueueId, Transport};

use super::queue::BareQueue;

/// A controller that is enabled, with its two queue pairs.
#[derive(Debug)]
pub(super) struct BareController {
    device: Arc<Emulator>,
    admin: BareQueue,
    queue: BareQueue,
    _attachment: Attachment,
}

impl BareController {
    /// Brings a new controller up, with a queue for `depth` reads of `block_bytes`.
    pub(super) fn bring_up(device: Arc<Emulator>, depth: u32, block_bytes: u32) -> anyhow::Result<Self> {
        let space = DmaSpace::new(DmaSpaceConfig::default());
        let attachment = space.attach(device.mapper())?;
        let stride = Cap::from_bits(device.read64(register::CAP)?).doorbell_stride();
        // SAFETY:
        // - alone: see above; the doorbells live in the queues;
        // - kept: a queue rings for entries that it has written, and for completions that it has read.
        let doorbells = unsafe { device.doorbells(doorbell_bytes(IO_QUEUE, stride))? };
        let pair = |queue| pair(&doorbells, queue, stride);
        let admin = BareQueue::new(&space, ADMIN_ENTRIES, ADMIN_BLOCK_BYTES, pair(QueueId::ADMIN)?)?;
        // As many entries as Doorbell has for this depth: one of a ring's is never used.
        let queue = BareQueue::new(&space, depth + 1, block_bytes, pair(IO_QUEUE)?)?;
        let mut controller = Self { device, admin, queue, _attachment: attachment };
        controller.enable()?;
        controller.create_queue(depth + 1)?;
        Ok(controller)
    }

    /// Its I/O queue. Nothing else may take its place.
    #[inline]
    pub(super) fn queue(&mut self) -> &mut BareQueue {
        &mut self.queue
    }

    /// Whether everything has gone well so far.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let csts = Csts::from_bits(self.device.read32(register::CSTS)?);
        ensure!(
            csts.ready() && !csts.fatal(),
            "the bare loop's controller has failed: this is a bug in the loop"
        );
        ensure!(self.queue.all_succeeded(), "a read of the bare loop has failed: this is a bug in the loop");
        Ok(())
    }

    fn enable(&mut self) -> anyhow::Result<()> {
        let entries_z = u16::try_from(ADMIN_ENTRIES - 1)?;
        let aqa = Aqa::new().with_submission_entries_z(entries_z).with_completion_entries_z(entries_z);
        let cc = Cc::new().with_enable(true).with_submission_entry(6).with_completion_entry(4);
        let (sq, cq) = (self.admin.submissions(), self.admin.completions());
        // SAFETY: alone, and the device is new: nobody has enabled it, or told it anything.
        unsafe { self.device.set_bus_mastering(BusMastering::On)? };
        // SAFETY: alone and kept: both rings have that many entries.
        unsafe { self.device.write32(register::AQA, aqa.into_bits())? };
        // SAFETY: as above.
        unsafe { self.device.write64(register::ASQ, sq.0)? };
        // SAFETY: as above.
        unsafe { self.device.write64(register::ACQ, cq.0)? };
        // SAFETY: alone and kept: it uses the admin queue that it was just told of.
        unsafe { self.device.write32(register::CC, cc.into_bits())? };
        self.wait("becoming ready", |it| Ok(Csts::from_bits(it.device.read32(register::CSTS)?).ready()))
    }

    fn create_queue(&mut self, entries: u32) -> anyhow::Result<()> {
        let (sq, cq) = (self.queue.submissions(), self.queue.completions());
        for entry in [
            SubmissionEntry::create_completion_queue(IO_QUEUE, entries, cq, None),
            SubmissionEntry::create_submission_queue(IO_QUEUE, entries, sq),
        ] {
            self.admin.command(entry);
            self.wait("creating a queue", |it| Ok(it.admin.reap(1) == 1))?;
        }
        ensure!(self.admin.all_succeeded(), "the controller refused a queue of {entries} entries");
        Ok(())
    }

    fn wait(
        &mut self,
        what: &str,
        mut is_done: impl FnMut(&mut Self) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let clock = Clock::monotonic();
        let deadline = clock.deadline(PATIENCE);
        while !is_done(self)? {
            ensure!(!deadline.passed(&clock), "{what} took more than {PATIENCE:?}; is the machine too busy?");
            self.device.relax(&clock);
        }
        Ok(())
    }
}

impl Drop for BareController {
    fn drop(&mut self) {
        // Before the queues' memory goes: without the right to DMA the device reaches none of it.
        // SAFETY: it may always be turned off.
        let off = unsafe { self.device.set_bus_mastering(BusMastering::Off) };
        // SAFETY: alone; a device that is disabled accesses no memory.
        let disabled = unsafe { self.device.write32(register::CC, 0) };
        debug_assert!(off.is_ok() && disabled.is_ok(), "the software controller refuses neither");
    }
}

/// The two doorbells of a queue.
fn pair(doorbells: &Doorbells, queue: QueueId, stride: u8) -> anyhow::Result<[Doorbell; 2]> {
    let at = |kind| doorbells.at(doorbell_index(queue, kind, stride));
    match (at(DoorbellKind::SubmissionTail), at(DoorbellKind::CompletionHead)) {
        (Some(tail), Some(head)) => Ok([tail, head]),
        _ => anyhow::bail!("the doorbells of queue {queue} lie beyond those that were mapped"),
    }
}

const IO_QUEUE: QueueId = QueueId(1);
const ADMIN_ENTRIES: u32 = 8;
const ADMIN_BLOCK_BYTES: u32 = 512;
const PATIENCE: Duration = Duration::from_secs(10);
