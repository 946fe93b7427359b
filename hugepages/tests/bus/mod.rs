#![expect(unsafe_code)]
#![allow(dead_code, reason = "every test file uses a part of this")]
//! A bus that keeps what it is given, checks it, and fails when it is told to.
//!
//! It is an implementation of the bus's seam, as VFIO is one: it knows the rules (windows, granule, overlap,
//! number of entries) and nothing of the code under test. With each mapping it notes the file behind the
//! memory, so that it can tell whether memory it still holds has been freed under it.
//
// UNSAFETY: implements `Mapper`, whose methods are unsafe to call; touches no memory.

use std::fs::{self, File};
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use doorbell_spec::{Addressing, HostRegion, Iova, MapError, Mapper, MapperLimits};

/// All that an IOMMU of 39 bits has, less the range of the interrupts.
pub const BITS_39: [RangeInclusive<u64>; 2] = [0..=0xfedf_ffff, 0xfef0_0000..=(1 << 39) - 1];

#[derive(Debug)]
pub struct Bus {
    limits: MapperLimits,
    entries_max: usize,
    /// Counts down over all calls of `map`; the one that finds it at 1 fails.
    map_fuse: AtomicU64,
    /// The same for `unmap`.
    unmap_fuse: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    held: Vec<Held>,
    /// Every file that was ever behind a mapping.
    inodes: Vec<u64>,
    maps: usize,
    overlaps: usize,
    failures: usize,
}

/// A mapping that the bus has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub iova: Iova,
    pub bytes: usize,
    pub host: usize,
    /// The file behind it; 0 for foreign memory.
    pub inode: u64,
}

impl Bus {
    pub fn new() -> Self {
        Self::with_windows(&BITS_39)
    }

    pub fn with_windows(windows: &[RangeInclusive<u64>]) -> Self {
        let limits = MapperLimits {
            windows: windows.to_vec(),
            entries_left: None,
            granule: 4096,
            addressing: Addressing::Translated,
        };
        Self {
            limits,
            entries_max: usize::MAX,
            map_fuse: AtomicU64::new(0),
            unmap_fuse: AtomicU64::new(0),
            state: Mutex::default(),
        }
    }

    pub fn granule(mut self, granule: u64) -> Self {
        self.limits.granule = granule;
        self
    }

    pub fn entries(mut self, most: usize) -> Self {
        self.entries_max = most;
        self
    }

    pub fn physical(mut self) -> Self {
        self.limits.windows = vec![0..=u64::MAX];
        self.limits.addressing = Addressing::Physical;
        self
    }

    pub fn shared(self) -> Arc<Self> {
        Arc::new(self)
    }

    /// Lets the `nth` call of `map` from now on fail (from 1; 0 for none).
    pub fn fail_map(&self, nth: u64) {
        self.map_fuse.store(nth, Ordering::SeqCst);
    }

    /// Lets the `nth` call of `unmap` from now on fail, and keeps that mapping.
    pub fn fail_unmap(&self, nth: u64) {
        self.unmap_fuse.store(nth, Ordering::SeqCst);
    }

    /// What is mapped, by address.
    pub fn held(&self) -> Vec<Held> {
        let mut held = self.state().held.clone();
        held.sort_by_key(|mapping| mapping.iova);
        held
    }

    /// How many calls of `map` there were.
    pub fn maps(&self) -> usize {
        self.state().maps
    }

    /// How many calls failed because they were told to.
    pub fn failures(&self) -> usize {
        self.state().failures
    }

    /// How often an address was given that was in use here.
    pub fn overlaps(&self) -> usize {
        self.state().overlaps
    }

    /// Checks that all memory which is mapped in one of `buses` is still there, and that none of the rest is.
    pub fn check_memory(buses: &[&Self]) {
        let process = process_mappings();
        let held: Vec<Held> = buses.iter().flat_map(|bus| bus.held()).collect();
        for mapping in held.iter().filter(|mapping| mapping.inode != 0) {
            let alive = process.iter().any(|(range, inode)| {
                *inode == mapping.inode
                    && range.start <= mapping.host
                    && mapping.host + mapping.bytes <= range.end
            });
            assert!(alive, "memory was freed that a device still has: {mapping:x?}");
        }
        for inode in buses.iter().flat_map(|bus| bus.state().inodes.clone()) {
            let held = held.iter().any(|mapping| mapping.inode == inode);
            let there = process.iter().any(|(_, other)| *other == inode);
            assert!(held || !there, "memory that no device has was not given back");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the bus does not panic")
    }
}

impl Mapper for Bus {
    fn limits(&self) -> MapperLimits {
        self.limits.clone()
    }

    unsafe fn map(&self, iova: Iova, region: HostRegion<'_>) -> Result<(), MapError> {
        let HostRegion { address, bytes, backing } = region;
        let mut state = self.state();
        state.maps += 1;
        let (host, granule) = (address.addr().get(), self.limits.granule);
        for number in [iova.0, host as u64, bytes as u64] {
            assert!(number.is_multiple_of(granule), "{number:#x} is not a multiple of {granule:#x}");
        }
        let last = iova.0.checked_add(bytes as u64 - 1).expect("a range that ends");
        let inside = |window: &&RangeInclusive<u64>| window.contains(&iova.0) && window.contains(&last);
        assert!(self.limits.windows.iter().any(|window| inside(&window)), "{iova} is in no window");
        if state.held.iter().any(|held| iova.0 < held.iova.0 + held.bytes as u64 && held.iova.0 <= last) {
            state.overlaps += 1;
            return Err(MapError::Overlap { iova, bytes });
        }
        if state.held.len() >= self.entries_max {
            return Err(MapError::EntryLimit { limit: self.entries_max as u64 });
        }
        if burnt(&self.map_fuse) {
            state.failures += 1;
            return Err(MapError::Removed);
        }
        let inode = backing.map_or(0, |(file, _)| {
            let file = File::from(file.try_clone_to_owned().expect("a descriptor is left"));
            file.metadata().expect("a memfd has metadata").ino()
        });
        if inode != 0 {
            state.inodes.push(inode);
        }
        state.held.push(Held { iova, bytes, host, inode });
        Ok(())
    }

    unsafe fn unmap(&self, iova: Iova, bytes: usize) -> Result<(), MapError> {
        let mut state = self.state();
        let found = state.held.iter().position(|held| held.iova == iova && held.bytes == bytes);
        let index = found.ok_or(MapError::NotMapped { iova, bytes })?;
        if burnt(&self.unmap_fuse) {
            state.failures += 1;
            return Err(MapError::Removed);
        }
        state.held.remove(index);
        Ok(())
    }
}

fn burnt(fuse: &AtomicU64) -> bool {
    let before = fuse.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
    before == Ok(1)
}

/// The process's mappings: addresses, and the inode of the file behind them.
fn process_mappings() -> Vec<(std::ops::Range<usize>, u64)> {
    let maps = fs::read_to_string("/proc/self/maps").expect("procfs is mounted");
    let parse = |line: &str| {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
        Some((range, fields.nth(3)?.parse().ok()?))
    };
    maps.lines().filter_map(parse).collect()
}
