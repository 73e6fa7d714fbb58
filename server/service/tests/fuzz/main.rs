//! Fuzzes the server's data path: bytes of a ring, frames, lanes with a hostile peer.
//!
//! Executions: `TIDEWATER_FUZZ_EXECS`, default 20,000. Each is a function of `TIDEWATER_SEED`
//! (default 1) and its number, counted from the last multiple of [`REBUILD`], where the state is
//! rebuilt. The corpus is made by code: valid frames of every kind, see [`rig::corpus`].
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test's helpers")]

#[path = "../../../../transport/lanes/tests/support/fuzzing.rs"]
mod fuzzing;
#[path = "../../../../transport/lanes/tests/support/search.rs"]
mod search;

mod calls;
mod files;
mod frames;
mod lanes;
mod rig;
mod ring;

use std::panic::{AssertUnwindSafe, catch_unwind};

use fuzzing::number;

/// Executions after which engine, rings and memory are rebuilt.
const REBUILD: u64 = 20_000;

/// Runs `one(state, exec)`; `make` builds the state. A panic is passed on with the values that
/// repeat it.
fn run<S>(
    target: &str,
    execs: u64,
    mut make: impl FnMut() -> S,
    mut one: impl FnMut(&mut S, u64, u64),
) {
    let seed = number("TIDEWATER_SEED", 1);
    let began = tidewater_runtime::clock::now();
    let mut state = make();
    for exec in 0..execs {
        if exec > 0 && exec % REBUILD == 0 {
            state = make();
        }
        let run = || one(&mut state, seed, exec);
        assert!(
            catch_unwind(AssertUnwindSafe(run)).is_ok(),
            "{target} failed at execution {exec}; repeat with TIDEWATER_SEED={seed} \
             TIDEWATER_FUZZ_EXECS={} cargo test --profile ci -p tidewater-service --test fuzz",
            exec + 1
        );
    }
    println!("{target}: {execs} executions in {:.1?}", began.elapsed());
}

fn execs() -> u64 {
    number("TIDEWATER_FUZZ_EXECS", 20_000)
}
