//! Runs the scenarios against one place: the software controller, or the PCI function of a QEMU machine.
//!
//! `nvme-qemu test` calls it in the guest. One line for each scenario, one at the end; the exit status is 1
//! if a scenario failed.

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::{Parser, ValueEnum};
use doorbell::pci::PciAddress;
use doorbell_tests::{Needs, Place, Scenario, all, run_on};

/// Runs the test scenarios against a controller.
#[derive(Debug, Parser)]
struct Arguments {
    /// Where the controllers are.
    #[arg(long, value_enum, default_value = "emu")]
    place: PlaceName,
    /// The machine's name, for the head line.
    #[arg(long, default_value = "")]
    machine: String,
    /// The PCI function, which is bound to vfio-pci. All data on it is lost.
    #[arg(long, required_if_eq("place", "qemu"))]
    device: Option<PciAddress>,
    /// Print the scenarios' names and do not run them.
    #[arg(long)]
    list: bool,
    /// Only scenarios whose names contain this.
    filter: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PlaceName {
    /// Software controllers in this process.
    Emu,
    /// A PCI function, through VFIO.
    Qemu,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("doorbell-scenarios: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Answers how many scenarios failed.
fn run(arguments: &Arguments) -> Result<usize> {
    let wanted = |scenario: &Scenario| {
        let here = match arguments.place {
            PlaceName::Emu => scenario.needs != Needs::Pci,
            PlaceName::Qemu => scenario.needs != Needs::Emulator,
        };
        here && arguments.filter.as_ref().is_none_or(|part| scenario.name.contains(part.as_str()))
    };
    let scenarios: Vec<Scenario> = all().into_iter().filter(wanted).collect();
    if scenarios.is_empty() {
        bail!("no scenario has {:?} in its name", arguments.filter.as_deref().unwrap_or_default());
    }
    let mut out = std::io::stdout();
    if arguments.list {
        for scenario in &scenarios {
            writeln!(out, "{}", scenario.name)?;
        }
        return Ok(0);
    }
    if !arguments.machine.is_empty() {
        writeln!(out, "{} scenarios on machine {}", scenarios.len(), arguments.machine)?;
    }
    let mut failed = 0;
    for scenario in &scenarios {
        let begun = Instant::now();
        let outcome = run_on(scenario, place(arguments)?);
        let millis = begun.elapsed().as_millis();
        match outcome {
            Ok(()) => writeln!(out, "ok      {} ({millis} ms)", scenario.name)?,
            Err(error) => {
                failed += 1;
                writeln!(out, "FAILED  {} ({millis} ms)\n        {error:#}", scenario.name)?;
            }
        }
        out.flush()?;
    }
    writeln!(out, "{} passed, {failed} failed", scenarios.len() - failed)?;
    Ok(failed)
}

fn place(arguments: &Arguments) -> Result<Place> {
    match (arguments.place, arguments.device) {
        (PlaceName::Emu, _) => Ok(Place::in_process()),
        (PlaceName::Qemu, Some(device)) => Ok(Place::pci(device)),
        (PlaceName::Qemu, None) => bail!("--place qemu needs --device, such as 0000:00:04.0"),
    }
}
