#![expect(unsafe_code)]
//! What somebody else does to the device of a running controller.
//
// UNSAFETY: writes a register, in a way that makes the device forget all memory.

use doorbell_spec::{BusError, Transport, register};

/// Disables the device behind the driver's back.
pub fn disable(device: &dyn Transport) -> Result<(), BusError> {
    // SAFETY:
    // - the controller drives the device, but this gives it no address, and what it does is allowed at any
    //   time: a disabled device accesses no memory.
    unsafe { device.write32(register::CC, 0) }
}
