//! Several queue pairs in one group, of one controller or of two: what scenarios of groups need.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use doorbell::{Completion, Controller, Member, Namespace, PollGroup, QueueConfig, QueueStats, Request};
use doorbell_emulator::Emulator;
use doorbell_spec::Clock;

use crate::Place;

/// A group with its members.
#[derive(Debug)]
pub struct Team {
    /// The group. Declared first: its queue pairs go before the controllers.
    pub group: PollGroup,
    /// The members, in the order in which they came.
    pub members: Vec<Member>,
    /// Where each member's requests go.
    pub namespaces: Vec<Namespace>,
    /// All controllers.
    pub controllers: Vec<Controller>,
    clock: Clock,
}

impl Team {
    /// The place's controller and another one in one space, and a queue pair of each depth on the first, then
    /// one on the second.
    ///
    /// # Errors
    /// They do not come up.
    pub fn new(place: &mut Place, on_first: &[u32], on_second: &[u32]) -> Result<Self> {
        let options = place.options().space(&place.space());
        let transport = place.transport()?;
        let first = options.open_transport(transport)?;
        let second = place.second_controller(&options)?;
        Self::of(place, vec![(first, on_first.to_vec()), (second, on_second.to_vec())])
    }

    /// Software controllers, and queue pairs of these depths on them.
    ///
    /// # Errors
    /// They do not come up.
    pub fn emulated(
        place: &mut Place,
        config: &str,
        depths: &[&[u32]],
    ) -> Result<(Self, Vec<Arc<Emulator>>)> {
        let queues = depths.iter().map(|depths| depths.len()).max().unwrap_or(0);
        let options = place.options().queue_pairs(u16::try_from(queues)?).space(&place.space());
        let mut emulators = Vec::new();
        let mut controllers = Vec::new();
        for depths in depths {
            let emulator = place.emulator(config)?;
            controllers.push((options.open_transport(emulator.clone())?, depths.to_vec()));
            emulators.push(emulator);
        }
        Ok((Self::of(place, controllers)?, emulators))
    }

    fn of(place: &Place, controllers: Vec<(Controller, Vec<u32>)>) -> Result<Self> {
        let mut team = Self {
            group: PollGroup::new(),
            members: Vec::new(),
            namespaces: Vec::new(),
            controllers: Vec::new(),
            clock: place.clock().clone(),
        };
        for (controller, depths) in controllers {
            let namespace = *controller.namespaces().first().context("the controller has no namespace")?;
            for depth in depths {
                let queue = controller.create_queue(QueueConfig::with_depth(depth))?;
                team.members.push(team.group.add(queue));
                team.namespaces.push(namespace);
            }
            team.controllers.push(controller);
        }
        Ok(team)
    }

    /// A request for a member that does nothing.
    pub fn flush(&self, member: usize) -> Request {
        Request::flush(&self.namespaces[member])
    }

    /// Submits a request that must be accepted.
    ///
    /// # Errors
    /// It was not.
    pub fn submit(&mut self, member: usize, request: Request) -> Result<()> {
        let outcome = self.group.plug(1).submit(self.members[member], request);
        outcome.map(drop).map_err(|refused| anyhow!("refused: {}", refused.error))
    }

    /// Fills a member's queue with requests that do nothing, `count` of them.
    ///
    /// # Errors
    /// One was refused.
    pub fn fill(&mut self, member: usize, count: usize) -> Result<()> {
        let mut plug = self.group.plug(u32::try_from(count)?);
        for _ in 0..count {
            let request = Request::flush(&self.namespaces[member]);
            plug.submit(self.members[member], request).map_err(|refused| refused.error)?;
        }
        Ok(())
    }

    /// Lets the controllers do all that they have to do.
    pub fn settle(&self) {
        for controller in &self.controllers {
            (0..SETTLING).for_each(|_| controller.transport().relax(&self.clock));
        }
    }

    /// A member's counters.
    ///
    /// # Errors
    /// It is not in the group.
    pub fn stats(&self, member: usize) -> Result<QueueStats> {
        Ok(self.group.queue(self.members[member]).context("the member is gone")?.stats())
    }

    /// How often each member's submission doorbell was rung, by its register or by its shadow.
    ///
    /// # Errors
    /// One is not in the group.
    pub fn rings(&self) -> Result<Vec<u64>> {
        let rings = |member| {
            let stats = self.stats(member)?;
            Ok(stats.submission_doorbells + stats.submission_doorbells_saved)
        };
        (0..self.members.len()).map(rings).collect()
    }

    /// How many requests are outstanding on all members.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        let queues = self.group.members().filter_map(|member| self.group.queue(member));
        queues.map(doorbell::QueuePair::outstanding).sum()
    }

    /// Waits until every request has ended.
    ///
    /// # Errors
    /// They do not.
    pub fn finish(&mut self) -> Result<Vec<(Member, Completion)>> {
        let deadline = self.clock.deadline(PATIENCE);
        let mut ended = Vec::new();
        while self.outstanding() > 0 {
            if self.group.poll(usize::MAX, |_, member, completion| ended.push((member, completion))) == 0 {
                self.controllers.iter().for_each(|controller| controller.transport().relax(&self.clock));
            }
            ensure!(!deadline.passed(&self.clock), "{} requests have not ended", self.outstanding());
        }
        Ok(ended)
    }

    /// Closes queues and controllers. Nothing may be outstanding.
    ///
    /// # Errors
    /// They do not close, or something was outstanding.
    pub fn close(self) -> Result<()> {
        ensure!(self.outstanding() == 0, "{} requests were outstanding", self.outstanding());
        drop(self.group);
        self.controllers.into_iter().try_for_each(|controller| Ok(controller.close()?))
    }
}

/// How often each controller moves before it counts as settled.
const SETTLING: u32 = 1000;

/// How long requests may take: a device that needs longer is stuck.
const PATIENCE: Duration = Duration::from_secs(30);
