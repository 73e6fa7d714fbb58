//! The place of this process in its job, read from the environment.
//!
//! `tidewater run` sets the variables of [`VARIABLES`] for its children; the same variables start a process
//! by hand. The job token never stands in the environment, where every process of the user could be made to
//! print it. A variable names the file or descriptor that holds it.
//!
//! Other launchers' variables: [`detect()`]. Rendezvous of the processes that they started: [`meeting`].

pub mod bootstrap;
pub mod detect;
#[cfg(test)]
mod detect_tests;
mod device;
pub mod directory;
mod environment;
pub mod fabric;
pub mod hostlist;
#[allow(unsafe_code, reason = "a launcher names a descriptor by its number")]
mod inherited;
pub mod job_file;
pub mod meeting;
mod place;
mod pmi1;
pub mod rendezvous;
mod sources;
#[cfg(test)]
mod tests;
pub mod token;
mod vars;

use std::ffi::{OsStr, OsString};
use std::str::FromStr;

pub use bootstrap::{BootstrapError, BootstrapRecord};
pub use detect::{Detection, Finding, Verdict, detect};
pub use device::RdmaDevice;
pub use environment::{DetectError, Explicit, LaunchEnv};
pub use fabric::{FabricError, fabric_from_env, fabric_from_text, set_fabric};
pub use job_file::{JobFile, JobFileError};
pub use place::{Decision, Place, Rendezvous, Source};
pub use pmi1::PmiError;
pub use tidewater_topology::FabricSettings;
pub use token::TokenError;
pub use vars::LaunchVars;

use tidewater_protocol::limits::{APPLIERS_MAX, SERVERS_MAX, WORKERS_MAX};
use tidewater_protocol::wire::handshake::JobToken;

/// An environment variable that Tidewater reads: its name, meaning and format.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Variable {
    /// Name of the variable.
    pub name: &'static str,
    /// Its meaning and format.
    pub meaning: &'static str,
}

/// Every `TIDEWATER_*` variable that some program reads. [`unknown_variables`] reports all others.
pub const VARIABLES: &[Variable] = &[
    variable("TIDEWATER_APPLIERS", "applier threads of a server, 1..=64"),
    variable(
        "TIDEWATER_COORDINATOR",
        "address of the coordinator, HOST:PORT",
    ),
    variable(
        "TIDEWATER_INTERFACE",
        "network interface that a launched process listens on, as in ib0",
    ),
    variable(
        "TIDEWATER_JOB",
        "job file, mode 0600, of the service or job that programs join",
    ),
    variable(
        "TIDEWATER_LAUNCH",
        "marks the processes of one launch; not a secret",
    ),
    variable(
        "TIDEWATER_LOCAL_RANK",
        "number of this process among those of its role on this host",
    ),
    variable(
        "TIDEWATER_LOCAL_SERVERS",
        "servers of the job on this host; else all of them",
    ),
    variable(
        "TIDEWATER_MEMORY_BUDGET",
        "most bytes of the rings and mailboxes of one client, at both ends",
    ),
    variable(
        "TIDEWATER_MLOCK",
        "1: servers lock parameters and their state in memory",
    ),
    variable(
        "TIDEWATER_MUTANT",
        "defect switched on for a test, builds with feature `mutants`",
    ),
    variable(
        "TIDEWATER_MUTANTS_REACHED",
        "file for the defects that a test looks at, builds with feature `mutants`",
    ),
    variable(
        "TIDEWATER_NIC",
        "network or RDMA device to place a server's threads and memory near; else that of its address",
    ),
    variable(
        "TIDEWATER_RANK",
        "number of this process among those of its role; with TIDEWATER_SIZE, among all",
    ),
    variable(
        "TIDEWATER_RDMA_DEVICE",
        "RDMA ports of this process, as in mlx5_0:1 or mlx5_%r (the local rank); else the best that reach the peer",
    ),
    variable(
        "TIDEWATER_RDMA_ECE",
        "on or off: whether RDMA ends negotiate a NIC's own accelerations (ECE)",
    ),
    variable(
        "TIDEWATER_RDMA_FLOW_LABEL",
        "IPv6 flow label of RDMA packets, 0 to 0xfffff; 0 is derived from the queue pairs",
    ),
    variable(
        "TIDEWATER_RDMA_GID_INDEX",
        "index of the RDMA port's GID, 0 to 255; else that of the connection's address",
    ),
    variable(
        "TIDEWATER_RDMA_PKEY",
        "P_Key (partition) of RDMA by its value, as in 0x8001; else the port's first full member",
    ),
    variable(
        "TIDEWATER_RDMA_RETRIES",
        "times that an RDMA packet is sent again before its lane breaks, 1 to 7 (6)",
    ),
    variable(
        "TIDEWATER_RDMA_SERVICE_LEVEL",
        "InfiniBand service level, 0 to 15 (0)",
    ),
    variable(
        "TIDEWATER_RDMA_STATIC_RATE",
        "most Gb/s that an RDMA queue pair sends, as in 100; or max",
    ),
    variable(
        "TIDEWATER_RDMA_TIMEOUT",
        "RDMA packets are sent again after 4.096 us x 2^this, 8 to 22 (14: 67 ms); less where some get lost",
    ),
    variable(
        "TIDEWATER_RDMA_TRAFFIC_CLASS",
        "traffic class of RDMA packets, 0 to 255 (DSCP x 4); else the port's, or 106 on RoCE",
    ),
    variable(
        "TIDEWATER_READY_FD",
        "descriptor that takes the ready line; its end of file says stop",
    ),
    variable(
        "TIDEWATER_RENDEZVOUS",
        "where launched processes meet: a directory, HOST:PORT of rank 0, or pmi",
    ),
    variable(
        "TIDEWATER_RING_BYTES",
        "bytes of each ring, a power of two from 16384 to 16777216; a frame takes a quarter",
    ),
    variable("TIDEWATER_ROLE", "worker, server or coordinator"),
    variable(
        "TIDEWATER_RSH",
        "how `tidewater run --hostfile` starts a command on another host: program and arguments",
    ),
    variable("TIDEWATER_SEED", "seed that repeats a random test"),
    variable("TIDEWATER_SERVERS", "servers of the job"),
    variable(
        "TIDEWATER_SERVERS_IN_RANKS",
        "1: each launched process of a program is a server too, on threads of its own",
    ),
    variable(
        "TIDEWATER_SIZE",
        "processes of the launch, servers and workers, where no launcher says it",
    ),
    variable(
        "TIDEWATER_TOKEN_FD",
        "descriptor of an open file that holds the job token",
    ),
    variable(
        "TIDEWATER_TOKEN_FILE",
        "file, mode 0600, that holds the job token as 64 hex digits",
    ),
    variable("TIDEWATER_TRANSPORT", "auto, shm, tcp or verbs"),
    variable("TIDEWATER_WORKERS", "workers of the job"),
];

const fn variable(name: &'static str, meaning: &'static str) -> Variable {
    Variable { name, meaning }
}

/// Role of a process in its job, as `TIDEWATER_ROLE` gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Role {
    /// Keeps membership, catalogue and clocks' membership.
    Coordinator,
    /// Owns partitions of tables.
    Server,
    /// Runs the program that links the client.
    Worker,
}

impl Role {
    /// Returns the role's word in `TIDEWATER_ROLE` and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Coordinator => "coordinator",
            Self::Server => "server",
            Self::Worker => "worker",
        }
    }
}

impl FromStr for Role {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let roles = [Self::Coordinator, Self::Server, Self::Worker];
        roles.into_iter().find(|role| role.name() == text).ok_or(())
    }
}

/// Transport of lanes that the user asks for; `Auto` by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum TransportChoice {
    /// The fastest one that both ends can use.
    #[default]
    Auto,
    /// Shared memory; an error between hosts.
    Shm,
    /// TCP, also on one host.
    Tcp,
    /// RDMA verbs, also on one host; an error where either end lacks them.
    Verbs,
}

impl TransportChoice {
    /// Returns the choice's word in `TIDEWATER_TRANSPORT` and on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Verbs => "verbs",
        }
    }
}

impl FromStr for TransportChoice {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let choices = [Self::Auto, Self::Shm, Self::Tcp, Self::Verbs];
        choices
            .into_iter()
            .find(|choice| choice.name() == text)
            .ok_or("not a transport; use auto, shm, tcp or verbs")
    }
}

/// Place of this process in its job, with all settings that its `TIDEWATER_*` variables give: role, rank,
/// sizes, coordinator, token, devices.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct JobEnv {
    /// Role of the process.
    pub role: Role,
    /// Its number among those of its role.
    pub rank: u32,
    /// Its number among those of its role on this host.
    pub local_rank: u32,
    /// Number of workers of the job.
    pub workers: u32,
    /// Number of servers of the job.
    pub servers: u32,
    /// Servers of the job on this host.
    pub local_servers: u32,
    /// `HOST:PORT` of the coordinator; only the coordinator itself may have none.
    pub coordinator: Option<String>,
    /// The secret that members of the job share.
    pub token: JobToken,
    /// The transport that the user chose.
    pub transport: TransportChoice,
    /// The RDMA device that the user chose.
    pub rdma_device: Option<RdmaDevice>,
    /// Settings of its queue pairs.
    pub fabric: FabricSettings,
    /// Applier threads of a server; `None` lets the server choose.
    pub appliers: Option<u16>,
    /// The descriptor that takes the ready line, when a launcher waits for one.
    pub ready_fd: Option<u32>,
}

/// Reason why the `TIDEWATER_*` variables of this process are not usable. The texts name the variable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvError {
    /// A required variable is not set.
    #[error(
        "{name} is not set; it says: {meaning}. \
         Start the program under `tidewater run`, or set the variable"
    )]
    Missing {
        /// Name of the variable.
        name: &'static str,
        /// Meaning of the variable.
        meaning: &'static str,
    },
    /// A variable has an impossible value.
    #[error("{name}={value:?} is not valid: {expected}. Correct the variable or unset it")]
    Invalid {
        /// Name of the variable.
        name: &'static str,
        /// Value of the variable, shortened.
        value: String,
        /// Description of a valid value.
        expected: String,
    },
    /// The job token could not be read.
    #[error(transparent)]
    Token(#[from] TokenError),
}

impl JobEnv {
    /// Reads the place of this process from its environment variables. `None` means that the process belongs to
    /// no job: neither `TIDEWATER_ROLE` nor `TIDEWATER_COORDINATOR` is set.
    ///
    /// # Errors
    /// A variable is missing or wrong, or the token cannot be read: [`EnvError`] names it.
    ///
    /// # Cost
    /// Reads the token's file: four system calls.
    pub fn from_env() -> Result<Option<Self>, EnvError> {
        Self::from_vars(std::env::vars_os())
    }

    /// Reads like [`JobEnv::from_env`], from pairs of names and values in place of the environment. The token
    /// is still read from its file or descriptor.
    ///
    /// # Errors
    /// As [`JobEnv::from_env`].
    pub fn from_vars(
        vars: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Option<Self>, EnvError> {
        let vars = Vars::new(vars);
        if vars.find("TIDEWATER_ROLE").is_none() && vars.find("TIDEWATER_COORDINATOR").is_none() {
            return Ok(None);
        }
        let role = match vars.text("TIDEWATER_ROLE")? {
            None => Role::Worker,
            Some(text) => text.parse().map_err(|()| {
                invalid("TIDEWATER_ROLE", text, "one of worker, server, coordinator")
            })?,
        };
        let workers = vars.required_number("TIDEWATER_WORKERS", 1, WORKERS_MAX)?;
        let servers = vars.required_number("TIDEWATER_SERVERS", 1, SERVERS_MAX)?;
        let peers = match role {
            Role::Coordinator => 1,
            Role::Server => servers,
            Role::Worker => workers,
        };
        let rank = match role {
            Role::Coordinator => vars.number("TIDEWATER_RANK", 0, 0)?.unwrap_or(0),
            _ => vars.required_number("TIDEWATER_RANK", 0, peers - 1)?,
        };
        Ok(Some(Self {
            role,
            rank,
            local_rank: vars
                .number("TIDEWATER_LOCAL_RANK", 0, peers - 1)?
                .unwrap_or(0),
            workers,
            servers,
            local_servers: vars
                .number("TIDEWATER_LOCAL_SERVERS", 0, servers)?
                .unwrap_or(servers),
            coordinator: vars.coordinator(role)?,
            token: vars.token()?,
            transport: vars.parsed("TIDEWATER_TRANSPORT")?.unwrap_or_default(),
            rdma_device: vars.parsed("TIDEWATER_RDMA_DEVICE")?,
            fabric: vars.fabric()?,
            appliers: vars
                .number("TIDEWATER_APPLIERS", 1, APPLIERS_MAX.into())?
                .and_then(|count| u16::try_from(count).ok()),
            ready_fd: vars.number("TIDEWATER_READY_FD", 0, i32::MAX.unsigned_abs())?,
        }))
    }
}

/// Returns the names of `TIDEWATER_*` variables in `names` that no code reads, sorted. They are most likely
/// misspelt, so programs warn of each. `TIDEWATER_TEST_*` are left out: the project's tests set them.
pub fn unknown_variables(names: impl IntoIterator<Item = OsString>) -> Vec<String> {
    let mut unknown: Vec<String> = names
        .into_iter()
        .filter(|name| name.as_encoded_bytes().starts_with(b"TIDEWATER_"))
        .map(|name| name.to_string_lossy().into_owned())
        .filter(|name| !name.starts_with("TIDEWATER_TEST_"))
        .filter(|name| !VARIABLES.iter().any(|variable| variable.name == name))
        .collect();
    unknown.sort();
    unknown
}

/// Values of the known `TIDEWATER_*` variables that are set. An empty variable counts as unset.
struct Vars(Vec<(&'static str, OsString)>);

impl Vars {
    fn new(vars: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let known = |name: &OsStr| VARIABLES.iter().find(|variable| name == variable.name);
        Self(
            vars.into_iter()
                .filter(|(_, value)| !value.is_empty())
                .filter_map(|(name, value)| Some((known(&name)?.name, value)))
                .collect(),
        )
    }

    fn find(&self, name: &str) -> Option<(&'static str, &OsStr)> {
        self.0
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(known, value)| (*known, value.as_os_str()))
    }

    fn text(&self, name: &str) -> Result<Option<&str>, EnvError> {
        let Some((name, value)) = self.find(name) else {
            return Ok(None);
        };
        match value.to_str() {
            Some(text) => Ok(Some(text)),
            None => Err(invalid(name, &value.to_string_lossy(), "UTF-8 text")),
        }
    }

    fn number(&self, name: &'static str, low: u32, high: u32) -> Result<Option<u32>, EnvError> {
        let Some(text) = self.text(name)? else {
            return Ok(None);
        };
        match text.parse() {
            Ok(number) if (low..=high).contains(&number) => Ok(Some(number)),
            _ => Err(invalid(
                name,
                text,
                &format!("a number from {low} to {high}"),
            )),
        }
    }

    fn required_number(&self, name: &'static str, low: u32, high: u32) -> Result<u32, EnvError> {
        self.number(name, low, high)?.ok_or_else(|| missing(name))
    }

    fn coordinator(&self, role: Role) -> Result<Option<String>, EnvError> {
        let name = "TIDEWATER_COORDINATOR";
        match self.text(name)? {
            Some(address) if is_address(address) => Ok(Some(address.to_owned())),
            Some(address) => Err(invalid(name, address, "an address HOST:PORT")),
            None if role == Role::Coordinator => Ok(None),
            None => Err(missing(name)),
        }
    }

    fn parsed<T: FromStr<Err = &'static str>>(
        &self,
        name: &'static str,
    ) -> Result<Option<T>, EnvError> {
        let Some(text) = self.text(name)? else {
            return Ok(None);
        };
        let parsed = text.parse().map_err(|reason| invalid(name, text, reason));
        parsed.map(Some)
    }

    fn token(&self) -> Result<JobToken, EnvError> {
        if let Some(fd) = self.number("TIDEWATER_TOKEN_FD", 0, i32::MAX.unsigned_abs())? {
            return Ok(token::read_descriptor(fd)?);
        }
        match self.find("TIDEWATER_TOKEN_FILE") {
            Some((_, path)) => Ok(token::read_file(path.as_ref())?),
            None => Err(missing("TIDEWATER_TOKEN_FILE")),
        }
    }
}

/// Whether `text` has the form `HOST:PORT`: a host of 1 to 253 printable ASCII bytes, and a port other than 0.
/// The host is not resolved.
pub fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let host_is_sane =
        (1..=253).contains(&host.len()) && host.bytes().all(|b| b.is_ascii_graphic());
    host_is_sane && port.parse::<u16>().is_ok_and(|port| port != 0)
}

fn missing(name: &'static str) -> EnvError {
    let meaning = VARIABLES
        .iter()
        .find(|known| known.name == name)
        .map_or("", |known| known.meaning);
    EnvError::Missing { name, meaning }
}

fn invalid(name: &'static str, value: &str, expected: &str) -> EnvError {
    let value = value.chars().take(80).collect();
    EnvError::Invalid {
        name,
        value,
        expected: expected.to_owned(),
    }
}
