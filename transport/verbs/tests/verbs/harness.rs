//! A server's memory and a client on one device, both in this process.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidewater_conformance::test_device;
use tidewater_lanes::fabric::{
    AccessFlags, ClientLane, Inbox, LaneError, ReadDest, ReadOp, RegionTable, RegionTableView,
    RegisteredRegion, RemoteAddr, ServerLane,
};
use tidewater_lanes::wake::OsParker;
use tidewater_protocol::ids::{ApplierId, RegionKey};
use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::layout::ring::RingGeometry;
use tidewater_protocol::layout::session::{MAILBOX_BYTES, inbox_bytes};
use tidewater_protocol::wire::control::{VerbsConnected, VerbsTails};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::Region;
use tidewater_runtime::sync::Arc;
use tidewater_verbs::{
    ClientDomain, Domain, LaneOffer, Notifier, OpenPort, RetryTimeout, VerbsClientLane,
    VerbsServerLane,
};

pub(crate) const RING: usize = 64 << 10;
pub(crate) const SALT: u64 = 7;
pub(crate) const DATA_BYTES: usize = 2 << 20;

/// Tests count packets of the complete device, so they take turns.
static TURN: Mutex<()> = Mutex::new(());

/// A server's registered memory, and both ends' objects of the device.
pub(crate) struct Host {
    pub(crate) open_port: Arc<OpenPort>,
    pub(crate) domain: Arc<Domain>,
    pub(crate) client: Arc<ClientDomain>,
    pub(crate) owner: OsParker,
    pub(crate) applier: Arc<Notifier>,
    pub(crate) exports: Arc<RegionTable>,
    pub(crate) data: Arc<Region>,
    pub(crate) data_key: RegionKey,
    pub(crate) counters: Arc<Region>,
    pub(crate) counters_key: RegionKey,
    _turn: MutexGuard<'static, ()>,
}

/// Client and applier end of a lane.
pub(crate) struct Ends {
    pub(crate) lane: VerbsClientLane,
    pub(crate) port: VerbsServerLane,
    pub(crate) inbox: Inbox,
    pub(crate) parker: OsParker,
    pub(crate) told: VerbsConnected,
    pub(crate) view: RegionTableView,
}

impl Host {
    /// Whether the device may keep a fence.
    pub(crate) fn fences(&self) -> bool {
        self.open_port.device().limits().fences
    }

    /// Opens the device of the tests.
    pub(crate) fn new() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let open_port = test_device::open_port().unwrap_or_else(|e| panic!("{e}"));
        let data = Arc::new(Region::anonymous(DATA_BYTES).unwrap());
        let counters = Arc::new(Region::anonymous(4096).unwrap());
        let words = data.words_mut(0, DATA_BYTES).unwrap();
        words.copy_in(0, &noise(DATA_BYTES));
        let exports = Arc::new(RegionTable::new(0x11));
        let add = |region: &Arc<Region>, rights, memory| {
            let (region, len) = (Arc::clone(region), region.len() as u64);
            let start = 0;
            let export = RegisteredRegion {
                region,
                start,
                len,
                rights,
                memory,
            };
            exports.add(export).unwrap()
        };
        let data_key = add(&data, AccessFlags::Read, 0);
        let counters_key = add(&counters, AccessFlags::Atomic, 1);
        let owner = OsParker::new(Duration::ZERO).unwrap();
        Self {
            domain: Domain::new(&open_port, &exports, RetryTimeout::default()).unwrap(),
            client: ClientDomain::new(&open_port, RetryTimeout::default()).unwrap(),
            applier: Notifier::new(&open_port, owner.reactor(), owner.arms()).unwrap(),
            open_port,
            owner,
            exports,
            data,
            data_key,
            counters,
            counters_key,
            _turn: turn,
        }
    }

    pub(crate) fn inbox(&self) -> Inbox {
        let ring = RingGeometry::new(RING).unwrap();
        let memory = Region::anonymous(inbox_bytes(RING)).unwrap();
        Inbox::new(Arc::new(memory), 0, ring, SALT).unwrap()
    }

    /// Opens a lane with `pulls` pulling pairs; `tamper` changes the answer to its client.
    pub(crate) fn connect_as(
        &self,
        pulls: usize,
        tamper: impl FnOnce(&mut VerbsConnected),
    ) -> Ends {
        let inbox = self.inbox();
        let parker = OsParker::new(Duration::ZERO).unwrap();
        let thread = Notifier::new(&self.open_port, parker.reactor(), parker.arms()).unwrap();
        let offer = LaneOffer::new(&self.client, &thread, pulls, MAILBOX_BYTES).unwrap();
        let connect = offer.connect(ApplierId(0), SALT);
        let name = "the client".to_owned();
        let (port, mut told) =
            VerbsServerLane::accept(&self.domain, &self.applier, &inbox, &connect, name).unwrap();
        tamper(&mut told);
        let lane = offer.open(&told, "the server".to_owned()).unwrap();
        Ends {
            lane,
            port,
            inbox,
            parker,
            told,
            view: self.exports.view(),
        }
    }

    pub(crate) fn connect(&self, pulls: usize) -> Ends {
        self.connect_as(pulls, |_| {})
    }

    /// Opens a lane with a client that takes its applier for one that never sleeps.
    pub(crate) fn connect_polled(&self) -> Ends {
        self.connect_as(1, |told| told.tails = VerbsTails::Polled)
    }

    pub(crate) fn at(&self, addr: usize) -> RemoteAddr {
        RemoteAddr {
            key: self.data_key,
            addr: addr as u64,
        }
    }

    /// Packets that the device has sent so far, both ends' together; `None` where it does not count
    /// them. The kernel caches the figure for some 10 ms.
    pub(crate) fn sent_packets(&self) -> Option<u64> {
        std::thread::sleep(Duration::from_millis(30));
        let device = self.open_port.device();
        let port = self.open_port.port();
        let path = format!(
            "/sys/class/infiniband/{}/ports/{port}/hw_counters/sent_pkts",
            device.name()
        );
        let text = std::fs::read_to_string(Path::new(&path)).ok()?;
        text.trim().parse().ok()
    }
}

impl Ends {
    pub(crate) fn poll_port(&mut self) -> Result<bool, LaneError> {
        self.port.poll(&mut self.view, &self.inbox)
    }

    /// Polls both ends until neither progresses any more.
    pub(crate) fn settle(&mut self) {
        let mut quiet = 0;
        while quiet < 20 {
            let moved = self.poll_port().unwrap() | self.lane.poll().unwrap();
            quiet = if moved { 0 } else { quiet + 1 };
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Reads into fresh memory; returns heads, then bodies.
    pub(crate) fn read(&mut self, ops: &[ReadOp]) -> Result<(Vec<u8>, Vec<u8>), LaneError> {
        let end = |at: fn(&ReadOp) -> usize| ops.iter().map(at).max().unwrap_or(0);
        let mut head = vec![0; end(|o| o.head_at + o.head_len as usize)];
        let mut body = vec![0; end(|o| o.body_at + (o.len - o.head_len) as usize)];
        let into = ReadDest {
            head: &mut head,
            body: &mut body,
        };
        self.lane.read(ops, into, late())?;
        Ok((head, body))
    }
}

/// A deadline long past anything that should happen, in an emulated guest too.
pub(crate) fn late() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

/// Initial bytes of data memory.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8) as u64).flat_map(|i| mix64(i).to_le_bytes());
    words.take(len).collect()
}

/// Builds a read of a row of `len` bytes with a head of 16, as pulls do.
pub(crate) fn row(from: RemoteAddr, len: usize, number: usize) -> ReadOp {
    ReadOp {
        from,
        len: len as u32,
        head_len: 16,
        head_at: number * 16,
        body_at: number * (len - 16),
        fence: false,
    }
}
