//! The interface that a transport implements for the suite, and the ends that a test gets.

use std::os::fd::OwnedFd;
use std::time::Duration;

use tidewater_lanes::fabric::*;
use tidewater_protocol::ids::RegionKey;
use tidewater_protocol::layout::lines::CheckedU64;
use tidewater_protocol::layout::ring::RingGeometry;
use tidewater_protocol::layout::session::{INBOX_TAIL_AT, MAILBOX_REPLIES_AT};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::Region;
use tidewater_runtime::sync::{Arc, AtomicUsize, Ordering};

pub(crate) const RING_BYTES: usize = 16 << 10;
pub(crate) const SALT: u64 = 0x5a17;
pub(crate) const KEY_CHECK: u8 = 0x5a;
const PUBLIC_BYTES: usize = 1 << 20;
/// Start of the memory that clients may read; below, transports keep words of their own.
pub(crate) const DATA_AT: usize = 64 << 10;
pub(crate) const DATA_BYTES: usize = 512 << 10;
pub(crate) const COUNTERS_BYTES: usize = 4096;
/// A part of the mailbox that no protocol uses.
pub(crate) const MAIL_AT: usize = MAILBOX_REPLIES_AT;

/// A transport under test.
pub(crate) trait Rig {
    fn kind(&self) -> TransportKind;

    /// Seed and faults of the run, or empty.
    fn label(&self) -> String;

    /// Command that runs it again, if a repetition gives the same run.
    fn repeat(&self) -> String {
        String::new()
    }

    /// Number of rounds in a test: threads are fast, worlds are many.
    fn rounds(&self) -> u64;

    /// Whether WRITEs are placed in the order of their posts, which exceeds F04 and F15.
    fn in_order(&self) -> bool {
        true
    }

    /// Counter of the calling thread's allocations so far, in a program that counts them.
    fn allocations(&self) -> Option<fn() -> u64> {
        None
    }

    /// Whether its lanes have atomics.
    fn has_atomics(&self) -> bool {
        true
    }

    /// Connects one lane per client to one server and runs all of them concurrently to their ends. Panics
    /// when one of them does.
    fn run(&self, server: ServerTask, clients: Vec<ClientTask>);
}

pub(crate) type ServerTask = Box<dyn FnOnce(Server) + Send>;
pub(crate) type ClientTask = Box<dyn FnOnce(Client) + Send>;

/// Time on the rig's machine.
pub(crate) trait Machine: Send + Sync {
    /// Yields to other tasks, in the middle of an operation.
    fn step(&self);
    /// Sleeps for a while.
    fn nap(&self, time: Duration);
}

/// Real threads of this machine.
pub(crate) struct Threads;

impl Machine for Threads {
    fn step(&self) {
        std::hint::spin_loop();
    }

    fn nap(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// A server's memory, as every transport registers it.
pub(crate) struct Memory {
    pub(crate) public: Arc<Region>,
    pub(crate) public_fd: OwnedFd,
    pub(crate) counters: Arc<Region>,
    pub(crate) counters_fd: OwnedFd,
    pub(crate) exports: Arc<RegionTable>,
    pub(crate) keys: Keys,
}

#[derive(Clone, Copy)]
pub(crate) struct Keys {
    pub(crate) data: RegionKey,
    pub(crate) counters: RegionKey,
}

impl Memory {
    pub(crate) fn new() -> Self {
        let (public, public_fd) = Region::memfd("conformance-public", PUBLIC_BYTES).unwrap();
        let (counters, counters_fd) = Region::memfd("conformance-count", COUNTERS_BYTES).unwrap();
        let (public, counters) = (Arc::new(public), Arc::new(counters));
        let exports = Arc::new(RegionTable::new(KEY_CHECK));
        let add = |region: &Arc<Region>, start, len, rights, memory| {
            let region = Arc::clone(region);
            let (start, len) = (start as u64, len as u64);
            let export = RegisteredRegion {
                region,
                start,
                len,
                rights,
                memory,
            };
            exports.add(export).unwrap()
        };
        let keys = Keys {
            data: add(&public, DATA_AT, DATA_BYTES, AccessFlags::Read, 0),
            counters: add(&counters, 0, COUNTERS_BYTES, AccessFlags::Atomic, 1),
        };
        Self {
            public,
            public_fd,
            counters,
            counters_fd,
            exports,
            keys,
        }
    }

    pub(crate) fn ring() -> RingGeometry {
        RingGeometry::new(RING_BYTES).unwrap()
    }
}

/// Counts the unfinished clients; a panic counts as finished.
#[derive(Clone)]
pub(crate) struct Alive(Arc<AtomicUsize>);

impl Alive {
    pub(crate) fn new(clients: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(clients)))
    }

    fn none_left(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}

pub(crate) struct Served {
    pub(crate) port: Box<dyn ServerLane>,
    pub(crate) inbox: Inbox,
    pub(crate) open: bool,
}

/// Input of a server task.
pub(crate) struct Server {
    pub(crate) lanes: Vec<Served>,
    pub(crate) parker: Box<dyn Parker>,
    pub(crate) view: RegionTableView,
    pub(crate) public: Arc<Region>,
    pub(crate) counters: Arc<Region>,
    pub(crate) machine: Arc<dyn Machine>,
    pub(crate) alive: Alive,
}

/// Input of a client task.
pub(crate) struct Client {
    pub(crate) lane: Box<dyn ClientLane>,
    pub(crate) parker: Box<dyn Parker>,
    pub(crate) keys: Keys,
    pub(crate) machine: Arc<dyn Machine>,
    pub(crate) _done: Done,
}

/// Marks a client as done when dropped.
pub(crate) struct Done(Alive);

impl Done {
    pub(crate) fn of(alive: &Alive) -> Self {
        Self(alive.clone())
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Release);
    }
}

/// A deadline long past anything that should happen.
pub(crate) fn late() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

pub(crate) fn at(key: RegionKey, addr: usize) -> RemoteAddr {
    RemoteAddr {
        key,
        addr: addr as u64,
    }
}

impl Server {
    /// Polls every open lane; destroys failed ones.
    pub(crate) fn poll(&mut self) -> bool {
        let mut moved = false;
        for lane in self.lanes.iter_mut().filter(|l| l.open) {
            match lane.port.poll(&mut self.view, &lane.inbox) {
                Ok(some) => moved |= some,
                Err(_) => {
                    lane.port.destroy();
                    lane.open = false;
                }
            }
        }
        moved
    }

    /// Serves until all clients are done.
    pub(crate) fn serve(mut self) {
        while !self.alive.none_left() {
            if self.poll() {
                continue;
            }
            self.parker.prepare_park();
            if !self.poll() {
                self.parker
                    .park_until(Deadline::after(Duration::from_millis(2)));
            }
            self.parker.cancel_park();
        }
    }

    pub(crate) fn clients_left(&self) -> bool {
        !self.alive.none_left()
    }

    /// The tail that a client wrote, if its checksum matches.
    pub(crate) fn tail(&self, lane: usize) -> u64 {
        self.lanes[lane].inbox.tail().unwrap_or(0)
    }

    /// Posts a number with its checksum into a client's mailbox.
    pub(crate) fn tell(&mut self, lane: usize, cell: usize, value: u64) {
        let lane = &mut self.lanes[lane];
        if lane.open
            && lane
                .port
                .post(MAIL_AT + cell * 64, &checked(value))
                .is_err()
        {
            lane.open = false;
        }
    }
}

pub(crate) fn checked(value: u64) -> [u8; 16] {
    let CheckedU64([v, checksum]) = CheckedU64::new(value, SALT);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&v.to_le_bytes());
    bytes[8..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

impl Client {
    /// Reads `len` bytes of the server's data synchronously.
    pub(crate) fn read(&mut self, addr: usize, len: usize) -> Result<Vec<u8>, LaneError> {
        let mut body = vec![0; len];
        let op = op_at(self.keys.data, addr, len);
        let into = ReadDest {
            head: &mut [],
            body: &mut body,
        };
        self.lane.read(&[op], into, late())?;
        Ok(body)
    }

    /// Writes a new tail to the server, and wakes it.
    pub(crate) fn signal_tail(&mut self, tail: u64) -> Result<(), LaneError> {
        self.lane
            .write_signal(at(INBOX_KEY, INBOX_TAIL_AT), &checked(tail))
    }

    /// A cell of the mailbox, if its checksum matches.
    pub(crate) fn posted(&self, cell: usize) -> Option<u64> {
        let words = self.lane.mailbox().words(MAIL_AT + cell * 64, 16);
        let pair = [words.load_acquire(0), words.load_acquire(8)];
        CheckedU64(pair).value(SALT).filter(|_| pair[0] != 0)
    }

    /// Sleeps until `done`, polling after each wake-up; false at the deadline. Never spins: a missing
    /// wake-up makes it late.
    pub(crate) fn sleep_until(
        &mut self,
        deadline: Deadline,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> Result<bool, LaneError> {
        loop {
            self.lane.poll()?;
            if done(self) {
                return Ok(true);
            }
            self.parker.prepare_park();
            self.lane.poll()?;
            if !done(self) && !deadline.passed() {
                self.parker.park_until(deadline);
            }
            self.parker.cancel_park();
            if deadline.passed() {
                return Ok(done(self));
            }
        }
    }

    /// Polls until the lane reports its failure.
    pub(crate) fn wait_for_the_break(&mut self) -> LaneError {
        let deadline = late();
        loop {
            if let Err(error) = self.lane.poll() {
                return error;
            }
            assert!(!deadline.passed(), "the lane does not break");
            self.machine.nap(Duration::from_micros(100));
        }
    }
}

/// Builds a read of server data into the body.
pub(crate) fn op_at(key: RegionKey, addr: usize, len: usize) -> ReadOp {
    ReadOp {
        from: at(key, addr),
        len: len as u32,
        head_len: 0,
        head_at: 0,
        body_at: 0,
        fence: false,
    }
}
