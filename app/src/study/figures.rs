//! From the figures of the rounds to a ratio, and whether it is what was hoped for.
//!
//! Invariant: everything here follows from the raw figures, so that a reader of the result can compute it
//! again.

/// What two variants reached, round by round.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Figures {
    /// Baseline and variant of each round.
    pub(super) rounds: Vec<[f64; 2]>,
}

/// What a ratio should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Goal {
    /// Nothing: it stands beside others to be looked at.
    Shown,
    /// So much, or more.
    AtLeast(f64),
    /// Between these two.
    Within(f64, f64),
}

impl Figures {
    /// The median of what the baseline (0) or the variant (1) reached.
    pub(super) fn median_of(&self, side: usize) -> f64 {
        median(self.rounds.iter().filter_map(|round| round.get(side).copied()).collect())
    }

    /// The median of the rounds' ratios, variant over baseline.
    pub(super) fn ratio(&self) -> f64 {
        median(self.ratios().collect())
    }

    /// The least of the rounds' ratios.
    pub(super) fn ratio_min(&self) -> f64 {
        self.ratios().fold(f64::INFINITY, f64::min)
    }

    /// The largest of the rounds' ratios.
    pub(super) fn ratio_max(&self) -> f64 {
        self.ratios().fold(0.0, f64::max)
    }

    fn ratios(&self) -> impl Iterator<Item = f64> {
        self.rounds.iter().map(|[baseline, variant]| variant / baseline)
    }
}

impl Goal {
    /// Whether a ratio is what it should be.
    pub(super) fn is_met(self, ratio: f64) -> bool {
        match self {
            Self::Shown => true,
            Self::AtLeast(least) => ratio >= least,
            Self::Within(least, most) => (least..=most).contains(&ratio),
        }
    }

    /// The least ratio that meets it.
    pub(super) fn least(self) -> Option<f64> {
        match self {
            Self::Shown => None,
            Self::AtLeast(least) | Self::Within(least, _) => Some(least),
        }
    }
}

/// The middle of some numbers; of an even count, the mean of the middle two. 0 if there are none.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match (values.get(middle), values.len() % 2) {
        (None, _) => 0.0,
        (Some(value), 1) => *value,
        (Some(value), _) => f64::midpoint(values[middle - 1], *value),
    }
}

/// The mean of either side over the middle half of some pairs, in the order of their ratios. 0 if there are
/// none.
#[expect(clippy::cast_precision_loss, reason = "there are far fewer than 2^53")]
pub(super) fn middle_half(mut pairs: Vec<[f64; 2]>) -> [f64; 2] {
    let ratio = |pair: &[f64; 2]| pair[1] / pair[0];
    pairs.sort_unstable_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    let aside = pairs.len() / 4;
    let middle = &pairs[aside..pairs.len() - aside];
    let mean = |side: usize| middle.iter().map(|pair| pair[side]).sum::<f64>() / middle.len().max(1) as f64;
    [mean(0), mean(1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_the_median_of_the_rounds_ratios_and_not_the_ratio_of_medians() {
        let figures = Figures { rounds: vec![[100.0, 110.0], [200.0, 210.0], [50.0, 60.0]] };
        assert_eq!(figures.ratio(), 1.1);
        assert_eq!((figures.ratio_min(), figures.ratio_max()), (1.05, 1.2));
        assert_eq!((figures.median_of(0), figures.median_of(1)), (100.0, 110.0));
    }

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(median(vec![]), 0.0);
        assert_eq!(median(vec![3.0]), 3.0);
        assert_eq!(median(vec![9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 9.0]), 3.0);
    }

    #[test]
    fn a_quarter_at_either_end_does_not_count_for_either_side() {
        assert_eq!(middle_half(vec![]), [0.0, 0.0]);
        assert_eq!(middle_half(vec![[5.0, 6.0], [7.0, 8.0]]), [6.0, 7.0]);
        // The last two were disturbed: one in its variant, one in its baseline.
        let pairs = vec![[10.0, 11.0], [20.0, 21.0], [1000.0, 10.0], [1.0, 30.0]];
        assert_eq!(middle_half(pairs), [15.0, 16.0]);
        // A machine that goes at half its speed for half of the time changes both sides alike.
        let pairs = (0..100).map(|at| if at % 2 == 0 { [100.0, 110.0] } else { [50.0, 55.0] }).collect();
        let [baseline, variant] = middle_half(pairs);
        assert!((variant / baseline - 1.1).abs() < 1e-9);
    }

    #[test]
    fn goals_are_met_from_their_limit_on() {
        assert!(Goal::Shown.is_met(0.1) && Goal::Shown.least().is_none());
        assert!(Goal::AtLeast(1.05).is_met(1.05) && !Goal::AtLeast(1.05).is_met(1.049));
        let within = Goal::Within(80.0, 120.0);
        assert!(within.is_met(80.0) && within.is_met(120.0) && !within.is_met(79.9) && !within.is_met(120.1));
        assert_eq!(within.least(), Some(80.0));
    }
}
