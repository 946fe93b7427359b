//! Requests larger than one command: split at MDTS and at the optimal boundary, answered once.

use anyhow::{Context, Result, bail, ensure};
use doorbell::{Blocks, Cancelled, ControllerOptions, IoError, Lba, Request, SubmitError};
use doorbell_emulator::Emulator;
use doorbell_emulator::fault::{Action, Match, Point, Rule};
use doorbell_spec::Status;

use crate::bytes::pattern;
use crate::scenario::scenarios;
use crate::{Place, Rig};

scenarios! {
    Nothing:
        a_request_of_64_mebibytes_completes_at_depth_2,
        large_requests_complete_beside_small_ones;
    Emulator:
        mdts_0_is_no_limit,
        mdts_counts_in_the_smallest_page_and_is_kept,
        the_optimal_boundary_is_not_crossed,
        a_request_of_many_parts_fails_once_with_the_lowest_block,
        a_large_request_is_cancelled_between_its_parts,
        a_write_of_zeroes_beyond_65536_blocks_is_split,
}

fn a_request_of_64_mebibytes_completes_at_depth_2(place: &mut Place) -> Result<()> {
    let controller = place.controller()?;
    let mut rig = Rig::on(place, controller, 2)?;
    let content = pattern(64, 64 << 20);
    rig.write(1001, &content)?;
    rig.expect(1001, &content)?;
    ensure!(rig.queue.stats().completed == 2, "{:?}", rig.queue.stats());
    rig.close()
}

fn large_requests_complete_beside_small_ones(place: &mut Place) -> Result<()> {
    let controller = place.controller()?;
    let mut rig = Rig::on(place, controller, 4)?;
    let large = pattern(1, 5 << 20);
    let buffer = rig.filled(&large)?;
    rig.submit(Request::write(&rig.namespace, Lba(0), buffer).user_data(1000))?;
    let mut ended = Vec::new();
    for number in 0..40 {
        let small = rig.filled(&[u8::try_from(number)?; 512])?;
        let request = Request::write(&rig.namespace, Lba(20_000 + number), small).user_data(number);
        rig.accept(request, |it| {
            ended.push(it.user_data);
            Ok(())
        })?;
    }
    ended.extend(rig.finish()?.iter().map(|it| it.user_data));
    ended.sort_unstable();
    ensure!(ended == (0..40).chain([1000]).collect::<Vec<_>>(), "{ended:?}");
    rig.expect(0, &large)?;
    rig.close()
}

fn mdts_0_is_no_limit(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=64M,mdts=0")?;
    let mut rig = rig(place, &emulator, place.options().transfer_bytes_max(64 << 20), 2)?;
    ensure!(rig.controller.transfer_bytes_max() == 64 << 20, "{}", rig.controller.transfer_bytes_max());
    let content = pattern(5, 16 << 20);
    rig.write(0, &content)?;
    ensure!(io_commands(&emulator) == 1, "{:?}", emulator.report().io_commands);
    rig.expect(0, &content)?;
    rig.close()
}

fn mdts_counts_in_the_smallest_page_and_is_kept(place: &mut Place) -> Result<()> {
    for (mdts, page, limit) in
        [(1, "4k", 8 << 10), (5, "4k", 128 << 10), (1, "16k", 32 << 10), (3, "64k", 512 << 10)]
    {
        let emulator = place.emulator(&format!("size=64M,mdts={mdts},mpsmin={page}"))?;
        let mut rig = rig(place, &emulator, place.options(), 8)?;
        ensure!(rig.controller.transfer_bytes_max() == limit, "{}", rig.controller.transfer_bytes_max());
        let content = pattern(limit, usize::try_from(3 * limit + 512)?);
        rig.write(1, &content)?;
        ensure!(io_commands(&emulator) == 4, "MDTS {mdts}, {page}: {:?}", emulator.report().io_commands);
        rig.expect(1, &content)?;
        let exact = pattern(limit, usize::try_from(limit)?);
        let before = io_commands(&emulator);
        rig.write(7, &exact)?;
        ensure!(io_commands(&emulator) - before == 1, "a request of exactly MDTS was split");
        rig.close()?;
    }
    Ok(())
}

fn the_optimal_boundary_is_not_crossed(place: &mut Place) -> Result<()> {
    for (boundary, start, blocks, commands) in [
        (8, 0, 8, 1),
        (8, 5, 3, 1),
        (8, 5, 4, 2),
        (8, 5, 20, 4),
        (3, 1, 10, 4),
        (256, 255, 2, 2),
        (1, 4, 5, 5),
    ] {
        let emulator = place.emulator(&format!("size=1M,noiob={boundary}"))?;
        // Were a command to touch the blocks on both sides of a boundary, the rule would fire for fewer
        // commands than there are blocks behind one.
        let mut rig = rig(place, &emulator, place.options(), 8)?;
        let content = pattern(start, usize::try_from(blocks * 512)?);
        rig.write(start, &content)?;
        let found = io_commands(&emulator);
        ensure!(found == commands, "{blocks} blocks from {start} at {boundary}: {found} commands");
        rig.expect(start, &content)?;
        crosses_nothing(&mut rig, &emulator, boundary, start, blocks)?;
        rig.close()?;
    }
    Ok(())
}

/// Fails the block after each boundary in turn: only a command that starts there may fail.
fn crosses_nothing(rig: &mut Rig, emulator: &Emulator, boundary: u64, start: u64, blocks: u64) -> Result<()> {
    let first = start.next_multiple_of(boundary).max(start + 1);
    for at in (first..start + blocks).filter(|at| at.is_multiple_of(boundary)) {
        let lbas = Some(at..=at);
        let action = Action::Status(Status::UNRECOVERED_READ_ERROR);
        let rule =
            emulator.faults().arm(Rule::new(Match { point: Point::Io, lbas, ..Match::default() }, action));
        let buffer = rig.buffer(usize::try_from(blocks * 512)?)?;
        let completion = rig.run(Request::read(&rig.namespace, Lba(start), buffer))?;
        match completion.result {
            Err(IoError::Status { lba, .. }) => {
                ensure!(lba == Lba(at), "block {at} failed, of a command from {lba}")
            }
            other => bail!("block {at} cannot be read: {other:?}"),
        }
        emulator.faults().disarm(rule);
    }
    Ok(())
}

fn a_request_of_many_parts_fails_once_with_the_lowest_block(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=64M,mdts=1,latency=1ms")?;
    let mut rig = rig(place, &emulator, place.options(), 8)?;
    // Parts are 16 blocks: those from 32, 64 and 80 fail, the one from 32 long after the others.
    let action = Action::Status(Status::UNRECOVERED_READ_ERROR);
    for block in [64, 80, 32] {
        let lbas = Some(block..=block);
        emulator.faults().arm(Rule::new(Match { point: Point::Io, lbas, ..Match::default() }, action));
    }
    for depth_free in 0..4 {
        let buffer = rig.buffer(256 * 512)?;
        let request = Request::read(&rig.namespace, Lba(0), buffer).user_data(depth_free);
        let completion = rig.run(request)?;
        match completion.result {
            Err(IoError::Status { status, lba }) => {
                ensure!(
                    status.kind() == Status::UNRECOVERED_READ_ERROR && lba == Lba(32),
                    "{status} at {lba}"
                );
            }
            other => bail!("{other:?}"),
        }
        ensure!(completion.user_data == depth_free && completion.buffer.bytes() == 256 * 512);
    }
    ensure!(rig.queue.stats().failed == 4, "{:?}", rig.queue.stats());
    emulator.faults().disarm_all();
    rig.exercise(20)?;
    rig.close()
}

fn a_large_request_is_cancelled_between_its_parts(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=64M,mdts=1,latency=1ms")?;
    let mut rig = rig(place, &emulator, place.options(), 2)?;
    let buffer = rig.buffer(1 << 20)?;
    let request = Request::read(&rig.namespace, Lba(0), buffer).user_data(9);
    let handle = rig.queue.submit(request).map_err(|refused| refused.error)?;
    rig.turn();
    ensure!(rig.queue.cancel(handle) == Cancelled::Rest);
    let ended = rig.finish()?;
    ensure!(ended.len() == 1 && ended[0].result == Err(IoError::Cancelled), "{ended:?}");
    ensure!(ended[0].user_data == 9 && ended[0].buffer.bytes() == 1 << 20);
    ensure!(rig.queue.cancel(handle) == Cancelled::Ended);
    ensure!(io_commands(&emulator) < 10, "{:?}", emulator.report().io_commands);
    rig.exercise(20)?;
    rig.close()
}

fn a_write_of_zeroes_beyond_65536_blocks_is_split(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=128M")?;
    let mut rig = rig(place, &emulator, place.options(), 4)?;
    let last = pattern(1, 512);
    for lba in [0, 65_535, 65_536, 140_000] {
        rig.write(lba, &last)?;
    }
    let before = io_commands(&emulator);
    rig.succeed(Request::write_zeroes(&rig.namespace, Lba(0), Blocks(140_000)))?;
    ensure!(io_commands(&emulator) - before == 3, "{:?}", emulator.report().io_commands);
    for lba in [0, 65_535, 65_536] {
        rig.expect(lba, &[0; 512])?;
    }
    rig.expect(140_000, &last)?;
    let error = rig.refused(Request::write_zeroes(&rig.namespace, Lba(0), Blocks(u32::MAX)))?;
    ensure!(matches!(error, SubmitError::OutOfRange { .. }), "{error}");
    rig.close()
}

fn rig(
    place: &Place,
    emulator: &std::sync::Arc<Emulator>,
    options: ControllerOptions,
    depth: u32,
) -> Result<Rig> {
    let controller = options.open_transport(emulator.clone()).context("opening")?;
    Rig::on(place, controller, depth)
}

fn io_commands(emulator: &Emulator) -> u64 {
    emulator.report().io_commands.values().sum()
}
