//! Measures bytes a second of pulls and pushes of 1 MiB, the best of 30 rounds.
//! `client/python/tests/bandwidth.py` is compared with it.
//!
//! ```text
//! bandwidth COORDINATOR TOKEN_FILE
//! ```

#![allow(clippy::print_stdout, reason = "a program")]

use std::error::Error;

use tidewater::{
    Client, ClientError, JoinOptions, Joined, PullOptions, PushOp, SyncMode, TableBuilder,
};
use tidewater_runtime::clock::now;

const BYTES: usize = 1 << 20;
const CALLS: usize = 50;
const ROUNDS: usize = 30;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: bandwidth COORDINATOR TOKEN_FILE";
    let (coordinator, file) = arguments.next().zip(arguments.next()).ok_or(usage)?;
    let options = JoinOptions {
        coordinator: Some(coordinator),
        token_file: Some(file.into()),
        namespace: Some("bandwidth".into()),
        workers: Some(1),
        ..JoinOptions::default()
    };
    let Joined::Worker(job) = options.join()? else {
        return Ok(());
    };
    let mut client = job.client(SyncMode::Asp)?;
    let spec = TableBuilder::range::<f32>("t", 16, (BYTES / 4 / 16) as u32);
    let table = client.create_table::<f32>(spec.spec())?;
    let mut array = vec![1.0f32; BYTES / 4];
    let ticket = client.push_range(&table, 0, &array, PushOp::Assign)?;
    client.wait_applied(&ticket)?;
    let pull = best(&mut client, |client| {
        let pulled = client.pull_range(&table, 0, &mut array, PullOptions::default());
        pulled.map(|_| ())
    })?;
    if array.iter().any(|&x| x != 1.0) {
        return Err("a value is wrong".into());
    }
    let push = best(&mut client, |client| {
        let ticket = client.push_range(&table, 0, &array, PushOp::Assign)?;
        client.wait_applied(&ticket)
    })?;
    let carrier = client.transport().map_or("-".into(), |t| t.to_string());
    println!("rust {carrier} pull {BYTES} {pull:.0} MB/s");
    println!("rust {carrier} push {BYTES} {push:.0} MB/s");
    client.finish()?;
    Ok(job.leave()?)
}

/// Megabytes a second of the fastest round.
fn best(
    client: &mut Client,
    mut call: impl FnMut(&mut Client) -> Result<(), ClientError>,
) -> Result<f64, ClientError> {
    let mut seconds = f64::INFINITY;
    for _ in 0..ROUNDS {
        let started = now();
        for _ in 0..CALLS {
            call(client)?;
        }
        seconds = seconds.min(started.elapsed().as_secs_f64());
    }
    Ok((CALLS * BYTES) as f64 / seconds / 1e6)
}
