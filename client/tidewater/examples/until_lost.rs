//! A worker that pulls one row repeatedly, each time within a deadline, until a pull fails. It then
//! prints how long that pull took, and the error. Evidence for statements about servers that vanish.
//!
//! ```text
//! tidewater run --servers 2 --workers 1 -- until_lost MILLISECONDS
//! ```

#![allow(clippy::print_stdout, reason = "a program")]

use std::error::Error;
use std::time::Duration;

use tidewater::{
    Client, ClientError, JoinOptions, Joined, PullOptions, SyncMode, Table, TableBuilder,
};
use tidewater_runtime::clock::now;

/// Pulls before the first line is printed: all lanes are open by then.
const WARM: u32 = 100;

fn main() -> Result<(), Box<dyn Error>> {
    let milliseconds = std::env::args()
        .nth(1)
        .ok_or("usage: until_lost MILLISECONDS")?;
    let timeout = Duration::from_millis(milliseconds.parse()?);
    let Joined::Worker(job) = JoinOptions::default().join()? else {
        return Ok(());
    };
    let mut client = job.client(SyncMode::Asp)?;
    let table = client.create_table::<f32>(TableBuilder::sparse::<f32>("t", 1).spec())?;
    let options = PullOptions {
        timeout,
        ..PullOptions::default()
    };
    for round in 0u32.. {
        let began = now();
        if let Err(error) = pull(&mut client, &table, options) {
            println!("after {} ms: {error}", began.elapsed().as_millis());
            break;
        }
        if round == WARM {
            println!("pulling");
        }
    }
    Ok(())
}

/// Pulls rows of all servers.
fn pull(client: &mut Client, table: &Table<f32>, options: PullOptions) -> Result<(), ClientError> {
    let keys: [u64; 16] = std::array::from_fn(|n| n as u64);
    client.pull_rows(table, &keys, &mut [0.0; 16], options)?;
    Ok(())
}
