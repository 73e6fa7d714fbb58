//! Launches by `mpirun`, `srun` and similar: processes meet, and each becomes a worker or a server of
//! their job.
//!
//! ```text
//! mpirun -n 2 tidewater server : -n 4 ./sim       servers are programs of their own
//! mpirun -n 6 ./sim                               with servers = 2: ranks 0 and 3 serve, 4 work
//! mpirun -n 6 ./sim                               with servers_in_ranks: 6 serve, on threads, and work
//! ```
//! Rank 0 keeps the coordinator on a thread, whatever its role. `docs/HPC.md` describes the rendezvous
//! and the known launchers.
//!
//! A program that has its own broadcast needs no rendezvous. Rank 0 calls [`Launch::host`], the program
//! broadcasts [`BootstrapHost::card`], and all call [`Launch::enter_by_card`]. Use the same way in
//! programs with an MPI library under a launcher that speaks PMI, as the library does.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use tidewater_launch::{
    BootstrapRecord, Decision, Explicit, LaunchEnv, Place, RdmaDevice, RdmaTimeout,
    counts_from_env, detect, servers_in_ranks_from_env,
};
use tidewater_protocol::limits::GATHER_TIMEOUT;
use tidewater_protocol::wire::control::Part;
use tidewater_runtime::clock::Deadline;
use tidewater_service::launched::{
    Hosted, JobMember, LaunchedError, host as host_coordinator, is_server, join_by_record, join_job,
};
use tidewater_service::process::ServerProcess;
use tidewater_topology::appliers_that_fit;

use crate::connect::Job;
use crate::error::ClientError;

/// Settings of a launch; the defaults come from the launcher and the environment.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Values that override those of the launcher.
    pub explicit: Explicit,
    /// Processes of this program that become servers; `None` is `TIDEWATER_SERVERS`, or none.
    pub servers: Option<u32>,
    /// Whether each process is also a server, on threads next to its worker. If false,
    /// `TIDEWATER_SERVERS_IN_RANKS` decides. If true, no process is a server only.
    pub servers_in_ranks: bool,
    /// Network interface with the address to listen on. `None` is `TIDEWATER_INTERFACE`, or the one that
    /// leads to rank 0.
    pub interface: Option<String>,
    /// Longest time until all processes have joined.
    pub join_timeout: Duration,
}

impl Default for Launch {
    fn default() -> Self {
        Self {
            explicit: Explicit::default(),
            servers: None,
            servers_in_ranks: false,
            interface: None,
            join_timeout: GATHER_TIMEOUT,
        }
    }
}

/// Role of this process in its launch.
#[derive(Debug)]
#[non_exhaustive]
pub enum LaunchRole {
    /// Not launched, or launched as the only process.
    Alone,
    /// `TIDEWATER_*` names a coordinator; continue with [`Job::from_env`].
    Member,
    /// A worker of the launched job.
    Worker(WorkerSeat),
    /// A server of the launched job.
    Server(ServerSeat),
}

/// Membership of a worker in its job. Keep it while its clients live.
#[derive(Debug)]
pub struct WorkerSeat {
    job: Job,
    line: String,
    /// Server in the same process; ends before the coordinator does.
    serving: Option<Serving>,
    seated: JobMember,
}

/// A server on a thread of this process. Dropping it ends the server, and with it the job.
#[derive(Debug)]
struct Serving {
    /// Closing it (end of file at the other end) stops the server.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

/// Membership of a server in its job.
#[derive(Debug)]
pub struct ServerSeat {
    line: String,
    seated: JobMember,
    join_timeout: Duration,
}

/// The coordinator of a job that meets by a bootstrap record, on a thread of this process.
#[derive(Debug)]
pub struct BootstrapHost(Hosted);

impl BootstrapHost {
    /// The encoded bootstrap record, to be broadcast. **It is a secret**: any process that has it can
    /// join the job. At most 1,000 bytes.
    pub fn card(&self) -> Vec<u8> {
        self.0.card().encode().into_bytes()
    }
}

impl Launch {
    /// Detects the role of this process and, in a launch of several, waits for the other processes.
    ///
    /// # Errors
    /// [`ClientError::Environment`] when the launcher's information is incomplete;
    /// [`ClientError::Launch`] when the processes do not meet, which names the missing ones.
    ///
    /// # Cost
    /// One connection to rank 0, and at rank 0 a thread.
    pub fn enter(&self) -> Result<LaunchRole, ClientError> {
        let around = LaunchEnv::here(self.explicit.clone()).map_err(environment)?;
        match detect(&around).decision.map_err(environment)? {
            Decision::Member => Ok(LaunchRole::Member),
            Decision::Launched(place) if place.size > 1 => self.sit(&place),
            _ => Ok(LaunchRole::Alone),
        }
    }

    /// Starts the coordinator of a job of `size` processes that meets by a bootstrap record. The
    /// calling process is rank 0.
    ///
    /// # Errors
    /// [`ClientError::Environment`] when the coordinator cannot listen.
    pub fn host(&self, size: u32) -> Result<BootstrapHost, ClientError> {
        let hosted = host_coordinator(size, self.interface()?.as_deref());
        Ok(BootstrapHost(hosted.map_err(launch)?))
    }

    /// Joins the job of a bootstrap record as process `rank` of `size`, in the role `part`. Rank 0
    /// passes the result of [`Launch::host`].
    ///
    /// # Errors
    /// As [`Launch::enter`]; and bytes that are no bootstrap record.
    pub fn enter_by_card(
        &self,
        card: &[u8],
        (rank, size): (u32, u32),
        part: Part,
        host: Option<BootstrapHost>,
    ) -> Result<LaunchRole, ClientError> {
        let card = BootstrapRecord::parse(card).map_err(environment)?;
        let place = Place::by_card(rank, size);
        let deadline = Deadline::after(self.join_timeout);
        let interface = self.interface()?;
        let host = host.map(|host| host.0);
        let seated = join_by_record(&card, &place, part, interface.as_deref(), host, deadline);
        self.seated(&place, part, seated.map_err(launch)?)
    }

    fn sit(&self, place: &Place) -> Result<LaunchRole, ClientError> {
        let (_, servers) = counts_from_env().map_err(environment)?;
        let servers = self.servers.or(servers).unwrap_or(0);
        let both = self.servers_in_ranks || servers_in_ranks_from_env().map_err(environment)?;
        if both && servers > 0 {
            let what = format!(
                "{servers} processes as servers, and servers in all of them: say one of the two \
                 (--servers, TIDEWATER_SERVERS; --servers-in-ranks, TIDEWATER_SERVERS_IN_RANKS)"
            );
            return Err(ClientError::Environment(what));
        }
        if servers >= place.size {
            let size = place.size;
            let what = format!(
                "{servers} of {size} processes as servers leave none to work; start more, or make \
                 fewer of them servers (--servers, TIDEWATER_SERVERS)"
            );
            return Err(ClientError::Environment(what));
        }
        let part = match is_server(place.rank, place.size, servers) {
            _ if both => Part::Both,
            true => Part::Server,
            false => Part::Worker,
        };
        let interface = self.interface()?;
        let deadline = Deadline::after(self.join_timeout);
        let seated = join_job(place, part, interface.as_deref(), deadline).map_err(launch)?;
        self.seated(place, part, seated)
    }

    fn seated(
        &self,
        place: &Place,
        part: Part,
        seated: JobMember,
    ) -> Result<LaunchRole, ClientError> {
        let line = seated.describe(place, part);
        if part == Part::Server {
            return Ok(LaunchRole::Server(ServerSeat {
                line,
                seated,
                join_timeout: self.join_timeout,
            }));
        }
        let mut job = Job::of_seat(seated.seat())?;
        job.join_timeout = self.join_timeout;
        let serving = (part == Part::Both).then(|| Serving::start(&seated, self.join_timeout));
        Ok(LaunchRole::Worker(WorkerSeat {
            job,
            line,
            serving: serving.transpose()?,
            seated,
        }))
    }

    fn interface(&self) -> Result<Option<String>, ClientError> {
        let variable = match std::env::var("TIDEWATER_INTERFACE") {
            Ok(name) => Some(name).filter(|name| !name.is_empty()),
            Err(std::env::VarError::NotPresent) => None,
            Err(error) => return Err(environment(format_args!("TIDEWATER_INTERFACE: {error}"))),
        };
        Ok(self.interface.clone().or(variable))
    }
}

impl WorkerSeat {
    /// The job. Each thread that uses tables connects to it.
    pub const fn job(&self) -> &Job {
        &self.job
    }

    /// Describes this process in one line for people.
    pub fn describe(&self) -> &str {
        &self.line
    }

    /// Ends the membership when this worker has finished and its clients are dropped. At rank 0, and
    /// where this process also serves, it waits until the others have finished.
    pub fn end(self) {
        if let Some(serving) = self.serving {
            serving.wait();
        }
        self.seated.end();
    }
}

impl ServerSeat {
    /// Describes this process in one line for people.
    pub fn describe(&self) -> &str {
        &self.line
    }

    /// Serves until all workers have finished, or one of `stop` becomes readable or hangs up.
    /// `TIDEWATER_APPLIERS` sets the number of appliers; otherwise as many run as fit next to the other
    /// processes.
    ///
    /// # Errors
    /// [`ClientError::Launch`] when the server cannot serve, or loses its coordinator.
    pub fn run(self, stop: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        let server = start_server(&self.seated, self.join_timeout)?;
        server.run(stop).map_err(failed)?;
        self.seated.end();
        Ok(())
    }
}

impl Serving {
    fn start(seated: &JobMember, join_timeout: Duration) -> Result<Self, ClientError> {
        let server = start_server(seated, join_timeout)?;
        let cannot = |error| {
            environment(format_args!(
                "cannot start a server's thread: {error}; raise ulimit -u and -n"
            ))
        };
        let (stop, told) = UnixStream::pair().map_err(cannot)?;
        let thread = std::thread::Builder::new().name("tw-server".into());
        let thread = thread.spawn(move || {
            if let Err(error) = server.run(&[told.as_fd()]) {
                tracing::error!(%error, "the server in this worker's process has lost its coordinator");
            }
        });
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread.map_err(cannot)?),
        })
    }

    /// Waits until the server ends by itself.
    fn wait(mut self) {
        self.join();
    }

    fn join(&mut self) {
        let ended = self.thread.take().map(JoinHandle::join);
        if ended.is_some_and(|ended| ended.is_err()) {
            tracing::error!(
                "the server in this worker's process panicked: a defect, please report it"
            );
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop = None;
        self.join();
    }
}

/// Starts a server of this membership and waits until it has joined.
fn start_server(seated: &JobMember, join_timeout: Duration) -> Result<ServerProcess, ClientError> {
    let mut config = seated.server_config();
    let (appliers, _) = counts_from_env().map_err(environment)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    config.appliers = appliers.unwrap_or_else(|| appliers_that_fit(cores, config.local_servers));
    config.rdma_device = RdmaDevice::from_env().map_err(environment)?;
    let timeout = RdmaTimeout::from_env().map_err(environment)?;
    config.rdma_timeout = timeout.unwrap_or_default();
    ServerProcess::start(&config, Deadline::after(join_timeout)).map_err(failed)
}

fn failed(error: impl std::fmt::Display) -> ClientError {
    ClientError::Launch(error.to_string())
}

fn environment(error: impl std::fmt::Display) -> ClientError {
    ClientError::Environment(error.to_string())
}

fn launch(error: LaunchedError) -> ClientError {
    match error {
        LaunchedError::Rendezvous(_) | LaunchedError::Taken { .. } => {
            ClientError::Launch(error.to_string())
        }
        _ => ClientError::Environment(error.to_string()),
    }
}
