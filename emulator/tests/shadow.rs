//! Shadow doorbells: what a host may leave out when it has them, what it may not, and what the controller
//! makes of a host that gets them wrong.

mod host;

use std::sync::atomic::{Ordering, fence};

use doorbell_emulator::{Access, EmulatorConfig, Violation};
use doorbell_spec::command::{AdminOpcode, NvmOpcode};
use doorbell_spec::feature::Feature;
use doorbell_spec::identify::{IdentifyKind, OACS_DOORBELL_BUFFER};
use doorbell_spec::register::DoorbellKind::{self, CompletionHead, SubmissionTail};
use doorbell_spec::register::doorbell_index;
use doorbell_spec::{Blocks, BusMastering, Iova, Lba, Nsid, QueueId, Status, SubmissionEntry, Transport};
use host::{BASE, Host, Pair};
use memmap2::MmapMut;

/// The host's side of shadow doorbells.
#[derive(Clone, Copy)]
struct Shadows {
    doorbells: Iova,
    events: Iova,
    stride: u8,
}

impl Shadows {
    /// Two pages of zeros, not configured yet.
    fn new(host: &mut Host) -> Self {
        let (doorbells, events) = (host.memory.alloc(4096), host.memory.alloc(4096));
        Self { doorbells, events, stride: host.stride }
    }

    /// Two pages, configured.
    fn configured(host: &mut Host) -> Self {
        let shadows = Self::new(host);
        host.admin_ok(shadows.command());
        shadows
    }

    fn command(&self) -> SubmissionEntry {
        configure(self.doorbells.0, self.events.0)
    }

    fn offset(&self, queue: QueueId, kind: DoorbellKind) -> u64 {
        4 * doorbell_index(queue, kind, self.stride) as u64
    }

    fn shadow(&self, host: &Host, queue: QueueId, kind: DoorbellKind) -> u32 {
        host.memory.dword(self.doorbells.offset(self.offset(queue, kind)))
    }

    fn event(&self, host: &Host, queue: QueueId, kind: DoorbellKind) -> u32 {
        host.memory.dword(self.events.offset(self.offset(queue, kind)))
    }

    /// Stores a shadow, and rings nothing.
    fn store(&self, host: &Host, queue: QueueId, kind: DoorbellKind, value: u32) {
        host.memory.store_dword(self.doorbells.offset(self.offset(queue, kind)), value);
    }

    /// What a host has to do: store, and ring if it is asked to. Answers whether it was.
    fn say(&self, host: &Host, queue: QueueId, kind: DoorbellKind, value: u32) -> bool {
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

fn configure(doorbells: u64, events: u64) -> SubmissionEntry {
    let entry = SubmissionEntry::with_opcode(AdminOpcode::DoorbellBufferConfig.raw(), Nsid(0));
    SubmissionEntry { prp1: doorbells, prp2: events, ..entry }
}

/// Whether a step from `old` to `new` passes an event index: by walking it, not by arithmetic.
fn is_passed(event: u32, old: u32, new: u32) -> bool {
    let (event, mut at, new) = (event as u16, old as u16, new as u16);
    while at != new {
        if at == event {
            return true;
        }
        at = at.wrapping_add(1);
    }
    false
}

fn read(cid: u16) -> SubmissionEntry {
    let entry = SubmissionEntry::block_range(NvmOpcode::Read, Nsid(1), Lba(0), Blocks(1), 0);
    SubmissionEntry { cid, prp1: BASE, ..entry }
}

/// One read through the shadows alone: no register is written.
fn silent_read(host: &Host, shadows: &Shadows, pair: &mut Pair, cid: u16) {
    host.post_raw(pair, &read(cid));
    shadows.store(host, pair.id, SubmissionTail, pair.tail);
    host.device.step(8);
    assert_eq!(host.reap(pair).expect("completed").cid, cid);
    shadows.store(host, pair.id, CompletionHead, pair.head);
}

const IO: QueueId = QueueId(1);

#[test]
fn what_is_not_offered_is_an_invalid_opcode() {
    for (config, offered) in [
        ("", false),
        ("shadow_doorbells=off", false),
        ("shadow_doorbells=on", true),
        ("shadow_doorbells=io_only", true),
    ] {
        let mut host = Host::new(config);
        let id = host.identify(IdentifyKind::Controller, Nsid(0)).expect("identify");
        let oacs = u16::from_le_bytes([id[256], id[257]]);
        assert_eq!(oacs & OACS_DOORBELL_BUFFER != 0, offered, "{config}");
        let shadows = Shadows::new(&mut host);
        let status = host.admin(shadows.command()).status();
        assert_eq!(status.is_success(), offered, "{config}");
        assert!(offered || status.kind() == Status::INVALID_OPCODE);
    }
}

#[test]
fn pages_that_cannot_be_are_refused_and_change_nothing() {
    let mut host = Host::new("shadow_doorbells=on");
    let shadows = Shadows::new(&mut host);
    let (good, other) = (shadows.doorbells.0, shadows.events.0);
    for (doorbells, events) in
        [(good + 4, other), (good, other + 4), (good + 2048, other), (good, other | 1), (good, good)]
    {
        let status = host.admin(configure(doorbells, events)).status();
        assert_eq!(status.kind(), Status::INVALID_FIELD, "{doorbells:#x} {events:#x}");
        assert!(status.do_not_retry());
    }
    assert!(host.device.report().is_clean());
    for (doorbells, events) in [(0, other), (good, 0), (0xdead_0000, other), (good, u64::MAX - 4095)] {
        let status = host.admin(configure(doorbells, events)).status();
        assert_eq!(status.kind(), Status::DATA_TRANSFER_ERROR, "{doorbells:#x} {events:#x}");
    }
    assert_eq!(host.device.report().access_faults_total, 4);
    // Registers are all there is, still.
    let mut pair = host.queue(1, 8, 8);
    assert_eq!(host.run(&mut pair, read(0)).status(), Status::SUCCESS);
    assert_eq!(
        (host.memory.read(shadows.doorbells, 64), host.device.report().shadowed_rings),
        (vec![0; 64], 0)
    );
}

#[test]
fn a_page_is_as_large_as_the_controllers_pages() {
    let mut host = Host::new("shadow_doorbells=on,mpsmin=16k,queues=1000");
    let (doorbells, events) = (host.memory.alloc(16_384), host.memory.alloc(16_384));
    assert_eq!(host.admin(configure(doorbells.0 + 4096, events.0)).status().kind(), Status::INVALID_FIELD);
    host.admin_ok(configure(doorbells.0, events.0));
    let shadows = Shadows { doorbells, events, stride: 0 };
    let mut pair = host.queue(1000, 8, 8);
    assert!(shadows.offset(pair.id, SubmissionTail) > 4096, "beyond the first 4 KiB");
    silent_read(&host, &shadows, &mut pair, 0);
    assert!(host.device.report().is_clean());
}

#[test]
fn doorbells_that_do_not_fit_a_page_are_not_offered() {
    for config in ["queues=600", "stride=4", "mpsmin=8k,queues=1100"] {
        let text = format!("shadow_doorbells=on,{config}");
        let refused = text.parse::<EmulatorConfig>().expect_err("refused");
        assert!(refused.to_string().contains("do not fit a page"), "{config}");
    }
}

#[test]
fn queues_of_before_and_after_and_the_admin_queue_need_no_register() {
    for stride in ["0", "2"] {
        let mut host = Host::new(&format!("shadow_doorbells=on,queues=8,stride={stride}"));
        let mut before = host.queue(2, 8, 8);
        assert!(host.run(&mut before, read(7)).status().is_success());
        let shadows = Shadows::configured(&mut host);
        assert_eq!(shadows.shadow(&host, before.id, SubmissionTail), 1, "where the queue stands");
        assert_eq!(shadows.shadow(&host, before.id, CompletionHead), 1);
        let mut after = host.queue(1, 4, 4);
        for cid in 0..20 {
            silent_read(&host, &shadows, &mut before, cid);
            silent_read(&host, &shadows, &mut after, cid);
        }
        for _ in 0..2 * host::ADMIN_ENTRIES {
            let mut admin = std::mem::replace(&mut host.admin, Pair::nothing());
            host.post(&mut admin, SubmissionEntry::query_features(Feature::Arbitration, Nsid(0)));
            shadows.store(&host, admin.id, SubmissionTail, admin.tail);
            host.device.step(8);
            assert!(host.reap(&mut admin).expect("completed").status().is_success());
            shadows.store(&host, admin.id, CompletionHead, admin.head);
            host.admin = admin;
        }
        assert!(host.device.report().is_clean(), "{:?}", host.device.report());
    }
}

#[test]
fn registers_count_as_long_as_shadows_are_not_used() {
    let mut host = Host::new("shadow_doorbells=on,backend=null");
    let mut before = host.queue(1, 4, 4);
    Shadows::configured(&mut host);
    let mut after = host.queue(2, 4, 4);
    for cid in 0..20 {
        assert!(host.run(&mut before, read(cid)).status().is_success());
        assert!(host.run(&mut after, read(cid)).status().is_success());
    }
    assert!(host.device.report().is_clean());
}

#[test]
fn the_admin_queue_can_be_left_out() {
    let mut host = Host::new("shadow_doorbells=io_only");
    let shadows = Shadows::configured(&mut host);
    let mut admin = std::mem::replace(&mut host.admin, Pair::nothing());
    host.post(&mut admin, SubmissionEntry::query_features(Feature::Arbitration, Nsid(0)));
    shadows.store(&host, admin.id, SubmissionTail, admin.tail);
    host.device.step(8);
    assert!(host.reap(&mut admin).is_none(), "nobody looks there");
    host.ring_tail(&admin);
    host.device.step(8);
    assert!(host.reap(&mut admin).is_some());
    host.ring_head(&admin);
    host.device.step(8);
    assert_eq!(shadows.event(&host, admin.id, SubmissionTail), 0, "and nobody asks");
    host.admin = admin;
    let mut pair = host.queue(1, 8, 8);
    silent_read(&host, &shadows, &mut pair, 0);
    assert!(host.device.report().is_clean());
}

#[test]
fn a_busy_controller_asks_for_nothing_and_an_idle_one_is_rung() {
    for (config, is_polled) in [("", true), (",shadow_polling=off", false)] {
        let mut host = Host::new(&format!("shadow_doorbells=on,backend=null{config}"));
        let shadows = Shadows::configured(&mut host);
        for (id, entries) in [(1, 2), (2, 3), (3, 8), (4, 256)] {
            let mut pair = host.queue(id, entries, entries);
            for round in 0..4 * entries as u16 {
                while host.device.step(8) > 0 {}
                host.post_raw(&mut pair, &read(round));
                let is_rung = shadows.say(&host, pair.id, SubmissionTail, pair.tail);
                assert!(is_rung, "{entries} {round}: idle");
                assert_eq!(host.device.step(1), 1);
                if entries > 2 && round % 3 == 0 {
                    let old = pair.tail;
                    host.post_raw(&mut pair, &read(round));
                    let event = shadows.event(&host, pair.id, SubmissionTail);
                    assert!(!is_passed(event, old, pair.tail), "{entries} {round}: {event} is busy");
                    shadows.say(&host, pair.id, SubmissionTail, pair.tail);
                    assert_eq!(host.device.step(1), 1, "it looks by itself");
                }
                while host.reap(&mut pair).is_some() {}
                shadows.say(&host, pair.id, CompletionHead, pair.head);
            }
        }
        let report = host.device.report();
        assert!(report.is_clean(), "{report:?}");
        assert!(report.shadowed_rings > 0 && report.shadowed_rings < 2 * report.tail_doorbells);
        // One that is not rung for is not seen, unless shadows are looked at all the same.
        let mut pair = host.queue(5, 8, 8);
        while host.device.step(8) > 0 {}
        host.post_raw(&mut pair, &read(0));
        shadows.store(&host, pair.id, SubmissionTail, pair.tail);
        assert_eq!(host.device.step(8) > 0, is_polled);
    }
}

#[test]
fn a_register_that_is_rung_late_takes_nothing_back() {
    let mut host = Host::new("shadow_doorbells=on,backend=null");
    let shadows = Shadows::configured(&mut host);
    let mut pair = host.queue(1, 8, 8);
    for round in 0..40 {
        let late = pair.tail;
        silent_read(&host, &shadows, &mut pair, round);
        // The value that another thread of the host was about to ring when it lost the processor.
        host.ring(pair.id, SubmissionTail, late);
        host.ring(pair.id, CompletionHead, late);
        host.device.step(8);
        assert!(host.reap(&mut pair).is_none());
    }
    assert!(host.device.report().is_clean(), "{:?}", host.device.report());
}

#[test]
fn room_in_a_completion_queue_is_seen_through_its_shadow() {
    for config in ["", ",shadow_polling=off", ",latency=10us"] {
        let mut host = Host::new(&format!("shadow_doorbells=on,backend=null{config}"));
        let shadows = Shadows::configured(&mut host);
        let mut pair = host.queue(1, 64, 4);
        for cid in 0..40 {
            host.post_raw(&mut pair, &read(cid));
        }
        shadows.say(&host, IO, SubmissionTail, pair.tail);
        let (mut seen, mut rings) = (0, 0);
        for _ in 0..200 {
            host.device.relax(&host.clock);
            while host.reap(&mut pair).is_some() {
                seen += 1;
            }
            rings += u32::from(shadows.say(&host, IO, CompletionHead, pair.head));
        }
        assert_eq!(seen, 40, "{config}");
        assert!(rings < 16, "{config}: {rings} rings for 40 completions, three at a time");
        assert!(host.device.report().is_clean(), "{config}");
    }
}

#[test]
fn a_reset_forgets_the_pages() {
    let mut host = Host::new("shadow_doorbells=on");
    let mut pages = MmapMut::map_anon(8192).expect("memory");
    let at = 0x9_0000_0000;
    host::map(&**host.memory.mapper(), at, &mut pages);
    host.queue(1, 8, 8);
    host.admin_ok(configure(at, at + 4096));
    host.disable();
    pages.fill(0xee);
    host.enable();
    let mut pair = host.queue(1, 8, 8);
    for cid in 0..20 {
        assert!(host.run(&mut pair, read(cid)).status().is_success());
    }
    host.device.relax(&host.clock);
    assert!(pages.iter().all(|byte| *byte == 0xee), "neither written");
    host::unmap(&**host.memory.mapper(), at, 8192).expect("mapped");
    host.device.relax(&host.clock);
    assert!(host.device.report().is_clean(), "nor read");
    // A function reset and a new configuration.
    host.device.reset().expect("reset");
    host.enable();
    let shadows = Shadows::configured(&mut host);
    let mut pair = host.queue(1, 8, 8);
    silent_read(&host, &shadows, &mut pair, 0);
}

#[test]
fn pages_that_are_unmapped_are_a_fault_and_left_alone() {
    for lost in [0, 4096] {
        let mut host = Host::new("shadow_doorbells=on");
        let (mut doorbells, mut events) = (page(), page());
        let at = 0x9_0000_0000;
        host::map(&**host.memory.mapper(), at, &mut doorbells);
        host::map(&**host.memory.mapper(), at + 4096, &mut events);
        host.admin_ok(configure(at, at + 4096));
        host.queue(1, 8, 8);
        host::unmap(&**host.memory.mapper(), at + lost, 4096).expect("mapped");
        doorbells.fill(0xee);
        events.fill(0xee);
        for _ in 0..10 {
            host.device.step(8);
        }
        let report = host.device.report();
        let [fault] = report.access_faults[..] else { panic!("{:?}", report.access_faults) };
        assert_eq!((fault.iova, fault.access), (Iova(at + lost), Access::Queue));
        assert!(host.csts().fatal() && report.fatal.is_some_and(|why| why.contains("shadow doorbells")));
        assert!(doorbells.iter().chain(&events[..]).all(|byte| *byte == 0xee));
        host.disable();
        host.enable();
        let mut pair = host.queue(1, 8, 8);
        assert!(host.run(&mut pair, read(3)).status().is_success(), "the reset has helped");
        host::unmap(&**host.memory.mapper(), at + 4096 - lost, 4096).expect("mapped");
    }
}

fn page() -> MmapMut {
    MmapMut::map_anon(4096).expect("memory")
}

#[test]
fn without_bus_mastering_nobody_looks() {
    let mut host = Host::new("shadow_doorbells=on");
    let shadows = Shadows::configured(&mut host);
    let mut pair = host.queue(1, 8, 8);
    host::set_bus_mastering(&host.device, BusMastering::Off).expect("bus mastering");
    host.post_raw(&mut pair, &read(0));
    shadows.store(&host, IO, SubmissionTail, pair.tail);
    for _ in 0..4 {
        assert_eq!(host.device.step(8), 0);
    }
    assert!(host.device.report().is_clean() && !host.csts().fatal());
    host::set_bus_mastering(&host.device, BusMastering::On).expect("bus mastering");
    assert_eq!(host.device.step(8), 1);
    assert!(host.reap(&mut pair).is_some());
}

#[test]
fn a_second_configuration_replaces_the_first() {
    let mut host = Host::new("shadow_doorbells=on,backend=null");
    let first = Shadows::configured(&mut host);
    let mut pair = host.queue(1, 8, 8);
    host.post_raw(&mut pair, &read(0));
    first.store(&host, IO, SubmissionTail, pair.tail);
    // The admin queue is the next in turn after this.
    assert_eq!(host.device.step(1), 1);
    host.reap(&mut pair).expect("completed");
    first.store(&host, IO, CompletionHead, pair.head);
    // Said in the old page, and not yet seen when the new one is configured.
    host.post_raw(&mut pair, &read(1));
    first.store(&host, IO, SubmissionTail, pair.tail);
    let second = Shadows::new(&mut host);
    let mut admin = std::mem::replace(&mut host.admin, Pair::nothing());
    host.post(&mut admin, second.command());
    first.say(&host, admin.id, SubmissionTail, admin.tail);
    host.device.step(1);
    assert!(host.reap(&mut admin).expect("completed").status().is_success());
    second.say(&host, admin.id, CompletionHead, admin.head);
    host.admin = admin;
    assert_eq!(second.shadow(&host, IO, SubmissionTail), pair.tail);
    assert_eq!(host.device.step(8), 1);
    assert_eq!(host.reap(&mut pair).expect("the one in between").cid, 1);
    second.store(&host, IO, CompletionHead, pair.head);
    // The old pages are memory like any other from now on.
    for at in [first.doorbells, first.events] {
        host.memory.write(at, &[0xee; 4096]);
    }
    for cid in 0..20 {
        silent_read(&host, &second, &mut pair, cid);
        host.device.step(8);
    }
    for at in [first.doorbells, first.events] {
        assert_eq!(host.memory.read(at, 4096), [0xee; 4096]);
    }
    assert!(host.device.report().is_clean(), "{:?}", host.device.report());
}

#[test]
fn a_deleted_queue_leaves_its_shadows_to_the_host_who_clears_them() {
    let mut host = Host::new("shadow_doorbells=on,backend=null");
    let shadows = Shadows::configured(&mut host);
    for is_cleared in [true, false] {
        let mut pair = host.queue(1, 8, 8);
        for cid in 0..3 {
            silent_read(&host, &shadows, &mut pair, cid);
        }
        host.admin_ok(SubmissionEntry::delete_submission_queue(IO));
        host.admin_ok(SubmissionEntry::delete_completion_queue(IO));
        // Nobody is there to hear this.
        shadows.store(&host, IO, SubmissionTail, 5);
        host.device.step(8);
        assert_eq!(shadows.shadow(&host, IO, SubmissionTail), 5);
        assert!(host.device.report().is_clean());
        if is_cleared {
            shadows.store(&host, IO, SubmissionTail, 0);
            shadows.store(&host, IO, CompletionHead, 0);
        }
    }
    let mut pair = host.queue(1, 8, 8);
    let stale = |value| Violation::DoorbellWithoutQueue { queue: IO, value };
    assert_eq!(host.device.report().violations, [stale(3), stale(5)]);
    assert_eq!(host.device.step(8), 0, "it begins at zero all the same");
    silent_read(&host, &shadows, &mut pair, 9);
}

#[test]
fn a_shadow_that_cannot_be_is_reported_once_and_ignored() {
    let mut host = Host::new("shadow_doorbells=on,backend=null");
    let shadows = Shadows::configured(&mut host);
    let mut pair = host.queue(1, 8, 8);
    for value in [8, u32::MAX] {
        shadows.store(&host, IO, SubmissionTail, value);
        for _ in 0..4 {
            assert_eq!(host.device.step(8), 0);
        }
        shadows.store(&host, IO, CompletionHead, value);
        host.device.step(8);
    }
    assert_eq!(host.device.report().violations_total, 4);
    shadows.store(&host, IO, CompletionHead, 0);
    silent_read(&host, &shadows, &mut pair, 0);
}

#[test]
fn no_wake_up_is_lost_between_two_threads() {
    let config = "shadow_doorbells=on,shadow_polling=off,backend=null";
    let mut host = Host::threaded(config);
    let shadows = Shadows::configured(&mut host);
    let mut pair = host.queue(1, 8, 8);
    let mut pause = 1_u32;
    for round in 0..3000_u16 {
        host.post_raw(&mut pair, &read(round));
        shadows.say(&host, IO, SubmissionTail, pair.tail);
        let entry = (0..1_000_000).find_map(|_| {
            let entry = host.reap(&mut pair);
            entry.is_none().then(std::thread::yield_now);
            entry
        });
        assert_eq!(entry.expect("a lost wake-up").cid, round);
        shadows.say(&host, IO, CompletionHead, pair.head);
        // Pauses of all lengths, so that the next command meets the controller at every point of its way
        // to sleep.
        pause = pause.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        for _ in 0..pause >> 19 {
            std::hint::spin_loop();
        }
    }
    assert!(host.device.report().is_clean());
}
