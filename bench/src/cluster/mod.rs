//! The measured cluster: server processes, and clients that connect as any user's client does. The
//! coordinator is a thread of this process; it is idle while calls are measured, but for those of `queue`.

pub mod child;
pub mod server;
pub mod worker;

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Pid;
use tidewater::{Client, JoinOptions, Joined, SyncMode};
use tidewater_conformance::test_device;
use tidewater_launch::{FabricSettings, RdmaDevice};
use tidewater_protocol::wire::handshake::JobToken;
use tidewater_service::coordinator::{
    CoordinatorConfig, Lifetime, Listening, LostWorker, ServeConfig, serve,
};

use crate::error::{BenchError, Cause};
use crate::measure::{Meter, Usage, of_thread};
use crate::options::{Common, Transport};
use child::Process;

/// Configuration of a cluster.
#[derive(Debug, Clone)]
pub struct ClusterConfig {
    /// Transport of all lanes.
    pub transport: Transport,
    /// RDMA device of servers and clients; `None`: the device that the environment names for tests, if any.
    pub rdma_device: Option<RdmaDevice>,
    /// Settings of the queue pairs of servers and clients.
    pub fabric: FabricSettings,
    /// Number of server processes.
    pub servers: u32,
    /// Applier threads of each server.
    pub appliers: u16,
    /// Number of workers; clocks wait for all of them.
    pub workers: u32,
    /// Core that all servers are pinned to; `None`: not pinned.
    pub pin: Option<usize>,
}

impl ClusterConfig {
    /// One server with one applier for one worker, nothing pinned.
    pub const fn single(transport: Transport) -> Self {
        Self {
            transport,
            rdma_device: None,
            fabric: FabricSettings::UNSET,
            servers: 1,
            appliers: 1,
            workers: 1,
            pin: None,
        }
    }

    /// The cluster that the options of a subcommand describe.
    pub fn of(common: &Common, servers: u32, workers: u32) -> Self {
        Self {
            transport: common.transport,
            rdma_device: common.rdma_device.clone(),
            fabric: common.fabric,
            servers,
            appliers: common.appliers,
            workers,
            pin: common.pin_servers,
        }
    }
}

/// Parses the device name of a command.
fn device(name: Option<&str>) -> Result<Option<RdmaDevice>, String> {
    let device = name.map(str::parse::<RdmaDevice>).transpose();
    device.map_err(str::to_owned)
}

/// Joins a measured cluster and connects the worker.
fn client(job: JoinOptions, sync: SyncMode) -> Result<Client, BenchError> {
    match job.join()? {
        Joined::Worker(job) => Ok(job.client(sync)?),
        Joined::Served => Err(BenchError::process("a client", "it has joined as a server")),
    }
}

/// A running cluster. Dropping it ends it; its clients must be dropped first.
#[derive(Debug)]
pub struct Cluster {
    config: ClusterConfig,
    coordinator: String,
    token: JobToken,
    servers: Vec<Process>,
    /// End of file here makes the coordinator exit.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    /// Thread id of the coordinator, by which the kernel counts its processor time.
    coordinator_thread: Pid,
}

impl Cluster {
    /// Starts the cluster; returns when every server has joined.
    ///
    /// # Errors
    /// If a process cannot be started or does not join.
    pub fn start(mut config: ClusterConfig) -> Result<Self, BenchError> {
        let failed = |cause: Cause| BenchError::process("the coordinator", cause);
        if config.rdma_device.is_none() {
            let named = device(test_device::device().as_deref());
            config.rdma_device = named.map_err(|e| failed(e.into()))?;
        }
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|e| failed(e.into()))?;
        let token = JobToken::new(secret);
        let listening = Listening::bind(ServeConfig {
            listen: SocketAddr::from((test_device::address(), 0)),
            advertise: None,
            token: token.clone(),
            namespaces: Vec::new(),
            cluster: CoordinatorConfig {
                servers: config.servers,
                workers: config.workers,
                on_lost: LostWorker::FailJob,
                lifetime: Lifetime::Launched,
            },
        })
        .map_err(|e| failed(e.into()))?;
        let coordinator = listening.address().to_owned();
        let (stop, stopped) = UnixStream::pair().map_err(|e| failed(e.into()))?;
        let thread = std::thread::Builder::new().name("tw-coordinator".into());
        let (number, numbers) = std::sync::mpsc::channel();
        let run = move || {
            // `start` waits for it below. Without it there is no cluster.
            if number.send(rustix::thread::gettid()).is_err() {
                return;
            }
            crate::alloc::exclude_this_thread();
            // If this fails, the processes that wait for the coordinator report that it is gone.
            let _ = serve(listening, &[stopped.as_fd()]);
        };
        let thread = thread.spawn(run).map_err(|e| failed(e.into()))?;
        let coordinator_thread = numbers.recv().map_err(|e| failed(e.into()))?;
        let mut cluster = Self {
            config,
            coordinator,
            token,
            servers: Vec::new(),
            stop: Some(stop),
            thread: Some(thread),
            coordinator_thread,
        };
        cluster.start_servers()?;
        Ok(cluster)
    }

    fn start_servers(&mut self) -> Result<(), BenchError> {
        let config = self.config.clone();
        for number in 0..config.servers {
            let mut process = Process::start(server::ROLE, format!("server {number}"), config.pin)?;
            process.send(&server::Start {
                coordinator: self.coordinator.clone(),
                token: self.token.to_hex(),
                number,
                servers: config.servers,
                appliers: config.appliers,
                clients: config.workers,
                rdma_device: config.rdma_device.as_ref().map(ToString::to_string),
                fabric: config.fabric,
            })?;
            self.servers.push(process);
        }
        for server in &mut self.servers {
            let () = server.receive()?;
        }
        Ok(())
    }

    /// Connects the client of worker `rank` for this thread.
    ///
    /// # Errors
    /// If a server cannot be reached over the requested transport.
    pub fn client(&self, rank: u32, sync: SyncMode) -> Result<Client, BenchError> {
        let job = JoinOptions {
            coordinator: Some(self.coordinator.clone()),
            token: Some(self.token.clone()),
            rank: Some(rank),
            transport: Some(self.config.transport.choice()),
            rdma_device: self.config.rdma_device.clone(),
            fabric: self.config.fabric,
            ..JoinOptions::default()
        };
        client(job, sync)
    }

    /// Parameters of a worker that runs in its own process.
    pub fn invitation(&self, rank: u32, sync: SyncMode) -> worker::Start {
        worker::Start {
            coordinator: self.coordinator.clone(),
            token: self.token.to_hex(),
            rank,
            transport: self.config.transport,
            rdma_device: self.config.rdma_device.as_ref().map(ToString::to_string),
            fabric: self.config.fabric,
            sync: sync.to_string(),
        }
    }

    /// Configuration that the cluster was started with, with the RDMA device that was found for it.
    pub const fn config(&self) -> &ClusterConfig {
        &self.config
    }

    /// Processor time of the coordinator so far; allocations and memory are 0.
    ///
    /// # Errors
    /// If the coordinator has ended, or the kernel does not count its threads.
    pub fn coordinator(&self) -> Result<Usage, BenchError> {
        of_thread(self.coordinator_thread)
    }

    /// Process ids of the servers, in the order of their numbers.
    pub fn pids(&self) -> Vec<Pid> {
        self.servers.iter().map(Process::pid).collect()
    }

    /// Stops server 0 for `time`, `after` from now, like a debugger or an overloaded machine. Returns at once,
    /// with the thread that does so; `None` without a server or a thread.
    pub fn pause_later(&self, after: Duration, time: Duration) -> Option<JoinHandle<()>> {
        let pid = self.servers.first()?.pid();
        let pause = move || {
            std::thread::sleep(after);
            // The client reports a server that is gone.
            let _ = child::pause(pid, time);
        };
        std::thread::Builder::new().spawn(pause).ok()
    }
}

/// A cluster with the client of its only worker.
#[derive(Debug)]
pub struct OneWorker {
    // Dropped before the cluster.
    /// Client of the worker, under ASP.
    pub client: Client,
    /// Cluster of the worker.
    pub cluster: Cluster,
}

impl OneWorker {
    /// Starts the cluster and connects the worker.
    ///
    /// # Errors
    /// If a process cannot be started or does not join, or the server cannot be reached over the transport.
    pub fn start(config: ClusterConfig) -> Result<Self, BenchError> {
        let cluster = Cluster::start(config)?;
        let client = cluster.client(0, SyncMode::Asp)?;
        Ok(Self { client, cluster })
    }

    /// Ends the worker, and then the cluster.
    ///
    /// # Errors
    /// Errors of the client's call.
    pub fn finish(mut self) -> Result<(), BenchError> {
        Ok(self.client.finish()?)
    }
}

impl Meter for Cluster {
    fn peer(&mut self) -> Result<Usage, BenchError> {
        let mut all = Usage::default();
        for server in &mut self.servers {
            all = all.plus(server.ask(&server::Report)?);
        }
        Ok(all)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The coordinator ends the servers; then their input ends, and the processes exit.
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.servers.clear();
    }
}
