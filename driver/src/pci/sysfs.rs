//! Reading and writing the kernel's small text files, in bounded time.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::Duration;

use doorbell_spec::Clock;

use super::PciError;

/// The file's text without white space around it.
pub(super) fn text(path: &Path) -> Result<String, PciError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(source) => Err(PciError::Unreadable { path: path.to_owned(), source }),
    }
}

/// The file's number, written `0x1b36` or `1b36`.
pub(super) fn hex(path: &Path) -> Result<u32, PciError> {
    let text = text(path)?;
    let digits = text.strip_prefix("0x").unwrap_or(&text);
    u32::from_str_radix(digits, 16).map_err(|_| PciError::Malformed { path: path.to_owned(), text })
}

/// The last part of what the symbolic link points to, or `None` if there is no such link.
pub(super) fn link_name(path: &Path) -> Result<Option<String>, PciError> {
    match fs::read_link(path) {
        Ok(target) => Ok(target.file_name().map(|name| name.to_string_lossy().into_owned())),
        Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PciError::Unreadable { path: path.to_owned(), source }),
    }
}

/// The names in a directory, sorted; none if there is no such directory.
pub(super) fn names(path: &Path) -> Result<Vec<String>, PciError> {
    let unreadable = |source| PciError::Unreadable { path: path.to_owned(), source };
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(unreadable(source)),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry.map_err(unreadable)?.file_name().to_string_lossy().into_owned());
    }
    names.sort_unstable();
    Ok(names)
}

/// Writes `text` to an existing file and returns when the kernel has acted on it, or with
/// [`io::ErrorKind::TimedOut`] after `span`.
///
/// The kernel blocks a write to `unbind` until everybody has let go of the device, and cannot be told to
/// give up. The write therefore happens on a thread of its own, which is left behind when the time is up
/// and ends when the kernel lets it: until then the process cannot end either.
pub(super) fn write_within(path: PathBuf, text: String, clock: &Clock, span: Duration) -> io::Result<()> {
    let (done, result) = mpsc::channel();
    thread::Builder::new().name("doorbell-sysfs".to_owned()).spawn(move || {
        let written = fs::OpenOptions::new().write(true).truncate(true).open(&path).and_then(|mut file| {
            use io::Write;
            // One system call: the kernel takes each write as one value.
            file.write_all(text.as_bytes())
        });
        // Nobody listens any more when the time was up: then there is nobody to tell.
        drop(done.send(written));
    })?;
    let mut outcome = None;
    wait_until(clock, span, || match result.try_recv() {
        Ok(written) => {
            outcome = Some(written);
            true
        }
        Err(TryRecvError::Empty) => false,
        Err(TryRecvError::Disconnected) => true,
    });
    outcome.unwrap_or_else(|| Err(timed_out("the kernel did not finish the write", span)))
}

/// Looks at `done` until it says so or `span` has passed; answers what it said last.
pub(super) fn wait_until(clock: &Clock, span: Duration, mut done: impl FnMut() -> bool) -> bool {
    let deadline = clock.deadline(span);
    loop {
        if done() {
            return true;
        }
        if deadline.passed(clock) {
            return false;
        }
        if clock.is_virtual() {
            // Somebody else's thread may be what is waited for: it gets a moment of real time as well.
            clock.advance(LOOK_AGAIN);
            thread::sleep(LOOK_AGAIN / 20);
        } else {
            thread::sleep(LOOK_AGAIN);
        }
    }
}

/// The error of a wait that was in vain.
pub(super) fn timed_out(what: &str, span: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("{what} within {} s", span.as_secs_f32()))
}

const LOOK_AGAIN: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_the_kernel_holds_back_ends_at_the_deadline() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let held = folder.path().join("unbind");
        // Opening a pipe without a reader blocks for ever, as unbind does while the device is held.
        nix::unistd::mkfifo(&held, nix::sys::stat::Mode::S_IRWXU).expect("pipe");
        let clock = Clock::virtual_time();
        let error = write_within(held, "x".to_owned(), &clock, Duration::from_millis(20)).expect_err("held");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_write_does_not_create_a_file() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let missing = folder.path().join("bind");
        let clock = Clock::monotonic();
        let error = write_within(missing.clone(), "x".to_owned(), &clock, Duration::from_secs(10));
        assert_eq!(error.expect_err("missing").kind(), io::ErrorKind::NotFound);
        assert!(!missing.exists());
    }
}
