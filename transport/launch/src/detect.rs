//! Detection of the launcher that started this process, and of its data: a function of the environment
//! alone.
//!
//! Variables leak: a launched process may start another launcher, and all of a node's processes inherit the
//! variables of the batch system. So **the launcher closest to the process wins**, and the order of
//! [`detect`] is that of evidence for closeness:
//!
//! | order | source | why here |
//! |---|---|---|
//! | 1 | flags, then `TIDEWATER_*` | the user set them explicitly |
//! | 2 | PMI with a descriptor that is open | descriptors are not inherited through another launcher, variables are: Open MPI's daemon closes those of the launcher it was started by |
//! | 3 | Open MPI | `mpirun` inside a batch job inherits the batch system's variables, not the other way round |
//! | 4 | Flux | as 3, when it gives no PMI descriptor |
//! | 5 | Slurm | only of a step: in the script of `sbatch`, and so under `mpirun` in it, `SLURM_PROCID` is 0 in every process |
//! | 6 | torchrun, DMLC | names that any script may have exported |
//!
//! Only documented variables decide anything.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;

use super::sources;
use tidewater_protocol::limits::{LAUNCH_TEXT_BYTES_MAX, LAUNCHED_MAX};

/// Origin of a process's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The flags `--rank`, `--size` and `--rendezvous`.
    Flags,
    /// `TIDEWATER_*` variables: `tidewater run`, or by hand.
    Tidewater,
    /// Hydra, which is MPICH's and Intel MPI's mpiexec.
    Hydra,
    /// Open MPI's launcher, mpirun.
    OpenMpi,
    /// PRRTE's launcher, which is prterun.
    Prrte,
    /// Flux's launcher, `flux run`.
    Flux,
    /// Slurm: a step of `srun`.
    Slurm,
    /// `torchrun`, or scripts that set its variables.
    Torchrun,
    /// Scripts for ps-lite (DMLC).
    Dmlc,
    /// The program itself, which has a broadcast of its own.
    BootstrapRecord,
}

impl Source {
    /// Name of the source, for messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flags => "command line",
            Self::Tidewater => "TIDEWATER_*",
            Self::Hydra => "MPICH hydra",
            Self::OpenMpi => "Open MPI",
            Self::Prrte => "PRRTE",
            Self::Flux => "Flux",
            Self::Slurm => "Slurm",
            Self::Torchrun => "torchrun",
            Self::Dmlc => "DMLC",
            Self::BootstrapRecord => "a card",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Rendezvous of a job: the way by which all processes get the bootstrap record of rank 0.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rendezvous {
    /// Through the launcher, by PMI-1 over this descriptor.
    Pmi {
        /// Number of the descriptor, from `PMI_FD`.
        fd: u32,
    },
    /// Through a directory that all of them see.
    Directory(PathBuf),
    /// Rank 0 listens at this `HOST:PORT`; the secret is in a file that all of them have.
    Address(String),
}

impl fmt::Display for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pmi { fd } => write!(f, "PMI-1 over descriptor {fd}"),
            Self::Directory(path) => write!(f, "directory {}", path.display()),
            Self::Address(address) => write!(f, "rank 0 at {address}"),
        }
    }
}

/// The place of a process among all of its launch, servers and workers alike.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// Origin of these values.
    pub source: Source,
    /// Its number, below `size`.
    pub rank: u32,
    /// Processes of the launch, at least 1.
    pub size: u32,
    /// Its number among those of this host, if that is known.
    pub local_rank: Option<u32>,
    /// Processes of this host, if that is known.
    pub local_size: Option<u32>,
    /// The launch's own name, as a file name; `None` if the launcher has none.
    pub job: Option<String>,
    /// Hosts, in the launcher's order; empty if it does not list them.
    pub hosts: Vec<String>,
    /// Way of the rendezvous; `None` only in a job of one.
    pub rendezvous: Option<Rendezvous>,
}

impl Place {
    /// The place of a process in a program that distributes the bootstrap record itself.
    pub const fn by_record(rank: u32, size: u32) -> Self {
        Self {
            source: Source::BootstrapRecord,
            rank,
            size,
            local_rank: None,
            local_size: None,
            job: None,
            hosts: Vec::new(),
            rendezvous: None,
        }
    }

    /// Whether all processes are known to be on this host.
    pub fn is_one_host(&self) -> bool {
        self.local_size == Some(self.size) || self.hosts.len() == 1
    }
}

/// Result of one source.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The source made the decision.
    Taken,
    /// The source does not decide, for this reason.
    Passed(String),
}

/// A source that left traces in the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The source of the traces.
    pub source: Source,
    /// Its variables, as they are.
    pub seen: Vec<(String, String)>,
    /// Result of the source.
    pub verdict: Verdict,
}

/// Part of this process in a job.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Decision {
    /// No launcher started it.
    Alone,
    /// It has a role and a number in a job with a running coordinator: [`super::JobEnv`] reads the rest.
    Member,
    /// One process of a launch, which does a rendezvous.
    Launched(Place),
}

/// A decision, and the evidence for it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Detection {
    /// All evidence found, closest first.
    pub findings: Vec<Finding>,
    /// The decision.
    ///
    /// # Errors
    /// The values of the closest launcher are impossible or insufficient.
    pub decision: Result<Decision, DetectError>,
}

/// Reason why there is no decision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DetectError {
    /// A variable or flag has an impossible value.
    #[error("{name}={value:?} is not valid: {expected}. Correct it, or unset it")]
    Invalid {
        /// Name of the variable or flag.
        name: String,
        /// Value of the variable, shortened.
        value: String,
        /// Description of a valid value.
        expected: String,
    },
    /// The launcher does not give enough values.
    #[error("{source_name} started this process, but {missing}. {remedy}")]
    Incomplete {
        /// Name of the launcher.
        source_name: &'static str,
        /// Values that are not known.
        missing: String,
        /// Remedy, for the message.
        remedy: String,
    },
    /// The launch has other processes, but no rendezvous with them.
    #[error(
        "this is process {rank} of {size} of {source_name}, and there is no way to meet the others: \
         {why}. Give --rendezvous DIRECTORY (or TIDEWATER_RENDEZVOUS), a directory that all of them \
         see, the same for all and new for each job"
    )]
    NoRendezvous {
        /// Name of the launcher.
        source_name: &'static str,
        /// Rank of the process.
        rank: u32,
        /// Number of processes of the launch.
        size: u32,
        /// Reason why the launcher has no way of its own.
        why: String,
    },
}

/// Values of flags; they win over every variable.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Explicit {
    /// Value of the flag `--rank`.
    pub rank: Option<u32>,
    /// Value of the flag `--size`.
    pub size: Option<u32>,
    /// Value of the flag `--rendezvous`: `pmi`, a path, or `HOST:PORT`.
    pub rendezvous: Option<String>,
}

/// Environment that [`detect`] evaluates.
pub struct LaunchEnv<'a> {
    vars: Vec<(String, OsString)>,
    /// The working directory, for the default rendezvous.
    pub directory: PathBuf,
    /// Whether a descriptor of this process is an open socket.
    pub is_socket: &'a dyn Fn(u32) -> bool,
    /// Values from the command line.
    pub explicit: Explicit,
}

impl fmt::Debug for LaunchEnv<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaunchEnv")
            .field("vars", &self.vars.len())
            .field("directory", &self.directory)
            .field("explicit", &self.explicit)
            .finish_non_exhaustive()
    }
}

impl<'a> LaunchEnv<'a> {
    /// Builds the input from given variables; an empty variable counts as unset.
    pub fn new(
        vars: impl IntoIterator<Item = (OsString, OsString)>,
        directory: PathBuf,
        is_socket: &'a dyn Fn(u32) -> bool,
        explicit: Explicit,
    ) -> Self {
        let named = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value));
        let vars = vars.into_iter().filter(|(_, value)| !value.is_empty());
        Self {
            vars: vars.filter_map(named).collect(),
            directory,
            is_socket,
            explicit,
        }
    }

    /// The environment of this process.
    ///
    /// # Errors
    /// It has no working directory.
    pub fn here(explicit: Explicit) -> std::io::Result<Self> {
        Self::of(std::env::vars_os(), explicit)
    }

    /// The environment of this process, with given variables.
    ///
    /// # Errors
    /// It has no working directory.
    pub fn of(
        vars: impl IntoIterator<Item = (OsString, OsString)>,
        explicit: Explicit,
    ) -> std::io::Result<Self> {
        let directory = std::env::current_dir()?;
        Ok(Self::new(vars, directory, &is_open_socket, explicit))
    }

    /// A variable as text of bounded length; other values count as unset.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        let (_, value) = self.vars.iter().find(|(known, _)| known == name)?;
        let text = value.to_str()?;
        (text.len() <= LAUNCH_TEXT_BYTES_MAX).then_some(text)
    }

    pub(super) fn raw(&self, name: &str) -> Option<&OsStr> {
        let (_, value) = self.vars.iter().find(|(known, _)| known == name)?;
        Some(value)
    }

    /// A number up to `max`.
    pub(super) fn number(&self, name: &str, max: u32) -> Result<Option<u32>, DetectError> {
        if self.raw(name).is_none() {
            return Ok(None);
        }
        let text = self.text(name).unwrap_or("?");
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        match text.parse() {
            Ok(number) if digits && number <= max => Ok(Some(number)),
            _ => Err(invalid(name, text, format!("a number up to {max}"))),
        }
    }

    /// A rank below `size`.
    pub(super) fn rank(&self, name: &str, size: u32) -> Result<Option<u32>, DetectError> {
        self.number(name, size.saturating_sub(1))
    }

    /// A number of processes.
    pub(super) fn count(&self, name: &str) -> Result<Option<u32>, DetectError> {
        match self.number(name, LAUNCHED_MAX)? {
            Some(0) => Err(invalid(
                name,
                "0",
                format!("a number from 1 to {LAUNCHED_MAX}"),
            )),
            count => Ok(count),
        }
    }

    /// The variables of `names` that are set, shortened, for messages.
    pub(super) fn seen(&self, names: &[&str]) -> Vec<(String, String)> {
        let shown = |name: &&str| {
            let value = self.raw(name)?.to_string_lossy().into_owned();
            Some(((*name).to_owned(), value.chars().take(80).collect()))
        };
        names.iter().filter_map(shown).collect()
    }

    /// The rendezvous that the user chose, by flag or variable.
    pub(super) fn wished(&self) -> Result<Option<Rendezvous>, DetectError> {
        let name = "TIDEWATER_RENDEZVOUS";
        let flag = self.explicit.rendezvous.as_deref();
        let Some(text) = flag.or_else(|| self.text(name)) else {
            return Ok(None);
        };
        let name = if flag.is_some() { "--rendezvous" } else { name };
        if text == "pmi" {
            let fd = self.number("PMI_FD", i32::MAX.unsigned_abs())?;
            let Some(fd) = fd.filter(|&fd| (self.is_socket)(fd)) else {
                let what = "the launcher's PMI, which needs PMI_FD to name an open socket";
                return Err(invalid(name, text, what));
            };
            return Ok(Some(Rendezvous::Pmi { fd }));
        }
        if super::is_address(text) && !text.contains('/') {
            return Ok(Some(Rendezvous::Address(text.to_owned())));
        }
        if text.contains('\0') {
            return Err(invalid(name, text, "pmi, HOST:PORT, or a directory"));
        }
        Ok(Some(Rendezvous::Directory(self.directory.join(text))))
    }

    /// The rendezvous of a job that has a name and no better way.
    pub(super) fn default_directory(&self, job: &str) -> Rendezvous {
        Rendezvous::Directory(self.directory.join(".tidewater").join(job))
    }
}

/// Decides. See the module for the order.
///
/// # Cost
/// Two dozen reads of variables; at most one check of a descriptor.
pub fn detect(around: &LaunchEnv<'_>) -> Detection {
    let mut findings = Vec::new();
    let mut decision: Option<Result<Decision, DetectError>> = None;
    for look in sources::ALL {
        let Some(sight) = look(around) else { continue };
        let verdict = match (&sight.says, &decision) {
            (sources::Evidence::Passed(why), _) => Verdict::Passed(why.clone()),
            (_, Some(_)) => Verdict::Passed("a closer one has decided".into()),
            (sources::Evidence::Decided(decided), None) => {
                decision = Some(decided.clone());
                Verdict::Taken
            }
        };
        findings.push(Finding {
            source: sight.source,
            seen: sight.seen,
            verdict,
        });
    }
    let decision = decision.unwrap_or(Ok(Decision::Alone));
    Detection { findings, decision }
}

fn is_open_socket(fd: u32) -> bool {
    let path = format!("/proc/self/fd/{fd}");
    let target = std::fs::read_link(path);
    target.is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
}

pub(super) fn invalid(name: &str, value: &str, expected: impl Into<String>) -> DetectError {
    DetectError::Invalid {
        name: name.to_owned(),
        value: value.chars().take(80).collect(),
        expected: expected.into(),
    }
}
