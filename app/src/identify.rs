//! `nvme-perf identify`: what a controller and its namespaces say of themselves.

use anyhow::Context;
use clap::Args;
use doorbell::spec::identify::{
    IdentifyNamespace, LbaFormat, ONCS_COMPARE, ONCS_DATASET_MANAGEMENT, ONCS_WRITE_ZEROES,
};
use doorbell::{Controller, Namespace, Nsid, Target, WriteCache};
use serde_json::{Value, json};

use crate::failure::usage;
use crate::output::{Format, Output};
use crate::table::Table;
use crate::units::{duration_text, grouped, size_text};

/// What `nvme-perf identify` was asked for.
#[derive(Args, Clone, Debug)]
pub(crate) struct IdentifyOptions {
    /// The device: `emu:`, or a PCI address such as 0000:01:00.0.
    #[arg(value_name = "TARGET")]
    target: Target,

    /// Only this namespace [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    nsid: Option<u32>,

    /// The form of the result.
    #[arg(long, value_enum, value_name = "FORM", default_value_t = Format::Normal)]
    output_format: Format,
}

/// Writes what the device says.
pub(crate) fn run(options: &IdentifyOptions) -> anyhow::Result<()> {
    let text = options.target.to_string();
    let controller = Controller::open(&text)?;
    let namespaces = namespaces(&controller, options.nsid)?;
    let cache = controller.write_cache()?;
    let mut output = Output::standard();
    match options.output_format {
        Format::Json => output.write_json(&document(&text, &controller, cache, &namespaces))?,
        Format::Normal => {
            let mut text = controller_table(&text, &controller, cache);
            namespaces.iter().for_each(|(namespace, data)| text.push_str(&namespace_table(namespace, data)));
            output.write(&text)?;
        }
    }
    controller.close().context("shutting the controller down")
}

fn namespaces(
    controller: &Controller,
    nsid: Option<u32>,
) -> anyhow::Result<Vec<(Namespace, IdentifyNamespace)>> {
    let all = controller.namespaces();
    if let Some(nsid) = nsid
        && !all.iter().any(|namespace| namespace.nsid() == Nsid(nsid))
    {
        let present: Vec<_> = all.iter().map(|namespace| namespace.nsid().to_string()).collect();
        return Err(usage(format!(
            "--nsid {nsid} does not exist; this controller has {}",
            present.join(", ")
        )));
    }
    let wanted = all.into_iter().filter(|namespace| nsid.is_none_or(|nsid| namespace.nsid() == Nsid(nsid)));
    wanted.map(|namespace| Ok((namespace, controller.identify_namespace(namespace.nsid())?))).collect()
}

fn controller_table(target: &str, controller: &Controller, cache: WriteCache) -> String {
    let (names, data, cap) = (controller.names(), controller.identify(), controller.capabilities());
    let identity = controller.identity();
    let mut table = Table::of_pairs();
    table.pair("controller", target);
    table.pair("  model", names.model);
    table.pair("  serial number", names.serial);
    table.pair("  firmware", names.firmware);
    table.pair("  PCI ID", format!("{:04x}:{:04x}", identity.vendor_id, identity.device_id));
    table.pair("  NVMe version", version(controller));
    table.pair("  controller ID", data.controller_id.to_string());
    let node = identity.numa_node.map_or_else(|| "unknown".to_owned(), |node| node.to_string());
    table.pair("  NUMA node", node);
    table.pair("limits", "");
    table.pair("  queue pairs", format!("{} granted", controller.queue_pairs_max()));
    table.pair("  depth of a queue", grouped(controller.depth_max().into()));
    table.pair("  largest transfer", transfer(controller));
    table.pair(
        "  memory pages",
        format!("{} to {}", size_text(cap.page_bytes_min()), size_text(4096 << cap.page_max())),
    );
    table.pair("  doorbells every", format!("{} B", 4u32 << cap.doorbell_stride()));
    let shadows = if controller.has_shadow_doorbells() { "in use" } else { "none" };
    table.pair("  shadow doorbells", shadows);
    table.pair("  ready within", duration_text(cap.timeout()));
    let shutdown = data.shutdown_latency().map_or_else(|| "does not say".to_owned(), duration_text);
    table.pair("  shuts down within", shutdown);
    table.pair("  interrupt vectors", controller.interrupt_vectors().to_string());
    table.pair("  event requests", data.event_limit().to_string());
    table.pair("features", "");
    table.pair("  write cache", cache_text(cache));
    table.pair("  optional commands", commands(controller).join(", "));
    table.text()
}

fn namespace_table(namespace: &Namespace, data: &IdentifyNamespace) -> String {
    let mut table = Table::of_pairs();
    table.pair(&format!("namespace {}", namespace.nsid()), "");
    table.pair(
        "  size",
        format!(
            "{} in {} blocks of {} B",
            size_text(namespace.bytes()),
            grouped(namespace.blocks()),
            namespace.block_bytes()
        ),
    );
    table.pair("  in use", format!("{} blocks", grouped(data.used)));
    for (row, (index, format)) in formats(data).enumerate() {
        table.pair(if row == 0 { "  formats" } else { "" }, format_text(data, index, format));
    }
    let units = namespace.atomic_units();
    table.pair(
        "  atomic units",
        format!(
            "{} blocks, {} across a power failure, {} to compare and write",
            units.normal, units.power_fail, units.compare_and_write
        ),
    );
    let blocks = |limit: Option<doorbell::Blocks>| {
        limit.map_or_else(|| "none".to_owned(), |it| format!("{it} blocks"))
    };
    table.pair("  atomic boundary", blocks(units.boundary));
    table.pair("  optimal boundary", blocks(namespace.optimal_boundary()));
    table.pair("  write-protected", if namespace.is_write_protected() { "yes" } else { "no" });
    table.text()
}

fn document(
    target: &str,
    controller: &Controller,
    cache: WriteCache,
    namespaces: &[(Namespace, IdentifyNamespace)],
) -> Value {
    let (names, data, cap) = (controller.names(), controller.identify(), controller.capabilities());
    let identity = controller.identity();
    json!({
        "target": target,
        "model": names.model,
        "serial": names.serial,
        "firmware": names.firmware,
        "vendor_id": identity.vendor_id,
        "device_id": identity.device_id,
        "numa_node": identity.numa_node,
        "version": version(controller),
        "controller_id": data.controller_id,
        "queue_pairs": controller.queue_pairs_max(),
        "depth_max": controller.depth_max(),
        "transfer_bytes_max": data.transfer_bytes_max(cap.page_bytes_min()),
        "transfer_bytes_used": controller.transfer_bytes_max(),
        "page_bytes_min": cap.page_bytes_min(),
        "page_bytes_max": 4096u64 << cap.page_max(),
        "doorbell_stride_bytes": 4u32 << cap.doorbell_stride(),
        "shadow_doorbells": controller.has_shadow_doorbells(),
        "ready_timeout_ms": u64::try_from(cap.timeout().as_millis()).unwrap_or(u64::MAX),
        "shutdown_latency_us": data.shutdown_latency_us,
        "interrupt_vectors": controller.interrupt_vectors(),
        "event_requests": data.event_limit(),
        "write_cache": cache_text(cache),
        "commands": commands(controller),
        "namespaces": namespaces.iter().map(namespace_json).collect::<Vec<_>>(),
    })
}

fn namespace_json((namespace, data): &(Namespace, IdentifyNamespace)) -> Value {
    let units = namespace.atomic_units();
    let formats: Vec<_> = formats(data)
        .map(|(index, format)| {
            json!({
                "index": index,
                "block_bytes": 1u64 << format.block_shift(),
                "metadata_bytes": format.metadata_bytes(),
                "performance": format.performance(),
                "in_use": format == data.format(),
            })
        })
        .collect();
    json!({
        "nsid": namespace.nsid().0,
        "bytes": namespace.bytes(),
        "blocks": namespace.blocks(),
        "blocks_in_use": data.used,
        "block_bytes": namespace.block_bytes(),
        "metadata_bytes": namespace.metadata_bytes(),
        "formats": formats,
        "atomic_blocks": units.normal.0,
        "atomic_blocks_power_fail": units.power_fail.0,
        "atomic_blocks_compare_and_write": units.compare_and_write.0,
        "atomic_boundary_blocks": units.boundary.map(|blocks| blocks.0),
        "optimal_boundary_blocks": namespace.optimal_boundary().map(|blocks| blocks.0),
        "write_protected": namespace.is_write_protected(),
    })
}

/// The formats that the device has: their index and what they are. Whatever it claims, at most 64.
fn formats(data: &IdentifyNamespace) -> impl Iterator<Item = (usize, LbaFormat)> {
    let count = usize::from(data.formats_z) + 1;
    let is_real = |(_, format): &(usize, LbaFormat)| (9..=16).contains(&format.block_shift());
    data.formats.iter().copied().enumerate().take(count).filter(is_real)
}

fn format_text(data: &IdentifyNamespace, index: usize, format: LbaFormat) -> String {
    let in_use = if format == data.format() { " (in use)" } else { "" };
    let metadata = match format.metadata_bytes() {
        0 => String::new(),
        bytes => format!(" + {bytes} B of metadata"),
    };
    format!("{index}: {} B{metadata}{in_use}", 1u64 << format.block_shift())
}

fn version(controller: &Controller) -> String {
    let version = controller.version();
    format!("{}.{}.{}", version.major(), version.minor(), version.tertiary())
}

fn transfer(controller: &Controller) -> String {
    let limit = controller.identify().transfer_bytes_max(controller.capabilities().page_bytes_min());
    let limit = limit.map_or_else(|| "no limit".to_owned(), size_text);
    format!("{limit}; larger ones than {} are split", size_text(controller.transfer_bytes_max()))
}

fn commands(controller: &Controller) -> Vec<&'static str> {
    let data = controller.identify();
    [(ONCS_COMPARE, "compare"), (ONCS_DATASET_MANAGEMENT, "deallocate"), (ONCS_WRITE_ZEROES, "write zeroes")]
        .into_iter()
        .filter(|(bit, _)| data.supports(*bit))
        .map(|(_, name)| name)
        .collect()
}

fn cache_text(cache: WriteCache) -> &'static str {
    match cache {
        WriteCache::Absent => "absent",
        WriteCache::On => "on",
        WriteCache::Off => "off",
    }
}

/// What stands below the options.
pub(crate) const IDENTIFY_HELP: &str = "\
Examples:
  nvme-perf identify emu:
  nvme-perf identify 0000:01:00.0 --nsid 1 --output-format=json
";
