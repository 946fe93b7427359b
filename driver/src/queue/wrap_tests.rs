//! Batch numbers that come round. That takes 2^28 batches, which is minutes of work for a quick device and
//! more than a test can wait for: so these begin shortly before.

use std::sync::Arc;
use std::time::Duration;

use doorbell_emulator::Emulator;
use doorbell_emulator::fault::{Action, Match, Point, Rule};
use doorbell_hugepages::{DmaPool, DmaSpace, DmaSpaceConfig, HugePolicy};
use doorbell_spec::{Clock, Lba};

use super::batch::BatchNumber;
use super::{QueueConfig, QueuePair, Statistics};
use crate::{Completion, ControllerOptions, Namespace, Request};

struct Rig {
    queue: QueuePair,
    namespace: Namespace,
    pool: DmaPool,
    device: Arc<Emulator>,
    clock: Clock,
}

impl Rig {
    fn new(depth: u32, statistics: Statistics) -> Self {
        let clock = Clock::virtual_time();
        let config = "size=1M,backend=null".parse().expect("a configuration");
        let device = Emulator::new(config, clock.clone()).expect("a software controller");
        let space = DmaSpace::new(DmaSpaceConfig::default().with_policy(HugePolicy::Never));
        let options = ControllerOptions::new().clock(&clock).space(&space);
        let controller = options.open_transport(device.clone()).expect("it comes up");
        let mut config = QueueConfig::with_depth(depth);
        config.statistics = statistics;
        let queue = controller.create_queue(config).expect("a queue");
        let pool = space.pool(4096, depth as usize + 1).expect("memory");
        Self { queue, namespace: controller.namespaces()[0], pool, device, clock }
    }

    /// A request that goes the short way.
    fn read(&self, number: u64) -> Request {
        let buffer = self.pool.take().expect("as many as there can be requests");
        Request::read(&self.namespace, Lba(8 * (number % 8)), buffer).user_data(number)
    }

    fn submit(&mut self, number: u64) {
        let request = self.read(number);
        self.queue.submit(request).expect("there is room");
    }

    /// Lets some time pass, lets the device move, and answers what it has completed.
    fn reap(&mut self, passed: Duration) -> Vec<Completion> {
        self.clock.advance(passed);
        self.device.step(100);
        let mut ended = Vec::new();
        self.queue.poll(usize::MAX, |_, completion| ended.push(completion));
        ended
    }
}

/// What a request must have taken, if it took so many nanoseconds.
fn latency(statistics: Statistics, ns: u64) -> u64 {
    if statistics == Statistics::Off { 0 } else { ns }
}

#[test]
fn commands_outlast_the_end_of_all_numbers() {
    let kinds = [Statistics::Cached, Statistics::PerRequest, Statistics::Off];
    for (statistics, depth) in kinds.into_iter().flat_map(|it| [2, 3, 64].map(|depth| (it, depth))) {
        for before in [0, 1, 2, 9, 700] {
            let mut rig = Rig::new(depth, statistics);
            rig.queue.batches.go_to(BatchNumber::numbered(0_u64.wrapping_sub(before)));
            let slow = Match { point: Point::Io, count: Some(1), ..Match::default() };
            rig.device.faults().arm(Rule::new(slow, Action::Delay(Duration::from_secs(1))));
            rig.submit(0);
            let start = rig.clock.now();
            rig.device.step(1);
            for number in 1..2500 {
                rig.submit(number);
                let ended = rig.reap(Duration::from_nanos(number));
                assert_eq!(ended.len(), 1, "request {number}");
                assert_eq!((ended[0].user_data, ended[0].latency_ns), (number, latency(statistics, number)));
            }
            assert_eq!(rig.queue.outstanding(), 1);
            let ended = rig.reap(Duration::from_secs(2));
            let since = latency(statistics, rig.clock.now().since(start));
            assert_eq!((ended.len(), ended[0].user_data, ended[0].latency_ns), (1, 0, since));
            assert_eq!(rig.queue.stats().spurious_completions, 0);
        }
    }
}

/// The batch that was expected last had the number of the one that was not yet rung, after all numbers had
/// come round.
#[test]
fn an_expectation_that_is_very_old_is_not_met() {
    // The device guesses the identifier of a command that it was not told of.
    for guess in 0..64 {
        let mut rig = Rig::new(8, Statistics::Cached);
        rig.submit(1);
        assert_eq!(rig.reap(Duration::ZERO).len(), 1);
        let expected = BatchNumber::within(rig.queue.cq.next().expected());
        // Long after, commands still end, but none that goes the short way.
        rig.queue.batches.go_to(BatchNumber::numbered(100_000));
        rig.queue.submit(Request::flush(&rig.namespace)).expect("there is room");
        assert_eq!(rig.reap(Duration::ZERO).len(), 1);
        rig.queue.batches.go_to(expected);
        rig.queue.batches.go_to(rig.queue.batches.last_rung());
        let matches = Match { point: Point::Io, skip: 1, count: Some(1), ..Match::default() };
        rig.device.faults().arm(Rule::new(matches, Action::WrongCid(guess)));
        let mut plug = rig.queue.plug(2);
        for number in [2, 3] {
            plug.submit(Request::flush(&rig.namespace).user_data(number)).expect("there is room");
        }
        drop(plug);
        assert_eq!(rig.queue.batches.current(), expected, "the next command has its number");
        rig.device.step(100);
        let mut next = Some(rig.read(4));
        let mut ended = Vec::new();
        rig.queue.poll(8, |plug, completion| {
            ended.push(completion.user_data);
            if let Some(request) = next.take() {
                plug.submit(request).expect("room");
            }
        });
        assert!(ended[0] == 2 && !ended.contains(&4), "identifier {guess}: {ended:?} ended");
        let ended: Vec<_> = rig.reap(Duration::ZERO).iter().map(|it| it.user_data).collect();
        assert_eq!(ended, [4], "identifier {guess}");
    }
}
