//! Settings of a launched process from its environment.

use std::ffi::OsString;
use std::path::PathBuf;

use tidewater_protocol::limits::{APPLIERS_MAX, LAUNCHED_MAX, SERVERS_MAX, WORKERS_MAX};

use super::{EnvError, FabricSettings, RdmaDevice, TransportChoice, Vars};

/// Settings from the `TIDEWATER_*` variables of a process that a foreign launcher started. Such a process has
/// no coordinator in its environment, so that [`JobEnv`](super::JobEnv) does not apply.
///
/// # Example
/// ```
/// use tidewater_launch::LaunchVars;
///
/// let vars = [("TIDEWATER_SERVERS", "2"), ("TIDEWATER_INTERFACE", "ib0")];
/// let vars = vars.map(|(name, value)| (name.into(), value.into()));
/// let settings = LaunchVars::from_vars(vars)?;
/// assert_eq!(settings.servers, Some(2));
/// assert_eq!(settings.interface.as_deref(), Some("ib0"));
/// # Ok::<(), tidewater_launch::EnvError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaunchVars {
    /// Applier threads of a server, from `TIDEWATER_APPLIERS`.
    pub appliers: Option<u16>,
    /// Processes of the program that become servers, from `TIDEWATER_SERVERS`.
    pub servers: Option<u32>,
    /// Whether each process is a server too, from `TIDEWATER_SERVERS_IN_RANKS`.
    pub servers_in_ranks: bool,
    /// Network interface to listen on, from `TIDEWATER_INTERFACE`.
    pub interface: Option<String>,
    /// Transport of the lanes, from `TIDEWATER_TRANSPORT`.
    pub transport: Option<TransportChoice>,
    /// RDMA device of the process, from `TIDEWATER_RDMA_DEVICE`.
    pub rdma_device: Option<RdmaDevice>,
    /// Settings of its queue pairs, from `TIDEWATER_RDMA_TIMEOUT` and others.
    pub fabric: FabricSettings,
    /// Job file, from `TIDEWATER_JOB`.
    pub job_file: Option<PathBuf>,
    /// Rank among the workers of the job file's job, from `TIDEWATER_RANK`.
    pub rank: Option<u32>,
    /// Workers of the job file's job, from `TIDEWATER_WORKERS`.
    pub workers: Option<u32>,
    /// Network or RDMA device to place a server near, from `TIDEWATER_NIC`.
    pub nic: Option<String>,
    /// Whether a server locks its parameters in memory, from `TIDEWATER_MLOCK`.
    pub mlock: bool,
}

impl LaunchVars {
    /// Reads the settings from the environment variables of this process.
    ///
    /// # Errors
    /// A variable has an impossible value: [`EnvError::Invalid`] names it.
    pub fn from_env() -> Result<Self, EnvError> {
        Self::from_vars(std::env::vars_os())
    }

    /// Reads the settings from pairs of names and values; an empty variable counts as unset.
    ///
    /// # Errors
    /// As [`LaunchVars::from_env`].
    pub fn from_vars(
        vars: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, EnvError> {
        let vars = Vars::new(vars);
        let appliers = vars.number("TIDEWATER_APPLIERS", 1, APPLIERS_MAX.into())?;
        Ok(Self {
            appliers: appliers.and_then(|count| u16::try_from(count).ok()),
            servers: vars.number("TIDEWATER_SERVERS", 1, SERVERS_MAX)?,
            servers_in_ranks: vars.number("TIDEWATER_SERVERS_IN_RANKS", 0, 1)? == Some(1),
            interface: vars.text("TIDEWATER_INTERFACE")?.map(str::to_owned),
            transport: vars.parsed("TIDEWATER_TRANSPORT")?,
            rdma_device: vars.parsed("TIDEWATER_RDMA_DEVICE")?,
            fabric: vars.fabric()?,
            job_file: vars.find("TIDEWATER_JOB").map(|(_, path)| path.into()),
            rank: vars.number("TIDEWATER_RANK", 0, LAUNCHED_MAX - 1)?,
            workers: vars.number("TIDEWATER_WORKERS", 1, WORKERS_MAX)?,
            nic: vars.text("TIDEWATER_NIC")?.map(str::to_owned),
            mlock: vars.number("TIDEWATER_MLOCK", 0, 1)? == Some(1),
        })
    }
}
