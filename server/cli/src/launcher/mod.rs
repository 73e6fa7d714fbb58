//! The process side of `tidewater run`: one coordinator, S servers and W copies of a program as
//! child processes of one launcher, on this host, or by a remote shell on others ([`remote()`]).
//!
//! ```text
//! tidewater run --+-- coordinator        stdin = control socket: takes the ready line,
//!                 +-- server 0 .. S-1            its end of file says "stop"
//!                 +-- worker 0 .. W-1
//!                 +-- guard              sweeps up when the launcher is gone
//! ```
//!
//! **One thread.** [`run`] does everything from one `poll` loop: output, exits (pidfds), signals (a
//! socket per signal), deadlines. It uses `poll` and not `epoll`, because the set of descriptors
//! follows from the state in each round: a child is not read while the reader of the launcher's
//! output is slow.
//!
//! **No process is left.** Three means, each for what the previous one cannot reach:
//! 1. each child is its own process group, which gets every signal, and SIGKILL at the end;
//! 2. each child starts as a shim ([`exec_shim::enter`]) that asks the kernel for SIGKILL at the
//!    launcher's death (`PR_SET_PDEATHSIG`) before it becomes the program. A program with
//!    set-user-id bits or file capabilities loses this, and grandchildren never had it;
//! 3. the guard waits for the end of its control socket, which the launcher's death brings however
//!    it dies. It then kills every process that still has the job's mark in its environment or is
//!    in one of the job's process groups.
//!
//! **No file.** The token lives in a sealed memfd of mode 0600 that children open by
//! `/proc/LAUNCHER/fd/N` (`TIDEWATER_TOKEN_FILE`). It vanishes with the launcher, so there is no
//! file to remove; unlike an inherited descriptor it also reaches programs with a wrapper that
//! closes descriptors.
//!
//! **The first failure decides.** The first process that ends without a request (a worker: that
//! ends unsuccessfully) is the [`Failure`], and gives the exit code. The others get SIGTERM, and
//! SIGKILL after the grace period.

mod config;
mod control;
mod descriptors;
mod error;
pub mod exec_shim;
mod hostfile;
mod job;
mod output;
mod process;
mod reaper;
mod remote;
mod remote_hosts;
mod shutdown;
mod signals;
mod token;

pub use config::{EXPORTED, Prefix, ProcessCommand, RunConfig};
pub use control::{Control, ReadyLine};
pub use error::{Exit, Failure, LaunchError, Member, Outcome};
pub use hostfile::{Host, HostfileError, read as read_hostfile};
pub use reaper::guard;
pub use remote::{RemoteError, remote};

/// Runs a job and waits until it has ended and none of its processes is left.
///
/// Call it from the program's main thread: the children die when the thread that started them ends.
/// SIGINT, SIGTERM, SIGHUP (unless ignored, as under `nohup`), SIGUSR1 and SIGUSR2 of this process
/// are passed on to the workers. After the return they are caught without effect.
///
/// # Errors
/// The job could not be started. A job that started and failed is an [`Outcome`].
///
/// # Cost
/// Two processes in addition to those of the job; four descriptors per process. A job that needs
/// more open files than this process may have is refused before any process is started; `tidewater
/// run` raises its soft limit to the hard one before.
pub fn run(config: RunConfig) -> Result<Outcome, LaunchError> {
    config.check()?;
    config.placement()?;
    descriptors::check(&config)?;
    job::Job::start(config)?.supervise()
}
