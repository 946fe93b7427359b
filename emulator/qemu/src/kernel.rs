//! The guest's kernel: a Debian or Ubuntu one, found or fetched.
//!
//! In this order: what `--kernel` and `--modules` name; the machine's own, if it has NVMe and VFIO and can be
//! read; the newest in the cache; the package that Debian's or Ubuntu's virtual-machine kernel stands for,
//! which is downloaded with apt and unpacked into the cache without being installed.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::fcntl::{Flock, FlockArg};

use crate::modules::{Module, ModuleTree};
use crate::progress::Progress;

/// A kernel that can be booted, and the modules that the guest loads.
#[derive(Debug)]
pub struct Kernel {
    /// The kernel's image.
    pub image: PathBuf,
    /// The modules, in the order in which they are loaded.
    pub modules: Vec<Module>,
}

/// A kernel named on the command line.
#[derive(Debug, Clone)]
pub struct Named {
    /// The kernel's image, `vmlinuz`.
    pub image: PathBuf,
    /// Its directory in `/lib/modules`.
    pub modules: PathBuf,
}

impl Kernel {
    /// Finds or fetches a kernel.
    pub fn find(named: Option<&Named>) -> Result<Self> {
        if let Some(named) = named {
            return Self::open(&named.image, &named.modules);
        }
        if let Ok(kernel) = Self::newest_below(Path::new("/")) {
            return Ok(kernel);
        }
        let cache = cache_directory()?;
        if let Ok(kernel) = Self::newest_below(&cache) {
            return Ok(kernel);
        }
        let _progress = Progress::new("downloading a kernel for the guest");
        let _alone = lock(&cache)?;
        // Somebody else may have fetched one while this waited for the lock.
        if let Ok(kernel) = Self::newest_below(&cache) {
            return Ok(kernel);
        }
        fetch(&cache)?;
        Self::newest_below(&cache).context("the kernel that was downloaded cannot be used")
    }

    /// The newest usable kernel of those in `boot` and `lib/modules` of this directory. The error is what is
    /// wrong with the newest.
    fn newest_below(root: &Path) -> Result<Self> {
        let modules = root.join("lib/modules");
        let versions =
            std::fs::read_dir(&modules).with_context(|| format!("there is no {}", modules.display()))?;
        let mut versions: Vec<_> =
            versions.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        versions.sort_by_key(|version| std::cmp::Reverse(version_key(version)));
        let mut wrong = None;
        for version in versions {
            match Self::open(&root.join("boot").join(format!("vmlinuz-{version}")), &modules.join(version)) {
                Ok(kernel) => return Ok(kernel),
                Err(error) => wrong = wrong.or(Some(error)),
            }
        }
        Err(wrong.unwrap_or_else(|| anyhow!("there is no kernel in {}", modules.display())))
    }

    fn open(image: &Path, modules: &Path) -> Result<Self> {
        File::open(image).with_context(|| format!("cannot read the kernel {}", image.display()))?;
        let tree = ModuleTree::open(modules)?;
        if let Some(missing) = tree.missing(&WANTED) {
            bail!("the kernel of {} has no `{missing}`; give another: {GIVE_ONE}", modules.display());
        }
        Ok(Self { image: image.to_owned(), modules: tree.closure(&WANTED)? })
    }
}

/// Where kernels are kept: `$XDG_CACHE_HOME/doorbell` or `~/.cache/doorbell`.
fn cache_directory() -> Result<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    Ok(base
        .context("neither XDG_CACHE_HOME nor HOME says where to keep a kernel: export HOME=DIRECTORY")?
        .join("doorbell"))
}

/// Makes the cache and keeps others from fetching at the same time.
fn lock(cache: &Path) -> Result<Flock<File>> {
    std::fs::create_dir_all(cache).with_context(|| format!("cannot create {}", cache.display()))?;
    let file =
        File::create(cache.join("lock")).with_context(|| format!("cannot write to {}", cache.display()))?;
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, error)| anyhow!("cannot lock {}: {error}", cache.display()))
}

/// Downloads and unpacks a kernel into the cache. It appears there whole or not at all.
fn fetch(cache: &Path) -> Result<()> {
    ensure!(
        crate::programs::find("apt-get").is_some() && crate::programs::find("dpkg-deb").is_some(),
        "no kernel with NVMe and VFIO was found, and this is no Debian to download one: {GIVE_ONE}"
    );
    let packages =
        packages().with_context(|| format!("apt knows no kernel package: {UPDATE}, or {GIVE_ONE}"))?;
    let partial =
        tempfile::Builder::new().prefix("partial-").tempdir_in(cache).context("cannot use the cache")?;
    let mut download = Command::new("apt-get");
    download.args(["-q", "download"]).args(&packages).current_dir(partial.path());
    run(&mut download)
        .map_err(|error| anyhow!("cannot download {} ({error:#}): {UPDATE}", packages.join(" and ")))?;
    let tree = partial.path().join("tree");
    for entry in std::fs::read_dir(partial.path())? {
        let package = entry?.path();
        if package.extension().is_some_and(|extension| extension == "deb") {
            run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&tree))?;
        }
    }
    publish(&tree, cache)
}

/// Moves an unpacked kernel into the cache: the image first, because the modules' directory is what makes a
/// kernel known.
fn publish(tree: &Path, cache: &Path) -> Result<()> {
    // Packages have their modules in /lib or, on systems whose /lib is a link, in /usr/lib.
    let modules = ["lib/modules", "usr/lib/modules"].map(|path| tree.join(path));
    let modules = modules.iter().find(|path| path.is_dir()).context("the kernel package has no modules")?;
    for (from, to) in [(tree.join("boot"), cache.join("boot")), (modules.clone(), cache.join("lib/modules"))]
    {
        std::fs::create_dir_all(&to)?;
        for entry in
            std::fs::read_dir(&from).with_context(|| format!("no {} in the package", from.display()))?
        {
            let entry = entry?;
            let target = to.join(entry.file_name());
            // An earlier attempt may have ended between the two.
            if !target.exists() {
                std::fs::rename(entry.path(), &target)
                    .with_context(|| format!("cannot write {}", target.display()))?;
            }
        }
    }
    Ok(())
}

/// The packages of the newest kernel for virtual machines: Debian's is one package, Ubuntu's has its modules
/// in another.
fn packages() -> Option<Vec<String>> {
    META_PACKAGES.iter().find_map(|meta| {
        let output =
            Command::new("apt-cache").args(["depends", "--important", meta]).stdin(Stdio::null()).output();
        let image = image_package(&String::from_utf8_lossy(&output.ok()?.stdout))?;
        let modules = image.replacen("linux-image-", "linux-modules-", 1);
        let separate = run(Command::new("apt-cache").args(["show", "--no-all-versions", &modules])).is_ok();
        Some([Some(image), separate.then_some(modules)].into_iter().flatten().collect())
    })
}

/// The package with a version in its name among what `apt-cache depends` prints.
fn image_package(depends: &str) -> Option<String> {
    let names = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    let versioned = |name: &&str| {
        name.strip_prefix("linux-image-")
            .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    };
    names.filter(versioned).map(str::to_owned).next()
}

/// Runs a command quietly; if it fails, the error is the last line that it said.
fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("{}", said.trim().lines().last().unwrap_or("it failed without a word").to_owned());
    }
    Ok(())
}

/// A key that orders versions by their numbers: `6.1.0-9` before `6.1.0-57`.
fn version_key(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

/// What the guest needs: its disks, the channels to the launcher, and VFIO.
const WANTED: [&str; 6] = ["nvme", "virtio_pci", "virtio_console", "vfio", "vfio_iommu_type1", "vfio_pci"];

const META_PACKAGES: [&str; 2] = ["linux-image-cloud-amd64", "linux-image-virtual"];

const GIVE_ONE: &str = "nvme-qemu run --kernel FILE --modules DIR";
const UPDATE: &str = "sudo apt-get update";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_their_numbers() {
        let mut versions =
            ["6.1.0-9-cloud-amd64", "6.1.0-57-cloud-amd64", "5.10.0-30-amd64", "6.8.0-1-generic"];
        versions.sort_by_key(|version| version_key(version));
        assert_eq!(
            versions,
            ["5.10.0-30-amd64", "6.1.0-9-cloud-amd64", "6.1.0-57-cloud-amd64", "6.8.0-1-generic"]
        );
    }

    #[test]
    fn the_package_with_the_version_is_what_is_downloaded() {
        let debian = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-57-cloud-amd64\n";
        assert_eq!(image_package(debian).as_deref(), Some("linux-image-6.1.0-57-cloud-amd64"));
        let ubuntu =
            "linux-image-virtual\n  Depends: linux-image-6.8.0-60-generic\n  Depends: linux-firmware\n";
        assert_eq!(image_package(ubuntu).as_deref(), Some("linux-image-6.8.0-60-generic"));
        assert_eq!(image_package("linux-image-x\n  Depends: linux-image-amd64\n"), None);
    }

    #[test]
    fn an_unpacked_package_is_found_in_the_cache_afterwards() {
        let directory = tempfile::tempdir().unwrap();
        let (tree, cache) = (directory.path().join("tree"), directory.path().join("cache"));
        std::fs::create_dir_all(tree.join("boot")).unwrap();
        std::fs::create_dir_all(tree.join("usr/lib/modules/6.1.0-9")).unwrap();
        std::fs::write(tree.join("boot/vmlinuz-6.1.0-9"), "kernel").unwrap();
        let built_in = WANTED.map(|name| format!("kernel/{name}.ko\n")).concat();
        std::fs::write(tree.join("usr/lib/modules/6.1.0-9/modules.builtin"), built_in).unwrap();
        assert!(Kernel::newest_below(&cache).is_err());
        publish(&tree, &cache).unwrap();
        let kernel = Kernel::newest_below(&cache).unwrap();
        assert_eq!(kernel.image, cache.join("boot/vmlinuz-6.1.0-9"));
        assert_eq!(kernel.modules, []);
    }

    #[test]
    fn a_kernel_without_vfio_is_refused_by_what_it_lacks() {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("vmlinuz");
        std::fs::write(&image, "kernel").unwrap();
        let built_in = WANTED[..5].iter().map(|name| format!("kernel/{name}.ko\n")).collect::<String>();
        std::fs::write(directory.path().join("modules.builtin"), built_in).unwrap();
        let named = Named { image, modules: directory.path().to_owned() };
        let error = Kernel::find(Some(&named)).unwrap_err().to_string();
        assert!(error.contains("no `vfio_pci`") && error.ends_with("--modules DIR"), "{error}");
    }
}
