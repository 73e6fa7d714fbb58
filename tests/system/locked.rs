//! `--mlock`: used server memory is locked, and stays locked as it grows.

use std::fs;

use tidewater::{TableBuilder, Ticket};
use tidewater_launch::TransportChoice;
use tidewater_protocol::table::PushOp;
use tidewater_runtime::mem::Region;

use crate::by_hand::Cluster;
use crate::proc::Process;

/// Bytes that the test must be able to lock: more than the server below uses.
const ENOUGH: usize = 128 << 20;
const DIM: usize = 8;
const ROWS: [u64; 2] = [5_000, 200_000];

/// KiB of a memory that are present, and that are locked, from the kernel's counts. (For pages mapped
/// by several processes the kernel counts a share; here only one process maps them.)
fn held(server: &Process, memory: &str) -> (u64, u64) {
    let maps = fs::read_to_string(format!("/proc/{}/smaps", server.pid)).unwrap();
    let (mut is_it, mut sums) = (false, [0, 0]);
    for line in maps.lines() {
        // The line of a mapping ends in its file; lines of figures end in a unit.
        if line.contains("/memfd:") || line.split(' ').next().is_some_and(|a| a.contains('-')) {
            is_it = line.contains(memory);
        }
        for (sum, name) in sums.iter_mut().zip(["Pss:", "Locked:"]) {
            if let Some(kib) = line.strip_prefix(name).filter(|_| is_it) {
                *sum += kib.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
            }
        }
    }
    sums.into()
}

/// Figures of both memories of a server.
fn both(server: &Process) -> [(u64, u64); 2] {
    ["tidewater-public", "tidewater-private"].map(|memory| held(server, memory))
}

/// Starts a server with rows, adds rows; returns the figures of its memories both times.
fn grows(arguments: &[&str]) -> [[(u64, u64); 2]; 2] {
    let mut cluster = Cluster::coordinator(1);
    let server = cluster.server(0).args(arguments).spawn().unwrap();
    cluster.servers.push(server);
    let mut client = cluster.client(TransportChoice::Tcp);
    let table = TableBuilder::sparse::<f32>("t", DIM as u32);
    let table = client.create_table::<f32>(table.spec()).unwrap();
    ROWS.map(|rows| {
        let mut last = Ticket::default();
        let keys: Vec<u64> = (0..rows).collect();
        for keys in keys.chunks(10_000) {
            let values = vec![1.0; keys.len() * DIM];
            let pushed = client.push_rows(&table, keys, &values, PushOp::Sum);
            last.merge(&pushed.unwrap());
        }
        client.wait_applied(&last).unwrap();
        both(&cluster.server_processes()[0])
    })
}

#[test]
fn what_is_in_use_is_locked_where_that_is_allowed() {
    let region = Region::anonymous(ENOUGH).unwrap();
    if region.lock(0, ENOUGH).is_err() {
        // Then the server reports it; `a_low_limit` tests its other behaviour.
        let cluster = Cluster::coordinator(1);
        let output = cluster.server(0).arg("--mlock").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(said.contains("cannot lock"), "{said}");
        return;
    }
    drop(region);
    let [few, many] = grows(&["--mlock"]);
    let rows = (ROWS[1] - ROWS[0]) * DIM as u64 * 4 / 1024;
    println!("KiB present and locked: {few:?}, then {many:?}");
    for (few, many) in few.into_iter().zip(many) {
        assert!(few.0 > 64, "rows and directories are {} KiB", few.0);
        assert_eq!((few.1, many.1), (few.0, many.0));
    }
    assert!(many[0].0 > few[0].0 + rows, "{rows} KiB of rows more");

    let [_, free] = grows(&[]);
    assert!(free[0].0 > rows);
    assert_eq!(free.map(|(_, locked)| locked), [0, 0]);
}
