//! The cluster to train on: the job's, that of the processes launched together, or one inside this
//! process.

use std::ffi::OsString;

use tidewater::launched::{Launch, LaunchRole, ServerSeat, WorkerSeat};
use tidewater::{Client, Embedded, Job};
use tidewater_launch::{Explicit, unknown_variables};
use tidewater_service::embedded::ClusterConfig;
use tidewater_train::exit;

use crate::args::TrainArgs;
use crate::{Failure, say};

/// A connected worker, and the parts of its cluster that are in this process.
pub(crate) struct Connected {
    pub(crate) client: Client,
    /// Membership of a launched process; ends after the client.
    seat: Option<WorkerSeat>,
    /// Embedded cluster; dropped last, after the client.
    _cluster: Option<Embedded>,
}

impl Connected {
    /// Disconnects a worker that has finished. If its process keeps the job's coordinator, it waits for
    /// the others.
    pub(crate) fn end(self) {
        let Self { client, seat, .. } = self;
        drop(client);
        if let Some(seat) = seat {
            seat.end();
        }
    }
}

/// Role of this process.
pub(crate) enum Call {
    /// Train as a connected worker.
    Work(Box<Connected>),
    /// Serve: one program is all processes of a launch, and this one is a server.
    Serve(Box<ServerSeat>),
}

/// Joins the job that the environment names, or the processes that a launcher started with this one.
/// Without either, starts a cluster in this process and joins it.
pub(crate) fn connect(args: &TrainArgs) -> Result<Call, Failure> {
    for name in unknown_variables(std::env::vars_os().map(|(name, _)| name)) {
        say(format_args!(
            "tidewater-train: {name} is set, but nothing reads it; misspelt?"
        ));
    }
    let launch = Launch {
        explicit: Explicit {
            rank: args.rank,
            size: args.size,
            rendezvous: args.rendezvous.clone(),
        },
        servers: args.servers,
        servers_in_ranks: args.servers_in_ranks,
        interface: args.interface.clone(),
        ..Launch::default()
    };
    match launch.enter()? {
        LaunchRole::Worker(seat) => launched(args, seat).map(|work| Call::Work(Box::new(work))),
        LaunchRole::Server(seat) => {
            say(format_args!("tidewater-train: {}", seat.describe()));
            Ok(Call::Serve(Box::new(seat)))
        }
        LaunchRole::Member => member(args).map(|work| Call::Work(Box::new(work))),
        _ => alone(args).map(|work| Call::Work(Box::new(work))),
    }
}

/// Connects a worker of a launch.
fn launched(args: &TrainArgs, seat: WorkerSeat) -> Result<Connected, Failure> {
    if args.workers.is_some() || args.appliers.is_some() {
        let what = "--workers and --appliers are not for a launched trainer: its job is made of the \
                    processes that were launched, and TIDEWATER_APPLIERS says the other";
        return Err(Failure::usage(what));
    }
    say(format_args!("tidewater-train: {}", seat.describe()));
    let client = client(args, seat.job().clone())?;
    Ok(Connected {
        client,
        seat: Some(seat),
        _cluster: None,
    })
}

/// Connects a worker of a job with a coordinator named in the environment.
fn member(args: &TrainArgs) -> Result<Connected, Failure> {
    let job = Job::from_vars(variables(args)).map_err(|e| Failure::new(exit::ENVIRONMENT, e))?;
    let Some(job) = job else {
        return alone(args);
    };
    if args.servers.is_some() || args.appliers.is_some() {
        let what = "--servers and --appliers are for a trainer alone; here the job has servers: \
                    say it to the launcher";
        return Err(Failure::usage(what));
    }
    Ok(Connected {
        client: client(args, job)?,
        seat: None,
        _cluster: None,
    })
}

/// Connects the client with the settings of the flags.
fn client(args: &TrainArgs, mut job: Job) -> Result<Client, Failure> {
    job.transport = args.transport.unwrap_or(job.transport);
    job.rdma_device = args.rdma_device.clone().or(job.rdma_device);
    job.rdma_timeout = args.rdma_timeout.unwrap_or(job.rdma_timeout);
    if let Some(namespace) = &args.namespace {
        job.join.namespace.clone_from(namespace);
    }
    Ok(job.sync(args.sync).connect()?)
}

/// The environment, overridden by `--workers`.
fn variables(args: &TrainArgs) -> impl Iterator<Item = (OsString, OsString)> {
    const WORKERS: &str = "TIDEWATER_WORKERS";
    let flag = args.workers;
    let stays = move |(name, _): &(OsString, OsString)| flag.is_none() || name != WORKERS;
    let told = flag.map(|workers| (WORKERS.into(), workers.to_string().into()));
    std::env::vars_os().filter(stays).chain(told)
}

fn alone(args: &TrainArgs) -> Result<Connected, Failure> {
    if args.workers.is_some() || args.namespace.is_some() {
        let what = "--workers and --namespace are for a worker of a job, and this trainer is \
                    alone: set TIDEWATER_COORDINATOR to the job's, or start it under `tidewater run`";
        return Err(Failure::usage(what));
    }
    let config = ClusterConfig {
        servers: args.servers.unwrap_or(1),
        appliers: args.appliers.unwrap_or(1),
        transport: args.transport.unwrap_or_default(),
        ..ClusterConfig::default()
    };
    let cluster = Embedded::with(&config).map_err(|e| Failure::new(exit::ENVIRONMENT, e))?;
    let client = cluster.client(0, args.sync)?;
    Ok(Connected {
        client,
        seat: None,
        _cluster: Some(cluster),
    })
}
