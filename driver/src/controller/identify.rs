//! Identify data that an application asks for, beyond what bring-up has read (NVMe Base 2.0, 5.17).

use doorbell_spec::identify::{IdentifyKind, IdentifyNamespace};
use doorbell_spec::{Nsid, SubmissionEntry};

use super::Controller;
use crate::error::ControllerError;

impl Controller {
    /// Identify Namespace, as the device answers it now: all LBA formats, the raw atomic units, how much is
    /// in use. Waits for an admin command. Does not change what [`namespace`](Controller::namespace) answers.
    ///
    /// # Errors
    /// The controller did not answer, or refused. Of a namespace that is not active the data is all zeros.
    pub fn identify_namespace(&self, nsid: Nsid) -> Result<IdentifyNamespace, ControllerError> {
        let entry = SubmissionEntry::identify(IdentifyKind::Namespace, nsid);
        let data = self.shared.with_admin(|admin| admin.fetch("Identify Namespace", entry))?;
        Ok(IdentifyNamespace::from_data(&data))
    }
}
