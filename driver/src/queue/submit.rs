//! From a request to an entry in the submission queue.

use std::hint::cold_path;

use doorbell_hugepages::DmaBuf;
use doorbell_spec::command::{FORCE_UNIT_ACCESS, NvmOpcode};
use doorbell_spec::{Blocks, Cid, Lba, Nsid, SubmissionEntry};

use super::batch::BatchNumber;
use super::check::{Remainder, check, command_blocks};
use super::ids::SlotIndex;
use super::pair::{QueueNumber, QueuePair};
use super::prp::DataPointer;
use super::quick::Quick;
use super::slot::{NEVER, Owner, SlotUse};
use super::slots::Slot;
use super::split::Stopped;
use crate::buffer::Buffer;
use crate::error::SubmitError;
use crate::request::{Durability, Operation, Request, RequestOptions};

/// A request that was not accepted, and why.
#[derive(Debug)]
pub struct Rejected {
    /// Why.
    pub error: SubmitError,
    /// The request as it was given, with its buffer.
    pub request: Request,
}

/// Names a request that was accepted, to cancel it. Not the command identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHandle {
    place: Place,
    queue: QueueNumber,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// One command, by the [`SlotUse::identity`] of its slot.
    Slot { index: SlotIndex, identity: u64 },
    /// Several commands.
    Split { index: u16, serial: u32 },
}

/// What a cancellation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cancelled {
    /// The request had ended already: there is nothing to cancel.
    Ended,
    /// The rest of a large request will not be submitted; it completes when its parts under way have.
    Rest,
    /// The device has it: it completes as usual. The device is not asked to abort it.
    UnderWay,
}

impl QueuePair {
    /// Submits a request: writes its entry and rings the doorbell. To ring once for several, see
    /// [`plug`](QueuePair::plug).
    ///
    /// Does not wait. The buffer is with the device until the completion gives it back.
    ///
    /// # Errors
    /// The reason, and the request with its buffer: nothing was submitted.
    #[inline]
    pub fn submit(&mut self, request: Request) -> Result<RequestHandle, Rejected> {
        let outcome = self.post(request);
        self.flush_plug();
        outcome
    }

    /// Cancels a request as far as that is possible. It still completes, exactly once.
    ///
    /// A handle of another queue pair names no request of this one: it has [`Cancelled::Ended`].
    pub fn cancel(&mut self, handle: RequestHandle) -> Cancelled {
        if handle.queue != self.number {
            return Cancelled::Ended;
        }
        match handle.place {
            Place::Split { index, serial } => {
                let stopped = self.splits.cancel(index, serial);
                self.expect_what_is_usual();
                match stopped {
                    Some(Stopped::Rest) => {
                        // It may be over by this alone: the next poll looks, even if it finds no completion.
                        self.until_look = 1;
                        Cancelled::Rest
                    }
                    Some(Stopped::Nothing) => Cancelled::UnderWay,
                    None => Cancelled::Ended,
                }
            }
            Place::Slot { index, identity } => {
                let used = self.slots.get(index).map(Slot::used);
                match used.filter(|used| used.identity() == identity).map(SlotUse::owner) {
                    Some(Owner::Plain | Owner::Request) => Cancelled::UnderWay,
                    _ => Cancelled::Ended,
                }
            }
        }
    }

    /// Writes a request's entry, or the first of several, and does not ring.
    ///
    /// Takes the request apart and puts it together again for the long way only: so a request that is
    /// made where it is submitted stays in registers.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "see above")]
    pub(super) fn post(&mut self, request: Request) -> Result<RequestHandle, Rejected> {
        let Request { operation, namespace, lba, blocks, buffer, user_data, options } = request;
        let buffer = match buffer {
            Buffer::Whole(whole) if matches!(operation, Operation::Read | Operation::Write) => {
                // The slot first: what is known about the request then does not live across this call.
                let index = self.next_slot();
                if self.slots.has(index) {
                    if let Some(quick) = Quick::of(&namespace, lba, &whole, &self.limits) {
                        let command =
                            Command { operation, nsid: namespace.nsid(), options, lba, blocks: quick.blocks };
                        return Ok(self.post_plain(index, &command, quick, Keep { user_data, whole }));
                    }
                    self.give_back(index);
                }
                Buffer::Whole(whole)
            }
            other => other,
        };
        cold_path();
        self.post_any(Request { operation, namespace, lba, blocks, buffer, user_data, options })
    }

    /// Keeps what belongs to a plain request until its end, and writes its entry.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the operation is a constant where it is called")]
    fn post_plain(&mut self, index: SlotIndex, command: &Command, quick: Quick, keep: Keep) -> RequestHandle {
        let slot = self.slots.at(index);
        let cid = slot.begin_plain(self.batches.current(), keep.whole);
        slot.user_data = keep.user_data;
        slot.lba = command.lba;
        let identity = slot.used().identity();
        self.write_entry(cid, command, [quick.prp1, quick.prp2]);
        RequestHandle { place: Place::Slot { index, identity }, queue: self.number }
    }

    /// The same for every request, and the reasons of those that are refused.
    #[cold]
    #[inline(never)]
    fn post_any(&mut self, request: Request) -> Result<RequestHandle, Rejected> {
        match self.check_and_post(request) {
            Err(rejected) => {
                // The caller may wait for room now: what is posted must be under way.
                self.ring();
                Err(rejected)
            }
            accepted => accepted,
        }
    }

    fn check_and_post(&mut self, request: Request) -> Result<RequestHandle, Rejected> {
        if !self.shared.is_running() {
            return Err(Rejected { error: SubmitError::ControllerFailed, request });
        }
        let blocks = match check(&request, &self.limits) {
            Ok(blocks) => blocks,
            Err(error) => return Err(Rejected { error, request }),
        };
        let all = Remainder::all(&request, blocks);
        if command_blocks(&all, &self.limits, &self.lists) < blocks {
            self.serial = self.serial.wrapping_add(1);
            return self.post_split(request, blocks);
        }
        let Some(slot) = self.acquire_slot() else {
            return Err(Rejected { error: SubmitError::QueueFull, request });
        };
        let pointer = describe(&mut self.lists, slot, &all, blocks);
        let command = Command {
            operation: request.operation,
            nsid: request.namespace.nsid(),
            options: request.options,
            lba: request.lba,
            blocks: if request.operation == Operation::Deallocate { request.blocks.0.into() } else { blocks },
        };
        let it = self.slots.at(slot);
        let cid = it.begin_request(self.batches.current());
        it.user_data = request.user_data;
        it.lba = request.lba;
        let identity = it.used().identity();
        let detail = self.slots.detail(slot);
        (detail.buffer, detail.chain) = (request.buffer, pointer.chain);
        self.write_entry(cid, &command, [pointer.prp1, pointer.prp2]);
        self.posted_bytes(blocks << request.namespace.block_shift());
        Ok(RequestHandle { place: Place::Slot { index: slot, identity }, queue: self.number })
    }

    /// Takes a request in that needs several commands, and submits as many as there is room for.
    fn post_split(&mut self, request: Request, blocks: u64) -> Result<RequestHandle, Rejected> {
        // A slot is acquired and given back: so that the queue is in line for one if there is none.
        let slot = if self.splits.is_waiting() { None } else { self.acquire_slot() };
        let Some(slot) = slot else {
            return Err(Rejected { error: SubmitError::QueueFull, request });
        };
        self.source.release(slot);
        let serial = self.serial;
        match self.splits.insert(request, blocks, serial) {
            Ok(index) => {
                self.continue_splits();
                Ok(RequestHandle { place: Place::Split { index, serial }, queue: self.number })
            }
            Err(request) => Err(Rejected { error: SubmitError::QueueFull, request }),
        }
    }

    /// Submits further parts of split requests, in order, while slots are free.
    pub(super) fn continue_splits(&mut self) {
        while self.splits.is_waiting() && self.post_part() {}
        self.expect_what_is_usual();
    }

    fn expect_what_is_usual(&mut self) {
        let batch = BatchNumber::within(self.cq.next().expected());
        self.expect_of(batch);
    }

    /// Expects completions of a batch, and lets none of them go the short way while parts wait for the slot
    /// that it frees.
    pub(super) fn expect_of(&mut self, batch: BatchNumber) {
        let never = if self.splits.is_waiting() { NEVER } else { 0 };
        self.cq.next().expect(batch.bits() | never);
    }

    /// Submits one more part of the split request at the front. False if no slot is free.
    #[cold]
    fn post_part(&mut self) -> bool {
        let Some(slot) = self.acquire_slot() else { return false };
        let Some((index, rest, options)) = self.splits.next_waiting() else {
            self.source.release(slot);
            return false;
        };
        let blocks = command_blocks(&rest, &self.limits, &self.lists);
        let pointer = describe(&mut self.lists, slot, &rest, blocks);
        let lba = Lba(rest.lba.0 + rest.done);
        let (operation, namespace) = (rest.operation, *rest.namespace);
        let command = Command { operation, nsid: namespace.nsid(), options, lba, blocks };
        let it = self.slots.at(slot);
        let cid = it.begin_part(self.batches.current());
        it.lba = lba;
        let detail = self.slots.detail(slot);
        (detail.split, detail.chain) = (index, pointer.chain);
        self.write_entry(cid, &command, [pointer.prp1, pointer.prp2]);
        self.splits.submitted(index, blocks);
        self.posted_bytes(blocks << namespace.block_shift());
        true
    }

    fn acquire_slot(&mut self) -> Option<SlotIndex> {
        let slot = self.next_slot();
        self.slots.has(slot).then_some(slot)
    }

    /// Acquires a slot. If there is none, it is one that does not exist: that is looked at anyway.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the usual slot is the one that was just vacated")]
    fn next_slot(&mut self) -> SlotIndex {
        match self.vacated.take_own() {
            Some(slot) => slot,
            None => self.acquire_other(),
        }
    }

    /// Gives back a slot that was not used after all.
    #[cold]
    #[inline(never)]
    fn give_back(&mut self, index: SlotIndex) {
        self.source.release(index);
    }

    #[inline(never)]
    fn acquire_other(&mut self) -> SlotIndex {
        let kept = if self.source.may_keep() { self.vacated.take() } else { None };
        kept.or_else(|| self.source.acquire()).unwrap_or(SlotIndex::NOWHERE)
    }

    /// Writes the entry of a command into the ring.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "most fields of the entry are constants where it is called")]
    fn write_entry(&mut self, cid: Cid, command: &Command, prps: [u64; 2]) {
        let mut entry = command.entry();
        entry.cid = cid.0;
        [entry.prp1, entry.prp2] = prps;
        self.sq.post(&entry);
        self.posted();
    }
}

/// What a plain request leaves in its slot.
struct Keep {
    user_data: u64,
    whole: DmaBuf,
}

/// One command, before it has an identifier and memory.
struct Command {
    operation: Operation,
    nsid: Nsid,
    options: RequestOptions,
    lba: Lba,
    /// Blocks, or for a deallocation the number of ranges.
    blocks: u64,
}

impl Command {
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the operation is a constant where it is called")]
    fn entry(&self) -> SubmissionEntry {
        let nsid = self.nsid;
        let opcode = match self.operation {
            Operation::Read => NvmOpcode::Read,
            Operation::Write => NvmOpcode::Write,
            Operation::Compare => NvmOpcode::Compare,
            Operation::WriteZeroes => NvmOpcode::WriteZeroes,
            Operation::Flush => return SubmissionEntry::flush(nsid),
            Operation::Deallocate => {
                return SubmissionEntry::deallocate(nsid, u16::try_from(self.blocks).unwrap_or(u16::MAX));
            }
        };
        let control = match self.options.durability {
            Durability::ForceUnitAccess => FORCE_UNIT_ACCESS,
            Durability::Cached => 0,
        };
        #[expect(clippy::cast_possible_truncation, reason = "command_blocks answers at most 65,536")]
        SubmissionEntry::block_range(opcode, nsid, self.lba, Blocks(self.blocks as u32), control)
    }
}

/// Describes the first `blocks` blocks of what is left of a request.
#[inline]
fn describe(
    lists: &mut super::prp::PrpLists,
    slot: SlotIndex,
    rest: &Remainder<'_>,
    blocks: u64,
) -> DataPointer {
    match rest.buffer {
        Buffer::None => DataPointer::NONE,
        _ => lists.describe(slot, rest.data(blocks)),
    }
}
