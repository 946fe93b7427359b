//! The controller on a thread of its own: latency that is kept, memory that is given back, and its end.

mod host;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use doorbell_emulator::{Emulator, EmulatorConfig};
use doorbell_spec::command::NvmOpcode;
use doorbell_spec::{Blocks, BusMastering, Lba, Nsid, SubmissionEntry, Transport};
use host::{BASE, Host};

fn read(cid: u16) -> SubmissionEntry {
    let entry = SubmissionEntry::block_range(NvmOpcode::Read, Nsid(1), Lba(0), Blocks(8), 0);
    SubmissionEntry { cid, prp1: BASE, ..entry }
}

#[test]
fn a_thread_serves_commands_without_being_stepped() {
    let mut host = Host::threaded("backend=mem,size=1M");
    let mut pair = host.queue(1, 64, 64);
    for round in 0..2000 {
        host.post_raw(&mut pair, &read(round));
        host.ring_tail(&pair);
        assert_eq!(host.wait(&mut pair).cid, round);
    }
    // Long idle, and then a command again: the nap is bounded.
    std::thread::sleep(Duration::from_millis(50));
    host.post_raw(&mut pair, &read(0));
    host.ring_tail(&pair);
    assert_eq!(host.wait(&mut pair).cid, 0);
    assert!(host.device.report().is_clean());
}

#[test]
fn a_millisecond_of_latency_is_one_and_four_at_a_time_overlap() {
    let mut host = Host::threaded("backend=null,size=1G,latency=1ms");
    let mut pair = host.queue(1, 64, 64);
    for cid in 0..4 {
        host.post_raw(&mut pair, &read(cid));
    }
    host.ring_tail(&pair);
    let (start, mut completed) = (Instant::now(), 0_u32);
    while completed < 800 {
        match host.reap(&mut pair) {
            Some(end) => {
                completed += 1;
                host.post_raw(&mut pair, &read(end.cid));
                host.ring_tail(&pair);
                host.ring_head(&pair);
            }
            None => std::thread::yield_now(),
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let per_second = f64::from(completed) / seconds;
    println!("{per_second:.0} per second");
    // Never faster than the latency allows, whatever the machine does meanwhile; how close a busy machine
    // comes to that is no test's business.
    assert!(per_second <= 4000.0 * 1.01, "{per_second:.0}");
}

#[test]
fn unmap_returns_only_when_no_access_is_under_way() {
    let mut host = Host::threaded("backend=mem,size=16M,mdts=0");
    let mut pair = host.queue(1, 64, 64);
    let mapper = host.device.mapper();
    let bytes = 1 << 20;
    let mut other = memmap2::MmapMut::map_anon(bytes).expect("memory");
    for round in 0..50_u16 {
        host::map(&*mapper, 0x9_0000_0000, &mut other);
        // One long transfer over and over, through the window that is about to close.
        let list = host.memory.alloc(4096);
        for page in 0..255_u64 {
            host.memory.write(list.offset(page * 8), &(0x9_0000_1000 + page * 4096).to_le_bytes());
        }
        let entry = SubmissionEntry::block_range(NvmOpcode::Read, Nsid(1), Lba(0), Blocks(2048), 0);
        for cid in 0..8 {
            let entry = SubmissionEntry { cid, prp1: 0x9_0000_0000, prp2: list.0, ..entry };
            host.post_raw(&mut pair, &entry);
        }
        host.ring_tail(&pair);
        std::thread::sleep(Duration::from_micros(u64::from(round) * 7));
        host::unmap(&*mapper, 0x9_0000_0000, bytes).expect("unmapped");
        // From here on the memory is ours: what we write stays, whatever the device is at.
        other.fill(0xa5);
        for _ in 0..8 {
            host.wait(&mut pair);
        }
        assert!(other.iter().all(|byte| *byte == 0xa5), "round {round}");
    }
}

#[test]
fn registers_answer_while_the_thread_is_busy() {
    let mut host = Host::threaded("backend=null");
    let mut pair = host.queue(1, 1024, 1024);
    let stop = Arc::new(AtomicBool::new(false));
    let (device, told) = (Arc::clone(&host.device), Arc::clone(&stop));
    let reader = std::thread::spawn(move || {
        let mut reads = 0_u64;
        while !told.load(Ordering::Relaxed) {
            device.read32(doorbell_spec::register::CSTS).expect("CSTS");
            reads += 1;
        }
        reads
    });
    for round in 0..2000_u16 {
        for cid in 0..64 {
            host.post_raw(&mut pair, &read(round % 512 * 64 + cid));
        }
        host.ring_tail(&pair);
        for _ in 0..64 {
            host.wait(&mut pair);
        }
    }
    stop.store(true, Ordering::Relaxed);
    assert!(reader.join().expect("the reader") > 10);
}

#[test]
fn the_thread_ends_with_its_last_owner_and_an_idle_one_rests() {
    let device = Emulator::spawn(EmulatorConfig::default()).expect("a controller");
    let second = Arc::clone(&device);
    drop(device);
    host::set_bus_mastering(&second, BusMastering::On).expect("alive");
    let doorbells = host::doorbells(&second, 8).expect("doorbells");
    // Dropping joins: if the thread did not end, neither would this test.
    drop(second);
    // A doorbell that outlives the controller leads to memory, not to a crash.
    doorbells.at(0).expect("inside").ring(1);
}

#[test]
fn an_interrupt_is_signalled_once_a_step() {
    use std::io::Read;
    use std::os::fd::AsFd;
    let mut host = Host::new("backend=null,vectors=3");
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    // A pipe instead of an eventfd: every signal is eight bytes in it.
    host.device.set_interrupt(2, Some(writer.as_fd())).expect("a vector");
    assert!(host.device.set_interrupt(3, None).is_err());
    let id = doorbell_spec::QueueId(1);
    let mut pair = host::Pair::new(&mut host.memory, id, 8, 8);
    host.admin_ok(SubmissionEntry::create_completion_queue(id, 8, pair.cq, Some(2)));
    host.admin_ok(SubmissionEntry::create_submission_queue(id, 8, pair.sq));
    for cid in 0..3 {
        host.post_raw(&mut pair, &read(cid));
    }
    host.ring_tail(&pair);
    host.device.step(8);
    host.device.set_interrupt(2, None).expect("a vector");
    host.run(&mut pair, read(0));
    drop(writer);
    let mut signals = Vec::new();
    reader.read_to_end(&mut signals).expect("closed");
    assert_eq!(signals, 1_u64.to_ne_bytes());
}

#[test]
fn two_controllers_share_one_address_space() {
    let clock = doorbell_spec::Clock::virtual_time();
    let space = Arc::new(doorbell_emulator::IovaSpace::new(48, None));
    let make = || Emulator::in_space(EmulatorConfig::default(), clock.clone(), Arc::clone(&space));
    let (first, second) = (make().expect("one"), make().expect("two"));
    let mut page = memmap2::MmapMut::map_anon(4096).expect("memory");
    host::map(&*first.mapper(), 0x9_0000_0000, &mut page);
    assert!(host::unmap(&*second.mapper(), 0x9_0000_0000, 4096).is_ok());
}
