//! What is refused at submission: with the reason, with the request given back, and with nothing done.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use doorbell::{
    Blocks, Buffer, BufferRange, DeallocateError, DmaBuf, Lba, Operation, Request, SharedRange, SubmitError,
};

use crate::scenario::scenarios;
use crate::{Place, Rig};

scenarios! {
    Nothing:
        memory_that_is_not_dword_aligned_is_refused,
        lengths_that_are_not_whole_blocks_are_refused,
        blocks_beyond_the_namespace_are_refused,
        requests_that_transfer_nothing_are_refused,
        a_read_into_shared_memory_is_refused,
        a_list_of_ranges_that_makes_no_sense_is_refused,
        a_request_that_is_refused_has_no_completion;
    Emulator:
        operations_that_the_controller_does_not_have_are_refused,
        writes_to_a_protected_namespace_fail_with_the_devices_status,
}

fn memory_that_is_not_dword_aligned_is_refused(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    for offset in 1..4 {
        let range = BufferRange::new(rig.buffer(8192)?, offset, 512).map_err(|(error, _)| error)?;
        let error = rig.refused(Request::read(&rig.namespace, Lba(0), range))?;
        ensure!(error == SubmitError::UnalignedAddress { piece: 0 }, "{error}");
        let whole = BufferRange::new(rig.buffer(4096)?, 0, 512).map_err(|(error, _)| error)?;
        let range = BufferRange::new(rig.buffer(8192)?, offset, 512).map_err(|(error, _)| error)?;
        let error = rig.refused(Request::write(&rig.namespace, Lba(0), vec![whole, range]))?;
        ensure!(error == SubmitError::UnalignedAddress { piece: 1 }, "{error}");
    }
    rig.close()
}

fn lengths_that_are_not_whole_blocks_are_refused(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    for (nsid, bytes) in [(1, 4), (1, 508), (1, 516), (2, 512), (2, 4100)] {
        rig = rig.for_namespace(nsid)?;
        let buffer = rig.buffer(bytes)?;
        let error = rig.refused(Request::read(&rig.namespace, Lba(0), buffer))?;
        let block_bytes = rig.namespace.block_bytes();
        ensure!(error == SubmitError::UnalignedLength { bytes: bytes as u64, block_bytes }, "{error}");
    }
    rig.close()
}

fn blocks_beyond_the_namespace_are_refused(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    let end = rig.namespace.blocks();
    for (lba, blocks) in [(end, 1), (end - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 2), (1 << 63, 3)] {
        let request = Request::write_zeroes(&rig.namespace, Lba(lba), Blocks(blocks));
        let error = rig.refused(request)?;
        ensure!(matches!(error, SubmitError::OutOfRange { capacity, .. } if capacity == end), "{error}");
        let buffer = rig.buffer(blocks as usize * 512)?;
        let error = rig.refused(Request::write(&rig.namespace, Lba(lba), buffer))?;
        ensure!(matches!(error, SubmitError::OutOfRange { .. }), "{error}");
    }
    rig.succeed(Request::write_zeroes(&rig.namespace, Lba(end - 1), Blocks(1)))?;
    rig.close()
}

fn requests_that_transfer_nothing_are_refused(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    let namespace = rig.namespace;
    for request in [
        Request::read(&namespace, Lba(0), Buffer::None),
        Request::write(&namespace, Lba(0), Vec::<BufferRange>::new()),
        Request::write_zeroes(&namespace, Lba(0), Blocks(0)),
    ] {
        let error = rig.refused(request)?;
        ensure!(error == SubmitError::Empty, "{error}");
    }
    rig.close()
}

fn a_read_into_shared_memory_is_refused(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    let shared = SharedRange::new(Arc::new(rig.buffer(512)?), 0, 512)?;
    let error = rig.refused(Request::read(&rig.namespace, Lba(0), shared.clone()))?;
    ensure!(error == SubmitError::SharedForReading, "{error}");
    rig.succeed(Request::write(&rig.namespace, Lba(0), shared))?;
    rig.close()
}

fn a_list_of_ranges_that_makes_no_sense_is_refused(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    let namespace = rig.namespace;
    let ask = |ranges: &[(Lba, Blocks)], list: DmaBuf| match Request::deallocate(&namespace, ranges, list) {
        Err((error, back)) if back.len() >= 16 => Ok(error),
        other => anyhow::bail!("{} ranges: {other:?}", ranges.len()),
    };
    let one = (Lba(0), Blocks(8));
    let error = ask(&[], rig.buffer(4096)?)?;
    ensure!(error == DeallocateError::RangeCount { ranges: 0 }, "{error}");
    let error = ask(&[one; 257], rig.buffer(8192)?)?;
    ensure!(error == DeallocateError::RangeCount { ranges: 257 }, "{error}");
    let error = ask(&[one; 2], rig.buffer(16)?)?;
    ensure!(matches!(error, DeallocateError::BufferTooShort { need_bytes: 32, .. }), "{error}");
    let error = ask(&[one, (Lba(namespace.blocks()), Blocks(1))], rig.buffer(4096)?)?;
    ensure!(matches!(error, DeallocateError::OutOfRange { .. }), "{error}");
    let all = [one; 256];
    let request = Request::deallocate(&namespace, &all, rig.buffer(4096)?).map_err(|(error, _)| error)?;
    rig.succeed(request)?;
    rig.close()
}

fn a_request_that_is_refused_has_no_completion(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    rig.refused(Request::write_zeroes(&rig.namespace, Lba(u64::MAX), Blocks(1)).user_data(1))?;
    rig.submit(Request::flush(&rig.namespace).user_data(2))?;
    rig.refused(Request::write_zeroes(&rig.namespace, Lba(0), Blocks(0)).user_data(3))?;
    let ended: Vec<u64> = rig.finish()?.iter().map(|it| it.user_data).collect();
    ensure!(ended == [2], "{ended:?}");
    let stats = rig.queue.stats();
    ensure!((stats.commands, stats.completed, stats.failed) == (1, 1, 0), "{stats:?}");
    rig.close()
}

fn operations_that_the_controller_does_not_have_are_refused(place: &mut Place) -> Result<()> {
    let mut rig = Rig::emulated(place, "size=1M,oncs=0", 4)?;
    let namespace = rig.namespace;
    let list = rig.buffer(4096)?;
    let deallocate =
        Request::deallocate(&namespace, &[(Lba(0), Blocks(1))], list).map_err(|(error, _)| error)?;
    for (request, wanted) in [
        (Request::compare(&namespace, Lba(0), rig.buffer(512)?), Operation::Compare),
        (Request::write_zeroes(&namespace, Lba(0), Blocks(1)), Operation::WriteZeroes),
        (deallocate, Operation::Deallocate),
    ] {
        let error = rig.refused(request)?;
        ensure!(error == SubmitError::Unsupported { operation: wanted }, "{error}");
    }
    rig.exercise(10)?;
    rig.close()
}

fn writes_to_a_protected_namespace_fail_with_the_devices_status(place: &mut Place) -> Result<()> {
    let mut rig = Rig::emulated(place, "size=1M,readonly=on", 4)?;
    ensure!(rig.namespace.is_write_protected());
    let buffer = rig.filled(&[1; 512])?;
    let completion = rig.run(Request::write(&rig.namespace, Lba(0), buffer))?;
    let error = completion.result.err().context("a write to a protected namespace succeeded")?;
    ensure!(error.to_string().contains("block 0"), "{error}");
    ensure!(completion.buffer.bytes() == 512, "the buffer did not come back");
    rig.expect(0, &[0; 512])?;
    rig.close()
}
