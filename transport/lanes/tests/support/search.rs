//! Finds the decoders of a source text, for the tests of complete registries. Tests of several crates
//! include this file by its path: it is no part of any library.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Every decoder in the source files below `folders`, as [`found`] names it.
pub(crate) fn decoders_below(folders: &[PathBuf]) -> BTreeSet<String> {
    let mut files = Vec::new();
    for folder in folders {
        sources(folder, &mut files);
    }
    let of_file = |file: &PathBuf| {
        let stem = file.file_stem().unwrap().to_str().unwrap();
        found(stem, &fs::read_to_string(file).unwrap())
    };
    files.iter().flat_map(of_file).collect()
}

/// Collects the source files below a folder, without those of tests.
fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs")
            && !["tests", "testing", "samples"].contains(&stem)
        {
            out.push(path);
        }
    }
}

/// Whether a signature decodes external input: by its name, or because it takes bytes or a line and may
/// fail.
fn decodes(name: &str, signature: &str) -> bool {
    const NAMES: &[&str] = &[
        "decode",
        "from_line",
        "from_bytes",
        "from_code",
        "from_value",
        "parse",
        "next_frame",
        "step",
        "tail_is_sane",
    ];
    const VALUES: &[&str] = &["value", "seq"];
    let (arguments, result) = signature.split_once("->").unwrap_or((signature, ""));
    let bytes = ["[u8", "&Line", "HeaderBytes", "&str"]
        .iter()
        .any(|t| arguments.contains(t));
    let total = ["Option<", "Result<"].iter().any(|t| result.contains(t));
    // Writers of bytes take the buffer to write to.
    let writes = ["&mut [u8]", "&mut Vec<u8>"]
        .iter()
        .any(|t| arguments.contains(t))
        || ["write", "put", "post", "send"]
            .iter()
            .any(|n| name.starts_with(n));
    NAMES
        .iter()
        .any(|n| name.starts_with(n) || name.ends_with(n))
        || (VALUES.contains(&name) && total)
        || (bytes && total && !writes)
}

/// `stem::Type::function` of each decoder in a file's text, and `impl Message for Type`.
pub(crate) fn found(stem: &str, text: &str) -> Vec<String> {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let mut found = Vec::new();
    let mut of = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("impl") {
            let head = rest.trim_end_matches(" {");
            let whole = head.rsplit(" for ").next().unwrap();
            let whole = whole.rsplit("> ").next().unwrap().trim();
            of = format!("{}::", whole.split('<').next().unwrap());
            if head.contains("Message for ") {
                found.push(format!("impl Message for {whole}"));
            }
        } else if line == "}" {
            of.clear();
        }
        let Some((before, rest)) = line.split_once("fn ") else {
            continue;
        };
        if !before
            .trim()
            .split(' ')
            .all(|w| ["", "pub", "const", "pub(crate)", "pub(super)"].contains(&w))
        {
            continue;
        }
        let mut signature = rest.to_owned();
        while !signature.ends_with(['{', ';', '}']) {
            signature += lines.next().unwrap();
        }
        let signature = signature.split('{').next().unwrap();
        let name = signature.split(['(', '<']).next().unwrap();
        if decodes(name, signature) {
            found.push(format!("{stem}::{of}{name}"));
        }
    }
    found
}
