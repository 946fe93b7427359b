//! EventIdx against an oracle, and the protocol against a model of both sides with their store buffers.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use doorbell_spec::{DoorbellBuffers, Doorbells};

use super::*;

/// What Annex B.5.1 says, step by step: does the way from `old` to `new` lead over `event`?
fn oracle(entries: u32, event: u32, old: u32, new: u32) -> bool {
    let mut at = old;
    while at != new {
        if at == event {
            return true;
        }
        at = (at + 1) % entries;
    }
    false
}

#[test]
fn a_register_is_wanted_exactly_when_the_way_leads_over_event_idx() {
    for entries in 2..=40 {
        for old in 0..entries {
            for new in (0..entries).filter(|new| *new != old) {
                for event in 0..entries {
                    let expected = oracle(entries, event, old, new);
                    assert_eq!(wants_register(event, old, new), expected, "{entries}: {event} {old} {new}");
                }
            }
        }
    }
}

#[test]
fn large_queues_wrap_like_small_ones() {
    for entries in [128, 1000, 1024, 4095, 32_768, 32_769, 65_535, 65_536] {
        let corners = [0, 1, 2, entries / 2 - 1, entries / 2, entries / 2 + 1, entries - 2, entries - 1];
        for old in corners {
            for new in corners.into_iter().filter(|new| *new != old) {
                for event in corners {
                    let expected = oracle(entries, event, old, new);
                    assert_eq!(wants_register(event, old, new), expected, "{entries}: {event} {old} {new}");
                }
            }
        }
    }
}

/// A value outside of the queue is nobody's place: whatever it does, it does no harm, and only 16 bits count.
#[test]
fn any_event_idx_has_an_answer() {
    for event in (0..=u32::from(u16::MAX)).chain([u32::MAX, 1 << 16, u32::MAX << 16]) {
        for (old, new) in [(0, 1), (1, 0), (30, 2), (2, 30), (65_535, 0), (0, 65_535)] {
            assert_eq!(wants_register(event, old, new), wants_register(event & 0xffff, old, new));
        }
    }
}

/// One queue and both of its sides, each with a store buffer as x86-64 has one: what a side has stored is
/// seen by the other later, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    entries: u32,
    // The host: its position, how far it will go in all, what it does next, and its buffer.
    position: u32,
    left: u32,
    host: Host,
    host_buffer: Vec<Store>,
    // The device: how far it has come, what it does next, and its buffer.
    seen: u32,
    device: DeviceStep,
    device_buffer: Vec<u32>,
    // Memory.
    shadow: u32,
    event: u32,
    /// The register has been written and the device has not looked.
    is_rung: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Host {
    /// Moves on by some entries, if it may.
    Move,
    /// Has stored the shadow of a move from here, and reads EventIdx next.
    Ask(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Store {
    Shadow(u32),
    Register,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum DeviceStep {
    /// Does nothing until it wakes up.
    Sleep,
    /// Reads the shadow, takes all that is there, and says where it stands.
    Work,
    /// Has said where it stands, and looks at the shadow once more before it sleeps.
    LookAgain,
}

/// Which of the two sides keeps its order.
#[derive(Clone, Copy, Debug)]
struct Barriers {
    host: bool,
    device: bool,
}

impl World {
    fn new(entries: u32) -> Self {
        Self {
            entries,
            position: 0,
            left: 2 * entries + 1,
            host: Host::Move,
            host_buffer: Vec::new(),
            seen: 0,
            device: DeviceStep::Sleep,
            device_buffer: Vec::new(),
            shadow: 0,
            event: 0,
            is_rung: false,
        }
    }

    /// The queue has moved on, the device sleeps, and nothing is on its way that would wake it. The host need
    /// not move again: it may have all under way that it has, or all that there is room for.
    fn is_lost(&self) -> bool {
        let is_quiet = self.host_buffer.is_empty() && self.device_buffer.is_empty() && !self.is_rung;
        self.host == Host::Move && self.device == DeviceStep::Sleep && is_quiet && self.seen != self.position
    }

    /// All that can happen next.
    fn next(&self, barriers: Barriers) -> Vec<Self> {
        let mut next = Vec::new();
        self.drain(&mut next);
        match self.host {
            Host::Move => {
                // At most entries - 1 are under way, and the device has taken `seen`.
                let under_way = (self.position + self.entries - self.seen) % self.entries;
                for by in 1..=self.left.min(self.entries - 1 - under_way) {
                    let mut world = self.clone();
                    world.position = (self.position + by) % self.entries;
                    world.left -= by;
                    world.host_buffer.push(Store::Shadow(world.position));
                    world.host = Host::Ask(self.position);
                    next.push(world);
                }
            }
            Host::Ask(old) if !barriers.host || self.host_buffer.is_empty() => {
                let mut world = self.clone();
                if wants_register(self.event, old, self.position) {
                    world.host_buffer.push(Store::Register);
                }
                world.host = Host::Move;
                next.push(world);
            }
            Host::Ask(_) => {}
        }
        next.extend(self.device(barriers));
        next
    }

    /// The oldest store of a side becomes visible.
    fn drain(&self, next: &mut Vec<Self>) {
        if !self.host_buffer.is_empty() {
            let mut world = self.clone();
            match world.host_buffer.remove(0) {
                Store::Shadow(value) => world.shadow = value,
                Store::Register => world.is_rung = true,
            }
            next.push(world);
        }
        if !self.device_buffer.is_empty() {
            let mut world = self.clone();
            world.event = world.device_buffer.remove(0);
            next.push(world);
        }
    }

    /// What the device does next.
    fn device(&self, barriers: Barriers) -> Option<Self> {
        let mut world = self.clone();
        match self.device {
            // The register wakes it. It may also look at its shadow at any time.
            DeviceStep::Sleep => {
                world.is_rung = false;
                world.device = DeviceStep::Work;
            }
            DeviceStep::Work if self.device_buffer.len() >= BUFFERED_MAX => return None,
            DeviceStep::Work => {
                world.seen = self.shadow;
                world.device_buffer.push(world.seen);
                world.device = DeviceStep::LookAgain;
            }
            DeviceStep::LookAgain if barriers.device && !self.device_buffer.is_empty() => return None,
            DeviceStep::LookAgain => {
                let is_news = self.shadow != self.seen;
                world.device = if is_news { DeviceStep::Work } else { DeviceStep::Sleep };
            }
        }
        Some(world)
    }
}

/// So many stores of EventIdx wait in the device's buffer at most, to bound the worlds that there are.
const BUFFERED_MAX: usize = 2;

/// Whether there is a way for a move to be lost.
fn can_lose(entries: u32, barriers: Barriers) -> bool {
    let mut open = vec![World::new(entries)];
    let mut known: HashSet<World> = open.iter().cloned().collect();
    while let Some(world) = open.pop() {
        if world.is_lost() {
            return true;
        }
        for world in world.next(barriers) {
            if known.insert(world.clone()) {
                open.push(world);
            }
        }
    }
    false
}

#[test]
fn no_interleaving_loses_a_move_while_both_sides_have_their_barrier() {
    for entries in 2..=7 {
        assert!(!can_lose(entries, Barriers { host: true, device: true }), "{entries} entries");
    }
}

/// The model can see the fault that the barrier is there for.
#[test]
fn without_either_barrier_a_move_can_be_lost() {
    for entries in 3..=5 {
        assert!(can_lose(entries, Barriers { host: false, device: true }), "the host's, {entries} entries");
        assert!(can_lose(entries, Barriers { host: true, device: false }), "the device's, {entries} entries");
    }
}

/// A doorbell whose register, shadow and EventIdx are words of this test.
struct Bench {
    doorbell: QueueDoorbell,
    register: Arc<[AtomicU32]>,
    shadow: Arc<[AtomicU32]>,
    event: Arc<[AtomicU32]>,
}

impl Bench {
    fn new(register_use: RegisterUse) -> Self {
        let word = |value| (0..1).map(|_| AtomicU32::new(value)).collect::<Arc<[AtomicU32]>>();
        let [register, shadow, event] = [word(UNTOUCHED), word(0), word(0)];
        let in_memory = |word: &Arc<[AtomicU32]>| Doorbells::in_memory(Arc::clone(word));
        let buffers = DoorbellBuffers::new(in_memory(&shadow), in_memory(&event));
        let mut doorbell = QueueDoorbell::plain(in_memory(&register).at(0).expect("one"));
        doorbell.set_shadow(buffers.at(0).expect("one"), register_use);
        Self { doorbell, register, shadow, event }
    }

    fn words(&self) -> (u32, u32) {
        (self.register[0].load(Ordering::Acquire), self.shadow[0].load(Ordering::Acquire))
    }
}

const UNTOUCHED: u32 = u32::MAX;

#[test]
fn the_register_is_rung_when_event_idx_asks_for_it_and_the_shadow_always() {
    let mut it = Bench::new(RegisterUse::WhenAsked);
    assert_eq!((it.doorbell.ring_shadow(0, 3), it.words()), (Told::ByRegister, (3, 3)));
    assert_eq!((it.doorbell.ring_shadow(3, 5), it.words()), (Told::ByShadow, (3, 5)));
    it.event[0].store(5, Ordering::Release);
    assert_eq!((it.doorbell.ring_shadow(5, 1), it.words()), (Told::ByRegister, (1, 1)));
    it.doorbell.forget_shadow();
    assert_eq!((it.doorbell.ring_shadow(1, 2), it.words()), (Told::ByRegister, (2, 1)));
}

#[test]
fn a_doorbell_that_trusts_nobody_rings_both_every_time() {
    let mut it = Bench::new(RegisterUse::Always);
    for place in 1..20 {
        assert_eq!(it.doorbell.ring_shadow(place - 1, place), Told::ByRegister);
        assert_eq!(it.words(), (place, place));
        assert_eq!(it.doorbell.ring_again(place), Again::Known);
    }
}

#[test]
fn a_register_that_was_not_rung_is_rung_again_once() {
    let mut it = Bench::new(RegisterUse::WhenAsked);
    it.doorbell.ring_shadow(0, 1);
    assert_eq!(it.doorbell.ring_again(1), Again::Known, "the register was rung for this move");
    it.event[0].store(9, Ordering::Release);
    for place in 2..9 {
        assert_eq!(it.doorbell.ring_shadow(place - 1, place), Told::ByShadow);
        assert_eq!((it.doorbell.ring_again(place), it.words()), (Again::Rung, (place, place)));
        assert_eq!(it.doorbell.ring_again(place), Again::Known, "nothing has moved since");
    }
}

#[test]
fn a_controller_that_never_writes_event_idx_is_not_trusted_for_long() {
    let mut it = Bench::new(RegisterUse::WhenAsked);
    it.doorbell.ring_shadow(0, 1);
    it.doorbell.ring_shadow(1, 2);
    assert_eq!(it.doorbell.ring_again(2), Again::Rung);
    it.doorbell.ring_shadow(2, 3);
    it.event[0].store(9, Ordering::Release);
    assert_eq!(it.doorbell.ring_again(3), Again::Rung, "it has written EventIdx");
    it.event[0].store(0, Ordering::Release);
    it.doorbell.ring_shadow(3, 4);
    assert_eq!(it.doorbell.ring_again(4), Again::Rung);
    it.doorbell.ring_shadow(4, 5);
    assert_eq!(it.doorbell.ring_again(5), Again::RungForGood);
    assert_eq!((it.doorbell.ring_shadow(5, 6), it.words()), (Told::ByRegister, (6, 6)));
    assert_eq!(it.doorbell.ring_again(6), Again::Known);
}
