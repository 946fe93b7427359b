//! The launcher's end of the channels: threads that each wait for one thing and report it as an event.
//!
//! Bytes pass through unchanged. A slow reader of the launcher's output slows the command down, as a pipe
//! would: nothing is kept here.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Sender;
use std::thread;

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{getpgrp, tcgetpgrp};

use crate::wire::FromGuest;

/// Something that the launcher reacts to.
#[derive(Debug)]
pub enum Event {
    /// A message from the guest.
    Guest(FromGuest),
    /// The guest said something that is no message: the launcher and the guest do not belong together.
    Garbled(String),
    /// QEMU has ended.
    Gone,
    /// This many bytes of an output have been written since the start.
    Written(Output, u64),
    /// The launcher's own output cannot be written.
    Unwritable(Output, std::io::Error),
    /// The launcher got a signal to end.
    Signal(Signal),
}

/// One of the command's two outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Output {
    /// The launcher's own descriptor, past the buffer that the library keeps.
    fn file(self) -> Result<File> {
        let descriptor: OwnedFd = match self {
            Self::Stdout => std::io::stdout().as_fd().try_clone_to_owned(),
            Self::Stderr => std::io::stderr().as_fd().try_clone_to_owned(),
        }
        .context("the standard output or error is closed")?;
        Ok(File::from(descriptor))
    }
}

/// Passes what the command writes on.
pub fn forward_output(output: Output, mut from: UnixStream, events: Sender<Event>) -> Result<()> {
    let mut to = output.file()?;
    thread::spawn(move || {
        let mut chunk = vec![0; CHUNK];
        let mut total = 0;
        // The stream ends with QEMU, which the control channel reports.
        while let Ok(count @ 1..) = from.read(&mut chunk) {
            let event = match to.write_all(&chunk[..count]) {
                Ok(()) => {
                    total += count as u64;
                    Event::Written(output, total)
                }
                Err(error) => Event::Unwritable(output, error),
            };
            let stop = matches!(event, Event::Unwritable(..));
            if events.send(event).is_err() || stop {
                break;
            }
        }
    });
    Ok(())
}

/// Passes the launcher's standard input on, and its end too. The thread stays in its read when nothing comes;
/// it ends with the launcher.
pub fn forward_input(mut to: UnixStream) {
    thread::spawn(move || {
        if may_read_input() {
            let mut chunk = vec![0; CHUNK];
            let mut from = std::io::stdin().lock();
            while let Ok(count @ 1..) = from.read(&mut chunk) {
                if to.write_all(&chunk[..count]).is_err() {
                    break;
                }
            }
        }
        // The guest sees the end of the file when QEMU has read the end of this stream. Closing it altogether
        // would be seen first, and what is still in it would be lost: so it stays open until QEMU closes its
        // end. Both calls fail only if QEMU is gone.
        let _ = to.shutdown(Shutdown::Write);
        let _ = to.read(&mut [0]);
    });
}

/// Reading from the terminal in a background job would stop the whole launcher.
fn may_read_input() -> bool {
    let stdin = std::io::stdin();
    !stdin.is_terminal() || tcgetpgrp(&stdin) == Ok(getpgrp())
}

/// Reads the guest's messages.
pub fn read_messages(from: UnixStream, events: Sender<Event>) {
    thread::spawn(move || {
        for line in BufReader::new(from).lines() {
            let Ok(line) = line else { break };
            let event = serde_json::from_str(&line).map_or_else(|_| Event::Garbled(line), Event::Guest);
            if events.send(event).is_err() {
                return;
            }
        }
        let _ = events.send(Event::Gone);
    });
}

/// Turns the signals that would end the launcher into events, so that it ends QEMU and removes its files
/// first. To be called before any other thread is started: threads inherit what is blocked.
pub fn watch_signals(events: Sender<Event>) -> Result<()> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block().context("cannot block signals")?;
    thread::spawn(move || {
        while let Ok(signal) = signals.wait() {
            if events.send(Event::Signal(signal)).is_err() {
                break;
            }
        }
    });
    Ok(())
}

const CHUNK: usize = 64 << 10;
