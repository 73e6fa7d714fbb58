//! `cargo xtask examples`: each public type of the crate for programs has an example in its doc comment.

use std::path::Path;

use crate::failure::{Failure, Result};
use crate::lines::TestFiles;
use crate::tree::Tree;

/// Sources of the crate that programs use. Types of other crates that it re-exports are not checked.
const SOURCES: &str = "client/tidewater/src/";

/// Prints how many types have an example; fails if one has none.
pub(crate) fn run(root: &Path) -> Result<String> {
    let tree = Tree::of_work_tree(root)?;
    let tests = TestFiles::of(&tree);
    let (mut count, mut missing) = (0, 0);
    for file in &tree.files {
        if !file.path.starts_with(SOURCES) || tests.contains(&file.path) {
            continue;
        }
        for (line, name, has_example) in types(&file.text) {
            count += 1;
            if !has_example {
                missing += 1;
                println!("{}:{line}: {name} has no example", file.path);
            }
        }
    }
    match (count, missing) {
        (0, _) => Err(Failure::NothingRead("public types")),
        (_, 0) => Ok(format!("examples: on {count} public types\n")),
        _ => Err(Failure::Findings {
            count: missing,
            what: "public types without an example",
            remedy: "add one to the doc comment, or make the type pub(crate)".into(),
        }),
    }
}

/// Public types at the top level of a source: line, name, and whether the doc comment has an example.
fn types(text: &str) -> Vec<(usize, &str, bool)> {
    let (mut found, mut fences) = (Vec::new(), Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(fence) = line.strip_prefix("/// ```") {
            fences.push(fence);
        } else if line.is_empty() {
            fences.clear();
        } else if let Some(item) = line.strip_prefix("pub ") {
            let mut words = item.split(|c: char| !c.is_alphanumeric() && c != '_');
            if let (Some("struct" | "enum" | "trait" | "type"), Some(name)) =
                (words.next(), words.next())
            {
                // Each second fence closes a block.
                let mut opened = fences.iter().step_by(2);
                let has_example = opened.any(|info| ["", "no_run"].contains(info));
                found.push((number, name, has_example));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_without_a_code_block_are_found() {
        let source = "/// A.\n///\n/// ```\n/// a();\n/// ```\n#[derive(Debug)]\npub struct A<T>(T);\n\n\
            /// B.\npub enum B {\n    X,\n}\n\npub(crate) struct Own;\n\n/// ```\n/// f();\n/// ```\n\
            pub fn f() {}\n\n/// ```text\n/// a picture\n/// ```\npub type C = u8;\n\n\
            /// ```no_run\n/// d();\n/// ```\npub trait D: Send {}\n";
        let expected = [
            (7, "A", true),
            (10, "B", false),
            (24, "C", false),
            (29, "D", true),
        ];
        assert_eq!(types(source), expected);
    }
}
