//! Pushes exactly once while queue pairs are broken on purpose: integers are pushed by some workers, each
//! keeps books of the acknowledged ones, and the rows must hold the sum.

use std::collections::VecDeque;
use std::time::Duration;

use tidewater::connect::{ConnectConfig, JoinConfig, NetCoordinatorLink, NetServerLink};
use tidewater::error::{Cause, SystemError};
use tidewater::link::{OpenLane, ServerLink};
use tidewater::{
    Client, ClientError, DomainId, Parts, PullOptions, PushOp, SyncMode, Table, TableBuilder,
    Ticket, TransportChoice,
};
use tidewater_conformance::faults::{Faults, Rng};
use tidewater_lanes::fabric::{RemoteAddr, SPIN, TransportKind};
use tidewater_lanes::wake::OsParker;
use tidewater_launch::fabric_from_env;
use tidewater_protocol::ids::{ApplierId, SessionId, TableId, WorkerId, WorkerThread};
use tidewater_protocol::wire::control::{TableDescriptor, WorkerClock};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::Buffer;

use crate::clients::{Serving, panicked};
use crate::finding::{Finding, Verdict};

const WORKERS: u32 = 4;
/// Rows that all workers push to.
const ROWS: u64 = 256;
const DIM: usize = 4;
/// Rows of one push.
const WIDTH: usize = 32;
/// Pushes that wait for their acknowledgement.
const WINDOW: usize = 32;
/// Mean number of reads and writes between two faults of a lane.
const ONE_IN: u64 = 400;
const JOIN: Duration = Duration::from_secs(60);
const JOB: &str = "check-ledger";

/// What a worker pushed, and what it had to do.
#[derive(Debug, Default)]
struct Books {
    sums: Vec<i64>,
    pushes: u64,
    recoveries: u64,
}

/// Pushes for `time` while lanes fail; compares the rows with the books.
pub(crate) fn ledger(serving: &Serving, time: Duration, seed: u64) -> Result<Finding, ClientError> {
    const CHECK: &str = "ledger with broken queue pairs";
    let faults = Faults::new(seed, ONE_IN);
    let deadline = Deadline::after(time);
    let all = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..WORKERS)
            .map(|rank| {
                let faults = faults.clone();
                scope.spawn(move || work(serving, rank, faults, seed, deadline))
            })
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Books, ClientError>>| {
            thread.join().unwrap_or_else(|_| Err(panicked()))
        };
        threads.into_iter().map(join).collect::<Result<Vec<_>, _>>()
    })?;
    let mut due = vec![0_i64; ROWS as usize * DIM];
    let (mut pushes, mut recoveries) = (0, 0);
    for books in all {
        due.iter_mut().zip(&books.sums).for_each(|(a, b)| *a += b);
        pushes += books.pushes;
        recoveries += books.recoveries;
    }
    let seen = read(serving)?;
    let wrong = due.iter().zip(&seen).filter(|(a, b)| a != b).count();
    let found = format!(
        "{pushes} pushes of {WIDTH} rows, {} lanes failed on purpose, {} of them by a forbidden access, {recoveries} \
         recoveries: {wrong} of {} sums differ",
        faults.broken(),
        faults.offended(),
        due.len()
    );
    let verdict = match (wrong, recoveries) {
        (0, 0) => Verdict::Change,
        (0, _) => Verdict::Pass,
        _ => Verdict::Fail,
    };
    let finding = Finding::new(CHECK, verdict, found)
        .figure("pushes", pushes as f64)
        .figure("recoveries", recoveries as f64)
        .figure("wrong_sums", wrong as f64);
    Ok(match verdict {
        Verdict::Fail => finding.change(format!("report it with this document: seed {seed}")),
        Verdict::Change => {
            finding.change("no lane was recovered: run the full check, which takes longer")
        }
        _ => finding,
    })
}

fn open(client: &mut Client) -> Result<Table<i64>, ClientError> {
    client.create_table(TableBuilder::sparse::<i64>("ledger", DIM as u32).spec())
}

fn work(
    serving: &Serving,
    rank: u32,
    faults: Faults,
    seed: u64,
    deadline: Deadline,
) -> Result<Books, ClientError> {
    let mut client = connect(serving, rank, faults)?;
    let table = open(&mut client)?;
    let mut rng = Rng(seed ^ u64::from(rank) << 32);
    let mut books = Books {
        sums: vec![0; ROWS as usize * DIM],
        ..Books::default()
    };
    let mut waiting: VecDeque<Ticket> = VecDeque::new();
    while !deadline.passed() {
        let keys: Vec<u64> = (0..WIDTH).map(|_| rng.below(ROWS)).collect();
        let values: Vec<i64> = (0..WIDTH * DIM)
            .map(|_| rng.below(2001) as i64 - 1000)
            .collect();
        waiting.push_back(client.push_rows(&table, &keys, &values, PushOp::Sum)?);
        // A push without an acknowledgement fails the check, so each counts at once.
        for (key, row) in keys.iter().zip(values.chunks(DIM)) {
            let at = *key as usize * DIM;
            books.sums[at..at + DIM]
                .iter_mut()
                .zip(row)
                .for_each(|(sum, value)| *sum += value);
        }
        books.pushes += 1;
        if waiting.len() >= WINDOW
            && let Some(ticket) = waiting.pop_front()
        {
            client.wait_applied(&ticket)?;
        }
    }
    for ticket in waiting {
        client.wait_applied(&ticket)?;
    }
    books.recoveries = client.counters().recoveries;
    client.finish()?;
    Ok(books)
}

/// Reads all sums, over lanes without faults.
fn read(serving: &Serving) -> Result<Vec<i64>, ClientError> {
    let job = serving.join(JOB, WORKERS + 1, None)?;
    let mut client = job.client_of(WORKERS, SyncMode::Asp)?;
    let table = open(&mut client)?;
    let keys: Vec<u64> = (0..ROWS).collect();
    let mut sums = vec![0; ROWS as usize * DIM];
    client.pull_rows(&table, &keys, &mut sums, PullOptions::default())?;
    client.finish()?;
    Ok(sums)
}

/// Connects a worker with lanes that fail.
fn connect(serving: &Serving, rank: u32, faults: Faults) -> Result<Client, ClientError> {
    let deadline = Deadline::after(JOIN);
    let mut join = JoinConfig::new(&serving.coordinator, serving.token.clone());
    join.namespace = JOB.to_owned();
    (join.rank, join.workers) = (Some(rank), WORKERS + 1);
    let (mut coordinator, joined) = NetCoordinatorLink::join(&join, deadline)?;
    let members = coordinator.wait_servers(joined.servers_expected, deadline)?;
    let mut config = ConnectConfig::new(serving.token.clone(), coordinator.cluster(), joined.rank);
    config.namespace = JOB.to_owned();
    config.epoch = members.epoch;
    config.transport = TransportChoice::Verbs;
    config.rdma_device.clone_from(&serving.device);
    config.fabric = fabric_from_env().map_err(|e| ClientError::Environment(e.into()))?;
    config.workers = joined.workers_expected;
    let parker = OsParker::new(SPIN);
    let parker = parker.map_err(|source| {
        let op = "make an epoll";
        let remedy = None;
        ClientError::Environment(SystemError { op, source, remedy }.into())
    })?;
    let mut parker = parker.patient();
    let mut servers = Vec::new();
    for member in &members.servers {
        let (link, lanes) = NetServerLink::open(member, &config, &mut parker, deadline)?;
        let wrap = |open: OpenLane| OpenLane {
            lane: faults.wrap(open.lane, false),
            ..open
        };
        let lanes = lanes.into_iter().map(wrap).collect();
        let faults = faults.clone();
        servers.push((
            Box::new(FaultyLink { link, faults }) as Box<dyn ServerLink>,
            lanes,
        ));
    }
    Client::from_parts(Parts {
        coordinator: Box::new(coordinator),
        servers,
        parker: Box::new(parker),
        rank: WorkerId(joined.rank),
        workers: joined.workers_expected,
        sync: SyncMode::Asp,
    })
}

/// A link with lanes that fail again after each recovery.
struct FaultyLink {
    link: NetServerLink,
    faults: Faults,
}

impl ServerLink for FaultyLink {
    fn name(&self) -> &str {
        self.link.name()
    }

    fn session(&self) -> SessionId {
        self.link.session()
    }

    fn transport(&self) -> TransportKind {
        self.link.transport()
    }

    fn ring_bytes(&self) -> usize {
        self.link.ring_bytes()
    }

    fn counter(&self, applier: ApplierId) -> Option<RemoteAddr> {
        self.link.counter(applier)
    }

    fn describe(
        &mut self,
        table: TableId,
        deadline: Deadline,
    ) -> Result<TableDescriptor, ClientError> {
        self.link.describe(table, deadline)
    }

    fn clocks(
        &mut self,
        domain: DomainId,
        deadline: Deadline,
    ) -> Result<Vec<(WorkerThread, u64)>, ClientError> {
        self.link.clocks(domain, deadline)
    }

    fn paces(
        &mut self,
        domain: DomainId,
        deadline: Deadline,
    ) -> Result<Vec<WorkerClock>, ClientError> {
        self.link.paces(domain, deadline)
    }

    fn check(&mut self, deadline: Deadline) -> Result<(), ClientError> {
        self.link.check(deadline)
    }

    fn end_session(&mut self, deadline: Deadline) -> Result<(), ClientError> {
        self.link.end_session(deadline)
    }

    fn register(&mut self, buffer: &mut Buffer) -> Result<(), Cause> {
        self.link.register(buffer)
    }

    fn recover(&mut self, applier: ApplierId, deadline: Deadline) -> Result<OpenLane, ClientError> {
        let open = self.link.recover(applier, deadline)?;
        Ok(OpenLane {
            lane: self.faults.wrap(open.lane, true),
            ..open
        })
    }
}
