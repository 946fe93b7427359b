//! The hostile device's answers to admin commands.

use doorbell_spec::SubmissionEntry;
use doorbell_spec::command::AdminOpcode;
use doorbell_spec::identify::{IdentifyController, IdentifyNamespace, LbaFormat};
use zerocopy::IntoBytes;

use crate::device::{Queue, State};
use crate::memory::Memory;

impl State {
    /// Answers what the admin queue holds, as far as it pleases.
    pub fn answer_admin(&mut self, memory: &Memory) {
        let Some(admin) = self.queues.first_mut() else { return };
        for entry in std::mem::take(&mut admin.held) {
            if self.lies() && self.random.one_in(4) {
                continue;
            }
            let opcode = AdminOpcode::from_raw(entry.opcode);
            if opcode == AdminOpcode::AsyncEventRequest && !self.random.one_in(4) {
                self.queues[0].held.push(entry);
                continue;
            }
            let (status, dw0) = self.execute(memory, opcode, &entry);
            if self.queues.is_empty() {
                return;
            }
            self.post(memory, 0, entry.cid, status, dw0);
        }
    }

    fn execute(&mut self, memory: &Memory, opcode: AdminOpcode, entry: &SubmissionEntry) -> (u16, u32) {
        if self.lies() {
            return (self.random.next16() & 0x7fff, self.random.next32());
        }
        let id = (entry.cdw10 & 0xffff) as u16;
        let entries = (entry.cdw10 >> 16) + 1;
        match opcode {
            AdminOpcode::Identify => {
                let data = self.identify(entry);
                self.write_page(memory, entry.prp1, &data);
            }
            AdminOpcode::GetLogPage => {
                let data = self.noise();
                self.write_page(memory, entry.prp1, &data);
            }
            AdminOpcode::CreateCompletionQueue => {
                let queue = Queue { id, cq: entry.prp1, cq_entries: entries, ..Queue::default() };
                self.queues.push(queue);
            }
            AdminOpcode::CreateSubmissionQueue => {
                if let Some(queue) = self.queues.iter_mut().skip(1).find(|queue| queue.id == id) {
                    (queue.sq, queue.sq_entries) = (entry.prp1, entries);
                }
            }
            AdminOpcode::DeleteCompletionQueue => {
                let mut index = 0;
                self.queues.retain(|queue| (index == 0 || queue.id != id, index += 1).0);
            }
            AdminOpcode::SetFeatures if entry.cdw10 & 0xff == 7 => {
                let odd = self.random.next32();
                return (0, if self.lies() { odd } else { 0x0002_0003 });
            }
            // One that lies accepts it and looks elsewhere, or nowhere.
            AdminOpcode::DoorbellBufferConfig if !self.lies() => {
                self.shadows = Some((entry.prp1, entry.prp2));
            }
            AdminOpcode::AsyncEventRequest => return (0, self.random.next32()),
            _ => {}
        }
        (0, self.random.next32())
    }

    fn write_page(&mut self, memory: &Memory, iova: u64, data: &[u8; 4096]) {
        for (at, word) in (0_u64..).step_by(8).zip(data.chunks_exact(8)) {
            memory.store(iova + at, u64::from_le_bytes(word.try_into().expect("8 bytes")));
        }
    }

    fn noise(&mut self) -> [u8; 4096] {
        let mut data = [0; 4096];
        data.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&self.random.next().to_le_bytes()));
        data
    }

    fn identify(&mut self, entry: &SubmissionEntry) -> [u8; 4096] {
        if self.lies() {
            return self.noise();
        }
        let mut data = [0; 4096];
        match entry.cdw10 & 0xff {
            0 => data.copy_from_slice(self.namespace().as_bytes()),
            1 => data.copy_from_slice(self.controller().as_bytes()),
            _ => {
                let mut nsid = entry.nsid;
                let count = if self.lies() { 1024 } else { 3 };
                for place in data.chunks_exact_mut(4).take(count) {
                    nsid = nsid.wrapping_add(1 + u32::from(self.lies()));
                    if count > 3 || nsid < 6 {
                        place.copy_from_slice(&nsid.to_le_bytes());
                    }
                }
            }
        }
        for _ in 0..8 {
            if self.lies() {
                data[usize::try_from(self.random.below(4096)).expect("small")] =
                    self.random.next().to_le_bytes()[0];
            }
        }
        data
    }

    fn controller(&mut self) -> IdentifyController {
        let mut data = IdentifyController::zeroed();
        (data.submission_entry, data.completion_entry) = (0x66, 0x44);
        data.mdts = self.random.pick(&[0, 1, 2, 5, 8, 60, 255]);
        if (1..20).contains(&data.mdts) {
            self.transfer_bytes_max = self.cap.page_bytes_min() << data.mdts;
        }
        data.event_limit_z = self.random.pick(&[0, 1, 3, 255]);
        data.namespace_count = self.random.pick(&[0, 1, 5]);
        data.nvm_commands = self.random.next16();
        data.admin_commands = self.random.next16();
        data.shutdown_latency_us = self.random.pick(&[0, 1, 1_000_000, u32::MAX]);
        data
    }

    fn namespace(&mut self) -> IdentifyNamespace {
        let mut data = IdentifyNamespace::zeroed();
        data.blocks = self.random.pick(&[0, 1, 100, 1 << 20, 1 << 40, u64::MAX >> 16, u64::MAX]);
        data.formats[0] = LbaFormat::new().with_block_shift(self.block_shift);
        data.optimal_boundary = self.random.pick(&[0, 0, 1, 3, 8, 0xffff]);
        data
    }
}
