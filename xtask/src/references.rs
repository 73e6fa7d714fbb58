//! References between the top-level modules of a crate, read from its sources.

use std::collections::{BTreeMap, BTreeSet};

use crate::lexer::{self, Kind, Token};
use crate::tree::Tree;

/// Module that refers and module that is referred to.
pub(crate) type Edge = (String, String);

/// Top-level modules of a crate and the references between them.
#[derive(Debug, Default)]
pub(crate) struct Crate {
    pub(crate) modules: BTreeSet<String>,
    /// Place (`file:line`) of the first reference, by edge.
    pub(crate) edges: BTreeMap<Edge, String>,
}

/// What the files of a crate say, before names are resolved.
#[derive(Default)]
struct Reader<'t> {
    tree: Option<&'t Tree>,
    modules: BTreeSet<String>,
    /// Absolute path, top-level module that names it, and place.
    references: Vec<(Vec<String>, String, String)>,
    /// Names that the root imports, with their paths; `*` for all.
    imports: Vec<(String, Vec<String>)>,
    /// Items that a top-level module declares.
    items: BTreeSet<(String, String)>,
}

/// One name of a `use` tree, or one path of an expression.
struct Name {
    segments: Vec<String>,
    alias: Option<String>,
    line: usize,
}

impl Crate {
    /// Reads the crate with that root file; `None` if the file is not in the tree.
    pub(crate) fn read(tree: &Tree, root: &str) -> Option<Self> {
        tree.file(root)?;
        let mut reader = Reader {
            tree: Some(tree),
            ..Reader::default()
        };
        let folder = root.rsplit_once('/').map_or("", |(folder, _)| folder);
        reader.file(root, folder, &mut Vec::new());
        Some(reader.resolve())
    }
}

impl Reader<'_> {
    /// Reads a file whose child modules lie in `children`.
    fn file(&mut self, path: &str, children: &str, module: &mut Vec<String>) {
        let Some(file) = self.tree.and_then(|tree| tree.file(path)) else {
            return;
        };
        let code = lexer::code(&file.text);
        let tests = lexer::test_items(&code);
        let outer = module.len();
        let mut open = Vec::new(); // depths at which inline modules opened
        let (mut depth, mut at) = (0_usize, 0);
        let mut given = None; // content of `#[path = ".."]`
        while let Some(token) = code.get(at) {
            if let Some(test) = tests.iter().find(|range| range.start == at) {
                at = test.end;
            } else if let Some(end) = lexer::attribute(&code, at) {
                if let [_, _, name, _, text, ..] = &code[at..end]
                    && name.is("path")
                {
                    given = Some(text.content().to_owned());
                }
                at = end;
            } else if token.is("mod")
                && code.get(at + 1).is_some_and(|name| name.kind == Kind::Word)
            {
                at = self.declaration(&code, at, (path, children, outer), given.take(), module);
                if code.get(at - 1).is_some_and(|token| token.is("{")) {
                    depth += 1;
                    open.push(depth);
                }
            } else {
                if token.is("{") {
                    depth += 1;
                } else if token.is("}") {
                    if open.last() == Some(&depth) {
                        open.pop();
                        module.pop();
                    }
                    depth = depth.saturating_sub(1);
                }
                at = self.names(&code, at, path, module);
            }
        }
        module.truncate(outer);
    }

    /// Reads `mod NAME;` or enters `mod NAME {`; returns where to go on.
    fn declaration(
        &mut self,
        code: &[Token<'_>],
        at: usize,
        (path, children, outer): (&str, &str, usize),
        given: Option<String>,
        module: &mut Vec<String>,
    ) -> usize {
        let name = code[at + 1].text.trim_start_matches("r#");
        let is_inline = code.get(at + 2).is_some_and(|token| token.is("{"));
        if name == "tests" && !is_inline {
            return at + 2;
        }
        if module.is_empty() {
            self.modules.insert(name.to_owned());
        }
        module.push(name.to_owned());
        if is_inline {
            return at + 3;
        }
        // Inline modules between the file and the declaration are folders too.
        let inline = &module[outer..module.len() - 1];
        let folder = [&[children.to_owned()], inline].concat().join("/");
        let (file, below) = match given {
            Some(given) => {
                let base = path.rsplit_once('/').map_or("", |(folder, _)| folder);
                let file = normal(&format!("{base}/{given}"));
                let below = file
                    .rsplit_once('/')
                    .map_or(String::new(), |(folder, _)| folder.to_owned());
                (file, below)
            }
            None => {
                let flat = format!("{folder}/{name}.rs");
                let is_flat = self.tree.is_some_and(|tree| tree.file(&flat).is_some());
                let below = format!("{folder}/{name}");
                (
                    if is_flat {
                        flat
                    } else {
                        format!("{below}/mod.rs")
                    },
                    below,
                )
            }
        };
        self.file(&file, &below, module);
        module.pop();
        at + 2
    }

    /// Notes declarations, imports and paths at `at`; returns where to go on.
    fn names(&mut self, code: &[Token<'_>], at: usize, path: &str, module: &[String]) -> usize {
        const ITEMS: [&str; 9] = [
            "fn",
            "struct",
            "enum",
            "union",
            "trait",
            "type",
            "const",
            "static",
            "macro_rules",
        ];
        let token = &code[at];
        if token.kind != Kind::Word {
            return at + 1;
        }
        if ITEMS.contains(&token.text)
            && let ([top], Some(name)) = (module, code.get(at + 1))
        {
            self.items.insert((top.clone(), name.text.to_owned()));
        }
        let is_use = token.is("use");
        let start = at + usize::from(is_use);
        let is_path = matches!(
            code.get(start).map(|token| token.text),
            Some("crate" | "self" | "super")
        ) && code.get(start + 1).is_some_and(|token| token.is(":"))
            && !(at > 0 && code[at - 1].is("in"));
        let is_import = is_use && module.is_empty();
        if !(is_path || is_import) {
            return at + 1;
        }
        let mut found = Vec::new();
        let end = use_tree(code, start, &[], &mut found);
        for name in found {
            let absolute = absolute(&name.segments, module);
            match module.first() {
                Some(top) => {
                    let site = format!("{path}:{}", name.line);
                    self.references.push((absolute, top.clone(), site));
                }
                None if is_use => {
                    let visible = name.alias.or_else(|| absolute.last().cloned());
                    self.imports
                        .extend(visible.map(|visible| (visible, absolute)));
                }
                None => {}
            }
        }
        end.max(at + 1)
    }

    /// Resolves references to top-level modules.
    fn resolve(self) -> Crate {
        let mut homes: BTreeMap<&str, &str> = BTreeMap::new();
        for (visible, path) in &self.imports {
            let Some(top) = path.first().filter(|top| self.modules.contains(*top)) else {
                continue;
            };
            if visible == "*" {
                let items = self.items.iter().filter(|(module, _)| module == top);
                homes.extend(items.map(|(module, name)| (name.as_str(), module.as_str())));
            } else {
                homes.insert(visible, top);
            }
        }
        let mut edges = BTreeMap::new();
        for (path, from, site) in &self.references {
            let Some(first) = path.first() else { continue };
            let to = if self.modules.contains(first) {
                first
            } else if let Some(home) = homes.get(first.as_str()) {
                *home
            } else {
                continue;
            };
            if to != from {
                edges
                    .entry((from.clone(), to.to_owned()))
                    .or_insert_with(|| site.clone());
            }
        }
        Crate {
            modules: self.modules,
            edges,
        }
    }
}

/// Path from the root of the crate.
fn absolute(segments: &[String], module: &[String]) -> Vec<String> {
    let mut path: Vec<String> = Vec::new();
    for (at, segment) in segments.iter().enumerate() {
        match segment.as_str() {
            "crate" => path.clear(),
            "self" if at == 0 => path = module.to_vec(),
            "self" => {}
            "super" => {
                if at == 0 {
                    path = module.to_vec();
                }
                path.pop();
            }
            _ => path.push(segment.clone()),
        }
    }
    path
}

/// Reads `a::b::{c, d as e, f::*}` from `at` on; returns the first token behind it.
fn use_tree(code: &[Token<'_>], mut at: usize, prefix: &[String], found: &mut Vec<Name>) -> usize {
    let mut segments = prefix.to_vec();
    let line = code.get(at).map_or(0, |token| token.line);
    let is = |at: usize, text: &str| code.get(at).is_some_and(|token| token.is(text));
    loop {
        if is(at, "{") {
            at += 1;
            while at < code.len() && !is(at, "}") {
                let next = use_tree(code, at, &segments, found);
                at = if is(next, ",") {
                    next + 1
                } else {
                    next.max(at + 1)
                };
                if code.get(at).is_some_and(|token| token.is(";")) {
                    break; // not a `use` tree
                }
            }
            return at + 1;
        }
        let Some(token) = code
            .get(at)
            .filter(|token| token.kind == Kind::Word || token.is("*"))
        else {
            break;
        };
        segments.push(token.text.trim_start_matches("r#").to_owned());
        at += 1;
        if !(is(at, ":") && is(at + 1, ":")) {
            break;
        }
        at += 2;
    }
    let mut alias = None;
    if is(at, "as") {
        alias = code.get(at + 1).map(|token| token.text.to_owned());
        at += 2;
    }
    if segments.len() > prefix.len() {
        found.push(Name {
            segments,
            alias,
            line,
        });
    }
    at
}

/// Path without `.` and `..`.
fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(files: &[(&str, &str)]) -> Vec<String> {
        let tree = Tree::new(
            files
                .iter()
                .map(|(path, text)| (path.to_string(), text.to_string()))
                .collect(),
        );
        let graph = Crate::read(&tree, "k/src/lib.rs").unwrap();
        graph
            .edges
            .iter()
            .map(|((from, to), site)| format!("{from}>{to} {site}"))
            .collect()
    }

    #[test]
    fn planted_cycle_is_found() {
        let found = edges(&[
            ("k/src/lib.rs", "mod a; mod b;\npub use a::A;\n"),
            (
                "k/src/a.rs",
                "pub struct A;\nuse crate::{b::{self, B}, missing};\n",
            ),
            ("k/src/b.rs", "mod c;\n"),
            ("k/src/b/c.rs", "\nfn f() { super::super::a::g(); }\n"),
        ]);
        assert_eq!(found, ["a>b k/src/a.rs:2", "b>a k/src/b/c.rs:2"]);
    }

    #[test]
    fn reexported_name_is_its_modules() {
        let found = edges(&[
            (
                "k/src/lib.rs",
                "mod a; mod b; mod c;\npub use a::{A as B, D}; pub use crate::c::*;\n",
            ),
            ("k/src/a.rs", ""),
            ("k/src/b.rs", "use crate::B;\n"),
            ("k/src/c/mod.rs", "pub fn run() {}\nvec![crate::D];\n"),
            ("k/src/a/d.rs", "use crate::b;\n"),
        ]);
        assert_eq!(found, ["b>a k/src/b.rs:1", "c>a k/src/c/mod.rs:2"]);
        let globbed = edges(&[
            (
                "k/src/lib.rs",
                "mod a; mod c; pub use c::*; fn run_away() {}\n",
            ),
            ("k/src/a.rs", "crate::run_away();\nsuper::run();\n"),
            ("k/src/c.rs", "pub fn run() {}\n"),
        ]);
        assert_eq!(globbed, ["a>c k/src/a.rs:2"]);
    }

    #[test]
    fn tests_and_children_do_not_count() {
        let found = edges(&[
            ("k/src/lib.rs", "mod a; mod b; fn f() { b::g() }\n"),
            (
                "k/src/a.rs",
                "#[cfg(test)] mod tests { use crate::b; }\n#[cfg(test)] mod models;\nmod tests;\n",
            ),
            ("k/src/a/tests.rs", "use crate::b;\n"),
            ("k/src/a/models.rs", "use crate::b;\n"),
            (
                "k/src/b.rs",
                "mod c { use super::d; pub(crate) fn f() {} pub(in crate::a) fn g() {} } mod d { use super::c; }\n",
            ),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn inline_modules_and_paths_are_followed() {
        let found = edges(&[
            ("k/src/lib.rs", "mod a; mod b { use super::a::X; }\n"),
            (
                "k/src/a.rs",
                "mod i { fn f() { 1 } } #[path = \"../other/o.rs\"] mod p; use super::b;\n",
            ),
            ("k/other/o.rs", "\nuse crate::b;\n"),
        ]);
        assert_eq!(found, ["a>b k/other/o.rs:2", "b>a k/src/lib.rs:1"]);
    }
}
