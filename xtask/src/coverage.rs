//! `cargo xtask coverage`: line coverage by crate and module, from a file in lcov's format.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Result};
use crate::lines::{TestFiles, test_lines};
use crate::tree::{Language, Tree};

/// Document with the table of modules below [`Options::below`], each with its reason.
const DOCUMENT: &str = "docs/TESTING.md";

/// Heading of the section with that table.
const SECTION: &str = "## Coverage";

/// Crate that holds tests alone.
const TESTS: &str = "tests";

/// Options of `cargo xtask coverage`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// What `llvm-cov export -format=lcov` has printed
    #[arg(value_name = "FILE")]
    lcov: PathBuf,
    /// Lists modules with fewer covered lines, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 70)]
    below: u64,
}

/// Lines with code that a counter stands on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Covered {
    lines: u64,
    hit: u64,
}

impl Covered {
    fn add(&mut self, other: Self) {
        self.lines += other.lines;
        self.hit += other.hit;
    }

    /// Covered lines in percent, rounded down; 100 of no line.
    fn percent(self) -> u64 {
        (self.hit * 100).checked_div(self.lines).unwrap_or(100)
    }
}

/// Executions by line, of one file.
type Executions = BTreeMap<usize, u64>;

/// Prints coverage by crate, the modules below the limit, and those of them that the document does not name.
pub(crate) fn run(root: &Path, options: &Options) -> Result<String> {
    let lcov = read(&options.lcov)?;
    let document = read(&root.join(DOCUMENT))?;
    let tree = Tree::of_work_tree(root)?;
    let modules = by_module(&tree, &parse(&lcov, &root.to_string_lossy())?);
    if modules.is_empty() {
        return Err(Failure::NothingRead(
            "line of lcov with a file of the project",
        ));
    }
    Ok(report(&tree, &modules, &named(&document), options.below))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|source| Failure::File {
        action: "read",
        path: path.display().to_string(),
        source,
    })
}

/// Executions by file, as path from the root, of a text in lcov's format: `SF:` begins a file, `DA:line,executions`
/// is a line. A file that comes twice has the greater count of each line.
fn parse(lcov: &str, root: &str) -> Result<BTreeMap<String, Executions>> {
    let mut files: BTreeMap<String, Executions> = BTreeMap::new();
    let mut file = String::new();
    for (at, text) in lcov.lines().enumerate() {
        if let Some(path) = text.strip_prefix("SF:") {
            let inside = path.strip_prefix(root).and_then(|p| p.strip_prefix('/'));
            file = inside.unwrap_or(path).to_owned();
        } else if let Some(line) = text.strip_prefix("DA:") {
            let mut fields = line.split(',').map(str::parse::<u64>);
            let (Some(Ok(number)), Some(Ok(executions))) = (fields.next(), fields.next()) else {
                return Err(Failure::Malformed {
                    subject: format!("line {} of the lcov file", at + 1),
                    problem: format!("{text:?} is not DA:line,executions"),
                    remedy: "write it by llvm-cov export -format=lcov".to_owned(),
                });
            };
            let lines = files.entry(file.clone()).or_default();
            let count = lines.entry(number as usize).or_default();
            *count = executions.max(*count);
        }
    }
    Ok(files)
}

/// Coverage of each module of the crates, without tests.
fn by_module(tree: &Tree, files: &BTreeMap<String, Executions>) -> BTreeMap<String, Covered> {
    let tests = TestFiles::of(tree);
    let mut modules: BTreeMap<String, Covered> = BTreeMap::new();
    for (path, lines) in files {
        let Some(source) = tree.file(path) else {
            continue;
        };
        let area = tree.area(path);
        if source.language != Language::Rust
            || area == TESTS
            || !tree.is_crate(area)
            || tests.contains(path)
        {
            continue;
        }
        let skipped = test_lines(&source.text);
        let counted = lines.iter().filter(|(line, _)| !skipped.contains(line));
        let covered = counted.fold(Covered::default(), |mut sum, (_, executions)| {
            sum.add(Covered {
                lines: 1,
                hit: u64::from(*executions > 0),
            });
            sum
        });
        modules
            .entry(module_of(area, path))
            .or_default()
            .add(covered);
    }
    modules.retain(|_, covered| covered.lines > 0);
    modules
}

/// Top-level module of a file of a crate: `server/engine/src/store/rows.rs` is in `server/engine/src/store`.
fn module_of(area: &str, path: &str) -> String {
    let source = format!("{area}/src/");
    let Some(inside) = path.strip_prefix(&source) else {
        // Examples and benchmarks.
        let inside = path.strip_prefix(area).unwrap_or(path);
        let folder = inside.trim_start_matches('/').split('/').next();
        return format!("{area}/{}", folder.unwrap_or(inside));
    };
    let first = inside.split('/').next().unwrap_or(inside);
    let name = match first {
        "bin" => inside,
        _ => first,
    };
    format!("{source}{}", name.strip_suffix(".rs").unwrap_or(name))
}

/// Modules that the section of the document names: the first cells of its tables, in backticks.
fn named(document: &str) -> BTreeSet<&str> {
    let section = document
        .lines()
        .skip_while(|line| *line != SECTION)
        .skip(1)
        .take_while(|line| !line.starts_with("## "));
    section
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect()
}

fn report(
    tree: &Tree,
    modules: &BTreeMap<String, Covered>,
    named: &BTreeSet<&str>,
    below: u64,
) -> String {
    let mut crates: BTreeMap<&str, Covered> = BTreeMap::new();
    let mut all = Covered::default();
    for (module, covered) in modules {
        crates.entry(tree.area(module)).or_default().add(*covered);
        all.add(*covered);
    }
    let mut out = String::from("| crate | lines | covered, % |\n|---|---:|---:|\n");
    for (name, covered) in crates {
        let _ = writeln!(
            out,
            "| {name} | {} | {} |",
            covered.lines,
            covered.percent()
        );
    }
    let _ = writeln!(out, "| all | {} | {} |\n", all.lines, all.percent());
    let _ = writeln!(
        out,
        "| module below {below} % | lines | covered, % |\n|---|---:|---:|"
    );
    let mut count = 0;
    let mut unnamed = Vec::new();
    for (module, covered) in modules.iter().filter(|(_, c)| c.percent() < below) {
        let _ = writeln!(
            out,
            "| `{module}` | {} | {} |",
            covered.lines,
            covered.percent()
        );
        count += 1;
        if !named.contains(module.as_str()) {
            unnamed.push(module.as_str());
        }
    }
    let _ = write!(
        out,
        "\n{} % of {} lines; {count} of {} modules below {below} %",
        all.percent(),
        all.lines,
        modules.len()
    );
    if !unnamed.is_empty() {
        let _ = write!(out, ", not named in {DOCUMENT}: {}", unnamed.join(", "));
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        let files = [
            ("a/Cargo.toml", "[package]\n"),
            (
                "a/src/lib.rs",
                "mod b;\n#[cfg(test)]\nmod tests {\n  fn g() {}\n}\n",
            ),
            ("a/src/b.rs", "mod c;\n"),
            ("a/src/b/c.rs", "fn f() {}\n"),
            ("a/src/b/tests.rs", "fn f() {}\n"),
            ("a/examples/e.rs", "fn main() {}\n"),
            ("tests/Cargo.toml", "[package]\n"),
            ("tests/all.rs", "fn f() {}\n"),
        ];
        let owned = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
        Tree::new(owned.into())
    }

    fn modules(lcov: &str) -> BTreeMap<String, Covered> {
        by_module(&tree(), &parse(lcov, "/tree").unwrap())
    }

    #[test]
    fn files_add_up_by_top_level_module() {
        let found = modules(
            "SF:/tree/a/src/b.rs\nDA:1,0\nend_of_record\nSF:/tree/a/src/b/c.rs\nDA:1,7\nDA:2,0\nend_of_record\n",
        );
        assert_eq!(found["a/src/b"], Covered { lines: 3, hit: 1 });
        assert_eq!(found.len(), 1);
        let found = modules("SF:/tree/a/examples/e.rs\nDA:1,0\n");
        assert_eq!(found["a/examples"], Covered { lines: 1, hit: 0 });
    }

    #[test]
    fn tests_and_foreign_files_do_not_count() {
        let found = modules(
            "SF:/tree/a/src/lib.rs\nDA:1,1\nDA:4,0\nSF:/tree/a/src/b/tests.rs\nDA:1,0\n\
             SF:/tree/tests/all.rs\nDA:1,0\nSF:/elsewhere/x.rs\nDA:1,0\n",
        );
        assert_eq!(found.len(), 1);
        assert_eq!(found["a/src/lib"], Covered { lines: 1, hit: 1 });
    }

    #[test]
    fn repeated_file_keeps_greater_counts() {
        let found =
            modules("SF:/tree/a/src/b.rs\nDA:1,0\nDA:2,3\nSF:/tree/a/src/b.rs\nDA:1,1\nDA:2,0\n");
        assert_eq!(found["a/src/b"], Covered { lines: 2, hit: 2 });
    }

    #[test]
    fn malformed_line_is_named() {
        let text = parse("SF:a\nDA:1;2\n", "/tree").unwrap_err().to_string();
        assert!(text.contains("line 2") && text.contains("DA:1;2"), "{text}");
    }

    #[test]
    fn module_below_limit_without_reason_is_listed() {
        let found = modules("SF:/tree/a/src/b.rs\nDA:1,0\nSF:/tree/a/src/lib.rs\nDA:1,1\n");
        let document = "## Other\n| `a/src/x` | 1 |\n## Coverage\n| `a/src/b` | 1 | 0 | why |\n## Next\n| `a/src/y` |\n";
        let names = named(document);
        assert_eq!(names, BTreeSet::from(["a/src/b"]));
        let text = report(&tree(), &found, &names, 70);
        assert!(
            text.ends_with("50 % of 2 lines; 1 of 2 modules below 70 %\n"),
            "{text}"
        );
        let text = report(&tree(), &found, &BTreeSet::new(), 70);
        assert!(
            text.ends_with("not named in docs/TESTING.md: a/src/b\n"),
            "{text}"
        );
    }
}
