//! A cluster inside the calling process: a coordinator and its servers, each with its own threads and
//! sockets.

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tidewater_launch::{FabricSettings, RdmaDevice, TokenError, TransportChoice, token};
use tidewater_protocol::ids::{ClusterId, ServerId};
use tidewater_protocol::limits::{PENDING_BYTES_DEFAULT, SAVE_BYTES_DEFAULT};
use tidewater_protocol::wire::handshake::JobToken;
use tidewater_runtime::clock::Deadline;

use crate::coordinator::membership::Schedule;
use crate::coordinator::{
    CheckpointPolicy, CoordinatorConfig, Lifetime, Listening, LostWorker, ServeConfig, ServeError,
    serve,
};
use crate::process::{ServerProcess, ServerProcessConfig, ServerProcessError};
use crate::server::{BusyPoll, CAPACITY_DEFAULT, Failure, ServerFunctions, ServerHandle};
use tidewater_engine::store::Hugepages;

/// Time limit for each server to start and join.
const START: Duration = Duration::from_secs(30);

/// Configuration of a cluster that runs inside this process.
#[derive(Debug, Clone)]
pub struct ClusterConfig {
    /// Number of servers, at least 1.
    pub servers: u32,
    /// Applier threads of each server.
    pub appliers: u16,
    /// Number of workers of the job, for all of which clocks wait; 0 for a service.
    pub workers: u32,
    /// How clients reach the servers; passed on to them, not enforced.
    pub transport: TransportChoice,
    /// Bytes of address space reserved for each of a server's two memories. Pages take memory when they are
    /// first touched.
    pub capacity: usize,
    /// RDMA device through which servers serve clients of other processes.
    pub rdma_device: Option<RdmaDevice>,
    /// Settings of the servers' queue pairs.
    pub fabric: FabricSettings,
    /// Whether clients count their pushes, so that programs can measure the staleness of pulled rows.
    pub count_pushes: bool,
    /// Limit in bytes of the early pushes that an applier holds, from ranks ahead of the open iteration.
    pub pending_bytes: usize,
    /// Limit in bytes of a server's copied records that wait for the file system during a save.
    pub save_bytes: usize,
    /// Whether appliers busy-poll instead of sleeping when they have no work.
    pub busy_poll: BusyPoll,
    /// Functions of the servers besides those that the program registers.
    pub functions: ServerFunctions,
    /// Page size of the servers' memories (default: ordinary pages). Hugepages are all allocated at the
    /// start.
    pub hugepages: Hugepages,
    /// Reaction to the loss of a worker.
    pub on_lost: LostWorker,
    /// Whether the cluster runs job after job. Always so if the number of workers is unknown (0); otherwise
    /// it has one job. In either case it runs until the caller ends it, also when the one job is over.
    pub service: bool,
    /// Secret of the job, with which processes authenticate; `None` makes a random one.
    pub token: Option<JobToken>,
    /// Address that the coordinator listens on.
    pub listen: SocketAddr,
    /// Namespaces of which workers are admitted; an empty list admits all.
    pub namespaces: Vec<String>,
    /// Host name or address given to other processes, if it differs from the one listened on.
    pub advertise: Option<String>,
    /// Membership schedule of the job: the ticks with which each worker begins and ends.
    pub membership: Option<Schedule>,
    /// File for the membership changes, in the format of a schedule.
    pub membership_log: Option<PathBuf>,
    /// Policy of periodic checkpoints; the job resumes from the newest one.
    pub checkpoint: Option<CheckpointPolicy>,
    /// Network or RDMA device near which threads and memory are placed; `None`: the one with the IP address that is
    /// advertised, or else with the one listened on. If that is a wildcard address, it is the only device that is up,
    /// or the node on which all of them are. For a loopback address there is none.
    pub nic: Option<String>,
    /// Whether the used part of both memories of each server is locked in RAM (`mlock`).
    pub mlock: bool,
}

impl Default for ClusterConfig {
    /// One server with one applier, for a job of one worker, listening on loopback.
    fn default() -> Self {
        Self {
            servers: 1,
            appliers: 1,
            workers: 1,
            transport: TransportChoice::Auto,
            capacity: CAPACITY_DEFAULT,
            rdma_device: None,
            fabric: FabricSettings::default(),
            count_pushes: false,
            pending_bytes: PENDING_BYTES_DEFAULT,
            save_bytes: SAVE_BYTES_DEFAULT,
            busy_poll: BusyPoll::Off,
            functions: ServerFunctions::default(),
            hugepages: Hugepages::Off,
            on_lost: LostWorker::FailJob,
            service: false,
            token: None,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            namespaces: Vec::new(),
            advertise: None,
            membership: None,
            membership_log: None,
            checkpoint: None,
            nic: None,
            mlock: false,
        }
    }
}

/// What a client needs to connect to a cluster: address, secret, id, sizes.
#[derive(Debug, Clone)]
pub struct Environment {
    /// `HOST:PORT` of the coordinator.
    pub coordinator: String,
    /// The secret to authenticate with.
    pub token: JobToken,
    /// Random id of the cluster.
    pub cluster: ClusterId,
    /// Number of servers, from the configuration.
    pub servers: u32,
    /// Number of workers, from the configuration.
    pub workers: u32,
    /// Transport by which clients reach the servers.
    pub transport: TransportChoice,
    /// Address by which processes of this host reach the coordinator.
    pub local: SocketAddr,
}

/// Reason why a cluster in this process did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The coordinator could not start.
    #[error(transparent)]
    Coordinator(#[from] ServeError),
    /// A server could not start.
    #[error("server {number}: {source}")]
    Server {
        /// Number of that server.
        number: u32,
        /// Reason given by the server.
        source: ServerProcessError,
    },
    /// The system refused a thread or a socket.
    #[error(
        "cannot {what}: {source}; raise the limits of processes and open files (ulimit -u, -n)"
    )]
    System {
        /// Operation that needed it.
        what: &'static str,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The job token could not be made.
    #[error(transparent)]
    Token(#[from] TokenError),
}

/// A running cluster inside this process. Dropping it shuts it down and blocks until its threads have ended.
/// The coordinator waits for the servers at most the grace period of a shutdown.
#[derive(Debug)]
pub struct Cluster {
    environment: Environment,
    /// Dropping it ends the coordinator, which reads end of file.
    stop: Option<UnixStream>,
    coordinator: Option<JoinHandle<()>>,
    servers: Vec<JoinHandle<()>>,
    nodes: Vec<ServerHandle>,
    failure: Failure,
}

impl Cluster {
    /// Starts the coordinator and the servers; blocks until every server has joined.
    ///
    /// # Errors
    /// [`ClusterError`]; nothing is left behind.
    pub fn start(config: &ClusterConfig) -> Result<Self, ClusterError> {
        let token = match &config.token {
            Some(token) => token.clone(),
            None => token::random()?,
        };
        let mut listening = Listening::bind(ServeConfig {
            listen: config.listen,
            advertise: config.advertise.clone(),
            token: token.clone(),
            namespaces: config.namespaces.clone(),
            cluster: CoordinatorConfig {
                servers: config.servers,
                workers: config.workers,
                on_lost: config.on_lost,
                lifetime: if config.service || config.workers == 0 {
                    Lifetime::Service
                } else {
                    Lifetime::Launched
                },
            },
        })?;
        if let Some(schedule) = &config.membership {
            listening = listening.following(schedule.clone());
        }
        if let Some(policy) = &config.checkpoint {
            listening = listening.with_checkpoints(policy.clone());
        }
        if let Some(path) = &config.membership_log {
            let log = File::create(path).map_err(system("make the log of members"))?;
            listening = listening.logging_members(log);
        }
        let environment = Environment {
            coordinator: listening.address().to_owned(),
            local: listening.local(),
            token,
            cluster: listening.cluster(),
            servers: config.servers,
            workers: config.workers,
            transport: config.transport,
        };
        let (stop, stopped) = UnixStream::pair().map_err(system("make a socket pair"))?;
        let coordinator = spawn("tw-coordinator", move || {
            if let Err(error) = serve(listening, &[stopped.as_fd()]) {
                tracing::error!(%error, "the coordinator has failed");
            }
        })?;
        let mut cluster = Self {
            environment,
            stop: Some(stop),
            coordinator: Some(coordinator),
            servers: Vec::new(),
            nodes: Vec::new(),
            failure: Failure::new().map_err(system("make a waker"))?,
        };
        // On an error the drop of `cluster` ends what has been started.
        for number in 0..config.servers {
            cluster.start_server(config, number)?;
        }
        Ok(cluster)
    }

    /// What a client needs to connect to this cluster.
    pub const fn environment(&self) -> &Environment {
        &self.environment
    }

    /// Handle of server `number`; `None` for a number that the cluster does not have.
    pub fn server(&self, number: u32) -> Option<&ServerHandle> {
        self.nodes.get(number as usize)
    }

    /// Reason why a server has ended with an error; `None` if none has.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get()
    }

    /// Descriptor that becomes readable once [`Self::failure`] returns a reason.
    pub fn failure_descriptor(&self) -> BorrowedFd<'_> {
        self.failure.descriptor()
    }

    fn start_server(&mut self, config: &ClusterConfig, number: u32) -> Result<(), ClusterError> {
        let Environment {
            coordinator, token, ..
        } = &self.environment;
        let mut server = ServerProcessConfig::new(coordinator, token.clone(), ServerId(number));
        server.appliers = config.appliers;
        server.local_rank = number;
        server.local_servers = config.servers;
        server.local_clients = config.workers;
        server.capacity = config.capacity;
        server.rdma_device.clone_from(&config.rdma_device);
        server.fabric = config.fabric;
        server.count_pushes = config.count_pushes;
        server.pending_bytes = config.pending_bytes;
        server.save_bytes = config.save_bytes;
        server.busy_poll = config.busy_poll;
        server.functions.clone_from(&config.functions);
        server.hugepages = config.hugepages;
        server.nic.clone_from(&config.nic);
        server.mlock = config.mlock;
        server.listen = Some(SocketAddr::new(config.listen.ip(), 0));
        server.advertise = host_of(config.advertise.as_deref());
        let server = ServerProcess::start(&server, Deadline::after(START))
            .map_err(|source| ClusterError::Server { number, source })?;
        self.nodes.push(server.handle());
        let failure = self.failure.clone();
        self.servers.push(spawn("tw-server", move || {
            if let Err(error) = server.run(&[]) {
                failure.set(format!("server {number}: {error}"));
            }
        })?);
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The coordinator orders the servers to end, or closes their connections: they end.
        self.stop = None;
        for thread in self
            .coordinator
            .take()
            .into_iter()
            .chain(self.servers.drain(..))
        {
            if thread.join().is_err() {
                tracing::error!("a thread of the cluster panicked: a defect, please report it");
            }
        }
    }
}

/// Host part of `advertise` (`HOST:PORT` or a host alone), for the servers, which listen on ports of their own.
/// An IPv6 address with a port is in brackets, one alone may be. `None` without `advertise`.
fn host_of(advertise: Option<&str>) -> Option<String> {
    let advertised = advertise?;
    let is_port = |port: &str| port.parse::<u16>().is_ok();
    let in_brackets = advertised
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'));
    let host = match (in_brackets, advertised.rsplit_once(':')) {
        (Some((host, _)), _) => host,
        (None, Some((host, port))) if !host.contains(':') && is_port(port) => host,
        _ => advertised,
    };
    Some(host.to_owned())
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, ClusterError> {
    let thread = thread::Builder::new().name(name.into()).spawn(body);
    thread.map_err(system("start a thread"))
}

fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> ClusterError {
    move |source| ClusterError::System { what, source }
}

#[cfg(test)]
mod tests {
    use super::host_of;

    #[test]
    fn host_is_what_is_not_a_port() {
        for (advertised, host) in [
            ("node1", "node1"),
            ("node1:7077", "node1"),
            ("10.0.0.1:7077", "10.0.0.1"),
            ("fe80::1", "fe80::1"),
            ("[fe80::1]", "fe80::1"),
            ("[fe80::1]:7077", "fe80::1"),
        ] {
            assert_eq!(host_of(Some(advertised)).as_deref(), Some(host));
        }
        assert_eq!(host_of(None), None);
    }
}
