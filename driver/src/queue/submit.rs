//! From a request to an entry in the submission queue.

use doorbell_hugepages::DmaBuf;
use doorbell_spec::command::{FORCE_UNIT_ACCESS, NvmOpcode};
use doorbell_spec::{Blocks, Cid, Lba, Nanos, SubmissionEntry};

use super::check::{Remainder, check, command_blocks};
use super::ids::SlotIndex;
use super::pair::{QueueNumber, QueuePair};
use super::prp::DataPointer;
use super::quick::Quick;
use super::slot::{Owner, SlotUse};
use super::split::Stopped;
use crate::buffer::Buffer;
use crate::error::SubmitError;
use crate::namespace::Geometry;
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
    serial: u32,
    queue: QueueNumber,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Slot(SlotIndex),
    Split(u16),
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
    #[expect(clippy::result_large_err, reason = "the request goes back to its caller as it came")]
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
            Place::Split(index) => match self.splits.cancel(index, handle.serial) {
                Some(Stopped::Rest) => {
                    // It may be over by this alone: the next poll looks, even if it finds no completion.
                    self.empty_polls = u32::MAX;
                    Cancelled::Rest
                }
                Some(Stopped::Nothing) => Cancelled::UnderWay,
                None => Cancelled::Ended,
            },
            Place::Slot(slot) => match self.slots.get(slot.index()) {
                Some(it) if it.owner() == Owner::Request && it.serial == handle.serial => Cancelled::UnderWay,
                _ => Cancelled::Ended,
            },
        }
    }

    /// Writes a request's entry, or the first of several, and does not ring.
    ///
    /// Takes the request apart and puts it together again for the long way only: so a request that is
    /// made where it is submitted stays in registers.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "see above")]
    #[expect(clippy::result_large_err, reason = "the request goes back to its caller as it came")]
    pub(super) fn post(&mut self, request: Request) -> Result<RequestHandle, Rejected> {
        let Request { operation, namespace, lba, blocks, buffer, user_data, options } = request;
        if let Buffer::Whole(whole) = &buffer
            && let Some((slot, quick)) = self.quick_slot(operation, &namespace, lba, whole)
        {
            let command = Command { operation, namespace: &namespace, options, lba, blocks: quick.blocks };
            self.keep(slot, user_data, buffer);
            return Ok(self.post_command(slot, &command, quick.pointer));
        }
        self.post_any(Request { operation, namespace, lba, blocks, buffer, user_data, options })
    }

    /// A slot for a request that may go the short way, and how it goes.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the operation is a constant where it is called")]
    fn quick_slot(
        &mut self,
        operation: Operation,
        namespace: &Geometry,
        lba: Lba,
        buffer: &DmaBuf,
    ) -> Option<(SlotIndex, Quick)> {
        if !matches!(operation, Operation::Read | Operation::Write) || !self.shared.is_running() {
            return None;
        }
        let quick = Quick::of(namespace, lba, buffer, &self.limits)?;
        Some((self.acquire_slot()?, quick))
    }

    /// Keeps what belongs to a request until its end.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the buffer is moved once")]
    fn keep(&mut self, slot: SlotIndex, user_data: u64, buffer: Buffer) {
        let it = &mut self.slots[slot.index()];
        it.user_data = user_data;
        let old = std::mem::replace(&mut it.buffer, buffer);
        debug_assert!(matches!(old, Buffer::None), "the buffer of a free slot would be lost");
        // What a free slot holds is `Buffer::None`: there is nothing to drop, and no need to look.
        std::mem::forget(old);
    }

    /// Writes the entry of a request that is one command.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the operation is a constant where it is called")]
    fn post_command(
        &mut self,
        slot: SlotIndex,
        command: &Command<'_>,
        pointer: DataPointer,
    ) -> RequestHandle {
        self.serial = self.serial.wrapping_add(1);
        let it = &mut self.slots[slot.index()];
        let cid = it.slot_use.cid();
        it.slot_use = SlotUse::request(cid, pointer.chain);
        self.write_entry(slot, cid, command, pointer);
        RequestHandle { place: Place::Slot(slot), serial: self.serial, queue: self.number }
    }

    /// The same for every request, and the reasons of those that are refused.
    #[cold]
    #[inline(never)]
    #[expect(clippy::result_large_err, reason = "the request goes back to its caller as it came")]
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

    #[expect(clippy::result_large_err, reason = "the request goes back to its caller as it came")]
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
            namespace: &request.namespace,
            options: request.options,
            lba: request.lba,
            blocks: if request.operation == Operation::Deallocate { request.blocks.0.into() } else { blocks },
        };
        let handle = self.post_command(slot, &command, pointer);
        self.keep(slot, request.user_data, request.buffer);
        self.posted_bytes(blocks << request.namespace.block_shift);
        Ok(handle)
    }

    /// Takes a request in that needs several commands, and submits as many as there is room for.
    #[expect(clippy::result_large_err, reason = "the request goes back to its caller as it came")]
    fn post_split(&mut self, request: Request, blocks: u64) -> Result<RequestHandle, Rejected> {
        if self.ids.available() + self.batch.len() == 0 || self.splits.next_waiting().is_some() {
            return Err(Rejected { error: SubmitError::QueueFull, request });
        }
        let serial = self.serial;
        match self.splits.insert(request, blocks, serial) {
            Ok(index) => {
                self.continue_splits();
                Ok(RequestHandle { place: Place::Split(index), serial, queue: self.number })
            }
            Err(request) => Err(Rejected { error: SubmitError::QueueFull, request }),
        }
    }

    /// Submits further parts of split requests, in order, while slots are free.
    #[inline]
    pub(super) fn continue_splits(&mut self) {
        while self.splits.is_waiting() && self.post_part() {}
    }

    /// Submits one more part of the split request at the front. False if no slot is free.
    #[cold]
    fn post_part(&mut self) -> bool {
        let Some(slot) = self.acquire_slot() else { return false };
        let Some((index, rest, options)) = self.splits.next_waiting() else {
            self.ids.release(slot);
            return false;
        };
        let blocks = command_blocks(&rest, &self.limits, &self.lists);
        let pointer = describe(&mut self.lists, slot, &rest, blocks);
        let lba = Lba(rest.lba.0 + rest.done);
        let namespace = *rest.namespace;
        let command = Command { operation: rest.operation, namespace: &namespace, options, lba, blocks };
        let it = &mut self.slots[slot.index()];
        let cid = it.slot_use.cid();
        it.slot_use = SlotUse::part(cid, index, pointer.chain);
        self.write_entry(slot, cid, &command, pointer);
        self.splits.submitted(index, blocks);
        self.posted_bytes(blocks << namespace.block_shift);
        true
    }

    #[inline]
    fn acquire_slot(&mut self) -> Option<SlotIndex> {
        self.batch.take().or_else(|| self.ids.acquire())
    }

    /// Writes the entry of a command into the ring, and into its slot what its end will need.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "most fields of the entry are constants where it is called")]
    fn write_entry(&mut self, slot: SlotIndex, cid: Cid, command: &Command<'_>, pointer: DataPointer) {
        let mut entry = command.entry();
        entry.cid = cid.0;
        entry.prp1 = pointer.prp1;
        entry.prp2 = pointer.prp2;
        self.sq.post(&entry);
        let it = &mut self.slots[slot.index()];
        it.lba = command.lba;
        it.rung_at = Nanos(0);
        it.serial = self.serial;
        self.posted(slot);
    }
}

/// One command, before it has an identifier and memory.
struct Command<'a> {
    operation: Operation,
    namespace: &'a Geometry,
    options: RequestOptions,
    lba: Lba,
    /// Blocks, or for a deallocation the number of ranges.
    blocks: u64,
}

impl Command<'_> {
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the operation is a constant where it is called")]
    fn entry(&self) -> SubmissionEntry {
        let nsid = self.namespace.nsid;
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
