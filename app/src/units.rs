//! Sizes and times as people type and read them. A `k` is 1,024 bytes, as it is for fio.

use std::time::Duration;

/// A size that may be a part of the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    /// So many bytes.
    Bytes(u64),
    /// So many hundredths of the namespace.
    Percent(u64),
}

impl Amount {
    /// In bytes, of a whole of `total` bytes.
    pub(crate) fn of(self, total: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            // A product of a 64-bit number and at most 100, divided by 100, fits into 64 bits again.
            Self::Percent(percent) => {
                u64::try_from(u128::from(total) * u128::from(percent) / 100).unwrap_or(total)
            }
        }
    }
}

/// Reads `4096`, `4k`, `1m`, `2G`, `4KiB`.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    const FORM: &str = "write a number of bytes, or one with k, m, g or t behind it, such as 4k";
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &lower[digits.len()..] {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(format!("this is no size; {FORM}")),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("this is no size; {FORM}"));
    }
    let number: u64 = digits.parse().map_err(|_| "this is more than 64 bits can say".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "this is more than 64 bits can say".to_owned())
}

/// As [`parse_size`], but 0 is refused.
pub(crate) fn parse_positive_size(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        0 => Err("0 bytes are nothing; write a size such as 4k".to_owned()),
        bytes => Ok(bytes),
    }
}

/// Reads a size, or a percentage such as `50%`.
pub(crate) fn parse_amount(text: &str) -> Result<Amount, String> {
    let Some(number) = text.trim().strip_suffix('%') else { return parse_size(text).map(Amount::Bytes) };
    match number.parse() {
        Ok(percent @ 0..=100) => Ok(Amount::Percent(percent)),
        _ => Err("a percentage is a whole number from 0% to 100%".to_owned()),
    }
}

/// As [`parse_amount`], but 0 is refused.
pub(crate) fn parse_positive_amount(text: &str) -> Result<Amount, String> {
    match parse_amount(text)? {
        Amount::Bytes(0) | Amount::Percent(0) => {
            Err("0 bytes are nothing; write a size such as 1g or 50%".to_owned())
        }
        amount => Ok(amount),
    }
}

/// Reads `3s`, `500ms`, `2m`, `1h`, and plain seconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    const FORM: &str =
        "this is no time; write seconds, or a number with us, ms, s, m or h, such as 3s or 500ms";
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let nanos_each: u64 = match &lower[digits.len()..] {
        "us" | "usec" => 1_000,
        "ms" | "msec" => 1_000_000,
        "" | "s" | "sec" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return Err(FORM.to_owned()),
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(part) || part.len() > 9 {
        return Err(FORM.to_owned());
    }
    let too_long = || "this is longer than a year; write a shorter time".to_owned();
    let whole: u64 = whole.parse().map_err(|_| too_long())?;
    let part: u64 = part.parse::<u64>().unwrap_or(0) * 10u64.pow(9 - u32::try_from(part.len()).unwrap_or(9));
    let nanos = u128::from(whole) * u128::from(nanos_each)
        + u128::from(part) * u128::from(nanos_each) / 1_000_000_000;
    match u64::try_from(nanos) {
        Ok(nanos) if nanos <= YEAR_NS => Ok(Duration::from_nanos(nanos)),
        _ => Err(too_long()),
    }
}

/// As [`parse_duration`], but 0 is refused.
pub(crate) fn parse_positive_duration(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("a time of 0 ends before it begins; write one such as 3s".to_owned()),
        time => Ok(time),
    }
}

/// A size in the largest unit that leaves at most one decimal: `512 B`, `4 KiB`, `1.5 GiB`.
pub(crate) fn size_text(bytes: u64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes >= 1 << shift {
            let tenths = (u128::from(bytes) * 10) >> shift;
            return match tenths % 10 {
                0 => format!("{} {unit}", tenths / 10),
                part => format!("{}.{part} {unit}", tenths / 10),
            };
        }
    }
    format!("{bytes} B")
}

/// A size as an option takes it: `4k`, `1536`.
pub(crate) fn size_option(bytes: u64) -> String {
    for (shift, unit) in [(30, "g"), (20, "m"), (10, "k")] {
        if bytes >= 1 << shift && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// Nanoseconds with three digits and the unit that suits them: `812 ns`, `10.3 us`, `1.25 ms`.
pub(crate) fn nanos_text(nanos: f64) -> String {
    let (value, unit) = match nanos {
        n if n < 1e3 => return format!("{n:.0} ns"),
        n if n < 1e6 => (n / 1e3, "us"),
        n if n < 1e9 => (n / 1e6, "ms"),
        n => (n / 1e9, "s"),
    };
    match value {
        v if v < 10.0 => format!("{v:.2} {unit}"),
        v if v < 100.0 => format!("{v:.1} {unit}"),
        v => format!("{v:.0} {unit}"),
    }
}

/// A time as an option takes it and a reader likes it: `3 s`, `500 ms`, `2.5 s`.
pub(crate) fn duration_text(time: Duration) -> String {
    let millis = time.as_millis();
    match (millis / 1000, millis % 1000) {
        (0, millis @ 1..) => format!("{millis} ms"),
        (seconds, 0) => format!("{seconds} s"),
        (seconds, millis) => format!("{seconds}.{} s", format!("{millis:03}").trim_end_matches('0')),
    }
}

/// A whole number with commas: `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

const YEAR_NS: u64 = 365 * 24 * 3_600 * 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_fio_reads_them() {
        for (text, bytes) in [
            ("4096", 4096),
            ("4k", 4096),
            ("4K", 4096),
            ("4KiB", 4096),
            ("4kb", 4096),
            ("1m", 1 << 20),
            ("3g", 3 << 30),
            ("1T", 1 << 40),
            ("0", 0),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "k", "4x", "-1", "4 k", "1.5k", "99999999999999999999", "16777216t", "4kk", "50%"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert!(parse_positive_size("0k").is_err());
    }

    #[test]
    fn amounts_are_bytes_or_hundredths() {
        assert_eq!(parse_amount("50%"), Ok(Amount::Percent(50)));
        assert_eq!(parse_amount("1g"), Ok(Amount::Bytes(1 << 30)));
        for text in ["101%", "-1%", "%", "1.5%"] {
            assert!(parse_amount(text).is_err(), "{text}");
        }
        assert!(parse_positive_amount("0%").is_err());
        assert_eq!(Amount::Percent(100).of(u64::MAX), u64::MAX);
        assert_eq!(Amount::Percent(50).of(1001), 500);
        assert_eq!(Amount::Bytes(7).of(1001), 7);
    }

    #[test]
    fn times_are_read_in_every_unit() {
        for (text, millis) in [
            ("3s", 3000),
            ("3", 3000),
            ("500ms", 500),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("1.5s", 1500),
            ("0", 0),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(parse_duration("250us"), Ok(Duration::from_micros(250)));
        for text in
            ["", "s", "3x", "-1", "1.", ".5", "1.2.3", "9999999h", "99999999999999999999", "1.0000000000"]
        {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert!(parse_positive_duration("0ms").is_err());
    }

    #[test]
    fn numbers_are_written_for_readers() {
        assert_eq!(size_text(512), "512 B");
        assert_eq!(size_text(4096), "4 KiB");
        assert_eq!(size_text(3 << 29), "1.5 GiB");
        assert_eq!(size_option(4096), "4k");
        assert_eq!(size_option(1536), "1536");
        assert_eq!(nanos_text(812.0), "812 ns");
        assert_eq!(nanos_text(10_340.0), "10.3 us");
        assert_eq!(nanos_text(1_254_000.0), "1.25 ms");
        assert_eq!(nanos_text(2.5e9), "2.50 s");
        assert_eq!(duration_text(Duration::from_millis(2500)), "2.5 s");
        assert_eq!(duration_text(Duration::from_millis(2050)), "2.05 s");
        assert_eq!(duration_text(Duration::from_millis(20)), "20 ms");
        assert_eq!(duration_text(Duration::ZERO), "0 s");
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
    }
}
