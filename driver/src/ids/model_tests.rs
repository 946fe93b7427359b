//! Shared identifiers beside a model that is too simple to be wrong: counts, a set and a queue.
//!
//! The model does not say which identifier a lane gets, only that nobody else has it, and when there is none.
//! Short sequences of steps are tried exhaustively, long ones by a seeded choice.

use std::collections::{BTreeSet, VecDeque};

use super::{FairShare, IdLane, IdToken, SharedIds};

/// What a lane can do.
#[derive(Clone, Copy, Debug)]
enum Step {
    Acquire,
    AcquireOrWait,
    StopWaiting,
    ReserveTwo,
    ReleaseReserve,
    /// Releases its oldest identifier.
    Release,
    /// Releases the next lane's oldest identifier.
    ReleaseOthers,
    Recycle,
    /// Drops the lane, though not what it holds, and takes it anew.
    Renew,
}

const STEPS: [Step; 9] = [
    Step::Acquire,
    Step::AcquireOrWait,
    Step::StopWaiting,
    Step::ReserveTwo,
    Step::ReleaseReserve,
    Step::Release,
    Step::ReleaseOthers,
    Step::Recycle,
    Step::Renew,
];

/// How a set is made, and how many identifiers its first lane takes before the first step.
#[derive(Clone, Copy, Debug)]
struct Start {
    ids: u16,
    lanes: u16,
    fair_share: FairShare,
    taken: usize,
}

/// A lane as the model sees it.
#[derive(Debug, Default)]
struct Modelled {
    reserved: usize,
    is_handed: bool,
    held: VecDeque<IdToken>,
    /// It counts for the fair share.
    is_active: bool,
    /// What counts as its own there: what it took and nobody has given back.
    counted: usize,
}

/// The set and what the model knows of it. The set is asked first in every step, the model follows.
struct Trial {
    start: Start,
    set: SharedIds,
    lanes: Vec<Option<IdLane>>,
    models: Vec<Modelled>,
    free: usize,
    held: BTreeSet<u16>,
    /// Who waits and was handed nothing, the longest first.
    line: VecDeque<usize>,
}

impl Trial {
    fn new(start: Start) -> Self {
        let set = SharedIds::new(start.ids, start.lanes, start.fair_share).expect("a valid start");
        let lanes = (0..start.lanes).map(|_| set.lane().ok()).collect();
        let models = (0..start.lanes).map(|_| Modelled::default()).collect();
        let free = usize::from(start.ids);
        let mut trial =
            Self { start, set, lanes, models, free, held: BTreeSet::new(), line: VecDeque::new() };
        (0..start.taken).for_each(|_| trial.step(0, Step::Acquire));
        trial
    }

    fn step(&mut self, lane: usize, step: Step) {
        match step {
            Step::Acquire => {
                let token = self.lane(lane).acquire();
                self.acquired(lane, token);
            }
            Step::AcquireOrWait => {
                let waited = self.waits(lane);
                let token = self.lane(lane).acquire_or_wait();
                if !self.acquired(lane, token) && !waited {
                    self.line.push_back(lane);
                }
            }
            Step::StopWaiting => {
                self.lane(lane).stop_waiting();
                self.stopped_waiting(lane);
            }
            Step::ReserveTwo => {
                let reserved = self.lane(lane).reserve(2) as usize;
                self.reserved(lane, 2, reserved);
            }
            Step::ReleaseReserve => {
                self.lane(lane).release_reserve();
                self.released_reserve(lane);
            }
            Step::Release => self.release(lane, lane),
            Step::ReleaseOthers => self.release(lane, (lane + 1) % self.lanes.len()),
            Step::Recycle => self.recycle(lane),
            Step::Renew => {
                self.lanes[lane] = None;
                self.stopped_waiting(lane);
                self.released_reserve(lane);
                self.models[lane].is_active = false;
                self.serve();
                self.lanes[lane] = self.set.lane().ok();
            }
        }
        self.assert_agreement();
    }

    fn lane(&mut self, lane: usize) -> &mut IdLane {
        self.lanes[lane].as_mut().expect("every lane is there between two steps")
    }

    fn waits(&self, lane: usize) -> bool {
        self.line.contains(&lane) || self.models[lane].is_handed
    }

    /// How many more a lane may take.
    fn allowed(&self, lane: usize) -> usize {
        if self.start.fair_share == FairShare::Off {
            return usize::MAX;
        }
        let active = self.models.iter().filter(|it| it.is_active).count().max(1);
        usize::from(self.start.ids).div_ceil(active).max(4).saturating_sub(self.models[lane].counted)
    }

    /// Hands free identifiers to those in line who may have one.
    fn serve(&mut self) {
        while self.free > 0
            && let Some(at) = (0..self.line.len()).find(|at| self.allowed(self.line[*at]) > 0)
            && let Some(lane) = self.line.remove(at)
        {
            self.free -= 1;
            self.models[lane].is_handed = true;
        }
    }

    /// Whether a lane that wanted one was right to get it, or not.
    fn acquired(&mut self, lane: usize, token: Option<IdToken>) -> bool {
        let waits = self.waits(lane);
        if self.models[lane].reserved == 0 && !waits {
            self.models[lane].is_active = true;
        }
        let may_take = self.free > 0 && self.allowed(lane) > 0;
        let model = &mut self.models[lane];
        let is_due = if model.reserved > 0 {
            model.reserved -= 1;
            true
        } else if waits {
            model.counted += usize::from(model.is_handed);
            std::mem::take(&mut model.is_handed)
        } else {
            model.counted += usize::from(may_take);
            self.free -= usize::from(may_take);
            may_take
        };
        assert_eq!(token.is_some(), is_due, "lane {lane} got {token:?}");
        token.is_some_and(|token| {
            assert!(token.id() < self.start.ids && self.held.insert(token.id()), "{token:?} is held already");
            self.models[lane].held.push_back(token);
            true
        })
    }

    fn reserved(&mut self, lane: usize, wanted: usize, answer: usize) {
        if self.models[lane].reserved > 0 || self.waits(lane) {
            assert_eq!(answer, self.models[lane].reserved);
            return;
        }
        self.models[lane].is_active = true;
        let most = wanted.min(self.free).min(self.allowed(lane));
        // One word may have fewer than all words have; but not none.
        assert!((most.min(1)..=most).contains(&answer), "lane {lane} reserved {answer} of {most}");
        self.free -= answer;
        self.models[lane].reserved = answer;
        self.models[lane].counted += answer;
    }

    fn stopped_waiting(&mut self, lane: usize) {
        self.line.retain(|it| *it != lane);
        self.free += usize::from(std::mem::take(&mut self.models[lane].is_handed));
        self.serve();
    }

    fn released_reserve(&mut self, lane: usize) {
        let count = std::mem::take(&mut self.models[lane].reserved);
        self.models[lane].counted -= count;
        self.free += count;
        self.serve();
    }

    fn release(&mut self, lane: usize, owner: usize) {
        let Some(token) = self.models[owner].held.pop_front() else { return };
        self.held.remove(&token.id());
        self.lane(lane).release(token);
        self.models[owner].counted -= 1;
        self.free += 1;
        self.serve();
    }

    fn recycle(&mut self, lane: usize) {
        if !self.line.is_empty() || self.start.fair_share == FairShare::On {
            // The same as a release: the count of the reserve shows that.
            return self.release_as(lane, IdLane::recycle);
        }
        let Some(token) = self.models[lane].held.pop_front() else { return };
        self.held.remove(&token.id());
        self.lane(lane).recycle(token);
        // What was reserved of another word has gone back.
        let reserved = self.lane(lane).reserved() as usize;
        let model = &mut self.models[lane];
        assert!(reserved == model.reserved + 1 || reserved == 1, "{reserved} after {}", model.reserved);
        self.free += model.reserved + 1 - reserved;
        model.counted -= model.reserved + 1 - reserved;
        model.reserved = reserved;
    }

    fn release_as(&mut self, lane: usize, how: fn(&mut IdLane, IdToken)) {
        let Some(token) = self.models[lane].held.pop_front() else { return };
        self.held.remove(&token.id());
        how(self.lane(lane), token);
        self.models[lane].counted -= 1;
        self.free += 1;
        self.serve();
    }

    fn assert_agreement(&mut self) {
        assert_eq!(self.set.active() as usize, self.held.len());
        for lane in 0..self.lanes.len() {
            let (waits, reserved) = (self.waits(lane), self.models[lane].reserved);
            let real = self.lane(lane);
            assert_eq!((real.is_waiting(), real.reserved() as usize), (waits, reserved), "lane {lane}");
        }
    }

    /// Everything comes back, and each identifier can be had once.
    fn end(mut self) {
        for lane in 0..self.lanes.len() {
            self.step(lane, Step::Renew);
            (0..self.models[lane].held.len()).for_each(|_| self.step(lane, Step::Release));
        }
        self.lanes.clear();
        let mut lane = self.set.lane().expect("all lanes are free");
        let all: BTreeSet<u16> = std::iter::from_fn(|| lane.acquire()).map(|token| token.id()).collect();
        assert_eq!(all, (0..self.start.ids).collect());
    }
}

/// Few identifiers, so that they run out: none taken at the start, or all.
fn starts() -> Vec<Start> {
    let mut starts = Vec::new();
    for (ids, lanes) in [(1, 2), (2, 2), (4, 2), (5, 3)] {
        for taken in [0, usize::from(ids)] {
            starts.push(Start { ids, lanes, fair_share: FairShare::Off, taken });
        }
    }
    starts.extend([(8, 2, 8), (9, 3, 5)].map(|(ids, lanes, taken)| Start {
        ids,
        lanes,
        fair_share: FairShare::On,
        taken,
    }));
    starts
}

#[test]
fn every_short_sequence_of_steps_agrees_with_the_model() {
    for start in starts() {
        let lanes = usize::from(start.lanes);
        let choices = lanes * STEPS.len();
        let length = if lanes == 2 { 4 } else { 3 };
        for sequence in 0..choices.pow(length) {
            let mut trial = Trial::new(start);
            let mut rest = sequence;
            for _ in 0..length {
                trial.step(rest % lanes, STEPS[rest / lanes % STEPS.len()]);
                rest /= choices;
            }
            trial.end();
        }
    }
}

#[test]
fn long_sequences_of_steps_agree_with_the_model() {
    let more = [(70, 1), (100, 3), (130, 2)].into_iter().flat_map(|(ids, lanes)| {
        [FairShare::Off, FairShare::On].map(|fair_share| Start { ids, lanes, fair_share, taken: 0 })
    });
    for (seed, start) in starts().into_iter().chain(more).enumerate() {
        println!("seed {seed}: {start:?}");
        let mut state = seed as u64;
        let mut choose = |count: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % count
        };
        let mut trial = Trial::new(start);
        for _ in 0..20_000 {
            trial.step(choose(usize::from(start.lanes)), STEPS[choose(STEPS.len())]);
        }
        trial.end();
    }
}
