#![expect(unsafe_code)]
//! Memory that is not the driver's: a database's own buffer pool, registered once.
//
// UNSAFETY: registers memory and submits it, whose contracts these scenarios keep.

use std::ptr::NonNull;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use doorbell::{Buffer, DmaSpace, Lba, Request, SubmitError};
use doorbell_hugepages::ForeignRegion;

use crate::bytes::pattern;
use crate::scenario::scenarios;
use crate::{Place, Rig};

scenarios! {
    Nothing:
        registered_memory_is_written_and_read,
        registered_memory_stays_registered_while_a_request_has_it,
        memory_that_is_not_registered_makes_no_buffer,
        registered_memory_of_another_space_is_refused;
}

/// Four pages that are nobody else's, and stay for as long as the process lives.
#[repr(align(4096))]
struct Pages([u8; PAGES_BYTES]);

const PAGES_BYTES: usize = 4 * 4096;

fn pages() -> NonNull<u8> {
    NonNull::from(&mut Box::leak(Box::new(Pages([0; PAGES_BYTES]))).0).cast()
}

fn register(space: &DmaSpace, memory: NonNull<u8>) -> Result<Arc<ForeignRegion>> {
    // SAFETY:
    // - the pages were leaked, and are mapped for as long as the process lives;
    // - they are accessed by `fill` and `content` only, while no command names them.
    Ok(Arc::new(unsafe { space.register(memory, PAGES_BYTES) }?))
}

/// The part of registered pages of `bytes` bytes from `offset` on.
fn part(region: &Arc<ForeignRegion>, memory: NonNull<u8>, offset: usize, bytes: usize) -> Option<Buffer> {
    let start = memory.map_addr(|address| address.saturating_add(offset));
    // SAFETY: nobody else uses the pages, and no reference to them exists while a command names them.
    unsafe { Buffer::foreign(region, start, bytes) }
}

fn fill(memory: NonNull<u8>, content: &[u8]) {
    assert!(content.len() <= PAGES_BYTES);
    // SAFETY: the pages are large enough by the assertion, and no command names them.
    unsafe { memory.copy_from_nonoverlapping(NonNull::from(content).cast(), content.len()) };
}

fn content(memory: NonNull<u8>) -> Vec<u8> {
    // SAFETY: all of the pages is initialised, and no command names them.
    unsafe { memory.cast::<[u8; PAGES_BYTES]>().read() }.to_vec()
}

fn registered_memory_is_written_and_read(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    let memory = pages();
    let region = register(rig.controller.space(), memory)?;
    let written = pattern(9, PAGES_BYTES);
    fill(memory, &written);
    let whole = part(&region, memory, 0, PAGES_BYTES).context("all of it is registered")?;
    rig.succeed(Request::write(&rig.namespace, Lba(0), whole))?;
    rig.expect(0, &written)?;
    fill(memory, &[0; PAGES_BYTES]);
    let middle = part(&region, memory, 4096, 8192).context("the middle is registered")?;
    let back = rig.succeed(Request::read(&rig.namespace, Lba(0), middle))?;
    ensure!(back.bytes() == 8192, "another buffer came back: {back:?}");
    let found = content(memory);
    ensure!(found[4096..12_288] == written[..8192], "the data did not reach the registered memory");
    ensure!(found[..4096] == [0; 4096] && found[12_288..] == [0; 4096], "a page beside it was written");
    drop(back);
    rig.close()
}

fn registered_memory_stays_registered_while_a_request_has_it(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    let space = rig.controller.space().clone();
    let memory = pages();
    let region = register(&space, memory)?;
    let buffer = part(&region, memory, 0, 4096).context("registered")?;
    rig.submit(Request::read(&rig.namespace, Lba(0), buffer))?;
    drop(region);
    ensure!(space.stats().foreign_bytes == PAGES_BYTES as u64, "unmapped under a command");
    let ended = rig.finish()?;
    ensure!(ended.len() == 1 && ended[0].result.is_ok(), "{ended:?}");
    drop(ended);
    ensure!(space.stats().foreign_bytes == 0, "still mapped after the last buffer is gone");
    rig.close()
}

fn memory_that_is_not_registered_makes_no_buffer(place: &mut Place) -> Result<()> {
    let rig = Rig::new(place)?;
    let memory = pages();
    let region = register(rig.controller.space(), memory)?;
    for (offset, bytes) in
        [(0, PAGES_BYTES + 1), (4096, PAGES_BYTES), (PAGES_BYTES, 1), (0, 0), (1, usize::MAX)]
    {
        ensure!(part(&region, memory, offset, bytes).is_none(), "{bytes} bytes at {offset}");
    }
    ensure!(part(&region, pages(), 0, 512).is_none(), "memory of somebody else");
    drop(region);
    rig.close()
}

fn registered_memory_of_another_space_is_refused(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    let memory = pages();
    let region = register(&place.space(), memory)?;
    let buffer = part(&region, memory, 0, 512).context("registered")?;
    let error = rig.refused(Request::read(&rig.namespace, Lba(0), buffer))?;
    ensure!(error == SubmitError::OtherSpace, "{error:?}");
    rig.close()
}
