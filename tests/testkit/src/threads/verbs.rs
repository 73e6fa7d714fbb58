//! Lanes over verbs for tests: both ends on the device of `tidewater_conformance::test_device`.

use std::sync::Arc;

use tidewater_conformance::test_device;
use tidewater_engine::store::ServerMemory;
use tidewater_lanes::fabric::{ClientLane, Inbox, ServerLane};
use tidewater_lanes::wake::{Arms, OsParker, Reactor};
use tidewater_protocol::ids::ApplierId;
use tidewater_protocol::layout::session::MAILBOX_BYTES;
use tidewater_protocol::mutants;
use tidewater_protocol::wire::control::VerbsTails;
use tidewater_runtime::mem::Buffer;
use tidewater_verbs::{
    ClientDomain, Domain, LaneOffer, Notifier, OpenPort, RetryTimeout, VerbsServerLane,
};

/// Number of a lane's queue pairs that pull.
const PULLS: usize = 2;

fn open_port() -> Arc<OpenPort> {
    test_device::open_port().expect("these tests need an RDMA device: ci/softroce.sh")
}

/// The server's side of verbs lanes.
pub(super) struct Serving {
    domain: Arc<Domain>,
    notifiers: Vec<Arc<Notifier>>,
}

impl Serving {
    pub(super) fn new<'a>(
        memory: &ServerMemory,
        appliers: impl Iterator<Item = (&'a Reactor, &'a Arms)>,
    ) -> Self {
        let open_port = open_port();
        let notifier = |(watch, arms)| Notifier::new(&open_port, watch, arms).unwrap();
        Self {
            domain: Domain::new(&open_port, &memory.exports, RetryTimeout::default()).unwrap(),
            notifiers: appliers.map(notifier).collect(),
        }
    }
}

/// The client thread's side of verbs lanes.
pub(super) struct Asking {
    domain: Arc<ClientDomain>,
    notifier: Arc<Notifier>,
}

impl Asking {
    pub(super) fn new(parker: &OsParker) -> Self {
        let open_port = open_port();
        Self {
            domain: ClientDomain::new(&open_port, RetryTimeout::default()).unwrap(),
            notifier: Notifier::new(&open_port, parker.reactor(), parker.arms()).unwrap(),
        }
    }

    pub(super) fn register(&self, buffer: &mut Buffer) -> Result<(), String> {
        self.domain.register(buffer).map_err(|e| e.to_string())
    }

    /// Creates both ends of a lane to an applier. The server end must be attached before the lane is used.
    pub(super) fn lane(
        &self,
        server: &Serving,
        applier: usize,
        inbox: &Inbox,
    ) -> (Box<dyn ClientLane>, Box<dyn ServerLane>) {
        let offer = LaneOffer::new(&self.domain, &self.notifier, PULLS, MAILBOX_BYTES).unwrap();
        let connect = offer.connect(ApplierId(applier as u16), 0);
        let notifier = &server.notifiers[applier];
        let accepted =
            VerbsServerLane::accept(&server.domain, notifier, inbox, &connect, "client".into());
        let (port, told) = accepted.unwrap();
        let polled = told.tails == VerbsTails::Polled;
        assert_eq!(
            polled,
            mutants::busy_poll(),
            "the other tails are under test"
        );
        let lane = offer.open(&told, "server".into()).unwrap();
        (Box::new(lane), Box::new(port))
    }
}
