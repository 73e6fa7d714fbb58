//! `cargo xtask test`: runs tests, each in a process of its own.
//!
//! Classes and limits are in ci/test-classes.tsv. No test is repeated, except those of ci/flakes.tsv, once and alone.

mod classes;
mod flakes;
mod listing;
mod outcome;
mod report;
mod run;
mod schedule;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::binaries::{self, Binary};
use crate::failure::{Failure, Result};
use classes::Classes;
use flakes::Flakes;
use listing::{Filter, Test};
pub(crate) use outcome::{Counts, failed_names};
use run::{Manner, Run};

/// Options of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Each WORD must be the crate (with or without `tidewater-`), the target, part of the name, or CRATE/TARGET/NAME
    #[arg(value_name = "WORD")]
    words: Vec<String>,
    /// Tests of this target only: lib, bin:NAME, bench:NAME, or the name of an integration test
    #[arg(long, value_name = "TARGET")]
    target: Vec<String>,
    /// Leaves this target out
    #[arg(long, value_name = "TARGET")]
    except: Vec<String>,
    /// Profile of the build
    #[arg(long, default_value = "ci")]
    profile: String,
    /// Runs the test binaries of this file, as `cargo xtask build` writes it, instead of building
    #[arg(long, value_name = "FILE")]
    binaries: Option<String>,
    /// Runs ignored tests, too
    #[arg(long)]
    include_ignored: bool,
    /// Prints the output of tests that passed, too
    #[arg(long)]
    show: bool,
    /// Lists the tests with their classes and limits, and runs none
    #[arg(long)]
    list: bool,
    /// Limit of each test instead of those of ci/test-classes.tsv, seconds
    #[arg(long, value_name = "SECONDS")]
    limit: Option<u64>,
    /// Runs each binary as a whole, with these arguments
    #[arg(last = true, value_name = "ARGUMENT")]
    arguments: Vec<String>,
}

/// Options of `cargo xtask build`.
#[derive(Debug, clap::Args)]
pub(crate) struct BuildOptions {
    /// Profile of the build
    #[arg(long, default_value = "ci")]
    profile: String,
}

/// File with the test binaries of a profile.
fn table(profile: &str) -> String {
    format!("target/{profile}-tests.tsv")
}

/// Builds everything that stages run, and writes the table of test binaries.
pub(crate) fn build(root: &Path, options: &BuildOptions) -> Result<String> {
    let built = binaries::build(root, &options.profile, &["--all-targets"])?;
    binaries::write_table(root, &table(&options.profile), &built)?;
    Ok(String::new())
}

/// Runs the tests that the options choose.
pub(crate) fn run(root: &Path, options: Options) -> Result<ExitCode> {
    let binaries = match &options.binaries {
        Some(file) => binaries::read_table(root, file)?,
        None => {
            build(
                root,
                &BuildOptions {
                    profile: options.profile.clone(),
                },
            )?;
            binaries::read_table(root, &table(&options.profile))?
        }
    };
    let filter = Filter {
        words: options.words,
        targets: options.target,
        except: options.except,
    };
    let whole = !options.arguments.is_empty();
    let manner = Manner {
        arguments: options.arguments,
        variables: Vec::new(),
        show: options.show,
        log: root.join("target/ci-logs/tests.txt"),
        again: again(&options.profile),
    };
    let mut tests = chosen(root, &binaries, &filter, whole)?;
    if let Some(seconds) = options.limit {
        tests
            .iter_mut()
            .for_each(|test| test.treatment.limit = Duration::from_secs(seconds));
    }
    if options.list {
        print!("{}", report::list(&tests));
        return Ok(ExitCode::SUCCESS);
    }
    if options.include_ignored {
        tests.iter_mut().for_each(|test| test.ignored = false);
    }
    let recorded = root.join(format!("target/{}-test-seconds.tsv", options.profile));
    run_tests(root, &binaries, &tests, &manner, &recorded)
}

/// Command that repeats a test, without its id.
fn again(profile: &str) -> String {
    match profile {
        "ci" => "cargo xtask test".to_owned(),
        profile => format!("cargo xtask test --profile {profile}"),
    }
}

/// Tests of the binaries that pass the filter.
fn chosen(root: &Path, binaries: &[Binary], filter: &Filter, whole: bool) -> Result<Vec<Test>> {
    let full = std::env::var("TIDEWATER_TEST_FULL").is_ok_and(|value| value == "1");
    let classes = Classes::new(&binaries::read(root, classes::FILE)?, full)?;
    listing::tests(binaries, &classes, filter, whole)
}

/// Runs all tests of the binaries for `cargo xtask quick`, with these variables.
pub(crate) fn run_quick(
    root: &Path,
    binaries: &[Binary],
    variables: Vec<(&'static str, String)>,
) -> Result<()> {
    let tests = chosen(root, binaries, &Filter::default(), false)?;
    let manner = Manner {
        arguments: Vec::new(),
        variables,
        show: false,
        log: root.join("target/quick-tests.txt"),
        again: again("quick"),
    };
    let recorded = root.join("target/quick-test-seconds.tsv");
    if run_tests(root, binaries, &tests, &manner, &recorded)? == ExitCode::SUCCESS {
        return Ok(());
    }
    Err(Failure::Command {
        command: "tests".to_owned(),
        message: format!("their output is in {}", manner.log.display()),
    })
}

/// Runs tests that are not ignored, reports their counts, and says whether all have passed.
fn run_tests(
    root: &Path,
    binaries: &[Binary],
    tests: &[Test],
    manner: &Manner,
    recorded: &Path,
) -> Result<ExitCode> {
    let began = Instant::now();
    let mut seconds = report::read_seconds(recorded);
    run::clear(&manner.log)?;
    let flakes = Flakes::new(&binaries::read(root, flakes::FILE)?);
    let mut run = Run::new(binaries, tests, manner)?;
    let waiting = (0..tests.len()).filter(|at| !tests[*at].ignored).collect();
    if let Some(signal) = run.all(waiting, &seconds)? {
        return Ok(interrupted(signal));
    }
    let again = flakes.to_repeat(tests, &run.outcomes);
    let mut repeated = Vec::new();
    for at in again {
        println!("--- {} is in {}; once more", tests[at].id, flakes::FILE);
        if let Some(signal) = run.all(vec![at], &BTreeMap::new())? {
            return Ok(interrupted(signal));
        }
        repeated.push(tests[at].id.replace('/', " "));
    }
    let left = run.left_behind();
    let report = report::Report::new(binaries, tests, &run.outcomes, repeated, left);
    report.print(began.elapsed(), manner);
    if let Some(file) = std::env::var_os("CI_REPORT") {
        report.append_to(Path::new(&file))?;
    }
    report::add_seconds(&mut seconds, tests, &run.outcomes);
    report::write_seconds(recorded, &seconds)?;
    Ok(if report.passed() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn interrupted(signal: i32) -> ExitCode {
    eprintln!("warning: interrupted");
    ExitCode::from(u8::try_from(128 + signal).unwrap_or(1))
}
