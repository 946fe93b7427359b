//! A run: QEMU is started, the guest gets ready, the command runs, and everything is taken down.
//!
//! One loop reacts to events and holds all deadlines. The guest's last message says how many bytes the
//! command wrote; only when as many have been passed on is the run over, so nothing that was written is lost.
//! Whatever happens, QEMU ends before the files it uses are removed.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::signal::Signal;

use crate::backing::{self, ImageOption};
use crate::blockstats::BlockStats;
use crate::command_line::{Boot, arguments};
use crate::guest::terminal::RawMode;
use crate::machine::Machine;
use crate::process::{Qemu, accelerator};
use crate::progress::Progress;
use crate::qmp::Qmp;
use crate::streams::{self, Event, Output};
use crate::wire::{self, Channel, FromGuest, ToGuest};

/// What to run, and how.
#[derive(Debug)]
pub struct Session {
    /// The machine.
    pub machine: Machine,
    /// The kernel's image.
    pub kernel: PathBuf,
    /// The guest's first file system.
    pub initramfs: Vec<u8>,
    /// Backing files that were named.
    pub images: Vec<ImageOption>,
    /// A socket on which another program may use QEMU's monitor.
    pub monitor_socket: Option<PathBuf>,
    /// How long the command may take; without end if not given.
    pub timeout: Option<Duration>,
    /// Whether QEMU's counters are read.
    pub blockstats: bool,
    /// Whether the command has a terminal.
    pub terminal: bool,
}

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    /// The command's exit status.
    pub status: u8,
    /// From the start of QEMU to the start of the command.
    pub boot: Duration,
    /// What QEMU counted for the command, if that was asked for.
    pub blockstats: Option<BlockStats>,
}

/// Runs a session to its end.
pub fn run(session: &Session) -> Result<Outcome> {
    let (sender, events) = mpsc::channel();
    streams::watch_signals(sender.clone())?;
    let directory = tempfile::Builder::new().prefix("nvme-qemu-").tempdir();
    let directory = directory.context("cannot create a directory for temporary files")?;
    let logs = Logs::new(directory.path());
    // Declared after the directory, and so dropped before it.
    let mut running = Running::start(session, directory.path(), &logs, sender, events)?;
    let outcome = running.follow(session);
    outcome.map_err(|error| if error.is::<Interrupted>() { error } else { logs.explain(error) })
}

/// The launcher was told to end by a signal.
#[derive(Debug, Clone, Copy)]
pub struct Interrupted(pub Signal);

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ended by {}", self.0)
    }
}

impl std::error::Error for Interrupted {}

/// A QEMU and this program's ends of its channels.
struct Running {
    started: Instant,
    events: Receiver<Event>,
    control: UnixStream,
    qmp: Qmp,
    qemu: Qemu,
    written: [u64; 2],
}

impl Running {
    fn start(
        session: &Session,
        directory: &Path,
        logs: &Logs,
        sender: Sender<Event>,
        events: Receiver<Event>,
    ) -> Result<Self> {
        let images = backing::prepare(&session.machine, &session.images, directory)?;
        let initramfs = directory.join("initramfs");
        std::fs::write(&initramfs, &session.initramfs)
            .context("cannot write the guest's first file system")?;

        let (stdin, stdin_far) = UnixStream::pair()?;
        let (stdout, stdout_far) = UnixStream::pair()?;
        let (stderr, stderr_far) = UnixStream::pair()?;
        let (control, control_far) = UnixStream::pair()?;
        let (monitor, monitor_far) = UnixStream::pair()?;
        // The guest's monitor is a channel whose other end is QEMU itself.
        let (guest_monitor, guest_monitor_far) = UnixStream::pair()?;
        let mut channels = vec![
            (Channel::Stdin, stdin_far.as_raw_fd()),
            (Channel::Stdout, stdout_far.as_raw_fd()),
            (Channel::Stderr, stderr_far.as_raw_fd()),
            (Channel::Control, control_far.as_raw_fd()),
        ];
        let mut monitors = vec![monitor_far.as_raw_fd()];
        let mut inherited: Vec<BorrowedFd<'_>> =
            [&stdin_far, &stdout_far, &stderr_far, &control_far, &monitor_far].map(AsFd::as_fd).to_vec();
        if session.machine.guest_qmp {
            channels.push((Channel::Qmp, guest_monitor.as_raw_fd()));
            monitors.push(guest_monitor_far.as_raw_fd());
            inherited.extend([guest_monitor.as_fd(), guest_monitor_far.as_fd()]);
        }
        let arguments = arguments(&Boot {
            machine: &session.machine,
            kernel: &session.kernel,
            initramfs: &initramfs,
            console_log: &logs.console,
            accelerator: accelerator(),
            images: &images,
            channels: &channels,
            monitors: &monitors,
            monitor_socket: session.monitor_socket.as_deref(),
        })?;
        let started = Instant::now();
        let qemu = Qemu::start(&arguments, &logs.qemu, &inherited)?;
        // QEMU has its own copies now; while these were open, its end would not be noticed.
        drop((stdin_far, stdout_far, stderr_far, control_far, monitor_far, guest_monitor, guest_monitor_far));

        let qmp = Qmp::over(monitor, QMP_PATIENCE).context("QEMU did not start");
        let qmp = qmp.map_err(|error| logs.explain(error))?;
        streams::forward_output(Output::Stdout, stdout, sender.clone())?;
        streams::forward_output(Output::Stderr, stderr, sender.clone())?;
        streams::read_messages(control.try_clone()?, sender);
        streams::forward_input(stdin);
        Ok(Self { started, events, control, qmp, qemu, written: [0; 2] })
    }

    fn follow(&mut self, session: &Session) -> Result<Outcome> {
        let booting = Progress::new(format!("booting machine {}", session.machine.name));
        let ready = self.message(Some(Instant::now() + BOOT_PATIENCE), "the guest did not boot")?;
        drop(booting);
        if ready != FromGuest::Ready {
            return Err(unexpected(ready));
        }
        let boot = self.started.elapsed();
        let before = session.blockstats.then(|| self.blockstats(session)).transpose()?;
        let _raw_mode = session.terminal.then(RawMode::enter).transpose()?;
        wire::send(&self.control, &ToGuest::Go).context("the guest cannot be reached")?;

        let deadline = session.timeout.map(|timeout| Instant::now() + timeout);
        match self.message(deadline, "--timeout: the command did not end")? {
            FromGuest::Exited { status, stdout, stderr } => {
                self.drain(deadline, [stdout, stderr])?;
                let after = session.blockstats.then(|| self.blockstats(session)).transpose()?;
                let blockstats = after.zip(before).map(|(after, before)| after.since(&before));
                self.end()?;
                Ok(Outcome { status, boot, blockstats })
            }
            other => Err(unexpected(other)),
        }
    }

    /// Waits for the guest's next message.
    fn message(&mut self, deadline: Option<Instant>, late: &str) -> Result<FromGuest> {
        loop {
            match self.event(deadline, late)? {
                Event::Guest(message) => return Ok(message),
                event => self.note(event)?,
            }
        }
    }

    /// Waits until as many bytes have been passed on as the command wrote.
    fn drain(&mut self, deadline: Option<Instant>, expected: [u64; 2]) -> Result<()> {
        while self.written != expected {
            let event = self.event(deadline, "--timeout: the command's output was not taken")?;
            self.note(event)?;
        }
        Ok(())
    }

    fn event(&mut self, deadline: Option<Instant>, late: &str) -> Result<Event> {
        let Some(deadline) = deadline else { return Ok(self.events.recv()?) };
        match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(event) => Ok(event),
            Err(RecvTimeoutError::Timeout) => {
                bail!("{late} in time")
            }
            Err(RecvTimeoutError::Disconnected) => bail!("the launcher's threads have ended"),
        }
    }

    fn note(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Written(Output::Stdout, total) => self.written[0] = total,
            Event::Written(Output::Stderr, total) => self.written[1] = total,
            Event::Unwritable(_, error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
                return Err(Interrupted(Signal::SIGPIPE).into());
            }
            Event::Unwritable(output, error) => bail!("cannot write to the launcher's {output:?}: {error}"),
            Event::Signal(signal) => return Err(Interrupted(signal).into()),
            Event::Gone => bail!("the guest ended before the command did"),
            Event::Garbled(line) => bail!("the guest sent no message but `{line}`"),
            Event::Guest(message) => return Err(unexpected(message)),
        }
        Ok(())
    }

    fn blockstats(&mut self, session: &Session) -> Result<BlockStats> {
        Ok(BlockStats::read(&session.machine, &self.qmp.query_blockstats()?))
    }

    /// Lets QEMU write its disks out and end.
    fn end(&mut self) -> Result<()> {
        // QEMU may close the monitor before its answer is read.
        let _ = self.qmp.quit();
        match self.qemu.wait(END_PATIENCE)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => bail!("QEMU ended badly ({status})"),
            None => bail!("QEMU did not end within {} s of being told to", END_PATIENCE.as_secs()),
        }
    }
}

fn unexpected(message: FromGuest) -> anyhow::Error {
    match message {
        FromGuest::Failed(reason) => anyhow!("the guest is not usable: {reason}"),
        other => anyhow!("the guest sent {other:?} out of turn"),
    }
}

/// What the guest's kernel and QEMU said. It is shown only when a run fails.
struct Logs {
    console: PathBuf,
    qemu: PathBuf,
}

impl Logs {
    fn new(directory: &Path) -> Self {
        Self { console: directory.join("console.log"), qemu: directory.join("qemu.log") }
    }

    /// Adds the ends of the logs to an error.
    fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        let mut text = format!("{error:#}");
        for (name, file) in [("QEMU said", &self.qemu), ("The guest's console said", &self.console)] {
            let log = std::fs::read(file).unwrap_or_default();
            let tail = tail(&String::from_utf8_lossy(&log), LOG_LINES);
            if !tail.is_empty() {
                text.push_str(&format!("\n{name}:\n{tail}"));
            }
        }
        anyhow!(text)
    }
}

/// The part of a log that matters, indented, without the control characters that a firmware writes: the first
/// sign of a crash and what follows it, or the last lines.
fn tail(log: &str, lines: usize) -> String {
    let clean = |line: &str| -> String { line.chars().filter(|c| !c.is_control()).collect() };
    let all: Vec<String> = log.lines().map(clean).filter(|line| !line.trim().is_empty()).collect();
    let crash = all.iter().position(|line| CRASH_SIGNS.iter().any(|sign| line.contains(sign)));
    let start = crash.unwrap_or(all.len().saturating_sub(lines));
    let shown = all[start..].iter().take(lines);
    shown.map(|line| format!("  | {line}")).collect::<Vec<_>>().join("\n")
}

/// Under translation on a busy machine a boot takes several times the usual six seconds.
const BOOT_PATIENCE: Duration = Duration::from_secs(180);
const QMP_PATIENCE: Duration = Duration::from_secs(30);
const END_PATIENCE: Duration = Duration::from_secs(60);
const LOG_LINES: usize = 20;
const CRASH_SIGNS: [&str; 3] = ["Kernel panic", "Oops", "BUG:"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_shown_without_empty_lines_and_control_characters() {
        assert_eq!(tail("a\r\n\nb\x1B\n\n c\n", 2), "  | b\n  |  c");
        assert_eq!(tail("a\n", 5), "  | a");
        assert_eq!(tail("\n\n", 5), "");
    }

    #[test]
    fn of_a_crash_the_beginning_is_shown() {
        assert_eq!(
            tail("a\nKernel panic - not syncing\nb\nc\nd\n", 2),
            "  | Kernel panic - not syncing\n  | b"
        );
    }
}
