#![expect(unsafe_code)]
//! The processor's time stamp counter as a clock: a reading costs a tenth of a system clock's.
//!
//! Used only where the counter runs at one rate whatever the processor does, and Linux itself has found it
//! good enough to be its clock source; otherwise [`TscRate::of_this_machine`] answers `None`.
//
// UNSAFETY: reads the counter by an intrinsic or an instruction, which Rust marks unsafe.

use std::sync::OnceLock;

/// How counter ticks become nanoseconds: `ticks * multiplier >> 32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TscRate {
    multiplier: u64,
}

impl TscRate {
    /// The rate of this machine's counter, measured once in a process's life, or `None` if the counter
    /// cannot be trusted.
    pub(crate) fn of_this_machine() -> Option<Self> {
        static RATE: OnceLock<Option<TscRate>> = OnceLock::new();
        *RATE.get_or_init(|| if is_trusted() { measure() } else { None })
    }

    /// Ticks of a number of nanoseconds, to within a tick.
    pub(crate) fn ticks(self, nanos: u64) -> u64 {
        let ticks = (u128::from(nanos) << 32) / u128::from(self.multiplier.max(1));
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }

    /// Nanoseconds of a number of ticks.
    #[inline]
    pub(crate) fn nanos(self, ticks: u64) -> u64 {
        // The upper half of the product by 2^32: exact for 584 years of nanoseconds.
        #[expect(clippy::cast_possible_truncation)]
        let nanos = ((u128::from(ticks) * u128::from(self.multiplier)) >> 32) as u64;
        nanos
    }
}

/// The counter now. Not ordered with surrounding loads and stores beyond what the processor does anyway:
/// good for latencies of many nanoseconds, not for ordering events of two cores.
#[inline]
pub(crate) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: RDTSC exists on every x86-64 processor and touches no memory.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(target_arch = "aarch64")]
    {
        let ticks: u64;
        // SAFETY: Linux lets processes read the virtual counter; the instruction touches no memory.
        unsafe {
            core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags));
        }
        ticks
    }
}

/// Whether Linux uses the counter as its clock: it checks the counter's rate against other clocks, and
/// between cores, as long as it runs.
fn is_trusted() -> bool {
    const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    cfg!(target_arch = "x86_64") && has_invariant_counter() && is_clock_source(SOURCE)
}

fn is_clock_source(path: &str) -> bool {
    // KVM's clock is the counter too, scaled by the host.
    std::fs::read_to_string(path).is_ok_and(|name| matches!(name.trim(), "tsc" | "kvm-clock"))
}

/// CPUID 8000_0007h, EDX bit 8: the counter runs at one rate in all power states.
#[cfg(target_arch = "x86_64")]
fn has_invariant_counter() -> bool {
    use core::arch::x86_64::__cpuid;
    const EXTENDED: u32 = 0x8000_0000;
    const POWER: u32 = 0x8000_0007;
    __cpuid(EXTENDED).eax >= POWER && __cpuid(POWER).edx & 1 << 8 != 0
}

#[cfg(not(target_arch = "x86_64"))]
fn has_invariant_counter() -> bool {
    false
}

/// Measures the rate against the system's clock, for a few milliseconds. Two readings are taken as close
/// together as a few tries allow, so that being scheduled away in between does not spoil the rate.
fn measure() -> Option<TscRate> {
    const SPAN_NS: u64 = 5_000_000;
    let origin = std::time::Instant::now();
    let (start_ticks, start_ns) = closest_reading(origin);
    while u64::try_from(origin.elapsed().as_nanos()).ok()? < start_ns + SPAN_NS {
        std::hint::spin_loop();
    }
    let (end_ticks, end_ns) = closest_reading(origin);
    let ticks = end_ticks.checked_sub(start_ticks).filter(|ticks| *ticks > 0)?;
    let multiplier = (u128::from(end_ns - start_ns) << 32) / u128::from(ticks);
    // Between 100 MHz and 100 GHz; anything else is not a counter that this code understands.
    let sane = (1_u128 << 32) / 100..=(1_u128 << 32) * 10;
    sane.contains(&multiplier).then(|| TscRate { multiplier: u64::try_from(multiplier).unwrap_or(u64::MAX) })
}

/// The counter and the nanoseconds since `origin`, read with the least time between them.
fn closest_reading(origin: std::time::Instant) -> (u64, u64) {
    let reading = || {
        let before = ticks();
        let nanos = u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let after = ticks();
        (after.wrapping_sub(before), before.wrapping_add(after.wrapping_sub(before) / 2), nanos)
    };
    let best = (0..16).map(|_| reading()).min_by_key(|(width, ..)| *width);
    best.map_or((0, 0), |(_, ticks, nanos)| (ticks, nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_exact_over_years() {
        let one_ghz = TscRate { multiplier: 1 << 32 };
        assert_eq!(one_ghz.nanos(u64::MAX), u64::MAX);
        let three_ghz = TscRate { multiplier: (1 << 32) / 3 };
        let year_ticks = 3 * 365 * 24 * 3_600_000_000_000_u64;
        let error = 365 * 24 * 3_600_000_000_000_u64 - three_ghz.nanos(year_ticks);
        assert!(error < 100_000_000, "{error} ns in a year");
    }

    #[test]
    fn a_machine_whose_clock_is_something_else_is_not_trusted() {
        assert!(!is_clock_source("/nonexistent"));
        assert!(!is_clock_source("/proc/version"));
    }

    #[test]
    fn the_measured_rate_follows_the_system_clock() {
        let Some(rate) = TscRate::of_this_machine() else {
            assert!(!is_trusted(), "a trusted counter could not be measured");
            return;
        };
        // As tight as a busy machine allows: the readings' own width is taken off.
        let origin = std::time::Instant::now();
        let (start_ticks, start_ns) = closest_reading(origin);
        while origin.elapsed().as_millis() < 20 {
            std::hint::spin_loop();
        }
        let (end_ticks, end_ns) = closest_reading(origin);
        let by_counter = rate.nanos(end_ticks - start_ticks);
        let by_system = end_ns - start_ns;
        assert!(by_counter.abs_diff(by_system) < by_system / 100, "{by_counter} ns against {by_system} ns");
    }
}
