//! From a target to a transport.

use std::sync::Arc;

use doorbell_spec::Transport;

use crate::error::ControllerError;
use crate::target::Target;
use crate::vfio::VfioTransport;

/// Makes the transport that a target names. For `emu:`, this starts the software controller's thread.
pub(super) fn transport(target: &Target) -> Result<Arc<dyn Transport>, ControllerError> {
    match target {
        Target::Pci(address) => Ok(Arc::new(VfioTransport::open(*address)?)),
        Target::Emulated(spec) => emulated(spec),
    }
}

#[cfg(feature = "emulator")]
fn emulated(spec: &str) -> Result<Arc<dyn Transport>, ControllerError> {
    let config = spec.parse().map_err(doorbell_emulator::EmulatorError::from)?;
    Ok(doorbell_emulator::Emulator::spawn(config)?)
}

#[cfg(not(feature = "emulator"))]
fn emulated(spec: &str) -> Result<Arc<dyn Transport>, ControllerError> {
    let why = "this build has no software controller; build with the feature `emulator`";
    Err(crate::target::TargetError::NotAvailable { given: format!("emu:{spec}"), why }.into())
}
