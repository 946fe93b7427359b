//! Opening what a subcommand works on: the controller, one namespace of it, and leave to write to it.

use clap::ValueEnum;
use doorbell::{Controller, ControllerOptions, Namespace, Nsid, ShadowDoorbells, Target};

use crate::failure::usage;
use crate::units::size_text;

/// What a subcommand is going to do to the data of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    /// It reads only.
    Read,
    /// It overwrites.
    Overwrite,
}

/// Whether `--allow-write` was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// It was.
    Given,
    /// It was not.
    NotGiven,
}

/// The choices of `--shadow-doorbells`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shadows {
    /// If the controller has them.
    WhenOffered,
    /// By registers alone.
    Never,
}

impl From<Shadows> for ShadowDoorbells {
    fn from(shadows: Shadows) -> Self {
        match shadows {
            Shadows::WhenOffered => Self::WhenOffered,
            Shadows::Never => Self::Never,
        }
    }
}

/// An opened controller and the namespace of it that is worked on.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) target: Target,
    pub(crate) controller: Controller,
    pub(crate) namespace: Namespace,
}

/// Refuses to overwrite a device that somebody may keep data on, unless that was asked for by name.
pub(crate) fn check_leave(target: &Target, intent: Intent, leave: Leave) -> anyhow::Result<()> {
    if intent == Intent::Overwrite && leave == Leave::NotGiven && !target.is_emulated() {
        return Err(usage(format!(
            "this overwrites data on {target}; add --allow-write if nothing on it is needed any more"
        )));
    }
    Ok(())
}

/// Opens one target.
pub(crate) fn open(
    target: &Target,
    nsid: Option<u32>,
    intent: Intent,
    options: &ControllerOptions,
) -> anyhow::Result<Opened> {
    let controller = options.open(&target.to_string())?;
    let namespace = pick(&controller, nsid)?;
    if intent == Intent::Overwrite && namespace.is_write_protected() {
        anyhow::bail!("namespace {} is write-protected; choose another with --nsid", namespace.nsid());
    }
    Ok(Opened { target: target.clone(), controller, namespace })
}

/// The namespace asked for, or the first one.
fn pick(controller: &Controller, nsid: Option<u32>) -> anyhow::Result<Namespace> {
    let nsid = match nsid {
        Some(nsid) => Nsid(nsid),
        None => match controller.namespaces().first() {
            Some(first) => first.nsid(),
            None => anyhow::bail!("the controller has no active namespace; create one with `nvme create-ns`"),
        },
    };
    controller.namespace(nsid).map_err(|error| match error {
        doorbell::ControllerError::Namespace(doorbell::NamespaceError::NotFound { .. }) => {
            usage(format!("--nsid {nsid}: {error}; choose one of those"))
        }
        error => error.into(),
    })
}

/// One line about a namespace: `namespace 1, 1 GiB in blocks of 512 B`.
pub(crate) fn namespace_text(namespace: &Namespace) -> String {
    format!(
        "namespace {}, {} in blocks of {} B",
        namespace.nsid(),
        size_text(namespace.bytes()),
        namespace.block_bytes()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_emulated_devices_are_overwritten_without_leave() {
        let emulated: Target = "emu:".parse().expect("a target");
        let pci: Target = "0000:01:00.0".parse().expect("a target");
        assert!(check_leave(&emulated, Intent::Overwrite, Leave::NotGiven).is_ok());
        assert!(check_leave(&pci, Intent::Read, Leave::NotGiven).is_ok());
        assert!(check_leave(&pci, Intent::Overwrite, Leave::Given).is_ok());
        let error = check_leave(&pci, Intent::Overwrite, Leave::NotGiven).expect_err("refused");
        assert!(error.to_string().contains("--allow-write"), "{error}");
        assert_eq!(crate::failure::exit_status(&error), 2);
    }
}
