//! The subcommand `tidewater run`.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::launcher::{self, Host, Prefix, ProcessCommand, RunConfig};
use clap::Args;
use tidewater_engine::store::Hugepages;
use tidewater_launch::{FabricSettings, RdmaDevice, TransportChoice};
use tidewater_runtime::clock::Deadline;
use tidewater_service::server::BusyPoll;

use super::parse_duration;

/// The arguments of `run`.
#[derive(Debug, Clone, Args)]
#[command(
    override_usage = "tidewater run [OPTIONS] -- PROGRAM [ARGUMENT]...",
    after_help = "\
The exit code is that of the first process that failed (128+n for signal n), 0 if all workers \
succeeded, 2 for a wrong command line, 3 or 4 if the job could not start or took too long.
SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to the workers; a second SIGINT kills.
Examples:
  tidewater run --servers 2 --workers 4 -- ./sim --steps 100
  tidewater run --hostfile hosts --servers 2 --workers 4 -- ./sim --steps 100"
)]
pub(crate) struct RunArgs {
    /// Number of servers to start.
    #[arg(long, short, default_value_t = 1, value_name = "S")]
    servers: u32,
    /// Copies of PROGRAM to start.
    #[arg(long, short, default_value_t = 1, value_name = "W")]
    workers: u32,
    /// How workers reach servers: auto, shm, tcp or verbs (RDMA).
    #[arg(long, default_value = "auto")]
    transport: TransportChoice,
    /// RDMA ports of all processes, as in mlx5_%r, mlx5_0:1 or mlx5_0:1:3 (device, port, GID); several
    /// separated by commas, the local rank chooses the first; %r in a device name is the local rank
    /// [default: TIDEWATER_RDMA_DEVICE, or the fastest and nearest ones that reach the peer].
    #[arg(long, value_name = "NAMES")]
    rdma_device: Option<RdmaDevice>,
    #[command(flatten)]
    fabric: FabricSettings,
    /// Begin each line of output with the process that wrote it [default: stderr, and stdout on a
    /// terminal].
    #[arg(long)]
    prefix: bool,
    /// Pass output on unchanged.
    #[arg(long, conflicts_with = "prefix")]
    no_prefix: bool,
    /// Applier threads of each server [default: its share of half the cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    appliers: Option<u16>,
    /// Bytes of address space of each server for parameters, and as many for their state
    /// [default: 64 GiB].
    #[arg(long, value_name = "BYTES", conflicts_with = "server_command")]
    capacity: Option<usize>,
    /// Pages of that memory: auto (hugepages if they hold the whole capacity), 2M, 1G or off
    /// [default: auto].
    #[arg(long, value_parser = super::parse_hugepages, conflicts_with = "server_command")]
    hugepages: Option<Hugepages>,
    /// Let workers count their pushes in a word of each applier (an atomic a push): programs can
    /// then measure how much has arrived since they pulled.
    #[arg(long, conflicts_with = "server_command")]
    count_pushes: bool,
    /// Bytes of pushes at the clock that an applier holds for workers that are ahead of their turn
    /// in the iteration; beyond that their pushes wait [default: 512 MiB]. A program that
    /// synchronises its workers by other means between push and tick needs it for all pushes of an
    /// iteration.
    #[arg(long, value_name = "BYTES", conflicts_with = "server_command")]
    pending_bytes: Option<usize>,
    /// Bytes of copied records that a save holds in a server until the file system takes them: those of
    /// rows and blocks that change while it is under way [default: 1 GiB]. Beyond that the save fails, and
    /// training goes on. A save of tables that change completely needs their size.
    #[arg(long, value_name = "BYTES", conflicts_with = "server_command")]
    save_bytes: Option<usize>,
    /// Start a successor when a signal ends a server, at most N times for each. A job with warm tables only goes
    /// on; another one begins again without tables, in its processes [default: 0, the job ends]. A job with
    /// --checkpoint begins again from the newest one in other processes, by --restarts.
    #[arg(long, value_name = "N", conflicts_with_all = ["server_command", "checkpoint"])]
    server_restarts: Option<u32>,
    /// Start the coordinator again when a signal ends it, at most N times: servers and workers go on meanwhile
    /// [default: 0, the job ends]. Its journal is in a temporary directory.
    #[arg(long, value_name = "N", conflicts_with = "coordinator_command")]
    coordinator_restarts: Option<u32>,
    /// Silence after which a server, or for servers the coordinator, counts as lost: nothing from its host
    /// arrives. Must be longer than the longest retry of --rdma-timeout and --rdma-retries [default: 15s].
    #[arg(long, value_name = "TIME", value_parser = super::parse_lease,
          conflicts_with_all = ["server_command", "coordinator_command"])]
    lease: Option<Duration>,
    #[command(flatten)]
    busy: super::BusyPollArgs,
    #[command(flatten)]
    modules: super::functions::ModuleArgs,
    #[command(flatten)]
    place: super::PlaceArgs,
    /// Write a job file, mode 0600, for `tidewater status --job-file FILE`. It is removed at the end.
    #[arg(long, value_name = "FILE", conflicts_with = "coordinator_command")]
    job_file: Option<PathBuf>,
    /// Let the coordinator serve metrics on this loopback address: /metrics (Prometheus text) and
    /// /status (JSON).
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        conflicts_with = "coordinator_command"
    )]
    metrics: Option<SocketAddr>,
    /// Stop the job after this time, as in 90, 90s, 15m, 2h, 500ms.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// Time between SIGTERM and SIGKILL.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    grace: Duration,
    /// Time limit for the coordinator to get ready.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    start_timeout: Duration,
    /// Hosts for servers and workers: a file with a line NAME [slots=N] for each. Servers are
    /// spread over them; workers fill the rest, in order, and read no input. Directory and programs
    /// must have the same paths on all hosts.
    #[arg(long, value_name = "FILE")]
    hostfile: Option<PathBuf>,
    /// Remote shell: program and arguments, without quotes; it is called with a host's name and a
    /// command [default: TIDEWATER_RSH, or ssh -o BatchMode=yes -o ConnectTimeout=10 -o
    /// ServerAliveInterval=5 -o ServerAliveCountMax=3].
    #[arg(long, value_name = "LINE", requires = "hostfile")]
    rsh: Option<String>,
    /// With --hostfile: network interface with the address that the coordinator listens on
    /// [default: TIDEWATER_INTERFACE, or all: the one that leads to each host is found].
    #[arg(long, value_name = "NAME", requires = "hostfile")]
    interface: Option<String>,
    /// With --hostfile: a variable that programs on other hosts get, in addition to TIDEWATER_*,
    /// PATH, LD_LIBRARY_PATH, PYTHONPATH, RUST_LOG and OMP_NUM_THREADS; may be repeated.
    #[arg(long, value_name = "NAME", requires = "hostfile")]
    export: Vec<OsString>,
    /// Run servers as this shell command, say under a debugger.
    #[arg(
        long,
        value_name = "LINE",
        hide_short_help = true,
        conflicts_with_all = ["busy_poll", "function", "load_functions", "function_fuel", "function_memory", "nic", "mlock"]
    )]
    server_command: Option<OsString>,
    #[command(flatten)]
    membership: super::membership::MembershipArgs,
    #[command(flatten)]
    checkpoint: super::checkpoint::CheckpointArgs,
    /// Start all processes again, up to N times, when one of them dies or fails. With --checkpoint they
    /// continue from the newest one.
    #[arg(long, value_name = "N", default_value_t = 0)]
    restarts: u32,
    /// Run the coordinator as this shell command.
    #[arg(long, value_name = "LINE", hide_short_help = true, conflicts_with_all = ["membership", "membership_log", "checkpoint"])]
    coordinator_command: Option<OsString>,
    /// Program of each worker, and its arguments.
    #[arg(
        required = true,
        num_args = 1..,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    command: Vec<OsString>,
}

/// Runs the job, again if it is to; the exit code of the last try is this program's. With `trains`, the workers
/// are those of the trainer, with these arguments before the given ones.
pub(crate) fn run(args: RunArgs, trains: Option<&[&str]>) -> ExitCode {
    if let (Some([command, ..]), Some(dir)) = (trains, &args.checkpoint.checkpoint) {
        let dir = dir.display();
        super::complain(format_args!(
            "{command} with --checkpoint {dir}: it trains nothing, and a later run would continue from its \
             checkpoint instead of the model that it loads; leave --checkpoint out"
        ));
        return ExitCode::from(2);
    }
    super::report_unknown_variables();
    let limit = args.timeout.map(Deadline::after);
    let mut left = args.restarts;
    // The first try names the time as it is given, not what is left of it by now.
    let mut timeout = args.timeout;
    loop {
        let mut again = args.clone();
        again.timeout = timeout;
        let (code, may_restart) = run_once(again, trains);
        if !may_restart || left == 0 || limit.is_some_and(|limit| limit.passed()) {
            return code;
        }
        super::complain(format_args!(
            "all processes start again{}; {} restarts are left after this",
            match &args.checkpoint.checkpoint {
                Some(dir) => format!(", from the newest checkpoint of {}", dir.display()),
                None => ", from the beginning: there is no --checkpoint".into(),
            },
            left - 1
        ));
        left -= 1;
        timeout = limit.map(|limit| limit.left());
    }
}

/// Runs the job once. Returns the exit code, and whether another try may do better.
fn run_once(mut args: RunArgs, trains: Option<&[&str]>) -> (ExitCode, bool) {
    let executable = match super::internal::executable() {
        Ok(path) => path,
        Err(code) => return (code, false),
    };
    let spread = match Spread::of(&mut args) {
        Ok(spread) => spread,
        Err(code) => return (code, false),
    };
    if let Some(first) = trains {
        let first = first.iter().map(OsString::from);
        let arguments = first.chain(args.command).collect();
        args.command = super::job::trainer(&executable, arguments);
    }
    let mut command = args.command.into_iter();
    let program = command.next().unwrap_or_default();
    let mut config = RunConfig::new(executable, ProcessCommand::new(program, command));
    config.servers = args.servers;
    config.workers = args.workers;
    config.transport = args.transport;
    config.rdma_device = args.rdma_device;
    config.fabric = args.fabric;
    config.appliers = args.appliers;
    config.timeout = args.timeout;
    config.grace = args.grace;
    config.start_timeout = args.start_timeout;
    config.prefix = match (args.prefix, args.no_prefix) {
        (true, _) => Prefix::Always,
        (_, true) => Prefix::Never,
        _ => Prefix::Auto,
    };
    // A worker is in a process group of its own, in the background: reading the terminal would stop
    // it.
    config.forward_stdin = !std::io::stdin().is_terminal();
    let capacity = args.capacity.map(|bytes| format!("--capacity={bytes}"));
    let hugepages = args.hugepages.map(|wish| format!("--hugepages={wish}"));
    let counted = args.count_pushes.then(|| "--count-pushes".to_owned());
    let busy = (args.busy.busy_poll != BusyPoll::Off)
        .then(|| format!("--busy-poll={}", args.busy.busy_poll));
    let options = capacity.into_iter().chain(hugepages).chain(counted);
    let pending = args
        .pending_bytes
        .map(|bytes| format!("--pending-bytes={bytes}"));
    let copies = args.save_bytes.map(|bytes| format!("--save-bytes={bytes}"));
    let options = options.chain(busy).chain(pending).chain(copies);
    let options = options.chain(args.modules.passed_on());
    let options = options.chain(args.place.passed_on());
    config.server.args.extend(options.map(OsString::from));
    survive(&mut config, args.server_restarts, args.lease);
    config.coordinator_restarts = args.coordinator_restarts.unwrap_or(0);
    publish(&mut config, args.job_file, args.metrics);
    if let Some(line) = args.server_command {
        config.server = ProcessCommand::shell(line);
    }
    let members = args.membership.passed_on();
    config.coordinator.args.extend(members.map(OsString::from));
    let checkpoints = args.checkpoint.passed_on();
    config
        .coordinator
        .args
        .extend(checkpoints.map(OsString::from));
    if let Some(line) = args.coordinator_command {
        config.coordinator = ProcessCommand::shell(line);
    }
    if let Some(spread) = spread {
        spread.fill(&mut config);
    }
    launch(config)
}

/// Runs the processes. Returns the exit code, and whether another try may do better.
fn launch(config: RunConfig) -> (ExitCode, bool) {
    match launcher::run(config) {
        Ok(outcome) => {
            if outcome.output_lost > 0 {
                let lost = outcome.output_lost;
                super::complain(format_args!(
                    "{lost} bytes of output were not taken and are lost"
                ));
            }
            (ExitCode::from(outcome.code()), outcome.may_restart())
        }
        Err(error) => {
            super::complain(&error);
            (ExitCode::from(error.code()), false)
        }
    }
}

/// Sets the successors of each server, and the silence after which a server counts as lost.
fn survive(config: &mut RunConfig, restarts: Option<u32>, lease: Option<Duration>) {
    let lease = lease.map(|lease| format!("--lease={}ms", lease.as_millis()));
    let restarts = restarts.map(|times| format!("--restarts={times}"));
    let for_servers = restarts.into_iter().chain(lease.clone());
    config.server.args.extend(for_servers.map(OsString::from));
    config.coordinator.args.extend(lease.map(OsString::from));
}

/// Makes the coordinator write a job file and serve metrics.
fn publish(config: &mut RunConfig, file: Option<PathBuf>, metrics: Option<SocketAddr>) {
    let own = &mut config.coordinator.args;
    let file = file.map(|path| ["--job-file".into(), path.into()]);
    own.extend(file.into_iter().flatten());
    own.extend(metrics.map(|address| format!("--metrics={address}").into()));
}

/// Further settings of a job on several hosts.
struct Spread {
    hosts: Vec<Host>,
    shell: Option<ProcessCommand>,
    interface: Option<String>,
    exported: Vec<OsString>,
}

impl Spread {
    /// Settings from the flags, and from the environment where there is no flag.
    fn of(args: &mut RunArgs) -> Result<Option<Self>, ExitCode> {
        let Some(path) = args.hostfile.take() else {
            return Ok(None);
        };
        let hosts = launcher::read_hostfile(&path).map_err(|error| {
            super::complain(error);
            ExitCode::from(2)
        })?;
        let variable = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        let line = args.rsh.take().or_else(|| variable("TIDEWATER_RSH"));
        let words = line.map(|line| line.split_whitespace().map(OsString::from).collect());
        let shell = words.map(|words: Vec<OsString>| {
            let mut words = words.into_iter();
            ProcessCommand::new(words.next().unwrap_or_default(), words)
        });
        Ok(Some(Self {
            hosts,
            shell,
            interface: args
                .interface
                .take()
                .or_else(|| variable("TIDEWATER_INTERFACE")),
            exported: std::mem::take(&mut args.export),
        }))
    }

    fn fill(self, config: &mut RunConfig) {
        config.hosts = self.hosts;
        config.shell = self.shell.unwrap_or_else(|| config.shell.clone());
        config.interface = self.interface;
        config.exported = self.exported;
        config.forward_stdin = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let good = [
            ("90", 90_000),
            ("1s", 1_000),
            ("5ms", 5),
            ("2m", 120_000),
            ("1h", 3_600_000),
        ];
        for (text, millis) in good {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)));
        }
        for text in ["", "s", "-1", "1.5s", "99999999999s", "4294967295d"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert!(
            parse_duration("4294967295h").is_ok(),
            "the largest does not overflow"
        );
    }
}
