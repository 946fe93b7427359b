//! A terminal for the command: a pseudo-terminal in the guest, and the launcher's own terminal in raw mode.

use std::ffi::OsString;
use std::fs::File;
use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use nix::pty::{Winsize, openpty};
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use nix::unistd::{Pid, setsid, ttyname};

use super::command::{Started, copy, prepare};
use crate::wire::{Plan, TerminalSize};

/// Starts a command on a new terminal.
///
/// The terminal has to become the session's own for Ctrl-C to work. That is done by a process that starts a
/// session, opens the terminal, and becomes the command: see [`session`].
pub fn start(command: Command, size: TerminalSize, plan: &Plan, stdin: File, stdout: File) -> Started {
    match start_session(command, size, plan) {
        Ok((child, terminal, terminal_again)) => {
            drop(copy(stdin, terminal));
            let (none, nothing) = std::sync::mpsc::channel();
            // The receiver is alive: it is returned below.
            let _ = none.send(0);
            (Ok(child), vec![copy(terminal_again, stdout), nothing])
        }
        Err(error) => (Err(error), Vec::new()),
    }
}

fn start_session(command: Command, size: TerminalSize, plan: &Plan) -> Result<(Pid, File, File)> {
    let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    let pair = openpty(Some(&size), None).context("cannot make a terminal")?;
    let name = ttyname(&pair.slave).context("the terminal has no name")?;
    let mut session = Command::new("/proc/self/exe");
    session.arg(SESSION).arg(name).arg(command.get_program()).args(command.get_args());
    prepare(&mut session, plan);
    // The terminal would report its end if nobody had it open, so the child gets it before it opens it again.
    let child = session.stdin(Stdio::from(pair.slave)).stdout(Stdio::null()).spawn()?;
    let terminal = File::from(pair.master);
    let again = terminal.try_clone()?;
    Ok((Pid::from_raw(child.id().cast_signed()), terminal, again))
}

/// The process that becomes the command on a terminal: the terminal's name, the command, its arguments.
pub fn session(arguments: Vec<OsString>) -> ExitCode {
    let [terminal, program, arguments @ ..] = &arguments[..] else { return ExitCode::FAILURE };
    let become_command = || -> Result<std::convert::Infallible> {
        setsid()?;
        // The first terminal that the leader of a session opens is the session's own.
        let terminal = File::options().read(true).write(true).open(terminal)?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(terminal.try_clone()?).stdout(terminal.try_clone()?).stderr(terminal);
        Err(command.exec().into())
    };
    let Err(error) = become_command();
    eprintln!("nvme-qemu: cannot start {}: {error:#}", program.display());
    ExitCode::FAILURE
}

/// The launcher's terminal in raw mode: every key goes to the guest. It is as before when this is dropped.
#[derive(Debug)]
pub struct RawMode {
    before: Termios,
}

impl RawMode {
    /// Enters raw mode. The standard input has to be a terminal.
    pub fn enter() -> Result<Self> {
        let before = tcgetattr(std::io::stdin()).context("the standard input is no terminal")?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(std::io::stdin(), SetArg::TCSANOW, &raw).context("cannot set the terminal to raw mode")?;
        Ok(Self { before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // Fails only if the terminal is gone.
        let _ = tcsetattr(std::io::stdin(), SetArg::TCSANOW, &self.before);
    }
}

/// The size of the launcher's terminal, if its input and output are one. It is asked for with `stty`, since
/// the system call needs unsafe code and the size is a convenience.
pub fn size() -> Option<TerminalSize> {
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return None;
    }
    let said = Command::new("stty").arg("size").stdin(Stdio::inherit()).output().ok();
    let read = said.and_then(|output| read_size(&String::from_utf8_lossy(&output.stdout)));
    Some(read.unwrap_or(TerminalSize { rows: 24, columns: 80 }))
}

fn read_size(text: &str) -> Option<TerminalSize> {
    let (rows, columns) = text.trim().split_once(' ')?;
    let size = TerminalSize { rows: rows.parse().ok()?, columns: columns.parse().ok()? };
    (size.rows > 0 && size.columns > 0).then_some(size)
}

/// The first argument that makes this program start a session. It is not for users.
pub const SESSION: &str = "__session";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_without_a_size_gets_the_usual_one() {
        assert_eq!(read_size("50 132\n"), Some(TerminalSize { rows: 50, columns: 132 }));
        assert_eq!(read_size("0 0\n"), None);
        assert_eq!(read_size("stty: error\n"), None);
    }
}
