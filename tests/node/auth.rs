//! Authentication: admitted connections, and the refusals of all others.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tidewater::ClientError;
use tidewater::TableBuilder;
use tidewater::connect::ConnectConfig;
use tidewater_launch::TransportChoice;
use tidewater_protocol::ids::{ClusterId, Incarnation, TableId};
use tidewater_protocol::wire::control::{ServerRequest, encode};
use tidewater_protocol::wire::frame::{self, HEADER_BYTES, kind};
use tidewater_protocol::wire::handshake::{ClientHandshake, JobToken, Namespaces};
use tidewater_protocol::wire::hello::{Features, Hello, Ids, Purpose, Role};
use tidewater_protocol::wire::refusal::RefusalCode;
use tidewater_service::server::{Server, ServerError};

use tidewater_testkit::sockets::{BOTH, CLUSTER, Rig, config, info, token};

fn hello(rig: &Rig) -> Hello {
    Hello {
        features: Features::default(),
        ids: Ids {
            cluster: CLUSTER,
            epoch: 1,
            incarnation: rig.handle().incarnation(),
        },
        namespace: "default".into(),
        role: Role::Worker,
        rank: 0,
        purpose: Purpose::Control,
        random: [9; 32],
    }
}

/// Reads all bytes until the server closes or is silent for a while.
fn drain(stream: &mut TcpStream) -> Vec<u8> {
    stream
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let (mut all, mut bytes) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        all.extend_from_slice(&bytes[..count]);
    }
    all
}

#[test]
fn each_wrong_claim_has_its_own_error() {
    let mut node = config();
    node.namespaces = Namespaces::Only(vec!["default".into()]);
    let rig = Rig::with(node);
    for transport in *BOTH {
        let good = ConnectConfig {
            transport,
            ..ConnectConfig::new(token(), CLUSTER, 0)
        };
        let refusal = |config: &ConnectConfig| match rig.link(config).map(drop) {
            Err(ClientError::Refused(no)) => no.code,
            other => panic!("{transport:?}: {other:?}"),
        };
        let mut config = good.clone();
        config.cluster = ClusterId(5);
        assert_eq!(refusal(&config), RefusalCode::WrongCluster);
        config = good.clone();
        config.epoch = 7;
        assert_eq!(refusal(&config), RefusalCode::WrongEpoch);
        config = good.clone();
        config.namespace = "elsewhere".into();
        assert_eq!(refusal(&config), RefusalCode::WrongNamespace);
        let mut member = rig.member();
        member.incarnation = Incarnation(3);
        match rig.client_at(&member, &good) {
            Err(ClientError::Refused(no)) => {
                assert_eq!(no.code, RefusalCode::WrongIncarnation);
                // Both sides are named: asked for, and here.
                assert_eq!(no.numbers[..2], [3, rig.member().incarnation.0]);
            }
            other => panic!("{other:?}"),
        }
        config = good.clone();
        config.token = JobToken::new([8; 32]);
        let error = rig.link(&config).map(drop).unwrap_err();
        assert!(
            error.to_string().contains("TIDEWATER_TOKEN_FILE"),
            "{error}"
        );
        rig.link(&good)
            .unwrap()
            .0
            .detach(tidewater_testkit::sockets::soon())
            .unwrap();
    }
    // The epoch advances with the membership.
    rig.handle().set_epoch(7);
    let mut config = ConnectConfig::new(token(), CLUSTER, 1);
    config.epoch = 7;
    rig.link(&config).unwrap();
}

#[test]
fn another_version_is_told_both() {
    let rig = Rig::start();
    let mut stream = TcpStream::connect(&rig.member().endpoints.tcp).unwrap();
    let mut bytes = Vec::new();
    ClientHandshake::start(&token(), hello(&rig), &mut bytes).unwrap();
    let mut body = bytes.split_off(HEADER_BYTES);
    body[..4].copy_from_slice(&99u32.to_le_bytes());
    let mut out = Vec::new();
    frame::append(&mut out, kind::HELLO, &body).unwrap();
    stream.write_all(&out).unwrap();
    let told = drain(&mut stream);
    let refused = tidewater_protocol::wire::hello::Refused::decode(&told[HEADER_BYTES..]).unwrap();
    assert_eq!(refused.refusal.code, RefusalCode::Version);
    assert_eq!(refused.refusal.numbers[..2], [1, 99]);
}

#[test]
fn nothing_is_told_before_the_proof() {
    let rig = Rig::start();
    let handle = rig.handle();
    let spec = TableBuilder::sparse::<f32>("the secret table", 2);
    handle
        .create_table("default", &info(&handle, 1, spec.spec()))
        .unwrap();
    let mut bytes = Vec::new();
    ClientHandshake::start(&JobToken::new([8; 32]), hello(&rig), &mut bytes).unwrap();
    let mut rest = Vec::new();
    frame::append(&mut rest, kind::PROOF, &[0; 32]).unwrap();
    let table = TableId(1);
    encode(1, &ServerRequest::Describe { table }, &mut rest).unwrap();
    // With the proof, and without it.
    for skip in [0, HEADER_BYTES + 32] {
        let mut stream = TcpStream::connect(&rig.member().endpoints.tcp).unwrap();
        stream.write_all(&bytes).unwrap();
        stream.write_all(&rest[skip..]).unwrap();
        let told = drain(&mut stream);
        // A challenge of 40 bytes and a refusal of 40 without text.
        assert_eq!(told.len(), 2 * (HEADER_BYTES + 40), "{told:?}");
        let incarnation = handle.incarnation().0.to_le_bytes();
        assert!(!told.windows(8).any(|w| w == incarnation));
    }
}

#[test]
fn silent_peers_are_closed_and_hold_nobody_up() {
    let mut node = config();
    node.handshake = Duration::from_millis(400);
    let rig = Rig::with(node);
    let at = rig.member().endpoints.tcp;
    let mut bytes = Vec::new();
    ClientHandshake::start(&token(), hello(&rig), &mut bytes).unwrap();
    let mut silent: Vec<TcpStream> = (0..60).map(|_| TcpStream::connect(&at).unwrap()).collect();
    for (n, stream) in silent.iter_mut().enumerate() {
        // Nothing, half a hello, a hello without a proof.
        let some = [0, bytes.len() / 2, bytes.len()][n % 3];
        stream.write_all(&bytes[..some]).unwrap();
    }
    for (rank, transport) in (0..).zip(*BOTH) {
        let mut client = rig.client(transport, rank);
        let spec = TableBuilder::sparse::<f32>(&format!("{transport:?}"), 1);
        client.create_table::<f32>(spec.spec()).unwrap();
    }
    for stream in &mut silent {
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let end = std::io::copy(stream, &mut std::io::sink());
        assert!(end.is_ok_and(|told| told <= 80), "not closed");
    }
    assert!(rig.handle().status().unwrap().connections <= 2);
}

#[test]
fn strangers_beyond_the_limit_push_out_the_oldest() {
    let rig = Rig::start();
    let at = rig.member().endpoints.tcp;
    let limit = tidewater_protocol::limits::UNAUTHENTICATED_CONNECTIONS_MAX;
    let mut crowd: Vec<TcpStream> = (0..limit + 20)
        .map(|_| TcpStream::connect(&at).unwrap())
        .collect();
    crowd[0]
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    assert_eq!(
        crowd[0].read(&mut [0; 8]).unwrap(),
        0,
        "the oldest is closed"
    );
    tidewater_testkit::sockets::wait(
        || rig.handle().status().unwrap().connections <= limit,
        "no limit",
    );
    rig.link(&ConnectConfig {
        transport: TransportChoice::Tcp,
        ..ConnectConfig::new(token(), CLUSTER, 0)
    })
    .unwrap();
}

#[test]
fn a_port_in_use_says_what_to_do() {
    let rig = Rig::start();
    let mut second = config();
    second.tcp = Some(rig.member().endpoints.tcp.parse().unwrap());
    let error = Server::start(second).unwrap_err();
    assert!(matches!(error, ServerError::Listen { .. }));
    assert!(error.to_string().contains("choose another port"), "{error}");
}

#[test]
fn a_rank_has_one_session_a_thread() {
    let rig = Rig::start();
    let config = ConnectConfig::new(token(), CLUSTER, 1);
    let (_first, _lanes) = rig.link(&config).unwrap();
    match rig.link(&config).map(drop) {
        Err(ClientError::Refused(no)) => assert_eq!(no.code, RefusalCode::RankTaken),
        other => panic!("{other:?}"),
    }
    let other = ConnectConfig {
        thread: 1,
        ..config
    };
    rig.link(&other).unwrap();
}
