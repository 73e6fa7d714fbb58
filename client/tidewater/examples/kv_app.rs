//! ps-lite's example `test_kv_app.cc`, ported: workers push values by key many times, pull them back and
//! compare. The servers' handle adds what is pushed to what they store.
//!
//! ```text
//! // ps-lite (C++): one program for all roles
//! auto server = new KVServer<float>(0);
//! server->set_request_handle(KVServerDefaultHandle<float>());   // store[key] += value
//!
//! KVWorker<float> kv(0, 0);
//! for (int i = 0; i < repeat; ++i) ts.push_back(kv.Push(keys, vals));
//! for (int t : ts) kv.Wait(t);
//! kv.Wait(kv.Pull(keys, &rets));
//! ```
//! One program here, too: with a command line it is `tidewater` with a handle of its own, without one a
//! worker.
//!
//! ```text
//! cargo build --profile ci -p tidewater --example kv_app
//! kv_app run --servers 2 --workers 3 -- kv_app
//! mpirun -n 2 kv_app server : -n 3 kv_app
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program")]

use std::process::ExitCode;

use tidewater::functions::{
    Elements, ElementsMut, Function, FunctionError, Functions, Piece, register,
};
use tidewater::{ClientError, JoinOptions, Joined, Optimizer, SyncMode, TableBuilder};

const KEYS: u64 = 10_000;
const REPEAT: usize = 50;

/// The servers' handle: `store[key] += value`, and pulls return what is stored.
struct Sum;

impl Function for Sum {
    fn update(
        &self,
        _: &[u8],
        piece: &Piece<'_>,
        stored: ElementsMut<'_>,
    ) -> Result<(), FunctionError> {
        let (ElementsMut::F32(stored), [Elements::F32(pushed)]) = (stored, piece.inputs) else {
            return Err(FunctionError(1)); // another element type, or no values
        };
        if stored.len() != pushed.len() {
            return Err(FunctionError(2)); // not one value for each key
        }
        for (stored, pushed) in stored.iter_mut().zip(*pushed) {
            *stored += pushed;
        }
        Ok(())
    }

    fn reduce(
        &self,
        _: &[u8],
        _: &Piece<'_>,
        stored: Elements<'_>,
        result: &mut Vec<u8>,
    ) -> Result<(), FunctionError> {
        let Elements::F32(stored) = stored else {
            return Err(FunctionError(1));
        };
        for value in stored {
            result.extend_from_slice(&value.to_le_bytes());
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    if let Err(error) = register(Functions::default().with("sum", Sum)) {
        eprintln!("kv_app: {error}");
        return ExitCode::FAILURE;
    }
    if std::env::args().len() > 1 {
        return tidewater_cli::cli::main(); // run, server, serve, ...
    }
    match worker() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kv_app: {error}");
            ExitCode::FAILURE
        }
    }
}

fn worker() -> Result<(), ClientError> {
    let Joined::Worker(job) = JoinOptions::default().join()? else {
        return Ok(());
    };
    let mut kv = job.client(SyncMode::Asp)?;
    let spec = TableBuilder::sparse::<f32>("kv", 1).optimizer(Optimizer::None);
    let table = kv.create_table::<f32>(spec.spec())?;
    // Keys over the full range, others for each worker; values are integers, so sums are exact.
    let rank = u64::from(kv.rank().0);
    let keys: Vec<u64> = (0..KEYS).map(|n| u64::MAX / KEYS * n + rank).collect();
    let values: Vec<f32> = (0..KEYS).map(|n| (n * 7919 % 1000) as f32).collect();
    let mut timestamps = Vec::new();
    for _ in 0..REPEAT {
        timestamps.push(kv.call_rows(&table, "sum", &[], &keys, &values)?);
    }
    for timestamp in &timestamps {
        kv.wait_applied(timestamp)?;
    }
    let mut pulled = vec![0.0; keys.len()];
    kv.call_pull(&table, "sum", &[], &keys, &mut pulled)?;
    let differences = pulled.iter().zip(&values);
    let error: f32 = differences
        .map(|(p, v)| (p - v * REPEAT as f32).abs())
        .sum();
    println!("worker {rank}: {REPEAT} pushes of {KEYS} keys, error {error}");
    kv.finish()?;
    job.leave()?;
    match error == 0.0 {
        true => Ok(()),
        false => Err(ClientError::Environment(
            format!("sums are off by {error}").into(),
        )),
    }
}
