//! A coordinator without a free descriptor for another connection.

use std::net::TcpStream;
use std::time::Duration;

use tidewater::{Client, PullOptions, TableBuilder};
use tidewater_launch::TransportChoice;
use tidewater_protocol::table::PushOp;
use tidewater_runtime::clock::{self, Deadline};

use crate::by_hand::Cluster;
use crate::proc::Process;
use crate::rig::LIMIT;

/// Limit of open files for the process under test.
const FILES: usize = 64;

/// Opens silent connections until the process has no descriptor left.
fn crowd(process: &Process, address: &str) -> Vec<TcpStream> {
    let stranger = |_| TcpStream::connect(address).unwrap();
    let strangers = (0..2 * FILES).map(stranger).collect();
    let limit = Deadline::after(LIMIT);
    // A process that fails to accept and closes a stranger has one free descriptor again.
    while process.open_files() < FILES - 1 {
        assert!(!limit.passed(), "{} files", process.open_files());
        std::thread::sleep(Duration::from_millis(1));
    }
    strangers
}

fn check(client: &mut Client) {
    let table = TableBuilder::sparse::<f32>("rows", 4);
    let table = client.create_table::<f32>(table.spec()).unwrap();
    let pushed = client.push_rows(&table, &[7], &[1.0; 4], PushOp::Sum);
    client.wait_applied(&pushed.unwrap()).unwrap();
    let mut out = [0.0; 4];
    client
        .pull_rows(&table, &[7], &mut out, PullOptions::default())
        .unwrap();
    assert_eq!(out, [1.0; 4]);
}

/// It leaves new connections in the backlog, retries only now and then, and serves again as soon as
/// descriptors are free.
#[test]
fn coordinator_without_descriptors_waits_for_some() {
    const WHILE: Duration = Duration::from_secs(1);
    let mut cluster = Cluster::limited(1, FILES);
    let coordinator = cluster.processes().pop().unwrap();
    let strangers = crowd(&coordinator, &cluster.address);
    // A loop of failing accepts would use a whole core.
    let (began, before) = (clock::now(), coordinator.cpu_ms());
    std::thread::sleep(WHILE);
    let used = coordinator.cpu_ms() - before;
    let took = began.elapsed();
    assert!(
        u128::from(used) < took.as_millis() / 2,
        "it used a core for {used} ms of {took:?}"
    );
    drop(strangers);
    cluster.servers.push(cluster.server(0).spawn().unwrap());
    check(&mut cluster.client(TransportChoice::Shm));
}
