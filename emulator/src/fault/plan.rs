//! The armed rules, and the decision which of them fires.
//!
//! The first armed rule that fires wins; those after it do not see the event. The device asks only while
//! something is armed: one relaxed load per step otherwise.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use doorbell_spec::{QueueId, SubmissionEntry};

use super::{Action, Match, Point, Rule};

/// The fault plan of one controller. Rules are armed and disarmed at any time, from any thread.
///
/// Printed, it lists its rules one a line, each with how often it fired.
#[derive(Debug, Default)]
pub struct FaultPlan {
    /// How many rules are armed; changed only under the lock of `rules`.
    armed: AtomicUsize,
    /// Taken for moments only; no other lock is taken under it.
    rules: Mutex<Rules>,
}

/// Names one armed rule of one plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RuleId(u64);

#[derive(Debug, Default)]
struct Rules {
    next_id: u64,
    list: Vec<Armed>,
}

#[derive(Debug)]
struct Armed {
    id: RuleId,
    rule: Rule,
    is_armed: bool,
    seen: u64,
    fired: u64,
    random: u64,
}

/// A command as rules see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandSite<'a> {
    pub(crate) queue: QueueId,
    pub(crate) entry: &'a SubmissionEntry,
}

/// The plan as one step of the device sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FaultView<'a> {
    plan: &'a FaultPlan,
    is_armed: bool,
}

impl FaultPlan {
    /// Arms a rule, behind those that are armed already.
    pub fn arm(&self, rule: Rule) -> RuleId {
        let mut rules = self.lock();
        let id = RuleId(rules.next_id);
        rules.next_id += 1;
        let random = rule.matches.seed;
        rules.list.push(Armed { id, rule, is_armed: true, seen: 0, fired: 0, random });
        self.armed.fetch_add(1, Ordering::Relaxed);
        id
    }

    /// Disarms a rule. Its count stays readable. Does not undo what it did.
    pub fn disarm(&self, id: RuleId) {
        let mut rules = self.lock();
        if let Some(armed) = rules.list.iter_mut().find(|armed| armed.id == id && armed.is_armed) {
            armed.is_armed = false;
            self.armed.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Disarms every rule.
    pub fn disarm_all(&self) {
        let mut rules = self.lock();
        for armed in &mut rules.list {
            armed.is_armed = false;
        }
        self.armed.store(0, Ordering::Relaxed);
    }

    /// How often a rule has fired.
    #[must_use]
    pub fn fired(&self, id: RuleId) -> u64 {
        self.lock().list.iter().find(|armed| armed.id == id).map_or(0, |armed| armed.fired)
    }

    /// Every rule that was ever armed, with how often it fired.
    #[must_use]
    pub fn counts(&self) -> Vec<(Rule, u64)> {
        self.lock().list.iter().map(|armed| (armed.rule.clone(), armed.fired)).collect()
    }

    /// Whether anything is armed at all.
    #[inline]
    pub(crate) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn view(&self) -> FaultView<'_> {
        FaultView { plan: self, is_armed: self.is_armed() }
    }

    fn lock(&self) -> MutexGuard<'_, Rules> {
        // A panic elsewhere leaves the rules as they are, and they are always whole.
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decide(&self, is_about: impl Fn(&Match) -> bool) -> Option<Action> {
        let mut rules = self.lock();
        rules.list.iter_mut().filter(|armed| armed.is_armed).find_map(|armed| armed.fires(&is_about))
    }
}

impl FaultView<'_> {
    /// Whether anything is armed at all.
    #[inline]
    pub(crate) fn is_armed(&self) -> bool {
        self.is_armed
    }

    /// What happens to a command that the device has just taken.
    pub(crate) fn on_command(&self, site: CommandSite<'_>) -> Option<Action> {
        if !self.is_armed {
            return None;
        }
        self.plan.decide(|matches| matches.is_about_command(site))
    }

    /// What happens at a register access or at the enabling of the controller.
    pub(crate) fn on_register(&self, point: Point, offset: u32) -> Option<Action> {
        if !self.is_armed {
            return None;
        }
        self.plan.decide(|matches| {
            matches.point == point && matches.register.is_none_or(|register| register == offset)
        })
    }
}

impl Match {
    fn is_about_command(&self, site: CommandSite<'_>) -> bool {
        let is_admin = site.queue == QueueId::ADMIN;
        let at_point = match self.point {
            Point::Command => true,
            Point::Admin => is_admin,
            Point::Io => !is_admin,
            _ => false,
        };
        at_point
            && self.queue.is_none_or(|queue| queue == site.queue)
            && self.opcode.is_none_or(|opcode| opcode == site.entry.opcode)
            && self.nsid.is_none_or(|nsid| nsid.0 == site.entry.nsid)
            && self.lbas.as_ref().is_none_or(|lbas| {
                let first = site.entry.lba().0;
                let last = first.saturating_add(u64::from(site.entry.blocks().0) - 1);
                !is_admin && first <= *lbas.end() && last >= *lbas.start()
            })
    }
}

impl Armed {
    fn fires(&mut self, is_about: &impl Fn(&Match) -> bool) -> Option<Action> {
        let matches = &self.rule.matches;
        if matches.count.is_some_and(|count| self.fired >= count) || !is_about(matches) {
            return None;
        }
        self.seen += 1;
        if self.seen <= matches.skip {
            return None;
        }
        if matches.probability < 1.0 && next_fraction(&mut self.random) >= matches.probability {
            return None;
        }
        self.fired += 1;
        Some(self.rule.action)
    }
}

/// The next number of a SplitMix64 sequence as a fraction from 0 up to 1.
fn next_fraction(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    #[expect(clippy::cast_precision_loss)]
    let fraction = ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64;
    fraction
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for armed in &self.lock().list {
            let state = if armed.is_armed { "" } else { ", disarmed" };
            writeln!(f, "{} # fired {} times{state}", armed.rule, armed.fired)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use doorbell_spec::command::NvmOpcode;
    use doorbell_spec::{Blocks, Lba, Nsid};

    use super::*;

    fn read(lba: u64) -> SubmissionEntry {
        SubmissionEntry::block_range(NvmOpcode::Read, Nsid(1), Lba(lba), Blocks(8), 0)
    }

    fn ask(plan: &FaultPlan, queue: u16, entry: &SubmissionEntry) -> Option<Action> {
        plan.view().on_command(CommandSite { queue: QueueId(queue), entry })
    }

    #[test]
    fn skip_and_count_bound_a_rule() {
        let plan = FaultPlan::default();
        let id = plan.arm(Rule::new(Match { skip: 2, count: Some(1), ..Match::default() }, Action::Drop));
        let fired: Vec<bool> = (0..5).map(|_| ask(&plan, 1, &read(0)).is_some()).collect();
        assert_eq!(fired, [false, false, true, false, false]);
        assert_eq!(plan.fired(id), 1);
    }

    #[test]
    fn a_rule_looks_at_queue_class_and_blocks() {
        let plan = FaultPlan::default();
        let matches = Match { point: Point::Io, lbas: Some(7..=7), ..Match::default() };
        plan.arm(Rule::new(matches, Action::Drop));
        assert!(ask(&plan, 0, &read(0)).is_none(), "admin commands have no blocks");
        assert!(ask(&plan, 1, &read(8)).is_none());
        assert!(ask(&plan, 1, &read(0)).is_some(), "blocks 0 to 7 touch block 7");
        assert!(ask(&plan, 1, &read(u64::MAX)).is_none());
    }

    #[test]
    fn chance_is_repeatable_and_disarming_works() {
        let run = |seed| {
            let plan = FaultPlan::default();
            let id = plan.arm(Rule::new(Match { probability: 0.25, seed, ..Match::default() }, Action::Drop));
            let fired: Vec<bool> = (0..1000).map(|_| ask(&plan, 1, &read(0)).is_some()).collect();
            plan.disarm(id);
            assert!(!plan.view().is_armed() && ask(&plan, 1, &read(0)).is_none());
            fired
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
        let hits = run(7).iter().filter(|hit| **hit).count();
        assert!((200..300).contains(&hits), "{hits}");
    }
}
