//! Groups: fair, whoever comes and goes, and whichever controller fails.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use doorbell::{Blocks, IoError, Lba, Member, PollGroup, QueueConfig, Request, SubmitError};

use crate::scenario::scenarios;
use crate::{Place, Random, Team};

scenarios! {
    Nothing:
        a_flood_delays_another_member_by_no_more_polls_than_promised,
        flooded_members_get_equal_shares,
        what_a_member_does_not_use_is_left_to_those_after_it,
        a_poll_of_a_group_takes_no_more_than_its_budget,
        a_key_names_its_member_and_no_later_one,
        a_member_leaves_with_its_requests_outstanding,
        each_request_of_a_group_ends_once_whoever_comes_and_goes,
        a_group_that_is_dropped_deletes_its_queues,
        members_may_see_different_memory,
        an_empty_group_has_nothing;
    Emulator:
        more_members_than_bits_in_a_word_all_get_their_turns,
        one_members_controller_fails_and_the_others_go_on,
        a_silent_member_is_looked_at_under_a_flood,
}

/// Every number of budgets below, at and above that of the members, and every place in the rotation.
fn a_flood_delays_another_member_by_no_more_polls_than_promised(place: &mut Place) -> Result<()> {
    let mut team = Team::new(place, &[64, 64, 64], &[8])?;
    let quiet = team.members[3];
    let flooded = BTreeMap::from_iter(team.members.iter().copied().zip(team.namespaces.clone()));
    for budget in 1..=6_usize {
        for already in 0..4 {
            for member in 0..3 {
                let busy = team.group.queue(team.members[member]).context("a member")?.outstanding();
                team.fill(member, 64 - busy)?;
            }
            team.submit(3, team.flush(3))?;
            let again = |plug: &mut doorbell::GroupPlug<'_>, member: Member| {
                let refused = plug.submit(member, Request::flush(&flooded[&member])).err();
                assert!(refused.is_none(), "{refused:?}");
            };
            team.settle();
            let promised = 4_usize.div_ceil(budget);
            let mut polls = 0;
            let mut ended = false;
            while !ended {
                polls += 1;
                ensure!(
                    polls <= promised,
                    "budget {budget}: the quiet one waits longer than {promised} polls"
                );
                let taken = team.group.poll(budget, |plug, member, _| match member == quiet {
                    true => ended = true,
                    false => again(plug, member),
                });
                ensure!(taken <= budget, "{taken} of {budget}");
            }
            // Another place in the rotation for the next round.
            for _ in 0..already {
                team.group.poll(1, |plug, member, _| again(plug, member));
            }
        }
    }
    team.finish()?;
    team.close()
}

fn flooded_members_get_equal_shares(place: &mut Place) -> Result<()> {
    let mut team = Team::new(place, &[64, 64], &[64])?;
    for (budget, polls, each) in [(12, 4, 16), (10, 3, 10), (1, 9, 3), (2, 9, 6), (100, 1, 33)] {
        for member in 0..3 {
            team.fill(member, 60)?;
        }
        team.settle();
        let mut counts = BTreeMap::<usize, i32>::new();
        for _ in 0..polls {
            team.group.poll(budget, |_, member, _| *counts.entry(member.index()).or_default() += 1);
        }
        let allowed = each..=each + i32::from(budget == 100);
        ensure!(counts.len() == 3 && counts.values().all(|it| allowed.contains(it)), "{budget}: {counts:?}");
        team.finish()?;
    }
    team.close()
}

fn what_a_member_does_not_use_is_left_to_those_after_it(place: &mut Place) -> Result<()> {
    let mut team = Team::new(place, &[64], &[64])?;
    team.fill(0, 1)?;
    team.fill(1, 40)?;
    team.settle();
    // A group begins with its first member.
    ensure!(team.group.poll(10, |_, _, _| ()) == 10);
    team.fill(0, 1)?;
    team.settle();
    // Now the second is first, gets half, and the first one does not use the rest.
    ensure!(team.group.poll(10, |_, _, _| ()) == 6);
    ensure!(team.group.poll(10, |_, _, _| ()) == 10, "a member alone gets all");
    ensure!(team.group.poll(usize::MAX, |_, _, _| ()) == 16);
    team.close()
}

fn a_poll_of_a_group_takes_no_more_than_its_budget(place: &mut Place) -> Result<()> {
    let mut team = Team::new(place, &[16, 16], &[16])?;
    for member in 0..3 {
        team.fill(member, 16)?;
    }
    team.settle();
    ensure!(team.group.poll(0, |_, _, _| ()) == 0);
    let mut left = 48;
    for budget in [1, 2, 3, 7, 1, 20, 14] {
        let taken = team.group.poll(budget, |_, _, _| ());
        ensure!(taken <= budget && taken > 0, "{taken} of {budget}");
        left -= taken;
    }
    ensure!(team.outstanding() == left && left < 10, "{left} are left");
    team.finish()?;
    team.close()
}

fn a_key_names_its_member_and_no_later_one(place: &mut Place) -> Result<()> {
    let mut team = Team::new(place, &[4, 4], &[4])?;
    let [first, second, third] = team.members[..] else { anyhow::bail!("three members") };
    ensure!(team.group.controller(first) == Some(team.controllers[0].id()));
    ensure!(team.group.controller(third) == Some(team.controllers[1].id()));
    let queue = team.group.remove(first).context("a member")?;
    ensure!(team.group.remove(first).is_none() && team.group.queue(first).is_none());
    let again = team.group.add(queue);
    ensure!(again.index() == first.index() && again != first, "{again:?} after {first:?}");
    for (member, is_there) in [(first, false), (second, true), (third, true), (again, true)] {
        ensure!(team.group.queue_mut(member).is_some() == is_there, "{member:?}");
        ensure!(team.group.controller(member).is_some() == is_there);
        let namespace = if member == third { team.namespaces[2] } else { team.namespaces[0] };
        let refused = team.group.plug(1).submit(member, Request::flush(&namespace).user_data(5)).err();
        match refused {
            None => ensure!(is_there, "{member:?} is not there and takes requests"),
            Some(refused) => {
                ensure!(!is_there && refused.error == SubmitError::NoSuchMember, "{}", refused.error);
            }
        }
    }
    // A member of another group names nobody here, although it has the same index.
    let mut other = PollGroup::new();
    let stranger = other.add(team.group.remove(second).context("a member")?);
    ensure!(team.group.queue(stranger).is_none());
    team.group.add(other.remove(stranger).context("a member")?);
    ensure!(team.group.len() == 3 && other.is_empty());
    ensure!(team.finish()?.len() == 3);
    team.close()
}

fn a_member_leaves_with_its_requests_outstanding(place: &mut Place) -> Result<()> {
    let mut team = Team::new(place, &[8, 8], &[8])?;
    for member in 0..3 {
        team.fill(member, 5)?;
    }
    let mut queue = team.group.remove(team.members[0]).context("a member")?;
    ensure!(queue.outstanding() == 5);
    ensure!(team.finish()?.len() == 10, "the others' requests ended with it");
    team.settle();
    ensure!(queue.poll(8, |_, completion| assert!(completion.result.is_ok())) == 5);
    drop(queue);
    team.close()
}

/// Requests, polls, arrivals and departures in a random order; each request is answered once, by its member.
fn each_request_of_a_group_ends_once_whoever_comes_and_goes(place: &mut Place) -> Result<()> {
    let mut random = Random::new(26);
    let mut team = Team::new(place, &[7, 1, 32], &[16, 3])?;
    let mut namespaces = BTreeMap::from_iter(team.members.iter().copied().zip(team.namespaces.clone()));
    let mut open = BTreeMap::new();
    let mut spare = Vec::new();
    let mut ended = 0;
    for number in 0..4000_u64 {
        let members: Vec<Member> = team.group.members().collect();
        match random.below(12) {
            0 if members.len() > 1 => {
                let leaver = members[random.index(members.len())];
                spare.push((leaver, team.group.remove(leaver).context("a member")?));
            }
            1 => {
                if let Some((was, queue)) = spare.pop() {
                    let namespace = namespaces.remove(&was).context("known")?;
                    let now = team.group.add(queue);
                    namespaces.insert(now, namespace);
                    open.values_mut().filter(|owner| **owner == was).for_each(|owner| *owner = now);
                }
            }
            2..6 => {
                let member = members[random.index(members.len())];
                let request = Request::write_zeroes(&namespaces[&member], Lba(number % 64), Blocks(1));
                match team.group.plug(1).submit(member, request.user_data(number)) {
                    Ok(_) => drop(open.insert(number, member)),
                    Err(refused) => ensure!(refused.error == SubmitError::QueueFull, "{}", refused.error),
                }
            }
            6..9 => team.controllers.iter().for_each(|it| it.transport().relax(place.clock())),
            _ => {
                team.group.poll(1 + random.index(4), |_, member, completion| {
                    assert!(completion.result.is_ok());
                    assert_eq!(open.remove(&completion.user_data), Some(member));
                    ended += 1;
                });
            }
        }
    }
    for (was, queue) in spare {
        let now = team.group.add(queue);
        open.values_mut().filter(|owner| **owner == was).for_each(|owner| *owner = now);
    }
    for (member, completion) in team.finish()? {
        ensure!(open.remove(&completion.user_data) == Some(member));
        ended += 1;
    }
    ensure!(open.is_empty() && ended > 500, "{} of {ended} requests did not end", open.len());
    team.close()
}

fn a_group_that_is_dropped_deletes_its_queues(place: &mut Place) -> Result<()> {
    let mut team = Team::new(place, &[4, 4], &[4])?;
    team.fill(0, 3)?;
    drop(std::mem::take(&mut team.group));
    let queue = team.controllers[0].create_queue(QueueConfig::with_depth(4))?;
    ensure!(queue.id().0 == 1, "queue 1 is still there");
    drop(queue);
    team.close()
}

fn members_may_see_different_memory(place: &mut Place) -> Result<()> {
    let first = place.controller()?;
    let options = place.options();
    let second = place.second_controller(&options)?;
    let mut group = PollGroup::new();
    let members = [&first, &second].map(|it| it.create_queue(QueueConfig::with_depth(4)));
    let members = members.into_iter().map(|queue| Ok(group.add(queue?))).collect::<Result<Vec<_>>>()?;
    let buffers = [first.space().allocate(512)?, second.space().allocate(512)?];
    let mut plug = group.plug(2);
    for ((member, controller), buffer) in members.iter().zip([&first, &second]).zip(buffers) {
        let request = Request::read(&controller.namespaces()[0], Lba(0), buffer);
        plug.submit(*member, request).map_err(|refused| refused.error)?;
    }
    plug.finish();
    let mut ended = 0;
    for _ in 0..10_000 {
        [&first, &second].iter().for_each(|it| it.transport().relax(place.clock()));
        ended += group.poll(8, |_, _, completion| assert!(completion.result.is_ok()));
        if ended == 2 {
            break;
        }
    }
    ensure!(ended == 2, "{ended} of 2 reads ended");
    drop(group);
    first.close()?;
    Ok(second.close()?)
}

fn an_empty_group_has_nothing(_: &mut Place) -> Result<()> {
    let mut group = PollGroup::new();
    for _ in 0..5000 {
        ensure!(group.poll(8, |_, _, _| ()) == 0 && group.next_event().is_none());
    }
    group.plug(8).finish();
    ensure!(group.is_empty() && group.members().len() == 0 && group.into_queues().len() == 0);
    Ok(())
}

fn more_members_than_bits_in_a_word_all_get_their_turns(place: &mut Place) -> Result<()> {
    let (mut team, _) = Team::emulated(place, "size=1M,queues=70", &[&[2; 70], &[2; 70]])?;
    for budget in [1, 3, 64, 140, 1000] {
        for member in 0..140 {
            team.submit(member, team.flush(member).user_data(member as u64))?;
        }
        team.settle();
        let mut seen = vec![0; 140];
        for _ in 0..140_usize.div_ceil(budget) {
            team.group.poll(budget, |_, member, completion| {
                assert_eq!(member.index() as u64, completion.user_data);
                seen[member.index()] += 1;
            });
        }
        ensure!(seen.iter().all(|it| *it == 1), "budget {budget}: {seen:?}");
    }
    team.close()
}

fn one_members_controller_fails_and_the_others_go_on(place: &mut Place) -> Result<()> {
    let (mut team, emulators) = Team::emulated(place, "size=1M", &[&[8], &[8, 8], &[8]])?;
    for member in 0..4 {
        team.fill(member, 4)?;
    }
    emulators[1].remove();
    let mut failed = BTreeMap::<usize, u32>::new();
    for (member, completion) in team.finish()? {
        let is_removed = [1, 2].contains(&member.index());
        match completion.result {
            Ok(_) => ensure!(!is_removed, "a request of a removed device succeeded"),
            Err(IoError::ControllerFailed) => *failed.entry(member.index()).or_default() += 1,
            Err(other) => return Err(other.into()),
        }
    }
    ensure!(failed == BTreeMap::from([(1, 4), (2, 4)]), "{failed:?}");
    for member in 0..4 {
        let request = team.flush(member);
        let outcome = team.group.plug(1).submit(team.members[member], request);
        let refusal = outcome.err().map(|refused| refused.error);
        let expected = [1, 2].contains(&member).then_some(SubmitError::ControllerFailed);
        ensure!(refusal == expected, "member {member}: {refusal:?}");
    }
    ensure!(team.finish()?.len() == 2);
    // The members of the failed controller can go like any other.
    drop(team.group.remove(team.members[1]));
    drop(team.group);
    drop(team.controllers.remove(1));
    team.controllers.into_iter().try_for_each(|controller| Ok(controller.close()?))
}

/// The look at a silent controller is owed at every 64th empty poll. With a budget of one, and others that
/// always have something, it must not be lost.
fn a_silent_member_is_looked_at_under_a_flood(place: &mut Place) -> Result<()> {
    // Whose turn it is at that poll depends on how many others there are.
    for others in 1..5_usize {
        let depths = vec![64; others];
        let (mut team, emulators) = Team::emulated(place, "size=1M", &[&depths, &[8]])?;
        let (quiet, namespace) = (team.members[others], team.namespaces[0]);
        (0..others).try_for_each(|member| team.fill(member, 64))?;
        team.fill(others, 1)?;
        emulators[1].remove();
        place.clock().advance(Duration::from_secs(1));
        let mut result = None;
        for _ in 0..=64 + others {
            team.controllers[0].transport().relax(place.clock());
            team.group.poll(1, |plug, member, completion| match member == quiet {
                true => result = Some(completion.result),
                false => assert!(plug.submit(member, Request::flush(&namespace)).is_ok()),
            });
        }
        ensure!(result == Some(Err(IoError::ControllerFailed)), "{others} others: {result:?}");
        team.finish()?;
    }
    Ok(())
}
