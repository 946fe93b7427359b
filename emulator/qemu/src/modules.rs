//! The kernel modules that the guest needs, in the order in which they can be loaded.
//!
//! Each module says in its `.modinfo` section which others it depends on. That is read instead of
//! `modules.dep` because a kernel package that was only unpacked has no such file: it is made when a kernel
//! is installed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};

/// The modules of one kernel: the directory `/lib/modules/VERSION`.
#[derive(Debug)]
pub struct ModuleTree {
    directory: PathBuf,
    files: BTreeMap<String, PathBuf>,
    built_in: BTreeSet<String>,
}

/// A module, ready to be given to the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// Its name, with underscores.
    pub name: String,
    /// The uncompressed object file.
    pub contents: Vec<u8>,
}

impl ModuleTree {
    /// Reads which modules there are.
    pub fn open(directory: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        collect(directory, &mut files)
            .with_context(|| format!("cannot read modules in {}", directory.display()))?;
        let list = directory.join("modules.builtin");
        let text =
            std::fs::read_to_string(&list).with_context(|| format!("cannot read {}", list.display()))?;
        let built_in = text.lines().filter_map(|line| module_name(Path::new(line))).collect();
        Ok(Self { directory: directory.to_owned(), files, built_in })
    }

    /// The first of these modules that the kernel has neither built in nor as a file.
    pub fn missing<'a>(&self, wanted: &[&'a str]) -> Option<&'a str> {
        wanted.iter().copied().find(|name| {
            let name = normal(name);
            !self.built_in.contains(&name) && !self.files.contains_key(&name)
        })
    }

    /// These modules and everything they depend on, each after what it depends on. What is built into the
    /// kernel is left out.
    pub fn closure(&self, wanted: &[&str]) -> Result<Vec<Module>> {
        let mut order = Order { tree: self, begun: BTreeSet::new(), loaded: Vec::new() };
        for name in wanted {
            order.add(&normal(name))?;
        }
        Ok(order.loaded)
    }
}

/// A walk through the dependencies, depth first.
struct Order<'a> {
    tree: &'a ModuleTree,
    begun: BTreeSet<String>,
    loaded: Vec<Module>,
}

impl Order<'_> {
    fn add(&mut self, name: &str) -> Result<()> {
        // A module that is begun and not yet loaded is one that depends on itself; the kernel has none, and
        // leaving it out ends the walk.
        if self.tree.built_in.contains(name) || !self.begun.insert(name.to_owned()) {
            return Ok(());
        }
        let directory = self.tree.directory.display();
        let file = self
            .tree
            .files
            .get(name)
            .with_context(|| format!("there is no module `{name}` in {directory}"))?;
        let contents = read_module(file)?;
        let depends =
            dependencies(&contents).with_context(|| format!("{} is not a module", file.display()))?;
        for dependency in depends {
            self.add(&dependency)?;
        }
        self.loaded.push(Module { name: name.to_owned(), contents });
        Ok(())
    }
}

fn collect(directory: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        // `build` and `source` are links to headers elsewhere: links are not followed.
        if entry.file_type()?.is_dir() {
            collect(&path, files)?;
        } else if let Some(name) = module_name(&path) {
            files.insert(name, path);
        }
    }
    Ok(())
}

/// `kernel/drivers/vfio/vfio-pci.ko.xz` is `vfio_pci`; what is not a module has no name.
fn module_name(path: &Path) -> Option<String> {
    let (name, rest) = path.file_name()?.to_str()?.split_once(".ko")?;
    matches!(rest, "" | ".xz" | ".zst" | ".gz").then(|| normal(name))
}

/// Dashes and underscores mean the same in a module's name.
fn normal(name: &str) -> String {
    name.replace('-', "_")
}

/// The contents of a module's file. Compressed ones are uncompressed here, as not every kernel can do it.
fn read_module(file: &Path) -> Result<Vec<u8>> {
    let tool = match file.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return std::fs::read(file).with_context(|| format!("cannot read {}", file.display())),
    };
    let package = if tool == "xz" { "xz-utils" } else { tool };
    let output = Command::new(tool).arg("-dc").arg(file).output().map_err(|error| {
        anyhow!(
            "{} is compressed and {tool} does not run ({error}): sudo apt-get install {package}",
            file.display()
        )
    })?;
    if !output.status.success() {
        bail!(
            "{tool} cannot uncompress {}: {}",
            file.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(output.stdout)
}

/// The names in the `depends=` entry of a module, or nothing if this is not a module.
fn dependencies(module: &[u8]) -> Option<Vec<String>> {
    let information = section(module, ".modinfo")?;
    let entries = information.split(|byte| *byte == 0);
    let value = entries.filter_map(|entry| entry.strip_prefix(b"depends=")).next()?;
    let names = std::str::from_utf8(value).ok()?.split(',').filter(|name| !name.is_empty());
    Some(names.map(normal).collect())
}

/// The contents of a section of a 64-bit little-endian ELF file.
fn section<'a>(elf: &'a [u8], name: &str) -> Option<&'a [u8]> {
    const SECTION_HEADER: usize = 64;
    if elf.get(..6)? != b"\x7FELF\x02\x01" {
        return None;
    }
    let headers = usize::try_from(number(elf, 0x28, 8)?).ok()?;
    let count = usize::try_from(number(elf, 0x3C, 2)?).ok()?;
    let names_index = usize::try_from(number(elf, 0x3E, 2)?).ok()?;
    let header = |index: usize| {
        let start = headers.checked_add(index * SECTION_HEADER)?;
        elf.get(start..start.checked_add(SECTION_HEADER)?)
    };
    let contents = |header: &[u8]| {
        let start = usize::try_from(number(header, 0x18, 8)?).ok()?;
        let size = usize::try_from(number(header, 0x20, 8)?).ok()?;
        elf.get(start..start.checked_add(size)?)
    };
    let names = contents(header(names_index)?)?;
    (0..count).filter_map(header).find_map(|header| {
        let own = names.get(usize::try_from(number(header, 0, 4)?).ok()?..)?;
        let own = own.split(|byte| *byte == 0).next()?;
        (own == name.as_bytes()).then(|| contents(header))?
    })
}

/// The little-endian number of `width` bytes at `offset`.
fn number(bytes: &[u8], offset: usize, width: usize) -> Option<u64> {
    let field = bytes.get(offset..offset.checked_add(width)?)?;
    Some(field.iter().rev().fold(0, |value, byte| (value << 8) | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An object file with a `.modinfo` section and the names of sections, laid out as the linker does.
    fn module(depends: &str) -> Vec<u8> {
        let information = format!("license=GPL\0xdepends=wrong\0depends={depends}\0name=x\0");
        let names = b"\0.text\0.modinfo\0.shstrtab\0";
        let mut elf = vec![0; 64];
        elf[..6].copy_from_slice(b"\x7FELF\x02\x01");
        let information_start = elf.len();
        elf.extend_from_slice(information.as_bytes());
        let names_start = elf.len();
        elf.extend_from_slice(names);
        let headers = elf.len();
        for (name, start, size) in
            [(0, 0, 0), (1, 0, 0), (7, information_start, information.len()), (16, names_start, names.len())]
        {
            let mut header = [0; 64];
            header[..4].copy_from_slice(&u32::to_le_bytes(name));
            header[0x18..0x20].copy_from_slice(&(start as u64).to_le_bytes());
            header[0x20..0x28].copy_from_slice(&(size as u64).to_le_bytes());
            elf.extend_from_slice(&header);
        }
        elf[0x28..0x30].copy_from_slice(&(headers as u64).to_le_bytes());
        elf[0x3C..0x3E].copy_from_slice(&4_u16.to_le_bytes());
        elf[0x3E..0x40].copy_from_slice(&3_u16.to_le_bytes());
        elf
    }

    fn tree(modules: &[(&str, &str)], built_in: &str) -> (tempfile::TempDir, ModuleTree) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("kernel/drivers")).unwrap();
        for (name, depends) in modules {
            std::fs::write(directory.path().join("kernel/drivers").join(name), module(depends)).unwrap();
        }
        std::fs::write(directory.path().join("modules.builtin"), built_in).unwrap();
        let tree = ModuleTree::open(directory.path()).unwrap();
        (directory, tree)
    }

    fn names(modules: &[Module]) -> Vec<&str> {
        modules.iter().map(|module| module.name.as_str()).collect()
    }

    #[test]
    fn what_a_module_depends_on_is_loaded_before_it_and_only_once() {
        let (_directory, tree) = tree(
            &[
                ("vfio-pci.ko", "vfio-pci-core,vfio"),
                ("vfio-pci-core.ko", "vfio,vfio_virqfd,irqbypass"),
                ("vfio_virqfd.ko", ""),
                ("vfio.ko", ""),
                ("vfio_iommu_type1.ko", "vfio"),
                ("other.ko", "vfio"),
            ],
            "kernel/virt/lib/irqbypass.ko\n",
        );
        let loaded = tree.closure(&["vfio_iommu_type1", "vfio-pci"]).unwrap();
        assert_eq!(names(&loaded), ["vfio", "vfio_iommu_type1", "vfio_virqfd", "vfio_pci_core", "vfio_pci"]);
    }

    #[test]
    fn what_is_built_in_needs_no_file_and_what_is_nowhere_is_named() {
        let (_directory, tree) = tree(&[("a.ko", "b")], "kernel/drivers/nvme/host/nvme.ko\n");
        assert_eq!(tree.closure(&["nvme"]).unwrap(), []);
        assert_eq!(tree.missing(&["nvme", "a"]), None);
        assert_eq!(tree.missing(&["a", "vfio-pci", "c"]), Some("vfio-pci"));
        assert!(tree.closure(&["a"]).unwrap_err().to_string().contains("no module `b`"));
    }

    #[test]
    fn modules_that_depend_on_each_other_end() {
        let (_directory, tree) = tree(&[("a.ko", "b"), ("b.ko", "a")], "");
        assert_eq!(names(&tree.closure(&["a"]).unwrap()), ["b", "a"]);
    }

    #[test]
    fn a_file_cut_short_anywhere_is_refused_and_not_read_past_its_end() {
        let whole = module("x");
        assert_eq!(dependencies(&whole), Some(vec!["x".to_owned()]));
        for length in 0..whole.len() {
            assert_eq!(dependencies(&whole[..length]), None, "cut to {length} bytes");
        }
    }
}
