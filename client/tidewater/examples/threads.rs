//! Threads of a worker, each with a client of its own: gradients of different sizes, reduced at ticks in
//! the order of rank and thread. Two workers of two threads print the bits of four workers of one. The
//! programs in C, C++, Fortran and Python of `client/capi/tests/c` and `client/python/tests` print the same.
//!
//! ```text
//! cargo build --profile ci -p tidewater --example threads
//! tidewater run --servers 2 --workers 2 -- target/ci/examples/threads 2
//! tidewater run --servers 2 --workers 4 -- target/ci/examples/threads 1
//! ```

#![allow(clippy::print_stdout, reason = "a program")]

use std::time::Duration;

use tidewater::{
    Client, ClientError, JoinOptions, Joined, Optimizer, PullOptions, PushOp, Reduce, SyncMode,
    TableBuilder,
};

const ITERATIONS: u32 = 20;
const ROWS: u32 = 8;

fn main() -> Result<(), ClientError> {
    let threads = std::env::args().nth(1).and_then(|n| n.parse().ok());
    let threads: u32 = threads.unwrap_or(1);
    let Joined::Worker(job) = JoinOptions::default().join()? else {
        return Ok(());
    };
    let mut first = job.client(SyncMode::Bsp)?;
    let siblings: Result<Vec<Client>, _> = (1..threads).map(|_| first.sibling()).collect();
    let mut first = std::thread::scope(|scope| {
        let siblings = siblings?.into_iter().map(|mut sibling| {
            scope.spawn(move || {
                work(&mut sibling, threads)?;
                sibling.finish()
            })
        });
        let siblings: Vec<_> = siblings.collect();
        work(&mut first, threads)?;
        for sibling in siblings {
            sibling.join().expect("no panic")?;
        }
        Ok::<_, ClientError>(first)
    })?;
    first.barrier("all have finished", Duration::from_secs(60))?;
    if first.rank().0 == 0 {
        print(&mut first, threads)?;
    }
    first.finish()?;
    job.leave()
}

/// What thread `number` of all pushes for a row. No sum of these is exact: another order has other bits.
fn gradient(number: u32, iteration: u32, row: u32) -> f32 {
    let value = (number * 7919 + iteration * 104_729 + row * 31) % 2003;
    let size = 1 << (2 * ((number * 5 + iteration * 3 + row) % 5));
    (value as f32 - 1001.0) * size as f32 / 3.0
}

fn tables(
    client: &mut Client,
    threads: u32,
) -> Result<(tidewater::Table<f32>, tidewater::Table<i64>), ClientError> {
    let mean = TableBuilder::rows::<f32>("mean", ROWS.into(), 1)
        .optimizer(Optimizer::Sgd { lr: 0.5 })
        .at_clock(Reduce::Mean);
    let all = client.workers() * threads;
    let counts = TableBuilder::rows::<i64>("counts", all.into(), 1);
    Ok((
        client.create_table(mean.spec())?,
        client.create_table(counts.spec())?,
    ))
}

fn work(client: &mut Client, threads: u32) -> Result<(), ClientError> {
    let (mean, counts) = tables(client, threads)?;
    let number = client.rank().0 * threads + client.thread();
    let keys: Vec<u64> = (0..ROWS.into()).collect();
    let mut values = vec![0.0; keys.len()];
    for iteration in 0..ITERATIONS {
        client.pull_rows(&mean, &keys, &mut values, PullOptions::default())?;
        let gradients: Vec<f32> = (0..ROWS).map(|n| gradient(number, iteration, n)).collect();
        // Tickets are not needed: the tick waits for both pushes, and returns a refusal of either.
        let _ = client.push_rows(&mean, &keys, &gradients, PushOp::Gradient)?;
        let _ = client.push_rows(&counts, &[number.into()], &[1], PushOp::Sum)?;
        client.tick()?;
    }
    client.flush()
}

fn print(client: &mut Client, threads: u32) -> Result<(), ClientError> {
    let (mean, counts) = tables(client, threads)?;
    let keys: Vec<u64> = (0..ROWS.into()).collect();
    let mut values = vec![0.0_f32; keys.len()];
    client.pull_rows(&mean, &keys, &mut values, PullOptions::default())?;
    for (row, value) in values.iter().enumerate() {
        println!("value.{row} {:08x}", value.to_bits());
    }
    let keys: Vec<u64> = (0..u64::from(client.workers() * threads)).collect();
    let mut pushes = vec![0_i64; keys.len()];
    client.pull_rows(&counts, &keys, &mut pushes, PullOptions::default())?;
    for (number, count) in pushes.iter().enumerate() {
        println!("count.{number} {count}");
    }
    Ok(())
}
