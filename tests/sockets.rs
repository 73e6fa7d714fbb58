//! Socket options of a complete cluster over TCP inside this process. The only test of its program, so
//! that all connections of the process belong to its cluster.

#![allow(
    unsafe_code,
    reason = "asks every descriptor of the process by its number"
)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::os::fd::BorrowedFd;

use rustix::net::{AddressFamily, SocketType, sockopt};
use tidewater::{ClusterConfig, JoinOptions, PullOptions, SyncMode, TableBuilder};
use tidewater_launch::TransportChoice;
use tidewater_protocol::table::PushOp;

/// Whether Nagle's algorithm is off, for each open TCP connection of this process.
fn no_delay() -> Vec<bool> {
    let mut of = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let Ok(fd) = entry.unwrap().file_name().to_str().unwrap().parse() else {
            continue;
        };
        // SAFETY: the descriptor is used before this function returns, for queries that change
        // nothing; a descriptor closed meanwhile answers with an error.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let is_tcp = matches!(
            sockopt::socket_domain(fd),
            Ok(AddressFamily::INET | AddressFamily::INET6)
        ) && sockopt::socket_type(fd) == Ok(SocketType::STREAM);
        if is_tcp && sockopt::socket_acceptconn(fd) == Ok(false) {
            of.push(sockopt::tcp_nodelay(fd).unwrap());
        }
    }
    of
}

/// Every connection sends small messages at once: lanes and control, at both ends.
#[test]
fn tcp_connections_send_at_once() {
    let config = ClusterConfig {
        servers: 1,
        appliers: 2,
        workers: 1,
        transport: TransportChoice::Tcp,
        capacity: 64 << 20,
        ..ClusterConfig::default()
    };
    let job = JoinOptions::from(config).join().unwrap();
    let job = job.into_job().unwrap();
    let mut client = job.client(SyncMode::Asp).unwrap();
    let table = TableBuilder::sparse::<i64>("t", 1).partitions(4);
    let table = client.create_table::<i64>(table.spec()).unwrap();
    let keys: Vec<u64> = (0..64).collect();
    let ticket = client.push_rows(&table, &keys, &[1; 64], PushOp::Sum);
    client.wait_applied(&ticket.unwrap()).unwrap();
    let mut out = [0; 64];
    client
        .pull_rows(&table, &keys, &mut out, PullOptions::default())
        .unwrap();
    assert_eq!(out, [1; 64]);
    let no_delay = no_delay();
    // Two lanes, the client's connections to server and coordinator, the server's to the latter.
    assert!(no_delay.len() >= 10, "{} ends", no_delay.len());
    let delayed = no_delay.iter().filter(|&&off| !off).count();
    assert_eq!(delayed, 0, "of {} ends these delay", no_delay.len());
}
