//! Shadow doorbells: what a host may leave out when it has them, what it may not, and what the controller
//! makes of a host that gets them wrong.

mod host;

use doorbell_emulator::Violation;
use doorbell_spec::feature::Feature;
use doorbell_spec::register::DoorbellKind::{CompletionHead, SubmissionTail};
use doorbell_spec::{BusMastering, Nsid, QueueId, SubmissionEntry, Transport};
use host::shadows::{Shadows, is_passed, read, silent_read};
use host::{Host, Pair};

const IO: QueueId = QueueId(1);

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
