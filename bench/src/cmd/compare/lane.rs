//! A verbs lane alone: reads, atomics, and pushes until they have arrived, without a server.
//!
//! A client's ticket reports that a push is applied, not that it has arrived. Therefore this module
//! holds both ends of a lane in one process, and reads the ring's tail like an applier.

use std::time::Duration;

use tidewater_conformance::test_device;
use tidewater_lanes::fabric::{
    AccessFlags, ClientLane, INBOX_KEY, Inbox, LaneError, ReadDest, ReadOp, RegionTable,
    RegionTableView, RegisteredRegion, RemoteAddr, ServerLane,
};
use tidewater_lanes::wake::OsParker;
use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::layout::lines::CheckedU64;
use tidewater_protocol::layout::session::{INBOX_RING_AT, INBOX_TAIL_AT};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::{Buffer, Region};
use tidewater_runtime::sync::Arc;
use tidewater_verbs::{
    ClientDomain, Domain, Notifier, RetryTimeout, VerbsClientLane, VerbsServerLane, pair,
};

use crate::error::{BenchError, Cause};
use crate::measure::Work;

/// Default ring size of a session, bytes.
const RING: usize = 1 << 20;
/// Largest frame that the ring holds, bytes.
const FRAME: usize = RING / 4;
const SALT: u64 = 5;
/// Seed of the keys of registered regions.
const KEYS: u8 = 5;
/// Queue pairs that pull, as many as clients have.
const PULLS: usize = 4;
/// Size of the memory that is read, bytes.
const DATA: usize = 1 << 20;
const COUNTERS: usize = 4096;
const LANE_TIMEOUT: Duration = Duration::from_secs(20);

/// Both ends of a lane, and memory that the client's end reads and swaps.
pub(super) struct Ends {
    lane: VerbsClientLane,
    client: Arc<ClientDomain>,
    port: VerbsServerLane,
    inbox: Inbox,
    view: RegionTableView,
    data: RemoteAddr,
    counter: RemoteAddr,
    /// Parkers of the two ends' threads; kept as long as wake-ups may arrive.
    _sleepers: [OsParker; 2],
    tail: u64,
}

impl Ends {
    /// Connects both ends over the RDMA device of the tests: by default the one with the address 127.0.0.1.
    ///
    /// # Errors
    /// If there is no such device, or it rejects an operation.
    pub(super) fn new() -> Result<Self, BenchError> {
        let open_port = test_device::open_port();
        let open_port = open_port.map_err(other)?;
        let exports = Arc::new(RegionTable::new(KEYS));
        let data = export(&exports, DATA, AccessFlags::Read, 0)?;
        let counter = export(&exports, COUNTERS, AccessFlags::Atomic, 1)?;
        let domain = Domain::new(&open_port, &exports, RetryTimeout::default()).map_err(other)?;
        let client = ClientDomain::new(&open_port, RetryTimeout::default()).map_err(other)?;
        let parker = || OsParker::new(Duration::ZERO).map_err(other);
        let parkers = [parker()?, parker()?];
        let thread = |s: &OsParker| Notifier::new(&open_port, s.reactor(), s.arms()).map_err(other);
        let (applier, thread) = (thread(&parkers[0])?, thread(&parkers[1])?);
        let ends = pair(&domain, &applier, &client, &thread, PULLS, RING, SALT);
        let (lane, port, inbox) = ends.map_err(other)?;
        Ok(Self {
            lane,
            client,
            port,
            inbox,
            view: exports.view(),
            data,
            counter,
            _sleepers: parkers,
            tail: 0,
        })
    }

    /// Posts one push frame, and the tail that announces it.
    fn push(&mut self, frame: &[u8]) -> Result<(), LaneError> {
        let inbox = |addr: u64| RemoteAddr {
            key: INBOX_KEY,
            addr,
        };
        // Frames do not cross the wrap point.
        let (ring, len) = (RING as u64, frame.len() as u64);
        let to_wrap = ring - self.tail % ring;
        self.tail += if to_wrap < len { to_wrap } else { 0 };
        let at = INBOX_RING_AT as u64 + self.tail % ring;
        self.lane.write(inbox(at), frame)?;
        self.tail += len;
        let [value, checksum] = CheckedU64::new(self.tail, SALT).0;
        let mut cell = [0; 16];
        cell[..8].copy_from_slice(&value.to_le_bytes());
        cell[8..].copy_from_slice(&checksum.to_le_bytes());
        self.lane.write_signal(inbox(INBOX_TAIL_AT as u64), &cell)?;
        // Reposts the receives of the signals, like the applier.
        self.port.poll(&mut self.view, &self.inbox)?;
        Ok(())
    }

    /// Waits until the last push has arrived; an error after [`LANE_TIMEOUT`].
    fn wait(&mut self) -> Result<(), LaneError> {
        let deadline = Deadline::after(LANE_TIMEOUT);
        while self.inbox.tail() != Some(self.tail) {
            self.lane.poll()?;
            self.port.poll(&mut self.view, &self.inbox)?;
            if deadline.passed() {
                return Err(LaneError::Deadline {
                    transport: self.lane.transport(),
                    peer: self.lane.peer().to_owned(),
                    op: "wait for a push to land",
                });
            }
        }
        Ok(())
    }
}

/// Allocates `bytes` bytes, filled with the [`noise`] of round 0, and registers them for the lane's peer;
/// returns their start address. `memory` is the number of the server memory, as in [`RegisteredRegion`].
fn export(
    exports: &RegionTable,
    bytes: usize,
    rights: AccessFlags,
    memory: u8,
) -> Result<RemoteAddr, BenchError> {
    let region = Arc::new(Region::anonymous(bytes).map_err(other)?);
    let words = region.words_mut(0, bytes).map_err(other)?;
    words.copy_in(0, &noise(0, bytes));
    let export = RegisteredRegion {
        region,
        start: 0,
        len: bytes as u64,
        rights,
        memory,
    };
    let key = exports.add(export).map_err(other)?;
    Ok(RemoteAddr { key, addr: 0 })
}

/// Pushes of complete frames, several to a call, until they have arrived.
pub(super) struct Landed {
    ends: Ends,
    frame: Vec<u8>,
    frames: u64,
    calls: u64,
    round: u64,
}

impl Landed {
    /// Samples of `calls` calls. Each pushes `bytes` bytes, rounded up to complete frames. A frame is `bytes`
    /// rounded up to 64-byte lines, at most [`FRAME`].
    pub(super) fn new(ends: Ends, bytes: usize, calls: u64) -> Self {
        let frame = bytes.next_multiple_of(64).min(FRAME);
        Self {
            ends,
            frame: vec![0; frame],
            frames: bytes.div_ceil(frame) as u64,
            calls,
            round: 0,
        }
    }
}

impl Work for Landed {
    fn calls(&self) -> u64 {
        self.calls
    }

    fn bytes(&self) -> u64 {
        self.frames * self.frame.len() as u64
    }

    /// Fills in bytes that differ from the ring's previous content.
    fn prepare(&mut self) {
        self.round += 1;
        self.frame = noise(self.round, self.frame.len());
    }

    fn sample(&mut self) -> Result<(), BenchError> {
        let Self { ends, frame, .. } = self;
        let mut all = 0..self.calls * self.frames;
        let done = all.try_for_each(|_| ends.push(frame));
        done.and_then(|()| ends.wait()).map_err(other)
    }

    /// Number of four-byte elements of the last frame that differ from the written ones.
    fn check(&mut self) -> u64 {
        let mut destination = vec![0; self.frame.len()];
        let at = self.ends.tail.saturating_sub(self.frame.len() as u64);
        let words = self.ends.inbox.payload(at, 0, destination.len());
        if words.len() == destination.len() {
            words.copy_out(0, &mut destination);
        }
        different(&destination, &self.frame)
    }
}

/// Reads of one location, into memory that the device may write.
pub(super) struct Read {
    ends: Ends,
    destination: Buffer,
    expected: Vec<u8>,
}

impl Read {
    /// Creates reads of `bytes` bytes.
    ///
    /// # Errors
    /// If there is no memory, or the device rejects it.
    pub(super) fn new(ends: Ends, bytes: usize) -> Result<Self, BenchError> {
        let mut destination = Buffer::new(bytes).map_err(other)?;
        ends.client.register(&mut destination).map_err(other)?;
        Ok(Self {
            ends,
            destination,
            expected: noise(0, bytes),
        })
    }
}

impl Work for Read {
    fn bytes(&self) -> u64 {
        self.destination.len() as u64
    }

    fn prepare(&mut self) {
        self.destination.fill(0xff);
    }

    fn sample(&mut self) -> Result<(), BenchError> {
        let op = ReadOp {
            from: self.ends.data,
            len: self.destination.len() as u32,
            head_len: 0,
            head_at: 0,
            body_at: 0,
            fence: false,
        };
        let into = ReadDest {
            head: &mut [],
            body: &mut self.destination,
        };
        let done = self
            .ends
            .lane
            .read(&[op], into, Deadline::after(LANE_TIMEOUT));
        done.map_err(other)
    }

    fn check(&mut self) -> u64 {
        different(&self.destination, &self.expected)
    }
}

/// Compare-and-swaps of one 64-bit word. Each expects the value that the previous one has written.
pub(super) struct Swap {
    ends: Ends,
    is: u64,
    wrong: u64,
}

impl Swap {
    /// Uses a word that no other component changes.
    pub(super) fn new(ends: Ends) -> Self {
        Self {
            ends,
            is: mix64(0),
            wrong: 0,
        }
    }
}

impl Work for Swap {
    fn bytes(&self) -> u64 {
        8
    }

    fn prepare(&mut self) {
        self.wrong = 0;
    }

    fn sample(&mut self) -> Result<(), BenchError> {
        let (at, new) = (self.ends.counter, mix64(self.is));
        let deadline = Deadline::after(LANE_TIMEOUT);
        let old = self.ends.lane.compare_swap(at, self.is, new, deadline);
        self.wrong += u64::from(old.map_err(other)? != self.is);
        self.is = new;
        Ok(())
    }

    fn check(&mut self) -> u64 {
        self.wrong
    }
}

/// `len` bytes for a round: 64-bit words that differ from each other, and from those of other rounds.
fn noise(round: u64, len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8) as u64).flat_map(|n| mix64(round << 32 | n).to_le_bytes());
    words.take(len).collect()
}

/// Number of four-byte elements that differ; both slices are of one length.
fn different(is: &[u8], expected: &[u8]) -> u64 {
    let pairs = is.chunks(4).zip(expected.chunks(4));
    pairs.filter(|(is, expected)| is != expected).count() as u64
}

fn other(cause: impl Into<Cause>) -> BenchError {
    BenchError::process("a lane", cause)
}
