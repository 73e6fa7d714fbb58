//! A cluster in the simulator: complete appliers and clients, each a task of one deterministic world,
//! over lanes that the adversary delays, tears and fails.
//!
//! A queue to each applier (`SimQueue`) replaces the control plane, because a task may block only on
//! objects that the world knows. An answer is polled for between pauses.

pub mod ledger;
pub mod raw;
pub mod stale;

use stale::{LostStatuses, StalePort};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};
use tidewater::link::{
    ConnectThread, CoordinatorLink, Loaded, OpenLane, Saved, ServerLink, ThreadLinks,
};
use tidewater::{Client, ClientError, Element, Parts, SyncMode, Table as ClientTable};
use tidewater_engine::apply::applier::Applier;
use tidewater_engine::apply::command::{ApplierHandle, Command};
use tidewater_engine::apply::engine::Engine;
use tidewater_engine::apply::table::Table;
use tidewater_engine::namespace::{FrameSender, NamespaceId};
use tidewater_engine::ring_reader::{Ring, RingOwner};
use tidewater_engine::store::prealloc::Preallocator;
use tidewater_engine::store::{ServerMemory, ShardId};
use tidewater_lanes::fabric::{Inbox, Mailbox, RemoteAddr, TransportKind};
use tidewater_lanes::sim::{Faults, LinkSpec, Rng, SimClientLane, SimQueue, SimWaker, World};
use tidewater_protocol::ids::{
    ApplierId, DomainId, Incarnation, ServerId, SessionId, TableId, WorkerId, WorkerThread,
};
use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::layout::lines::StateLine;
use tidewater_protocol::layout::ring::RingGeometry;
use tidewater_protocol::layout::session::{MAILBOX_BYTES, inbox_bytes};
use tidewater_protocol::limits::PARTITIONS_AUTO;
use tidewater_protocol::placement::{Owner, Placement, default_partitions, partition_of_key};
use tidewater_protocol::table::TableSpec;
use tidewater_protocol::wire::control::{DomainClock, Remote, TableDescriptor, TableInfo};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::Region;
use tidewater_runtime::sync::{AtomicU64, Ordering};
use tidewater_runtime::wait::wait_until;

/// A deadline far beyond every run without a defect, whatever lanes do.
pub const LONG: Duration = Duration::from_secs(600);
/// Poll interval for an answer: at first, and later.
const FIRST_LOOK: Duration = Duration::from_micros(40);
const LAST_LOOK: Duration = Duration::from_millis(20);

/// Shape of a cluster.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Number of servers of the cluster.
    pub servers: u32,
    /// Number of appliers of each server.
    pub appliers: u16,
    /// Number of workers of the job.
    pub workers: u32,
    /// Bytes of the push ring of each lane.
    pub ring_bytes: usize,
}

/// One applier, as other tasks reach it.
#[derive(Clone)]
pub struct Membership {
    world: World,
    commands: SimQueue<Command>,
    waker: SimWaker,
}

impl Membership {
    /// Sends a command and waits for its answer.
    pub fn ask<T>(&self, make: impl FnOnce(Sender<T>) -> Command) -> T {
        let (tx, answer) = bounded(1);
        self.commands.send(make(tx));
        let mut pause = FIRST_LOOK;
        loop {
            if let Ok(value) = answer.try_recv() {
                return value;
            }
            self.world.pause(pause);
            // A silent failure may delay the answer for seconds.
            pause = (2 * pause).min(LAST_LOOK);
        }
    }

    /// Runs `f` on the applier's engine.
    pub fn with<T: Send + 'static>(&self, f: impl FnOnce(&mut Engine) -> T + Send + 'static) -> T {
        self.ask(|tx| {
            Command::With(Box::new(move |engine| {
                let _ = tx.send(f(engine));
            }))
        })
    }
}

/// One server of the cluster.
pub struct Server {
    memory: Arc<ServerMemory>,
    /// Its appliers, by number.
    pub seats: Vec<Membership>,
}

/// A simulated cluster. Clones share it.
#[derive(Clone)]
pub struct Rig {
    /// World in which appliers and clients are tasks.
    pub world: World,
    /// Servers of the cluster, by number.
    pub servers: Arc<Vec<Server>>,
    tables: Arc<Vec<TableInfo>>,
    /// Workers that wait at the barrier, and how often it has opened.
    barrier: Arc<Mutex<(u32, u64)>>,
    /// One arrival at the barrier in this many leaves it at a deadline; 0 for none.
    pub late_one_in: Arc<AtomicU64>,
    shape: Shape,
    seed: u64,
    /// Whether frames carry a checksum, as those of the client do in the simulator but not over TCP.
    check_frames: bool,
}

/// Creates the tables' shares before the first task runs; `prepare` may fill them.
fn start_server(
    world: &World,
    number: u32,
    shape: Shape,
    tables: &[TableInfo],
    prepare: &dyn Fn(&mut Engine),
) -> Server {
    let memory = ServerMemory::new(256 << 20, Incarnation(0x5100 + u64::from(number))).unwrap();
    let memory = Arc::new(memory);
    let seats = (0..u32::from(shape.appliers)).map(|a| {
        let mut parker = world.parker();
        let commands = SimQueue::<Command>::new(world).waking(&parker);
        let (handle, received) = ApplierHandle::new(None);
        let ranks = (0..shape.workers).map(WorkerId);
        let mut applier = Applier::new(Arc::clone(&memory), a, ranks, received).unwrap();
        for info in tables {
            let owner = Owner {
                server: ServerId(number),
                applier: ApplierId(a as u16),
            };
            let mine = info.placement.owned_by(owner).collect::<Vec<_>>();
            let spec = Arc::new(info.spec.clone());
            let shard = ShardId::new(info.id, a);
            let none = Preallocator::none();
            let table = Table::new(&memory, &none, shard, &spec, mine.into_iter()).unwrap();
            applier.engine().add_table(table);
        }
        prepare(applier.engine());
        let seat = Membership {
            world: world.clone(),
            commands: commands.clone(),
            waker: parker.waker(),
        };
        world.spawn_service(&format!("applier {number}.{a}"), move || {
            loop {
                let idle = Deadline::after(Duration::from_secs(5));
                // A deadline without work is no error: the loop begins again.
                let _ = wait_until(&mut parker, idle, || {
                    while let Some(command) = commands.try_recv() {
                        handle.send(command).unwrap();
                    }
                    let moved = applier.step();
                    assert_eq!(applier.engine().failed, None);
                    Ok::<_, std::convert::Infallible>(moved.then_some(()))
                });
            }
        });
        seat
    });
    let seats = seats.collect();
    Server { memory, seats }
}

impl Rig {
    /// Creates a cluster with these tables.
    pub fn new(seed: u64, faults: Faults, shape: Shape, tables: &[&TableSpec]) -> Self {
        Self::prepared(seed, faults, shape, tables, &|_| {})
    }

    /// Creates a cluster; `prepare` gets its engines before the first frame.
    pub fn prepared(
        seed: u64,
        faults: Faults,
        shape: Shape,
        tables: &[&TableSpec],
        prepare: &dyn Fn(&mut Engine),
    ) -> Self {
        let world = World::new(seed, faults);
        // Ten times the steps of a long run.
        world.limit_steps(1_000_000);
        let appliers = vec![shape.appliers; shape.servers as usize];
        let info = |(n, spec): (usize, &&TableSpec)| {
            let mut spec = (*spec).clone();
            if spec.partitions == PARTITIONS_AUTO {
                spec.partitions = default_partitions(&spec, &appliers);
            }
            spec.validate().unwrap();
            let placement = Placement::of_table(&spec, &appliers);
            TableInfo {
                id: TableId(n as u32 + 1),
                spec,
                placement,
            }
        };
        let tables: Vec<_> = tables.iter().enumerate().map(info).collect();
        // Half of the worlds tick a few rows at a time.
        let prepare = |engine: &mut Engine| {
            if seed % 4 >= 2 {
                engine.set_tick_rows(1 + seed as usize / 4 % 9);
            }
            prepare(engine);
        };
        let servers = (0..shape.servers)
            .map(|s| start_server(&world, s, shape, &tables, &prepare))
            .collect();
        Self {
            world,
            servers: Arc::new(servers),
            tables: Arc::new(tables),
            barrier: Arc::default(),
            late_one_in: Arc::default(),
            shape,
            seed,
            check_frames: !faults.distance.is_some_and(|d| d.reads_in_order),
        }
    }

    /// Server and applier that own a key of a sparse table.
    pub fn owner(&self, table: TableId, key: u64) -> (usize, usize) {
        let info = self.tables.iter().find(|t| t.id == table).unwrap();
        let part = partition_of_key(key, info.spec.partitions);
        let owner = info.placement.0[part.0 as usize];
        (owner.server.0 as usize, owner.applier.0 as usize)
    }

    /// The applier that owns a key of a sparse table.
    pub fn seat_of(&self, table: TableId, key: u64) -> &Membership {
        let (server, applier) = self.owner(table, key);
        &self.servers[server].seats[applier]
    }

    /// Iterates over every applier.
    pub fn seats(&self) -> impl Iterator<Item = &Membership> {
        self.servers.iter().flat_map(|s| &s.seats)
    }

    /// Adds a task to the world.
    pub fn spawn(&self, name: &str, task: impl FnOnce(&Self, Rng) + Send + 'static) {
        let rig = self.clone();
        let rng = self.world.rng();
        self.world.spawn(name, move || task(&rig, rng));
    }

    fn link(&self, server: usize, thread: WorkerThread, life: u32, near: SimWaker) -> Link {
        let WorkerThread { rank, thread: nth } = thread;
        let n =
            u64::from(nth) << 56 | u64::from(rank.0) << 40 | u64::from(life) << 8 | server as u64;
        Link {
            rig: self.clone(),
            server,
            session: SessionId(mix64(self.seed ^ mix64(n + 1))),
            thread,
            near,
            boxes: Vec::new(),
            statuses: Vec::new(),
            lost: Arc::default(),
            keeps_mailbox: self.seed.is_multiple_of(2),
            check_frames: self.check_frames,
            in_order: false,
        }
    }

    /// Connects a client of worker `rank`; must be called from a task. `life` distinguishes its sessions
    /// from those of the worker's earlier and later clients.
    pub fn client(&self, rank: u32, life: u32, sync: SyncMode) -> Client {
        self.client_losing(rank, life, sync, &Arc::default())
    }

    /// As [`Self::client`], over a device that loses statuses as `lost` specifies.
    pub fn client_losing(
        &self,
        rank: u32,
        life: u32,
        sync: SyncMode,
        lost: &Arc<LostStatuses>,
    ) -> Client {
        let threads = Threads {
            rig: self.clone(),
            rank: WorkerId(rank),
            life,
            lost: Arc::clone(lost),
        };
        let ThreadLinks { servers, parker } = threads.connect(0, Deadline::after(LONG)).unwrap();
        let mut client = Client::from_parts(Parts {
            coordinator: Box::new(Coordinator(
                self.clone(),
                Rng::new(self.seed ^ u64::from(rank) << 32),
            )),
            servers,
            parker,
            rank: WorkerId(rank),
            workers: self.shape.workers,
            sync,
        })
        .unwrap();
        client.set_timeout(LONG);
        client.connect_siblings_by(Arc::new(threads));
        client
    }
}

/// Connects threads of one worker.
struct Threads {
    rig: Rig,
    rank: WorkerId,
    life: u32,
    lost: Arc<LostStatuses>,
}

impl ConnectThread for Threads {
    fn connect(&self, thread: u32, _: Deadline) -> Result<ThreadLinks, ClientError> {
        let rank = self.rank;
        let thread = WorkerThread { rank, thread };
        let parker = self.rig.world.parker();
        let mut servers = Vec::new();
        for server in 0..self.rig.servers.len() {
            let mut link = self.rig.link(server, thread, self.life, parker.waker());
            link.lost = Arc::clone(&self.lost);
            let lanes = link.open();
            servers.push((Box::new(link) as Box<dyn ServerLink>, lanes));
        }
        let parker = Box::new(parker);
        Ok(ThreadLinks { servers, parker })
    }
}

/// Opens a table that the rig was created with.
pub fn open<T: Element>(client: &mut Client, name: &str) -> ClientTable<T> {
    client.open_table(name).unwrap()
}

/// One session with one server.
struct Link {
    rig: Rig,
    server: usize,
    session: SessionId,
    thread: WorkerThread,
    near: SimWaker,
    boxes: Vec<(Inbox, Mailbox)>,
    /// Public copy of the status of each lane.
    statuses: Vec<RemoteAddr>,
    /// Status posts that its server lanes lose.
    lost: Arc<LostStatuses>,
    /// A recovered lane keeps its mailbox, as on shared memory, or gets a new one, as on TCP.
    keeps_mailbox: bool,
    /// Whether frames carry a checksum, as those of the client do in the simulator.
    check_frames: bool,
    /// Whether the WRITEs of its lanes are placed in order.
    in_order: bool,
}

fn mailbox() -> Mailbox {
    let region = Arc::new(Region::anonymous(MAILBOX_BYTES).unwrap());
    Mailbox::new(region, 0, MAILBOX_BYTES).unwrap()
}

impl Link {
    fn seat(&self, applier: usize) -> Membership {
        self.rig.servers[self.server].seats[applier].clone()
    }

    fn open(&mut self) -> Vec<OpenLane> {
        let count = self.rig.servers[self.server].seats.len();
        (0..count).map(|a| self.open_lane(a)).collect()
    }

    fn open_lane(&mut self, a: usize) -> OpenLane {
        let ring = RingGeometry::new(self.rig.shape.ring_bytes).unwrap();
        let region = Arc::new(Region::anonymous(inbox_bytes(self.rig.shape.ring_bytes)).unwrap());
        let inbox = Inbox::new(region, 0, ring, self.session.0).unwrap();
        self.boxes.push((inbox.clone(), mailbox()));
        let owner = RingOwner {
            session: self.session,
            sender: FrameSender {
                thread: self.thread,
                namespace: NamespaceId::default(),
            },
            check_frames: self.check_frames,
        };
        let memory = &self.rig.servers[self.server].memory;
        let ring = Ring::new(owner, inbox, memory).unwrap();
        let Remote { key, address, .. } = ring.status();
        self.statuses.push(RemoteAddr { key, addr: address });
        self.seat(a).ask(|tx| Command::AddRing(Box::new(ring), tx));
        match self.attach(a) {
            Some(lane) => OpenLane {
                lane: Box::new(lane),
                state: StateLine::default(),
                status: Some(self.statuses[a]),
            },
            None => self.recover_lane(a),
        }
    }

    /// Connects a lane; `None` if it failed before the applier attached it.
    fn attach(&mut self, a: usize) -> Option<SimClientLane> {
        let seat = self.seat(a);
        if !self.keeps_mailbox {
            self.boxes[a].1 = mailbox();
        }
        let (inbox, mailbox) = self.boxes[a].clone();
        let (lane, port) = self.rig.world.connect(LinkSpec {
            client: "client",
            server: "server",
            exports: &self.rig.servers[self.server].memory.exports,
            inbox,
            mailbox,
            client_waker: self.near.clone(),
            owner_waker: seat.waker.clone(),
            in_order: self.in_order,
        });
        let port = StalePort {
            port,
            lost: Arc::clone(&self.lost),
        };
        seat.ask(|tx| Command::AttachPort(self.session, Box::new(port), tx))
            .then_some(lane)
    }

    fn recover_lane(&mut self, a: usize) -> OpenLane {
        loop {
            let asked = self
                .seat(a)
                .ask(|tx| Command::recover(self.session, tx))
                .expect("the session is known");
            if let Some(lane) = self.attach(a) {
                return OpenLane {
                    lane: Box::new(lane),
                    state: asked,
                    status: Some(self.statuses[a]),
                };
            }
        }
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
        TransportKind::Sim
    }

    fn ring_bytes(&self) -> usize {
        self.rig.shape.ring_bytes
    }

    fn describe(&mut self, id: TableId, _: Deadline) -> Result<TableDescriptor, ClientError> {
        let mut parts = Vec::new();
        for (a, seat) in self.rig.servers[self.server].seats.iter().enumerate() {
            let of = move |e: &mut Engine| e.table(id).map(|t| t.describe(ApplierId(a as u16)));
            parts.extend(seat.with(of));
        }
        Ok(TableDescriptor {
            id,
            header_bytes: 16,
            payload_bytes: 0,
            stride_bytes: 0,
            block_bytes: 0,
            parts,
        })
    }

    fn clocks(
        &mut self,
        domain: DomainId,
        _: Deadline,
    ) -> Result<Vec<(WorkerThread, u64)>, ClientError> {
        let seats = &self.rig.servers[self.server].seats;
        let of = move |e: &mut Engine| {
            e.clocks(NamespaceId::default())
                .live(domain)
                .collect::<Vec<_>>()
        };
        Ok(seats.iter().flat_map(|seat| seat.with(of)).collect())
    }

    fn recover(&mut self, applier: ApplierId, _: Deadline) -> Result<OpenLane, ClientError> {
        Ok(self.recover_lane(applier.0 as usize))
    }
}

impl Drop for Link {
    /// Reports the end of the session without a wait: a world that ends does not answer.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for seat in &self.rig.servers[self.server].seats {
            let (tx, _) = bounded(1);
            seat.commands.send(Command::DropRing(self.session, tx));
        }
    }
}

/// The coordinator of the cluster: its tables and one barrier.
struct Coordinator(Rig, Rng);

impl CoordinatorLink for Coordinator {
    fn create_table(&mut self, spec: &TableSpec, d: Deadline) -> Result<TableInfo, ClientError> {
        self.open_table(&spec.name, d)
    }

    fn open_table(&mut self, name: &str, _: Deadline) -> Result<TableInfo, ClientError> {
        let tables = &self.0.tables;
        Ok(tables.iter().find(|t| t.spec.name == name).unwrap().clone())
    }

    fn release_table(&mut self, _: TableId, _: Deadline) -> Result<(), ClientError> {
        unreachable!("tests of this rig release no table")
    }

    fn barrier(&mut self, _: &str, count: u32, _: Deadline) -> Result<(), ClientError> {
        let opened = {
            let mut state = self.0.barrier.lock().unwrap();
            let opened = state.1;
            state.0 += 1;
            if state.0 == count {
                *state = (0, opened + 1);
            }
            opened
        };
        let late_one_in = self.0.late_one_in.load(Ordering::Relaxed);
        let mut looks = match late_one_in > 0 && self.1.below(late_one_in) == 0 {
            true => self.1.below(4),
            false => u64::MAX,
        };
        let mut pause = FIRST_LOOK;
        while self.0.barrier.lock().unwrap().1 == opened {
            if looks == 0 {
                self.0.barrier.lock().unwrap().0 -= 1;
                let (op, missing) = ("barrier", "a worker".into());
                return Err(ClientError::Deadline { op, missing });
            }
            looks -= 1;
            self.0.world.pause(pause);
            pause = (2 * pause).min(LAST_LOOK);
        }
        Ok(())
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

    fn failed(&mut self, reason: &str, _: Deadline) -> Result<(), ClientError> {
        // The clients of a test that failed are dropped.
        assert!(
            std::thread::panicking(),
            "no worker of this rig gives up: {reason}"
        );
        Ok(())
    }
}

/// Fault presets that tests sweep: calm for one half of the seeds, hostile for the other.
pub fn faults(seed: u64) -> Faults {
    if seed % 4 < 2 {
        Faults::rough()
    } else {
        Faults::hostile()
    }
}
