//! `cargo xtask features`: the table of the seed systems' features in docs/SEED_FEATURES.md.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

use crate::failure::{Failure, Result};
use crate::tree::Tree;

/// Document with the table.
const DOCUMENT: &str = "docs/SEED_FEATURES.md";

/// Ids that have a row: letter and numbers.
const IDS: [(char, RangeInclusive<u32>); 8] = [
    ('A', 24..=24),
    ('A', 36..=36),
    ('A', 46..=59),
    ('B', 3..=21),
    ('C', 18..=20),
    ('D', 1..=16),
    ('F', 1..=8),
    ('F', 11..=11),
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
    let exists = |test: &str| test_exists(&tree, test);
    let checked = check(&document.text, &exists);
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
    /// Number of tests that rows name.
    tests: usize,
    findings: Vec<String>,
}

impl Checked {
    fn report(&self) -> String {
        let count = |(state, _): &(&'static str, bool)| {
            let count = self.states.get(state).copied().unwrap_or(0);
            format!("{count} {state}")
        };
        let states: Vec<String> = STATES.iter().map(count).collect();
        format!("features: {}; {} tests\n", states.join(", "), self.tests)
    }
}

/// Row of the table.
struct Row<'a> {
    line: usize,
    state: &'a str,
    tests: &'a str,
}

fn check(text: &str, exists: &dyn Fn(&str) -> bool) -> Checked {
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
            Some(row) => check_row(&mut checked, &id, &row, exists),
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

/// The row of a line that begins with an id; five cells.
fn row(line: usize, content: &str) -> Option<(&str, Row<'_>)> {
    let cells = content.strip_prefix("| ")?.strip_suffix('|')?;
    let cells: Vec<&str> = cells.split('|').map(str::trim).collect();
    let (&id, rest) = cells.split_first()?;
    let (letter, number) = id.split_once('-')?;
    let is_id = letter.len() == 1 && number.bytes().next()?.is_ascii_digit();
    let state = rest.get(1).copied().unwrap_or_default();
    let tests = rest.get(3).copied().unwrap_or_default();
    is_id.then_some((id, Row { line, state, tests }))
}

fn check_row(checked: &mut Checked, id: &str, row: &Row<'_>, exists: &dyn Fn(&str) -> bool) {
    let line = row.line;
    let mut finding = |what: String| {
        checked
            .findings
            .push(format!("{DOCUMENT}:{line}: {id} {what}"));
    };
    let known = STATES.iter().find(|(state, _)| *state == row.state);
    let Some(&(state, needs_test)) = known else {
        return finding(format!("has the unknown state \"{}\"", row.state));
    };
    let tests: Vec<&str> = row.tests.split('`').skip(1).step_by(2).collect();
    if tests.is_empty() == needs_test {
        finding(match needs_test {
            true => format!("is \"{state}\" and names no test"),
            false => format!("is \"{state}\" and names a test"),
        });
    }
    for test in tests.iter().filter(|test| !exists(test)) {
        finding(format!("names `{test}`, which does not exist"));
    }
    checked.tests += tests.len();
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

    /// A document with a right row for each id.
    fn document() -> String {
        let row = |id: String| format!("| {id} | name | works | place | `a.rs::b` |\n");
        ids().into_iter().map(row).collect()
    }

    fn findings(text: &str) -> Vec<String> {
        check(text, &|test| test == "a.rs::b").findings
    }

    #[test]
    fn right_rows_have_no_findings() {
        let checked = check(&document(), &|_| true);
        assert!(checked.findings.is_empty(), "{:?}", checked.findings);
        assert_eq!(checked.states["works"], ids().len());
        assert_eq!(checked.tests, ids().len());
    }

    #[test]
    fn each_defect_is_one_finding() {
        let right = document();
        let row = "| B-03 | name | works | place | `a.rs::b` |\n";
        for (wrong, expected) in [
            ("", "B-03 has no row"),
            (
                "| B-03 | name | done | place | `a.rs::b` |\n",
                "B-03 has the unknown state \"done\"",
            ),
            (
                "| B-03 | name | partly | place | |\n",
                "B-03 is \"partly\" and names no test",
            ),
            (
                "| B-03 | name | not built | place | `a.rs::b` |\n",
                "B-03 is \"not built\" and names a test",
            ),
            (
                "| B-03 | name | works | place | `a.rs::c` |\n",
                "B-03 names `a.rs::c`, which does not exist",
            ),
        ] {
            let found = findings(&right.replace(row, wrong));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].ends_with(expected), "{found:?}");
        }
        let found = findings(&format!("{right}{row}"));
        assert!(found[0].ends_with("B-03 has two rows"), "{found:?}");
        let found = findings(&format!("{right}{}", row.replace("B-03", "Z-01")));
        assert!(found[0].contains("Z-01 is no known id"), "{found:?}");
    }

    #[test]
    fn tests_are_looked_up_by_name() {
        let tree = Tree::new(vec![("a.rs".into(), "fn bc() {}\nfn b(x: u8) {}\n".into())]);
        assert!(test_exists(&tree, "a.rs::b"));
        assert!(!test_exists(&tree, "a.rs::c"));
        assert!(!test_exists(&tree, "b.rs::b"));
        assert!(!test_exists(&tree, "a.rs"));
    }
}
