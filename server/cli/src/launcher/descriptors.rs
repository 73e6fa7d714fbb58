//! The number of open files of a job, computed before its first process is started.

use tidewater_launch::TransportChoice;
use tidewater_topology::hostinfo;

use super::config::RunConfig;
use super::error::LaunchError;

/// Files for each process that the launcher watches: its pidfd, its two outputs, its control
/// socket.
const OF_A_CHILD: u64 = 4;
/// Further files of the launcher: signals, token, guard, and both ends of the pipes of the process
/// that is being started.
const OF_THE_LAUNCHER: u64 = 24;
/// Files of a server without sessions: memories, sockets, logs, and two for each applier.
const OF_A_SERVER: u64 = 32;

/// Refuses a job if the limit of open files is too low for its processes on this host. The limits
/// of other hosts are unknown here.
pub(super) fn check(config: &RunConfig) -> Result<(), LaunchError> {
    let limit = hostinfo::open_files_max();
    let needs = [
        ("the launcher", launcher(config) + hostinfo::open_files()),
        ("a server", server(config)),
    ];
    let most = needs.into_iter().max_by_key(|(_, needed)| *needed);
    match most {
        Some((process, needed)) if needed > limit => Err(LaunchError::OpenFiles {
            process,
            needed,
            limit,
            servers: config.servers,
            workers: config.workers,
        }),
        _ => Ok(()),
    }
}

fn launcher(config: &RunConfig) -> u64 {
    let members = 1 + u64::from(config.servers) + u64::from(config.workers);
    OF_THE_LAUNCHER + OF_A_CHILD * members
}

/// The least number of files of a server of this host. Over shared memory a session is a control
/// connection, two memories and a waker; over TCP a connection, and one for each applier; over
/// verbs a connection. A server that chooses its appliers itself has one or more.
fn server(config: &RunConfig) -> u64 {
    if config.is_spread() {
        return 0;
    }
    let appliers = u64::from(config.appliers.unwrap_or(1));
    let session = match config.transport {
        TransportChoice::Tcp => 1 + appliers,
        TransportChoice::Verbs => 1,
        _ => 4,
    };
    OF_A_SERVER + 2 * appliers + session * u64::from(config.workers)
}
