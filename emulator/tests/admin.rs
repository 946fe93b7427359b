//! Features, asynchronous events, aborts and logs.

mod host;

use doorbell_emulator::{NamespaceConfig, Violation};
use doorbell_spec::command::{AdminOpcode, NvmOpcode};
use doorbell_spec::feature::{AsyncEventConfig, Feature};
use doorbell_spec::log_page::{AsyncEvent, AsyncEventKind, ErrorEntry, HealthPage, LogPage};
use doorbell_spec::{Blocks, Cid, Lba, Nsid, QueueId, Status, SubmissionEntry};
use host::{BASE, Host, Pair};
use zerocopy::FromBytes;

fn set(feature: Feature, value: u32) -> SubmissionEntry {
    SubmissionEntry::set_features(feature, Nsid(0), value)
}

fn query(feature: Feature) -> SubmissionEntry {
    SubmissionEntry::query_features(feature, Nsid(0))
}

fn log(host: &mut Host, page: LogPage, bytes: u32) -> Result<Vec<u8>, Status> {
    let data = host.memory.alloc(bytes as usize);
    let entry = SubmissionEntry::query_log_page(page, Nsid::ALL, bytes);
    let status = host.admin(SubmissionEntry { prp1: data.0, prp2: data.0 + 4096, ..entry }).status();
    if status.is_success() { Ok(host.memory.read(data, bytes as usize)) } else { Err(status) }
}

/// Posts an event request and answers its identifier.
fn request(host: &mut Host) -> u16 {
    let mut pair = std::mem::replace(&mut host.admin, Pair::nothing());
    let cid = host.post(&mut pair, SubmissionEntry::async_event_request());
    host.ring_tail(&pair);
    host.device.step(8);
    host.admin = pair;
    cid
}

fn reap_admin(host: &mut Host) -> Option<doorbell_spec::CompletionEntry> {
    host.device.step(8);
    let mut pair = std::mem::replace(&mut host.admin, Pair::nothing());
    let completion = host.reap(&mut pair);
    host.ring_head(&pair);
    host.admin = pair;
    completion
}

#[test]
fn features_keep_what_they_are_set_to_until_the_reset() {
    let mut host = Host::new("vwc=on");
    for (feature, value) in [
        (Feature::Arbitration, 0x0102_0303),
        (Feature::ErrorRecovery, 5),
        (Feature::VolatileWriteCache, 0),
        (Feature::InterruptCoalescing, 0x0a05),
        (Feature::WriteAtomicity, 1),
        (Feature::TemperatureThreshold, 333),
    ] {
        let before = host.admin_ok(query(feature)).dw0;
        assert_ne!(before, value);
        host.admin_ok(set(feature, value));
        assert_eq!(host.admin_ok(query(feature)).dw0, value, "{feature:?}");
        let default = SubmissionEntry { cdw10: query(feature).cdw10 | 1 << 8, ..query(feature) };
        assert_eq!(host.admin_ok(default).dw0, before, "{feature:?}");
        let saved = SubmissionEntry { cdw10: set(feature, value).cdw10 | 1 << 31, ..set(feature, value) };
        assert_eq!(host.admin(saved).status().kind(), Status::FEATURE_NOT_SAVEABLE);
        host.disable();
        host.enable();
        assert_eq!(host.admin_ok(query(feature)).dw0, before, "{feature:?}");
    }
    assert_eq!(host.admin(query(Feature::Other(0xee))).status().kind(), Status::INVALID_FIELD);
    let mut host = Host::new("vwc=off");
    assert_eq!(host.admin(set(Feature::VolatileWriteCache, 1)).status().kind(), Status::INVALID_FIELD);
}

#[test]
fn unknown_commands_are_invalid_opcodes() {
    let mut host = Host::new("");
    for opcode in 0..=u8::MAX {
        if let AdminOpcode::Other(_) = AdminOpcode::from_raw(opcode) {
            let refused = host.admin(SubmissionEntry { opcode, ..SubmissionEntry::default() }).status();
            assert!(refused.kind() == Status::INVALID_OPCODE && refused.do_not_retry(), "{opcode:#x}");
        }
    }
}

#[test]
fn event_requests_are_limited_by_aerl_which_is_zero_based() {
    let mut host = Host::new("aerl=2");
    let cids: Vec<u16> = (0..3).map(|_| request(&mut host)).collect();
    assert_eq!(host.device.report().event_requests, 3);
    assert!(reap_admin(&mut host).is_none());
    let over = request(&mut host);
    let refused = reap_admin(&mut host).expect("refused at once");
    assert_eq!((refused.cid, refused.status().kind()), (over, Status::EVENT_LIMIT_EXCEEDED));
    assert_eq!(host.device.report().violations, [Violation::TooManyEventRequests]);
    // An abort finds a request.
    let aborted = host.admin_abort(QueueId::ADMIN, cids[1]);
    assert!(aborted.iter().any(|end| end.cid == cids[1] && end.status().kind() == Status::ABORT_REQUESTED));
    assert_eq!(host.device.report().event_requests, 2);
    // A controller that is reset with requests outstanding forgets them.
    host.disable();
    host.enable();
    assert_eq!(host.device.report().event_requests, 0);
}

#[test]
fn events_wait_for_requests_and_for_their_log_page() {
    let mut host = Host::new("nsid=1+5,size=1M");
    let event = AsyncEvent { kind: AsyncEventKind::Health, info: 1, log_page: LogPage::Health };
    host.device.raise_event(event);
    assert!(reap_admin(&mut host).is_none());
    let first = request(&mut host);
    let reported = reap_admin(&mut host).expect("reported");
    assert_eq!((reported.cid, AsyncEvent::from_dw0(reported.dw0)), (first, event));
    // The same kind is masked until the log page was read.
    request(&mut host);
    host.device.raise_event(AsyncEvent { info: 2, ..event });
    assert!(reap_admin(&mut host).is_none());
    log(&mut host, LogPage::Health, 512).expect("read");
    assert_eq!(AsyncEvent::from_dw0(reap_admin(&mut host).expect("reported").dw0).info, 2);
}

#[test]
fn namespace_changes_are_noticed_if_asked_for_and_logged() {
    let mut host = Host::new("nsid=1+5,size=1M");
    request(&mut host);
    host.device.detach_namespace(Nsid(5)).expect("there");
    assert!(reap_admin(&mut host).is_none(), "not asked for");
    let config = AsyncEventConfig::new().with_namespace_attributes(true).into_bits();
    host.admin_ok(set(Feature::AsyncEvents, config));
    let mut seven = NamespaceConfig::default();
    seven.nsid = Nsid(7);
    host.device.attach_namespace(&seven).expect("attached");
    assert!(host.device.attach_namespace(&seven).is_err());
    let notice = AsyncEvent::from_dw0(reap_admin(&mut host).expect("a notice").dw0);
    assert_eq!((notice.kind, notice.info), (AsyncEventKind::Notice, AsyncEvent::NAMESPACE_CHANGED));
    assert_eq!(notice.log_page, LogPage::ChangedNamespaces);
    let data = log(&mut host, LogPage::ChangedNamespaces, 4096).expect("the list");
    assert_eq!(data[..12], [5, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(log(&mut host, LogPage::ChangedNamespaces, 4096).expect("read and cleared"), vec![0; 4096]);
}

#[test]
fn an_abort_finds_only_what_is_in_flight() {
    let mut host = Host::new("latency=1ms");
    let mut pair = host.queue(1, 8, 8);
    let cid = host.post(&mut pair, SubmissionEntry::flush(Nsid(1)));
    host.ring_tail(&pair);
    host.device.step(8);
    assert_eq!(host.admin_ok(SubmissionEntry::abort(QueueId(1), Cid(cid))).dw0 & 1, 0);
    let aborted = host.reap(&mut pair).expect("aborted");
    assert_eq!((aborted.cid, aborted.status().kind()), (cid, Status::ABORT_REQUESTED));
    assert_eq!(host.admin_ok(SubmissionEntry::abort(QueueId(1), Cid(cid))).dw0 & 1, 1, "completed already");
    let missing = host.admin(SubmissionEntry::abort(QueueId(9), Cid(0)));
    assert_eq!(missing.status().kind(), Status::INVALID_FIELD);
    host.clock.advance(std::time::Duration::from_secs(1));
    host.device.step(8);
    assert!(host.reap(&mut pair).is_none(), "it completes once");
}

#[test]
fn more_aborts_than_acl_allows_are_refused() {
    let mut host = Host::new("acl=1,admin_latency=1ms");
    let mut pair = std::mem::replace(&mut host.admin, Pair::nothing());
    for _ in 0..5 {
        host.post(&mut pair, SubmissionEntry::abort(QueueId(0), Cid(0x7777)));
    }
    host.ring_tail(&pair);
    let ends: Vec<Status> = (0..5).map(|_| host.wait(&mut pair).status().kind()).collect();
    let over = ends.iter().filter(|status| **status == Status::ABORT_LIMIT_EXCEEDED).count();
    assert_eq!(over, 3, "{ends:?}");
}

#[test]
fn logs_say_what_happened() {
    let mut host = Host::new("size=1M");
    let mut pair = host.queue(1, 8, 8);
    let read = |lba| {
        let entry = SubmissionEntry::block_range(NvmOpcode::Read, Nsid(1), Lba(lba), Blocks(1), 0);
        SubmissionEntry { prp1: BASE, ..entry }
    };
    host.run(&mut pair, read(0));
    host.run(&mut pair, read(99_999));
    let data = log(&mut host, LogPage::Error, 128).expect("errors");
    let (newest, rest) = ErrorEntry::read_from_prefix(&data).expect("an entry");
    assert_eq!((newest.sq_id, newest.cid, newest.lba, newest.nsid), (1, 1, 99_999, 1));
    assert_eq!(Status::from_raw(newest.status_and_phase >> 1).kind(), Status::LBA_OUT_OF_RANGE);
    assert_eq!(rest, [0; 64], "there was one error");
    let data = log(&mut host, LogPage::Health, 512).expect("health");
    let health = HealthPage::read_from_bytes(&data).expect("512 bytes");
    assert_eq!(u128::from_le_bytes(health.host_reads), 2);
    let effects = log(&mut host, LogPage::CommandEffects, 4096).expect("effects");
    assert_eq!((effects[6 * 4], effects[0x7c * 4], effects[1024 + 4]), (1, 0, 3));
    assert_eq!(
        log(&mut host, LogPage::Other(0x70), 512).expect_err("no such page").kind(),
        Status::INVALID_LOG_PAGE
    );
    // An offset past the end, and one that is not a dword.
    let entry =
        SubmissionEntry { prp1: BASE, ..SubmissionEntry::query_log_page(LogPage::Health, Nsid::ALL, 4) };
    for (cdw12, cdw13) in [(516, 0), (2, 0), (0, 1), (u32::MAX - 3, u32::MAX)] {
        let status = host.admin(SubmissionEntry { cdw12, cdw13, ..entry }).status();
        assert_eq!(status.kind(), Status::INVALID_FIELD);
    }
    let everything = SubmissionEntry { cdw10: 0xffff_0002, cdw11: 0xffff, ..entry };
    assert_eq!(host.admin(everything).status().kind(), Status::INVALID_FIELD);
}
