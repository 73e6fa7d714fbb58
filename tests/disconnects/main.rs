//! A scripted TCP session against a real server, cut after each of its bytes, whatever that byte
//! belongs to: handshakes, Attach, Describe, lanes, Resume, Recover. Every acknowledged push counts
//! once, the invalid push is refused, ticks count once.
//!
//! A second set of sessions has a control connection that is cut while it is idle.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on fails; what it saw is part of its result"
)]

mod idle;
mod proxy;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use proxy::{Direction, Plan, Proxy, Reach, Seen};
use tidewater::connect::ConnectConfig;
use tidewater::{Client, ClientError, PullMode, PullOptions, TableBuilder};
use tidewater_launch::TransportChoice;
use tidewater_protocol::ids::{ApplierId, DomainId, WorkerId, WorkerThread};
use tidewater_protocol::layout::lines::RejectCode;
use tidewater_protocol::table::PushOp;
use tidewater_runtime::sync::{AtomicUsize, Ordering};
use tidewater_testkit::sockets::{CLUSTER, Rig, config, token};

/// Sessions of one server, each with its own rank, because a worker's clocks come from one session.
/// The cost of ticks and polls grows with all workers and sessions, so the sessions are split.
const SESSIONS: usize = 300;
/// Concurrent sessions: they mostly wait for each other's ends.
const THREADS: usize = 6;
/// Keys of a session: its first is `KEYS * rank`.
const KEYS: u64 = 4;
const TICKS: u64 = 2;

/// Runs the session's work; it adds 111 to each of its keys, and 3 in the table of floats.
fn script(client: &mut Client, rank: u32) -> Result<(), ClientError> {
    let counts = client.open_table::<i64>("counts")?;
    let floats = client.open_table::<f32>("floats")?;
    let keys = keys(rank);
    let mut out = [0; KEYS as usize];
    let push = |client: &mut Client, by: i64| {
        client.push_rows(&counts, &keys, &[by; KEYS as usize], PushOp::Sum)
    };
    let first = push(client, 1)?;
    let second = push(client, 10)?;
    client.wait_applied(&second)?;
    client.wait_applied(&first)?;
    client.pull_rows(&counts, &keys, &mut out, PullOptions::default())?;
    assert_eq!(out, [11; KEYS as usize]);
    client.tick()?;
    let good = client.push_rows(&floats, &keys[..1], &[3.0], PushOp::Sum)?;
    let bad = client.push_rows(&floats, &keys[..1], &[f32::NAN], PushOp::Sum)?;
    let third = push(client, 100)?;
    client.wait_applied(&third)?;
    match client.wait_applied(&bad) {
        Err(ClientError::Rejected { reject, .. }) => {
            assert_eq!(reject.code(), RejectCode::NotFinite)
        }
        Err(other) => return Err(other),
        Ok(()) => panic!("rank {rank}: NaN was accepted"),
    }
    client.wait_applied(&good)?;
    let gather = PullOptions::default().mode(PullMode::Gather);
    client.pull_rows(&counts, &keys, &mut out, gather)?;
    assert_eq!(out, [111; KEYS as usize]);
    client.tick()?;
    client.flush()
}

fn keys(rank: u32) -> [u64; KEYS as usize] {
    std::array::from_fn(|k| KEYS * u64::from(rank) + k as u64)
}

/// Result of a session.
#[derive(Debug, Clone, Copy)]
struct Session {
    rank: u32,
    /// Whether the session was opened; otherwise it had no effect.
    opened: bool,
    recoveries: u64,
    seen: Seen,
}

/// Runs a session for each plan, several at a time, and checks their effects. The results are in the
/// order of the plans.
fn run(plans: &[Plan]) -> Vec<Session> {
    plans.chunks(SESSIONS).flat_map(run_on_one).collect()
}

/// Runs the sessions of some plans on one server.
fn run_on_one(plans: &[Plan]) -> Vec<Session> {
    let mut config = config();
    // The watcher is worker 0.
    config.workers = 1 + SESSIONS as u32;
    config.linger = Duration::from_secs(5);
    let rig = Rig::with(config);
    let mut watcher = rig.client(TransportChoice::Shm, 0);
    let counts = TableBuilder::sparse::<i64>("counts", 1);
    watcher.create_table::<i64>(counts.spec()).unwrap();
    let floats = TableBuilder::sparse::<f32>("floats", 1);
    watcher.create_table::<f32>(floats.spec()).unwrap();
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    let Some(plan) = plans.get(n) else { return };
                    let session = one(&rig, plan, 1 + n as u32);
                    done.lock().unwrap().push(session);
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap();
    assert_eq!(done.len(), plans.len());
    done.sort_by_key(|session| session.rank);
    check(&rig, &mut watcher, &done);
    done
}

/// Checks that the tables hold the sessions' pushes: 111 and 3 and the ticks of each.
fn check(rig: &Rig, watcher: &mut Client, sessions: &[Session]) {
    let counts = watcher.open_table::<i64>("counts").unwrap();
    let floats = watcher.open_table::<f32>("floats").unwrap();
    let options = PullOptions::default();
    for session in sessions {
        let once = u8::from(session.opened);
        let keys = keys(session.rank);
        let mut out = [0; KEYS as usize];
        watcher
            .pull_rows(&counts, &keys, &mut out, options)
            .unwrap();
        assert_eq!(out, [111 * i64::from(once); KEYS as usize], "{session:?}");
        let mut out = [0.0];
        watcher
            .pull_rows(&floats, &keys[..1], &mut out, options)
            .unwrap();
        assert_eq!(out, [3.0 * f32::from(once)], "{session:?}");
    }
    for applier in 0..rig.handle().appliers() {
        let job = rig.handle().namespace("default").unwrap();
        let clocks = rig.handle().with_engine(ApplierId(applier), move |engine| {
            let live = engine.clocks(job).live(DomainId(0));
            live.collect::<BTreeMap<_, _>>()
        });
        let clocks = clocks.unwrap();
        for session in sessions {
            let ticks = TICKS * u64::from(session.opened);
            assert_eq!(
                clocks[&WorkerThread::first(WorkerId(session.rank))],
                ticks,
                "{session:?}"
            );
        }
    }
}

/// Runs one session through its own proxy.
fn one(rig: &Rig, plan: &Plan, rank: u32) -> Session {
    let mut member = rig.member();
    let proxy = Proxy::start(&member.endpoints.tcp, plan.clone());
    member.endpoints.tcp.clone_from(&proxy.address);
    let mut config = ConnectConfig::new(token(), CLUSTER, rank);
    config.transport = TransportChoice::Tcp;
    config.ring_bytes = 16 << 10;
    let mut recoveries = 0;
    let opened = match rig.client_at(&member, &config) {
        Ok(mut client) => {
            let done = script(&mut client, rank);
            recoveries = client.counters().recoveries;
            done.unwrap_or_else(|e| panic!("rank {rank}, {plan:?}: {e}"));
            true
        }
        // No push was made; a job's launcher would start it again.
        Err(ClientError::ServerLost { .. } | ClientError::Control { .. }) => false,
        Err(e) => panic!("rank {rank}, {plan:?}: {e}"),
    };
    let seen = proxy.finish();
    Session {
        rank,
        opened,
        recoveries,
        seen,
    }
}

const DIRECTIONS: [Direction; 2] = [Direction::Up, Direction::Down];
const REACHES: [Reach; 2] = [Reach::All, Reach::One];

fn plan(direction: Direction, reach: Reach, cuts: &[u64]) -> Plan {
    Plan {
        direction,
        reach,
        gentle: cuts.iter().sum::<u64>().is_multiple_of(32),
        cuts: cuts.iter().copied().collect(),
    }
}

/// Bytes that an uncut session moves. The number varies, because answers are combined or separate.
fn whole(direction: Direction) -> std::ops::RangeInclusive<u64> {
    let plans = vec![plan(direction, Reach::One, &[]); 8];
    let moved = run(&plans).into_iter().map(|session| {
        assert_eq!((session.seen.cuts, session.recoveries), (0, 0));
        session.seen.moved[direction as usize]
    });
    let moved: Vec<u64> = moved.collect();
    *moved.iter().min().unwrap()..=*moved.iter().max().unwrap()
}

fn tell(what: &str, sessions: &[Session]) {
    let count = |is: fn(&Session) -> bool| sessions.iter().filter(|s| is(s)).count();
    println!(
        "{what}: {} sessions, {} cut, {} cut twice, {} recovered lanes, {} not opened: exact",
        sessions.len(),
        count(|s| s.seen.cuts > 0),
        count(|s| s.seen.cuts > 1),
        count(|s| s.recoveries > 0),
        count(|s| !s.opened),
    );
}

/// Whether every cut of a sweep is tried, and not one in some.
fn is_full() -> bool {
    std::env::var("TIDEWATER_TEST_FULL").is_ok_and(|v| v == "1")
}

/// Without `TIDEWATER_TEST_FULL=1` one cut in three; each sweep begins at another byte.
#[test]
fn a_session_cut_after_any_of_its_bytes_is_exact() {
    let step = if is_full() { 1 } else { 3 };
    let sweeps = DIRECTIONS.into_iter().flat_map(|d| REACHES.map(|r| (d, r)));
    for (first, (direction, reach)) in sweeps.enumerate() {
        let bytes = whole(direction);
        let cuts: Vec<u64> = (first as u64 % step..=*bytes.end())
            .step_by(step as usize)
            .collect();
        let plans = cuts.iter().map(|&at| plan(direction, reach, &[at]));
        let sessions = run(&plans.collect::<Vec<_>>());
        let what = format!(
            "{direction:?}, {reach:?}, by {step} up to byte {}",
            bytes.end()
        );
        tell(&what, &sessions);
        // Not every session sends the last bytes.
        let sure = cuts.partition_point(|&at| at < *bytes.start() * 3 / 4);
        assert!(sure > 50, "{sure} cuts");
        assert!(sessions[..sure].iter().all(|s| s.seen.cuts == 1));
        let recovered = sessions.iter().filter(|s| s.recoveries > 0).count();
        assert!(recovered > sessions.len() / 4, "{recovered} recoveries");
    }
}

#[test]
fn a_recovery_that_is_cut_after_any_of_its_bytes_is_exact() {
    let step = if is_full() { 1 } else { 7 };
    for direction in DIRECTIONS {
        let bytes = *whole(direction).start();
        // While tables are opened, and while pushes are on their way.
        for (reach, at) in [(Reach::All, bytes / 2), (Reach::One, bytes * 3 / 4)] {
            let once = run(&[plan(direction, reach, &[at])])[0].seen;
            assert_eq!(once.cuts, 1);
            // From 1: no byte after a cut is a cut at the same place.
            let again = (1..=once.after_cut).step_by(step);
            let plans = again.map(|then| plan(direction, reach, &[at, then]));
            let sessions = run(&plans.collect::<Vec<_>>());
            let after = once.after_cut;
            let what = format!("{direction:?}, {reach:?}, byte {at}, then 1..={after} by {step}");
            tell(&what, &sessions);
            let twice = sessions.iter().filter(|s| s.seen.cuts == 2).count();
            assert!(twice > sessions.len() / 2, "{twice} of {}", sessions.len());
        }
    }
}
