//! Sessions over verbs: connection and recovery of their lanes, and refusals of bad offers.

use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use tidewater::connect::ConnectConfig;
use tidewater::link::ServerLink;
use tidewater::{Client, PullOptions, TableBuilder};
use tidewater_control::conn::{ConnError, ControlConn};
use tidewater_lanes::fabric::{INBOX_KEY, LaneError, ReadDest, ReadOp, RemoteAddr};
use tidewater_lanes::wake::OsParker;
use tidewater_launch::TransportChoice;
use tidewater_protocol::ids::ApplierId;
use tidewater_protocol::layout::session::MAILBOX_BYTES;
use tidewater_protocol::mutants;
use tidewater_protocol::table::PushOp;
use tidewater_protocol::wire::control::{
    Attach, Attached, ServerAnswer, ServerRequest, Transport, VerbsConnect,
};
use tidewater_protocol::wire::hello::Purpose;
use tidewater_protocol::wire::refusal::RefusalCode;
use tidewater_runtime::clock;
use tidewater_service::server::BusyPoll;
use tidewater_verbs::{Adapter, ClientDomain, LaneOffer, Notifier, RetryTimeout};

use crate::hostile::{connect, left, unharmed};
use crate::rig::{CLUSTER, Rig, config, soon, token};

fn attach(rig: &Rig, rank: u32) -> (ControlConn<TcpStream>, Attached) {
    let mut conn = connect(rig, rank, Purpose::Control).unwrap();
    let attach = Attach {
        transport: Transport::Verbs,
        ring_bytes: 64 << 10,
        thread: 0,
        workers: 0,
        reason: String::new(),
    };
    match conn.call(&ServerRequest::Attach(attach), left).unwrap() {
        ServerAnswer::Attached(attached) => (conn, attached),
        other => panic!("{other:?}"),
    }
}

/// A client thread's RDMA side, with handwritten requests.
struct Hand {
    domain: Arc<ClientDomain>,
    notifier: Arc<Notifier>,
    _sleeper: OsParker,
}

impl Hand {
    fn new() -> Self {
        Self::at(Ipv4Addr::LOCALHOST)
    }

    fn at(address: Ipv4Addr) -> Self {
        let adapter = Adapter::for_address(IpAddr::V4(address), None).unwrap();
        let parker = OsParker::new(Duration::ZERO).unwrap();
        Self {
            domain: ClientDomain::new(&adapter, RetryTimeout::default()).unwrap(),
            notifier: Notifier::new(&adapter, parker.reactor(), parker.arms()).unwrap(),
            _sleeper: parker,
        }
    }

    fn offer(&self) -> LaneOffer {
        LaneOffer::new(&self.domain, &self.notifier, 1, MAILBOX_BYTES).unwrap()
    }
}

fn refused(conn: &mut ControlConn<TcpStream>, connect: VerbsConnect) -> RefusalCode {
    match conn.call(&ServerRequest::ConnectVerbs(connect), left) {
        Err(ConnError::Refused(no)) => no.code,
        other => panic!("{other:?}"),
    }
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_lane_is_connected_once_and_by_its_own_session() {
    let rig = Rig::start();
    unharmed(&rig, || {
        let hand = Hand::new();
        let (mut conn, attached) = attach(&rig, 2);
        let (mut other, others) = attach(&rig, 3);
        let nonce = attached.lanes[0].nonce;
        let applier = ApplierId(0);
        let offer = hand.offer();
        let code = refused(&mut conn, offer.connect(applier, nonce ^ 1));
        assert_eq!(code, RefusalCode::BadRequest, "a guessed nonce");
        let code = refused(&mut conn, offer.connect(applier, others.lanes[0].nonce));
        assert_eq!(code, RefusalCode::BadRequest, "another session's nonce");
        let code = refused(&mut other, offer.connect(applier, nonce));
        assert_eq!(code, RefusalCode::BadRequest, "another session");
        let code = refused(&mut conn, offer.connect(ApplierId(1), nonce));
        assert_eq!(code, RefusalCode::BadRequest, "another lane's nonce");
        let code = refused(&mut conn, offer.connect(ApplierId(9), nonce));
        assert_eq!(code, RefusalCode::UnknownApplier);

        let request = ServerRequest::ConnectVerbs(offer.connect(applier, nonce));
        let told = match conn.call(&request, left).unwrap() {
            ServerAnswer::VerbsConnected(told) => told,
            answer => panic!("{answer:?}"),
        };
        let lane = offer.open(&told, "server".into()).unwrap();
        let code = refused(&mut conn, hand.offer().connect(applier, nonce));
        assert_eq!(code, RefusalCode::BadRequest, "connected already");
        drop(lane);
        for conn in [&mut conn, &mut other] {
            conn.call(&ServerRequest::Detach, left).unwrap();
        }
    });
}

/// Well-formed offers with unreachable ends.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn offers_that_lead_nowhere_harm_nobody() {
    let rig = Rig::start();
    unharmed(&rig, || {
        let hand = Hand::new();
        let mut gone = Vec::new();
        for n in 0..24u32 {
            let (mut conn, attached) = attach(&rig, 2);
            let lane = &attached.lanes[0];
            let offer = hand.offer();
            let mut connect = offer.connect(lane.applier, lane.nonce);
            match n % 6 {
                // Pairs that do not exist; of another client; that were destroyed meanwhile.
                0 => connect.end.pairs[0].qpn ^= 1 << 23,
                1 => connect.end.pairs.swap(0, 1),
                2 => drop(offer),
                // A GID of another network, or of no host; memory that does not exist.
                3 => connect.end.gid = [0x20; 16],
                4 => connect.end.gid[15] ^= 0x55,
                _ => connect.mailbox.key.0 ^= 0xffff,
            }
            let answer = conn.call(&ServerRequest::ConnectVerbs(connect), left);
            match answer {
                Ok(ServerAnswer::VerbsConnected(_)) => {}
                Err(ConnError::Refused(no)) => assert_eq!(no.code, RefusalCode::BadTransport),
                other => panic!("{n}: {other:?}"),
            }
            conn.call(&ServerRequest::Detach, left).unwrap();
            gone.push(conn);
        }
    });
}

/// Clients with unused addresses make the kernel search for them, for seconds. The other clients
/// connect and leave meanwhile.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn who_waits_for_an_address_that_nobody_has_waits_alone() {
    const HOSTILE: u32 = 2;
    // The guest's isolated NIC: neighbours do not answer.
    let here = Ipv4Addr::new(10, 9, 0, 1);
    let nobody = |n: u32| Ipv4Addr::new(10, 9, 0, 200 + n as u8).to_ipv6_mapped();
    let mut config = config();
    config.tcp = Some((here, 0).into());
    let rig = Rig::with(config);
    let hand = Hand::at(here);
    let mut waiting = Vec::new();
    for n in 0..HOSTILE {
        let (mut conn, attached) = attach(&rig, 2 + n);
        let lane = &attached.lanes[0];
        let offer = hand.offer();
        let mut connect = offer.connect(lane.applier, lane.nonce);
        connect.end.gid = nobody(n).octets();
        waiting.push(std::thread::spawn(move || {
            let began = clock::now();
            let answer = conn.call(&ServerRequest::ConnectVerbs(connect), left);
            let took = began.elapsed();
            println!("after {took:?}: {answer:?}");
            drop(offer);
            (conn, answer, took)
        }));
    }
    let is_over = |w: &std::thread::JoinHandle<_>| w.is_finished();
    let mut rounds = 0;
    while !waiting.iter().all(is_over) {
        // A new client with its own lanes.
        let (link, mut lanes) = rig.link(&wants_verbs(0)).unwrap();
        lanes[0].lane.poll().unwrap();
        link.detach(soon()).unwrap();
        // Only rounds that ended during a wait count.
        rounds += u32::from(!waiting.iter().any(is_over));
    }
    let mut longest = Duration::ZERO;
    for waiter in waiting {
        let (mut conn, answer, took) = waiter.join().unwrap();
        assert!(matches!(answer, Err(ConnError::Refused(_))), "{answer:?}");
        longest = longest.max(took);
        conn.call(&ServerRequest::Detach, left).unwrap();
    }
    println!("{rounds} sessions came and went while {HOSTILE} waited for {longest:?}");
    assert!(rounds > 0);
    rig.wait_for_sessions(0);
}

fn wants_verbs(rank: u32) -> ConnectConfig {
    ConnectConfig {
        transport: TransportChoice::Verbs,
        ..ConnectConfig::new(token(), CLUSTER, rank)
    }
}

/// Queue pairs are destroyed in the fast order: another order blocks for a minute.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_broken_lane_is_recovered_within_a_second() {
    let rig = Rig::start();
    let (mut link, mut lanes) = rig.link(&wants_verbs(0)).unwrap();
    let applier = ApplierId(0);
    let mut lane = lanes.remove(0).lane;
    let mut longest = Duration::ZERO;
    for round in 0..10 {
        let from = RemoteAddr {
            key: INBOX_KEY,
            addr: 0,
        };
        let op = ReadOp {
            from,
            len: 8,
            head_len: 8,
            head_at: 0,
            body_at: 0,
            fence: false,
        };
        let into = ReadDest {
            head: &mut [0; 8],
            body: &mut [],
        };
        let error = lane.read(&[op], into, soon()).unwrap_err();
        assert!(matches!(error, LaneError::Access { .. }), "{error}");
        let began = clock::now();
        lane = link.recover(applier, soon()).unwrap().lane;
        let took = began.elapsed();
        longest = longest.max(took);
        assert!(took < Duration::from_secs(1), "round {round}: {took:?}");
        lane.poll().unwrap();
    }
    println!("the longest of 10 recoveries took {longest:?}");
    link.detach(soon()).unwrap();
}

/// Jobs come and go on one server; each has a protection domain that ends with it.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn each_job_has_its_own_domain_and_takes_it_along() {
    let rig = Rig::start();
    for round in 0..3 {
        for job in ["a", "b"] {
            let config = ConnectConfig {
                namespace: job.into(),
                ..wants_verbs(0)
            };
            let (link, lanes) = rig.link(&config).unwrap();
            assert!(!lanes.is_empty(), "round {round}");
            link.detach(soon()).unwrap();
        }
        rig.wait_for_sessions(0);
        rig.handle().end_job("a").unwrap();
        rig.handle().end_job("b").unwrap();
    }
}

/// Packets that the device with this address has sent so far, sum of both ends. The kernel caches the
/// count for about 10 ms.
fn sent_packets() -> Option<u64> {
    std::thread::sleep(Duration::from_millis(30));
    let adapter = Adapter::for_address(IpAddr::V4(Ipv4Addr::LOCALHOST), None).unwrap();
    let (device, port) = (adapter.device(), adapter.port());
    let device = device.name();
    let path = format!("/sys/class/infiniband/{device}/ports/{port}/hw_counters/sent_pkts");
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// A table of 64 partitions is pulled by few READs: adjacent data is read at once.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_mebibyte_of_64_partitions_costs_its_packets_and_few_more() {
    const ELEMENTS: usize = 1 << 18;
    let mut config = config();
    config.appliers = 1;
    let rig = Rig::with(config);
    let mut client = rig.client(TransportChoice::Verbs, 0);
    let spec = TableBuilder::blocks::<f32>("mebibyte", 1 << 18, 1).partitions(64);
    let table = client.create_table::<f32>(spec.spec()).unwrap();
    let values: Vec<f32> = (0..ELEMENTS).map(|n| n as f32).collect();
    let op = PushOp::Assign;
    let ticket = client.push_dense(&table, 0, &values, op).unwrap();
    client.wait_applied(&ticket).unwrap();
    let mut out = vec![0.0; ELEMENTS];
    // The first pull looks up keys.
    for first in [true, false] {
        out.fill(0.0);
        let before = sent_packets();
        let options = PullOptions::default();
        client.pull_dense(&table, 0, &mut out, options).unwrap();
        let packets = sent_packets()
            .zip(before)
            .map(|(after, before)| after - before);
        assert!(out == values, "what was pulled is not what was pushed");
        println!("1 MiB of 64 partitions: {packets:?} packets sent, first: {first}");
        let adapter = Adapter::for_address(IpAddr::V4(Ipv4Addr::LOCALHOST), None).unwrap();
        let payload = (1u64 << 20) / u64::from(adapter.mtu());
        if let (false, Some(packets)) = (first, packets) {
            assert!(packets >= payload, "the device does not count: {packets}");
            assert!(
                packets <= payload + 24,
                "{packets} for {payload} of payload"
            );
        }
    }
    client.finish().unwrap();
}

/// Pushes 300 times, and pulls the result.
fn push_and_pull(client: &mut Client) {
    let table = TableBuilder::sparse::<i64>("pushed", 4);
    let table = client.create_table::<i64>(table.spec()).unwrap();
    let keys: Vec<u64> = (0..64).collect();
    for n in 0..300 {
        let ticket = client.push_rows(&table, &keys, &[1; 256], PushOp::Sum);
        if n % 3 == 0 {
            client.wait_applied(&ticket.unwrap()).unwrap();
        } else {
            drop(ticket.unwrap());
        }
    }
    client.flush().unwrap();
    let mut out = [0; 256];
    let pulled = client.pull_rows(&table, &keys, &mut out, PullOptions::default());
    pulled.unwrap();
    assert_eq!(out, [300; 256]);
}

/// If the device does not promise order, a client that insists on verbs is refused by name. Others are
/// served with signalled tails.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn tails_are_polled_where_the_device_places_data_in_order_and_else_refused() {
    for busy_poll in [BusyPoll::On, BusyPoll::Tails] {
        let mut config = config();
        (config.appliers, config.local_appliers, config.busy_poll) = (1, 1, busy_poll);
        let rig = Rig::with(config);
        if busy_poll == BusyPoll::Tails && !mutants::data_in_order() {
            let error = rig.link(&wants_verbs(0)).map(drop).unwrap_err().to_string();
            for part in [
                "rxe",
                "ibv_query_qp_data_in_order",
                "--busy-poll=tails",
                "--transport auto",
            ] {
                assert!(error.contains(part), "no {part:?} in: {error}");
            }
            // A client that may use another transport does so.
            let mut client = rig.client(TransportChoice::Tcp, 1);
            push_and_pull(&mut client);
            client.finish().unwrap();
            continue;
        }
        let mut client = rig.client(TransportChoice::Verbs, 0);
        push_and_pull(&mut client);
        client.finish().unwrap();
    }
}
