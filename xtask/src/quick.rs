//! `cargo xtask quick`: what to run after each small change, in the incremental profile `quick`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::binaries::{self, Binary};
use crate::failure::{Failure, Result};
use crate::metadata::{self, Metadata, list, text};
use crate::{runner, tree};

const PROFILE: &str = "quick";
/// Seeds of the simulator.
const SEEDS: &str = "15";
/// Test target of the simulator.
const SIMULATOR: &str = "sim";
/// Test target with a stage of its own, which is not for every change.
const FUZZ: &str = "fuzz";

/// Options of `cargo xtask quick`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Crates, by name with or without `tidewater-`; without any, those with uncommitted changes, else those that differ
    /// from the branch main
    #[arg(value_name = "CRATE")]
    crates: Vec<String>,
}

/// Package of the workspace.
#[derive(Debug)]
struct Package {
    /// Folder from the root, without a slash at the end.
    folder: String,
    features: BTreeSet<String>,
    /// Whether it has a library.
    has_lib: bool,
    /// Integration tests, by name.
    tests: Vec<String>,
}

/// Packages by name.
type Packages = BTreeMap<String, Package>;

/// Steps with their seconds.
struct Steps<'r> {
    root: &'r Path,
    seconds: Vec<(String, f64)>,
}

/// Runs the steps up to the first that fails; prints the seconds of each.
pub(crate) fn run(root: &Path, options: &Options) -> Result<String> {
    let packages = packages(&metadata::workspace(root)?);
    let chosen = match options.crates.as_slice() {
        [] => changed(root, &packages)?,
        names => named(names, &packages)?,
    };
    println!(
        "crates: {}",
        if chosen.is_empty() {
            "none has changed".to_owned()
        } else {
            chosen.join(", ")
        }
    );
    let mut steps = Steps {
        root,
        seconds: Vec::new(),
    };
    let outcome = steps.all(&packages, &chosen);
    print!("{}", steps.table());
    outcome.map(|()| String::new())
}

impl Steps<'_> {
    fn all(&mut self, packages: &Packages, chosen: &[String]) -> Result<()> {
        let wanted = binaries::features(self.root)?;
        let everything = ["--workspace", "--features", &wanted.join(",")].map(str::to_owned);
        self.run("format", binaries::cargo("fmt").args(["--all", "--check"]))?;
        self.run(
            "types",
            build("check").args(&everything).arg("--all-targets"),
        )?;
        if !chosen.is_empty() {
            let mut clippy = build("clippy");
            chosen.iter().for_each(|name| {
                clippy.args(["--package", name]);
            });
            let features = features(packages, chosen, &wanted);
            if !features.is_empty() {
                clippy.args(["--features", &features]);
            }
            self.run(
                "clippy",
                clippy.args(["--all-targets", "--", "-D", "warnings"]),
            )?;
        }
        let built = self.timed("build", |root| {
            println!("--- build");
            let mut built = unit_tests(root, packages, chosen, &wanted)?;
            built.extend(integration_tests(root, packages, chosen)?);
            Ok(built)
        })?;
        let (simulator, others): (Vec<_>, Vec<_>) =
            built.into_iter().partition(|own| own.target == SIMULATOR);
        if simulator.is_empty() {
            return Err(Failure::NothingRead("test target `sim`"));
        }
        let of_chosen = |own: &Binary| chosen.contains(&own.crate_name) && own.target != FUZZ;
        let own: Vec<_> = others.into_iter().filter(of_chosen).collect();
        if !own.is_empty() {
            self.timed("tests", |root| runner::run_quick(root, &own, Vec::new()))?;
        }
        self.timed("simulator", |root| {
            let seeds = vec![("TIDEWATER_SEEDS", SEEDS.to_owned())];
            runner::run_quick(root, &simulator, seeds)
        })
    }

    fn run(&mut self, step: &str, command: &mut Command) -> Result<()> {
        self.timed(step, |root| {
            println!("--- {step}");
            succeeds(command.current_dir(root).stdin(Stdio::null()))
        })
    }

    fn timed<T>(&mut self, step: &str, work: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        let began = Instant::now();
        let outcome = work(self.root);
        self.seconds
            .push((step.to_owned(), began.elapsed().as_secs_f64()));
        outcome
    }

    fn table(&self) -> String {
        let mut out = String::new();
        let mut total = 0.0;
        for (step, seconds) in &self.seconds {
            let _ = writeln!(out, "{step:<32} {seconds:>7.1} s");
            total += seconds;
        }
        let _ = writeln!(out, "{:<32} {total:>7.1} s", "all");
        out
    }
}

/// Builds the unit tests of the chosen packages.
fn unit_tests(
    root: &Path,
    packages: &Packages,
    chosen: &[String],
    wanted: &[String],
) -> Result<Vec<Binary>> {
    if chosen.is_empty() {
        return Ok(Vec::new());
    }
    let mut command = binaries::cargo("test");
    command.args(["--no-run", "--profile", PROFILE, "--bins"]);
    let has_lib = |name: &String| packages.get(name).is_some_and(|package| package.has_lib);
    if chosen.iter().any(has_lib) {
        command.arg("--lib");
    }
    for name in chosen {
        command.args(["--package", name]);
    }
    let features = features(packages, chosen, wanted);
    if !features.is_empty() {
        command.args(["--features", &features]);
    }
    binaries::test_binaries(root, command)
}

/// Builds the simulator and the integration tests of the chosen packages, with all packages selected: other features
/// would be other artifacts. Other packages' targets of the same names are built too.
fn integration_tests(root: &Path, packages: &Packages, chosen: &[String]) -> Result<Vec<Binary>> {
    let of_chosen = chosen.iter().filter_map(|name| packages.get(name));
    let own = of_chosen.flat_map(|package| &package.tests);
    let mut names: BTreeSet<&str> = own
        .map(String::as_str)
        .filter(|name| *name != FUZZ)
        .collect();
    // These start programs of the workspace.
    let programs: &[&str] = match names.is_empty() {
        true => &[],
        false => &["--bins", "--examples"],
    };
    names.insert(SIMULATOR);
    let named = names.into_iter().flat_map(|name| ["--test", name]);
    let arguments: Vec<&str> = named.chain(programs.iter().copied()).collect();
    binaries::build(root, PROFILE, &arguments)
}

fn build(subcommand: &str) -> Command {
    let mut command = binaries::cargo(subcommand);
    command.args(["--quiet", "--locked", "--profile", PROFILE]);
    command
}

fn succeeds(command: &mut Command) -> Result<()> {
    let status = command.status().map_err(|source| Failure::Start {
        program: command.get_program().to_string_lossy().into_owned(),
        source,
    })?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::Command {
        command: tree::shown(command),
        message: status.to_string(),
    })
}

fn packages(metadata: &Metadata) -> Packages {
    let mut packages = Packages::new();
    for package in metadata.packages() {
        let manifest = metadata.relative(text(package, "manifest_path").unwrap_or_default());
        let folder = manifest
            .trim_end_matches("Cargo.toml")
            .trim_end_matches('/')
            .to_owned();
        let features = package.get("features").and_then(Value::as_object);
        let features = features
            .into_iter()
            .flat_map(|features| features.keys().cloned())
            .collect();
        let name = text(package, "name").unwrap_or_default().to_owned();
        let targets = list(package, "targets");
        let is_of = |target: &Value, kind: &str| {
            let kinds = list(target, "kind").iter().filter_map(Value::as_str);
            kinds.into_iter().any(|own| own.contains(kind))
        };
        let tests = targets.iter().filter(|target| is_of(target, "test"));
        let tests = tests.filter_map(|target| text(target, "name"));
        let package = Package {
            folder,
            features,
            has_lib: targets.iter().any(|target| is_of(target, "lib")),
            tests: tests.map(str::to_owned).collect(),
        };
        packages.insert(name, package);
    }
    packages
}

/// Packages by the names of the command line.
fn named(names: &[String], packages: &Packages) -> Result<Vec<String>> {
    let mut chosen = BTreeSet::new();
    for name in names {
        let long = format!("tidewater-{name}");
        let found = [name, &long]
            .into_iter()
            .find(|name| packages.contains_key(*name));
        chosen.insert(found.cloned().ok_or_else(|| Failure::Malformed {
            subject: name.clone(),
            problem: "no crate of the workspace has this name".to_owned(),
            remedy: format!(
                "name one of {}",
                packages.keys().cloned().collect::<Vec<_>>().join(", ")
            ),
        })?);
    }
    Ok(chosen.into_iter().collect())
}

/// Packages with uncommitted changes; if there is none, those that differ from main.
fn changed(root: &Path, packages: &Packages) -> Result<Vec<String>> {
    let uncommitted = tree::git(root, &["status", "--porcelain", "-z", "--no-renames"])?;
    let paths: Vec<&str> = uncommitted
        .split('\0')
        .filter_map(|entry| entry.get(3..))
        .collect();
    let chosen = owners(&paths, packages);
    if !chosen.is_empty() {
        return Ok(chosen);
    }
    // A clone of one branch has no main.
    let committed =
        tree::git(root, &["diff", "--name-only", "-z", "main...HEAD"]).unwrap_or_default();
    Ok(owners(&committed.split('\0').collect::<Vec<_>>(), packages))
}

/// Packages that hold the paths: the innermost folder counts.
fn owners(paths: &[&str], packages: &Packages) -> Vec<String> {
    let mut chosen = BTreeSet::new();
    for path in paths {
        let holds = |folder: &str| {
            path.strip_prefix(folder)
                .is_some_and(|rest| rest.starts_with('/'))
        };
        let innermost = packages
            .iter()
            .filter(|(_, package)| holds(&package.folder))
            .max_by_key(|(_, package)| package.folder.len());
        chosen.extend(innermost.map(|(name, _)| name.clone()));
    }
    chosen.into_iter().collect()
}

/// Features of the one build that the chosen packages have.
fn features(packages: &Packages, chosen: &[String], wanted: &[String]) -> String {
    let mut found = Vec::new();
    for name in chosen {
        let own = packages.get(name).map(|package| &package.features);
        let has = |feature: &&String| own.is_some_and(|own| own.contains(*feature));
        found.extend(
            wanted
                .iter()
                .filter(has)
                .map(|feature| format!("{name}/{feature}")),
        );
    }
    found.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace() -> Packages {
        let package = |name: &str, folder: &str, features: &[&str]| {
            let features: BTreeMap<&str, [&str; 0]> =
                features.iter().map(|name| (*name, [])).collect();
            serde_json::json!({
                "name": name, "manifest_path": format!("/r/{folder}/Cargo.toml"), "features": features,
                "targets": [
                    {"kind": [if name == "xtask" { "bin" } else { "lib" }], "name": name},
                    {"kind": ["test"], "name": "golden"},
                ],
            })
        };
        let answer = serde_json::json!({"workspace_root": "/r", "packages": [
            package("tidewater-service", "server/service", &["mutants", "verbs"]),
            package("tidewater-engine", "server/engine", &["verbs-dlopen", "mutants"]),
            package("xtask", "xtask", &[]),
        ]});
        packages(&Metadata::new(answer).unwrap())
    }

    #[test]
    fn changed_paths_belong_to_innermost_crate() {
        let found = owners(
            &[
                "server/engine/src/lib.rs",
                "docs/A.md",
                "xtask2/a",
                "xtask/src/main.rs",
            ],
            &workspace(),
        );
        assert_eq!(found, ["tidewater-engine", "xtask"]);
    }

    #[test]
    fn names_may_be_short() {
        let named = |name: &str| named(&[name.to_owned()], &workspace());
        assert_eq!(named("engine").unwrap(), ["tidewater-engine"]);
        assert_eq!(named("xtask").unwrap(), ["xtask"]);
        assert!(
            named("nothing")
                .unwrap_err()
                .to_string()
                .contains("tidewater-service")
        );
    }

    #[test]
    fn targets_are_read() {
        let packages = workspace();
        assert_eq!(packages["tidewater-engine"].tests, ["golden"]);
        assert!(packages["tidewater-engine"].has_lib);
        assert!(!packages["xtask"].has_lib);
    }

    #[test]
    fn features_are_those_a_crate_has() {
        let wanted = ["mutants", "verbs-dlopen", "wasm"].map(str::to_owned);
        let chosen = |name: &str| features(&workspace(), &[name.to_owned()], &wanted);
        assert_eq!(
            chosen("tidewater-engine"),
            "tidewater-engine/mutants,tidewater-engine/verbs-dlopen"
        );
        assert_eq!(chosen("tidewater-service"), "tidewater-service/mutants");
        assert_eq!(chosen("xtask"), "");
    }
}
