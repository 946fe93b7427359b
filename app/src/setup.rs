//! `nvme-perf setup`: reserves huge pages, or says what the machine has and what to type for what is missing.

use std::fs;
use std::path::Path;

use clap::{Args, ValueEnum};
use doorbell::PageKind;
use doorbell::hugepages::{HugepagePools, reserve};
use doorbell::pci;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use crate::failure::{reported, usage};
use crate::output::Output;
use crate::table::Table;
use crate::units::{parse_positive_size, size_option, size_text};

/// What `nvme-perf setup` was asked for.
#[derive(Args, Clone, Debug)]
pub(crate) struct SetupOptions {
    /// Make the kernel's pool of huge pages at least so large, such as 512M.
    #[arg(long, value_name = "SIZE", value_parser = parse_positive_size)]
    hugepages: Option<u64>,

    /// The size of a huge page.
    #[arg(long, value_enum, value_name = "SIZE", default_value_t = PageSize::TwoMiB, requires = "hugepages")]
    hugepage_size: PageSize,

    /// The NUMA node that the pages are to lie on.
    #[arg(long, value_name = "N", requires = "hugepages")]
    numa_node: Option<u32>,
}

/// The huge pages that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PageSize {
    /// 2 MiB
    #[value(name = "2M", alias = "2m")]
    TwoMiB,
    /// 1 GiB
    #[value(name = "1G", alias = "1g")]
    OneGiB,
}

impl PageSize {
    fn kind(self) -> PageKind {
        match self {
            Self::TwoMiB => PageKind::Huge2M,
            Self::OneGiB => PageKind::Huge1G,
        }
    }
}

/// Reserves, or tells.
pub(crate) fn run(options: &SetupOptions) -> anyhow::Result<()> {
    let mut output = Output::standard();
    let Some(bytes) = options.hugepages else { return output.write(&State::of_this_machine().text()) };
    let page = options.hugepage_size.kind();
    // A pool that cannot be read is for `reserve` to report.
    if let Ok(pool) = HugepagePools::system().status(page, options.numa_node) {
        check_room(bytes, pool.total_bytes(), available_memory())?;
    }
    let reservation = reserve(bytes, page, options.numa_node)?;
    output.write(&format!("{reservation}\n"))?;
    if reservation.is_complete() { Ok(()) } else { Err(reported()) }
}

/// Refuses a pool that would leave the system next to no memory: the kernel would make it as large as it can,
/// and then kill processes.
fn check_room(asked: u64, pool: u64, available: Option<u64>) -> anyhow::Result<()> {
    let Some(available) = available else { return Ok(()) };
    let spared = available - available / KEPT_FREE;
    if asked <= pool || asked - pool <= spared {
        return Ok(());
    }
    let most = (pool + spared) >> 20 << 20;
    Err(usage(format!(
        "--hugepages {} does not fit into the memory of this system, of which {} are available; use \
         --hugepages {} or less, or free memory first",
        size_option(asked),
        size_text(available),
        size_option(most)
    )))
}

/// The memory in bytes that the kernel could give away. `None` if it does not say.
fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// What matters for driving a controller.
#[derive(Clone, Debug)]
struct State {
    pools: Vec<(String, u64)>,
    /// In bytes; `None` is no limit.
    memory_lock: Option<u64>,
    is_root: bool,
    has_vfio: bool,
    has_iommu: bool,
    /// How many controllers there are, and how many of them vfio-pci holds.
    controllers: (usize, usize),
}

impl State {
    fn of_this_machine() -> Self {
        let pools = HugepagePools::system().all();
        let memory_lock = match getrlimit(Resource::RLIMIT_MEMLOCK) {
            Ok((soft, _)) if soft != RLIM_INFINITY => Some(soft),
            _ => None,
        };
        let has_entries = |path: &str| fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
        let devices = pci::scan().unwrap_or_default();
        Self {
            pools: pools
                .iter()
                .map(|pool| {
                    let text = format!("{} of {}, {} free", pool.total, pool.page, pool.available());
                    (text, pool.total_bytes())
                })
                .collect(),
            memory_lock,
            is_root: nix::unistd::geteuid().is_root(),
            has_vfio: Path::new("/sys/bus/pci/drivers").join(pci::VFIO_DRIVER).exists(),
            has_iommu: has_entries("/sys/class/iommu"),
            controllers: (devices.len(), devices.iter().filter(|device| device.is_bound_to_vfio()).count()),
        }
    }

    fn text(&self) -> String {
        let mut table = Table::of_pairs();
        let mut row = |name: &str, state: String, advice: Option<&str>| {
            table.pair(name, advice.map_or(state.clone(), |advice| format!("{state}  <- {advice}")));
        };
        let pages: Vec<_> = self.pools.iter().map(|pool| pool.0.as_str()).collect();
        let pages = if pages.is_empty() { "none in this kernel".to_owned() } else { pages.join("; ") };
        let has_none = self.pools.iter().all(|pool| pool.1 == 0);
        let advice = "sudo nvme-perf setup --hugepages 512M (emu: works without)";
        row("huge pages", pages, has_none.then_some(advice));
        // Root may lock what it likes, whatever the limit says.
        let is_low = !self.is_root && self.memory_lock.is_some_and(|limit| limit < MEMORY_LOCK_BYTES);
        let limit = self.memory_lock.map_or_else(|| "unlimited".to_owned(), size_text);
        let advice = "sudo prlimit --pid $$ --memlock=unlimited, or memlock in /etc/security/limits.conf";
        row("memory lock limit", limit, is_low.then_some(advice));
        let advice = "enable VT-d or AMD-Vi in the firmware, and boot with intel_iommu=on iommu=pt";
        let iommu = if self.has_iommu { "on" } else { "off" };
        row("IOMMU", iommu.to_owned(), (!self.has_iommu).then_some(advice));
        let loaded = if self.has_vfio { "loaded" } else { "not loaded" };
        row("vfio-pci", loaded.to_owned(), (!self.has_vfio).then_some("sudo modprobe vfio-pci"));
        let (all, bound) = self.controllers;
        let next =
            if all == 0 { "nvme-perf run emu:" } else { "nvme-perf list, then sudo nvme-perf bind ADDRESS" };
        let state = format!("{all}, {bound} of them bound to vfio-pci");
        row("NVMe controllers", state, (bound == 0).then_some(next));
        table.text()
    }
}

/// One part in so many of the available memory is left to the rest of the system.
const KEPT_FREE: u64 = 8;

/// What a run with large transfers on several queues takes.
const MEMORY_LOCK_BYTES: u64 = 512 << 20;

/// What stands below the options.
pub(crate) const SETUP_HELP: &str = "\
Examples:
  nvme-perf setup                                          what there is, and what to type for what is missing
  sudo nvme-perf setup --hugepages 512M
  sudo nvme-perf setup --hugepages 4G --hugepage-size 1G --numa-node 0

The pool is never made smaller. It is gone after the next boot; vm.nr_hugepages in /etc/sysctl.d keeps it.
";

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        State {
            pools: vec![("256 of huge pages of 2 MiB, 256 free".to_owned(), 512 << 20)],
            memory_lock: None,
            is_root: false,
            has_vfio: true,
            has_iommu: true,
            controllers: (2, 1),
        }
    }

    #[test]
    fn a_machine_that_is_ready_gets_no_advice() {
        assert!(!state().text().contains("<-"), "{}", state().text());
    }

    #[test]
    fn everything_that_is_missing_comes_with_what_to_type() {
        let poor = State {
            pools: Vec::new(),
            memory_lock: Some(64 << 10),
            is_root: false,
            has_vfio: false,
            has_iommu: false,
            controllers: (0, 0),
        };
        let text = poor.text();
        assert_eq!(text.matches("<-").count(), 5, "{text}");
        for word in ["--hugepages 512M", "prlimit", "intel_iommu=on", "modprobe vfio-pci", "run emu:"] {
            assert!(text.contains(word), "{text}");
        }
        let root = State { is_root: true, ..poor };
        assert!(!root.text().contains("prlimit"));
    }

    #[test]
    fn a_pool_that_leaves_no_memory_is_refused() {
        let gib = 1 << 30;
        assert!(check_room(7 * gib, 0, Some(8 * gib)).is_ok());
        assert!(check_room(7 * gib, 0, None).is_ok());
        // What the pool has already is not taken again.
        assert!(check_room(20 * gib, 20 * gib, Some(0)).is_ok());
        assert!(check_room(27 * gib, 20 * gib, Some(8 * gib)).is_ok());
        for (asked, pool) in [(8 * gib, 0), (u64::MAX, 0), (28 * gib, 20 * gib)] {
            let error = check_room(asked, pool, Some(8 * gib)).expect_err("too large").to_string();
            let most = size_option(pool + 7 * gib);
            assert!(error.contains(&format!("use --hugepages {most} or less")), "{error}");
        }
        assert!(available_memory().is_some_and(|bytes| bytes > 1 << 20));
    }
}
