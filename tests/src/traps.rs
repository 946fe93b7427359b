//! Which test belongs to which fault that a driver of this kind once had.

/// A fault that a real driver had, and the tests that keep it out of this one.
#[derive(Clone, Copy, Debug)]
pub struct Trap {
    /// The kind of thing.
    pub theme: &'static str,
    /// What must hold.
    pub rule: &'static str,
    /// Names of scenarios, or `file::function` of tests elsewhere.
    pub tests: &'static [&'static str],
}

/// All of them.
pub const TRAPS: &[Trap] = &[];
