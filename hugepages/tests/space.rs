//! A space and its devices: the same addresses for all, and refusals that say why.

mod bus;

use std::sync::Arc;

use bus::{BITS_39, Bus};
use doorbell_hugepages::{Detached, DmaError, DmaSpace, DmaSpaceConfig, HugePolicy, PageKind};
use doorbell_spec::{Addressing, Iova, MapError};

fn ordinary() -> DmaSpace {
    DmaSpace::new(DmaSpaceConfig::default().with_policy(HugePolicy::Never))
}

#[test]
fn everything_may_go_to_any_thread() {
    fn check<T: Send + Sync>() {}
    check::<doorbell_hugepages::DmaBuf>();
    check::<doorbell_hugepages::DmaPool>();
    check::<DmaSpace>();
    check::<doorbell_hugepages::Attachment>();
    check::<doorbell_hugepages::ForeignRegion>();
    check::<DmaError>();
}

#[test]
fn a_device_attached_late_sees_all_at_the_same_addresses() {
    let (early, late) = (Bus::new().shared(), Bus::new().shared());
    let space = ordinary();
    let _early = space.attach(early.clone()).expect("room");
    let ring = space.allocate(5000).expect("memory");
    let pool = space.pool(64 << 10, 100).expect("memory");
    let _late = space.attach(late.clone()).expect("room");
    let after = space.allocate(3 << 20).expect("memory");

    assert_eq!(early.held(), late.held());
    assert_eq!(early.held().len(), 3);
    let block = pool.take().expect("new");
    for buffer in [&ring, &after, &block] {
        let held = early.held();
        let start = buffer.iova().0;
        let home = held.iter().find(|held| (held.iova.0..held.iova.0 + held.bytes as u64).contains(&start));
        let home = home.expect("every buffer lies in a mapping");
        let offset = usize::try_from(start - home.iova.0).expect("small");
        assert_eq!(home.host + offset, buffer.as_ptr().addr().get());
        assert!(offset + buffer.len() <= home.bytes);
        assert!(start.is_multiple_of(4096) && (1 << 32..1 << 39).contains(&start));
    }
}

#[test]
fn the_same_mapper_is_counted_and_not_mapped_twice() {
    let bus = Bus::new().shared();
    let space = ordinary();
    let _ring = space.allocate(4096).expect("memory");
    let first = space.attach(bus.clone()).expect("room");
    let second = space.attach(bus.clone()).expect("the same");
    assert_eq!((bus.maps(), space.stats().mappers), (1, 1));
    assert_eq!(first.detach().expect("counted"), Detached::StillShared);
    assert_eq!(bus.held().len(), 1);
    assert_eq!(second.detach().expect("unmapped"), Detached::Unmapped);
    assert!(bus.held().is_empty());
    assert_eq!(Arc::strong_count(&bus), 1);
}

#[test]
fn memory_goes_with_its_last_buffer_in_any_order() {
    let bus = Bus::new().shared();
    let space = ordinary();
    let attachment = space.attach(bus.clone()).expect("room");
    let pool = space.pool(4096, 1000).expect("memory");
    let block = pool.take().expect("new");
    let ring = space.allocate(100).expect("memory");
    drop(pool);
    drop(space.clone());
    assert_eq!(space.stats().regions, 2);
    drop(ring);
    assert_eq!(space.stats().regions, 1);
    drop(space);
    drop(block);
    assert!(bus.held().is_empty());
    Bus::check_memory(&[&bus]);
    drop(attachment);
    assert_eq!(Arc::strong_count(&bus), 1);
}

#[test]
fn small_allocations_share_a_region_and_are_zeroed_again() {
    let bus = Bus::new().shared();
    let space = ordinary();
    let _attachment = space.attach(bus.clone()).expect("room");
    let mut rings: Vec<_> = (0..64).map(|_| space.allocate(16 << 10).expect("memory")).collect();
    assert_eq!(bus.maps(), 1);
    assert_eq!(space.stats().used_bytes, 1 << 20);
    for ring in &mut rings {
        assert!(ring.iter().all(|&byte| byte == 0));
        ring.fill(0xa5);
    }
    rings.truncate(1);
    let pool = space.pool(512, 2048).expect("memory");
    assert_eq!(bus.maps(), 1);
    let blocks: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    assert_eq!(blocks.len(), 2048);
    assert!(blocks.iter().all(|block| block.iter().all(|&byte| byte == 0)));
    assert_eq!(space.stats().used_bytes_max, (1 << 20) + (16 << 10));
}

#[test]
fn a_gibibyte_needs_one_mapping_and_not_512() {
    let bus = Bus::with_windows(&BITS_39).entries(1).shared();
    let space = ordinary();
    let _attachment = space.attach(bus.clone()).expect("room");
    let pool = space.pool(2 << 20, 512).expect("memory");
    assert_eq!((bus.maps(), bus.held()[0].bytes), (1, 1 << 30));
    let refused = space.allocate(4096).expect_err("the bus has no second entry");
    assert!(matches!(refused, DmaError::Map(MapError::EntryLimit { limit: 1 })), "{refused}");
    assert!(refused.to_string().contains("dma_entry_limit"));
    drop(pool);
    drop(space.allocate(4096).expect("the entry is free again"));
    Bus::check_memory(&[&bus]);
}

#[test]
fn a_buffer_of_64_mib_is_one_piece() {
    let space = ordinary();
    let mut buffer = space.allocate(64 << 20).expect("memory");
    assert_eq!(buffer.len(), 64 << 20);
    *buffer.last_mut().expect("not empty") = 1;
    assert_eq!(space.stats().ordinary_bytes, 64 << 20);
}

#[test]
fn a_device_that_cannot_reach_existing_memory_is_refused_with_the_ranges() {
    let space = ordinary();
    let ring = space.allocate(4096).expect("memory");
    let narrow = Bus::with_windows(&[1 << 33..=(1 << 39) - 1]).shared();
    let said = space.attach(narrow.clone()).expect_err("not reachable").to_string();
    assert!(said.contains("0x100000000") && said.contains("0x200000000-0x7fffffffff"), "{said}");
    assert_eq!((narrow.maps(), space.stats().mappers), (0, 0));
    drop(ring);
    let _attachment = space.attach(narrow).expect("nothing is out of reach now");
    assert_eq!(space.allocate(4096).expect("memory").iova(), Iova(1 << 33));
}

#[test]
fn a_device_without_a_common_range_is_refused() {
    let space = ordinary();
    for windows in [vec![], vec![0..=0xffff_ffff], vec![1 << 32..=(1 << 32) + 0xfffff]] {
        let refused = space.attach(Bus::with_windows(&windows).shared()).expect_err("no room");
        assert!(matches!(refused, DmaError::NoCommonWindow { .. }), "{refused}");
    }
    let _low = space.attach(Bus::with_windows(&[0..=(1 << 33) - 1]).shared()).expect("room");
    let high =
        space.attach(Bus::with_windows(&[1 << 33..=u64::MAX]).shared()).expect_err("nothing in common");
    assert!(high.to_string().contains("0x100000000-0x1ffffffff"), "{high}");
}

#[test]
fn reserved_ranges_of_any_device_are_kept_free() {
    let space = ordinary();
    let start = 1_u64 << 32;
    let holes = [start..=start + 0x2f_ffff, start + 0x40_0000..=(1 << 39) - 1];
    let _attachment = space.attach(Bus::with_windows(&holes).shared()).expect("room");
    let first = space.allocate(2 << 20).expect("memory");
    let second = space.allocate(2 << 20).expect("memory");
    assert_eq!((first.iova(), second.iova()), (Iova(start), Iova(start + 0x40_0000)));
}

#[test]
fn a_full_window_is_an_error_that_leaves_nothing_behind() {
    let bus = Bus::with_windows(&[1 << 32..=(1 << 32) + (4 << 20) - 1]).shared();
    let space = ordinary();
    let _attachment = space.attach(bus.clone()).expect("room");
    let refused = space.allocate(5 << 20).expect_err("4 MiB of addresses");
    assert!(matches!(refused, DmaError::NoAddresses { .. }), "{refused}");
    assert_eq!((space.stats().regions, bus.maps()), (0, 0));
    space.allocate(4 << 20).expect("fits");
}

#[test]
fn a_granule_is_respected_or_refused() {
    let space = ordinary();
    let ring = space.allocate(4096).expect("memory");
    let coarse = || Bus::new().granule(1 << 30).shared();
    let refused = space.attach(coarse()).expect_err("2 MiB is no multiple of 1 GiB");
    assert!(matches!(refused, DmaError::Granule { .. }), "{refused}");
    drop(ring);
    let _attachment = space.attach(coarse()).expect("nothing to map yet");
    let refused = space.allocate(4096).expect_err("still no multiple");
    assert!(matches!(refused, DmaError::Granule { .. }), "{refused}");
    assert_eq!(space.stats().regions, 0);
}

#[test]
fn sorts_of_addresses_are_not_mixed() {
    let refused = ordinary().attach(Bus::new().physical().shared()).expect_err("physical");
    assert!(matches!(refused, DmaError::MixedAddressing { .. }), "{refused}");
    let config = DmaSpaceConfig::default().with_addressing(Addressing::Physical);
    let refused = DmaSpace::new(config.clone()).attach(Bus::new().shared()).expect_err("translated");
    assert!(refused.to_string().contains("a space of their own"), "{refused}");
    let refused = DmaSpace::new(config.with_policy(HugePolicy::Never)).allocate(4096).expect_err("ordinary");
    assert!(matches!(refused, DmaError::PhysicalNeedsHugePages), "{refused}");
}

#[test]
fn sizes_that_make_no_sense_are_errors() {
    let space = ordinary();
    for (block_bytes, count) in [(0, 1), (4096, 0)] {
        assert!(matches!(space.pool(block_bytes, count), Err(DmaError::Empty { .. })));
    }
    for block_bytes in [1, 2, 3, 100, 4097, 6000] {
        assert!(matches!(space.pool(block_bytes, 1), Err(DmaError::BadBlockSize { .. })), "{block_bytes}");
    }
    for (block_bytes, count) in [(usize::MAX & !63, 1), (1 << 31, 1), (1 << 30, 1 << 28)] {
        assert!(matches!(space.pool(block_bytes, count), Err(DmaError::TooLarge { .. })), "{block_bytes}");
    }
    assert!(matches!(space.pool(64, usize::MAX), Err(DmaError::TooManyBlocks { .. })));
    assert!(matches!(space.allocate(0), Err(DmaError::Empty { .. })));
    assert!(matches!(space.allocate(usize::MAX), Err(DmaError::TooLarge { .. })));
    assert_eq!(space.stats().regions, 0);
}

#[test]
fn required_pages_that_are_missing_name_the_commands() {
    let config = DmaSpaceConfig::default().with_policy(HugePolicy::Require);
    let refused = DmaSpace::new(config).pool(1 << 30, 500).expect_err("500 GiB");
    let said = refused.to_string();
    for part in ["256000 of them", "nvme-perf setup --hugepages 500G", "sysctl vm.nr_hugepages=256000"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn memory_that_nobody_has_is_an_error_under_every_policy() {
    for policy in [HugePolicy::Prefer, HugePolicy::Never] {
        let space = DmaSpace::new(DmaSpaceConfig::default().with_policy(policy).with_page(PageKind::Huge1G));
        let refused = space.pool(1 << 30, 500).expect_err("500 GiB");
        assert!(matches!(refused, DmaError::OutOfMemory { .. }), "{refused}");
        let stats = space.stats();
        assert_eq!((stats.regions, stats.fell_back), (0, None));
    }
}
