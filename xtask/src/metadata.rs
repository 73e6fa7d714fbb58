//! Packages, as `cargo metadata` describes them.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::failure::{Failure, Result};
use crate::tree;

/// Answer of `cargo metadata`.
#[derive(Debug)]
pub(crate) struct Metadata {
    pub(crate) value: Value,
    /// Root of the workspace.
    root: String,
}

/// Crate of a package: its library or one of its programs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Package, and for a program its name.
    pub(crate) name: String,
    /// Root file, from the root of the workspace.
    pub(crate) source: String,
}

/// Packages of the workspace, without what they depend on.
pub(crate) fn workspace(root: &Path) -> Result<Metadata> {
    read(root, &["--no-deps"])
}

/// Runs `cargo metadata` in a folder.
pub(crate) fn read(folder: &Path, arguments: &[&str]) -> Result<Metadata> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .current_dir(folder)
        .args(["metadata", "--locked", "--format-version", "1"])
        .args(arguments);
    let text = tree::output(&mut command)?;
    let value: Value =
        serde_json::from_str(&text).map_err(|error| malformed(&error.to_string()))?;
    Metadata::new(value)
}

fn malformed(problem: &str) -> Failure {
    Failure::Malformed {
        subject: "cargo metadata".to_owned(),
        problem: problem.to_owned(),
        remedy: "look whether this version of cargo still writes format 1".to_owned(),
    }
}

impl Metadata {
    pub(crate) fn new(value: Value) -> Result<Self> {
        let root = text(&value, "workspace_root")
            .ok_or_else(|| malformed("no workspace_root"))?
            .to_owned();
        if list(&value, "packages").is_empty() {
            return Err(malformed("no packages"));
        }
        Ok(Self { value, root })
    }

    /// All packages of the answer.
    pub(crate) fn packages(&self) -> &[Value] {
        list(&self.value, "packages")
    }

    /// Libraries and programs of the workspace.
    pub(crate) fn targets(&self) -> Vec<Target> {
        let mut found = Vec::new();
        for package in self.packages() {
            let name = text(package, "name").unwrap_or_default();
            for target in list(package, "targets") {
                let kinds: Vec<&str> = list(target, "kind")
                    .iter()
                    .filter_map(Value::as_str)
                    .collect();
                let is_program = kinds.contains(&"bin");
                if !is_program
                    && !kinds
                        .iter()
                        .any(|kind| kind.ends_with("lib") || *kind == "proc-macro")
                {
                    continue;
                }
                let source = self.relative(text(target, "src_path").unwrap_or_default());
                let program = text(target, "name").unwrap_or_default();
                let name = if is_program {
                    format!("{name} bin {program}")
                } else {
                    name.to_owned()
                };
                found.push(Target { name, source });
            }
        }
        found
    }

    /// Path from the root of the workspace; of paths elsewhere the path itself.
    pub(crate) fn relative(&self, path: &str) -> String {
        let below = path.strip_prefix(self.root.as_str());
        below
            .map_or(path, |below| below.trim_start_matches('/'))
            .to_owned()
    }
}

/// Text of a key.
pub(crate) fn text<'v>(value: &'v Value, key: &str) -> Option<&'v str> {
    value.get(key).and_then(Value::as_str)
}

/// Elements of a key; none if it is no array.
pub(crate) fn list<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value
        .get(key)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_libraries_and_programs() {
        let answer = serde_json::json!({"workspace_root": "/r", "packages": [{"name": "p", "targets": [
            {"kind": ["cdylib", "rlib"], "name": "p", "src_path": "/r/p/src/lib.rs"},
            {"kind": ["bin"], "name": "b", "src_path": "/r/p/src/main.rs"},
            {"kind": ["test"], "name": "t", "src_path": "/r/p/tests/t.rs"},
        ]}]});
        let target = |name: &str, source: &str| Target {
            name: name.into(),
            source: source.into(),
        };
        assert_eq!(
            Metadata::new(answer).unwrap().targets(),
            [
                target("p", "p/src/lib.rs"),
                target("p bin b", "p/src/main.rs")
            ]
        );
    }

    #[test]
    fn answer_without_packages_is_an_error() {
        assert!(
            Metadata::new(serde_json::json!({"workspace_root": "/r", "packages": []})).is_err()
        );
        assert!(Metadata::new(serde_json::json!({})).is_err());
    }
}
