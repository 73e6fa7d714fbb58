//! Fuzzes the inputs of a client: lines of training files, descriptions of tables, mailboxes and
//! memory of a hostile server.
//!
//! Executions of a target: `TIDEWATER_FUZZ_EXECS` (default 20,000), a fiftieth of it if one is a
//! complete client call. Each is a function of `TIDEWATER_SEED` (default 1) and its number.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test's helpers")]

#[path = "../../transport/lanes/tests/support/fuzzing.rs"]
mod fuzzing;

mod hostile;
mod lines;
mod replies;
mod tables;

use std::panic::{AssertUnwindSafe, catch_unwind};

use fuzzing::{Random, number};

fn execs() -> u64 {
    number("TIDEWATER_FUZZ_EXECS", 20_000)
}

/// Runs `one` `execs` times; a panic is passed on with the command that repeats it.
fn run(target: &str, execs: u64, mut one: impl FnMut(&mut Random)) {
    let seed = number("TIDEWATER_SEED", 1);
    let began = tidewater_runtime::clock::now();
    for exec in 0..execs {
        let mut random = Random::of(seed, target, exec);
        let run = || one(&mut random);
        assert!(
            catch_unwind(AssertUnwindSafe(run)).is_ok(),
            "{target} failed at execution {exec}; repeat with TIDEWATER_SEED={seed} \
             TIDEWATER_FUZZ_EXECS={} cargo test --profile ci -p tidewater-tests --test fuzz",
            exec + 1
        );
    }
    println!("{target}: {execs} executions in {:.1?}", began.elapsed());
}
