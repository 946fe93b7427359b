//! I/O queues: creating and deleting them, wrapping, filling up, and what a host must not do with doorbells.

mod host;

use doorbell_emulator::Violation;
use doorbell_spec::command::NvmOpcode;
use doorbell_spec::feature::{Feature, QueueCounts};
use doorbell_spec::register::DoorbellKind;
use doorbell_spec::{Blocks, Cid, Iova, Lba, Nsid, QueueId, Status, SubmissionEntry, Transport};
use host::{BASE, Host};

const CQ_BASE: Iova = Iova(BASE + (32 << 20));

fn read(cid: u16) -> SubmissionEntry {
    let entry = SubmissionEntry::block_range(NvmOpcode::Read, Nsid(1), Lba(0), Blocks(1), 0);
    SubmissionEntry { cid, prp1: BASE, ..entry }
}

fn create_cq(host: &mut Host, id: u16, entries: u32) -> Status {
    host.admin(SubmissionEntry::create_completion_queue(QueueId(id), entries, CQ_BASE, None)).status()
}

fn create_sq(host: &mut Host, id: u16, entries: u32) -> Status {
    host.admin(SubmissionEntry::create_submission_queue(QueueId(id), entries, CQ_BASE)).status()
}

#[test]
fn creation_is_checked_in_every_field() {
    let mut host = Host::new("queues=4,mqes=64,vectors=2");
    assert_eq!(create_cq(&mut host, 0, 8).kind(), Status::INVALID_QUEUE_ID);
    assert_eq!(create_cq(&mut host, 5, 8).kind(), Status::INVALID_QUEUE_ID);
    assert_eq!(create_cq(&mut host, 0xffff, 8).kind(), Status::INVALID_QUEUE_ID);
    assert_eq!(create_cq(&mut host, 1, 65).kind(), Status::INVALID_QUEUE_SIZE);
    assert_eq!(create_cq(&mut host, 1, 1).kind(), Status::INVALID_QUEUE_SIZE);
    assert_eq!(create_sq(&mut host, 1, 8).kind(), Status::COMPLETION_QUEUE_INVALID);
    let good = SubmissionEntry::create_completion_queue(QueueId(1), 64, CQ_BASE, Some(1));
    for (bad, expected) in [
        (SubmissionEntry { prp1: CQ_BASE.0 + 64, ..good }, Status::INVALID_PRP_OFFSET),
        (SubmissionEntry { cdw11: 1 << 16 | 2, ..good }, Status::INVALID_FIELD),
        (SubmissionEntry { cdw11: 2 << 16 | 3, ..good }, Status::INVALID_INTERRUPT_VECTOR),
        (SubmissionEntry { prp1: 0xdead_0000, ..good }, Status::DATA_TRANSFER_ERROR),
    ] {
        assert_eq!(host.admin(bad).status().kind(), expected, "{bad:?}");
    }
    host.admin_ok(good);
    assert_eq!(host.admin(good).status().kind(), Status::INVALID_QUEUE_ID, "in use");
    assert!(create_sq(&mut host, 1, 64).is_success());
    assert_eq!(create_sq(&mut host, 1, 64).kind(), Status::INVALID_QUEUE_ID);
    let admin_cq =
        SubmissionEntry { cdw11: 1, ..SubmissionEntry::create_submission_queue(QueueId(2), 8, CQ_BASE) };
    assert_eq!(host.admin(admin_cq).status().kind(), Status::INVALID_QUEUE_ID);
}

#[test]
fn deletion_has_an_order_and_completes_what_was_taken() {
    let mut host = Host::new("latency=1s");
    let mut pair = host.queue(1, 8, 8);
    let delete_cq = SubmissionEntry::delete_completion_queue(QueueId(1));
    assert_eq!(host.admin(delete_cq).status().kind(), Status::INVALID_QUEUE_DELETION);
    for _ in 0..3 {
        host.post(&mut pair, read(0));
    }
    host.ring_tail(&pair);
    host.device.step(8);
    host.admin_ok(SubmissionEntry::delete_submission_queue(QueueId(1)));
    for cid in 0..3 {
        let aborted = host.reap(&mut pair).expect("completed before the deletion");
        assert_eq!((aborted.cid, aborted.status().kind()), (cid, Status::ABORTED_QUEUE_DELETED));
    }
    host.admin_ok(delete_cq);
    assert_eq!(host.admin(delete_cq).status().kind(), Status::INVALID_QUEUE_ID);
    let delete_sq = SubmissionEntry::delete_submission_queue(QueueId(1));
    assert_eq!(host.admin(delete_sq).status().kind(), Status::INVALID_QUEUE_ID);
    let admin = SubmissionEntry::delete_submission_queue(QueueId(0));
    assert_eq!(host.admin(admin).status().kind(), Status::INVALID_QUEUE_ID);
    assert!(host.device.report().is_clean());
}

#[test]
fn the_number_of_queues_is_granted_once_and_before_there_are_any() {
    let mut host = Host::new("nsqa=8,ncqa=4");
    let ask = |sq: u16, cq: u16| {
        let value = QueueCounts::new().with_submission_z(sq).with_completion_z(cq).into_bits();
        SubmissionEntry::set_features(Feature::NumberOfQueues, Nsid(0), value)
    };
    for (sq, cq) in [(0xffff, 0), (0, 0xffff)] {
        assert_eq!(host.admin(ask(sq, cq)).status().kind(), Status::INVALID_FIELD);
    }
    let granted = QueueCounts::from_bits(host.admin_ok(ask(99, 99)).dw0);
    assert_eq!((granted.submission_z(), granted.completion_z(), granted.pairs()), (7, 3, 4));
    let granted = QueueCounts::from_bits(host.admin_ok(ask(1, 1)).dw0);
    assert_eq!(granted.pairs(), 2);
    assert_eq!(create_cq(&mut host, 3, 8).kind(), Status::INVALID_QUEUE_ID, "only two were granted");
    host.queue(1, 8, 8);
    assert_eq!(host.admin(ask(7, 7)).status().kind(), Status::COMMAND_SEQUENCE_ERROR);
}

#[test]
fn rings_of_every_size_wrap_where_they_end() {
    for (config, sizes) in
        [("mqes_z=1", vec![2]), ("mqes_z=127", vec![2, 3, 127, 128]), ("mqes_z=0xffff", vec![65_536])]
    {
        let mut host = Host::new(config);
        for (id, size) in (1..).zip(sizes) {
            let mut pair = host.queue(id, size, size);
            for round in 0..3 * size.min(1000) {
                let cid = (round % 60_000) as u16;
                host.post_raw(&mut pair, &read(cid));
                host.ring_tail(&pair);
                let completion = host.wait(&mut pair);
                assert_eq!((completion.cid, u32::from(completion.sq_head)), (cid, pair.tail), "{size}");
            }
        }
        assert!(host.device.report().is_clean());
    }
}

#[test]
fn the_largest_ring_wraps_at_65536() {
    let mut host = Host::new("mqes_z=0xffff,backend=null");
    let mut pair = host.queue(1, 65_536, 65_536);
    for round in 0..9_u32 {
        for _ in 0..8191 {
            host.post_raw(&mut pair, &read((round * 8191) as u16));
        }
        host.ring_tail(&pair);
        while host.device.step(10_000) > 0 {}
        for _ in 0..8191 {
            host.reap(&mut pair).expect("completed");
        }
        host.ring_head(&pair);
    }
    assert!(host.device.report().is_clean());
}

#[test]
fn a_controller_with_mqes_0_has_no_io_queues_to_offer() {
    let mut host = Host::new("mqes_z=0");
    assert_eq!(create_cq(&mut host, 1, 2).kind(), Status::INVALID_QUEUE_SIZE);
}

#[test]
fn a_full_completion_queue_is_never_overrun() {
    for config in ["backend=null", "latency=10us", "backend=null,units=1,latency=1us"] {
        let mut host = Host::new(config);
        let mut pair = host.queue(1, 64, 4);
        for cid in 0..40 {
            host.post_raw(&mut pair, &read(cid));
        }
        host.ring_tail(&pair);
        let mut seen = Vec::new();
        for _ in 0..200 {
            host.device.relax(&host.clock);
            // The host looks late: there are never more than three entries for it.
            let mut now = 0;
            while let Some(completion) = host.reap(&mut pair) {
                seen.push(completion.cid);
                now += 1;
            }
            assert!(now <= 3, "{config}: {now}");
            host.ring_head(&pair);
        }
        assert_eq!(seen, (0..40).collect::<Vec<u16>>(), "{config}");
        assert!(host.device.report().is_clean(), "{config}");
    }
}

#[test]
fn queues_share_the_device_fairly() {
    let mut host = Host::new("backend=null");
    let mut pairs = [host.queue(1, 256, 256), host.queue(2, 256, 256), host.queue(3, 256, 256)];
    for pair in &mut pairs {
        for cid in 0..200 {
            host.post_raw(pair, &read(cid));
        }
        host.ring_tail(pair);
    }
    assert_eq!(host.device.step(300), 300);
    let counts = pairs.each_mut().map(|pair| std::iter::from_fn(|| host.reap(pair)).count());
    assert!(counts.iter().all(|count| (64..=128).contains(count)), "{counts:?}");
}

#[test]
fn doorbells_lie_where_the_stride_says() {
    for stride in 0..=15_u8 {
        let mut host = Host::new(&format!("stride={stride},queues=1024,backend=null"));
        let mut pair = host.queue(1024, 8, 8);
        assert!(host.run(&mut pair, read(0)).status().is_success(), "{stride}");
        let beyond = doorbell_spec::register::doorbell_bytes(QueueId(1025), stride) + 4096;
        assert!(host::doorbells(&host.device, beyond).is_err(), "{stride}");
        assert!(host.device.report().is_clean());
    }
}

#[test]
fn wrong_doorbells_are_ignored_and_reported() {
    let mut host = Host::new("backend=null");
    let mut pair = host.queue(1, 8, 8);
    let id = QueueId(1);
    host.ring(id, DoorbellKind::SubmissionTail, 8);
    host.device.step(8);
    host.ring(id, DoorbellKind::CompletionHead, 9);
    host.device.step(8);
    host.ring(id, DoorbellKind::CompletionHead, 1);
    host.device.step(8);
    let violations = host.device.report().violations;
    assert!(
        matches!(
            violations[..],
            [
                Violation::TailOutOfRange { value: 8, entries: 8, .. },
                Violation::HeadOutOfRange { value: 9, .. },
                Violation::CompletionOverrun { value: 1, posted: 0, .. },
            ]
        ),
        "{violations:?}"
    );
    // The queue goes on as if nothing had been.
    host.ring(id, DoorbellKind::CompletionHead, 0);
    assert!(host.run(&mut pair, read(0)).status().is_success());
}

#[test]
fn an_old_tail_is_found_out() {
    let mut host = Host::new("backend=null");
    let mut pair = host.queue(1, 8, 4);
    for cid in 0..6 {
        host.post_raw(&mut pair, &read(cid));
    }
    host.ring_tail(&pair);
    host.device.step(8);
    // Three were completed and the queue is full; the tail went from 6 to 2: over entry 3, not yet fetched.
    host.ring(QueueId(1), DoorbellKind::SubmissionTail, 4);
    host.device.step(8);
    let violations = host.device.report().violations;
    assert!(
        matches!(violations[..], [Violation::SubmissionOverrun { tail: 6, value: 4, .. }]),
        "{violations:?}"
    );
}

#[test]
fn a_doorbell_before_its_queue_is_found_out() {
    let mut host = Host::new("backend=null");
    host.ring(QueueId(2), DoorbellKind::SubmissionTail, 5);
    let mut pair = host.queue(2, 8, 8);
    let violations = host.device.report().violations;
    assert_eq!(violations, [Violation::DoorbellWithoutQueue { queue: QueueId(2), value: 5 }]);
    assert!(host.run(&mut pair, read(0)).status().is_success());
}

#[test]
fn an_identifier_that_is_in_use_is_found_out() {
    let mut host = Host::new("latency=1ms");
    let mut pair = host.queue(1, 8, 8);
    for cid in [7, 7, 8] {
        host.post_raw(&mut pair, &read(cid));
    }
    host.ring_tail(&pair);
    let ends: Vec<(u16, Status)> =
        (0..3).map(|_| host.wait(&mut pair)).map(|end| (end.cid, end.status().kind())).collect();
    assert_eq!(ends, [(7, Status::COMMAND_ID_CONFLICT), (7, Status::SUCCESS), (8, Status::SUCCESS)]);
    let violations = host.device.report().violations;
    assert_eq!(violations, [Violation::CidInUse { queue: QueueId(1), cid: Cid(7) }]);
    // Once it has completed it is free again.
    host.post_raw(&mut pair, &read(7));
    host.ring_tail(&pair);
    assert!(host.wait(&mut pair).status().is_success());
    assert_eq!(host.device.report().violations_total, 1);
}

#[test]
fn a_device_that_needs_small_identifiers_says_so() {
    let mut host = Host::new("cid_below_depth=on");
    let mut pair = host.queue(1, 8, 8);
    for (cid, expected) in [(7, Status::SUCCESS), (8, Status::INVALID_FIELD), (0xffff, Status::INVALID_FIELD)]
    {
        host.post_raw(&mut pair, &read(cid));
        host.ring_tail(&pair);
        assert_eq!(host.wait(&mut pair).status().kind(), expected);
    }
    assert_eq!(host.device.report().violations_total, 2);
}

#[test]
fn a_queue_whose_memory_is_gone_is_fatal() {
    let mut host = Host::new("backend=null");
    let mut pair = host.queue(1, 8, 8);
    host.post(&mut pair, read(0));
    let (region, mapper) = (host.memory.whole(), host.memory.mapper().clone());
    host::unmap(&*mapper, BASE, region.bytes).expect("mapped");
    host.ring_tail(&pair);
    host.device.step(8);
    assert!(host.csts().fatal());
    let report = host.device.report();
    let lost = |queue| Violation::QueueUnmapped { queue: QueueId(queue) };
    assert_eq!(report.violations, [lost(0), lost(1)]);
    assert!(report.fatal.is_some() && host.reap(&mut pair).is_none());
}

#[test]
fn memory_of_an_idle_queue_that_is_unmapped_is_found_out() {
    let mut host = Host::new("backend=null");
    let mut ring = memmap2::MmapMut::map_anon(4096).expect("memory");
    let at = Iova(0x9_0000_0000);
    host::map(&**host.memory.mapper(), at.0, &mut ring);
    host.admin_ok(SubmissionEntry::create_completion_queue(QueueId(1), 8, at, None));
    assert!(host.device.report().is_clean());
    host::unmap(&**host.memory.mapper(), at.0, 4096).expect("mapped");
    host.device.step(8);
    assert_eq!(host.device.report().violations, [Violation::QueueUnmapped { queue: QueueId(1) }]);
    assert!(!host.csts().fatal(), "it was not used");
}
