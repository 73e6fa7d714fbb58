//! The one build: its features and its test binaries.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::failure::{Failure, Result};
use crate::metadata::{list, text};
use crate::tree;

/// File with the line `FEATURES=...`.
const SOURCE: &str = "ci/lib.sh";

/// Features that the one build has.
pub(crate) fn features(root: &Path) -> Result<Vec<String>> {
    let script = read(root, SOURCE)?;
    features_in(&script).ok_or_else(|| Failure::Malformed {
        subject: SOURCE.to_owned(),
        problem: "no line FEATURES=...".to_owned(),
        remedy: "name the features of the one build there".to_owned(),
    })
}

fn features_in(script: &str) -> Option<Vec<String>> {
    let line = script
        .lines()
        .find_map(|line| line.strip_prefix("FEATURES="))?;
    let value = line.split_whitespace().next()?;
    Some(value.split(',').map(str::to_owned).collect())
}

/// Text of a file of the project.
pub(crate) fn read(root: &Path, path: &str) -> Result<String> {
    fs::read_to_string(root.join(path)).map_err(|source| Failure::File {
        action: "read",
        path: path.to_owned(),
        source,
    })
}

/// Writes a file of the project, and makes its folder.
pub(crate) fn write(root: &Path, path: &str, content: &str) -> Result<()> {
    let file = root.join(path);
    let folder = file.parent().map_or(Ok(()), fs::create_dir_all);
    folder
        .and_then(|()| fs::write(&file, content))
        .map_err(|source| Failure::File {
            action: "write",
            path: path.to_owned(),
            source,
        })
}

/// Test binary of the build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binary {
    /// Package that it belongs to.
    pub(crate) crate_name: String,
    /// "lib", "bin:NAME", "bench:NAME", or the name of an integration test.
    pub(crate) target: String,
    /// Folder of its package.
    pub(crate) folder: PathBuf,
    pub(crate) path: PathBuf,
}

impl Binary {
    /// A run of it as cargo would start it, without input.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .stdin(Stdio::null());
        command
    }

    /// Test binary in a line of cargo's messages.
    fn of_message(line: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(line).ok()?;
        if text(&message, "reason") != Some("compiler-artifact")
            || message.pointer("/profile/test").and_then(Value::as_bool) != Some(true)
        {
            return None;
        }
        let target = message.get("target")?;
        let kind = list(target, "kind").first().and_then(Value::as_str)?;
        let name = text(target, "name")?;
        let target = match kind {
            "test" => name.to_owned(),
            kind if kind.contains("lib") => "lib".to_owned(),
            kind => format!("{kind}:{name}"),
        };
        Some(Self {
            crate_name: package_name(text(&message, "package_id")?)?.to_owned(),
            target,
            folder: Path::new(text(&message, "manifest_path")?)
                .parent()?
                .to_owned(),
            path: text(&message, "executable")?.into(),
        })
    }

    /// Binary in a line of the file that `write_table` writes.
    fn of_line(line: &str) -> Option<Self> {
        let mut cells = line.split('\t');
        let mut cell = || cells.next().filter(|cell| !cell.is_empty());
        Some(Self {
            crate_name: cell()?.to_owned(),
            target: cell()?.to_owned(),
            folder: cell()?.into(),
            path: cell()?.into(),
        })
    }

    fn line(&self) -> String {
        let Self {
            crate_name,
            target,
            folder,
            path,
        } = self;
        format!(
            "{crate_name}\t{target}\t{}\t{}\n",
            folder.display(),
            path.display()
        )
    }
}

/// Name in an id as `path+file:///r/a#name@0.1.0` or `path+file:///r/name#0.1.0`.
fn package_name(id: &str) -> Option<&str> {
    let (source, rest) = id.rsplit_once('#')?;
    match rest.split_once('@') {
        Some((name, _)) => Some(name),
        None => source.rsplit('/').next(),
    }
}

/// Builds the targets that `arguments` select, with the packages and features of the one build; returns the test
/// binaries, ordered by crate and target.
pub(crate) fn build(root: &Path, profile: &str, arguments: &[&str]) -> Result<Vec<Binary>> {
    let features = features(root)?.join(",");
    let mut command = cargo("build");
    command.args(["--profile", profile, "--workspace"]);
    command.args(["--features", &features]).args(arguments);
    test_binaries(root, command)
}

/// Builds with a command of cargo; returns the test binaries, ordered by crate and target.
pub(crate) fn test_binaries(root: &Path, mut command: Command) -> Result<Vec<Binary>> {
    command.args(["--quiet", "--locked"]);
    command.args(["--message-format", "json-render-diagnostics"]);
    let failed = |source| Failure::Start {
        program: "cargo".to_owned(),
        source,
    };
    command
        .current_dir(root)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let child = command.spawn().map_err(failed)?;
    let out = child.wait_with_output().map_err(failed)?;
    if !out.status.success() {
        return Err(Failure::Command {
            command: tree::shown(&command),
            message: out.status.to_string(),
        });
    }
    let answer = String::from_utf8_lossy(&out.stdout);
    let mut found: Vec<_> = answer.lines().filter_map(Binary::of_message).collect();
    found.sort_by(|a, b| (&a.crate_name, &a.target).cmp(&(&b.crate_name, &b.target)));
    Ok(found)
}

/// `cargo SUBCOMMAND`, with the cargo that runs this program, if one does.
pub(crate) fn cargo(subcommand: &str) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.arg(subcommand);
    command
}

/// Test binaries of a file: crate, target, folder and path, with tabs between.
pub(crate) fn read_table(root: &Path, path: &str) -> Result<Vec<Binary>> {
    let table = read(root, path)?;
    let binaries: Option<Vec<_>> = table.lines().map(Binary::of_line).collect();
    binaries.ok_or_else(|| Failure::Malformed {
        subject: path.to_owned(),
        problem: "a line without crate, target, folder and path".to_owned(),
        remedy: "write it again: cargo xtask build".to_owned(),
    })
}

/// Writes the file that [`read_table`] reads.
pub(crate) fn write_table(root: &Path, path: &str, binaries: &[Binary]) -> Result<()> {
    let lines: String = binaries.iter().map(Binary::line).collect();
    write(root, path, &lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(test: bool, kind: &str, id: &str) -> String {
        serde_json::json!({
            "reason": "compiler-artifact", "manifest_path": "/r/a/Cargo.toml", "executable": "/r/t/x",
            "package_id": id, "profile": {"test": test}, "target": {"kind": [kind], "name": "x"},
        })
        .to_string()
    }

    fn binary(target: &str) -> Binary {
        Binary {
            crate_name: "a".into(),
            target: target.into(),
            folder: "/r/a".into(),
            path: "/r/t/x".into(),
        }
    }

    #[test]
    fn binaries_are_read_from_messages() {
        let found = |kind: &str| Binary::of_message(&message(true, kind, "path+file:///r/a#0.1.0"));
        assert_eq!(found("test"), Some(binary("x")));
        assert_eq!(found("cdylib"), Some(binary("lib")));
        assert_eq!(found("bin"), Some(binary("bin:x")));
        assert_eq!(found("bench"), Some(binary("bench:x")));
        let renamed = message(true, "test", "path+file:///r/b#a@0.1.0");
        assert_eq!(Binary::of_message(&renamed), Some(binary("x")));
        assert_eq!(
            Binary::of_message(&message(false, "bin", "path+file:///r/a#0.1.0")),
            None
        );
        assert_eq!(Binary::of_message("no json"), None);
    }

    #[test]
    fn table_has_the_binaries_that_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let binaries = [binary("lib"), binary("x")];
        write_table(folder.path(), "t", &binaries).unwrap();
        assert_eq!(read_table(folder.path(), "t").unwrap(), binaries);
        write(folder.path(), "t", "a\tlib\t\n").unwrap();
        assert!(
            read_table(folder.path(), "t")
                .unwrap_err()
                .to_string()
                .contains("cargo xtask build")
        );
    }

    #[test]
    fn features_are_those_of_the_scripts() {
        assert_eq!(
            features_in("A=1\nFEATURES=a,b-c # of all\n").unwrap(),
            ["a", "b-c"]
        );
        assert_eq!(features_in("X_FEATURES=a"), None);
        let found = features(&tree::root().unwrap()).unwrap();
        assert!(found.contains(&"mutants".to_owned()), "{found:?}");
    }
}
