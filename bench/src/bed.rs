//! The cluster that is measured: server processes, and a client of this process that reaches them
//! as any client does. The parent keeps the table catalogue itself; no coordinator is needed to
//! measure.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tidewater_client::connect::{ConnectConfig, NetServerLink};
use tidewater_client::link::{CoordinatorLink, OpenLane, ServerLink};
use tidewater_client::{Client, ClientError, Parts, Sync};
use tidewater_transport::clock::Deadline;
use tidewater_transport::fabric::SPIN;
use tidewater_transport::ids::{ClusterId, ServerId, TableId, WorkerId};
use tidewater_transport::launch::TransportChoice;
use tidewater_transport::limits::HANDSHAKE_TIMEOUT;
use tidewater_transport::placement::Placement;
use tidewater_transport::table::TableSpec;
use tidewater_transport::wake::OsSleeper;
use tidewater_transport::wire::control::{ServerMember, TableInfo};
use tidewater_transport::wire::handshake::JobToken;

use crate::args::{Options, Transport};
use crate::error::BenchError;
use crate::server::{self, Done, Order, Start};

/// A server process and what it said of itself.
#[derive(Debug)]
struct Server {
    process: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// Running servers. They end with the last handle.
#[derive(Debug)]
pub struct Bed {
    servers: Arc<Mutex<Vec<Server>>>,
    members: Vec<ServerMember>,
    config: ConnectConfig,
}

impl Bed {
    /// Starts the servers.
    ///
    /// # Errors
    /// When a process cannot be started, or does not say where it listens.
    pub fn start(options: &Options) -> Result<Self, BenchError> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|e| BenchError::System {
            what: "draw a token".into(),
            source: io::Error::other(e),
        })?;
        let token = JobToken::new(secret);
        let cluster = ClusterId(1);
        let mut servers = Vec::new();
        let mut members = Vec::new();
        for n in 0..options.servers {
            let mut server = Server::spawn()?;
            let start = Start {
                token: token.to_hex(),
                cluster,
                server: ServerId(n),
                servers: options.servers,
                appliers: options.appliers,
                rdma_device: options.rdma_device.as_ref().map(ToString::to_string),
            };
            members.push(server.ask(&start)?);
            servers.push(server);
        }
        let mut config = ConnectConfig::new(token, cluster, 0);
        server::NAMESPACE.clone_into(&mut config.namespace);
        config.transport = match options.transport {
            Transport::Shm => TransportChoice::Shm,
            Transport::Tcp => TransportChoice::Tcp,
            Transport::Verbs => TransportChoice::Verbs,
        };
        config.rdma_device.clone_from(&options.rdma_device);
        Ok(Self {
            servers: Arc::new(Mutex::new(servers)),
            members,
            config,
        })
    }

    /// The client of this thread.
    ///
    /// # Errors
    /// When a server cannot be reached over the transport that was asked for.
    pub fn client(&self) -> Result<Client, BenchError> {
        let mut sleeper = OsSleeper::new(SPIN).map_err(|source| BenchError::System {
            what: "make a doorbell".into(),
            source,
        })?;
        let mut servers: Vec<(Box<dyn ServerLink>, Vec<OpenLane>)> = Vec::new();
        for member in &self.members {
            let deadline = Deadline::after(HANDSHAKE_TIMEOUT);
            let (link, lanes) = NetServerLink::open(member, &self.config, &mut sleeper, deadline)?;
            servers.push((Box::new(link), lanes));
        }
        let coordinator = Box::new(Catalogue {
            servers: Arc::clone(&self.servers),
            appliers: self.members.iter().map(|m| m.appliers).collect(),
            tables: 0,
        });
        Ok(Client::from_parts(Parts {
            coordinator,
            servers,
            sleeper: Box::new(sleeper),
            rank: WorkerId(0),
            workers: 1,
            sync: Sync::Asp,
        })?)
    }

    /// Bytes of each lane's ring.
    pub const fn ring_bytes(&self) -> usize {
        self.config.ring_bytes
    }
}

impl Server {
    fn spawn() -> Result<Self, BenchError> {
        let system = |source| BenchError::System {
            what: "start a server process".into(),
            source,
        };
        let program = std::env::current_exe().map_err(system)?;
        let mut process = Command::new(program)
            .arg(server::COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(system)?;
        let pipes = (process.stdin.take(), process.stdout.take());
        let (Some(orders), Some(answers)) = pipes else {
            return Err(BenchError::Server("it has no pipes".into()));
        };
        Ok(Self {
            process,
            orders: Some(orders),
            answers: BufReader::new(answers),
        })
    }

    /// Gives an order and reads the answer.
    fn ask<T: for<'a> Deserialize<'a>>(&mut self, order: &impl Serialize) -> Result<T, BenchError> {
        let mut line = serde_json::to_vec(order).map_err(|e| ended(&e))?;
        line.push(b'\n');
        let orders = self
            .orders
            .as_mut()
            .ok_or_else(|| ended(&"it was stopped"))?;
        orders.write_all(&line).map_err(|e| ended(&e))?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer).map_err(|e| ended(&e))?;
        serde_json::from_str(&answer).map_err(|e| ended(&e))
    }
}

fn ended(why: &dyn std::fmt::Display) -> BenchError {
    BenchError::Server(format!("{why}; its own message may be above"))
}

impl Drop for Server {
    fn drop(&mut self) {
        // The end of its input ends it.
        self.orders = None;
        let _ = self.process.wait();
    }
}

/// The table catalogue of a run.
struct Catalogue {
    servers: Arc<Mutex<Vec<Server>>>,
    appliers: Vec<u16>,
    tables: u32,
}

impl Catalogue {
    fn servers(&self) -> MutexGuard<'_, Vec<Server>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn order(&self, order: &Order) -> Result<(), ClientError> {
        for (n, server) in self.servers().iter_mut().enumerate() {
            let done: Result<Done, BenchError> = server.ask(order);
            done.map_err(|e| ClientError::Control {
                peer: format!("server {n}"),
                why: e.to_string(),
            })??;
        }
        Ok(())
    }
}

impl CoordinatorLink for Catalogue {
    fn create_table(&mut self, spec: &TableSpec, _: Deadline) -> Result<TableInfo, ClientError> {
        self.tables += 1;
        let info = TableInfo {
            id: TableId(self.tables),
            spec: spec.clone(),
            placement: Placement::round_robin(spec.partitions, &self.appliers),
        };
        self.order(&Order::Create(info.clone()))?;
        Ok(info)
    }

    fn open_table(&mut self, _: &str, _: Deadline) -> Result<TableInfo, ClientError> {
        Err(no_such_call())
    }

    fn release_table(&mut self, id: TableId, _: Deadline) -> Result<(), ClientError> {
        self.order(&Order::Release(id))
    }

    fn barrier(&mut self, _: &str, _: u32, _: Deadline) -> Result<(), ClientError> {
        Err(no_such_call())
    }

    fn save(&mut self, _: &str, _: Deadline) -> Result<(u64, u64), ClientError> {
        Err(no_such_call())
    }

    fn load(&mut self, _: &str, _: Deadline) -> Result<Vec<String>, ClientError> {
        Err(no_such_call())
    }

    fn failed(&mut self, _: &str, _: Deadline) -> Result<(), ClientError> {
        Ok(())
    }

    fn finished(&mut self, _: Deadline) -> Result<(), ClientError> {
        Ok(())
    }
}

/// A run makes tables, uses and releases them.
fn no_such_call() -> ClientError {
    ClientError::Environment("the harness's cluster has no coordinator".into())
}
