//! Checks of the project's sources that no other tool does, and what runs its tests. `cargo xtask --help` lists them.
#![forbid(unsafe_code)]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program"
)]

mod binaries;
mod ci;
mod coverage;
mod crates;
mod examples;
mod failure;
mod features;
mod lexer;
mod licences;
mod lines;
mod metadata;
mod modules;
mod processes;
mod prose;
mod quick;
mod references;
mod runner;
mod tree;
mod words;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use failure::Result;

/// Checks of the project's sources, and what runs its tests
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Dialect words and short doc comments, against ci/words.toml
    Words(words::Options),
    /// Cycles between top-level modules of a crate, against ci/modules.toml
    Modules(modules::Options),
    /// Lines of code by area, tests apart; fails if a crate has over 15,000 without tests
    Lines(lines::Options),
    /// Picture of the crates in docs/ARCHITECTURE.md, from `cargo metadata`
    Crates(crates::Options),
    /// Features of the seed systems in docs/SEED_FEATURES.md: a row for each id, tests that exist
    Features,
    /// Public types of the crate tidewater: each has an example in its doc comment
    Examples,
    /// Licences, sources and wildcard requirements of the crates in the lock files, against ci/licences.toml
    Licences,
    /// Line coverage by module from a file in lcov's format, next to the table of docs/TESTING.md
    Coverage(coverage::Options),
    /// Format, types, clippy and tests of the changed crates, and 15 seeds of the simulator
    Quick(quick::Options),
    /// Builds what is tested, and lists its test binaries in target/PROFILE-tests.tsv
    Build(runner::BuildOptions),
    /// Tests, each in a process of its own
    Test(runner::Options),
    /// Every check and test: the stages of ci/budget.toml. `ci/all.sh` sets up what it needs
    Ci(ci::Options),
}

fn main() -> ExitCode {
    let Arguments { command } = Arguments::parse();
    match run(command) {
        Ok((report, code)) => {
            print!("{report}");
            code
        }
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// What the task prints at its end, and the exit code.
fn run(task: Task) -> Result<(String, ExitCode)> {
    let root = tree::root()?;
    let report = match task {
        Task::Words(options) => words::run(&root, options),
        Task::Modules(options) => modules::run(&root, options),
        Task::Lines(options) => lines::run(&root, &options),
        Task::Crates(options) => crates::run(&root, options),
        Task::Features => features::run(&root),
        Task::Examples => examples::run(&root),
        Task::Licences => licences::run(&root),
        Task::Coverage(options) => coverage::run(&root, &options),
        Task::Quick(options) => quick::run(&root, &options),
        Task::Build(options) => runner::build(&root, &options),
        Task::Test(options) => return Ok((String::new(), runner::run(&root, options)?)),
        Task::Ci(options) => return Ok((String::new(), ci::run(&root, &options)?)),
    };
    Ok((report?, ExitCode::SUCCESS))
}
