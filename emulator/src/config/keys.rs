//! The options, one row each: name, what is allowed, an example, and what the value does.
//!
//! The text form and the file form share these rows, so that a key means the same in both and an error can
//! say what would have been right.

use std::path::PathBuf;
use std::time::Duration;

use doorbell_spec::Nsid;

use super::units::{parse_duration, parse_integer, parse_size};
use super::{
    BackendConfig, EmulatorConfig, NAMESPACES_MAX, NamespaceConfig, Progress, ShadowDoorbells, Toggle,
};

/// A configuration on its way: the controller, and the namespace that the namespace keys describe.
pub(super) struct Draft {
    pub(super) config: EmulatorConfig,
    pub(super) namespace: NamespaceConfig,
    pub(super) nsids: Vec<Nsid>,
    pub(super) path: Option<PathBuf>,
}

/// One option. `apply` answers `None` for a value that does not fit.
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) allowed: &'static str,
    pub(super) example: &'static str,
    pub(super) apply: fn(&mut Draft, &str) -> Option<()>,
}

macro_rules! keys {
    ($($name:literal, $allowed:expr, $example:literal, $apply:expr;)+) => {
        &[$(Key { name: $name, allowed: $allowed, example: $example, apply: $apply }),+]
    };
}

/// Options of a namespace.
pub(super) const NAMESPACE_KEYS: &[Key] = keys! {
    "backend", "null, mem or file", "mem", |d, v| {
        d.namespace.backend = match v {
            "null" => BackendConfig::Null,
            "mem" => BackendConfig::Memory,
            "file" => BackendConfig::File(PathBuf::new()),
            _ => return None,
        };
        Some(())
    };
    "path", "a file's path (with backend=file)", "disk.img", |d, v| {
        (!v.is_empty()).then(|| d.path = Some(PathBuf::from(v)))
    };
    "size", SIZE, "1G", |d, v| set(&mut d.namespace.bytes, parse_size(v).filter(|n| *n > 0).map(Some));
    "lba", "a block size: a power of two from 512 to 65536", "4096", |d, v| {
        let bytes = small::<u32>(parse_size(v), 65_536)?;
        set(&mut d.namespace.block_bytes, (bytes.is_power_of_two() && bytes >= 512).then_some(bytes))
    };
    "nsid", "identifiers from 1 on, alone, listed with + or as a range (at most 65536)", "1+3+7", |d, v| {
        set(&mut d.nsids, nsid_list(v))
    };
    "noiob", "an optimal boundary in blocks, 0 to 65535 (0: none)", "256", |d, v| {
        set(&mut d.namespace.optimal_boundary, small(parse_integer(v), 65_535))
    };
    "nawun", "an atomic write unit in blocks, 1 to 65536", "8", |d, v| {
        set(&mut d.namespace.atomic_write_z, one_based(v).map(Some))
    };
    "readonly", TOGGLE, "on", |d, v| set(&mut d.namespace.write_protection, toggle(v));
    "metadata", "metadata bytes per block (only 0 for now)", "0", |d, v| {
        set(&mut d.namespace.metadata_bytes, small(parse_integer(v), 65_535))
    };
    "pi", "a protection type, 0 to 3 (only 0 for now)", "0", |d, v| {
        set(&mut d.namespace.protection, small(parse_integer(v), 3))
    };
};

/// Options of the controller.
pub(super) const CONTROLLER_KEYS: &[Key] = keys! {
    "latency", DURATION, "80us", |d, v| {
        let time = parse_duration(v)?;
        (d.config.latency.read, d.config.latency.write) = (time, time);
        Some(())
    };
    "read_latency", DURATION, "80us", |d, v| set(&mut d.config.latency.read, parse_duration(v));
    "write_latency", DURATION, "20us", |d, v| set(&mut d.config.latency.write, parse_duration(v));
    "admin_latency", DURATION, "1ms", |d, v| set(&mut d.config.latency.admin, parse_duration(v));
    "units", "a number of commands served at a time, 0 to 65536 (0: any)", "8", |d, v| {
        set(&mut d.config.latency.units, small(parse_integer(v), 65_536))
    };
    "mqes", "the largest queue in entries, 2 to 65536", "1024", |d, v| {
        set(&mut d.config.mqes_z, one_based(v).filter(|z| *z > 0))
    };
    "mqes_z", "the raw register field, 0 to 0xffff", "0xffff", |d, v| {
        set(&mut d.config.mqes_z, small(parse_integer(v), 65_535))
    };
    "mdts", "0 (no limit), a power of the smallest page (1 to 255), or that size in bytes", "128k", |d, v| {
        let value = parse_size(v)?;
        let power = if value < 256 {
            value
        } else {
            // In bytes it must be a page times a power of two; MPSMIN is looked at when all keys are read.
            (value.is_power_of_two() && value > 4096).then(|| u64::from((value >> 12).trailing_zeros()))?
        };
        set(&mut d.config.mdts, small(Some(power), 255))
    };
    "stride", "a power, 0 to 15: doorbells are 4 << stride bytes apart", "4", |d, v| {
        set(&mut d.config.stride, small(parse_integer(v), 15))
    };
    "mpsmin", PAGE, "4k", |d, v| set(&mut d.config.page_min, page(v));
    "mpsmax", PAGE, "64k", |d, v| set(&mut d.config.page_max, page(v));
    "to", "a time up to 127.5s, rounded up to half seconds", "10s", |d, v| {
        set(&mut d.config.timeout_500ms, small(halves(v), 255))
    };
    "crto", "a time up to 32767s, rounded up to half seconds", "10s", |d, v| {
        set(&mut d.config.crto_500ms, small(halves(v), 65_535).map(Some))
    };
    "ready_delay", PROGRESS, "200ms", |d, v| set(&mut d.config.ready, progress(v));
    "disable_delay", DURATION, "200ms", |d, v| set(&mut d.config.disable_delay, parse_duration(v));
    "never_ready", TOGGLE, "on", |d, v| {
        if toggle(v)?.is_on() {
            d.config.ready = Progress::Never;
        }
        Some(())
    };
    "shutdown", PROGRESS, "50ms", |d, v| set(&mut d.config.shutdown, progress(v));
    "rtd3e", "a time up to 4294s", "2s", |d, v| {
        let micros = u64::try_from(parse_duration(v)?.as_micros()).ok();
        set(&mut d.config.shutdown_latency_us, small(micros, u64::from(u32::MAX)))
    };
    "cqr", TOGGLE, "off", |d, v| set(&mut d.config.contiguous_queues, toggle(v));
    "nssrs", TOGGLE, "on", |d, v| set(&mut d.config.subsystem_reset, toggle(v));
    "queues", "a number of I/O queue pairs, 1 to 65535", "64", |d, v| {
        let count = small(parse_integer(v).filter(|n| *n > 0), 65_535)?;
        (d.config.submission_queues, d.config.completion_queues) = (count, count);
        Some(())
    };
    "nsqa", "a number of I/O submission queues, 1 to 65535", "8", |d, v| {
        set(&mut d.config.submission_queues, small(parse_integer(v).filter(|n| *n > 0), 65_535))
    };
    "ncqa", "a number of I/O completion queues, 1 to 65535", "4", |d, v| {
        set(&mut d.config.completion_queues, small(parse_integer(v).filter(|n| *n > 0), 65_535))
    };
    "aerl", "the raw zero-based field, 0 to 255", "3", |d, v| {
        set(&mut d.config.aerl_z, small(parse_integer(v), 255))
    };
    "acl", "the raw zero-based field, 0 to 255", "3", |d, v| {
        set(&mut d.config.acl_z, small(parse_integer(v), 255))
    };
    "vwc", TOGGLE, "on", |d, v| set(&mut d.config.write_cache, toggle(v).map(Some));
    "awun", "a number of blocks, 1 to 65536", "256", |d, v| set(&mut d.config.awun_z, one_based(v));
    "awupf", "a number of blocks, 1 to 65536", "1", |d, v| set(&mut d.config.awupf_z, one_based(v));
    "oncs", "the raw field, 0 to 0xffff", "0x8d", |d, v| {
        set(&mut d.config.oncs, small(parse_integer(v), 65_535))
    };
    "vectors", "a number of interrupt vectors, 0 to 2048", "65", |d, v| {
        set(&mut d.config.vectors, small(parse_integer(v), 2048))
    };
    "iova_bits", "a width, 32 to 64", "39", |d, v| {
        set(&mut d.config.iova_bits, small(parse_integer(v).filter(|n| *n >= 32), 64))
    };
    "map_entries", "a number of DMA mappings, from 0 on", "65535", |d, v| {
        set(&mut d.config.map_entries, parse_integer(v).map(Some))
    };
    "cid_below_depth", TOGGLE, "on", |d, v| set(&mut d.config.cid_below_depth, toggle(v));
    "shadow_doorbells", "off, on, or io_only (not for the admin queue)", "on", |d, v| {
        d.config.shadow_doorbells = match v {
            "io_only" => ShadowDoorbells::IoOnly,
            other if toggle(other)?.is_on() => ShadowDoorbells::On,
            _ => ShadowDoorbells::Off,
        };
        Some(())
    };
    "shadow_polling", TOGGLE, "off", |d, v| set(&mut d.config.shadow_polling, toggle(v));
    "serial", "up to 20 printable ASCII characters", "DOORBELL0001", |d, v| text(&mut d.config.serial, v, 20);
    "model", "up to 40 printable ASCII characters", "Doorbell", |d, v| text(&mut d.config.model, v, 40);
    "firmware", "up to 8 printable ASCII characters", "1.0", |d, v| text(&mut d.config.firmware, v, 8);
};

/// Reads a number up to `most`.
pub(crate) fn parse_number<T: TryFrom<u64>>(text: &str, most: u64) -> Option<T> {
    small(parse_integer(text), most)
}

fn set<T>(place: &mut T, value: Option<T>) -> Option<()> {
    *place = value?;
    Some(())
}

fn text(place: &mut String, value: &str, most: usize) -> Option<()> {
    let fits = value.len() <= most && value.chars().all(|c| c == ' ' || c.is_ascii_graphic());
    fits.then(|| value.clone_into(place))
}

fn toggle(word: &str) -> Option<Toggle> {
    match word {
        "on" | "true" => Some(Toggle::On),
        "off" | "false" => Some(Toggle::Off),
        _ => None,
    }
}

fn small<T: TryFrom<u64>>(value: Option<u64>, most: u64) -> Option<T> {
    value.filter(|value| *value <= most).and_then(|value| T::try_from(value).ok())
}

/// A count of 1 to 65,536 as the zero-based field.
fn one_based(value: &str) -> Option<u16> {
    small(parse_integer(value)?.checked_sub(1), 65_535)
}

/// A page size as its power over 4,096; small numbers are the power itself.
fn page(value: &str) -> Option<u8> {
    let value = parse_size(value)?;
    if value <= 15 {
        return small(Some(value), 15);
    }
    (value.is_power_of_two() && value >= 4096)
        .then(|| u64::from((value >> 12).trailing_zeros()))
        .and_then(|power| small(Some(power), 15))
}

fn halves(value: &str) -> Option<u64> {
    u64::try_from(parse_duration(value)?.as_millis().div_ceil(500)).ok()
}

fn progress(value: &str) -> Option<Progress> {
    match value {
        "never" => Some(Progress::Never),
        other => parse_duration(other).map(|time: Duration| Progress::After(time)),
    }
}

/// `1+3+7`, `1-2000`, or both mixed.
fn nsid_list(value: &str) -> Option<Vec<Nsid>> {
    let mut list = Vec::new();
    for part in value.split('+') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: u32 = small(parse_integer(first).filter(|n| *n > 0), u64::from(u32::MAX - 2))?;
        let last: u32 = small(parse_integer(last), u64::from(u32::MAX - 2))?;
        if last < first || (last - first) as usize >= NAMESPACES_MAX - list.len() {
            return None;
        }
        list.extend((first..=last).map(Nsid));
    }
    Some(list)
}

const SIZE: &str = "a size from 1 byte to below 16 EiB: a number, with k, M, G or T behind it or not";
const DURATION: &str = "a time with ns, us, ms or s behind it, at most a day";
const PROGRESS: &str = "a time with ns, us, ms or s behind it, or never";
const TOGGLE: &str = "on or off";
const PAGE: &str = "a page size from 4k to 128M, or its power, 0 to 15";
