//! Processes on other hosts: the launcher's remote shell starts `tidewater __remote` there, which
//! reads its order from stdin, and runs it.
//!
//! ```text
//! launcher                      ssh HOST tidewater __remote
//!           <- tidewater-remote 1 PID       its first line on stdout; what came before is the shell's
//!   order  ->                               length (u32), then postcard: token, program, environment
//!   bytes  ->                               each a signal for the program
//!   end of file ->                          kill everything
//!           <- output of the program, and its exit code
//! ```
//! The token goes over stdin, and only after the first line has come: never on a command line, nor
//! to a shell. The program runs as it would at the launcher's own host: tied to its parent's life
//! by the shim, with a guard that sweeps up after it. So no process is left when the connection
//! ends, whichever end of it has died.

use std::ffi::OsString;
use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tidewater_launch::rendezvous::{self, ReachError};
use tidewater_protocol::limits::{
    COORDINATOR_START_TIMEOUT, HANDSHAKE_TIMEOUT, KILL_TIMEOUT, REMOTE_ORDER_BYTES_MAX,
};
use tidewater_protocol::wire::handshake::JobToken;
use tidewater_runtime::clock::Deadline;
use tidewater_topology::hostinfo;

use super::config::ProcessCommand;
use super::error::{Exit, Member};
use super::process::{JobSettings, Local, Process, Spawner};
use super::token::TokenFile;

/// Start of the first line; the number is the version of the order's format.
const GREETING: &str = "tidewater-remote 1 ";

/// The work of a process on another host. Must not be printed: it holds the token.
#[derive(Serialize, Deserialize)]
pub(super) struct Order {
    /// The job's secret, as hex digits.
    pub(super) token: String,
    /// The job's mark, for this process alone: its guard kills no other processes.
    pub(super) mark: String,
    pub(super) is_server: bool,
    pub(super) number: u32,
    pub(super) settings: JobSettings,
    pub(super) local: Local,
    /// Addresses of the coordinator, likeliest first.
    pub(super) coordinators: Vec<String>,
    /// Whether the source address of the remote shell may be the coordinator's too.
    pub(super) ask_shell: bool,
    pub(super) directory: OsString,
    pub(super) program: OsString,
    pub(super) args: Vec<OsString>,
    /// Variables of the launcher's environment that the program gets.
    pub(super) environment: Vec<(OsString, OsString)>,
}

impl Order {
    /// Encodes the order for the line; `None` if it is too long.
    pub(super) fn encode(&self) -> Option<Vec<u8>> {
        let body = postcard::to_stdvec(self).ok()?;
        let fits = body.len() <= REMOTE_ORDER_BYTES_MAX;
        let length = u32::try_from(body.len()).ok().filter(|_| fits)?;
        Some([&length.to_le_bytes()[..], &body].concat())
    }
}

/// The process id in the first line, without its newline; `None` if it is another line.
pub(super) fn greeted(line: &[u8]) -> Option<i32> {
    let line = std::str::from_utf8(line).ok()?;
    line.trim_end().strip_prefix(GREETING)?.parse().ok()
}

/// Why the program did not run, or not to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// A system call failed.
    #[error("on {}: cannot {operation}: {source}", hostinfo::host_name())]
    System {
        /// Operation that was tried.
        operation: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The launcher's directory does not exist on this host.
    #[error(
        "on {}: cannot enter {}: {source}; start the job in a directory that all hosts see",
        hostinfo::host_name(), directory.display()
    )]
    Directory {
        /// Path of the directory.
        directory: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The bytes on stdin are no order.
    #[error("no order came ({0}); `tidewater __remote` is for `tidewater run`")]
    NoOrder(&'static str),
    /// The coordinator cannot be reached from this host.
    #[error(
        "on {}: the coordinator is not reached from here: {source}. Name the network (tidewater run \
         --interface), and look at the firewall",
        hostinfo::host_name()
    )]
    NoWay {
        /// Error of the last try.
        source: ReachError,
    },
}

fn system<E: Into<io::Error>>(operation: &'static str) -> impl FnOnce(E) -> RemoteError {
    move |source| RemoteError::System {
        operation,
        source: source.into(),
    }
}

/// Runs the launcher's order from `line`, this process's stdin, until the program or the line has
/// ended. Returns the exit code. `executable` is `tidewater`, for shim and guard.
///
/// # Errors
/// [`RemoteError`]; nothing is left behind.
///
/// # Cost
/// Two processes in addition to the program.
pub fn remote(line: impl Read + AsFd, executable: PathBuf) -> Result<u8, RemoteError> {
    let mut line = Line { input: line };
    let hello = format!("{GREETING}{}\n", std::process::id());
    let mut stdout = io::stdout();
    stdout
        .write_all(hello.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(system("answer the launcher"))?;
    let order = line.order()?;
    let directory = PathBuf::from(&order.directory);
    std::env::set_current_dir(&directory)
        .map_err(|source| RemoteError::Directory { directory, source })?;
    let token = TokenFile::holding(&order.token).map_err(system("hold the job token"))?;
    let spawner = Spawner {
        executable,
        job: order.mark.clone(),
        token: token.path(),
        coordinator: Some(coordinator(&order)?),
        settings: order.settings.clone(),
    };
    let mut guard = spawner.guard().map_err(system("start its guard"))?;
    let member = match order.is_server {
        true => Member::Server(order.number),
        false => Member::Worker(order.number),
    };
    let run = ProcessCommand::new(order.program, order.args);
    let mut program = spawner
        .beside(member, &run, order.local, &order.environment)
        .map_err(system("start the program"))?;
    if let Some(control) = guard.control.as_mut() {
        let group = format!("{}\n", program.pid_raw());
        control
            .write_all(group.as_bytes())
            .map_err(system("write to its reaper"))?;
    }
    let ended = line.watch(&mut program);
    drop(program);
    // Its control line ends: it sweeps, and ends too.
    guard.control = None;
    let swept = Deadline::after(KILL_TIMEOUT * 2);
    while guard.exit.is_none() && !swept.passed() {
        wait(&[guard.pidfd()], swept).map_err(system("wait for its guard"))?;
        guard.look().map_err(system("wait for its guard"))?;
    }
    Ok(ended.map_err(system("wait for the program"))?.code())
}

/// The launcher's end of the connection.
struct Line<T> {
    input: T,
}

impl<T: Read + AsFd> Line<T> {
    fn order(&mut self) -> Result<Order, RemoteError> {
        let deadline = Deadline::after(COORDINATOR_START_TIMEOUT);
        let mut length = [0; 4];
        self.fill(&mut length, deadline)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > REMOTE_ORDER_BYTES_MAX {
            return Err(RemoteError::NoOrder("it is too long"));
        }
        let mut body = vec![0; length];
        self.fill(&mut body, deadline)?;
        let order: Order = postcard::from_bytes(&body)
            .map_err(|_| RemoteError::NoOrder("it is of another release"))?;
        match JobToken::from_hex(&order.token) {
            Some(_) => Ok(order),
            None => Err(RemoteError::NoOrder("its token is none")),
        }
    }

    fn fill(&mut self, mut into: &mut [u8], deadline: Deadline) -> Result<(), RemoteError> {
        while !into.is_empty() {
            if !wait(&[self.input.as_fd()], deadline).map_err(system("wait for its order"))?[0] {
                return Err(RemoteError::NoOrder("not in time"));
            }
            match self.input.read(into) {
                Ok(0) => return Err(RemoteError::NoOrder("the line ended")),
                Ok(count) => into = &mut into[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(system("read its order")(error)),
            }
        }
        Ok(())
    }

    /// Passes signals on until the program has ended; the end of the line kills it.
    fn watch(&mut self, program: &mut Process) -> io::Result<Exit> {
        let forever = || Deadline::after(COORDINATOR_START_TIMEOUT);
        loop {
            let ready = wait(&[program.pidfd(), self.input.as_fd()], forever())?;
            if ready[0] {
                program.look()?;
                if let Some(exit) = program.exit {
                    return Ok(exit);
                }
            }
            if !ready[1] {
                continue;
            }
            let mut signals = [0; 64];
            let count = match self.input.read(&mut signals) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => 0,
            };
            if count == 0 {
                return Ok(Exit::Signal(Signal::KILL.as_raw()));
            }
            for signal in &signals[..count] {
                let signal = Signal::from_named_raw(i32::from(*signal));
                signal.into_iter().for_each(|signal| program.signal(signal));
            }
        }
    }
}

/// Waits until one of `fds` is ready or the deadline passes. Returns which are ready.
fn wait(fds: &[BorrowedFd<'_>], deadline: Deadline) -> io::Result<Vec<bool>> {
    let mut asked: Vec<PollFd<'_>> = fds
        .iter()
        .map(|fd| PollFd::new(fd, PollFlags::IN))
        .collect();
    let limit = deadline.left().try_into().ok();
    match rustix::event::poll(&mut asked, limit.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(asked.iter().map(|fd| !fd.revents().is_empty()).collect())
}

/// The coordinator's address that is reachable from this host.
fn coordinator(order: &Order) -> Result<String, RemoteError> {
    let mut addresses = order.coordinators.clone();
    // The remote shell came from the launcher's host, unless it came over a third one.
    let shell = std::env::var("SSH_CONNECTION").unwrap_or_default();
    let port = addresses
        .first()
        .and_then(|address| address.rsplit_once(':'));
    if let (true, Some(client), Some((_, port))) =
        (order.ask_shell, shell.split_whitespace().next(), port)
        && let (Ok(ip), Ok(port)) = (client.parse(), port.parse())
    {
        addresses.insert(0, std::net::SocketAddr::new(ip, port).to_string());
    }
    let token =
        JobToken::from_hex(&order.token).ok_or(RemoteError::NoOrder("its token is none"))?;
    let deadline = Deadline::after(HANDSHAKE_TIMEOUT);
    rendezvous::reach(&addresses, &token, deadline).map_err(|source| RemoteError::NoWay { source })
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::os::unix::net::UnixStream;

    #[test]
    fn only_the_first_line_of_a_remote_process_greets() {
        assert_eq!(greeted(b"tidewater-remote 1 77\r"), Some(77));
        for other in [
            "",
            "Welcome to node7",
            "tidewater-remote 2 77",
            "tidewater-remote 1 x",
        ] {
            assert_eq!(greeted(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn what_is_no_order_is_refused() {
        let error_of = |bytes: &[u8]| {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(bytes).unwrap();
            drop(theirs);
            Line { input: ours }.order().err().unwrap().to_string()
        };
        assert!(error_of(b"").contains("the line ended"));
        assert!(error_of(&[9, 0, 0, 0, 1]).contains("the line ended"));
        assert!(error_of(&u32::MAX.to_le_bytes()).contains("too long"));
        assert!(error_of(&[2, 0, 0, 0, 255, 255]).contains("another release"));
    }
}
