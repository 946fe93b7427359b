//! The atomics of the shared identifiers: the standard library's, or the model checker's with `--cfg loom`.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

/// Keeps a `SeqCst` write before it ahead of a `SeqCst` load after it.
///
/// Two threads that each write one place, call this, and load the other's place cannot both load the old
/// value. Sequentially consistent accesses have that property by themselves, so that nothing is left to do
/// here (a locked instruction on x86-64, LDAR after a releasing atomic on aarch64). The model checker takes
/// such accesses for acquire and release only, and needs the fence that says the same.
#[inline]
pub(super) fn write_before_load() {
    #[cfg(all(test, loom))]
    if super::loom_tests::fence_is_left_out() {
        return;
    }
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// A value on cache lines of its own. Two of them, since x86-64 fetches lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Padded<T>(pub(super) T);
