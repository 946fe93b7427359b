#![expect(unsafe_code)]
//! A host without a driver: queues made by hand over memory of its own, for tests of the controller.
//!
//! It shares nothing with the driver crate, so that both cannot be wrong in the same way. It does what
//! it is told, also what a host must not do.
//
// UNSAFETY: reads and writes memory that the device writes too, through raw pointers and atomics; tells the
// device whatever a test likes.

// Every test file includes this one, and uses a part of it.
#![allow(dead_code)]

pub mod shadows;

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use doorbell_emulator::{Emulator, EmulatorConfig};
use doorbell_spec::identify::IdentifyKind;
use doorbell_spec::register::{self, Aqa, Cc, Csts, DoorbellKind, doorbell_bytes, doorbell_index};
use doorbell_spec::{
    BusError, BusMastering, Clock, CompletionEntry, Doorbells, HostRegion, Iova, MapError, Mapper, Nsid,
    QueueId, Status, SubmissionEntry, Transport,
};
use memmap2::MmapMut;

pub const BASE: u64 = 0x1_0000_0000;
pub const ADMIN_ENTRIES: u32 = 32;

/// Maps memory that the caller unmaps before it goes.
pub fn map(mapper: &dyn Mapper, iova: u64, memory: &mut MmapMut) {
    let region =
        HostRegion { address: NonNull::from(&mut memory[..]).cast(), bytes: memory.len(), backing: None };
    // SAFETY: the tests unmap it, or drop the controller, before the memory is dropped.
    unsafe { mapper.map(Iova(iova), region) }.expect("mapped");
}

/// Takes memory back, of which a test has as many mappings as it likes.
pub fn unmap(mapper: &dyn Mapper, iova: u64, bytes: usize) -> Result<(), MapError> {
    // SAFETY: what is mapped here is a test's own, read and written by copies; no address of it is mapped
    // again for anybody else.
    unsafe { mapper.unmap(Iova(iova), bytes) }
}

/// Writes a register.
pub fn write32(device: &Emulator, offset: u32, value: u32) -> Result<(), BusError> {
    // SAFETY:
    // - the test alone drives the device, which is its own;
    // - all that is mapped for the device is memory of the test (a [`Memory`], or a mapping that it holds),
    //   which it reads and writes when the device does not: wherever the device writes, nothing else is.
    unsafe { device.write32(offset, value) }
}

/// Writes a register of 64 bits.
pub fn write64(device: &Emulator, offset: u32, value: u64) -> Result<(), BusError> {
    // SAFETY: as in `write32`.
    unsafe { device.write64(offset, value) }
}

/// Maps doorbells.
pub fn doorbells(device: &Emulator, bytes: usize) -> Result<Doorbells, BusError> {
    // SAFETY: as in `write32`, whatever is rung.
    unsafe { device.doorbells(bytes) }
}

/// Gives the device the right to DMA, or takes it.
pub fn set_bus_mastering(device: &Emulator, mastering: BusMastering) -> Result<(), BusError> {
    // SAFETY: as in `write32`.
    unsafe { device.set_bus_mastering(mastering) }
}

/// Memory that is mapped for the device at [`BASE`].
pub struct Memory {
    base: NonNull<u8>,
    bytes: usize,
    next: usize,
    page: usize,
    mapper: Arc<dyn Mapper>,
    _mapping: MmapMut,
}

/// A submission queue and a completion queue, as the host keeps them.
pub struct Pair {
    pub id: QueueId,
    pub sq: Iova,
    pub cq: Iova,
    pub sq_entries: u32,
    pub cq_entries: u32,
    pub tail: u32,
    pub head: u32,
    pub phase: bool,
    pub next_cid: u16,
}

/// The host: a controller, memory, and the admin queue.
pub struct Host {
    pub device: Arc<Emulator>,
    pub clock: Clock,
    pub memory: Memory,
    pub doorbells: Doorbells,
    pub stride: u8,
    pub admin: Pair,
}

impl Memory {
    pub fn new(bytes: usize, mapper: Arc<dyn Mapper>) -> Self {
        let mut mapping = MmapMut::map_anon(bytes).expect("memory");
        let base = NonNull::from(&mut mapping[..]).cast();
        let region = HostRegion { address: base, bytes, backing: None };
        // SAFETY: the mapping lives as long as this value, and is unmapped from the device in its drop.
        unsafe { mapper.map(Iova(BASE), region) }.expect("mapped");
        // The first page stays unused, so that a wrong offset of a page is found out.
        Self { base, bytes, next: 4096, page: 4096, mapper, _mapping: mapping }
    }

    /// Page-aligned memory, zeroed.
    pub fn alloc(&mut self, bytes: usize) -> Iova {
        let at = self.next.next_multiple_of(self.page);
        self.next = at + bytes.next_multiple_of(self.page);
        assert!(self.next <= self.bytes, "the test's memory is too small");
        Iova(BASE + at as u64)
    }

    pub fn mapper(&self) -> &Arc<dyn Mapper> {
        &self.mapper
    }

    pub fn whole(&self) -> HostRegion<'static> {
        HostRegion { address: self.base, bytes: self.bytes, backing: None }
    }

    fn at(&self, iova: Iova, bytes: usize) -> NonNull<u8> {
        let offset = usize::try_from(iova.0 - BASE).expect("inside");
        assert!(offset + bytes <= self.bytes, "inside of the test's memory");
        // SAFETY: the offset is inside of the mapping.
        unsafe { self.base.add(offset) }
    }

    pub fn write(&self, iova: Iova, data: &[u8]) {
        let to = self.at(iova, data.len());
        // SAFETY: inside of the mapping, and `data` is apart from it.
        unsafe { to.as_ptr().copy_from_nonoverlapping(data.as_ptr(), data.len()) };
    }

    pub fn read(&self, iova: Iova, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        let from = self.at(iova, bytes);
        // SAFETY: inside of the mapping, and `data` is apart from it.
        unsafe { from.as_ptr().copy_to_nonoverlapping(data.as_mut_ptr(), bytes) };
        data
    }

    /// Stores a dword that the device may be reading, with release.
    pub fn store_dword(&self, iova: Iova, value: u32) {
        let at = self.at(iova, 4).cast::<u32>();
        // SAFETY: inside of the mapping and aligned; both sides use this dword as an atomic.
        unsafe { AtomicU32::from_ptr(at.as_ptr()) }.store(value, Ordering::Release);
    }

    /// A dword that the device may be writing, read with acquire.
    pub fn dword(&self, iova: Iova) -> u32 {
        let at = self.at(iova, 4).cast::<u32>();
        // SAFETY: inside of the mapping and aligned; both sides use this dword as an atomic.
        unsafe { AtomicU32::from_ptr(at.as_ptr()) }.load(Ordering::Acquire)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // A test may have unmapped it already.
        let _ = unmap(&*self.mapper, BASE, self.bytes);
    }
}

impl Pair {
    pub fn new(memory: &mut Memory, id: QueueId, sq_entries: u32, cq_entries: u32) -> Self {
        Self {
            id,
            sq: memory.alloc(sq_entries as usize * 64),
            cq: memory.alloc(cq_entries as usize * 16),
            sq_entries,
            cq_entries,
            tail: 0,
            head: 0,
            phase: true,
            next_cid: 0,
        }
    }
}

impl Host {
    /// An inline controller with a virtual clock, not enabled.
    pub fn cold(config: EmulatorConfig) -> Self {
        let clock = Clock::virtual_time();
        let device = Emulator::new(config, clock.clone()).expect("a controller");
        Self::around(device, clock)
    }

    /// The same, enabled.
    pub fn new(config: &str) -> Self {
        let mut host = Self::cold(config.parse().expect("a configuration"));
        host.enable();
        host
    }

    /// A controller with a thread, enabled.
    pub fn threaded(config: &str) -> Self {
        let device = Emulator::spawn(config.parse().expect("a configuration")).expect("a controller");
        let mut host = Self::around(device, Clock::monotonic());
        host.enable();
        host
    }

    pub fn around(device: Arc<Emulator>, clock: Clock) -> Self {
        let mut memory = Memory::new(64 << 20, device.mapper());
        let cap = register::Cap::from_bits(device.read64(register::CAP).expect("CAP"));
        let stride = cap.doorbell_stride();
        memory.page = usize::try_from(cap.page_bytes_min()).expect("a page");
        let doorbells = doorbells(&device, doorbell_bytes(QueueId(1), stride)).expect("doorbells");
        let admin = Pair::new(&mut memory, QueueId::ADMIN, ADMIN_ENTRIES, ADMIN_ENTRIES);
        Self { device, clock, memory, doorbells, stride, admin }
    }

    pub fn csts(&self) -> Csts {
        Csts::from_bits(self.device.read32(register::CSTS).expect("CSTS"))
    }

    /// Sets everything up and CC.EN, and does not wait.
    pub fn start(&mut self) {
        set_bus_mastering(&self.device, BusMastering::On).expect("bus mastering");
        let page = register::Cap::from_bits(self.device.read64(register::CAP).expect("CAP")).page_min();
        let z = u16::try_from(ADMIN_ENTRIES - 1).expect("small");
        let aqa = Aqa::new().with_submission_entries_z(z).with_completion_entries_z(z);
        write32(&self.device, register::AQA, aqa.into_bits()).expect("AQA");
        write64(&self.device, register::ASQ, self.admin.sq.0).expect("ASQ");
        write64(&self.device, register::ACQ, self.admin.cq.0).expect("ACQ");
        let cc =
            Cc::new().with_enable(true).with_submission_entry(6).with_completion_entry(4).with_page(page);
        write32(&self.device, register::CC, cc.into_bits()).expect("CC");
        (self.admin.tail, self.admin.head, self.admin.phase) = (0, 0, true);
        self.memory.write(self.admin.cq, &vec![0; self.admin.cq_entries as usize * 16]);
    }

    pub fn enable(&mut self) {
        self.start();
        for _ in 0..10_000 {
            if self.csts().ready() {
                return;
            }
            self.device.relax(&self.clock);
        }
        panic!("the controller did not become ready: {:?}", self.device.report());
    }

    /// Clears CC.EN.
    pub fn disable(&mut self) {
        write32(&self.device, register::CC, 0).expect("CC");
    }

    pub fn ring(&self, queue: QueueId, kind: DoorbellKind, value: u32) {
        let index = doorbell_index(queue, kind, self.stride);
        let doorbells = doorbells(&self.device, (index + 1) * 4).expect("doorbells");
        doorbells.at(index).expect("a doorbell").ring(value);
    }

    /// Writes an entry at the tail and moves it. Does not ring.
    pub fn post(&self, pair: &mut Pair, mut entry: SubmissionEntry) -> u16 {
        entry.cid = pair.next_cid;
        pair.next_cid = pair.next_cid.wrapping_add(1);
        self.post_raw(pair, &entry);
        entry.cid
    }

    pub fn post_raw(&self, pair: &mut Pair, entry: &SubmissionEntry) {
        let at = pair.sq.offset(u64::from(pair.tail) * 64);
        self.memory.write(at, zerocopy::IntoBytes::as_bytes(entry));
        pair.tail = (pair.tail + 1) % pair.sq_entries;
    }

    pub fn ring_tail(&self, pair: &Pair) {
        self.ring(pair.id, DoorbellKind::SubmissionTail, pair.tail);
    }

    /// The next completion, if there is one. Does not ring.
    pub fn reap(&self, pair: &mut Pair) -> Option<CompletionEntry> {
        let at = pair.cq.offset(u64::from(pair.head) * 16);
        let dw3 = self.memory.dword(at.offset(12));
        if (dw3 >> 16 & 1 == 1) != pair.phase {
            return None;
        }
        let dword = |index: u64| self.memory.dword(at.offset(4 * index));
        let entry = CompletionEntry::from_dwords(dword(0), dword(1), dword(2), dw3);
        pair.head += 1;
        if pair.head == pair.cq_entries {
            (pair.head, pair.phase) = (0, !pair.phase);
        }
        Some(entry)
    }

    pub fn ring_head(&self, pair: &Pair) {
        self.ring(pair.id, DoorbellKind::CompletionHead, pair.head);
    }

    /// Waits for a completion, and takes it back.
    pub fn wait(&self, pair: &mut Pair) -> CompletionEntry {
        for _ in 0..100_000 {
            if let Some(entry) = self.reap(pair) {
                self.ring_head(pair);
                return entry;
            }
            self.device.relax(&self.clock);
        }
        panic!("no completion on queue {}: {:#?}", pair.id, self.device.report());
    }

    /// One command, to the end.
    pub fn run(&self, pair: &mut Pair, entry: SubmissionEntry) -> CompletionEntry {
        let cid = self.post(pair, entry);
        self.ring_tail(pair);
        let completion = self.wait(pair);
        assert_eq!(completion.cid, cid);
        completion
    }

    pub fn admin(&mut self, entry: SubmissionEntry) -> CompletionEntry {
        let mut pair = std::mem::replace(&mut self.admin, Pair::nothing());
        let completion = self.run(&mut pair, entry);
        self.admin = pair;
        completion
    }

    pub fn admin_ok(&mut self, entry: SubmissionEntry) -> CompletionEntry {
        let completion = self.admin(entry);
        assert!(completion.status().is_success(), "{entry:?}: {}", completion.status());
        completion
    }

    /// Aborts a command of the admin queue: both completions, in any order.
    pub fn admin_abort(&mut self, queue: QueueId, cid: u16) -> [CompletionEntry; 2] {
        let mut pair = std::mem::replace(&mut self.admin, Pair::nothing());
        self.post(&mut pair, SubmissionEntry::abort(queue, doorbell_spec::Cid(cid)));
        self.ring_tail(&pair);
        let both = [self.wait(&mut pair), self.wait(&mut pair)];
        self.admin = pair;
        both
    }

    pub fn identify(&mut self, kind: IdentifyKind, nsid: Nsid) -> Result<[u8; 4096], Status> {
        let data = self.memory.alloc(4096);
        let entry = SubmissionEntry { prp1: data.0, ..SubmissionEntry::identify(kind, nsid) };
        let completion = self.admin(entry);
        if completion.status().is_success() {
            Ok(self.memory.read(data, 4096).try_into().expect("4096 bytes"))
        } else {
            Err(completion.status())
        }
    }

    /// Creates an I/O queue pair.
    pub fn queue(&mut self, id: u16, sq_entries: u32, cq_entries: u32) -> Pair {
        let id = QueueId(id);
        let pair = Pair::new(&mut self.memory, id, sq_entries, cq_entries);
        self.admin_ok(SubmissionEntry::create_completion_queue(id, cq_entries, pair.cq, None));
        self.admin_ok(SubmissionEntry::create_submission_queue(id, sq_entries, pair.sq));
        pair
    }
}

impl Pair {
    pub fn nothing() -> Self {
        Self {
            id: QueueId::ADMIN,
            sq: Iova(0),
            cq: Iova(0),
            sq_entries: 1,
            cq_entries: 1,
            tail: 0,
            head: 0,
            phase: true,
            next_cid: 0,
        }
    }
}
