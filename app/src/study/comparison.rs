//! A comparison: two variants in one run, round by round, slice by slice.
//!
//! What keeps noise out:
//!
//! * both variants are set up at the same time and run in slices of 125 us that alternate A B B A, so that
//!   what
//!   makes the machine slower or faster for longer than that does it to both;
//! * four such slices are a quad, which has a ratio. Of the quads of a round the middle half by ratio counts:
//!   a
//!   quad in which one side alone was disturbed is put aside, the lucky with the unlucky;
//! * every 48 ms both are set up anew, the one that was first being second: where memory happens to lie can
//!   cost
//!   more than what is compared;
//! * the result is the median of the rounds' ratios.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use super::contest::{Contestant, Slice, Totals};
use super::figures::{Figures, Goal, middle_half};
use super::site::{Place, Site};

/// Two variants, and what is expected of them.
#[derive(Clone, Debug)]
pub(super) struct Comparison {
    pub(super) name: String,
    pub(super) method: Method,
    pub(super) baseline: Variant,
    pub(super) variant: Variant,
    /// The ratio that was published for the idea, where there is one.
    pub(super) published: Option<f64>,
    pub(super) goal: Goal,
    /// What it shows if the goal is met, as half a sentence.
    pub(super) claim: &'static str,
}

/// How both sides are measured.
#[derive(Clone, Copy, Debug)]
pub(super) enum Method {
    /// Their slices alternate.
    Alternate(Place),
    /// They run together, since what they do to each other is the question: what each reached in a round, and
    /// what it did for it.
    Together(fn(round: usize) -> anyhow::Result<Round>),
}

impl Method {
    /// Where the slices alternate, if they do.
    pub(super) fn place(self) -> Option<Place> {
        match self {
            Self::Alternate(place) => Some(place),
            Self::Together(_) => None,
        }
    }
}

/// What the two sides reached in a round, and what they did for it.
pub(super) type Round = ([f64; 2], [Totals; 2]);

/// One side of a comparison.
#[derive(Clone)]
pub(super) struct Variant {
    pub(super) name: String,
    set_up: Rc<SetUp>,
}

type SetUp = dyn Fn(Place) -> anyhow::Result<Box<dyn Contestant>>;

/// What a comparison came to.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Measured {
    pub(super) figures: Figures,
    /// What baseline and variant have done in all rounds.
    pub(super) totals: [Totals; 2],
}

impl Variant {
    pub(super) fn new(
        name: impl Into<String>,
        set_up: impl Fn(Place) -> anyhow::Result<Box<dyn Contestant>> + 'static,
    ) -> Self {
        Self { name: name.into(), set_up: Rc::new(set_up) }
    }

    /// One that runs together with the other side, and is not set up by itself.
    pub(super) fn not_alone(name: &'static str) -> Self {
        Self::new(name, move |_| {
            anyhow::bail!("{name} is not measured by itself: this is a bug in the study")
        })
    }
}

impl Comparison {
    /// The baseline with itself.
    pub(super) fn with_itself(&self, name: String) -> Self {
        Self {
            name,
            method: self.method,
            baseline: self.baseline.clone(),
            variant: self.baseline.clone(),
            published: None,
            goal: Goal::Within(1.0 - NOISE_MAX, 1.0 + NOISE_MAX),
            claim: "the machine is quiet enough to tell a difference of 1 %",
        }
    }

    /// Rounds that take time: none, if time is virtual.
    pub(super) fn rounds_timed(&self) -> u32 {
        match self.method {
            Method::Alternate(_) => u32::try_from(ROUNDS).unwrap_or(u32::MAX),
            Method::Together(_) => 0,
        }
    }

    /// Runs all rounds, each variant for `runtime` in each. `begun` is told of every round before it begins.
    pub(super) fn measure(
        &self,
        site: &Site,
        runtime: Duration,
        mut begun: impl FnMut(usize),
    ) -> anyhow::Result<Measured> {
        let mut measured = Measured { figures: Figures::default(), totals: [Totals::default(); 2] };
        for round in 0..ROUNDS {
            begun(round);
            let (figures, totals) = match self.method {
                Method::Alternate(place) => self.round(site, place, &Schedule::of(runtime), round)?,
                Method::Together(measure) => measure(round)?,
            };
            measured.figures.rounds.push(figures);
            for (sum, totals) in measured.totals.iter_mut().zip(totals) {
                sum.add(totals);
            }
        }
        Ok(measured)
    }

    fn round(&self, site: &Site, place: Place, schedule: &Schedule, round: usize) -> anyhow::Result<Round> {
        let mut quads = Vec::new();
        let mut totals = [Totals::default(); 2];
        let deadline = site.clock.deadline(schedule.patience);
        for turn in 0..schedule.set_ups {
            let first = round + turn as usize;
            let mut sides = self.set_up(place, first)?;
            let device = match place {
                Place::Inline => None,
                Place::TwoThreads => {
                    Some(site.start_device([0, 1].map(|side: usize| sides[side].controllers().to_vec()))?)
                }
            };
            for quad in 0..schedule.quads_each {
                let mut slices = [Slice::default(); 2];
                for side in order(first + quad as usize) {
                    if let Some(device) = &device {
                        device.turn_to(side);
                    }
                    slices[side].add(sides[side].run(site, schedule.slice_ns)?);
                }
                quads.push(slices.map(Slice::rate));
                if deadline.passed(&site.clock) {
                    break;
                }
            }
            drop(device);
            for (sum, side) in totals.iter_mut().zip(&sides) {
                sum.add(side.totals()?);
            }
            if deadline.passed(&site.clock) {
                break;
            }
        }
        Ok((middle_half(quads), totals))
    }

    /// Both sides: the one set up first is the other one the next time.
    fn set_up(&self, place: Place, first: usize) -> anyhow::Result<[Box<dyn Contestant>; 2]> {
        if first.is_multiple_of(2) {
            let baseline = (self.baseline.set_up)(place)?;
            return Ok([baseline, (self.variant.set_up)(place)?]);
        }
        let variant = (self.variant.set_up)(place)?;
        Ok([(self.baseline.set_up)(place)?, variant])
    }
}

impl fmt::Debug for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Variant").field("name", &self.name).finish_non_exhaustive()
    }
}

/// How a variant's time in a round is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Schedule {
    /// How often both sides are set up.
    set_ups: u32,
    /// How many times four slices, two of either side, follow each set-up.
    quads_each: u32,
    slice_ns: u64,
    /// A round that has taken so long ends with the quads that it has: others have the processors.
    patience: Duration,
}

impl Schedule {
    fn of(runtime: Duration) -> Self {
        let quads = u32::try_from(runtime.as_nanos() / (2 * SLICE.as_nanos())).unwrap_or(u32::MAX).max(1);
        let set_ups = (quads / QUADS_PER_SET_UP).clamp(1, SET_UPS_MAX);
        let quads_each = quads / set_ups;
        let slices = u128::from(2 * set_ups * quads_each);
        let slice_ns = u64::try_from(runtime.as_nanos() / slices).unwrap_or(u64::MAX);
        Self { set_ups, quads_each, slice_ns, patience: runtime.saturating_mul(8) }
    }
}

/// The sides of four slices: A B B A, and B A A B the next time.
fn order(quad: usize) -> [usize; 4] {
    if quad.is_multiple_of(2) { [0, 1, 1, 0] } else { [1, 0, 0, 1] }
}

/// The name of a baseline's comparison with itself.
pub(super) const A_A: &str = "A/A";
/// By how much its ratio may be off.
pub(super) const NOISE_MAX: f64 = 0.01;
/// Rounds of a comparison: odd, so that the median is a round's.
pub(super) const ROUNDS: usize = 7;
/// Longer than what a slice's beginning and end may be off by. Far shorter than the milliseconds for which
/// another program takes a processor away: most slices are not disturbed even on a busy machine.
const SLICE: Duration = Duration::from_micros(125);
const QUADS_PER_SET_UP: u32 = 96;
const SET_UPS_MAX: u32 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_spent_on_as_many_slices_of_either_side() {
        for millis in [1, 2, 7, 100, 1000, 10_000, 3_600_000] {
            let runtime = Duration::from_millis(millis);
            let Schedule { set_ups, quads_each, slice_ns, .. } = Schedule::of(runtime);
            let spent = u128::from(set_ups) * u128::from(quads_each) * 2 * u128::from(slice_ns);
            assert!(spent <= runtime.as_nanos() && spent * 100 >= runtime.as_nanos() * 99, "{millis} ms");
            assert!((60_000..1_000_000).contains(&slice_ns), "{millis} ms: {slice_ns} ns");
        }
        assert_eq!(Schedule::of(Duration::from_secs(1)).set_ups, 41);
        assert_eq!(Schedule::of(Duration::from_nanos(1)).quads_each, 1);
    }

    #[test]
    fn each_side_follows_the_other_as_often() {
        assert_eq!([order(0), order(1), order(2)], [[0, 1, 1, 0], [1, 0, 0, 1], [0, 1, 1, 0]]);
    }

    #[test]
    fn rounds_have_a_middle_one() {
        assert!(ROUNDS >= 7 && !ROUNDS.is_multiple_of(2));
    }
}
