//! A served lane: the client's end here, the server lane polled by a thread as an applier would.

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tidewater_lanes::fabric::{
    AccessFlags, Inbox, LaneError, Parker, ReadOp, RegionTable, RegionTableView, RegisteredRegion,
    RemoteAddr, ServerLane,
};
use tidewater_lanes::tcp::{TcpClientLane, TcpServerLane, pair};
use tidewater_lanes::wake::OsParker;
use tidewater_protocol::ids::RegionKey;
use tidewater_protocol::layout::hash::mix64;
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::Region;

pub(crate) const RING: usize = 1 << 20;
pub(crate) const SALT: u64 = 7;
pub(crate) const DATA_BYTES: usize = 4 << 20;

/// A server's memory: readable data, filled with noise, and a page of counters.
pub(crate) struct Memory {
    pub(crate) data: Arc<Region>,
    pub(crate) data_key: RegionKey,
    pub(crate) counters: Arc<Region>,
    pub(crate) counter_key: RegionKey,
    pub(crate) exports: Arc<RegionTable>,
}

impl Memory {
    pub(crate) fn new() -> Self {
        Self::of(DATA_BYTES)
    }

    /// Creates a memory with little data, for tests that create many.
    pub(crate) fn new_small() -> Self {
        Self::of(8192)
    }

    fn of(bytes: usize) -> Self {
        let data = Arc::new(Region::anonymous(bytes).unwrap());
        let counters = Arc::new(Region::anonymous(4096).unwrap());
        data.words_mut(0, bytes).unwrap().copy_in(0, &noise(bytes));
        let exports = Arc::new(RegionTable::new(0x11));
        let add = |region: &Arc<Region>, rights, memory| {
            let len = region.len() as u64;
            let region = Arc::clone(region);
            let export = RegisteredRegion {
                region,
                start: 0,
                len,
                rights,
                memory,
            };
            exports.add(export).unwrap()
        };
        Self {
            data_key: add(&data, AccessFlags::Read, 0),
            counter_key: add(&counters, AccessFlags::Atomic, 1),
            data,
            counters,
            exports,
        }
    }

    pub(crate) fn at(&self, addr: u64) -> RemoteAddr {
        RemoteAddr {
            key: self.data_key,
            addr,
        }
    }

    pub(crate) fn counter(&self, addr: u64) -> RemoteAddr {
        RemoteAddr {
            key: self.counter_key,
            addr,
        }
    }
}

/// Content of fresh data memory.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    (0..len.div_ceil(8) as u64)
        .flat_map(|i| mix64(i).to_le_bytes())
        .take(len)
        .collect()
}

/// Polls a server lane until stopped or the lane breaks; sleeps as an applier does.
pub(crate) struct Served {
    thread: JoinHandle<LaneError>,
    pub(crate) port: Arc<Mutex<TcpServerLane>>,
}

impl Served {
    pub(crate) fn new(
        mut parker: OsParker,
        port: TcpServerLane,
        mut view: RegionTableView,
        inbox: Inbox,
    ) -> Self {
        let port = Arc::new(Mutex::new(port));
        let shared = Arc::clone(&port);
        let mut poll = move || shared.lock().unwrap().poll(&mut view, &inbox);
        let thread = std::thread::spawn(move || {
            loop {
                parker.prepare_park();
                match poll() {
                    Err(e) => return e,
                    Ok(true) => {}
                    Ok(false) => parker.park_until(Deadline::after(Duration::from_secs(5))),
                }
                parker.cancel_park();
            }
        });
        Self { thread, port }
    }

    /// Waits until the lane fails, as it does when its client is dropped.
    pub(crate) fn broken(self) -> LaneError {
        self.thread.join().unwrap()
    }
}

/// A client lane, its parker, its server thread, and its inbox.
pub(crate) fn served(memory: &Memory) -> (TcpClientLane, OsParker, Served, Inbox) {
    let near = OsParker::new(Duration::ZERO).unwrap();
    let far = OsParker::new(Duration::ZERO).unwrap();
    let (lane, port, inbox) =
        pair(RING, SALT, near.reactor().clone(), far.reactor().clone()).unwrap();
    let served = Served::new(far, port, memory.exports.view(), inbox.clone());
    (lane, near, served, inbox)
}

/// Both ends of a lane, with no thread that polls the server lane yet.
pub(crate) fn unserved() -> (TcpClientLane, TcpServerLane, Inbox, [OsParker; 2]) {
    let near = OsParker::new(Duration::ZERO).unwrap();
    let far = OsParker::new(Duration::ZERO).unwrap();
    let (lane, port, inbox) =
        pair(RING, SALT, near.reactor().clone(), far.reactor().clone()).unwrap();
    (lane, port, inbox, [near, far])
}

pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

/// Builds a read into the body only.
pub(crate) fn plain(from: RemoteAddr, len: u32, body_at: usize) -> ReadOp {
    ReadOp {
        from,
        len,
        head_len: 0,
        head_at: 0,
        body_at,
        fence: false,
    }
}

/// A seeded random source.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix64(self.0) % n.max(1)
    }
}
