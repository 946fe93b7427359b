//! Several controllers that see the same memory.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use doorbell::{DmaSpace, Lba, Request, SharedRange, SubmitError};
use doorbell_emulator::IovaSpace;
use doorbell_spec::Transport;

use crate::bytes::pattern;
use crate::scenario::scenarios;
use crate::{Place, Rig};

scenarios! {
    Nothing:
        one_buffer_is_written_to_two_controllers_at_once,
        a_controller_attached_late_sees_memory_that_was_there,
        memory_that_came_late_is_seen_by_all,
        a_buffer_of_another_space_is_refused,
        a_namespace_of_another_controller_is_refused,
        one_controller_closes_and_the_other_goes_on,
        a_gibibyte_of_buffers_is_mapped_in_large_pieces;
    Emulator:
        two_controllers_in_one_group_share_their_mappings,
        a_controller_that_cannot_reach_the_memory_is_refused_with_the_reason,
        a_39_bit_device_is_given_addresses_that_it_can_reach,
        a_device_with_few_mappings_is_an_error_that_names_the_limit,
}

/// The place's controller and another one in one space.
fn pair(place: &mut Place) -> Result<(DmaSpace, Rig, Rig)> {
    let space = place.space();
    let options = place.options().space(&space);
    let transport = place.transport()?;
    let first = options.open_transport(transport)?;
    let first = Rig::on(place, first, 8)?;
    let second = place.second_controller(&options)?;
    let second = Rig::on(place, second, 8)?;
    Ok((space, first, second))
}

fn one_buffer_is_written_to_two_controllers_at_once(place: &mut Place) -> Result<()> {
    let (space, mut first, mut second) = pair(place)?;
    let content = pattern(4, 4096);
    let mut buffer = space.allocate(4096)?;
    buffer.as_mut_slice().copy_from_slice(&content);
    let buffer = Arc::new(buffer);
    let all = || SharedRange::new(Arc::clone(&buffer), 0, 4096);
    first.submit(Request::write(&first.namespace, Lba(0), all()?))?;
    second.submit(Request::write(&second.namespace, Lba(8), all()?))?;
    for rig in [&mut first, &mut second] {
        rig.finish()?.into_iter().try_for_each(|it| it.result.map(drop))?;
    }
    first.expect(0, &content)?;
    second.expect(8, &content)?;
    first.close()?;
    second.close()
}

fn a_controller_attached_late_sees_memory_that_was_there(place: &mut Place) -> Result<()> {
    let space = place.space();
    let pool = space.pool(4096, 64)?;
    let large = space.allocate(8 << 20)?;
    let options = place.options().space(&space);
    let transport = place.transport()?;
    let controller = options.open_transport(transport)?;
    let mut rig = Rig::on(place, controller, 8)?;
    let mut block = pool.take().context("a free block")?;
    block.as_mut_slice().fill(0x3c);
    rig.succeed(Request::write(&rig.namespace, Lba(0), block))?;
    rig.expect(0, &[0x3c; 4096])?;
    let back = rig.succeed(Request::read(&rig.namespace, Lba(0), large))?;
    let back = back.into_dma_buf().context("the buffer")?;
    ensure!(back.as_slice()[..4096] == [0x3c; 4096]);
    rig.close()
}

fn memory_that_came_late_is_seen_by_all(place: &mut Place) -> Result<()> {
    let (space, mut first, mut second) = pair(place)?;
    for number in 0..4_u64 {
        // Each of these is a region of its own, and so a new mapping in both controllers.
        let content = pattern(number, 5 << 20);
        let mut buffer = space.allocate(5 << 20)?;
        buffer.as_mut_slice().copy_from_slice(&content);
        let buffer = first.succeed(Request::write(&first.namespace, Lba(0), buffer))?;
        second.succeed(Request::write(&second.namespace, Lba(0), buffer))?;
        first.expect(0, &content)?;
        second.expect(0, &content)?;
    }
    first.close()?;
    second.close()
}

fn a_buffer_of_another_space_is_refused(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    let other = place.space();
    let error = rig.refused(Request::read(&rig.namespace, Lba(0), other.allocate(512)?))?;
    ensure!(error == SubmitError::OtherSpace, "{error}");
    let shared = SharedRange::new(Arc::new(other.allocate(512)?), 0, 512)?;
    let error = rig.refused(Request::write(&rig.namespace, Lba(0), shared))?;
    ensure!(error == SubmitError::OtherSpace, "{error}");
    rig.close()
}

fn a_namespace_of_another_controller_is_refused(place: &mut Place) -> Result<()> {
    let (_, mut first, second) = pair(place)?;
    let error = first.refused(Request::flush(&second.namespace))?;
    ensure!(error == SubmitError::OtherController, "{error}");
    first.close()?;
    second.close()
}

fn one_controller_closes_and_the_other_goes_on(place: &mut Place) -> Result<()> {
    let (space, mut first, mut second) = pair(place)?;
    first.exercise(20)?;
    second.exercise(20)?;
    second.close()?;
    first.exercise(20)?;
    first.close()?;
    let stats = space.stats();
    ensure!((stats.used_bytes, stats.mappers, stats.leaked_bytes) == (0, 0, 0), "{stats:?}");
    Ok(())
}

fn a_gibibyte_of_buffers_is_mapped_in_large_pieces(place: &mut Place) -> Result<()> {
    let (space, mut first, second) = pair(place)?;
    let before = space.stats().regions;
    // Never touched, so that a guest with less memory has it too, as long as pages are ordinary.
    let bytes = if place.is_in_process() { 1 << 30 } else { 256 << 20 };
    let pool = space.pool(1 << 20, bytes >> 20)?;
    let regions = space.stats().regions - before;
    ensure!(regions <= 2, "{regions} regions for one pool");
    let all: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    let last = all.into_iter().next_back().context("a block")?;
    first.succeed(Request::read(&first.namespace, Lba(0), last))?;
    first.close()?;
    second.close()
}

fn two_controllers_in_one_group_share_their_mappings(place: &mut Place) -> Result<()> {
    let group = Arc::new(IovaSpace::new(48, None));
    let emulators = [place.emulator_in("size=16M", &group)?, place.emulator_in("size=16M", &group)?];
    let space = place.space();
    let options = place.options().space(&space);
    ensure!(Arc::ptr_eq(&emulators[0].mapper(), &emulators[1].mapper()));
    let mut rigs = Vec::new();
    for emulator in emulators {
        rigs.push(Rig::on(place, options.open_transport(emulator)?, 8)?);
    }
    ensure!(space.stats().mappers == 1 && group.mappings() == space.stats().regions, "{:?}", space.stats());
    rigs.iter_mut().try_for_each(|rig| rig.exercise(30))?;
    rigs.pop().context("two")?.close()?;
    ensure!(group.mappings() > 0, "the memory was taken from the other controller");
    let mut rig = rigs.pop().context("two")?;
    rig.exercise(30)?;
    rig.close()?;
    ensure!(group.mappings() == 0, "{} mappings are left", group.mappings());
    Ok(())
}

fn a_controller_that_cannot_reach_the_memory_is_refused_with_the_reason(place: &mut Place) -> Result<()> {
    let space = place.space();
    let _there_first = space.allocate(4096)?;
    let emulator = place.emulator("size=1M,iova_bits=32")?;
    let error = match place.options().space(&space).open_transport(emulator) {
        Err(error) => error.to_string(),
        Ok(controller) => anyhow::bail!("a device of 32 bits was accepted: {controller:?}"),
    };
    ensure!(error.contains("0x") || error.contains("reach"), "{error}");
    Ok(())
}

fn a_39_bit_device_is_given_addresses_that_it_can_reach(place: &mut Place) -> Result<()> {
    for bits in [39, 48, 64] {
        let mut rig = Rig::emulated(place, &format!("size=16M,iova_bits={bits}"), 8)?;
        let buffer = rig.buffer(4096)?;
        ensure!(buffer.iova().0 < 1 << 39, "{}", buffer.iova());
        rig.exercise(20)?;
        rig.close()?;
    }
    Ok(())
}

fn a_device_with_few_mappings_is_an_error_that_names_the_limit(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=1M,map_entries=3")?;
    let space = place.space();
    let controller = place.options().space(&space).open_transport(emulator)?;
    let mut held = Vec::new();
    let error = loop {
        match space.allocate(4 << 20) {
            Ok(buffer) => held.push(buffer),
            Err(error) => break error,
        }
        ensure!(held.len() < 10, "a device with 3 mappings took {} pieces of memory", held.len());
    };
    let text = format!("{:#}", anyhow::Error::from(error));
    ensure!(text.contains("dma_entry_limit"), "{text}");
    // What was there still works.
    let mut rig = Rig::on(place, controller, 4)?;
    rig.exercise(10)?;
    rig.close()
}
