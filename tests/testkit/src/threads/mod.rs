// long: one rig for all tests of the system.

//! A cluster without a control plane: appliers on threads, clients wired to them by hand. It tests
//! everything from the client's calls down to the words in memory.

mod barrier;
pub mod raw;
#[cfg_attr(
    not(any(feature = "verbs", feature = "verbs-dlopen")),
    path = "no_verbs.rs"
)]
mod verbs;

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use barrier::Barrier;
use tidewater::error::Cause;
use tidewater::link::{CoordinatorLink, Loaded, OpenLane, Saved, ServerLink};
use tidewater::{Client, ClientError, Parts, SyncMode};
use tidewater_engine::apply::applier::Applier;
use tidewater_engine::apply::command::{ApplierHandle, Command};
use tidewater_engine::apply::table::Table;
use tidewater_engine::namespace::{FrameSender, NamespaceId};
use tidewater_engine::ring_reader::{Ring, RingOwner};
use tidewater_engine::store::memory::DOZE_AT;
use tidewater_engine::store::prealloc::Preallocator;
use tidewater_engine::store::{ServerMemory, ShardId};
use tidewater_lanes::fabric::{ClientLane, Inbox, Mailbox, RemoteAddr, ServerLane, TransportKind};
use tidewater_lanes::shm::memory::{ApplierEnd, SessionMemory};
use tidewater_lanes::tcp::{TcpClientLane, TcpServerLane};
use tidewater_lanes::wake::{Arms, OsParker, Reactor, Waker};
use tidewater_protocol::ids::{
    ApplierId, DomainId, Incarnation, ServerId, SessionId, TableId, WorkerId, WorkerThread,
};
use tidewater_protocol::layout::lines::StateLine;
use tidewater_protocol::layout::ring::RingGeometry;
use tidewater_protocol::layout::session::{MAILBOX_BYTES, inbox_bytes};
use tidewater_protocol::limits::PARTITIONS_AUTO;
use tidewater_protocol::mutants;
use tidewater_protocol::placement::{Owner, Placement, default_partitions};
use tidewater_protocol::table::TableSpec;
use tidewater_protocol::wire::control::{DomainClock, Remote, TableDescriptor, TableInfo};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::{Buffer, Region};

/// Bytes of the push ring of each lane.
pub const RING_BYTES: usize = 256 << 10;

/// One applier, as other components see it.
#[derive(Clone)]
struct ApplierSeat {
    handle: ApplierHandle,
    waker: Waker,
    watch: Reactor,
    arms: Arms,
}

/// One server of the cluster.
pub struct Server {
    /// Memory with its tables.
    pub memory: Arc<ServerMemory>,
    shm: Arc<tidewater_lanes::shm::ServerMemory>,
    appliers: Vec<ApplierSeat>,
    threads: Vec<JoinHandle<()>>,
    verbs: Option<verbs::Serving>,
}

/// Wraps a lane into another one.
pub type Wrap = Arc<dyn Fn(Box<dyn ClientLane>) -> Box<dyn ClientLane> + Send + Sync>;
/// Takes a connection to a server; returns the client's end of a connection through an intermediary.
pub type Through = Arc<dyn Fn(TcpStream) -> TcpStream + Send + Sync>;

/// Components between a client and its servers.
#[derive(Clone)]
pub struct Wiring {
    /// Applied to every lane, now and after each recovery.
    pub wrap: Wrap,
    /// Applied to every connection of a tcp lane.
    pub through: Through,
}

impl Default for Wiring {
    fn default() -> Self {
        Self {
            wrap: Arc::new(|lane| lane),
            through: Arc::new(|server| server),
        }
    }
}

/// Both ends of a lane and the inbox between them.
type Wired = (Box<dyn ClientLane>, Box<dyn ServerLane>, Inbox);
type Catalogue = Arc<Mutex<Vec<TableInfo>>>;

/// A cluster of servers with a shared table catalogue.
pub struct Cluster {
    /// Transport of the lanes of all clients.
    pub transport: TransportKind,
    /// Servers of the cluster, by number.
    pub servers: Arc<Vec<Server>>,
    tables: Catalogue,
    barrier: Arc<Barrier>,
    preallocator: Preallocator,
    workers: u32,
    sessions: tidewater_runtime::sync::AtomicU64,
}

impl Cluster {
    /// Starts `servers` servers with `appliers` appliers each, for `workers` workers.
    pub fn start(transport: TransportKind, servers: u32, appliers: u16, workers: u32) -> Self {
        let servers = (0..servers)
            .map(|s| Server::start(transport, s, appliers, workers))
            .collect();
        Self {
            transport,
            servers: Arc::new(servers),
            tables: Catalogue::default(),
            barrier: Arc::default(),
            preallocator: Preallocator::start().unwrap(),
            workers,
            sessions: tidewater_runtime::sync::AtomicU64::new(1),
        }
    }

    /// Connects a client of worker `rank`.
    pub fn client(&self, rank: u32, sync: SyncMode) -> Client {
        self.client_with(rank, sync, |lane| lane)
    }

    /// Connects a client with lanes wrapped by `wrap`, now and after each recovery.
    pub fn client_with(
        &self,
        rank: u32,
        sync: SyncMode,
        wrap: impl Fn(Box<dyn ClientLane>) -> Box<dyn ClientLane> + Send + Sync + 'static,
    ) -> Client {
        let wrap: Wrap = Arc::new(wrap);
        let wiring = Wiring {
            wrap,
            ..Wiring::default()
        };
        self.client_over(rank, sync, &wiring)
    }

    /// Creates a link to server `s`, with its own session.
    fn link(&self, s: usize, rank: u32, parker: &OsParker, wiring: &Wiring) -> Link {
        let n = self
            .sessions
            .fetch_add(1, tidewater_runtime::sync::Ordering::Relaxed);
        Link {
            servers: Arc::clone(&self.servers),
            server: s,
            session: SessionId(tidewater_protocol::layout::hash::mix64(n)),
            rank: WorkerId(rank),
            transport: self.transport,
            near: parker.reactor().clone(),
            waker: parker.waker().clone(),
            shm: None,
            verbs: (self.transport == TransportKind::Verbs).then(|| verbs::Asking::new(parker)),
            inboxes: Vec::new(),
            statuses: Vec::new(),
            wiring: wiring.clone(),
        }
    }

    /// Connects a client of worker `rank` through `wiring`.
    pub fn client_over(&self, rank: u32, sync: SyncMode, wiring: &Wiring) -> Client {
        let mut parker = OsParker::new(Duration::from_micros(20)).unwrap();
        let mut parts = Vec::new();
        for s in 0..self.servers.len() {
            let mut link = self.link(s, rank, &parker, wiring);
            let lanes = link.open(&mut parker);
            parts.push((Box::new(link) as Box<dyn ServerLink>, lanes));
        }
        let coordinator = Box::new(Coordinator {
            servers: Arc::clone(&self.servers),
            tables: Arc::clone(&self.tables),
            barrier: Arc::clone(&self.barrier),
            preallocator: self.preallocator.clone(),
        });
        Client::from_parts(Parts {
            coordinator,
            servers: parts,
            parker: Box::new(parker),
            rank: WorkerId(rank),
            workers: self.workers,
            sync,
        })
        .unwrap()
    }
}

impl Server {
    fn start(transport: TransportKind, number: u32, appliers: u16, workers: u32) -> Self {
        let memory = ServerMemory::new(4 << 30, Incarnation(0x7700 + u64::from(number))).unwrap();
        let memory = Arc::new(memory);
        let shm = tidewater_lanes::shm::ServerMemory::new(
            (Arc::clone(memory.public.region()), memory.public.fd()),
            (
                Arc::clone(&memory.counters),
                memory.counters_fd.try_clone().unwrap(),
            ),
            memory.exports.check_bits(),
        );
        let mut seats = Vec::new();
        let mut threads = Vec::new();
        for a in 0..u32::from(appliers) {
            let mut parker = match transport == TransportKind::Verbs && mutants::busy_poll() {
                false => OsParker::new(Duration::from_micros(20)).unwrap(),
                // The tails of its lanes are polled.
                true => OsParker::awake().unwrap(),
            };
            parker.add_parked_flag(
                Arc::clone(memory.public.region()),
                DOZE_AT + 64 * a as usize,
            );
            let (handle, commands) = ApplierHandle::new(Some(parker.waker().clone()));
            let seat = ApplierSeat {
                handle,
                waker: parker.waker().clone(),
                watch: parker.reactor().clone(),
                arms: parker.arms().clone(),
            };
            seats.push(seat);
            let ranks = (0..workers).map(WorkerId);
            let mut applier = Applier::new(Arc::clone(&memory), a, ranks, commands).unwrap();
            let name = format!("applier-{number}-{a}");
            let thread = std::thread::Builder::new().name(name);
            threads.push(thread.spawn(move || applier.run(&mut parker)).unwrap());
        }
        let ends = seats.iter().map(|seat| (&seat.watch, &seat.arms));
        let verbs = (transport == TransportKind::Verbs).then(|| verbs::Serving::new(&memory, ends));
        Self {
            memory,
            shm: Arc::new(shm.unwrap()),
            appliers: seats,
            threads,
            verbs,
        }
    }

    /// The applier's handle, for access to its engine.
    pub fn applier(&self, n: usize) -> &ApplierHandle {
        &self.appliers[n].handle
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for a in &self.appliers {
            let _ = a.handle.send(Command::Stop);
        }
        for t in self.threads.drain(..) {
            let _ = t.join();
        }
    }
}

/// One session with one server.
struct Link {
    servers: Arc<Vec<Server>>,
    server: usize,
    session: SessionId,
    rank: WorkerId,
    transport: TransportKind,
    near: Reactor,
    waker: Waker,
    shm: Option<SessionMemory>,
    verbs: Option<verbs::Asking>,
    inboxes: Vec<Inbox>,
    /// Public copy of the status of each lane.
    statuses: Vec<RemoteAddr>,
    wiring: Wiring,
}

/// Address of a piece of registered memory.
pub const fn address(remote: &Remote) -> RemoteAddr {
    RemoteAddr {
        key: remote.key,
        addr: remote.address,
    }
}

/// Creates a connection; returns both ends. One listener serves the whole process. With one port each,
/// thousands of connections within a minute would exhaust the host's ports. The kernel keeps the
/// ports of ended connections for that long.
pub fn connection() -> (TcpStream, TcpStream) {
    static LISTENER: LazyLock<Mutex<TcpListener>> =
        LazyLock::new(|| Mutex::new(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()));
    let listener = LISTENER.lock().unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (there, from) = listener.accept().unwrap();
    assert_eq!(from, here.local_addr().unwrap(), "a stranger came first");
    (here, there)
}

fn tcp_lane(through: &Through, near: &Reactor, far: &Reactor) -> (TcpClientLane, TcpServerLane) {
    let (here, there) = connection();
    let here = through(here);
    let region = Arc::new(Region::anonymous(MAILBOX_BYTES).unwrap());
    let mailbox = Mailbox::new(region, 0, MAILBOX_BYTES).unwrap();
    let lane = TcpClientLane::new(here, "server".into(), mailbox, near.clone()).unwrap();
    (
        lane,
        TcpServerLane::new(there, "client".into(), far.clone()).unwrap(),
    )
}

impl Link {
    fn server(&self) -> &Server {
        &self.servers[self.server]
    }

    /// Creates both ends of a lane over tcp or verbs.
    fn remote_lane(&self, a: usize, inbox: &Inbox) -> (Box<dyn ClientLane>, Box<dyn ServerLane>) {
        let server = self.server();
        if let (Some(asking), Some(serving)) = (&self.verbs, &server.verbs) {
            return asking.lane(serving, a, inbox);
        }
        let watch = &server.appliers[a].watch;
        let (lane, port) = tcp_lane(&self.wiring.through, &self.near, watch);
        (Box::new(lane), Box::new(port))
    }

    fn open(&mut self, parker: &mut OsParker) -> Vec<OpenLane> {
        let ring = RingGeometry::new(RING_BYTES).unwrap();
        let mut made: Vec<Wired> = Vec::new();
        if self.transport == TransportKind::Shm {
            let server = self.server();
            let end = |(a, seat): (usize, &ApplierSeat)| ApplierEnd {
                parked_flag_at: (DOZE_AT + 64 * a) as u64,
                waker: seat.waker.clone(),
            };
            let ends: Vec<_> = server.appliers.iter().enumerate().map(end).collect();
            let memory =
                SessionMemory::create(&server.shm, &ends, RING_BYTES, self.session.0).unwrap();
            for (n, lane) in memory
                .attach_here("server")
                .unwrap()
                .into_iter()
                .enumerate()
            {
                let (region, at) = lane.parked_flag();
                parker.add_parked_flag(region, at);
                let port = memory.port(n, "client", &self.waker).unwrap();
                made.push((Box::new(lane), Box::new(port), memory.inbox(n).unwrap()));
            }
            self.shm = Some(memory);
        } else {
            for a in 0..self.server().appliers.len() {
                let region = Arc::new(Region::anonymous(inbox_bytes(RING_BYTES)).unwrap());
                let inbox = Inbox::new(region, 0, ring, self.session.0).unwrap();
                let (lane, port) = self.remote_lane(a, &inbox);
                made.push((lane, port, inbox));
            }
        }
        let owner = RingOwner {
            session: self.session,
            sender: FrameSender::first(self.rank),
            check_frames: self.transport == TransportKind::Verbs,
        };
        let mut lanes = Vec::new();
        for (a, (lane, port, inbox)) in made.into_iter().enumerate() {
            self.inboxes.push(inbox.clone());
            let ring = Ring::new(owner, inbox, &self.server().memory).unwrap();
            let status = address(&ring.status());
            self.statuses.push(status);
            let server = self.server();
            let handle = &server.appliers[a].handle;
            handle
                .ask(|tx| Command::AddRing(Box::new(ring), tx))
                .unwrap();
            assert!(
                handle
                    .ask(|tx| Command::AttachPort(self.session, port, tx))
                    .unwrap()
            );
            lanes.push(OpenLane {
                lane: (self.wiring.wrap)(lane),
                state: StateLine::default(),
                status: Some(status),
            });
        }
        lanes
    }
}

impl ServerLink for Link {
    fn name(&self) -> &str {
        "server"
    }

    fn session(&self) -> SessionId {
        self.session
    }

    fn transport(&self) -> TransportKind {
        self.transport
    }

    fn ring_bytes(&self) -> usize {
        RING_BYTES
    }

    fn counter(&self, applier: ApplierId) -> Option<RemoteAddr> {
        if self.transport == TransportKind::Verbs && mutants::device_mask().no_atomics {
            return None;
        }
        let word = if self.transport == TransportKind::Verbs {
            8
        } else {
            0
        };
        Some(RemoteAddr {
            key: self.server().memory.counters_key,
            addr: u64::from(applier.0) * 64 + word,
        })
    }

    fn describe(&mut self, id: TableId, _: Deadline) -> Result<TableDescriptor, ClientError> {
        Ok(describe(
            self.server().appliers.iter().map(|a| &a.handle),
            id,
        ))
    }

    fn clocks(
        &mut self,
        domain: DomainId,
        _: Deadline,
    ) -> Result<Vec<(WorkerThread, u64)>, ClientError> {
        let mut all = Vec::new();
        for seat in &self.server().appliers {
            let of = move |e: &mut tidewater_engine::apply::engine::Engine| {
                e.clocks(NamespaceId::default())
                    .live(domain)
                    .collect::<Vec<_>>()
            };
            all.extend(seat.handle.with(of).unwrap());
        }
        Ok(all)
    }

    fn register(&mut self, buffer: &mut Buffer) -> Result<(), Cause> {
        match &self.verbs {
            Some(asking) => Ok(asking.register(buffer)?),
            None => Ok(()),
        }
    }

    fn recover(&mut self, applier: ApplierId, _: Deadline) -> Result<OpenLane, ClientError> {
        let a = applier.0 as usize;
        let seat = self.server().appliers[a].clone();
        let session = self.session;
        let state = seat
            .handle
            .ask(|tx| Command::recover(session, tx))
            .unwrap()
            .unwrap();
        let (lane, port): (Box<dyn ClientLane>, Box<dyn ServerLane>) = match &self.shm {
            Some(memory) => {
                let port = memory.port(a, "client", &self.waker).unwrap();
                let lane = memory.attach_here("server").unwrap().swap_remove(a);
                (Box::new(lane), Box::new(port))
            }
            None => self.remote_lane(a, &self.inboxes[a]),
        };
        assert!(
            seat.handle
                .ask(|tx| Command::AttachPort(session, port, tx))
                .unwrap()
        );
        Ok(OpenLane {
            lane: (self.wiring.wrap)(lane),
            state,
            status: Some(self.statuses[a]),
        })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for a in &self.server().appliers {
            let _ = a.handle.ask(|tx| Command::DropRing(self.session, tx));
        }
    }
}

/// Table description of a server's appliers.
pub fn describe<'a>(
    appliers: impl Iterator<Item = &'a ApplierHandle>,
    id: TableId,
) -> TableDescriptor {
    let mut parts = Vec::new();
    for (a, handle) in appliers.enumerate() {
        let of = move |e: &mut tidewater_engine::apply::engine::Engine| {
            e.table(id).map(|t| t.describe(ApplierId(a as u16)))
        };
        parts.extend(handle.with(of).unwrap());
    }
    TableDescriptor {
        id,
        header_bytes: 16,
        payload_bytes: 0,
        stride_bytes: 0,
        block_bytes: 0,
        parts,
    }
}

/// The table catalogue of the cluster.
struct Coordinator {
    servers: Arc<Vec<Server>>,
    tables: Catalogue,
    barrier: Arc<Barrier>,
    preallocator: Preallocator,
}

impl CoordinatorLink for Coordinator {
    fn create_table(&mut self, spec: &TableSpec, _: Deadline) -> Result<TableInfo, ClientError> {
        let mut tables = self.tables.lock().unwrap();
        let servers = self.servers.iter();
        let appliers: Vec<u16> = servers.map(|s| s.appliers.len() as u16).collect();
        let mut spec = spec.clone();
        if spec.partitions == PARTITIONS_AUTO {
            spec.partitions = default_partitions(&spec, &appliers);
        }
        if let Some(known) = tables.iter().find(|t| t.spec.name == spec.name) {
            assert_eq!(known.spec, spec);
            return Ok(known.clone());
        }
        spec.validate().unwrap();
        let placement = Placement::of_table(&spec, &appliers);
        let id = TableId(tables.len() as u32 + 1);
        let shared = Arc::new(spec.clone());
        for (s, server) in self.servers.iter().enumerate() {
            for (a, seat) in server.appliers.iter().enumerate() {
                let owner = Owner {
                    server: ServerId(s as u32),
                    applier: ApplierId(a as u16),
                };
                let shard_id = ShardId::new(id, a as u32);
                let mine = placement.owned_by(owner);
                let table = Table::new(&server.memory, &self.preallocator, shard_id, &shared, mine)
                    .unwrap();
                seat.handle
                    .ask(|tx| Command::AddTable(Box::new(table), tx))
                    .unwrap();
            }
        }
        let info = TableInfo {
            id,
            spec: spec.clone(),
            placement,
        };
        tables.push(info.clone());
        Ok(info)
    }

    fn open_table(&mut self, name: &str, _: Deadline) -> Result<TableInfo, ClientError> {
        let tables = self.tables.lock().unwrap();
        let found = tables.iter().find(|t| t.spec.name == name);
        let unknown = || {
            Refusal::new(RefusalCode::UnknownTable, [0; 4])
                .with_text(name)
                .into()
        };
        found.cloned().ok_or_else(unknown)
    }

    fn release_table(&mut self, id: TableId, _: Deadline) -> Result<(), ClientError> {
        for server in self.servers.iter() {
            for seat in &server.appliers {
                if let Some(t) = seat.handle.ask(|tx| Command::TakeTable(id, tx)).unwrap() {
                    t.release().unwrap();
                }
            }
        }
        Ok(())
    }

    fn barrier(&mut self, name: &str, count: u32, _: Deadline) -> Result<(), ClientError> {
        self.barrier.meet(name, count)
    }

    fn save(&mut self, _: &str, _: &[DomainClock], _: Deadline) -> Result<Saved, ClientError> {
        unreachable!("tests of this rig do not save")
    }

    fn load(&mut self, _: &str, _: Deadline) -> Result<Loaded, ClientError> {
        unreachable!("tests of this rig do not load")
    }

    fn load_function(&mut self, _: &str, _: &[u8], _: Deadline) -> Result<(), ClientError> {
        unreachable!("tests of this rig load no function")
    }

    fn finished(&mut self, _: Deadline) -> Result<(), ClientError> {
        Ok(())
    }

    fn failed(&mut self, _: &str, _: Deadline) -> Result<(), ClientError> {
        Ok(())
    }
}
