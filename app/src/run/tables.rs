//! fio's tables: shares of I/Os by latency, by depth and by batch, each a map from a bound to a percentage.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::tally::{Latencies, Levels};

/// A map that keeps its order.
#[derive(Debug)]
pub(super) struct Entries<T>(pub(super) Vec<(String, T)>);

impl<T: Serialize> Serialize for Entries<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

/// How many of 100 I/Os took so long: up to the number of units that a key names, and more than the one
/// before.
pub(super) fn latency_tables(latencies: &Latencies) -> [Entries<f64>; 3] {
    let mut low = 0;
    let mut table = |unit_ns: u64, bounds: &[u64]| {
        let entry = |bound: &u64| {
            let high = bound * unit_ns - 1;
            let count = latencies.count_between(low, high);
            low = high + 1;
            (bound.to_string(), percent(count, latencies.count()))
        };
        bounds.iter().map(entry).collect::<Vec<_>>()
    };
    let below_second = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000];
    let (nanos, micros) = (table(1, &below_second), table(1_000, &below_second));
    let mut millis = table(1_000_000, &below_second);
    millis.extend(table(1_000_000, &[2000]));
    let beyond = latencies.count_between(low, u64::MAX);
    millis.push((">=2000".to_owned(), percent(beyond, latencies.count())));
    [Entries(nanos), Entries(micros), Entries(millis)]
}

/// At what depth I/Os were submitted, in percent of all.
pub(super) fn depth_table(levels: &Levels) -> Entries<f64> {
    let counts = levels.counts();
    let total = counts.iter().sum();
    let keys = ["1", "2", "4", "8", "16", "32", ">=64"];
    Entries(
        keys.iter()
            .zip(&counts[1..])
            .map(|(key, count)| ((*key).to_owned(), percent(*count, total)))
            .collect(),
    )
}

/// How many I/Os were submitted or reaped at once, in percent of all calls. fio's keys are upper bounds.
pub(super) fn batch_table(levels: &Levels) -> Entries<f64> {
    let counts = levels.counts();
    let total = counts.iter().sum();
    let rows = [
        ("0", counts[0]),
        ("4", counts[1] + counts[2]),
        ("8", counts[3]),
        ("16", counts[4]),
        ("32", counts[5]),
        ("64", counts[6]),
        (">=64", counts[7]),
    ];
    Entries(rows.iter().map(|(key, count)| ((*key).to_owned(), percent(*count, total))).collect())
}

#[expect(clippy::cast_precision_loss)]
fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::super::tally::Tally;
    use super::*;

    fn sum(entries: &Entries<f64>) -> f64 {
        entries.0.iter().map(|(_, value)| value).sum()
    }

    #[test]
    fn every_latency_is_in_exactly_one_table() {
        let mut tally = Tally::new();
        for nanos in
            [0, 1, 2, 999, 1000, 1001, 999_999, 1_000_000, 1_990_000_000, 2_000_000_000, 9_000_000_000]
        {
            tally.read.record(nanos);
        }
        let tables = latency_tables(&tally.read);
        let total: f64 = tables.iter().map(sum).sum();
        assert!((total - 100.0).abs() < 1e-9, "{total}");
        let share = |count: u32| f64::from(count) * 100.0 / 11.0;
        assert!((sum(&tables[0]) - share(4)).abs() < 1e-9, "{:?}", tables[0]);
        assert!((tables[2].0.last().expect("a row").1 - share(2)).abs() < 1e-9);
    }

    #[test]
    fn the_tables_of_depths_have_fios_keys_and_sum_to_100() {
        let mut levels = Levels::default();
        for (value, count) in [(1, 1), (3, 1), (5, 1), (100, 5)] {
            levels.add(value, count);
        }
        let depth = depth_table(&levels);
        assert_eq!(depth.0[6], (">=64".to_owned(), 62.5));
        assert!((sum(&depth) - 100.0).abs() < 1e-9);
        let batch = batch_table(&levels);
        assert_eq!((batch.0[1].1, batch.0[2].1), (25.0, 12.5));
        assert!((sum(&batch) - 100.0).abs() < 1e-9);
    }
}
