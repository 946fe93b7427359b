//! The workspace's own programs, built with the profile of the tests.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds a program of a package of the workspace, and answers where it is.
///
/// # Panics
/// It does not build.
#[must_use]
pub fn program(package: &str, name: &str) -> PathBuf {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    cargo.args(["build", "--quiet", "--package", package, "--bin", name]).current_dir(workspace());
    let built = cargo.output().expect("cargo runs, since it runs the tests");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    // Tests lie in `deps`, programs beside it.
    let test = std::env::current_exe().expect("a test knows where it is");
    let folder = test.parent().and_then(Path::parent).expect("a test lies in the target folder");
    let program = folder.join(name);
    assert!(program.is_file(), "cargo did not put {name} into {}", folder.display());
    program
}

/// The workspace's folder.
///
/// # Panics
/// Never: the package lies in a workspace.
#[must_use]
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace").to_owned()
}
