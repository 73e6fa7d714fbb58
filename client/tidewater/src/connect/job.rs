//! Makes a [`Client`]: joins the job that the environment or the caller names.

use std::ffi::OsString;
use std::time::Duration;

use tidewater_lanes::wake::OsParker;
use tidewater_launch::rendezvous::Membership;
use tidewater_launch::{EnvError, JobEnv, RdmaDevice, RdmaTimeout, Role, TransportChoice};
use tidewater_protocol::ids::WorkerId;
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::sync::Arc;

use super::{ConnectConfig, JoinConfig, NetCoordinatorLink, NetServerLink};
use crate::clock::SyncMode;
use crate::error::ClientError;
use crate::link::ServerLink;
use crate::session::{Client, Parts};

/// Time for coordinator and servers to start: the processes of a job start in any order.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// A job to join, and the settings of its connections.
#[derive(Debug, Clone)]
pub struct Job {
    /// Coordinator, token, namespace, rank, number of workers.
    pub join: JoinConfig,
    /// Transport of the lanes.
    pub transport: TransportChoice,
    /// RDMA device to use. `None`: the one that has the address from which a server is reached.
    pub rdma_device: Option<RdmaDevice>,
    /// Time after which queue pairs send a packet again.
    pub rdma_timeout: RdmaTimeout,
    /// How far workers may drift apart.
    pub sync: SyncMode,
    /// Longest time until coordinator and servers are reachable.
    pub join_timeout: Duration,
    /// Membership of a worker that a launcher started.
    seat: Option<Arc<Membership>>,
}

impl Job {
    /// The job of this process's environment (`TIDEWATER_*`, as `tidewater run` sets them); `None`
    /// where there is none.
    ///
    /// # Errors
    /// [`ClientError::Environment`] when the variables contradict each other or this process is
    /// not a worker.
    pub fn from_env() -> Result<Option<Self>, ClientError> {
        Self::from_vars(std::env::vars_os())
    }

    /// Like [`Job::from_env`], from the given variables: for a program with flags that override its
    /// environment.
    ///
    /// # Errors
    /// As [`Job::from_env`].
    pub fn from_vars(
        vars: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Option<Self>, ClientError> {
        let env = JobEnv::from_vars(vars).map_err(|e| ClientError::Environment(e.to_string()))?;
        let Some(env) = env else { return Ok(None) };
        if env.role != Role::Worker {
            let role = env.role.name();
            let what =
                format!("TIDEWATER_ROLE is {role}; a program that links the client is a worker");
            return Err(ClientError::Environment(what));
        }
        // Parsing a worker's environment fails without a coordinator.
        let coordinator = env.coordinator.unwrap_or_default();
        let mut join = JoinConfig::new(coordinator, env.token);
        join.rank = Some(env.rank);
        join.workers = env.workers;
        let mut job = Self::new(join, env.transport);
        job.rdma_device = env.rdma_device;
        job.rdma_timeout = env.rdma_timeout.unwrap_or_default();
        Ok(Some(job))
    }

    /// Makes a job from explicit settings; synchronisation is ASP.
    pub const fn new(join: JoinConfig, transport: TransportChoice) -> Self {
        Self {
            join,
            transport,
            rdma_device: None,
            rdma_timeout: RdmaTimeout::USUAL,
            sync: SyncMode::Asp,
            join_timeout: JOIN_TIMEOUT,
            seat: None,
        }
    }

    /// The job of a worker that a launcher started. Transport, device and timeout come from the
    /// environment.
    pub(crate) fn of_seat(seat: &Membership) -> Result<Self, ClientError> {
        let wrong = |error: EnvError| ClientError::Environment(error.to_string());
        let mut join = JoinConfig::new(&seat.coordinator, seat.token.clone());
        join.rank = Some(seat.numbers.number);
        join.workers = seat.numbers.workers;
        let transport = TransportChoice::from_env().map_err(wrong)?;
        let mut job = Self::new(join, transport.unwrap_or_default());
        job.rdma_device = RdmaDevice::from_env().map_err(wrong)?;
        job.rdma_timeout = RdmaTimeout::from_env().map_err(wrong)?.unwrap_or_default();
        Ok(job)
    }

    /// Keeps the membership, by which the coordinator knows until this worker joins that it lives.
    #[must_use]
    pub(crate) fn keeping(mut self, seat: Membership) -> Self {
        self.seat = Some(Arc::new(seat));
        self
    }

    /// Sets the synchronisation of the workers.
    #[must_use]
    pub const fn sync(mut self, sync: SyncMode) -> Self {
        self.sync = sync;
        self
    }

    /// Joins as a worker and opens a session with every server. The client belongs to the calling
    /// thread.
    ///
    /// # Errors
    /// A wrong token, rank or version as the coordinator reports it; a number of workers that differs
    /// from the coordinator's; a deadline that names the missing processes; an unavailable transport.
    /// Under BSP and SSP, [`ClientError::Environment`] for a worker that came after the first tick of a
    /// job of unknown size.
    pub fn connect(&self) -> Result<Client, ClientError> {
        let deadline = Deadline::after(self.join_timeout);
        let (mut coordinator, joined) = NetCoordinatorLink::join(&self.join, deadline)?;
        let mut members = coordinator.wait_servers(joined.servers_expected, deadline)?;
        members.servers.sort_by_key(|server| server.id);
        let token = self.join.token.clone();
        let mut config = ConnectConfig::new(token, coordinator.cluster(), joined.rank);
        config.namespace.clone_from(&self.join.namespace);
        config.epoch = members.epoch;
        config.transport = self.transport;
        config.rdma_device.clone_from(&self.rdma_device);
        config.rdma_timeout = self.rdma_timeout;
        config.workers = joined.workers_expected;
        let spin = tidewater_lanes::fabric::SPIN;
        let parker = OsParker::new(spin).map_err(|e| {
            ClientError::Environment(format!("cannot make an epoll: {e}; raise ulimit -n"))
        })?;
        let mut parker = parker.patient();
        let mut servers = Vec::new();
        for member in &members.servers {
            let (link, lanes) = NetServerLink::open(member, &config, &mut parker, deadline)?;
            servers.push((Box::new(link) as Box<dyn ServerLink>, lanes));
        }
        let mut client = Client::from_parts(Parts {
            coordinator: Box::new(coordinator),
            servers,
            parker: Box::new(parker),
            rank: WorkerId(joined.rank),
            workers: config.workers,
            sync: self.sync,
        })?;
        match client.check_member(deadline) {
            Ok(()) => Ok(client),
            // The worker leaves by itself, so that the others do not count it as lost.
            Err(refused) => client.leave(deadline).and(Err(refused)),
        }
    }
}
