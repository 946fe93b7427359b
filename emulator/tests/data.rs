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
