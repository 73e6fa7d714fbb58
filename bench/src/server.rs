//! The server process of a run: this program, started again as its own child.
//!
//! It reads orders from its standard input and answers each on its standard output, one line of
//! JSON each; the first order says who it is. It ends when the input ends, so that it never
//! outlives the run, however that ends.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};
use tidewater_server::node::{Node, NodeConfig, NodeHandle};
use tidewater_transport::ids::{ClusterId, ServerId, TableId};
use tidewater_transport::launch::RdmaDevice;
use tidewater_transport::wire::control::TableInfo;
use tidewater_transport::wire::handshake::JobToken;
use tidewater_transport::wire::refusal::Refusal;

use crate::error::BenchError;

/// Name of the hidden subcommand.
pub const COMMAND: &str = "__server";
/// The namespace of a run.
pub const NAMESPACE: &str = "default";

/// Who a server is. Secret: it holds the run's token, and goes through a pipe only.
#[derive(Debug, Serialize, Deserialize)]
pub struct Start {
    /// The token, 64 hexadecimal digits.
    pub token: String,
    /// The cluster.
    pub cluster: ClusterId,
    /// This server's number.
    pub server: ServerId,
    /// Servers of the run.
    pub servers: u32,
    /// Applier threads of each.
    pub appliers: u16,
    /// The RDMA device to serve through.
    pub rdma_device: Option<String>,
}

/// What a running server is told.
#[derive(Debug, Serialize, Deserialize)]
pub enum Order {
    /// Make your part of a table. Answer: [`Done`].
    Create(TableInfo),
    /// Release it. Answer: [`Done`].
    Release(TableId),
}

/// Answer to an [`Order`].
pub type Done = Result<(), Refusal>;

/// Runs a server until its input ends.
///
/// # Errors
/// When it cannot start, or the parent talks nonsense.
pub fn run() -> Result<(), BenchError> {
    let mut lines = io::stdin().lock().lines();
    let Some(first) = lines.next() else {
        return Ok(());
    };
    let node = start(&parse(&first.map_err(pipe)?)?)?;
    let handle = node.handle();
    answer(&handle.member())?;
    for line in lines {
        let done = execute(&handle, parse(&line.map_err(pipe)?)?);
        answer(&done)?;
    }
    handle.shutdown();
    node.join();
    Ok(())
}

fn start(start: &Start) -> Result<Node, BenchError> {
    let token = JobToken::from_hex(&start.token);
    let token = token.ok_or_else(|| BenchError::Server("the token is no token".into()))?;
    let config = NodeConfig::new(token, start.cluster);
    let config = config.map_err(|e| BenchError::Server(e.to_string()))?;
    let appliers = u32::from(start.appliers);
    let rdma_device = start.rdma_device.as_deref().map(str::parse::<RdmaDevice>);
    let rdma_device = rdma_device.transpose();
    let rdma_device = rdma_device.map_err(|why| BenchError::Server(why.into()))?;
    let config = NodeConfig {
        server: start.server,
        appliers: start.appliers,
        local_rank: start.server.0,
        local_appliers: start.servers * appliers,
        local_clients: 1,
        rdma_device,
        ..config
    };
    Node::start(config).map_err(|e| BenchError::Server(e.to_string()))
}

fn execute(handle: &NodeHandle, order: Order) -> Done {
    match order {
        Order::Create(info) => handle.create_table(NAMESPACE, &info),
        Order::Release(id) => handle.release_table(id),
    }
    .map_err(|e| e.refusal())
}

fn parse<T: for<'a> Deserialize<'a>>(line: &str) -> Result<T, BenchError> {
    serde_json::from_str(line).map_err(|e| BenchError::Server(format!("an order: {e}")))
}

fn answer(what: &impl Serialize) -> Result<(), BenchError> {
    let mut line = serde_json::to_vec(what).map_err(|e| pipe(e.into()))?;
    line.push(b'\n');
    let out = &mut io::stdout().lock();
    out.write_all(&line)
        .and_then(|()| out.flush())
        .map_err(pipe)
}

fn pipe(source: io::Error) -> BenchError {
    BenchError::System {
        what: "talk to the parent process".into(),
        source,
    }
}
