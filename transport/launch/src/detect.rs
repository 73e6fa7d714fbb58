//! Which launcher started this process, and what it says: a function of the environment alone.
//!
//! Variables leak: what a launcher started may start another one, and all of a node's processes
//! inherit what the batch system said. So **the launcher closest to the process wins**, and the order
//! of [`detect`] is that of evidence for closeness:
//!
//! | order | source | why here |
//! |---|---|---|
//! | 1 | flags, then `TIDEWATER_*` | the user's own word |
//! | 2 | PMI with a descriptor that is open | descriptors are not inherited through another launcher, variables are: Open MPI's daemon closes those of the launcher it was started by |
//! | 3 | Open MPI | `mpirun` inside a batch job inherits the batch system's variables, not the other way round |
//! | 4 | Flux | as 3, when it gives no PMI descriptor |
//! | 5 | Slurm | only of a step: in the script of `sbatch`, and so under `mpirun` in it, `SLURM_PROCID` is 0 for everybody |
//! | 6 | torchrun, DMLC | names that anybody may have exported |
//!
//! Only documented variables decide anything.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;

use super::sources;
use tidewater_protocol::limits::{LAUNCH_TEXT_BYTES_MAX, LAUNCHED_MAX};

/// Who says what this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Source {
    /// `--rank`, `--size` and `--rendezvous`.
    Flags,
    /// `TIDEWATER_*`: `tidewater run`, or by hand.
    Tidewater,
    /// Hydra, which is MPICH's and Intel MPI's mpiexec.
    Hydra,
    /// Open MPI's mpirun.
    OpenMpi,
    /// PRRTE's prterun.
    Prrte,
    /// `flux run`.
    Flux,
    /// `srun`.
    Slurm,
    /// `torchrun`, or scripts that set its variables.
    Torchrun,
    /// Scripts for ps-lite.
    Dmlc,
    /// The program itself, which has a broadcast of its own.
    BootstrapRecord,
}

impl Source {
    /// As a person calls it.
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

/// How the processes of a job meet: how all of them get the card of the one with rank 0.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rendezvous {
    /// Through the launcher, by PMI-1 over this descriptor.
    Pmi {
        /// `PMI_FD`.
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
    /// Who says so.
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
    /// Hosts, in the launcher's order; empty if it does not say.
    pub hosts: Vec<String>,
    /// How they meet; `None` only in a job of one.
    pub rendezvous: Option<Rendezvous>,
}

impl Place {
    /// Of a program that brings the card to its processes itself.
    pub const fn by_card(rank: u32, size: u32) -> Self {
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

/// What came of one source.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It decides.
    Taken,
    /// It does not, because.
    Passed(String),
}

/// A source that left traces in the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// Which.
    pub source: Source,
    /// Its variables, as they are.
    pub seen: Vec<(String, String)>,
    /// What came of it.
    pub verdict: Verdict,
}

/// What this process is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Decision {
    /// Nobody launched it.
    Alone,
    /// It has a role and a number in a job whose coordinator is there: [`super::JobEnv`] reads the
    /// rest.
    Member,
    /// One of a launch, which meets.
    Launched(Place),
}

/// A decision, and what it was made of.
#[derive(Debug)]
#[non_exhaustive]
pub struct Detection {
    /// Everything that was seen, closest first.
    pub findings: Vec<Finding>,
    /// The decision.
    ///
    /// # Errors
    /// What the closest launcher says cannot be, or does not suffice.
    pub decision: Result<Decision, DetectError>,
}

/// Why there is no decision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DetectError {
    /// A variable or flag says what cannot be.
    #[error("{name}={value:?} is not valid: {expected}. Correct it, or unset it")]
    Invalid {
        /// Which.
        name: String,
        /// What it says, shortened.
        value: String,
        /// What it should say.
        expected: String,
    },
    /// The launcher does not say enough.
    #[error("{source_name} started this process, but {missing}. {remedy}")]
    Incomplete {
        /// The launcher.
        source_name: &'static str,
        /// What is not known.
        missing: String,
        /// What to do.
        remedy: String,
    },
    /// There are others, and no way to meet them.
    #[error(
        "this is process {rank} of {size} of {source_name}, and there is no way to meet the others: \
         {why}. Give --rendezvous DIRECTORY (or TIDEWATER_RENDEZVOUS), a directory that all of them \
         see, the same for all and new for each job"
    )]
    NoRendezvous {
        /// The launcher.
        source_name: &'static str,
        /// The process.
        rank: u32,
        /// How many there are.
        size: u32,
        /// Why the launcher's own way is none.
        why: String,
    },
}

/// What flags say; they win over every variable.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Explicit {
    /// `--rank`.
    pub rank: Option<u32>,
    /// `--size`.
    pub size: Option<u32>,
    /// `--rendezvous`: `pmi`, a path, or `HOST:PORT`.
    pub rendezvous: Option<String>,
}

/// What [`detect`] looks at.
pub struct LaunchEnv<'a> {
    vars: Vec<(String, OsString)>,
    /// The working directory, for the default meeting place.
    pub directory: PathBuf,
    /// Whether a descriptor of this process is an open socket.
    pub is_socket: &'a dyn Fn(u32) -> bool,
    /// The command line.
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
    /// Of given variables; an empty one is as one that is not set.
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

    /// Of this process.
    ///
    /// # Errors
    /// It has no working directory.
    pub fn here(explicit: Explicit) -> std::io::Result<Self> {
        Self::of(std::env::vars_os(), explicit)
    }

    /// Of this process, with variables given.
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

    /// A variable as text of bounded length; one that is no such text says nothing.
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

    /// Those of `names` that are set, shortened, for people.
    pub(super) fn seen(&self, names: &[&str]) -> Vec<(String, String)> {
        let shown = |name: &&str| {
            let value = self.raw(name)?.to_string_lossy().into_owned();
            Some(((*name).to_owned(), value.chars().take(80).collect()))
        };
        names.iter().filter_map(shown).collect()
    }

    /// What the user says of the meeting place, by flag or variable.
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

    /// The meeting place of a job that has a name and no better way.
    pub(super) fn default_directory(&self, job: &str) -> Rendezvous {
        Rendezvous::Directory(self.directory.join(".tidewater").join(job))
    }
}

/// Decides. See the module for the order.
///
/// # Cost
/// Two dozen looks at variables; at most one at a descriptor.
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
