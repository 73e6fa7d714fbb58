//! The job to train in: that of the environment, that of the processes launched together, or a cluster
//! inside this process.

use tidewater::{Client, ClientError, ClusterConfig, Job, JoinOptions, Joined, SyncMode};
use tidewater_launch::unknown_variables;

use crate::args::JobArgs;
use crate::{Failure, say};

/// A connected worker and its job.
pub(crate) struct Connected {
    pub(crate) client: Client,
    /// Outlives the client: coordinator and servers may run in this process.
    job: Job,
}

impl Connected {
    /// Disconnects a worker that has finished. If its process keeps the job's coordinator, it waits for
    /// the others.
    pub(crate) fn end(self) -> Result<(), ClientError> {
        let Self { client, job } = self;
        drop(client);
        job.leave()
    }
}

/// Joins the job that the environment names, or the processes that a launcher started with this one.
/// Without either, starts a cluster in this process. `None`: this process was a server of the job.
pub(crate) fn connect(args: &JobArgs, sync: SyncMode) -> Result<Option<Connected>, Failure> {
    report_unknown_variables();
    let joined = match options(args).join() {
        Err(ClientError::NoJob(_)) => alone(args)?.join()?,
        joined => check(args, joined?)?,
    };
    let Joined::Worker(job) = joined else {
        return Ok(None);
    };
    Ok(Some(Connected {
        client: job.client(sync)?,
        job,
    }))
}

/// Connects an observer of the job that the environment names.
pub(crate) fn observe(args: &JobArgs) -> Result<Connected, Failure> {
    report_unknown_variables();
    let options = JoinOptions {
        observer: true,
        worker_only: true,
        ..options(args)
    };
    let job = options.join()?.into_job();
    let job =
        job.ok_or_else(|| Failure::usage("--observe: this process is a server of its job"))?;
    Ok(Connected {
        client: job.observer()?,
        job,
    })
}

fn report_unknown_variables() {
    for name in unknown_variables(std::env::vars_os().map(|(name, _)| name)) {
        say(format_args!(
            "tidewater-train: {name} is set, but nothing reads it; misspelt?"
        ));
    }
}

/// The options of the flags.
fn options(args: &JobArgs) -> JoinOptions {
    JoinOptions {
        namespace: args.namespace.clone(),
        workers: args.workers,
        launch_rank: args.rank,
        launch_size: args.size,
        rendezvous: args.rendezvous.clone(),
        servers: args.servers,
        servers_in_ranks: args.servers_in_ranks,
        appliers: args.appliers,
        interface: args.interface.clone(),
        announce: Some(|line| say(format_args!("tidewater-train: {line}"))),
        transport: args.transport,
        rdma_device: args.rdma_device.clone(),
        fabric: args.fabric,
        ..JoinOptions::default()
    }
}

/// Refuses flags about servers in a job that has them elsewhere.
fn check(args: &JobArgs, joined: Joined) -> Result<Joined, Failure> {
    let elsewhere = matches!(&joined, Joined::Worker(job) if !job.is_launched());
    if elsewhere && (args.servers.is_some() || args.appliers.is_some()) {
        let what = "--servers and --appliers are for a trainer alone or under mpirun; here the job has \
                    servers: say it to the launcher";
        return Err(Failure::usage(what));
    }
    Ok(joined)
}

/// The options of a trainer that is in no job: a cluster inside this process.
fn alone(args: &JobArgs) -> Result<JoinOptions, Failure> {
    if args.workers.is_some() || args.namespace.is_some() {
        let what = "--workers and --namespace are for a worker of a job, and this trainer is \
                    alone: set TIDEWATER_COORDINATOR to the job's, or start it under `tidewater run`";
        return Err(Failure::usage(what));
    }
    Ok(JoinOptions {
        embedded: Some(ClusterConfig {
            servers: args.servers.unwrap_or(1),
            appliers: args.appliers.unwrap_or(1),
            ..ClusterConfig::default()
        }),
        transport: args.transport,
        ..JoinOptions::default()
    })
}
