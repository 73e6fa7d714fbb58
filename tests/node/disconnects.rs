//! Cut connections: lanes, control connections, and permanent cuts.

use std::sync::mpsc;
use std::time::Duration;

use tidewater::connect::ConnectConfig;
use tidewater::link::ServerLink;
use tidewater::{ClientError, PullOptions, TableBuilder};
use tidewater_launch::TransportChoice;
use tidewater_protocol::ids::{ApplierId, TableId};
use tidewater_protocol::table::PushOp;
use tidewater_protocol::wire::control::{ServerAnswer, ServerRequest};
use tidewater_protocol::wire::hello::Purpose;
use tidewater_protocol::wire::refusal::RefusalCode;

use crate::hostile::{attach, connect, lane, left};
use tidewater_testkit::proxy::Gateway;
use tidewater_testkit::sockets::{BOTH, CLUSTER, Rig, alone, config, info, soon, token, wait};

/// Pushes ones while `cut` cuts connections; every push counts once.
fn ledger(cut: impl Fn(&Gateway, u32)) {
    let rig = Rig::start();
    let mut member = rig.member();
    let proxy = Gateway::to(&member.endpoints.tcp);
    member.endpoints.tcp.clone_from(&proxy.address);
    let mut config = ConnectConfig::new(token(), CLUSTER, 0);
    config.transport = TransportChoice::Tcp;
    let mut client = rig.client_at(&member, &config).unwrap();
    let spec = TableBuilder::sparse::<i64>("ledger", 1);
    let table = client.create_table::<i64>(spec.spec()).unwrap();
    let keys: Vec<u64> = (0..64).collect();
    let rounds = 60;
    for round in 0..rounds {
        let ticket = client
            .push_rows(&table, &keys, &[1; 64], PushOp::Sum)
            .unwrap();
        cut(&proxy, round);
        if round % 3 == 0 {
            client.wait_applied(&ticket).unwrap();
        }
    }
    let ticket = client
        .push_rows(&table, &keys, &[0; 64], PushOp::Sum)
        .unwrap();
    client.wait_applied(&ticket).unwrap();
    let mut out = [0i64; 64];
    client
        .pull_rows(&table, &keys, &mut out, PullOptions::default())
        .unwrap();
    assert_eq!(out, [i64::from(rounds); 64]);
    assert!(client.counters().recoveries > 0, "nothing was recovered");
}

#[test]
fn a_cut_lane_is_recovered_and_every_push_counts_once() {
    ledger(|proxy, round| {
        if round % 4 == 1 {
            // Control is connection 0; the newest is a lane.
            proxy.cut(proxy.count() - 1);
        }
    });
}

#[test]
fn with_everything_cut_at_once_every_push_counts_once() {
    ledger(|proxy, round| {
        if round % 7 == 1 {
            (0..proxy.count()).for_each(|n| proxy.cut(n));
        }
    });
}

#[test]
fn a_cut_control_connection_is_resumed() {
    let rig = Rig::start();
    let handle = rig.handle();
    let spec = TableBuilder::rows::<f32>("w", 10, 2);
    handle
        .create_table("default", &info(&handle, 1, spec.spec()))
        .unwrap();
    let proxy = Gateway::to(&rig.member().endpoints.tcp);
    let mut member = rig.member();
    member.endpoints.tcp.clone_from(&proxy.address);
    let mut config = ConnectConfig::new(token(), CLUSTER, 0);
    config.transport = BOTH[1];
    let mut parker = tidewater_lanes::wake::OsParker::new(Duration::ZERO).unwrap();
    let open = tidewater::connect::NetServerLink::open;
    let (mut link, _lanes) = open(&member, &config, &mut parker, soon()).unwrap();
    for _ in 0..3 {
        (0..proxy.count()).for_each(|n| proxy.cut(n));
        assert_eq!(link.describe(TableId(1), soon()).unwrap().id, TableId(1));
    }
    assert_eq!(handle.status().unwrap().sessions, 1);
}

#[test]
fn recovering_a_lane_is_idempotent() {
    let rig = Rig::start();
    for (rank, transport) in (0..).zip(*BOTH) {
        let config = ConnectConfig {
            transport,
            ..ConnectConfig::new(token(), CLUSTER, rank)
        };
        let (mut link, lanes) = rig.link(&config).unwrap();
        let mut last = None;
        for _ in 0..5 {
            let open = link.recover(ApplierId(1), soon()).unwrap();
            assert_eq!(open.state, lanes[1].state, "nothing was pushed");
            last = Some(open);
        }
        last.unwrap().lane.poll().unwrap();
        match link.recover(ApplierId(9), soon()).map(|_| ()) {
            Err(ClientError::Refused(no)) => assert_eq!(no.code, RefusalCode::UnknownApplier),
            other => panic!("{other:?}"),
        }
    }
}

/// An applier that takes long to end a lane keeps the requests of its client waiting, and of no other. While it
/// ends, the nonce of before connects nothing.
#[test]
fn slow_recovery_delays_its_client_only() {
    let rig = Rig::start();
    let handle = rig.handle();
    let spec = TableBuilder::rows::<f32>("w", 10, 2);
    let table = info(&handle, 1, spec.spec());
    handle.create_table("default", &table).unwrap();
    let (mut slow, attached) = attach(&rig, 0);
    let (begun_tx, begun) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            handle.with_engine(ApplierId(1), move |_| {
                begun_tx.send(()).unwrap();
                // The sender is dropped: this is the release.
                let _ = released.recv();
            })
        });
        begun.recv().unwrap();
        let applier = ApplierId(1);
        let recover = ServerRequest::Recover { applier };
        let number = slow.start(&recover, left).unwrap();
        let mut other = connect(&rig, 1, Purpose::Control).unwrap();
        let table = TableId(1);
        match other.call(&ServerRequest::Describe { table }, left) {
            Ok(ServerAnswer::Table(table)) => assert_eq!(table.id, TableId(1)),
            answered => panic!("{answered:?}"),
        }
        let early = connect(&rig, 0, lane(&attached, 1));
        assert!(early.is_err(), "the lane of before was connected");
        drop(release);
        busy.join().unwrap().unwrap();
        let recovered = loop {
            match slow.poll::<ServerRequest>(number, left).unwrap() {
                None => {}
                Some(ServerAnswer::Recovered(recovered)) => break recovered,
                answered => panic!("{answered:?}"),
            }
        };
        assert_eq!(recovered.lane.applier, applier);
        assert_ne!(recovered.lane.nonce, attached.lanes[1].nonce);
    });
}

#[test]
fn a_session_whose_linger_is_over_is_gone_and_its_number_free() {
    let mut node = config();
    node.linger = Duration::from_millis(30);
    let rig = Rig::with(node);
    for transport in *BOTH {
        let config = ConnectConfig {
            transport,
            ..ConnectConfig::new(token(), CLUSTER, 0)
        };
        drop(rig.link(&config).unwrap());
        rig.wait_for_sessions(0);
    }
    // Two servers at once would exclude the test that counts descriptors, and be excluded by it.
    drop(rig);
    // Within the linger a restarted client takes the place of its predecessor.
    let mut node = config();
    node.linger = Duration::from_secs(60);
    let rig = Rig::with(node);
    let config = ConnectConfig::new(token(), CLUSTER, 0);
    for _ in 0..5 {
        let link = wait_for_place(&rig, &config);
        drop(link);
    }
    assert_eq!(rig.handle().status().unwrap().sessions, 1);
}

fn wait_for_place(rig: &Rig, config: &ConnectConfig) -> tidewater::connect::NetServerLink {
    let mut link = None;
    wait(
        || {
            link = rig.link(config).ok();
            link.is_some()
        },
        "the place stays taken",
    );
    link.unwrap().0
}

#[test]
fn sessions_leave_neither_descriptors_nor_memory() {
    let mut node = config();
    node.linger = Duration::from_millis(5);
    alone(node, |rig| {
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let round = || {
            for rank in 0..3 {
                for transport in *BOTH {
                    let config = ConnectConfig {
                        transport,
                        ..ConnectConfig::new(token(), CLUSTER, rank)
                    };
                    let (mut link, lanes) = rig.link(&config).unwrap();
                    let again = link.recover(ApplierId(0), soon()).unwrap();
                    drop((link, lanes, again));
                    rig.wait_for_sessions(0);
                }
            }
        };
        // The first round allocates the lasting state.
        round();
        wait(
            || rig.handle().status().unwrap().connections == 0,
            "connections stay",
        );
        let (fds, used) = (open(), rig.handle().status().unwrap().public_bytes.0);
        for _ in 0..5 {
            round();
        }
        wait(|| open() <= fds, "descriptors leak");
        let mapped = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            maps.contains("tidewater-inbox") || maps.contains("tidewater-mailbox")
        };
        wait(|| !mapped(), "sessions' memory stays mapped");
        // A session may start while the status records of its predecessor are being freed.
        let grown = rig.handle().status().unwrap().public_bytes.0 - used;
        assert!(grown <= 2 * 2 * 64, "{grown} bytes leak in 30 sessions");
    });
}
