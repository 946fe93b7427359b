//! The host's side of shadow doorbells, told by the specification and not by the driver.

use std::sync::atomic::{Ordering, fence};

use doorbell_spec::command::{AdminOpcode, NvmOpcode};
use doorbell_spec::register::DoorbellKind::{self, CompletionHead, SubmissionTail};
use doorbell_spec::register::doorbell_index;
use doorbell_spec::{Blocks, Iova, Lba, Nsid, QueueId, SubmissionEntry};

use super::{BASE, Host, Pair};

/// The host's side of shadow doorbells.
#[derive(Clone, Copy)]
pub struct Shadows {
    pub doorbells: Iova,
    pub events: Iova,
    pub stride: u8,
}

impl Shadows {
    /// Two pages of zeros, not configured yet.
    pub fn new(host: &mut Host) -> Self {
        let (doorbells, events) = (host.memory.alloc(4096), host.memory.alloc(4096));
        Self { doorbells, events, stride: host.stride }
    }

    /// Two pages, configured.
    pub fn configured(host: &mut Host) -> Self {
        let shadows = Self::new(host);
        host.admin_ok(shadows.command());
        shadows
    }

    pub fn command(&self) -> SubmissionEntry {
        configure(self.doorbells.0, self.events.0)
    }

    pub fn offset(&self, queue: QueueId, kind: DoorbellKind) -> u64 {
        4 * doorbell_index(queue, kind, self.stride) as u64
    }

    pub fn shadow(&self, host: &Host, queue: QueueId, kind: DoorbellKind) -> u32 {
        host.memory.dword(self.doorbells.offset(self.offset(queue, kind)))
    }

    pub fn event(&self, host: &Host, queue: QueueId, kind: DoorbellKind) -> u32 {
        host.memory.dword(self.events.offset(self.offset(queue, kind)))
    }

    /// Stores a shadow, and rings nothing.
    pub fn store(&self, host: &Host, queue: QueueId, kind: DoorbellKind, value: u32) {
        host.memory.store_dword(self.doorbells.offset(self.offset(queue, kind)), value);
    }

    /// What a host has to do: store, and ring if it is asked to. Answers whether it was.
    pub fn say(&self, host: &Host, queue: QueueId, kind: DoorbellKind, value: u32) -> bool {
        let old = self.shadow(host, queue, kind);
        self.store(host, queue, kind, value);
        fence(Ordering::SeqCst);
        let must_ring = is_passed(self.event(host, queue, kind), old, value);
        if must_ring {
            host.ring(queue, kind, value);
        }
        must_ring
    }
}

pub fn configure(doorbells: u64, events: u64) -> SubmissionEntry {
    let entry = SubmissionEntry::with_opcode(AdminOpcode::DoorbellBufferConfig.raw(), Nsid(0));
    SubmissionEntry { prp1: doorbells, prp2: events, ..entry }
}

/// Whether a step from `old` to `new` passes an event index: by walking it, not by arithmetic.
pub fn is_passed(event: u32, old: u32, new: u32) -> bool {
    let (event, mut at, new) = (event as u16, old as u16, new as u16);
    while at != new {
        if at == event {
            return true;
        }
        at = at.wrapping_add(1);
    }
    false
}

pub fn read(cid: u16) -> SubmissionEntry {
    let entry = SubmissionEntry::block_range(NvmOpcode::Read, Nsid(1), Lba(0), Blocks(1), 0);
    SubmissionEntry { cid, prp1: BASE, ..entry }
}

/// One read through the shadows alone: no register is written.
pub fn silent_read(host: &Host, shadows: &Shadows, pair: &mut Pair, cid: u16) {
    host.post_raw(pair, &read(cid));
    shadows.store(host, pair.id, SubmissionTail, pair.tail);
    host.device.step(8);
    assert_eq!(host.reap(pair).expect("completed").cid, cid);
    shadows.store(host, pair.id, CompletionHead, pair.head);
}
