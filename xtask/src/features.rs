//! `cargo xtask features`: the table of the seed systems' features in docs/SEED_FEATURES.md.
//!
//! A row names the tests of its feature. A row of priority P0 also names a mutant, and the stage
//! `mutants` must run that mutant against a test of the row: docs/TESTING.md has the pairs.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

use crate::failure::{Failure, Result};
use crate::tree::Tree;

/// Document with the table.
const DOCUMENT: &str = "docs/SEED_FEATURES.md";
/// Document with the mutants, each with the test that must fail with it.
const MUTANTS: &str = "docs/TESTING.md";
/// Priorities of a feature. Rows of the first one need a mutant where they need a test.
const PRIORITIES: [&str; 3] = ["P0", "P1", "P2"];

/// Ids that have a row: letter and numbers.
const IDS: [(char, RangeInclusive<u32>); 23] = [
    ('A', 1..=3),
    ('A', 5..=7),
    ('A', 9..=10),
    ('A', 12..=13),
    ('A', 17..=17),
    ('A', 24..=24),
    ('A', 30..=30),
    ('A', 33..=36),
    ('A', 46..=59),
    ('B', 3..=21),
    ('C', 18..=20),
    ('D', 1..=16),
    ('F', 1..=8),
    ('F', 11..=11),
    ('A', 60..=64),
    ('A', 66..=73),
    ('C', 1..=13),
    ('C', 23..=25),
    ('C', 30..=31),
    ('C', 33..=33),
    ('D', 17..=17),
    ('F', 17..=17),
    ('F', 22..=22),
];

/// States of a feature, and whether each needs a test.
const STATES: [(&str, bool); 5] = [
    ("works", true),
    ("partly", true),
    ("otherwise", true),
    ("not here yet", false),
    ("not built", false),
];

/// Prints how many features have each state; fails if a row is missing, wrong, or names a test that does
/// not exist.
pub(crate) fn run(root: &Path) -> Result<String> {
    let tree = Tree::of_work_tree(root)?;
    let Some(document) = tree.file(DOCUMENT) else {
        return Err(Failure::NothingRead("features"));
    };
    let mutants = tree.file(MUTANTS).map_or("", |file| &file.text);
    let known = Known {
        exists: &|test| test_exists(&tree, test),
        mutants: mutant_rows(mutants),
        package: &|path| package_of(&tree, path),
    };
    let checked = check(&document.text, &known);
    if checked.findings.is_empty() {
        return Ok(checked.report());
    }
    for finding in &checked.findings {
        println!("{finding}");
    }
    Err(Failure::Findings {
        count: checked.findings.len(),
        what: "wrong rows of features",
        remedy: format!("correct {DOCUMENT}"),
    })
}

/// Outcome of the check.
#[derive(Debug, Default)]
struct Checked {
    /// Number of features by state.
    states: BTreeMap<&'static str, usize>,
    /// Numbers of tests, and of mutants, that rows name.
    tests: usize,
    mutants: usize,
    findings: Vec<String>,
}

impl Checked {
    fn report(&self) -> String {
        let count = |(state, _): &(&'static str, bool)| {
            let count = self.states.get(state).copied().unwrap_or(0);
            format!("{count} {state}")
        };
        let states: Vec<String> = STATES.iter().map(count).collect();
        let states = states.join(", ");
        format!(
            "features: {states}; {} tests, {} mutants\n",
            self.tests, self.mutants
        )
    }
}

/// Row of the table.
struct Row<'a> {
    line: usize,
    priority: &'a str,
    state: &'a str,
    tests: &'a str,
    mutants: &'a str,
}

/// Row of the table of mutants: the stage `mutants` requires that the test fails with the mutant.
struct MutantRow<'a> {
    mutant: &'a str,
    package: &'a str,
    target: &'a str,
    test: &'a str,
}

/// What rows are compared with.
struct Known<'a> {
    /// Whether a test of this name, `path.rs::function`, exists.
    exists: &'a dyn Fn(&str) -> bool,
    mutants: Vec<MutantRow<'a>>,
    /// Package that a source file belongs to.
    package: &'a dyn Fn(&str) -> Option<String>,
}

impl Known<'_> {
    /// Whether the stage `mutants` runs `mutant` against `test`.
    fn is_caught(&self, mutant: &str, test: &str) -> bool {
        let Some((path, function)) = test.split_once("::") else {
            return false;
        };
        let package = (self.package)(path);
        self.mutants.iter().any(|row| {
            let of_target = match row.target {
                "lib" => path.contains("/src/"),
                target => path
                    .split('/')
                    .any(|part| part == target || part.strip_suffix(".rs") == Some(target)),
            };
            row.mutant == mutant
                && package.as_deref() == Some(row.package)
                && of_target
                && row.test.rsplit("::").next() == Some(function)
        })
    }
}

/// Rows of the table of mutants that stage `mutants` runs; loom's are of another stage.
fn mutant_rows(text: &str) -> Vec<MutantRow<'_>> {
    let lines = text
        .lines()
        .skip_while(|line| !line.starts_with("| mutant |"));
    let rows = lines.skip(2).map_while(|line| line.strip_prefix('|'));
    rows.filter_map(|line| {
        let cells: Vec<&str> = line
            .split('|')
            .map(|cell| cell.trim().trim_matches('`'))
            .collect();
        let [mutant, package, target, test, ..] = cells[..] else {
            return None;
        };
        let row = MutantRow {
            mutant,
            package,
            target,
            test,
        };
        (target != "loom").then_some(row)
    })
    .collect()
}

/// Package of the nearest `Cargo.toml` above a file.
fn package_of(tree: &Tree, path: &str) -> Option<String> {
    let mut folder = path;
    while let Some((above, _)) = folder.rsplit_once('/') {
        folder = above;
        if let Some(manifest) = tree.file(&format!("{folder}/Cargo.toml")) {
            let name = manifest
                .text
                .lines()
                .find_map(|line| line.strip_prefix("name = "));
            return name.map(|name| name.trim_matches('"').to_owned());
        }
    }
    None
}

fn check(text: &str, known: &Known<'_>) -> Checked {
    let mut checked = Checked::default();
    let mut rows: BTreeMap<&str, Row<'_>> = BTreeMap::new();
    for (line, content) in (1..).zip(text.lines()) {
        let Some((id, row)) = row(line, content) else {
            continue;
        };
        if rows.insert(id, row).is_some() {
            let finding = format!("{DOCUMENT}:{line}: {id} has two rows");
            checked.findings.push(finding);
        }
    }
    for id in ids() {
        match rows.remove(id.as_str()) {
            Some(row) => check_row(&mut checked, &id, &row, known),
            None => checked
                .findings
                .push(format!("{DOCUMENT}:1: {id} has no row")),
        }
    }
    for (id, row) in rows {
        let line = row.line;
        let finding = format!("{DOCUMENT}:{line}: {id} is no known id; add it to IDS");
        checked.findings.push(finding);
    }
    checked
}

fn ids() -> Vec<String> {
    let of = |(letter, numbers): (char, RangeInclusive<u32>)| {
        numbers.map(move |number| format!("{letter}-{number:02}"))
    };
    IDS.into_iter().flat_map(of).collect()
}

/// The row of a line that begins with an id; seven cells.
fn row(line: usize, content: &str) -> Option<(&str, Row<'_>)> {
    let cells = content.strip_prefix("| ")?.strip_suffix('|')?;
    let cells: Vec<&str> = cells.split('|').map(str::trim).collect();
    let (&id, rest) = cells.split_first()?;
    let (letter, number) = id.split_once('-')?;
    let is_id = letter.len() == 1 && number.bytes().next()?.is_ascii_digit();
    let cell = |nth: usize| rest.get(nth).copied().unwrap_or_default();
    let row = Row {
        line,
        priority: cell(0),
        state: cell(2),
        tests: cell(4),
        mutants: cell(5),
    };
    is_id.then_some((id, row))
}

fn check_row<'a>(checked: &mut Checked, id: &str, row: &Row<'a>, known: &Known<'_>) {
    let line = row.line;
    let mut finding = |what: String| {
        checked
            .findings
            .push(format!("{DOCUMENT}:{line}: {id} {what}"));
    };
    let of_name = STATES.iter().find(|(state, _)| *state == row.state);
    let Some(&(state, needs_test)) = of_name else {
        return finding(format!("has the unknown state \"{}\"", row.state));
    };
    if !PRIORITIES.contains(&row.priority) {
        return finding(format!("has the unknown priority \"{}\"", row.priority));
    }
    let names = |cell: &'a str| cell.split('`').skip(1).step_by(2).collect::<Vec<&str>>();
    let (tests, mutants) = (names(row.tests), names(row.mutants));
    if tests.is_empty() == needs_test {
        finding(match needs_test {
            true => format!("is \"{state}\" and names no test"),
            false => format!("is \"{state}\" and names a test"),
        });
    }
    for test in tests.iter().filter(|test| !(known.exists)(test)) {
        finding(format!("names `{test}`, which does not exist"));
    }
    if mutants.is_empty() && needs_test && row.priority == PRIORITIES[0] {
        finding(format!("is {} and names no mutant", row.priority));
    }
    for mutant in &mutants {
        if !tests.iter().any(|test| known.is_caught(mutant, test)) {
            finding(format!(
                "names the mutant `{mutant}`, which {MUTANTS} runs against no test of the row"
            ));
        }
    }
    checked.tests += tests.len();
    checked.mutants += mutants.len();
    *checked.states.entry(state).or_default() += 1;
}

/// Whether the tree has the file of `path.rs::name` and a function of that name in it.
fn test_exists(tree: &Tree, test: &str) -> bool {
    let Some((path, name)) = test.split_once("::") else {
        return false;
    };
    let declaration = format!("fn {name}(");
    tree.file(path)
        .is_some_and(|file| file.text.contains(&declaration))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = "| B-03 | P0 | name | works | place | `p/a.rs::b` | `m` |\n";

    /// A document with a right row for each id.
    fn document() -> String {
        let row = |id: String| ROW.replace("B-03", &id);
        ids().into_iter().map(row).collect()
    }

    fn checked(text: &str) -> Checked {
        let mutants = "| mutant | crate | target | test |\n|---|---|---|---|\n\
            | `m` | pkg | a | m::b |\n| `l` | pkg | loom | b |\n| `o` | other | a | b |\n";
        let known = Known {
            exists: &|test| test == "p/a.rs::b" || test == "p/a.rs::d",
            mutants: mutant_rows(mutants),
            package: &|path| path.starts_with("p/").then(|| "pkg".to_owned()),
        };
        check(text, &known)
    }

    #[test]
    fn right_rows_have_no_findings() {
        let checked = checked(&document());
        assert!(checked.findings.is_empty(), "{:?}", checked.findings);
        assert_eq!(checked.states["works"], ids().len());
        assert_eq!((checked.tests, checked.mutants), (ids().len(), ids().len()));
    }

    #[test]
    fn each_defect_is_one_finding() {
        let right = document();
        for (wrong, expected) in [
            ("", "B-03 has no row"),
            (
                "| B-03 | P0 | name | done | place | `p/a.rs::b` | `m` |\n",
                "B-03 has the unknown state \"done\"",
            ),
            (
                "| B-03 | P9 | name | works | place | `p/a.rs::b` | `m` |\n",
                "B-03 has the unknown priority \"P9\"",
            ),
            (
                "| B-03 | P1 | name | partly | place | | |\n",
                "B-03 is \"partly\" and names no test",
            ),
            (
                "| B-03 | P0 | name | not built | place | `p/a.rs::b` | |\n",
                "B-03 is \"not built\" and names a test",
            ),
            (
                "| B-03 | P1 | name | works | place | `p/a.rs::c` | |\n",
                "B-03 names `p/a.rs::c`, which does not exist",
            ),
            (
                "| B-03 | P0 | name | works | place | `p/a.rs::b` | |\n",
                "B-03 is P0 and names no mutant",
            ),
            (
                "| B-03 | P0 | name | works | place | `p/a.rs::d` | `m` |\n",
                "names the mutant `m`, which docs/TESTING.md runs against no test of the row",
            ),
            (
                "| B-03 | P0 | name | works | place | `p/a.rs::b` | `l` |\n",
                "names the mutant `l`, which docs/TESTING.md runs against no test of the row",
            ),
            (
                "| B-03 | P0 | name | works | place | `p/a.rs::b` | `o` |\n",
                "names the mutant `o`, which docs/TESTING.md runs against no test of the row",
            ),
        ] {
            let found = checked(&right.replace(ROW, wrong)).findings;
            assert_eq!(found.len(), 1, "{wrong}: {found:?}");
            assert!(found[0].ends_with(expected), "{found:?}");
        }
        let found = checked(&format!("{right}{ROW}")).findings;
        assert!(found[0].ends_with("B-03 has two rows"), "{found:?}");
        let found = checked(&format!("{right}{}", ROW.replace("B-03", "Z-01"))).findings;
        assert!(found[0].contains("Z-01 is no known id"), "{found:?}");
    }

    #[test]
    fn tests_and_packages_are_looked_up() {
        let tree = Tree::new(vec![
            ("p/a.rs".into(), "fn bc() {}\nfn b(x: u8) {}\n".into()),
            ("p/Cargo.toml".into(), "[package]\nname = \"pkg\"\n".into()),
        ]);
        assert!(test_exists(&tree, "p/a.rs::b"));
        assert!(!test_exists(&tree, "p/a.rs::c"));
        assert!(!test_exists(&tree, "b.rs::b"));
        assert!(!test_exists(&tree, "p/a.rs"));
        assert_eq!(package_of(&tree, "p/src/a.rs").as_deref(), Some("pkg"));
        assert_eq!(package_of(&tree, "q/a.rs"), None);
    }
}
