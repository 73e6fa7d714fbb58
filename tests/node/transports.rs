//! Selection of a session's transport: the log line about the others, and the error if the requested
//! one is missing.
//!
//! Hosts with RDMA and hosts without run these tests. If it matters, the requested device is one that
//! no host has. Tests that need a device are ignored on hosts that may have none.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidewater::connect::{ConnectConfig, NetServerLink};
use tidewater::link::ServerLink;
use tidewater::{Client, ClientError, PullOptions, TableBuilder};
use tidewater_lanes::fabric::TransportKind;
use tidewater_lanes::wake::OsParker;
use tidewater_launch::{RdmaDevice, TransportChoice};
use tidewater_protocol::table::PushOp;
use tidewater_protocol::wire::control::ServerMember;

use tidewater_testkit::sockets::{CLUSTER, Rig, config, soon, token};

fn no_such_device() -> Option<RdmaDevice> {
    Some("nosuch0".parse().unwrap())
}

/// The server's record as a client on another host sees it.
fn elsewhere(rig: &Rig) -> ServerMember {
    let mut member = rig.member();
    member.host_id = "another".into();
    member
}

fn wants(transport: TransportChoice) -> ConnectConfig {
    ConnectConfig {
        transport,
        ..ConnectConfig::new(token(), CLUSTER, 0)
    }
}

/// Opens and ends a session; returns its transport.
fn open(at: &ServerMember, config: &ConnectConfig) -> Result<TransportKind, ClientError> {
    let mut parker = OsParker::new(Duration::ZERO).unwrap();
    let (link, lanes) = NetServerLink::open(at, config, &mut parker, soon())?;
    let kind = link.transport();
    assert!(lanes.iter().all(|open| open.lane.transport() == kind));
    link.detach(soon()).unwrap();
    Ok(kind)
}

/// Runs `act` on this thread; returns its log at level info.
pub(crate) fn logged<T>(act: impl FnOnce() -> T) -> (T, String) {
    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);
    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let sink = Sink::default();
    let writer = sink.clone();
    let lines = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::INFO)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let done = tracing::subscriber::with_default(lines, act);
    let bytes = sink.0.lock().unwrap().clone();
    (done, String::from_utf8(bytes).unwrap())
}

/// Checks for one line about the lanes that holds all of `parts`.
fn one_line(log: &str, parts: &[&str]) {
    let lines: Vec<&str> = log.lines().filter(|l| l.contains("lanes over")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    for part in parts {
        assert!(lines[0].contains(part), "no {part:?} in {log}");
    }
}

/// Cause of missing RDMA in this build on this host: not built in, no device, or none of that name.
fn says_why_no_rdma(text: &str) -> bool {
    let reasons = [
        "without the cargo feature",
        "no RDMA here",
        "nosuch0 does not exist",
    ];
    reasons.iter().any(|reason| text.contains(reason))
}

#[test]
fn on_one_host_auto_takes_shared_memory() {
    let rig = Rig::start();
    let config = wants(TransportChoice::Auto);
    let (kind, log) = logged(|| open(&rig.member(), &config));
    assert_eq!(kind.unwrap(), TransportKind::Shm);
    one_line(&log, &["one host"]);
}

#[test]
fn between_hosts_without_rdma_auto_takes_tcp_and_says_why() {
    let rig = Rig::start();
    let mut config = wants(TransportChoice::Auto);
    config.rdma_device = no_such_device();
    let (kind, log) = logged(|| open(&elsewhere(&rig), &config));
    assert_eq!(kind.unwrap(), TransportKind::Tcp);
    one_line(
        &log,
        &["lanes over tcp", "no_shm", "share no kernel", "no_verbs"],
    );
    assert!(says_why_no_rdma(&log), "{log}");

    let mut deaf = rig.member();
    deaf.endpoints.unix = "tidewater-nobody-listens-here".into();
    let (kind, log) = logged(|| open(&deaf, &config));
    assert_eq!(kind.unwrap(), TransportKind::Tcp);
    one_line(&log, &["lanes over tcp", "Connection refused"]);
}

#[test]
fn shared_memory_that_cannot_be_had_is_refused_with_what_is_missing() {
    let rig = Rig::start();
    let mut deaf = rig.member();
    deaf.endpoints.unix = "tidewater-nobody-listens-here".into();
    for member in [elsewhere(&rig), deaf] {
        let error = open(&member, &wants(TransportChoice::Shm)).unwrap_err();
        assert!(matches!(error, ClientError::Environment(_)), "{error}");
        assert!(error.to_string().contains("--transport"), "{error}");
    }
}

#[test]
fn rdma_that_cannot_be_had_is_refused_with_what_is_missing() {
    let rig = Rig::start();
    let mut config = wants(TransportChoice::Verbs);
    config.rdma_device = no_such_device();
    // Also on one host, although shared memory is available there.
    for member in [rig.member(), elsewhere(&rig)] {
        let (error, log) = logged(|| open(&member, &config).unwrap_err());
        assert!(matches!(error, ClientError::Environment(_)), "{error}");
        let text = error.to_string();
        for part in ["TIDEWATER_TRANSPORT=verbs", "server 0", "--transport"] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
        assert!(says_why_no_rdma(&text), "{text}");
        assert!(!log.contains("lanes over"), "{log}");
    }
    rig.wait_for_sessions(0);
}

#[test]
fn a_server_that_does_not_listen_on_tcp_is_named() {
    let rig = Rig::start();
    let mut no_tcp = rig.member();
    no_tcp.endpoints.tcp = String::new();
    for transport in [TransportChoice::Tcp, TransportChoice::Verbs] {
        let error = open(&no_tcp, &wants(transport)).unwrap_err();
        assert!(matches!(error, ClientError::Environment(_)), "{error}");
        assert!(
            error.to_string().contains("does not listen on TCP"),
            "{error}"
        );
    }
}

/// Pushes and pulls; returns the transport.
fn works(mut client: Client) -> TransportKind {
    let spec = TableBuilder::sparse::<i64>("t", 4);
    let table = client.create_table::<i64>(spec.spec()).unwrap();
    let keys: Vec<u64> = (0..200).collect();
    let values: Vec<i64> = (0..800).collect();
    let ticket = client
        .push_rows(&table, &keys, &values, PushOp::Assign)
        .unwrap();
    client.wait_applied(&ticket).unwrap();
    let mut out = vec![0; 800];
    let options = PullOptions::default();
    client.pull_rows(&table, &keys, &mut out, options).unwrap();
    assert_eq!(out, values);
    client.transport().unwrap()
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn verbs_are_taken_between_hosts_and_where_they_are_asked_for() {
    let rig = Rig::start();
    let auto = wants(TransportChoice::Auto);
    let (client, log) = logged(|| rig.client_at(&elsewhere(&rig), &auto).unwrap());
    assert_eq!(works(client), TransportKind::Verbs);
    one_line(&log, &["lanes over verbs", "share no kernel"]);

    let chosen = ConnectConfig {
        rank: 1,
        ..wants(TransportChoice::Verbs)
    };
    let client = rig.client_at(&rig.member(), &chosen).unwrap();
    assert_eq!(works(client), TransportKind::Verbs);
    rig.wait_for_sessions(0);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn verbs_that_the_server_lacks_are_refused_by_its_words() {
    let mut node = config();
    node.rdma_device = no_such_device();
    let rig = Rig::with(node);
    let error = open(&rig.member(), &wants(TransportChoice::Verbs)).unwrap_err();
    let text = error.to_string();
    for part in [
        "TIDEWATER_TRANSPORT=verbs",
        "not offered",
        "nosuch0 does not exist",
        "rxe0",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let auto = wants(TransportChoice::Auto);
    let (kind, log) = logged(|| open(&elsewhere(&rig), &auto));
    assert_eq!(kind.unwrap(), TransportKind::Tcp);
    one_line(&log, &["lanes over tcp", "nosuch0 does not exist"]);
}
