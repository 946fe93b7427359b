//! Sizes and durations as people write them: `4k`, `1G`, `80us`, `1.5ms`.

use std::time::Duration;

/// Reads a number, decimal or with `0x`.
pub(crate) fn parse_integer(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Reads a size in bytes: a number, with `k`, `M`, `G` or `T` (powers of 1,024) behind it or not.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    if text.starts_with("0x") {
        return parse_integer(text);
    }
    let trimmed = text.strip_suffix("iB").or_else(|| text.strip_suffix('B')).unwrap_or(text);
    let (digits, shift) = match trimmed.chars().last()?.to_ascii_lowercase() {
        'k' => (&trimmed[..trimmed.len() - 1], 10),
        'm' => (&trimmed[..trimmed.len() - 1], 20),
        'g' => (&trimmed[..trimmed.len() - 1], 30),
        't' => (&trimmed[..trimmed.len() - 1], 40),
        _ => (trimmed, 0),
    };
    let number: u64 = digits.parse().ok()?;
    number.checked_mul(1 << shift)
}

/// Reads a duration: a number with `ns`, `us`, `ms` or `s` behind it; `0` needs no unit. At most a day, so
/// that no sum of times overflows.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let (digits, nanos_per_unit) = if let Some(digits) = text.strip_suffix("ns") {
        (digits, 1.0)
    } else if let Some(digits) = text.strip_suffix("us").or_else(|| text.strip_suffix("µs")) {
        (digits, 1e3)
    } else if let Some(digits) = text.strip_suffix("ms") {
        (digits, 1e6)
    } else if let Some(digits) = text.strip_suffix('s') {
        (digits, 1e9)
    } else {
        return (text == "0").then_some(Duration::ZERO);
    };
    let nanos = digits.parse::<f64>().ok()? * nanos_per_unit;
    if !(0.0..=NANOS_MAX).contains(&nanos) {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    Some(Duration::from_nanos(nanos.round() as u64))
}

/// Writes a duration so that [`parse_duration`] reads the same back.
pub(crate) fn duration_text(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    match nanos {
        0 => "0".to_owned(),
        n if n % 1_000_000_000 == 0 => format!("{}s", n / 1_000_000_000),
        n if n % 1_000_000 == 0 => format!("{}ms", n / 1_000_000),
        n if n % 1_000 == 0 => format!("{}us", n / 1_000),
        n => format!("{n}ns"),
    }
}

const NANOS_MAX: f64 = 86_400e9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_limits() {
        assert_eq!(parse_size("1G"), Some(1 << 30));
        assert_eq!(parse_size("4k"), Some(4096));
        assert_eq!(parse_size("4KiB"), Some(4096));
        assert_eq!(parse_size("0x1000"), Some(4096));
        for wrong in ["", "k", "-1", "1X", "99999999999T", "1.5G", "1 G"] {
            assert_eq!(parse_size(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn durations_survive_the_round_trip() {
        for text in ["0", "80us", "1ms", "2s", "1500ns"] {
            assert_eq!(duration_text(parse_duration(text).expect("a duration")), *text);
        }
        assert_eq!(parse_duration("1.5ms"), Some(Duration::from_micros(1500)));
        for wrong in ["", "5", "us", "-1us", "NaNs", "infs", "1e30s", "2d"] {
            assert_eq!(parse_duration(wrong), None, "{wrong}");
        }
    }
}
