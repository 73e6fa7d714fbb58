//! The server process of a run: a server as `tidewater server` starts it, which also reports its
//! usage.

use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use serde::{Deserialize, Serialize};
use tidewater_launch::{FabricSettings, fabric_from_env};
use tidewater_protocol::ids::ServerId;
use tidewater_protocol::limits::COORDINATOR_START_TIMEOUT;
use tidewater_protocol::wire::handshake::JobToken;
use tidewater_runtime::clock::Deadline;
use tidewater_service::process::{ServerProcess, ServerProcessConfig};

use super::child::{CommandReader, answer};
use crate::alloc;
use crate::error::{BenchError, Cause};
use crate::measure::Usage;

/// Name of the hidden subcommand.
pub const ROLE: &str = "__server";

/// Start parameters of a server. Secret: they hold the run's token, and pass through a pipe only.
#[derive(Debug, Serialize, Deserialize)]
pub struct Start {
    /// `HOST:PORT` of the coordinator.
    pub coordinator: String,
    /// Token of the run, 64 hexadecimal digits.
    pub token: String,
    /// Number of this server, from 0.
    pub number: u32,
    /// Number of servers in the run.
    pub servers: u32,
    /// Applier threads of each server.
    pub appliers: u16,
    /// Client threads of the run; 0 hides the number from the server.
    pub clients: u32,
    /// Name of the RDMA device that the server uses.
    pub rdma_device: Option<String>,
    /// Settings of its queue pairs; an unset one is that of the environment.
    pub fabric: FabricSettings,
}

/// Command to a running server: report the usage. The answer is a [`Usage`].
#[derive(Debug, Serialize, Deserialize)]
pub struct Report;

/// Runs a server until its input ends. If the coordinator ends the server first, only reports follow.
///
/// # Errors
/// If it cannot start, or the parent sends something that is no command.
pub fn run() -> Result<(), BenchError> {
    let mut commands = CommandReader::new();
    let Some(start) = commands.take::<Start>()? else {
        return Ok(());
    };
    drop(commands);
    let failed = |cause: Cause| BenchError::process(format!("server {}", start.number), cause);
    let token = JobToken::from_hex(&start.token).ok_or_else(|| failed("no token".into()))?;
    let mut config = ServerProcessConfig::new(&start.coordinator, token, ServerId(start.number));
    config.appliers = start.appliers;
    config.local_rank = start.number;
    config.local_servers = start.servers;
    config.local_clients = start.clients;
    config.rdma_device =
        super::device(start.rdma_device.as_deref()).map_err(|e| failed(e.into()))?;
    let variables = fabric_from_env().map_err(|e| failed(e.into()))?;
    config.fabric = start.fabric.or(variables);
    let deadline = Deadline::after(COORDINATOR_START_TIMEOUT);
    let server = ServerProcess::start(&config, deadline).map_err(|e| failed(e.into()))?;
    let pair = UnixStream::pair();
    let (stop, stopped) = pair.map_err(|e| BenchError::system("make a socket pair", e))?;
    let reporter = std::thread::Builder::new().name("bench-usage".into());
    let reporter = reporter
        .spawn(move || {
            alloc::exclude_this_thread();
            let done = report_usage();
            let _ = stop.shutdown(Shutdown::Both);
            done
        })
        .map_err(|e| BenchError::system("start a thread", e))?;
    answer(&())?;
    let ended = server.run(&[stopped.as_fd()]);
    ended.map_err(|e| failed(e.into()))?;
    // After the coordinator has ended the server, the reporter still waits for the parent, which exits too.
    reporter.join().unwrap_or(Ok(()))
}

/// Answers the parent's commands until its input ends.
fn report_usage() -> Result<(), BenchError> {
    let mut commands = CommandReader::new();
    while commands.take::<Report>()?.is_some() {
        answer(&Usage::without_this_thread())?;
    }
    Ok(())
}
