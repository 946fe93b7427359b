//! The addresses that devices see: which are free, and which every attached device can reach.
//!
//! Invariant: a range that is in use is given out by nobody, until it is freed by the one who knows that
//! no device holds a mapping of it any more.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::RangeInclusive;

use doorbell_spec::Iova;

/// The window that every IOMMU has: above the 4 GiB in which interrupt and firmware ranges lie, and below
/// the 39 bits that the narrowest IOMMUs translate.
pub(crate) const COMMON_WINDOW: RangeInclusive<u64> = 1 << 32..=(1 << 39) - 1;

/// The ranges in use: start to last address.
#[derive(Debug, Default)]
pub(crate) struct IovaRanges {
    used: BTreeMap<u64, u64>,
}

impl IovaRanges {
    /// Takes the lowest free range of `bytes` within one of `windows`, aligned to `align` (a power of two).
    pub(crate) fn take(&mut self, bytes: u64, align: u64, windows: &[RangeInclusive<u64>]) -> Option<Iova> {
        let span = bytes.checked_sub(1)?;
        for window in windows {
            let mut start = window.start().checked_next_multiple_of(align);
            for (&used_start, &used_last) in &self.used {
                let Some(candidate) = start else { break };
                let fits_before = candidate.checked_add(span).is_some_and(|last| last < used_start);
                if fits_before {
                    break;
                }
                if used_last >= candidate {
                    start = used_last.checked_add(1).and_then(|next| next.checked_next_multiple_of(align));
                }
            }
            let Some(start) = start else { continue };
            if let Some(last) = start.checked_add(span).filter(|last| last <= window.end()) {
                self.used.insert(start, last);
                return Some(Iova(start));
            }
        }
        None
    }

    /// Frees a range that [`IovaRanges::take`] gave.
    pub(crate) fn free(&mut self, start: Iova) {
        let freed = self.used.remove(&start.0);
        debug_assert!(freed.is_some(), "{start} was not in use");
    }
}

/// The addresses that are in both lists.
pub(crate) fn common(a: &[RangeInclusive<u64>], b: &[RangeInclusive<u64>]) -> Vec<RangeInclusive<u64>> {
    let mut both = Vec::new();
    for x in a {
        for y in b {
            let range = *x.start().max(y.start())..=*x.end().min(y.end());
            if !range.is_empty() {
                both.push(range);
            }
        }
    }
    both
}

/// Whether one of the windows holds the whole range.
pub(crate) fn covers(windows: &[RangeInclusive<u64>], start: Iova, bytes: usize) -> bool {
    let Some(last) = (bytes as u64).checked_sub(1).and_then(|span| start.0.checked_add(span)) else {
        return false;
    };
    windows.iter().any(|window| window.contains(&start.0) && window.contains(&last))
}

/// The windows as they stand in an error: at most eight, then how many more there are.
pub(crate) fn written(windows: &[RangeInclusive<u64>]) -> String {
    const MOST: usize = 8;
    if windows.is_empty() {
        return "none".to_owned();
    }
    let mut text = String::new();
    for window in windows.iter().take(MOST) {
        let comma = if text.is_empty() { "" } else { ", " };
        // Writing to a string cannot fail.
        let _ = write!(text, "{comma}{:#x}-{:#x}", window.start(), window.end());
    }
    if windows.len() > MOST {
        let _ = write!(text, " and {} more", windows.len() - MOST);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: u64 = 1 << 20;

    #[test]
    fn ranges_are_aligned_and_apart_and_inside_the_window() {
        let mut ranges = IovaRanges::default();
        let windows = [COMMON_WINDOW];
        let a = ranges.take(4096, 4096, &windows).expect("room");
        let b = ranges.take(4 * M, 2 * M, &windows).expect("room");
        let c = ranges.take(4096, 4096, &windows).expect("room");
        assert_eq!((a.0, b.0, c.0), (1 << 32, (1 << 32) + 2 * M, (1 << 32) + 4096));
    }

    #[test]
    fn a_freed_range_is_used_again_and_only_that() {
        let mut ranges = IovaRanges::default();
        let windows = [0..=8 * M - 1];
        let all: Vec<Iova> = (0..4).map(|_| ranges.take(2 * M, 2 * M, &windows).expect("room")).collect();
        assert_eq!(ranges.take(4096, 4096, &windows), None);
        ranges.free(all[2]);
        assert_eq!(ranges.take(2 * M, 2 * M, &windows), Some(all[2]));
        assert_eq!(ranges.take(4096, 4096, &windows), None);
    }

    #[test]
    fn the_end_of_the_address_space_does_not_overflow() {
        let mut ranges = IovaRanges::default();
        let windows = [u64::MAX - 4095..=u64::MAX];
        assert_eq!(ranges.take(4096, 4096, &windows), Some(Iova(u64::MAX - 4095)));
        assert_eq!(ranges.take(4096, 4096, &windows), None);
        assert_eq!(ranges.take(u64::MAX, 1 << 30, &windows), None);
        assert_eq!(ranges.take(0, 4096, &windows), None);
        assert!(covers(&windows, Iova(u64::MAX - 4095), 4096));
        assert!(!covers(&windows, Iova(u64::MAX - 4095), 4097));
        assert!(!covers(&windows, Iova(u64::MAX - 4095), 0));
    }

    #[test]
    fn a_range_does_not_straddle_two_windows() {
        let mut ranges = IovaRanges::default();
        let windows = [0..=M - 1, 2 * M..=4 * M - 1];
        assert_eq!(ranges.take(2 * M, M, &windows), Some(Iova(2 * M)));
        assert_eq!(ranges.take(2 * M, M, &windows), None);
        assert!(!covers(&windows, Iova(0), 4 << 20));
    }

    #[test]
    fn common_ranges_and_how_they_are_written() {
        let both = common(&[0..=0xfff, 0x2000..=0x4fff], &[0x800..=0x2fff, 0x4000..=0x9fff]);
        assert_eq!(both, [0x800..=0xfff, 0x2000..=0x2fff, 0x4000..=0x4fff]);
        assert_eq!(written(&both[..2]), "0x800-0xfff, 0x2000-0x2fff");
        assert_eq!(written(&[]), "none");
        let many: Vec<_> = (0..10).map(|i| i * 16..=i * 16 + 1).collect();
        assert!(written(&many).ends_with(" and 2 more"));
    }
}
