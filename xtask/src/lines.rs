//! `cargo xtask lines`: lines of code by area, tests apart, and the limit of a crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use crate::failure::{Failure, Result};
use crate::lexer;
use crate::tree::{Language, SourceFile, Tree};

/// Lines of code, without tests, that a crate may have.
const CRATE_LIMIT: usize = 15_000;

/// Options of `cargo xtask lines`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Count a commit instead of the work tree; its crates may be of any size
    #[arg(long, value_name = "COMMIT")]
    at: Option<String>,
}

/// Lines with code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    code: usize,
    tests: usize,
}

/// Prints the table; fails if a crate of the work tree is over the limit.
pub(crate) fn run(root: &Path, options: &Options) -> Result<String> {
    let tree = match &options.at {
        Some(commit) => Tree::of_commit(root, commit)?,
        None => Tree::of_work_tree(root)?,
    };
    let areas = count(&tree);
    if areas.is_empty() {
        return Err(Failure::NothingRead("code"));
    }
    let report = table(&areas);
    let large = over_limit(&tree, &areas, CRATE_LIMIT);
    if large.is_empty() || options.at.is_some() {
        return Ok(report);
    }
    print!("{report}");
    Err(Failure::Findings {
        count: large.len(),
        what: "crates over 15,000 lines without tests",
        remedy: format!("move a part into a crate of its own: {}", large.join(", ")),
    })
}

/// Crates with more lines than `limit`, tests not counted.
fn over_limit<'a>(tree: &Tree, areas: &BTreeMap<&'a str, Count>, limit: usize) -> Vec<&'a str> {
    let large = areas
        .iter()
        .filter(|(area, count)| tree.is_crate(area) && count.code > limit);
    large.map(|(area, _)| *area).collect()
}

/// Lines by area; areas without code are left out.
fn count(tree: &Tree) -> BTreeMap<&str, Count> {
    let tests = TestFiles::of(tree);
    let mut areas: BTreeMap<&str, Count> = BTreeMap::new();
    for file in &tree.files {
        let mut lines = lines(file);
        if tests.contains(&file.path) {
            lines.tests += std::mem::take(&mut lines.code);
        }
        if lines != Count::default() {
            let area = areas.entry(tree.area(&file.path)).or_default();
            area.code += lines.code;
            area.tests += lines.tests;
        }
    }
    areas
}

/// Files that hold nothing but tests.
pub(crate) struct TestFiles {
    /// Modules declared under `#[cfg(test)]`, as paths without extension.
    declared: Vec<String>,
}

impl TestFiles {
    /// Test files of the tree.
    pub(crate) fn of(tree: &Tree) -> Self {
        Self {
            declared: declared_test_modules(tree),
        }
    }

    /// Whether the path lies in a folder of tests, is a file of them by its name, or is declared as one.
    pub(crate) fn contains(&self, path: &str) -> bool {
        path.ends_with("/tests.rs")
            || path
                .split('/')
                .rev()
                .skip(1)
                .any(|folder| folder == "tests")
            || self.declared.iter().any(|module| covers(module, path))
    }
}

/// Whether the module without its extension (`a/b`) is the file, or a folder above it.
fn covers(module: &str, path: &str) -> bool {
    path.strip_prefix(module)
        .is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// Modules in files of their own that are declared under `#[cfg(test)]`, as paths without extension.
fn declared_test_modules(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for file in tree
        .files
        .iter()
        .filter(|file| file.language == Language::Rust)
    {
        let code = lexer::code(&file.text);
        for range in lexer::test_items(&code) {
            if let [.., keyword, name, end] = &code[range]
                && keyword.is("mod")
                && end.is(";")
            {
                found.push(format!("{}{}", children_folder(&file.path), name.text));
            }
        }
    }
    found
}

/// Folder, with its slash, where the modules of a file lie.
fn children_folder(path: &str) -> String {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    match name {
        "lib.rs" | "main.rs" | "mod.rs" => format!("{folder}/"),
        _ => format!("{}/", path.strip_suffix(".rs").unwrap_or(path)),
    }
}

/// Lines of a file that hold code.
fn lines(file: &SourceFile) -> Count {
    match file.language {
        Language::Rust => rust_lines(&file.text),
        Language::C => Count {
            code: occupied(&file.text).len(),
            tests: 0,
        },
        Language::Script | Language::Python => marked_lines(&file.text, '#'),
        Language::Fortran => marked_lines(&file.text, '!'),
        Language::Toml | Language::Markdown => Count::default(),
    }
}

/// Lines of a Rust source that are under `#[cfg(test)]`.
pub(crate) fn test_lines(text: &str) -> BTreeSet<usize> {
    let code = lexer::code(text);
    lexer::test_items(&code)
        .into_iter()
        .filter_map(|range| code.get(range))
        .flat_map(|item| {
            let last = item.last().map_or(0, lexer::Token::last_line);
            item.first().map_or(1, |token| token.line)..=last
        })
        .collect()
}

fn rust_lines(text: &str) -> Count {
    let tests = test_lines(text);
    let all = occupied(text);
    let in_tests = all.iter().filter(|line| tests.contains(line)).count();
    Count {
        code: all.len() - in_tests,
        tests: in_tests,
    }
}

/// Lines that are not blank and on which a token stands that is no comment.
fn occupied(text: &str) -> BTreeSet<usize> {
    let source: Vec<&str> = text.lines().collect();
    let is_blank = |line: usize| {
        source
            .get(line - 1)
            .is_none_or(|text| text.trim().is_empty())
    };
    lexer::code(text)
        .iter()
        .flat_map(|token| token.line..=token.last_line())
        .filter(|line| !is_blank(*line))
        .collect()
}

/// Lines that are not blank and do not begin with `mark`.
fn marked_lines(text: &str, mark: char) -> Count {
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with(mark);
    Count {
        code: text.lines().filter(is_code).count(),
        tests: 0,
    }
}

fn table(areas: &BTreeMap<&str, Count>) -> String {
    let mut out = String::from("| area | code | tests |\n|---|---:|---:|\n");
    let mut total = Count::default();
    for (area, count) in areas {
        let _ = writeln!(out, "| {area} | {} | {} |", count.code, count.tests);
        total.code += count.code;
        total.tests += count.tests;
    }
    let _ = writeln!(out, "| all | {} | {} |", total.code, total.tests);
    let _ = writeln!(out, "\n{} lines with tests", total.code + total.tests);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        Tree::new(
            files
                .iter()
                .map(|(path, text)| (path.to_string(), text.to_string()))
                .collect(),
        )
    }

    #[test]
    fn blank_lines_and_comments_do_not_count() {
        let text = "//! a\n\nfn f() { // b\n    /* c\n    d */ g();\n    h(\"\n\n  // i\");\n}\n";
        assert_eq!(rust_lines(text), Count { code: 5, tests: 0 });
        let tree = tree(&[
            ("ci/a.sh", "#!/bin/sh\n\n  # a\nb # c\n"),
            ("ci/a.c", "/* a */\nb; // c\n"),
        ]);
        assert_eq!(count(&tree)["ci"], Count { code: 2, tests: 0 });
    }

    #[test]
    fn tests_are_counted_apart() {
        let tree = tree(&[
            ("a/Cargo.toml", "[package]\n"),
            (
                "a/src/lib.rs",
                "fn f() {}\n#[cfg(test)]\nmod models;\nmod b;\n#[cfg(test)]\nmod tests {\n  fn g() {}\n}\n",
            ),
            ("a/src/models.rs", "fn h() {}\n"),
            ("a/src/models_of.rs", "fn h() {}\n"),
            ("a/src/b.rs", "#[cfg(test)]\nmod rig;\n"),
            ("a/src/b/rig/mod.rs", "fn i() {}\n"),
            ("a/src/b/tests.rs", "fn i() {}\n"),
            ("a/tests/all.rs", "fn j() {}\n"),
        ]);
        assert_eq!(count(&tree)["a"], Count { code: 3, tests: 12 });
    }

    #[test]
    fn limit_is_for_crates_without_tests() {
        let tree = tree(&[
            ("a/Cargo.toml", "[package]\n"),
            ("a/src/lib.rs", "fn f() {}\nfn g() {}\n"),
            ("b/Cargo.toml", "[package]\n"),
            ("b/src/lib.rs", "fn f() {}\n"),
            ("b/tests/all.rs", "fn f() {}\n"),
            ("ci/a.sh", "a\nb\nc\n"),
        ]);
        assert_eq!(over_limit(&tree, &count(&tree), 1), ["a"]);
        assert!(over_limit(&tree, &count(&tree), 2).is_empty());
    }
}
