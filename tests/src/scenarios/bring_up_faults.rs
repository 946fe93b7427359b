//! Bring-up of a controller that is not well: late, stuck, fatal, refusing, or pulled out half-way.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use doorbell::ControllerError;
use doorbell_emulator::fault::{Action, Match, Point, Rule};
use doorbell_spec::Status;

use crate::scenario::scenarios;
use crate::{Place, Rig};

scenarios! {
    Emulator:
        ready_that_comes_late_is_waited_for,
        ready_that_never_comes_is_an_error_at_cap_to,
        ready_is_waited_for_as_long_as_the_longer_of_cap_to_and_crto,
        a_fatal_status_ends_the_wait_for_ready,
        all_ones_at_any_register_read_is_a_removed_device,
        all_ones_at_any_register_write_is_a_removed_device,
        a_fatal_status_at_any_register_read_is_an_error,
        an_admin_command_that_fails_is_a_typed_error_or_does_not_matter,
        an_admin_command_that_is_lost_is_an_error_in_bounded_time,
        a_device_that_goes_at_any_admin_command_is_removed,
}

fn ready_that_comes_late_is_waited_for(place: &mut Place) -> Result<()> {
    let start = place.clock().now();
    let mut rig = Rig::emulated(place, "size=1M,to=5s,ready_delay=4900ms", 4)?;
    ensure!(place.since(start) >= Duration::from_millis(4900), "it cannot have been ready yet");
    rig.exercise(10)?;
    rig.close()
}

fn ready_that_never_comes_is_an_error_at_cap_to(place: &mut Place) -> Result<()> {
    for (to, span) in [("5s", 5_000), ("500ms", 500)] {
        let emulator = place.emulator(&format!("size=1M,to={to},never_ready=on"))?;
        let start = place.clock().now();
        match place.options().open_transport(emulator) {
            Err(ControllerError::Timeout { span: said, .. }) => {
                ensure!(said == Duration::from_millis(span), "{said:?}");
            }
            other => bail!("a controller that is never ready: {other:?}"),
        }
        // Once to become ready, and once more since it may be disabled only when it is ready.
        let most = Duration::from_millis(3 * span + 100);
        ensure!(place.since(start) >= Duration::from_millis(span) && place.since(start) < most);
    }
    Ok(())
}

fn ready_is_waited_for_as_long_as_the_longer_of_cap_to_and_crto(place: &mut Place) -> Result<()> {
    Rig::emulated(place, "size=1M,to=500ms,crto=20s,ready_delay=15s", 4)?.close()?;
    Rig::emulated(place, "size=1M,to=20s,crto=500ms,ready_delay=15s", 4)?.close()
}

fn a_fatal_status_ends_the_wait_for_ready(place: &mut Place) -> Result<()> {
    let emulator = place.emulator("size=1M,to=100s,never_ready=on")?;
    emulator.faults().arm(rule(Point::Enable, 0, Action::Fatal));
    let start = place.clock().now();
    match place.options().open_transport(emulator) {
        Err(ControllerError::Fatal { .. }) => {}
        other => bail!("a controller that fails while it is enabled: {other:?}"),
    }
    ensure!(place.since(start) < Duration::from_secs(1), "{:?}", place.since(start));
    Ok(())
}

fn all_ones_at_any_register_read_is_a_removed_device(place: &mut Place) -> Result<()> {
    let is_right = |error: &ControllerError| matches!(error, ControllerError::Removed { .. });
    at_every(place, Point::RegisterRead, Action::AllOnes, is_right).map(drop)
}

fn all_ones_at_any_register_write_is_a_removed_device(place: &mut Place) -> Result<()> {
    let is_right = |error: &ControllerError| matches!(error, ControllerError::Removed { .. });
    at_every(place, Point::RegisterWrite, Action::AllOnes, is_right).map(drop)
}

/// A failure before the controller is reset does not matter: the reset ends it.
fn a_fatal_status_at_any_register_read_is_an_error(place: &mut Place) -> Result<()> {
    let is_right = |error: &ControllerError| matches!(error, ControllerError::Fatal { .. });
    let outcomes = at_every(place, Point::RegisterRead, Action::Fatal, is_right)?;
    ensure!(outcomes.failed >= 3, "{outcomes:?}");
    Ok(())
}

fn an_admin_command_that_fails_is_a_typed_error_or_does_not_matter(place: &mut Place) -> Result<()> {
    let action = Action::Status(Status::INTERNAL_ERROR);
    let is_right = |error: &ControllerError| match error {
        ControllerError::Admin { status, .. } => status.kind() == Status::INTERNAL_ERROR,
        _ => false,
    };
    let outcomes = at_every(place, Point::Admin, action, is_right)?;
    // Identify of the controller, the list, and the number of queues cannot be done without.
    ensure!(outcomes.failed >= 3, "{outcomes:?}");
    // One namespace of several, the event configuration, and the event requests can.
    ensure!(outcomes.survived >= 3, "{outcomes:?}");
    Ok(())
}

fn an_admin_command_that_is_lost_is_an_error_in_bounded_time(place: &mut Place) -> Result<()> {
    let is_right = |error: &ControllerError| matches!(error, ControllerError::Timeout { .. });
    let outcomes = at_every(place, Point::Admin, Action::Drop, is_right)?;
    ensure!(outcomes.failed >= 5, "{outcomes:?}");
    ensure!(outcomes.survived >= 1, "an event request that is lost does not matter: {outcomes:?}");
    Ok(())
}

fn a_device_that_goes_at_any_admin_command_is_removed(place: &mut Place) -> Result<()> {
    let is_right = |error: &ControllerError| matches!(error, ControllerError::Removed { .. });
    let outcomes = at_every(place, Point::Admin, Action::AllOnes, is_right)?;
    ensure!(outcomes.failed >= 5, "{outcomes:?}");
    Ok(())
}

/// What bring-ups with a fault came to.
#[derive(Debug, Default)]
struct Outcomes {
    failed: u32,
    survived: u32,
}

/// Opens a controller again and again, with the fault at its first, second, third, … event, until the
/// bring-up has no further such event.
fn at_every(
    place: &mut Place,
    point: Point,
    action: Action,
    is_right: impl Fn(&ControllerError) -> bool,
) -> Result<Outcomes> {
    let mut outcomes = Outcomes::default();
    for n in 0..1000 {
        let emulator = place.emulator("size=1M,nsid=1+2,shadow_doorbells=on")?;
        let id = emulator.faults().arm(rule(point, n, action));
        let space = place.space();
        let start = place.clock().now();
        let opened = place.options().space(&space).open_transport(emulator.clone());
        let took = place.since(start);
        ensure!(took < Duration::from_secs(60), "at {point:?} {n}: {took:?}");
        // Event requests are with the device when bring-up ends, and are taken by it a little later.
        emulator.step(64);
        let fired = emulator.faults().fired(id) > 0;
        match opened {
            Ok(controller) => {
                emulator.faults().disarm(id);
                if fired {
                    outcomes.survived += 1;
                }
                // Whoever says that the controller is up stands by it, unless the device has gone since.
                if action != Action::AllOnes || !fired {
                    let rig = Rig::on(place, controller, 4);
                    let mut rig =
                        rig.with_context(|| format!("up in spite of {action:?} at {point:?} {n}"))?;
                    rig.exercise(10)?;
                    rig.close()?;
                }
            }
            Err(error) => {
                outcomes.failed += 1;
                ensure!(fired, "without a fault, at {point:?} {n}: {error}");
                ensure!(is_right(&error), "at {point:?} {n}: {error:?}");
            }
        }
        let stats = space.stats();
        ensure!(stats.used_bytes == 0 && stats.mappers == 0, "left behind at {point:?} {n}: {stats:?}");
        if !fired {
            return Ok(outcomes);
        }
    }
    bail!("bring-up does not end: {outcomes:?}")
}

fn rule(point: Point, skip: u64, action: Action) -> Rule {
    Rule::new(Match { point, skip, count: Some(1), ..Match::default() }, action)
}
