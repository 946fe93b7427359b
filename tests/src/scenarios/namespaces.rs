//! Namespaces: found in any number and order, and told apart.

use anyhow::{Result, bail, ensure};
use doorbell::{ControllerError, ControllerEvent, Lba, NamespaceError, Nsid, Request};
use doorbell_emulator::NamespaceConfig;

use crate::bytes::pattern;
use crate::scenario::scenarios;
use crate::{Place, Rig};

scenarios! {
    Nothing:
        two_namespaces_do_not_share_blocks,
        a_namespace_that_does_not_exist_is_named_with_those_that_do;
    Emulator:
        a_list_with_gaps_is_found_whole,
        a_list_longer_than_1024_is_found_whole,
        a_namespace_that_comes_and_goes_is_reported_and_seen,
        requests_to_a_namespace_that_has_gone_fail_with_the_devices_status,
        a_controller_without_namespaces_comes_up,
}

fn two_namespaces_do_not_share_blocks(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    let (first, second) = (pattern(1, 8192), pattern(2, 8192));
    rig = rig.for_namespace(1)?;
    rig.write(16, &first)?;
    rig = rig.for_namespace(2)?;
    rig.write(2, &second)?;
    rig.expect(2, &second)?;
    rig = rig.for_namespace(1)?;
    rig.expect(16, &first)?;
    rig.close()
}

fn a_namespace_that_does_not_exist_is_named_with_those_that_do(place: &mut Place) -> Result<()> {
    let controller = place.controller()?;
    for missing in [Nsid(0), Nsid(3), Nsid(u32::MAX)] {
        match controller.namespace(missing) {
            Err(ControllerError::Namespace(NamespaceError::NotFound { nsid, present })) => {
                ensure!(nsid == missing && present == "1, 2", "{present}");
            }
            other => bail!("namespace {missing}: {other:?}"),
        }
    }
    Ok(controller.close()?)
}

fn a_list_with_gaps_is_found_whole(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=1M,nsid=1+3+7+100000")?;
    let controller = place.options().open_transport(emulator)?;
    let found: Vec<u32> = controller.namespaces().iter().map(|it| it.nsid().0).collect();
    ensure!(found == [1, 3, 7, 100_000], "{found:?}");
    let mut rig = Rig::on(place, controller, 4)?;
    for nsid in found {
        rig = rig.for_namespace(nsid)?;
        rig.write(5, &pattern(u64::from(nsid), 512))?;
    }
    for nsid in [1, 3, 7, 100_000] {
        rig = rig.for_namespace(nsid)?;
        rig.expect(5, &pattern(u64::from(nsid), 512))?;
    }
    rig.close()
}

/// A page of the list holds 1,024: around that number, twice that number, and with gaps at the seams.
fn a_list_longer_than_1024_is_found_whole(place: &mut Place) -> Result<()> {
    for (list, count, last) in [
        ("1-1023", 1023, 1023),
        ("1-1024", 1024, 1024),
        ("1-1025", 1025, 1025),
        ("1-1023+2000-3026", 2050, 3026),
        ("5-2052", 2048, 2052),
    ] {
        let emulator = place.emulator(&format!("backend=null,size=1M,nsid={list}"))?;
        let controller = place.options().open_transport(emulator)?;
        let found = controller.namespaces();
        let ascends = found.windows(2).all(|pair| pair[0].nsid() < pair[1].nsid());
        ensure!(found.len() == count && ascends, "{list}: {} namespaces", found.len());
        ensure!(found.last().is_some_and(|it| it.nsid() == Nsid(last)), "{list}: {:?}", found.last());
        controller.close()?;
    }
    Ok(())
}

fn a_namespace_that_comes_and_goes_is_reported_and_seen(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=1M,nsid=2")?;
    let controller = place.options().open_transport(emulator.clone())?;
    ensure!(controller.poll_event()?.is_none(), "an event before anything has happened");
    let mut config = NamespaceConfig::default();
    (config.nsid, config.bytes) = (Nsid(1), Some(1 << 20));
    for round in 0..12 {
        emulator.attach_namespace(&config)?;
        ensure!(next_event(place, &controller)? == ControllerEvent::NamespacesChanged, "round {round}");
        ensure!(controller.namespaces().len() == 2 && controller.namespace(Nsid(1)).is_ok());
        emulator.detach_namespace(Nsid(1))?;
        ensure!(next_event(place, &controller)? == ControllerEvent::NamespacesChanged, "round {round}");
        ensure!(controller.namespaces().len() == 1 && controller.namespace(Nsid(1)).is_err());
    }
    Ok(controller.close()?)
}

fn next_event(place: &Place, controller: &doorbell::Controller) -> Result<ControllerEvent> {
    for _ in 0..1000 {
        if let Some(event) = controller.poll_event()? {
            return Ok(event);
        }
        controller.transport().relax(place.clock());
    }
    bail!("no event came")
}

fn requests_to_a_namespace_that_has_gone_fail_with_the_devices_status(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=1M,nsid=1+2")?;
    let controller = place.options().open_transport(emulator.clone())?;
    let mut rig = Rig::on(place, controller, 4)?.for_namespace(2)?;
    emulator.detach_namespace(Nsid(2))?;
    let buffer = rig.buffer(512)?;
    let completion = rig.run(Request::read(&rig.namespace, Lba(0), buffer))?;
    ensure!(completion.result.is_err() && completion.buffer.bytes() == 512, "{completion:?}");
    rig = rig.for_namespace(1)?;
    rig.exercise(10)?;
    rig.close()
}

fn a_controller_without_namespaces_comes_up(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=1M")?;
    emulator.detach_namespace(Nsid(1))?;
    let controller = place.options().open_transport(emulator)?;
    ensure!(controller.namespaces().is_empty());
    match controller.namespace(Nsid(1)) {
        Err(ControllerError::Namespace(NamespaceError::NotFound { present, .. })) => {
            ensure!(present == "none", "{present}");
        }
        other => bail!("{other:?}"),
    }
    Ok(controller.close()?)
}
