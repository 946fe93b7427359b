#![expect(unsafe_code)]
//! The VFIO transport and the binding against the Linux kernel and QEMU's controllers.
//!
//! These tests need two NVMe controllers of their own, `0000:00:04.0` bound to vfio-pci and `0000:00:05.0`
//! held by the kernel's driver, and change both. They are ignored by a plain `cargo test` and run in the
//! machine that has them:
//!
//! ```text
//! cargo test -p doorbell --test vfio --no-run    # says where the program is
//! cargo run -p nvme-qemu -- run --with PROGRAM -- PROGRAM --ignored --test-threads=1
//! ```
//
// UNSAFETY: maps memory of its own for DMA, tells the device of it, and reads what it wrote there.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use ::doorbell::pci::{BindError, Force, Machine, PciAddress, VFIO_DRIVER};
use ::doorbell::vfio::{VfioError, VfioTransport};
use doorbell_spec::register::{ACQ, ALL_ONES, AQA, ASQ, CAP, CC, CSTS, VS};
use doorbell_spec::{
    BusError, BusMastering, Clock, Doorbells, HostRegion, Iova, MapError, Mapper, Transport,
};
use memmap2::MmapRaw;

const OURS: &str = "0000:00:04.0";
const THE_KERNELS: &str = "0000:00:05.0";
const WAIT: Duration = Duration::from_secs(10);
/// Below 39 bits and above the interrupt window: every IOMMU has it.
const BASE: Iova = Iova(1 << 32);
const PAGE: usize = 4096;

fn address(text: &str) -> PciAddress {
    text.parse().expect("address")
}

fn open(text: &str) -> VfioTransport {
    let transport = VfioTransport::open(address(text)).expect("bound to vfio-pci and free");
    set_bus_mastering(&transport, BusMastering::On);
    transport
}

fn set_bus_mastering(transport: &VfioTransport, mastering: BusMastering) {
    // SAFETY:
    // - the test alone drives the device, which the kernel has reset, or a test has disabled;
    // - it knows no addresses but those that a test tells it.
    unsafe { transport.set_bus_mastering(mastering) }.expect("there");
}

fn write32(transport: &VfioTransport, offset: u32, value: u32) {
    // SAFETY:
    // - the test alone drives the device;
    // - what is mapped for the device is memory of the test, which only raw pointers lead to.
    unsafe { transport.write32(offset, value) }.expect("register");
}

fn write64(transport: &VfioTransport, offset: u32, value: u64) {
    // SAFETY: as in `write32`.
    unsafe { transport.write64(offset, value) }.expect("register");
}

fn doorbells(transport: &VfioTransport, bytes: usize) -> Result<Doorbells, BusError> {
    // SAFETY: as in `write32`, whatever is rung.
    unsafe { transport.doorbells(bytes) }
}

/// Takes memory back that `map` has given.
fn unmap(mapper: &dyn Mapper, iova: Iova, bytes: usize) -> Result<(), MapError> {
    // SAFETY:
    // - all mappings are the test's own;
    // - no address is mapped again before the device was disabled.
    unsafe { mapper.unmap(iova, bytes) }
}

fn memory(bytes: usize) -> MmapRaw {
    memmap2::MmapOptions::new().len(bytes).map_anon().expect("memory").into()
}

/// Maps all of `memory`, which the caller keeps until it has unmapped it or dropped the mapper.
fn map(mapper: &dyn Mapper, iova: Iova, memory: &MmapRaw, bytes: usize) -> Result<(), MapError> {
    let address = NonNull::new(memory.as_mut_ptr()).expect("mapped");
    assert!(bytes <= memory.len());
    // SAFETY:
    // - the memory is mapped, and read and written only through pointers;
    // - it outlives its DMA mapping: each test drops it last, or ends the process.
    unsafe { mapper.map(iova, HostRegion { address, bytes, backing: None }) }
}

fn event() -> File {
    // SAFETY: the call has no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: the descriptor is new, and nobody else's.
    unsafe { File::from_raw_fd(fd) }
}

fn happened(transport: &VfioTransport, mut event: &File) -> bool {
    wait(transport, || event.read_exact(&mut [0; 8]).is_ok())
}

fn wait(transport: &VfioTransport, mut done: impl FnMut() -> bool) -> bool {
    let clock = Clock::monotonic();
    let deadline = clock.deadline(WAIT);
    while !done() {
        if deadline.passed(&clock) {
            return false;
        }
        transport.relax(&clock);
    }
    true
}

fn set_enabled(transport: &VfioTransport, enabled: u32) {
    // Entry sizes of 64 and 16 bytes, pages of 4 KiB, and EN.
    write32(transport, CC, 6 << 16 | 4 << 20 | enabled);
    assert!(wait(transport, || transport.read32(CSTS).expect("register") & 1 == enabled), "CSTS.RDY");
}

/// Asks the controller who it is, with an admin queue of 16 entries made by hand; `None` if it does not
/// answer within `patience`.
fn identify(transport: &VfioTransport, event: Option<BorrowedFd<'_>>, patience: Duration) -> Option<String> {
    let mapper = transport.mapper();
    let pages = memory(3 * PAGE);
    map(&*mapper, BASE, &pages, 3 * PAGE).expect("free");
    set_enabled(transport, 0);
    write32(transport, AQA, 15 << 16 | 15);
    write64(transport, ASQ, BASE.0);
    write64(transport, ACQ, BASE.offset(PAGE as u64).0);
    if event.is_some() {
        transport.set_interrupt(0, event).expect("vector");
    }
    set_enabled(transport, 1);
    let data = BASE.offset(2 * PAGE as u64).0;
    // Identify (opcode 6) of the controller (CNS 1), command 7.
    #[expect(clippy::cast_possible_truncation)]
    let entry = [(0, 6 | 7 << 16), (6, data as u32), (7, (data >> 32) as u32), (10, 1)];
    let words: *mut u32 = pages.as_mut_ptr().cast();
    for (index, word) in entry {
        // SAFETY: below 16 dwords, in a mapping of three pages.
        let place = unsafe { words.add(index) };
        // SAFETY: as above; the device does not write there.
        unsafe { place.write_volatile(word) };
    }
    let doorbells = doorbells(transport, 8).expect("window");
    doorbells.at(0).expect("the admin queue's tail").ring(1);
    // SAFETY: the fourth dword of the second page.
    let status = unsafe { words.add(PAGE / 4 + 3) };
    let clock = Clock::monotonic();
    let deadline = clock.deadline(patience);
    let answered = loop {
        // SAFETY: aligned, in the mapping; the device may write it at any time.
        if unsafe { status.read_volatile() } == 7 | 1 << 16 {
            break true;
        }
        if deadline.passed(&clock) {
            break false;
        }
        transport.relax(&clock);
    };
    set_enabled(transport, 0);
    unmap(&*mapper, BASE, 3 * PAGE).expect("mapped above");
    // SAFETY: the third page, which the device can no longer reach.
    let page = unsafe { pages.as_ptr().add(2 * PAGE) };
    // SAFETY: as above; nothing else refers to it while the slice lives.
    let page = unsafe { std::slice::from_raw_parts(page, PAGE) };
    answered.then(|| String::from_utf8_lossy(&page[24..64]).trim().to_owned())
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("proc").count()
}

#[test]
#[ignore = "needs the machine of nvme-qemu"]
fn registers_identity_and_dma_work() {
    let transport = open(OURS);
    assert_eq!(transport.identity().name, OURS);
    assert_eq!(transport.identity().vendor_id, 0x1B36);
    assert_ne!(transport.read32(VS).expect("register"), ALL_ONES);
    assert_ne!(transport.read64(CAP).expect("register"), u64::MAX);
    assert_eq!(identify(&transport, None, WAIT).as_deref(), Some("QEMU NVMe Ctrl"));
    for offset in [2, 0x1000, u32::MAX - 3] {
        assert!(matches!(transport.read32(offset), Err(BusError::BadOffset { .. })));
    }
    assert_eq!(transport.poll_event(), None);
}

#[test]
#[ignore = "needs the machine of nvme-qemu"]
fn doorbells_beyond_the_first_page_are_there_and_those_beyond_bar0_are_not() {
    let transport = open(OURS);
    assert_eq!(doorbells(&transport, 0x1004).expect("window").words(), 0x401);
    let have = match doorbells(&transport, 1 << 24) {
        Err(BusError::DoorbellWindow { have_bytes, .. }) => have_bytes,
        other => panic!("{other:?}"),
    };
    doorbells(&transport, have).expect("all of it");
}

#[test]
#[ignore = "needs the machine of nvme-qemu"]
fn mappings_keep_to_the_windows_and_to_themselves() {
    let transport = open(OURS);
    let mapper = transport.mapper();
    let limits = mapper.limits();
    let left = limits.entries_left.expect("Linux says");
    let pages = memory(4 * PAGE);
    map(&*mapper, BASE, &pages, 4 * PAGE).expect("free");
    assert_eq!(mapper.limits().entries_left, Some(left - 1), "one call is one mapping");
    assert!(matches!(map(&*mapper, BASE.offset(4096), &pages, PAGE), Err(MapError::Overlap { .. })));
    // The interrupt window, beyond the end, a range that wraps.
    let end = *limits.windows.last().expect("one").end();
    for iova in [0xFEE0_0000, end - 4095 + 4096, u64::MAX - 4095] {
        let result = map(&*mapper, Iova(iova), &pages, 2 * PAGE);
        assert!(matches!(result, Err(MapError::OutsideWindows { .. })), "{iova:#x} {result:?}");
    }
    for (iova, bytes) in [(BASE, PAGE), (BASE.offset(4096), PAGE), (Iova(1 << 33), PAGE)] {
        assert!(matches!(unmap(&*mapper, iova, bytes), Err(MapError::NotMapped { .. })));
    }
    unmap(&*mapper, BASE, 4 * PAGE).expect("mapped");
    assert_eq!(mapper.limits().entries_left, Some(left));
}

#[test]
#[ignore = "needs the machine of nvme-qemu"]
fn interrupts_reach_their_event_also_after_more_vectors_were_added() {
    let transport = open(OURS);
    let vectors = transport.interrupt_vectors();
    let (first, other) = (event(), event());
    identify(&transport, Some(first.as_fd()), WAIT).expect("answer");
    assert!(happened(&transport, &first));
    transport.set_interrupt(vectors - 1, Some(other.as_fd())).expect("exists");
    // Adding may signal the others once too often; an interrupt after that must still come.
    let _ = (&first).read(&mut [0; 8]);
    identify(&transport, Some(first.as_fd()), WAIT).expect("answer");
    assert!(happened(&transport, &first));
    let beyond = transport.set_interrupt(vectors, Some(other.as_fd()));
    assert!(matches!(beyond, Err(BusError::NoSuchVector { .. })));
    for vector in [0, vectors - 1] {
        transport.set_interrupt(vector, None).expect("connected");
    }
}

#[test]
#[ignore = "needs the machine of nvme-qemu"]
fn a_reset_stops_the_controller_and_dma_until_mastering_is_on_again() {
    let transport = open(OURS);
    identify(&transport, None, WAIT).expect("answer");
    write32(&transport, AQA, 15 << 16 | 15);
    set_enabled(&transport, 1);
    transport.reset().expect("has a function reset");
    assert_eq!(transport.read32(CSTS).expect("register"), 0);
    assert_eq!(identify(&transport, None, Duration::from_millis(300)), None);
    transport.reset().expect("has a function reset");
    set_bus_mastering(&transport, BusMastering::On);
    assert!(identify(&transport, None, WAIT).is_some());
}

#[test]
#[ignore = "needs the machine of nvme-qemu"]
fn a_device_is_opened_once_and_leaves_no_descriptor_behind() {
    let before = descriptors();
    for _ in 0..5 {
        let transport = open(OURS);
        let again = VfioTransport::open(address(OURS));
        assert!(matches!(again, Err(VfioError::AlreadyOpen { .. })));
        // The mapper alone keeps the group, and the next transport shares it.
        let mapper = transport.mapper();
        drop(transport);
        assert!(Arc::ptr_eq(&mapper, &open(OURS).mapper()));
    }
    assert_eq!(descriptors(), before);
}

#[test]
#[ignore = "needs the machine of nvme-qemu"]
fn the_kernels_controller_is_bound_driven_and_given_back() {
    let machine = Machine::this();
    let (ours, theirs) = (address(OURS), address(THE_KERNELS));
    let refused = VfioTransport::open(theirs).expect_err("the kernel's").to_string();
    assert!(refused.contains("held by nvme"), "{refused}");

    // Somebody has the disk open: this process.
    let disk = File::open("/dev/nvme0n1").expect("the kernel's disk");
    let in_use = machine.bind(theirs, Force::No).expect_err("in use");
    let me = format!("process {} ", std::process::id());
    assert!(matches!(in_use, BindError::InUse { .. }) && in_use.to_string().contains(&me), "{in_use}");
    assert_eq!(machine.device(theirs).expect("there").driver.as_deref(), Some("nvme"));
    drop(disk);

    let bound = machine.bind(theirs, Force::No).expect("free");
    assert_eq!(bound.previous_driver.as_deref(), Some("nvme"));
    {
        let (first, second) = (open(OURS), open(THE_KERNELS));
        assert!(!Arc::ptr_eq(&first.mapper(), &second.mapper()), "two groups, two containers");
        assert!(identify(&first, None, WAIT).is_some() && identify(&second, None, WAIT).is_some());
        let driven = machine.restore(theirs, Force::No).expect_err("driven by this process").to_string();
        assert!(driven.contains(&me), "{driven}");
    }
    assert_eq!(machine.restore(theirs, Force::No).expect("free").driver, "nvme");
    assert_eq!(machine.device(ours).expect("there").driver.as_deref(), Some(VFIO_DRIVER));
}
