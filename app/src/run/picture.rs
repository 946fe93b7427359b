//! A picture of a distribution of latencies, in a few lines of text.

use super::tally::Latencies;
use crate::units::nanos_text;

/// One line of the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    /// Included.
    low: u64,
    /// Included.
    high: u64,
    count: u64,
}

/// The picture, a line for each range of latencies, with two spaces before it.
pub(crate) fn picture(latencies: &Latencies) -> String {
    let rows = rows(latencies);
    let most = rows.iter().map(|row| row.count).max().unwrap_or(0);
    let total = latencies.count();
    let mut text = String::new();
    for row in rows {
        let percent = ratio(row.count, total) * 100.0;
        let from = nanos_text(to_float(row.low));
        let to = nanos_text(to_float(row.high));
        let line = format!("  {from:>8} to {to:>8}  {:<WIDTH$} {percent:6.2} %", bar(row.count, most));
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Ranges of equal width on a logarithmic scale, from the shortest latency to the 99.9th percentile, and one
/// for what is beyond. Together they hold every latency once. There is only one range if the ends of the
/// scale would be written alike.
fn rows(latencies: &Latencies) -> Vec<Row> {
    if latencies.count() == 0 {
        return Vec::new();
    }
    let (first, last) = (latencies.min().max(1), latencies.percentile(99.9).max(1));
    let is_narrow = nanos_text(to_float(first)) == nanos_text(to_float(last));
    let ranges = if is_narrow { 1 } else { ROWS };
    let step = (to_float(last + 1) / to_float(first)).powf(1.0 / to_float(ranges));
    let mut rows = Vec::new();
    let mut low = 0;
    for index in 1..=ranges {
        // Below the last bound, which is a latency that was recorded.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let bound = (to_float(first) * step.powf(to_float(index))).round() as u64;
        let high = if index == ranges { last.max(low) } else { bound.saturating_sub(1) };
        if high < low || (high < first && index < ranges) {
            continue;
        }
        let count = latencies.count_between(low, high);
        rows.push(Row { low: low.max(latencies.min()), high, count });
        low = high + 1;
    }
    let counted: u64 = rows.iter().map(|row| row.count).sum();
    if counted < latencies.count() {
        rows.push(Row { low, high: latencies.max(), count: latencies.count() - counted });
    }
    rows
}

/// A bar with a resolution of an eighth of a character.
fn bar(count: u64, most: u64) -> String {
    // Between 0 and 8 * WIDTH.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let eighths = (ratio(count, most) * 8.0 * to_float(WIDTH as u64)).round() as usize;
    let mut bar = "█".repeat(eighths / 8);
    if !eighths.is_multiple_of(8) {
        bar.push(EIGHTHS[eighths % 8 - 1]);
    } else if eighths == 0 && count > 0 {
        bar.push(EIGHTHS[0]);
    }
    bar
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { to_float(part) / to_float(whole) }
}

#[expect(clippy::cast_precision_loss)]
fn to_float(value: u64) -> f64 {
    value as f64
}

const ROWS: u64 = 12;
const WIDTH: usize = 40;
const EIGHTHS: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];

#[cfg(test)]
mod tests {
    use super::super::tally::Tally;
    use super::*;

    #[test]
    fn every_latency_is_in_exactly_one_row() {
        for values in [
            vec![5],
            vec![0, 0, 0],
            vec![1, 2, 3],
            (1..5000).map(|value| value * 37).collect(),
            vec![100, 1_000_000_000, 3],
            vec![7; 1000],
        ] {
            let mut tally = Tally::new();
            values.iter().for_each(|value| tally.read.record(*value));
            let rows = rows(&tally.read);
            let sum: u64 = rows.iter().map(|row| row.count).sum();
            assert_eq!(sum, values.len() as u64, "{rows:?}");
            assert!(rows.is_sorted_by(|a, b| a.high < b.low), "{rows:?}");
            assert!(!picture(&tally.read).is_empty());
        }
        assert!(rows(&Tally::new().read).is_empty());
    }

    #[test]
    fn latencies_that_are_written_alike_are_in_one_row() {
        let mut tally = Tally::new();
        (0..100).for_each(|value| tally.read.record(3_000_000_000 + value * 10_000));
        assert_eq!(rows(&tally.read).len(), 1, "{}", picture(&tally.read));
        tally.read.record(9_000_000_000);
        assert_eq!(rows(&tally.read).iter().map(|row| row.count).sum::<u64>(), 101);
    }

    #[test]
    fn bars_are_as_long_as_they_should() {
        assert_eq!(bar(10, 10).chars().count(), WIDTH);
        assert_eq!(bar(5, 10).chars().count(), WIDTH / 2);
        assert_eq!(bar(1, 1_000_000), "▏");
        assert_eq!(bar(0, 10), "");
        assert_eq!(bar(0, 0), "");
    }
}
