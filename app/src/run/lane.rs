//! One job on one device: a queue pair, its buffers, and the loop's two halves.
//!
//! Invariant: buffers idle and I/Os in flight are together the depth, as long as the device gives buffers
//! back. Nothing here allocates: the list of idle buffers has room for all of them from the start.

use doorbell::{Completion, DmaBuf, IoError, Namespace, QueuePair, QueueStats, Request, Status, SubmitError};

use super::offsets::{Direction, Io, Offsets};
use super::tally::{Failure, Tally};

/// A queue pair and what goes through it.
#[derive(Debug)]
pub(crate) struct Lane {
    queue: QueuePair,
    namespace: Namespace,
    offsets: Offsets,
    /// An I/O that the full queue did not take: it is the next one, so that no offset is left out.
    held: Option<Io>,
    idle: Vec<DmaBuf>,
    in_flight: usize,
    batch: usize,
}

/// Whether an I/O is part of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Ramp,
    Measured,
}

/// What is left of a lane after its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remains {
    pub(crate) stats: QueueStats,
    /// I/Os that the device never answered.
    pub(crate) unanswered: u64,
}

impl Lane {
    /// A lane that keeps as many I/Os in flight as there are buffers.
    pub(crate) fn new(
        queue: QueuePair,
        namespace: Namespace,
        offsets: Offsets,
        buffers: Vec<DmaBuf>,
        batch: usize,
    ) -> Self {
        Self { queue, namespace, offsets, held: None, idle: buffers, in_flight: 0, batch }
    }

    /// How many I/Os the device has.
    #[inline]
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Counts what the device has completed, one batch at most. Answers how many.
    #[inline]
    pub(crate) fn reap(&mut self, tally: &mut Tally) -> usize {
        let Self { queue, idle, in_flight, .. } = self;
        let reaped = queue.poll(self.batch, |_, completion| {
            *in_flight -= 1;
            count(&completion, tally);
            if let Some(buffer) = completion.buffer.into_dma_buf() {
                idle.push(buffer);
            }
        });
        if reaped > 0 {
            tally.complete_levels.add(reaped as u64, 1);
        }
        reaped
    }

    /// Submits for every idle buffer, but no more than `quota`, a doorbell for each batch. Answers how many.
    #[inline]
    pub(crate) fn refill(&mut self, part: Part, quota: u64, tally: &mut Tally) -> Result<u64, SubmitError> {
        let mut submitted = 0;
        while !self.idle.is_empty() && submitted < quota {
            let left = usize::try_from(quota - submitted).unwrap_or(usize::MAX);
            let count = self.idle.len().min(self.batch).min(left);
            let (done, refusal) = self.submit(part, count);
            submitted += done as u64;
            self.in_flight += done;
            tally.submit_levels.add(done as u64, 1);
            tally.depth_levels.add(self.in_flight as u64, done as u64);
            match refusal {
                None => {}
                Some(SubmitError::QueueFull) => break,
                Some(error) => return Err(error),
            }
        }
        Ok(submitted)
    }

    /// One plug. Answers how many the queue took, and why it did not take the next.
    #[inline]
    fn submit(&mut self, part: Part, count: usize) -> (usize, Option<SubmitError>) {
        let Self { queue, namespace, offsets, held, idle, .. } = self;
        let mut plug = queue.plug(u32::try_from(count).unwrap_or(u32::MAX));
        for done in 0..count {
            let Some(buffer) = idle.pop() else { return (done, None) };
            let io = held.take().unwrap_or_else(|| offsets.next());
            let request = match io.direction {
                Direction::Read => Request::read(namespace, io.lba, buffer),
                Direction::Write => Request::write(namespace, io.lba, buffer),
            };
            if let Err(rejected) = plug.submit(request.user_data(tag(part, io.direction))) {
                if let Some(buffer) = rejected.request.into_buffer().into_dma_buf() {
                    idle.push(buffer);
                }
                *held = Some(io);
                return (done, Some(rejected.error));
            }
        }
        (count, None)
    }

    /// Deletes the queue pair. What the device has answered until then is counted.
    pub(crate) fn close(self, tally: &mut Tally) -> Remains {
        let stats = self.queue.stats();
        let mut unanswered = 0;
        let closed = self.queue.close(|completion| match completion.result {
            Err(IoError::QueueClosed | IoError::ControllerFailed) => unanswered += 1,
            // The device's answer to the deletion, not to the I/O.
            Err(IoError::Status { status, .. }) if status.kind() == Status::ABORTED_QUEUE_DELETED => {
                unanswered += 1;
            }
            _ => count(&completion, tally),
        });
        if let Err(error) = closed {
            tracing::warn!(%error, "a queue pair was not deleted");
        }
        Remains { stats, unanswered }
    }
}

/// Counts one completion: as a part of the result only if the device said that it went well.
#[inline]
fn count(completion: &Completion, tally: &mut Tally) {
    let (part, direction) = untag(completion.user_data);
    match (completion.result, part, direction) {
        (Ok(_), Part::Measured, Direction::Read) => tally.read.record(completion.latency_ns),
        (Ok(_), Part::Measured, Direction::Write) => tally.write.record(completion.latency_ns),
        (Ok(_), Part::Ramp, Direction::Read) => tally.ramp_reads += 1,
        (Ok(_), Part::Ramp, Direction::Write) => tally.ramp_writes += 1,
        (Err(error), ..) => tally.failures.note(Failure { direction, error, count: 1 }),
    }
}

/// What is remembered of an I/O while it is in flight, as the request's user data.
#[inline]
fn tag(part: Part, direction: Direction) -> u64 {
    u64::from(part == Part::Ramp) << 1 | u64::from(direction == Direction::Write)
}

#[inline]
fn untag(tag: u64) -> (Part, Direction) {
    let part = if tag & 2 == 0 { Part::Measured } else { Part::Ramp };
    let direction = if tag & 1 == 0 { Direction::Read } else { Direction::Write };
    (part, direction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_comes_back() {
        for part in [Part::Ramp, Part::Measured] {
            for direction in [Direction::Read, Direction::Write] {
                assert_eq!(untag(tag(part, direction)), (part, direction));
            }
        }
    }
}
