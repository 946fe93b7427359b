#![expect(unsafe_code)]
//! The doorbells, mapped.
//
// UNSAFETY: vouches for the mapping that the doorbells are rung through.

use std::fs::File;
use std::ptr::NonNull;
use std::sync::Arc;

use doorbell_spec::{BusError, Doorbells};
use memmap2::MmapOptions;

use super::region::Region;

/// Maps `bytes` bytes of doorbells (rounded up to whole dwords) from the BAR `bar0` of `device`.
///
/// The mapping keeps the device open in the kernel until the last [`Doorbells`] and `Doorbell` of it is
/// dropped, even if the file is closed before.
pub(super) fn map_doorbells(device: &File, bar0: &Region, bytes: usize) -> Result<Doorbells, BusError> {
    let words = bytes.div_ceil(4).max(1);
    let have = usize::try_from(bar0.mappable_from(DOORBELLS)).unwrap_or(usize::MAX);
    let short = BusError::DoorbellWindow { need_bytes: bytes, have_bytes: have };
    let length = words.checked_mul(4).filter(|length| *length <= have);
    let (Some(length), Some(offset)) = (length, bar0.offset.checked_add(DOORBELLS)) else {
        return Err(short);
    };
    let mapping = MmapOptions::new()
        .offset(offset)
        .len(length)
        .map_raw(device)
        .map_err(|source| BusError::Os { action: "mapping the doorbells", source })?;
    let Some(base) = NonNull::new(mapping.as_mut_ptr().cast()) else { return Err(short) };
    // SAFETY:
    // - the mapping has `words * 4` bytes from `base` on, readable, writable and shared with the device;
    // - `base` is aligned to 4: a page boundary plus a multiple of 0x1000;
    // - the mapping lives in the keeper, and is made shorter by nobody: if the device goes, the kernel
    //   keeps the range reserved.
    Ok(unsafe { Doorbells::new(base, words, Arc::new(mapping)) })
}

/// Where the doorbells start in BAR0 (PCIe Transport 1.0, 3.1.2).
const DOORBELLS: u64 = 0x1000;

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(bytes: u64) -> Region {
        Region { offset: 0, bytes, mappable: std::iter::once(0..bytes).collect() }
    }

    #[test]
    fn doorbells_are_rung_in_the_file_behind_offset_0x1000() {
        let file = tempfile::tempfile().expect("temporary file");
        file.set_len(0x3000).expect("room");
        let doorbells = map_doorbells(&file, &bar(0x3000), 0x1001).expect("fits");
        assert_eq!(doorbells.words(), 0x401);
        // The second page of the window: doorbells of many queues lie there.
        doorbells.at(0x400).expect("inside").ring(0xABCD);
        let mut value = [0; 4];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut value, 0x2000).expect("there");
        assert_eq!(u32::from_le_bytes(value), 0xABCD);
    }

    #[test]
    fn a_window_that_is_too_short_says_how_long_it_is() {
        let file = tempfile::tempfile().expect("temporary file");
        for (bytes, have_bytes) in [(0x2000, 0x1000), (0x1000, 0), (0, 0)] {
            let error = map_doorbells(&file, &bar(bytes), 0x1001).expect_err("too short");
            assert!(matches!(error, BusError::DoorbellWindow { have_bytes: have, .. } if have == have_bytes));
        }
        assert!(map_doorbells(&file, &bar(u64::MAX), usize::MAX).is_err());
    }
}
