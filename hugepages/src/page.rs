//! What memory is made of, and what is asked for.

use std::fmt;

/// Whether huge pages are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePolicy {
    /// Only huge pages of the preferred size: an allocation that cannot get them is an error.
    Require,
    /// Huge pages if there are any, else smaller ones; the reason is kept in [`crate::DmaStats`].
    #[default]
    Prefer,
    /// Ordinary pages, even if huge ones are free.
    Never,
}

/// The pages that a piece of memory is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PageKind {
    /// The system's own page size (4 KiB on x86-64).
    Ordinary,
    /// Huge pages of 2 MiB.
    Huge2M,
    /// Huge pages of 1 GiB.
    Huge1G,
}

impl PageKind {
    /// The size of one page in bytes, a power of two.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Ordinary => ordinary_page_bytes(),
            Self::Huge2M => 2 << 20,
            Self::Huge1G => 1 << 30,
        }
    }

    /// How many of these pages hold `bytes` bytes.
    #[must_use]
    pub fn pages_for(self, bytes: usize) -> u64 {
        bytes.div_ceil(self.bytes()) as u64
    }

    /// The smallest piece of such memory that a space takes from the system, in bytes.
    ///
    /// Small allocations share a piece, so that a device needs few mappings for many rings.
    pub(crate) fn piece_bytes(self) -> usize {
        self.bytes().max(MIN_PIECE_BYTES)
    }

    /// What is tried next when there is no memory of this kind.
    pub(crate) const fn smaller(self) -> Option<Self> {
        match self {
            Self::Huge1G => Some(Self::Huge2M),
            Self::Huge2M => Some(Self::Ordinary),
            Self::Ordinary => None,
        }
    }
}

impl fmt::Display for PageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ordinary => "ordinary pages",
            Self::Huge2M => "huge pages of 2 MiB",
            Self::Huge1G => "huge pages of 1 GiB",
        })
    }
}

/// A number of bytes in the largest binary unit that divides it, as `nvme-perf` takes it (`512M`).
pub(crate) struct Size(pub(crate) u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(30, "G"), (20, "M"), (10, "K")] {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

fn ordinary_page_bytes() -> usize {
    // The variable exists on every Linux, so the default only satisfies the types.
    let size = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    size.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(4096)
}

const MIN_PIECE_BYTES: usize = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_in_the_unit_that_divides_them() {
        for (bytes, text) in [(0, "0"), (512 << 20, "512M"), (3 << 30, "3G"), (4096, "4K"), (1000, "1000")] {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }

    #[test]
    fn pages_are_counted_upwards() {
        assert_eq!(PageKind::Huge2M.pages_for(1), 1);
        assert_eq!(PageKind::Huge2M.pages_for(2 << 20), 1);
        assert_eq!(PageKind::Huge2M.pages_for((2 << 20) + 1), 2);
    }
}
