//! Ctrl-C and SIGTERM: the first asks the run to end with its result, the second ends the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Whether somebody has asked the command to end.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Catches both signals from now on, for the rest of the process.
    pub(crate) fn install() -> anyhow::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: a signal that finds the flag set kills, and only then is the flag set.
            flag::register_conditional_default(signal, Arc::clone(&asked))
                .and_then(|_| flag::register(signal, Arc::clone(&asked)))
                .context("cannot catch Ctrl-C")?;
        }
        Ok(Self(asked))
    }

    /// Whether to end now. Cheap enough for a hot loop.
    #[inline]
    pub(crate) fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
