//! What only real huge pages can show. Needs root, and reserves its pages itself (128 MiB of 2 MiB pages).

mod bus;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bus::Bus;
use doorbell_hugepages::{
    DmaBuf, DmaError, DmaSpace, DmaSpaceConfig, HugePolicy, HugepagePools, PageKind, Shrink,
};
use doorbell_spec::Addressing;

const PAGE: PageKind = PageKind::Huge2M;
const PAGE_BYTES: usize = 2 << 20;
const PAGES: u64 = 64;

/// Huge pages for one test at a time; the pool gets back its size at the end.
struct Pages {
    _turn: MutexGuard<'static, ()>,
    added: u64,
}

impl Pages {
    fn reserve() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(
            nix::unistd::geteuid().is_root(),
            "these tests reserve huge pages, which only root may: run them as root, such as with \
             `sudo -E cargo test -p doorbell-hugepages --test hugepages`"
        );
        let pools = HugepagePools::system();
        let before = pools.status(PAGE, None).expect("this kernel has huge pages of 2 MiB");
        let wanted = before.total + PAGES;
        let made = pools.reserve(wanted * PAGE_BYTES as u64, PAGE, None, Shrink::Keep);
        let made = made.expect("root may reserve");
        let pages = Self { _turn: turn, added: made.after.total - before.total };
        assert!(made.is_complete(), "{made}");
        pages
    }

    fn available() -> u64 {
        HugepagePools::system().status(PAGE, None).expect("still there").available()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // Only what was added: somebody else may have reserved pages in the meantime.
        let pools = HugepagePools::system();
        let total = pools.status(PAGE, None).expect("still there").total;
        let bytes = total.saturating_sub(self.added) * PAGE_BYTES as u64;
        let less = pools.reserve(bytes, PAGE, None, Shrink::Allow).expect("root may reserve");
        println!("{less}");
    }
}

fn required() -> DmaSpaceConfig {
    DmaSpaceConfig::default().with_policy(HugePolicy::Require)
}

#[test]
fn memory_is_made_of_huge_pages_and_given_back() {
    let _pages = Pages::reserve();
    let before = Pages::available();
    let bus = Bus::new().shared();
    let space = DmaSpace::new(required());
    let attachment = space.attach(bus.clone()).expect("room");
    let ring = space.allocate(4096).expect("a page");
    let pool = space.pool(1 << 20, 7).expect("four pages");
    let stats = space.stats();
    assert_eq!((stats.huge_2m_bytes, stats.ordinary_bytes), (10 << 20, 0));
    assert_eq!(Pages::available(), before - 5);
    assert!(bus.held().iter().all(|held| held.iova.0.is_multiple_of(PAGE_BYTES as u64)));
    assert!(bus.held().iter().all(|held| held.host.is_multiple_of(PAGE_BYTES)));
    assert_eq!(bus.maps(), 2);
    drop((ring, pool, attachment));
    assert_eq!(Pages::available(), before);
    Bus::check_memory(&[&bus]);
}

#[test]
fn a_lack_of_pages_is_an_error_or_a_reported_fall_back_and_takes_none() {
    let _pages = Pages::reserve();
    let before = Pages::available();
    let too_many = usize::try_from(before).expect("small") + 1;
    let refused = DmaSpace::new(required()).pool(PAGE_BYTES, too_many).expect_err("one too many");
    let DmaError::NoHugePages { need_pages, free_pages, .. } = refused else { panic!("{refused}") };
    assert_eq!((need_pages, free_pages), (before + 1, before));

    let space = DmaSpace::new(DmaSpaceConfig::default());
    let pool = space.pool(PAGE_BYTES, too_many).expect("ordinary pages");
    let ring = space.allocate(4096).expect("a huge page");
    let stats = space.stats();
    assert!(stats.fell_back.expect("said").starts_with("ordinary pages are used: huge pages of 2 MiB"));
    assert_eq!((stats.ordinary_bytes, stats.huge_2m_bytes), ((before + 1) * PAGE_BYTES as u64, 2 << 20));
    drop((pool, ring));

    let never = DmaSpace::new(DmaSpaceConfig::default().with_policy(HugePolicy::Never));
    let _ring = never.allocate(4096).expect("memory");
    assert_eq!(Pages::available(), before);
}

#[test]
fn falling_back_twice_names_what_was_preferred_and_what_is_used() {
    let _pages = Pages::reserve();
    let gigantic = DmaSpaceConfig::default().with_page(PageKind::Huge1G);
    let others =
        HugepagePools::system().status(PageKind::Huge1G, None).map_or(0, |status| status.available());
    let taken = DmaSpace::new(gigantic.clone().with_policy(HugePolicy::Require));
    let _all = (others > 0).then(|| taken.pool(1 << 30, usize::try_from(others).expect("small")));

    let space = DmaSpace::new(gigantic.clone());
    let _pool = space.pool(PAGE_BYTES, 3).expect("huge pages of 2 MiB");
    let reason = space.stats().fell_back.expect("recorded");
    assert!(reason.starts_with("huge pages of 2 MiB are used: huge pages of 1 GiB are needed"), "{reason}");

    let space = DmaSpace::new(gigantic);
    let too_many = usize::try_from(Pages::available()).expect("small") + 1;
    let _pool = space.pool(PAGE_BYTES, too_many).expect("ordinary pages");
    let reason = space.stats().fell_back.expect("recorded");
    assert!(reason.starts_with("ordinary pages are used: huge pages of 1 GiB are needed"), "{reason}");
}

#[test]
fn a_failed_map_gives_the_pages_back() {
    let _pages = Pages::reserve();
    let before = Pages::available();
    let bus = Bus::new().shared();
    let space = DmaSpace::new(required());
    let _attachment = space.attach(bus.clone()).expect("room");
    bus.fail_map(1);
    space.pool(PAGE_BYTES, 4).expect_err("the bus refuses");
    assert_eq!(Pages::available(), before);
}

#[test]
fn pages_of_a_numa_node_lie_there() {
    let _pages = Pages::reserve();
    let space = DmaSpace::new(required().with_numa_node(Some(0)));
    let pool = space.pool(PAGE_BYTES, 3).expect("pages of node 0");
    let block = pool.take().expect("new");
    // A kernel without NUMA has no such file, and one node.
    if let Ok(numa_maps) = std::fs::read_to_string("/proc/self/numa_maps") {
        let start = format!("{:x} ", block.as_ptr().addr().get());
        let line = numa_maps.lines().find(|line| line.starts_with(&start)).expect("the pool is mapped");
        assert!(line.contains(" bind:0 ") && line.contains(" N0=3"), "{line}");
    }
    let absent = DmaSpace::new(required().with_numa_node(Some(1000)));
    let refused = absent.allocate(4096).expect_err("no such node").to_string();
    assert!(refused.contains("NUMA node 1000"), "{refused}");
}

#[test]
fn physical_addresses_are_those_of_the_pages() {
    let _pages = Pages::reserve();
    let bus = Bus::new().physical().shared();
    let space = DmaSpace::new(required().with_addressing(Addressing::Physical));
    let early = space.pool(768 << 10, 5).expect("three pages, two blocks in each");
    let _attachment = space.attach(bus.clone()).expect("room");
    let ring = space.allocate(4096).expect("a page");
    assert_eq!(bus.maps(), 4);
    assert!(bus.held().iter().all(|held| held.bytes == PAGE_BYTES && held.iova.0 % PAGE_BYTES as u64 == 0));
    let blocks: Vec<DmaBuf> = std::iter::from_fn(|| early.take()).collect();
    assert_eq!(blocks.len(), 5);
    for buffer in blocks.iter().chain([&ring]) {
        for offset in (0..buffer.len()).step_by(4096) {
            let address = buffer.as_ptr().addr().get() + offset;
            assert_eq!(physical(address), buffer.iova().0 + offset as u64);
        }
    }
    let refused = space.allocate(PAGE_BYTES + 1).expect_err("larger than a page");
    assert!(matches!(refused, DmaError::LargerThanPage { .. }), "{refused}");
    drop((blocks, early, ring));
    assert!(bus.held().is_empty());
    Bus::check_memory(&[&bus]);
}

#[test]
fn a_region_of_many_mappings_is_mapped_whole_or_not_at_all() {
    let _pages = Pages::reserve();
    let before = Pages::available();
    for nth in 1..=3 {
        let bus = Bus::new().physical().shared();
        let space = DmaSpace::new(required().with_addressing(Addressing::Physical));
        let pool = space.pool(PAGE_BYTES, 3).expect("three pages");
        bus.fail_map(nth);
        space.attach(bus.clone()).expect_err("the bus refuses one of the pages");
        assert!(bus.held().is_empty(), "{nth}");
        let _attachment = space.attach(bus.clone()).expect("now it does not");
        bus.fail_map(nth);
        space.pool(PAGE_BYTES, 3).expect_err("the bus refuses one of the pages");
        assert_eq!(bus.held().len(), 3, "{nth}");
        drop(pool);
        assert!(bus.held().is_empty(), "{nth}");
        assert_eq!(space.stats().leaked_bytes, 0);
    }
    assert_eq!(Pages::available(), before);
}

/// The physical address of an ordinary page's start, read without the product's help.
fn physical(address: usize) -> u64 {
    let pagemap = File::open("/proc/self/pagemap").expect("root may");
    let mut entry = [0; 8];
    pagemap.read_exact_at(&mut entry, (address / 4096 * 8) as u64).expect("mapped");
    (u64::from_le_bytes(entry) & ((1 << 55) - 1)) * 4096
}

#[test]
fn a_fork_does_not_get_the_memory() {
    let _pages = Pages::reserve();
    let space = DmaSpace::new(required());
    let ring = space.allocate(4096).expect("a page");
    let start = format!("{:x}-", ring.as_ptr().addr().get() & !(PAGE_BYTES - 1));
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("procfs");
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&start));
    let flags = lines.find(|line| line.starts_with("VmFlags:")).expect("the kernel shows flags");
    assert!(flags.split(' ').any(|flag| flag == "dc"), "not marked as left out of forks: {flags}");
}

/// TRAPS.md: kill -9, start again: no huge page is lost.
#[test]
fn a_killed_process_leaves_no_huge_page_behind() {
    const CHILD: &str = "DOORBELL_HUGEPAGES_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let space = DmaSpace::new(required());
        let _attachment = space.attach(Bus::new().shared()).expect("room");
        let _pool = space.pool(PAGE_BYTES, 20).expect("twenty pages");
        println!("holds");
        // Until it is killed: the parent closes the pipe only after that.
        let _ = std::io::stdin().lines().next();
        unreachable!("the parent kills this process");
    }
    let _pages = Pages::reserve();
    let before = Pages::available();
    let name = "a_killed_process_leaves_no_huge_page_behind";
    let mut child = Command::new(std::env::current_exe().expect("a test has a file"))
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a test can be started");
    let output = BufReader::new(child.stdout.take().expect("piped"));
    assert!(output.lines().map_while(Result::ok).any(|line| line.contains("holds")), "the child failed");
    assert_eq!(Pages::available(), before - 20);
    child.kill().expect("it lives");
    child.wait().expect("it was ours");
    // The pages go when the kernel has taken the dead process apart.
    let deadline = Instant::now() + Duration::from_secs(5);
    while Pages::available() != before && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(Pages::available(), before);
}
