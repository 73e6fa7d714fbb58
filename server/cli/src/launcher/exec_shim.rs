//! The shim: a child before it becomes the program. It ties the child's life to the launcher's.
//!
//! The kernel's `PR_SET_PDEATHSIG` must be set by the child itself. Doing that between `fork` and
//! `exec` needs unsafe code; doing it in a program of its own does not.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// Why the shim did not become the program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShimError {
    /// The kernel refused the request.
    #[error("cannot ask for SIGKILL at the launcher's death: {0}")]
    DeathSignal(io::Error),
    /// The launcher died before the request was made.
    #[error("the launcher (pid {launcher}) is gone")]
    Orphan {
        /// Process id of the launcher.
        launcher: i32,
    },
    /// The program cannot be executed.
    #[error("cannot run {program:?}: {source}. Check its format and its #! line")]
    Exec {
        /// Path or name of the program.
        program: OsString,
        /// Error of the operating system.
        source: io::Error,
    },
}

impl ShimError {
    /// The exit code for this error; as of a shell, if the program cannot be run.
    pub fn code(&self) -> u8 {
        match self {
            Self::Exec { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            Self::Exec { .. } => 126,
            Self::DeathSignal(_) | Self::Orphan { .. } => 3,
        }
    }
}

/// Ties this process to its parent, which must be `launcher`, and becomes `program`.
///
/// # Errors
/// Returns only on an error; on success this process has become the program.
pub fn enter(
    launcher: i32,
    program: &OsString,
    args: &[OsString],
) -> Result<Infallible, ShimError> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| ShimError::DeathSignal(error.into()))?;
    // A parent that died before the request sends no signal any more. Then this process already has
    // another parent.
    if getppid().is_none_or(|parent| parent.as_raw_nonzero().get() != launcher) {
        return Err(ShimError::Orphan { launcher });
    }
    let source = Command::new(program).args(args).exec();
    Err(ShimError::Exec {
        program: program.clone(),
        source,
    })
}
