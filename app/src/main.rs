//! `nvme-perf`: measures, verifies and sets up NVMe controllers through Doorbell.
//!
//! A module for each subcommand; beside them what several of them need: sizes and times ([`units`]), opening
//! devices ([`target`]), where results go ([`output`]), and how failures are told ([`failure`]).

mod bind;
mod calendar;
mod cli;
mod failure;
mod identify;
mod interrupt;
mod list;
mod memory;
mod output;
mod progress;
mod random;
mod run;
mod setup;
#[cfg(feature = "emulator")]
mod study;
mod table;
mod target;
mod units;
mod verify;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    log_to_stderr();
    match cli.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if let Some(message) = failure::message(&error) {
                // Where standard error is closed, the exit status must do.
                let _ = writeln!(std::io::stderr(), "nvme-perf: {message}");
            }
            ExitCode::from(failure::exit_status(&error))
        }
    }
}

/// Warnings and errors, or what RUST_LOG says. A fall-back to ordinary pages is part of every result, and so
/// it is not reported here a second time.
fn log_to_stderr() {
    let filter = match std::env::var_os(EnvFilter::DEFAULT_ENV) {
        Some(_) => EnvFilter::from_default_env(),
        None => EnvFilter::new("warn,doorbell_hugepages::space=error"),
    };
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time().init();
}
