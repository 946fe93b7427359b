//! The guest's first file system: this program as `/init`, host programs with their libraries, kernel
//! modules, and the plan.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::cpio::Archive;
use crate::modules::Module;
use crate::programs::{MERGED_DIRECTORIES, Programs};
use crate::wire::{PLAN, Plan};

/// Makes the archive. The plan's list of modules is filled in here.
pub fn make(mut programs: Programs, modules: &[Module], mut plan: Plan) -> Result<Vec<u8>> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let init = programs.add(&own)?;

    let mut archive = Archive::new();
    for directory in MERGED_DIRECTORIES {
        archive.directory(&format!("/usr/{directory}"));
        archive.symlink(&format!("/{directory}"), &format!("usr/{directory}"));
    }
    for directory in ["/proc", "/sys", "/dev", "/tmp", "/run", "/root", "/mnt", "/etc", "/var/tmp"] {
        archive.directory(directory);
    }
    // A program whose standard streams are closed opens them on /dev/null, and that before it can mount /dev.
    archive.character_device("/dev/console", 5, 1);
    archive.character_device("/dev/null", 1, 3);
    archive.symlink("/init", &init);
    archive.symlink("/etc/mtab", "/proc/self/mounts");
    archive.file("/etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\n");
    archive.file("/etc/group", 0o644, b"root:x:0:\n");
    // Libraries outside the loader's own directories are found through the host's cache.
    if let Ok(cache) = std::fs::read("/etc/ld.so.cache") {
        archive.file("/etc/ld.so.cache", 0o644, &cache);
    }
    for (path, file) in programs.files() {
        add(&mut archive, path, file)?;
    }
    for (path, target) in programs.links() {
        archive.symlink(path, target);
    }
    for (index, module) in modules.iter().enumerate() {
        let path = format!("/doorbell/modules/{index:02}-{}.ko", module.name);
        archive.file(&path, 0o644, &module.contents);
        plan.modules.push(path);
    }
    archive.directory(&plan.directory);
    archive.file(PLAN, 0o644, &serde_json::to_vec(&plan)?);
    Ok(archive.finish())
}

fn add(archive: &mut Archive, path: &str, file: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let size = file.metadata().map_or(0, |metadata| metadata.len());
    ensure!(size <= FILE_MAX, "{} is too large to be copied into the machine", file.display());
    let read = || -> std::io::Result<_> { Ok((file.metadata()?.permissions().mode(), std::fs::read(file)?)) };
    let (mode, contents) = read().with_context(|| format!("cannot read {}", file.display()))?;
    archive.file(path, mode & 0o777, &contents);
    Ok(())
}

/// Far more than any program, and small enough for the format and for a guest's memory.
const FILE_MAX: u64 = 1 << 30;
