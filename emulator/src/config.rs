//! What a software controller is made to look like.
//!
//! Everything that a driver may meet on a real controller and that is awkward to find in a shop is a value
//! here: tiny or huge queues, wide doorbell strides, late or missing readiness, gaps between namespaces.
//! Raw zero-based fields end in `_z`. The text form is read in [`keys`], the file form in [`file`].

mod error;
mod file;
mod keys;
mod parse;
mod units;

use std::path::PathBuf;
use std::time::Duration;

use doorbell_spec::Nsid;
use doorbell_spec::identify::{ONCS_COMPARE, ONCS_DATASET_MANAGEMENT, ONCS_WRITE_ZEROES};

use crate::fault::Rule;

pub use error::ConfigError;
pub(crate) use keys::parse_number;
pub(crate) use units::{duration_text, parse_duration};

/// ONCS bit 7: Verify is supported (NVMe Base 2.0, 5.17.2.1).
pub(crate) const ONCS_VERIFY: u16 = 1 << 7;

/// How a software controller looks and behaves. The default is one namespace of 1 GiB in memory, 512-byte
/// blocks, no latency, and nothing odd.
///
/// ```
/// use doorbell_emulator::EmulatorConfig;
///
/// let config: EmulatorConfig = "backend=null,size=1G,lba=4096,latency=80us".parse()?;
/// assert_eq!(config.namespaces[0].block_bytes, 4096);
/// # Ok::<(), doorbell_emulator::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EmulatorConfig {
    /// The namespaces, in any order, with gaps between their identifiers or not. At most 65,536.
    pub namespaces: Vec<NamespaceConfig>,
    /// How long commands take.
    pub latency: LatencyConfig,
    /// Rules that are armed from the start.
    pub faults: Vec<Rule>,
    /// CAP.MQES: the largest I/O queue, zero-based.
    pub mqes_z: u16,
    /// MDTS: the largest transfer as a power of two of the smallest page; 0 is no limit.
    pub mdts: u8,
    /// CAP.DSTRD: doorbells are 4 << stride bytes apart, 0 to 15.
    pub stride: u8,
    /// CAP.MPSMIN: the smallest page is 4096 << n bytes, 0 to 15.
    pub page_min: u8,
    /// CAP.MPSMAX: the largest page is 4096 << n bytes, 0 to 15, at least `page_min`.
    pub page_max: u8,
    /// CAP.TO: the longest time to become ready, in units of 500 ms.
    pub timeout_500ms: u8,
    /// CRTO.CRWMT, in units of 500 ms; `None` is the same as CAP.TO.
    pub crto_500ms: Option<u16>,
    /// How long it takes from CC.EN = 1 to CSTS.RDY = 1. May be longer than CAP.TO and CRTO promise.
    pub ready: Progress,
    /// How long it takes from CC.EN = 0 to CSTS.RDY = 0. Memory is left alone at once in any case.
    pub disable_delay: Duration,
    /// How long a shutdown takes.
    pub shutdown: Progress,
    /// RTD3E: what the controller says that a shutdown takes at most, in microseconds.
    pub shutdown_latency_us: u32,
    /// CAP.CQR: queues must be physically contiguous. Others are refused in any case.
    pub contiguous_queues: Toggle,
    /// CAP.NSSRS: an NVM subsystem reset by NSSR is possible.
    pub subsystem_reset: Toggle,
    /// How many I/O submission queues there are, 1 to 65,535.
    pub submission_queues: u16,
    /// How many I/O completion queues there are, 1 to 65,535.
    pub completion_queues: u16,
    /// AERL: outstanding event requests, zero-based.
    pub aerl_z: u8,
    /// ACL: outstanding aborts, zero-based.
    pub acl_z: u8,
    /// Whether there is a volatile write cache. `None`: exactly if a namespace is kept in a file.
    pub write_cache: Option<Toggle>,
    /// AWUN: atomic write unit in blocks, zero-based.
    pub awun_z: u16,
    /// AWUPF: atomic write unit across a power failure in blocks, zero-based.
    pub awupf_z: u16,
    /// ONCS: optional NVM commands. A command whose bit is off is an invalid opcode.
    pub oncs: u16,
    /// Interrupt vectors, 0 to 2,048.
    pub vectors: u16,
    /// Width of the device's addresses in bits, 32 to 64.
    pub iova_bits: u8,
    /// The most DMA mappings at a time; `None` is no limit.
    pub map_entries: Option<u64>,
    /// Whether the device breaks when a command identifier is not below the queue's size; on, such an
    /// identifier is answered with Invalid Field and reported as a violation.
    pub cid_below_depth: Toggle,
    /// SN, at most 20 ASCII characters.
    pub serial: String,
    /// MN, at most 40 ASCII characters.
    pub model: String,
    /// FR, at most 8 ASCII characters.
    pub firmware: String,
    /// Whether Doorbell Buffer Config is offered, and for which queues. Off by default: doorbells of an
    /// in-process controller are plain memory already, and shadows only cost their host a barrier.
    pub shadow_doorbells: ShadowDoorbells,
    /// Whether idle queues' shadows are looked at all the same. Off, a queue that was found idle is looked at
    /// only when its register is rung, as on a device that sleeps: a host that forgets to ring is found out.
    pub shadow_polling: Toggle,
    /// The text this was read from, for the controller's name.
    pub(crate) source: String,
}

/// One namespace.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NamespaceConfig {
    /// Its identifier, 1 to 0xFFFF_FFFE.
    pub nsid: Nsid,
    /// Its size in bytes; `None` is a file's own length, or 1 GiB.
    pub bytes: Option<u64>,
    /// Its block size in bytes, a power of two from 512 to 65,536.
    pub block_bytes: u32,
    /// Metadata bytes per block. Only 0 is possible for now.
    pub metadata_bytes: u16,
    /// Protection information type, 0 to 3. Only 0 is possible for now.
    pub protection: u8,
    /// Where its blocks are.
    pub backend: BackendConfig,
    /// NOIOB: optimal boundary in blocks; 0 is none.
    pub optimal_boundary: u16,
    /// NAWUN and NAWUPF in blocks, zero-based, where the namespace has its own.
    pub atomic_write_z: Option<u16>,
    /// Whether it can be written.
    pub write_protection: Toggle,
}

/// Where a namespace's blocks are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackendConfig {
    /// Nowhere: no data is transferred in either direction, and data pointers are not followed.
    Null,
    /// In memory that is allocated as it is written; zeros at first.
    Memory,
    /// In a file, created if it does not exist.
    File(PathBuf),
}

/// How long commands take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LatencyConfig {
    /// Service time of Read, Compare and Verify.
    pub read: Duration,
    /// Service time of everything else on I/O queues.
    pub write: Duration,
    /// Service time of admin commands, event requests excepted.
    pub admin: Duration,
    /// How many I/O commands are served at a time; 0 is any number.
    pub units: u32,
}

/// One option of the text form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigOption {
    /// What stands before the `=`.
    pub name: &'static str,
    /// What may stand behind it, in words.
    pub allowed: &'static str,
    /// A value that works.
    pub example: &'static str,
}

/// On or off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Toggle {
    /// Off.
    #[default]
    Off,
    /// On.
    On,
}

impl Toggle {
    /// Whether this is `On`.
    #[must_use]
    pub fn is_on(self) -> bool {
        self == Self::On
    }
}

/// Which queues have shadow doorbells when a host configures them (NVMe Base 2.0, 5.8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShadowDoorbells {
    /// None: the command is not offered.
    #[default]
    Off,
    /// All. The admin queue's registers count too, as long as its shadows are not used.
    On,
    /// The I/O queues; the admin queue has its registers only, and its shadows are not touched.
    IoOnly,
}

/// How long something takes, if it ends at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It takes this long.
    After(Duration),
    /// It never ends.
    Never,
}

impl Default for EmulatorConfig {
    fn default() -> Self {
        Self {
            namespaces: vec![NamespaceConfig::default()],
            latency: LatencyConfig::default(),
            faults: Vec::new(),
            mqes_z: 1023,
            mdts: 9,
            stride: 0,
            page_min: 0,
            page_max: 4,
            timeout_500ms: 20,
            crto_500ms: None,
            ready: Progress::After(Duration::ZERO),
            disable_delay: Duration::ZERO,
            shutdown: Progress::After(Duration::ZERO),
            shutdown_latency_us: 2_000_000,
            contiguous_queues: Toggle::On,
            subsystem_reset: Toggle::Off,
            submission_queues: 64,
            completion_queues: 64,
            aerl_z: 3,
            acl_z: 3,
            write_cache: None,
            awun_z: 255,
            awupf_z: 0,
            oncs: ONCS_COMPARE | ONCS_DATASET_MANAGEMENT | ONCS_WRITE_ZEROES | ONCS_VERIFY,
            vectors: 65,
            iova_bits: 48,
            map_entries: None,
            cid_below_depth: Toggle::Off,
            shadow_doorbells: ShadowDoorbells::Off,
            shadow_polling: Toggle::On,
            serial: "DOORBELL0001".to_owned(),
            model: "Doorbell software controller".to_owned(),
            firmware: "1.0".to_owned(),
            source: String::new(),
        }
    }
}

impl Default for NamespaceConfig {
    fn default() -> Self {
        Self {
            nsid: Nsid(1),
            bytes: None,
            block_bytes: 512,
            metadata_bytes: 0,
            protection: 0,
            backend: BackendConfig::Memory,
            optimal_boundary: 0,
            atomic_write_z: None,
            write_protection: Toggle::Off,
        }
    }
}

impl EmulatorConfig {
    /// Every option of the text and file forms, for a help text.
    pub fn options() -> impl Iterator<Item = ConfigOption> {
        keys::NAMESPACE_KEYS.iter().chain(keys::CONTROLLER_KEYS).map(|row| ConfigOption {
            name: row.name,
            allowed: row.allowed,
            example: row.example,
        })
    }

    /// Whether writes may stay in a volatile cache until a flush.
    #[must_use]
    pub fn has_write_cache(&self) -> bool {
        match self.write_cache {
            Some(toggle) => toggle.is_on(),
            None => self.namespaces.iter().any(|ns| matches!(ns.backend, BackendConfig::File(_))),
        }
    }

    /// Checks what a single value cannot show.
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let conflict = |what: String| Err(ConfigError::Conflict { what });
        if self.page_max < self.page_min || self.page_max > 15 || self.stride > 15 {
            return conflict(format!(
                "mpsmin={}, mpsmax={}, stride={}: the powers are 0 to 15, and mpsmax is at least mpsmin",
                self.page_min, self.page_max, self.stride
            ));
        }
        if self.submission_queues == 0 || self.completion_queues == 0 {
            return conflict("a controller has at least one I/O queue of each kind; try queues=1".to_owned());
        }
        if !(32..=64).contains(&self.iova_bits) || self.vectors > 2048 {
            return conflict("iova_bits is 32 to 64, and vectors is 0 to 2048".to_owned());
        }
        if doorbell_window_bytes(self) > WINDOW_BYTES_MAX {
            let (queues, stride, need) = (self.last_queue(), self.stride, doorbell_window_bytes(self));
            return conflict(format!(
                "{queues} queues at stride {stride} need {need} bytes of doorbells, and at most \
                 {WINDOW_BYTES_MAX} are possible; use fewer queues"
            ));
        }
        let page_bytes = 4096 << self.page_min;
        if self.shadow_doorbells != ShadowDoorbells::Off && doorbell_window_bytes(self) > page_bytes {
            let (queues, stride) = (self.last_queue(), self.stride);
            return conflict(format!(
                "the shadow doorbells of {queues} queues at stride {stride} do not fit a page of \
                 {page_bytes} bytes; use fewer queues, a smaller stride, or shadow_doorbells=off"
            ));
        }
        self.validate_texts()?;
        self.validate_namespaces()
    }

    fn validate_texts(&self) -> Result<(), ConfigError> {
        for (key, text, most) in
            [("serial", &self.serial, 20), ("model", &self.model, 40), ("firmware", &self.firmware, 8)]
        {
            if text.len() > most || !text.chars().all(|c| c == ' ' || c.is_ascii_graphic()) {
                let what = format!("{key}={text:?} is not 0 to {most} printable ASCII characters");
                return Err(ConfigError::Conflict { what });
            }
        }
        Ok(())
    }

    fn validate_namespaces(&self) -> Result<(), ConfigError> {
        let conflict = |what: String| Err(ConfigError::Conflict { what });
        let mut nsids: Vec<u32> = self.namespaces.iter().map(|ns| ns.nsid.0).collect();
        nsids.sort_unstable();
        if nsids.len() > NAMESPACES_MAX {
            return conflict(format!("{} namespaces are more than {NAMESPACES_MAX}", nsids.len()));
        }
        if nsids.windows(2).any(|pair| pair[0] == pair[1]) {
            return conflict(
                "two namespaces have the same nsid; give each its own, as in nsid=1+3+7".to_owned(),
            );
        }
        if nsids.first() == Some(&0) || nsids.last().is_some_and(|last| *last >= u32::MAX - 1) {
            return conflict("a namespace identifier is 1 to 0xFFFFFFFD; try nsid=1".to_owned());
        }
        for ns in &self.namespaces {
            if !ns.block_bytes.is_power_of_two() || !(512..=65_536).contains(&ns.block_bytes) {
                return conflict(format!("lba={} is not a power of two from 512 to 65536", ns.block_bytes));
            }
            if ns.metadata_bytes != 0 || ns.protection != 0 {
                return conflict(format!(
                    "namespace {} asks for metadata or protection information, which this controller does \
                     not have yet; leave out metadata and pi",
                    ns.nsid
                ));
            }
        }
        Ok(())
    }

    /// The highest queue identifier.
    pub(crate) fn last_queue(&self) -> u16 {
        self.submission_queues.max(self.completion_queues)
    }
}

/// Bytes of doorbells that a controller of this form has.
pub(crate) fn doorbell_window_bytes(config: &EmulatorConfig) -> usize {
    doorbell_spec::register::doorbell_bytes(doorbell_spec::QueueId(config.last_queue()), config.stride)
}

/// The most namespaces of one controller.
pub(crate) const NAMESPACES_MAX: usize = 65_536;
/// Doorbells may take this much address space; only what is used takes memory.
pub(crate) const WINDOW_BYTES_MAX: usize = 1 << 30;
