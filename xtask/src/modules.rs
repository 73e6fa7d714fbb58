//! `cargo xtask modules`: cycles between the top-level modules of a crate, held by a ratchet.
//!
//! A module refers to another by a path that begins with `crate`, `self` or `super`, in a `use` or anywhere else, also
//! inside macro calls. Modules below a top-level module belong to it. A name that the crate root re-exports counts as
//! its module's; other items of the root count as nothing, since a parent and its children may refer to each other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::failure::{Failure, Result};
use crate::metadata;
use crate::references::{Crate, Edge};
use crate::tree::Tree;

/// File of the edges in cycles that existed when the check was introduced.
const RATCHET: &str = "ci/modules.toml";

/// Options of `cargo xtask modules`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Options {
    /// Remove recorded edges that are in no cycle any more
    #[arg(long)]
    update: bool,
}

/// Edges in cycles, by crate.
type Cyclic = BTreeMap<String, BTreeSet<String>>;

/// Prints the cycles; fails if an edge in one of them is not recorded.
pub(crate) fn run(root: &Path, options: Options) -> Result<String> {
    let tree = Tree::of_work_tree(root)?;
    let mut report = String::new();
    let mut found = Cyclic::new();
    let mut count = 0;
    for target in metadata::workspace(root)?.targets() {
        let Some(graph) = Crate::read(&tree, &target.source) else {
            continue;
        };
        count += graph.modules.len();
        let cycles = cycles(&graph.edges);
        for cycle in &cycles {
            let _ = writeln!(
                report,
                "{}: cycle {}",
                target.name,
                show(cycle, &graph.edges)
            );
        }
        let edges: BTreeSet<String> = cycles
            .iter()
            .flat_map(|cycle| edges_of(cycle))
            .map(named)
            .collect();
        if !edges.is_empty() {
            found.insert(target.name, edges);
        }
    }
    if count == 0 {
        return Err(Failure::NothingRead("modules"));
    }
    let _ = writeln!(report, "{count} modules, {} edges in cycles", size(&found));
    print!("{report}"); // a failed comparison keeps it
    compare(&root.join(RATCHET), &found, options.update)
}

fn size(cyclic: &Cyclic) -> usize {
    cyclic.values().map(BTreeSet::len).sum()
}

fn named((from, to): Edge) -> String {
    format!("{from} -> {to}")
}

/// Edges of a cycle given by its modules.
fn edges_of(cycle: &[String]) -> impl Iterator<Item = Edge> {
    let next = cycle.iter().cycle().skip(1);
    cycle.iter().cloned().zip(next.cloned())
}

/// Cycles that together hold every edge that is in some cycle, short ones first.
fn cycles(edges: &BTreeMap<Edge, String>) -> Vec<Vec<String>> {
    let mut shortest: Vec<Vec<String>> = edges
        .keys()
        .filter_map(|(from, to)| {
            let mut cycle = path(edges, to, from)?;
            // A cycle has as many names as modules: it begins with the least.
            let least = cycle
                .iter()
                .enumerate()
                .min_by_key(|(_, name)| *name)
                .map_or(0, |(at, _)| at);
            cycle.rotate_left(least);
            Some(cycle)
        })
        .collect();
    shortest.sort_by_key(|cycle| (cycle.len(), cycle.clone()));
    let mut covered = BTreeSet::new();
    shortest.retain(|cycle| {
        let before = covered.len();
        covered.extend(edges_of(cycle));
        covered.len() > before
    });
    shortest
}

/// Shortest path between two modules, both included.
fn path(edges: &BTreeMap<Edge, String>, from: &str, to: &str) -> Option<Vec<String>> {
    let mut previous: BTreeMap<&str, &str> = BTreeMap::from([(from, from)]);
    let mut queue = VecDeque::from([from]);
    while let Some(at) = queue.pop_front() {
        if at == to {
            let mut found = vec![at.to_owned()];
            let mut at = at;
            while let Some(before) = previous.get(at).filter(|before| **before != at) {
                found.push((*before).to_owned());
                at = before;
            }
            found.reverse();
            return Some(found);
        }
        for (_, next) in edges.keys().filter(|(from, _)| from == at) {
            if !previous.contains_key(next.as_str()) {
                previous.insert(next, at);
                queue.push_back(next);
            }
        }
    }
    None
}

/// Modules of a cycle with one place for each edge.
fn show(cycle: &[String], edges: &BTreeMap<Edge, String>) -> String {
    let mut text = String::new();
    for edge in edges_of(cycle) {
        let site = edges.get(&edge).map_or("", String::as_str);
        let _ = write!(text, "{} -({site})-> ", edge.0);
    }
    text + cycle.first().map_or("", String::as_str)
}

/// Compares with the recorded edges, or removes those that are gone.
fn compare(path: &Path, found: &Cyclic, update: bool) -> Result<String> {
    let recorded = recorded(path)?;
    let is_new = recorded.is_none();
    let recorded = recorded.unwrap_or_default();
    let mut report = String::new();
    let only_in = |this: &Cyclic, other: &Cyclic| -> Vec<String> {
        this.iter()
            .flat_map(|(name, edges)| edges.iter().map(move |edge| (name, edge)))
            .filter(|(name, edge)| !other.get(*name).is_some_and(|edges| edges.contains(*edge)))
            .map(|(name, edge)| format!("{name}: {edge}"))
            .collect()
    };
    let new = only_in(found, &recorded);
    let gone = only_in(&recorded, found);
    if update {
        let mut kept = if is_new { found.clone() } else { recorded };
        for (name, edges) in &mut kept {
            edges.retain(|edge| found.get(name).is_some_and(|found| found.contains(edge)));
        }
        kept.retain(|_, edges| !edges.is_empty());
        fs::write(path, written(&kept)).map_err(|source| Failure::File {
            action: "write",
            path: RATCHET.to_owned(),
            source,
        })?;
        if is_new {
            return Ok(report);
        }
    } else if !gone.is_empty() {
        for edge in &gone {
            let _ = writeln!(report, "recorded, and in no cycle any more: {edge}");
        }
        report.push_str("the list can shrink: cargo xtask modules --update\n");
    }
    if new.is_empty() {
        return Ok(report);
    }
    for edge in &new {
        let _ = writeln!(report, "new in a cycle: {edge}");
    }
    print!("{report}");
    Err(Failure::Findings {
        count: new.len(),
        what: "edges in cycles are not recorded",
        remedy: format!(
            "remove one edge of each cycle; after a mere renaming, rename the entries of {RATCHET}"
        ),
    })
}

/// Recorded edges; `None` if there is no file.
fn recorded(path: &Path) -> Result<Option<Cyclic>> {
    let Ok(text) = fs::read_to_string(path) else {
        return Ok(None);
    };
    let malformed = |problem: String| Failure::Malformed {
        subject: RATCHET.to_owned(),
        problem,
        remedy: "write \"CRATE\" = [\"FROM -> TO\", ...]".to_owned(),
    };
    toml::from_str(&text)
        .map(Some)
        .map_err(|error: toml::de::Error| malformed(error.to_string()))
}

fn written(cyclic: &Cyclic) -> String {
    let mut text = String::from(
        "# Edges between top-level modules that are in a cycle: `cargo xtask modules` allows no others.\n\
         # The list can only shrink (`--update`).\n",
    );
    for (name, edges) in cyclic {
        let _ = writeln!(text, "\"{name}\" = [");
        for edge in edges {
            let _ = writeln!(text, "    \"{edge}\",");
        }
        text.push_str("]\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(pairs: &[(&str, &str)]) -> BTreeMap<Edge, String> {
        pairs
            .iter()
            .map(|(a, b)| ((a.to_string(), b.to_string()), format!("{a}.rs:1")))
            .collect()
    }

    #[test]
    fn each_cyclic_edge_is_in_a_printed_cycle() {
        let edges = edges(&[
            ("a", "b"),
            ("b", "c"),
            ("c", "a"),
            ("b", "a"),
            ("c", "d"),
            ("e", "a"),
        ]);
        assert_eq!(cycles(&edges), [vec!["a", "b"], vec!["a", "b", "c"]]);
        assert_eq!(
            show(&cycles(&edges)[0], &edges),
            "a -(a.rs:1)-> b -(b.rs:1)-> a"
        );
    }

    #[test]
    fn graph_without_cycle_has_none() {
        assert!(cycles(&edges(&[("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")])).is_empty());
    }

    fn cyclic(edges: &[&str]) -> Cyclic {
        Cyclic::from([(
            "k".to_owned(),
            edges.iter().map(|edge| edge.to_string()).collect(),
        )])
    }

    #[test]
    fn recorded_list_only_shrinks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("modules.toml");
        assert!(
            compare(&path, &cyclic(&["a -> b"]), false).is_err(),
            "nothing recorded"
        );
        compare(&path, &cyclic(&["a -> b", "b -> a"]), true).unwrap();
        assert!(compare(&path, &cyclic(&["a -> b", "b -> a"]), false).is_ok());
        assert!(
            compare(&path, &cyclic(&["a -> b"]), false)
                .unwrap()
                .contains("can shrink")
        );
        assert!(compare(&path, &cyclic(&["a -> b", "c -> a"]), true).is_err());
        assert_eq!(
            recorded(&path).unwrap(),
            Some(cyclic(&["a -> b"])),
            "shrunk, not grown"
        );
        compare(&path, &Cyclic::new(), true).unwrap();
        assert_eq!(recorded(&path).unwrap(), Some(Cyclic::new()));
        assert!(
            compare(&path, &cyclic(&["a -> b"]), true).is_err(),
            "an empty list stays empty"
        );
    }
}
