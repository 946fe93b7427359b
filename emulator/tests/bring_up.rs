//! From power on to ready, and back: registers, timing, wrong configurations, shutdown, reset, removal.

mod host;

use std::time::Duration;

use doorbell_emulator::{EmulatorConfig, Violation};
use doorbell_spec::identify::{IdentifyController, IdentifyKind, IdentifyNamespace, field_text};
use doorbell_spec::register::{self, Aqa, Cap, Cc, Crto, Csts, Version};
use doorbell_spec::{BusError, BusEvent, BusMastering, Nsid, Status, SubmissionEntry, Transport};
use host::Host;

fn cold(config: &str) -> Host {
    Host::cold(config.parse::<EmulatorConfig>().expect("a configuration"))
}

fn cap(host: &Host) -> Cap {
    Cap::from_bits(host.device.read64(register::CAP).expect("CAP"))
}

fn enabled() -> Cc {
    Cc::new().with_enable(true).with_submission_entry(6).with_completion_entry(4)
}

fn set_cc(host: &Host, cc: Cc) {
    host::write32(&host.device, register::CC, cc.into_bits()).expect("CC");
}

#[test]
fn registers_say_what_was_configured() {
    let host = cold("mqes=2,stride=15,queues=4,mpsmin=8k,mpsmax=64k,to=10s,crto=3s,cqr=off,nssrs=on");
    let cap = cap(&host);
    assert_eq!((cap.mqes_z(), cap.doorbell_stride()), (1, 15));
    assert_eq!((cap.page_min(), cap.page_max(), cap.timeout()), (1, 4, Duration::from_secs(10)));
    assert!(!cap.contiguous_queues() && cap.subsystem_reset() && cap.command_sets() == 1);
    let version = Version::from_bits(host.device.read32(register::VS).expect("VS"));
    assert_eq!((version.major(), version.minor()), (2, 0));
    assert_eq!(Crto::from_bits(host.device.read32(register::CRTO).expect("CRTO")).with_media_500ms(), 6);
    assert!(matches!(host.device.read32(0x1000), Err(BusError::BadOffset { .. })));
    assert!(matches!(host::write32(&host.device, 2, 0), Err(BusError::BadOffset { .. })));
    assert_eq!(host.device.read32(0xffc).expect("reserved"), 0);
}

#[test]
fn readiness_comes_when_it_is_due_and_falls_with_enable() {
    let mut host = cold("ready_delay=200ms,disable_delay=30ms");
    host.start();
    assert!(!host.csts().ready());
    host.clock.advance(Duration::from_millis(199));
    assert!(!host.csts().ready());
    host.clock.advance(Duration::from_millis(1));
    assert!(host.csts().ready());
    host.disable();
    host.clock.advance(Duration::from_millis(29));
    assert!(host.csts().ready(), "falls later");
    host.clock.advance(Duration::from_millis(1));
    assert!(!host.csts().ready());

    let mut host = cold("never_ready=on");
    host.start();
    host.clock.advance(Duration::from_secs(600));
    assert!(!host.csts().ready() && !host.csts().fatal());
    assert_eq!(host.device.next_due(), None);
}

#[test]
fn a_wrong_configuration_is_fatal_until_the_next_reset() {
    for (what, cc, aqa, asq) in [
        ("page size", enabled().with_page(5), 0x001f_001f, 0x1_0000_1000),
        ("command set", enabled().with_command_set(6), 0x001f_001f, 0x1_0000_1000),
        ("arbitration", enabled().with_arbitration(1), 0x001f_001f, 0x1_0000_1000),
        ("queue of one", enabled(), 0x001f_0000, 0x1_0000_1000),
        ("alignment", enabled(), 0x001f_001f, 0x1_0000_1010),
    ] {
        let mut host = cold("");
        host::write32(&host.device, register::AQA, aqa).expect("AQA");
        host::write64(&host.device, register::ASQ, asq).expect("ASQ");
        set_cc(&host, cc);
        assert!(host.csts().fatal(), "{what}");
        let report = host.device.report();
        assert!(matches!(report.violations[..], [Violation::BadConfiguration { .. }]), "{what}: {report:?}");
        host.disable();
        assert!(!host.csts().fatal());
        host.enable();
        host.admin_ok(SubmissionEntry::query_features(doorbell_spec::feature::Feature::Arbitration, Nsid(0)));
    }
}

#[test]
fn admin_queue_registers_hold_still_while_enabled() {
    let host = Host::new("");
    let before = host.device.read64(register::ASQ).expect("ASQ");
    host::write64(&host.device, register::ASQ, 0x5000).expect("ignored");
    host::write32(&host.device, register::AQA, Aqa::new().into_bits()).expect("ignored");
    host::write32(&host.device, register::CAP, 7).expect("ignored");
    assert_eq!(host.device.read64(register::ASQ).expect("ASQ"), before);
    assert_eq!(host.device.report().violations_total, 4);
}

#[test]
fn without_bus_mastering_nothing_is_fetched() {
    let mut host = Host::new("");
    let query = SubmissionEntry::query_features(doorbell_spec::feature::Feature::Arbitration, Nsid(0));
    host.admin_ok(query);
    host::set_bus_mastering(&host.device, BusMastering::Off).expect("off");
    let mut pair = std::mem::replace(&mut host.admin, host::Pair::nothing());
    host.post(&mut pair, query);
    host.ring_tail(&pair);
    host.device.relax(&host.clock);
    assert!(host.csts().fatal() && host.reap(&mut pair).is_none());
    assert!(host.device.report().access_faults_total > 0);
}

#[test]
fn shutdown_is_notified_and_completes_when_due() {
    let mut host = Host::new("shutdown=50ms,rtd3e=1s");
    let data = host.identify(IdentifyKind::Controller, Nsid(0)).expect("identify");
    let latency = IdentifyController::from_data(&data).shutdown_latency();
    assert_eq!(latency, Some(Duration::from_secs(1)));
    set_cc(&host, enabled().with_shutdown(register::Shutdown::Normal as u8));
    assert_eq!(host.csts().shutdown_status(), Csts::SHUTDOWN_OCCURRING);
    host.clock.advance(Duration::from_millis(50));
    assert!(host.csts().shutdown_complete());
    // A controller that was shut down starts again only after a reset.
    host.disable();
    assert_eq!(host.csts().shutdown_status(), 0);
    host.enable();

    let host = Host::new("shutdown=never");
    set_cc(&host, enabled().with_shutdown(register::Shutdown::Abrupt as u8));
    host.clock.advance(Duration::from_secs(1000));
    assert_eq!(host.csts().shutdown_status(), Csts::SHUTDOWN_OCCURRING);
}

#[test]
fn a_reset_forgets_queues_and_commands_but_not_data_or_admin_registers() {
    let mut host = Host::new("latency=1s");
    let mut pair = host.queue(1, 8, 8);
    host.post(&mut pair, SubmissionEntry::flush(Nsid(1)));
    host.ring_tail(&pair);
    host.device.step(8);
    assert_eq!(host.device.report().outstanding, 1);
    host.disable();
    assert_eq!((host.device.report().outstanding, host.device.next_due()), (0, None));
    let asq = host.device.read64(register::ASQ).expect("ASQ");
    assert_eq!(asq, host.admin.sq.0);
    host.clock.advance(Duration::from_secs(2));
    host.enable();
    assert!(host.reap(&mut pair).is_none(), "an aborted command completes nowhere");
    // The queue is gone: it can be made anew, with the same number.
    host.queue(1, 8, 8);
    assert!(host.device.report().is_clean(), "{:#?}", host.device.report());

    Transport::reset(&*host.device).expect("a function reset");
    assert_eq!(host.device.read64(register::ASQ).expect("ASQ"), 0);
    assert!(!host.csts().ready());
    host.enable();
}

#[test]
fn a_subsystem_reset_is_noted() {
    let host = Host::new("nssrs=on");
    host::write32(&host.device, register::NSSR, 0x4e56_4d65).expect("NSSR");
    let csts = host.csts();
    assert!(csts.subsystem_reset_occurred() && !csts.ready());
    host::write32(&host.device, register::CSTS, 1 << 4).expect("clear");
    assert!(!host.csts().subsystem_reset_occurred());
}

#[test]
fn a_removed_device_reads_as_ones_for_good() {
    let mut host = Host::new("");
    host.device.remove();
    for offset in (0..0x1000).step_by(4) {
        assert_eq!(host.device.read32(offset).expect("all ones"), u32::MAX);
    }
    host::write32(&host.device, register::CC, 0).expect("ignored");
    assert!(host.csts().is_removed());
    assert_eq!(host.device.step(100), 0);
    assert_eq!(host.device.poll_event(), Some(BusEvent::Removed));
    assert_eq!(host.device.poll_event(), None);
    assert!(matches!(Transport::reset(&*host.device), Err(BusError::Removed)));
    host.start();
    assert!(host.csts().is_removed());
}

#[test]
fn identify_says_who_it_is() {
    let mut host =
        Host::new("serial=S1,model=M 2,firmware=F3,mdts=128k,aerl=7,acl=1,vwc=on,lba=4096,size=1G,noiob=32");
    let data = host.identify(IdentifyKind::Controller, Nsid(0)).expect("identify");
    let id = IdentifyController::from_data(&data);
    assert_eq!(field_text(&id.serial), "S1");
    assert_eq!(field_text(&id.model), "M 2");
    assert_eq!(field_text(&id.firmware), "F3");
    assert_eq!(id.transfer_bytes_max(4096), Some(128 << 10));
    assert_eq!((id.event_limit(), id.abort_limit_z), (8, 1));
    assert!(id.has_volatile_write_cache());
    assert_eq!((id.submission_entry, id.completion_entry), (0x66, 0x44));
    let data = host.identify(IdentifyKind::Namespace, Nsid(1)).expect("identify");
    let namespace = IdentifyNamespace::from_data(&data);
    assert_eq!((namespace.blocks, namespace.format().block_shift()), (1 << 18, 12));
    assert_eq!(namespace.optimal_boundary, 32);
    let descriptors = host.identify(IdentifyKind::NamespaceDescriptors, Nsid(1)).expect("identify");
    assert_eq!((descriptors[0], descriptors[1], descriptors[12]), (1, 8, 4));
}

#[test]
fn namespace_lists_have_gaps_and_go_on_after_1024() {
    let list = |host: &mut Host, after: u32| -> Vec<u32> {
        let data = host.identify(IdentifyKind::ActiveNamespaces, Nsid(after)).expect("identify");
        let words = data.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        words.take_while(|nsid| *nsid != 0).collect()
    };
    let mut host = Host::new("nsid=1+3+7");
    assert_eq!(list(&mut host, 0), [1, 3, 7]);
    assert_eq!(list(&mut host, 3), [7]);
    assert_eq!(list(&mut host, 7), []);
    let inactive = host.identify(IdentifyKind::Namespace, Nsid(2)).expect("zeros");
    assert_eq!(inactive, [0; 4096]);
    for nsid in [0, 8, u32::MAX] {
        let refused = host.identify(IdentifyKind::Namespace, Nsid(nsid)).expect_err("no such namespace");
        assert_eq!(refused.kind(), Status::INVALID_NAMESPACE);
    }
    assert!(host.identify(IdentifyKind::ActiveNamespaces, Nsid(u32::MAX)).is_err());
    assert!(host.identify(IdentifyKind::Other(0x77), Nsid(0)).is_err());

    let mut host = Host::new("nsid=2-2001,backend=null,size=1M");
    let first = list(&mut host, 0);
    assert_eq!((first.len(), first[0], first[1023]), (1024, 2, 1025));
    let rest = list(&mut host, 1025);
    assert_eq!((rest.len(), rest[0], rest[975]), (976, 1026, 2001));
}
