//! The time of day as fio writes it, in UTC: `Mon Nov 30 21:06:24 2026`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A moment, as seconds and milliseconds since 1970 and as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) seconds: u64,
    pub(crate) millis: u64,
    pub(crate) text: String,
}

impl Moment {
    /// Now.
    pub(crate) fn now() -> Self {
        Self::at(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    }

    fn at(since_1970: Duration) -> Self {
        let seconds = since_1970.as_secs();
        let (days, of_day) = (seconds / 86_400, seconds % 86_400);
        let (year, month, day) = date(days);
        let weekday = WEEKDAYS[usize::try_from((days + 4) % 7).unwrap_or(0)];
        let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
        let text =
            format!("{weekday} {} {day:2} {hour:02}:{minute:02}:{second:02} {year}", MONTHS[month as usize]);
        Self { seconds, millis: seconds * 1000 + u64::from(since_1970.subsec_millis()), text }
    }
}

/// Year, month from 0 and day from 1 of a number of days since 1970-01-01.
fn date(days: u64) -> (u64, u64, u64) {
    let mut year = 1970;
    let mut rest = days;
    loop {
        let of_year = if is_leap(year) { 366 } else { 365 };
        if rest < of_year {
            break;
        }
        rest -= of_year;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    for (month, of_month) in (0..).zip([31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]) {
        if rest < of_month {
            return (year, month, rest + 1);
        }
        rest -= of_month;
    }
    (year, 11, 31)
}

const fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

const WEEKDAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments_are_written_right() {
        for (seconds, text) in [
            (0, "Thu Jan  1 00:00:00 1970"),
            (951_782_400, "Tue Feb 29 00:00:00 2000"),
            (1_700_000_000, "Tue Nov 14 22:13:20 2023"),
            (4_102_444_799, "Thu Dec 31 23:59:59 2099"),
        ] {
            assert_eq!(Moment::at(Duration::from_secs(seconds)).text, text);
        }
    }
}
