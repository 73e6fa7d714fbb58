//! `cargo xtask crates`: the picture of the workspace's crates in docs/ARCHITECTURE.md, from `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::failure::{Failure, Result};
use crate::metadata::{self, Metadata, list, text};

/// Document that holds the picture.
const DOCUMENT: &str = "docs/ARCHITECTURE.md";
const BEGIN: &str = "<!-- crates: written by `cargo xtask crates` -->";
const END: &str = "<!-- crates: end -->";

/// Options of `cargo xtask crates`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Options {
    /// Fail if the document differs, instead of writing it
    #[arg(long)]
    check: bool,
}

/// Crates and their dependencies on each other.
#[derive(Debug, Default, PartialEq, Eq)]
struct Graph {
    /// Folder of each crate.
    folders: BTreeMap<String, String>,
    /// Dependencies that every build has.
    required: BTreeSet<(String, String)>,
    /// Dependencies that a cargo feature adds.
    optional: BTreeSet<(String, String)>,
}

/// Writes the picture, or compares it with the document.
pub(crate) fn run(root: &Path, options: Options) -> Result<String> {
    let picture = Graph::new(&metadata::workspace(root)?).reduced().picture();
    let path = root.join(DOCUMENT);
    let failed = |action| {
        move |source| Failure::File {
            action,
            path: DOCUMENT.to_owned(),
            source,
        }
    };
    let document = fs::read_to_string(&path).map_err(failed("read"))?;
    let drawn = replaced(&document, &picture)?;
    if drawn == document {
        return Ok(format!("{DOCUMENT} shows the crates as they are\n"));
    }
    if options.check {
        return Err(Failure::Findings {
            count: 1,
            what: "picture of the crates that differs from `cargo metadata`",
            remedy: format!("run cargo xtask crates and commit {DOCUMENT}"),
        });
    }
    fs::write(&path, drawn).map_err(failed("write"))?;
    Ok(format!("{DOCUMENT} is written\n"))
}

/// The document with `picture` between the markers.
fn replaced(document: &str, picture: &str) -> Result<String> {
    let found = document.split_once(BEGIN).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some(format!("{before}{BEGIN}\n\n{picture}\n{END}{after}"))
    });
    found.ok_or_else(|| Failure::Malformed {
        subject: DOCUMENT.to_owned(),
        problem: "the markers of the picture are missing".to_owned(),
        remedy: format!("put the lines {BEGIN} and {END} where the picture belongs"),
    })
}

impl Graph {
    /// Normal dependencies between packages of the workspace; packages without any are left out.
    fn new(metadata: &Metadata) -> Self {
        let name = |package: &Value| text(package, "name").unwrap_or_default().to_owned();
        let members: BTreeSet<String> = metadata.packages().iter().map(name).collect();
        let mut graph = Self::default();
        for package in metadata.packages() {
            let manifest = metadata.relative(text(package, "manifest_path").unwrap_or_default());
            let folder = manifest.trim_end_matches("Cargo.toml").to_owned();
            graph.folders.insert(name(package), folder);
            for dependency in list(package, "dependencies") {
                let is_normal = dependency.get("kind").is_none_or(Value::is_null);
                if is_normal && members.contains(&name(dependency)) {
                    let is_optional = dependency
                        .get("optional")
                        .and_then(Value::as_bool)
                        .unwrap_or(false);
                    let edge = (name(package), name(dependency));
                    if is_optional {
                        &mut graph.optional
                    } else {
                        &mut graph.required
                    }
                    .insert(edge);
                }
            }
        }
        let linked: BTreeSet<String> = graph
            .required
            .iter()
            .chain(&graph.optional)
            .flat_map(|(from, to)| [from.clone(), to.clone()])
            .collect();
        graph.folders.retain(|name, _| linked.contains(name));
        graph
    }

    /// Without dependencies that follow from others. Cargo refuses cycles, so the result is unique.
    fn reduced(self) -> Self {
        let all: BTreeSet<_> = self.required.union(&self.optional).cloned().collect();
        let required = self
            .required
            .iter()
            .filter(|edge| !follows(&self.required, edge))
            .cloned()
            .collect();
        let optional = self
            .optional
            .iter()
            .filter(|edge| !follows(&all, edge))
            .cloned()
            .collect();
        Self {
            folders: self.folders,
            required,
            optional,
        }
    }

    /// Mermaid's flowchart.
    fn picture(&self) -> String {
        let short = |name: &str| {
            name.strip_prefix("tidewater-")
                .unwrap_or(name)
                .replace('-', "_")
        };
        let mut out = String::from(
            "Normal dependencies between the crates of the workspace. A dependency that follows from others is left\n\
             out; a dashed one exists with a cargo feature only.\n\n```mermaid\nflowchart TD\n",
        );
        for (name, folder) in &self.folders {
            let _ = writeln!(out, "    {}[\"{name}<br/>{folder}\"]", short(name));
        }
        for (arrow, edges) in [("-->", &self.required), ("-.->", &self.optional)] {
            for (from, to) in edges {
                let _ = writeln!(out, "    {} {arrow} {}", short(from), short(to));
            }
        }
        out + "```\n"
    }
}

/// Whether the edge follows from two or more others.
fn follows(edges: &BTreeSet<(String, String)>, (from, to): &(String, String)) -> bool {
    let mut seen = BTreeSet::new();
    let mut open: Vec<&String> = edges
        .iter()
        .filter(|(a, b)| a == from && b != to)
        .map(|(_, b)| b)
        .collect();
    while let Some(at) = open.pop() {
        if at == to {
            return true;
        }
        if seen.insert(at) {
            open.extend(edges.iter().filter(|(a, _)| a == at).map(|(_, b)| b));
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph() -> Graph {
        let depends =
            |name: &str| serde_json::json!({"name": name, "kind": null, "optional": false});
        let package = |name: &str, dependencies: Vec<Value>| serde_json::json!({"name": name, "manifest_path": format!("/r/{name}/Cargo.toml"), "dependencies": dependencies});
        let optional = serde_json::json!({"name": "tidewater-b", "kind": null, "optional": true});
        let dev = serde_json::json!({"name": "top", "kind": "dev", "optional": false});
        let packages = vec![
            package("tidewater-a", vec![depends("serde"), dev]),
            package("tidewater-b", vec![depends("tidewater-a")]),
            package("c", vec![optional, depends("tidewater-a")]),
            package(
                "top",
                vec![depends("c"), depends("tidewater-b"), depends("tidewater-a")],
            ),
            package("alone", vec![depends("serde")]),
        ];
        Graph::new(
            &Metadata::new(serde_json::json!({"workspace_root": "/r", "packages": packages}))
                .unwrap(),
        )
    }

    #[test]
    fn picture_has_reduced_normal_dependencies() {
        let picture = graph().reduced().picture();
        let arrows: Vec<_> = picture
            .lines()
            .filter(|line| line.contains("->"))
            .map(str::trim)
            .collect();
        assert_eq!(
            arrows,
            ["c --> a", "b --> a", "top --> c", "top --> b", "c -.-> b"]
        );
        assert!(
            picture.contains("    a[\"tidewater-a<br/>tidewater-a/\"]\n")
                && !picture.contains("alone")
        );
    }

    #[test]
    fn picture_replaces_what_is_between_the_markers() {
        let document = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        let drawn = replaced(&document, "new\n").unwrap();
        assert_eq!(drawn, format!("a\n{BEGIN}\n\nnew\n\n{END}\nb\n"));
        assert_eq!(replaced(&drawn, "new\n").unwrap(), drawn);
        assert!(replaced("a\n", "new\n").is_err());
        assert!(replaced(&format!("{END}\n{BEGIN}\n"), "new\n").is_err());
    }
}
