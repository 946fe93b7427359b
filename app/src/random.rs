//! Pseudo-random numbers: splitmix64, which is small, fast and the same everywhere.
//!
//! The same sequence fills the blocks of `verify`, where anybody can compute it again.

/// A stream of numbers that its seed decides.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The stream of a state that is used as it is.
    #[cfg(test)]
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The stream of a seed and of two numbers more: streams of different numbers have nothing in common.
    pub(crate) const fn of(seed: u64, first: u64, second: u64) -> Self {
        Self(mix(mix(mix(seed) ^ first) ^ second))
    }

    /// The next number.
    #[inline]
    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// The next number below `limit`, which is not 0. Every value is as likely as any other to within
    /// `limit` parts in 2^64.
    #[inline]
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        let product = u128::from(self.next()) * u128::from(limit);
        (product >> 64) as u64
    }
}

/// splitmix64's finalizer: a bijection in which every bit of the input moves about half of the output's.
#[inline]
pub(crate) const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_splitmix64s() {
        // The published reference implementation's first numbers for the seed 1234567.
        let mut random = Random::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn limits_are_kept_and_every_value_comes() {
        let mut random = Random::of(1, 2, 3);
        let mut seen = [0u32; 10];
        for _ in 0..10_000 {
            seen[usize::try_from(random.below(10)).expect("small")] += 1;
        }
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
        assert_eq!(random.below(1), 0);
    }

    #[test]
    fn streams_differ() {
        let firsts: std::collections::HashSet<u64> =
            (0..100).flat_map(|a| (0..100).map(move |b| Random::of(7, a, b).next())).collect();
        assert_eq!(firsts.len(), 10_000);
    }
}
