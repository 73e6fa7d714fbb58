//! `cargo xtask licences`: licences and sources of every crate in the lock files, and wildcard requirements.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::Value;
use spdx::{Expression, Licensee, ParseMode};

use crate::failure::{Failure, Result};
use crate::metadata::{self, list, text};
use crate::tree;

/// File with what is accepted.
const RULES: &str = "ci/licences.toml";

/// What is accepted.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    /// Folders with a lock file.
    folders: Vec<String>,
    allow: Vec<License>,
    sources: Vec<String>,
    /// Further licences of one crate.
    #[serde(default)]
    exceptions: BTreeMap<String, Vec<License>>,
    /// Licence of one version of a crate that has no field `license`, as its file says.
    #[serde(default)]
    read: BTreeMap<String, String>,
}

/// Licence that is accepted, possibly `WITH` an exception.
#[derive(serde::Deserialize)]
#[serde(try_from = "String")]
struct License(Licensee);

impl TryFrom<String> for License {
    type Error = String;

    fn try_from(name: String) -> std::result::Result<Self, String> {
        Licensee::parse(&name)
            .map(Self)
            .map_err(|error| format!("{name}: {}", error.reason))
    }
}

/// Checks every package of every lock file.
pub(crate) fn run(root: &Path) -> Result<String> {
    let path = root.join(RULES);
    let rules = fs::read_to_string(&path).map_err(|source| Failure::File {
        action: "read",
        path: RULES.to_owned(),
        source,
    })?;
    let rules = Rules::parse(&rules)?;
    let mut findings = BTreeSet::new();
    let mut crates = BTreeSet::new();
    for folder in &rules.folders {
        // Cargo refuses a lock file that is not up to date; this one must be committed as well.
        let lock = format!("{folder}/Cargo.lock");
        tree::git(root, &["ls-files", "--error-unmatch", "--", &lock])?;
        let metadata = metadata::read(&root.join(folder), &["--all-features"])?;
        for package in metadata.packages() {
            crates.insert(named(package));
            findings.extend(rules.findings(package, root));
        }
    }
    if findings.is_empty() {
        return Ok(format!(
            "{} crates have accepted licences and sources\n",
            crates.len()
        ));
    }
    let mut report = String::new();
    for finding in &findings {
        let _ = writeln!(report, "{finding}");
    }
    print!("{report}");
    Err(Failure::Findings {
        count: findings.len(),
        what: "licences, sources or requirements that are not accepted",
        remedy: format!("use another crate, or add to {RULES} what is acceptable, with its reason"),
    })
}

/// Name and version of a package.
fn named(package: &Value) -> String {
    let name = text(package, "name").unwrap_or("a crate without a name");
    format!("{name} {}", text(package, "version").unwrap_or_default())
}

impl Rules {
    fn parse(rules: &str) -> Result<Self> {
        let rules: Self =
            toml::from_str(rules).map_err(|error: toml::de::Error| malformed(error.to_string()))?;
        if rules.folders.is_empty() {
            return Err(malformed("folders is empty".to_owned()));
        }
        Ok(rules)
    }

    /// What is not accepted of a package.
    fn findings(&self, package: &Value, root: &Path) -> Vec<String> {
        let name = named(package);
        let mut findings = Vec::new();
        findings.extend(
            self.licence(package)
                .map(|finding| format!("{name}: {finding}")),
        );
        match text(package, "source") {
            Some(source) if !self.sources.iter().any(|accepted| accepted == source) => {
                findings.push(format!("{name}: source {source} is not accepted"));
            }
            None if !is_below(package, root) => {
                findings.push(format!("{name}: a path outside of the repository"));
            }
            _ => {}
        }
        for dependency in list(package, "dependencies") {
            if text(dependency, "req") == Some("*") {
                let dependency = text(dependency, "name").unwrap_or_default();
                findings.push(format!(
                    "{name}: any version of {dependency} (*) is required"
                ));
            }
        }
        findings
    }

    /// Why the licence of a package is not accepted.
    fn licence(&self, package: &Value) -> Option<String> {
        let read = self.read.get(&named(package)).map(String::as_str);
        let Some(licence) = text(package, "license").or(read) else {
            let file = text(package, "license_file").unwrap_or("no file either");
            return Some(format!("no field `license` ({file})"));
        };
        // The lax mode reads `MIT/Apache-2.0` of older crates.
        let expression = match Expression::parse_mode(licence, ParseMode::LAX) {
            Ok(expression) => expression,
            Err(error) => return Some(format!("licence {licence}: {}", error.reason)),
        };
        let exceptions = text(package, "name").and_then(|name| self.exceptions.get(name));
        let accepted = expression.evaluate(|required| {
            self.allow
                .iter()
                .chain(exceptions.into_iter().flatten())
                .any(|allowed| allowed.0.satisfies(required))
        });
        (!accepted).then(|| format!("licence {licence} is not accepted"))
    }
}

/// Whether the manifest of a package lies in the repository.
fn is_below(package: &Value, root: &Path) -> bool {
    text(package, "manifest_path").is_some_and(|path| Path::new(path).starts_with(root))
}

fn malformed(problem: String) -> Failure {
    Failure::Malformed {
        subject: RULES.to_owned(),
        problem,
        remedy: "compare it with the version of the last commit".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

    fn findings(package: Value) -> Vec<String> {
        let rules = format!(
            "folders = [\".\"]\nsources = [\"{CRATES_IO}\"]\n\
             allow = [\"MIT\", \"Apache-2.0\", \"Apache-2.0 WITH LLVM-exception\", \"Unicode-3.0\"]\n\
             [exceptions]\nodd = [\"MPL-2.0\"]\n[read]\n\"bare 1.0.0\" = \"MIT\"\n"
        );
        Rules::parse(&rules)
            .unwrap()
            .findings(&package, Path::new("/r"))
    }

    fn licensed(name: &str, licence: &str) -> Vec<String> {
        findings(serde_json::json!({
            "name": name, "version": "1.0.0", "license": licence, "source": CRATES_IO,
        }))
    }

    #[test]
    fn expressions_are_evaluated() {
        for accepted in [
            "MIT",
            "MIT OR GPL-3.0-only",
            "GPL-3.0-only OR (MIT AND Apache-2.0)",
            "MIT/Apache-2.0",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert!(licensed("a", accepted).is_empty(), "{accepted}");
        }
        for refused in [
            "GPL-3.0-only",
            "MIT AND GPL-3.0-only",
            "MPL-2.0",
            "MIT WITH LLVM-exception",
            "GPL-2.0 WITH Classpath-exception-2.0",
            "LicenseRef-own",
        ] {
            assert_eq!(
                licensed("a", refused),
                [format!("a 1.0.0: licence {refused} is not accepted")]
            );
        }
        assert_eq!(licensed("a", "MIT OR").len(), 1, "malformed");
        assert_eq!(licensed("a", "no such licence").len(), 1, "unknown");
    }

    #[test]
    fn exception_is_for_one_crate() {
        assert!(licensed("odd", "MPL-2.0").is_empty());
        assert!(licensed("odd", "MIT AND MPL-2.0").is_empty());
        assert_eq!(licensed("odder", "MPL-2.0").len(), 1);
    }

    #[test]
    fn crate_without_licence_field_is_found() {
        let package = serde_json::json!({
            "name": "a", "version": "1.0.0", "license": null, "license_file": "LICENSE", "source": CRATES_IO,
        });
        assert_eq!(findings(package), ["a 1.0.0: no field `license` (LICENSE)"]);
        let bare = |version: &str| {
            let package =
                serde_json::json!({"name": "bare", "version": version, "source": CRATES_IO});
            findings(package).len()
        };
        assert_eq!(
            [bare("1.0.0"), bare("1.0.1")],
            [0, 1],
            "what was read holds for that version"
        );
    }

    #[test]
    fn sources_are_the_registry_and_the_repository() {
        let from = |source: Option<&str>, path: &str| {
            findings(serde_json::json!({
                "name": "a", "version": "1.0.0", "license": "MIT", "source": source, "manifest_path": path,
            }))
        };
        assert!(from(None, "/r/a/Cargo.toml").is_empty());
        assert_eq!(
            from(None, "/rr/a/Cargo.toml"),
            ["a 1.0.0: a path outside of the repository"]
        );
        for source in [
            "git+https://example.invalid/a#1234",
            "registry+https://example.invalid/index",
        ] {
            assert_eq!(
                from(Some(source), "/h/a"),
                [format!("a 1.0.0: source {source} is not accepted")]
            );
        }
    }

    #[test]
    fn wildcard_requirement_is_found() {
        let package = serde_json::json!({
            "name": "a", "version": "1.0.0", "license": "MIT", "source": CRATES_IO,
            "dependencies": [{"name": "b", "req": "^1"}, {"name": "c", "req": "*"}],
        });
        assert_eq!(
            findings(package),
            ["a 1.0.0: any version of c (*) is required"]
        );
    }

    #[test]
    fn damaged_rules_are_an_error() {
        for rules in [
            "",
            "folders = [1]",
            "folders = []\nallow = []\nsources = []",
            "allow = [\"no licence\"]",
            "[",
        ] {
            assert!(Rules::parse(rules).is_err(), "{rules}");
        }
    }
}
