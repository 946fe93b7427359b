//! PRPs: lists of every length that matters against an oracle, and every rule that a host can break.

mod host;

use doorbell_emulator::Violation;
use doorbell_spec::command::NvmOpcode;
use doorbell_spec::{Blocks, Iova, Lba, Nsid, Status, SubmissionEntry};
use host::{Host, Pair};

const PAGE: usize = 4096;

/// Data in pages that are far apart and in no order, and the PRPs that name them.
struct Scattered {
    pages: Vec<Iova>,
    first_offset: usize,
    bytes: usize,
    prp1: u64,
    prp2: u64,
}

/// Lays out `bytes` bytes from `first_offset` of the first page on. The first list page has only `slots`
/// entries, as if the list began late in its page.
fn scatter(host: &mut Host, bytes: usize, first_offset: usize, slots: usize) -> Scattered {
    let count = (first_offset + bytes).div_ceil(PAGE);
    let area = host.memory.alloc(2 * count * PAGE);
    // Every second page, back to front: no two pages touch.
    let pages: Vec<Iova> = (0..count).rev().map(|page| area.offset((2 * page * PAGE) as u64)).collect();
    let prp1 = pages[0].0 + first_offset as u64;
    let rest: Vec<u64> = pages[1..].iter().map(|page| page.0).collect();
    let prp2 = match rest.len() {
        0 => 0,
        1 => rest[0],
        _ => write_list(host, &rest, slots),
    };
    Scattered { pages, first_offset, bytes, prp1, prp2 }
}

fn write_list(host: &mut Host, entries: &[u64], slots: usize) -> u64 {
    let page = host.memory.alloc(PAGE);
    let start = page.offset((PAGE - slots * 8) as u64);
    let mut rest = entries;
    let mut at = start;
    let mut room = slots;
    while !rest.is_empty() {
        let here = if rest.len() <= room { rest.len() } else { room - 1 };
        for (index, entry) in rest[..here].iter().enumerate() {
            host.memory.write(at.offset(index as u64 * 8), &entry.to_le_bytes());
        }
        rest = &rest[here..];
        if !rest.is_empty() {
            let next = host.memory.alloc(PAGE);
            host.memory.write(at.offset(here as u64 * 8), &next.0.to_le_bytes());
            (at, room) = (next, PAGE / 8);
        }
    }
    start.0
}

impl Scattered {
    fn for_each_page(&self, mut visit: impl FnMut(Iova, usize, usize)) {
        let (mut done, mut offset) = (0, self.first_offset);
        for page in &self.pages {
            let bytes = (PAGE - offset).min(self.bytes - done);
            visit(page.offset(offset as u64), done, bytes);
            done += bytes;
            offset = 0;
        }
    }

    fn write(&self, host: &Host, data: &[u8]) {
        self.for_each_page(|iova, done, bytes| host.memory.write(iova, &data[done..done + bytes]));
    }

    fn read(&self, host: &Host) -> Vec<u8> {
        let mut data = Vec::new();
        self.for_each_page(|iova, _, bytes| data.extend(host.memory.read(iova, bytes)));
        data
    }

    fn command(&self, opcode: NvmOpcode) -> SubmissionEntry {
        let blocks = Blocks(u32::try_from(self.bytes / 512).expect("small"));
        let entry = SubmissionEntry::block_range(opcode, Nsid(1), Lba(16), blocks, 0);
        SubmissionEntry { prp1: self.prp1, prp2: self.prp2, ..entry }
    }
}

fn run(host: &Host, pair: &mut Pair, entry: SubmissionEntry) -> Status {
    host.run(pair, entry).status()
}

#[test]
fn data_arrives_through_lists_of_every_length() {
    for (entries, slots) in [
        (0, 512),
        (1, 512),
        (2, 512),
        (2, 2),
        (2, 1),
        (5, 3),
        (511, 512),
        (512, 512),
        (513, 512),
        (512, 1),
        (1022, 512),
        (1023, 512),
        (1024, 512),
        (1025, 512),
        (1030, 7),
    ] {
        for first_offset in [0, 4, 512, 4092] {
            let mut host = Host::new("size=16M,mdts=0");
            let mut pair = host.queue(1, 8, 8);
            // The last page is used in part: 512 bytes and what the first offset leaves over.
            let bytes = (entries * PAGE + PAGE - first_offset) / 512 * 512;
            if bytes == 0 {
                continue;
            }
            let out = scatter(&mut host, bytes, first_offset, slots);
            let back = scatter(&mut host, bytes, first_offset, slots);
            let data: Vec<u8> = (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect();
            out.write(&host, &data);
            let case = format!("{entries} entries, {slots} slots, offset {first_offset}");
            assert!(run(&host, &mut pair, out.command(NvmOpcode::Write)).is_success(), "{case}");
            assert!(run(&host, &mut pair, back.command(NvmOpcode::Read)).is_success(), "{case}");
            assert!(back.read(&host) == data, "{case}");
            assert!(host.device.report().is_clean(), "{case}");
        }
    }
}

#[test]
fn every_ill_aligned_pointer_is_refused_and_reported() {
    let mut host = Host::new("size=16M,mdts=0");
    let mut pair = host.queue(1, 8, 8);
    let good = scatter(&mut host, 4 * PAGE, 0, 512);
    let list = good.prp2;
    let command = good.command(NvmOpcode::Read);
    let short = SubmissionEntry { cdw12: 15, ..command };
    let mut cases = vec![];
    for add in [1, 2, 3] {
        cases.push((SubmissionEntry { prp1: command.prp1 + add, ..command }, command.prp1 + add));
    }
    for add in [1, 4, 512] {
        // A second data pointer with an offset.
        let second = good.pages[1].0 + add;
        cases.push((SubmissionEntry { prp2: second, ..short }, second));
    }
    for add in [1, 2, 4] {
        cases.push((SubmissionEntry { prp2: list + add, ..command }, list + add));
    }
    for (entry, prp) in &cases {
        let before = host.device.report().violations_total;
        let refused = run(&host, &mut pair, *entry);
        assert_eq!(refused.kind(), Status::INVALID_PRP_OFFSET, "{prp:#x}");
        let report = host.device.report();
        assert_eq!(report.violations_total, before + 1);
        let last = report.violations.last().copied();
        assert!(matches!(last, Some(Violation::BadPrp { prp: bad, .. }) if bad == *prp), "{last:?}");
    }
    // An entry with an offset, in the list.
    host.memory.write(Iova(list + 8), &(good.pages[2].0 + 8).to_le_bytes());
    assert_eq!(run(&host, &mut pair, command).kind(), Status::INVALID_PRP_OFFSET);
}

#[test]
fn a_pointer_to_the_next_list_has_no_offset() {
    let mut host = Host::new("size=16M,mdts=0");
    let mut pair = host.queue(1, 8, 8);
    let good = scatter(&mut host, 6 * PAGE, 0, 2);
    let command = good.command(NvmOpcode::Read);
    assert!(run(&host, &mut pair, command).is_success());
    let link = Iova(good.prp2 + 8);
    let next = u64::from_le_bytes(host.memory.read(link, 8).try_into().expect("8 bytes"));
    host.memory.write(link, &(next + 8).to_le_bytes());
    assert_eq!(run(&host, &mut pair, command).kind(), Status::INVALID_PRP_OFFSET);
    host.memory.write(link, &0xdead_0000_u64.to_le_bytes());
    assert_eq!(run(&host, &mut pair, command).kind(), Status::DATA_TRANSFER_ERROR);
    // A list that leads back to itself ends, since the number of entries is known.
    let own_page = Iova(good.prp2 & !0xfff);
    host.memory.write(link, &own_page.0.to_le_bytes());
    let _ = run(&host, &mut pair, command);
}

#[test]
fn pages_are_those_of_cc_mps() {
    let mut host = Host::new("size=16M,mpsmin=16k,mpsmax=16k,mdts=0");
    let mut pair = host.queue(1, 8, 8);
    let area = host.memory.alloc(96 << 10);
    let aligned = Iova(area.0.next_multiple_of(16 << 10));
    let entry = |prp1: u64, prp2: u64| {
        let entry = SubmissionEntry::block_range(NvmOpcode::Read, Nsid(1), Lba(0), Blocks(33), 0);
        SubmissionEntry { prp1, prp2, ..entry }
    };
    // 16.5 KiB: one page of 16 KiB, and a second that must be aligned to 16 KiB.
    assert!(run(&host, &mut pair, entry(aligned.0, aligned.0 + (32 << 10))).is_success());
    let refused = run(&host, &mut pair, entry(aligned.0, aligned.0 + (36 << 10)));
    assert_eq!(refused.kind(), Status::INVALID_PRP_OFFSET);
}
