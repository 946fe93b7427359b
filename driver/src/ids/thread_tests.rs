//! Shared identifiers used by real threads: what they add up to in the end, whatever happened on the way.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use super::{FairShare, IdLane, IdToken, SharedIds, SharedIdsError};

/// How often a waiter looks before it is said to have been forgotten.
const LOOKS_MAX: u32 = 100_000_000;

const TURNS: u32 = 2_000;

/// Waits for an identifier.
fn wait(lane: &mut IdLane) -> IdToken {
    if let Some(token) = lane.acquire_or_wait() {
        return token;
    }
    for _ in 0..LOOKS_MAX {
        if let Some(token) = lane.acquire() {
            return token;
        }
        thread::yield_now();
    }
    panic!("nobody handed an identifier to a lane that waits");
}

/// Four threads, each of which holds up to `at_once` identifiers at a time.
fn everyone_gets_everything(ids: u16, at_once: usize, fair_share: FairShare) {
    let set = SharedIds::new(ids, 4, fair_share).expect("a valid set");
    let is_held: Vec<AtomicBool> = (0..ids).map(|_| AtomicBool::new(false)).collect();
    let taken = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut lane = set.lane().expect("there are four");
                for turn in 0..TURNS {
                    let mut tokens = vec![wait(&mut lane)];
                    lane.reserve(turn % 3);
                    tokens.extend((1..at_once).map_while(|_| lane.acquire()));
                    lane.release_reserve();
                    for token in tokens {
                        let flag = &is_held[usize::from(token.id())];
                        assert!(!flag.swap(true, Ordering::Relaxed), "{token:?} is held by two");
                        taken.fetch_add(1, Ordering::Relaxed);
                        flag.store(false, Ordering::Relaxed);
                        if turn % 2 == 0 { lane.release(token) } else { lane.recycle(token) }
                    }
                    lane.release_reserve();
                    // A wait that is given up at any moment loses nothing.
                    if turn % 5 == 0 {
                        lane.acquire_or_wait().into_iter().for_each(|token| lane.release(token));
                        lane.stop_waiting();
                    }
                }
            });
        }
    });
    assert!(taken.load(Ordering::Relaxed) >= 4 * TURNS);
    assert_eq!(set.active(), 0);
    let mut lane = set.lane().expect("all have gone");
    assert_eq!(std::iter::from_fn(|| lane.acquire()).count(), usize::from(ids));
}

#[test]
fn four_threads_share_a_single_identifier() {
    everyone_gets_everything(1, 1, FairShare::Off);
}

#[test]
fn four_threads_share_a_few_identifiers_and_take_several() {
    everyone_gets_everything(7, 5, FairShare::Off);
}

#[test]
fn four_threads_keep_to_their_shares() {
    everyone_gets_everything(16, 6, FairShare::On);
}

#[test]
fn sizes_out_of_range_are_refused_and_lanes_are_counted() {
    let refused = |ids, lanes| SharedIds::new(ids, lanes, FairShare::Off).err();
    assert_eq!(refused(0, 1), Some(SharedIdsError::NoIds));
    assert_eq!(refused(1, 0), Some(SharedIdsError::LaneCount { lanes: 0 }));
    assert_eq!(refused(1, 1025), Some(SharedIdsError::LaneCount { lanes: 1025 }));
    let set = SharedIds::new(u16::MAX, 2, FairShare::Off).expect("the most there can be");
    let lanes = [set.lane().expect("the first"), set.lane().expect("the second")];
    assert_eq!(set.lane().err(), Some(SharedIdsError::LanesInUse { lanes: 2 }));
    drop(lanes);
    assert!(set.lane().is_ok());
}

#[test]
fn the_token_of_another_set_is_ignored_and_counted() {
    let [ours, others] = [(); 2].map(|()| SharedIds::new(4, 1, FairShare::Off).expect("a valid set"));
    let (mut lane, mut other) = (ours.lane().expect("one"), others.lane().expect("one"));
    let held = lane.acquire().expect("four are free");
    lane.release(other.acquire().expect("four are free"));
    lane.recycle(other.acquire().expect("three are free"));
    assert_eq!((ours.foreign_releases(), others.foreign_releases()), (2, 0));
    assert_eq!((ours.active(), others.active()), (1, 2));
    lane.release(held);
    assert_eq!(ours.active(), 0);
}

#[test]
fn a_lane_can_be_sent_and_a_set_shared() {
    fn sent<T: Send>() {}
    fn shared<T: Send + Sync + Clone>() {}
    sent::<IdLane>();
    sent::<IdToken>();
    shared::<SharedIds>();
}
