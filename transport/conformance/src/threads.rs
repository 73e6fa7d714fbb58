//! The rig of real transports: one thread an end. Also the wiring of shared memory.

use std::panic::resume_unwind;
use std::thread::{self, JoinHandle};

use tidewater_lanes::fabric::{ClientLane, Inbox, SPIN, ServerLane, TransportKind};
use tidewater_lanes::shm::{self, ApplierEnd, ServerMemory};
use tidewater_lanes::wake::OsParker;
use tidewater_protocol::mutants;
use tidewater_runtime::sync::Arc;

use crate::rig::{
    Alive, Client, ClientTask, Done, KEY_CHECK, Machine, Memory, RING_BYTES, Rig, SALT, Served,
    Server, ServerTask, Threads,
};

/// Offset of the applier's parked flag in public memory.
const DOZE_AT: usize = 0;

pub(crate) type Ends = (Box<dyn ClientLane>, Box<dyn ServerLane>, Inbox);

/// Connects a client that sleeps in the first parker to the owner that sleeps in the second.
pub(crate) type Connect = Box<dyn FnMut(&mut OsParker, &mut OsParker) -> Ends>;

pub(crate) struct ThreadRig {
    pub(crate) kind: TransportKind,
    pub(crate) rounds: u64,
    /// Whether the owner never sleeps.
    pub(crate) awake: bool,
    pub(crate) wire: Wire,
    /// Counter of the calling thread's allocations.
    pub(crate) allocations: Option<fn() -> u64>,
}

/// Prepares the connections of one run over a server's memory.
pub(crate) type Wire = Box<dyn Fn(&Memory, &mut OsParker) -> Connect>;

/// The rig of shared memory.
pub(crate) fn shm() -> ThreadRig {
    ThreadRig {
        kind: TransportKind::Shm,
        rounds: 300,
        awake: false,
        wire: Box::new(shm_wire),
        allocations: None,
    }
}

fn shm_wire(memory: &Memory, owner: &mut OsParker) -> Connect {
    let public = (Arc::clone(&memory.public), &memory.public_fd);
    let fd = memory.counters_fd.try_clone().unwrap();
    let counters = (Arc::clone(&memory.counters), fd);
    let server = Arc::new(ServerMemory::new(public, counters, KEY_CHECK).unwrap());
    owner.add_parked_flag(Arc::clone(&memory.public), DOZE_AT);
    Box::new(move |client, owner| {
        let end = ApplierEnd {
            parked_flag_at: DOZE_AT as u64,
            waker: owner.waker().clone(),
        };
        let pair = shm::pair(&server, &end, client.waker(), RING_BYTES, SALT).unwrap();
        let (region, at) = pair.lane.parked_flag();
        client.add_parked_flag(region, at);
        (Box::new(pair.lane), Box::new(pair.port), pair.inbox)
    })
}

impl Rig for ThreadRig {
    fn kind(&self) -> TransportKind {
        self.kind
    }

    fn label(&self) -> String {
        match self.awake {
            false => "threads".to_owned(),
            true => "threads, the owner never sleeps".to_owned(),
        }
    }

    fn rounds(&self) -> u64 {
        self.rounds
    }

    fn allocations(&self) -> Option<fn() -> u64> {
        self.allocations
    }

    fn has_atomics(&self) -> bool {
        self.kind != TransportKind::Verbs || !mutants::device_mask().no_atomics
    }

    fn run(&self, server: ServerTask, clients: Vec<ClientTask>) {
        let memory = Memory::new();
        let alive = Alive::new(clients.len());
        let machine: Arc<dyn Machine> = Arc::new(Threads);
        let mut owner = match self.awake {
            false => OsParker::new(SPIN).unwrap(),
            true => OsParker::awake().unwrap(),
        };
        let mut connect = (self.wire)(&memory, &mut owner);
        let (mut lanes, mut threads) = (Vec::new(), Vec::new());
        for (n, task) in clients.into_iter().enumerate() {
            let mut parker = OsParker::new(SPIN).unwrap();
            let (lane, port, inbox) = connect(&mut parker, &mut owner);
            let open = true;
            lanes.push(Served { port, inbox, open });
            let client = Client {
                lane,
                parker: Box::new(parker),
                keys: memory.keys,
                machine: Arc::clone(&machine),
                _done: Done::of(&alive),
            };
            threads.push(start(format!("client {n}"), move || task(client)));
        }
        let end = Server {
            lanes,
            parker: Box::new(owner),
            view: memory.exports.view(),
            public: Arc::clone(&memory.public),
            counters: Arc::clone(&memory.counters),
            machine,
            alive,
        };
        threads.push(start("server".to_owned(), move || server(end)));
        let ends: Vec<_> = threads.into_iter().map(JoinHandle::join).collect();
        if let Some(why) = ends.into_iter().find_map(Result::err) {
            resume_unwind(why);
        }
    }
}

fn start(name: String, body: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    thread::Builder::new().name(name).spawn(body).unwrap()
}
