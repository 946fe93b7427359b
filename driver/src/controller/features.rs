//! Features that an application asks for (NVMe Base 2.0, 5.27.1).

use doorbell_spec::feature::Feature;
use doorbell_spec::{Nsid, SubmissionEntry};

use super::Controller;
use crate::error::ControllerError;

/// The volatile write cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteCache {
    /// The device has none: a write that has completed is durable.
    Absent,
    /// It is on: a write is durable after a flush, or when forced.
    On,
    /// It is off: a write that has completed is durable.
    Off,
}

impl Controller {
    /// The state of the volatile write cache. Waits for an admin command.
    ///
    /// # Errors
    /// The controller did not answer, or refused.
    pub fn write_cache(&self) -> Result<WriteCache, ControllerError> {
        if !self.shared.identify.has_volatile_write_cache() {
            return Ok(WriteCache::Absent);
        }
        let entry = SubmissionEntry::query_features(Feature::VolatileWriteCache, Nsid(0));
        let answer =
            self.shared.with_admin(|admin| admin.execute("Get Features (Volatile Write Cache)", entry))?;
        Ok(if answer.dw0 & 1 == 1 { WriteCache::On } else { WriteCache::Off })
    }

    /// Turns the volatile write cache on or off, until the next reset. Waits for an admin command.
    ///
    /// # Errors
    /// There is no cache, or the controller did not answer, or refused.
    pub fn set_write_cache(&self, wanted: WriteCache) -> Result<(), ControllerError> {
        if wanted == WriteCache::Absent || !self.shared.identify.has_volatile_write_cache() {
            let why = "it has no volatile write cache to turn on or off".to_owned();
            return Err(ControllerError::Unsupported { why });
        }
        let value = u32::from(wanted == WriteCache::On);
        let entry = SubmissionEntry::set_features(Feature::VolatileWriteCache, Nsid(0), value);
        self.shared.with_admin(|admin| admin.execute("Set Features (Volatile Write Cache)", entry)).map(drop)
    }
}
