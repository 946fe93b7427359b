//! The pages of shadow doorbells: which are accepted, for how long, and that nothing else is touched.

mod host;

use doorbell_emulator::{Access, EmulatorConfig};
use doorbell_spec::identify::{IdentifyKind, OACS_DOORBELL_BUFFER};
use doorbell_spec::register::DoorbellKind::{CompletionHead, SubmissionTail};
use doorbell_spec::{Iova, Nsid, QueueId, Status, Transport};
use host::shadows::{Shadows, configure, read, silent_read};
use host::{Host, Pair};
use memmap2::MmapMut;

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
