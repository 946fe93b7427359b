//! A line that says what takes so long.
//!
//! It is written to standard error, only if that is a terminal, only when something has taken two seconds,
//! and it is erased when that something is done: what a command prints is never mixed with it.

use std::io::{IsTerminal, Write, stderr};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Something that takes time. The line is gone when this is dropped.
#[derive(Debug)]
pub struct Progress {
    done: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Begins: `what` is said as "booting the machine".
    pub fn new(what: impl Into<String>) -> Self {
        if !stderr().is_terminal() {
            return Self { done: None };
        }
        let what = what.into();
        let (done, ended) = mpsc::channel::<()>();
        let begun = Instant::now();
        let thread = thread::spawn(move || {
            let mut shown = false;
            let mut pause = QUIET;
            while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                pause = Duration::from_secs(1);
                shown = true;
                // A terminal that cannot be written to is no reason to stop.
                let _ = write!(stderr(), "\r\x1B[Knvme-qemu: {what} … {} s", begun.elapsed().as_secs());
            }
            if shown {
                let _ = write!(stderr(), "\r\x1B[K");
            }
        });
        Self { done: Some((done, thread)) }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((done, thread)) = self.done.take() {
            drop(done);
            // The thread does nothing that can panic.
            let _ = thread.join();
        }
    }
}

const QUIET: Duration = Duration::from_secs(2);
