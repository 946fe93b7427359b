//! Commands that were taken and are not due yet: the latency model.
//!
//! A command is due at its start plus its service time; it starts when it is taken, or when one of the
//! internal units comes free if their number is limited. Commands do not hold each other up beyond that.
//! All room is made when queues are created; parking a command does not allocate.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use doorbell_spec::command::NvmOpcode;
use doorbell_spec::{Nanos, QueueId, SubmissionEntry};

use crate::config::LatencyConfig;
use crate::twist::Twist;

/// A command that waits until it is due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parked {
    pub(crate) queue: QueueId,
    pub(crate) entry: SubmissionEntry,
    pub(crate) twist: Twist,
}

/// All parked commands of a controller.
pub(crate) struct Flight {
    slots: Vec<Slot>,
    free: Vec<u32>,
    due: BinaryHeap<Reverse<Due>>,
    /// When each internal unit comes free; empty if their number is not limited.
    units: BinaryHeap<Reverse<Nanos>>,
    latency: LatencyConfig,
    has_latency: bool,
    serial: u64,
    count: usize,
}

struct Slot {
    command: Option<Parked>,
    serial: u64,
}

/// Ordered by time, then by arrival: commands that are due at once complete in the order they came.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: Nanos,
    serial: u64,
    slot: u32,
}

impl Flight {
    pub(crate) fn new(latency: &LatencyConfig) -> Self {
        let mut flight = Self {
            slots: Vec::new(),
            free: Vec::new(),
            due: BinaryHeap::new(),
            units: BinaryHeap::new(),
            latency: latency.clone(),
            has_latency: !latency.read.is_zero() || !latency.write.is_zero(),
            serial: 0,
            count: 0,
        };
        flight.clear();
        flight
    }

    /// Forgets every command, as a reset does.
    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        self.free.clear();
        self.due.clear();
        self.count = 0;
        self.units.clear();
        self.units.extend((0..self.latency.units).map(|_| Reverse(Nanos(0))));
    }

    /// Makes room for the commands of one more queue.
    pub(crate) fn make_room(&mut self, commands: u32) {
        let commands = commands as usize;
        self.slots.reserve(commands);
        self.free.reserve(commands);
        self.due.reserve(commands);
    }

    /// Whether any I/O command takes time at all.
    pub(crate) fn has_latency(&self) -> bool {
        self.has_latency
    }

    /// The service time of a command.
    pub(crate) fn service(&self, queue: QueueId, opcode: u8) -> Duration {
        if queue == QueueId::ADMIN {
            return self.latency.admin;
        }
        match NvmOpcode::from_raw(opcode) {
            NvmOpcode::Read | NvmOpcode::Compare | NvmOpcode::Verify => self.latency.read,
            _ => self.latency.write,
        }
    }

    /// Whether nothing is parked.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many commands are parked.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// How many parked commands of a queue have this opcode.
    pub(crate) fn count_of(&self, queue: QueueId, opcode: u8) -> usize {
        let parked = self.slots.iter().filter_map(|slot| slot.command.as_ref());
        parked.filter(|parked| parked.queue == queue && parked.entry.opcode == opcode).count()
    }

    /// Parks a command that takes its service time and `extra`.
    pub(crate) fn park(&mut self, command: Parked, now: Nanos, extra: Duration) {
        let service = self.service(command.queue, command.entry.opcode);
        let is_io = command.queue != QueueId::ADMIN;
        let at = match self.units.peek_mut() {
            Some(mut unit) if is_io => {
                let at = unit.0.max(now).after(service);
                unit.0 = at;
                at
            }
            _ => now.after(service),
        };
        // A fault's delay is not the unit's work: it keeps nobody else waiting.
        self.insert(command, at.after(extra));
    }

    fn insert(&mut self, command: Parked, at: Nanos) {
        self.serial += 1;
        self.count += 1;
        let filled = Slot { command: Some(command), serial: self.serial };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = filled;
                slot
            }
            None => {
                self.slots.push(filled);
                // Queues are limited in number and size, far below 2^32 commands.
                u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
            }
        };
        self.due.push(Reverse(Due { at, serial: self.serial, slot }));
    }

    /// When the next command is due.
    pub(crate) fn next_due(&mut self) -> Option<Nanos> {
        self.drop_stale();
        // The end of time is never: such a command waits for its abort.
        self.due.peek().map(|due| due.0.at).filter(|at| *at < Nanos(u64::MAX))
    }

    /// Takes a command that is due.
    pub(crate) fn take_due(&mut self, now: Nanos) -> Option<Parked> {
        self.drop_stale();
        if self.due.peek()?.0.at > now {
            return None;
        }
        let due = self.due.pop()?.0;
        self.remove(due.slot)
    }

    /// Takes one command back before it is due.
    pub(crate) fn abort(&mut self, queue: QueueId, cid: u16) -> Option<Parked> {
        let is_it = |parked: &Parked| parked.queue == queue && parked.entry.cid == cid;
        let at = self.slots.iter().position(|slot| slot.command.as_ref().is_some_and(is_it))?;
        self.remove(u32::try_from(at).ok()?)
    }

    /// Takes back any one command of a queue.
    pub(crate) fn abort_any(&mut self, queue: QueueId) -> Option<Parked> {
        let is_it = |parked: &Parked| parked.queue == queue;
        let at = self.slots.iter().position(|slot| slot.command.as_ref().is_some_and(is_it))?;
        self.remove(u32::try_from(at).ok()?)
    }

    fn remove(&mut self, slot: u32) -> Option<Parked> {
        let parked = self.slots.get_mut(slot as usize)?.command.take()?;
        self.free.push(slot);
        self.count -= 1;
        // Aborted commands leave their time behind. There are never more of these than commands.
        if self.due.len() > 2 * self.count + STALE_KEPT {
            let slots = &self.slots;
            self.due.retain(|due| is_live(slots, &due.0));
        }
        Some(parked)
    }

    fn drop_stale(&mut self) {
        while self.due.peek().is_some_and(|due| !is_live(&self.slots, &due.0)) {
            self.due.pop();
        }
    }
}

fn is_live(slots: &[Slot], due: &Due) -> bool {
    slots.get(due.slot as usize).is_some_and(|slot| slot.command.is_some() && slot.serial == due.serial)
}

const STALE_KEPT: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn parked(queue: u16, cid: u16) -> Parked {
        let entry = SubmissionEntry { opcode: NvmOpcode::Read.raw(), cid, ..SubmissionEntry::default() };
        Parked { queue: QueueId(queue), entry, twist: Twist::None }
    }

    fn flight(units: u32) -> Flight {
        let read = Duration::from_nanos(100);
        Flight::new(&LatencyConfig { read, units, ..LatencyConfig::default() })
    }

    #[test]
    fn unlimited_units_serve_everything_at_once() {
        let mut flight = flight(0);
        for cid in 0..4 {
            flight.park(parked(1, cid), Nanos(1000), Duration::ZERO);
        }
        assert!(flight.take_due(Nanos(1099)).is_none());
        let order: Vec<u16> =
            std::iter::from_fn(|| flight.take_due(Nanos(1100))).map(|parked| parked.entry.cid).collect();
        assert_eq!(order, [0, 1, 2, 3]);
        assert!(flight.is_empty());
    }

    #[test]
    fn limited_units_queue_and_a_fault_delay_holds_nobody_up() {
        let mut flight = flight(2);
        flight.park(parked(1, 0), Nanos(1000), Duration::from_nanos(10_000));
        for cid in 1..4 {
            flight.park(parked(1, cid), Nanos(1000), Duration::ZERO);
        }
        let mut ends = Vec::new();
        while let Some(at) = flight.next_due() {
            ends.push((at.0, flight.take_due(at).expect("due").entry.cid));
        }
        assert_eq!(ends, [(1100, 1), (1200, 2), (1200, 3), (11_100, 0)]);
    }

    #[test]
    fn aborted_commands_leave_nothing_behind() {
        let mut flight = flight(0);
        for round in 0..10_000_u16 {
            flight.park(parked(1, round), Nanos(0), Duration::from_secs(1000));
            assert_eq!(flight.abort(QueueId(1), round).expect("parked").entry.cid, round);
            assert!(flight.abort(QueueId(1), round).is_none());
        }
        assert!(flight.due.len() <= 2 * STALE_KEPT && flight.slots.len() == 1);
        assert_eq!(flight.next_due(), None);
        flight.park(parked(1, 0), Nanos(0), Duration::MAX);
        assert_eq!(flight.next_due(), None, "never");
    }
}
