#![expect(unsafe_code)]
//! The memory side of a hostile device: odd limits, refusals, and a look at everything that was mapped.
//
// UNSAFETY: implements a `Mapper`'s unsafe methods, and reads and writes the mapped memory as a device does.

use std::ops::RangeInclusive;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use doorbell_spec::{Addressing, HostRegion, Iova, MapError, Mapper, MapperLimits};

use crate::random::Random;

#[derive(Debug)]
pub struct Memory {
    ranges: Mutex<Vec<Range>>,
    windows: Vec<RangeInclusive<u64>>,
    granule: u64,
    /// One call in so many is refused; 0 is none.
    refusals: u64,
    random: Mutex<Random>,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    iova: u64,
    bytes: usize,
    host: NonNull<u8>,
}

// SAFETY:
// - the pointer is an address here; what it leads to is only accessed as atomics.
unsafe impl Send for Range {}

impl Memory {
    pub fn new(random: &mut Random, malice: u64) -> Self {
        let odd = malice > 0 && random.one_in(malice);
        let windows = match random.below(6) {
            _ if !odd => vec![0x1000..=(1 << 39) - 1],
            0 => vec![],
            1 => vec![RangeInclusive::new(u64::MAX, 0)],
            2 => vec![0..=u64::MAX, 0..=u64::MAX],
            3 => vec![1 << 32..=1 << 32],
            4 => vec![random.next()..=random.next()],
            _ => vec![u64::MAX - 5..=u64::MAX, (1 << 38) + 1..=(1 << 38) + (64 << 20)],
        };
        let granule =
            if odd { random.pick(&[0, 1, 3, 4096, 5000, 1 << 21, 1 << 63, u64::MAX]) } else { 4096 };
        let refusals = if malice > 0 { malice * 4 } else { 0 };
        let random = Mutex::new(Random::new(random.next()));
        Self { ranges: Mutex::default(), windows, granule, refusals, random }
    }

    fn refuses(&self) -> bool {
        self.refusals > 0 && self.random.lock().expect("one thread").one_in(self.refusals)
    }

    fn at(&self, iova: u64, bytes: u64) -> Option<NonNull<u8>> {
        let ranges = self.ranges.lock().expect("one thread");
        let end = iova.checked_add(bytes)?;
        let range =
            ranges.iter().find(|range| iova >= range.iova && end <= range.iova + range.bytes as u64)?;
        let offset = usize::try_from(iova - range.iova).ok()?;
        // SAFETY: the offset is less than the length of the range, which is mapped (see `Mapper::map`).
        Some(unsafe { range.host.add(offset) })
    }

    fn cell(&self, iova: u64) -> Option<&AtomicU64> {
        let place = self.at(iova, 8).filter(|_| iova.is_multiple_of(8))?;
        // SAFETY:
        // - inside of a mapped range, and aligned, since ranges are pages;
        // - the host is in this very call (one thread), so that nobody else accesses it now.
        Some(unsafe { place.cast::<AtomicU64>().as_ref() })
    }

    pub fn load(&self, iova: u64) -> Option<u64> {
        self.cell(iova).map(|cell| cell.load(Ordering::Acquire))
    }

    pub fn store(&self, iova: u64, value: u64) {
        if let Some(cell) = self.cell(iova) {
            cell.store(value, Ordering::Release);
        }
    }

    pub fn load_dword(&self, iova: u64) -> Option<u32> {
        let both = self.load(iova & !7)?;
        #[expect(clippy::cast_possible_truncation)]
        Some((both >> (8 * (iova & 4))) as u32)
    }

    /// Nobody else writes the other half meanwhile: the host is in the call that moves the device.
    pub fn store_dword(&self, iova: u64, value: u32) {
        let shift = 8 * (iova & 4);
        if let Some(both) = self.load(iova & !7) {
            let rest = both & !(u64::from(u32::MAX) << shift);
            self.store(iova & !7, rest | u64::from(value) << shift);
        }
    }

    /// Reads and writes both ends of everything that is mapped: memory that was freed too early is a crash.
    pub fn touch_all(&self) {
        let ranges = self.ranges.lock().expect("one thread").clone();
        for range in ranges {
            for at in [range.iova, range.iova + range.bytes as u64 - 8] {
                if let Some(value) = self.load(at) {
                    self.store(at, value);
                }
            }
        }
    }

    pub fn mappings(&self) -> usize {
        self.ranges.lock().expect("one thread").len()
    }
}

impl Mapper for Memory {
    fn limits(&self) -> MapperLimits {
        MapperLimits {
            windows: self.windows.clone(),
            entries_left: None,
            granule: self.granule,
            addressing: Addressing::Translated,
        }
    }

    unsafe fn map(&self, iova: Iova, region: HostRegion<'_>) -> Result<(), MapError> {
        if self.refuses() {
            return Err(MapError::EntryLimit { limit: 1 });
        }
        let range = Range { iova: iova.0, bytes: region.bytes, host: region.address };
        self.ranges.lock().expect("one thread").push(range);
        Ok(())
    }

    unsafe fn unmap(&self, iova: Iova, bytes: usize) -> Result<(), MapError> {
        if self.refuses() {
            return Err(MapError::Removed);
        }
        let mut ranges = self.ranges.lock().expect("one thread");
        let Some(at) = ranges.iter().position(|range| range.iova == iova.0 && range.bytes == bytes) else {
            return Err(MapError::NotMapped { iova, bytes });
        };
        ranges.swap_remove(at);
        Ok(())
    }
}
