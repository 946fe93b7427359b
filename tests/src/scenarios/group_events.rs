//! What controllers report by themselves reaches whoever polls a group with their queue pairs.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use doorbell::{ControllerError, ControllerEvent, ControllerId, Nsid, PollGroup, QueueConfig};
use doorbell_emulator::{Emulator, NamespaceConfig};
use doorbell_spec::Clock;
use doorbell_spec::log_page::{AsyncEvent, AsyncEventKind, LogPage};

use crate::scenario::scenarios;
use crate::{Place, Team};

scenarios! {
    Nothing:
        no_event_of_a_group_is_no_error;
    Emulator:
        events_reach_the_group_with_their_controller,
        a_new_namespace_is_seen_through_the_group,
        each_event_is_given_once_whoever_asks,
        an_event_that_nobody_has_fetched_stays_with_the_controller,
        a_removal_and_the_failure_after_it_are_told_once,
        events_of_a_device_that_never_stops_come_to_an_end,
        two_threads_with_groups_share_the_events_of_a_controller,
}

/// Polls between two looks at the controllers.
const POLLS_PER_LOOK: usize = 1024;

fn raise(emulator: &Emulator, info: u8) {
    emulator.raise_event(AsyncEvent { kind: AsyncEventKind::Health, info, log_page: LogPage::Health });
}

/// Polls the group until it has looked at its controllers.
fn look(place: &Place, team: &mut Team) {
    for controller in &team.controllers {
        (0..10).for_each(|_| controller.transport().relax(place.clock()));
    }
    poll_until_it_looks(&mut team.group);
}

fn poll_until_it_looks(group: &mut PollGroup) {
    for _ in 0..POLLS_PER_LOOK {
        group.poll(1, |_, _, _| ());
    }
}

/// The next event, which is one and no failure.
fn event(group: &mut PollGroup) -> Result<Option<(ControllerId, ControllerEvent)>> {
    group.next_event().map(|(controller, event)| Ok((controller, event?))).transpose()
}

fn no_event_of_a_group_is_no_error(place: &mut Place) -> Result<()> {
    let mut team = Team::new(place, &[8, 8], &[8])?;
    for _ in 0..3 {
        team.fill(1, 4)?;
        look(place, &mut team);
        ensure!(team.group.next_event().is_none());
        place.clock().advance(Duration::from_secs(1));
    }
    team.finish()?;
    team.close()
}

fn events_reach_the_group_with_their_controller(place: &mut Place) -> Result<()> {
    let (mut team, emulators) = Team::emulated(place, "size=1M,aerl=3", &[&[8, 8], &[8]])?;
    for round in 0..20 {
        for (number, emulator) in emulators.iter().enumerate() {
            raise(emulator, round * 2 + u8::try_from(number)?);
        }
        ensure!(team.group.next_event().is_none(), "an event before a poll has seen it");
        look(place, &mut team);
        let mut seen = Vec::new();
        while let Some(found) = event(&mut team.group)? {
            seen.push(found);
        }
        let ids = [team.controllers[0].id(), team.controllers[1].id()];
        let expected =
            [(ids[0], ControllerEvent::Health(round * 2)), (ids[1], ControllerEvent::Health(round * 2 + 1))];
        ensure!(seen == expected, "round {round}: {seen:?}");
    }
    team.close()
}

fn a_new_namespace_is_seen_through_the_group(place: &mut Place) -> Result<()> {
    let (mut team, emulators) = Team::emulated(place, "size=1M,nsid=2", &[&[8]])?;
    let mut config = NamespaceConfig::default();
    (config.nsid, config.bytes) = (Nsid(1), Some(1 << 20));
    emulators[0].attach_namespace(&config)?;
    look(place, &mut team);
    ensure!(team.controllers[0].namespace(Nsid(1)).is_err(), "nobody has fetched the event");
    let id = team.controllers[0].id();
    ensure!(event(&mut team.group)? == Some((id, ControllerEvent::NamespacesChanged)));
    ensure!(team.controllers[0].namespace(Nsid(1)).is_ok());
    team.close()
}

/// Two groups and the controller itself: whoever asks first has it, and nobody else.
fn each_event_is_given_once_whoever_asks(place: &mut Place) -> Result<()> {
    let (mut team, emulators) = Team::emulated(place, "size=1M", &[&[8, 8]])?;
    let mut other = PollGroup::new();
    other.add(team.group.remove(team.members[1]).context("a member")?);
    for info in 0..12 {
        raise(&emulators[0], info);
        look(place, &mut team);
        poll_until_it_looks(&mut other);
        let mut seen = Vec::new();
        for asker in 0..3 {
            let found = match (asker + info) % 3 {
                0 => event(&mut team.group)?.map(|(_, event)| event),
                1 => event(&mut other)?.map(|(_, event)| event),
                _ => team.controllers[0].poll_event()?,
            };
            seen.extend(found.map(|event| (asker, event)));
        }
        ensure!(seen == [(0, ControllerEvent::Health(info))], "{seen:?}");
    }
    drop(other);
    team.close()
}

fn an_event_that_nobody_has_fetched_stays_with_the_controller(place: &mut Place) -> Result<()> {
    let (mut team, emulators) = Team::emulated(place, "size=1M", &[&[8]])?;
    raise(&emulators[0], 5);
    look(place, &mut team);
    drop(std::mem::take(&mut team.group));
    ensure!(team.controllers[0].poll_event()? == Some(ControllerEvent::Health(5)));
    ensure!(team.controllers[0].poll_event()?.is_none());
    team.close()
}

/// Both devices are removed, and no request is outstanding that would notice.
fn a_removal_and_the_failure_after_it_are_told_once(place: &mut Place) -> Result<()> {
    let (mut team, emulators) = Team::emulated(place, "size=1M", &[&[8], &[8]])?;
    emulators.iter().for_each(|emulator| emulator.remove());
    // The bus is asked ten times a second at most.
    look(place, &mut team);
    place.clock().advance(Duration::from_millis(100));
    let mut told = Vec::new();
    for _ in 0..5 {
        look(place, &mut team);
        while let Some((controller, event)) = team.group.next_event() {
            told.push((controller, event.map_err(|error| error.to_string())));
        }
    }
    let failed = || Err(ControllerError::ControllerFailed.to_string());
    for controller in &team.controllers {
        let mine: Vec<_> = told.iter().filter(|(id, _)| *id == controller.id()).map(|(_, it)| it).collect();
        ensure!(mine == [&Ok(ControllerEvent::Removed), &failed()], "{told:?}");
    }
    Ok(())
}

/// Whoever takes all events that there are must come to an end, however many the device makes.
fn events_of_a_device_that_never_stops_come_to_an_end(place: &mut Place) -> Result<()> {
    let (mut team, emulators) = Team::emulated(place, "size=1M,aerl=0", &[&[8]])?;
    for _ in 0..3 {
        raise(&emulators[0], 0);
        look(place, &mut team);
        let mut taken = 0_u8;
        while event(&mut team.group)?.is_some() {
            taken += 1;
            raise(&emulators[0], taken);
            (0..10).for_each(|_| team.controllers[0].transport().relax(place.clock()));
            ensure!(taken < 100, "it does not end");
        }
        ensure!(taken > 1, "{taken} events");
    }
    team.close()
}

fn two_threads_with_groups_share_the_events_of_a_controller(place: &mut Place) -> Result<()> {
    const EVENTS: u8 = 60;
    let emulator = Emulator::spawn("size=1M".parse()?)?;
    let clock = Clock::monotonic();
    let deadline = clock.deadline(Duration::from_secs(30));
    let options = place.options().clock(&clock);
    let controller = options.open_transport(emulator.clone())?;
    let seen = Mutex::new(BTreeSet::new());
    let count = AtomicUsize::new(0);
    std::thread::scope(|scope| -> Result<()> {
        let threads = [0, 1].map(|_| {
            let mut group = PollGroup::new();
            let made = controller.create_queue(QueueConfig::with_depth(4)).map(|queue| group.add(queue));
            let (seen, count, clock) = (&seen, &count, &clock);
            scope.spawn(move || -> Result<()> {
                made?;
                while count.load(Ordering::Relaxed) < usize::from(EVENTS) {
                    ensure!(!deadline.passed(clock), "{count:?} of {EVENTS} events came");
                    group.poll(4, |_, _, _| ());
                    let Some((_, event)) = group.next_event() else { continue };
                    let ControllerEvent::Health(info) = event? else { bail!("another event") };
                    ensure!(seen.lock().expect("no panic").insert(info), "event {info} came twice");
                    count.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            })
        });
        for info in 0..EVENTS {
            // A device keeps only so many.
            while usize::from(info) > count.load(Ordering::Relaxed) + 4 && !deadline.passed(&clock) {
                std::thread::yield_now();
            }
            raise(&emulator, info);
        }
        threads.into_iter().try_for_each(|it| it.join().expect("no panic"))
    })?;
    ensure!(seen.into_inner()?.len() == usize::from(EVENTS));
    Ok(controller.close()?)
}
