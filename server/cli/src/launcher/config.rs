//! Configuration of a job and of its processes.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Access;
use tidewater_launch::{FabricSettings, RdmaDevice, TransportChoice};
use tidewater_protocol::limits::{
    COORDINATOR_START_TIMEOUT, LOCAL_PROCESSES_MAX, SERVERS_MAX, STOP_GRACE,
};

use super::error::{LaunchError, Member};
use super::hostfile::{self, Host};
use super::process::Local;

/// Variables of the launcher's environment that programs on other hosts get: search paths of
/// programs and libraries, log level, threads.
pub const EXPORTED: [&str; 5] = [
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "RUST_LOG",
    "OMP_NUM_THREADS",
];

/// The default remote shell: it asks no questions, and notices within 15 s that the host is gone.
const SHELL: [&str; 9] = [
    "ssh",
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=10",
    "-o",
    "ServerAliveInterval=5",
    "-o",
    "ServerAliveCountMax=3",
];

/// A program and its arguments.
#[derive(Debug, Clone)]
pub struct ProcessCommand {
    /// A path, or a name that is looked up in `PATH`.
    pub program: OsString,
    /// Arguments, without the program's name.
    pub args: Vec<OsString>,
}

impl ProcessCommand {
    /// The command of `program` with `args`.
    pub fn new(
        program: impl Into<OsString>,
        args: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Self {
        Self {
            program: program.into(),
            args: args.into_iter().map(Into::into).collect(),
        }
    }

    /// Runs a line in `/bin/sh`, as debuggers and tests need.
    pub fn shell(line: impl Into<OsString>) -> Self {
        Self::new("/bin/sh", [OsString::from("-c"), line.into()])
    }
}

/// Which lines of output begin with a prefix such as `[worker 2] `.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Prefix {
    /// stderr always; stdout when it is a terminal and there is more than one worker. So a file or
    /// a pipe receives the workers' bytes unchanged.
    #[default]
    Auto,
    /// All lines have the prefix.
    Always,
    /// No line has the prefix.
    Never,
}

/// The job that [`super::run`] runs.
///
/// Workers' stdout goes to `stdout`; workers' stderr, and both outputs of servers and coordinator,
/// go to `stderr`.
#[derive(Debug)]
pub struct RunConfig {
    /// Number of servers, 1 to 1,024.
    pub servers: u32,
    /// Number of workers, at least 1.
    pub workers: u32,
    /// Transport for every process; `Auto` lets client and server agree.
    pub transport: TransportChoice,
    /// RDMA device for every process; `None` keeps the launcher's environment.
    pub rdma_device: Option<RdmaDevice>,
    /// Settings of queue pairs for every process; an unset one keeps the launcher's environment.
    pub fabric: FabricSettings,
    /// Applier threads of each server; `None` lets the server choose.
    pub appliers: Option<u16>,
    /// Which lines of output have a prefix.
    pub prefix: Prefix,
    /// Time limit after which the job is stopped, as by SIGTERM.
    pub timeout: Option<Duration>,
    /// Time from the request to end to SIGKILL, for workers, servers and coordinator each.
    pub grace: Duration,
    /// Time limit from the coordinator's start to its ready line.
    pub start_timeout: Duration,
    /// Whether worker 0 gets the launcher's stdin; the others read nothing.
    pub forward_stdin: bool,
    /// Hosts that take the processes; none: all run here. Processes on other hosts are started by
    /// `shell`, in this directory, by the same `executable`.
    pub hosts: Vec<Host>,
    /// The remote shell, called with a host's name and a command line.
    pub shell: ProcessCommand,
    /// Network interface with the address that the coordinator listens on, if there are hosts.
    /// `None`: all addresses, and the one that leads to each host is found.
    pub interface: Option<String>,
    /// More variables that programs on other hosts get from this process's environment, in addition
    /// to [`EXPORTED`] and those of Tidewater.
    pub exported: Vec<OsString>,
    /// Command of each worker.
    pub worker: ProcessCommand,
    /// Command of each server.
    pub server: ProcessCommand,
    /// Command of the coordinator.
    pub coordinator: ProcessCommand,
    /// Times that the coordinator is started again when a signal ends it. Above 0, its command has to take `--state
    /// DIR`, as `tidewater coordinator` does; DIR is a temporary directory.
    pub coordinator_restarts: u32,
    /// The `tidewater` executable: shim and guard are its hidden subcommands.
    pub executable: PathBuf,
    /// Destination of the workers' stdout; `None` is the launcher's own.
    pub stdout: Option<OwnedFd>,
    /// Destination of all other output; `None` is the launcher's own.
    pub stderr: Option<OwnedFd>,
}

impl RunConfig {
    /// One server and one worker that runs `worker`; coordinator, server, shim and guard are
    /// subcommands of `executable`, which is `tidewater`.
    pub fn new(executable: PathBuf, worker: ProcessCommand) -> Self {
        Self {
            servers: 1,
            workers: 1,
            transport: TransportChoice::Auto,
            rdma_device: None,
            fabric: FabricSettings::UNSET,
            appliers: None,
            prefix: Prefix::Auto,
            timeout: None,
            grace: STOP_GRACE,
            start_timeout: COORDINATOR_START_TIMEOUT,
            forward_stdin: false,
            hosts: Vec::new(),
            shell: ProcessCommand::new(SHELL[0], &SHELL[1..]),
            interface: None,
            exported: Vec::new(),
            worker,
            server: ProcessCommand::new(&executable, ["server"]),
            coordinator: ProcessCommand::new(&executable, ["coordinator"]),
            coordinator_restarts: 0,
            executable,
            stdout: None,
            stderr: None,
        }
    }

    /// Refuses a job that cannot work, before any process is started.
    pub(super) fn check(&self) -> Result<(), LaunchError> {
        let processes = self.servers.saturating_add(self.workers);
        if self.servers == 0 || self.servers > SERVERS_MAX || self.workers == 0 {
            return Err(LaunchError::Counts {
                servers: self.servers,
                workers: self.workers,
            });
        }
        if processes > LOCAL_PROCESSES_MAX {
            return Err(LaunchError::TooMany {
                processes,
                max: LOCAL_PROCESSES_MAX,
            });
        }
        let here = self.hosts.is_empty() || self.hosts.iter().any(Host::is_this);
        find_program(&self.coordinator.program)?;
        if here {
            find_program(&self.server.program)?;
            find_program(&self.worker.program)?;
        }
        if self.is_spread() {
            find_program(&self.shell.program)?;
        }
        Ok(())
    }

    /// Whether there are processes on other hosts.
    pub(super) fn is_spread(&self) -> bool {
        self.hosts.iter().any(|host| !host.is_this())
    }

    /// Distributes its processes over the hosts.
    pub(super) fn placement(&self) -> Result<Placement, LaunchError> {
        if self.hosts.is_empty() {
            return Ok(Placement::default());
        }
        let placed = hostfile::place(&self.hosts, self.servers, self.workers);
        let [servers, workers] = placed.ok_or_else(|| LaunchError::TooFewSlots {
            servers: self.servers,
            workers: self.workers,
            slots: self.hosts.iter().map(|host| u64::from(host.slots)).sum(),
        })?;
        Ok(Placement { servers, workers })
    }
}

/// Indices of hosts, for each server and each worker; none: all are here.
#[derive(Debug, Default)]
pub(super) struct Placement {
    servers: Vec<usize>,
    workers: Vec<usize>,
}

impl Placement {
    /// The host of a member, and its position there; `None` if all are here.
    pub(super) fn of(&self, member: Member) -> Option<(usize, Local)> {
        let (those, number) = match member {
            Member::Server(number) => (&self.servers, number as usize),
            Member::Worker(rank) => (&self.workers, rank as usize),
            Member::Coordinator | Member::Guard => return None,
        };
        let host = *those.get(number)?;
        let there = |those: &[usize]| those.iter().filter(|&&other| other == host).count() as u32;
        let local = Local {
            number: there(&those[..number]),
            servers: there(&self.servers),
        };
        Some((host, local))
    }
}

/// Searches as `execvp` will, so that a misspelt program gives one clear message and not W of them
/// from half a job.
fn find_program(program: &OsStr) -> Result<(), LaunchError> {
    let missing = || LaunchError::ProgramMissing {
        program: program.into(),
    };
    let runs = |path: &Path| path.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok();
    if program.as_bytes().contains(&b'/') {
        return match Path::new(program) {
            path if runs(path) => Ok(()),
            path if path.exists() => Err(LaunchError::NotExecutable {
                program: program.into(),
            }),
            _ => Err(missing()),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    match std::env::split_paths(&path).any(|folder| runs(&folder.join(program))) {
        true if !program.is_empty() => Ok(()),
        _ => Err(missing()),
    }
}
