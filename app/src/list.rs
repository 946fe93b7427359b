//! `nvme-perf list`: the NVMe controllers of this machine, what holds them and what uses them.

use std::fs;

use clap::Args;
use doorbell::pci::{Isolation, Machine, PciDevice};
use serde_json::{Value, json};

use crate::output::{Format, Output};
use crate::table::Table;

/// What `nvme-perf list` was asked for.
#[derive(Args, Clone, Debug)]
pub(crate) struct ListOptions {
    /// The form of the result.
    #[arg(long, value_enum, value_name = "FORM", default_value_t = Format::Normal)]
    output_format: Format,
}

/// One controller.
#[derive(Clone, Debug)]
struct Row {
    device: PciDevice,
    model: Option<String>,
    /// Device nodes of the kernel's driver, such as `nvme0`.
    kernel_names: Vec<String>,
    usage: String,
}

/// Writes the list.
pub(crate) fn run(options: &ListOptions) -> anyhow::Result<()> {
    let machine = Machine::this();
    let rows: Vec<_> = machine.scan()?.into_iter().map(|device| Row::of(&machine, device)).collect();
    let mut output = Output::standard();
    match options.output_format {
        Format::Json => {
            output.write_json(&json!({ "controllers": rows.iter().map(Row::json).collect::<Vec<_>>() }))
        }
        Format::Normal => output.write(&text(&rows)),
    }
}

impl Row {
    fn of(machine: &Machine, device: PciDevice) -> Self {
        let folder = machine.device_path(device.address).join("nvme");
        let mut kernel_names: Vec<_> = fs::read_dir(&folder)
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
            .collect();
        kernel_names.sort();
        let model = kernel_names
            .first()
            .and_then(|name| fs::read_to_string(folder.join(name).join("model")).ok())
            .map(|model| model.trim().to_owned());
        let usage = match machine.usage(&device) {
            Ok(usage) if usage.is_empty() => String::new(),
            Ok(usage) => usage.to_string(),
            Err(error) => format!("unknown: {error}"),
        };
        Self { device, model, kernel_names, usage }
    }

    fn group(&self) -> String {
        match &self.device.iommu_group {
            Some(group) if group.isolation == Isolation::Iommu => group.id.to_string(),
            Some(group) => format!("{} (no IOMMU)", group.id),
            None => "none".to_owned(),
        }
    }

    /// What to type next.
    fn hint(&self) -> String {
        let address = self.device.address;
        let has_iommu =
            self.device.iommu_group.as_ref().is_some_and(|group| group.isolation == Isolation::Iommu);
        match (self.device.is_bound_to_vfio(), self.usage.is_empty()) {
            (true, true) => format!("ready: nvme-perf run {address}"),
            (_, false) => self.usage.clone(),
            (false, true) if !has_iommu => "no IOMMU: see `nvme-perf setup`".to_owned(),
            (false, true) => format!("free: sudo nvme-perf bind {address}"),
        }
    }

    fn json(&self) -> Value {
        let device = &self.device;
        json!({
            "address": device.address.to_string(),
            "vendor_id": device.vendor_id,
            "device_id": device.device_id,
            "driver": device.driver,
            "numa_node": device.numa_node,
            "iommu_group": device.iommu_group.as_ref().map(|group| group.id),
            "iommu": device.iommu_group.as_ref().is_some_and(|group| group.isolation == Isolation::Iommu),
            "model": self.model,
            "kernel_names": self.kernel_names,
            "usage": (!self.usage.is_empty()).then_some(&self.usage),
        })
    }
}

fn text(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "no NVMe controllers on this machine; `nvme-perf run emu:` needs none\n".to_owned();
    }
    let mut table = Table::new(&["ADDRESS", "ID", "DRIVER", "NODE", "GROUP", "KERNEL", "MODEL", "STATE"]);
    for row in rows {
        let device = &row.device;
        table.add(vec![
            device.address.to_string(),
            format!("{:04x}:{:04x}", device.vendor_id, device.device_id),
            device.driver.clone().unwrap_or_else(|| "none".to_owned()),
            device.numa_node.map_or_else(|| "-".to_owned(), |node| node.to_string()),
            row.group(),
            if row.kernel_names.is_empty() { "-".to_owned() } else { row.kernel_names.join(" ") },
            row.model.clone().unwrap_or_else(|| "-".to_owned()),
            row.hint(),
        ]);
    }
    table.text()
}

/// What stands below the options.
pub(crate) const LIST_HELP: &str = "\
Examples:
  nvme-perf list
  nvme-perf list --output-format=json

Without root, only your own processes are seen as users of a device.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_controllers_says_what_works_all_the_same() {
        assert!(text(&[]).contains("nvme-perf run emu:"));
    }
}
