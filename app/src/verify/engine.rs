//! Moves pieces between the device and memory, many at once, and hands each to its check.
//!
//! Before a read, memory is poisoned: a device that says "done" and transfers nothing is found out, and one
//! that writes outside of where it was told to, within a page before or after, too. Now and then a buffer
//! starts at any multiple of 4 bytes, which NVMe allows and drivers get wrong.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use doorbell::{
    BufferRange, Completion, DmaBuf, DmaPool, Lba, Namespace, QueueConfig, QueuePair, Request, SubmitError,
};

use super::passes::Piece;
use crate::interrupt::Interrupt;
use crate::random::Random;
use crate::target::Opened;

/// A queue pair with its buffers.
#[derive(Debug)]
pub(crate) struct Engine {
    queue: QueuePair,
    namespace: Namespace,
    pool: DmaPool,
    /// What is in flight, by the number that its request carries.
    flights: Vec<Flight>,
    free: Vec<usize>,
    ended: Vec<Completion>,
    random: Random,
    io_timeout: Duration,
    interrupt: Interrupt,
}

/// A piece on its way: its bytes lie from `offset` on in its buffer.
#[derive(Clone, Copy, Debug)]
struct Flight {
    piece: Piece,
    offset: usize,
    bytes: usize,
}

/// What an engine needs to know.
#[derive(Debug)]
pub(crate) struct EngineConfig {
    pub(crate) depth: u32,
    pub(crate) piece_bytes_max: u64,
    pub(crate) io_timeout: Duration,
    pub(crate) seed: u64,
}

/// What is done with each piece of a pass.
pub(crate) trait Task {
    /// Makes the request, after preparing the piece's memory.
    fn request(&mut self, namespace: &Namespace, piece: Piece, memory: PieceMemory) -> Request;

    /// Looks at the piece's memory when the device is done.
    fn finish(&mut self, piece: Piece, memory: &PieceMemory);
}

/// The memory of a piece: a part of a buffer.
#[derive(Debug)]
pub(crate) struct PieceMemory {
    buffer: DmaBuf,
    offset: usize,
    bytes: usize,
}

/// How a pass ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PassEnd {
    /// All pieces are done.
    Complete,
    /// Somebody asked for the end; what was in flight is done.
    Interrupted,
}

impl Engine {
    /// Makes the queue pair and the buffers.
    pub(crate) fn new(opened: &Opened, config: &EngineConfig, interrupt: Interrupt) -> anyhow::Result<Self> {
        let controller = &opened.controller;
        let parts = config.piece_bytes_max.div_ceil(controller.transfer_bytes_max().max(1));
        let parts = u32::try_from(parts).unwrap_or(u32::MAX);
        let depth = config.depth.saturating_mul(parts).min(controller.depth_max());
        let queue = controller.create_queue(QueueConfig::with_depth(depth))?;
        let buffer_bytes = usize::try_from(config.piece_bytes_max).unwrap_or(usize::MAX) + SLACK_BYTES;
        let count = usize::try_from(config.depth).unwrap_or(usize::MAX);
        let pool = controller.space().pool(buffer_bytes.next_multiple_of(4096), count)?;
        let idle = Flight { piece: Piece { lba: 0, blocks: 0 }, offset: 0, bytes: 0 };
        Ok(Self {
            queue,
            namespace: opened.namespace,
            pool,
            flights: vec![idle; count],
            free: (0..count).collect(),
            ended: Vec::with_capacity(count),
            random: Random::of(config.seed, 0, 2),
            io_timeout: config.io_timeout,
            interrupt,
        })
    }

    /// Does all pieces. Ends at the first that the device refuses.
    pub(crate) fn pass(
        &mut self,
        pieces: &mut dyn Iterator<Item = Piece>,
        task: &mut dyn Task,
        tell: &mut dyn FnMut(u64),
    ) -> anyhow::Result<PassEnd> {
        let mut last_progress = Instant::now();
        let mut refused = None;
        let mut empty = 0u32;
        loop {
            let is_over = self.interrupt.is_raised();
            while !is_over && let Some(request) = refused.take().or_else(|| self.next(pieces, task)) {
                match self.queue.submit(request) {
                    Ok(_) => {}
                    Err(rejected) if rejected.error == SubmitError::QueueFull => {
                        refused = Some(rejected.request);
                        break;
                    }
                    Err(rejected) => return Err(rejected.error).context("submitting a transfer"),
                }
            }
            // A request that the full queue did not take has a number, and is not in flight.
            let waiting = usize::from(refused.is_some());
            if self.free.len() + waiting == self.flights.len() && (is_over || waiting == 0) {
                return Ok(if is_over { PassEnd::Interrupted } else { PassEnd::Complete });
            }
            let Self { queue, ended, flights, .. } = self;
            queue.poll(flights.len(), |_, completion| ended.push(completion));
            if self.ended.is_empty() {
                empty = empty.wrapping_add(1);
                if empty.is_multiple_of(64) {
                    std::thread::yield_now();
                    self.check_silence(last_progress)?;
                }
                continue;
            }
            last_progress = Instant::now();
            while let Some(completion) = self.ended.pop() {
                tell(self.end(completion, task)?);
            }
        }
    }

    /// Makes everything durable that was written so far.
    pub(crate) fn flush(&mut self) -> anyhow::Result<()> {
        self.queue
            .submit(Request::flush(&self.namespace))
            .map_err(|rejected| rejected.error)
            .context("submitting a flush")?;
        let begun = Instant::now();
        let mut result = None;
        while result.is_none() {
            if self.queue.poll(1, |_, completion| result = Some(completion.result)) == 0 {
                std::thread::yield_now();
                self.check_silence(begun)?;
            }
        }
        match result {
            Some(Err(error)) => Err(error).context("the flush failed"),
            _ => Ok(()),
        }
    }

    /// The next piece as a request, if there is a free buffer and a piece.
    fn next(&mut self, pieces: &mut dyn Iterator<Item = Piece>, task: &mut dyn Task) -> Option<Request> {
        let &number = self.free.last()?;
        let buffer = self.pool.take()?;
        let piece = pieces.next()?;
        self.free.pop();
        let bytes = usize::try_from(piece.blocks << self.namespace.block_bytes().trailing_zeros()).ok()?;
        let odd = self.random.below(4) == 0;
        // One in four starts at any multiple of 4 bytes within a page; the others at a page.
        let offset =
            GUARD_BYTES + if odd { 4 * usize::try_from(self.random.below(1024)).unwrap_or(0) } else { 0 };
        self.flights[number] = Flight { piece, offset, bytes };
        let memory = PieceMemory { buffer, offset, bytes };
        Some(task.request(&self.namespace, piece, memory).user_data(number as u64))
    }

    /// Takes one completion apart. Answers how many blocks it was about.
    fn end(&mut self, completion: Completion, task: &mut dyn Task) -> anyhow::Result<u64> {
        let number = usize::try_from(completion.user_data).unwrap_or(usize::MAX);
        let Some(&flight) = self.flights.get(number) else {
            bail!("the driver completed what was not submitted")
        };
        let Piece { lba, blocks } = flight.piece;
        completion
            .result
            .with_context(|| format!("the transfer of {blocks} blocks from block {lba} on failed"))?;
        let Some(buffer) = completion.buffer.into_dma_buf() else { bail!("the driver kept a buffer") };
        task.finish(flight.piece, &PieceMemory { buffer, offset: flight.offset, bytes: flight.bytes });
        self.free.push(number);
        Ok(blocks)
    }

    fn check_silence(&self, since: Instant) -> anyhow::Result<()> {
        if since.elapsed() > self.io_timeout {
            bail!(
                "the device completed nothing for {}: {} requests are outstanding; if it is only slow, use a \
                 longer --io_timeout",
                crate::units::duration_text(self.io_timeout),
                self.queue.outstanding()
            );
        }
        Ok(())
    }
}

impl PieceMemory {
    /// What is transferred.
    pub(crate) fn data(&self) -> &[u8] {
        &self.buffer[self.offset..self.offset + self.bytes]
    }

    /// The same, to be filled.
    pub(crate) fn data_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.offset..self.offset + self.bytes]
    }

    /// Fills what is to be read, and a page before and behind it, with bytes that no block consists of.
    pub(crate) fn poison(&mut self) {
        let (start, end) = (self.offset - GUARD_BYTES, self.offset + self.bytes + GUARD_BYTES);
        let end = end.min(self.buffer.len());
        self.buffer[start..end].fill(POISON);
    }

    /// Whether the page before and the page behind are as they were poisoned.
    pub(crate) fn is_guarded(&self) -> bool {
        let (start, end) = (self.offset, self.offset + self.bytes);
        let behind = (end + GUARD_BYTES).min(self.buffer.len());
        let is_poison = |bytes: &[u8]| bytes.iter().all(|byte| *byte == POISON);
        is_poison(&self.buffer[start - GUARD_BYTES..start]) && is_poison(&self.buffer[end..behind])
    }

    /// The part as a request takes it.
    pub(crate) fn into_range(self) -> BufferRange {
        let Self { buffer, offset, bytes } = self;
        BufferRange::new(buffer, offset, bytes).expect("the engine's offsets lie within its buffers")
    }
}

/// The place of a piece on the device.
pub(crate) fn place(piece: Piece) -> Lba {
    Lba(piece.lba)
}

const POISON: u8 = 0xA5;
/// Looked at before and behind what is read: one page.
const GUARD_BYTES: usize = 4096;
/// What a buffer has beyond the largest piece: the guards, and room to start within a page.
const SLACK_BYTES: usize = 3 * 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell::{DmaSpace, DmaSpaceConfig, HugePolicy};

    #[test]
    fn a_byte_changed_beside_a_piece_is_seen_and_one_within_is_not() {
        let space = DmaSpace::new(DmaSpaceConfig::default().with_policy(HugePolicy::Never));
        let bytes = 512;
        let offset = GUARD_BYTES + 12;
        for (changed, is_guarded) in [
            (offset - GUARD_BYTES, false),
            (offset - 1, false),
            (offset, true),
            (offset + bytes - 1, true),
            (offset + bytes, false),
            (offset + bytes + GUARD_BYTES - 1, false),
        ] {
            let buffer = space.allocate(bytes + SLACK_BYTES).expect("memory");
            let mut memory = PieceMemory { buffer, offset, bytes };
            memory.poison();
            assert!(memory.is_guarded() && memory.data().iter().all(|byte| *byte == POISON));
            memory.buffer[changed] = 0;
            assert_eq!(memory.is_guarded(), is_guarded, "byte {changed}");
        }
    }

    #[test]
    fn the_furthest_offset_leaves_room_for_both_guards() {
        const OFFSET_MAX: usize = GUARD_BYTES + 4 * 1023;
        const { assert!(OFFSET_MAX + GUARD_BYTES <= SLACK_BYTES) };
    }
}
