//! What a page of source looks like: width, length, functions that fit on a screen, no notes to others.

use crate::report;
use crate::sources::{Source, rust_files};

const COLUMNS_MAX: usize = 110;
const FILE_LINES_MAX: usize = 420;
const FUNCTION_LINES_MAX: usize = 70;

/// Files that may be longer, each with its reason.
const LONG_FILES: [(&str, &str); 1] = [(
    "driver/spec/src/status.rs",
    "one table of all status codes by name: a table in two files would be looked up in the wrong one",
)];

#[test]
fn no_line_is_wider_than_110_columns() {
    let mut findings = Vec::new();
    for file in rust_files() {
        for (number, line) in file.text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > COLUMNS_MAX {
                findings.push(format!("{}:{}: {columns} columns", file.name, number + 1));
            }
        }
    }
    report("lines have at most 110 columns", &findings);
}

#[test]
fn no_file_is_longer_than_420_lines() {
    let files = rust_files();
    let lines = |file: &Source| file.text.lines().count();
    let is_exempt = |file: &Source| LONG_FILES.iter().any(|(name, _)| *name == file.name);
    let findings: Vec<String> = files
        .iter()
        .filter(|file| lines(file) > FILE_LINES_MAX && !is_exempt(file))
        .map(|file| format!("{}: {} lines", file.name, lines(file)))
        .collect();
    report("a file is about 400 lines: split it by idea, or list it with a reason", &findings);
    for (name, reason) in LONG_FILES {
        let file = files.iter().find(|file| file.name == name).expect("a listed file exists");
        assert!(lines(file) > FILE_LINES_MAX, "{name} is short now and needs no exemption ({reason})");
    }
}

#[test]
fn no_function_is_longer_than_70_lines() {
    let mut findings = Vec::new();
    let mut functions = 0;
    for file in rust_files() {
        for (line, length) in functions_of(&file.text) {
            functions += 1;
            if length > FUNCTION_LINES_MAX {
                findings.push(format!("{}:{line}: {length} lines", file.name));
            }
        }
    }
    assert!(functions > 500, "only {functions} functions were found: the search is broken");
    report("a function has at most 70 lines", &findings);
}

/// Line and length of every function with a body. Relies on rustfmt: the brace that ends a function stands
/// where the function's own line began.
fn functions_of(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let body = line.trim_start();
        let indent = line.len() - body.len();
        if !is_function(body) {
            continue;
        }
        let closing = format!("{}}}", " ".repeat(indent));
        let rest = lines[number..].iter().enumerate();
        // A declaration without a body ends with a semicolon, a body of one line with its brace.
        let end = rest
            .take_while(|(at, it)| *at == 0 || !is_function(it.trim_start()) || it.len() > indent)
            .find(|(at, it)| {
                **it == closing
                    || (it.ends_with(';') || it.ends_with('}')) && starts_and_ends(it, *at, indent)
            });
        found.extend(end.map(|(length, _)| (number + 1, length + 1)));
    }
    found
}

/// Whether this line, `at` lines below the function's first, is the end of a function on so few lines.
fn starts_and_ends(line: &str, at: usize, indent: usize) -> bool {
    let own_indent = line.len() - line.trim_start().len();
    own_indent == indent && (at == 0 || line.trim_start().starts_with(')'))
}

fn is_function(line: &str) -> bool {
    let mut words = line.split_whitespace().skip_while(|word| {
        ["pub", "const", "async", "unsafe", "extern"].contains(word)
            || word.starts_with("pub(")
            || word.starts_with('"')
    });
    words.next() == Some("fn")
}

#[test]
fn functions_are_measured_from_their_first_line_to_their_last() {
    let text = "trait T {\n    fn declared(&self);\n    fn short(&self) {}\n}\n\npub(crate) fn long(\n    \
                a: u8,\n) -> u8 {\n    if a > 0 {\n        return 1;\n    }\n    a\n}\n";
    assert_eq!(functions_of(text), [(2, 1), (3, 1), (6, 8)]);
}

#[test]
fn no_work_is_left_to_a_note() {
    // Put together here, so that this file does not find itself.
    let notes = ["TO", "FIX", "XX"].map(|start| {
        format!(
            "{start}{}",
            if start == "TO" {
                "DO"
            } else if start == "FIX" {
                "ME"
            } else {
                "X"
            }
        )
    });
    let mut findings = Vec::new();
    for file in rust_files() {
        for (number, line) in file.text.lines().enumerate() {
            if notes.iter().any(|note| line.contains(note.as_str())) {
                findings.push(format!("{}:{}: {}", file.name, number + 1, line.trim()));
            }
        }
    }
    report("work to do belongs into an issue, not into the code", &findings);
}

#[test]
fn every_file_begins_by_saying_what_it_is() {
    let findings: Vec<String> = rust_files()
        .iter()
        .filter(|file| !file.text.lines().take(4).any(|line| line.starts_with("//! ")))
        .map(|file| file.name.clone())
        .collect();
    report("a file begins with `//!`: its purpose, its invariants", &findings);
}

#[test]
fn no_module_is_named_for_nothing() {
    let findings: Vec<String> = rust_files()
        .iter()
        .filter(|file| {
            file.name
                .split('/')
                .any(|part| matches!(part.trim_end_matches(".rs"), "util" | "utils" | "common" | "helpers"))
        })
        .map(|file| file.name.clone())
        .collect();
    report("a module is named for what it holds", &findings);
}
