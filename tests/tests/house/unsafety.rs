//! Unsafe code is confined to a few named files, each of which says at its head why it needs it.

use crate::report;
use crate::sources::{Source, code_of, rust_files};

const OPT_IN: &str = "#![expect(unsafe_code)]";
const REASON: &str = "// UNSAFETY: ";

#[test]
fn unsafe_is_confined_to_files_that_say_why() {
    let mut findings = Vec::new();
    let mut listed = Vec::new();
    for file in rust_files() {
        let uses = file_uses_unsafe(&file);
        let opted_in = file.text.starts_with(OPT_IN);
        match (uses, opted_in, reason(&file.text)) {
            (false, false, None) => {}
            (true, true, Some(reason)) => listed.push(format!("{}\n    {reason}", file.name)),
            (true, false, _) => {
                findings.push(format!("{}: unsafe without `{OPT_IN}` as its first line", file.name))
            }
            (false, true, _) => findings.push(format!("{}: opts in and has no unsafe", file.name)),
            (true, true, None) => findings.push(format!("{}: no `{REASON}` line", file.name)),
            (false, false, Some(_)) => findings.push(format!("{}: a reason without unsafe", file.name)),
        }
    }
    report("unsafe stands only in files that opt in and say why", &findings);
    assert!(!listed.is_empty(), "a driver without unsafe code does not exist: the search is broken");
    println!("{} files with unsafe code:", listed.len());
    listed.iter().for_each(|entry| println!("  {entry}"));
}

#[test]
fn no_file_turns_the_lint_off_in_another_way() {
    let wanted = ["allow(unsafe_code)", "allow(clippy::undocumented_unsafe_blocks)", "cfg_attr(all(), allow"];
    let mut findings = Vec::new();
    for file in rust_files() {
        let code = code_of(&file.text);
        findings
            .extend(wanted.iter().filter(|it| code.contains(**it)).map(|it| format!("{}: {it}", file.name)));
    }
    report("the lints on unsafe code stay on", &findings);
}

fn file_uses_unsafe(file: &Source) -> bool {
    let code = code_of(&file.text);
    code.split(|it: char| !it.is_alphanumeric() && it != '_').any(|word| word == "unsafe")
}

/// The sentence after `UNSAFETY:`, with the comment lines that continue it.
fn reason(text: &str) -> Option<String> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with(REASON));
    let mut reason = lines.next()?.trim_start_matches(REASON).to_owned();
    for line in lines.take_while(|line| line.starts_with("// ")) {
        reason.push(' ');
        reason.push_str(line.trim_start_matches("// "));
    }
    Some(reason)
}
