//! The sources: which files there are, and their text without comments and literals.

use std::path::{Path, PathBuf};

/// A file of the workspace.
pub(crate) struct Source {
    /// From the workspace's root on, with `/`.
    pub(crate) name: String,
    pub(crate) text: String,
}

/// The workspace's folder.
pub(crate) fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("the package lies in the workspace").to_owned()
}

/// Every Rust file of the workspace.
pub(crate) fn rust_files() -> Vec<Source> {
    let files: Vec<Source> = all_files().into_iter().filter(|file| file.name.ends_with(".rs")).collect();
    assert!(files.len() > 50, "only {} Rust files were found below {}", files.len(), root().display());
    files
}

/// Every text file of the workspace, built and hidden folders aside.
pub(crate) fn all_files() -> Vec<Source> {
    let mut found = Vec::new();
    walk(&root(), &mut found);
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

fn walk(folder: &Path, found: &mut Vec<Source>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the workspace can be read") {
        let path = entry.expect("an entry of a folder can be read").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let kind = path.symlink_metadata().expect("a file of the workspace has metadata");
        if kind.is_dir() && !SKIPPED_FOLDERS.contains(&name.as_str()) {
            walk(&path, found);
        } else if kind.is_file() {
            let from_root = path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
            // What is not text (an image, say) has no lines to look at.
            found.extend(std::fs::read_to_string(&path).ok().map(|text| Source { name: from_root, text }));
        }
    }
}

/// Folders that hold no source: what was built, and what tools keep for themselves.
const SKIPPED_FOLDERS: [&str; 4] = ["target", ".git", "__pycache__", ".idea"];

/// The code of a file: comments and the insides of literals replaced by spaces, line breaks kept.
///
/// Good for what rustfmt leaves: it does not have to understand code that does not compile.
pub(crate) fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let (skipped, kept) = match next {
            '/' if rest.starts_with("//") => (rest.find('\n').unwrap_or(rest.len()), ""),
            '/' if rest.starts_with("/*") => (rest.find("*/").map_or(rest.len(), |end| end + 2), ""),
            '"' => (string_length(rest), "\"\""),
            'r' if is_raw_string(rest) && !ends_in_a_word(&code) => (raw_string_length(rest), "\"\""),
            '\'' => (char_length(rest), "' '"),
            _ => (0, ""),
        };
        if skipped == 0 {
            code.push(next);
            rest = &rest[next.len_utf8()..];
            continue;
        }
        code.push_str(kept);
        code.extend(rest[..skipped].chars().filter(|it| *it == '\n'));
        rest = &rest[skipped..];
    }
    code
}

fn ends_in_a_word(code: &str) -> bool {
    code.ends_with(|it: char| it.is_alphanumeric() && it != 'b' || it == '_')
}

fn string_length(rest: &str) -> usize {
    let mut escaped = false;
    for (at, it) in rest.char_indices().skip(1) {
        match it {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

fn is_raw_string(rest: &str) -> bool {
    rest[1..].trim_start_matches('#').starts_with('"')
}

fn raw_string_length(rest: &str) -> usize {
    let hashes = rest[1..].chars().take_while(|it| *it == '#').count();
    let end = format!("\"{}", "#".repeat(hashes));
    let start = 2 + hashes;
    rest[start..].find(&end).map_or(rest.len(), |at| start + at + end.len())
}

/// A character literal, or 0 for a lifetime.
fn char_length(rest: &str) -> usize {
    let mut inside = rest.char_indices().skip(1);
    match inside.next() {
        Some((_, '\\')) => {
            rest[2..].char_indices().skip(1).find(|(_, it)| *it == '\'').map_or(0, |(at, _)| at + 3)
        }
        Some((at, it)) if rest[at + it.len_utf8()..].starts_with('\'') => at + it.len_utf8() + 1,
        _ => 0,
    }
}

#[test]
fn comments_and_literals_are_not_code() {
    let text = "let a = \"unsafe // {\"; // unsafe\nlet b = r#\"unsafe \"x\" \"#; /* unsafe */\n\
                let c = '\\'';\nfn f<'a>(x: &'a str) -> char { '}' }";
    let code = code_of(text);
    assert!(!code.contains("unsafe"), "{code}");
    assert!(code.contains("fn f<'a>(x: &'a str) -> char { ' ' }"), "{code}");
    assert_eq!(code.lines().count(), text.lines().count());
}
