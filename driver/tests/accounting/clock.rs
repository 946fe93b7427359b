//! How old the time of a completion may be.

use std::time::Duration;

use doorbell::{Nsid, QueueConfig, Request};

use crate::rig::rig;

/// One reading of the clock served a poll of any length, so that what arrived at its end was given a
/// latency of nanoseconds.
#[test]
fn a_long_poll_reads_the_clock_every_32_completions() {
    let rig = rig("size=1M,backend=null");
    let namespace = rig.controller.namespace(Nsid(1)).expect("a namespace");
    let mut queue = rig.controller.create_queue(QueueConfig::with_depth(100)).expect("a queue");
    for number in 0..100 {
        queue.submit(Request::flush(&namespace).user_data(number)).expect("there is room");
    }
    rig.device.step(100);
    let submitted_to_poll = Duration::from_micros(7);
    let each = Duration::from_micros(1);
    rig.clock.advance(submitted_to_poll);
    let mut latencies = Vec::new();
    let completed = queue.poll(100, |_, completion| {
        latencies.push(Duration::from_nanos(completion.latency_ns));
        rig.clock.advance(each);
    });
    assert_eq!(completed, 100);
    for (number, latency) in latencies.iter().enumerate() {
        // Every request really took `submitted_to_poll` and the callbacks before its own.
        let truth = submitted_to_poll + each * u32::try_from(number).expect("small");
        assert!(*latency <= truth && truth - *latency < each * 32, "{number}: {latency:?} of {truth:?}");
    }
}
