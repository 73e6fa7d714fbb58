//! `cargo xtask ci`: runs the stages of ci/budget.toml, and says what ran.
//!
//! `ci/all.sh` is the name that people type: it sets up what must exist before cargo runs.

mod follow;
mod host;
mod plan;
mod report;
mod run;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::binaries;
use crate::failure::{Failure, Result};
use crate::tree;
use plan::Plan;
use run::{Ended, Run};

/// Options of `cargo xtask ci`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// With the larger counts (TIDEWATER_TEST_FULL=1); hours
    #[arg(long)]
    full: bool,
    /// That stage, with what it prints; may be repeated
    #[arg(long, value_name = "STAGE")]
    only: Vec<String>,
    /// With what all of them print; one stage at a time
    #[arg(long)]
    verbose: bool,
    /// Names, purposes and scripts of the stages
    #[arg(long)]
    list: bool,
}

/// Runs the stages, and prints the table and the reasons of failures.
pub(crate) fn run(root: &Path, options: &Options) -> Result<ExitCode> {
    let path = std::env::var("CI_BUDGET").unwrap_or_else(|_| "ci/budget.toml".to_owned());
    let mut plan = Plan::new(&path, &binaries::read(root, &path)?)?;
    plan.only(&options.only)?;
    plan.full = options.full;
    if options.list {
        for stage in &plan.stages {
            println!("{:<11} {:<33} {}", stage.name, stage.does, stage.script);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let set_up = match std::env::var("CI_SETUP") {
        Ok(text) => Some(SetUp::new(&text)?),
        Err(_) => None,
    };
    let verbose = options.verbose || !options.only.is_empty();
    let mut run = Run::new(root, &plan, verbose, set_up)?;
    if let Ended::BySignal(signal) = run.all()? {
        eprintln!("\nwarning: interrupted");
        return Ok(ExitCode::from(u8::try_from(128 + signal).unwrap_or(1)));
    }
    let took = run.elapsed();
    let done = run.done()?;
    print!("{}", report::table(&plan, &done, took, &sources(root)?));
    print!("{}", report::excerpts(&done, run::LOGS));
    println!();
    print!("{}", report::failures(&done, run::LOGS));
    print!("{}", report::summary(&done));
    let passed = done.iter().all(|own| own.verdict.is_good());
    Ok(if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// What ci/all.sh says of stage `setup`, which it has run: `CI_SETUP="EXIT_CODE SECONDS ALL_SECONDS"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SetUp {
    code: i32,
    seconds: u64,
    /// Seconds since ci/all.sh began.
    all_seconds: u64,
}

impl SetUp {
    fn new(text: &str) -> Result<Self> {
        let numbers: Vec<u64> = text.split_whitespace().flat_map(str::parse).collect();
        match numbers[..] {
            [code, seconds, all_seconds] if code < 256 => Ok(Self {
                code: code as i32,
                seconds,
                all_seconds,
            }),
            _ => Err(Failure::Malformed {
                subject: format!("CI_SETUP={text}"),
                problem: "not an exit code and two numbers of seconds".to_owned(),
                remedy: "ci/all.sh sets it; unset it to run stage setup here".to_owned(),
            }),
        }
    }
}

/// Commit of the sources, and whether they differ from it.
fn sources(root: &Path) -> Result<String> {
    let commit = tree::git(root, &["rev-parse", "--short", "HEAD"])?;
    let changed = tree::git(root, &["status", "--porcelain", "--untracked-files=no"])?;
    let suffix = if changed.is_empty() {
        ""
    } else {
        " with uncommitted changes"
    };
    Ok(format!("{}{suffix}", commit.trim_end()))
}

/// Path of a stage's file in the folder of logs.
fn log_file(root: &Path, stage: &str, suffix: &str) -> PathBuf {
    root.join(run::LOGS).join(format!("{stage}.{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setup_is_handed_over_as_numbers() {
        let wanted = SetUp {
            code: 77,
            seconds: 3,
            all_seconds: 9,
        };
        assert_eq!(SetUp::new("77 3 9").unwrap(), wanted);
        for text in ["", "1 2", "a 1 2", "256 1 2", "1 2 3 4"] {
            assert!(SetUp::new(text).is_err(), "{text:?}");
        }
    }
}
