//! Admin commands (NVMe Base 2.0, 5): what they share, and which file answers which.

pub(crate) mod events;
pub(crate) mod features;
pub(crate) mod identify;
pub(crate) mod log_pages;
pub(crate) mod queue_commands;

use doorbell_spec::command::AdminOpcode;
use doorbell_spec::feature::QueueCounts;
use doorbell_spec::{Iova, QueueId, Status, SubmissionEntry};

use crate::config::{EmulatorConfig, Toggle};
use crate::device::{Device, Step};
use crate::nvm::Bench;
use crate::outcome::Outcome;
use crate::queues::ring::Ring;
use crate::queues::{CompletionQueue, SubmissionQueue};
use crate::report::Violation;
use crate::serve::{note, pair, sq_mut};
use crate::twist::Twist;
use crate::window::Window;
use events::Events;
use features::Features;
use log_pages::ErrorLog;

/// What the admin command set remembers between commands.
pub(crate) struct Admin {
    pub(crate) features: Features,
    pub(crate) events: Events,
    errors: ErrorLog,
}

impl Admin {
    pub(crate) fn new(config: &EmulatorConfig, cache: Toggle) -> Self {
        Self {
            features: Features::new(config, cache),
            events: Events::new(usize::from(config.aerl_z) + 1),
            errors: ErrorLog::default(),
        }
    }

    /// What a controller reset does: features and event requests go, the logs stay.
    pub(crate) fn reset(&mut self, config: &EmulatorConfig) {
        self.features.reset(config);
        self.events.reset();
    }

    /// Notes a failed command in the error log.
    #[cold]
    pub(crate) fn note_error(&mut self, queue: QueueId, entry: &SubmissionEntry, status: Status) {
        self.errors.add(queue, entry, status);
    }
}

impl Device {
    /// Makes the admin queues, when the controller is enabled.
    pub(crate) fn start(&mut self, window: &Window) {
        let rings = self.registers.admin_rings();
        self.storage.page_bytes = self.registers.page_bytes();
        let stride = self.config.stride;
        let sq_ring = Ring::new(Iova(rings.sq_base), rings.sq_entries, size_of::<SubmissionEntry>());
        let cq_ring = Ring::new(Iova(rings.cq_base), rings.cq_entries, 16);
        let sq = SubmissionQueue::new(QueueId::ADMIN, sq_ring, QueueId::ADMIN, stride);
        let mut cq = CompletionQueue::new(QueueId::ADMIN, cq_ring, Some(0), stride);
        cq.users = 1;
        cq.held.reserve(rings.sq_entries as usize);
        window.clear(sq.bell.word());
        window.clear(cq.bell.word());
        self.flight.make_room(rings.sq_entries);
        self.sqs[0] = Some(Box::new(sq));
        self.cqs[0] = Some(Box::new(cq));
        self.live.insert(0, QueueId::ADMIN);
        self.watch_queues(window);
    }

    /// Takes up to `burst` admin commands. Answers how many.
    #[inline]
    pub(crate) fn serve_admin(&mut self, step: &Step<'_>, burst: usize) -> usize {
        let queue = QueueId::ADMIN;
        let Some((sq, cq)) = pair(&mut self.sqs, &mut self.cqs, queue) else { return 0 };
        let bells = step.bells(&self.shadow);
        note(sq.look(&bells), &mut self.tally.tail_doorbells, &mut self.tally.violations);
        note(cq.look(&bells), &mut self.tally.head_doorbells, &mut self.tally.violations);
        step.window.watch.note(sq.turn, sq.bell.rung(), cq.bell.rung());
        if sq.is_empty() { 0 } else { self.serve_admin_commands(step, burst) }
    }

    #[inline(never)]
    fn serve_admin_commands(&mut self, step: &Step<'_>, burst: usize) -> usize {
        step.window.watch.disturb();
        // What is left for the next turn is looked at then, whatever it is.
        self.has_backlog = true;
        let queue = QueueId::ADMIN;
        let Some((sq, cq)) = pair(&mut self.sqs, &mut self.cqs, queue) else { return 0 };
        if sq.ring.refresh(step.dma).is_err() || cq.ring.refresh(step.dma).is_err() {
            self.fail("the memory of the admin queue is not mapped, or bus mastering is off");
            return 0;
        }
        let mut taken = 0;
        while taken < burst && self.registers.is_processing() {
            let Some((sq, cq)) = pair(&mut self.sqs, &mut self.cqs, queue) else { break };
            let is_busy = cq.is_full() || !cq.held.is_empty() || sq.parked >= sq.ring.entries();
            if sq.is_empty() || is_busy {
                break;
            }
            let Ok(entry) = sq.ring.fetch(step.dma, sq.head) else { break };
            sq.advance();
            taken += 1;
            self.tally.admin[usize::from(entry.opcode)] += 1;
            let status = self.check_cid(queue, &entry).or_else(|| self.check_event_cid(&entry));
            if let Some(status) = status {
                self.finish(step, queue, &entry, Outcome::refused(status), Twist::None);
            } else if !self.take(step, queue, &entry) {
                break;
            }
        }
        taken
    }

    /// An event request holds its identifier for as long as it is outstanding.
    fn check_event_cid(&mut self, entry: &SubmissionEntry) -> Option<Status> {
        if !self.admin.events.holds(entry.cid) {
            return None;
        }
        let cid = doorbell_spec::Cid(entry.cid);
        self.tally.violations.add(Violation::CidInUse { queue: QueueId::ADMIN, cid });
        Some(Status::COMMAND_ID_CONFLICT)
    }

    /// Executes an admin command. `None`: it completes later.
    pub(crate) fn execute_admin(&mut self, step: &Step<'_>, entry: &SubmissionEntry) -> Option<Outcome> {
        if entry.flags != 0 {
            return Some(Outcome::refused(Status::INVALID_FIELD));
        }
        let result = match AdminOpcode::from_raw(entry.opcode) {
            AdminOpcode::Identify => self.identify(step, entry),
            AdminOpcode::CreateCompletionQueue => self.create_completion_queue(step, entry),
            AdminOpcode::CreateSubmissionQueue => self.create_submission_queue(step, entry),
            AdminOpcode::DeleteSubmissionQueue => self.delete_submission_queue(step, entry),
            AdminOpcode::DeleteCompletionQueue => self.delete_completion_queue(step, entry),
            AdminOpcode::SetFeatures => self.set_features(entry),
            AdminOpcode::GetFeatures => self.query_features(entry),
            AdminOpcode::GetLogPage => self.log_page(step, entry),
            AdminOpcode::Abort => self.abort(step, entry),
            AdminOpcode::DoorbellBufferConfig => self.configure_doorbell_buffers(step, entry),
            AdminOpcode::AsyncEventRequest => return self.event_request(entry),
            _ => Err(Status::INVALID_OPCODE.with_do_not_retry()),
        };
        Some(result.map_or_else(Outcome::failed, Outcome::with_result))
    }

    /// Copies an answer to the host, and has no result beyond that.
    fn answer(&mut self, step: &Step<'_>, entry: &SubmissionEntry, data: &[u8]) -> Result<u32, Status> {
        let violations = &mut self.tally.violations;
        let mut bench = Bench { dma: step.dma, violations, queue: QueueId::ADMIN };
        self.storage.answer(entry, data, &mut bench).map(|()| 0)
    }

    /// Abort (5.1): only commands that are parked can be aborted. Bit 0 of the result says "not aborted".
    fn abort(&mut self, step: &Step<'_>, entry: &SubmissionEntry) -> Result<u32, Status> {
        let queue = QueueId((entry.cdw10 & 0xffff) as u16);
        let cid = (entry.cdw10 >> 16) as u16;
        // This command is no longer parked itself, so it is one more than those that are.
        let others = self.flight.count_of(QueueId::ADMIN, AdminOpcode::Abort.raw());
        if others > usize::from(self.config.acl_z) {
            return Err(Status::ABORT_LIMIT_EXCEEDED);
        }
        if sq_mut(&mut self.sqs, queue).is_none() {
            return Err(Status::INVALID_FIELD.with_do_not_retry());
        }
        let aborted = Outcome::failed(Status::ABORT_REQUESTED);
        if let Some(parked) = self.flight.abort(queue, cid) {
            self.unpark(&parked);
            self.finish(step, queue, &parked.entry, aborted, Twist::None);
            return Ok(0);
        }
        if queue == QueueId::ADMIN && self.admin.events.take_request(cid) {
            let request = SubmissionEntry { cid, ..SubmissionEntry::async_event_request() };
            self.finish(step, queue, &request, aborted, Twist::None);
            return Ok(0);
        }
        Ok(1)
    }

    /// What NSQA and NCQA are.
    pub(crate) fn queue_limits(&self) -> QueueCounts {
        QueueCounts::new()
            .with_submission_z(self.config.submission_queues - 1)
            .with_completion_z(self.config.completion_queues - 1)
    }
}
