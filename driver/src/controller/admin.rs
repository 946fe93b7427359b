//! The admin queue (NVMe Base 2.0, 3.3.1 and 5): one command at a time, and event requests kept armed.
//!
//! Invariants: the data page belongs to at most one live command; after a command has timed out the queue
//! takes no further one, since nobody knows whether the device still writes to the page.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use doorbell_hugepages::DmaBuf;
use doorbell_spec::command::SubmissionEntry;
use doorbell_spec::identify::IDENTIFY_BYTES;
use doorbell_spec::log_page::AsyncEvent;
use doorbell_spec::{Cid, Clock, CompletionEntry, Iova, ShadowDoorbell};

use super::registers::Registers;
use crate::error::ControllerError;
use crate::queue::{
    CidLayout, CommandIds, CompletionRing, Counters, Generations, RegisterUse, SlotIndex, SubmissionRing,
};

/// Entries of both admin rings: 32 is enough for the events and one command, and every controller has it.
pub(crate) const ADMIN_ENTRIES: u16 = 32;

/// Event requests kept with the controller at most.
const EVENTS_ARMED_MAX: u32 = 4;

/// Events that nobody has fetched yet and that are kept.
const EVENTS_KEPT_MAX: usize = 64;

/// The admin queue pair.
#[derive(Debug)]
pub(crate) struct Admin {
    sq: SubmissionRing,
    cq: CompletionRing,
    ids: CommandIds,
    layout: CidLayout,
    slots: Box<[AdminSlot]>,
    /// What a ring counts. Nobody has asked for them yet.
    counters: Counters,
    /// One page for the data of the command that is under way.
    data: Arc<DmaBuf>,
    events: VecDeque<AsyncEvent>,
    events_armed: u32,
    line: Line,
}

/// What waits, and how.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) registers: Registers,
    pub(crate) clock: Clock,
    pub(crate) timeout: Duration,
    pub(crate) generations: Generations,
}

#[derive(Clone, Copy, Debug)]
struct AdminSlot {
    cid: Cid,
    use_of: Use,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Free,
    /// Somebody waits for it.
    Command,
    /// Answered, not yet fetched by the one who waits.
    Answered(CompletionEntry),
    /// With the controller until something happens.
    EventRequest,
    /// Never answered in time.
    Lost,
}

/// Whether a command brings data back in the data page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Data {
    None,
    Page,
}

impl Admin {
    pub(crate) fn new(sq: SubmissionRing, cq: CompletionRing, data: DmaBuf, line: Line) -> Self {
        let depth = ADMIN_ENTRIES - 1;
        let layout = CidLayout::new(depth, line.generations);
        Self {
            sq,
            cq,
            ids: CommandIds::new(depth),
            layout,
            slots: (0..depth)
                .map(|slot| AdminSlot { cid: layout.first(SlotIndex(u32::from(slot))), use_of: Use::Free })
                .collect(),
            counters: Counters::default(),
            data: Arc::new(data),
            events: VecDeque::with_capacity(EVENTS_KEPT_MAX),
            events_armed: 0,
            line,
        }
    }

    /// Runs a command without data and waits for its end.
    pub(crate) fn execute(
        &mut self,
        command: &'static str,
        entry: SubmissionEntry,
    ) -> Result<CompletionEntry, ControllerError> {
        self.run(command, entry, Data::None)
    }

    /// Runs a command that returns up to 4096 bytes, and waits for its end.
    pub(crate) fn fetch(
        &mut self,
        command: &'static str,
        entry: SubmissionEntry,
    ) -> Result<[u8; IDENTIFY_BYTES], ControllerError> {
        self.run(command, entry, Data::Page)?;
        let mut bytes = [0; IDENTIFY_BYTES];
        bytes.copy_from_slice(&self.data.as_slice()[..IDENTIFY_BYTES]);
        Ok(bytes)
    }

    /// Gives the queue's doorbells shadows, which hold from now on what the registers were written; or takes
    /// them away. EventIdx is not asked: see
    /// [`AdminShadow`](super::AdminShadow).
    pub(crate) fn set_shadows(&mut self, tail: Option<ShadowDoorbell>, head: Option<ShadowDoorbell>) {
        for ((doorbell, position), shadow) in [(self.sq.doorbell(), tail), (self.cq.doorbell(), head)] {
            let Some(shadow) = shadow else {
                doorbell.forget_shadow();
                continue;
            };
            // What the controller asks for there does not matter: the register is written every time.
            let _ = shadow.move_to(position);
            doorbell.set_shadow(shadow, RegisterUse::Always);
        }
    }

    /// Keeps event requests with the controller: as many as it allows, and no more than a few.
    pub(crate) fn arm_events(&mut self, limit: u32) {
        while self.events_armed < limit.min(EVENTS_ARMED_MAX) {
            let Some(slot) = self.ids.acquire() else { return };
            self.post(slot, Use::EventRequest, SubmissionEntry::async_event_request());
            self.events_armed += 1;
        }
        self.sq.ring(&self.counters);
    }

    /// Takes what the controller has written, and says whether there is an event to fetch.
    pub(crate) fn has_event(&mut self) -> bool {
        self.reap();
        !self.events.is_empty()
    }

    /// Takes what the controller has written, and answers the oldest event not yet fetched.
    pub(crate) fn next_event(&mut self) -> Option<AsyncEvent> {
        self.reap();
        self.events.pop_front()
    }

    fn run(
        &mut self,
        command: &'static str,
        mut entry: SubmissionEntry,
        data: Data,
    ) -> Result<CompletionEntry, ControllerError> {
        // A command that is not at its end by now was left behind by a timeout, or by a panic of the
        // transport: the device may still write its data.
        if self.slots.iter().any(|slot| !matches!(slot.use_of, Use::Free | Use::EventRequest)) {
            return Err(ControllerError::ControllerFailed);
        }
        let Some(slot) = self.ids.acquire() else { return Err(ControllerError::ControllerFailed) };
        if data == Data::Page {
            if let Some(page) = Arc::get_mut(&mut self.data) {
                page.as_mut_slice().fill(0);
            }
            entry.prp1 = self.data.iova().0;
        }
        self.post(slot, Use::Command, entry);
        self.sq.ring(&self.counters);
        let answer = self.wait(command, slot);
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                self.slots[slot.index()].use_of = Use::Lost;
                return Err(error);
            }
        };
        self.release(slot);
        let status = answer.status();
        if !status.is_success() {
            return Err(ControllerError::Admin { command, status });
        }
        Ok(answer)
    }

    fn wait(&mut self, command: &'static str, slot: SlotIndex) -> Result<CompletionEntry, ControllerError> {
        let Line { clock, registers, timeout, .. } = self.line.clone();
        let deadline = clock.deadline(timeout);
        loop {
            let late = deadline.passed(&clock);
            self.reap();
            if let Use::Answered(answer) = self.slots[slot.index()].use_of {
                return Ok(answer);
            }
            if registers.csts(command)?.fatal() {
                return Err(ControllerError::Fatal { step: command });
            }
            if late {
                let hint = "; the controller is taken for dead, open it again";
                return Err(ControllerError::Timeout { step: command, span: deadline.span(), hint });
            }
            registers.relax();
        }
    }

    fn post(&mut self, slot: SlotIndex, use_of: Use, mut entry: SubmissionEntry) {
        let it = &mut self.slots[slot.index()];
        it.use_of = use_of;
        entry.cid = it.cid.0;
        self.sq.post(&entry);
    }

    /// Takes completions, once round the ring at most.
    fn reap(&mut self) {
        for _ in 0..ADMIN_ENTRIES {
            let Some(entry) = self.cq.pop() else { break };
            let cid = Cid(entry.cid);
            let slot = self.layout.slot(cid);
            let Some(it) = self.slots.get_mut(slot.index()) else { continue };
            if entry.sq_id != 0 || it.cid != cid {
                tracing::warn!(cid = entry.cid, "admin completion that names no live command");
                continue;
            }
            match it.use_of {
                Use::Command => it.use_of = Use::Answered(entry),
                Use::EventRequest => self.event_fired(slot, &entry),
                // Even if a lost command ends after all, its failure has been reported: it stays lost.
                Use::Free | Use::Answered(_) | Use::Lost => {
                    tracing::warn!(cid = entry.cid, "admin completion that nobody waits for");
                }
            }
        }
        self.cq.ring(&self.counters);
    }

    fn event_fired(&mut self, slot: SlotIndex, entry: &CompletionEntry) {
        self.events_armed -= 1;
        self.release(slot);
        // A request that fails (more than the controller allows) is not an event, and is not repeated.
        if entry.status().is_success() && self.events.len() < EVENTS_KEPT_MAX {
            self.events.push_back(AsyncEvent::from_dw0(entry.dw0));
        }
    }

    fn release(&mut self, slot: SlotIndex) {
        let it = &mut self.slots[slot.index()];
        it.use_of = Use::Free;
        it.cid = self.layout.next(it.cid);
        self.ids.release(slot);
    }

    /// Shares of the memory that the device may reach: while they exist, it is not freed.
    pub(crate) fn keepers(&self) -> [Arc<DmaBuf>; 3] {
        [self.sq.keeper(), self.cq.keeper(), Arc::clone(&self.data)]
    }

    /// Where the device finds the rings.
    pub(crate) fn ring_addresses(&self) -> (Iova, Iova) {
        (self.sq.iova(), self.cq.iova())
    }
}
