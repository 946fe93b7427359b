//! The command line.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};

use crate::backing::ImageOption;
use crate::cargo;
use crate::guest::terminal;
use crate::image;
use crate::kernel::{Kernel, Named};
use crate::launch::{self, Interrupted, Outcome, Session};
use crate::machine::{Machine, Owner};
use crate::process;
use crate::programs::{self, Programs};
use crate::progress::Progress;
use crate::wire::Plan;

/// Runs a command in a virtual machine that has NVMe controllers behind an IOMMU.
///
/// The machine boots in seconds, needs no root, no network and no disk image, and is gone afterwards. The
/// command runs in it as root; its output, its error output and its exit status are those of nvme-qemu.
#[derive(Debug, Parser)]
#[command(name = "nvme-qemu", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Run one command in the machine.
    #[command(after_help = EXAMPLES)]
    Run {
        #[command(flatten)]
        options: Options,
        /// The command: nvme-perf (which is built first), or any program of this computer, which is copied
        /// into the machine with its shared libraries.
        #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// Run a shell in the machine, with nvme-perf and the usual tools of this computer.
    Shell {
        #[command(flatten)]
        options: Options,
    },
    /// Run the test scenarios in the machine, on its first controller that is bound to vfio-pci.
    Test {
        #[command(flatten)]
        options: Options,
        /// Only scenarios whose names contain this.
        filter: Option<String>,
    },
    /// List the machines that are built in.
    Machines,
}

#[derive(Debug, Args)]
struct Options {
    /// The machine: a name (see `nvme-qemu machines`), or a description of your own in a .toml file.
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = parse_machine)]
    machine: String,
    /// Copy this program too, with its shared libraries; or any file, to the path that it has here.
    #[arg(long, value_name = "PROGRAM")]
    with: Vec<String>,
    /// Store a namespace in this raw file, and keep it: 0000:00:04.0=FILE for namespace 1,
    /// 0000:00:04.0/2=FILE for namespace 2. It is created if it is not there.
    #[arg(long, value_name = "ADDRESS[/NSID]=FILE")]
    image: Vec<ImageOption>,
    /// When the command has ended, print to standard error what QEMU counted for each controller while it
    /// ran; with =FILE also write it there as JSON.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    blockstats: Option<Option<PathBuf>>,
    /// Set a variable in the command's environment, or pass on the one of this name.
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = parse_variable)]
    env: Vec<(String, String)>,
    /// End the command after this time: seconds, or a number with s, m or h. A shell has no limit of its own.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    timeout: Option<Duration>,
    /// Boot this kernel (a vmlinuz) instead of looking for one.
    #[arg(long, value_name = "FILE", requires = "modules")]
    kernel: Option<PathBuf>,
    /// The modules of that kernel: its directory in /lib/modules.
    #[arg(long, value_name = "DIR", requires = "kernel")]
    modules: Option<PathBuf>,
    /// Build nvme-perf and the scenarios with this profile of cargo.
    #[arg(long, value_name = "NAME", default_value = "release")]
    profile: String,
    /// Let another program use QEMU's monitor (QMP) on this socket.
    #[arg(long, value_name = "SOCKET")]
    qmp: Option<PathBuf>,
    /// Say on standard error how long the boot took.
    #[arg(long, short)]
    verbose: bool,
}

/// Runs the program and gives its exit status.
pub fn main() -> ExitCode {
    let outcome = match Cli::parse().action {
        Action::Run { options, command } => run(&options, command, Kind::Command),
        Action::Shell { options } => run(&options, vec!["bash".to_owned(), "-i".to_owned()], Kind::Shell),
        Action::Test { options, filter } => test(&options, filter),
        Action::Machines => list(),
    };
    match outcome {
        Ok(status) => ExitCode::from(status),
        Err(error) => match error.downcast_ref::<Interrupted>() {
            Some(Interrupted(signal)) => ExitCode::from(128 + *signal as u8),
            None => {
                eprintln!("nvme-qemu: {error:#}");
                ExitCode::FAILURE
            }
        },
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Command,
    Shell,
}

fn list() -> Result<u8> {
    for machine in Machine::built_in()? {
        // A reader that has seen enough is no error.
        let _ = writeln!(std::io::stdout(), "{:8} {}", machine.name, machine.summary);
    }
    Ok(0)
}

fn test(options: &Options, filter: Option<String>) -> Result<u8> {
    let machine = Machine::load(&options.machine)?;
    let Some(controller) = machine.owned_by(Owner::Vfio).next() else {
        bail!("machine {} has no controller for the scenarios, that is, with owner = \"vfio\"", machine.name);
    };
    let device = controller.address.to_string();
    let name = Path::new(&machine.name).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let mut command: Vec<String> =
        ["doorbell-scenarios", "--place", "qemu", "--machine", &name, "--device", &device]
            .map(str::to_owned)
            .into();
    command.extend(filter);
    run(options, command, Kind::Command)
}

fn run(options: &Options, mut command: Vec<String>, kind: Kind) -> Result<u8> {
    let machine = Machine::load(&options.machine)?;
    // What is missing is said before anything is built or downloaded.
    process::find()?;
    let (programs, program) = collect(options, &command[0], kind)?;
    command[0] = program;
    let named = options.kernel.clone().zip(options.modules.clone());
    let kernel = Kernel::find(named.map(|(image, modules)| Named { image, modules }).as_ref())?;
    let terminal = (kind == Kind::Shell).then(terminal::size).flatten();
    let plan = Plan {
        modules: Vec::new(),
        vfio: machine.owned_by(Owner::Vfio).map(|controller| controller.address).collect(),
        kernel: machine
            .owned_by(Owner::Kernel)
            .map(|controller| (controller.address, controller.namespaces.len()))
            .collect(),
        hugepages: vec![(2 << 10, machine.hugepages.of_2_mib), (1 << 20, machine.hugepages.of_1_gib)]
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .collect(),
        command,
        environment: environment(&options.env),
        directory: working_directory(),
        terminal,
    };
    let initramfs = image::make(programs, &kernel.modules, plan)?;
    machine.check_files(initramfs.len())?;
    let outcome = launch::run(&Session {
        machine,
        kernel: kernel.image,
        initramfs,
        images: options.image.clone(),
        monitor_socket: options.qmp.clone(),
        timeout: options.timeout.or((kind == Kind::Command).then_some(COMMAND_TIMEOUT)),
        blockstats: options.blockstats.is_some(),
        terminal: terminal.is_some(),
    })?;
    report(options, &outcome)?;
    Ok(outcome.status)
}

fn report(options: &Options, outcome: &Outcome) -> Result<()> {
    if options.verbose {
        eprintln!("nvme-qemu: the command started {:.1} s after QEMU", outcome.boot.as_secs_f64());
    }
    if let Some(stats) = &outcome.blockstats {
        eprint!("{}", stats.lines());
        if let Some(Some(file)) = &options.blockstats {
            let json = serde_json::to_vec_pretty(stats)?;
            std::fs::write(file, json).with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    Ok(())
}

/// Everything that goes into the guest, and how the command is called there.
fn collect(options: &Options, command: &str, kind: Kind) -> Result<(Programs, String)> {
    let mut programs = Programs::new();
    let program = resolve(command, &options.profile)?;
    let path = programs.add(&program)?;
    for name in &options.with {
        let here = Path::new(name);
        // A file in the working directory needs no `./`, since data is what it is most of the time.
        let file = if here.is_file() { here.to_owned() } else { resolve(name, &options.profile)? };
        programs.add(&file)?;
    }
    if kind == Kind::Shell {
        programs.add(&resolve("nvme-perf", &options.profile)?)?;
        let _progress = Progress::new("collecting the shell's tools");
        for tool in SHELL_TOOLS.iter().filter_map(|tool| programs::find(tool)) {
            programs.add(&tool)?;
        }
    }
    // A program that was called by its name keeps that name, which some programs look at.
    let called = if command.contains('/') { path } else { format!("/usr/bin/{command}") };
    Ok((programs, called))
}

/// The file of a program: one of ours is built, anything else is looked for.
fn resolve(name: &str, profile: &str) -> Result<PathBuf> {
    if let Some((program, package)) = OWN_PROGRAMS.iter().find(|(program, _)| *program == name) {
        return cargo::build(package, program, profile);
    }
    programs::find(name)
        .with_context(|| format!("there is no program `{name}` on this computer to run in the machine"))
}

fn environment(given: &[(String, String)]) -> Vec<(String, String)> {
    let mut environment = vec![
        ("PATH".to_owned(), "/usr/bin:/usr/sbin".to_owned()),
        ("HOME".to_owned(), "/root".to_owned()),
        ("PS1".to_owned(), "nvme-qemu:\\w# ".to_owned()),
    ];
    let passed_on = PASSED_ON.iter().filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)));
    environment.extend(passed_on);
    environment.extend_from_slice(given);
    environment
}

fn parse_machine(text: &str) -> Result<String, String> {
    Machine::check_name(text).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    if let Some((name, value)) = text.split_once('=') {
        return Ok((name.to_owned(), value.to_owned()));
    }
    match std::env::var(text) {
        Ok(value) => Ok((text.to_owned(), value)),
        Err(_) => Err(format!("there is no variable `{text}` to pass on; write {text}=VALUE")),
    }
}

/// Relative paths mean the same inside as outside, for the files that were copied.
fn working_directory() -> String {
    let directory = std::env::current_dir().ok().and_then(|path| path.to_str().map(str::to_owned));
    directory.unwrap_or_else(|| "/root".to_owned())
}

fn parse_time(text: &str) -> Result<Duration, String> {
    let bad = || format!("`{text}` is not a time; write seconds, or a number with s, m or h");
    let (number, unit) = match text.char_indices().next_back() {
        Some((end, 's')) => (&text[..end], 1),
        Some((end, 'm')) => (&text[..end], 60),
        Some((end, 'h')) => (&text[..end], 3600),
        _ => (text, 1),
    };
    let number: u64 = number.parse().map_err(|_| bad())?;
    number
        .checked_mul(unit)
        .filter(|seconds| (1..=TIME_MAX).contains(seconds))
        .map(Duration::from_secs)
        .ok_or_else(bad)
}

/// Programs of this workspace, and the packages that they are in.
const OWN_PROGRAMS: [(&str, &str); 2] =
    [("nvme-perf", "nvme-perf"), ("doorbell-scenarios", "doorbell-tests")];

/// Variables that a command has in the guest as outside.
const PASSED_ON: [&str; 4] = ["TERM", "RUST_LOG", "RUST_BACKTRACE", "NO_COLOR"];

const SHELL_TOOLS: [&str; 36] = [
    "sh", "cat", "cp", "cut", "dd", "df", "dmesg", "du", "echo", "fio", "free", "grep", "head", "hexdump",
    "id", "kill", "less", "ln", "ls", "lsblk", "lspci", "mkdir", "mount", "mv", "nvme", "od", "ps", "rm",
    "sed", "sleep", "sort", "stty", "tail", "umount", "uname", "wc",
];

const COMMAND_TIMEOUT: Duration = Duration::from_secs(3600);
/// A year. Anything longer is a mistake.
const TIME_MAX: u64 = 365 * 24 * 3600;

const EXAMPLES: &str = "\
Examples:
  nvme-qemu run -- nvme-perf list
      Build nvme-perf and run it in the default machine.
  nvme-qemu run --blockstats -- nvme-perf run 0000:00:04.0 --rw randread --bs 4k --runtime 3s
      The same, and let QEMU say how many reads reached the device.
  nvme-qemu run --image 0000:00:04.0=disk.raw -- nvme-perf verify 0000:00:04.0 --allow-write
      Keep what was written: disk.raw is namespace 1, byte for byte.
  nvme-qemu run --machine fast -- fio --name=x --filename=/dev/nvme0n1 --rw=randread --size=64M
      Run a program of this computer on the controller that the kernel keeps.
  nvme-qemu run --with nvme --with nvme-perf -- sh -c 'nvme list && nvme-perf list'
      Several programs.
  nvme-qemu shell
      Look around. `exit` ends the machine.
  nvme-qemu test read
      Run the test scenarios that have `read` in their names.

Exit status: the command's own; 128 plus the number of the signal that ended it; 1 when the machine could not
be built or booted, with the reason; 2 for a wrong option.";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_keeps_its_own_options_with_and_without_dashes() {
        Cli::command().debug_assert();
        for line in [
            &["nvme-qemu", "run", "--machine", "fast", "--", "ls", "-l", "--machine", "x"][..],
            &["nvme-qemu", "run", "--machine", "fast", "ls", "-l", "--machine", "x"][..],
        ] {
            let Action::Run { options, command } = Cli::try_parse_from(line).unwrap().action else {
                panic!("not a run")
            };
            assert_eq!(options.machine, "fast");
            assert_eq!(command, ["ls", "-l", "--machine", "x"]);
        }
    }

    #[test]
    fn a_machine_or_a_variable_that_is_not_there_is_a_wrong_option() {
        for (option, value, said) in [
            ("--machine", "fats", "only default, wide, fast"),
            ("--machine", "/tmp", "--machine FILE.toml"),
            ("--env", "NO_SUCH_VARIABLE", "write NO_SUCH_VARIABLE=VALUE"),
        ] {
            let error = Cli::try_parse_from(["nvme-qemu", "run", option, value, "ls"]).expect_err(value);
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(said), "{error}");
        }
        let line = ["nvme-qemu", "run", "--env", "A=b=c", "--machine", "mine.toml", "ls"];
        let Action::Run { options, .. } = Cli::try_parse_from(line).unwrap().action else {
            panic!("not a run")
        };
        assert_eq!(options.env, [("A".to_owned(), "b=c".to_owned())]);
    }

    #[test]
    fn blockstats_takes_a_file_only_after_an_equals_sign() {
        let parse = |line: &[&str]| match Cli::try_parse_from(line).unwrap().action {
            Action::Run { options, command } => (options.blockstats, command),
            _ => panic!("not a run"),
        };
        let without = parse(&["nvme-qemu", "run", "--blockstats", "ls"]);
        assert_eq!(without, (Some(None), vec!["ls".to_owned()]));
        let with = parse(&["nvme-qemu", "run", "--blockstats=f.json", "ls"]);
        assert_eq!(with, (Some(Some("f.json".into())), vec!["ls".to_owned()]));
    }

    #[test]
    fn wrong_usage_is_refused() {
        for line in [
            &["nvme-qemu", "run"][..],
            &["nvme-qemu", "run", "--kernel", "k", "--", "ls"],
            &["nvme-qemu", "run", "--image", "x", "--", "ls"],
            &["nvme-qemu", "run", "--timeout", "0", "--", "ls"],
            &["nvme-qemu", "run", "--nonsense", "--", "ls"],
        ] {
            assert_eq!(Cli::try_parse_from(line).unwrap_err().exit_code(), 2, "{line:?}");
        }
    }

    #[test]
    fn times_have_units() {
        assert_eq!(parse_time("90"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_time("2m"), Ok(Duration::from_secs(120)));
        for text in ["", "m", "-1", "1d", "0", "99999999999h", "1µ"] {
            assert!(parse_time(text).is_err(), "{text} was taken for a time");
        }
    }
}
