//! What QEMU counted for each controller: a witness that shares nothing with what is measured.
//!
//! QEMU's counters begin when it starts. The kernel's driver reads every disk while the guest boots, so the
//! difference between two readings is given: the counts of the command alone.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;
use serde_json::Value;

use crate::command_line::disk_id;
use crate::machine::{Machine, PciAddress};

/// The counters of one controller or one namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Reads that were completed.
    pub rd_operations: u64,
    /// Writes that were completed.
    pub wr_operations: u64,
    /// Bytes that were read.
    pub rd_bytes: u64,
    /// Bytes that were written.
    pub wr_bytes: u64,
    /// Flushes that were completed.
    pub flush_operations: u64,
    /// Blocks that were unmapped, in operations.
    pub unmap_operations: u64,
}

/// The counters of a controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ControllerCounters {
    /// The sum of its namespaces.
    #[serde(flatten)]
    pub total: Counters,
    /// Each namespace, by nsid.
    pub namespaces: BTreeMap<u32, Counters>,
}

/// The counters of every controller of a machine, by its address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct BlockStats(BTreeMap<PciAddress, ControllerCounters>);

impl BlockStats {
    /// Reads QEMU's answer to `query-blockstats`. A disk that is not in it, because its controller was
    /// removed, counts nothing.
    pub fn read(machine: &Machine, answer: &Value) -> Self {
        let read_controller = |controller: &crate::machine::Controller| {
            let namespaces: BTreeMap<_, _> = controller
                .namespaces
                .iter()
                .map(|ns| (ns.nsid, Counters::find(answer, &disk_id(controller.address, ns.nsid))))
                .collect();
            (controller.address, ControllerCounters::sum(namespaces))
        };
        Self(machine.controllers.iter().map(read_controller).collect())
    }

    /// What was counted since an earlier reading.
    pub fn since(&self, earlier: &Self) -> Self {
        let difference = |(address, now): (&PciAddress, &ControllerCounters)| {
            let before = earlier.0.get(address).map(|counters| &counters.namespaces);
            let namespaces = now.namespaces.iter().map(|(nsid, counters)| {
                let before = before.and_then(|namespaces| namespaces.get(nsid)).copied().unwrap_or_default();
                (*nsid, counters.since(before))
            });
            (*address, ControllerCounters::sum(namespaces.collect()))
        };
        Self(self.0.iter().map(difference).collect())
    }

    /// One line for each controller.
    pub fn lines(&self) -> String {
        let mut lines = String::new();
        for (address, ControllerCounters { total, .. }) in &self.0 {
            let Counters { rd_operations, wr_operations, rd_bytes, wr_bytes, flush_operations, .. } = total;
            // Writing to a string cannot fail.
            let _ = writeln!(
                lines,
                "{address} rd_operations={rd_operations} wr_operations={wr_operations} rd_bytes={rd_bytes} \
                 wr_bytes={wr_bytes} flush_operations={flush_operations}"
            );
        }
        lines
    }
}

impl ControllerCounters {
    fn sum(namespaces: BTreeMap<u32, Counters>) -> Self {
        let mut total = Counters::default();
        for counters in namespaces.values() {
            total = total.with(*counters, u64::saturating_add);
        }
        Self { total, namespaces }
    }
}

impl Counters {
    fn find(answer: &Value, disk: &str) -> Self {
        let disks = answer.as_array().map(Vec::as_slice).unwrap_or_default();
        let Some(found) = disks.iter().find(|entry| entry["node-name"] == disk) else {
            return Self::default();
        };
        let count = |name: &str| found["stats"][name].as_u64().unwrap_or(0);
        Self {
            rd_operations: count("rd_operations"),
            wr_operations: count("wr_operations"),
            rd_bytes: count("rd_bytes"),
            wr_bytes: count("wr_bytes"),
            flush_operations: count("flush_operations"),
            unmap_operations: count("unmap_operations"),
        }
    }

    /// A controller that was removed and added again counts from zero: that is not less than nothing.
    fn since(self, earlier: Self) -> Self {
        self.with(earlier, u64::saturating_sub)
    }

    fn with(self, other: Self, operation: fn(u64, u64) -> u64) -> Self {
        Self {
            rd_operations: operation(self.rd_operations, other.rd_operations),
            wr_operations: operation(self.wr_operations, other.wr_operations),
            rd_bytes: operation(self.rd_bytes, other.rd_bytes),
            wr_bytes: operation(self.wr_bytes, other.wr_bytes),
            flush_operations: operation(self.flush_operations, other.flush_operations),
            unmap_operations: operation(self.unmap_operations, other.unmap_operations),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(disk: &str, reads: u64, writes: u64) -> Value {
        let stats = json!({"rd_operations": reads, "rd_bytes": reads * 512, "wr_operations": writes,
            "wr_bytes": writes * 4096, "flush_operations": 1, "unmap_operations": 0});
        json!({"node-name": disk, "qdev": "x", "stats": stats})
    }

    #[test]
    fn the_counts_of_a_command_are_summed_over_the_namespaces_of_a_controller() {
        let machine = Machine::load("default").unwrap();
        let before = json!([entry("nvme-00-04.0-ns1", 10, 0), entry("nvme-00-05.0-ns1", 3, 0)]);
        let after = json!([
            entry("nvme-00-04.0-ns1", 15, 2),
            entry("nvme-00-04.0-ns2", 1, 1),
            entry("nvme-00-05.0-ns1", 3, 0)
        ]);
        let stats = BlockStats::read(&machine, &after).since(&BlockStats::read(&machine, &before));
        assert_eq!(
            stats.lines(),
            "0000:00:04.0 rd_operations=6 wr_operations=3 rd_bytes=3072 wr_bytes=12288 flush_operations=1\n\
             0000:00:05.0 rd_operations=0 wr_operations=0 rd_bytes=0 wr_bytes=0 flush_operations=0\n"
        );
        let json = serde_json::to_value(&stats).unwrap();
        assert_eq!(json["0000:00:04.0"]["rd_operations"], 6);
        assert_eq!(json["0000:00:04.0"]["namespaces"]["2"]["wr_bytes"], 4096);
    }

    #[test]
    fn a_controller_that_was_removed_counts_nothing() {
        let machine = Machine::load("default").unwrap();
        let before = BlockStats::read(&machine, &json!([entry("nvme-00-04.0-ns1", 10, 0)]));
        let stats = BlockStats::read(&machine, &json!([])).since(&before);
        assert!(stats.lines().starts_with("0000:00:04.0 rd_operations=0 "));
    }
}
