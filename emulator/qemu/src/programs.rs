//! Host programs for the guest: where they are, and which shared libraries they need.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};

/// A program of this name in `PATH`, or the program at this path if the name has a slash.
pub fn find(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| path.is_file());
    }
    let path = std::env::var_os("PATH")?;
    // Tools for administrators are wanted too, also by users whose PATH does not have them.
    let directories = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    directories.map(|directory| directory.join(name)).find(|file| is_executable(file))
}

/// Files of the host by the path that they get in the guest, and links to them.
#[derive(Debug, Default)]
pub struct Programs {
    files: BTreeMap<String, PathBuf>,
    links: BTreeMap<String, String>,
}

impl Programs {
    /// No programs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file at the path it has on the host. A program gets its shared libraries, or its interpreter if
    /// it is a script, and a link in `/usr/bin` so that its name is enough to call it. Gives its path in the
    /// guest.
    pub fn add(&mut self, file: &Path) -> Result<String> {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let real = file.canonicalize().with_context(|| format!("cannot find {}", file.display()))?;
        let path = guest_path(&real)?;
        if is_executable(&real) {
            let link = format!("/usr/bin/{name}");
            if link != path {
                self.links.entry(link).or_insert_with(|| path.clone());
            }
        }
        if self.files.insert(path.clone(), real.clone()).is_some() {
            return Ok(path);
        }
        let head = head(&real)?;
        if let Some(line) = head.strip_prefix(b"#!") {
            self.add_interpreter(line).with_context(|| format!("the interpreter of {}", real.display()))?;
        } else if head.starts_with(b"\x7FELF") {
            self.add_libraries(&real)?;
        }
        Ok(path)
    }

    /// The files, by their path in the guest.
    pub fn files(&self) -> &BTreeMap<String, PathBuf> {
        &self.files
    }

    /// The links, by their path in the guest, and what they point to.
    pub fn links(&self) -> &BTreeMap<String, String> {
        &self.links
    }

    fn add_interpreter(&mut self, line: &[u8]) -> Result<()> {
        let line = String::from_utf8_lossy(line.split(|byte| *byte == b'\n').next().unwrap_or_default())
            .into_owned();
        let mut words = line.split_whitespace();
        let interpreter = words.next().context("has no name")?;
        self.add(Path::new(interpreter))?;
        if interpreter.ends_with("/env") {
            let name = words.next().context("is env without a name")?;
            self.add(&find(name).with_context(|| format!("{name} is not in PATH"))?)?;
        }
        Ok(())
    }

    fn add_libraries(&mut self, program: &Path) -> Result<()> {
        let output = Command::new("ldd").env("LC_ALL", "C").arg(program).output();
        let output =
            output.map_err(|error| anyhow!("ldd does not run ({error}): sudo apt-get install libc-bin"))?;
        // A program without shared libraries makes ldd fail, and that is all right.
        for library in libraries(&String::from_utf8_lossy(&output.stdout)) {
            let library = library.map_err(|name| {
                anyhow!("{} needs the library {name}, which is not installed here", program.display())
            })?;
            self.files.entry(guest_path(Path::new(&library))?).or_insert_with(|| library.into());
        }
        Ok(())
    }
}

/// The path of a host file in the guest. The guest has `/bin`, `/sbin`, `/lib` and `/lib64` as links into
/// `/usr`; a file that the host has in either form comes out the same.
fn guest_path(file: &Path) -> Result<String> {
    let Some(path) = file.to_str().filter(|path| path.starts_with('/')) else {
        bail!("the path {} cannot be used in the guest", file.display());
    };
    let in_usr = MERGED_DIRECTORIES.iter().any(|directory| {
        path.strip_prefix('/')
            .and_then(|path| path.strip_prefix(directory))
            .is_some_and(|rest| rest.starts_with('/'))
    });
    Ok(if in_usr { format!("/usr{path}") } else { path.to_owned() })
}

/// The libraries in what ldd prints: their paths, or the name of one that was not found.
fn libraries(output: &str) -> BTreeSet<Result<String, String>> {
    let library = |line: &str| {
        let line = line.trim();
        if let Some(name) = line.strip_suffix(" => not found") {
            return Some(Err(name.to_owned()));
        }
        let path = line.split_once(" => ").map_or(line, |(_, path)| path).split(" (0x").next()?;
        path.starts_with('/').then(|| Ok(path.to_owned()))
    };
    output.lines().filter_map(library).collect()
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

fn head(file: &Path) -> Result<Vec<u8>> {
    use std::io::Read;
    let mut head = Vec::new();
    let opened = std::fs::File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    opened.take(256).read_to_end(&mut head).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(head)
}

/// Directories of the root that are links into `/usr` in the guest.
pub const MERGED_DIRECTORIES: [&str; 4] = ["bin", "sbin", "lib", "lib64"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_from_every_form_of_line_that_ldd_prints() {
        let output = "\tlinux-vdso.so.1 (0x00007ffd)\n\
            \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
            \tlibodd name.so => /opt/odd dir/libodd name.so (0x00007f)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n\
            \tlibgone.so.1 => not found\n\tstatically linked\n";
        let expected = [
            Ok("/lib/x86_64-linux-gnu/libc.so.6".to_owned()),
            Ok("/lib64/ld-linux-x86-64.so.2".to_owned()),
            Ok("/opt/odd dir/libodd name.so".to_owned()),
            Err("libgone.so.1".to_owned()),
        ];
        assert_eq!(libraries(output), expected.into());
    }

    #[test]
    fn directories_that_are_links_into_usr_are_written_in_one_form() {
        for (host, guest) in [
            ("/lib/x/libc.so.6", "/usr/lib/x/libc.so.6"),
            ("/lib64/ld.so", "/usr/lib64/ld.so"),
            ("/usr/lib/x/libc.so.6", "/usr/lib/x/libc.so.6"),
            ("/library/x", "/library/x"),
            ("/opt/bin/x", "/opt/bin/x"),
        ] {
            assert_eq!(guest_path(Path::new(host)).unwrap(), guest);
        }
        assert!(guest_path(Path::new("relative")).is_err());
    }

    #[test]
    fn a_script_brings_its_interpreter_and_that_one_its_libraries() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("script");
        std::fs::write(&script, "#!/bin/sh -e\nexit 0\n").unwrap();
        std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
        let mut programs = Programs::new();
        let path = programs.add(&script).unwrap();
        assert_eq!(programs.links()["/usr/bin/script"], path);
        let shell = guest_path(&Path::new("/bin/sh").canonicalize().unwrap()).unwrap();
        assert!(programs.files().contains_key(&shell));
        assert!(programs.links().contains_key("/usr/bin/sh") || shell == "/usr/bin/sh");
        assert!(programs.files().keys().any(|path| path.contains("libc.so")), "{programs:?}");
    }

    #[test]
    fn a_file_that_is_no_program_comes_without_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let job = directory.path().join("job.fio");
        std::fs::write(&job, "[global]\n").unwrap();
        let mut programs = Programs::new();
        programs.add(&job).unwrap();
        assert_eq!((programs.files().len(), programs.links().len()), (1, 0));
        assert!(programs.add(&directory.path().join("gone")).is_err());
    }
}
