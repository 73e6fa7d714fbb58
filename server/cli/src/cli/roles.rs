//! `tidewater coordinator`, `tidewater server`.
//!
//! Under a launcher the environment has all settings; flags are for starting by hand, and win.

use std::convert::Infallible;
use std::fmt::Display;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::launcher::{Control, ReadyLine};
use clap::{Args, ValueEnum};
use signal_hook::consts::{SIGINT, SIGTERM};
use tidewater_engine::store::Hugepages;
use tidewater_launch::token::{random, read_file};
use tidewater_launch::{FabricSettings, JobEnv, JobFile, LaunchVars, RdmaDevice, fabric_from_env};
use tidewater_protocol::ids::ServerId;
use tidewater_protocol::limits::{PENDING_BYTES_DEFAULT, SAVE_BYTES_DEFAULT};
use tidewater_protocol::wire::handshake::JobToken;
use tidewater_runtime::clock::Deadline;
use tidewater_service::coordinator::{
    CoordinatorConfig, Journal, Lifetime, Listening, LostWorker, ServeConfig, serve as coordinate,
};
use tidewater_service::process::{ServerProcess, ServerProcessConfig, ServerProcessError};
use tidewater_service::server::{CAPACITY_DEFAULT, ServerError};
use tidewater_status::Report;
use tidewater_topology::appliers_that_fit;

use super::holder::{self, Held};
use super::publish::{PublishArgs, Published, page};

/// Effect of a lost worker.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum OnLost {
    /// The job fails and ends.
    Fail,
    /// The others continue without it.
    GoOn,
}

/// The arguments of `coordinator`.
#[derive(Debug, Args)]
pub(crate) struct CoordinatorArgs {
    /// Address to listen on; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// Host, or HOST:PORT, given to others, if it is not the one listened on.
    #[arg(long, value_name = "HOST")]
    advertise: Option<String>,
    /// Servers of the cluster [default: TIDEWATER_SERVERS].
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=1024))]
    servers: Option<u32>,
    /// Workers of the job [default: TIDEWATER_WORKERS, or none: a service, where each job says it].
    #[arg(long, value_name = "W", value_parser = clap::value_parser!(u32).range(1..=65536))]
    workers: Option<u32>,
    /// Silence after which a server counts as lost: nothing from its host arrives. A stopped process is not
    /// silent.
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = super::parse_lease)]
    lease: Duration,
    /// Effect of the loss of a worker.
    #[arg(long, default_value = "fail")]
    on_lost: OnLost,
    /// File, mode 0600, that holds the job token [default: TIDEWATER_TOKEN_FILE].
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Directory of the coordinator's journal. A coordinator that was killed continues where it was when it is
    /// started with the same options; servers and workers go on meanwhile. A --membership file in which a rank
    /// joins twice is refused then.
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// With --state: time that servers and workers have to return after a restart. One that has not is lost.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = super::parse_duration)]
    return_timeout: Duration,
    /// Admit jobs of this namespace only. Its token is then no key to other namespaces, which have
    /// coordinators and servers of their own.
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    #[command(flatten)]
    publish: PublishArgs,
    #[command(flatten)]
    membership: super::membership::MembershipArgs,
    #[command(flatten)]
    checkpoint: super::checkpoint::CheckpointArgs,
}

/// The arguments of `server`.
#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// The coordinator [default: TIDEWATER_COORDINATOR, or that of the launch, at rank 0].
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) coordinator: Option<String>,
    /// Job file that the coordinator has written, in place of --coordinator and a token [default:
    /// TIDEWATER_JOB].
    #[arg(long, value_name = "FILE", conflicts_with_all = ["coordinator", "token_file"])]
    job_file: Option<PathBuf>,
    /// Serve this server's metrics on this loopback address: /metrics (Prometheus text) and /status
    /// (JSON); port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// This server's number [default: TIDEWATER_RANK, or the lowest that is free at the coordinator;
    /// when launched, in the order of ranks].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..1024))]
    number: Option<u32>,
    #[command(flatten)]
    pub(super) launch: super::launched::LaunchArgs,
    /// When launched: network interface with the address to listen on [default:
    /// TIDEWATER_INTERFACE, or the one that leads to the coordinator].
    #[arg(long, value_name = "NAME")]
    pub(super) interface: Option<String>,
    /// Start a successor when a signal ends this server, at most N times. This process is then the holder:
    /// it keeps the server's memory, waits for the server, its child, and reports how it ended. A job with warm
    /// tables only goes on; another one begins again without tables, in its processes. Jobs of open size, with a
    /// schedule of members or with checkpoints end with the server, and so do those with a worker that has ended
    /// and a table that is not warm. Needs --number.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    restarts: u32,
    /// Silence of the coordinator's host after which the coordinator counts as lost. Must be longer than the
    /// longest retry of --rdma-timeout and --rdma-retries.
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = super::parse_lease)]
    lease: Duration,
    /// Time limit for the coordinator, or when launched all processes, to be there.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = super::parse_duration)]
    pub(super) join_timeout: Duration,
    /// Address to listen on; port 0 takes a free one [default: a free port of the address from
    /// which the coordinator is reached; when launched, see --interface].
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Host given to clients, if it is not the one listened on.
    #[arg(long, value_name = "HOST")]
    advertise: Option<String>,
    /// Applier threads, which own the rows [default: TIDEWATER_APPLIERS, or this server's share of
    /// half the cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    appliers: Option<u16>,
    /// Bytes of address space for parameters, and as many for their state; only pages that are used
    /// cost memory.
    #[arg(long, value_name = "BYTES", default_value_t = CAPACITY_DEFAULT)]
    capacity: usize,
    /// Let clients count their pushes in a word of each applier (an atomic a push): programs can
    /// then measure how much has arrived since they pulled.
    #[arg(long)]
    count_pushes: bool,
    /// Bytes of pushes at the clock that an applier holds for workers that are ahead of their turn in
    /// the iteration; beyond that their pushes wait. A program that synchronises its workers by other
    /// means between push and tick needs it for all pushes of an iteration.
    #[arg(long, value_name = "BYTES", default_value_t = PENDING_BYTES_DEFAULT)]
    pending_bytes: usize,
    /// Bytes of copied records that a save holds in a server until the file system takes them: those of
    /// rows and blocks that change while it is under way. Beyond that the save fails, and training goes
    /// on. A save of tables that change completely needs their size.
    #[arg(long, value_name = "BYTES", default_value_t = SAVE_BYTES_DEFAULT)]
    save_bytes: usize,
    #[command(flatten)]
    busy: super::BusyPollArgs,
    #[command(flatten)]
    pub(super) modules: super::functions::ModuleArgs,
    /// RDMA ports to serve through, as in mlx5_0, mlx5_0:1 or mlx5_0:1:3 (device, port, GID); several
    /// separated by commas, the local rank chooses the first; %r in a device name is the local rank
    /// [default: TIDEWATER_RDMA_DEVICE, or the fastest and nearest ones that reach the client].
    #[arg(long, value_name = "NAMES")]
    rdma_device: Option<RdmaDevice>,
    #[command(flatten)]
    fabric: FabricSettings,
    /// Pages of the memory of --capacity: auto (hugepages if they hold all of it), 2M, 1G or off.
    /// Hugepages are all allocated at the start [default: auto, without a warning where it takes
    /// ordinary pages].
    #[arg(long, value_parser = super::parse_hugepages)]
    hugepages: Option<Hugepages>,
    #[command(flatten)]
    place: super::PlaceArgs,
    /// File, mode 0600, that holds the job token [default: TIDEWATER_TOKEN_FILE].
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// Result of a command: the exit code, after its message was printed.
pub(super) type Outcome = Result<(), ExitCode>;

/// Runs a coordinator until its cluster ends or it is stopped.
pub(crate) fn coordinator(args: CoordinatorArgs) -> ExitCode {
    code(run_coordinator(args))
}

/// Runs a server until its coordinator orders the end or it is stopped.
pub(crate) fn server(args: ServerArgs) -> ExitCode {
    code(run_server(args))
}

fn run_coordinator(args: CoordinatorArgs) -> Outcome {
    log();
    let env = environment()?;
    let stop = Stop::new(env.as_ref())?;
    let servers = needed(
        args.servers,
        env.as_ref().map(|env| env.servers),
        "--servers",
    )?;
    let workers = args.workers.or(env.as_ref().map(|env| env.workers));
    let workers = workers.unwrap_or(0);
    args.publish.check_open(args.listen, workers == 0)?;
    let has_token = args.token_file.is_some() || env.is_some();
    if args.state.is_some() && !has_token && std::env::var_os("TIDEWATER_TOKEN_FILE").is_none() {
        let text = "--state needs a token that a restart has too: give --token-file, or set TIDEWATER_TOKEN_FILE";
        return Err(complain(2, text));
    }
    let token = published_token(args.token_file.clone(), env.as_ref(), &args.publish)?;
    let listening = listen(&args, token.clone(), servers, workers, &stop)?;
    let _published = args.publish.publish(Published {
        address: listening.address().to_owned(),
        local: listening.local(),
        token,
        cluster: listening.cluster(),
        servers,
        workers,
        namespace: args.namespace,
    })?;
    let listening = args.membership.apply(listening)?.with_lease(args.lease);
    stop.ready(listening.address())?;
    coordinate(listening, &stop.descriptors()).map_err(|error| complain(3, error))
}

/// The coordinator's listener, with its checkpoints and its journal.
fn listen(
    args: &CoordinatorArgs,
    token: JobToken,
    servers: u32,
    workers: u32,
    stop: &Stop,
) -> Result<Listening, ExitCode> {
    let journal = args.state.as_deref().map(Journal::open).transpose();
    let journal = journal.map_err(|error| complain(3, error))?;
    let mut address = args.listen;
    if let (0, Some(port)) = (address.port(), journal.as_ref().and_then(Journal::port)) {
        address.set_port(port);
    }
    let listening = Listening::bind(ServeConfig {
        listen: address,
        advertise: args.advertise.clone(),
        token,
        namespaces: args.namespace.iter().cloned().collect(),
        cluster: CoordinatorConfig {
            servers,
            workers,
            on_lost: match args.on_lost {
                OnLost::Fail => LostWorker::FailJob,
                OnLost::GoOn => LostWorker::GoOn,
            },
            lifetime: match (workers, &stop.control) {
                (0, _) => Lifetime::Service,
                (_, Some(_)) => Lifetime::Launched,
                (_, None) => Lifetime::OneJob,
            },
        },
    });
    let listening = listening.map_err(|error| complain(3, error))?;
    let mut listening = args.checkpoint.apply(listening)?;
    if let Some(journal) = journal {
        let journalled = listening.journalled(journal, args.return_timeout);
        listening = journalled.map_err(|error| complain(3, error))?;
    }
    Ok(listening)
}

fn run_server(args: ServerArgs) -> Outcome {
    log();
    if args.coordinator.is_none()
        && args.job_file.is_none()
        && let Some(place) = super::launched::place(&args.launch)?
    {
        if args.restarts > 0 {
            let why = "--restarts needs --coordinator or --job-file: a launch ends with its first process";
            return Err(complain(2, why));
        }
        return super::launched::serve(&place, &args);
    }
    let env = environment()?;
    let known = env.as_ref();
    let number = args.number.or(known.map(|env| env.rank)).map(ServerId);
    let mut config = match args.job_file(known)? {
        Some(file) => ServerProcessConfig::of_job_file(file, number),
        None => {
            let coordinator = known.and_then(|env| env.coordinator.clone());
            let coordinator = needed(args.coordinator.clone(), coordinator, "--coordinator")?;
            let token = token(args.token_file.clone(), known)?;
            ServerProcessConfig::new(coordinator, token, number)
        }
    };
    if args.restarts > 0 && number.is_none() {
        let why =
            "--restarts needs --number: a successor takes the place of the server of its number";
        return Err(complain(2, why));
    }
    config.local_rank = known.map_or(0, |env| env.local_rank);
    config.local_servers = known.map_or(1, |env| env.local_servers.max(1));
    config.local_clients = known.map_or(0, |env| env.workers);
    args.fill(&mut config, known.and_then(|env| env.appliers), known)?;
    // Before anything that starts a thread.
    let held = match args.restarts {
        0 => None,
        restarts => match holder::hold(&config, restarts)? {
            Held::Over(code) => return Err(code),
            Held::Server(server) => Some(server),
        },
    };
    config.restarts = held.as_ref().map_or(0, |held| held.restarts);
    config.memory = held.as_ref().map(|held| held.memory.clone());
    config.functions = args.modules.functions()?;
    let server =
        ServerProcess::start(&config, Deadline::after(args.join_timeout)).map_err(|error| {
            let exit = match error {
                ServerProcessError::Agent(_) | ServerProcessError::JobFile(_) => 4,
                ServerProcessError::Server(
                    ServerError::Resume(_) | ServerError::ResumePanicked { .. },
                ) => holder::MEMORY_REFUSED,
                _ => 3,
            };
            complain(exit, error)
        })?;
    // Until here a signal ends the process by itself: it may be waiting for its coordinator.
    let stop = Stop::new(known)?;
    if let Some(held) = held {
        held.handles_signals();
    }
    let handle = server.handle();
    let read = move || Ok::<_, Infallible>(Report::of_server(handle.member(), handle.report()));
    let _page = args
        .metrics
        .map(|address| page(address, read))
        .transpose()?;
    let ended = server
        .run(&stop.descriptors())
        .map_err(|error| complain(4, error))?;
    tracing::info!(?ended, "the server has ended");
    Ok(())
}

impl ServerArgs {
    /// The job file of the flag, or of the variable if nothing else names a coordinator.
    fn job_file(&self, env: Option<&JobEnv>) -> Result<Option<JobFile>, ExitCode> {
        let named = self.coordinator.is_some() || env.is_some();
        let vars = LaunchVars::from_env().map_err(|error| complain(3, error))?;
        let variable = vars.job_file.filter(|_| !named);
        let path = self.job_file.clone().or(variable);
        path.map(|path| JobFile::read(&path).map_err(|error| complain(3, error)))
            .transpose()
    }

    /// Takes the settings of a server from flags and environment, for any source of its number.
    pub(super) fn fill(
        &self,
        config: &mut ServerProcessConfig,
        appliers: Option<u16>,
        env: Option<&JobEnv>,
    ) -> Outcome {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let fit = || appliers_that_fit(cores, config.local_servers);
        config.appliers = self.appliers.or(appliers).unwrap_or_else(fit);
        config.capacity = self.capacity;
        (config.nic, config.mlock) = self.place.take().map_err(|error| complain(3, error))?;
        config.rdma_device = rdma_device(self.rdma_device.clone(), env)?;
        config.fabric = fabric(self.fabric, env)?;
        let retry = config.fabric.longest_retry();
        if self.lease <= retry {
            let why = format_args!(
                "--lease {:?} is not longer than {retry:?}, the longest retry of --rdma-timeout {} and \
                 --rdma-retries {}: a server could be given up while its packets are on their way; raise --lease",
                self.lease,
                config.fabric.timeout_exponent(),
                config.fabric.retry_count(),
            );
            return Err(complain(2, why));
        }
        config.lease = self.lease;
        config.count_pushes = self.count_pushes;
        config.pending_bytes = self.pending_bytes;
        config.save_bytes = self.save_bytes;
        config.busy_poll = self.busy.busy_poll;
        config.hugepages = self.hugepages.unwrap_or_default();
        config.listen = self.listen.or(config.listen);
        config.advertise.clone_from(&self.advertise);
        Ok(())
    }
}

/// Sources of a request to end: SIGTERM, SIGINT, or the launcher.
pub(super) struct Stop {
    signals: UnixStream,
    control: Option<Control>,
}

impl Stop {
    pub(super) fn new(env: Option<&JobEnv>) -> Result<Self, ExitCode> {
        let catch = || {
            let (signals, writer) = UnixStream::pair()?;
            signal_hook::low_level::pipe::register(SIGTERM, writer.try_clone()?)?;
            signal_hook::low_level::pipe::register(SIGINT, writer)?;
            Ok(signals)
        };
        let signals = catch().map_err(|error: std::io::Error| complain(3, error))?;
        let control =
            match env.and_then(|env| env.ready_fd) {
                Some(fd) => Some(Control::open(fd).map_err(|error| {
                    complain(3, format_args!("TIDEWATER_READY_FD={fd}: {error}"))
                })?),
                None => None,
            };
        Ok(Self { signals, control })
    }

    fn descriptors(&self) -> Vec<std::os::fd::BorrowedFd<'_>> {
        let control = self.control.as_ref().map(AsFd::as_fd);
        [self.signals.as_fd()].into_iter().chain(control).collect()
    }

    /// Reports the coordinator's address, to the launcher or on stdout.
    pub(super) fn ready(&self, address: &str) -> Outcome {
        let line = ReadyLine {
            address: address.to_owned(),
        };
        let reported = match &self.control {
            Some(control) => control.ready(&line),
            None => writeln!(std::io::stdout(), "{line}"),
        };
        reported.map_err(|error| complain(3, format_args!("cannot say that it is ready: {error}")))
    }

    /// Waits for a request to end, or until one of `failures` is readable.
    pub(super) fn wait(&self, failures: &[std::os::fd::BorrowedFd<'_>]) -> Outcome {
        use rustix::event::{PollFd, PollFlags};
        let wanted = PollFlags::IN | PollFlags::RDHUP;
        let descriptors = self.descriptors();
        let mut fds: Vec<_> = descriptors
            .iter()
            .chain(failures)
            .map(|fd| PollFd::new(fd, wanted))
            .collect();
        match rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, None)) {
            Ok(_) => Ok(()),
            Err(error) => Err(complain(3, error)),
        }
    }
}

pub(super) fn environment() -> Result<Option<JobEnv>, ExitCode> {
    let env = JobEnv::from_env().map_err(|error| complain(3, error))?;
    // A launcher has reported it once for all its children.
    if env.as_ref().is_none_or(|env| env.ready_fd.is_none()) {
        super::report_unknown_variables();
    }
    Ok(env)
}

fn token(file: Option<PathBuf>, env: Option<&JobEnv>) -> Result<JobToken, ExitCode> {
    let named = || std::env::var_os("TIDEWATER_TOKEN_FILE").map(PathBuf::from);
    let path = match (file, env) {
        (Some(path), _) => Some(path),
        (None, Some(env)) => return Ok(env.token.clone()),
        (None, None) => named(),
    };
    match path {
        Some(path) => read_file(&path).map_err(|error| complain(3, error)),
        None => Err(complain(
            2,
            "give --token-file, or set TIDEWATER_TOKEN_FILE",
        )),
    }
}

/// The token of a file or variable, or a new one for the job file.
pub(super) fn published_token(
    file: Option<PathBuf>,
    env: Option<&JobEnv>,
    publish: &PublishArgs,
) -> Result<JobToken, ExitCode> {
    let is_named = file.is_some() || env.is_some();
    if publish.job_file.is_some() && !is_named && std::env::var_os("TIDEWATER_TOKEN_FILE").is_none()
    {
        return random().map_err(|error| complain(3, error));
    }
    token(file, env)
}

/// The device of the flag, or of the variable, which counts outside of a job too.
pub(super) fn rdma_device(
    flag: Option<RdmaDevice>,
    env: Option<&JobEnv>,
) -> Result<Option<RdmaDevice>, ExitCode> {
    match (flag, env) {
        (Some(device), _) => Ok(Some(device)),
        (None, Some(env)) => Ok(env.rdma_device.clone()),
        (None, None) => RdmaDevice::from_env().map_err(|error| complain(3, error)),
    }
}

/// The settings of RDMA queue pairs, likewise from flags or variables.
pub(super) fn fabric(
    flags: FabricSettings,
    env: Option<&JobEnv>,
) -> Result<FabricSettings, ExitCode> {
    let variables = match env {
        Some(env) => env.fabric,
        None => fabric_from_env().map_err(|error| complain(3, error))?,
    };
    Ok(flags.or(variables))
}

fn needed<T>(flag: Option<T>, env: Option<T>, name: &str) -> Result<T, ExitCode> {
    flag.or(env).ok_or_else(|| {
        complain(
            2,
            format_args!("give {name}, or start this under `tidewater run`"),
        )
    })
}

pub(super) fn complain(exit: u8, message: impl Display) -> ExitCode {
    super::complain(message);
    ExitCode::from(exit)
}

pub(super) fn code(outcome: Outcome) -> ExitCode {
    outcome.err().unwrap_or(ExitCode::SUCCESS)
}

/// Logs warnings and worse on stderr, more by RUST_LOG.
pub(super) fn log() {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::builder()
        .with_default_directive(tracing_subscriber::filter::LevelFilter::WARN.into())
        .from_env_lossy();
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    // A subscriber that is already installed stays.
    let _ = lines.without_time().with_target(false).try_init();
}
