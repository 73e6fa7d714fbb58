//! Asynchronous pulls on the transports of the host. (long: one job and carrier for all.)
//!
//! Over sound lanes with servers that pause, and over lanes that fail.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on fails; what it saw is part of its result"
)]

mod storm;

use std::sync::Arc;
use std::time::Duration;

use storm::{DIM, Seen, Storm};
use tidewater::{Client, ClientError, PullMode, PullOptions, SyncMode, Table, TableBuilder};
use tidewater_engine::apply::command::Command;
use tidewater_lanes::fabric::TransportKind::{self, Shm, Tcp, Verbs};
use tidewater_protocol::table::{PushOp, Reduce};
use tidewater_runtime::clock;
use tidewater_runtime::sync::{AtomicBool, Ordering};
use tidewater_testkit::faults::{Faults, Rng, full, seed, transports};
use tidewater_testkit::threads::Cluster;

const LONG: Duration = Duration::from_secs(60);
const KEYS: u64 = 200;
const HURRY_US: u64 = 600;

/// Stops an applier for `time`; returns when it has stopped.
fn pause(cluster: &Cluster, server: usize, time: Duration) {
    let (tx, stopped) = std::sync::mpsc::channel();
    let nap = Command::With(Box::new(move |_| {
        tx.send(()).unwrap();
        std::thread::sleep(time);
    }));
    cluster.servers[server].applier(0).send(nap).unwrap();
    stopped.recv().unwrap();
}

/// Two clients in a storm while appliers pause. One in `one_in` operations fails its lane; 0 for none.
fn storm(transport: TransportKind, seed: u64, one_in: u64) -> Seen {
    let cluster = Cluster::start(transport, 2, 1, 2);
    let faults = Faults::new(seed, one_in.max(1));
    let rounds = if full() { 50_000 } else { 4_000 };
    let over = AtomicBool::new(false);
    let mut seen = Seen::default();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|rank| {
                let (cluster, faults) = (&cluster, faults.clone());
                scope.spawn(move || {
                    let mut client = match one_in {
                        0 => cluster.client(rank, SyncMode::Asp),
                        _ => {
                            cluster.client_with(rank, SyncMode::Asp, move |l| faults.wrap(l, false))
                        }
                    };
                    client.set_timeout(LONG);
                    let spec = TableBuilder::sparse::<i64>("t", DIM as u32);
                    let table = client.create_table(spec.spec()).unwrap();
                    let mut rng = Rng(seed ^ u64::from(rank) << 32);
                    let mut below = |n| rng.below(n);
                    let mut storm = Storm::new(client, table, (KEYS, HURRY_US), LONG, &mut below);
                    storm.run(rounds);
                    storm.seen
                })
            })
            .collect();
        let (cluster, over) = (&cluster, &over);
        scope.spawn(move || {
            let mut rng = Rng(!seed);
            while !over.load(Ordering::Relaxed) {
                let time = Duration::from_micros(rng.below(2_000));
                pause(cluster, rng.below(2) as usize, time);
                std::thread::sleep(Duration::from_micros(rng.below(2_000)));
            }
        });
        for worker in workers {
            let met = worker.join();
            over.store(true, Ordering::Relaxed);
            seen.add(met.unwrap());
        }
    });
    let broken = faults.broken();
    println!("{transport}, one in {one_in} breaks a lane: {seen:?}, {broken} lanes broken");
    assert_eq!(broken > 0, one_in > 0, "{transport}");
    seen
}

#[test]
fn late_pulls_finish_into_another_buffer() {
    for transport in transports() {
        let seen = storm(transport, seed(), 0);
        // Over shared memory a read completes when it is submitted.
        assert!(transport == Shm || seen.finished_again > 20, "{seen:?}");
    }
}

#[test]
fn late_pulls_survive_broken_lanes() {
    for transport in transports() {
        let seen = storm(transport, seed(), 60);
        assert!(transport == Shm || seen.finished_again > 0, "{seen:?}");
    }
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn late_pulls_finish_into_another_buffer_on_verbs() {
    storm(Verbs, seed(), 0);
    storm(Verbs, seed(), 60);
}

/// Stops an applier until the returned sender is dropped.
fn hold(cluster: &Cluster, server: usize) -> std::sync::mpsc::Sender<()> {
    let (holds, released) = std::sync::mpsc::channel::<()>();
    let (tx, stopped) = std::sync::mpsc::channel();
    let wait = Command::With(Box::new(move |_| {
        tx.send(()).unwrap();
        assert!(released.recv().is_err(), "nothing is sent");
    }));
    cluster.servers[server].applier(0).send(wait).unwrap();
    stopped.recv().unwrap();
    holds
}

/// A client with cached locations of `keys`, each with the row `(k, -k)`.
fn warm(cluster: &Cluster, keys: &[u64]) -> (Client, Table<f64>) {
    let mut client = cluster.client(0, SyncMode::Asp);
    client.set_timeout(LONG);
    let table = client
        .create_table::<f64>(TableBuilder::sparse::<f64>("t", 2).spec())
        .unwrap();
    let ticket = client.push_rows(&table, keys, &rows(keys), PushOp::Sum);
    client.wait_applied(&ticket.unwrap()).unwrap();
    let mut out = vec![0.0; 2 * keys.len()];
    client
        .pull_rows(&table, keys, &mut out, PullOptions::default())
        .unwrap();
    assert_eq!(out, rows(keys));
    (client, table)
}

fn rows(keys: &[u64]) -> Vec<f64> {
    let row = |&k: &u64| [k as f64, -(k as f64)];
    keys.iter().flat_map(row).collect()
}

/// One server answers, the other does not before the deadline. The first server's data is in the
/// buffer of that call, and the next call has another buffer.
#[test]
fn late_pull_moves_to_next_buffer() {
    let cluster = Cluster::start(Tcp, 2, 1, 1);
    let keys: Vec<u64> = (1..=500).collect();
    let (mut client, table) = warm(&cluster, &keys);
    let held = hold(&cluster, 1);
    let pull = client
        .start_pull_rows(&table, &keys, PullOptions::default())
        .unwrap();
    client.set_timeout(Duration::from_millis(300));
    let mut first = vec![0.5; 1_000];
    let late = client.finish_pull(pull, &mut first).unwrap_err();
    assert!(matches!(late, ClientError::Deadline { .. }), "{late}");
    // All frames are answered: the error names the server of the rows.
    assert!(late.to_string().contains("rows of server"), "{late}");
    drop(held);
    client.set_timeout(LONG);
    let mut second = vec![0.5; 1_000];
    client.finish_pull(pull, &mut second).unwrap();
    let old = second.iter().filter(|v| **v == 0.5).count();
    assert_eq!(old, 0, "elements of 1,000 that were never written");
    assert_eq!(second, rows(&keys));
}

/// Elements of the range tables below: partitions of two servers, and of several blocks.
const ELEMENTS: u64 = 40_000;

fn ranges(client: &mut Client, name: &str) -> Table<f32> {
    let spec = TableBuilder::range::<f32>(name, ELEMENTS, 1).block_bytes(4 << 10);
    client.create_table(spec.partitions(6).spec()).unwrap()
}

/// Bytes of memory that this process uses.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size()
}

/// The memory of cancelled pulls is freed while no pull is finished.
#[test]
fn cancelled_pulls_keep_no_memory() {
    const MIB: usize = 1 << 20;
    let cluster = Cluster::start(Tcp, 1, 1, 1);
    let mut client = cluster.client(0, SyncMode::Asp);
    client.set_timeout(LONG);
    let spec = TableBuilder::range::<f32>("t", MIB as u64, 1);
    let table = client.create_table::<f32>(spec.spec()).unwrap();
    for flushes in [true, false] {
        let before = resident_bytes();
        for _ in 0..150 {
            let pull = client.start_pull_range(&table, 0, MIB, PullOptions::default());
            client.cancel_pull(pull.unwrap()).unwrap();
            if flushes {
                client.flush().unwrap();
            }
            // The applier answers meanwhile.
            std::thread::sleep(Duration::from_millis(5));
        }
        let grown = resident_bytes().saturating_sub(before) / MIB;
        assert!(
            grown < 250,
            "{grown} MiB of 150 pulls of 4 MiB, flushes: {flushes}"
        );
    }
}

/// Ranges of every position, several under way, given up or finished in another order, hold what was pushed.
#[test]
fn ranges_finish_later_in_any_order() {
    for transport in [Shm, Tcp] {
        let cluster = Cluster::start(transport, 2, 1, 1);
        let mut client = cluster.client(0, SyncMode::Asp);
        client.set_timeout(LONG);
        let table = ranges(&mut client, "t");
        let all: Vec<f32> = (0..ELEMENTS).map(|n| n as f32 + 1.0).collect();
        let ticket = client.push_range(&table, 0, &all, PushOp::Assign).unwrap();
        client.wait_applied(&ticket).unwrap();
        let cuts = [
            (0, 40_000),
            (1, 39_999),
            (7, 1),
            (9_999, 20_003),
            (255, 258),
            (5, 0),
        ];
        for mode in [PullMode::Consistent, PullMode::Hogwild, PullMode::Gather] {
            let options = PullOptions {
                mode,
                ..PullOptions::default()
            };
            let before = *client.counters();
            let pulls = cuts.map(|(first, count)| {
                client
                    .start_pull_range(&table, first, count, options)
                    .unwrap()
            });
            client.cancel_pull(pulls[3]).unwrap();
            for n in [4, 1, 5, 0, 2] {
                while !client.try_pull(pulls[n]).unwrap() {
                    std::thread::yield_now();
                }
                let (first, count) = (cuts[n].0 as usize, cuts[n].1);
                let short = client.finish_pull(pulls[n], &mut vec![0f32; count + 1]);
                let text = short.unwrap_err().to_string();
                let due = format!("{} bytes where {} are due", 4 * count + 4, 4 * count);
                assert!(text.contains(&due), "{text}");
                let mut out = vec![0.5; count];
                client.finish_pull(pulls[n], &mut out).unwrap();
                assert_eq!(out, all[first..first + count], "{transport} {mode:?} {n}");
            }
            let gone = client.finish_pull(pulls[3], &mut vec![0f32; 20_003]);
            assert!(gone.unwrap_err().to_string().contains("no such pull"));
            assert_eq!(client.counters().pulls - before.pulls, 5);
        }
        let past = client.start_pull_range(&table, 39_999, 2, PullOptions::default());
        let text = past.unwrap_err().to_string();
        assert!(
            text.contains("elements 39999+2 of a table of 40000"),
            "{text}"
        );
        let rows = TableBuilder::sparse::<f32>("rows", 1);
        let rows = client.create_table::<f32>(rows.spec()).unwrap();
        let wrong = client.start_pull_range(&rows, 0, 1, PullOptions::default());
        let text = wrong.unwrap_err().to_string();
        assert!(text.contains("use start_pull_rows"), "{text}");
        let wrong = client.start_pull_rows(&table, &[1], PullOptions::default());
        let text = wrong.unwrap_err().to_string();
        assert!(text.contains("use start_pull_range"), "{text}");
    }
}

/// A pull of a snapshot that is finished later has the version of that time, as a whole.
#[test]
fn later_snapshots_are_of_one_tick() {
    let cluster = Cluster::start(Tcp, 2, 1, 1);
    let mut client = cluster.client(0, SyncMode::Bsp);
    client.set_timeout(LONG);
    let spec = TableBuilder::range::<f32>("t", ELEMENTS, 1).partitions(6);
    let spec = spec.at_clock(Reduce::Sum).snapshot();
    let table = client.create_table::<f32>(spec.spec()).unwrap();
    let options = PullOptions {
        mode: PullMode::Snapshot,
        ..PullOptions::default()
    };
    let pull = client.start_pull_range(&table, 3, 30_000, options).unwrap();
    let ones = vec![1.0; ELEMENTS as usize];
    let ticket = client.push_range(&table, 0, &ones, PushOp::Sum).unwrap();
    client.tick().unwrap();
    client.wait_applied(&ticket).unwrap();
    client.wait_until(&table, 1, LONG).unwrap();
    let mut out = vec![0.5; 30_000];
    client.finish_pull(pull, &mut out).unwrap();
    assert_eq!(out, ones[..30_000]);
}

/// As `late_pull_moves_to_next_buffer`, of a range.
#[test]
fn late_range_moves_to_next_buffer() {
    let cluster = Cluster::start(Tcp, 2, 1, 1);
    let mut client = cluster.client(0, SyncMode::Asp);
    client.set_timeout(LONG);
    let table = ranges(&mut client, "t");
    let all: Vec<f32> = (0..ELEMENTS).map(|n| n as f32 + 1.0).collect();
    let ticket = client.push_range(&table, 0, &all, PushOp::Assign).unwrap();
    client.wait_applied(&ticket).unwrap();
    for server in [0, 1] {
        let held = hold(&cluster, server);
        let pull = client.start_pull_range(&table, 0, all.len(), PullOptions::default());
        let pull = pull.unwrap();
        client.set_timeout(Duration::from_millis(300));
        let mut first = vec![0.5f32; all.len()];
        let late = client.finish_pull(pull, &mut first).unwrap_err();
        assert!(matches!(late, ClientError::Deadline { .. }), "{late}");
        drop(held);
        client.set_timeout(LONG);
        let mut second = vec![0.5f32; all.len()];
        client.finish_pull(pull, &mut second).unwrap();
        assert_eq!(second, all, "server {server} was late");
    }
    assert_eq!(client.counters().recoveries, 0, "lanes that were replaced");
}

/// A writer gives all elements of a block one value, over and over, while another client starts and finishes pulls of
/// ranges: no block mixes two. One in `one_in` operations of the reader fails its lane; 0 for none.
fn later_ranges(transport: TransportKind, one_in: u64) {
    const BLOCK: usize = 4_096 / 4;
    let cluster = Cluster::start(transport, 2, 1, 2);
    let mut writer = cluster.client(0, SyncMode::Asp);
    writer.set_timeout(LONG);
    let spec = TableBuilder::range::<f32>("t", 16 * BLOCK as u64, 1).block_bytes(4 * BLOCK as u32);
    let spec = spec.partitions(4);
    let table = writer.create_table::<f32>(spec.spec()).unwrap();
    let faults = Faults::new(seed(), one_in.max(1));
    let mut reader = match one_in {
        0 => cluster.client(1, SyncMode::Asp),
        _ => cluster.client_with(1, SyncMode::Asp, {
            let faults = faults.clone();
            move |l| faults.wrap(l, false)
        }),
    };
    reader.set_timeout(LONG);
    let rounds = if full() { 20_000 } else { 1_500 };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = &over;
        scope.spawn(move || {
            for value in 1.. {
                let values = vec![(value % 10_000) as f32; 16 * BLOCK];
                let ticket = writer
                    .push_range(&table, 0, &values, PushOp::Assign)
                    .unwrap();
                writer.wait_applied(&ticket).unwrap();
                if over.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        let table = reader.open_table::<f32>("t").unwrap();
        let mut rng = Rng(seed());
        let mut open = Vec::new();
        let mut changed = 0;
        for _ in 0..rounds {
            if open.len() < 6 {
                let first = rng.below(12 * BLOCK as u64);
                let count = 1 + rng.below(4 * BLOCK as u64) as usize;
                let pull = reader.start_pull_range(&table, first, count, PullOptions::default());
                open.push((pull.unwrap(), first as usize, count));
            }
            if rng.below(2) == 0 {
                let (pull, first, count) = open.swap_remove(rng.below(open.len() as u64) as usize);
                let mut out = vec![-1.0f32; count];
                reader.finish_pull(pull, &mut out).unwrap();
                let mut at = 0;
                while at < count {
                    let end = ((first + at) / BLOCK * BLOCK + BLOCK - first).min(count);
                    let block = &out[at..end];
                    assert!(
                        block.iter().all(|v| *v == block[0]),
                        "{transport}: a torn block"
                    );
                    assert!(
                        block[0] >= 0.0,
                        "{transport}: elements that were never written"
                    );
                    at = end;
                }
                changed += usize::from(out[0] != out[count - 1]);
            }
        }
        over.store(true, Ordering::Relaxed);
        let broken = faults.broken();
        println!("{transport}: {changed} ranges of several values, {broken} lanes broken");
        assert_eq!(broken > 0, one_in > 0, "{transport}");
    });
}

#[test]
fn later_ranges_survive_broken_lanes() {
    for transport in transports() {
        later_ranges(transport, 0);
        later_ranges(transport, 60);
    }
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn later_ranges_survive_broken_lanes_on_verbs() {
    later_ranges(Verbs, 0);
    later_ranges(Verbs, 60);
}

/// Rows without a cached location are read after the others. A deadline at that point does not lose
/// the pull, and nothing is counted twice.
#[test]
fn pull_survives_deadline_of_its_rest() {
    for transport in [Shm, Tcp] {
        let cluster = Cluster::start(transport, 2, 1, 1);
        let keys: Vec<u64> = (1..=500).collect();
        let (mut client, table) = warm(&cluster, &keys[..250]);
        let ticket = client.push_rows(&table, &keys[250..], &rows(&keys[250..]), PushOp::Sum);
        client.wait_applied(&ticket.unwrap()).unwrap();
        let pull = client
            .start_pull_rows(&table, &keys, PullOptions::default())
            .unwrap();
        // The rows with cached locations have arrived.
        while !client.try_pull(pull).unwrap() {
            std::thread::yield_now();
        }
        let before = *client.counters();
        let held = [0, 1].map(|server| hold(&cluster, server));
        client.set_timeout(Duration::from_millis(100));
        for value in [0.25, 0.5] {
            let mut out = vec![value; 1_000];
            let late = client.finish_pull(pull, &mut out).unwrap_err();
            assert!(matches!(late, ClientError::Deadline { .. }), "{late}");
        }
        drop(held);
        client.set_timeout(LONG);
        let mut out = vec![0.75; 1_000];
        client.finish_pull(pull, &mut out).unwrap();
        assert_eq!(out, rows(&keys), "{transport}");
        let counted = client.counters().rows_consistent - before.rows_consistent;
        assert_eq!(counted, 500, "{transport}: rows counted");
        let gone = client.finish_pull(pull, &mut out).unwrap_err();
        assert!(matches!(gone, ClientError::Argument { .. }), "{gone}");
    }
}

/// A pull that passes its deadline is a timeout. Its later answer is dropped, and the lane that carries
/// it stays in use.
#[test]
fn late_pull_is_timeout_and_lane_lives() {
    let cluster = Cluster::start(Tcp, 2, 1, 1);
    let keys: Vec<u64> = (1..=500).collect();
    let (mut client, table) = warm(&cluster, &keys);
    let held = hold(&cluster, 1);
    let mut late = vec![0.5; 1_000];
    let options = PullOptions {
        timeout: Duration::from_millis(50),
        ..PullOptions::default()
    };
    let e = client
        .pull_rows(&table, &keys, &mut late, options)
        .unwrap_err();
    assert!(matches!(e, ClientError::Deadline { .. }), "{e:?}");
    late.fill(0.75);
    drop(held);
    for _ in 0..3 {
        let mut out = vec![0.5; 1_000];
        client
            .pull_rows(&table, &keys, &mut out, PullOptions::default())
            .unwrap();
        assert_eq!(out, rows(&keys));
    }
    assert!(late.iter().all(|v| *v == 0.75), "a late answer landed");
    assert_eq!(client.counters().recoveries, 0, "lanes that were replaced");
}

/// Ranges of more than 4 GiB in one partition are complete in every mode.
#[test]
#[ignore = "needs 14 GiB of memory and a minute"]
fn ranges_of_more_than_4_gib_are_whole() {
    use tidewater::{ClusterConfig, JoinOptions};
    use tidewater_protocol::table::Init;
    let elements = (1u64 << 30) + (1 << 14);
    let spec = TableBuilder::range::<f32>("t", elements / 1024, 1024)
        .block_bytes(256 << 10)
        .init(Init::Constant(3.0), 1)
        .partitions(1);
    for (mode, spec) in [
        (PullMode::Hogwild, spec.clone()),
        (PullMode::Consistent, spec.clone()),
        (PullMode::Snapshot, spec.at_clock(Reduce::Sum).snapshot()),
    ] {
        let config = ClusterConfig {
            capacity: 9 << 30,
            ..ClusterConfig::default()
        };
        let joined = JoinOptions::from(config).join().unwrap();
        let job = joined.into_job().unwrap();
        let mut client = job.client(SyncMode::Asp).unwrap();
        client.set_timeout(Duration::from_secs(600));
        let table = client.create_table::<f32>(spec.spec()).unwrap();
        let mut out = vec![0f32; elements as usize];
        let options = PullOptions {
            mode,
            timeout: Duration::from_secs(600),
            ..PullOptions::default()
        };
        client.pull_range(&table, 0, &mut out, options).unwrap();
        let right = out.iter().filter(|v| **v == 3.0).count();
        assert_eq!(right, out.len(), "{mode:?}");
    }
}

/// Prints the times of pulls over TCP with a round trip of 10 ms, on 1, 4 and 16 lanes. Their number of
/// round trips is that of `tests/sim/round_trips.rs`.
#[test]
#[ignore = "a measurement of wall-clock time"]
fn distant_pulls_take_few_round_trips() {
    const ELEMENTS: usize = 1 << 20;
    for (servers, appliers) in [(1, 1), (2, 2), (4, 4)] {
        let cluster = Cluster::start(Tcp, servers, appliers, 1);
        let wiring = tidewater_testkit::threads::Wiring {
            through: Arc::new(|server| {
                tidewater_testkit::proxy::distant(server, Duration::from_millis(5))
            }),
            ..tidewater_testkit::threads::Wiring::default()
        };
        let mut client = cluster.client_over(0, SyncMode::Asp, &wiring);
        let rows = TableBuilder::sparse::<f32>("rows", 16);
        let rows = client.create_table::<f32>(rows.spec()).unwrap();
        let range = || TableBuilder::range::<f32>("range", ELEMENTS as u64 / 1024, 1024);
        let ranges = client.create_table::<f32>(range().spec()).unwrap();
        let mut snapshots = range().at_clock(Reduce::Sum).snapshot().spec().clone();
        snapshots.name = "snapshots".into();
        let snapshots = client.create_table::<f32>(&snapshots).unwrap();
        let keys: Vec<u64> = (0..1024).collect();
        let (mut some, mut all) = (vec![0.0; 1024 * 16], vec![0.0; ELEMENTS]);
        let options = PullOptions::default();
        let lanes = servers * u32::from(appliers);
        let mut time = |what: &str, call: &mut dyn FnMut(&mut Client)| {
            let begun = clock::now();
            call(&mut client);
            let ms = (clock::now() - begun).as_secs_f64() * 1e3;
            println!("{lanes} lanes, {what}: {ms:.1} ms");
        };
        for what in ["unknown keys", "rows"] {
            time(what, &mut |client| {
                client.pull_rows(&rows, &keys, &mut some, options).unwrap();
            });
        }
        time("rows, gathered", &mut |client| {
            let gather = options.mode(PullMode::Gather);
            client.pull_rows(&rows, &keys, &mut some, gather).unwrap();
        });
        for what in ["range of 4 MiB", "range of 4 MiB again"] {
            time(what, &mut |client| {
                client.pull_range(&ranges, 0, &mut all, options).unwrap();
            });
        }
        for what in ["snapshot of 4 MiB", "snapshot of 4 MiB again"] {
            time(what, &mut |client| {
                let snapshot = options.mode(PullMode::Snapshot);
                client
                    .pull_range(&snapshots, 0, &mut all, snapshot)
                    .unwrap();
            });
        }
    }
}

/// Prints the times of pulls of 1 MiB over TCP, from tables of 64 partitions and of one.
#[test]
#[ignore = "a measurement of wall-clock time"]
fn many_partitions_cost_as_much_as_one() {
    const ELEMENTS: usize = 1 << 18;
    for (servers, appliers) in [(1, 1), (1, 2)] {
        for partitions in [64, 1] {
            let cluster = Cluster::start(Tcp, servers, appliers, 1);
            let mut client = cluster.client(0, SyncMode::Asp);
            let spec = TableBuilder::range::<f32>("range", ELEMENTS as u64 / 1024, 1024);
            let spec = spec.partitions(partitions);
            let range = client.create_table::<f32>(spec.spec()).unwrap();
            let mut spec = spec.at_clock(Reduce::Sum).snapshot().spec().clone();
            spec.name = "snapshots".into();
            let snapshots = client.create_table::<f32>(&spec).unwrap();
            let mut all = vec![0.0; ELEMENTS];
            for (mode, table) in [
                (PullMode::Consistent, range),
                (PullMode::Hogwild, range),
                (PullMode::Snapshot, snapshots),
            ] {
                let options = PullOptions::default().mode(mode);
                let mut times: Vec<Duration> = (0..400)
                    .map(|_| {
                        let begun = clock::now();
                        client.pull_range(&table, 0, &mut all, options).unwrap();
                        clock::now() - begun
                    })
                    .collect();
                times.sort_unstable();
                let (best, median) = (times[0], times[200]);
                println!(
                    "{appliers} lanes, {partitions} partitions, {mode:?}: {median:?} (least {best:?})"
                );
            }
        }
    }
}
