//! A host that sends anything: the controller neither panics, nor hangs, nor touches what is not mapped.
//!
//! A seeded loop, so that a failing seed (it is in the message) can be run again.

mod host;

use std::time::Duration;

use doorbell_emulator::fault::{Action, Match, Rule};
use doorbell_spec::command::AdminOpcode;
use doorbell_spec::register::DoorbellKind;
use doorbell_spec::{Iova, QueueId, SubmissionEntry, Transport};
use host::{BASE, Host, Pair};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// A number that is often at an edge.
    fn edge(&mut self) -> u64 {
        match self.below(6) {
            0 => self.below(4),
            1 => u64::MAX - self.below(4),
            2 => 1 << self.below(64),
            3 => (1 << self.below(64)) - 1,
            4 => self.below(300),
            _ => self.next(),
        }
    }

    /// An address that is often inside of the host's memory, or just at its end.
    fn address(&mut self) -> u64 {
        match self.below(8) {
            0 => self.edge(),
            1 => BASE + (64 << 20) - self.below(8192),
            2 => BASE + self.below(64 << 20),
            // The host's queues lie in the first pages; what is written there comes back as commands.
            _ => {
                BASE + (8 << 20)
                    + (self.below(4000) << 12)
                    + if self.below(4) == 0 { self.below(4096) } else { 0 }
            }
        }
    }
}

fn any_entry(random: &mut Random, opcodes: &[u8]) -> SubmissionEntry {
    let opcode = match random.below(5) {
        0 => random.next() as u8,
        _ => opcodes[random.below(opcodes.len() as u64) as usize],
    };
    let lba = if random.below(3) == 0 { random.edge() } else { random.below(2048) };
    SubmissionEntry {
        opcode,
        flags: if random.below(10) == 0 { random.next() as u8 } else { 0 },
        cid: random.below(64) as u16,
        nsid: if random.below(4) == 0 { random.edge() as u32 } else { 1 },
        prp1: random.address(),
        prp2: random.address(),
        cdw10: lba as u32,
        cdw11: (lba >> 32) as u32,
        cdw12: if random.below(4) == 0 { random.next() as u32 } else { random.below(64) as u32 },
        cdw13: if random.below(8) == 0 { random.edge() as u32 } else { 0 },
        ..SubmissionEntry::default()
    }
}

/// Drains what has completed; the content does not matter here.
fn drain(host: &Host, pair: &mut Pair) {
    for _ in 0..pair.cq_entries {
        if host.reap(pair).is_none() {
            break;
        }
    }
    host.ring_head(pair);
}

/// Asks for shadow doorbells, in pages that are good more often than not. Not every controller has them.
fn configure_shadows(random: &mut Random, host: &mut Host) {
    let opcode = AdminOpcode::DoorbellBufferConfig.raw();
    let prp2 = if random.below(4) == 0 { random.address() } else { SHADOWS.0 + 4096 };
    let entry = SubmissionEntry::with_opcode(opcode, doorbell_spec::Nsid(0));
    host.admin(SubmissionEntry { prp1: SHADOWS.0, prp2, ..entry });
}

/// Beyond everything else that the host has.
const SHADOWS: Iova = Iova(BASE + (63 << 20));

/// One thing that a host may do, or must not.
fn act(random: &mut Random, host: &mut Host, pair: &mut Pair) {
    match random.below(12) {
        0 => {
            // Any doorbell, any value.
            let queue = QueueId(random.below(4) as u16);
            let kind = if random.below(2) == 0 {
                DoorbellKind::SubmissionTail
            } else {
                DoorbellKind::CompletionHead
            };
            host.ring(queue, kind, random.edge() as u32);
            let shadow = SHADOWS.offset(4 * random.below(16));
            host.memory.store_dword(shadow, random.edge() as u32);
        }
        1 => {
            let offset = (random.below(0x40) * 4) as u32;
            let _ = host.device.read32(offset);
            if random.below(10) == 0 {
                host::write32(&host.device, offset, random.edge() as u32).expect("a register");
            }
        }
        2..=5 => {
            let opcodes = [0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 0x7c];
            let mut entry = any_entry(random, &opcodes);
            if random.below(2) == 0 {
                // Fields as queue commands have them: a small identifier and size.
                entry.cdw10 = (random.below(4) | random.below(16) << 16) as u32;
                entry.cdw11 = (random.below(4) | random.below(4) << 16) as u32;
            }
            let mut admin = std::mem::replace(&mut host.admin, Pair::nothing());
            host.post_raw(&mut admin, &entry);
            host.ring_tail(&admin);
            drain(host, &mut admin);
            host.admin = admin;
        }
        _ => {
            let entry = any_entry(random, &[0, 1, 2, 5, 8, 9, 12]);
            host.post_raw(pair, &entry);
            if random.below(3) > 0 {
                host.ring_tail(pair);
            }
        }
    }
}

fn round(seed: u64) {
    let mut random = Random(seed);
    let configs = [
        "size=1M,mdts=0",
        "backend=null,size=1M,latency=3us,units=2",
        "size=1M,lba=4096,mdts=8k,latency=10us,admin_latency=1us,queues=3,acl=0,aerl=0",
        "size=1M,mqes_z=7,stride=3,vwc=on,cid_below_depth=on",
        "size=1M,shadow_doorbells=on",
        "backend=null,size=1M,latency=3us,shadow_doorbells=io_only,shadow_polling=off",
    ];
    let config = configs[random.below(configs.len() as u64) as usize];
    let mut host = Host::new(config);
    let mut pair = host.queue(1, 8, 4);
    configure_shadows(&mut random, &mut host);
    if random.below(3) == 0 {
        let actions = [
            Action::Duplicate,
            Action::Drop,
            Action::WrongCid(9),
            Action::WrongSqId(9),
            Action::WrongPhase,
            Action::Corrupt,
            Action::Reorder,
            Action::Pause(Duration::from_micros(20)),
        ];
        let action = actions[random.below(8) as usize];
        host.device.faults().arm(Rule::new(Match { probability: 0.1, seed, ..Match::default() }, action));
    }
    for _ in 0..300 {
        act(&mut random, &mut host, &mut pair);
        if random.below(3) == 0 {
            host.device.relax(&host.clock);
            drain(&host, &mut pair);
        }
        // A controller that has failed or was disabled would make the rest of the round a dull one.
        if !host.csts().ready() || host.csts().fatal() {
            host.disable();
            host.device.faults().disarm_all();
            host.enable();
            pair = host.queue(1, 8, 4);
            configure_shadows(&mut random, &mut host);
        }
    }
    // Whatever was done to it, it moves on, reports, and starts again.
    for _ in 0..50 {
        host.device.relax(&host.clock);
    }
    let report = host.device.report();
    assert!(report.violations.len() <= 64 && report.access_faults.len() <= 64);
    host.device.faults().disarm_all();
    host.disable();
    host.enable();
    host.admin_ok(SubmissionEntry::query_features(
        doorbell_spec::feature::Feature::Arbitration,
        doorbell_spec::Nsid(0),
    ));
}

#[test]
fn nothing_that_a_host_sends_breaks_the_controller() {
    let rounds = std::env::var("HOSTILE_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(300);
    for seed in 0..rounds {
        let result = std::panic::catch_unwind(|| round(seed));
        assert!(result.is_ok(), "seed {seed} broke the controller");
    }
}
