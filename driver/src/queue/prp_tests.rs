//! PRPs against an oracle that knows only the specification (NVMe Base 2.0, 4.1.1): it walks what the
//! driver wrote, as a device would, and collects the bytes' addresses.

use std::collections::BTreeMap;

use doorbell_hugepages::{DmaSpace, DmaSpaceConfig};
use doorbell_spec::Iova;

use super::ids::SlotIndex;
use super::memory::SharedMemory;
use super::prp::{DataPointer, DataRange, NO_PAGE, POISON, PrpLists, shaped_prefix};
use crate::buffer::{Buffer, BufferRange, Segment, Segments};

const SLOTS: u16 = 4;

/// Lists in real memory, with a view of it that the oracle reads.
fn lists(extra: u16, page_bytes: u64) -> (PrpLists, View) {
    let space = DmaSpace::new(DmaSpaceConfig::default());
    let bytes = PrpLists::memory_bytes(SLOTS, extra, page_bytes);
    let slack = usize::try_from(page_bytes).expect("small");
    let memory =
        SharedMemory::new(space.allocate(bytes + slack).expect("memory"), bytes, slack).expect("fits");
    let view = View { iova: memory.iova().0, bytes: bytes as u64 };
    (PrpLists::new(memory, SLOTS, extra, page_bytes), view)
}

struct View {
    iova: u64,
    bytes: u64,
}

/// The addresses of all bytes, as runs, that a device finds by the two pointers.
fn walk(lists: &PrpLists, view: &View, pointer: DataPointer, bytes: u64, page: u64) -> Vec<(u64, u64)> {
    let mut runs = Vec::new();
    let mut left = bytes;
    let mut take = |address: u64, left: &mut u64| {
        let run = (*left).min(page - address % page);
        runs.push((address, run));
        *left -= run;
    };
    assert_eq!(pointer.prp1 % 4, 0, "PRP1 is not aligned to a dword");
    take(pointer.prp1, &mut left);
    if left == 0 {
        assert_eq!(pointer.prp2, POISON, "an unused PRP2 is not poisoned");
        return runs;
    }
    if left <= page {
        assert_eq!(pointer.prp2 % page, 0, "the second page has an offset");
        take(pointer.prp2, &mut left);
        return runs;
    }
    let mut at = pointer.prp2;
    let mut lists_seen = 0;
    loop {
        lists_seen += 1;
        assert_eq!(at % 8, 0, "a list is not aligned to a qword");
        assert!(
            at >= view.iova && at + page - at % page <= view.iova + view.bytes,
            "a list outside of its memory"
        );
        let entries = (page - at % page) / 8;
        for entry in 0..entries {
            let index = usize::try_from((at - view.iova) / 8 + entry).expect("small");
            let value = lists.read_qword(index);
            if entry + 1 == entries && left > page {
                at = value;
                break;
            }
            assert_eq!(value % page, 0, "a list entry has an offset");
            take(value, &mut left);
            if left == 0 {
                if entry + 1 < entries {
                    assert_eq!(
                        lists.read_qword(index + 1),
                        POISON,
                        "the entry after the last is not poisoned"
                    );
                }
                return runs;
            }
        }
        assert!(lists_seen < 100, "the lists do not end");
    }
}

fn one(iova: u64, bytes: u64) -> DataRange<'static> {
    let segments = Segments::One(Segment { iova: Iova(iova), bytes });
    DataRange { segments, offset: 0, bytes }
}

/// Runs of a contiguous range, page by page.
fn expected(iova: u64, bytes: u64, page: u64) -> Vec<(u64, u64)> {
    let mut runs = Vec::new();
    let mut at = iova;
    while at < iova + bytes {
        let run = (iova + bytes - at).min(page - at % page);
        runs.push((at, run));
        at += run;
    }
    runs
}

#[test]
fn every_length_up_to_two_mebibytes_at_four_offsets_equals_the_oracle() {
    const BASE: u64 = 0x1_0000_0000;
    let (mut lists, view) = lists(0, 4096);
    for offset in [0_u64, 4, 512, 4092] {
        // Every length near a page boundary and every 509th between: each number of pages with each way
        // to begin and end; the rest would only repeat them.
        let lengths = (1..=2_u64 << 20).filter(|n| n % 509 == 0 || (n + offset) % 4096 < 6 || *n < 9000);
        for bytes in lengths {
            let data = one(BASE + offset, bytes);
            assert!(bytes <= lists.bytes_max(Iova(BASE + offset)));
            let pointer = lists.describe(SlotIndex(1), data);
            assert_eq!(pointer.chain, NO_PAGE);
            let runs = walk(&lists, &view, pointer, bytes, 4096);
            assert_eq!(runs, expected(BASE + offset, bytes, 4096), "{bytes} bytes at offset {offset}");
        }
    }
}

#[test]
fn lists_around_one_and_two_pages_are_chained_and_given_back() {
    const BASE: u64 = 0x1_0000_0000;
    for page in [4096_u64, 16_384, 65_536] {
        let per_page = page / 8;
        let (mut lists, view) = lists(6, page);
        let free = lists.bytes_max(Iova(BASE));
        for entries in
            [per_page - 1, per_page, per_page + 1, 2 * per_page - 1, 2 * per_page, 2 * per_page + 1]
        {
            for (offset, slot) in [(0, 0_u16), (512, 3)] {
                let bytes = (entries + 1) * page - offset;
                let pointer = lists.describe(SlotIndex(u32::from(slot)), one(BASE + offset, bytes));
                let runs = walk(&lists, &view, pointer, bytes, page);
                assert_eq!(runs.len() as u64, entries + 1);
                assert_eq!(runs, expected(BASE + offset, bytes, page));
                lists.release(pointer.chain);
                assert_eq!(lists.bytes_max(Iova(BASE)), free, "a list page was lost");
            }
        }
    }
}

#[test]
fn the_promise_of_bytes_max_is_kept_to_the_byte() {
    const BASE: u64 = 0x1_0000_0000;
    let (mut lists, view) = lists(3, 4096);
    let mut held = Vec::new();
    for (slot, offset) in [0_u64, 4092, 0].into_iter().enumerate() {
        let bytes = lists.bytes_max(Iova(BASE + offset)).min(3 << 20);
        let slot = SlotIndex(u32::try_from(slot).expect("small"));
        let pointer = lists.describe(slot, one(BASE + offset, bytes));
        assert_eq!(walk(&lists, &view, pointer, bytes, 4096), expected(BASE + offset, bytes, 4096));
        held.push(pointer.chain);
    }
    assert!(lists.bytes_max(Iova(BASE)) >= 2 << 20, "one page a slot is always there");
    held.into_iter().for_each(|chain| lists.release(chain));
    assert_eq!(lists.bytes_max(Iova(BASE)), 4096 + (4 * 511 + 1) * 4096);
}

/// A vector of parts of one pool's buffers: `(offset, bytes)` each in a buffer of two pages.
fn pieces(parts: &[(usize, usize)]) -> Buffer {
    let space = DmaSpace::new(DmaSpaceConfig::default());
    let pool = space.pool(8192, parts.len().max(1)).expect("memory");
    let range = |&(offset, bytes): &(usize, usize)| {
        BufferRange::new(pool.take().expect("one each"), offset, bytes).expect("within two pages")
    };
    parts.iter().map(range).collect::<Vec<_>>().into()
}

#[test]
fn pieces_that_meet_at_pages_become_one_command() {
    let buffer = pieces(&[(512, 7680), (0, 8192), (0, 4096), (0, 512)]);
    let data = DataRange { segments: buffer.segments(), offset: 0, bytes: buffer.bytes() };
    assert_eq!(shaped_prefix(data, 4096, 512), Ok(buffer.bytes()));
    let (mut lists, view) = lists(0, 4096);
    let pointer = lists.describe(SlotIndex(0), data);
    let runs = walk(&lists, &view, pointer, buffer.bytes(), 4096);
    let at = |index| data.segments.at(index).expect("four").iova.0;
    let expected = [
        (at(0), 3584),
        (at(0) + 3584, 4096),
        (at(1), 4096),
        (at(1) + 4096, 4096),
        (at(2), 4096),
        (at(3), 512),
    ];
    assert_eq!(runs, expected);
}

#[test]
fn pieces_that_meet_elsewhere_are_cut_at_blocks_or_refused() {
    let shape = |parts: &[(usize, usize)], block| {
        let buffer = pieces(parts);
        let data = DataRange { segments: buffer.segments(), offset: 0, bytes: buffer.bytes() };
        shaped_prefix(data, 4096, block)
    };
    assert_eq!(shape(&[(0, 968), (0, 3128)], 512), Err(1));
    assert_eq!(shape(&[(0, 968), (968, 3128)], 4096), Err(1));
    assert_eq!(shape(&[(0, 1024), (0, 3072)], 512), Ok(1024));
    assert_eq!(shape(&[(0, 4096), (0, 4096), (512, 4096)], 512), Ok(8192));
    assert_eq!(shape(&[(0, 4096), (0, 0), (0, 4096)], 512), Ok(8192));
    assert_eq!(shape(&[], 512), Err(0));
}

#[test]
fn a_command_in_the_middle_of_a_vector_starts_where_it_should() {
    let buffer = pieces(&[(0, 8192), (0, 8192)]);
    let (mut lists, view) = lists(0, 4096);
    let mut found = BTreeMap::new();
    for offset in (0..16_384).step_by(2048) {
        let data = DataRange { segments: buffer.segments(), offset, bytes: 2048 };
        let pointer = lists.describe(SlotIndex(0), data);
        let runs = walk(&lists, &view, pointer, 2048, 4096);
        found.insert(offset, runs[0].0);
    }
    for (offset, address) in found {
        let piece = usize::from(offset >= 8192);
        let start = buffer.segments().at(piece).expect("two").iova.0;
        assert_eq!(address, start + offset % 8192);
    }
}
