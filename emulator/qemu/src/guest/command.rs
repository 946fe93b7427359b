//! Runs the command and carries its streams.
//!
//! The command gets pipes and not the channels themselves: a channel can be opened only once, while a command
//! may open `/dev/stdout` or start others that do. This process copies between pipes and channels and counts
//! what it sent, which is how the launcher knows that it has everything.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::{ports, terminal};
use crate::wire::{Channel, FromGuest, Plan};

/// Runs the command to its end. When it ends, everything it started is killed.
pub fn run(plan: &Plan) -> Result<FromGuest> {
    let stdin = ports::open(Channel::Stdin)?;
    let stdout = ports::open(Channel::Stdout)?;
    let mut stderr = ports::open(Channel::Stderr)?;
    let Some((program, arguments)) = plan.command.split_first() else {
        anyhow::bail!("the plan has no command")
    };
    let mut command = Command::new(program);
    command.args(arguments);

    let (started, outputs) = match plan.terminal {
        None => start_with_pipes(command, plan, stdin, stdout, stderr.try_clone()?),
        Some(size) => terminal::start(command, size, plan, stdin, stdout),
    };
    let child = match started {
        Ok(child) => child,
        Err(error) => {
            let message = format!("nvme-qemu: cannot start {program}: {error:#}\n");
            stderr.write_all(message.as_bytes())?;
            return Ok(FromGuest::Exited { status: CANNOT_START, stdout: 0, stderr: message.len() as u64 });
        }
    };
    let status = reap_until(child)?;
    // Whoever still holds a pipe would keep it open; a command that ended has no more to say.
    let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
    let mut sent = [0; 2];
    for (sent, output) in sent.iter_mut().zip(outputs) {
        *sent = output.recv_timeout(DRAIN_PATIENCE).context("the command's output did not end with it")?;
    }
    write_out();
    Ok(FromGuest::Exited { status, stdout: sent[0], stderr: sent[1] })
}

/// A started child, and where the number of bytes of each of its outputs will be sent.
pub type Started = (Result<Pid>, Vec<Receiver<u64>>);

fn start_with_pipes(mut command: Command, plan: &Plan, stdin: File, stdout: File, stderr: File) -> Started {
    prepare(&mut command, plan);
    let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => return (Err(error.into()), Vec::new()),
    };
    let mut outputs = Vec::new();
    if let Some(to) = child.stdin.take() {
        // The input may never end; nobody waits for this thread.
        drop(copy(stdin, to));
    }
    if let Some(from) = child.stdout.take() {
        outputs.push(copy(from, stdout));
    }
    if let Some(from) = child.stderr.take() {
        outputs.push(copy(from, stderr));
    }
    // A process number is positive and fits.
    (Ok(Pid::from_raw(child.id().cast_signed())), outputs)
}

/// Gives a command the environment and the directory of the plan.
pub fn prepare(command: &mut Command, plan: &Plan) {
    command.env_clear().envs(plan.environment.iter().map(|(name, value)| (name, value)));
    command.current_dir(&plan.directory);
}

/// Copies in a thread of its own until either side ends, then sends the number of bytes.
pub fn copy(mut from: impl Read + Send + 'static, mut to: impl Write + Send + 'static) -> Receiver<u64> {
    let (sender, total) = mpsc::channel();
    thread::spawn(move || {
        let mut chunk = vec![0; CHUNK];
        let mut copied = 0;
        while let Ok(count @ 1..) = from.read(&mut chunk) {
            if to.write_all(&chunk[..count]).is_err() {
                break;
            }
            copied += count as u64;
        }
        // Nobody receives the number of an input.
        let _ = sender.send(copied);
    });
    total
}

/// Waits for the command. The first process inherits every orphan and has to wait for those as well.
fn reap_until(child: Pid) -> Result<u8> {
    loop {
        match waitpid(None, None).context("cannot wait for the command")? {
            WaitStatus::Exited(ended, status) if ended == child => return Ok(status.to_le_bytes()[0]),
            WaitStatus::Signaled(ended, signal, _) if ended == child => return Ok(128 + signal as u8),
            _ => {}
        }
    }
}

/// Lets the kernel write its disks out, within a limit: a removed device must not keep the run from ending.
fn write_out() {
    let (sender, done) = mpsc::channel();
    thread::spawn(move || {
        nix::unistd::sync();
        let _ = sender.send(());
    });
    let _ = done.recv_timeout(WRITE_OUT_PATIENCE);
}

/// What a shell answers when it cannot start a command.
const CANNOT_START: u8 = 127;
const CHUNK: usize = 64 << 10;
const DRAIN_PATIENCE: Duration = Duration::from_secs(600);
const WRITE_OUT_PATIENCE: Duration = Duration::from_secs(20);
