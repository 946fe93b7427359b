//! What the memory of a run is made of, in words and in JSON.

use doorbell::DmaSpace;
use serde_json::{Value, json};

use crate::units::size_text;

/// The memory that a device sees: buffers and rings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    ordinary_bytes: u64,
    huge_2m_bytes: u64,
    huge_1g_bytes: u64,
    /// Why it is not what was preferred.
    fell_back: Option<String>,
}

impl Memory {
    /// That of a space now.
    pub(crate) fn of(space: &DmaSpace) -> Self {
        let stats = space.stats();
        Self {
            ordinary_bytes: stats.ordinary_bytes,
            huge_2m_bytes: stats.huge_2m_bytes,
            huge_1g_bytes: stats.huge_1g_bytes,
            fell_back: stats.fell_back,
        }
    }

    /// `4 MiB of huge pages of 2 MiB`, and why not, if that is the case.
    pub(crate) fn text(&self) -> String {
        let kinds = [
            (self.huge_1g_bytes, "huge pages of 1 GiB"),
            (self.huge_2m_bytes, "huge pages of 2 MiB"),
            (self.ordinary_bytes, "ordinary pages"),
        ];
        let used: Vec<_> = kinds
            .iter()
            .filter(|(bytes, _)| *bytes > 0)
            .map(|(bytes, kind)| format!("{} of {kind}", size_text(*bytes)))
            .collect();
        let used = if used.is_empty() { "none".to_owned() } else { used.join(" and ") };
        match &self.fell_back {
            Some(reason) => format!("{used}\n  {reason}"),
            None => used,
        }
    }

    /// The same for programs.
    pub(crate) fn json(&self) -> Value {
        json!({
            "hugepages": self.ordinary_bytes == 0 && self.huge_2m_bytes + self.huge_1g_bytes > 0,
            "ordinary_bytes": self.ordinary_bytes,
            "huge_2m_bytes": self.huge_2m_bytes,
            "huge_1g_bytes": self.huge_1g_bytes,
            "fell_back": self.fell_back,
        })
    }
}
