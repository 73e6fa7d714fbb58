//! Authenticated peers that misbehave: other clients stay unaffected.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use tidewater::connect::ConnectConfig;
use tidewater::{PullOptions, TableBuilder};
use tidewater_control::conn::{ConnError, ControlConn};
use tidewater_launch::TransportChoice;
use tidewater_protocol::ids::{ApplierId, RegionKey, SessionId};
use tidewater_protocol::layout::session::MAILBOX_BYTES;
use tidewater_protocol::table::PushOp;
use tidewater_protocol::wire::control::{
    Attach, Attached, PairAddr, Remote, ServerAnswer, ServerRequest, Transport, VerbsConnect,
    VerbsEnd, VerbsLink, encode,
};
use tidewater_protocol::wire::handshake::HandshakeError;
use tidewater_protocol::wire::hello::{Features, Hello, Ids, Purpose, Role};
use tidewater_protocol::wire::refusal::RefusalCode;

use tidewater_testkit::sockets::{BOTH, CLUSTER, Rig, token};

pub(crate) fn left() -> Duration {
    Duration::from_secs(10)
}

pub(crate) fn connect(
    rig: &Rig,
    rank: u32,
    purpose: Purpose,
) -> Result<ControlConn<TcpStream>, ConnError> {
    let stream = TcpStream::connect(&rig.member().endpoints.tcp).unwrap();
    let mut random = [0; 32];
    random[..8]
        .copy_from_slice(&tidewater_protocol::layout::hash::mix64(rank.into()).to_le_bytes());
    let hello = Hello {
        features: Features::default(),
        ids: Ids {
            cluster: CLUSTER,
            epoch: 1,
            incarnation: rig.handle().incarnation(),
        },
        namespace: "default".into(),
        role: Role::Worker,
        rank,
        purpose,
        random,
    };
    ControlConn::open(stream, &token(), hello, left)
}

pub(crate) fn attach(rig: &Rig, rank: u32) -> (ControlConn<TcpStream>, Attached) {
    let mut conn = connect(rig, rank, Purpose::Control).unwrap();
    let attach = Attach {
        transport: Transport::Tcp,
        ring_bytes: 64 << 10,
        thread: 0,
        workers: 0,
        reason: String::new(),
        ports: Vec::new(),
        failed_paths: Vec::new(),
    };
    match conn.call(&ServerRequest::Attach(attach), left).unwrap() {
        ServerAnswer::Attached(attached) => (conn, attached),
        other => panic!("{other:?}"),
    }
}

/// A valid-looking client end of a lane over verbs.
fn verbs_lane() -> VerbsConnect {
    let pair = |qpn| PairAddr { qpn, psn: 1 };
    VerbsConnect {
        applier: ApplierId(0),
        nonce: 1,
        end: VerbsEnd {
            link: VerbsLink::Ethernet,
            gid: [1; 16],
            lid: 0,
            mtu: 1024,
            reads: 1,
            reads_out: 1,
            receives: 16,
            pairs: (17..19).map(pair).collect(),
            pkey: 0xffff,
            ece: None,
        },
        mailbox: Remote {
            key: RegionKey(1),
            address: 0,
            len: MAILBOX_BYTES as u64,
        },
        atomics: false,
    }
}

pub(crate) fn lane(attached: &Attached, applier: u16) -> Purpose {
    Purpose::Lane {
        session: attached.session,
        applier: ApplierId(applier),
        nonce: attached.lanes[usize::from(applier)].nonce,
    }
}

/// Runs a client that works before and after `harm`.
pub(crate) fn unharmed(rig: &Rig, harm: impl FnOnce()) {
    let mut clients = [(0, BOTH[0]), (1, BOTH[1])].map(|(rank, t)| rig.client(t, rank));
    let mut tables = Vec::new();
    for (n, client) in clients.iter_mut().enumerate() {
        let spec = TableBuilder::sparse::<i64>(&format!("t{n}"), 1);
        tables.push(client.create_table::<i64>(spec.spec()).unwrap());
    }
    let mut work = |expected: i64| {
        for (client, table) in clients.iter_mut().zip(&tables) {
            let keys: Vec<u64> = (0..32).collect();
            let ticket = client
                .push_rows(table, &keys, &[1; 32], PushOp::Sum)
                .unwrap();
            client.wait_applied(&ticket).unwrap();
            let mut out = [0; 32];
            client
                .pull_rows(table, &keys, &mut out, PullOptions::default())
                .unwrap();
            assert_eq!(out, [expected; 32]);
            assert_eq!(client.counters().recoveries, 0);
        }
    };
    work(1);
    harm();
    work(2);
}

#[test]
fn a_lane_is_connected_once_and_by_its_own_client() {
    let rig = Rig::start();
    let (_conn, attached) = attach(&rig, 0);
    let refused = |rank, purpose| match connect(&rig, rank, purpose).map(drop) {
        Err(ConnError::Handshake(HandshakeError::RefusedByPeer(no))) => no.code,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(1, lane(&attached, 0)), RefusalCode::UnknownSession);
    let Purpose::Lane {
        session,
        applier,
        nonce,
    } = lane(&attached, 0)
    else {
        return;
    };
    let (other, far) = (SessionId(session.0 ^ 1), ApplierId(7));
    assert_eq!(
        refused(
            0,
            Purpose::Lane {
                session: other,
                applier,
                nonce
            }
        ),
        RefusalCode::UnknownSession
    );
    assert_eq!(
        refused(
            0,
            Purpose::Lane {
                session,
                applier: far,
                nonce
            }
        ),
        RefusalCode::UnknownApplier
    );
    let guess = nonce ^ 1;
    assert_eq!(
        refused(
            0,
            Purpose::Lane {
                session,
                applier,
                nonce: guess
            }
        ),
        RefusalCode::BadRequest
    );
    let _lane = connect(&rig, 0, lane(&attached, 0)).unwrap();
    assert_eq!(refused(0, lane(&attached, 0)), RefusalCode::BadRequest);
}

#[test]
fn nonsense_after_the_proof_ends_the_speaker_only() {
    let rig = Rig::start();
    unharmed(&rig, || {
        let mut seed = 1u64;
        for n in 0..40 {
            let (mut conn, attached) = attach(&rig, 2);
            let mut noise = Vec::new();
            for _ in 0..300 {
                seed = tidewater_protocol::layout::hash::mix64(seed);
                noise.extend_from_slice(&seed.to_le_bytes());
            }
            if n % 2 == 0 {
                let mut stream = connect(&rig, 2, lane(&attached, n % 4 / 2))
                    .unwrap()
                    .into_parts()
                    .0;
                let _ = stream.write_all(&noise);
            } else {
                let _ = conn.stream_mut().write_all(&noise);
            }
            // The session's slot is free again when the server sees its connection closed.
            let _ = conn.call(&ServerRequest::Detach, left);
            drop(conn);
            tidewater_testkit::sockets::wait(
                || rig.handle().status().unwrap().connections <= 2,
                "the speaker is not ended",
            );
        }
    });
}

#[test]
fn requests_out_of_place_are_refused_and_the_connection_lives() {
    let rig = Rig::start();
    unharmed(&rig, || {
        let mut conn = connect(&rig, 2, Purpose::Control).unwrap();
        let mut refused = |request| match conn.call(&request, left) {
            Err(ConnError::Refused(no)) => no.code,
            other => panic!("{other:?}"),
        };
        let attach = |transport| {
            ServerRequest::Attach(Attach {
                transport,
                ring_bytes: 64 << 10,
                thread: 0,
                workers: 0,
                reason: String::new(),
                ports: Vec::new(),
                failed_paths: Vec::new(),
            })
        };
        let session = SessionId(5);
        assert_eq!(refused(ServerRequest::Detach), RefusalCode::BadRequest);
        assert_eq!(
            refused(ServerRequest::Recover {
                applier: ApplierId(0)
            }),
            RefusalCode::BadRequest
        );
        assert_eq!(
            refused(ServerRequest::Resume { session }),
            RefusalCode::UnknownSession
        );
        assert_eq!(refused(attach(Transport::Shm)), RefusalCode::BadRequest);
        assert_eq!(refused(attach(Transport::Sim)), RefusalCode::BadTransport);
        // Queue pairs for a missing lane, and for a lane of another connection.
        let queue_pairs = || ServerRequest::ConnectVerbs(verbs_lane());
        assert_eq!(refused(queue_pairs()), RefusalCode::BadRequest);
        assert!(conn.call(&attach(Transport::Tcp), left).is_ok());
        match conn.call(&queue_pairs(), left) {
            Err(ConnError::Refused(no)) => assert_eq!(no.code, RefusalCode::BadRequest),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_session_is_not_resumed_by_another_rank() {
    let rig = Rig::start();
    let (_conn, attached) = attach(&rig, 0);
    let session = attached.session;
    let mut thief = connect(&rig, 1, Purpose::Control).unwrap();
    match thief.call(&ServerRequest::Resume { session }, left) {
        Err(ConnError::Refused(no)) => assert_eq!(no.code, RefusalCode::UnknownSession),
        other => panic!("{other:?}"),
    }
    // Its own client takes it over, and the previous connection is closed.
    let mut own = connect(&rig, 0, Purpose::Control).unwrap();
    own.call(&ServerRequest::Resume { session }, left).unwrap();
    tidewater_testkit::sockets::wait(
        || rig.handle().status().unwrap().connections == 2,
        "both live",
    );
    assert_eq!(rig.handle().status().unwrap().sessions, 1);
}

#[test]
fn who_asks_and_does_not_read_is_cut_off() {
    let rig = Rig::start();
    let handle = rig.handle();
    let spec = TableBuilder::rows::<f32>("w", 5000, 2).partitions(4096);
    handle
        .create_table(
            "default",
            &tidewater_testkit::sockets::info(&handle, 70, spec.spec()),
        )
        .unwrap();
    unharmed(&rig, || {
        let mut conn = connect(&rig, 2, Purpose::Control).unwrap();
        let mut requests = Vec::new();
        let table = tidewater_protocol::ids::TableId(70);
        for id in 1..2000 {
            encode(id, &ServerRequest::Describe { table }, &mut requests).unwrap();
        }
        let _ = conn.stream_mut().write_all(&requests);
        let before = rig.handle().status().unwrap().connections;
        assert!(before <= 3);
        tidewater_testkit::sockets::wait(
            || rig.handle().status().unwrap().connections == 2,
            "not cut off",
        );
    });
}

#[test]
fn a_frame_of_nonsense_ends_one_lane_and_recovery_is_told_where_it_stands() {
    let rig = Rig::start();
    let config = ConnectConfig {
        transport: TransportChoice::Shm,
        ring_bytes: 64 << 10,
        ..ConnectConfig::new(token(), CLUSTER, 2)
    };
    unharmed(&rig, || {
        use tidewater::link::ServerLink;
        use tidewater_lanes::fabric::{INBOX_KEY, RemoteAddr};
        use tidewater_protocol::layout::lines::CheckedU64;
        let (mut link, mut lanes) = rig.link(&config).unwrap();
        let [value, checksum] = CheckedU64::new(4096, link.session().0).0;
        let cell = [value.to_le_bytes(), checksum.to_le_bytes()].concat();
        let tail = RemoteAddr {
            key: INBOX_KEY,
            addr: 0,
        };
        // 4096 bytes of zeros are no frame.
        lanes[0].lane.write_signal(tail, &cell).unwrap();
        tidewater_testkit::sockets::wait(|| lanes[0].lane.poll().is_err(), "the lane lives");
        lanes[1].lane.poll().unwrap();
        let open = link
            .recover(ApplierId(0), tidewater_testkit::sockets::soon())
            .unwrap();
        assert_eq!(open.state.head_bytes, 0);
        let mut lane = open.lane;
        lane.poll().unwrap();
    });
}

/// The address in a grant holds the status record of its session: on a new lane and on a recovered one.
#[test]
fn granted_status_is_the_sessions_state_line() {
    use tidewater::link::{OpenLane, ServerLink};
    use tidewater_lanes::fabric::{ReadDest, ReadOp};
    use tidewater_protocol::layout::lines::StateLine;
    use tidewater_protocol::layout::{LINE_BYTES, line_from_bytes};
    let rig = Rig::start();
    for (rank, transport) in (0..).zip(BOTH.iter().copied()) {
        let config = ConnectConfig {
            transport,
            ..ConnectConfig::new(token(), CLUSTER, rank)
        };
        let (mut link, mut lanes) = rig.link(&config).unwrap();
        let salt = link.session().0;
        let holds_state = |open: &mut OpenLane| {
            let mut line = [0; LINE_BYTES];
            let into = ReadDest {
                head: &mut [],
                body: &mut line,
            };
            let op = ReadOp::of_body(open.status.unwrap(), LINE_BYTES).unwrap();
            open.lane
                .read(&[op], into, tidewater_testkit::sockets::soon())
                .unwrap();
            let state = StateLine::from_line(&line_from_bytes(&line), salt);
            assert_eq!(state, Some(StateLine::default()), "{transport:?}");
        };
        lanes.iter_mut().for_each(holds_state);
        let places: Vec<u64> = lanes.iter().map(|l| l.status.unwrap().addr).collect();
        assert_ne!(places[0], places[1]);
        let mut open = link
            .recover(ApplierId(1), tidewater_testkit::sockets::soon())
            .unwrap();
        assert_eq!(open.status.map(|at| at.addr), Some(places[1]));
        holds_state(&mut open);
    }
}
