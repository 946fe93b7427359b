//! Targets: how a device is named, everywhere.

use std::fmt;
use std::str::FromStr;

use crate::pci::PciAddress;

/// The name of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// `0000:01:00.0`: a PCI function, through VFIO.
    Pci(PciAddress),
    /// `emu:` or `emu:key=value,…` or `emu:@file.toml`: an in-process software controller.
    Emulated(String),
}

/// Why a string names no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// It has none of the known forms.
    #[error(
        "`{given}` names no device; use a PCI address such as `0000:01:00.0` (see `nvme-perf list`), \
         or `emu:` for the built-in software controller"
    )]
    UnknownForm {
        /// What was given.
        given: String,
    },
    /// The form is known but not built in.
    #[error("`{given}`: {why}")]
    NotAvailable {
        /// What was given.
        given: String,
        /// Why not, and what to do.
        why: &'static str,
    },
}

impl Target {
    /// Whether the device is made of software, so that writing to it harms nobody.
    #[must_use]
    pub fn is_emulated(&self) -> bool {
        matches!(self, Self::Emulated(_))
    }
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(given: &str) -> Result<Self, TargetError> {
        let not_available = |why| Err(TargetError::NotAvailable { given: given.to_owned(), why });
        if let Some(spec) = given.strip_prefix("emu:") {
            return Ok(Self::Emulated(spec.to_owned()));
        }
        if given == "emu" {
            return not_available("the software controller is named `emu:`, with a colon");
        }
        if given.starts_with("vfio-user:") {
            return not_available("vfio-user is not supported yet; use `emu:` or a PCI address");
        }
        if given.starts_with("kernel:") {
            return not_available("kernel devices are not supported yet; use `emu:` or a PCI address");
        }
        match given.parse() {
            Ok(address) => Ok(Self::Pci(address)),
            Err(_) => Err(TargetError::UnknownForm { given: given.to_owned() }),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pci(address) => write!(f, "{address}"),
            Self::Emulated(spec) => write!(f, "emu:{spec}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_told_apart_and_wrong_ones_say_what_is_right() {
        assert_eq!("emu:".parse(), Ok(Target::Emulated(String::new())));
        let emulated: Target = "emu:backend=null,size=1G".parse().expect("valid");
        assert!(emulated.is_emulated());
        assert_eq!(emulated.to_string(), "emu:backend=null,size=1G");
        let pci: Target = "0000:01:00.0".parse().expect("valid");
        assert!(!pci.is_emulated());
        for wrong in
            ["", "emu", "nvme0", "/dev/nvme0n1", "kernel:/dev/nvme0n1", "vfio-user:/s", "0000:01:00.9"]
        {
            let error = wrong.parse::<Target>().expect_err(wrong).to_string();
            assert!(error.contains("emu:"), "{error}");
        }
    }
}
