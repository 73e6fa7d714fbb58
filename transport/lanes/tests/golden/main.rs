//! `docs/PROTOCOL.md` matches the code, byte for byte.
//!
//! Its blocks ```` ```golden NAME ```` are compared with the bytes that the code builds, its blocks ````
//! ```numbers ```` with the code's constants, codes and hash vectors. The comparison goes both ways: a
//! structure without bytes fails and so do bytes without a structure. Tests that the documents name must
//! exist.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on fails"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use tidewater_launch::VARIABLES;

mod functions;
mod keys;
mod pushes;
mod structures;
mod verbs;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Fenced blocks: the words after the fence, and the lines inside.
fn blocks(text: &str) -> Vec<(String, Vec<String>)> {
    let mut all = Vec::new();
    let mut open: Option<(String, Vec<String>)> = None;
    for line in text.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(info)) => open = Some((info.trim().to_owned(), Vec::new())),
            (Some(_), Some(_)) => all.extend(open.take()),
            (Some((_, lines)), None) => lines.push(line.to_owned()),
            (None, None) => {}
        }
    }
    all
}

/// Bytes in the format of the document: 16 a line.
fn hex(bytes: &[u8]) -> String {
    let mut out = String::new();
    for (n, line) in bytes.chunks(16).enumerate() {
        let digits: Vec<String> = line.iter().map(|b| format!("{b:02x}")).collect();
        let _ = writeln!(out, "{:04x}  {}", n * 16, digits.join(" "));
    }
    out
}

#[test]
fn golden_bytes_are_what_the_code_builds() {
    let built: BTreeMap<String, String> = structures::all()
        .into_iter()
        .chain(functions::all())
        .chain(keys::all())
        .chain(pushes::all())
        .chain(verbs::all())
        .map(|(name, bytes)| (format!("golden {name}"), hex(&bytes)))
        .collect();
    let told: BTreeMap<String, String> = blocks(&read("docs/PROTOCOL.md"))
        .into_iter()
        .filter(|(info, _)| info.starts_with("golden "))
        .map(|(info, lines)| (info, lines.join("\n") + "\n"))
        .collect();
    agree(&told, &built, |name, bytes| {
        format!("```{name}\n{bytes}```")
    });
}

#[test]
fn numbers_are_those_of_the_code() {
    let numbers = structures::numbers().into_iter();
    let built: BTreeMap<String, u64> = numbers.chain(functions::numbers()).collect();
    let mut told = BTreeMap::new();
    for (_, lines) in blocks(&read("docs/PROTOCOL.md"))
        .iter()
        .filter(|(i, _)| i == "numbers")
    {
        for line in lines {
            let (name, value) = line.split_once(' ').expect("a name and a number");
            let value = value.trim();
            let value = match value.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16),
                None => value.parse(),
            };
            let value = value.unwrap_or_else(|e| panic!("{line}: {e}"));
            assert_eq!(
                told.insert(name.to_owned(), value),
                None,
                "{name} stands twice"
            );
        }
    }
    agree(&told, &built, |name, value| {
        format!("{name} {value}   ({value:#018x})")
    });
}

/// The protocol's document lists all of the code's values and nothing else.
fn agree<V: PartialEq>(
    told: &BTreeMap<String, V>,
    built: &BTreeMap<String, V>,
    show: impl Fn(&str, &V) -> String,
) {
    let differs = |(name, value): &(&String, &V)| told.get(*name) != Some(*value);
    let wrong = built.iter().filter(differs);
    let wrong: Vec<String> = wrong.map(|(name, value)| show(name, value)).collect();
    let wrong = wrong.join("\n");
    assert!(
        wrong.is_empty(),
        "docs/PROTOCOL.md lacks or contradicts:\n{wrong}"
    );
    let unknown: Vec<&String> = told
        .keys()
        .filter(|name| !built.contains_key(*name))
        .collect();
    assert!(
        unknown.is_empty(),
        "docs/PROTOCOL.md tells of nothing: {unknown:?}"
    );
}

/// Public types of a file that have a form in memory or on the wire: those with `to_line` or `to_bytes`,
/// and words with a meaning (`pub struct X(pub ...)`).
fn types_with_bytes(source: &str) -> BTreeSet<String> {
    let word = |s: &str| {
        s.split(|c: char| !c.is_alphanumeric())
            .next()
            .map(str::to_owned)
    };
    let (mut public, mut found) = (BTreeSet::new(), BTreeSet::new());
    let mut inside = String::new();
    for line in source.lines() {
        if let Some(rest) = line
            .strip_prefix("pub struct ")
            .or(line.strip_prefix("pub enum "))
        {
            public.extend(word(rest));
            if rest.contains("(pub ") {
                found.extend(word(rest));
            }
        }
        if let Some(rest) = line.strip_prefix("impl ") {
            inside = word(rest).unwrap_or_default();
        }
        if ["fn to_line(", "fn to_bytes("]
            .iter()
            .any(|f| line.contains(f))
        {
            found.insert(inside.clone());
        }
    }
    found.intersection(&public).cloned().collect()
}

#[test]
fn every_type_with_bytes_has_golden_ones() {
    let layout = root().join("transport/protocol/src/layout");
    let mut files: Vec<PathBuf> = layout
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.push(root().join("transport/lanes/src/tcp/op.rs"));
    let mut found = BTreeSet::new();
    for file in files {
        found.extend(types_with_bytes(&std::fs::read_to_string(file).unwrap()));
    }
    let covered: BTreeSet<String> = structures::TYPES.iter().map(|t| (*t).to_owned()).collect();
    assert_eq!(
        found, covered,
        "add the type to `structures` and its bytes to docs/PROTOCOL.md"
    );
}

/// `path.rs::name` in backticks, anywhere in a document.
fn named_tests(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split('`')
        .filter_map(|word| word.split_once(".rs::"))
        .filter(|(path, name)| {
            path.contains('/') && !path.contains(' ') && !name.contains([' ', ':', '('])
        })
}

/// Paths of the documents that name tests.
const DOCUMENTS: [&str; 6] = [
    "docs/PROTOCOL.md",
    "docs/GUARANTEES.md",
    "docs/FORMAT.md",
    "docs/TESTING.md",
    "docs/HPC.md",
    "docs/SEED_FEATURES.md",
];

#[test]
fn every_test_that_the_documents_name_exists() {
    let mut named = 0;
    for document in DOCUMENTS {
        let text = read(document);
        for (path, name) in named_tests(&text) {
            let source = read(&format!("{path}.rs"));
            let declared = source.contains(&format!("fn {name}("));
            assert!(
                declared,
                "{document} names `{path}.rs::{name}`, which does not exist"
            );
            named += 1;
        }
    }
    assert!(
        named > 50,
        "only {named} tests are named: the pattern is broken"
    );
}

/// Rows `| `TIDEWATER_...` | text | ...` of a document.
fn variables(text: &str) -> BTreeMap<&str, &str> {
    text.lines()
        .filter_map(|line| line.strip_prefix("| `TIDEWATER_")?.split_once("` | "))
        .filter_map(|(name, rest)| Some((name, rest.split_once(" |")?.0)))
        .collect()
}

#[test]
fn the_variables_of_the_document_are_those_of_the_code() {
    let text = read("docs/HPC.md");
    let known = VARIABLES.iter().map(|variable| {
        let name = variable.name.strip_prefix("TIDEWATER_").expect("a prefix");
        (name, variable.meaning)
    });
    let known: BTreeMap<&str, &str> = known.collect();
    assert_eq!(variables(&text), known, "docs/HPC.md and launch::VARIABLES");
}
