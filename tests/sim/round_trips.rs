//! Dependent round trips of each call, counted in virtual time: the network has a latency of 5 ms each
//! way, and nothing else takes time.

use std::time::Duration;

use tidewater::{
    Client, Missing, PullMode, PullOptions, SyncMode, Table as ClientTable, TableBuilder,
};
use tidewater_lanes::sim::{Distance, Faults};
use tidewater_protocol::table::{PushOp, Reduce};
use tidewater_runtime::clock;

use tidewater_testkit::sim::{Rig, Shape, open};

const ONE_WAY: Duration = Duration::from_millis(5);
const DIM: usize = 8;
/// Elements of a range of 4 MiB.
const ELEMENTS: usize = 1 << 20;
const ROWS: u64 = 512;

/// Counts of one run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Trips {
    unknown_keys: u64,
    rows: u64,
    rows_hogwild: u64,
    rows_gathered: u64,
    /// Initial values of keys that no server knows.
    rows_initial: u64,
    range: u64,
    range_hogwild: u64,
    range_gathered: u64,
    /// Part of a range that begins inside a word.
    range_odd: u64,
    snapshot: u64,
}

/// Number of round trips that `call` waits for, one after the other.
fn count<T>(call: impl FnOnce() -> T) -> u64 {
    let begun = clock::now();
    call();
    let trips = (clock::now() - begun).as_secs_f64() / (2.0 * ONE_WAY.as_secs_f64());
    let whole = trips.round();
    assert!((trips - whole).abs() < 0.2, "{trips} round trips");
    whole as u64
}

fn pull_rows(
    client: &mut Client,
    table: &ClientTable<f32>,
    from: u64,
    options: PullOptions,
) -> u64 {
    let keys: Vec<u64> = (from..from + ROWS).collect();
    let mut out = vec![f32::NAN; keys.len() * DIM];
    let trips = count(|| client.pull_rows(table, &keys, &mut out, options).unwrap());
    assert!(out.iter().all(|&value| value == 0.0), "{options:?}");
    trips
}

fn pull_range(
    client: &mut Client,
    table: &ClientTable<f32>,
    first: usize,
    mode: PullMode,
    of: fn(usize) -> f32,
) -> u64 {
    let mut out = vec![f32::NAN; ELEMENTS - first];
    let options = PullOptions::default().mode(mode);
    let trips = count(|| {
        client
            .pull_range(table, first as u64, &mut out, options)
            .unwrap()
    });
    let wrong = (first..).zip(&out).find(|&(n, &value)| value != of(n));
    assert_eq!(wrong, None, "{mode:?} from {first}");
    trips
}

fn measure(client: &mut Client) -> Trips {
    let rows = open(client, "rows");
    let range = open(client, "range");
    let snapshots = open(client, "snapshots");
    let values: Vec<f32> = (0..ELEMENTS).map(|n| n as f32).collect();
    let pushed = client.push_range(&range, 0, &values, PushOp::Assign);
    client.wait_applied(&pushed.unwrap()).unwrap();
    let options = PullOptions::default();
    let hogwild = options.mode(PullMode::Hogwild);
    let gather = options.mode(PullMode::Gather);
    let initial = options.missing(Missing::Initial);
    let values = |n: usize| n as f32;
    Trips {
        unknown_keys: pull_rows(client, &rows, 0, options),
        rows: pull_rows(client, &rows, 0, options),
        rows_hogwild: pull_rows(client, &rows, 0, hogwild),
        rows_gathered: pull_rows(client, &rows, 0, gather),
        rows_initial: pull_rows(client, &rows, 1 << 20, initial),
        range: pull_range(client, &range, 0, PullMode::Consistent, values),
        range_hogwild: pull_range(client, &range, 0, PullMode::Hogwild, values),
        range_gathered: pull_range(client, &range, 0, PullMode::Gather, values),
        range_odd: pull_range(client, &range, 1, PullMode::Consistent, values),
        snapshot: pull_range(client, &snapshots, 0, PullMode::Snapshot, |_| 0.0),
    }
}

fn run(servers: u32, appliers: u16, reads_in_order: bool) -> Trips {
    let rows = TableBuilder::sparse::<f32>("rows", DIM as u32).partitions(64);
    let range = TableBuilder::range::<f32>("range", ELEMENTS as u64 / 1024, 1024).partitions(64);
    let snapshots = TableBuilder::range::<f32>("snapshots", ELEMENTS as u64 / 1024, 1024);
    let snapshots = snapshots.partitions(64).at_clock(Reduce::Sum).snapshot();
    let shape = Shape {
        servers,
        appliers,
        workers: 1,
        ring_bytes: 8 << 20,
    };
    let faults = Faults::distant(Distance {
        one_way: ONE_WAY,
        reads_in_order,
    });
    let tables = [rows.spec(), range.spec(), snapshots.spec()];
    let rig = Rig::new(1, faults, shape, &tables);
    let (tx, counted) = std::sync::mpsc::channel();
    rig.spawn("worker", move |rig, _| {
        let mut client = rig.client(0, 0, SyncMode::Asp);
        tx.send(measure(&mut client)).unwrap();
    });
    let outcome = rig.world.run();
    assert_eq!(outcome.failure, None);
    counted.recv().unwrap()
}

/// A call posts on all lanes before it waits for one: its round trips do not depend on the number of
/// lanes.
#[test]
fn round_trips_do_not_grow_with_lanes() {
    for (servers, appliers) in [(1, 1), (2, 2), (4, 4)] {
        let lanes = servers * u32::from(appliers);
        // Copies by servers: 16 replies of a lane, of its partitions alone or, if it has all, together. A
        // lane has slots for 8 of them.
        let range_gathered = if lanes == 16 { 1 } else { 2 };
        let tcp = Trips {
            unknown_keys: 3,
            rows: 1,
            rows_hogwild: 1,
            rows_gathered: 1,
            rows_initial: 2,
            range: 1,
            range_hogwild: 1,
            range_gathered,
            range_odd: 1,
            snapshot: 2,
        };
        // A device that holds fenced reads back: each stage of a pull is a round trip.
        let rdma = Trips {
            rows_hogwild: 2,
            range: 3,
            range_hogwild: 2,
            range_odd: 3,
            snapshot: 3,
            ..tcp
        };
        assert_eq!(run(servers, appliers, true), tcp, "{lanes} lanes, in order");
        assert_eq!(run(servers, appliers, false), rdma, "{lanes} lanes, fenced");
    }
}

/// A lane has 4 MiB of reads under way at most: 80 rows of 64 KiB take a second round trip on the lane
/// that reads into its own memory.
#[test]
fn long_pulls_go_in_bounded_parts() {
    const COLS: usize = 16 << 10;
    let table = TableBuilder::rows::<f32>("wide", 160, COLS as u32).partitions(2);
    let shape = Shape {
        servers: 2,
        appliers: 1,
        workers: 1,
        ring_bytes: 8 << 20,
    };
    let faults = Faults::distant(Distance {
        one_way: ONE_WAY,
        reads_in_order: true,
    });
    let rig = Rig::new(2, faults, shape, &[table.spec()]);
    rig.spawn("worker", move |rig, _| {
        let mut client = rig.client(0, 0, SyncMode::Asp);
        let table = open::<f32>(&mut client, "wide");
        let keys: Vec<u64> = (0..160).collect();
        let values: Vec<f32> = (0..160 * COLS).map(|n| n as f32).collect();
        let pushed = client.push_rows(&table, &keys, &values, PushOp::Assign);
        client.wait_applied(&pushed.unwrap()).unwrap();
        let mut out = vec![f32::NAN; values.len()];
        let options = PullOptions::default();
        let trips = count(|| client.pull_rows(&table, &keys, &mut out, options).unwrap());
        assert!(out == values, "rows in another order, or not placed");
        assert_eq!(trips, 2);
    });
    assert_eq!(rig.world.run().failure, None);
}
