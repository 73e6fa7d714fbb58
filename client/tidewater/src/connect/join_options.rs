//! Selects the job that a program joins. (long: one struct of options, and its ways to join.)
//! It decides by options, environment and launcher. The language bindings connect by this.
//!
//! A program that counts its processes itself (by MPI, say) may count differently from its launcher.
//! Under another MPI's launcher, an MPI library makes each process believe to be alone. This module
//! detects that: it would be as many jobs of one as there are processes, or one without waits.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use tidewater_launch::rendezvous::{self, Membership};
use tidewater_launch::{
    Decision, Explicit, FabricSettings, JobEnv, JobFile, LaunchEnv, LaunchVars, Place, RdmaDevice,
    Role, TransportChoice, detect, token,
};
use tidewater_protocol::limits::GATHER_TIMEOUT;
use tidewater_protocol::wire::control::Part;
use tidewater_protocol::wire::handshake::JobToken;
use tidewater_runtime::clock::Deadline;
#[cfg(feature = "embedded")]
use tidewater_service::embedded::{Cluster, ClusterConfig};

use super::JoinConfig;
use super::job::{Held, Job};
#[cfg(feature = "embedded")]
use super::launch::{self, Bootstrap};
use crate::error::{Cause, ClientError};
use tidewater_bookkeeping::lane_memory::LaneMemory;

/// Options of a program for the job that it joins. They override the environment.
///
/// [`JoinOptions::join`] joins the first of these jobs that exists:
///
/// 1. a cluster inside this process (`embedded`);
/// 2. the job of a bootstrap record that the program broadcasts itself (`bootstrap`);
/// 3. the job of a running coordinator or service (`coordinator`, with `token_file` or `token`; or
///    `job_file`, which names both);
/// 4. the job that `TIDEWATER_*` variables name, as `tidewater run` sets them, or the job file of
///    `TIDEWATER_JOB`;
/// 5. the job of the processes that `mpirun`, `srun` or a similar launcher started with this one.
///
/// ```text
/// tidewater run --servers 2 --workers 4 -- ./sim  all processes of the program work
/// mpirun -n 2 tidewater server : -n 4 ./sim       servers are programs of their own
/// mpirun -n 6 ./sim                               with servers = 2: ranks 0 and 3 serve, 4 work
/// mpirun -n 6 ./sim                               with servers_in_ranks: 6 serve, on threads, and work
/// ```
///
/// # Example
/// This program runs under each launcher, and alone with a cluster of its own:
/// ```
/// use tidewater::{ClientError, JoinOptions, Joined, SyncMode};
///
/// fn main() -> Result<(), ClientError> {
///     let joined = match JoinOptions::default().join() {
///         Err(ClientError::NoJob(_)) => JoinOptions::embedded(2, 1).join()?, // 2 servers, 1 worker
///         joined => joined?,
///     };
///     let Joined::Worker(job) = joined else {
///         return Ok(()); // this rank was a server; it has served until the job ended
///     };
///     let mut client = job.client(SyncMode::Bsp)?;
///     // create tables; pull, push and tick
///     client.finish()?;
///     job.leave()
/// }
/// ```
#[derive(Debug, Default)]
pub struct JoinOptions {
    /// Cluster to start inside this process.
    #[cfg(feature = "embedded")]
    pub embedded: Option<ClusterConfig>,
    /// Place in a job that meets by a bootstrap record, which the program broadcasts.
    #[cfg(feature = "embedded")]
    pub bootstrap: Option<Bootstrap>,
    /// `HOST:PORT` of the coordinator; `None`: the job that environment or launcher names.
    pub coordinator: Option<String>,
    /// File that holds the job's token; it or `token` is needed with `coordinator`.
    pub token_file: Option<PathBuf>,
    /// The job's token itself, in place of `token_file`.
    pub token: Option<JobToken>,
    /// Job file of the service or job, which `tidewater serve --job-file` and others write. It holds
    /// address, token and namespace. `None`: that of `TIDEWATER_JOB`.
    pub job_file: Option<PathBuf>,
    /// Namespace of the job in a service; `None`: that of the job file, or "default".
    pub namespace: Option<String>,
    /// Rank of this worker among the workers, as an MPI program knows it.
    pub rank: Option<u32>,
    /// Number of workers of the job.
    pub workers: Option<u32>,
    /// Number of this process among all of its launch, servers and workers; `None`: the launcher's.
    pub launch_rank: Option<u32>,
    /// Number of processes of the launch, servers and workers; `None`: the launcher's.
    pub launch_size: Option<u32>,
    /// Rendezvous of launched processes: a directory, `HOST:PORT` of rank 0, or `pmi`. `None`:
    /// `TIDEWATER_RENDEZVOUS`, or the way that the launcher offers.
    pub rendezvous: Option<String>,
    /// Launched processes of this program that become servers; `None`: `TIDEWATER_SERVERS`, or none.
    #[cfg(feature = "embedded")]
    pub servers: Option<u32>,
    /// Whether each launched process is also a server, on threads next to its worker. If false,
    /// `TIDEWATER_SERVERS_IN_RANKS` decides. If true, no process is a server only.
    #[cfg(feature = "embedded")]
    pub servers_in_ranks: bool,
    /// Applier threads of a server in a launched process; `None`: `TIDEWATER_APPLIERS`, or as many as
    /// fit next to the other processes of the host.
    #[cfg(feature = "embedded")]
    pub appliers: Option<u16>,
    /// Network interface on which a launched process listens, as in `ib0`. `None`:
    /// `TIDEWATER_INTERFACE`, or the one that leads to rank 0.
    #[cfg(feature = "embedded")]
    pub interface: Option<String>,
    /// Whether this process only works: it never becomes a server and never keeps a launch's
    /// coordinator, so that rank 0 must be a `tidewater server`. True for the language bindings.
    /// Without feature `embedded` it is always so.
    pub worker_only: bool,
    /// Called in a launch with the line that describes this process, when all processes have met and
    /// before a server serves.
    pub announce: Option<fn(&str)>,
    /// Transport of the lanes; `None`: `TIDEWATER_TRANSPORT`, or the best one.
    pub transport: Option<TransportChoice>,
    /// RDMA ports to use for lanes over verbs; `None`: `TIDEWATER_RDMA_DEVICE`, or the best ones that
    /// reach the server.
    pub rdma_device: Option<RdmaDevice>,
    /// Settings of queue pairs; each unset one is that of its variable (`TIDEWATER_RDMA_TIMEOUT`, ...), or the
    /// default.
    pub fabric: FabricSettings,
    /// Longest wait for other processes; `None`: a minute. It holds for a join, until all processes of a launcher have
    /// registered, and again for [`Job::client`], until the coordinator and all servers are connected.
    pub join_timeout: Option<Duration>,
    /// Whether this process only observes ([`Job::observer`]): it joins a running job by `coordinator` or
    /// `TIDEWATER_COORDINATOR` and needs no rank. A launcher that has started it is not asked.
    pub observer: bool,
    /// Bytes of each ring, a power of two from 16 KiB to 16 MiB. `None`: `TIDEWATER_RING_BYTES`, or what
    /// `memory_budget` allows, or 1 MiB. A frame takes at most a quarter of a ring, and a reply a page more:
    /// that bounds the rows of a table that its workers push, and the batches of all calls.
    pub ring_bytes: Option<usize>,
    /// Most bytes that the lanes of one client take at both ends: rings, their copies, and mailboxes.
    /// `None`: `TIDEWATER_MEMORY_BUDGET`, or no bound. A client has a lane for each applier of each server.
    /// Rings are the largest of up to 1 MiB that the budget allows; without room for the smallest ones a
    /// client is refused. Each thread of a worker has a client.
    pub memory_budget: Option<usize>,
}

/// Result of a join: the job of this process as a worker, or the end of its service as a server.
///
/// # Example
/// ```no_run
/// use tidewater::{ClientError, JoinOptions, Joined};
///
/// fn main() -> Result<(), ClientError> {
///     // mpirun -n 6: ranks 0 and 3 serve, the others work.
///     let options = JoinOptions { servers: Some(2), ..JoinOptions::default() };
///     match options.join()? {
///         Joined::Worker(job) => {
///             println!("{}", job.describe());
///             job.leave()
///         }
///         Joined::Served => Ok(()),
///     }
/// }
/// ```
#[derive(Debug)]
#[must_use]
#[allow(clippy::large_enum_variant, reason = "one value a process")]
pub enum Joined {
    /// This process is a worker of the job.
    Worker(Job),
    /// This process was a server of the job. It has served until the job ended.
    Served,
}

#[cfg(feature = "embedded")]
impl From<ClusterConfig> for JoinOptions {
    /// Options for a cluster that starts inside this process, as `config` describes it.
    fn from(config: ClusterConfig) -> Self {
        Self {
            embedded: Some(config),
            ..Self::default()
        }
    }
}

impl Joined {
    /// The job, if this process is a worker; `None` if it was a server and has served until the job ended.
    pub fn into_job(self) -> Option<Job> {
        match self {
            Self::Worker(job) => Some(job),
            Self::Served => None,
        }
    }
}

/// Environment variables as pairs of name and value.
type Vars = Vec<(OsString, OsString)>;

impl JoinOptions {
    /// Options for a cluster inside this process: a coordinator and `servers` servers on threads of it,
    /// for `workers` workers. The threads of the program are the workers.
    #[cfg(feature = "embedded")]
    #[must_use]
    pub fn embedded(servers: u32, workers: u32) -> Self {
        Self::from(ClusterConfig {
            servers,
            workers,
            ..ClusterConfig::default()
        })
    }

    /// Joins the job: the one that these options name, the one that `TIDEWATER_*` names, or that of the
    /// processes that a launcher started with this one. No other function decides this. In the role of
    /// a server it serves until all workers have finished.
    ///
    /// # Errors
    /// - [`ClientError::NoJob`]: no options, variables or launcher give this process a job.
    /// - [`ClientError::Environment`]: options that name two jobs; a coordinator without a token; a
    ///   token file that is unreadable or not private; contradictory variables; a launcher that counts
    ///   this process differently from the program; a cluster or coordinator that cannot start.
    /// - [`ClientError::Launch`]: the launched processes do not meet, which names the missing ones; a
    ///   server that cannot serve, or loses its coordinator.
    ///
    /// # Cost
    /// In a launched job it waits for all its processes, and at rank 0 it starts a thread. Otherwise it
    /// connects to nothing: [`Job::client`] does.
    pub fn join(self) -> Result<Joined, ClientError> {
        self.join_from_vars(std::env::vars_os())
    }

    /// Joins the job like [`JoinOptions::join`], with the given environment variables in place of the process's own.
    ///
    /// # Errors
    /// As [`JoinOptions::join`].
    pub fn join_from_vars(
        mut self,
        vars: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Joined, ClientError> {
        let vars: Vars = vars.into_iter().collect();
        let memory = LaneMemory::of(self.ring_bytes, self.memory_budget, &vars);
        let memory = memory.map_err(|error| ClientError::Environment(error.into()))?;
        (self.ring_bytes, self.memory_budget) = (memory.ring_bytes, memory.budget);
        #[cfg(feature = "embedded")]
        {
            self.names_one_job()?;
            if let Some(config) = self.embedded.take() {
                return self.start_cluster(config).map(Joined::Worker);
            }
            if let Some(bootstrap) = self.bootstrap.take() {
                let vars = LaunchVars::from_vars(vars).map_err(environment)?;
                return launch::join_bootstrap(&self, bootstrap, &vars);
            }
        }
        if let Some(coordinator) = &self.coordinator {
            if !self.observer {
                self.is_not_one_of_many(&vars)?;
            }
            return self.named(coordinator, &vars).map(Joined::Worker);
        }
        if let Some(job) = self.of_job_file(&vars)? {
            return Ok(Joined::Worker(job));
        }
        if self.observer {
            return self.of_environment(vars).map(Joined::Worker);
        }
        let explicit = Explicit {
            rank: self.launch_rank,
            size: self.launch_size,
            rendezvous: self.rendezvous.clone(),
        };
        match decide(vars.clone(), explicit)? {
            Decision::Launched(place) if place.size > 1 => self.launched(&place, vars),
            Decision::Launched(place) => {
                let what = format!(
                    "{} has started this process alone, and a job needs servers: {SERVERS_NEEDED}",
                    place.source
                );
                Err(ClientError::NoJob(what))
            }
            _ => {
                self.is_not_one_of_many(&vars)?;
                self.of_environment(vars).map(Joined::Worker)
            }
        }
    }

    /// Time limit for all processes of a launch to register at the rendezvous: `join_timeout`, or `GATHER_TIMEOUT`.
    pub(super) fn launch_timeout(&self) -> Duration {
        self.join_timeout.unwrap_or(GATHER_TIMEOUT)
    }

    /// Fails with `ClientError::Environment` if these options name more than one job, or if `bootstrap` makes this
    /// process a server and `worker_only` forbids it.
    #[cfg(feature = "embedded")]
    fn names_one_job(&self) -> Result<(), ClientError> {
        let named = [
            ("embedded", self.embedded.is_some()),
            ("bootstrap", self.bootstrap.is_some()),
            ("coordinator", self.coordinator.is_some()),
            ("job_file", self.job_file.is_some()),
        ];
        let named: Vec<&str> = named
            .into_iter()
            .filter_map(|(name, given)| given.then_some(name))
            .collect();
        if named.len() > 1 {
            let what = format!("{} each name a job; give one of them", named.join(" and "));
            return Err(ClientError::Environment(what.into()));
        }
        let part = self.bootstrap.as_ref().map(|bootstrap| bootstrap.part);
        if self.worker_only && part.is_some_and(|part| part != Part::Worker) {
            let what = "bootstrap makes this process a server, and worker_only forbids it";
            return Err(ClientError::Environment(what.into()));
        }
        Ok(())
    }

    /// Starts a cluster (coordinator and servers) on threads of this process, and returns its job. The verbs
    /// transport is refused.
    #[cfg(feature = "embedded")]
    fn start_cluster(&self, mut config: ClusterConfig) -> Result<Job, ClientError> {
        config.transport = self.transport.unwrap_or(config.transport);
        if config.transport == TransportChoice::Verbs {
            return Err(ClientError::Environment(
                "a cluster inside the process needs no NIC to be reached, and is not reached by \
                 one; use --transport auto, shm or tcp, or start the servers as processes of \
                 their own (tidewater run)"
                    .into(),
            ));
        }
        let cluster = Cluster::start(&config).map_err(environment)?;
        let here = cluster.environment();
        let mut join = JoinConfig::new(&here.coordinator, here.token.clone());
        join.rank = self.rank;
        join.workers = self.workers.unwrap_or_default(); // 0: the coordinator says the number
        let mut job = self.connected_by(Job::new(join, here.transport));
        if config.workers > 0 {
            job.workers = Some(config.workers);
        }
        job.held = Held::Embedded(Box::new(cluster));
        Ok(job)
    }

    /// Joins the job of the processes that a launcher started, through their rendezvous. Blocks until all have
    /// registered. A build without servers, or `worker_only`, always becomes a worker and must not be rank 0.
    fn launched(&self, place: &Place, vars: Vars) -> Result<Joined, ClientError> {
        let vars = LaunchVars::from_vars(vars).map_err(environment)?;
        #[cfg(feature = "embedded")]
        if !self.worker_only {
            return launch::join_launch(self, place, &vars);
        }
        let Place {
            source, rank, size, ..
        } = place;
        if *rank == 0 {
            let what = format!(
                "this is rank 0 of {size} of {source}, which keeps the job's coordinator, and this \
                 library has none: servers come first: {SERVERS_NEEDED}"
            );
            return Err(ClientError::Environment(what.into()));
        }
        let deadline = Deadline::after(self.launch_timeout());
        let membership = rendezvous::register(place, Part::Worker, deadline);
        let membership = membership.map_err(|error| ClientError::Launch(error.into()))?;
        let mut job = self.launched_job(place, &membership, &vars)?;
        let line = job.describe();
        if let Some(announce) = self.announce {
            announce(&line);
        }
        job.held = Held::Membership {
            _membership: Box::new(membership),
        };
        Ok(Joined::Worker(job))
    }

    /// Makes the job of a launched worker from its registration. Fails with `ClientError::Environment` if the
    /// program claims another rank or number of workers than the launcher gives.
    pub(super) fn launched_job(
        &self,
        place: &Place,
        membership: &Membership,
        vars: &LaunchVars,
    ) -> Result<Job, ClientError> {
        let (number, workers) = (membership.numbers.number, membership.numbers.workers);
        let claimed = (self.rank.unwrap_or(number), self.workers.unwrap_or(workers));
        if claimed != (number, workers) {
            let Place {
                source, rank, size, ..
            } = place;
            let what = format!(
                "the program says that it is worker {} of {}, and as rank {rank} of {size} of {source} \
                 it is worker {number} of {workers}. {OTHER_MPI} Else leave rank and workers to the \
                 launcher",
                claimed.0, claimed.1
            );
            return Err(ClientError::Environment(what.into()));
        }
        let mut join = JoinConfig::new(&membership.coordinator, membership.token.clone());
        join.rank = Some(number);
        join.workers = workers;
        // What the environment does not name has its default.
        let mut job = Job::new(join, vars.transport.unwrap_or_default());
        job.rdma_device.clone_from(&vars.rdma_device);
        job.local_rank = place.local_rank.unwrap_or_default();
        job.fabric = vars.fabric;
        job.join_timeout = self.launch_timeout();
        job.launched = true;
        Ok(self.connected_by(job))
    }

    /// Checks a program that claims to be its job's only worker: fails with `ClientError::Environment` if a
    /// launcher started it with others, as each would claim so. Not checked are a program that names a namespace
    /// (the job is its own), and one that `tidewater run` started (`TIDEWATER_LAUNCH`).
    fn is_not_one_of_many(&self, vars: &Vars) -> Result<(), ClientError> {
        let is_child = |(name, _): &(OsString, OsString)| name == "TIDEWATER_LAUNCH";
        if self.workers != Some(1) || self.namespace.is_some() || vars.iter().any(is_child) {
            return Ok(());
        }
        let mut theirs = vars.clone();
        theirs.retain(|(name, _)| !name.as_encoded_bytes().starts_with(b"TIDEWATER_"));
        let Ok(Decision::Launched(place)) = decide(theirs, Explicit::default()) else {
            return Ok(());
        };
        if place.size == 1 {
            return Ok(());
        }
        let Place {
            source, rank, size, ..
        } = place;
        let what = format!(
            "the program says that it is the job's only worker, and {source} says that it is rank \
             {rank} of {size}. {OTHER_MPI} If each process is to have a job of its own, give each a \
             namespace of its own"
        );
        Err(ClientError::Environment(what.into()))
    }

    /// Makes the job of the coordinator that the program names, with `token` or the token file. Does not connect.
    fn named(&self, coordinator: &str, vars: &Vars) -> Result<Job, ClientError> {
        let token = match (&self.token, &self.token_file) {
            (Some(token), _) => token.clone(),
            (None, Some(file)) => token::read_file(file).map_err(environment)?,
            (None, None) => {
                let what =
                    "a coordinator without token_file; name the file that holds the job's token";
                return Err(ClientError::Environment(what.into()));
            }
        };
        let mut join = JoinConfig::new(coordinator, token);
        join.rank = self.rank;
        join.workers = self.workers.unwrap_or_default(); // 0: the coordinator says the number
        let env = LaunchVars::from_vars(vars.iter().cloned()).map_err(environment)?;
        // Without the variable the best transport is taken; a word that is none was refused above.
        let mut job = Job::new(join, env.transport.unwrap_or_default());
        job.local_rank = local_rank(vars);
        (job.rdma_device, job.fabric) = (env.rdma_device, env.fabric);
        Ok(self.connected_by(job))
    }

    /// Makes the job of the job file that these options or `TIDEWATER_JOB` name; `None` if neither does. The
    /// variable has no effect next to `TIDEWATER_COORDINATOR` or `TIDEWATER_ROLE`. If options and variables give
    /// no rank, rank and size of a launcher apply, except for an observer and for a program that is the only
    /// worker.
    fn of_job_file(&self, vars: &Vars) -> Result<Option<Job>, ClientError> {
        let env = LaunchVars::from_vars(vars.iter().cloned()).map_err(environment)?;
        let is_member = |(name, value): &(OsString, OsString)| {
            (name == "TIDEWATER_COORDINATOR" || name == "TIDEWATER_ROLE") && !value.is_empty()
        };
        let named = env.job_file.filter(|_| !vars.iter().any(is_member));
        let Some(path) = self.job_file.clone().or(named) else {
            return Ok(None);
        };
        let file = JobFile::read(&path)?;
        let mut rank = self.rank.or(env.rank);
        let mut workers = self.workers.or(env.workers);
        if self.observer {
            (rank, workers) = (None, None);
        } else if rank.is_none() && workers != Some(1) {
            let mut theirs = vars.clone();
            theirs.retain(|(name, _)| !name.as_encoded_bytes().starts_with(b"TIDEWATER_"));
            if let Ok(Decision::Launched(place)) = decide(theirs, Explicit::default()) {
                rank = Some(place.rank);
                workers = workers.or(Some(place.size));
            }
        }
        if !self.observer {
            self.is_not_one_of_many(vars)?;
        }
        let mut join = JoinConfig::new(&file.coordinator, file.token.clone());
        join.namespace.clone_from(&file.namespace);
        join.rank = rank;
        join.workers = workers.unwrap_or(file.workers);
        join.job_file = Some(file);
        let mut job = Job::new(join, env.transport.unwrap_or_default());
        job.local_rank = local_rank(vars);
        job.rdma_device = env.rdma_device;
        job.fabric = env.fabric;
        Ok(Some(self.connected_by(job)))
    }

    /// Makes the job that `TIDEWATER_*` variables name; rank and workers of the options override theirs. Fails with
    /// `ClientError::NoJob` if no variable names one.
    fn of_environment(&self, mut vars: Vars) -> Result<Job, ClientError> {
        let given = [
            ("TIDEWATER_RANK", self.rank),
            ("TIDEWATER_WORKERS", self.workers),
        ];
        let given: Vars = given
            .into_iter()
            .filter_map(|(name, number)| Some((name.into(), number?.to_string().into())))
            .collect();
        vars.retain(|(name, _)| given.iter().all(|(known, _)| known != name));
        vars.extend(given);
        if self.observer {
            // The variables are those of workers, of which an observer has none of its own.
            for (name, number) in OF_WORKERS {
                if !vars.iter().any(|(known, _)| known == name) {
                    vars.push((name.into(), number.into()));
                }
            }
        }
        let env = JobEnv::from_vars(vars).map_err(environment)?;
        let Some(env) = env else {
            let what = "the environment names no job: start the program under `tidewater run` or with \
                        servers under mpirun or srun, set TIDEWATER_JOB to the job file of a service, set \
                        TIDEWATER_COORDINATOR and what goes with it, or give coordinator and token_file";
            return Err(ClientError::NoJob(what.into()));
        };
        if env.role != Role::Worker {
            let role = env.role.name();
            let what =
                format!("TIDEWATER_ROLE is {role}; a program that links the client is a worker");
            return Err(ClientError::Environment(what.into()));
        }
        // Parsing a worker's environment fails without a coordinator; other values have defaults.
        let coordinator = env.coordinator.unwrap_or_default();
        let mut join = JoinConfig::new(coordinator, env.token);
        if !self.observer {
            join.rank = Some(env.rank);
            join.workers = env.workers;
        }
        let mut job = Job::new(join, env.transport);
        job.local_rank = env.local_rank;
        job.rdma_device = env.rdma_device;
        job.fabric = env.fabric;
        Ok(self.connected_by(job))
    }

    /// Applies the options that hold for every kind of job (namespace, observer, transport, RDMA device, queue
    /// pairs, join timeout, ring sizes) to `job`, and returns it.
    fn connected_by(&self, mut job: Job) -> Job {
        if let Some(namespace) = &self.namespace {
            job.join.namespace.clone_from(namespace);
        }
        if self.rdma_device.is_some() {
            job.rdma_device.clone_from(&self.rdma_device);
        }
        job.fabric = self.fabric.or(job.fabric);
        job.transport = self.transport.unwrap_or(job.transport);
        job.join_timeout = self.join_timeout.unwrap_or(job.join_timeout);
        job.join.observer = self.observer;
        job.memory = LaneMemory {
            ring_bytes: self.ring_bytes,
            budget: self.memory_budget,
        };
        job
    }
}

/// Variables that a worker's environment must have, with placeholder values for an observer, which does not use
/// them.
const OF_WORKERS: [(&str, &str); 3] = [
    ("TIDEWATER_RANK", "0"),
    ("TIDEWATER_WORKERS", "1"),
    ("TIDEWATER_SERVERS", "1"),
];

/// Part of an error text: two ways to start servers for a launched program.
const SERVERS_NEEDED: &str = "start it as in `mpirun -n 2 tidewater server : -n 4 PROGRAM`, or run \
                              `tidewater serve` beside it and set TIDEWATER_COORDINATOR";

/// Part of an error text: explains why a program and its launcher count processes differently (another MPI's
/// launcher).
const OTHER_MPI: &str = "If it takes its number from an MPI library, that one does not belong to this \
                         launcher: start it with its own MPI's mpirun (`ldd PROGRAM` shows which).";

fn decide(vars: Vars, explicit: Explicit) -> Result<Decision, ClientError> {
    let around = LaunchEnv::of(vars, explicit)
        .map_err(|error| environment(format!("there is no working directory: {error}")))?;
    detect(&around).decision.map_err(environment)
}

pub(super) fn environment(error: impl Into<Cause>) -> ClientError {
    ClientError::Environment(error.into())
}

/// Rank of this process among the launched processes of its host, as the launcher's variables give it; 0 if they
/// do not, or without a launcher.
fn local_rank(vars: &Vars) -> u32 {
    let mut theirs = vars.clone();
    theirs.retain(|(name, _)| !name.as_encoded_bytes().starts_with(b"TIDEWATER_"));
    match decide(theirs, Explicit::default()) {
        Ok(Decision::Launched(place)) => place.local_rank.unwrap_or_default(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
