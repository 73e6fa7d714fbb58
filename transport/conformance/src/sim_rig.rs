//! The simulator's rig: one world per run.

use std::time::Duration;

use tidewater_lanes::fabric::{Inbox, Mailbox, TransportKind};
use tidewater_lanes::sim::{Faults, Here, LinkSpec, World};
use tidewater_protocol::layout::session::{MAILBOX_BYTES, inbox_bytes};
use tidewater_runtime::mem::Region;
use tidewater_runtime::sync::Arc;

use crate::rig::{
    Alive, Client, ClientTask, Done, Machine, Memory, RING_BYTES, Rig, SALT, Served, Server,
    ServerTask,
};

pub(crate) struct SimRig {
    pub(crate) seed: u64,
    pub(crate) name: &'static str,
    pub(crate) faults: Faults,
    pub(crate) here: Here,
}

struct SimMachine(World);

impl Machine for SimMachine {
    fn step(&self) {
        self.0.step();
    }

    fn nap(&self, time: Duration) {
        self.0.pause(time);
    }
}

impl Rig for SimRig {
    fn kind(&self) -> TransportKind {
        TransportKind::Sim
    }

    fn label(&self) -> String {
        format!("{} seed {}", self.name, self.seed)
    }

    fn repeat(&self) -> String {
        format!("repeat: {}", self.here.repeat(self.seed))
    }

    fn rounds(&self) -> u64 {
        30
    }

    fn in_order(&self) -> bool {
        !self.faults.reorder_writes
    }

    fn run(&self, server: ServerTask, clients: Vec<ClientTask>) {
        let world = World::new(self.seed, self.faults);
        let memory = Memory::new();
        let alive = Alive::new(clients.len());
        let machine: Arc<dyn Machine> = Arc::new(SimMachine(world.clone()));
        let owner = world.parker();
        let mut lanes = Vec::new();
        for (n, task) in clients.into_iter().enumerate() {
            let name = format!("client {n}");
            let ring = Arc::new(Region::anonymous(inbox_bytes(RING_BYTES)).unwrap());
            let inbox = Inbox::new(ring, 0, Memory::ring(), SALT).unwrap();
            inbox.reset_tail(0);
            let mail = Arc::new(Region::anonymous(MAILBOX_BYTES).unwrap());
            let parker = world.parker();
            let (lane, port) = world.connect(LinkSpec {
                client: &name,
                server: "the server",
                exports: &memory.exports,
                inbox: inbox.clone(),
                mailbox: Mailbox::new(mail, 0, MAILBOX_BYTES).unwrap(),
                client_waker: parker.waker(),
                owner_waker: owner.waker(),
                in_order: false,
            });
            lanes.push(Served {
                port: Box::new(port),
                inbox,
                open: true,
            });
            let client = Client {
                lane: Box::new(lane),
                parker: Box::new(parker),
                keys: memory.keys,
                machine: Arc::clone(&machine),
                _done: Done::of(&alive),
            };
            world.spawn(&name, move || task(client));
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
        world.spawn("server", move || server(end));
        if let Some(failure) = world.run().failure {
            panic!("{}: {failure}\n{}", self.label(), self.repeat());
        }
    }
}
