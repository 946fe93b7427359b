//! The quick step is a short cut: what a host sees and what is reported are the same without it.
//!
//! The same host drives two controllers. One has a rule armed that never fires, so that every step of it is
//! a general one; the other takes the short cut wherever it can.

mod host;

use std::time::Duration;

use doorbell_emulator::fault::{Action, Match, Rule};
use doorbell_emulator::{NamespaceConfig, Report};
use doorbell_spec::command::NvmOpcode;
use doorbell_spec::register::DoorbellKind;
use doorbell_spec::{Blocks, Lba, Nsid, SubmissionEntry};
use host::{BASE, Host, Pair};

/// Knuth's linear congruential generator.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Mostly reads and writes that are fine, and everything that is nearly so.
fn any_command(random: &mut Random) -> SubmissionEntry {
    let opcode = match random.below(12) {
        0 => NvmOpcode::Flush,
        1 => NvmOpcode::WriteZeroes,
        2 => NvmOpcode::Compare,
        3..=7 => NvmOpcode::Write,
        _ => NvmOpcode::Read,
    };
    let nsid = if random.below(10) == 0 { random.below(5) as u32 } else { 1 };
    let lba = match random.below(12) {
        0 => u64::MAX - random.below(3),
        1 => 2040 + random.below(16),
        _ => random.below(2000),
    };
    let blocks = if random.below(12) == 0 { 17 } else { 1 + random.below(8) as u32 };
    let mut entry = SubmissionEntry::block_range(opcode, Nsid(nsid), Lba(lba), Blocks(blocks), 0);
    (entry.prp1, entry.cid) = (BASE, random.below(0xffff) as u16);
    entry.flags = u8::from(random.below(40) == 0);
    entry
}

/// Everything that a host can see of a run.
struct Seen {
    completions: Vec<[u32; 4]>,
    report: Report,
}

fn drive(config: &str, seed: u64, rule: Option<Rule>) -> Seen {
    let mut random = Random(seed);
    let mut host = Host::new(config);
    if let Some(rule) = rule {
        host.device.faults().arm(rule);
    }
    let sizes = [(64, 64), (5, 3), (9, 40)];
    let mut pairs: Vec<Pair> = (1..).zip(sizes).map(|(id, (sq, cq))| host.queue(id, sq, cq)).collect();
    let mut seen = Seen { completions: Vec::new(), report: Report::default() };
    for round in 0..400 {
        let pair = &mut pairs[random.below(3) as usize];
        let room = (pair.head.max(1) + 1) % 4 + 1;
        for _ in 0..random.below(u64::from(room)) {
            host.post_raw(pair, &any_command(&mut random));
        }
        match random.below(30) {
            0 => host.ring(pair.id, DoorbellKind::SubmissionTail, 1000),
            1 => host.ring(pair.id, DoorbellKind::CompletionHead, pair.cq_entries),
            _ => host.ring_tail(pair),
        }
        match round {
            150 => host.device.detach_namespace(Nsid(1)).expect("it was there"),
            200 => {
                let mut namespace = NamespaceConfig::default();
                (namespace.bytes, namespace.backend) =
                    (Some(1 << 20), doorbell_emulator::BackendConfig::Null);
                host.device.attach_namespace(&namespace).expect("it was not there");
            }
            _ => {}
        }
        // Whose turn it is may differ between the two; once all is done, nothing may.
        for _ in 0..40 {
            host.device.step(1 + random.below(40) as usize);
            host.clock.advance(Duration::from_micros(2));
        }
        for pair in &mut pairs {
            while let Some(entry) = host.reap(pair) {
                seen.completions.push([entry.dw0, entry.dw1, entry.dw2(), entry.dw3()]);
            }
            host.ring_head(pair);
        }
    }
    seen.report = host.device.report();
    seen
}

#[test]
fn the_short_cut_is_not_to_be_seen() {
    let never = || Rule::new(Match { opcode: Some(0xfe), ..Match::default() }, Action::Drop);
    for config in [
        "backend=null,size=1M",
        "backend=null,size=1M,nsid=1+2+3,mdts=8k",
        "backend=null,size=1M,readonly=on",
        "backend=null,size=1M,latency=3us,units=2",
        "backend=null,size=1M,cid_below_depth=on",
        "size=1M,stride=3",
    ] {
        for seed in 0..20 {
            let quick = drive(config, seed, None);
            let general = drive(config, seed, Some(never()));
            assert_eq!(quick.completions, general.completions, "{config} {seed}");
            assert!(quick.completions.len() > 50, "{config} {seed}");
            assert_eq!(format!("{:?}", quick.report), format!("{:?}", general.report), "{config} {seed}");
        }
    }
}

#[test]
fn a_step_that_finds_nothing_does_nothing_and_sees_the_next_thing_at_once() {
    let mut host = Host::new("backend=null");
    let mut pair = host.queue(1, 8, 8);
    while host.device.step(8) > 0 {}
    for round in 0..20_u16 {
        assert_eq!(host.device.step(8), 0);
        host.post(&mut pair, any_command(&mut Random(u64::from(round))));
        host.ring_tail(&pair);
        assert_eq!(host.device.step(8), 1);
        host.reap(&mut pair).expect("completed");
        host.ring_head(&pair);
    }
    // A register, an event, and a mapping are noticed as a doorbell is.
    host.admin_ok(SubmissionEntry::query_features(doorbell_spec::feature::Feature::Arbitration, Nsid(0)));
    while host.device.step(8) > 0 {}
    host.disable();
    assert!(!host.csts().ready());
    assert_eq!(host.device.step(8), 0);
}
