//! Guarantees that only a defect would break. Each test here detects one mutant (the table in
//! docs/TESTING.md), and passes without it.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on fails; what it saw is part of its result"
)]

use tidewater::{Client, PullMode, PullOptions, SyncMode, Table, TableBuilder};
use tidewater_engine::apply::engine::Engine;
use tidewater_lanes::fabric::TransportKind::{Shm, Tcp};
use tidewater_protocol::table::{PushOp, Reduce};
use tidewater_runtime::clock;
use tidewater_testkit::threads::Cluster;

fn pull(client: &mut Client, table: &Table<i64>, keys: &[u64]) -> Vec<i64> {
    let mut out = vec![0; keys.len() * table.dim()];
    client
        .pull_rows(table, keys, &mut out, PullOptions::default())
        .unwrap();
    out
}

/// A repeated frame at a later position in the ring is skipped and not applied.
#[test]
fn a_frame_that_comes_twice_is_applied_once() {
    for transport in [Shm, Tcp] {
        let cluster = Cluster::start(transport, 1, 1, 2);
        let mut client = cluster.client(0, SyncMode::Asp);
        let spec = TableBuilder::sparse::<i64>("t", 2);
        let table = client.create_table::<i64>(spec.spec()).unwrap();
        let mut raw = cluster.raw(1);
        let frame = |seq| raw.push(table.id().0, seq, &[7], &[1, 10]);
        let (first, second) = (frame(1), frame(2));
        let mut tail = raw.send(0, &first);
        assert_eq!(raw.wait_consumed(tail).applied_seq, 1);
        tail = raw.send(tail, &first);
        assert_eq!(raw.wait_consumed(tail).applied_seq, 1, "{transport}");
        assert_eq!(pull(&mut client, &table, &[7]), [1, 10], "{transport}");
        // Both in one batch, and a new frame after them: the ring stays in step.
        tail = raw.send(tail, &[first, second.clone(), second].concat());
        let state = raw.wait_consumed(tail);
        assert_eq!((state.applied_seq, state.rejected), (2, 0), "{transport}");
        assert_eq!(pull(&mut client, &table, &[7]), [2, 20], "{transport}");
    }
}

/// A pull of rows from mapped memory that waits for nothing reads no clock: that takes 20 ns, a pull of one row 50.
#[test]
fn pulls_from_mapped_memory_read_no_clock() {
    let cluster = Cluster::start(Shm, 1, 1, 1);
    let mut client = cluster.client(0, SyncMode::Asp);
    let rows = TableBuilder::rows::<i64>("rows", 64, 2);
    let sparse = TableBuilder::sparse::<i64>("sparse", 2);
    for spec in [rows, sparse] {
        let table = client.create_table::<i64>(spec.spec()).unwrap();
        let push = client
            .push_rows(&table, &[7], &[1, 10], PushOp::Sum)
            .unwrap();
        client.wait_applied(&push).unwrap();
        // The first pull asks the server for the location.
        assert_eq!(pull(&mut client, &table, &[7]), [1, 10]);
        // Each read of a virtual clock advances it.
        let at = clock::now();
        clock::set_virtual(Some(at));
        for _ in 0..100 {
            assert_eq!(pull(&mut client, &table, &[7]), [1, 10]);
        }
        let after = clock::virtual_now();
        clock::set_virtual(None);
        assert_eq!(after, Some(at), "{table:?}");
    }
}

/// A reply of an earlier request in the same slot does not answer the next request.
#[test]
fn an_old_reply_in_the_slot_answers_nothing() {
    for transport in [Shm, Tcp] {
        let cluster = Cluster::start(transport, 1, 1, 1);
        let mut client = cluster.client(0, SyncMode::Asp);
        let spec = TableBuilder::sparse::<i64>("t", 1);
        let table = client.create_table::<i64>(spec.spec()).unwrap();
        let keys: Vec<u64> = (1..200).collect();
        let values: Vec<i64> = (1..200).collect();
        let ticket = client
            .push_rows(&table, &keys, &values, PushOp::Sum)
            .unwrap();
        client.wait_applied(&ticket).unwrap();
        let gather = PullOptions::default().mode(PullMode::Gather);
        for key in keys {
            let mut out = [0];
            client.pull_rows(&table, &[key], &mut out, gather).unwrap();
            assert_eq!(out, [key as i64], "{transport}");
        }
    }
}

/// Rows are removed and their slots hold other keys. A push with the old locations reaches its own
/// keys and leaves the other keys unchanged.
#[test]
fn a_push_by_a_stale_location_reaches_its_own_key() {
    const ROWS: u64 = 2_000;
    for transport in [Shm, Tcp] {
        let cluster = Cluster::start(transport, 1, 1, 2);
        let mut holder = cluster.client(0, SyncMode::Asp);
        let spec = TableBuilder::sparse::<i64>("t", 1).partitions(4);
        let table = holder.create_table::<i64>(spec.spec()).unwrap();
        let old: Vec<u64> = (0..ROWS).collect();
        let new: Vec<u64> = (1_000_000..1_000_000 + ROWS).collect();
        pull(&mut holder, &table, &old);
        let (id, remove) = (table.id(), old.clone());
        let removed = cluster.servers[0]
            .applier(0)
            .with(move |engine: &mut Engine| {
                let gone = remove
                    .iter()
                    .filter(|&&k| engine.remove_row(id, k).unwrap());
                gone.count()
            });
        assert_eq!(removed.unwrap(), ROWS as usize);
        let mut other = cluster.client(1, SyncMode::Asp);
        let theirs = other.open_table::<i64>("t").unwrap();
        pull(&mut other, &theirs, &new);
        let ticket = holder
            .push_rows(&table, &old, &vec![1; old.len()], PushOp::Sum)
            .unwrap();
        holder.wait_applied(&ticket).unwrap();
        let stolen = pull(&mut other, &theirs, &new);
        let wrong = stolen.iter().filter(|&&v| v != 0).count();
        assert_eq!(wrong, 0, "{transport}: {wrong} rows of other keys changed");
        let own = pull(&mut other, &theirs, &old);
        assert!(own.iter().all(|&v| v == 1), "{transport}: a push was lost");
    }
}

/// A reader that sees the new clock sees the pushes that it closes, including the last row of many.
#[test]
fn the_clock_moves_after_its_pushes_took_effect() {
    // So many that applying them takes longer than the notice of the clock.
    const ELEMENTS: usize = 1 << 20;
    const LOOKED_AT: usize = 256;
    let cluster = Cluster::start(Shm, 1, 1, 1);
    let mut client = cluster.client(0, SyncMode::Bsp);
    let spec = TableBuilder::range::<i64>("t", ELEMENTS as u64, 1)
        .at_clock(Reduce::Sum)
        .partitions(1);
    let table = client.create_table::<i64>(spec.spec()).unwrap();
    let ones = vec![1; ELEMENTS];
    let mut out = [0; LOOKED_AT];
    for clock in 1..=50 {
        let ticket = client.push_range(&table, 0, &ones, PushOp::Sum).unwrap();
        client.wait_applied(&ticket).unwrap();
        client.tick().unwrap();
        let last = (ELEMENTS - LOOKED_AT) as u64;
        client
            .pull_range(&table, last, &mut out, PullOptions::default())
            .unwrap();
        assert_eq!(out, [clock; LOOKED_AT], "read at clock {clock}");
    }
}
