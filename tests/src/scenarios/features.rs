//! Features, the health log, and events.

use anyhow::{Result, bail, ensure};
use doorbell::{Controller, ControllerError, ControllerEvent, Lba, Request, WriteCache};
use doorbell_spec::log_page::{AsyncEvent, AsyncEventKind, LogPage};

use crate::scenario::scenarios;
use crate::{Place, Rig};

scenarios! {
    Nothing:
        the_write_cache_is_turned_off_and_on,
        flush_and_forced_writes_succeed,
        the_health_log_can_be_read,
        atomic_units_can_be_read,
        no_event_is_no_error;
    Emulator:
        a_controller_without_a_write_cache_says_so,
        events_of_every_kind_arrive_as_values,
        more_events_than_requests_all_arrive,
        a_removal_arrives_as_an_event,
}

fn the_write_cache_is_turned_off_and_on(place: &mut Place) -> Result<()> {
    let controller = place.controller()?;
    for wanted in [WriteCache::Off, WriteCache::On, WriteCache::Off, WriteCache::On] {
        controller.set_write_cache(wanted)?;
        ensure!(controller.write_cache()? == wanted, "{wanted:?}");
    }
    ensure!(controller.set_write_cache(WriteCache::Absent).is_err());
    Ok(controller.close()?)
}

fn flush_and_forced_writes_succeed(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    let content = crate::bytes::pattern(3, 4096);
    let buffer = rig.filled(&content)?;
    rig.succeed(Request::write(&rig.namespace, Lba(8), buffer).force_unit_access())?;
    rig.succeed(Request::flush(&rig.namespace))?;
    rig.expect(8, &content)?;
    rig.close()
}

fn the_health_log_can_be_read(place: &mut Place) -> Result<()> {
    let mut rig = Rig::new(place)?;
    rig.exercise(10)?;
    let health = rig.controller.health()?;
    let kelvin = u16::from_le_bytes(health.temperature_kelvin);
    ensure!((200..400).contains(&kelvin), "{kelvin} K");
    ensure!(health.spare_percent <= 100, "{} %", health.spare_percent);
    rig.close()
}

fn atomic_units_can_be_read(place: &mut Place) -> Result<()> {
    let controller = place.controller()?;
    let units = controller.namespaces()[0].atomic_units();
    ensure!(units.normal.0 >= 1 && units.power_fail.0 >= 1, "{units:?}");
    ensure!(units.power_fail <= units.normal, "{units:?}");
    Ok(controller.close()?)
}

fn no_event_is_no_error(place: &mut Place) -> Result<()> {
    let controller = place.controller()?;
    for _ in 0..100 {
        ensure!(controller.poll_event()?.is_none());
        controller.transport().relax(place.clock());
    }
    Ok(controller.close()?)
}

fn a_controller_without_a_write_cache_says_so(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=1M,vwc=off")?;
    let controller = place.options().open_transport(emulator)?;
    ensure!(controller.write_cache()? == WriteCache::Absent);
    match controller.set_write_cache(WriteCache::On) {
        Err(ControllerError::Unsupported { .. }) => Ok(controller.close()?),
        other => bail!("{other:?}"),
    }
}

fn events_of_every_kind_arrive_as_values(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=1M")?;
    let controller = place.options().open_transport(emulator.clone())?;
    let vendor = AsyncEvent { kind: AsyncEventKind::Vendor, info: 9, log_page: LogPage::from_raw(0xc0) };
    for (kind, info, log_page, expected) in [
        (AsyncEventKind::Health, 1, LogPage::Health, ControllerEvent::Health(1)),
        (AsyncEventKind::Error, 3, LogPage::Error, ControllerEvent::Error(3)),
        (AsyncEventKind::Vendor, 9, vendor.log_page, ControllerEvent::Other(vendor)),
        (AsyncEventKind::Health, 2, LogPage::Health, ControllerEvent::Health(2)),
    ] {
        emulator.raise_event(AsyncEvent { kind, info, log_page });
        ensure!(next_event(place, &controller)? == expected, "{expected:?}");
    }
    ensure!(controller.poll_event()?.is_none());
    Ok(controller.close()?)
}

/// A controller with room for one event request: each event must arm the next request.
fn more_events_than_requests_all_arrive(place: &mut Place) -> Result<()> {
    for aerl in [0, 3] {
        let emulator = place.emulator(&format!("size=1M,aerl={aerl}"))?;
        let controller = place.options().open_transport(emulator.clone())?;
        for info in 0..50 {
            let (kind, log_page) = (AsyncEventKind::Health, LogPage::Health);
            emulator.raise_event(AsyncEvent { kind, info, log_page });
            ensure!(next_event(place, &controller)? == ControllerEvent::Health(info), "event {info}");
        }
        controller.close()?;
    }
    Ok(())
}

fn a_removal_arrives_as_an_event(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=1M")?;
    let controller = place.options().open_transport(emulator.clone())?;
    emulator.remove();
    ensure!(controller.poll_event()? == Some(ControllerEvent::Removed));
    ensure!(matches!(controller.poll_event(), Err(ControllerError::ControllerFailed)));
    Ok(())
}

fn next_event(place: &Place, controller: &Controller) -> Result<ControllerEvent> {
    for _ in 0..1000 {
        if let Some(event) = controller.poll_event()? {
            return Ok(event);
        }
        controller.transport().relax(place.clock());
    }
    bail!("no event came")
}
