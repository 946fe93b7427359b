#![expect(unsafe_code)]
//! A bus that fails at the Nth call, for every N: nothing is lost, and nothing freed that a device has.
//
// UNSAFETY: registers foreign memory, which these tests keep alive.

mod bus;

use std::ptr::NonNull;
use std::sync::Arc;

use bus::Bus;
use doorbell_hugepages::{DmaError, DmaSpace, DmaSpaceConfig, ForeignRegion, HugePolicy};
use doorbell_spec::{HostRegion, Iova, MapError, Mapper, MapperLimits};

/// A page-aligned piece of memory that is not the space's own, and never freed.
fn foreign_memory() -> (NonNull<u8>, usize) {
    let memory: &'static mut [u8] = vec![0; 3 * 4096].leak();
    let aligned = memory.as_ptr().addr().next_multiple_of(4096) - memory.as_ptr().addr();
    (NonNull::from(&mut memory[aligned]), 2 * 4096)
}

fn register(space: &DmaSpace) -> Result<ForeignRegion, DmaError> {
    let (address, bytes) = foreign_memory();
    // SAFETY:
    // - the memory is leaked, so that it outlives everything;
    // - no command names it, and nobody touches it.
    unsafe { space.register(address, bytes) }
}

fn ordinary() -> DmaSpace {
    DmaSpace::new(DmaSpaceConfig::default().with_policy(HugePolicy::Never))
}

/// A life of a space with two buses. Goes on after errors, as an application might.
fn live(space: &DmaSpace, a: &Arc<Bus>, b: &Arc<Bus>) {
    let first = space.attach(a.clone());
    let ring = space.allocate(4096);
    let pool = space.pool(1 << 20, 3);
    let second = space.attach(b.clone());
    let registered = register(space);
    let other = space.allocate(3 << 20);
    let block = pool.as_ref().ok().and_then(|pool| pool.take());
    drop(pool);
    drop(first);
    drop(other);
    let last = space.allocate(4 << 20);
    drop((ring, block));
    drop(registered);
    drop(second);
    drop(last);
}

#[test]
fn a_failed_map_at_any_call_leaves_nothing_behind() {
    for failing in [0, 1] {
        for nth in 1.. {
            let buses = [Bus::new().shared(), Bus::new().shared()];
            buses[failing].fail_map(nth);
            let space = ordinary();
            live(&space, &buses[0], &buses[1]);
            let stats = space.stats();
            assert_eq!((stats.mapped_bytes, stats.leaked_bytes, stats.mappers), (0, 0, 0), "{failing} {nth}");
            Bus::check_memory(&[&buses[0], &buses[1]]);
            for bus in &buses {
                assert!(bus.held().is_empty(), "{failing} {nth}");
                assert_eq!((Arc::strong_count(bus), bus.overlaps()), (1, 0));
            }
            if buses[failing].failures() == 0 {
                assert!(nth > 4, "the scenario maps more than {nth} times");
                break;
            }
        }
    }
}

#[test]
fn a_failed_unmap_at_any_call_keeps_the_memory_and_its_addresses() {
    for failing in [0, 1] {
        for nth in 1.. {
            let buses = [Bus::new().shared(), Bus::new().shared()];
            buses[failing].fail_unmap(nth);
            let space = ordinary();
            live(&space, &buses[0], &buses[1]);
            let held = buses[failing].held();
            let failures = buses[failing].failures();
            assert_eq!(held.len(), failures, "{failing} {nth}");
            let own = held.iter().filter(|held| held.inode != 0);
            assert_eq!(space.stats().leaked_bytes, own.map(|held| held.bytes as u64).sum::<u64>());
            // Memory that is used after that does not get the address of a mapping that is still there.
            let again: Vec<_> = (0..4).map(|_| space.allocate(3 << 20).expect("memory")).collect();
            let attachment = space.attach(buses[failing].clone()).expect("no address twice");
            drop((again, attachment));
            Bus::check_memory(&[&buses[0], &buses[1]]);
            for bus in &buses {
                assert_eq!(bus.overlaps(), 0, "{failing} {nth}");
            }
            if failures == 0 {
                assert!(nth > 4, "the scenario unmaps more than {nth} times");
                break;
            }
        }
    }
}

#[test]
fn a_failed_undo_of_a_failed_map_keeps_the_memory() {
    let (a, b) = (Bus::new().shared(), Bus::new().shared());
    let space = ordinary();
    let attachments = (space.attach(a.clone()).expect("room"), space.attach(b.clone()).expect("room"));
    b.fail_map(1);
    a.fail_unmap(1);
    let refused = space.allocate(4096).expect_err("the second bus refuses");
    assert!(matches!(refused, DmaError::Map(MapError::Removed)), "{refused}");
    assert_eq!((a.held().len(), b.held().len(), space.stats().regions), (1, 0, 0));
    assert_eq!(space.stats().leaked_bytes, 2 << 20);
    Bus::check_memory(&[&a, &b]);
    b.fail_map(1);
    a.fail_unmap(1);
    let refused = register(&space).expect_err("the same again, with memory of our own");
    assert!(matches!(refused, DmaError::StillMapped { .. }), "{refused}");
    drop(attachments);
}

#[test]
fn detaching_says_whether_the_device_has_let_go() {
    let bus = Bus::new().shared();
    let space = ordinary();
    let ring = space.allocate(4096).expect("memory");
    let attachment = space.attach(bus.clone()).expect("room");
    bus.fail_unmap(1);
    let refused = attachment.detach().expect_err("the bus kept it");
    assert!(matches!(refused, DmaError::StillMapped { bytes: 0x20_0000, .. }), "{refused}");
    // What is allocated now does not share the region that the device may still write.
    let other = space.allocate(4096).expect("memory");
    assert!(other.iova().0.abs_diff(ring.iova().0) >= 2 << 20);
    drop((ring, other));
    assert_eq!((space.stats().leaked_bytes, space.stats().regions), (2 << 20, 0));
    Bus::check_memory(&[&bus]);
}

#[test]
fn foreign_memory_is_reached_within_its_bounds_only() {
    let bus = Bus::new().shared();
    let space = ordinary();
    let _attachment = space.attach(bus.clone()).expect("room");
    let (address, bytes) = foreign_memory();
    // SAFETY:
    // - the memory is leaked, so that it outlives everything;
    // - no command names it, and nobody touches it.
    let region = unsafe { space.register(address, bytes) }.expect("room");
    let start = bus.held()[0].iova;
    let at = |offset: usize| NonNull::new(address.as_ptr().wrapping_add(offset)).expect("not null");
    assert_eq!(region.iova_of(address, bytes), Some(start));
    assert_eq!(region.iova_of(at(100), bytes - 100), Some(start.offset(100)));
    assert_eq!(region.iova_of(at(100), bytes - 99), None);
    assert_eq!(region.iova_of(at(bytes), 1), None);
    assert_eq!(region.iova_of(at(0), 0), None);
    assert_eq!(region.iova_of(at(0), usize::MAX), None);
    assert_eq!(region.iova_of(NonNull::dangling(), 1), None);
    assert_eq!((space.stats().foreign_bytes, space.stats().used_bytes), (bytes as u64, 0));
    bus.fail_unmap(1);
    let refused = region.unregister().expect_err("the bus kept it");
    assert!(matches!(refused, DmaError::StillMapped { .. }), "{refused}");
    assert_eq!((space.stats().foreign_bytes, space.stats().leaked_bytes), (0, 0));
}

#[test]
fn foreign_memory_is_whole_pages() {
    let space = ordinary();
    let (address, bytes) = foreign_memory();
    let off = NonNull::new(address.as_ptr().wrapping_add(8)).expect("not null");
    for (address, bytes) in [(off, bytes), (address, bytes - 1), (address, usize::MAX & !4095)] {
        // SAFETY:
        // - nothing is registered: the range is refused.
        let refused = unsafe { space.register(address, bytes) }.expect_err("not whole pages");
        assert!(matches!(refused, DmaError::Unaligned { .. }), "{refused}");
    }
}

/// A mapper that panics when it is to map its second region.
#[derive(Debug)]
struct Panicking(Arc<Bus>);

impl Mapper for Panicking {
    fn limits(&self) -> MapperLimits {
        self.0.limits()
    }

    unsafe fn map(&self, iova: Iova, region: HostRegion<'_>) -> Result<(), MapError> {
        assert!(self.0.maps() == 0, "a bug of this mapper");
        // SAFETY:
        // - passed on as it came.
        unsafe { self.0.map(iova, region) }
    }

    unsafe fn unmap(&self, iova: Iova, bytes: usize) -> Result<(), MapError> {
        // SAFETY:
        // - passed on as it came.
        unsafe { self.0.unmap(iova, bytes) }
    }
}

#[test]
fn a_mapper_that_panics_costs_memory_and_not_safety() {
    let bus = Bus::new().shared();
    let space = ordinary();
    let rings = [space.allocate(2 << 20).expect("memory"), space.allocate(2 << 20).expect("memory")];
    let attach = || drop(space.attach(Arc::new(Panicking(bus.clone()))));
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(attach)).expect_err("it panics");
    drop(rings);
    assert_eq!((bus.held().len(), space.stats().leaked_bytes), (0, 2 << 20));
    Bus::check_memory(&[&bus]);
}
