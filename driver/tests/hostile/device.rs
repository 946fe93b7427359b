#![expect(unsafe_code)]
//! A device that lies: every value that it may choose is now and then chosen by a generator.
//
// UNSAFETY: implements unsafe methods; calls nothing unsafe.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use doorbell_spec::command::NvmOpcode;
use doorbell_spec::register::{self, Aqa, Cap, Cc, Csts, DoorbellKind, Shutdown, doorbell_index};
use doorbell_spec::{
    BusError, BusEvent, BusMastering, Clock, Doorbells, Identity, Mapper, QueueId, SubmissionEntry, Transport,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::memory::Memory;
use crate::random::Random;

#[derive(Debug)]
pub struct Hostile {
    pub memory: Arc<Memory>,
    cells: Arc<[AtomicU32]>,
    pub state: Mutex<State>,
}

/// What the device knows and what it is up to.
#[derive(Debug)]
pub struct State {
    pub random: Random,
    /// One decision in so many is a lie; 0 is none.
    pub malice: u64,
    /// It stays enabled, whatever CC says, and cannot be reset.
    pub is_stubborn: bool,
    pub is_fatal: bool,
    pub is_removed: bool,
    pub cap: Cap,
    pub version: u32,
    registers: [u32; 32],
    is_ready: bool,
    pub queues: Vec<Queue>,
    /// Where the shadow doorbells and their EventIdx are, once it was told.
    pub shadows: Option<(u64, u64)>,
    /// The most a virtual clock moves in one look, in microseconds.
    pub relax_us: u64,
    /// Whether commands of I/O queues are taken and never answered.
    pub is_mute: bool,
    /// After so many further waits the transport panics, once.
    pub panics_after: Option<u32>,
    /// What it told the host: bytes of a transfer at most, if it did not lie.
    pub transfer_bytes_max: u64,
    pub block_shift: u8,
    /// What the host did against the rules.
    pub broken: Vec<String>,
}

#[derive(Debug, Default)]
pub struct Queue {
    pub id: u16,
    pub sq: u64,
    pub sq_entries: u32,
    pub cq: u64,
    pub cq_entries: u32,
    pub head: u32,
    pub tail: u32,
    pub is_second_round: bool,
    pub held: Vec<SubmissionEntry>,
}

impl State {
    pub fn lies(&mut self) -> bool {
        self.malice > 0 && self.random.one_in(self.malice)
    }

    /// Writes a completion, true or not.
    pub fn post(&mut self, memory: &Memory, at: usize, cid: u16, status: u16, dw0: u32) {
        let (mut cid, mut head) = (cid, self.queues[at].head);
        let (mut id, mut is_phase_right) = (self.queues[at].id, true);
        let mut times = 1;
        if self.lies() {
            match self.random.below(7) {
                0 => cid = self.random.next16(),
                1 => cid ^= 1 << self.random.below(16),
                2 => head = self.random.next32(),
                3 => id = self.random.next16(),
                4 => is_phase_right = false,
                5 => times = 2,
                _ => times = 0,
            }
        }
        for _ in 0..times {
            self.queues[at].post(
                memory,
                [dw0, head & 0xffff | u32::from(id) << 16],
                cid,
                status,
                is_phase_right,
            );
        }
    }

    /// Checks what holds for any command of a host, whatever it was told.
    fn check(&mut self, memory: &Memory, entry: &SubmissionEntry) {
        if entry.cid == u16::MAX {
            self.broken.push("the identifier that means none".to_owned());
        }
        let has_data = matches!(NvmOpcode::from_raw(entry.opcode), NvmOpcode::Read | NvmOpcode::Write);
        if has_data && memory.load(entry.prp1 & !7).is_none() {
            self.broken.push(format!("{:#x} is not mapped", entry.prp1));
        }
        let bytes = u64::from(entry.blocks().0) << self.block_shift;
        if has_data && self.malice == 0 && bytes > self.transfer_bytes_max {
            self.broken.push(format!("{bytes} bytes of {} that are allowed", self.transfer_bytes_max));
        }
    }

    /// Fills a completion queue with noise, perhaps several times round.
    fn flood(&mut self, memory: &Memory, at: usize) {
        let id = self.queues[at].id;
        for _ in 0..self.random.below(2 * u64::from(self.queues[at].cq_entries) + 1).min(300) {
            let (dw0, head) = (self.random.next32(), self.random.next32() & 0x7f);
            let status = if self.random.one_in(2) { 0 } else { self.random.next16() };
            let cid = if self.random.one_in(2) { self.random.next16() & 0x3f } else { self.random.next16() };
            self.queues[at].post(memory, [dw0, head | u32::from(id) << 16], cid, status, true);
        }
    }

    fn step(&mut self, memory: &Memory, cells: &[AtomicU32]) {
        if self.is_removed || self.is_fatal || !self.is_ready {
            return;
        }
        for at in 0..self.queues.len() {
            let stride = self.cap.doorbell_stride();
            let word = doorbell_index(QueueId(self.queues[at].id), DoorbellKind::SubmissionTail, stride);
            let register = cells.get(word).map_or(0, |cell| cell.load(Ordering::Acquire));
            let tail = self.look_at_shadow(memory, word).unwrap_or(register);
            let taken = self.queues[at].held.len();
            self.queues[at].fetch(memory, tail);
            if at > 0 {
                let taken = self.queues[at].held[taken..].to_vec();
                taken.iter().for_each(|entry| self.check(memory, entry));
            }
            if self.lies() && self.random.one_in(4) {
                self.flood(memory, at);
            }
        }
        self.answer_admin(memory);
        for at in 1..self.queues.len() {
            if self.is_mute {
                break;
            }
            for _ in 0..self.random.below(20) {
                let held = self.queues[at].held.len() as u64;
                if held == 0 {
                    break;
                }
                let which = usize::try_from(self.random.below(held)).expect("small");
                let entry = self.queues[at].held.swap_remove(which);
                memory.store(entry.prp1 & !7, self.random.next());
                let status = if self.lies() { self.random.next16() & 0x7fff } else { 0 };
                let dw0 = self.random.next32();
                self.post(memory, at, entry.cid, status, dw0);
            }
        }
    }

    /// The shadow of the doorbell at a dword index, if it lies in the first 4 KiB. Says when to ring the
    /// register, as it pleases.
    fn look_at_shadow(&mut self, memory: &Memory, word: usize) -> Option<u32> {
        let (shadow, events) = self.shadows.filter(|_| word < 1024)?;
        let offset = 4 * word as u64;
        let tail = memory.load_dword(shadow + offset)?;
        let event = if self.lies() { self.random.next32() } else { tail };
        memory.store_dword(events + offset, event);
        Some(tail)
    }

    fn read(&mut self, offset: u32) -> u32 {
        if self.is_removed {
            return u32::MAX;
        }
        if self.lies() && self.random.one_in(8) {
            return self.random.next32();
        }
        let cc = Cc::from_bits(self.registers[5]);
        #[expect(clippy::cast_possible_truncation)]
        match offset {
            register::CAP => self.cap.into_bits() as u32,
            0x04 => (self.cap.into_bits() >> 32) as u32,
            register::VS => self.version,
            register::CSTS => Csts::new()
                .with_ready(self.is_ready)
                .with_fatal(self.is_fatal)
                .with_shutdown_status(if cc.shutdown() == Shutdown::None as u8 { 0 } else { 2 })
                .into_bits(),
            other => self.registers.get((other / 4) as usize).copied().unwrap_or(0),
        }
    }

    fn write(&mut self, offset: u32, value: u32) {
        if let Some(register) = self.registers.get_mut((offset / 4) as usize) {
            *register = value;
        }
        if offset != register::CC {
            return;
        }
        let enable = Cc::from_bits(value).enable();
        if enable && !self.is_ready && !self.lies() {
            let wide = |low: usize, regs: &[u32]| u64::from(regs[low + 1]) << 32 | u64::from(regs[low]);
            let aqa = Aqa::from_bits(self.registers[9]);
            self.queues = vec![Queue {
                sq: wide(10, &self.registers),
                cq: wide(12, &self.registers),
                sq_entries: u32::from(aqa.submission_entries_z()) + 1,
                cq_entries: u32::from(aqa.completion_entries_z()) + 1,
                ..Queue::default()
            }];
            self.shadows = None;
            self.is_ready = true;
        } else if !enable && !self.is_stubborn {
            self.is_ready = false;
            self.is_fatal = false;
            self.queues.clear();
        }
    }
}

impl Queue {
    fn fetch(&mut self, memory: &Memory, tail: u32) {
        for _ in 0..64 {
            if self.sq_entries == 0 || self.head == tail % self.sq_entries {
                return;
            }
            let mut words = [0_u64; 8];
            for (at, word) in (0_u64..).zip(&mut words) {
                *word = memory.load(self.sq + u64::from(self.head) * 64 + at * 8).unwrap_or(0);
            }
            self.held.push(SubmissionEntry::read_from_bytes(words.as_bytes()).expect("64 bytes"));
            self.head = (self.head + 1) % self.sq_entries;
        }
    }

    fn post(&mut self, memory: &Memory, [dw0, dw2]: [u32; 2], cid: u16, status: u16, is_phase_right: bool) {
        if self.cq_entries == 0 {
            return;
        }
        let phase = self.is_second_round ^ is_phase_right;
        let dw3 = u32::from(cid) | u32::from(phase) << 16 | u32::from(status) << 17;
        let place = self.cq + u64::from(self.tail) * 16;
        memory.store(place, u64::from(dw0));
        memory.store(place + 8, u64::from(dw3) << 32 | u64::from(dw2));
        self.tail += 1;
        if self.tail == self.cq_entries {
            self.tail = 0;
            self.is_second_round ^= true;
        }
    }
}

impl Hostile {
    pub fn new(seed: u64, malice: u64) -> Arc<Self> {
        let mut random = Random::new(seed);
        let mut cap = Cap::new()
            .with_mqes_z(random.pick(&[1, 2, 15, 63, 1023, 0xffff]))
            .with_timeout_500ms(random.pick(&[0, 1, 20]))
            .with_doorbell_stride(random.pick(&[0, 0, 0, 1, 4]))
            .with_command_sets(random.pick(&[1, 1, 0x41, 0x40]))
            .with_page_min(random.pick(&[0, 0, 0, 1, 4]))
            .with_page_max(random.pick(&[4, 15]));
        if malice > 0 && random.one_in(malice) {
            cap = Cap::from_bits(random.next());
        }
        let memory = Arc::new(Memory::new(&mut random, malice));
        let odd = malice > 0 && random.one_in(malice);
        let words = if odd { random.below(2000) } else { 200 << cap.doorbell_stride() };
        let version = if odd { random.next32() } else { random.pick(&[0x1_0000, 0x1_0400, 0x2_0000]) };
        let is_stubborn = malice > 0 && random.one_in(10);
        let state = State {
            malice,
            is_stubborn,
            is_fatal: false,
            is_removed: false,
            cap,
            version,
            registers: [0; 32],
            is_ready: malice > 0 && random.one_in(10),
            queues: Vec::new(),
            shadows: None,
            relax_us: 200_000,
            is_mute: false,
            panics_after: None,
            transfer_bytes_max: u64::MAX,
            block_shift: random.pick(&[9, 12, 13, 16]),
            broken: Vec::new(),
            random,
        };
        let cells = (0..words).map(|_| AtomicU32::new(0)).collect();
        Arc::new(Self { memory, cells, state: Mutex::new(state) })
    }

    /// Writes noise into all I/O completion queues, in whatever state it is.
    pub fn flood(&self) {
        let mut state = self.state.lock().expect("one thread");
        (1..state.queues.len()).for_each(|at| state.flood(&self.memory, at));
    }

    /// Writes entries that name no command into all I/O completion queues.
    pub fn babble(&self, entries: u32) {
        let mut state = self.state.lock().expect("one thread");
        for queue in state.queues.iter_mut().skip(1) {
            let id = u32::from(queue.id) << 16;
            (0..entries).for_each(|_| queue.post(&self.memory, [0, id], u16::MAX, 0, true));
        }
    }

    pub fn step(&self) {
        self.memory.touch_all();
        self.state.lock().expect("one thread").step(&self.memory, &self.cells);
    }
}

impl Transport for Hostile {
    fn identity(&self) -> Identity {
        Identity { name: "hostile".to_owned(), ..Identity::default() }
    }

    fn read32(&self, offset: u32) -> Result<u32, BusError> {
        Ok(self.state.lock().expect("one thread").read(offset))
    }

    unsafe fn write32(&self, offset: u32, value: u32) -> Result<(), BusError> {
        self.state.lock().expect("one thread").write(offset, value);
        Ok(())
    }

    unsafe fn doorbells(&self, _bytes: usize) -> Result<Doorbells, BusError> {
        Ok(Doorbells::in_memory(Arc::clone(&self.cells)))
    }

    fn mapper(&self) -> Arc<dyn Mapper> {
        Arc::<Memory>::clone(&self.memory)
    }

    unsafe fn set_bus_mastering(&self, _mastering: BusMastering) -> Result<(), BusError> {
        Ok(())
    }

    fn interrupt_vectors(&self) -> u32 {
        self.state.lock().expect("one thread").random.next32()
    }

    fn set_interrupt(&self, vector: u32, _event: Option<BorrowedFd<'_>>) -> Result<(), BusError> {
        Err(BusError::NoSuchVector { vector, vectors: 0 })
    }

    fn reset(&self) -> Result<(), BusError> {
        let mut state = self.state.lock().expect("one thread");
        if state.is_stubborn || state.is_removed {
            return Err(BusError::Unsupported { what: "a reset" });
        }
        state.is_ready = false;
        state.queues.clear();
        Ok(())
    }

    fn poll_event(&self) -> Option<BusEvent> {
        let mut state = self.state.lock().expect("one thread");
        let tells = state.malice > 0 && state.random.one_in(200);
        tells.then(|| state.random.pick(&[BusEvent::Removed, BusEvent::RemovalRequested]))
    }

    fn relax(&self, clock: &Clock) {
        let panics_after = self.state.lock().expect("one thread").panics_after.take();
        let waits_left = panics_after.map(|waits| waits.checked_sub(1).expect("the transport's own"));
        self.state.lock().expect("one thread").panics_after = waits_left;
        self.step();
        let mut state = self.state.lock().expect("one thread");
        let most = state.relax_us;
        clock.advance(Duration::from_micros(state.random.below(most + 1)));
    }
}
