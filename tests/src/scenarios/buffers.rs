//! Buffers in all their forms: whole, a part, pieces, shared.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use doorbell::{Buffer, BufferRange, Lba, Request, SharedRange, SubmitError};

use crate::bytes::pattern;
use crate::scenario::scenarios;
use crate::{Place, Random, Rig};

scenarios! {
    Nothing:
        the_same_buffer_comes_back,
        pieces_that_meet_at_pages_are_one_transfer,
        pieces_that_meet_at_blocks_are_transferred_in_order,
        pieces_that_meet_inside_of_a_block_and_a_page_are_refused,
        one_buffer_is_written_to_many_places_at_once,
        buffers_of_a_pool_are_given_back_by_another_thread,
        many_random_pieces_arrive,
}

fn the_same_buffer_comes_back(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    let pool = rig.controller.space().pool(4096, 4)?;
    for form in 0..3 {
        let block = pool.take().context("a free block")?;
        let iova = block.iova();
        let buffer: Buffer = match form {
            0 => block.into(),
            1 => BufferRange::new(block, 512, 1024).map_err(|(error, _)| error)?.into(),
            _ => vec![BufferRange::new(block, 0, 512).map_err(|(error, _)| error)?].into(),
        };
        let bytes = buffer.bytes();
        let back = rig.succeed(Request::read(&rig.namespace, Lba(0), buffer))?;
        ensure!(back.bytes() == bytes, "{} bytes instead of {bytes}", back.bytes());
        let block = match back {
            Buffer::Pieces(pieces) => pieces.into_vec().pop().context("one piece")?.into_buffer(),
            other => other.into_dma_buf().context("a buffer")?,
        };
        ensure!(block.iova() == iova, "another buffer came back");
    }
    ensure!(pool.available() == 4, "{} of 4 are free", pool.available());
    rig.close()
}

fn pieces_that_meet_at_pages_are_one_transfer(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    let shapes: [&[(usize, usize)]; 4] = [
        &[(0, 4096), (0, 4096)],
        &[(512, 3584), (0, 8192), (0, 4096), (0, 512)],
        &[(4092, 4), (0, 4096), (0, 4092)],
        &[(0, 8192), (0, 8192), (0, 8192)],
    ];
    for parts in shapes {
        let before = rig.queue.stats().commands;
        transfer(&mut rig, parts)?;
        ensure!(rig.queue.stats().commands - before == 3, "{parts:?}: {:?}", rig.queue.stats());
    }
    rig.close()
}

fn pieces_that_meet_at_blocks_are_transferred_in_order(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    for parts in [
        &[(0, 512), (0, 512)][..],
        &[(4, 1024), (8, 1536), (512, 512)],
        &[(0, 4096), (0, 4096), (512, 4096)],
        &[(0, 512); 40],
    ] {
        transfer(&mut rig, parts)?;
    }
    rig.close()
}

/// 968 + 3128 is one page, in pieces that no PRP list can describe.
fn pieces_that_meet_inside_of_a_block_and_a_page_are_refused(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    for parts in [&[(0, 968), (0, 3128)][..], &[(0, 968), (968, 3128)], &[(0, 4096), (4, 100), (0, 412)]] {
        let (pieces, _) = pieces(&rig, parts)?;
        let error = rig.refused(Request::write(&rig.namespace, Lba(0), pieces))?;
        ensure!(matches!(error, SubmitError::PieceNotPageShaped { .. }), "{parts:?}: {error}");
        ensure!(error.to_string().contains("4096"), "{error}");
    }
    rig.close()
}

fn one_buffer_is_written_to_many_places_at_once(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    let content = pattern(9, 8192);
    let buffer = Arc::new(rig.filled(&content)?);
    for number in 0..16 {
        let offset = usize::try_from(number % 8)? * 512;
        let part = SharedRange::new(Arc::clone(&buffer), offset, 4096)?;
        rig.submit(Request::write(&rig.namespace, Lba(number * 8), part).user_data(number))?;
    }
    ensure!(buffer.as_slice() == content, "shared memory can be read meanwhile");
    let ended = rig.finish()?;
    ensure!(ended.len() == 16 && ended.iter().all(|it| it.result.is_ok()), "{ended:?}");
    drop(ended);
    ensure!(Arc::strong_count(&buffer) == 1, "a share was kept");
    for number in 0..16_u64 {
        let offset = usize::try_from(number % 8)? * 512;
        rig.expect(number * 8, &content[offset..offset + 4096])?;
    }
    rig.close()
}

fn buffers_of_a_pool_are_given_back_by_another_thread(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    let pool = rig.controller.space().pool(512, 8)?;
    for round in 0..5 {
        for number in 0..8 {
            let buffer = pool.take().with_context(|| format!("block {number} of round {round}"))?;
            rig.submit(Request::read(&rig.namespace, Lba(number), buffer))?;
        }
        ensure!(pool.take().is_none());
        let ended = rig.finish()?;
        std::thread::scope(|scope| {
            scope.spawn(move || drop(ended));
        });
        ensure!(pool.available() == 8, "{} of 8 came back", pool.available());
    }
    rig.close()
}

fn many_random_pieces_arrive(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    let mut random = Random::new(77);
    for _ in 0..60 {
        let count = 1 + random.index(12);
        let parts: Vec<(usize, usize)> =
            (0..count).map(|_| (4 * random.index(1024), 512 * (1 + random.index(24)))).collect();
        transfer(&mut rig, &parts).with_context(|| format!("{parts:?}"))?;
    }
    rig.close()
}

/// Writes from pieces of this form, reads the blocks as one, and reads them into pieces of the same form.
fn transfer(rig: &mut Rig, parts: &[(usize, usize)]) -> Result<()> {
    let (from, content) = pieces(rig, parts)?;
    let (to, _) = pieces(rig, parts)?;
    rig.succeed(Request::write(&rig.namespace, Lba(5), from))?;
    rig.expect(5, &content)?;
    // Other content in between, so that what is read cannot be what was there.
    let back = rig.succeed(Request::read(&rig.namespace, Lba(5), to))?;
    let Buffer::Pieces(back) = back else { anyhow::bail!("pieces did not come back as pieces") };
    let mut at = 0;
    for (piece, &(offset, bytes)) in back.into_vec().into_iter().zip(parts) {
        let buffer = piece.into_buffer();
        let found = &buffer.as_slice()[offset..offset + bytes];
        ensure!(found == &content[at..at + bytes], "the piece of {bytes} bytes at {offset}");
        at += bytes;
    }
    Ok(())
}

/// Pieces of memory, each in a buffer of its own, and what is in them.
fn pieces(rig: &Rig, parts: &[(usize, usize)]) -> Result<(Vec<BufferRange>, Vec<u8>)> {
    let bytes = parts.iter().map(|it| it.1).sum();
    let content = pattern(bytes as u64 + parts.len() as u64, bytes);
    let mut at = 0;
    let mut pieces = Vec::new();
    for &(offset, bytes) in parts {
        let mut buffer = rig.buffer(offset + bytes)?;
        buffer.as_mut_slice()[offset..].copy_from_slice(&content[at..at + bytes]);
        at += bytes;
        pieces.push(BufferRange::new(buffer, offset, bytes).map_err(|(error, _)| error)?);
    }
    Ok((pieces, content))
}
