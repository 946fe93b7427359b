//! Reading and writing: every backend, data pointers of every shape, and what is refused.

mod host;

use doorbell_spec::command::NvmOpcode;
use doorbell_spec::{Blocks, Iova, Lba, Nsid, Status, SubmissionEntry};
use host::{Host, Pair};

fn command(opcode: NvmOpcode, lba: u64, blocks: u32, prp1: Iova, prp2: u64) -> SubmissionEntry {
    let entry = SubmissionEntry::block_range(opcode, Nsid(1), Lba(lba), Blocks(blocks), 0);
    SubmissionEntry { prp1: prp1.0, prp2, ..entry }
}

fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed) ^ (at >> 8) as u8).collect()
}

fn status(host: &Host, pair: &mut Pair, entry: SubmissionEntry) -> Status {
    host.run(pair, entry).status()
}

#[test]
fn what_is_written_is_read_and_the_rest_is_zero() {
    let mut host = Host::new("");
    let mut pair = host.queue(1, 16, 16);
    let (out, back) = (host.memory.alloc(8192), host.memory.alloc(8192));
    host.memory.write(out, &pattern(4096, 1));
    assert!(status(&host, &mut pair, command(NvmOpcode::Write, 8, 8, out, 0)).is_success());
    assert!(status(&host, &mut pair, command(NvmOpcode::Read, 8, 8, back, 0)).is_success());
    assert_eq!(host.memory.read(back, 4096), pattern(4096, 1));
    assert!(status(&host, &mut pair, command(NvmOpcode::Read, 0, 8, back, 0)).is_success());
    assert_eq!(host.memory.read(back, 4096), vec![0; 4096]);
    assert!(status(&host, &mut pair, SubmissionEntry::flush(Nsid(1))).is_success());
    assert!(host.device.report().is_clean(), "{:#?}", host.device.report());
}

#[test]
fn blocks_of_4096_bytes_and_several_namespaces_are_kept_apart() {
    let mut host = Host::new("lba=4096,size=16M,nsid=1+3+7");
    let mut pair = host.queue(1, 16, 16);
    let (out, back) = (host.memory.alloc(4096), host.memory.alloc(4096));
    for nsid in [1, 3, 7] {
        host.memory.write(out, &pattern(4096, nsid as u8));
        let write = SubmissionEntry { nsid, ..command(NvmOpcode::Write, 5, 1, out, 0) };
        assert!(status(&host, &mut pair, write).is_success());
    }
    for nsid in [1, 3, 7] {
        let read = SubmissionEntry { nsid, ..command(NvmOpcode::Read, 5, 1, back, 0) };
        assert!(status(&host, &mut pair, read).is_success());
        assert_eq!(host.memory.read(back, 4096), pattern(4096, nsid as u8));
    }
    let read = |nsid| SubmissionEntry { nsid, ..command(NvmOpcode::Read, 0, 1, back, 0) };
    assert_eq!(status(&host, &mut pair, read(2)).kind(), Status::INVALID_FIELD, "inactive");
    assert_eq!(status(&host, &mut pair, read(8)).kind(), Status::INVALID_NAMESPACE, "beyond NN");
    assert_eq!(status(&host, &mut pair, read(0)).kind(), Status::INVALID_NAMESPACE);
    assert_eq!(status(&host, &mut pair, read(u32::MAX)).kind(), Status::INVALID_NAMESPACE);
}

#[test]
fn a_file_keeps_what_is_written() {
    let directory = std::env::temp_dir().join(format!("doorbell-emulator-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let path = directory.join("disk.img");
    let config = format!("backend=file,path={},size=1M", path.display());
    {
        let mut host = Host::new(&config);
        let mut pair = host.queue(1, 16, 16);
        let out = host.memory.alloc(8192);
        host.memory.write(out, &pattern(4096, 9));
        let write = command(NvmOpcode::Write, 3, 8, out, 0);
        assert!(status(&host, &mut pair, write).is_success());
        assert!(status(&host, &mut pair, SubmissionEntry::flush(Nsid::ALL)).is_success());
        assert!(status(&host, &mut pair, command(NvmOpcode::WriteZeroes, 4, 1, out, 0)).is_success());
    }
    let mut expected = vec![0; 1 << 20];
    expected[3 * 512..11 * 512].copy_from_slice(&pattern(4096, 9));
    expected[4 * 512..5 * 512].fill(0);
    assert_eq!(std::fs::read(&path).expect("the file"), expected);
    // The file's own length is the size now; a file that got shorter cannot be read to its end.
    let mut host = Host::new(&format!("backend=file,path={}", path.display()));
    let mut pair = host.queue(1, 16, 16);
    let back = host.memory.alloc(8192);
    assert!(status(&host, &mut pair, command(NvmOpcode::Read, 3, 8, back, 0)).is_success());
    std::fs::File::options().write(true).open(&path).and_then(|file| file.set_len(512)).expect("shorter");
    let lost = status(&host, &mut pair, command(NvmOpcode::Read, 3, 8, back, 0));
    assert_eq!(lost.kind(), Status::UNRECOVERED_READ_ERROR);
    std::fs::remove_dir_all(&directory).expect("cleaned up");
}

#[test]
fn a_write_cache_is_there_when_it_is_asked_for_or_a_file_is_behind() {
    use doorbell_spec::identify::{IdentifyController, IdentifyKind};
    for (config, expected) in [("", false), ("vwc=on", true), ("vwc=off", false), ("backend=null", false)] {
        let mut host = Host::new(config);
        let data = host.identify(IdentifyKind::Controller, Nsid(0)).expect("identify");
        let id = IdentifyController::from_data(&data);
        assert_eq!((id.has_volatile_write_cache(), id.volatile_write_cache & 6), (expected, 6), "{config}");
        let mut pair = host.queue(1, 8, 8);
        let data = host.memory.alloc(4096);
        let unit = doorbell_spec::command::FORCE_UNIT_ACCESS;
        let write = command(NvmOpcode::Write, 0, 1, data, 0);
        let forced = SubmissionEntry { cdw12: write.cdw12 | unit, ..write };
        assert!(status(&host, &mut pair, forced).is_success());
        assert!(status(&host, &mut pair, SubmissionEntry::flush(Nsid(1))).is_success());
        assert_eq!(
            status(&host, &mut pair, SubmissionEntry::flush(Nsid(9))).kind(),
            Status::INVALID_NAMESPACE
        );
    }
    assert!(
        "backend=file,path=x".parse::<doorbell_emulator::EmulatorConfig>().expect("a file").has_write_cache()
    );
}

#[test]
fn ranges_end_with_the_namespace_and_never_overflow() {
    for backend in ["null", "mem"] {
        let mut host = Host::new(&format!("backend={backend},size=64k,mdts=0"));
        let mut pair = host.queue(1, 16, 16);
        let data = host.memory.alloc(64 << 10);
        assert!(status(&host, &mut pair, command(NvmOpcode::Read, 127, 1, data, 0)).is_success());
        for (lba, blocks) in [(128, 1), (127, 2), (u64::MAX, 1), (u64::MAX - 7, 8), (1 << 63, 65_536)] {
            for opcode in [NvmOpcode::Read, NvmOpcode::Write, NvmOpcode::WriteZeroes, NvmOpcode::Verify] {
                let refused = status(&host, &mut pair, command(opcode, lba, blocks, data, data.0));
                assert_eq!(refused.kind(), Status::LBA_OUT_OF_RANGE, "{backend} {opcode:?} {lba} {blocks}");
                assert!(refused.do_not_retry());
            }
        }
    }
}

#[test]
fn transfers_are_limited_by_mdts_and_other_commands_are_not() {
    let mut host = Host::new("mdts=8k,size=1M");
    let mut pair = host.queue(1, 16, 16);
    let data = host.memory.alloc(16 << 10);
    let second = data.0 + 4096;
    assert!(status(&host, &mut pair, command(NvmOpcode::Read, 0, 16, data, second)).is_success());
    let over = status(&host, &mut pair, command(NvmOpcode::Read, 0, 17, data, second));
    assert_eq!(over.kind(), Status::INVALID_FIELD);
    assert!(status(&host, &mut pair, command(NvmOpcode::WriteZeroes, 0, 2048, data, 0)).is_success());
}

#[test]
fn compare_deallocate_and_write_protection() {
    let mut host = Host::new("size=1M");
    let mut pair = host.queue(1, 16, 16);
    let (out, ranges) = (host.memory.alloc(4096), host.memory.alloc(4096));
    host.memory.write(out, &pattern(4096, 3));
    assert!(status(&host, &mut pair, command(NvmOpcode::Write, 0, 8, out, 0)).is_success());
    assert!(status(&host, &mut pair, command(NvmOpcode::Compare, 0, 8, out, 0)).is_success());
    let differs = status(&host, &mut pair, command(NvmOpcode::Compare, 1, 8, out, 0));
    assert_eq!(differs.kind(), Status::COMPARE_FAILURE);
    // Two ranges: block 1, and blocks 4 and 5.
    let mut list = Vec::new();
    for (lba, blocks) in [(1_u64, 1_u32), (4, 2)] {
        list.extend_from_slice(&[0; 4]);
        list.extend_from_slice(&blocks.to_le_bytes());
        list.extend_from_slice(&lba.to_le_bytes());
    }
    host.memory.write(ranges, &list);
    let trim = SubmissionEntry { prp1: ranges.0, ..SubmissionEntry::deallocate(Nsid(1), 2) };
    assert!(status(&host, &mut pair, trim).is_success());
    assert!(status(&host, &mut pair, command(NvmOpcode::Read, 0, 8, out, 0)).is_success());
    let mut expected = pattern(4096, 3);
    expected[512..1024].fill(0);
    expected[2048..3072].fill(0);
    assert_eq!(host.memory.read(out, 4096), expected);

    let mut host = Host::new("size=1M,readonly=on");
    let mut pair = host.queue(1, 16, 16);
    let data = host.memory.alloc(4096);
    assert!(status(&host, &mut pair, command(NvmOpcode::Read, 0, 8, data, 0)).is_success());
    for opcode in [NvmOpcode::Write, NvmOpcode::WriteZeroes] {
        let refused = status(&host, &mut pair, command(opcode, 0, 8, data, 0));
        assert_eq!(refused.kind(), Status::WRITE_PROTECTED);
    }
}

#[test]
fn unmapped_memory_is_not_touched_and_is_reported() {
    let mut host = Host::new("size=1M");
    let mut pair = host.queue(1, 16, 16);
    let data = host.memory.alloc(8192);
    host.memory.write(data, &pattern(8192, 5));
    // The second page is not there: nothing of the first is written either.
    let half = command(NvmOpcode::Read, 0, 16, data, 0xdead_0000);
    assert_eq!(status(&host, &mut pair, half).kind(), Status::DATA_TRANSFER_ERROR);
    assert_eq!(host.memory.read(data, 8192), pattern(8192, 5));
    let half = command(NvmOpcode::Write, 0, 16, data, 0xdead_0000);
    assert_eq!(status(&host, &mut pair, half).kind(), Status::DATA_TRANSFER_ERROR);
    let zeros = command(NvmOpcode::Read, 0, 8, data, 0);
    assert!(status(&host, &mut pair, zeros).is_success());
    assert_eq!(host.memory.read(data, 4096), vec![0; 4096], "nothing was stored");
    let report = host.device.report();
    assert_eq!(report.access_faults_total, 2);
    assert!(report.access_faults.iter().all(|fault| fault.iova == Iova(0xdead_0000) && fault.bytes == 4096));
}

#[test]
fn commands_that_are_not_offered_are_invalid_opcodes() {
    let mut host = Host::new("oncs=0,size=1M");
    let mut pair = host.queue(1, 16, 16);
    let data = host.memory.alloc(4096);
    for opcode in (0..=u8::MAX).filter(|opcode| *opcode > 2) {
        let entry = SubmissionEntry { opcode, ..command(NvmOpcode::Read, 0, 1, data, 0) };
        let refused = status(&host, &mut pair, entry);
        assert!(refused.kind() == Status::INVALID_OPCODE && refused.do_not_retry(), "{opcode:#x}");
    }
    for flags in [1, 2, 0x40, 0x80] {
        let entry = SubmissionEntry { flags, ..command(NvmOpcode::Read, 0, 1, data, 0) };
        assert_eq!(status(&host, &mut pair, entry).kind(), Status::INVALID_FIELD, "fused, or SGL");
    }
}
