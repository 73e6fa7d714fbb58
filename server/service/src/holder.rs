//! Report to the coordinator by the holder of a server: its parent process, which can restart it.

use tidewater_control::conn::ConnError;
use tidewater_control::dial::{self, Claims, DialError};
use tidewater_launch::JobFile;
use tidewater_protocol::ids::Incarnation;
use tidewater_protocol::wire::control::{CoordinatorRequest, ServerEnd, status_text};
use tidewater_protocol::wire::hello::{Ids, NAMESPACE_DEFAULT, RANK_ANY, Role};
use tidewater_runtime::clock::Deadline;
use tidewater_topology::hostinfo;

use crate::process::ServerProcessConfig;

/// Reason why a holder could not report the end of its server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The coordinator cannot be reached, or refuses the handshake.
    #[error("coordinator: {0}")]
    Dial(#[from] DialError),
    /// The coordinator refuses the report, or its connection ended.
    #[error("coordinator: {0}")]
    Call(#[from] ConnError),
    /// The configuration has no server number, so a successor could not join as the same server.
    #[error("a server that is started again needs a number: --number N")]
    NoNumber,
}

/// Reports to the coordinator that process `pid`, the server of `config`, has ended; blocks until the answer
/// or `deadline`. `how` completes the sentence, as in "was killed by signal 9". `restarts`: a successor will
/// be started.
///
/// # Errors
/// [`ReportError`]. The coordinator then knows only that the server's connection has closed.
pub fn report_end(
    config: &ServerProcessConfig,
    pid: u32,
    how: &str,
    restarts: bool,
    deadline: Deadline,
) -> Result<(), ReportError> {
    let server = config.number.ok_or(ReportError::NoNumber)?;
    let file = config.job_file.as_ref();
    let claims = Claims {
        ids: file.map_or_else(Ids::default, JobFile::ids),
        namespace: NAMESPACE_DEFAULT.to_owned(),
        role: Role::Admin,
        rank: RANK_ANY,
    };
    let mut conn = dial::control(&config.coordinator, &config.token, &claims, deadline)?;
    let end = ServerEnd {
        server,
        incarnation: Incarnation(0),
        host: hostinfo::host_name(),
        pid,
        how: status_text(how),
    };
    let report = CoordinatorRequest::ServerEnded { end, restarts };
    conn.call(&report, || deadline.left())?;
    Ok(())
}
