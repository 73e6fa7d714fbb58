//! Sessions over verbs: connection and recovery of their lanes, and refusals of bad offers. (long: one rig for all sessions over verbs.)

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use tidewater::connect::{ConnectConfig, NetServerLink};
use tidewater::link::ServerLink;
use tidewater::{Client, ClientError, PullOptions, TableBuilder};
use tidewater_conformance::test_device;
use tidewater_control::conn::{ConnError, ControlConn};
use tidewater_lanes::fabric::{
    ClientLane, INBOX_KEY, LaneError, ReadDest, ReadOp, RemoteAddr, TransportKind,
};
use tidewater_lanes::wake::OsParker;
use tidewater_launch::{RdmaDevice, TransportChoice};
use tidewater_protocol::ids::ApplierId;
use tidewater_protocol::layout::directory::KEY_CELL_BYTES;
use tidewater_protocol::layout::session::MAILBOX_BYTES;
use tidewater_protocol::limits::{RING_BYTES_DEFAULT, VERBS_REGIONS_MAX};
use tidewater_protocol::mutants;
use tidewater_protocol::scale::{JobSize, LaneEnd};
use tidewater_protocol::table::PushOp;
use tidewater_protocol::wire::control::{
    Attach, Attached, ServerAnswer, ServerRequest, Transport, VerbsConnect,
};
use tidewater_protocol::wire::hello::Purpose;
use tidewater_protocol::wire::refusal::RefusalCode;
use tidewater_runtime::clock;
use tidewater_service::server::BusyPoll;
use tidewater_topology::{FabricSettings, PortWish};
use tidewater_verbs::{
    ClientDomain, LaneOffer, Notifier, OpenPort, Path, RetryTimeout, rank_ports,
};

use crate::hostile::{connect, left, unharmed};
use crate::transports::logged;
use tidewater_testkit::sockets::{CLUSTER, Rig, alone, config, soon, token, wait};

fn attach(rig: &Rig, rank: u32) -> (ControlConn<TcpStream>, Attached) {
    attach_from(rig, rank, Ipv4Addr::LOCALHOST)
}

/// Attaches with the port of this address only.
fn attach_from(rig: &Rig, rank: u32, address: Ipv4Addr) -> (ControlConn<TcpStream>, Attached) {
    let mut conn = connect(rig, rank, Purpose::Control).unwrap();
    let ranked = rank_ports(&PortWish {
        control: Some(address.into()),
        ..PortWish::default()
    });
    let port = ranked.unwrap().candidates[0].offer();
    assert_eq!(port.gid, address.to_ipv6_mapped().octets());
    let attach = Attach {
        transport: Transport::Verbs,
        ring_bytes: 64 << 10,
        thread: 0,
        workers: 0,
        reason: String::new(),
        ports: vec![port],
        failed_paths: Vec::new(),
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
        Self::of(test_device::open_port().unwrap())
    }

    fn at(address: Ipv4Addr) -> Self {
        Self::of(OpenPort::for_address(IpAddr::V4(address), None).unwrap())
    }

    fn of(open_port: Arc<OpenPort>) -> Self {
        let parker = OsParker::new(Duration::ZERO).unwrap();
        Self {
            domain: ClientDomain::new(&open_port, RetryTimeout::default()).unwrap(),
            notifier: Notifier::new(&open_port, parker.reactor(), parker.arms()).unwrap(),
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
        let mut partition = offer.connect(applier, nonce);
        partition.end.pkey = 0x8001;
        let code = refused(&mut conn, partition);
        assert_eq!(code, RefusalCode::BadTransport, "another partition");

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
        let (mut conn, attached) = attach_from(&rig, 2 + n, here);
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

/// Runs a program of the guest.
fn run(line: &str) {
    let mut words = line.split(' ');
    let mut command = std::process::Command::new(words.next().unwrap());
    let done = command.args(words).status().unwrap();
    assert!(done.success(), "{line}: {done}");
}

/// Packets between two NICs of one host pass through its loopback, where neither listens: the pair of ports
/// looks well and carries nothing.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn first_pair_fails_its_check_and_the_second_is_used() {
    run("ip link add dummy1 type dummy");
    run("ip addr add 10.9.1.1/24 dev dummy1");
    run("ip link set dummy1 up");
    run("rdma link add rxe2 type rxe netdev dummy1");
    let names = "rxe2:1:10.9.1.1,rxe0:1:127.0.0.1"
        .parse::<RdmaDevice>()
        .unwrap();
    // The kernel adds the GID some time after the device.
    let has_gid = || {
        let wish = PortWish {
            names: Some(names.names()),
            ..PortWish::default()
        };
        rank_ports(&wish).is_ok_and(|ranked| ranked.skipped.is_empty())
    };
    let end = soon();
    while !has_gid() {
        assert!(!end.left().is_zero(), "no GID of 10.9.1.1");
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut node = config();
    node.rdma_device = "rxe1:1:10.9.0.1,rxe0:1:127.0.0.1".parse().ok();
    let rig = Rig::with(node);
    for rank in 0..2 {
        let config = ConnectConfig {
            rdma_device: Some(names.clone()),
            ..wants_verbs(rank)
        };
        let (client, log) = logged(|| rig.client_at(&rig.member(), &config));
        let mut client = client.unwrap();
        println!("{log}");
        // The other session of this process does not wait for the pair again.
        let passed_over = log.contains("10.9.1.1 to 10.9.0.1: ");
        assert_eq!(passed_over, rank == 0, "{log}");
        push_and_pull(&mut client);
        client.finish().unwrap();
    }
    run("rdma link delete rxe2");
    run("ip link delete dummy1");
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
    let open_port = test_device::open_port().unwrap();
    let (device, port) = (open_port.device(), open_port.port());
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
    let spec = TableBuilder::range::<f32>("mebibyte", 1 << 18, 1).partitions(64);
    let table = client.create_table::<f32>(spec.spec()).unwrap();
    let values: Vec<f32> = (0..ELEMENTS).map(|n| n as f32).collect();
    let op = PushOp::Assign;
    let ticket = client.push_range(&table, 0, &values, op).unwrap();
    client.wait_applied(&ticket).unwrap();
    let mut out = vec![0.0; ELEMENTS];
    // The first pull looks up keys.
    for first in [true, false] {
        out.fill(0.0);
        let before = sent_packets();
        let options = PullOptions::default();
        client.pull_range(&table, 0, &mut out, options).unwrap();
        let packets = sent_packets()
            .zip(before)
            .map(|(after, before)| after - before);
        assert!(out == values, "what was pulled is not what was pushed");
        println!("1 MiB of 64 partitions: {packets:?} packets sent, first: {first}");
        let open_port = test_device::open_port().unwrap();
        let payload = (1u64 << 20) / u64::from(open_port.mtu());
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

/// Also on a device that promises no order.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn tails_are_polled_where_appliers_never_sleep() {
    let mut config = config();
    (config.appliers, config.local_appliers) = (1, 1);
    config.busy_poll = BusyPoll::On;
    let rig = Rig::with(config);
    let mut client = rig.client(TransportChoice::Verbs, 0);
    push_and_pull(&mut client);
    client.finish().unwrap();
}

/// A client that acts as if on another host, with its transport.
fn remote(rig: &Rig, rank: u32, transport: TransportChoice) -> Result<Client, ClientError> {
    let mut member = rig.member();
    member.host_id = "another".into();
    let mut config = ConnectConfig::new(token(), CLUSTER, rank);
    config.transport = transport;
    rig.client_at(&member, &config)
}

fn transport_of(rig: &Rig, transport: TransportChoice) -> TransportKind {
    let mut member = rig.member();
    member.host_id = "another".into();
    let config = ConnectConfig {
        transport,
        ..ConnectConfig::new(token(), CLUSTER, 3)
    };
    let mut parker = OsParker::new(Duration::ZERO).unwrap();
    let (link, _lanes) = NetServerLink::open(&member, &config, &mut parker, soon()).unwrap();
    let transport = link.transport();
    link.detach(soon()).unwrap();
    transport
}

/// With `TIDEWATER_TEST_DEVICE=no-atomics` the device stands for one without: sessions count no pushes, and
/// one that must have verbs is refused where they are to be counted.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn atomics_are_used_only_where_pushes_are_counted() {
    for count_pushes in [false, true] {
        let mut config = config();
        config.count_pushes = count_pushes;
        let rig = Rig::with(config);
        if count_pushes && mutants::device_mask().no_atomics {
            let error = remote(&rig, 0, TransportChoice::Verbs).map(drop);
            let error = error.unwrap_err().to_string();
            for part in [
                "--count-pushes",
                "rxe",
                "64-bit atomics",
                "--transport auto",
            ] {
                assert!(error.contains(part), "no {part:?} in: {error}");
            }
        }
        assert_eq!(
            transport_of(&rig, TransportChoice::Auto),
            TransportKind::Verbs
        );
        let mut client = remote(&rig, 1, TransportChoice::Auto).unwrap();
        push_and_pull(&mut client);
        let counted = client.arrivals().map(|all| all.iter().sum::<u64>());
        match counted {
            Ok(frames) => {
                assert!(count_pushes && !mutants::device_mask().no_atomics);
                assert!(
                    (300..=client.counters().frames).contains(&frames),
                    "{frames}"
                );
            }
            Err(error) => {
                assert!(!count_pushes || mutants::device_mask().no_atomics);
                assert!(error.to_string().contains("64-bit atomics"), "{error}");
            }
        }
        client.finish().unwrap();
    }
}

/// Queue pairs of reliable connections that the kernel has, and bytes that it has pinned for this process.
fn kernel_counts() -> (usize, usize) {
    let shown = std::process::Command::new("rdma")
        .args(["resource", "show", "qp"])
        .output()
        .unwrap();
    let pairs = String::from_utf8_lossy(&shown.stdout)
        .matches("type RC")
        .count();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let pinned = status
        .lines()
        .find_map(|line| line.strip_prefix("VmPin:"))
        .unwrap();
    let kib: usize = pinned.trim().trim_end_matches(" kB").parse().unwrap();
    (pairs, kib << 10)
}

/// The cost model of `docs/SCALE.md`, which `tidewater doctor --plan` computes, is what the kernel counts. Threads
/// leave nothing behind.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn plan_is_what_the_kernel_counts() {
    let mut config = config();
    config.appliers = 2;
    alone(config, |rig| {
        let thread = |thread| ConnectConfig {
            thread,
            ..wants_verbs(0)
        };
        // The first session registers the server's memory.
        let (link, lanes) = rig.link(&thread(0)).unwrap();
        drop(lanes);
        link.detach(soon()).unwrap();
        wait(
            || kernel_counts().0 == 0,
            "the queue pairs of an ended session are destroyed",
        );
        let before = kernel_counts().1;
        let mut open = Vec::new();
        for threads in [1, 4, 16] {
            while open.len() < threads {
                open.push(rig.link(&thread(open.len() as u32)).unwrap());
            }
            let size = JobSize {
                servers: 1,
                appliers: 2,
                processes: 1,
                threads: threads as u32,
                processes_per_host: 1,
                ring_bytes: RING_BYTES_DEFAULT,
            };
            let cost = size.cost();
            let pairs = cost.server_queue_pairs + cost.process_queue_pairs;
            // The key directory was registered with the first session.
            let directory = (VERBS_REGIONS_MAX * KEY_CELL_BYTES) as u64;
            let bytes = cost.server_pinned_bytes - directory + cost.process_pinned_bytes;
            // Each region ends with a page.
            let (client, server) = (
                LaneEnd::of_client(2, size.ring_bytes),
                LaneEnd::of_server(2, size.ring_bytes),
            );
            let regions = cost.server_lanes as usize * (client.regions + server.regions);
            let (counted, pinned) = kernel_counts();
            println!(
                "{threads} threads: {counted} queue pairs, {} bytes pinned; planned {pairs}, {bytes}",
                pinned - before
            );
            assert_eq!(counted as u64, pairs, "{threads} threads");
            let planned = bytes as usize..=bytes as usize + regions * 4096;
            assert!(
                planned.contains(&(pinned - before)),
                "{threads} threads: {planned:?}"
            );
        }
        for (link, lanes) in open {
            drop(lanes);
            link.detach(soon()).unwrap();
        }
        wait(
            || kernel_counts() == (0, before),
            "nothing is left of the threads",
        );
    });
}

/// Runs `ip` with these arguments, in the guest.
fn ip(arguments: &str) {
    let mut command = std::process::Command::new("ip");
    let done = command.args(arguments.split(' ')).status().unwrap();
    assert!(done.success(), "ip {arguments}: {done}");
}

/// A read that the server's device refuses, which breaks the lane: how it ends.
fn refused_read(lane: &mut dyn ClientLane) -> LaneError {
    let op = ReadOp {
        from: RemoteAddr {
            key: INBOX_KEY,
            addr: 0,
        },
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
    lane.read(&[op], into, soon()).unwrap_err()
}

/// A server on the guest's second NIC, which has no network: its address may be removed, its link taken down.
fn on_second_nic(fabric: FabricSettings) -> Rig {
    let mut config = config();
    config.tcp = Some(SocketAddr::from((SECOND, 0)));
    config.fabric = fabric;
    Rig::with(config)
}

/// Address of the guest's device rxe1.
const SECOND: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);

/// The address of both ends is removed and added: it has another index in the port's table. Lanes made from then
/// on use that one.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn lane_is_rebuilt_with_the_moved_gid() {
    let rig = on_second_nic(FabricSettings::UNSET);
    let (mut link, mut lanes) = rig.link(&wants_verbs(0)).unwrap();
    let mut lane = lanes.remove(0).lane;
    let open_port = OpenPort::for_address(IpAddr::V4(SECOND), None).unwrap();
    let index = || Path::new(&open_port, &FabricSettings::UNSET).map(|path| path.gid_index());
    let before = index().unwrap();
    ip("addr del 10.9.0.1/24 dev dummy0");
    wait(|| index().is_err(), "the address stays in the table");
    ip("addr add 10.9.0.1/24 dev dummy0");
    wait(|| index().is_ok(), "the address does not come back");
    let after = index().unwrap();
    println!("GID index {before}, then {after}");
    assert_ne!(before, after, "queue pairs hold the former entry");
    assert_eq!(open_port.gid_index(), before, "as it was opened");
    // The former entry is gone, so that this lane breaks by itself.
    let error = refused_read(&mut *lane);
    assert!(matches!(error, LaneError::Broken { .. }), "{error}");
    let mut lane = link.recover(ApplierId(0), soon()).unwrap().lane;
    lane.poll().unwrap();
    let error = refused_read(&mut *lane);
    assert!(
        matches!(error, LaneError::Access { .. }),
        "the server answers: {error}"
    );
    link.detach(soon()).unwrap();
}

/// A device that has failed is closed and opened again, at both ends, and the session goes on.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn failed_device_is_opened_again() {
    let rig = Rig::start();
    let (mut link, mut lanes) = rig.link(&wants_verbs(0)).unwrap();
    let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let open_port = OpenPort::for_address(here, None).unwrap();
    // As a fatal event does; both ends are in this process and share the device.
    open_port.device().retire();
    let device = Arc::downgrade(open_port.device());
    drop(open_port);
    for (applier, lane) in (0..).map(ApplierId).zip(&mut lanes) {
        let error = refused_read(&mut *lane.lane);
        assert!(matches!(error, LaneError::Access { .. }), "{error}");
        *lane = link.recover(applier, soon()).unwrap();
        lane.lane.poll().unwrap();
    }
    let now = Arc::clone(OpenPort::for_address(here, None).unwrap().device());
    assert!(!now.has_failed());
    wait(
        || device.upgrade().is_none(),
        "the failed device stays open",
    );
    drop(lanes);
    link.detach(soon()).unwrap();
    let mut client = rig.client(TransportChoice::Verbs, 1);
    push_and_pull(&mut client);
    client.finish().unwrap();
}

/// The port of both ends is down for a while; a job with timeouts that allow it goes on, and each push counts
/// once. 30 s with `TIDEWATER_TEST_FULL=1`.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn ledger_is_exact_over_a_link_that_was_down() {
    let full = std::env::var("TIDEWATER_TEST_FULL").is_ok_and(|full| full == "1");
    let down = Duration::from_secs(if full { 30 } else { 2 });
    let fabric = FabricSettings {
        timeout: Some("18".parse().unwrap()),
        ..FabricSettings::UNSET
    };
    let rig = on_second_nic(fabric);
    let wish = ConnectConfig {
        fabric,
        ..wants_verbs(0)
    };
    let mut client = rig.client_at(&rig.member(), &wish).unwrap();
    client.set_timeout(4 * down + Duration::from_secs(20));
    let table = TableBuilder::sparse::<i64>("ledger", 4);
    let table = client.create_table::<i64>(table.spec()).unwrap();
    let keys: Vec<u64> = (0..64).collect();
    let mut pushes = 0;
    let mut push = |client: &mut Client| {
        let ticket = client.push_rows(&table, &keys, &[1; 256], PushOp::Sum);
        client.wait_applied(&ticket.unwrap()).unwrap();
        pushes += 1;
    };
    (0..20).for_each(|_| push(&mut client));
    ip("link set dummy0 down");
    let began = clock::now();
    let up = std::thread::spawn(move || {
        std::thread::sleep(down);
        ip("link set dummy0 up");
    });
    push(&mut client);
    let took = began.elapsed();
    up.join().unwrap();
    (0..20).for_each(|_| push(&mut client));
    let mut out = [0; 256];
    let pulled = client.pull_rows(&table, &keys, &mut out, PullOptions::default());
    pulled.unwrap();
    println!("the link was down for {down:?}; the push meanwhile took {took:?}; {pushes} pushes");
    assert_eq!(out, [pushes; 256]);
    let status = rig.handle().status().unwrap();
    println!("{status:?}");
    client.finish().unwrap();
}
