//! Sessions with a control connection that is cut while it is idle.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidewater::connect::ConnectConfig;
use tidewater::{Client, ClientError, PullOptions, SyncMode, Table, TableBuilder};
use tidewater_lanes::shm::pass::{self, Descriptors};
use tidewater_launch::TransportChoice;
use tidewater_protocol::table::PushOp;
use tidewater_protocol::wire::refusal::RefusalCode;
use tidewater_runtime::clock::{self, Deadline};

use tidewater_testkit::proxy::Gateway;
use tidewater_testkit::sockets::{CLUSTER, Rig, config, soon, token};

/// Activity of a client while its control connection is cut.
type Habit = fn(&mut Client, &Table<i64>);

fn pushes(client: &mut Client, table: &Table<i64>) {
    let _unawaited = client.push_rows(table, &[1], &[0], PushOp::Sum).unwrap();
}

fn pulls(client: &mut Client, table: &Table<i64>) {
    let mut out = [0];
    client
        .pull_rows(table, &[1], &mut out, PullOptions::default())
        .unwrap();
}

/// Waits for workers that never join, without a limit.
fn waits(client: &mut Client, _: &Table<i64>) {
    match client.tick() {
        Ok(()) | Err(ClientError::Deadline { .. }) => {}
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn whatever_a_client_does_it_resumes_before_its_session_ends() {
    let mut config = config();
    config.linger = Duration::from_millis(2_500);
    let rig = Rig::with(config);
    let habits: [Habit; 3] = [pushes, pulls, waits];
    std::thread::scope(|scope| {
        for (rank, habit) in (0..).zip(habits) {
            let rig = &rig;
            scope.spawn(move || live_on(rig, rank, habit));
        }
    });
}

fn live_on(rig: &Rig, rank: u32, habit: Habit) {
    let mut member = rig.member();
    let proxy = Gateway::to(&member.endpoints.tcp);
    member.endpoints.tcp.clone_from(&proxy.address);
    let mut config = ConnectConfig::new(token(), CLUSTER, rank);
    config.transport = tidewater_testkit::sockets::BOTH[1];
    let mut client = rig.client_with(&member, &config, SyncMode::Ssp(1)).unwrap();
    let longer = Duration::from_secs(4);
    client.set_clock_timeout(longer);
    let spec = TableBuilder::sparse::<i64>(&format!("t{rank}"), 1);
    let table = client.create_table::<i64>(spec.spec()).unwrap();
    let before = proxy.count();
    // Control is connection 0.
    proxy.cut(0);
    let until = Deadline::after(longer);
    while !until.passed() {
        habit(&mut client, &table);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(proxy.count(), before + 1, "rank {rank}: resumed once");
    let pushed = client.push_rows(&table, &[1], &[7], PushOp::Sum).unwrap();
    client.wait_applied(&pushed).unwrap();
    assert_eq!(client.counters().recoveries, 0, "rank {rank}");
}

#[test]
fn a_client_whose_session_has_ended_is_told_so() {
    let mut config = config();
    config.linger = Duration::from_millis(30);
    let rig = Rig::with(config);
    let mut member = rig.member();
    let tcp = Gateway::to(&member.endpoints.tcp);
    let unix = UnixProxy::to(&member.endpoints.unix);
    member.endpoints.tcp.clone_from(&tcp.address);
    member.endpoints.unix.clone_from(&unix.name);
    for (rank, transport) in (0..).zip(*tidewater_testkit::sockets::BOTH) {
        for habit in ["push", "pull", "wait"] {
            let config = ConnectConfig {
                transport,
                ..ConnectConfig::new(token(), CLUSTER, rank)
            };
            let control = tcp.count();
            let mut client = rig.client_with(&member, &config, SyncMode::Ssp(1)).unwrap();
            let spec = TableBuilder::sparse::<i64>(&format!("{transport:?}-{habit}"), 1);
            let table = client.create_table::<i64>(spec.spec()).unwrap();
            // Lanes stay open until the server closes them.
            if transport != TransportChoice::Shm {
                tcp.cut(control);
            }
            unix.cut();
            rig.wait_for_sessions(0);
            let started = clock::now();
            let ended = match habit {
                "push" => push_until_told(&mut client, &table),
                "pull" => pull_until_told(&mut client, &table),
                _ => (0..9).try_for_each(|_| client.tick()),
            };
            let Err(ClientError::Refused(no)) = ended else {
                panic!("{transport:?}, {habit}: {ended:?}")
            };
            assert_eq!(no.code, RefusalCode::UnknownSession);
            let took = clock::now() - started;
            assert!(
                took < Duration::from_secs(10),
                "{transport:?}, {habit}: {took:?}"
            );
        }
    }
}

fn push_until_told(client: &mut Client, table: &Table<i64>) -> Result<(), ClientError> {
    let pushed = client.push_rows(table, &[1], &[1], PushOp::Sum)?;
    client.wait_applied(&pushed)
}

fn pull_until_told(client: &mut Client, table: &Table<i64>) -> Result<(), ClientError> {
    client.pull_rows(table, &[1], &mut [0], PullOptions::default())?;
    Ok(())
}

/// Forwards bytes and descriptors of unix sockets.
struct UnixProxy {
    name: String,
    ends: Arc<Mutex<Vec<UnixStream>>>,
}

impl UnixProxy {
    fn to(target: &str) -> Self {
        let name = format!("{target}-cut");
        let listener = pass::listen(&name).unwrap();
        listener.set_nonblocking(false).unwrap();
        let ends: Arc<Mutex<Vec<UnixStream>>> = Arc::default();
        let (target, kept) = (target.to_owned(), Arc::clone(&ends));
        // Ends with the test's process: no thread joins it.
        std::thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                let Ok(far) = pass::connect(&target, soon()) else {
                    return;
                };
                pump(near.try_clone().unwrap(), far.try_clone().unwrap());
                pump(far.try_clone().unwrap(), near.try_clone().unwrap());
                kept.lock().unwrap().extend([near, far]);
            }
        });
        Self { name, ends }
    }

    /// Cuts all connections so far.
    fn cut(&self) {
        for end in self.ends.lock().unwrap().drain(..) {
            let _ = end.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn pump(from: UnixStream, to: UnixStream) {
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        let mut held = Descriptors::default();
        while let Ok(count @ 1..) = pass::receive(&from, &mut bytes, &mut held) {
            let came = held.len();
            let fds = held.take(came).unwrap();
            let mut fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            let mut rest = &bytes[..count];
            while !rest.is_empty() {
                let Ok(sent) = pass::send(&to, rest, &fds) else {
                    return;
                };
                rest = &rest[sent..];
                fds.clear();
            }
        }
        for end in [from, to] {
            let _ = end.shutdown(std::net::Shutdown::Both);
        }
    });
}
