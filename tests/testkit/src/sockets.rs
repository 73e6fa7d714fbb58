//! A server inside this process, and clients that connect over sockets.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Mutex, RwLock, RwLockReadGuard};
use std::time::Duration;

use tidewater::connect::{ConnectConfig, NetServerLink};
use tidewater::link::{CoordinatorLink, Loaded, OpenLane, Saved};
use tidewater::{Client, ClientError, Parts, SyncMode};
use tidewater_conformance::test_device;
use tidewater_lanes::fabric::SPIN;
use tidewater_lanes::wake::OsParker;
use tidewater_launch::{RdmaDevice, TransportChoice};
use tidewater_protocol::ids::{ApplierId, ClusterId, ServerId, TableId, WorkerId};
use tidewater_protocol::limits::PARTITIONS_AUTO;
use tidewater_protocol::placement::{Owner, Placement, default_partitions};
use tidewater_protocol::table::TableSpec;
use tidewater_protocol::wire::control::{DomainClock, ServerMember, TableInfo};
use tidewater_protocol::wire::handshake::JobToken;
use tidewater_runtime::clock::Deadline;
use tidewater_service::server::{Server, ServerConfig, ServerHandle};

/// Identity of the cluster that the server belongs to.
pub const CLUSTER: ClusterId = ClusterId(0xc1);

/// Shared memory, and a network transport: TCP, or verbs with `TIDEWATER_TEST_TRANSPORT=verbs`.
pub static BOTH: LazyLock<[TransportChoice; 2]> = LazyLock::new(|| {
    let verbs = std::env::var("TIDEWATER_TEST_TRANSPORT").is_ok_and(|name| name == "verbs");
    let between = if verbs {
        TransportChoice::Verbs
    } else {
        TransportChoice::Tcp
    };
    [TransportChoice::Shm, between]
});

/// Tests that count this process's descriptors run alone.
static ALONE: RwLock<()> = RwLock::new(());

/// Returns the token of the job.
pub fn token() -> JobToken {
    JobToken::new([7; 32])
}

/// Returns a deadline beyond every wait of a run without a defect: 20 s.
pub fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

/// Returns the settings of a server for four workers over shared memory and TCP, and RDMA if it is under test.
pub fn config() -> ServerConfig {
    let mut config = ServerConfig::new(token(), CLUSTER).unwrap();
    config.capacity = 4 << 30;
    config.workers = 4;
    config.tcp = Some(SocketAddr::from((test_device::address(), 0)));
    config.rdma_device = rdma_device();
    config
}

/// The device of the tests over RDMA, if the environment names one.
pub fn rdma_device() -> Option<RdmaDevice> {
    test_device::device().map(|name| name.parse().unwrap())
}

/// Tables by job, in the order of their numbers.
type Tables = Arc<Mutex<Vec<(String, TableInfo)>>>;

/// A server and its table catalogue.
pub struct Rig {
    /// The server that clients connect to.
    pub node: Server,
    tables: Tables,
    _shared: Option<RwLockReadGuard<'static, ()>>,
}

impl Rig {
    /// Starts a server with the settings of [`config`].
    pub fn start() -> Self {
        Self::with(config())
    }

    /// Starts a server with these settings.
    pub fn with(config: ServerConfig) -> Self {
        let mut rig = Self::alone(config);
        rig._shared = Some(ALONE.read().unwrap_or_else(|e| e.into_inner()));
        rig
    }

    /// Starts a server for a test that holds [`ALONE`].
    fn alone(config: ServerConfig) -> Self {
        Self {
            node: Server::start(config).unwrap(),
            tables: Arc::default(),
            _shared: None,
        }
    }

    /// Returns the handle of the server.
    pub fn handle(&self) -> ServerHandle {
        self.node.handle()
    }

    /// Returns the addresses of the server as a coordinator lists them.
    pub fn member(&self) -> ServerMember {
        self.handle().member()
    }

    /// Opens the session of a client thread, without a client.
    ///
    /// # Errors
    /// The refusal of the server, or that it does not answer.
    pub fn link(
        &self,
        config: &ConnectConfig,
    ) -> Result<(NetServerLink, Vec<OpenLane>), ClientError> {
        let mut parker = OsParker::new(SPIN).unwrap();
        NetServerLink::open(&self.member(), config, &mut parker, soon())
    }

    /// Connects a client of a rank.
    pub fn client(&self, transport: TransportChoice, rank: u32) -> Client {
        let mut config = ConnectConfig::new(token(), CLUSTER, rank);
        config.transport = transport;
        config.rdma_device = rdma_device();
        self.client_at(&self.member(), &config).unwrap()
    }

    /// Connects a client in mode ASP to the server at these addresses, which may be those of a proxy.
    ///
    /// # Errors
    /// The refusal of the server, or that it does not answer.
    pub fn client_at(
        &self,
        at: &ServerMember,
        config: &ConnectConfig,
    ) -> Result<Client, ClientError> {
        self.client_with(at, config, SyncMode::Asp)
    }

    /// Connects a client to the server at these addresses, which may be those of a proxy.
    ///
    /// # Errors
    /// The refusal of the server, or that it does not answer.
    pub fn client_with(
        &self,
        at: &ServerMember,
        config: &ConnectConfig,
        sync: SyncMode,
    ) -> Result<Client, ClientError> {
        let mut parker = OsParker::new(SPIN).unwrap();
        let (link, lanes) = NetServerLink::open(at, config, &mut parker, soon())?;
        let coordinator = Catalogue {
            handle: self.handle(),
            namespace: config.namespace.clone(),
            tables: Arc::clone(&self.tables),
        };
        Client::from_parts(Parts {
            coordinator: Box::new(coordinator),
            servers: vec![(Box::new(link), lanes)],
            parker: Box::new(parker),
            rank: WorkerId(config.rank),
            workers: 4,
            sync,
        })
    }

    /// The tables that clients have created.
    pub fn infos(&self) -> Vec<TableInfo> {
        let tables = self.tables.lock().unwrap();
        tables.iter().map(|(_, info)| info.clone()).collect()
    }

    /// Adds tables that clients can open.
    pub fn knows(&self, namespace: &str, infos: &[TableInfo]) {
        let infos = infos.iter().map(|i| (namespace.to_owned(), i.clone()));
        self.tables.lock().unwrap().extend(infos);
    }

    /// Waits until `count` sessions are left.
    pub fn wait_for_sessions(&self, count: usize) {
        wait(
            || self.handle().status().unwrap().sessions == count,
            "sessions do not end",
        );
    }
}

/// Runs `test` alone in this process.
pub fn alone(config: ServerConfig, test: impl FnOnce(Rig)) {
    let _guard = ALONE.write().unwrap_or_else(|e| e.into_inner());
    test(Rig::alone(config));
}

/// Waits until `done` returns true; panics with `what` after the time of [`soon`].
pub fn wait(mut done: impl FnMut() -> bool, what: &str) {
    let deadline = soon();
    while !done() {
        assert!(!deadline.passed(), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The part of the coordinator that tables need.
struct Catalogue {
    handle: ServerHandle,
    namespace: String,
    tables: Tables,
}

/// Returns the description of a table of the server, with its partitions on the appliers in turn.
pub fn info(handle: &ServerHandle, id: u32, spec: &TableSpec) -> TableInfo {
    let appliers = handle.appliers();
    let owner = |p| Owner {
        server: ServerId(0),
        applier: ApplierId((p % u32::from(appliers)) as u16),
    };
    let mut spec = spec.clone();
    if spec.partitions == PARTITIONS_AUTO {
        spec.partitions = default_partitions(&spec, &[appliers]);
    }
    let placement = Placement((0..spec.partitions).map(owner).collect());
    TableInfo {
        id: TableId(id),
        spec,
        placement,
    }
}

impl CoordinatorLink for Catalogue {
    fn create_table(&mut self, spec: &TableSpec, _: Deadline) -> Result<TableInfo, ClientError> {
        let mut tables = self.tables.lock().unwrap();
        let info = info(&self.handle, tables.len() as u32 + 1, spec);
        tables.push((self.namespace.clone(), info.clone()));
        let made = self.handle.create_table(&self.namespace, &info);
        made.map_err(|e| ClientError::Refused(e.refusal()))?;
        Ok(info)
    }

    fn open_table(&mut self, name: &str, _: Deadline) -> Result<TableInfo, ClientError> {
        let tables = self.tables.lock().unwrap();
        let mine = |(job, info): &&(String, TableInfo)| {
            (job.as_str(), info.spec.name.as_str()) == (self.namespace.as_str(), name)
        };
        let found = tables.iter().find(mine).map(|(_, info)| info.clone());
        found.ok_or_else(|| ClientError::Environment(format!("no table {name}").into()))
    }

    fn release_table(&mut self, id: TableId, _: Deadline) -> Result<(), ClientError> {
        let released = self.handle.release_table(id);
        released.map_err(|e| ClientError::Refused(e.refusal()))
    }

    fn barrier(&mut self, _: &str, _: u32, _: Deadline) -> Result<(), ClientError> {
        Err(ClientError::Environment("no barrier here".into()))
    }

    fn save(&mut self, _: &str, _: &[DomainClock], _: Deadline) -> Result<Saved, ClientError> {
        Err(ClientError::Environment("no disk here".into()))
    }

    fn load(&mut self, _: &str, _: Deadline) -> Result<Loaded, ClientError> {
        Err(ClientError::Environment("no disk here".into()))
    }

    fn load_function(&mut self, name: &str, module: &[u8], _: Deadline) -> Result<(), ClientError> {
        let loaded = self.handle.load_function(&self.namespace, name, module);
        loaded.map_err(|e| ClientError::Refused(e.refusal()))
    }

    fn failed(&mut self, _: &str, _: Deadline) -> Result<(), ClientError> {
        Ok(())
    }

    fn finished(&mut self, _: Deadline) -> Result<(), ClientError> {
        Ok(())
    }
}
