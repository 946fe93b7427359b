//! A queue's doorbell as its ring rings it: the register, and its shadow where the controller looks at that
//! (NVMe Base 2.0, 5.8 and Annex B.5).
//!
//! Nothing that the controller writes is believed: EventIdx decides whether the register is rung, and that is
//! all. A value that makes no sense costs a needless ring, or the controller its own progress, until the
//! queue asks what it waits for ([`QueueDoorbell::ring_again`]).

use doorbell_spec::{Doorbell, ShadowDoorbell};

use super::pair::QueuePair;
use super::stats::Counter;

/// The doorbell of one queue.
#[derive(Debug)]
pub(crate) struct QueueDoorbell {
    register: Doorbell,
    /// Boxed, so that a ring without one stays small.
    shadow: Option<Box<Shadow>>,
}

/// When a doorbell that has a shadow rings its register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegisterUse {
    /// When EventIdx asks for it.
    WhenAsked,
    /// Every time: it is not certain that the controller looks at the shadow.
    Always,
}

/// How the device was told that a queue has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// By the register, whatever the shadow says.
    ByRegister,
    /// By the shadow alone.
    ByShadow,
}

/// What came of asking once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// The register had been rung for the last move: there is nothing to say.
    Known,
    /// It has been now.
    Rung,
    /// It has been now, and will be from now on: the controller has never written EventIdx.
    RungForGood,
}

#[derive(Debug)]
struct Shadow {
    words: ShadowDoorbell,
    register_use: RegisterUse,
    /// How the device heard of the last move.
    last: Told,
    /// How often in a row the register was missing and EventIdx had never been written.
    blanks: u8,
}

impl QueueDoorbell {
    /// A doorbell without a shadow.
    pub(crate) fn plain(register: Doorbell) -> Self {
        Self { register, shadow: None }
    }

    /// Gives it a shadow, which holds the queue's position already. From now on a move goes there.
    pub(crate) fn set_shadow(&mut self, words: ShadowDoorbell, register_use: RegisterUse) {
        self.shadow = Some(Box::new(Shadow { words, register_use, last: Told::ByRegister, blanks: 0 }));
    }

    /// Takes the shadow away.
    pub(crate) fn forget_shadow(&mut self) {
        self.shadow = None;
    }

    /// Whether a move must be told by [`QueueDoorbell::ring_shadow`].
    #[inline]
    pub(crate) fn has_shadow(&self) -> bool {
        self.shadow.is_some()
    }

    /// Tells the device of a doorbell without a shadow that the queue has moved on to `new`.
    #[inline]
    pub(crate) fn ring(&self, new: u32) {
        self.register.ring(new);
    }

    /// Tells the device that the queue has moved from `old` on to `new`, which is another value.
    pub(crate) fn ring_shadow(&mut self, old: u32, new: u32) -> Told {
        let Some(shadow) = &mut self.shadow else {
            self.register.ring(new);
            return Told::ByRegister;
        };
        let event = shadow.words.move_to(new);
        shadow.last = Told::ByShadow;
        if shadow.register_use == RegisterUse::Always || wants_register(event, old, new) {
            self.register.ring(new);
            shadow.last = Told::ByRegister;
        }
        shadow.last
    }

    /// Rings the register with the queue's position, unless that was done when it moved there.
    ///
    /// For a device that says nothing although it has work: it may have lost sight of its shadow, or never
    /// looked. One that did look is told what it knows, which it must expect of any host at any time.
    pub(crate) fn ring_again(&mut self, position: u32) -> Again {
        let Some(shadow) = &mut self.shadow else { return Again::Known };
        if shadow.last == Told::ByRegister {
            return Again::Known;
        }
        shadow.last = Told::ByRegister;
        // A controller that uses shadows writes EventIdx, since it has no other way to ask for its register.
        // Zero is what the queue was made with, or one of many values: so it takes two.
        shadow.blanks = if shadow.words.event() == 0 { shadow.blanks + 1 } else { 0 };
        self.register.ring(position);
        if shadow.blanks < BLANKS_MAX {
            return Again::Rung;
        }
        shadow.register_use = RegisterUse::Always;
        Again::RungForGood
    }
}

/// Whether the controller wants its register rung for a move from `old` on to `new` (Annex B.5.1): that is,
/// if the queue has moved on from `event`.
///
/// In 16 bits, and right for a queue of any size: round all 65,536 values, the way from `old` to `new` is the
/// way round the queue and, where that wraps, all values that the queue does not have.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "a place in a queue has 16 bits")]
pub(crate) fn wants_register(event: u32, old: u32, new: u32) -> bool {
    let (event, old, new) = (event as u16, old as u16, new as u16);
    // Of the places before `new`, counted backwards: `event` is nearer than the first one of the way.
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

impl Told {
    /// Counts it.
    pub(super) fn count(self, by_register: &Counter, by_shadow: &Counter) {
        match self {
            Self::ByRegister => by_register.add(1),
            Self::ByShadow => by_shadow.add(1),
        }
    }
}

impl QueuePair {
    /// Rings both registers for what the device was told by shadow alone. For one that has been silent and is
    /// well: one that was reset does not know the queue.
    #[cold]
    pub(super) fn ring_again(&mut self) {
        if !self.shared.is_running() {
            return;
        }
        let (sq, cq) = (self.sq.ring_again(), self.cq.ring_again());
        let counters = [&self.counters.submission_doorbells, &self.counters.completion_doorbells];
        for (again, counter) in [sq, cq].into_iter().zip(counters) {
            match again {
                Again::Known => continue,
                Again::Rung => {}
                Again::RungForGood => tracing::warn!(
                    queue = self.id.0,
                    "the controller accepted shadow doorbells but does not look at them: registers are rung \
                     each time from now on; open it with `ShadowDoorbells::Never`"
                ),
            }
            counter.add(1);
            self.counters.doorbells_repeated.add(1);
        }
    }
}

/// So many times in a row EventIdx may never have been written when a device had to be told again.
const BLANKS_MAX: u8 = 2;

#[cfg(test)]
mod tests;
