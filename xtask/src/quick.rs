//! `cargo xtask quick`: what to run after each small change, in the incremental profile `quick`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::failure::{Failure, Result};
use crate::metadata::{self, Metadata, list, text};
use crate::tree;

/// Features of the one build, as in ci/lib.sh.
const FEATURES: [&str; 2] = ["mutants", "verbs-dlopen"];
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
}

/// Packages by name.
type Packages = BTreeMap<String, Package>;

/// Test program that cargo built.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    /// Folder of its package.
    folder: PathBuf,
    target: String,
    path: PathBuf,
}

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
        let everything = ["--workspace", "--features", &FEATURES.join(",")].map(str::to_owned);
        self.run("format", cargo("fmt").args(["--all", "--check"]))?;
        self.run(
            "types",
            build("check").args(&everything).arg("--all-targets"),
        )?;
        if !chosen.is_empty() {
            let mut clippy = build("clippy");
            chosen.iter().for_each(|name| {
                clippy.args(["--package", name]);
            });
            let features = features(packages, chosen);
            if !features.is_empty() {
                clippy.args(["--features", &features]);
            }
            self.run(
                "clippy",
                clippy.args(["--all-targets", "--", "-D", "warnings"]),
            )?;
        }
        let programs = self.programs(&everything)?;
        for name in chosen {
            let Some(package) = packages.get(name) else {
                continue;
            };
            let folder = self.root.join(&package.folder);
            let own = programs.iter().filter(|program| program.folder == folder);
            self.tests(
                &format!("tests of {name}"),
                own.filter(|program| ![FUZZ, SIMULATOR].contains(&program.target.as_str())),
            )?;
        }
        let simulator: Vec<_> = programs
            .iter()
            .filter(|program| program.target == SIMULATOR)
            .collect();
        if simulator.is_empty() {
            return Err(Failure::NothingRead("test target `sim`"));
        }
        self.tests("simulator", simulator.into_iter())
    }

    /// Builds all test programs as one, so that features and therefore artifacts are those of the step before.
    fn programs(&mut self, everything: &[String]) -> Result<Vec<Program>> {
        let mut command = build("build");
        command
            .args(everything)
            .args(["--lib", "--bins", "--tests", "--examples"]);
        command
            .args(["--message-format", "json-render-diagnostics"])
            .stdout(Stdio::piped());
        self.timed("build", |root| {
            println!("--- build");
            let failed = |source| Failure::Start {
                program: "cargo".to_owned(),
                source,
            };
            let child = command.current_dir(root).spawn().map_err(failed)?;
            let out = child.wait_with_output().map_err(failed)?;
            if !out.status.success() {
                return Err(Failure::Command {
                    command: tree::shown(&command),
                    message: out.status.to_string(),
                });
            }
            Ok(String::from_utf8_lossy(&out.stdout)
                .lines()
                .filter_map(program)
                .collect())
        })
    }

    /// Runs test programs one after another; all of them, also if one fails.
    fn tests<'p>(&mut self, step: &str, programs: impl Iterator<Item = &'p Program>) -> Result<()> {
        self.timed(step, |_| {
            let mut failed = Vec::new();
            for program in programs {
                println!("--- {step}: {}", program.target);
                let mut command = Command::new(&program.path);
                command
                    .current_dir(&program.folder)
                    .env("CARGO_MANIFEST_DIR", &program.folder);
                command.arg("--quiet").stdin(Stdio::null());
                if program.target == SIMULATOR {
                    command.env("TIDEWATER_SEEDS", SEEDS);
                }
                if let Err(failure) = succeeds(&mut command) {
                    failed.push(failure);
                }
            }
            failed.into_iter().next().map_or(Ok(()), Err)
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

fn cargo(subcommand: &str) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.arg(subcommand);
    command
}

fn build(subcommand: &str) -> Command {
    let mut command = cargo(subcommand);
    command.args(["--quiet", "--locked", "--profile", "quick"]);
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
        packages.insert(name, Package { folder, features });
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
fn features(packages: &Packages, chosen: &[String]) -> String {
    let mut found = Vec::new();
    for name in chosen {
        let own = packages.get(name).map(|package| &package.features);
        let has = |feature: &&&str| own.is_some_and(|own| own.contains(**feature));
        found.extend(
            FEATURES
                .iter()
                .filter(has)
                .map(|feature| format!("{name}/{feature}")),
        );
    }
    found.join(",")
}

/// Test program in a line of cargo's messages.
fn program(line: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(line).ok()?;
    if text(&message, "reason") != Some("compiler-artifact")
        || message.pointer("/profile/test").and_then(Value::as_bool) != Some(true)
    {
        return None;
    }
    let target = message.get("target")?;
    let is_library = list(target, "kind")
        .iter()
        .filter_map(Value::as_str)
        .any(|kind| kind.ends_with("lib"));
    let name = if is_library {
        "lib"
    } else {
        text(target, "name")?
    };
    Some(Program {
        folder: Path::new(text(&message, "manifest_path")?)
            .parent()?
            .to_owned(),
        target: name.to_owned(),
        path: text(&message, "executable")?.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace() -> Packages {
        let package = |name: &str, folder: &str, features: &[&str]| {
            let features: BTreeMap<&str, [&str; 0]> =
                features.iter().map(|name| (*name, [])).collect();
            serde_json::json!({"name": name, "manifest_path": format!("/r/{folder}/Cargo.toml"), "features": features})
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
    fn features_are_those_a_crate_has() {
        let chosen = |name: &str| features(&workspace(), &[name.to_owned()]);
        assert_eq!(
            chosen("tidewater-engine"),
            "tidewater-engine/mutants,tidewater-engine/verbs-dlopen"
        );
        assert_eq!(chosen("tidewater-service"), "tidewater-service/mutants");
        assert_eq!(chosen("xtask"), "");
    }

    #[test]
    fn test_programs_are_read_from_messages() {
        let message = |test: bool, kind: &str| {
            serde_json::json!({
                "reason": "compiler-artifact", "manifest_path": "/r/a/Cargo.toml", "executable": "/r/t/x",
                "profile": {"test": test}, "target": {"kind": [kind], "name": "x"},
            })
            .to_string()
        };
        let found = |target: &str| {
            Some(Program {
                folder: "/r/a".into(),
                target: target.into(),
                path: "/r/t/x".into(),
            })
        };
        assert_eq!(program(&message(true, "test")), found("x"));
        assert_eq!(program(&message(true, "cdylib")), found("lib"));
        assert_eq!(program(&message(false, "bin")), None);
        assert_eq!(program("no json"), None);
    }
}
