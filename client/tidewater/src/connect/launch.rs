//! Launches by `mpirun`, `srun` and similar launchers: each process becomes a worker, a server, or both.
//!
//! Rank 0 keeps the coordinator on a thread, whatever its role.

use std::fmt;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

use tidewater_launch::{BootstrapRecord, LaunchVars, Place};
use tidewater_protocol::limits::BOOTSTRAP_BYTES_MAX;
use tidewater_protocol::wire::control::Part;
use tidewater_runtime::clock::Deadline;
use tidewater_service::launched::{
    Hosted, JobMember, LaunchedError, host, is_server, join_by_record, join_job,
};
use tidewater_service::process::ServerProcess;
use tidewater_topology::appliers_that_fit;

use super::job::{Held, Job};
use super::join_options::{JoinOptions, Joined, environment};
use crate::error::{Cause, ClientError};

/// Host of the coordinator in a job without a launcher: it runs the coordinator on a thread of rank 0. The other
/// processes reach it by a bootstrap record, which the program broadcasts. [`Bootstrap`] has an example.
///
/// Dropping it ends the coordinator; [`Bootstrap::host`] hands it to the job.
///
/// # Example
/// ```
/// use tidewater::connect::BootstrapHost;
///
/// # fn main() -> Result<(), tidewater::ClientError> {
/// let host = BootstrapHost::start(2, Some("lo"))?; // for two processes of this host
/// let record = host.record(); // to be broadcast
/// assert!(record.len() <= BootstrapHost::RECORD_BYTES_MAX);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct BootstrapHost(Hosted);

impl BootstrapHost {
    /// Largest number of bytes of a bootstrap record.
    pub const RECORD_BYTES_MAX: usize = BOOTSTRAP_BYTES_MAX;

    /// Starts the coordinator of a job on a thread of this process, for `size` processes (servers and workers).
    /// `interface` names the network device to listen on; `None` is `TIDEWATER_INTERFACE`, or all devices.
    ///
    /// # Errors
    /// [`ClientError::Environment`] when the coordinator cannot listen, or a `TIDEWATER_*` variable is not valid.
    pub fn start(size: u32, interface: Option<&str>) -> Result<Self, ClientError> {
        let vars = LaunchVars::from_env().map_err(environment)?;
        let interface = interface.or(vars.interface.as_deref());
        host(size, interface).map(Self).map_err(launch_error)
    }

    /// The encoded bootstrap record, which the program broadcasts to all processes. At most
    /// [`Self::RECORD_BYTES_MAX`] bytes. **It is a secret**: any process that has it can join the job.
    pub fn record(&self) -> Vec<u8> {
        self.0.record().encode().into_bytes()
    }
}

/// Role and rank of this process in a job that starts from a bootstrap record, which the program broadcasts. It
/// needs no launcher, no environment and no shared directory.
///
/// # Example
/// Two processes, here threads: rank 0 serves, rank 1 works.
/// ```
/// use tidewater::connect::{Bootstrap, BootstrapHost, Part};
/// use tidewater::{ClientError, JoinOptions, Joined, SyncMode};
///
/// fn process(rank: u32, record: Vec<u8>, host: Option<BootstrapHost>) -> Result<(), ClientError> {
///     let part = if rank == 0 { Part::Server } else { Part::Worker };
///     let bootstrap = Bootstrap { record, rank, size: 2, part, host };
///     let options = JoinOptions { bootstrap: Some(bootstrap), ..JoinOptions::default() };
///     let Joined::Worker(job) = options.join()? else {
///         return Ok(()); // rank 0, which has served
///     };
///     let mut client = job.client(SyncMode::Bsp)?;
///     client.finish()?;
///     job.leave()
/// }
///
/// fn main() -> Result<(), ClientError> {
///     let host = BootstrapHost::start(2, Some("lo"))?;
///     let record = host.record(); // with MPI: MPI_Bcast from rank 0
///     let copy = record.clone();
///     let worker = std::thread::spawn(|| process(1, copy, None));
///     process(0, record, Some(host))?;
///     worker.join().expect("no panic")
/// }
/// ```
pub struct Bootstrap {
    /// Bytes of [`BootstrapHost::record`]; zeros may follow.
    pub record: Vec<u8>,
    /// Rank of this process among all of the launch, servers and workers.
    pub rank: u32,
    /// Processes of the launch, servers and workers.
    pub size: u32,
    /// Whether this process works, serves, or does both.
    pub part: Part,
    /// The coordinator, at rank 0; `None` at all others.
    pub host: Option<BootstrapHost>,
}

impl fmt::Debug for Bootstrap {
    /// Formats the fields except the record, which is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bootstrap")
            .field("rank", &self.rank)
            .field("size", &self.size)
            .field("part", &self.part)
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

impl JoinOptions {
    /// Joins a job of a program that counts its processes itself, as by MPI: process `rank` of `size`.
    /// All are workers, by these ranks; `servers` of them, spread evenly, are servers too, on threads of
    /// their own; 0: all. It needs no launcher, variable or file. `broadcast` copies the bytes of rank 0
    /// to all processes, as `MPI_Bcast` does, and is called once in each. The bytes are a secret.
    ///
    /// Rank 0 keeps the coordinator. Call [`Job::leave`] in all processes when their clients have
    /// finished: those that keep a part of the job wait there for the others.
    ///
    /// # Errors
    /// The error of `broadcast`; [`ClientError::Environment`] for options that name another job, more
    /// servers than processes, or a coordinator that cannot listen; [`ClientError::Launch`] when the
    /// processes do not meet. If rank 0 fails before the broadcast, the others learn it by that.
    ///
    /// # Example
    /// Two processes, here threads, and a server in each:
    /// ```
    /// use std::sync::mpsc;
    /// use tidewater::{ClientError, JoinOptions, SyncMode};
    ///
    /// fn work(rank: u32, bcast: impl FnOnce(&mut [u8])) -> Result<(), ClientError> {
    ///     let options = JoinOptions { interface: Some("lo".into()), ..JoinOptions::default() };
    ///     let job = options.begin(rank, 2, 0, |bytes| Ok(bcast(bytes)))?;
    ///     let mut client = job.client(SyncMode::Bsp)?;
    ///     assert_eq!((client.rank().0, client.workers(), client.servers()), (rank, 2, 2));
    ///     client.finish()?;
    ///     job.leave()
    /// }
    ///
    /// fn main() -> Result<(), ClientError> {
    ///     let (send, receive) = mpsc::channel::<Vec<u8>>();
    ///     let other = std::thread::spawn(move || {
    ///         work(1, |bytes| bytes.copy_from_slice(&receive.recv().expect("rank 0 sends")))
    ///     });
    ///     work(0, |bytes| send.send(bytes.to_vec()).expect("rank 1 receives"))?;
    ///     other.join().expect("no panic")
    /// }
    /// ```
    pub fn begin(
        mut self,
        rank: u32,
        size: u32,
        servers: u32,
        broadcast: impl FnOnce(&mut [u8]) -> Result<(), ClientError>,
    ) -> Result<Job, ClientError> {
        let mut record = vec![0; BootstrapHost::RECORD_BYTES_MAX];
        let host = match rank {
            0 => Some(self.begin_host(size, servers)),
            _ => None,
        };
        if let Some(Ok(host)) = &host {
            let bytes = host.record();
            record[..bytes.len()].copy_from_slice(&bytes);
        }
        // Also where rank 0 has failed: the others wait in it.
        broadcast(&mut record)?;
        let host = host.transpose()?;
        if record.iter().all(|&byte| byte == 0) {
            let what = "rank 0 could not start the coordinator; its error says why";
            return Err(ClientError::Launch(what.into()));
        }
        let serves = servers == 0 || is_server(rank, size, servers);
        self.bootstrap = Some(Bootstrap {
            record,
            rank,
            size,
            part: if serves { Part::Both } else { Part::Worker },
            host,
        });
        match self.join()? {
            Joined::Worker(job) => Ok(job),
            Joined::Served => Err(failed(
                "a worker has joined as a server: a defect, please report it",
            )),
        }
    }

    /// Calls `broadcast` once, for a process that cannot call [`JoinOptions::begin`]: the other processes block in
    /// that broadcast. At rank 0 it sends an empty record, and `begin` fails in all of them; at another rank it drops
    /// the record that it receives.
    ///
    /// # Errors
    /// The error of `broadcast`.
    pub fn begin_failed(
        broadcast: impl FnOnce(&mut [u8]) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        broadcast(&mut vec![0; BootstrapHost::RECORD_BYTES_MAX])
    }

    /// For rank 0: checks `size` (at least 1) and `servers` (at most one for each process), and starts the
    /// coordinator on a thread of this process.
    fn begin_host(&self, size: u32, servers: u32) -> Result<BootstrapHost, ClientError> {
        if size == 0 || servers > size {
            return Err(environment(format!(
                "{servers} servers in {size} processes; give each process rank and size as MPI counts \
                 them, and at most one server for each"
            )));
        }
        BootstrapHost::start(size, self.interface.as_deref())
    }
}

/// Parts of a launched job in a worker's process: its registration, the coordinator at rank 0, and perhaps a server.
#[derive(Debug)]
pub(super) struct LaunchedParts {
    /// Ends before the coordinator does.
    server: Option<ServerThread>,
    member: JobMember,
}

impl LaunchedParts {
    /// Blocks until the server and the coordinator of this process end, which they do when the last worker of the
    /// job has finished.
    pub(super) fn leave(self) -> Result<(), ClientError> {
        let served = self.server.map_or(Ok(()), ServerThread::wait);
        self.member.end();
        served
    }
}

/// Joins the job of the processes that a launcher started. In the role of a server it serves, and returns
/// `Joined::Served` when the job has ended.
pub(super) fn join_launch(
    options: &JoinOptions,
    place: &Place,
    vars: &LaunchVars,
) -> Result<Joined, ClientError> {
    let part = part_of(options, place, vars)?;
    let interface = options.interface.as_ref().or(vars.interface.as_ref());
    let deadline = Deadline::after(options.launch_timeout());
    let member = join_job(place, part, interface.map(String::as_str), deadline);
    enter(options, place, part, member.map_err(launch_error)?, vars)
}

/// Joins the job of the processes that have the same bootstrap record. In the role of a server it serves, and
/// returns `Joined::Served` when the job has ended.
pub(super) fn join_bootstrap(
    options: &JoinOptions,
    bootstrap: Bootstrap,
    vars: &LaunchVars,
) -> Result<Joined, ClientError> {
    let record = BootstrapRecord::parse(&bootstrap.record).map_err(environment)?;
    let place = Place::by_record(bootstrap.rank, bootstrap.size);
    let interface = options.interface.as_ref().or(vars.interface.as_ref());
    let deadline = Deadline::after(options.launch_timeout());
    let member = join_by_record(
        &record,
        &place,
        bootstrap.part,
        interface.map(String::as_str),
        bootstrap.host.map(|host| host.0),
        deadline,
    );
    let member = member.map_err(launch_error)?;
    enter(options, &place, bootstrap.part, member, vars)
}

/// Role of this process in its launch (worker, server or both), by options and environment. Fails if both a
/// number of servers and servers in all ranks are given, or if no process would be a worker.
fn part_of(options: &JoinOptions, place: &Place, vars: &LaunchVars) -> Result<Part, ClientError> {
    let servers = options.servers.or(vars.servers).unwrap_or(0);
    let both = options.servers_in_ranks || vars.servers_in_ranks;
    if both && servers > 0 {
        let what = format!(
            "{servers} processes as servers, and servers in all of them: say one of the two \
             (--servers, TIDEWATER_SERVERS; --servers-in-ranks, TIDEWATER_SERVERS_IN_RANKS)"
        );
        return Err(ClientError::Environment(what.into()));
    }
    if servers >= place.size {
        let size = place.size;
        let what = format!(
            "{servers} of {size} processes as servers leave none to work; start more, or make fewer \
             of them servers (--servers, TIDEWATER_SERVERS)"
        );
        return Err(ClientError::Environment(what.into()));
    }
    Ok(match is_server(place.rank, place.size, servers) {
        _ if both => Part::Both,
        true => Part::Server,
        false => Part::Worker,
    })
}

fn enter(
    options: &JoinOptions,
    place: &Place,
    part: Part,
    member: JobMember,
    vars: &LaunchVars,
) -> Result<Joined, ClientError> {
    let line = member.describe(place, part);
    if let Some(announce) = options.announce {
        announce(&line);
    }
    if part == Part::Server {
        let server = start_server(&member, options, vars)?;
        server.run(&[]).map_err(failed)?;
        member.end();
        return Ok(Joined::Served);
    }
    let mut job = options.launched_job(place, member.membership(), vars)?;
    let server = match part {
        Part::Both => Some(ServerThread::start(start_server(&member, options, vars)?)?),
        _ => None,
    };
    job.line = Some(line);
    job.held = Held::Launched(Box::new(LaunchedParts { server, member }));
    Ok(Joined::Worker(job))
}

/// Server that runs on a thread of a worker's process. Dropping it ends the server, and with it the job.
#[derive(Debug)]
struct ServerThread {
    /// Closing it (end of file at the other end) stops the server.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<Result<(), ClientError>>>,
}

impl ServerThread {
    fn start(server: ServerProcess) -> Result<Self, ClientError> {
        let cannot = |error| {
            environment(format!(
                "cannot start a server's thread: {error}; raise ulimit -u and -n"
            ))
        };
        let (stop, stopped) = UnixStream::pair().map_err(cannot)?;
        let thread = std::thread::Builder::new().name("tw-server".into());
        let thread = thread.spawn(move || {
            let ended = server.run(&[stopped.as_fd()]);
            ended.map(drop).map_err(|error| {
                // At once, while the worker computes; `Job::leave` returns it later.
                tracing::error!(%error, "the server in this worker's process has failed");
                failed(format!("the server in this worker's process: {error}"))
            })
        });
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread.map_err(cannot)?),
        })
    }

    /// Blocks until the server ends by itself, with the end of the job. Fails if it failed or panicked.
    fn wait(mut self) -> Result<(), ClientError> {
        self.join()
    }

    fn join(&mut self) -> Result<(), ClientError> {
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(ended)) => ended,
            Some(Err(_)) => Err(failed(
                "the server in this worker's process panicked: a defect, please report it",
            )),
        }
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        self.stop = None;
        if let Err(error) = self.join() {
            tracing::error!(%error, "a server has failed");
        }
    }
}

/// Starts a server in this process with the given registration, and blocks until the coordinator has admitted it.
fn start_server(
    member: &JobMember,
    options: &JoinOptions,
    vars: &LaunchVars,
) -> Result<ServerProcess, ClientError> {
    let mut config = member.server_config();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let fit = || appliers_that_fit(cores, config.local_servers);
    config.appliers = options.appliers.or(vars.appliers).unwrap_or_else(fit);
    let device = options.rdma_device.as_ref().or(vars.rdma_device.as_ref());
    config.rdma_device = device.cloned();
    config.fabric = options.fabric.or(vars.fabric);
    config.nic.clone_from(&vars.nic);
    config.mlock = vars.mlock;
    let limit = options.launch_timeout();
    ServerProcess::start(&config, Deadline::after(limit)).map_err(failed)
}

fn failed(error: impl Into<Cause>) -> ClientError {
    ClientError::Launch(error.into())
}

fn launch_error(error: LaunchedError) -> ClientError {
    match error {
        LaunchedError::Rendezvous(_) | LaunchedError::Taken { .. } => failed(error),
        _ => environment(error),
    }
}
