//! Set and Get Features (NVMe Base 2.0, 5.27 and 5.15). No feature can be saved.

use doorbell_spec::feature::{AsyncEventConfig, Feature, QueueCounts};
use doorbell_spec::{QueueId, Status, SubmissionEntry};

use crate::config::{EmulatorConfig, Toggle};
use crate::device::Device;

/// The values in force.
pub(crate) struct Features {
    /// Number of Queues, as granted.
    pub(crate) queues: QueueCounts,
    pub(crate) events: AsyncEventConfig,
    cache: Toggle,
    has_cache: bool,
    arbitration: u32,
    power: u32,
    /// Thresholds over and under, in kelvin.
    temperature: [u16; 2],
    error_recovery: u32,
    coalescing: u32,
    atomicity: u32,
}

impl Features {
    pub(crate) fn new(config: &EmulatorConfig, cache: Toggle) -> Self {
        Self {
            queues: QueueCounts::new()
                .with_submission_z(config.submission_queues.saturating_sub(1))
                .with_completion_z(config.completion_queues.saturating_sub(1)),
            events: AsyncEventConfig::new(),
            cache,
            has_cache: cache.is_on(),
            arbitration: ARBITRATION_DEFAULT,
            power: 0,
            temperature: TEMPERATURE_DEFAULT,
            error_recovery: 0,
            coalescing: 0,
            atomicity: 0,
        }
    }

    /// Back to the defaults.
    pub(crate) fn reset(&mut self, config: &EmulatorConfig) {
        let cache = if self.has_cache { Toggle::On } else { Toggle::Off };
        *self = Self::new(config, cache);
    }

    fn value(&self, feature: Feature, cdw11: u32) -> Result<u32, Status> {
        Ok(match feature {
            Feature::Arbitration => self.arbitration,
            Feature::PowerManagement => self.power,
            Feature::TemperatureThreshold => u32::from(self.temperature[threshold_index(cdw11)?]),
            Feature::ErrorRecovery => self.error_recovery,
            Feature::VolatileWriteCache if self.has_cache => u32::from(self.cache.is_on()),
            Feature::NumberOfQueues => self.queues.into_bits(),
            Feature::InterruptCoalescing => self.coalescing,
            Feature::InterruptVector => cdw11 & 0xffff,
            Feature::WriteAtomicity => self.atomicity,
            Feature::AsyncEvents => self.events.into_bits(),
            _ => return Err(Status::INVALID_FIELD.with_do_not_retry()),
        })
    }
}

impl Device {
    pub(super) fn query_features(&mut self, entry: &SubmissionEntry) -> Result<u32, Status> {
        let feature = Feature::from_raw((entry.cdw10 & 0xff) as u8);
        let current = self.admin.features.value(feature, entry.cdw11)?;
        match entry.cdw10 >> 8 & 7 {
            SELECT_CURRENT => Ok(current),
            SELECT_DEFAULT | SELECT_SAVED => {
                let cache = if self.storage.cache.is_on() { Toggle::On } else { Toggle::Off };
                Features::new(&self.config, cache).value(feature, entry.cdw11)
            }
            SELECT_CAPABILITIES => Ok(CAPABILITY_CHANGEABLE),
            _ => Err(Status::INVALID_FIELD.with_do_not_retry()),
        }
    }

    pub(super) fn set_features(&mut self, entry: &SubmissionEntry) -> Result<u32, Status> {
        let feature = Feature::from_raw((entry.cdw10 & 0xff) as u8);
        if entry.cdw10 & SAVE != 0 {
            return Err(Status::FEATURE_NOT_SAVEABLE.with_do_not_retry());
        }
        let value = entry.cdw11;
        let vectors = self.config.vectors;
        let features = &mut self.admin.features;
        match feature {
            Feature::Arbitration => features.arbitration = value,
            Feature::PowerManagement if value & 0x1f == 0 => features.power = value,
            Feature::TemperatureThreshold => {
                features.temperature[threshold_index(value)?] = (value & 0xffff) as u16;
            }
            Feature::ErrorRecovery => features.error_recovery = value,
            Feature::VolatileWriteCache if features.has_cache => {
                let is_on = value & 1 != 0;
                features.cache = if is_on { Toggle::On } else { Toggle::Off };
                // What the cache holds is written before it is turned off.
                if !is_on {
                    self.storage.flush_all()?;
                }
            }
            Feature::NumberOfQueues => return self.set_queue_counts(QueueCounts::from_bits(value)),
            Feature::InterruptCoalescing => features.coalescing = value & 0xffff,
            Feature::InterruptVector if value & 0xffff < u32::from(vectors) => {}
            Feature::WriteAtomicity => features.atomicity = value & 1,
            Feature::AsyncEvents => features.events = AsyncEventConfig::from_bits(value),
            _ => return Err(Status::INVALID_FIELD.with_do_not_retry()),
        }
        Ok(0)
    }

    /// Number of Queues (5.27.1.5): once per reset, before there are I/O queues.
    fn set_queue_counts(&mut self, asked: QueueCounts) -> Result<u32, Status> {
        if asked.submission_z() == u16::MAX || asked.completion_z() == u16::MAX {
            return Err(Status::INVALID_FIELD.with_do_not_retry());
        }
        let has_completion_queues = self.cqs.iter().skip(1).any(Option::is_some);
        if has_completion_queues || self.live.iter().any(|queue| *queue != QueueId::ADMIN) {
            return Err(Status::COMMAND_SEQUENCE_ERROR.with_do_not_retry());
        }
        let have = self.queue_limits();
        let granted = QueueCounts::new()
            .with_submission_z(asked.submission_z().min(have.submission_z()))
            .with_completion_z(asked.completion_z().min(have.completion_z()));
        self.admin.features.queues = granted;
        Ok(granted.into_bits())
    }
}

/// Which threshold CDW11 names: only the composite temperature has any.
fn threshold_index(cdw11: u32) -> Result<usize, Status> {
    let (sensor, kind) = (cdw11 >> 16 & 0xf, cdw11 >> 20 & 3);
    match (sensor, kind) {
        (0, 0) => Ok(0),
        (0, 1) => Ok(1),
        _ => Err(Status::INVALID_FIELD.with_do_not_retry()),
    }
}

/// CDW10 bit 31, SV.
const SAVE: u32 = 1 << 31;
const SELECT_CURRENT: u32 = 0;
const SELECT_DEFAULT: u32 = 1;
const SELECT_SAVED: u32 = 2;
const SELECT_CAPABILITIES: u32 = 3;
const CAPABILITY_CHANGEABLE: u32 = 1 << 2;
/// No limit on the burst.
const ARBITRATION_DEFAULT: u32 = 7;
const TEMPERATURE_DEFAULT: [u16; 2] = [343, 0];
