//! The cluster to train on: the job's, or one inside this process.

use std::ffi::OsString;

use tidewater_client::train::exit;
use tidewater_client::{Client, Embedded, Job};
use tidewater_server::embedded::ClusterConfig;
use tidewater_transport::launch::unknown_variables;

use crate::args::TrainArgs;
use crate::{Failure, say};

/// A connected worker, and what it is connected to if that is in this process.
pub(crate) struct Connected {
    pub(crate) client: Client,
    /// Ends with the last drop, after the client.
    _cluster: Option<Embedded>,
}

/// Joins the job that the environment tells of; without one, starts a cluster here and joins it.
pub(crate) fn connect(args: &TrainArgs) -> Result<Connected, Failure> {
    for name in unknown_variables(std::env::vars_os().map(|(name, _)| name)) {
        say(format_args!(
            "tidewater-train: {name} is set, but nothing reads it; misspelt?"
        ));
    }
    let job = Job::from_vars(variables(args)).map_err(|e| Failure::new(exit::ENVIRONMENT, e))?;
    let Some(mut job) = job else {
        return alone(args);
    };
    if args.servers.is_some() || args.appliers.is_some() {
        let what = "--servers and --appliers are for a trainer alone; here the job has servers: \
                    say it to the launcher";
        return Err(Failure::usage(what));
    }
    job.transport = args.transport.unwrap_or(job.transport);
    job.rdma_device = args.rdma_device.clone().or(job.rdma_device);
    if let Some(namespace) = &args.namespace {
        job.join.namespace.clone_from(namespace);
    }
    let client = job.sync(args.sync).connect()?;
    Ok(Connected {
        client,
        _cluster: None,
    })
}

/// The environment, in which `--workers` wins.
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
        _cluster: Some(cluster),
    })
}
