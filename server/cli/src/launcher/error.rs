//! How a job ended, and why one did not start.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::time::Duration;

use tidewater_launch::TokenError;

/// One process of a job. The order is that of blame: when several end at one moment, a server
/// is the cause rather than the coordinator or a worker that lost it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Member {
    /// The server of this number.
    Server(u32),
    /// The coordinator.
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
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl Exit {
    /// The exit code that tells of it: the code itself, or 128 plus the signal's number.
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

/// The first thing that went wrong in a job.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// A process ended that should not have, or not like this.
    Process {
        /// Which.
        member: Member,
        /// Its process id.
        pid: i32,
        /// Its host.
        host: String,
        /// How it ended.
        exit: Exit,
        /// The last line it wrote to stderr, shortened, control characters escaped.
        last_line: Option<String>,
    },
    /// A process could not be started; the job was stopped.
    Start {
        /// Which.
        member: Member,
        /// What the system said.
        reason: String,
    },
    /// The coordinator did not say where it listens.
    CoordinatorSilent {
        /// Its process id.
        pid: i32,
        /// How long it had.
        waited: Duration,
        /// What it said instead.
        said: Option<String>,
    },
    /// The job took longer than it was allowed.
    Timeout {
        /// The time allowed.
        allowed: Duration,
        /// Who had not finished, in order.
        running: Vec<Member>,
    },
    /// The launcher was told to stop before it had started a worker.
    Interrupted {
        /// The signal's number.
        signal: i32,
    },
    /// A host was not reached, or has been lost.
    Host {
        /// The process that was to be there, or was.
        member: Member,
        /// Its name.
        host: String,
        /// The remote shell.
        shell: String,
        /// Whether the process had started.
        ran: bool,
        /// What came of it.
        why: String,
    },
    /// A process did not even die of SIGKILL.
    Stuck {
        /// Which.
        member: Member,
        /// Its process id.
        pid: i32,
        /// Its host.
        host: String,
    },
}

impl Failure {
    /// The exit code that tells of it.
    pub fn code(&self) -> u8 {
        match self {
            // A server that leaves early with code 0 is a failure of the job all the same.
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
    /// What went wrong first; `None` if all workers succeeded.
    pub failure: Option<Failure>,
    /// Bytes of output that nobody took: the reader went away or stopped reading.
    pub output_lost: u64,
}

impl Outcome {
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
        /// Servers asked for.
        servers: u32,
        /// Workers asked for.
        workers: u32,
    },
    /// More processes than a launcher can watch.
    #[error(
        "{processes} processes are more than the {max} one launcher starts; use mpirun or srun"
    )]
    TooMany {
        /// Asked for.
        processes: u32,
        /// The limit.
        max: u32,
    },
    /// There is no such program.
    #[error("there is no program {program:?}; give a path, or a name that is found in PATH")]
    ProgramMissing {
        /// Its name as given.
        program: OsString,
    },
    /// It is not a file that this user may execute.
    #[error("{program:?} is not an executable file; run `chmod +x` on it, or name another")]
    NotExecutable {
        /// Its name as given.
        program: OsString,
    },
    /// The hosts do not take them all.
    #[error(
        "{servers} servers and {workers} workers are more processes than the {slots} slots of the hosts; \
         say slots=N in the hostfile, or start fewer"
    )]
    TooFewSlots {
        /// Servers asked for.
        servers: u32,
        /// Workers asked for.
        workers: u32,
        /// Slots of all hosts.
        slots: u64,
    },
    /// A process on another host would be told more than a line to it takes.
    #[error(
        "program, arguments and environment for {host} are longer than {max} bytes; pass fewer"
    )]
    TooLong {
        /// The host.
        host: String,
        /// The limit.
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
        /// What it needs.
        needed: u64,
        /// What it may have.
        limit: u64,
        /// Servers asked for.
        servers: u32,
        /// Workers asked for.
        workers: u32,
    },
    /// The network that was named.
    #[error("{0}")]
    Interface(String),
    /// There is no token.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// A system call of the launcher itself failed.
    #[error("the launcher cannot {operation}: {source}. Check `ulimit -n` and `ulimit -u`")]
    System {
        /// What it was doing.
        operation: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl LaunchError {
    /// The exit code that tells of it: 2 for a wrong command line, 3 for the environment.
    pub fn code(&self) -> u8 {
        match self {
            Self::Token(_) | Self::OpenFiles { .. } | Self::System { .. } => 3,
            _ => 2,
        }
    }

    /// For `map_err`: the failure of one operation.
    pub(super) fn system<E: Into<io::Error>>(operation: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System {
            operation,
            source: source.into(),
        }
    }
}

/// ` (SIGTERM)` for the signals one meets.
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
