//! The cluster to train on: the job's, or one inside this process.

use std::time::Duration;

use tidewater_client::connect::{ConnectConfig, JoinConfig, NetCoordinatorLink, NetServerLink};
use tidewater_client::link::ServerLink;
use tidewater_client::train::exit;
use tidewater_client::{Client, ClientError, Parts, Sync};
use tidewater_server::embedded::{Cluster, ClusterConfig};
use tidewater_transport::clock::Deadline;
use tidewater_transport::ids::WorkerId;
use tidewater_transport::launch::{JobEnv, Role, TransportChoice, unknown_variables};
use tidewater_transport::wake::OsSleeper;
use tidewater_transport::wire::handshake::JobToken;

use crate::args::TrainArgs;
use crate::{Failure, say};

/// Time for coordinator and servers to be there: a job's processes start in any order.
const PATIENCE: Duration = Duration::from_secs(60);
/// Looks at memory for this long before sleeping: about what a wake-up costs.
const SPIN: Duration = Duration::from_micros(20);

/// A connected worker, and what it is connected to if that is in this process.
pub(crate) struct Connected {
    pub(crate) client: Client,
    /// Ends with the last drop, after the client.
    _cluster: Option<Cluster>,
}

/// Joins the job that the environment tells of; without one, starts a cluster here and joins it.
pub(crate) fn connect(args: &TrainArgs) -> Result<Connected, Failure> {
    for name in unknown_variables(std::env::vars_os().map(|(name, _)| name)) {
        say(format_args!(
            "tidewater-train: {name} is set, but nothing reads it; misspelt?"
        ));
    }
    let env = JobEnv::from_env().map_err(|e| Failure::new(exit::ENVIRONMENT, e))?;
    let Some(env) = env else {
        return alone(args);
    };
    if env.role != Role::Worker {
        let what = format!(
            "TIDEWATER_ROLE is {}; a trainer is a worker",
            env.role.name()
        );
        return Err(Failure::new(exit::ENVIRONMENT, what));
    }
    if args.servers.is_some() || args.appliers.is_some() {
        let what = "--servers and --appliers are for a trainer alone; here the job has servers: \
                    say it to the launcher";
        return Err(Failure::usage(what));
    }
    // A worker's environment has it, or it would not have been accepted.
    let coordinator = env.coordinator.unwrap_or_default();
    let mut join = JoinConfig::new(coordinator, JobToken::new(*env.token.as_bytes()));
    join.rank = Some(env.rank);
    let client = join_as_worker(&join, args.transport.unwrap_or(env.transport), args.sync)?;
    Ok(Connected {
        client,
        _cluster: None,
    })
}

fn alone(args: &TrainArgs) -> Result<Connected, Failure> {
    let transport = args.transport.unwrap_or_default();
    let config = ClusterConfig {
        servers: args.servers.unwrap_or(1),
        appliers: args.appliers.unwrap_or(1),
        transport,
        ..ClusterConfig::default()
    };
    let cluster = Cluster::start(&config).map_err(|e| Failure::new(exit::ENVIRONMENT, e))?;
    let environment = cluster.environment();
    let mut join = JoinConfig::new(&environment.coordinator, environment.token.clone());
    join.rank = Some(0);
    let client = join_as_worker(&join, transport, args.sync)?;
    Ok(Connected {
        client,
        _cluster: Some(cluster),
    })
}

/// Joins, and opens a session with every server.
fn join_as_worker(
    join: &JoinConfig,
    transport: TransportChoice,
    sync: Sync,
) -> Result<Client, ClientError> {
    let deadline = Deadline::after(PATIENCE);
    let (mut coordinator, joined) = NetCoordinatorLink::join(join, deadline)?;
    let mut members = coordinator.wait_servers(joined.servers_expected, deadline)?;
    members.servers.sort_by_key(|server| server.id);
    let mut config = ConnectConfig::new(join.token.clone(), coordinator.cluster(), joined.rank);
    config.namespace.clone_from(&join.namespace);
    config.transport = transport;
    let mut sleeper = OsSleeper::new(SPIN).map_err(|e| {
        ClientError::Environment(format!("cannot make an epoll: {e}; raise ulimit -n"))
    })?;
    let mut servers = Vec::new();
    for member in &members.servers {
        let (link, lanes) = NetServerLink::open(member, &config, &mut sleeper, deadline)?;
        servers.push((Box::new(link) as Box<dyn ServerLink>, lanes));
    }
    Client::from_parts(Parts {
        coordinator: Box::new(coordinator),
        servers,
        sleeper: Box::new(sleeper),
        rank: WorkerId(joined.rank),
        workers: joined.workers_expected,
        sync,
    })
}
