//! Losses, refusals, strangers and servers without descriptors: each is named to those that are left.

use std::io::{BufRead as _, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use tidewater::connect::{ConnectConfig, JoinConfig, NetCoordinatorLink, NetServerLink};
use tidewater::link::CoordinatorLink as _;
use tidewater::table::TableBuilder;
use tidewater::{Client, ClientError, Parts, PullOptions, SyncMode};
use tidewater_control::conn::{ConnError, ControlConn};
use tidewater_control::dial::{self, Claims};
use tidewater_lanes::wake::OsParker;
use tidewater_launch::TransportChoice;
use tidewater_protocol::ids::{ClusterId, DomainId, Incarnation, WorkerId};
use tidewater_protocol::table::{PushOp, Reduce};
use tidewater_protocol::wire::control::{
    self, CoordinatorAnswer, CoordinatorRequest, Endpoints, Join, Joined, Members, Notice,
    ThreadClock,
};
use tidewater_protocol::wire::handshake::{JobToken, Namespaces, ServerPolicy};
use tidewater_protocol::wire::hello::{Features, Ids, Role, Roles};
use tidewater_protocol::wire::peer::{ControlPeer, PeerEvent};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};
use tidewater_runtime::clock::Deadline;
use tidewater_service::coordinator::{
    CoordinatorConfig, Lifetime, Listening, LostWorker, ServeConfig, serve,
};
use tidewater_service::embedded::{Cluster, ClusterConfig};

use super::{client_in_step, join, long, start, tables};

#[test]
fn a_barrier_names_the_missing_and_a_lost_worker_fails_the_others() {
    let cluster = start(1, 1, 3);
    let (mut a, b) = (
        join(&cluster, 0, "default").unwrap(),
        join(&cluster, 1, "default").unwrap(),
    );
    let error = a
        .barrier("x", 3, Deadline::after(Duration::from_millis(300)))
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("rank 1 (alive), rank 2 (not yet joined)"),
        "{text}"
    );
    a.check().unwrap();
    drop(b);
    let ClientError::Refused(refusal) = a.barrier("x", 3, long()).unwrap_err() else {
        panic!("not refused")
    };
    assert_eq!(
        (refusal.code, refusal.numbers[0]),
        (RefusalCode::PeerFailed, 1)
    );
    assert!(a.check().unwrap_err().to_string().contains("worker 1"));
}

#[test]
fn strangers_and_silent_peers_disturb_no_job() {
    let cluster = start(1, 1, 2);
    let address = &cluster.environment().coordinator;
    // Silent connections hold slots; garbage is closed.
    let silent: Vec<TcpStream> = (0..20)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    let mut garbage = TcpStream::connect(address).unwrap();
    std::io::Write::write_all(&mut garbage, &[0x5a; 4096]).unwrap();
    let mut said = Vec::new();
    let _ = garbage.read_to_end(&mut said);
    assert!(said.len() < 256, "{} bytes for a stranger", said.len());
    let config = JoinConfig::new(address, JobToken::new([7; 32]));
    let error = NetCoordinatorLink::join(&config, long())
        .unwrap_err()
        .to_string();
    assert!(error.contains("token"), "{error}");
    let mut a = join(&cluster, 0, "default").unwrap();
    let error = join(&cluster, 0, "default").unwrap_err().to_string();
    assert!(error.contains("rank 0 is alive"), "{error}");
    // Another job of the same name of table.
    let mut other = join(&cluster, 0, "other").unwrap();
    let [sparse, _] = tables();
    let table = a.create_table(sparse.spec(), long()).unwrap();
    assert_eq!(a.open_table("sparse", long()).unwrap(), table);
    let ClientError::Refused(refusal) = other.open_table("sparse", long()).unwrap_err() else {
        panic!("not refused")
    };
    assert_eq!(refusal.code, RefusalCode::UnknownTable);
    let mut differs = sparse.spec().clone();
    differs.seed += 1;
    let error = a.create_table(&differs, long()).unwrap_err().to_string();
    assert!(error.contains("seed is 5, asked for 6"), "{error}");
    a.release_table(table.id, long()).unwrap();
    a.finished(long()).unwrap();
    a.goodbye(long()).unwrap();
    drop(silent);
}

#[test]
fn a_cluster_ends_with_its_owner_whoever_is_connected() {
    let cluster = start(2, 1, 1);
    let mut a = join(&cluster, 0, "default").unwrap();
    drop(cluster);
    let error = loop {
        if let Err(error) = a.check() {
            break error.to_string();
        }
    };
    assert!(error.contains("shutting down"), "{error}");
    assert!(a.members(long()).is_err());
}

#[test]
fn a_wait_for_a_clock_names_the_worker_that_will_never_tick() {
    for transport in [TransportChoice::Tcp, TransportChoice::Shm] {
        let cluster = start(1, 2, 3);
        let mut waiting = client_in_step(&cluster, 0, transport, SyncMode::Bsp);
        waiting.set_clock_timeout(Duration::from_secs(20));
        let (idle, lost) = (
            client_in_step(&cluster, 1, transport, SyncMode::Bsp),
            client_in_step(&cluster, 2, transport, SyncMode::Bsp),
        );
        waiting.tick().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // By then the wait is in flight, or it begins with the notice.
                std::thread::sleep(Duration::from_millis(300));
                drop(lost);
            });
            let started = tidewater_runtime::clock::now();
            let ended = waiting.tick();
            let took = tidewater_runtime::clock::now() - started;
            let Err(ClientError::Refused(refusal)) = ended else {
                panic!("{transport:?}: {ended:?}")
            };
            let told = (refusal.code, refusal.numbers[0]);
            assert_eq!(told, (RefusalCode::PeerFailed, 2), "{refusal}");
            assert!(took < Duration::from_secs(10), "{transport:?}: {took:?}");
        });
        drop(idle);
    }
}

/// A coordinator of one job, as another launcher starts it, with a server that does not end. The
/// cluster stays in its shutdown for the complete grace period.
struct OneJob {
    coordinator: String,
    token: JobToken,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    server: Option<ControlConn<TcpStream>>,
}

impl OneJob {
    fn start(workers: u32) -> Self {
        let token = JobToken::new([9; 32]);
        let listening = Listening::bind(ServeConfig {
            listen: ([127, 0, 0, 1], 0).into(),
            advertise: None,
            token: token.clone(),
            namespaces: Vec::new(),
            cluster: CoordinatorConfig {
                servers: 1,
                workers,
                on_lost: LostWorker::FailJob,
                lifetime: Lifetime::OneJob,
            },
        })
        .unwrap();
        let coordinator = listening.address().to_owned();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || serve(listening, &[stopped.as_fd()]).unwrap());
        let server = Some(raw(&coordinator, &token, Role::Server, 0));
        Self {
            coordinator,
            token,
            stop: Some(stop),
            thread: Some(thread),
            server,
        }
    }

    fn join(&self, rank: u32) -> Result<NetCoordinatorLink, ClientError> {
        let mut config = JoinConfig::new(&self.coordinator, self.token.clone());
        config.rank = Some(rank);
        NetCoordinatorLink::join(&config, long()).map(|(link, _)| link)
    }
}

/// A member that joins and is then passive: a server neither answers commands nor ends, a worker reads
/// answers as they arrive.
fn raw(coordinator: &str, token: &JobToken, role: Role, rank: u32) -> ControlConn<TcpStream> {
    let claims = Claims {
        ids: Ids::default(),
        namespace: "default".into(),
        role,
        rank,
    };
    let mut conn = dial::control(coordinator, token, &claims, long()).unwrap();
    let tcp = if role == Role::Server {
        "127.0.0.1:1"
    } else {
        ""
    };
    let join = CoordinatorRequest::Join(Join {
        host: "h".into(),
        host_id: "boot".into(),
        pid: 1,
        incarnation: Incarnation(1),
        endpoints: Endpoints {
            tcp: tcp.into(),
            unix: String::new(),
        },
        appliers: u16::from(role == Role::Server),
        workers: 0,
        restarts: 0,
        kept: None,
        returns: false,
    });
    let joined = conn.call(&join, || long().left()).unwrap();
    assert!(matches!(joined, CoordinatorAnswer::Joined(_)), "{joined:?}");
    conn
}

impl Drop for OneJob {
    fn drop(&mut self) {
        (self.stop, self.server) = (None, None);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))) || std::thread::panicking());
    }
}

fn refusal_of(error: &ClientError) -> &Refusal {
    match error {
        ClientError::Refused(refusal) => refusal,
        other => panic!("not refused: {other}"),
    }
}

/// Every survivor learns the lost worker's rank, also with a request after the loss has ended the
/// cluster. A worker that joins then learns why the cluster ends.
#[test]
fn request_after_loss_names_lost_worker() {
    let job = OneJob::start(4);
    let [mut waits, mut asks_later, lost] = [0, 1, 2].map(|rank| job.join(rank).unwrap());
    let mut sees_answers = raw(&job.coordinator, &job.token, Role::Worker, 3);
    let told = std::thread::scope(|scope| {
        let told = scope.spawn(|| waits.barrier("epoch", 4, long()));
        drop(lost);
        told.join().unwrap().unwrap_err()
    });
    // The coordinator failed the job and stopped the cluster before it answered that.
    let later = asks_later.barrier("epoch", 4, long()).unwrap_err();
    let barrier = CoordinatorRequest::Barrier {
        name: "epoch".into(),
        count: 4,
        timeout_ms: 60_000,
    };
    let answer = sees_answers.call(&barrier, || long().left());
    let Err(ConnError::Refused(answer)) = answer else {
        panic!("not refused: {answer:?}")
    };
    for error in [told, later, answer.into()] {
        let refusal = refusal_of(&error);
        assert_eq!(
            (refusal.code, refusal.numbers[0]),
            (RefusalCode::PeerFailed, 2),
            "{refusal}"
        );
        assert!(refusal.text.contains("worker 2"), "{refusal}");
    }
    let error = job.join(2).unwrap_err().to_string();
    assert!(error.contains("shutting down: worker 2"), "{error}");
}

/// Admission policy of a scripted coordinator: processes of these roles.
fn policy(token: JobToken, roles: &[Role]) -> ServerPolicy {
    ServerPolicy {
        token,
        features: Features::default(),
        ids: Ids {
            cluster: ClusterId(1),
            epoch: 1,
            incarnation: Incarnation(1),
        },
        role: Role::Coordinator,
        number: 0,
        namespaces: Namespaces::Any,
        control_roles: Roles::of(roles),
        lane_roles: Roles::default(),
        tells_ids: true,
    }
}

/// A scripted coordinator: admits one worker, then answers each request with a notice and a refusal.
fn scripted(listener: &TcpListener, token: JobToken, notice: &Notice, refusal: &Refusal) {
    let policy = policy(token, &[Role::Worker]);
    let (mut stream, _) = listener.accept().unwrap();
    let mut peer = ControlPeer::accepted([3; 32]);
    let mut bytes = [0; 4096];
    loop {
        let count = match stream.read(&mut bytes).unwrap() {
            0 => return,
            count => count,
        };
        assert_eq!(peer.feed(&bytes[..count]), count);
        loop {
            let asked = match peer.next(&policy, |_| Ok(())).unwrap() {
                None => break,
                Some(PeerEvent::Admitted(_)) => continue,
                Some(PeerEvent::Message(frame)) => {
                    control::decode::<CoordinatorRequest>(&frame).unwrap()
                }
            };
            let answer = if matches!(asked.1, CoordinatorRequest::Join(_)) {
                CoordinatorAnswer::Joined(Joined {
                    rank: 0,
                    servers_expected: 1,
                    workers_expected: 2,
                    clocks: Vec::new(),
                    members: Members {
                        epoch: 1,
                        revision: 1,
                        servers: Vec::new(),
                        workers: Vec::new(),
                    },
                    checkpoints: false,
                    resumed: None,
                    ends: None,
                })
            } else {
                peer.queue(0, notice).unwrap();
                CoordinatorAnswer::Refused(refusal.clone())
            };
            peer.queue(asked.0, &answer).unwrap();
        }
        let out = peer.outgoing().to_vec();
        stream.write_all(&out).unwrap();
        peer.sent(out.len());
    }
}

/// The child of [`server_without_descriptors_waits_and_serves_again`]. A cluster in a process that uses
/// up its descriptors at a line on its input, and frees them at the next.
#[test]
#[ignore = "started by server_without_descriptors_waits_and_serves_again"]
fn cluster_of_few_descriptors_in_this_process() {
    let cluster = Cluster::start(&ClusterConfig {
        capacity: 64 << 20,
        workers: 2,
        token: Some(JobToken::new([9; 32])),
        ..Default::default()
    })
    .unwrap();
    let next_line = || {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the test has gone");
    };
    eprintln!("=at {}", cluster.environment().coordinator);
    next_line();
    let null = std::fs::File::open("/dev/null").unwrap();
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(512);
    setrlimit(Resource::Nofile, limit).unwrap();
    let mut full = Vec::new();
    let error = loop {
        match null.try_clone() {
            Ok(one) => full.push(one),
            Err(error) => break error,
        }
    };
    assert_eq!(error.raw_os_error(), Some(24), "{error}");
    eprintln!("=full");
    next_line();
    drop(full);
    eprintln!("=free");
    next_line();
}

/// Joins the cluster at `address` as `rank` of two; returns the client and the server's address.
fn join_as(address: &str, rank: u32, deadline: Deadline) -> Result<(Client, String), ClientError> {
    let mut config = JoinConfig::new(address, JobToken::new([9; 32]));
    config.rank = Some(rank);
    let (mut link, _) = NetCoordinatorLink::join(&config, deadline)?;
    let members = link.wait_servers(1, deadline)?;
    let mut config = ConnectConfig::new(JobToken::new([9; 32]), link.cluster(), rank);
    config.epoch = members.epoch;
    let mut parker = OsParker::new(Duration::ZERO).unwrap();
    let (server, lanes) = NetServerLink::open(&members.servers[0], &config, &mut parker, deadline)?;
    let client = Client::from_parts(Parts {
        coordinator: Box::new(link),
        servers: vec![(Box::new(server), lanes)],
        parker: Box::new(parker),
        rank: WorkerId(rank),
        workers: 2,
        sync: SyncMode::Asp,
    })?;
    Ok((client, members.servers[0].endpoints.tcp.clone()))
}

/// A server without free descriptors serves its connections and lets new ones wait. It accepts those
/// when descriptors are free again.
#[test]
fn server_without_descriptors_waits_and_serves_again() {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "failures::cluster_of_few_descriptors_in_this_process",
        ])
        .args(["--ignored", "--nocapture"])
        .stdin(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut lines = std::io::BufReader::new(child.stderr.take().unwrap()).lines();
    let mut said = |what: &str| {
        let mut before = Vec::new();
        for line in lines.by_ref().map(Result::unwrap) {
            if let Some(rest) = line.strip_prefix('=').and_then(|l| l.strip_prefix(what)) {
                return rest.trim().to_owned();
            }
            before.push(line);
        }
        panic!("the cluster ends without \"{what}\": {before:#?}");
    };
    let address = said("at");
    let (mut first, server) = join_as(&address, 0, long()).unwrap();
    let spec = TableBuilder::sparse::<f32>("t", 1);
    let table = first.create_table::<f32>(spec.spec()).unwrap();
    let mut count = 0.0;
    let mut add = |client: &mut Client| {
        let table = client.open_table::<f32>("t").unwrap();
        let pushed = client.push_rows(&table, &[3], &[1.0], PushOp::Sum).unwrap();
        client.wait_applied(&pushed).unwrap();
        count += 1.0;
        let mut out = [-1.0];
        let how = PullOptions::default();
        client.pull_rows(&table, &[3], &mut out, how).unwrap();
        assert_eq!(out, [count]);
    };
    add(&mut first);
    input.write_all(b"use them up\n").unwrap();
    said("full");
    add(&mut first);
    // The server, too, has a pending connection that it cannot accept.
    let _waits = TcpStream::connect(server).unwrap();
    let soon = Deadline::after(Duration::from_millis(300));
    let error = join_as(&address, 1, soon).unwrap_err();
    assert!(error.to_string().contains(&address), "{error}");
    add(&mut first);
    // A waiting client is accepted as soon as descriptors are free.
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| join_as(&address, 1, Deadline::after(Duration::from_secs(40))));
        input.write_all(b"free them\n").unwrap();
        said("free");
        let (mut second, _) = waits.join().unwrap().unwrap();
        add(&mut second);
        add(&mut first);
    });
    assert!(first.spec(&table).is_some());
    drop(first);
    input.write_all(b"end\n").unwrap();
    assert!(child.wait().unwrap().success());
}

/// A refusal in the handshake reaches the caller as a refusal, like one of the join request.
#[test]
fn refusal_in_handshake_is_typed() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let token = JobToken::new([9; 32]);
    let config = JoinConfig::new(listener.local_addr().unwrap().to_string(), token.clone());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let policy = policy(token, &[Role::Server]);
            let (mut stream, _) = listener.accept().unwrap();
            let mut peer = ControlPeer::accepted([3; 32]);
            let mut bytes = [0; 4096];
            let refused = loop {
                let count = stream.read(&mut bytes).unwrap();
                assert!(count > 0, "the worker left before it was refused");
                assert_eq!(peer.feed(&bytes[..count]), count);
                let stepped = peer.next(&policy, |_| Ok(())).map(drop);
                let out = peer.outgoing().to_vec();
                stream.write_all(&out).unwrap();
                peer.sent(out.len());
                if let Err(e) = stepped {
                    break e;
                }
            };
            assert!(refused.to_string().contains("refused"), "{refused}");
        });
        let error = NetCoordinatorLink::join(&config, long()).unwrap_err();
        let ClientError::Refused(refusal) = &error else {
            panic!("{error:?}");
        };
        assert_eq!(refusal.code, RefusalCode::RoleNotAllowed, "{error}");
    });
}

/// If a request is refused because the cluster ends, its error is the failure from the notice. Another
/// refusal is the answer to the request, and stays.
#[test]
fn shutdown_refusal_yields_to_failure_notice() {
    let failure = Refusal::new(RefusalCode::PeerFailed, [4, 0, 0, 0]).with_text("worker 4: killed");
    let notice = Notice::PeerFailed(failure.clone());
    for (code, expected) in [
        (RefusalCode::ShuttingDown, RefusalCode::PeerFailed),
        (RefusalCode::UnknownTable, RefusalCode::UnknownTable),
    ] {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let token = JobToken::new([9; 32]);
        let mut config = JoinConfig::new(listener.local_addr().unwrap().to_string(), token.clone());
        config.rank = Some(0);
        let refusal = Refusal::new(code, [0; 4]);
        std::thread::scope(|scope| {
            scope.spawn(|| scripted(&listener, token, &notice, &refusal));
            let (mut link, _) = NetCoordinatorLink::join(&config, long()).unwrap();
            let error = link.barrier("epoch", 2, long()).unwrap_err();
            assert_eq!(refusal_of(&error).code, expected, "{error}");
            if expected == failure.code {
                assert_eq!(refusal_of(&error), &failure);
            }
        });
    }
}

/// A worker is lost while it sends a tick. If one applier has consumed the tick, the iteration counts on
/// all servers, otherwise on none.
#[test]
fn half_tick_of_a_lost_worker_is_completed() {
    for is_half in [false, true] {
        let cluster = Cluster::start(&ClusterConfig {
            servers: 2,
            appliers: 2,
            workers: 2,
            capacity: 64 << 20,
            on_lost: LostWorker::GoOn,
            ..Default::default()
        })
        .unwrap();
        let [mut stays, mut leaves] = [0, 1].map(|rank| {
            let mut client = client_in_step(&cluster, rank, TransportChoice::Shm, SyncMode::Bsp);
            client.set_clock_timeout(Duration::from_secs(60));
            client
        });
        let spec = TableBuilder::sparse::<f32>("t", 1).at_clock(Reduce::Sum);
        let keys: Vec<u64> = (0..64).collect();
        let push = |client: &mut Client, value: f32| {
            let table = client.create_table::<f32>(spec.spec()).unwrap();
            let pushed = client.push_rows(&table, &keys, &[value; 64], PushOp::Sum);
            client.wait_applied(&pushed.unwrap()).unwrap();
            table
        };
        for client in [&mut leaves, &mut stays] {
            push(client, 1.0);
            client.tick().unwrap();
        }
        push(&mut leaves, 10.0);
        if is_half {
            // As if the CLOCK frame had arrived at this server only.
            let tick = ThreadClock {
                thread: 0,
                domain: DomainId(0),
                clock: 2,
            };
            let server = cluster.server(0).unwrap();
            server.end_worker("default", WorkerId(1), &[tick]).unwrap();
        }
        drop(leaves);
        let table = push(&mut stays, 1.0);
        stays.tick().unwrap();
        let mut out = [0.0; 64];
        stays
            .pull_rows(&table, &keys, &mut out, PullOptions::default())
            .unwrap();
        assert_eq!(
            out,
            [if is_half { 13.0 } else { 3.0 }; 64],
            "half: {is_half}"
        );
        stays.finish().unwrap();
    }
}
