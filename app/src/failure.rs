//! How the command fails: one line on standard error, and an exit status that tells whose mistake it was.
//!
//! Status 2 is for what was typed and can be typed otherwise, 1 for everything else. Nothing here prints
//! Rust's own words: no panic text, no backtrace, no names of types.

use std::error::Error;
use std::fmt;
use std::io;

use doorbell::pci::PciError;
use doorbell::{ControllerError, NamespaceError, TargetError};

/// What was typed cannot be done, and the text says what to type instead.
#[derive(Debug)]
struct Usage(String);

/// The failure was reported with the result already: only the exit status is left to give.
#[derive(Debug)]
struct Reported;

/// A mistake in the command line.
pub(crate) fn usage(text: impl Into<String>) -> anyhow::Error {
    Usage(text.into()).into()
}

/// A failure that needs no further words.
pub(crate) fn reported() -> anyhow::Error {
    Reported.into()
}

/// The exit status that a failure ends the process with.
pub(crate) fn exit_status(error: &anyhow::Error) -> u8 {
    if error.chain().any(is_usage) { 2 } else { 1 }
}

/// The line to print, or nothing for a failure that has been reported or that nobody can read about.
pub(crate) fn message(error: &anyhow::Error) -> Option<String> {
    let silent = |cause: &(dyn Error + 'static)| cause.is::<Reported>() || is_broken_pipe(cause);
    (!error.chain().any(silent)).then(|| joined(error.chain().map(ToString::to_string)))
}

/// Causes from the outermost in, without those whose words their parent has repeated.
fn joined(causes: impl Iterator<Item = String>) -> String {
    let mut line = String::new();
    for cause in causes {
        if line.is_empty() {
            line = cause;
        } else if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line
}

fn is_usage(cause: &(dyn Error + 'static)) -> bool {
    if let Some(error) = cause.downcast_ref::<ControllerError>() {
        return match error {
            ControllerError::Target(_) | ControllerError::Depth { .. } => true,
            ControllerError::Namespace(error) => matches!(error, NamespaceError::NotFound { .. }),
            #[cfg(feature = "emulator")]
            ControllerError::Emulator(_) => error.source().is_none(),
            _ => false,
        };
    }
    cause.is::<Usage>()
        || cause.is::<TargetError>()
        || matches!(cause.downcast_ref(), Some(PciError::BadAddress { .. }))
}

/// Whether nobody reads what is written: that is how `nvme-perf list | head` ends, and no news.
fn is_broken_pipe(cause: &(dyn Error + 'static)) -> bool {
    cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Usage {}

impl fmt::Display for Reported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("failed")
    }
}

impl Error for Reported {}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn usage_is_status_2_also_below_a_context() {
        let error = Err::<(), _>(usage("--bs 0 is no size")).context("run").expect_err("an error");
        assert_eq!(exit_status(&error), 2);
        assert_eq!(message(&error).as_deref(), Some("run: --bs 0 is no size"));
        let other = anyhow::anyhow!("the device is gone");
        assert_eq!(exit_status(&other), 1);
    }

    #[test]
    fn a_wrong_target_is_usage_and_an_absent_device_is_not() {
        let wrong: anyhow::Error = "nvme0".parse::<doorbell::Target>().expect_err("no target").into();
        assert_eq!(exit_status(&wrong), 2);
        let closed: anyhow::Error = ControllerError::ControllerFailed.into();
        assert_eq!(exit_status(&closed), 1);
    }

    #[test]
    fn words_are_not_repeated_and_silence_is_kept() {
        let line = joined(["a: b".to_owned(), "b".to_owned(), "c".to_owned()].into_iter());
        assert_eq!(line, "a: b: c");
        let pipe: anyhow::Error = io::Error::from(io::ErrorKind::BrokenPipe).into();
        assert_eq!((message(&pipe), exit_status(&pipe)), (None, 1));
        assert_eq!(message(&reported()), None);
    }
}
