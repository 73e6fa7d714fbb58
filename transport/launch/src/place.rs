//! The place of a process in its launch, the launcher that gave it, and the way to the other processes.

use std::fmt;
use std::path::PathBuf;

/// Origin of a process's place in its launch: a launcher, flags, variables or the program.
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
    /// Returns the name of the source, for messages.
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
            Self::BootstrapRecord => "a bootstrap record",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Way by which all processes of a launch get the bootstrap record of rank 0: the launcher's PMI, a directory,
/// or an address.
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

/// Place of a process among all processes of its launch, servers and workers alike: its rank, the size, and the
/// way to the others.
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
    /// Creates the place of a process in a program that distributes the bootstrap record itself. It has no
    /// rendezvous.
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

    /// Whether all processes of the launch are known to be on this host; false if that is not known.
    pub fn is_one_host(&self) -> bool {
        self.local_size == Some(self.size) || self.hosts.len() == 1
    }
}

/// What this process is, by its environment: alone, a member of a running job, or one process of a launch.
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
