//! Random callers against a model that only counts: what was accepted, what was answered, where the buffers
//! are.

use std::collections::BTreeMap;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use doorbell::{
    Blocks, Buffer, BufferRange, Completion, ControllerOptions, DmaPool, FairShare, Generations, IdLane,
    IdToken, Lba, Namespace, Nsid, Plug, QueueConfig, QueuePair, Rejected, Request, RequestHandle, SharedIds,
    Statistics, SubmitError,
};
use doorbell_emulator::fault::{Action, Match, Point, Rule};
use doorbell_spec::Status;

use crate::rig::{Random, Rig, rig_in, space};

/// What is known of the requests of one queue.
struct Model {
    random: Random,
    namespace: Namespace,
    pools: [DmaPool; 2],
    next: u64,
    outstanding: BTreeMap<u64, RequestHandle>,
    ended: Option<RequestHandle>,
    answered: u64,
    /// Somebody else who draws from the queue's identifiers.
    rival: Option<Rival>,
}

/// Takes identifiers and gives them back as it pleases; waits for one now and then.
struct Rival {
    ids: SharedIds,
    lane: IdLane,
    held: Vec<IdToken>,
}

impl Rival {
    fn new(depth: u16) -> Self {
        let ids = SharedIds::new(depth, 2, FairShare::Off).expect("some identifiers");
        let lane = ids.lane().expect("one of two");
        Self { ids, lane, held: Vec::new() }
    }

    fn act(&mut self, random: &mut Random) {
        match random.below(4) {
            0 => self.held.extend(self.lane.acquire_or_wait()),
            1 => self.lane.stop_waiting(),
            _ if self.held.is_empty() => {}
            _ => {
                let at = usize::try_from(random.below(self.held.len() as u64)).expect("small");
                self.lane.release(self.held.swap_remove(at));
            }
        }
    }

    fn give_up(&mut self) {
        self.lane.stop_waiting();
        self.held.drain(..).for_each(|token| self.lane.release(token));
    }
}

impl Model {
    /// A request of a random kind, or none if there is no memory for it just now.
    fn request(&mut self) -> Option<Request> {
        let lba = Lba(self.random.below(64));
        let namespace = self.namespace;
        self.next += 1;
        let request = match self.random.below(10) {
            0 => Request::flush(&namespace),
            1 => {
                let blocks = Blocks(u32::try_from(1 + self.random.below(200_000)).expect("small"));
                Request::write_zeroes(&namespace, lba, blocks)
            }
            2 => {
                let list = self.pools[0].take()?;
                Request::deallocate(&namespace, &[(lba, Blocks(3))], list).ok()?
            }
            3 => Request::write(&namespace, lba, self.pieces()?),
            4 | 5 => Request::read(&namespace, lba, self.pools[1].take()?),
            6 => Request::write(&namespace, lba, self.pools[1].take()?),
            7 => Request::read(&namespace, lba, self.range()?),
            _ => Request::read(&namespace, lba, self.pools[0].take()?),
        };
        Some(request.user_data(self.next))
    }

    /// A part of a large block, not aligned to anything but what is needed.
    fn range(&mut self) -> Option<BufferRange> {
        let block = self.pools[1].take()?;
        let offset = usize::try_from(4 * self.random.below(2000)).expect("small");
        let most = (block.len() - offset) / self.namespace.block_bytes() as usize;
        let blocks = usize::try_from(self.random.below(most as u64)).expect("small") + 1;
        BufferRange::new(block, offset, blocks * self.namespace.block_bytes() as usize).ok()
    }

    /// Several pieces with some of no length between them.
    fn pieces(&mut self) -> Option<Vec<BufferRange>> {
        let count = 1 + self.random.below(4);
        let mut pieces = Vec::new();
        for _ in 0..count {
            let block = self.pools[0].take()?;
            let bytes = if self.random.one_in(4) { 0 } else { block.len() };
            pieces.push(BufferRange::new(block, 0, bytes).ok()?);
        }
        Some(pieces)
    }

    fn note(&mut self, outcome: Result<RequestHandle, Rejected>) {
        match outcome {
            Ok(handle) => {
                let before = self.outstanding.insert(self.next, handle);
                assert!(before.is_none());
            }
            Err(Rejected { error: SubmitError::QueueFull | SubmitError::Empty, request }) => drop(request),
            Err(Rejected { error, .. }) => panic!("refused: {error}"),
        }
    }

    fn submit(&mut self, plug: &mut Plug<'_>) {
        if let Some(request) = self.request() {
            let outcome = plug.submit(request);
            self.note(outcome);
        }
    }

    /// Submits through plugs in plugs, some of which are forgotten.
    fn plugged(&mut self, plug: &mut Plug<'_>, deep: u32) {
        for _ in 0..self.random.below(6) {
            self.submit(plug);
            if deep > 0 && self.random.one_in(3) {
                let mut inner = plug.plug(u32::try_from(self.random.below(70)).expect("small"));
                self.plugged(&mut inner, deep - 1);
                if self.random.one_in(3) {
                    forget(inner);
                }
            }
        }
    }

    fn ended(&mut self, completion: Completion) {
        self.answered += 1;
        self.ended = self.outstanding.remove(&completion.user_data);
        assert!(self.ended.is_some(), "request {} was answered twice", completion.user_data);
    }

    fn poll(&mut self, queue: &mut QueuePair) {
        let budget = self.random.pick(&[0, 1, 1, 2, 7, 64, usize::MAX]);
        let polled = catch_unwind(AssertUnwindSafe(|| {
            let mut answered = 0;
            let completed = queue.poll(budget, |plug, completion| {
                answered += 1;
                self.ended(completion);
                if self.random.one_in(3) {
                    self.plugged(plug, 2);
                }
                if self.random.one_in(50) {
                    std::panic::resume_unwind(Box::new("the callback's own"));
                }
            });
            assert_eq!(completed, answered);
            assert!(completed <= budget);
        }));
        if let Err(panic) = polled {
            assert!(panic.is::<&str>(), "not the callback's own panic");
        }
    }

    fn cancel(&mut self, queue: &mut QueuePair) {
        let live = self.outstanding.len() as u64;
        if live > 0 {
            let at = usize::try_from(self.random.below(live)).expect("small");
            let handle = self.outstanding.values().nth(at).expect("one of them");
            assert_ne!(queue.cancel(*handle), doorbell::Cancelled::Ended);
        }
        if let Some(handle) = self.ended {
            assert_eq!(queue.cancel(handle), doorbell::Cancelled::Ended);
        }
    }

    fn act(&mut self, rig: &Rig, queue: &mut QueuePair) {
        match self.random.below(8) {
            0 => {
                if let Some(request) = self.request() {
                    let outcome = queue.submit(request);
                    self.note(outcome);
                }
            }
            1 | 2 => {
                let mut plug = queue.plug(u32::try_from(self.random.below(70)).expect("small"));
                self.plugged(&mut plug, 2);
                if self.random.one_in(4) {
                    forget(plug);
                }
            }
            3 => self.cancel(queue),
            4 => drop(rig.device.step(usize::try_from(self.random.below(40)).expect("small"))),
            5 => rig.clock.advance(Duration::from_micros(self.random.below(40_000))),
            _ => self.poll(queue),
        }
        if let Some(rival) = &mut self.rival {
            rival.act(&mut self.random);
        }
        assert_eq!(queue.outstanding(), self.outstanding.len());
        let stats = queue.stats();
        assert_eq!(stats.completed + stats.failed, self.answered, "{stats:?}");
    }
}

/// After everything has ended, all slots can be used again.
fn fill(rig: &Rig, queue: &mut QueuePair, namespace: &Namespace) {
    let mut plug = queue.plug(64);
    for _ in 0..plug.depth() {
        plug.submit(Request::flush(namespace)).expect("no slot was lost");
    }
    let refused = plug.submit(Request::flush(namespace)).expect_err("that was all");
    assert_eq!(refused.error, SubmitError::QueueFull);
    drop(plug);
    assert_eq!(queue.outstanding(), queue.depth() as usize);
    rig.finish(queue, drop);
}

fn run(seed: u64) {
    let mut random = Random::new(seed);
    let mdts = random.pick(&[0, 1, 2, 5]);
    let noiob = random.pick(&[0, 1, 3, 8, 100]);
    let lba = random.pick(&[512, 4096]);
    let latency = random.pick(&["0us", "3us", "2ms"]);
    let most = random.pick(&[4096, 16 << 10, 2 << 20, 8 << 20]);
    let config = format!("size=1G,backend=null,mdts={mdts},noiob={noiob},lba={lba},latency={latency}");
    let space = space();
    let fault = random.pick(&[
        Action::Status(Status::INTERNAL_ERROR),
        Action::Delay(Duration::from_millis(3)),
        Action::Duplicate,
    ]);
    // A completion that comes twice is told from a current one by its generation alone.
    let is_off = fault != Action::Duplicate && random.one_in(3);
    let generations = if is_off { Generations::Off } else { Generations::On };
    let options = ControllerOptions::new().transfer_bytes_max(most).generations(generations);
    let rig = rig_in(&config, &space, &options);
    let matches = Match { point: Point::Io, probability: 0.1, seed, ..Match::default() };
    rig.device.faults().arm(Rule::new(matches, fault));
    let depth = random.pick(&[1, 1, 2, 3, 31, 32, 33, 64, 65, 130]);
    let mut config = QueueConfig::with_depth(depth);
    config.statistics = random.pick(&[Statistics::Cached, Statistics::PerRequest, Statistics::Off]);
    config.plug_limit = random.pick(&[1, 2, 31, 32]);
    let rival = random.one_in(3).then(|| Rival::new(u16::try_from(depth).expect("small")));
    config.shared_ids = rival.as_ref().map(|rival| rival.ids.clone());
    let mut queue = rig.controller.create_queue(config).expect("a queue");
    let pools = [space.pool(4096, 100).expect("memory"), space.pool(96 << 10, 20).expect("memory")];
    let namespace = rig.controller.namespace(Nsid(1)).expect("a namespace");
    let outstanding = BTreeMap::new();
    let mut model = Model { random, namespace, pools, next: 0, outstanding, ended: None, answered: 0, rival };
    for _ in 0..300 {
        model.act(&rig, &mut queue);
    }
    model.rival.iter_mut().for_each(Rival::give_up);
    match model.random.below(3) {
        0 => drop(queue),
        1 => {
            queue.close(|completion| model.ended(completion)).expect("the device deletes it");
            assert_eq!(model.outstanding.len(), 0);
        }
        _ => {
            rig.finish(&mut queue, |completion| model.ended(completion));
            assert_eq!(model.outstanding.len(), 0);
            rig.device.faults().disarm_all();
            fill(&rig, &mut queue, &model.namespace);
        }
    }
    assert_eq!(model.pools.each_ref().map(DmaPool::available), [100, 20], "buffers are missing");
    assert!(rig.device.report().is_clean(), "{:?}", rig.device.report());
}

#[test]
fn random_callers_lose_nothing() {
    for seed in 0..600 {
        if let Err(panic) = catch_unwind(|| run(seed)) {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

/// A buffer's round trip through the completions, as the caller's loop does it.
#[test]
fn a_callback_that_always_submits_ends_with_the_budget() {
    let rig = rig_in("size=16M,backend=null", &space(), &ControllerOptions::new());
    let namespace = rig.controller.namespace(Nsid(1)).expect("a namespace");
    let mut queue = rig.controller.create_queue(QueueConfig::with_depth(64)).expect("a queue");
    for _ in 0..64 {
        let buffer = rig.space.allocate(512).expect("memory");
        queue.submit(Request::read(&namespace, Lba(0), buffer)).expect("room");
    }
    for budget in [1, 5, 64, usize::MAX] {
        rig.device.step(64);
        let polled = queue.poll(budget, |plug, completion| {
            // The device is as quick as can be: whatever is rung is completed at once.
            rig.device.step(64);
            let Buffer::Whole(buffer) = completion.buffer else { panic!("its buffer") };
            plug.submit(Request::read(&namespace, Lba(0), buffer)).expect("its slot is free");
        });
        assert!(polled <= budget.min(64), "{polled}");
        assert_eq!(queue.outstanding(), 64);
    }
    assert!(rig.device.report().is_clean());
}
