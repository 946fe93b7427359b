//! Every interleaving of a few steps on two or three lanes, as far as the model checker's bounds go.
//!
//! An identifier's owner writes a cell that belongs to it: if two had it at once, or if one did not see what
//! the last one did, the checker reports a race. At the end of each interleaving every identifier must be
//! found again, and nobody may be left waiting.

use std::cell::Cell;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::{FairShare, IdLane, IdToken, SharedIds};

thread_local! {
    // All threads of a model run on one thread of the system, so this concerns one test.
    static FENCE_IS_LEFT_OUT: Cell<bool> = const { Cell::new(false) };
}

pub(super) fn fence_is_left_out() -> bool {
    FENCE_IS_LEFT_OUT.get()
}

/// A set, and a cell for each identifier that only its owner may touch.
#[derive(Clone)]
struct Rig {
    ids: SharedIds,
    cells: Arc<Vec<UnsafeCell<u32>>>,
}

impl Rig {
    fn new(ids: u16, lanes: u16, fair_share: FairShare) -> Self {
        let cells = (0..ids).map(|_| UnsafeCell::new(0)).collect();
        let ids = SharedIds::new(ids, lanes, fair_share).expect("the numbers are in range");
        Self { ids, cells: Arc::new(cells) }
    }

    fn lane(&self) -> IdLane {
        self.ids.lane().expect("there are lanes enough")
    }

    /// Does with an identifier what only its owner may.
    fn using(&self, token: IdToken) -> IdToken {
        self.cells[usize::from(token.id())].with_mut(|_| ());
        token
    }

    fn acquire(&self, lane: &mut IdLane) -> Option<IdToken> {
        lane.acquire().map(|token| self.using(token))
    }

    fn acquire_or_wait(&self, lane: &mut IdLane) -> Option<IdToken> {
        lane.acquire_or_wait().map(|token| self.using(token))
    }

    /// Nothing was lost: each identifier can be had once.
    fn assert_all_free(&self, lane: &mut IdLane) {
        assert_eq!(self.ids.active(), 0);
        let mut found: Vec<u16> = std::iter::from_fn(|| self.acquire(lane)).map(|token| token.id()).collect();
        found.sort_unstable();
        assert_eq!(found, (0..self.ids.ids()).collect::<Vec<_>>());
        assert_eq!(self.ids.active(), u32::from(self.ids.ids()));
    }
}

/// Checks every interleaving with up to so many switches away from a thread that could go on.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

#[test]
fn two_lanes_take_and_release_one_at_a_time() {
    loom::model(|| {
        let rig = Rig::new(2, 2, FairShare::Off);
        let (mut first, mut second) = (rig.lane(), rig.lane());
        let other = thread::spawn({
            let rig = rig.clone();
            move || {
                let token = rig.acquire(&mut second).expect("two identifiers, two that take one");
                second.release(token);
            }
        });
        let token = rig.acquire(&mut first).expect("two identifiers, two that take one");
        first.release(token);
        other.join().expect("it has not panicked");
        rig.assert_all_free(&mut first);
    });
}

#[test]
fn a_lane_takes_from_anothers_words_while_that_one_uses_them() {
    loom::model(|| {
        let rig = Rig::new(2, 2, FairShare::Off);
        let (mut owner, mut thief) = (rig.lane(), rig.lane());
        let other = thread::spawn({
            let rig = rig.clone();
            move || {
                let own = rig.acquire(&mut thief);
                let stolen = rig.acquire(&mut thief);
                [own, stolen].into_iter().flatten().for_each(|token| thief.release(token));
            }
        });
        for _ in 0..2 {
            if let Some(token) = rig.acquire(&mut owner) {
                owner.release(token);
            }
        }
        other.join().expect("it has not panicked");
        rig.assert_all_free(&mut owner);
    });
}

#[test]
fn batches_of_one_word_are_apart_and_their_rest_goes_back() {
    loom::model(|| {
        let rig = Rig::new(4, 2, FairShare::Off);
        let (mut first, mut second) = (rig.lane(), rig.lane());
        let other = thread::spawn({
            let rig = rig.clone();
            move || {
                assert!(second.reserve(2) <= 2);
                let token = rig.acquire(&mut second);
                second.release_reserve();
                token.into_iter().for_each(|token| second.recycle(token));
            }
        });
        // The home word has two: the second batch comes from the other lane's word, or is empty.
        let tokens: Vec<_> = (0..2)
            .filter_map(|_| {
                first.reserve(2);
                let token = rig.acquire(&mut first);
                first.release_reserve();
                token
            })
            .collect();
        tokens.into_iter().for_each(|token| first.release(token));
        other.join().expect("it has not panicked");
        rig.assert_all_free(&mut first);
    });
}

/// One holds the only identifier and releases it, another begins to wait for it.
fn release_beside_a_wait() {
    let rig = Rig::new(1, 2, FairShare::Off);
    let (mut holder, mut waiter) = (rig.lane(), rig.lane());
    let held = rig.acquire(&mut holder).expect("it is free");
    let waiting = thread::spawn({
        let rig = rig.clone();
        move || {
            let token = rig.acquire_or_wait(&mut waiter);
            (waiter, token)
        }
    });
    holder.release(held);
    let (mut waiter, token) = waiting.join().expect("it has not panicked");
    let token = token.or_else(|| rig.acquire(&mut waiter)).expect("what was released goes to who waits");
    assert!(!waiter.is_waiting());
    waiter.release(token);
    rig.assert_all_free(&mut holder);
}

#[test]
fn nobody_waits_beside_a_free_identifier() {
    loom::model(release_beside_a_wait);
}

#[test]
#[should_panic(expected = "what was released goes to who waits")]
fn the_model_notices_when_the_look_for_waiters_is_not_ordered() {
    FENCE_IS_LEFT_OUT.set(true);
    loom::model(release_beside_a_wait);
}

#[test]
fn an_identifier_goes_to_the_longest_waiter() {
    loom::model(|| {
        let rig = Rig::new(1, 3, FairShare::Off);
        let (mut holder, mut early, mut late) = (rig.lane(), rig.lane(), rig.lane());
        let held = rig.acquire(&mut holder).expect("it is free");
        assert!(rig.acquire_or_wait(&mut early).is_none());
        let waiting = thread::spawn({
            let rig = rig.clone();
            move || {
                let token = rig.acquire_or_wait(&mut late);
                (late, token)
            }
        });
        holder.release(held);
        assert!(rig.acquire(&mut holder).is_none(), "it never was free");
        let token = rig.acquire(&mut early).expect("it has waited longest");
        early.release(token);
        let (mut late, token) = waiting.join().expect("it has not panicked");
        let token = token.or_else(|| rig.acquire(&mut late)).expect("it is the next");
        late.release(token);
        rig.assert_all_free(&mut holder);
    });
}

#[test]
fn a_batch_that_goes_back_serves_all_who_wait() {
    check(2, || {
        let rig = Rig::new(6, 3, FairShare::Off);
        let (mut holder, mut first, second) = (rig.lane(), rig.lane(), rig.lane());
        assert_eq!(holder.reserve(2), 2);
        let others: Vec<_> = std::iter::from_fn(|| rig.acquire(&mut first)).collect();
        assert_eq!(others.len(), 4);
        let threads = [first, second].map(|mut lane| {
            let rig = rig.clone();
            thread::spawn(move || {
                let token = rig.acquire_or_wait(&mut lane);
                (lane, token)
            })
        });
        holder.release_reserve();
        // Either may still be on the way to hand something to the other: both must have ended.
        let ended = threads.map(|thread| thread.join().expect("it has not panicked"));
        for (mut lane, token) in ended {
            let token = token.or_else(|| rig.acquire(&mut lane)).expect("two were released for two");
            holder.release(token);
        }
        others.into_iter().for_each(|token| holder.release(token));
        rig.assert_all_free(&mut holder);
    });
}

#[test]
fn a_wait_that_is_given_up_passes_its_identifier_on() {
    loom::model(|| {
        let rig = Rig::new(1, 3, FairShare::Off);
        let (mut holder, mut early, mut late) = (rig.lane(), rig.lane(), rig.lane());
        let held = rig.acquire(&mut holder).expect("it is free");
        assert!(rig.acquire_or_wait(&mut early).is_none());
        assert!(rig.acquire_or_wait(&mut late).is_none());
        let giving_up = thread::spawn(move || early.stop_waiting());
        holder.release(held);
        giving_up.join().expect("it has not panicked");
        let token = rig.acquire(&mut late).expect("whoever was first has given up");
        late.release(token);
        rig.assert_all_free(&mut holder);
    });
}

#[test]
fn a_lane_that_is_dropped_while_it_waits_loses_nothing() {
    loom::model(|| {
        let rig = Rig::new(1, 2, FairShare::Off);
        let (mut holder, mut waiter) = (rig.lane(), rig.lane());
        let held = rig.acquire(&mut holder).expect("it is free");
        let going = thread::spawn({
            let rig = rig.clone();
            move || rig.acquire_or_wait(&mut waiter).into_iter().for_each(|token| waiter.release(token))
        });
        holder.release(held);
        going.join().expect("it has not panicked");
        rig.assert_all_free(&mut holder);
        assert!(rig.ids.lane().is_ok(), "the lane has come back as well");
    });
}

#[test]
fn a_wait_begun_again_is_another_wait() {
    loom::model(|| {
        let rig = Rig::new(1, 2, FairShare::Off);
        let (mut holder, mut waiter) = (rig.lane(), rig.lane());
        let held = rig.acquire(&mut holder).expect("it is free");
        assert!(rig.acquire_or_wait(&mut waiter).is_none());
        let again = thread::spawn({
            let rig = rig.clone();
            move || {
                waiter.stop_waiting();
                let token = rig.acquire_or_wait(&mut waiter);
                (waiter, token)
            }
        });
        holder.release(held);
        let (mut waiter, token) = again.join().expect("it has not panicked");
        let token = token.or_else(|| rig.acquire(&mut waiter)).expect("nobody else is there");
        waiter.release(token);
        rig.assert_all_free(&mut holder);
    });
}

#[test]
fn three_lanes_pass_one_identifier_round() {
    check(2, || {
        let rig = Rig::new(1, 3, FairShare::Off);
        let mut holder = rig.lane();
        let held = rig.acquire(&mut holder).expect("it is free");
        let threads = [rig.lane(), rig.lane()].map(|mut lane| {
            let rig = rig.clone();
            thread::spawn(move || {
                match rig.acquire_or_wait(&mut lane) {
                    Some(token) => lane.release(token),
                    None => return Some(lane),
                }
                None
            })
        });
        holder.release(held);
        let mut waiting: Vec<IdLane> =
            threads.into_iter().filter_map(|thread| thread.join().expect("it has not panicked")).collect();
        // Whoever still waits is served by the one before.
        while let Some(at) =
            waiting.iter_mut().position(|lane| rig.acquire(lane).map(|token| lane.release(token)).is_some())
        {
            waiting.remove(at);
        }
        assert!(waiting.is_empty(), "{} lanes wait beside a free identifier", waiting.len());
        rig.assert_all_free(&mut holder);
    });
}

/// Eight identifiers for two lanes: each may hold four while both are active.
fn at_its_share() -> (Rig, IdLane, Vec<IdToken>, IdLane) {
    let rig = Rig::new(8, 2, FairShare::On);
    let (mut full, mut other) = (rig.lane(), rig.lane());
    let token = rig.acquire(&mut other).expect("it has none yet");
    other.release(token);
    let held: Vec<_> = std::iter::from_fn(|| rig.acquire(&mut full)).collect();
    assert_eq!(held.len(), 4);
    (rig, full, held, other)
}

#[test]
fn a_share_that_grows_ends_a_wait() {
    loom::model(|| {
        let (rig, mut full, held, other) = at_its_share();
        let leaving = thread::spawn(move || drop(other));
        let token = rig.acquire_or_wait(&mut full);
        leaving.join().expect("it has not panicked");
        let token = token.or_else(|| rig.acquire(&mut full)).expect("it is the only active lane");
        held.into_iter().chain([token]).for_each(|token| full.release(token));
        rig.assert_all_free(&mut full);
    });
}

#[test]
fn a_release_by_another_lane_ends_a_wait_at_the_share() {
    check(3, || {
        let (rig, mut full, mut held, mut other) = at_its_share();
        let token = held.pop().expect("four");
        let releasing = thread::spawn(move || {
            other.release(token);
            other
        });
        let token = rig.acquire_or_wait(&mut full);
        let other = releasing.join().expect("it has not panicked");
        let token = token.or_else(|| rig.acquire(&mut full)).expect("it holds three of four");
        held.into_iter().chain([token]).for_each(|token| full.release(token));
        drop(other);
        rig.assert_all_free(&mut full);
    });
}
