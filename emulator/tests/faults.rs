//! The fault plan, one action at a time, on commands, registers and bring-up.

mod host;

use std::time::Duration;

use doorbell_emulator::EmulatorConfig;
use doorbell_emulator::fault::{Action, Match, Point, Rule};
use doorbell_spec::command::NvmOpcode;
use doorbell_spec::{Blocks, BusEvent, Cid, Lba, Nsid, QueueId, Status, SubmissionEntry, Transport};
use host::{Host, Pair};

fn read(prp1: u64) -> SubmissionEntry {
    let entry = SubmissionEntry::block_range(NvmOpcode::Read, Nsid(1), Lba(0), Blocks(1), 0);
    SubmissionEntry { prp1, ..entry }
}

/// A host with one queue, and a rule for the next I/O command.
fn host_with(action: Action) -> (Host, Pair, u64) {
    let mut host = Host::new("size=1M");
    let pair = host.queue(1, 8, 8);
    let data = host.memory.alloc(4096);
    host.device
        .faults()
        .arm(Rule::new(Match { point: Point::Io, count: Some(1), ..Match::default() }, action));
    (host, pair, data.0)
}

fn fired(host: &Host) -> u64 {
    host.device.faults().counts()[0].1
}

#[test]
fn a_status_is_answered_and_the_command_not_executed() {
    let (host, mut pair, data) = host_with(Action::Status(Status::WRITE_FAULT));
    host.memory.write(doorbell_spec::Iova(data), &[7; 512]);
    let write = SubmissionEntry { opcode: NvmOpcode::Write.raw(), ..read(data) };
    assert_eq!(host.run(&mut pair, write).status(), Status::WRITE_FAULT);
    assert!(host.run(&mut pair, read(data)).status().is_success());
    assert_eq!(host.memory.read(doorbell_spec::Iova(data), 512), [0; 512]);
    assert_eq!(fired(&host), 1);
}

#[test]
fn a_delay_holds_nothing_else_up_and_can_be_aborted() {
    let (mut host, mut pair, data) = host_with(Action::Delay(Duration::from_secs(3)));
    let slow = host.post(&mut pair, read(data));
    let fast = host.post(&mut pair, read(data));
    host.ring_tail(&pair);
    host.device.step(8);
    assert_eq!(host.reap(&mut pair).expect("the second").cid, fast);
    let due = host.device.next_due().expect("the first");
    assert_eq!(due.since(host.clock.now()), 3_000_000_000);
    assert_eq!(host.admin_ok(SubmissionEntry::abort(QueueId(1), Cid(slow))).dw0, 0);
    assert_eq!(host.reap(&mut pair).expect("aborted").status().kind(), Status::ABORT_REQUESTED);
}

#[test]
fn a_dropped_command_is_lost_and_no_abort_finds_it() {
    let (mut host, mut pair, data) = host_with(Action::Drop);
    let lost = host.post(&mut pair, read(data));
    host.ring_tail(&pair);
    host.device.step(8);
    host.clock.advance(Duration::from_secs(1000));
    host.device.step(8);
    assert!(host.reap(&mut pair).is_none());
    assert_eq!(host.admin_ok(SubmissionEntry::abort(QueueId(1), Cid(lost))).dw0, 1);
    assert!(host.run(&mut pair, read(data)).status().is_success(), "the next is fine");
}

#[test]
fn completions_can_be_wrong_in_every_field() {
    let (host, mut pair, data) = host_with(Action::Duplicate);
    let cid = host.post(&mut pair, read(data));
    host.ring_tail(&pair);
    assert_eq!([host.wait(&mut pair).cid, host.wait(&mut pair).cid], [cid, cid]);

    let (host, mut pair, data) = host_with(Action::WrongCid(0xffff));
    host.post(&mut pair, read(data));
    host.ring_tail(&pair);
    assert_eq!(host.wait(&mut pair).cid, 0xffff);

    let (host, mut pair, data) = host_with(Action::WrongSqHead(0x1234));
    assert_eq!(host.run(&mut pair, read(data)).sq_head, 0x1234);
    assert_eq!(host.run(&mut pair, read(data)).sq_head, 2, "only once");

    let (host, mut pair, data) = host_with(Action::WrongPhase);
    host.post(&mut pair, read(data));
    host.ring_tail(&pair);
    host.device.step(8);
    assert!(host.reap(&mut pair).is_none(), "nothing to be seen");
    let dw3 = host.memory.dword(pair.cq.offset(12));
    assert_eq!(dw3, 0, "identifier 0, success, the old phase");
    host.post(&mut pair, read(data));
    host.ring_tail(&pair);
    host.device.step(8);
    assert_eq!(host.memory.dword(pair.cq.offset(28)), 1 << 16 | 1, "the next lies behind it");
}

#[test]
fn a_completion_can_name_another_queue() {
    let (host, mut pair, data) = host_with(Action::WrongSqId(0x4321));
    assert_eq!(host.run(&mut pair, read(data)).sq_id, 0x4321);
    assert_eq!(host.run(&mut pair, read(data)).sq_id, 1, "only once");
}

#[test]
fn a_paused_controller_does_nothing_until_its_time_is_over() {
    let (mut host, mut pair, data) = host_with(Action::Pause(Duration::from_millis(5)));
    let mut other = host.queue(2, 8, 8);
    for pair in [&mut pair, &mut other] {
        host.post(pair, read(data));
        host.post(pair, read(data));
        host.ring_tail(pair);
    }
    assert_eq!(host.device.step(8), 1, "the one at which it stops");
    host.clock.advance(Duration::from_micros(4999));
    assert_eq!(host.device.step(8), 0);
    assert!(host.csts().ready() && !host.csts().fatal(), "nothing is said of it");
    assert_eq!(host.device.next_due(), Some(host.clock.now().after(Duration::from_micros(1))));
    assert_eq!(host.device.report().outstanding, 1);
    host.clock.advance(Duration::from_micros(1));
    while host.device.step(8) > 0 {}
    for pair in [&mut pair, &mut other] {
        assert!(host.reap(pair).is_some() && host.reap(pair).is_some());
    }
    assert_eq!(fired(&host), 1);

    // A reset ends a pause.
    let (mut host, mut pair, data) = host_with(Action::Pause(Duration::from_secs(1000)));
    host.post(&mut pair, read(data));
    host.ring_tail(&pair);
    host.device.step(8);
    host.disable();
    host.enable();
    let mut pair = host.queue(1, 8, 8);
    assert!(host.run(&mut pair, read(data)).status().is_success());
}

#[test]
fn commands_that_are_put_off_complete_in_another_order() {
    for latency in ["", ",latency=10us"] {
        let mut host = Host::new(&format!("size=1M{latency}"));
        let mut pair = host.queue(1, 16, 16);
        let data = host.memory.alloc(4096).0;
        let matches = Match { point: Point::Io, skip: 1, count: Some(3), ..Match::default() };
        host.device.faults().arm(Rule::new(matches, Action::Reorder));
        for _ in 0..6 {
            host.post(&mut pair, read(data));
        }
        host.ring_tail(&pair);
        let order: Vec<u16> = (0..6).map(|_| host.wait(&mut pair).cid).collect();
        assert_eq!(order, [0, 4, 5, 3, 2, 1], "{latency}");
        assert_eq!(host.device.report().outstanding, 0);
        assert!(host.device.report().is_clean());
    }
}

#[test]
fn a_command_that_is_put_off_completes_before_its_queue_is_deleted() {
    let mut host = Host::new("size=1M");
    let mut pair = host.queue(1, 8, 8);
    let data = host.memory.alloc(4096).0;
    let rule = Rule::new(Match { point: Point::Io, ..Match::default() }, Action::Reorder);
    host.device.faults().arm(rule);
    host.post(&mut pair, read(data));
    host.ring_tail(&pair);
    let mut admin = std::mem::replace(&mut host.admin, Pair::nothing());
    host.post(&mut admin, SubmissionEntry::delete_submission_queue(QueueId(1)));
    host.ring_tail(&admin);
    // Whichever queue has its turn first, no command is lost without an answer.
    while host.device.step(8) > 0 {}
    assert!(host.reap(&mut admin).expect("deleted").status().is_success());
    let is_taken = host.device.report().io_commands.contains_key(&NvmOpcode::Read.raw());
    assert_eq!(host.reap(&mut pair).is_some(), is_taken);
}

#[test]
fn corrupt_data_is_one_bit_wrong_and_a_read_leaves_the_block_whole() {
    let (host, mut pair, data) = host_with(Action::Corrupt);
    let at = doorbell_spec::Iova(data);
    assert!(host.run(&mut pair, read(data)).status().is_success());
    let wrong: u32 = host.memory.read(at, 512).iter().map(|byte| byte.count_ones()).sum();
    assert_eq!(wrong, 1);
    assert!(host.run(&mut pair, read(data)).status().is_success());
    assert_eq!(host.memory.read(at, 512), [0; 512]);

    let (host, mut pair, data) = host_with(Action::Corrupt);
    let write = SubmissionEntry { opcode: NvmOpcode::Write.raw(), ..read(data) };
    assert!(host.run(&mut pair, write).status().is_success());
    assert!(host.run(&mut pair, read(data)).status().is_success());
    assert_ne!(host.memory.read(doorbell_spec::Iova(data), 512), [0; 512], "stored wrong");
}

#[test]
fn a_fatal_controller_stops_until_it_is_reset() {
    let (mut host, mut pair, data) = host_with(Action::Fatal);
    host.post(&mut pair, read(data));
    host.ring_tail(&pair);
    host.device.step(8);
    assert!(host.csts().fatal() && host.csts().ready());
    host.clock.advance(Duration::from_secs(10));
    assert_eq!(host.device.step(8), 0);
    assert!(host.reap(&mut pair).is_none());
    host.disable();
    assert!(!host.csts().fatal());
    host.enable();
}

#[test]
fn a_command_can_make_the_device_disappear() {
    let (host, mut pair, data) = host_with(Action::AllOnes);
    host.post(&mut pair, read(data));
    host.ring_tail(&pair);
    host.device.step(8);
    assert!(host.csts().is_removed() && host.reap(&mut pair).is_none());
    assert_eq!(host.device.poll_event(), Some(BusEvent::Removed));
}

fn cold(rule: &str) -> Host {
    let host = Host::cold(EmulatorConfig::default());
    host.device.faults().arm(rule.parse().expect("a rule"));
    host
}

#[test]
fn registers_read_as_ones_from_the_nth_read_on() {
    for nth in 0..4 {
        let host = cold(&format!("at=register_read skip={nth} action=all_ones"));
        let reads: Vec<bool> = (0..6).map(|_| host.csts().is_removed()).collect();
        assert_eq!(reads.iter().filter(|removed| !**removed).count(), nth);
        assert!(reads[nth..].iter().all(|removed| *removed));
    }
    let host = cold("at=register_read register=0x1c action=all_ones");
    assert_eq!(host.device.read32(0x08).expect("VS"), 0x2_0000);
    assert!(host.csts().is_removed());
}

#[test]
fn enabling_can_fail_in_three_ways() {
    let mut host = cold("at=enable count=1 action=fatal");
    host.start();
    assert!(host.csts().fatal() && !host.csts().ready());
    host.disable();
    host.enable();

    let mut host = cold("at=enable count=1 action=never_ready");
    host.start();
    host.clock.advance(Duration::from_secs(1000));
    assert!(!host.csts().ready() && !host.csts().fatal());
    host.disable();
    host.enable();

    let mut host = cold("at=enable count=1 action=delay:5s");
    host.start();
    host.clock.advance(Duration::from_millis(4999));
    assert!(!host.csts().ready());
    host.clock.advance(Duration::from_millis(1));
    assert!(host.csts().ready());
}

#[test]
fn a_plan_comes_from_a_file_and_is_printed_as_it_can_be_read() {
    let path = std::env::temp_dir().join(format!("doorbell-plan-{}.toml", std::process::id()));
    let text =
        "size = \"1M\"\n[[fault]]\nat = \"io\"\nopcode = 2\nskip = 1\ncount = 1\naction = \"status:2/81\"\n";
    std::fs::write(&path, text).expect("written");
    let mut host = Host::new(&format!("@{}", path.display()));
    std::fs::remove_file(&path).expect("removed");
    let mut pair = host.queue(1, 8, 8);
    let data = host.memory.alloc(4096).0;
    let ends: Vec<bool> = (0..3).map(|_| host.run(&mut pair, read(data)).status().is_success()).collect();
    assert_eq!(ends, [true, false, true]);
    let printed = host.device.faults().to_string();
    assert_eq!(printed, "at=io opcode=0x02 skip=1 count=1 action=status:2/81 # fired 1 times\n");
    assert!(host.device.identity().name.starts_with("emu:@"));
}
