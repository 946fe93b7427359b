//! One controller a transport: two drivers of one device would ring each other's doorbells.
//!
//! A doorbell rung for a queue of the other makes the device take entries that are not there: old ones, with
//! buffers that have long gone back to their owners. So this is about memory, not about manners.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use doorbell_spec::Transport;

use super::device::lock;
use crate::error::ControllerError;

/// The right to drive a transport, until this is dropped. Safe code has no other way to drive a device.
#[derive(Debug)]
pub(crate) struct Claim {
    /// Where the transport lies. Nothing else can lie there while the claim's owner holds it.
    address: usize,
}

impl Claim {
    /// Claims a transport, or refuses if somebody in this process drives it.
    pub(crate) fn of(transport: &Arc<dyn Transport>) -> Result<Self, ControllerError> {
        let address = Arc::as_ptr(transport).cast::<()>().addr();
        if lock(&CLAIMED).insert(address) {
            return Ok(Self { address });
        }
        Err(ControllerError::InUse { name: transport.identity().name })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock(&CLAIMED).remove(&self.address);
    }
}

static CLAIMED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());
