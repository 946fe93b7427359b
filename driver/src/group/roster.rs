//! Who is in a group: keys that stay right when members come and go.
//!
//! Invariant: the place that a key's index names holds the key's serial number exactly while its member is
//! there, and then says where it stands.

use std::sync::atomic::{AtomicU32, Ordering};

/// Names a queue pair in its [`PollGroup`](crate::PollGroup).
///
/// It names that one membership: not a later one that has the same [`index`](Member::index), nor any of
/// another group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    index: u32,
    serial: u32,
}

impl Member {
    /// A small number, of which each present member of a group has its own: less than the most members that
    /// the group ever had. For arrays with an entry a member.
    #[inline]
    #[must_use]
    pub fn index(self) -> usize {
        self.index as usize
    }
}

/// Where the members stand.
#[derive(Debug, Default)]
pub(super) struct Roster {
    /// By index.
    places: Vec<Place>,
    /// Indices of places that nobody has.
    vacant: Vec<u32>,
}

/// What an index stands for.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The member's number; [`NOBODY`] if there is none.
    serial: u32,
    position: u32,
}

/// No member's serial number.
const NOBODY: u32 = 0;

impl Roster {
    /// Takes in a member that stands at `position`.
    pub(super) fn add(&mut self, position: usize) -> Member {
        let place = Place { serial: next_serial(), position: number(position) };
        let index = match self.vacant.pop() {
            Some(index) => {
                self.places[index as usize] = place;
                index
            }
            None => {
                self.places.push(place);
                number(self.places.len() - 1)
            }
        };
        Member { index, serial: place.serial }
    }

    /// Strikes a member off and answers where it stood.
    pub(super) fn remove(&mut self, member: Member) -> Option<usize> {
        let position = self.position(member)?;
        self.places[member.index()].serial = NOBODY;
        self.vacant.push(member.index);
        Some(position)
    }

    /// A member stands elsewhere now.
    pub(super) fn moved(&mut self, member: Member, position: usize) {
        self.places[member.index()].position = number(position);
    }

    /// Where a member stands.
    #[inline]
    pub(super) fn position(&self, member: Member) -> Option<usize> {
        let place = self.places.get(member.index())?;
        (place.serial == member.serial).then_some(place.position as usize)
    }
}

/// A number that no member of any group has, until four thousand million have come and gone.
fn next_serial() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    loop {
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        if serial != NOBODY {
            return serial;
        }
    }
}

/// A count of members, each of which has queues in memory: never near 32 bits.
fn number(count: usize) -> u32 {
    u32::try_from(count).expect("fewer than 2^32 members")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Members come and go in every order of a small pattern; a plain list of them is the oracle.
    #[test]
    fn a_key_names_its_member_and_nobody_else() {
        for pattern in 0..4096_u32 {
            let mut roster = Roster::default();
            let (mut present, mut gone): (Vec<Member>, Vec<Member>) = (Vec::new(), Vec::new());
            for step in 0..12 {
                if pattern >> step & 1 == 0 || present.is_empty() {
                    present.push(roster.add(present.len()));
                } else {
                    let at = step as usize % present.len();
                    let member = present.swap_remove(at);
                    assert_eq!(roster.remove(member), Some(at));
                    if let Some(moved) = present.get(at) {
                        roster.moved(*moved, at);
                    }
                    gone.push(member);
                }
                for (at, member) in present.iter().enumerate() {
                    assert_eq!(roster.position(*member), Some(at));
                    assert!(member.index() < 12);
                }
                for member in &gone {
                    assert_eq!((roster.position(*member), roster.remove(*member)), (None, None));
                }
            }
            let mut indices: Vec<usize> = present.iter().map(|member| member.index()).collect();
            indices.sort_unstable();
            indices.dedup();
            assert_eq!(indices.len(), present.len(), "two members have one index");
        }
    }

    #[test]
    fn a_key_of_another_group_names_nobody() {
        let (mut one, mut other) = (Roster::default(), Roster::default());
        let (of_one, of_other) = (one.add(0), other.add(0));
        assert_eq!(of_one.index(), of_other.index());
        assert_eq!((one.position(of_other), other.remove(of_one)), (None, None));
    }
}
