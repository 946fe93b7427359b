#![expect(unsafe_code)]
//! The I/O path allocates nothing: counted over more than a million requests, from the first one on.
//!
//! The software controller is stepped between the counted calls, so that only the driver's are counted.
//
// UNSAFETY: a global allocator that counts and passes on, which the language only has as an unsafe trait.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use doorbell::{
    Controller, ControllerOptions, DmaPool, DmaSpace, DmaSpaceConfig, HugePolicy, Lba, Namespace, Nsid,
    PollGroup, QueueConfig, QueuePair, Request,
};
use doorbell_emulator::Emulator;
use doorbell_spec::Clock;

thread_local! {
    /// Allocations of this thread. Needs neither initialisation nor destruction, so the allocator may use it.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY:
// - every call is passed on to the system's allocator with the arguments it came with;
// - counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on as it is.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // Giving back is not for the I/O path either.
        count();
        // SAFETY: the caller's promise is passed on as it is.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on as it is.
        unsafe { System.realloc(memory, layout, bytes) }
    }
}

fn count() {
    // A thread that is ending has no counter any more, and is none of those that are looked at.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

/// Runs `work` and answers how often it allocated or gave back, with what it answered.
fn counted<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = ALLOCATIONS.get();
    let answer = work();
    (ALLOCATIONS.get() - before, answer)
}

/// A controller without latency and data, and a queue pair.
struct Bench {
    queue: QueuePair,
    namespace: Namespace,
    pool: DmaPool,
    emulator: Arc<Emulator>,
    controller: Controller,
    allocations: u64,
    completed: u64,
}

impl Bench {
    fn new(config: &str, request_bytes: usize) -> Self {
        let clock = Clock::virtual_time();
        let emulator = Emulator::new(config.parse().expect("a configuration"), clock.clone()).expect("made");
        let space = DmaSpace::new(DmaSpaceConfig::default().with_policy(HugePolicy::Never));
        let options = ControllerOptions::new().clock(&clock).space(&space);
        let controller = options.open_transport(emulator.clone()).expect("brought up");
        let namespace = controller.namespace(Nsid(1)).expect("namespace 1");
        let queue = controller.create_queue(QueueConfig::with_depth(128)).expect("a queue");
        let pool = space.pool(request_bytes, 256).expect("memory");
        let (allocations, completed) = (0, 0);
        Self { queue, namespace, pool, emulator, controller, allocations, completed }
    }

    /// Counts what a part of the I/O path allocates.
    fn count(&mut self, work: impl FnOnce(&mut QueuePair, &Namespace, &DmaPool) -> u64) {
        let Self { queue, namespace, pool, .. } = self;
        let (allocations, completed) = counted(|| work(queue, namespace, pool));
        self.allocations += allocations;
        self.completed += completed;
        self.emulator.step(1024);
    }
}

fn read(namespace: &Namespace, pool: &DmaPool, number: u64) -> Option<Request> {
    let buffer = pool.take()?;
    let blocks = buffer.len() as u64 / 512;
    Some(Request::read(namespace, Lba(number % 1000 * blocks), buffer).user_data(number))
}

#[test]
fn the_counter_counts() {
    let (allocations, boxed) = counted(|| Box::new(7_u64));
    assert_eq!(allocations, 1);
    assert_eq!(counted(|| drop(boxed)).0, 1);
    assert_eq!(counted(|| std::hint::black_box(1 + 1)).0, 0);
}

#[test]
fn half_a_million_single_requests_allocate_nothing() {
    let mut bench = Bench::new("backend=null,size=1G", 4096);
    while bench.completed < 500_000 {
        bench.count(|queue, namespace, pool| {
            for number in 0..100 {
                let Some(request) = read(namespace, pool, number) else { break };
                // A full queue gives the request back, which is part of the path too.
                let _ = queue.submit(request);
            }
            queue.poll(64, |_, completion| drop(completion)) as u64
        });
    }
    assert_eq!(bench.allocations, 0);
}

#[test]
fn half_a_million_plugged_requests_allocate_nothing() {
    let mut bench = Bench::new("backend=null,size=1G", 512);
    while bench.completed < 500_000 {
        bench.count(|queue, namespace, pool| {
            let mut plug = queue.plug(40);
            for number in 0..40 {
                let Some(request) = read(namespace, pool, number) else { break };
                let _ = plug.submit(request);
            }
            plug.finish();
            let mut again = 0;
            // Every completion of the poll is answered by a new request, through the callback's plug.
            queue.poll(usize::MAX, |plug, completion| {
                let Some(buffer) = completion.buffer.into_dma_buf() else { return };
                again += 1;
                let _ = plug.submit(Request::write(namespace, Lba(again), buffer));
            }) as u64
        });
    }
    assert_eq!(bench.allocations, 0);
}

/// Each request is eight commands: a quarter of a million commands.
#[test]
fn requests_that_are_split_allocate_nothing() {
    let mut bench = Bench::new("backend=null,size=1G,mdts=1", 64 * 1024);
    while bench.completed < 32_000 {
        bench.count(|queue, namespace, pool| {
            for number in 0..40 {
                let Some(request) = read(namespace, pool, number) else { break };
                let _ = queue.submit(request);
            }
            queue.poll(usize::MAX, |_, completion| drop(completion)) as u64
        });
    }
    assert_eq!(bench.allocations, 0);
    let commands = bench.emulator.report().io_commands.values().sum::<u64>();
    assert!(commands >= 8 * 32_000, "{commands} commands: the requests were not split");
}

#[test]
fn polling_a_queue_on_which_nothing_happens_allocates_nothing() {
    let mut bench = Bench::new("backend=null,size=1G", 512);
    for _ in 0..10_000 {
        bench.count(|queue, _, _| queue.poll(8, |_, completion| drop(completion)) as u64);
    }
    assert_eq!((bench.allocations, bench.completed), (0, 0));
}

/// Requests go to the first member, and each completion is answered by a request for the other one.
#[test]
fn polling_and_plugging_a_group_allocates_nothing() {
    let mut bench = Bench::new("backend=null,size=1G", 512);
    let mut group = PollGroup::new();
    let create =
        |controller: &Controller| controller.create_queue(QueueConfig::with_depth(128)).expect("one");
    let [first, second] = [(); 2].map(|()| group.add(create(&bench.controller)));
    while bench.completed < 500_000 {
        bench.count(|_, namespace, pool| {
            let mut plug = group.plug(40);
            for number in 0..40 {
                let Some(request) = read(namespace, pool, number) else { break };
                let _ = plug.submit(first, request);
            }
            plug.finish();
            let mut ended = 0;
            group.poll(usize::MAX, |plug, member, completion| {
                ended += 1;
                let Some(buffer) = completion.buffer.into_dma_buf() else { return };
                let other = if member == first { second } else { first };
                let _ = plug.submit(other, Request::write(namespace, Lba(ended), buffer));
            });
            assert!(group.next_event().is_none());
            ended
        });
    }
    assert_eq!(bench.allocations, 0);
}
