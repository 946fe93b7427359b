//! What is stored is what was written: every operation against a model of the blocks.

use anyhow::{Context, Result, bail, ensure};
use doorbell::{Blocks, BufferRange, IoError, Lba, Request};
use doorbell_spec::Status;

use crate::bytes::{difference, pattern};
use crate::scenario::scenarios;
use crate::{Place, Random, Rig};

scenarios! {
    Nothing:
        random_operations_agree_with_a_model_at_512_bytes,
        random_operations_agree_with_a_model_at_4096_bytes,
        a_comparison_tells_equal_from_different,
        zeroes_are_written_where_they_should_be,
        deallocation_touches_nothing_else;
    Emulator:
        data_that_the_device_corrupts_is_noticed,
}

fn random_operations_agree_with_a_model_at_512_bytes(place: &mut Place) -> Result<()> {
    model(place, 1, 0xD00B)
}

fn random_operations_agree_with_a_model_at_4096_bytes(place: &mut Place) -> Result<()> {
    model(place, 2, 0xBE11)
}

/// What a block holds: `None` after a deallocation, which leaves open what is read.
type Block = Option<Vec<u8>>;

/// Blocks that the model covers.
const SPAN: usize = 600;

/// Several hundred operations in random order and size, one at a time, each checked.
fn model(place: &mut Place, nsid: u32, seed: u64) -> Result<()> {
    let mut rig = Rig::new(place)?.for_namespace(nsid)?;
    let block_bytes = rig.namespace.block_bytes() as usize;
    let mut random = Random::new(seed);
    let mut blocks: Vec<Block> = vec![None; SPAN];
    for step in 0..400 {
        let first = random.index(SPAN);
        let count = (1 + random.index(if step % 10 == 0 { 300 } else { 20 })).min(SPAN - first);
        let range = first..first + count;
        let what = random.below(10);
        operation(&mut rig, &mut blocks[range], first, what, seed ^ step).with_context(|| {
            format!("seed {seed:#x}, step {step}: operation {what}, {count} blocks from {first}")
        })?;
    }
    for (lba, block) in blocks.iter().enumerate() {
        if let Some(content) = block {
            ensure!(content.len() == block_bytes);
            rig.expect(lba as u64, content)?;
        }
    }
    rig.close()
}

fn operation(rig: &mut Rig, blocks: &mut [Block], first: usize, what: u64, seed: u64) -> Result<()> {
    let block_bytes = rig.namespace.block_bytes() as usize;
    let (lba, bytes) = (Lba(first as u64), blocks.len() * block_bytes);
    let count = Blocks(u32::try_from(blocks.len())?);
    let namespace = rig.namespace;
    match what {
        0..4 => {
            let content = pattern(seed, bytes);
            let offset = 4 * usize::try_from(seed % 1024)?;
            let mut buffer = rig.buffer(offset + bytes)?;
            buffer.as_mut_slice()[offset..].copy_from_slice(&content);
            let range = BufferRange::new(buffer, offset, bytes).map_err(|(error, _)| error)?;
            let request = Request::write(&namespace, lba, range);
            rig.succeed(if what == 0 { request.force_unit_access() } else { request })?;
            for (block, part) in blocks.iter_mut().zip(content.chunks(block_bytes)) {
                *block = Some(part.to_vec());
            }
        }
        4 => {
            rig.succeed(Request::write_zeroes(&namespace, lba, count))?;
            blocks.fill(Some(vec![0; block_bytes]));
        }
        5 => {
            let list = rig.buffer(4096)?;
            let request =
                Request::deallocate(&namespace, &[(lba, count)], list).map_err(|(error, _)| error)?;
            rig.succeed(request)?;
            blocks.fill(None);
        }
        6 => drop(rig.succeed(Request::flush(&namespace))?),
        7 => {
            if let Some(content) = known(blocks) {
                let buffer = rig.filled(&content)?;
                rig.succeed(Request::compare(&namespace, lba, buffer))?;
            }
        }
        _ => {
            let found = rig.read(lba.0, bytes)?;
            for (index, (block, part)) in blocks.iter().zip(found.chunks(block_bytes)).enumerate() {
                if let Some(how) = block.as_ref().and_then(|expected| difference(part, expected)) {
                    bail!("block {}: {how}", first + index);
                }
            }
        }
    }
    Ok(())
}

/// The content of blocks that are all known.
fn known(blocks: &[Block]) -> Option<Vec<u8>> {
    blocks.iter().cloned().collect::<Option<Vec<_>>>().map(|parts| parts.concat())
}

fn a_comparison_tells_equal_from_different(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    let content = pattern(8, 16 * 512);
    rig.write(40, &content)?;
    let equal = rig.filled(&content)?;
    rig.succeed(Request::compare(&rig.namespace, Lba(40), equal))?;
    for at in [0, 511, 512, 16 * 512 - 1] {
        let mut other = content.clone();
        other[at] ^= 1;
        let buffer = rig.filled(&other)?;
        let completion = rig.run(Request::compare(&rig.namespace, Lba(40), buffer))?;
        match completion.result {
            Err(IoError::Status { status, .. }) if status.kind() == Status::COMPARE_FAILURE => {}
            other => bail!("a difference in byte {at}: {other:?}"),
        }
    }
    rig.expect(40, &content)?;
    rig.close()
}

fn zeroes_are_written_where_they_should_be(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    let content = pattern(6, 100 * 512);
    rig.write(200, &content)?;
    rig.succeed(Request::write_zeroes(&rig.namespace, Lba(210), Blocks(37)))?;
    let mut expected = content;
    expected[10 * 512..47 * 512].fill(0);
    rig.expect(200, &expected)?;
    rig.close()
}

fn deallocation_touches_nothing_else(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    let content = pattern(6, 64 * 512);
    rig.write(300, &content)?;
    let ranges = [(Lba(304), Blocks(4)), (Lba(320), Blocks(16)), (Lba(350), Blocks(1))];
    let list = rig.buffer(48)?;
    let request = Request::deallocate(&rig.namespace, &ranges, list).map_err(|(error, _)| error)?;
    let back = rig.succeed(request)?;
    ensure!(back.bytes() == 48, "the list did not come back");
    for (first, last) in [(300, 304), (308, 320), (336, 350), (351, 364)] {
        let part = usize::try_from(first - 300)? * 512..usize::try_from(last - 300)? * 512;
        rig.expect(first, &content[part])?;
    }
    rig.close()
}

/// That the checks above can fail at all.
fn data_that_the_device_corrupts_is_noticed(place: &mut Place) -> Result<()> {
    use doorbell_emulator::fault::{Action, Match, Point, Rule};
    let emulator = place.emulator("size=1M")?;
    let controller = place.options().open_transport(emulator.clone())?;
    let mut rig = Rig::on(place, controller, 8)?;
    let content = pattern(1, 4096);
    rig.write(0, &content)?;
    let matches = Match { point: Point::Io, count: Some(1), ..Match::default() };
    emulator.faults().arm(Rule::new(matches, Action::Corrupt));
    ensure!(rig.expect(0, &content).is_err(), "a flipped bit was not noticed");
    rig.expect(0, &content)?;
    rig.close()
}
