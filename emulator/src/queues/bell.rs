//! One doorbell as the device looks at it: the register, and its shadow in host memory if the host has asked
//! for shadows (NVMe Base 2.0, 5.8).
//!
//! A host stores to the shadow first and rings the register only if the event index tells it to. A register
//! may therefore be rung late, with a value that the shadow has left behind long ago: once a host was seen
//! to use a shadow, the register's value means nothing but "look". Until then it counts, because hosts exist
//! that never touch the shadows of the admin queue.

use crate::iova::access::Dma;
use crate::shadow::Shadow;
use crate::window::Window;

/// The doorbell of one queue.
pub(crate) struct Bell {
    /// The dword index of the register, and of the shadow.
    word: usize,
    /// The highest value that the queue has.
    last: u32,
    /// What the register held at the last look.
    rung: u32,
    shadow: Option<Seen>,
}

/// What is known of a shadow.
struct Seen {
    /// What it held at the last look.
    value: u32,
    /// Whether the host has ever stored to it.
    is_used: bool,
    wish: Wish,
}

/// What the event index says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    /// That storing is enough: the device looks by itself.
    Store,
    /// That the host is to ring, since a moment ago: it may have stored before it could know.
    RingSoon,
    /// That the host is to ring.
    Ring,
}

/// Where doorbells are looked at.
pub(crate) struct Bells<'a> {
    pub(crate) window: &'a Window,
    pub(crate) dma: &'a Dma<'a>,
    pub(crate) shadow: Option<&'a Shadow>,
}

impl Bell {
    /// The doorbell at a dword index, of a queue of so many entries.
    pub(crate) fn new(word: usize, entries: u32) -> Self {
        Self { word, last: entries.saturating_sub(1), rung: 0, shadow: None }
    }

    /// The dword index.
    pub(crate) fn word(&self) -> usize {
        self.word
    }

    /// What the register held at the last look.
    #[inline]
    pub(crate) fn rung(&self) -> u32 {
        self.rung
    }

    /// What the host has said since the last look, `None` if nothing.
    #[inline]
    pub(crate) fn look(&mut self, bells: &Bells<'_>) -> Option<u32> {
        if self.shadow.is_some() {
            return self.look_at_shadow(bells);
        }
        self.hear(bells.window.load(self.word))
    }

    /// The same for a doorbell without a shadow, whose register has been looked at.
    #[inline]
    pub(crate) fn hear(&mut self, value: u32) -> Option<u32> {
        if value == self.rung {
            return None;
        }
        self.rung = value;
        Some(value)
    }

    #[inline(never)]
    fn look_at_shadow(&mut self, bells: &Bells<'_>) -> Option<u32> {
        // The register comes first: a host stores to the shadow before it rings, so that the shadow which is
        // loaded below is at least as new as what was rung.
        let rung = bells.window.load(self.word);
        let is_rung = rung != self.rung;
        self.rung = rung;
        let seen = self.shadow.as_mut()?;
        let shadow = bells.shadow?;
        if is_rung {
            shadow.note_ring();
        }
        if seen.wish == Wish::Ring && !is_rung && !shadow.is_polled() {
            return None;
        }
        let value = shadow.load(bells.dma, self.word)?;
        let is_new = value != seen.value;
        seen.value = value;
        seen.is_used |= is_new;
        if seen.wish != Wish::Store && (is_new || is_rung) {
            seen.wish = Wish::Store;
            shadow.store_event(bells.dma, self.word, self.before(value));
        }
        let seen = self.shadow.as_ref()?;
        if seen.is_used { is_new.then_some(value) } else { is_rung.then_some(rung) }
    }

    /// Begins to look at the shadow of a queue that stands at `value`, and puts the shadow there. The host
    /// need not ring until [`Bell::arm`].
    pub(crate) fn follow(&mut self, bells: &Bells<'_>, value: u32) {
        let Some(shadow) = bells.shadow else { return };
        shadow.store(bells.dma, self.word, value);
        shadow.store_event(bells.dma, self.word, self.before(value));
        self.shadow = Some(Seen { value, is_used: false, wish: Wish::Store });
    }

    /// Tells the host to ring. Answers whether it has rung meanwhile. Before the device may rest, a full
    /// barrier and [`Bell::look_again`] must follow.
    pub(crate) fn arm(&mut self, bells: &Bells<'_>) -> bool {
        let (Some(seen), Some(shadow)) = (&mut self.shadow, bells.shadow) else { return false };
        if seen.wish != Wish::Store {
            return false;
        }
        if !shadow.is_polled() {
            // A host may ring with the value that the register holds already: only a value that no queue can
            // have makes that visible.
            if !bells.window.replace(self.word, self.rung, NOT_RUNG) {
                return true;
            }
            self.rung = NOT_RUNG;
        }
        seen.wish = Wish::RingSoon;
        shadow.store_event(bells.dma, self.word, seen.value);
        false
    }

    /// Whether the host has stored something before it could know that it has to ring. The next look finds
    /// it, rung or not.
    pub(crate) fn look_again(&mut self, bells: &Bells<'_>) -> bool {
        let (Some(seen), Some(shadow)) = (&mut self.shadow, bells.shadow) else { return false };
        if seen.wish != Wish::RingSoon {
            return false;
        }
        let has_news = shadow.load(bells.dma, self.word).is_some_and(|value| value != seen.value);
        // With news it stays as it is, so that the next look is at the shadow and takes the wish back.
        if !has_news {
            seen.wish = Wish::Ring;
        }
        has_news
    }

    /// The event index that keeps the host from ringing until it comes round to it: the one behind it.
    fn before(&self, value: u32) -> u32 {
        if value == 0 { self.last } else { value - 1 }
    }
}

/// No queue has as many entries.
const NOT_RUNG: u32 = u32::MAX;
