//! Plugs over several members: each rung once, none forgotten, and callbacks that submit to others.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use anyhow::{Context, Result, ensure};
use doorbell::{Lba, QueueConfig, Request, SubmitError};

use crate::bytes::pattern;
use crate::scenario::scenarios;
use crate::{Place, Team};

scenarios! {
    Nothing:
        each_member_is_rung_once_for_a_plug,
        each_member_keeps_its_own_limit,
        sixty_four_waiting_requests_ring_all_members,
        what_a_full_member_has_rung_waits_no_more,
        requests_for_the_polled_member_are_counted_and_rung_with_the_others,
        a_large_request_rings_its_member_alone,
        a_group_plug_that_ends_by_a_panic_is_rung,
        a_group_plug_that_is_forgotten_is_rung_by_whatever_comes_next,
        what_waits_for_a_member_that_moves_is_rung,
        a_full_member_gives_the_request_back_and_the_others_go_on,
        a_poll_rings_every_member_that_its_callback_submits_to_once,
        what_a_members_own_turn_rings_is_not_counted_twice,
        a_callback_that_panics_leaves_nothing_unrung,
        what_is_read_from_one_member_is_written_to_the_others,
}

/// Submits `counts[n]` requests to member `n`, in turn, through one plug, which is forgotten.
fn post(team: &mut Team, counts: &[usize]) -> Result<()> {
    let mut left = counts.to_vec();
    let mut plug = team.group.plug(u32::try_from(counts.iter().sum::<usize>())?);
    while left.iter().any(|count| *count > 0) {
        for (member, count) in left.iter_mut().enumerate().filter(|(_, count)| **count > 0) {
            let request = Request::flush(&team.namespaces[member]);
            plug.submit(team.members[member], request).map_err(|refused| refused.error)?;
            *count -= 1;
        }
    }
    std::mem::forget(plug);
    Ok(())
}

/// How often each member was rung by that, before and after the plug's end.
fn rings_of(team: &mut Team, counts: &[usize]) -> Result<(Vec<u64>, Vec<u64>)> {
    let start = team.rings()?;
    let since = |team: &Team| -> Result<Vec<u64>> {
        Ok(team.rings()?.iter().zip(&start).map(|(now, then)| now - then).collect())
    };
    post(team, counts)?;
    let before = since(team)?;
    // The next plug ends what the last one has left behind.
    team.group.plug(0).finish();
    let after = since(team)?;
    ensure!(team.finish()?.len() == counts.iter().sum::<usize>());
    Ok((before, after))
}

fn each_member_is_rung_once_for_a_plug(place: &mut Place) -> Result<()> {
    let mut team = Team::new(place, &[64, 64], &[64])?;
    for counts in [[1, 1, 1], [10, 10, 10], [31, 0, 31], [0, 5, 0], [21, 21, 21], [31, 31, 1]] {
        let expected: Vec<u64> = counts.iter().map(|count| u64::from(*count > 0)).collect();
        let (before, after) = rings_of(&mut team, &counts)?;
        ensure!(before == [0; 3] && after == expected, "{counts:?}: {before:?}, then {after:?}");
    }
    team.close()
}

fn each_member_keeps_its_own_limit(place: &mut Place) -> Result<()> {
    let mut team = Team::new(place, &[128, 128], &[64, 64])?;
    for (counts, early) in [
        ([32, 0, 0, 0], [1, 0, 0, 0]),
        ([33, 5, 0, 0], [1, 0, 0, 0]),
        ([100, 1, 0, 0], [3, 0, 0, 0]),
        // What a member has rung by itself does not count for all.
        ([32, 31, 0, 0], [1, 0, 0, 0]),
        ([63, 31, 0, 0], [1, 0, 0, 0]),
    ] {
        let (before, after) = rings_of(&mut team, &counts)?;
        ensure!(before == early, "{counts:?}: {before:?}");
        let expected: Vec<u64> = counts.iter().map(|count| count.div_ceil(32) as u64).collect();
        ensure!(after == expected, "{counts:?}: {after:?}");
    }
    team.close()
}

fn sixty_four_waiting_requests_ring_all_members(place: &mut Place) -> Result<()> {
    let mut team = Team::new(place, &[128, 128], &[64, 64])?;
    for (counts, early, late) in [
        ([16, 16, 16, 15], [0, 0, 0, 0], [1, 1, 1, 1]),
        ([16, 16, 16, 16], [1, 1, 1, 1], [1, 1, 1, 1]),
        ([22, 21, 21, 0], [1, 1, 1, 0], [1, 1, 1, 0]),
        // The last one goes on alone.
        ([22, 21, 26, 0], [1, 1, 1, 0], [1, 1, 2, 0]),
        ([48, 48, 48, 48], [3, 3, 3, 3], [3, 3, 3, 3]),
    ] {
        let (before, after) = rings_of(&mut team, &counts)?;
        ensure!(before == early && after == late, "{counts:?}: {before:?}, then {after:?}");
    }
    team.close()
}

fn what_a_full_member_has_rung_waits_no_more(place: &mut Place) -> Result<()> {
    let mut team = Team::new(place, &[4, 64], &[64])?;
    let mut plug = team.group.plug(66);
    let mut refused = 0;
    for (member, count) in [(0, 5), (1, 31), (2, 31)] {
        for _ in 0..count {
            let request = Request::flush(&team.namespaces[member]);
            refused += u32::from(plug.submit(team.members[member], request).is_err());
        }
    }
    std::mem::forget(plug);
    ensure!(refused == 1 && team.rings()? == [1, 0, 0], "{refused}, {:?}", team.rings()?);
    ensure!(team.finish()?.len() == 66);
    team.close()
}

/// Each of 25 completions is answered by a request for each of three members: 64 wait before the 22nd has
/// been answered in full.
fn requests_for_the_polled_member_are_counted_and_rung_with_the_others(place: &mut Place) -> Result<()> {
    let mut team = Team::new(place, &[64, 64], &[64])?;
    team.fill(0, 25)?;
    team.settle();
    let before = team.rings()?;
    let (members, namespaces) = (team.members.clone(), team.namespaces.clone());
    let reaped = team.group.poll(25, |plug, _, _| {
        for (member, namespace) in members.iter().zip(&namespaces) {
            assert!(plug.submit(*member, Request::flush(namespace)).is_ok());
        }
    });
    ensure!(reaped == 25);
    let rings: Vec<u64> = team.rings()?.iter().zip(&before).map(|(now, then)| now - then).collect();
    ensure!(rings == [2, 2, 2], "{rings:?}");
    ensure!(team.finish()?.len() == 75);
    team.close()
}

fn a_large_request_rings_its_member_alone(place: &mut Place) -> Result<()> {
    let mut team = Team::new(place, &[8], &[8])?;
    let buffer = team.controllers[1].space().allocate(128 << 10)?;
    let [first, second] = team.members[..] else { anyhow::bail!("two members") };
    let mut plug = team.group.plug(3);
    plug.submit(first, Request::flush(&team.namespaces[0])).map_err(|refused| refused.error)?;
    plug.submit(second, Request::flush(&team.namespaces[1])).map_err(|refused| refused.error)?;
    let large = Request::read(&team.namespaces[1], Lba(0), buffer);
    plug.submit(second, large).map_err(|refused| refused.error)?;
    std::mem::forget(plug);
    ensure!(team.rings()? == [0, 1], "{:?}", team.rings()?);
    ensure!(team.finish()?.len() == 3);
    team.close()
}

fn a_group_plug_that_ends_by_a_panic_is_rung(place: &mut Place) -> Result<()> {
    let mut team = Team::new(place, &[8], &[8])?;
    let Team { group, members, namespaces, .. } = &mut team;
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let mut plug = group.plug(8);
        for (member, namespace) in members.iter().zip(namespaces.iter()) {
            assert!(plug.submit(*member, Request::flush(namespace)).is_ok());
        }
        resume_unwind(Box::new("somebody's mistake"));
    }));
    ensure!(panicked.is_err() && team.rings()? == [1, 1], "{:?}", team.rings()?);
    ensure!(team.finish()?.len() == 2);
    team.close()
}

fn a_group_plug_that_is_forgotten_is_rung_by_whatever_comes_next(place: &mut Place) -> Result<()> {
    for next in 0..5 {
        let mut team = Team::new(place, &[8, 8], &[8])?;
        post(&mut team, &[3, 2, 3])?;
        ensure!(team.rings()? == [0, 0, 0] && team.outstanding() == 8);
        // A quick device may have answered within the poll that rang.
        let mut early = 0;
        match next {
            0 => early = team.group.poll(8, |_, _, _| ()),
            1 => team.group.plug(8).finish(),
            2 => {
                // Each queue pair by itself.
                for (member, namespace) in team.members.clone().into_iter().zip(team.namespaces.clone()) {
                    let queue = team.group.queue_mut(member).context("a member")?;
                    queue.submit(Request::flush(&namespace)).map_err(|refused| refused.error)?;
                }
            }
            3 => {
                let mut ended = 0;
                team.namespaces.remove(0);
                let queue = team.group.remove(team.members.remove(0)).context("a member")?;
                queue.close(|_| ended += 1)?;
                ensure!(ended == 3, "{ended} requests of the member that left were answered");
                team.group.plug(0).finish();
            }
            _ => {
                drop(std::mem::take(&mut team.group));
                team.members.clear();
            }
        }
        let rings = team.rings()?;
        ensure!(rings.iter().all(|count| *count == 1), "after {next}: {rings:?}");
        let left = [8, 8, 11, 5, 0][next];
        ensure!(team.finish()?.len() + early == left, "after {next}");
        // All identifiers that the plug had taken are back.
        for member in 0..team.members.len() {
            team.fill(member, 8)?;
        }
        team.finish()?;
        team.close()?;
    }
    Ok(())
}

/// When a member leaves, the last one takes its position.
fn what_waits_for_a_member_that_moves_is_rung(place: &mut Place) -> Result<()> {
    let mut team = Team::new(place, &[8, 8], &[8])?;
    post(&mut team, &[0, 0, 3])?;
    drop(team.group.remove(team.members.remove(0)));
    ensure!(team.rings()? == [0, 0]);
    team.group.plug(0).finish();
    ensure!(team.rings()? == [0, 1], "{:?}", team.rings()?);
    ensure!(team.finish()?.len() == 3);
    team.close()
}

fn a_full_member_gives_the_request_back_and_the_others_go_on(place: &mut Place) -> Result<()> {
    let mut team = Team::new(place, &[2], &[8])?;
    let mut refused = Vec::new();
    let mut plug = team.group.plug(10);
    for number in 0..5 {
        for (member, namespace) in team.members.iter().zip(&team.namespaces) {
            let outcome = plug.submit(*member, Request::flush(namespace).user_data(number));
            refused.extend(outcome.err().map(|it| (*member, it.error)));
        }
    }
    plug.finish();
    ensure!(refused == vec![(team.members[0], SubmitError::QueueFull); 3], "{refused:?}");
    ensure!(team.finish()?.len() == 7);
    team.close()
}

/// Twice as many members as are polled at once, each answered by requests for the other one and its own.
fn a_poll_rings_every_member_that_its_callback_submits_to_once(place: &mut Place) -> Result<()> {
    let mut team = Team::new(place, &[64, 64], &[64])?;
    team.fill(0, 8)?;
    team.fill(2, 8)?;
    team.settle();
    let before = team.rings()?;
    let (members, namespaces) = (team.members.clone(), team.namespaces.clone());
    let reaped = team.group.poll(16, |plug, _, _| {
        for (member, namespace) in members.iter().zip(&namespaces) {
            assert!(plug.submit(*member, Request::flush(namespace)).is_ok());
        }
    });
    ensure!(reaped == 16);
    let rings: Vec<u64> = team.rings()?.iter().zip(&before).map(|(now, then)| now - then).collect();
    // The polled ones at the end of their turns, and once more for what came from another's turn.
    ensure!(rings[1] == 1 && rings[0] <= 2 && rings[2] <= 2, "{rings:?}");
    ensure!(team.finish()?.len() == 48);
    team.close()
}

/// The first one's callbacks submit to the second, whose own turn follows, and the second one's to the third:
/// never more than 62 wait at once.
fn what_a_members_own_turn_rings_is_not_counted_twice(place: &mut Place) -> Result<()> {
    let mut team = Team::new(place, &[64, 64], &[64])?;
    team.fill(0, 31)?;
    team.fill(1, 31)?;
    team.settle();
    let before = team.rings()?;
    let (members, namespaces) = (team.members.clone(), team.namespaces.clone());
    let reaped = team.group.poll(62, |plug, member, _| {
        let next = if member == members[0] { 1 } else { 2 };
        assert!(plug.submit(members[next], Request::flush(&namespaces[next])).is_ok());
    });
    ensure!(reaped == 62);
    let rings: Vec<u64> = team.rings()?.iter().zip(&before).map(|(now, then)| now - then).collect();
    ensure!(rings == [0, 1, 1], "{rings:?}");
    ensure!(team.finish()?.len() == 62);
    team.close()
}

fn a_callback_that_panics_leaves_nothing_unrung(place: &mut Place) -> Result<()> {
    let mut team = Team::new(place, &[8, 8], &[8])?;
    for member in 0..3 {
        team.fill(member, 1)?;
    }
    team.settle();
    for polled in 0..3 {
        let before = team.rings()?;
        let Team { group, members, namespaces, .. } = &mut team;
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            group.poll(8, |plug, member, _| {
                // A different one each time: a panic takes nobody's turn away.
                assert_eq!(member, members[polled]);
                for (member, namespace) in members.iter().zip(namespaces.iter()) {
                    assert!(plug.submit(*member, Request::flush(namespace).user_data(1)).is_ok());
                }
                resume_unwind(Box::new("somebody's mistake"));
            })
        }));
        ensure!(panicked.is_err());
        let since = |team: &Team| -> Result<Vec<u64>> {
            Ok(team.rings()?.iter().zip(&before).map(|(now, then)| now - then).collect())
        };
        // The polled one may be left to its next call, as without a group.
        let rings = since(&team)?;
        ensure!((0..3).all(|member| member == polled || rings[member] == 1), "{rings:?}");
        team.group.poll(0, |_, _, _| ());
        ensure!(since(&team)? == [1, 1, 1], "{:?}", since(&team)?);
    }
    ensure!(team.finish()?.len() == 9);
    team.close()
}

/// A copy from the first member to two others, block by block, by callbacks alone.
fn what_is_read_from_one_member_is_written_to_the_others(place: &mut Place) -> Result<()> {
    const BLOCKS: u64 = 40;
    let mut team = Team::new(place, &[16], &[16, 16])?;
    let content = pattern(9, 512 * usize::try_from(BLOCKS)?);
    let space = team.controllers[0].space().clone();
    let mut whole = space.allocate(content.len())?;
    whole.as_mut_slice().copy_from_slice(&content);
    team.submit(0, Request::write(&team.namespaces[0], Lba(0), whole))?;
    team.finish()?;
    let (members, namespaces) = (team.members.clone(), team.namespaces.clone());
    let mut next = 0;
    while next < 8 {
        let read = Request::read(&namespaces[0], Lba(next), space.allocate(512)?).user_data(next);
        team.submit(0, read)?;
        next += 1;
    }
    let mut written = 0;
    while written < 2 * BLOCKS {
        team.group.poll(8, |plug, member, completion| {
            let number = completion.user_data;
            assert!(completion.result.is_ok());
            let there = members.iter().position(|it| *it == member).expect("a member");
            let target = match there {
                0 => (1, number),
                1 => {
                    written += 1;
                    (2, BLOCKS + number)
                }
                _ => {
                    written += 1;
                    next += 1;
                    if next > BLOCKS {
                        return;
                    }
                    (0, next - 1)
                }
            };
            let request = match target {
                (0, lba) => Request::read(&namespaces[0], Lba(lba), completion.buffer).user_data(lba),
                (to, lba) => Request::write(&namespaces[to], Lba(lba), completion.buffer).user_data(number),
            };
            assert!(plug.submit(members[target.0], request).is_ok());
        });
        team.controllers.iter().for_each(|it| it.transport().relax(place.clock()));
    }
    team.group.poll(8, |_, _, _| ());
    let controller = &team.controllers[1];
    let mut queue = controller.create_queue(QueueConfig::with_depth(4))?;
    let both = space.allocate(2 * content.len())?;
    queue.submit(Request::read(&namespaces[1], Lba(0), both)).map_err(|refused| refused.error)?;
    let mut copy = None;
    while copy.is_none() {
        controller.transport().relax(place.clock());
        queue.poll(4, |_, completion| copy = completion.buffer.into_dma_buf());
    }
    let copy = copy.context("the buffer")?;
    ensure!(copy.as_slice() == [&content[..], &content[..]].concat(), "the copies differ");
    drop(queue);
    team.close()
}
