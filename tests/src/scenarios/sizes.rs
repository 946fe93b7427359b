//! Data of every length at every offset, in blocks of every size, arrives where it belongs.

use anyhow::{Context, Result, ensure};
use doorbell::{Buffer, BufferRange, ControllerOptions, Lba, Request};

use crate::bytes::{difference, pattern};
use crate::scenario::scenarios;
use crate::{Place, Random, Rig};

scenarios! {
    Nothing:
        lengths_up_to_two_mebibytes_at_four_offsets_arrive,
        every_number_of_blocks_up_to_three_pages_arrives_at_every_offset,
        blocks_of_512_and_4096_bytes_work,
        neighbours_of_a_transfer_are_not_touched;
    Emulator:
        lists_of_511_to_1025_entries_arrive,
        prp_lists_lie_in_memory_of_the_device,
        blocks_of_every_size_work,
}

/// Where a transfer starts in its page: everything that PRP1 can have is a multiple of 4.
const OFFSETS: [usize; 4] = [0, 4, 512, 4092];

fn lengths_up_to_two_mebibytes_at_four_offsets_arrive(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    for offset in OFFSETS {
        for blocks in [1, 7, 8, 9, 15, 16, 17, 1023, 1024, 1025, 2048, 4095, 4096] {
            round_trip(&mut rig, offset, blocks * 512)?;
        }
    }
    let mut random = Random::new(11);
    for _ in 0..20 {
        round_trip(&mut rig, 4 * random.index(1024), 512 * (1 + random.index(4096)))?;
    }
    rig.close()
}

fn every_number_of_blocks_up_to_three_pages_arrives_at_every_offset(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    for offset in OFFSETS {
        for blocks in 1..=25 {
            round_trip(&mut rig, offset, blocks * 512)?;
        }
    }
    rig.close()
}

fn blocks_of_512_and_4096_bytes_work(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    for (nsid, block_bytes) in [(1, 512), (2, 4096)] {
        rig = rig.for_namespace(nsid)?;
        ensure!(rig.namespace.block_bytes() == block_bytes);
        let last = rig.namespace.blocks() - 1;
        let content = pattern(u64::from(nsid), block_bytes as usize);
        rig.write(last, &content)?;
        rig.write(0, &pattern(3, 5 * block_bytes as usize))?;
        rig.expect(last, &content)?;
        rig.exercise(50)?;
    }
    rig.close()
}

/// The device writes what was asked for and not a byte more, on either side.
fn neighbours_of_a_transfer_are_not_touched(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    let background = pattern(1, 64 * 512);
    rig.write(100, &background)?;
    rig.write(110, &pattern(2, 20 * 512))?;
    rig.expect(100, &background[..10 * 512])?;
    rig.expect(130, &background[30 * 512..])?;
    for offset in [4, 512, 3584, 4092] {
        let mut buffer = rig.buffer(32 * 1024)?;
        buffer.as_mut_slice().fill(0xee);
        let range = BufferRange::new(buffer, offset, 9 * 512).map_err(|(error, _)| error)?;
        let back = rig.succeed(Request::read(&rig.namespace, Lba(130), range))?;
        let buffer = back.into_dma_buf().context("the buffer")?;
        let (before, rest) = buffer.as_slice().split_at(offset);
        let (inside, after) = rest.split_at(9 * 512);
        ensure!(inside == &background[30 * 512..39 * 512], "the data at offset {offset}");
        ensure!(before.iter().chain(after).all(|it| *it == 0xee), "beyond the data at offset {offset}");
    }
    rig.close()
}

/// Commands of up to 8 MiB, whose lists are one, two and three pages long.
fn lists_of_511_to_1025_entries_arrive(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=64M,mdts=0")?;
    let options: ControllerOptions = place.options().transfer_bytes_max(8 << 20);
    let controller = options.open_transport(emulator.clone())?;
    ensure!(controller.transfer_bytes_max() == 8 << 20, "{}", controller.transfer_bytes_max());
    let mut rig = Rig::on(place, controller, 4)?;
    for entries in [511_usize, 512, 513, 1023, 1024, 1025] {
        for offset in [0, 512] {
            let before = emulator.report().io_commands.values().sum::<u64>();
            // All pages but the first stand in the list.
            round_trip(&mut rig, offset, (entries + 1) * 4096 - offset)?;
            let commands = emulator.report().io_commands.values().sum::<u64>() - before;
            ensure!(commands == 2, "{entries} entries took {commands} commands instead of 2");
        }
    }
    rig.close()
}

/// The device walks the lists itself: an address of the process instead of the device's would be refused.
fn prp_lists_lie_in_memory_of_the_device(place: &mut Place) -> Result<()> {
    for bits in [39, 48] {
        let mut rig = Rig::emulated(place, &format!("size=64M,iova_bits={bits},mdts=0"), 8)?;
        for bytes in [3 * 4096, 512 * 4096, 300 * 4096 + 512] {
            round_trip(&mut rig, 512, bytes)?;
        }
        rig.close()?;
    }
    Ok(())
}

fn blocks_of_every_size_work(place: &mut Place) -> Result<()> {
    for shift in 9..=16 {
        let mut rig = Rig::emulated(place, &format!("size=16M,lba={}", 1 << shift), 8)?;
        ensure!(rig.namespace.block_bytes() == 1 << shift);
        let content = pattern(shift, 3 << shift);
        rig.write(1, &content)?;
        rig.expect(1, &content)?;
        rig.expect(0, &vec![0; 1 << shift])?;
        rig.exercise(30)?;
        rig.close()?;
    }
    Ok(())
}

/// Writes from one buffer and reads into another, both at `offset`.
fn round_trip(rig: &mut Rig, offset: usize, bytes: usize) -> Result<()> {
    let content = pattern((offset * 31 + bytes) as u64, bytes);
    let range = |fill: Option<&[u8]>| -> Result<Buffer> {
        let mut buffer = rig.buffer(offset + bytes)?;
        match fill {
            Some(content) => buffer.as_mut_slice()[offset..].copy_from_slice(content),
            None => buffer.as_mut_slice().fill(0xa5),
        }
        Ok(BufferRange::new(buffer, offset, bytes).map_err(|(error, _)| error)?.into())
    };
    let (from, to) = (range(Some(&content))?, range(None)?);
    rig.succeed(Request::write(&rig.namespace, Lba(17), from))?;
    let back = rig.succeed(Request::read(&rig.namespace, Lba(17), to))?;
    let back = back.into_dma_buf().context("the buffer did not come back")?;
    match difference(&back.as_slice()[offset..], &content) {
        None => Ok(()),
        Some(how) => anyhow::bail!("{bytes} bytes at offset {offset}: {how}"),
    }
}
