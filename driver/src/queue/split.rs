//! Requests that are larger than one command: split, continued in order, completed once.
//!
//! Invariants: parts are submitted in ascending order of their blocks; after a part has failed no further
//! one is submitted; the request completes when no part is outstanding and none will follow.

use std::collections::VecDeque;

use doorbell_spec::{Lba, Nanos, Status};

use super::check::Remainder;
use crate::buffer::Buffer;
use crate::completion::{Completion, IoError};
use crate::request::{Request, RequestOptions};

/// A request that takes several commands.
#[derive(Debug)]
pub(crate) struct Split {
    request: Request,
    blocks: u64,
    done: u64,
    outstanding: u32,
    failed: Option<(Lba, Status)>,
    cancelled: bool,
    rung_at: Nanos,
    serial: u32,
}

/// The split requests of a queue: as many as it is deep.
#[derive(Debug)]
pub(crate) struct Splits {
    entries: Box<[Option<Split>]>,
    free: Vec<u16>,
    /// Those with parts that are not yet submitted, first come first served.
    waiting: VecDeque<u16>,
    /// Those that were cancelled while none of their parts was outstanding: over, but not yet reported.
    over: VecDeque<u16>,
    /// Parts of all of them that are outstanding.
    commands: usize,
    /// Once they are taken out with [`Splits::take_any`]: all entries before this one are empty.
    swept: usize,
}

impl Splits {
    pub(crate) fn new(depth: u16) -> Self {
        Self {
            entries: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            waiting: VecDeque::with_capacity(usize::from(depth)),
            over: VecDeque::with_capacity(usize::from(depth)),
            commands: 0,
            swept: 0,
        }
    }

    /// Takes a request of `blocks` blocks in. Gives it back if there is no room.
    pub(crate) fn insert(&mut self, request: Request, blocks: u64, serial: u32) -> Result<u16, Request> {
        let Some(index) = self.free.pop() else { return Err(request) };
        self.entries[usize::from(index)] = Some(Split {
            request,
            blocks,
            done: 0,
            outstanding: 0,
            failed: None,
            cancelled: false,
            rung_at: Nanos(0),
            serial,
        });
        self.waiting.push_back(index);
        Ok(index)
    }

    /// Whether a request waits to be continued.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The first request that waits to be continued, and what is left of it.
    #[inline]
    pub(crate) fn next_waiting(&self) -> Option<(u16, Remainder<'_>, RequestOptions)> {
        let index = *self.waiting.front()?;
        let split = self.entries[usize::from(index)].as_ref()?;
        let rest = Remainder {
            done: split.done,
            left: split.blocks - split.done,
            ..Remainder::all(&split.request, split.blocks)
        };
        Some((index, rest, split.request.options))
    }

    /// Notes that `blocks` more of the request at the front were submitted.
    pub(crate) fn submitted(&mut self, index: u16, blocks: u64) {
        let Some(split) = &mut self.entries[usize::from(index)] else { return };
        split.done += blocks;
        split.outstanding += 1;
        self.commands += 1;
        if split.done >= split.blocks {
            self.waiting.retain(|waiting| *waiting != index);
        }
    }

    /// Notes the end of one part. Answers the request's completion if that was the last.
    pub(crate) fn part_ended(
        &mut self,
        index: u16,
        lba: Lba,
        status: Status,
        rung_at: Nanos,
        now: Nanos,
    ) -> Option<Completion> {
        let split = self.entries.get_mut(usize::from(index))?.as_mut()?;
        split.outstanding = split.outstanding.saturating_sub(1);
        self.commands = self.commands.saturating_sub(1);
        if split.rung_at == Nanos(0) || rung_at < split.rung_at {
            split.rung_at = rung_at;
        }
        if !status.is_success() {
            if split.failed.is_none_or(|(lowest, _)| lba < lowest) {
                split.failed = Some((lba, status));
            }
            self.stop(index);
        }
        self.complete_if_ended(index, now)
    }

    /// Submits no further part of the request with this serial number. `None` if there is no such one.
    pub(crate) fn cancel(&mut self, index: u16, serial: u32) -> Option<Stopped> {
        let split = self.entries.get_mut(usize::from(index))?.as_mut()?;
        if split.serial != serial {
            return None;
        }
        let stopped = if split.done < split.blocks { Stopped::Rest } else { Stopped::Nothing };
        if stopped == Stopped::Rest && !split.cancelled {
            split.cancelled = true;
            if split.outstanding == 0 {
                self.over.push_back(index);
            }
        }
        self.stop(index);
        Some(stopped)
    }

    /// Submits no further part of any request.
    pub(crate) fn stop_all(&mut self) {
        self.waiting.clear();
    }

    /// Whether a request was cancelled while none of its parts was outstanding.
    pub(crate) fn is_any_over(&self) -> bool {
        !self.over.is_empty()
    }

    /// The completion of a request that was cancelled while none of its parts was outstanding.
    #[inline]
    pub(crate) fn take_over(&mut self, now: Nanos) -> Option<Completion> {
        let index = self.over.pop_front()?;
        self.complete_if_ended(index, now)
    }

    /// Forgets all parts: the queue is no more, and [`Splits::take_any`] is all that follows.
    pub(crate) fn abandon(&mut self) {
        self.entries.iter_mut().flatten().for_each(|split| split.outstanding = 0);
        self.commands = 0;
        self.waiting.clear();
        self.over.clear();
    }

    /// Takes any request out after [`Splits::abandon`].
    pub(crate) fn take_any(&mut self) -> Option<(u64, Buffer)> {
        let next = self.entries[self.swept..].iter().position(Option::is_some);
        self.swept = next.map_or(self.entries.len(), |offset| self.swept + offset);
        let split = self.entries.get_mut(self.swept)?.take()?;
        self.free.push(u16::try_from(self.swept).unwrap_or(u16::MAX));
        Some((split.request.user_data, split.request.buffer))
    }

    /// How many requests are in here.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Parts of all requests that are outstanding as commands.
    pub(crate) fn commands(&self) -> usize {
        self.commands
    }

    fn stop(&mut self, index: u16) {
        self.waiting.retain(|waiting| *waiting != index);
    }

    fn complete_if_ended(&mut self, index: u16, now: Nanos) -> Option<Completion> {
        let place = &mut self.entries[usize::from(index)];
        let split = place.as_ref()?;
        let over = split.done >= split.blocks || split.failed.is_some() || split.cancelled;
        if split.outstanding > 0 || !over {
            return None;
        }
        let split = place.take()?;
        self.free.push(index);
        let result = match split.failed {
            Some((lba, status)) => Err(IoError::Status { status, lba }),
            None if split.cancelled => Err(IoError::Cancelled),
            None => Ok(0),
        };
        Some(Completion {
            user_data: split.request.user_data,
            result,
            buffer: split.request.buffer,
            latency_ns: now.since(split.rung_at),
        })
    }
}

/// What a cancellation kept from being submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// The rest of the request.
    Rest,
    /// Nothing: all of it was submitted.
    Nothing,
}
