//! Outcomes of a job, and errors of starting one.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::time::Duration;

use tidewater_launch::TokenError;

/// Exit codes of a worker that SIGTERM, SIGUSR1 or `tidewater stop` has asked to end, and that has done so by
/// itself.
const ENDED_AS_ASKED: [i32; 2] = [128 + 15, 128 + 10];

/// One process of a job, in the order of likely causes. When several end at one moment, a server is
/// the cause rather than the coordinator or a worker that lost it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Member {
    /// The server of this number.
    Server(u32),
    /// The coordinator of the job.
    Coordinator,
    /// The worker of this rank.
    Worker(u32),
    /// The process that sweeps up after a killed launcher.
    Guard,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(number) => write!(f, "server {number}"),
            Self::Coordinator => f.write_str("coordinator"),
            Self::Worker(rank) => write!(f, "worker {rank}"),
            Self::Guard => f.write_str("guard"),
        }
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this exit code.
    Code(i32),
    /// By the signal of this number.
    Signal(i32),
}

impl Exit {
    /// The exit code for this end: the code itself, or 128 plus the signal's number.
    pub fn code(self) -> u8 {
        let code = match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        };
        u8::try_from(code).unwrap_or(u8::MAX)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "ended with exit code {code}"),
            Self::Signal(signal) => {
                write!(f, "was killed by signal {signal}{}", signal_name(*signal))
            }
        }
    }
}

/// The first failure of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// A process ended that should not have, or not like this.
    Process {
        /// The process that ended.
        member: Member,
        /// Process id on its host.
        pid: i32,
        /// Name of its host.
        host: String,
        /// Code or signal of its end.
        exit: Exit,
        /// The last line it wrote to stderr, shortened, control characters escaped.
        last_line: Option<String>,
    },
    /// A process could not be started; the job was stopped.
    Start {
        /// The process to be started.
        member: Member,
        /// Error of the operating system.
        reason: String,
    },
    /// The coordinator did not report where it listens.
    CoordinatorSilent {
        /// Process id of the coordinator.
        pid: i32,
        /// Time that it had.
        waited: Duration,
        /// Its output instead of the ready line.
        said: Option<String>,
    },
    /// The job took longer than it was allowed.
    Timeout {
        /// The time limit of the job.
        allowed: Duration,
        /// Processes that had not finished, in order.
        running: Vec<Member>,
    },
    /// A signal stopped the launcher before it had started a worker.
    Interrupted {
        /// Number of the signal.
        signal: i32,
    },
    /// A host was not reached, or has been lost.
    Host {
        /// The process that runs there, or was to.
        member: Member,
        /// Name of the host.
        host: String,
        /// Name of the remote shell.
        shell: String,
        /// Whether the process had started.
        ran: bool,
        /// How the attempt or the connection ended.
        why: String,
    },
    /// A process did not even die of SIGKILL.
    Stuck {
        /// The process that does not end.
        member: Member,
        /// Process id on its host.
        pid: i32,
        /// Name of its host.
        host: String,
    },
}

impl Failure {
    /// The exit code for this failure.
    pub fn code(&self) -> u8 {
        match self {
            // A server that leaves early with code 0 still is a failure of the job.
            Self::Process { exit, .. } => match exit.code() {
                0 => 4,
                code => code,
            },
            Self::Interrupted { signal } => Exit::Signal(*signal).code(),
            Self::Start { .. } | Self::Stuck { .. } => 3,
            Self::CoordinatorSilent { .. } | Self::Timeout { .. } | Self::Host { .. } => 4,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process {
                member,
                pid,
                host,
                exit,
                last_line,
            } => {
                write!(f, "{member} (pid {pid} on {host}) {exit}")?;
                match last_line {
                    Some(line) => write!(f, "; its last line on stderr: {line}"),
                    None => f.write_str("; it wrote nothing to stderr"),
                }
            }
            Self::Start { member, reason } => write!(
                f,
                "cannot start {member}: {reason}. Check `ulimit -u` and `ulimit -n`, \
                 or start fewer processes"
            ),
            Self::CoordinatorSilent { pid, waited, said } => {
                write!(f, "coordinator (pid {pid}) was not ready after {waited:?}")?;
                if let Some(said) = said {
                    write!(f, "; instead of the ready line it said: {said}")?;
                }
                f.write_str(". Look at its output above, or raise --start-timeout")
            }
            Self::Timeout { allowed, running } => {
                write!(
                    f,
                    "the job did not finish within {allowed:?}; still running:"
                )?;
                for member in running.iter().take(8) {
                    write!(f, " {member},")?;
                }
                let more = running.len().saturating_sub(8);
                if more > 0 {
                    write!(f, " and {more} more,")?;
                }
                f.write_str(" now stopped. Raise --timeout if it needs longer")
            }
            Self::Interrupted { signal } => {
                write!(
                    f,
                    "stopped by signal {signal}{} while starting",
                    signal_name(*signal)
                )
            }
            Self::Host { .. } => self.of_a_host(f),
            Self::Stuck { member, pid, host } => write!(
                f,
                "{member} (pid {pid} on {host}) does not die of SIGKILL; the kernel holds it, \
                 look at /proc/{pid}/stack and at the host's file systems"
            ),
        }
    }
}

impl Failure {
    fn of_a_host(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Host {
            member,
            host,
            shell,
            ran,
            why,
        } = self
        else {
            return Ok(());
        };
        if *ran {
            return write!(
                f,
                "host {host} is lost, {member} ran there: {why}. Is it up, and the network to it? \
                 ({shell} brings its process there to an end)"
            );
        }
        write!(
            f,
            "host {host} cannot be used, {member} was to run there: {why}. Try `{shell} {host} true`; \
             tidewater must be there, at the same path as here"
        )
    }
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// The first failure; `None` if all workers succeeded.
    pub failure: Option<Failure>,
    /// Bytes of output that no reader took: it went away or stopped reading.
    pub output_lost: u64,
    /// Whether a signal asked the job to end.
    pub asked_to_end: bool,
}

impl Outcome {
    /// Whether the job may do better when all of its processes start again: one of them died, or failed
    /// for a reason that is neither its command line nor a request to end.
    pub fn may_restart(&self) -> bool {
        let wrong_command_line = Exit::Code(2);
        // A worker that `tidewater stop` or a signal has asked to end says so by its code, after its save.
        let ended_as_asked = |member: &Member, exit: &Exit| {
            let is_code = ENDED_AS_ASKED.map(Exit::Code).contains(exit);
            is_code && matches!(member, Member::Worker(_))
        };
        !self.asked_to_end
            && match &self.failure {
                Some(Failure::Process { member, exit, .. }) => {
                    *exit != wrong_command_line && !ended_as_asked(member, exit)
                }
                Some(Failure::Host { ran, .. }) => *ran,
                _ => false,
            }
    }

    /// The exit code of the job: 0, or that of the first failure.
    pub fn code(&self) -> u8 {
        self.failure.as_ref().map_or(0, Failure::code)
    }
}

/// Why a job did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// No servers or no workers, or more servers than a cluster can have.
    #[error(
        "--servers {servers} --workers {workers} makes no job: \
         1 to 1024 servers and at least 1 worker are needed"
    )]
    Counts {
        /// Number of servers requested.
        servers: u32,
        /// Number of workers requested.
        workers: u32,
    },
    /// More processes than a launcher can watch.
    #[error(
        "{processes} processes are more than the {max} one launcher starts; use mpirun or srun"
    )]
    TooMany {
        /// Number of processes requested.
        processes: u32,
        /// Largest number that is allowed.
        max: u32,
    },
    /// The program does not exist.
    #[error("there is no program {program:?}; give a path, or a name that is found in PATH")]
    ProgramMissing {
        /// Name of the program as given.
        program: OsString,
    },
    /// The file is not executable by this user.
    #[error("{program:?} is not an executable file; run `chmod +x` on it, or name another")]
    NotExecutable {
        /// Name of the program as given.
        program: OsString,
    },
    /// The hosts have too few slots.
    #[error(
        "{servers} servers and {workers} workers are more processes than the {slots} slots of the hosts; \
         say slots=N in the hostfile, or start fewer"
    )]
    TooFewSlots {
        /// Number of servers requested.
        servers: u32,
        /// Number of workers requested.
        workers: u32,
        /// Number of slots of all hosts.
        slots: u64,
    },
    /// The order for a process on another host is too long for the line.
    #[error(
        "program, arguments and environment for {host} are longer than {max} bytes; pass fewer"
    )]
    TooLong {
        /// Name of the host.
        host: String,
        /// Largest order in bytes.
        max: usize,
    },
    /// The limit of open files is too low.
    #[error(
        "{process} of {servers} servers and {workers} workers needs {needed} open files, and the limit is \
         {limit}; raise the hard limit (ulimit -Hn {needed}, nofile in /etc/security/limits.conf, \
         LimitNOFILE= of a unit), or start fewer processes"
    )]
    OpenFiles {
        /// The process of the job that needs most.
        process: &'static str,
        /// Open files that it needs.
        needed: u64,
        /// Open files that it may have.
        limit: u64,
        /// Number of servers requested.
        servers: u32,
        /// Number of workers requested.
        workers: u32,
    },
    /// The configured network interface cannot be used.
    #[error("{0}")]
    Interface(String),
    /// The token could not be made.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// A system call of the launcher itself failed.
    #[error("the launcher cannot {operation}: {source}. Check `ulimit -n` and `ulimit -u`")]
    System {
        /// Operation that was tried.
        operation: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
}

impl LaunchError {
    /// The exit code for this error: 2 for a wrong command line, 3 for the environment.
    pub fn code(&self) -> u8 {
        match self {
            Self::Token(_) | Self::OpenFiles { .. } | Self::System { .. } => 3,
            _ => 2,
        }
    }

    /// For `map_err`: names the operation that failed.
    pub(super) fn system<E: Into<io::Error>>(operation: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System {
            operation,
            source: source.into(),
        }
    }
}

/// ` (SIGTERM)` and the like for the common signals.
fn signal_name(signal: i32) -> &'static str {
    match signal {
        1 => " (SIGHUP)",
        2 => " (SIGINT)",
        3 => " (SIGQUIT)",
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        10 => " (SIGUSR1)",
        11 => " (SIGSEGV)",
        12 => " (SIGUSR2)",
        13 => " (SIGPIPE)",
        15 => " (SIGTERM)",
        24 => " (SIGXCPU)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker that ended as it was asked to does not start again; one that was killed does.
    #[test]
    fn jobs_that_ended_as_asked_do_not_start_again() {
        let restarts = |member, exit| {
            let failure = Failure::Process {
                member,
                pid: 7,
                host: "h".into(),
                exit,
                last_line: None,
            };
            let outcome = Outcome {
                failure: Some(failure),
                output_lost: 0,
                asked_to_end: false,
            };
            outcome.may_restart()
        };
        let worker = Member::Worker(1);
        for code in [2, 143, 138] {
            assert!(!restarts(worker, Exit::Code(code)), "{code}");
        }
        for signal in [15, 10, 9] {
            assert!(restarts(worker, Exit::Signal(signal)), "{signal}");
        }
        assert!(restarts(worker, Exit::Code(1)));
        assert!(restarts(Member::Server(0), Exit::Code(143)));
    }
}
