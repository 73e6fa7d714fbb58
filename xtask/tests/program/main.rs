//! The program on small projects: stages of `cargo xtask ci`, and tests of `cargo xtask test`.

#![allow(clippy::unwrap_used, reason = "a failure of the test itself")]

mod ci;
mod tests;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// Repository with one commit.
struct Project {
    folder: TempDir,
}

impl Project {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let git = |arguments: &[&str]| {
            let mut command = Command::new("git");
            command
                .current_dir(&folder)
                .args(["-c", "user.name=a", "-c", "user.email=a@b"]);
            assert!(command.args(arguments).output().unwrap().status.success());
        };
        git(&["init", "--quiet"]);
        git(&["commit", "--quiet", "--allow-empty", "--message", "a"]);
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Writes an executable bash script.
    fn script(&self, name: &str, body: &str) {
        self.write(name, &format!("#!/usr/bin/env bash\n{body}\n"));
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Command that runs the program here, without the variables of the run that this test is part of.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command
            .current_dir(&self.folder)
            .args(arguments)
            .stdin(Stdio::null());
        for name in [
            "CI_REPORT",
            "CI_RUN_ID",
            "CI_TEST",
            "CI_BUDGET",
            "CI_SETUP",
            "TIDEWATER_TEST_FULL",
        ] {
            command.env_remove(name);
        }
        command
    }

    fn run(&self, arguments: &[&str]) -> Ended {
        Ended::new(&self.command(arguments).output().unwrap())
    }
}

/// End of a run: exit code and output.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    output: String,
}

impl Ended {
    fn new(output: &Output) -> Self {
        let [out, err] =
            [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        Self {
            code: output.status.code(),
            output: format!("{out}{err}"),
        }
    }

    /// Requires the exit code and a line with that beginning.
    #[track_caller]
    fn says(&self, code: i32, line: &str) -> &Self {
        let found = self.output.lines().any(|own| own.starts_with(line));
        assert!(
            self.code == Some(code) && found,
            "not {line:?} with exit code {code}: {self:?}"
        );
        self
    }
}
