#![expect(unsafe_code)]
//! What scenarios tell a device without a driver.
//
// UNSAFETY: calls the unsafe methods of a transport, at addresses where no memory is.

use doorbell_spec::register::{ACQ, AQA, ASQ, CC, CSTS, Cc};
use doorbell_spec::{BusError, Clock, Transport};

/// Enables a device as a process that was killed leaves it, and waits until it is ready, ten seconds at most.
///
/// Its admin queues are of the least size and at addresses that it cannot reach: a `DmaSpace` has none below
/// 4 GiB. Its right to DMA stays as it is.
pub(crate) fn leave_enabled(device: &dyn Transport, clock: &Clock) -> Result<(), BusError> {
    let enabled = Cc::new().with_enable(true).with_submission_entry(6).with_completion_entry(4);
    // SAFETY:
    // - nobody drives the device: no scenario has a controller on it now, and bring-up disables it first;
    // - no memory is at the addresses that it is given.
    unsafe { device.write32(AQA, 0x0001_0001) }?;
    // SAFETY: as above.
    unsafe { device.write64(ASQ, 0x10_0000) }?;
    // SAFETY: as above.
    unsafe { device.write64(ACQ, 0x10_1000) }?;
    // SAFETY: as above.
    unsafe { device.write32(CC, enabled.into_bits()) }?;
    let deadline = clock.deadline(std::time::Duration::from_secs(10));
    while device.read32(CSTS)? & 1 == 0 && !deadline.passed(clock) {
        device.relax(clock);
    }
    Ok(())
}

/// Rings for one entry of the admin queue of a device that was left enabled.
pub(crate) fn ring_admin_queue(device: &dyn Transport) -> Result<(), BusError> {
    // SAFETY:
    // - nobody drives the device, see above;
    // - the entry to be taken, and whatever it would name, is at an address where no memory is.
    let doorbells = unsafe { device.doorbells(8) }?;
    doorbells.at(0).expect("the admin queue's").ring(1);
    Ok(())
}
