//! Clients of the listener's server: how fast pulls and pushes are, whether rows are torn, and how long
//! many clients take to attach.

use std::time::Duration;

use tidewater::{
    Client, ClientError, Job, JoinOptions, PullOptions, PushOp, RdmaDevice, SyncMode, TableBuilder,
    TransportChoice,
};
use tidewater_conformance::faults::Rng;
use tidewater_protocol::wire::handshake::JobToken;
use tidewater_runtime::clock::{self, Deadline};
use tidewater_runtime::sync::{AtomicBool, Ordering};

use crate::finding::{Finding, Verdict};

/// Elements of the range that is pulled: 1 MiB.
const RANGE: usize = 1 << 18;
/// Elements of a push: 64 KiB, as perftest's writes.
const PUSH: usize = 1 << 14;
/// Pushes between two waits.
const WINDOW: usize = 16;
/// Bytes of the rings of many clients.
const SMALL_RING: usize = 64 << 10;
/// Rows of the torn check: few, so that reads meet writes.
const ROWS: u64 = 16;
const DIM: usize = 256;

/// How to reach the listener's server.
#[derive(Debug, Clone)]
pub(crate) struct Serving {
    pub(crate) coordinator: String,
    pub(crate) token: JobToken,
    pub(crate) device: Option<RdmaDevice>,
}

impl Serving {
    /// Joins a job of `workers` workers over RDMA; each check has a job, and so tables, of its own.
    pub(crate) fn join(
        &self,
        job: &str,
        workers: u32,
        ring_bytes: Option<usize>,
    ) -> Result<Job, ClientError> {
        let options = JoinOptions {
            coordinator: Some(self.coordinator.clone()),
            token: Some(self.token.clone()),
            namespace: Some(job.to_owned()),
            workers: Some(workers),
            transport: Some(TransportChoice::Verbs),
            rdma_device: self.device.clone(),
            ring_bytes,
            ..JoinOptions::default()
        };
        // The variables of a launcher or of another job do not concern a check.
        let vars = std::env::vars_os();
        let vars = vars.filter(|(name, _)| name.to_string_lossy().starts_with("TIDEWATER_RDMA_"));
        let joined = options.join_from_vars(vars)?;
        let job = joined.into_job();
        job.ok_or_else(|| ClientError::Environment("this process has become a server".into()))
    }
}

/// Our three figures of one server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Speed {
    /// Median time of a pull of one row of 8 bytes, microseconds.
    pub(crate) pull_us: f64,
    /// Gigabytes a second of pulls of 1 MiB.
    pub(crate) range_gb_s: f64,
    /// Gigabytes a second of pushes of 64 KiB, until they are applied.
    pub(crate) push_gb_s: f64,
    /// Number of wrong values.
    pub(crate) wrong: u64,
}

/// Measures pulls and pushes, for `time` each; every value is compared.
pub(crate) fn speed(serving: &Serving, time: Duration) -> Result<Speed, ClientError> {
    let job = serving.join("check-speed", 1, None)?;
    let mut client = job.client(SyncMode::Asp)?;
    let (pull_us, wrong_rows) = pull_latency(&mut client, time)?;
    let speed = ranges(&mut client, time)?;
    client.finish()?;
    Ok(Speed {
        pull_us,
        wrong: wrong_rows + speed.wrong,
        ..speed
    })
}

fn pull_latency(client: &mut Client, time: Duration) -> Result<(f64, u64), ClientError> {
    let spec = TableBuilder::rows::<f32>("rows", 1024, 2);
    let table = client.create_table::<f32>(spec.spec())?;
    let keys: Vec<u64> = (0..1024).collect();
    let values: Vec<f32> = (0..2048).map(|n| n as f32).collect();
    let ticket = client.push_rows(&table, &keys, &values, PushOp::Assign)?;
    client.wait_applied(&ticket)?;
    let (mut rng, mut wrong, mut times) = (Rng(1), 0, Vec::new());
    let deadline = Deadline::after(time);
    while !deadline.passed() || times.len() < 100 {
        let key = rng.below(1024);
        let mut row = [-1.0; 2];
        let began = clock::now();
        client.pull_rows(&table, &[key], &mut row, PullOptions::default())?;
        times.push(clock::now().duration_since(began));
        wrong += u64::from(row != [(2 * key) as f32, (2 * key + 1) as f32]);
    }
    times.sort_unstable();
    let median = times[times.len() / 2].as_secs_f64();
    Ok((median * 1e6, wrong))
}

/// Measures ranges; leaves the time of a row at 0.
fn ranges(client: &mut Client, time: Duration) -> Result<Speed, ClientError> {
    let spec = TableBuilder::range::<f32>("range", RANGE as u64, 1);
    let table = client.create_table::<f32>(spec.spec())?;
    let (ones, mut out) = (vec![1.0_f32; PUSH], client.buffer::<f32>(RANGE)?);
    let (began, deadline) = (clock::now(), Deadline::after(time));
    let (mut rounds, mut wrong) = (0_u32, 0);
    while rounds == 0 || !deadline.passed() {
        let mut last = Vec::with_capacity(RANGE / PUSH);
        for first in (0..RANGE).step_by(PUSH) {
            last.push(client.push_range(&table, first as u64, &ones, PushOp::Sum)?);
            if last.len() % WINDOW == 0 {
                for ticket in last.drain(..) {
                    client.wait_applied(&ticket)?;
                }
            }
        }
        rounds += 1;
    }
    let bytes = f64::from(rounds) * (RANGE * 4) as f64;
    let push_gb_s = bytes / clock::now().duration_since(began).as_secs_f64() / 1e9;
    let (mut pulls, mut spent, deadline) = (0_u32, Duration::ZERO, Deadline::after(time));
    while pulls == 0 || !deadline.passed() {
        out.fill(-1.0);
        let began = clock::now();
        client.pull_range(&table, 0, &mut out, PullOptions::default())?;
        spent += clock::now().duration_since(began);
        wrong += out.iter().filter(|value| **value != rounds as f32).count() as u64;
        pulls += 1;
    }
    let bytes = f64::from(pulls) * (RANGE * 4) as f64;
    Ok(Speed {
        pull_us: 0.0,
        range_gb_s: bytes / spent.as_secs_f64() / 1e9,
        push_gb_s,
        wrong,
    })
}

/// Counts of the torn check.
#[derive(Debug, Clone, Copy, Default)]
struct Torn {
    rows: u64,
    rejected: u64,
    torn: u64,
    back: u64,
}

/// A writer adds ones to whole rows at full speed; each row that a reader accepts has equal elements, and
/// is no older than the one before.
pub(crate) fn torn(serving: &Serving, time: Duration) -> Result<Finding, ClientError> {
    const CHECK: &str = "torn reads";
    let job = serving.join("check-torn", 2, None)?;
    let done = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let seen = read_rows(&job, time);
            done.store(true, Ordering::Release);
            seen
        });
        let written = write_rows(&job, &done);
        let seen = reader.join().unwrap_or_else(|_| Err(panicked()));
        written.and(seen)
    })?;
    let Torn {
        rows,
        rejected,
        torn,
        back,
    } = seen;
    let found = format!(
        "{rows} rows accepted, {torn} of them torn, {back} older than before; {rejected} refused"
    );
    let verdict = match (torn + back, rejected) {
        (0, 0) => Verdict::Change,
        (0, _) => Verdict::Pass,
        _ => Verdict::Fail,
    };
    let finding = Finding::new(CHECK, verdict, found)
        .figure("rows", rows as f64)
        .figure("rejected", rejected as f64)
        .figure("torn", torn as f64);
    Ok(match verdict {
        Verdict::Change => {
            finding.change("no read met a write: run the full check, which reads for longer")
        }
        Verdict::Fail => {
            finding.change("report it with this document: a checksum accepted mixed rows")
        }
        _ => finding,
    })
}

/// Error for a thread of a check that panicked.
pub(crate) fn panicked() -> ClientError {
    ClientError::Environment(
        "a thread of the check panicked: a defect, please report it"
            .to_owned()
            .into(),
    )
}

fn write_rows(job: &Job, done: &AtomicBool) -> Result<(), ClientError> {
    let mut client = job.client_of(0, SyncMode::Asp)?;
    let spec = TableBuilder::rows::<f32>("torn", ROWS, DIM as u32);
    let table = client.create_table::<f32>(spec.spec())?;
    let (keys, ones): (Vec<u64>, _) = ((0..ROWS).collect(), vec![1.0; ROWS as usize * DIM]);
    while !done.load(Ordering::Acquire) {
        let ticket = client.push_rows(&table, &keys, &ones, PushOp::Sum)?;
        drop(ticket);
    }
    client.flush()?;
    client.finish()
}

fn read_rows(job: &Job, time: Duration) -> Result<Torn, ClientError> {
    let mut client = job.client_of(1, SyncMode::Asp)?;
    let spec = TableBuilder::rows::<f32>("torn", ROWS, DIM as u32);
    let table = client.create_table::<f32>(spec.spec())?;
    let keys: Vec<u64> = (0..ROWS).collect();
    let mut out = vec![0.0_f32; ROWS as usize * DIM];
    let (mut newest, mut seen) = ([0.0_f32; ROWS as usize], Torn::default());
    let deadline = Deadline::after(time);
    while !deadline.passed() {
        client.pull_rows(&table, &keys, &mut out, PullOptions::default())?;
        for (row, newest) in out.chunks(DIM).zip(&mut newest) {
            let first = row[0];
            seen.torn += u64::from(row.iter().any(|v| v.to_bits() != first.to_bits()));
            seen.back += u64::from(first < *newest);
            *newest = first;
            seen.rows += 1;
        }
    }
    seen.rejected = client.counters().torn_rejected;
    client.finish()?;
    Ok(seen)
}

/// Attaches `clients` clients at once; calls `attached` while all are there.
pub(crate) fn attach<T>(
    serving: &Serving,
    clients: u32,
    attached: impl FnOnce() -> T,
) -> Result<(Duration, T), ClientError> {
    let job = serving.join("check-attach", clients, Some(SMALL_RING))?;
    let began = clock::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients)
            .map(|rank| {
                let job = &job;
                scope.spawn(move || job.client_of(rank, SyncMode::Asp))
            })
            .collect();
        let all: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(panicked())))
            .collect();
        let took = clock::now().duration_since(began);
        let mut all = all.into_iter().collect::<Result<Vec<Client>, _>>()?;
        let seen = attached();
        for client in &mut all {
            client.finish()?;
        }
        Ok((took, seen))
    })
}
