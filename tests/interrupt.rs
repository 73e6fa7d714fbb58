//! A waiting call ends when the program's hook requests it, and the client stays usable.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;
use tidewater_runtime::sync::{AtomicBool, Ordering};

use tidewater::{Client, ClientError, PullOptions, SyncMode, TableBuilder, interrupt};
use tidewater_engine::apply::command::Command;
use tidewater_lanes::fabric::TransportKind::{Shm, Tcp};
use tidewater_protocol::table::PushOp;
use tidewater_runtime::clock::Deadline;
use tidewater_testkit::faults::{Faults, seed};
use tidewater_testkit::threads::Cluster;

static STOP: AtomicBool = AtomicBool::new(false);

/// Calls `wait`, requests its end while it waits, and expects the return long before its deadline.
fn interrupted(client: &mut Client, wait: impl FnOnce(&mut Client) -> Result<(), ClientError>) {
    let asks = std::thread::spawn(|| {
        std::thread::sleep(Duration::from_millis(200));
        STOP.store(true, Ordering::Release);
    });
    let error = wait(client).unwrap_err();
    asks.join().unwrap();
    STOP.store(false, Ordering::Release);
    assert!(matches!(error, ClientError::Interrupted { .. }), "{error}");
    assert!(error.to_string().contains("interrupted"), "{error}");
}

/// Waits end on request. Catches `TIDEWATER_MUTANT=interrupt-ignored`.
#[test]
fn waits_end_on_request_and_client_goes_on() {
    interrupt::install(|| STOP.load(Ordering::Acquire)).unwrap();
    for transport in [Shm, Tcp] {
        let cluster = Cluster::start(transport, 1, 1, 2);
        let mut client = cluster.client(0, SyncMode::Bsp);
        let table = TableBuilder::sparse::<i64>("t", 1);
        let table = client.create_table::<i64>(table.spec()).unwrap();
        client.set_clock_timeout(Duration::from_secs(20));
        // Worker 1 never ticks: the second tick waits for it.
        interrupted(&mut client, |client| {
            let deadline = Deadline::after(Duration::from_secs(20));
            while !deadline.passed() {
                client.tick()?;
            }
            Ok(())
        });
        let ticket = client.push_rows(&table, &[7], &[1], PushOp::Sum).unwrap();
        client.wait_applied(&ticket).unwrap();
        pull_ends_on_request(&cluster);
        recovery_ends_on_request(&cluster);
        client.finish().unwrap();
    }
}

/// A pull from a server that does not answer ends on request, and the next pull has its rows. (Over shared memory no
/// pull waits.)
fn pull_ends_on_request(cluster: &Cluster) {
    let mut client = cluster.client(1, SyncMode::Asp);
    let table = client.open_table::<i64>("t").unwrap();
    let mut out = [0];
    let options = PullOptions {
        timeout: Duration::from_secs(20),
        ..PullOptions::default()
    };
    client.pull_rows(&table, &[7], &mut out, options).unwrap();
    if cluster.transport == Tcp {
        let (holds, released) = std::sync::mpsc::channel::<()>();
        let wait = Command::With(Box::new(move |_| {
            assert!(released.recv().is_err(), "nothing is sent");
        }));
        cluster.servers[0].applier(0).send(wait).unwrap();
        interrupted(&mut client, |client| {
            client
                .pull_rows(&table, &[7], &mut [0], options)
                .map(|_| ())
        });
        drop(holds);
    }
    client.pull_rows(&table, &[7], &mut out, options).unwrap();
    assert_eq!(out, [1]);
}

/// A call that recovers a lane again and again ends on request.
fn recovery_ends_on_request(cluster: &Cluster) {
    let faults = Faults::new(seed(), 1);
    let mut client = cluster.client_with(1, SyncMode::Asp, move |lane| faults.wrap(lane, true));
    client.set_timeout(Duration::from_secs(20));
    let table = client.open_table::<i64>("t").unwrap();
    interrupted(&mut client, |client| {
        let ticket = client.push_rows(&table, &[8], &[1], PushOp::Sum)?;
        client.wait_applied(&ticket)
    });
}
