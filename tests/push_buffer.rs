//! Push buffers: what is added up by key and pushed together is what direct pushes give, once.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails; what it saw is part of its result"
)]

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidewater::{
    Client, ClientError, Init, JoinOptions, PullOptions, PushBuffer, PushOp, Reduce, SyncMode,
    Table, TableBuilder,
};
use tidewater_protocol::layout::hash::mix64;
use tidewater_service::embedded::ClusterConfig;

const DIM: usize = 3;

fn pull(client: &mut Client, table: &Table<i64>, keys: &[u64]) -> Vec<i64> {
    let mut out = vec![-1; keys.len() * table.dim()];
    let how = PullOptions::default();
    client.pull_rows(table, keys, &mut out, how).unwrap();
    out
}

/// A thousand updates of few rows, in sparse tables and dense ones, whatever the limits of the buffer.
#[test]
fn sum_of_1000_updates_is_the_direct_one() {
    const KEYS: u64 = 40;
    let cluster = JoinOptions::embedded(2, 1)
        .join()
        .unwrap()
        .into_job()
        .unwrap();
    let mut client = cluster.client_of(0, SyncMode::Asp).unwrap();
    let builders: [fn(&str) -> TableBuilder; 2] = [
        |name| TableBuilder::sparse::<i64>(name, DIM as u32),
        |name| TableBuilder::rows::<i64>(name, KEYS, DIM as u32),
    ];
    for (number, of) in builders.iter().enumerate() {
        for (rows_max, bytes_max) in [(usize::MAX, usize::MAX), (7, usize::MAX), (1000, 200)] {
            let name = |kind: &str| format!("{kind} {number} {rows_max} {bytes_max}");
            let direct = client.create_table(of(&name("direct")).spec()).unwrap();
            let merged = client.create_table(of(&name("merged")).spec()).unwrap();
            let mut buffer = PushBuffer::sum(&merged)
                .rows_max(rows_max)
                .bytes_max(bytes_max);
            let before = client.counters().pushes;
            for update in 0..1000u64 {
                let keys = [mix64(update) % KEYS, mix64(update + 5000) % KEYS];
                let values: Vec<i64> = (0..2 * DIM as u64)
                    .map(|n| mix64(update << 8 | n).cast_signed())
                    .collect();
                buffer.add(&mut client, &keys, &values).unwrap();
                assert!(buffer.rows() <= rows_max && buffer.bytes() < bytes_max.saturating_add(64));
            }
            let automatic = client.counters().pushes - before;
            assert_eq!(automatic > 0, rows_max < 1000 || bytes_max < 1000);
            let ticket = buffer.flush(&mut client).unwrap();
            client.wait_applied(&ticket).unwrap();
            assert_eq!((buffer.rows(), buffer.bytes()), (0, 0));
            for update in 0..1000u64 {
                let keys = [mix64(update) % KEYS, mix64(update + 5000) % KEYS];
                let values: Vec<i64> = (0..2 * DIM as u64)
                    .map(|n| mix64(update << 8 | n).cast_signed())
                    .collect();
                let pushed = client.push_rows(&direct, &keys, &values, PushOp::Sum);
                let _ = pushed.unwrap();
            }
            client.flush().unwrap();
            let keys: Vec<u64> = (0..KEYS).collect();
            let (one, other) = (
                pull(&mut client, &direct, &keys),
                pull(&mut client, &merged, &keys),
            );
            assert_eq!(one, other, "{}", name("tables"));
        }
    }
}

/// Least and greatest values of three workers, merged at each before they are pushed, and sums with a weight that
/// makes their average. Tables of ticks take sums and gradients only.
#[test]
fn least_greatest_and_average_values_merge() {
    const WORKERS: u32 = 3;
    let cluster = JoinOptions::embedded(2, WORKERS);
    let cluster = cluster.join().unwrap().into_job().unwrap();
    let mut clients = [0, 1, 2].map(|rank| cluster.client_of(rank, SyncMode::Asp).unwrap());
    let spec = |name: &str| TableBuilder::sparse::<f64>(name, 1);
    let first = &mut clients[0];
    for (name, value) in [("least", 1e9), ("greatest", -1e9), ("average", 0.0)] {
        let spec = spec(name).init(Init::Constant(value), 1);
        first.create_table::<f64>(spec.spec()).unwrap();
    }
    let value = |rank: u32, n: u64| (mix64(u64::from(rank) << 32 | n) % 1000) as f64 - 500.0;
    for (rank, client) in (0..).zip(&mut clients) {
        let [least, greatest, average] =
            ["least", "greatest", "average"].map(|name| client.open_table::<f64>(name).unwrap());
        let buffers = [
            PushBuffer::min(&least),
            PushBuffer::max(&greatest),
            PushBuffer::sum(&average).weight(1.0 / f64::from(WORKERS)),
        ];
        for mut buffer in buffers {
            for n in 0..300 {
                buffer.add(client, &[n % 7], &[value(rank, n)]).unwrap();
            }
            assert_eq!(buffer.rows(), 7);
            let ticket = buffer.flush(client).unwrap();
            client.wait_applied(&ticket).unwrap();
        }
    }
    let keys: Vec<u64> = (0..7).collect();
    let client = &mut clients[1];
    let mut pulled = |name: &str| {
        let table = client.open_table::<f64>(name).unwrap();
        let mut out = vec![0.0; 7];
        client
            .pull_rows(&table, &keys, &mut out, PullOptions::default())
            .unwrap();
        out
    };
    let (least, greatest, average) = (pulled("least"), pulled("greatest"), pulled("average"));
    for key in 0..7 {
        let of_key = || (0..WORKERS).flat_map(|r| (key..300).step_by(7).map(move |n| value(r, n)));
        let at = key as usize;
        assert_eq!(least[at], of_key().fold(f64::INFINITY, f64::min));
        assert_eq!(greatest[at], of_key().fold(f64::NEG_INFINITY, f64::max));
        let mean = of_key().sum::<f64>() / f64::from(WORKERS);
        assert!((average[at] - mean).abs() < 1e-9, "{} {mean}", average[at]);
    }
    let ticks = spec("ticks").at_clock(Reduce::Sum);
    let ticks = clients[0].create_table::<f64>(ticks.spec()).unwrap();
    let mut buffer = PushBuffer::max(&ticks);
    buffer.add(&mut clients[0], &[1], &[1.0]).unwrap();
    let text = buffer.flush(&mut clients[0]).unwrap_err().to_string();
    assert!(
        text.contains("Max takes effect on arrival") && text.contains("all_reduce"),
        "{text}"
    );
    assert_eq!(buffer.clear(), 1);
}

/// Rows below the threshold stay, add up, and arrive in the end.
#[test]
fn small_remainders_arrive_in_the_end() {
    let cluster = JoinOptions::embedded(1, 1)
        .join()
        .unwrap()
        .into_job()
        .unwrap();
    let mut client = cluster.client_of(0, SyncMode::Asp).unwrap();
    let spec = TableBuilder::sparse::<i64>("sums", 1);
    let table = client.create_table::<i64>(spec.spec()).unwrap();
    let mut buffer = PushBuffer::sum(&table).threshold(10.0);
    for step in 1..=30 {
        // 4, 8, 12: row 1 passes at each third step; row 2 always; row 3 never.
        buffer.add(&mut client, &[1, 2, 3], &[4, -10, 0]).unwrap();
        let ticket = buffer.flush(&mut client).unwrap();
        client.wait_applied(&ticket).unwrap();
        assert_eq!(buffer.rows(), if step % 3 == 0 { 1 } else { 2 });
        let passed = step - step % 3;
        let expected = [4 * passed, -10 * step, 0];
        assert_eq!(pull(&mut client, &table, &[1, 2, 3]), expected);
    }
    buffer.add(&mut client, &[3], &[5]).unwrap();
    let ticket = buffer.flush_all(&mut client).unwrap();
    client.wait_applied(&ticket).unwrap();
    assert_eq!(pull(&mut client, &table, &[3]), [5]);
    assert_eq!(buffer.clear(), 0);
}

/// A flush that meets its deadline has sent some frames. Repeated, it sends the others, and each row
/// counts once.
#[test]
fn repeated_flush_pushes_each_row_once() {
    const ROWS: u64 = 60_000;
    let cluster = JoinOptions::from(ClusterConfig {
        workers: 2,
        pending_bytes: 0,
        ..ClusterConfig::default()
    });
    let cluster = cluster.join().unwrap().into_job().unwrap();
    let [mut first, mut early] = [0, 1].map(|rank| cluster.client_of(rank, SyncMode::Bsp).unwrap());
    let spec = TableBuilder::sparse::<i64>("sums", 4).at_clock(Reduce::Sum);
    first.create_table::<i64>(spec.spec()).unwrap();
    let table = early.open_table::<i64>("sums").unwrap();
    let mut buffer = PushBuffer::sum(&table)
        .rows_max(usize::MAX)
        .bytes_max(usize::MAX);
    let keys: Vec<u64> = (0..ROWS).collect();
    let values: Vec<i64> = (0..4 * ROWS).map(|n| n as i64).collect();
    buffer.add(&mut early, &keys, &values).unwrap();
    // The pushes of rank 1 wait in its ring until rank 0 has ticked: the ring becomes full.
    early.set_timeout(Duration::from_millis(300));
    let error = buffer.flush(&mut early).unwrap_err();
    assert!(matches!(error, ClientError::Deadline { .. }), "{error}");
    let left = buffer.rows() as u64;
    assert!((1..ROWS).contains(&left), "{left} rows are left");
    first.tick().unwrap();
    early.set_timeout(Duration::from_secs(60));
    let ticket = buffer.flush(&mut early).unwrap();
    early.wait_applied(&ticket).unwrap();
    early.tick().unwrap();
    assert_eq!(pull(&mut early, &table, &keys), values);
}

/// A refused push of a full buffer fails a later call; lengths and keys are checked before they are
/// merged.
#[test]
fn wrong_updates_are_reported() {
    let cluster = JoinOptions::embedded(1, 1)
        .join()
        .unwrap()
        .into_job()
        .unwrap();
    let mut client = cluster.client_of(0, SyncMode::Asp).unwrap();
    let spec = TableBuilder::rows::<f32>("rows", 10, 2);
    let table = client.create_table::<f32>(spec.spec()).unwrap();
    let mut buffer = PushBuffer::gradient(&table).rows_max(2);
    for (keys, values) in [
        (&[1][..], &[1.0][..]),
        (&[10], &[1.0, 2.0]),
        (&[1, 2], &[1.0; 2]),
    ] {
        let error = buffer.add(&mut client, keys, values).unwrap_err();
        assert!(matches!(error, ClientError::Argument { .. }), "{error}");
        assert_eq!(buffer.rows(), 0);
    }
    let nan = [f32::NAN, 0.0, 1.0, 1.0];
    buffer.add(&mut client, &[1, 2], &nan).unwrap();
    let refused = loop {
        if let Err(e) = buffer.add(&mut client, &[3, 4], &[1.0; 4]) {
            break e;
        }
    };
    assert!(
        refused.to_string().contains("row 0 (key 1) holds NaN"),
        "{refused}"
    );
    let ticket = buffer.flush(&mut client).unwrap();
    client.wait_applied(&ticket).unwrap();
    let ranges = TableBuilder::range::<f32>("ranges", 10, 2);
    let ranges = client.create_table::<f32>(ranges.spec()).unwrap();
    let error = PushBuffer::sum(&ranges).add(&mut client, &[1], &[1.0; 2]);
    let text = error.unwrap_err().to_string();
    assert!(text.contains("use push_range"), "{text}");
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Only a buffer that is dropped with rows says so.
#[test]
fn dropped_rows_are_logged() {
    let cluster = JoinOptions::embedded(1, 1)
        .join()
        .unwrap()
        .into_job()
        .unwrap();
    let mut client = cluster.client_of(0, SyncMode::Asp).unwrap();
    let spec = TableBuilder::sparse::<i64>("sums", 1);
    let table = client.create_table::<i64>(spec.spec()).unwrap();
    for (is_cleared, warnings) in [(true, 0), (false, 1)] {
        let log = Log::default();
        let sink = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || sink.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let mut buffer = PushBuffer::sum(&table);
            buffer.add(&mut client, &[1, 2, 3], &[1, 1, 1]).unwrap();
            if is_cleared {
                assert_eq!(buffer.clear(), 3);
            }
        });
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert_eq!(
            text.matches("push buffer dropped").count(),
            warnings,
            "{text}"
        );
    }
}
