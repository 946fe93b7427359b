//! What is refused, and that what is refused comes back whole.

use doorbell::{
    Blocks, BufferRange, Cancelled, Controller, ControllerError, ControllerOptions, Lba, Nsid, Operation,
    QueueConfig, Request, SubmitError,
};
use doorbell_emulator::fault::Action;
use doorbell_spec::{Status, Transport};

use crate::rig::{IDENTIFY, SET_FEATURES, device, rig, rig_in, space};

#[test]
fn a_queue_pair_moves_between_threads_and_a_controller_is_shared() {
    fn moves<T: Send>() {}
    fn is_shared<T: Send + Sync>() {}
    moves::<doorbell::QueuePair>();
    moves::<doorbell::Completion>();
    moves::<Request>();
    is_shared::<Controller>();
    is_shared::<doorbell::DmaPool>();
}

/// The driver described the whole buffer and not the list in it, and ran out of list pages.
#[test]
fn a_deallocation_describes_its_list_and_not_the_buffer_behind_it() {
    let rig = rig("size=16M");
    let namespace = rig.controller.namespace(Nsid(1)).expect("a namespace");
    let mut queue = rig.controller.create_queue(QueueConfig::with_depth(4)).expect("a queue");
    for bytes in [64, 4096, 4 << 20, 32 << 20] {
        let list = rig.space.allocate(bytes).expect("memory");
        let ranges = [(Lba(3), Blocks(2)), (Lba(100), Blocks(1))];
        let request = Request::deallocate(&namespace, &ranges, list).expect("a list");
        queue.submit(request).expect("room");
        rig.finish(&mut queue, |completion| assert_eq!(completion.result, Ok(0)));
    }
    assert!(rig.device.report().is_clean(), "{:?}", rig.device.report().violations);
}

/// A block larger than MDTS went to the device as a command larger than MDTS.
#[test]
fn a_block_that_no_command_can_carry_is_refused() {
    let rig = rig("size=16M,lba=65536,mdts=2");
    let namespace = rig.controller.namespace(Nsid(1)).expect("a namespace");
    let mut queue = rig.controller.create_queue(QueueConfig::with_depth(4)).expect("a queue");
    let buffer = rig.space.allocate(65_536).expect("memory");
    let refused = queue.submit(Request::read(&namespace, Lba(0), buffer)).expect_err("larger than MDTS");
    let (block_bytes, transfer_bytes_max) = (65_536, 16_384);
    assert_eq!(refused.error, SubmitError::BlockTooLarge { block_bytes, transfer_bytes_max });
    queue.submit(Request::write_zeroes(&namespace, Lba(0), Blocks(1))).expect("transfers nothing");
    rig.finish(&mut queue, |completion| assert_eq!(completion.result, Ok(0)));
}

#[test]
fn requests_without_bytes_are_refused_and_not_submitted() {
    let rig = rig("size=16M");
    let namespace = rig.controller.namespace(Nsid(1)).expect("a namespace");
    let mut queue = rig.controller.create_queue(QueueConfig::with_depth(4)).expect("a queue");
    let piece = || BufferRange::new(rig.space.allocate(512).expect("memory"), 8, 0).expect("inside");
    let empty = [
        Request::read(&namespace, Lba(0), doorbell::Buffer::None),
        Request::read(&namespace, Lba(0), Vec::new()),
        Request::read(&namespace, Lba(0), vec![piece(), piece()]),
        Request::write_zeroes(&namespace, Lba(0), Blocks(0)),
    ];
    for request in empty {
        let refused = queue.submit(request).expect_err("nothing to transfer");
        assert_eq!(refused.error, SubmitError::Empty);
    }
    assert_eq!((queue.outstanding(), queue.stats().commands), (0, 0));
}

#[test]
fn ranges_at_the_end_of_all_numbers_are_refused() {
    let rig = rig("size=16M");
    let namespace = rig.controller.namespace(Nsid(1)).expect("a namespace");
    let mut queue = rig.controller.create_queue(QueueConfig::with_depth(4)).expect("a queue");
    for lba in [u64::MAX, u64::MAX - 1, namespace.blocks(), namespace.blocks() - 1] {
        let request = Request::write_zeroes(&namespace, Lba(lba), Blocks(2));
        let refused = queue.submit(request).expect_err("beyond the end");
        assert!(matches!(refused.error, SubmitError::OutOfRange { .. }), "{:?}", refused.error);
        let list = rig.space.allocate(64).expect("memory");
        Request::deallocate(&namespace, &[(Lba(lba), Blocks(u32::MAX))], list).expect_err("beyond the end");
    }
}

/// The short way subtracted the buffer's blocks from the namespace's.
#[test]
fn a_buffer_larger_than_the_namespace_is_refused() {
    let rig = rig("size=128k");
    let namespace = rig.controller.namespace(Nsid(1)).expect("a namespace");
    let mut queue = rig.controller.create_queue(QueueConfig::with_depth(4)).expect("a queue");
    for (lba, bytes) in [(0, 256 << 10), (u64::MAX, 256 << 10), (u64::MAX - 255, 256 << 10), (1, 128 << 10)] {
        let buffer = rig.space.allocate(bytes).expect("memory");
        let refused = queue.submit(Request::read(&namespace, Lba(lba), buffer)).expect_err("beyond the end");
        assert!(matches!(refused.error, SubmitError::OutOfRange { .. }), "{:?}", refused.error);
    }
}

#[test]
fn what_belongs_to_another_controller_or_space_is_refused() {
    let common = space();
    let (one, other) = (
        rig_in("size=16M", &common, &ControllerOptions::new()),
        rig_in("size=16M", &common, &ControllerOptions::new()),
    );
    let stranger = rig("size=16M");
    let namespace = one.controller.namespace(Nsid(1)).expect("a namespace");
    let mut queue = one.controller.create_queue(QueueConfig::with_depth(4)).expect("a queue");
    let of_other = other.controller.namespace(Nsid(1)).expect("a namespace");
    let buffer = common.allocate(4096).expect("memory");
    let refused = queue.submit(Request::read(&of_other, Lba(0), buffer)).expect_err("another controller");
    assert_eq!(refused.error, SubmitError::OtherController);
    let buffer = stranger.space.allocate(4096).expect("memory");
    let refused = queue.submit(Request::read(&namespace, Lba(0), buffer)).expect_err("another space");
    assert_eq!(refused.error, SubmitError::OtherSpace);
    assert_eq!(refused.request.into_buffer().bytes(), 4096);

    // One buffer goes through both controllers of the space.
    let mut buffer = common.allocate(4096).expect("memory");
    buffer.as_mut_slice().fill(7);
    queue.submit(Request::write(&namespace, Lba(0), buffer)).expect("room");
    let mut back = None;
    one.finish(&mut queue, |completion| back = completion.buffer.into_dma_buf());
    let mut second = other.controller.create_queue(QueueConfig::with_depth(4)).expect("a queue");
    second.submit(Request::read(&of_other, Lba(0), back.take().expect("it came back"))).expect("room");
    other.finish(&mut second, |completion| back = completion.buffer.into_dma_buf());
    assert!(back.expect("it came back").iter().all(|byte| *byte == 0));
}

/// A handle was a place and a number that two queues could have in common.
#[test]
fn a_handle_of_one_queue_cancels_nothing_on_another() {
    let rig = rig("size=16M,mdts=1");
    let namespace = rig.controller.namespace(Nsid(1)).expect("a namespace");
    let create = || rig.controller.create_queue(QueueConfig::with_depth(1)).expect("a queue");
    let (mut one, mut other) = (create(), create());
    let large = || rig.space.allocate(256 << 10).expect("memory");
    let handle = one.submit(Request::read(&namespace, Lba(0), large())).expect("room");
    other.submit(Request::read(&namespace, Lba(0), large())).expect("room");
    assert_eq!(other.cancel(handle), Cancelled::Ended);
    rig.finish(&mut other, |completion| assert_eq!(completion.result, Ok(0)));
    assert_eq!(one.cancel(handle), Cancelled::Rest);
    rig.finish(&mut one, |completion| assert_eq!(completion.result, Err(doorbell::IoError::Cancelled)));
    assert_eq!(one.cancel(handle), Cancelled::Ended);
}

#[test]
fn what_the_controller_does_not_support_is_refused() {
    let rig = rig("size=16M,oncs=0");
    let namespace = rig.controller.namespace(Nsid(1)).expect("a namespace");
    let mut queue = rig.controller.create_queue(QueueConfig::with_depth(4)).expect("a queue");
    let refused = queue.submit(Request::write_zeroes(&namespace, Lba(0), Blocks(1))).expect_err("refused");
    assert_eq!(refused.error, SubmitError::Unsupported { operation: Operation::WriteZeroes });
}

/// One namespace whose Identify failed took the whole controller with it.
#[test]
fn a_namespace_that_cannot_be_identified_is_left_out() {
    let (device, clock) = device("size=16M,nsid=1+3+7");
    let matches = doorbell_emulator::fault::Match {
        opcode: Some(IDENTIFY),
        nsid: Some(Nsid(3)),
        ..doorbell_emulator::fault::Match::default()
    };
    // The list is asked for from namespace 0 on; only Identify Namespace names number 3.
    let action = Action::Status(Status::INTERNAL_ERROR);
    device.faults().arm(doorbell_emulator::fault::Rule::new(matches, action));
    let controller = ControllerOptions::new().clock(&clock).open_transport(device).expect("comes up");
    let found: Vec<Nsid> = controller.namespaces().iter().map(|namespace| namespace.nsid()).collect();
    assert_eq!(found, [Nsid(1), Nsid(7)]);
}

/// A controller that answered nothing any more was taken for up.
#[test]
fn no_admin_command_of_the_bring_up_may_go_unanswered() {
    for skip in [0, 1] {
        let (device, clock) = device("size=16M");
        let matches = doorbell_emulator::fault::Match {
            opcode: Some(SET_FEATURES),
            skip,
            ..doorbell_emulator::fault::Match::default()
        };
        device.faults().arm(doorbell_emulator::fault::Rule::new(matches, Action::Drop));
        let opened = ControllerOptions::new().clock(&clock).open_transport(device);
        assert!(matches!(opened, Err(ControllerError::Timeout { .. })), "{opened:?}");
    }
}

/// A space that is attached beside the controller's own is one that the device is told nothing of.
#[test]
fn another_space_may_be_attached_to_a_running_controllers_device() {
    let rig = rig("size=16M");
    let mapper = rig.device.mapper();
    let other = space();
    let held = other.allocate(4096).expect("memory");
    // The controller's memory is where its own would be, and stays there.
    other.attach(mapper.clone()).expect_err("the same addresses");
    drop(held);
    drop(other.attach(mapper).expect("of nothing"));
    rig.controller.health().expect("it goes on");
}

/// Two controllers on one transport rang each other's doorbells: the device took old entries, and wrote to
/// buffers that had gone back to their owners.
#[test]
fn a_transport_is_driven_by_one_controller_at_a_time() {
    let rig = rig("size=16M");
    let again = || {
        let transport = std::sync::Arc::<doorbell_emulator::Emulator>::clone(&rig.device);
        ControllerOptions::new().clock(&rig.clock).open_transport(transport)
    };
    let refused = again().expect_err("the first one drives it");
    assert!(matches!(refused, ControllerError::InUse { .. }), "{refused}");
    rig.controller.health().expect("it goes on");
    rig.controller.close().expect("no queue is open");
    again().expect("it is free again");
}
