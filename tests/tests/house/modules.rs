//! Every Rust file is part of some crate: a file that nobody compiles is not tested by anybody either.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::report;
use crate::sources::{code_of, root, rust_files};

#[test]
fn every_file_is_reached_from_a_crate_root() {
    let files = rust_files();
    let names: BTreeSet<&str> = files.iter().map(|file| file.name.as_str()).collect();
    let mut reached = BTreeSet::new();
    let mut open: Vec<(String, Role)> = names
        .iter()
        .filter(|name| is_crate_root(name))
        .map(|name| ((*name).to_owned(), Role::Root))
        .collect();
    while let Some((name, role)) = open.pop() {
        if !reached.insert(name.clone()) {
            continue;
        }
        let text = &files.iter().find(|file| file.name == name).expect("only known files are opened").text;
        for module in modules_declared(&code_of(text)) {
            let folder = folder_of_modules(&name, role);
            let places = [folder.join(format!("{module}.rs")), folder.join(&module).join("mod.rs")];
            let found = places.iter().filter_map(|place| place.to_str()).find(|place| names.contains(place));
            open.extend(found.map(|place| (place.to_owned(), Role::Module)));
        }
    }
    let dead: Vec<String> =
        names.iter().filter(|name| !reached.contains(**name)).map(|name| (*name).to_owned()).collect();
    report("every file is declared by a `mod`", &dead);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Root,
    Module,
}

/// What cargo finds by itself, and what a manifest names with `path`.
fn is_crate_root(name: &str) -> bool {
    let parts: Vec<&str> = name.split('/').collect();
    let target_folder =
        |folder: &str| ["tests", "benches", "examples", "bin", "fuzz_targets"].contains(&folder);
    let own = match parts.as_slice() {
        [.., "src", "lib.rs" | "main.rs"] | [.., "build.rs"] => true,
        // A folder of tests is beside a package's manifest; a module called `tests` is not.
        [before @ .., folder, _] if target_folder(folder) => is_package(before) || before.ends_with(&["src"]),
        [before @ .., folder, _, "main.rs"] if target_folder(folder) => {
            is_package(before) || before.ends_with(&["src"])
        }
        _ => false,
    };
    own || is_named_by_a_manifest(name)
}

fn is_package(parts: &[&str]) -> bool {
    root().join(parts.join("/")).join("Cargo.toml").exists()
}

fn is_named_by_a_manifest(name: &str) -> bool {
    let mut folder = Path::new(name).parent();
    while let Some(package) = folder {
        if let Ok(manifest) = std::fs::read_to_string(root().join(package).join("Cargo.toml")) {
            let inside = Path::new(name).strip_prefix(package).unwrap_or(Path::new(name));
            return manifest.contains(&format!("path = \"{}\"", inside.display()));
        }
        folder = package.parent();
    }
    false
}

/// Where a file's modules lie.
fn folder_of_modules(name: &str, role: Role) -> PathBuf {
    let path = Path::new(name);
    let parent = path.parent().unwrap_or(Path::new(""));
    if role == Role::Root || path.ends_with("mod.rs") {
        parent.to_owned()
    } else {
        parent.join(path.file_stem().unwrap_or_default())
    }
}

/// The names in `mod name;`.
fn modules_declared(code: &str) -> Vec<String> {
    let declared = |line: &str| {
        let name = line.trim().strip_suffix(';')?.rsplit_once("mod ")?;
        let before = name.0.trim_end();
        let is_item = before.is_empty() || before.starts_with("pub") || before.ends_with(']');
        is_item.then(|| name.1.trim().to_owned())
    };
    code.lines().filter_map(declared).collect()
}

#[test]
fn declarations_are_recognised() {
    let code = "mod a;\npub(crate) mod b;\n#[cfg(test)] mod c;\nmod inline {\n}\nlet x = y mod z;\n";
    assert_eq!(modules_declared(code), ["a", "b", "c"]);
}
