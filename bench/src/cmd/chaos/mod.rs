//! `chaos`: real processes under a seeded schedule of faults, with a ledger of all pushes as judge.
//!
//! Each fault has a promise. A fault that a cluster survives is over when every worker has an acknowledgement
//! after it; after each fault the ledger is exact. One that it does not survive ends every worker with an
//! error that names the lost process; the run then goes on with a new cluster.
//!
//! As root the run has a network and mounts of its own (`unshare`): the loopback interface goes down for a
//! partition, and saves, checkpoints and the journal lie on file systems that are filled. Faults that this host
//! cannot have are named with the reason.

mod cluster;
mod faults;
mod host;
mod inflict;
mod ledger;
mod page;
mod training;
pub mod worker;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use tidewater_launch::TransportChoice;
use tidewater_runtime::clock::{self, Deadline};

use crate::error::BenchError;
use crate::sheet::Failures;
use cluster::{FaultCluster, Shape};
use faults::{Fault, Setup};
use host::Host;
use ledger::system;
use training::Training;

/// Maximum faults of a cluster before the next cluster is started.
const FAULTS_A_CLUSTER: usize = 4;

/// Options of the subcommand `chaos`.
#[derive(Debug, Clone, Args)]
pub struct ChaosArgs {
    /// Seed of the schedule: equal seeds give equal faults in equal order
    #[arg(long, default_value_t = 1, value_name = "S")]
    pub seed: u64,
    /// Number of faults to inflict, over all clusters
    #[arg(
        long,
        default_value_t = 30,
        value_name = "N",
        conflicts_with = "minutes"
    )]
    pub rounds: u32,
    /// Go on for this many minutes instead
    #[arg(long, value_name = "M")]
    pub minutes: Option<u64>,
    /// Transport of all clusters, shm or tcp [default: both in turn]
    #[arg(long, value_name = "T", value_parser = ["shm", "tcp"])]
    pub transport: Option<String>,
    /// Number of server processes
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub servers: u32,
    /// Number of worker processes
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=64))]
    pub workers: u32,
    /// Program with the roles coordinator, server and run [default: tidewater in the directory of this program]
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// Write the report page to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the record of each fault to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// The run has a network and mounts of its own
    #[arg(long, hide = true)]
    pub unshared: bool,
}

/// What a fault is inflicted on: a server by number, a worker by rank. `time` is how long a passing fault lasts.
#[derive(Debug, Clone, Copy)]
struct FaultTargets {
    server: u32,
    worker: u32,
    time: Duration,
}

/// What came of a fault.
#[derive(Debug, Default)]
struct Outcome {
    subject: String,
    /// From the fault until all processes concerned know it; `None` if they need not, or do not in time.
    detected: Option<Duration>,
    recovered: Option<Duration>,
    /// Acknowledged pushes that are counted in the tables after the fault; of a training, steps of all workers.
    pushes: Option<u64>,
    /// Acknowledged pushes, or steps, that were lost, as the durability level allows; `None` if none may be.
    lost: Option<u64>,
    broken: Option<String>,
    /// Whether the fault is one that ends the cluster: no ledger check and no further fault follow. If the cluster did
    /// not end as promised, `broken` says why.
    ended: bool,
}

/// One fault and what came of it.
#[derive(Debug, Clone, Serialize)]
struct Record {
    round: u32,
    /// Time from the begin of the run to the fault, seconds.
    at_s: f64,
    setup: &'static str,
    /// Durability level of the tables.
    level: &'static str,
    /// Transport of the lanes.
    transport: &'static str,
    fault: Fault,
    /// What the processes promise for this fault.
    promise: &'static str,
    /// The process, and how long the fault lasted.
    subject: String,
    /// From the fault until all processes concerned know it.
    detected_ms: Option<f64>,
    /// From a kill, or from the end of a fault that passes, until all workers have an acknowledgement again,
    /// or until all have ended with their error.
    recovered_ms: Option<f64>,
    /// Acknowledged pushes in the table after the fault, all accounted for; of a training, steps of all workers.
    pushes: Option<u64>,
    /// Acknowledged pushes, or steps, that were lost, as the level allows and as was reported.
    lost: Option<u64>,
    /// Why the promise was broken, if it was.
    broken: Option<String>,
}

/// Result of a run.
#[derive(Debug, Serialize)]
struct Run {
    seed: u64,
    /// Command that repeats the run.
    repeat: String,
    seconds: f64,
    records: Vec<Record>,
    /// Faults that this host cannot have, with the reason.
    skipped: BTreeMap<Fault, String>,
}

/// The schedule's source of numbers (PCG's multiplier). Seeds in tests and reports name its schedules.
#[derive(Debug)]
struct Seed(u64);

impl Seed {
    /// The next number, below `end`, which must not be 0.
    const fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    const fn time(&mut self, from_ms: u64, to_ms: u64) -> Duration {
        Duration::from_millis(from_ms + self.below(to_ms - from_ms))
    }
}

/// Runs `chaos`.
///
/// # Errors
/// The environment; a broken promise is a failure in the result.
pub fn run(args: &ChaosArgs) -> Result<Failures, BenchError> {
    if !args.unshared && host::can_unshare() {
        return run_unshared();
    }
    let folder = std::env::temp_dir().join(format!("tidewater-chaos-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(system("make the run's directory"))?;
    let run = run_in(args, &folder);
    let broken = run.as_ref().map_or(true, |run| {
        run.records.iter().any(|record| record.broken.is_some())
    });
    match broken {
        true => say(&format!(
            "logs and ledgers are kept in {}",
            folder.display()
        )),
        false => fs::remove_dir_all(&folder).map_err(system("remove the run's directory"))?,
    }
    let run = run?;
    if let Some(path) = &args.json {
        let text = serde_json::to_vec_pretty(&run).map_err(|e| BenchError::file(path, e))?;
        fs::write(path, text).map_err(|e| BenchError::file(path, e))?;
    }
    if let Some(path) = &args.html {
        fs::write(path, page::page(&run)).map_err(|e| BenchError::file(path, e))?;
    }
    let records = run.records.iter();
    let failures = records.filter_map(|record| {
        let why = record.broken.as_ref()?;
        Some(format!(
            "seed {}, round {}, {} of {} ({}, {}): {why}; repeat: {}",
            run.seed,
            record.round,
            record.fault.name(),
            record.subject,
            record.setup,
            record.transport,
            run.repeat
        ))
    });
    Ok(failures.collect())
}

/// Prints a line. Errors are ignored: the JSON and the page have the results, too.
fn say(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// Runs the same command line with a network and mounts of its own.
fn run_unshared() -> Result<Failures, BenchError> {
    let program = std::env::current_exe().map_err(system("find this program"))?;
    let mut unshare = Command::new("unshare");
    unshare.args(["--net", "--mount", "sh", "-c"]);
    unshare.args(["ip link set lo up && exec \"$@\"", "sh"]);
    unshare
        .arg(program)
        .args(std::env::args_os().skip(1))
        .arg("--unshared");
    let status = unshare.status().map_err(system("run unshare"))?;
    match status.code() {
        Some(0) => Ok(Failures::new()),
        Some(1) => Ok(vec!["promises were broken: see above".to_owned()]),
        _ => {
            let name = "the run with a network of its own";
            Err(BenchError::process(name, status.to_string()))
        }
    }
}

fn run_in(args: &ChaosArgs, folder: &Path) -> Result<Run, BenchError> {
    let own = std::env::current_exe().map_err(system("find this program"))?;
    let program = args.program.clone();
    let program = program.unwrap_or_else(|| own.with_file_name("tidewater"));
    if !program.is_file() {
        let text = format!(
            "{} is missing; build it, or give --program",
            program.display()
        );
        return Err(BenchError::Usage(text));
    }
    let host = Host::find(args.unshared, &program);
    for (fault, why) in &host.skipped {
        say(&format!("skipped: {}: {why}", fault.name()));
    }
    let mut session = Session {
        args,
        folder,
        program,
        host,
        seed: Seed(args.seed),
        orders: [const { Vec::new() }; Setup::ALL.len()],
        began: clock::now(),
        clusters: 0,
        records: Vec::new(),
    };
    let limit = args
        .minutes
        .map(|minutes| Deadline::after(Duration::from_secs(60 * minutes)));
    while !session.is_over(limit) {
        session.cluster(limit)?;
    }
    session.host.unmount()?;
    let faults = session.records.iter();
    let faults = faults.filter(|record| record.fault != Fault::EndOfRun);
    let transport = args.transport.as_ref();
    let transport = transport.map_or_else(String::new, |name| format!(" --transport {name}"));
    Ok(Run {
        seed: args.seed,
        repeat: format!(
            "tidewater-bench chaos --seed {} --rounds {}{transport} --servers {} --workers {}",
            args.seed,
            faults.count(),
            args.servers,
            args.workers
        ),
        seconds: session.began.elapsed().as_secs_f64(),
        records: session.records,
        skipped: session.host.skipped,
    })
}

/// A run under way.
struct Session<'a> {
    args: &'a ChaosArgs,
    folder: &'a Path,
    program: PathBuf,
    host: Host,
    seed: Seed,
    /// Faults that follow in each kind of cluster: each once in an order of the seed, then again in another one.
    orders: [Vec<Fault>; Setup::ALL.len()],
    began: Instant,
    /// Clusters that have been started.
    clusters: usize,
    records: Vec<Record>,
}

/// A cluster of either kind.
enum Running {
    Processes(FaultCluster),
    Job(Training),
}

impl Session<'_> {
    fn is_over(&self, limit: Option<Deadline>) -> bool {
        let rounds = self.args.rounds as usize;
        limit.map_or(self.records.len() >= rounds, |limit| limit.passed())
    }

    /// Starts a cluster, inflicts the next faults of its kind, and ends it.
    fn cluster(&mut self, limit: Option<Deadline>) -> Result<(), BenchError> {
        let number = self.clusters;
        self.clusters += 1;
        let kind = number % Setup::ALL.len();
        let setup = Setup::ALL[kind];
        let transport = match self.args.transport.as_deref() {
            Some("tcp") => TransportChoice::Tcp,
            Some(_) => TransportChoice::Shm,
            None => {
                [TransportChoice::Shm, TransportChoice::Tcp][(kind + number / Setup::ALL.len()) % 2]
            }
        };
        let shape = Shape {
            setup,
            program: self.program.clone(),
            servers: self.args.servers,
            workers: self.args.workers,
            transport,
        };
        let dir = self.folder.join(number.to_string());
        for disk in ["saves", "checkpoints", "state"] {
            self.host.small_disk(&dir.join(disk))?;
        }
        let mut running = match setup {
            Setup::Checkpoints => Running::Job(Training::start(&shape, &dir)?),
            _ => Running::Processes(FaultCluster::start(&shape, &dir)?),
        };
        for _ in 0..FAULTS_A_CLUSTER {
            if self.is_over(limit) {
                break;
            }
            let Some(fault) = self.next_fault(kind) else {
                break;
            };
            let at_s = self.began.elapsed().as_secs_f64();
            let mut outcome = self.inflict(&mut running, setup, fault)?;
            if let (Running::Processes(cluster), None, false) =
                (&running, &outcome.broken, outcome.ended)
            {
                match cluster.check_ledger()? {
                    Ok(pushes) => outcome.pushes = Some(pushes),
                    Err(why) => outcome.broken = Some(why),
                }
            }
            let is_last = outcome.ended || outcome.broken.is_some();
            self.record(at_s, setup, fault, transport, outcome);
            if is_last {
                return Ok(());
            }
        }
        let at_s = self.began.elapsed().as_secs_f64();
        let ended = match &mut running {
            Running::Processes(cluster) => cluster.finish()?,
            Running::Job(job) => job.finish()?,
        };
        if let Err(why) = ended {
            let outcome = Outcome {
                subject: "all processes".into(),
                broken: Some(why),
                ..Outcome::default()
            };
            self.record(at_s, setup, Fault::EndOfRun, transport, outcome);
        }
        Ok(())
    }

    /// The next fault of a kind of cluster (an index of [`Setup::ALL`]); `None`: this host can have none.
    fn next_fault(&mut self, kind: usize) -> Option<Fault> {
        let setup = Setup::ALL[kind];
        if self.orders[kind].is_empty() {
            let faults = setup.faults().iter().copied();
            let possible: Vec<Fault> = faults.filter(|fault| self.host.can(*fault)).collect();
            self.orders[kind] = faults::shuffled(setup, &possible, &mut self.seed);
        }
        self.orders[kind].pop()
    }

    fn inflict(
        &mut self,
        running: &mut Running,
        setup: Setup,
        fault: Fault,
    ) -> Result<Outcome, BenchError> {
        let seed = &mut self.seed;
        std::thread::sleep(seed.time(20, 120));
        let of = FaultTargets {
            server: seed.below(self.args.servers.into()) as u32,
            // The first worker, which makes the calls to the coordinator, stays.
            worker: 1 + seed.below(u64::from(self.args.workers) - 1) as u32,
            time: seed.time(100, 800),
        };
        match running {
            Running::Processes(cluster) => inflict::inflict(setup, fault, cluster, &self.host, of),
            Running::Job(job) => job.inflict(fault, &self.host, of),
        }
    }

    fn record(
        &mut self,
        at_s: f64,
        setup: Setup,
        fault: Fault,
        transport: TransportChoice,
        outcome: Outcome,
    ) {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let record = Record {
            round: self.records.len() as u32,
            at_s,
            setup: setup.name(),
            level: setup.level(),
            transport: transport.name(),
            fault,
            promise: setup.promise(fault),
            subject: outcome.subject,
            detected_ms: outcome.detected.map(ms),
            recovered_ms: outcome.recovered.map(ms),
            pushes: outcome.pushes,
            lost: outcome.lost,
            broken: outcome.broken,
        };
        say(&record.line());
        self.records.push(record);
    }
}

impl Record {
    /// How the fault ended, in a few words.
    fn outcome(&self) -> String {
        match (&self.broken, self.pushes) {
            (Some(why), _) => format!("BROKEN: {why}"),
            (None, Some(_)) => "ledger exact".into(),
            (None, None) => "ended with named errors".into(),
        }
    }

    fn line(&self) -> String {
        let time = |time: Option<f64>| time.map_or_else(|| "-".into(), |ms| format!("{ms:.0} ms"));
        let count = |count: Option<u64>| count.map_or_else(|| "-".into(), |n| n.to_string());
        format!(
            "{:>4} {:<12} {:<4} {:<24} {:<36} known {:>8} over {:>8} pushes {:>6} lost {:>6}  {}",
            self.round,
            self.setup,
            self.transport,
            self.fault.name(),
            self.subject,
            time(self.detected_ms),
            time(self.recovered_ms),
            count(self.pushes),
            count(self.lost),
            self.outcome()
        )
    }
}
