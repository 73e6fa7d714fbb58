//! Namespaces with servers and secrets of their own, and services of processes that were started one by one.

use std::fs;
use std::io::{IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use tidewater::connect::{ConnectConfig, JoinConfig, NetCoordinatorLink, NetServerLink};
use tidewater::link::{OpenLane, ServerLink as _};
use tidewater::{Client, ClientError, JoinOptions, PullOptions, SyncMode, Table, TableBuilder};
use tidewater_lanes::fabric::{ReadDest, ReadOp, RemoteAddr, SPIN};
use tidewater_lanes::wake::OsParker;
use tidewater_launch::{JobFile, TransportChoice};
use tidewater_protocol::ids::TableId;
use tidewater_protocol::table::PushOp;
use tidewater_protocol::wire::control::{Remote, ServerMember};
use tidewater_protocol::wire::handshake::{ClientHandshake, JobToken};
use tidewater_protocol::wire::hello::{Features, Hello, Ids, Purpose, Role};
use tidewater_runtime::clock::Deadline;
use tidewater_status::Report;

use crate::service::Service;

/// Elements of the tables: more than one block.
const LEN: usize = 20_000;
/// Every element of the table of namespace b.
const SECRET: f32 = 7777.25;

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

/// The only worker of a job.
fn worker(file: &JobFile, transport: TransportChoice) -> Client {
    let options = JoinOptions {
        job_file: Some(file.path.clone()),
        rank: Some(0),
        workers: Some(1),
        transport: Some(transport),
        ..JoinOptions::default()
    };
    let job = options.join().unwrap().into_job().unwrap();
    job.client(SyncMode::Bsp).unwrap()
}

/// Creates a table with the same value everywhere. Its memory has the same offsets in every namespace.
fn filled(client: &mut Client, name: &str, value: f32) -> Table<f32> {
    let spec = TableBuilder::range::<f32>(name, LEN as u64, 1);
    let table = client.create_table::<f32>(spec.spec()).unwrap();
    let values = vec![value; LEN];
    let pushed = client
        .push_range(&table, 0, &values, PushOp::Assign)
        .unwrap();
    client.wait_applied(&pushed).unwrap();
    table
}

fn report(at: &JobFile, token: &JobToken) -> Result<Report, String> {
    let report = tidewater_status::fetch(&at.coordinator, token, Ids::default(), soon());
    report.map_err(|error| error.to_string())
}

/// The first server of a job file's cluster.
fn server(of: &JobFile) -> ServerMember {
    let mut config = JoinConfig::new(of.coordinator.clone(), of.token.clone());
    config.namespace.clone_from(&of.namespace);
    config.observer = true;
    let (_, joined) = NetCoordinatorLink::join(&config, soon()).unwrap();
    joined.members.servers[0].clone()
}

/// Opens a session with a server, as a client does when its coordinator has named it.
fn session(
    at: &ServerMember,
    token: &JobToken,
    (of, namespace): (&JobFile, &str),
    transport: TransportChoice,
) -> Result<(NetServerLink, Vec<OpenLane>, OsParker), ClientError> {
    let mut config = ConnectConfig::new(token.clone(), of.cluster, 1);
    config.namespace = namespace.into();
    config.transport = transport;
    let mut parker = OsParker::new(SPIN).unwrap();
    let (link, lanes) = NetServerLink::open(at, &config, &mut parker, soon())?;
    Ok((link, lanes, parker))
}

/// Memories of servers that this process maps.
fn mapped() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("/memfd:")).count()
}

/// Bytes and descriptors that a server's unix socket sends to a peer with this token.
fn told_by_socket(
    at: &ServerMember,
    token: &JobToken,
    of: &JobFile,
    namespace: &str,
) -> (usize, usize) {
    let hello = Hello {
        features: Features::default(),
        ids: Ids {
            cluster: of.cluster,
            epoch: 1,
            incarnation: at.incarnation,
        },
        namespace: namespace.into(),
        role: Role::Worker,
        rank: 1,
        purpose: Purpose::Control,
        random: [9; 32],
    };
    let mut bytes = Vec::new();
    ClientHandshake::start(token, hello, &mut bytes).unwrap();
    let address = SocketAddr::from_abstract_name(&at.endpoints.unix).unwrap();
    let mut stream = UnixStream::connect_addr(&address).unwrap();
    stream.write_all(&bytes).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let (mut count, mut descriptors) = (0, 0);
    loop {
        let mut buffer = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut buffer)];
        let came = rustix::net::recvmsg(&stream, &mut into, &mut ancillary, RecvFlags::empty());
        let Ok(came) = came else { break };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                descriptors += fds.count();
            }
        }
        if came.bytes == 0 {
            break;
        }
        count += came.bytes;
    }
    (count, descriptors)
}

/// Reads a piece of a server's memory over a lane.
fn read(lane: &mut OpenLane, from: Remote) -> Result<Vec<f32>, String> {
    let mut body = vec![0; from.len as usize];
    let at = RemoteAddr {
        key: from.key,
        addr: from.address,
    };
    let op = ReadOp::of_body(at, body.len()).unwrap();
    let into = ReadDest {
        head: &mut [],
        body: &mut body,
    };
    let done = lane.lane.read(&[op], into, soon());
    done.map_err(|error| error.to_string())?;
    let (values, _) = body.as_chunks::<4>();
    Ok(values.iter().map(|v| f32::from_le_bytes(*v)).collect())
}

/// A program of namespace a, with a's token and all that it could know of b, tries b's coordinator, status,
/// tables, servers and memory, over shared memory and TCP.
#[test]
fn namespaces_are_closed_to_each_other() {
    let mut service = Service::apart(&["a", "b"]);
    let [a, b] = ["a", "b"].map(|name| JobFile::read(&service.job_file_of(name)).unwrap());
    let mut owner = worker(&b, TransportChoice::Shm);
    let secret = filled(&mut owner, "secret", SECRET);
    let mut own = worker(&a, TransportChoice::Shm);
    filled(&mut own, "own", 1.0);

    // b's coordinator, with a's token; a's coordinator, for b.
    let refused = report(&b, &a.token).unwrap_err();
    assert!(refused.contains("job token"), "{refused}");
    for (at, text) in [(&b, "job token"), (&a, "namespace is not served")] {
        for observer in [false, true] {
            let options = JoinOptions {
                coordinator: Some(at.coordinator.clone()),
                token: Some(a.token.clone()),
                namespace: Some("b".into()),
                observer,
                ..JoinOptions::default()
            };
            let job = options.join().unwrap().into_job().unwrap();
            let refused = job.client(SyncMode::Asp).unwrap_err().to_string();
            assert!(refused.contains(text), "{refused}");
        }
    }
    // What a learns of its own cluster.
    let unknown = own.open_table::<f32>("secret").unwrap_err();
    assert!(matches!(unknown, ClientError::Refused(_)), "{unknown}");
    let known = report(&a, &a.token).unwrap();
    let names = known.jobs.iter().map(|job| job.namespace.as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["a"]);

    // b's servers, with addresses that a does not get.
    let of_b = server(&b);
    for transport in [TransportChoice::Shm, TransportChoice::Tcp] {
        for claims in [(&b, "b"), (&b, "a"), (&a, "a"), (&a, "b")] {
            let before = mapped();
            let refused = session(&of_b, &a.token, claims, transport).map(drop);
            let refused = refused.unwrap_err().to_string();
            let is_token = refused.contains("job token");
            assert!(is_token || claims.0.cluster == a.cluster, "{refused}");
            assert_eq!(mapped(), before, "memory came with {transport:?}");
        }
    }
    let (bytes, descriptors) = told_by_socket(&of_b, &a.token, &b, "b");
    assert!(bytes > 0, "it is a server's socket");
    assert_eq!(descriptors, 0);

    // b's keys and offsets, on a's lanes. Those of b's own lane read the table.
    let piece = |parts: &mut (NetServerLink, Vec<OpenLane>, OsParker)| {
        let table = parts.0.describe(TableId(1), soon()).unwrap();
        table.parts[0].partitions[0].payload
    };
    for transport in [TransportChoice::Shm, TransportChoice::Tcp] {
        let before = mapped();
        let mut good = session(&of_b, &b.token, (&b, "b"), transport).unwrap();
        assert_eq!(mapped() > before, transport == TransportChoice::Shm);
        let place = piece(&mut good);
        let seen = read(&mut good.1[0], place).unwrap();
        let secrets = seen.iter().filter(|&&v| v == SECRET).count();
        assert!(
            secrets > 100 && secrets > seen.len() / 2,
            "{secrets} of {}",
            seen.len()
        );
        let mut other = session(&server(&a), &a.token, (&a, "a"), transport).unwrap();
        let seen = read(&mut other.1[0], place).unwrap_or_default();
        assert!(seen.iter().all(|&v| v != SECRET), "over {transport:?}");
    }
    let mut values = vec![0.0; LEN];
    owner
        .pull_range(&secret, 0, &mut values, PullOptions::default())
        .unwrap();
    assert!(values.iter().all(|&v| v == SECRET));
    owner.finish().unwrap();
    own.finish().unwrap();
    service.ends();
}

/// `tidewater coordinator` without a number of workers, and servers without numbers: jobs come and go.
#[test]
fn coordinator_is_a_service_of_numbered_servers() {
    let mut service = Service::of_processes(2);
    let file = JobFile::read(&service.job_file_of("service")).unwrap();
    for (job, value) in [(1, 1.0), (2, 2.0)] {
        let mut client = worker(&file, TransportChoice::Auto);
        assert_eq!(client.servers(), 2, "job {job}");
        // The table of the job before is gone.
        let table = filled(&mut client, "w", value);
        let mut seen = vec![0.0; LEN];
        client
            .pull_range(&table, 0, &mut seen, PullOptions::default())
            .unwrap();
        assert!(seen.iter().all(|&v| v == value));
        client.finish().unwrap();
    }
    let servers = report(&file, &file.token).unwrap().servers;
    let numbers = servers.iter().map(|server| server.server);
    assert_eq!(numbers.collect::<Vec<_>>(), [0, 1]);
    // There is no third number.
    let mut third = service.server();
    let (code, said) = third.ends();
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("servers 0 to 1"), "{said}");
    service.ends();
}
