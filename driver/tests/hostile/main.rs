//! A device that says anything. It can make requests fail and controllers fail, and nothing worse: no panic,
//! no endless wait, no memory that is freed under it, and every accepted request answered once.

mod admin;
mod device;
mod memory;
mod random;

use std::collections::BTreeSet;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use doorbell::{
    Blocks, Buffer, BufferRange, Clock, Completion, Controller, ControllerError, ControllerOptions, DmaPool,
    DmaSpace, DmaSpaceConfig, FairShare, Generations, HugePolicy, IoError, Lba, Namespace, QueueConfig,
    QueuePair, Request, SharedIds, Statistics,
};

use device::Hostile;
use random::Random;

/// A caller that keeps to the rules, and what it knows.
struct Caller {
    random: Random,
    namespaces: Vec<Namespace>,
    /// Of large blocks and of small ones, which go the short way.
    pools: [DmaPool; 2],
    next: u64,
    outstanding: BTreeSet<u64>,
    parked: usize,
}

impl Caller {
    fn request(&mut self) -> Option<Request> {
        let namespace = self.random.pick(&self.namespaces);
        let lba = Lba(match self.random.below(3) {
            0 => 0,
            1 => self.random.below(namespace.blocks()),
            _ => namespace.blocks() - 1,
        });
        self.next += 1;
        let blocks = Blocks(u32::try_from(1 + self.random.below(100_000)).expect("small"));
        let small = &self.pools[1];
        let request = match self.random.below(10) {
            0 => Request::flush(&namespace),
            1 => Request::write_zeroes(&namespace, lba, blocks),
            2 => Request::deallocate(&namespace, &[(lba, Blocks(1))], self.pools[0].take()?).ok()?,
            3 => {
                let pieces = [self.pools[0].take()?, self.pools[0].take()?];
                let half = |block| BufferRange::new(block, 0, 64 << 10).expect("inside");
                Request::write(&namespace, lba, pieces.map(half).into_iter().collect::<Vec<_>>())
            }
            4 => Request::write(&namespace, lba, self.pools[0].take()?),
            5 => Request::read(&namespace, lba, self.pools[0].take()?),
            6 => Request::write(&namespace, lba, small.take()?),
            _ => Request::read(&namespace, lba, small.take()?),
        };
        Some(request.user_data(self.next))
    }

    /// Notes what a completion is; a request that failed with its controller comes without its buffer.
    fn ended(&mut self, completion: &Completion) {
        assert!(self.outstanding.remove(&completion.user_data), "answered twice, or never asked");
        if completion.result == Err(IoError::ControllerFailed) {
            assert!(matches!(completion.buffer, Buffer::None), "the device may still write it");
            self.parked += 1;
        }
    }

    fn poll(&mut self, queue: &mut QueuePair) {
        let budget = self.random.pick(&[1, 3, 64, usize::MAX]);
        let mut answered = 0;
        let completed = queue.poll(budget, |plug, completion| {
            answered += 1;
            self.ended(&completion);
            drop(completion);
            if self.random.one_in(2)
                && let Some(request) = self.request()
                && plug.submit(request).is_ok()
            {
                self.outstanding.insert(self.next);
            }
        });
        assert!(completed == answered && completed <= budget);
    }

    fn act(&mut self, device: &Hostile, clock: &Clock, controller: &Controller, queue: &mut QueuePair) {
        match self.random.below(8) {
            0..3 => {
                let mut plug = queue.plug(u32::try_from(self.random.below(9)).expect("small"));
                for _ in 0..self.random.below(9) {
                    if let Some(request) = self.request()
                        && plug.submit(request).is_ok()
                    {
                        self.outstanding.insert(self.next);
                    }
                }
            }
            3..5 => self.poll(queue),
            5 => clock.advance(Duration::from_micros(self.random.below(30_000))),
            6 if self.random.one_in(8) => drop(controller.poll_event()),
            6 if self.random.one_in(8) => drop(controller.health()),
            _ => device.step(),
        }
        assert_eq!(queue.outstanding(), self.outstanding.len());
    }

    /// The queue's end: closed, dropped, or answered after the device has died.
    fn end(&mut self, device: &Hostile, clock: &Clock, mut queue: QueuePair) {
        match self.random.below(3) {
            0 => drop(queue.close(|completion| self.ended(&completion))),
            1 => {
                // Nobody hears which of them were parked.
                self.parked += self.outstanding.len();
                drop(queue);
                self.outstanding.clear();
            }
            _ => {
                let mut state = device.state.lock().expect("one thread");
                state.is_mute = true;
                match self.random.below(2) {
                    0 => state.is_removed = true,
                    _ => state.is_fatal = true,
                }
                drop(state);
                let is_noisy = self.random.one_in(2);
                for _ in 0..2000 {
                    clock.advance(Duration::from_millis(1));
                    if is_noisy {
                        device.flood();
                    }
                    self.poll(&mut queue);
                    if self.outstanding.is_empty() {
                        break;
                    }
                }
                assert_eq!(queue.outstanding(), self.outstanding.len());
            }
        }
        assert_eq!(self.outstanding, BTreeSet::new(), "these were never answered");
    }
}

/// How far a run came, to see that the runs are worth their time.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
enum Reached {
    Nothing,
    Controller,
    Queue,
    Completions,
}

fn options(device: &Arc<Hostile>, space: &DmaSpace, clock: &Clock) -> Result<Controller, ControllerError> {
    let transport = Arc::<Hostile>::clone(device);
    let generations =
        device.state.lock().expect("one thread").random.pick(&[Generations::On, Generations::Off]);
    ControllerOptions::new().generations(generations).space(space).clock(clock).open_transport(transport)
}

fn run(seed: u64) -> Reached {
    let malice = Random::new(seed).pick(&[0, 2, 10, 50, 200, 1000]);
    let device = Hostile::new(seed, malice);
    let clock = Clock::virtual_time();
    let space = DmaSpace::new(DmaSpaceConfig::default().with_policy(HugePolicy::Never));
    let pools = [space.pool(128 << 10, 16).expect("memory"), space.pool(4096, 64).expect("memory")];
    let mut reached = Reached::Nothing;
    let parked = match options(&device, &space, &clock) {
        Err(error) => {
            assert!(malice > 0 || matches!(error, ControllerError::Unsupported { .. }), "{error}");
            0
        }
        Ok(controller) => {
            reached = Reached::Controller;
            use_controller(seed, &device, &clock, &controller, &pools, &mut reached)
        }
    };
    device.memory.touch_all();
    let broken = std::mem::take(&mut device.state.lock().expect("one thread").broken);
    assert!(broken.is_empty(), "{broken:?}");
    let missing = 16 + 64 - pools.iter().map(DmaPool::available).sum::<usize>();
    assert!(missing <= 2 * parked, "{missing} blocks are missing, and only {parked} requests were parked");
    assert!(missing == 0 || device.memory.mappings() > 0, "leaked for no reason");
    drop((pools, space));
    device.step();
    reached
}

/// A queue of this depth that measures and plugs in any way.
fn config(random: &mut Random, depth: u32) -> QueueConfig {
    let mut config = QueueConfig::with_depth(depth);
    config.statistics = random.pick(&[Statistics::Cached, Statistics::PerRequest, Statistics::Off]);
    config.plug_limit = random.pick(&[1, 2, 31, 32]);
    if random.one_in(3) {
        let ids = SharedIds::new(u16::try_from(depth).expect("small"), 1, FairShare::Off);
        config.shared_ids = Some(ids.expect("some identifiers"));
    }
    config
}

fn use_controller(
    seed: u64,
    device: &Hostile,
    clock: &Clock,
    controller: &Controller,
    pools: &[DmaPool; 2],
    reached: &mut Reached,
) -> usize {
    let mut random = Random::new(!seed);
    let namespaces: Vec<Namespace> =
        controller.namespaces().into_iter().filter(|it| it.metadata_bytes() == 0).collect();
    let depth = random.pick(&[1, 2, 7, 40]).min(controller.depth_max());
    let Ok(mut queue) = controller.create_queue(config(&mut random, depth)) else { return 0 };
    *reached = Reached::Queue;
    let outstanding = BTreeSet::new();
    let mut caller = Caller { random, namespaces, pools: pools.clone(), next: 0, outstanding, parked: 0 };
    if caller.namespaces.is_empty() {
        return 0;
    }
    for _ in 0..150 {
        caller.act(device, clock, controller, &mut queue);
    }
    if queue.stats().completed > 0 {
        *reached = Reached::Completions;
    }
    caller.end(device, clock, queue);
    caller.parked
}

#[test]
fn whatever_a_device_says_the_driver_stays_whole() {
    let mut reached = [0_u32; 4];
    for seed in 0..3000 {
        match catch_unwind(|| run(seed)) {
            Ok(how_far) => reached[how_far as usize] += 1,
            Err(panic) => {
                eprintln!("seed {seed}");
                resume_unwind(panic);
            }
        }
    }
    println!("nothing, controller, queue, completions: {reached:?}");
    assert!(reached.iter().all(|runs| *runs > 50), "the runs are one-sided: {reached:?}");
}

/// A wait ended by the clock alone, which a transport need not move.
#[test]
fn a_wait_ends_also_when_nobody_moves_the_clock() {
    let device = Hostile::new(1, 0);
    {
        let mut state = device.state.lock().expect("one thread");
        state.relax_us = 0;
        state.is_stubborn = true;
    }
    let clock = Clock::virtual_time();
    let space = DmaSpace::new(DmaSpaceConfig::default().with_policy(HugePolicy::Never));
    // It becomes ready and never unready: the shutdown is waited for in vain.
    if let Ok(controller) = options(&device, &space, &clock) {
        assert!(matches!(controller.close(), Err(ControllerError::Timeout { .. })));
    }
    assert!(clock.now().0 > 1_000_000_000, "the clock moved");
}

/// A device that keeps the rules but ignores how far the host has read, and a controller on it.
fn honest(space: &DmaSpace, clock: &Clock) -> (Controller, Arc<Hostile>) {
    let devices = (0..100).map(|seed| Hostile::new(seed, 0));
    let mut opened = devices.map(|device| (options(&device, space, clock), device));
    let found = opened.find_map(|(controller, device)| {
        Some((controller.ok().filter(|it| it.depth_max() >= 63 && it.namespaces().len() > 1)?, device))
    });
    found.expect("one of a hundred")
}

/// A poll of any budget went on for as long as the device went on completing.
#[test]
fn a_poll_ends_although_the_device_never_does() {
    let clock = Clock::virtual_time();
    let space = DmaSpace::new(DmaSpaceConfig::default().with_policy(HugePolicy::Never));
    let (controller, device) = honest(&space, &clock);
    let namespace = controller.namespaces()[0];
    let mut queue = controller.create_queue(QueueConfig::with_depth(63)).expect("a queue");
    for _ in 0..63 {
        queue.submit(Request::flush(&namespace)).expect("room");
    }
    (0..20).for_each(|_| device.step());
    let mut answered = 0;
    queue.poll(usize::MAX, |plug, _| {
        answered += 1;
        assert!(answered < 10_000, "it never ends");
        plug.submit(Request::flush(&namespace)).expect("its slot is free");
        device.step();
    });
    assert_eq!(answered, 63);
}

/// The data page of a command that was left behind by a panic was given to the next command.
#[test]
fn a_panic_of_the_transport_leaves_no_command_behind() {
    let clock = Clock::virtual_time();
    let space = DmaSpace::new(DmaSpaceConfig::default().with_policy(HugePolicy::Never));
    let (controller, device) = honest(&space, &clock);
    controller.health().expect("an honest device");
    device.state.lock().expect("one thread").panics_after = Some(0);
    catch_unwind(std::panic::AssertUnwindSafe(|| controller.health())).expect_err("the transport's panic");
    assert!(matches!(controller.health(), Err(ControllerError::ControllerFailed)));
    controller.close().expect("the registers still work");
}

/// Rings and buffers were freed under the device when its transport panicked in the midst of a queue's end.
#[test]
fn a_panic_of_the_transport_while_closing_frees_nothing() {
    for by_drop in [false, true] {
        let clock = Clock::virtual_time();
        let space = DmaSpace::new(DmaSpaceConfig::default().with_policy(HugePolicy::Never));
        let pools = [space.pool(1 << 20, 2).expect("memory"), space.pool(64 << 10, 2).expect("memory")];
        let (controller, device) = honest(&space, &clock);
        let namespace = controller.namespaces()[0];
        let mut queue = controller.create_queue(QueueConfig::with_depth(63)).expect("a queue");
        for buffer in pools.iter().filter_map(DmaPool::take) {
            queue.submit(Request::write(&namespace, Lba(0), buffer)).expect("room");
        }
        let used = space.stats().used_bytes;
        device.state.lock().expect("one thread").panics_after = Some(0);
        let end = move || if by_drop { drop(queue) } else { drop(queue.close(|_| panic!("too early"))) };
        catch_unwind(std::panic::AssertUnwindSafe(end)).expect_err("the transport's panic");
        assert_eq!(space.stats().used_bytes, used, "rings were freed under the device");
        assert_eq!(pools.each_ref().map(DmaPool::available), [1, 1], "buffers were freed under the device");
        controller.close().expect("the registers still work");
        assert_eq!(pools.each_ref().map(DmaPool::available), [2, 2], "the device is off");
    }
}

/// The same while a queue is made: the device may have heard of its rings.
#[test]
fn a_panic_of_the_transport_while_a_queue_is_made_frees_nothing() {
    for waits in 0.. {
        let clock = Clock::virtual_time();
        let space = DmaSpace::new(DmaSpaceConfig::default().with_policy(HugePolicy::Never));
        let (controller, device) = honest(&space, &clock);
        let used = space.stats().used_bytes;
        device.state.lock().expect("one thread").panics_after = Some(waits);
        let create = || controller.create_queue(QueueConfig::with_depth(63)).map(drop);
        if catch_unwind(std::panic::AssertUnwindSafe(create)).is_ok() {
            assert!(waits > 1, "two commands are waited for");
            return;
        }
        assert!(space.stats().used_bytes > used, "rings were freed under the device after {waits} waits");
        controller.close().expect("no queue is open, and the registers still work");
        assert_eq!(space.stats().used_bytes, 0, "the device is off");
    }
}

/// A poll whose budget was used up by noise did not look at the controller.
#[test]
fn a_flood_does_not_keep_a_failed_controller_from_answering() {
    let clock = Clock::virtual_time();
    let space = DmaSpace::new(DmaSpaceConfig::default().with_policy(HugePolicy::Never));
    let (controller, device) = honest(&space, &clock);
    let namespace = controller.namespaces()[0];
    let mut queue = controller.create_queue(QueueConfig::with_depth(63)).expect("a queue");
    for _ in 0..63 {
        queue.submit(Request::flush(&namespace)).expect("room");
    }
    device.state.lock().expect("one thread").is_fatal = true;
    let mut answered = 0;
    device.babble(40);
    for _ in 0..1000 {
        device.babble(2);
        clock.advance(Duration::from_millis(1));
        answered +=
            queue.poll(2, |_, completion| assert_eq!(completion.result, Err(IoError::ControllerFailed)));
    }
    assert_eq!((answered, queue.outstanding()), (63, 0));
}
