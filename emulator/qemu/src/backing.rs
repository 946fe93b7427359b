//! The files that store the namespaces.
//!
//! Without being told, every namespace is a sparse file that ends with the run. `--image` names a file that
//! stays, so that something else can read afterwards what the guest wrote. All of them are raw: byte N of the
//! file is byte N of the namespace.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};

use crate::machine::{Backing, Machine, PciAddress};

/// The backing file of each namespace that has one, by controller and nsid.
pub type Images = BTreeMap<(PciAddress, u32), PathBuf>;

/// A backing file that was named on the command line: `0000:00:04.0=FILE`, or `0000:00:04.0/2=FILE` for
/// namespace 2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageOption {
    /// The controller.
    pub address: PciAddress,
    /// The namespace.
    pub nsid: u32,
    /// The file.
    pub file: PathBuf,
}

impl FromStr for ImageOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (place, file) =
            text.split_once('=').ok_or("write it as 0000:00:04.0=FILE or 0000:00:04.0/NSID=FILE")?;
        if file.is_empty() {
            return Err("there is no file name after `=`".to_owned());
        }
        let (address, nsid) = place.split_once('/').unwrap_or((place, "1"));
        let nsid = nsid.parse().map_err(|_| format!("`{nsid}` is not a namespace's number"))?;
        Ok(Self { address: address.parse()?, nsid, file: file.into() })
    }
}

/// Creates the files that are not there, in `directory` where they were not named. A named file that exists
/// is used as it is.
pub fn prepare(machine: &Machine, named: &[ImageOption], directory: &Path) -> Result<Images> {
    for option in named {
        check(machine, option)?;
    }
    let mut images = Images::new();
    for controller in &machine.controllers {
        for namespace in controller.namespaces.iter().filter(|namespace| namespace.backing == Backing::File) {
            let (address, nsid) = (controller.address, namespace.nsid);
            let name = named.iter().find(|option| (option.address, option.nsid) == (address, nsid));
            let file = match name {
                Some(option) => option.file.clone(),
                None => directory.join(format!("{}-ns{nsid}.raw", address.to_string().replace(':', "-"))),
            };
            make(&file, namespace.size.bytes(), u64::from(namespace.block))
                .with_context(|| format!("the backing file {} of {address}", file.display()))?;
            images.insert((address, nsid), file);
        }
    }
    Ok(images)
}

fn check(machine: &Machine, option: &ImageOption) -> Result<()> {
    let ImageOption { address, nsid, .. } = option;
    let name = &machine.name;
    let Some(controller) = machine.controllers.iter().find(|controller| controller.address == *address)
    else {
        let known: Vec<_> =
            machine.controllers.iter().map(|controller| controller.address.to_string()).collect();
        bail!("machine {name} has no controller {address}, only {}", known.join(", "));
    };
    let Some(namespace) = controller.namespaces.iter().find(|namespace| namespace.nsid == *nsid) else {
        bail!("controller {address} of machine {name} has no namespace {nsid}");
    };
    ensure!(
        namespace.backing == Backing::File,
        "namespace {nsid} of {address} stores nothing in machine {name}, so it has no backing file"
    );
    Ok(())
}

fn make(file: &Path, size: u64, block: u64) -> Result<()> {
    let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(file);
    let opened = open.context("cannot be opened for writing")?;
    let present = opened.metadata()?.len();
    if present == 0 {
        return opened.set_len(size).context("cannot be made large enough");
    }
    ensure!(
        present.is_multiple_of(block),
        "is {present} bytes, not a multiple of the namespace's {block}-byte blocks"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn option(text: &str) -> ImageOption {
        text.parse().unwrap()
    }

    #[test]
    fn an_image_names_a_controller_and_its_first_or_another_namespace() {
        let address: PciAddress = "0000:00:04.0".parse().unwrap();
        assert_eq!(option("0000:00:04.0=a=b"), ImageOption { address, nsid: 1, file: "a=b".into() });
        assert_eq!(option("0000:00:04.0/2=/x"), ImageOption { address, nsid: 2, file: "/x".into() });
        for text in ["", "0000:00:04.0", "0000:00:04.0=", "0000:00:04.0/x=f", "04.0=f"] {
            assert!(text.parse::<ImageOption>().is_err(), "{text} was taken for an image");
        }
    }

    #[test]
    fn files_are_made_in_the_size_of_their_namespace_and_named_ones_kept() {
        let directory = tempfile::tempdir().unwrap();
        let kept = directory.path().join("kept");
        std::fs::write(&kept, vec![7; 8192]).unwrap();
        let machine = Machine::load("default").unwrap();
        let named = [option(&format!("0000:00:04.0/2={}", kept.display()))];
        let images = prepare(&machine, &named, directory.path()).unwrap();
        let address = "0000:00:04.0".parse().unwrap();
        assert_eq!(images.len(), 3);
        assert_eq!(std::fs::metadata(&images[&(address, 1)]).unwrap().len(), 128 << 20);
        assert_eq!(images[&(address, 2)], kept);
        assert_eq!(std::fs::read(&kept).unwrap(), vec![7; 8192]);
    }

    #[test]
    fn an_image_for_what_is_not_there_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let odd = directory.path().join("odd");
        std::fs::write(&odd, [0; 1000]).unwrap();
        for (machine, image, reason) in [
            ("default", "0000:00:06.0=f".to_owned(), "no controller 0000:00:06.0"),
            ("default", "0000:00:04.0/3=f".to_owned(), "no namespace 3"),
            ("fast", "0000:00:04.0=f".to_owned(), "stores nothing"),
            ("default", format!("0000:00:04.0={}", odd.display()), "not a multiple"),
            ("default", "0000:00:04.0=/nonexistent/f".to_owned(), "cannot be opened"),
        ] {
            let machine = Machine::load(machine).unwrap();
            let error = format!("{:#}", prepare(&machine, &[option(&image)], directory.path()).unwrap_err());
            assert!(error.contains(reason), "{image}: {error}");
        }
    }
}
