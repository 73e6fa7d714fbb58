//! Keys that a program sees: stored or not, deleted, counted and listed.
//!
//! Row `k` of a table is pushed to with `(k, 1)` only, so it holds `(n k, n)` after `n` pushes since its
//! creation, and `(0, 0)` without a row.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidewater::{
    Client, ClientError, Expression, FunctionArgs, Missing, PullMode, PullOptions, PushEncoding,
    PushOptions, ScanCursor, SyncMode, Table, TableBuilder,
};
use tidewater_engine::apply::command::Command;
use tidewater_lanes::fabric::TransportKind::Tcp;
use tidewater_protocol::placement::partition_of_key;
use tidewater_protocol::table::{PushOp, Reduce};
use tidewater_runtime::clock::Deadline;

use super::{MODES, each_transport};
use tidewater_testkit::faults::{Faults, Rng, seed, transports};
use tidewater_testkit::threads::Cluster;

fn of(key: u64, times: i64) -> [i64; 2] {
    [(key as i64).wrapping_mul(times), times]
}

fn push(client: &mut Client, table: &Table<i64>, keys: &[u64]) {
    let values: Vec<i64> = keys.iter().flat_map(|&key| of(key, 1)).collect();
    let ticket = client.push_rows(table, keys, &values, PushOp::Sum).unwrap();
    client.wait_applied(&ticket).unwrap();
}

fn delete(client: &mut Client, table: &Table<i64>, keys: &[u64]) {
    let ticket = client.delete_keys(table, keys).unwrap();
    client.wait_applied(&ticket).unwrap();
}

fn pull(client: &mut Client, table: &Table<i64>, keys: &[u64], mode: PullMode) -> Vec<i64> {
    let mut out = vec![-1; keys.len() * 2];
    let options = PullOptions::default().mode(mode).missing(Missing::Initial);
    client.pull_rows(table, keys, &mut out, options).unwrap();
    out
}

/// Waits until all workers have completed this number of ticks. The deadline bounds a failing test.
fn reach(client: &mut Client, clock: u64) {
    let deadline = Deadline::after(Duration::from_secs(20));
    while client.global_clock().unwrap() < clock {
        assert!(!deadline.passed(), "clock {clock} is not reached");
        std::thread::yield_now();
    }
}

/// All keys of a table, each once.
fn scan(client: &mut Client, table: &Table<i64>, room: usize) -> BTreeSet<u64> {
    let (mut keys, mut cursor) = (vec![0; room], ScanCursor::default());
    let mut all = BTreeSet::new();
    loop {
        let n = client.scan_keys(table, &mut cursor, &mut keys).unwrap();
        if n == 0 {
            return all;
        }
        for key in &keys[..n] {
            assert!(all.insert(*key), "key {key} comes twice");
        }
    }
}

fn keys(first: u64, count: u64) -> Vec<u64> {
    // Key 0 and the largest key are ordinary keys.
    (first..first + count)
        .map(|k| k.wrapping_mul(u64::MAX))
        .collect()
}

/// A reader with cached locations of deleted rows, of rows that were created again, and of slots that
/// have other keys now. In no mode a pull returns a deleted row or misses a new one.
#[test]
fn deleted_rows_are_never_returned() {
    each_transport(2, 2, |cluster| {
        let mut writer = cluster.client(0, SyncMode::Asp);
        let spec = TableBuilder::sparse::<i64>("t", 2).partitions(4);
        let table = writer.create_table::<i64>(spec.spec()).unwrap();
        let mut reader = cluster.client(0, SyncMode::Asp);
        let seen = reader.open_table::<i64>("t").unwrap();
        let all = keys(0, 600);
        push(&mut writer, &table, &all);
        for mode in MODES {
            let held = pull(&mut reader, &seen, &all, mode);
            let want: Vec<i64> = all.iter().flat_map(|&key| of(key, 1)).collect();
            assert_eq!(held, want);
        }
        // Two of three rows are deleted. Half of these come back, others take slots that are free.
        let third = |n: usize| all.iter().copied().skip(n).step_by(3).collect::<Vec<_>>();
        delete(&mut writer, &table, &third(0));
        delete(&mut writer, &table, &third(1));
        // With a live row at the end, by which a Hogwild pull shows that the table exists.
        let some = [third(0), third(2)].concat();
        for mode in [MODES[1], MODES[0], MODES[2]] {
            let got = pull(&mut reader, &seen, &some, mode);
            for (n, (&key, row)) in some.iter().zip(got.chunks_exact(2)).enumerate() {
                assert_eq!(row, of(key, (n >= 200).into()), "{mode:?}: key {key}");
            }
        }
        push(&mut writer, &table, &keys(1_000, 150));
        push(&mut writer, &table, &third(1));
        for mode in MODES {
            let got = pull(&mut reader, &seen, &all, mode);
            for (n, row) in got.chunks_exact(2).enumerate() {
                let want = of(all[n], i64::from(n % 3 != 0));
                assert_eq!(row, want, "{mode:?}: key {}", all[n]);
            }
        }
        assert!(reader.counters().stale_hints > 0, "no location was stale");
        let stored = reader.exists(&seen, &all).unwrap();
        let want: Vec<bool> = (0..all.len()).map(|n| n % 3 != 0).collect();
        assert_eq!(stored, want);
        assert_eq!(reader.count_keys(&seen).unwrap(), 400 + 150);
        // A question creates nothing, a deletion of unknown keys does nothing.
        delete(&mut writer, &table, &keys(5_000, 50));
        assert_eq!(reader.exists(&seen, &keys(5_000, 50)).unwrap(), [false; 50]);
        assert_eq!(writer.count_keys(&table).unwrap(), 550);
    });
}

/// Deletions stand between the pushes of their client, and are carried out once, while lanes break.
#[test]
fn deletions_count_once_over_broken_lanes() {
    for transport in transports() {
        let cluster = Cluster::start(transport, 2, 2, 1);
        let faults = Faults::new(seed(), 12);
        let lanes = faults.clone();
        let mut client = cluster.client_with(0, SyncMode::Asp, move |lane| lanes.wrap(lane, true));
        let spec = TableBuilder::sparse::<i64>("t", 2).partitions(4);
        let table = client.create_table::<i64>(spec.spec()).unwrap();
        let mut times = BTreeMap::new();
        let mut rng = Rng(seed());
        for _ in 0..400 {
            let some = keys(rng.below(40), 1 + rng.below(4));
            match rng.below(3) {
                0 => {
                    drop(client.delete_keys(&table, &some).unwrap());
                    times.retain(|key, _| !some.contains(key));
                }
                _ => {
                    let values: Vec<i64> = some.iter().flat_map(|&key| of(key, 1)).collect();
                    drop(
                        client
                            .push_rows(&table, &some, &values, PushOp::Sum)
                            .unwrap(),
                    );
                    some.iter()
                        .for_each(|key| *times.entry(*key).or_insert(0) += 1);
                }
            }
        }
        client.flush().unwrap();
        assert_eq!(client.count_keys(&table).unwrap(), times.len() as u64);
        for (n, row) in pull(&mut client, &table, &keys(0, 50), MODES[0])
            .chunks_exact(2)
            .enumerate()
        {
            let key = keys(n as u64, 1)[0];
            let want = of(key, times.get(&key).copied().unwrap_or(0));
            assert_eq!(row, want, "key {key} over broken lanes");
        }
        assert!(faults.broken() > 10, "{} lanes broke", faults.broken());
    }
}

/// A scan returns each key that is stored all the while once, with its row, whatever room it has and
/// while other keys come and go; workers share it by partitions.
#[test]
fn scan_returns_each_stored_key_once() {
    each_transport(2, 2, |cluster| {
        let mut client = cluster.client(0, SyncMode::Asp);
        let spec = TableBuilder::sparse::<i64>("t", 2).partitions(6);
        let table = client.create_table::<i64>(spec.spec()).unwrap();
        assert_eq!(scan(&mut client, &table, 10), BTreeSet::new());
        let stays = keys(0, 3_000);
        push(&mut client, &table, &stays);
        let want: BTreeSet<u64> = stays.iter().copied().collect();
        for room in [7, 500, 10_000] {
            assert_eq!(scan(&mut client, &table, room), want, "room for {room}");
        }
        // With rows, in two shares, while other rows are created and deleted.
        let (mut room, mut rows) = (vec![0; 100], vec![0; 200]);
        let mut found = BTreeSet::new();
        for share in [0..2, 2..u32::MAX] {
            let mut cursor = ScanCursor::of_partitions(share);
            for round in 0.. {
                push(&mut client, &table, &keys(10_000 + round * 40, 80));
                delete(&mut client, &table, &keys(10_000 + round * 40, 40));
                let n = client.scan_rows(&table, &mut cursor, &mut room, &mut rows);
                let n = n.unwrap();
                if n == 0 {
                    break;
                }
                for (&key, row) in room[..n].iter().zip(rows.chunks_exact(2)) {
                    assert_eq!(row, of(key, row[1]), "key {key}");
                    assert!(!want.contains(&key) || found.insert(key), "{key} twice");
                }
            }
        }
        assert_eq!(found, want);
    });
}

/// Nothing is deleted from tables of which all rows exist; a scan needs room.
#[test]
fn tables_without_keys_refuse() {
    each_transport(1, 1, |cluster| {
        let mut client = cluster.client(0, SyncMode::Asp);
        let rows = TableBuilder::rows::<i64>("rows", 10, 2);
        let rows = client.create_table::<i64>(rows.spec()).unwrap();
        let ranges = TableBuilder::range::<i64>("ranges", 2_000, 2);
        let ranges = client.create_table::<i64>(ranges.spec()).unwrap();
        let sparse = TableBuilder::sparse::<i64>("sparse", 2);
        let sparse = client.create_table::<i64>(sparse.spec()).unwrap();
        let mut cursor = ScanCursor::default();
        for table in [&rows, &ranges] {
            let refused = [
                client.delete_keys(table, &[1]).map(drop),
                client.exists(table, &[1]).map(drop),
                client.count_keys(table).map(drop),
                client.scan_keys(table, &mut cursor, &mut [0; 4]).map(drop),
            ];
            for result in refused {
                let error = result.unwrap_err();
                assert!(matches!(error, ClientError::Argument { .. }), "{error}");
                assert!(error.to_string().contains("not sparse"), "{error}");
            }
        }
        let no_room = client.scan_keys(&sparse, &mut cursor, &mut []);
        assert!(matches!(no_room, Err(ClientError::Argument { .. })));
        let short = client.scan_rows(&sparse, &mut cursor, &mut [0; 4], &mut [0; 7]);
        assert!(matches!(short, Err(ClientError::Argument { .. })));
        assert_eq!(cursor, ScanCursor::default());
    });
}

/// At ticks: pushes before a deletion are dropped, pushes after it begin with a new row, in the order of
/// ranks and not of arrival, on any number of servers. Pushes of the next iteration that arrived before
/// the tick are not lost.
#[test]
fn deletions_of_ticks_follow_the_ranks() {
    for transport in transports() {
        for servers in [1, 2, 3] {
            let cluster = Cluster::start(transport, servers, 2, 2);
            let mut clients = [0, 1].map(|rank| cluster.client(rank, SyncMode::Ssp(2)));
            let spec = TableBuilder::sparse::<i64>("t", 2)
                .partitions(6)
                .at_clock(Reduce::Sum);
            let table = clients[0].create_table::<i64>(spec.spec()).unwrap();
            let same = clients[1].open_table::<i64>("t").unwrap();
            let [first, second] = &mut clients;
            let [a, b, c, d, e] = [10, 11, 12, 13, 14];
            push(first, &table, &[a, b, c, d]);
            first.tick().unwrap();
            second.tick().unwrap();
            reach(second, 1);
            assert_eq!(second.count_keys(&same).unwrap(), 4);
            // Rank 1 is first in time: it deletes a, pushes b, and is an iteration ahead with c.
            delete(second, &same, &[a]);
            push(second, &same, &[b, e]);
            second.tick().unwrap();
            push(second, &same, &[c]);
            // Nothing happens before the tick.
            let before = pull(first, &table, &[a, b, c], MODES[0]);
            assert_eq!(before, [of(a, 1), of(b, 1), of(c, 1)].concat());
            // Rank 0 comes first in the order: its push of a is dropped, b is deleted before rank 1's.
            push(first, &table, &[a, b]);
            delete(first, &table, &[b, c]);
            push(first, &table, &[d]);
            first.tick().unwrap();
            reach(first, 2);
            assert_eq!(
                pull(first, &table, &[a, b, c, d, e], MODES[0]),
                [[0, 0], of(b, 1), [0, 0], of(d, 2), of(e, 1)].concat(),
                "{servers} servers"
            );
            // c is stored: its push of the open iteration is held.
            let stored = first.exists(&table, &[a, b, c, d, e]).unwrap();
            assert_eq!(stored, [false, true, true, true, true]);
            // The deletions are over.
            for _ in 0..2 {
                push(first, &table, &[a, b]);
                first.tick().unwrap();
                second.tick().unwrap();
            }
            second.tick().unwrap();
            first.tick().unwrap();
            reach(second, 5);
            assert_eq!(
                pull(second, &same, &[a, b, c], MODES[1]),
                [of(a, 2), of(b, 3), of(c, 1)].concat(),
                "{servers} servers"
            );
        }
    }
}

/// A row is deleted at the tick that its key and its last push decide: the same on every run, on any number of
/// servers and appliers, whichever worker is first. Pulls do not renew it, held pushes of the next iteration
/// are not lost, and a row that comes back begins with its initial values.
#[test]
fn rows_expire_at_equal_ticks_on_any_servers() {
    const AFTER: u64 = 3;
    const PARTITIONS: u32 = 4;
    for transport in transports() {
        for (servers, first) in [(1, 0), (2, 1), (3, 0)] {
            let cluster = Cluster::start(transport, servers, 1, 2);
            let mut clients = [0, 1].map(|rank| cluster.client(rank, SyncMode::Ssp(1)));
            let spec = TableBuilder::sparse::<i64>("t", 2)
                .partitions(PARTITIONS)
                .expire_after(AFTER as u32)
                .at_clock(Reduce::Sum);
            let table = clients[0].create_table::<i64>(spec.spec()).unwrap();
            let same = clients[1].open_table::<i64>("t").unwrap();
            // Of each key the number of its pushes, and the ticks completed at the last one.
            let mut model: BTreeMap<u64, (i64, u64)> = BTreeMap::new();
            let all = keys(0, 40);
            let mut expired = 0;
            for iteration in 0..14u64 {
                for rank in [first, 1 - first] {
                    // Key n is pushed in iterations that n divides, by one worker; small keys stay.
                    let due = |&&key: &&u64| {
                        let n = key.wrapping_neg();
                        n % 2 == rank as u64 && iteration.is_multiple_of(n / 2 + 1)
                    };
                    let some: Vec<u64> = all.iter().filter(due).copied().collect();
                    for key in &some {
                        let (times, _) = model.get(key).copied().unwrap_or_default();
                        model.insert(*key, (times + 1, iteration + 1));
                    }
                    push(&mut clients[rank], [&table, &same][rank], &some);
                    clients[rank].tick().unwrap();
                }
                let ticks = iteration + 1;
                let before = model.len();
                model.retain(|&key, &mut (_, last)| {
                    let swept = u64::from(partition_of_key(key, PARTITIONS).0);
                    swept != iteration % u64::from(PARTITIONS) || ticks - last < AFTER
                });
                expired += before - model.len();
                let [reader, _] = &mut clients;
                reach(reader, ticks);
                let got = pull(reader, &table, &all, MODES[iteration as usize % 3]);
                for (key, row) in all.iter().zip(got.chunks_exact(2)) {
                    let (times, _) = model.get(key).copied().unwrap_or_default();
                    assert_eq!(row, of(*key, times), "key {key} after {ticks} ticks");
                }
                let stored = scan(reader, &table, 100);
                assert_eq!(stored, model.keys().copied().collect(), "{ticks} ticks");
            }
            assert!(expired > 20, "{expired} rows have expired");
        }
    }
}

/// A function of all rows renews none: it would keep every row for ever.
#[test]
fn functions_of_all_rows_renew_none() {
    each_transport(1, 1, |cluster| {
        let mut client = cluster.client(0, SyncMode::Bsp);
        let spec = TableBuilder::sparse::<i64>("t", 2)
            .partitions(1)
            .expire_after(3);
        let table = client.create_table::<i64>(spec.spec()).unwrap();
        push(&mut client, &table, &[7, 8]);
        let decay = Expression::parse("x").unwrap();
        for iteration in 0..8 {
            push(&mut client, &table, &[8]);
            let updated = client.update(&table, &decay, &FunctionArgs::default());
            client.wait_applied(&updated.unwrap()).unwrap();
            client.tick().unwrap();
            reach(&mut client, iteration + 1);
        }
        assert_eq!(scan(&mut client, &table, 10), BTreeSet::from([8]));
    });
}

/// A key gets its row at its third push; the pushes before are acknowledged and dropped, and no pull makes a
/// row. Keys of one frame count each on their own.
#[test]
fn keys_are_admitted_by_frequency() {
    each_transport(2, 1, |cluster| {
        let mut client = cluster.client(0, SyncMode::Asp);
        let spec = TableBuilder::sparse::<i64>("t", 2)
            .partitions(4)
            .admit_after(3);
        let table = client.create_table::<i64>(spec.spec()).unwrap();
        let (often, once) = (keys(0, 50), keys(1_000, 500));
        for times in 1..=4 {
            push(&mut client, &table, &often);
            push(&mut client, &table, &once[times * 100..][..100]);
            let mut out = vec![-1; 100];
            let create = PullOptions::default().missing(Missing::Create);
            client.pull_rows(&table, &often, &mut out, create).unwrap();
            let applied = (times as i64 - 2).max(0);
            for (key, row) in often.iter().zip(out.chunks_exact(2)) {
                assert_eq!(row, of(*key, applied), "key {key} after {times} pushes");
            }
            let stored = if applied > 0 { 50 } else { 0 };
            assert_eq!(client.count_keys(&table).unwrap(), stored);
        }
    });
}

/// Definitions with options of keys that the table cannot have are refused by the checks of both ends.
#[test]
fn options_of_keys_need_sparse_tables() {
    let dense = TableBuilder::rows::<i64>("d", 10, 2).partitions(4);
    let sparse = TableBuilder::sparse::<i64>("s", 2).partitions(4);
    let at_tick = sparse.clone().at_clock(Reduce::Sum);
    for (table, words) in [
        (
            dense.clone().expire_after(1),
            "expire_after is set on a dense",
        ),
        (dense.admit_after(2), "admit_after is set on a dense"),
        (at_tick.clone().admit_after(2), "cannot drop a push"),
    ] {
        let error = table.spec().validate().unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
    for table in [
        sparse.admit_after(255),
        at_tick.expire_after(u32::MAX).admit_after(1),
    ] {
        table.spec().validate().unwrap();
    }
}

/// A deletion that fails at one server has deleted the rows of the other: what encoded pushes of these rows have left
/// out is not part of the new rows.
#[test]
fn failed_deletion_drops_residuals() {
    let cluster = Cluster::start(Tcp, 2, 1, 1);
    let mut client = cluster.client(0, SyncMode::Asp);
    let spec = TableBuilder::sparse::<f32>("t", 1).partitions(2);
    let table = client.create_table::<f32>(spec.spec()).unwrap();
    let owners = client.partition_owners(&table).unwrap();
    let [near, far] = [0, 1].map(|server| {
        let is_there = |&key: &u64| owners[partition_of_key(key, 2).0 as usize].server.0 == server;
        (0..).find(is_there).unwrap()
    });
    let options = PushOptions::default().encoding(PushEncoding::Bf16);
    // 257 becomes 256 in bf16, and 1 is left out.
    let arrived = |client: &mut Client, value: f32| {
        let pushed = client.push_rows_with(&table, &[near], &[value], PushOp::Sum, options);
        client.wait_applied(&pushed.unwrap()).unwrap();
        let mut out = [0.0];
        let pull = PullOptions::default();
        client.pull_rows(&table, &[near], &mut out, pull).unwrap();
        out[0].to_bits()
    };
    assert_eq!(arrived(&mut client, 257.0), 256f32.to_bits());
    let (holds, released) = std::sync::mpsc::channel::<()>();
    let wait = Command::With(Box::new(move |_| {
        assert!(released.recv().is_err(), "nothing is sent");
    }));
    cluster.servers[1].applier(0).send(wait).unwrap();
    client.set_timeout(Duration::from_millis(100));
    let full = loop {
        match client.push_rows(&table, &[far], &[1.0], PushOp::Sum) {
            Ok(_) => {}
            Err(e) => break e,
        }
    };
    assert!(matches!(full, ClientError::Deadline { .. }), "{full}");
    let late = client.delete_keys(&table, &[near, far]).unwrap_err();
    assert!(matches!(late, ClientError::Deadline { .. }), "{late}");
    drop(holds);
    client.set_timeout(Duration::from_secs(60));
    client.flush().unwrap();
    assert_eq!(client.exists(&table, &[near, far]).unwrap(), [false, true]);
    assert_eq!(arrived(&mut client, 1.0), 1f32.to_bits());
}
