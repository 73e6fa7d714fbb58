//! Lanes that fail at random: before an operation, after it, or in its middle. Some failures are
//! simulated at one end; others are forbidden accesses, which both ends see.

use std::time::Duration;

use tidewater_runtime::sync::{Arc, AtomicU64, Ordering};

use tidewater_lanes::fabric::{
    ClientLane, INBOX_KEY, LaneError, Mailbox, Mapping, ReadBatch, ReadDest, ReadOp, RemoteAddr,
    TransportKind, Unpack,
};
use tidewater_protocol::layout::hash::mix64;
use tidewater_runtime::clock::Deadline;

/// A small random generator, sufficient for tests; each test has its own seed.
#[derive(Debug, Clone)]
pub struct Rng(pub u64);

impl Rng {
    /// Returns the next 64 random bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix64(self.0)
    }

    /// Returns a random number below `n`.
    pub const fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Creates lanes that fail once in about `one_in` reads or writes.
#[derive(Debug, Clone)]
pub struct Faults {
    /// Mean number of reads or writes between two failures of a lane.
    pub one_in: u64,
    seed: Arc<AtomicU64>,
    broken: Arc<AtomicU64>,
    offended: Arc<AtomicU64>,
    recovering: Arc<AtomicU64>,
}

impl Faults {
    /// Faults of a seed: the same choices for the same operations.
    pub fn new(seed: u64, one_in: u64) -> Self {
        Self {
            one_in,
            seed: Arc::new(AtomicU64::new(mix64(seed))),
            broken: Arc::default(),
            offended: Arc::default(),
            recovering: Arc::default(),
        }
    }

    /// Number of lanes that failed.
    pub fn broken(&self) -> u64 {
        self.broken.load(Ordering::Relaxed)
    }

    /// Number of lanes that failed by a forbidden access: on verbs, queue pairs in error.
    pub fn offended(&self) -> u64 {
        self.offended.load(Ordering::Relaxed)
    }

    /// Number of lanes that failed while in-flight frames were sent again.
    pub fn recovering(&self) -> u64 {
        self.recovering.load(Ordering::Relaxed)
    }

    /// Wraps a lane so that it will fail; `again` marks the replacement of a failed lane.
    pub fn wrap(&self, lane: Box<dyn ClientLane>, again: bool) -> Box<dyn ClientLane> {
        let mut rng = Rng(self.seed.fetch_add(1, Ordering::Relaxed));
        let mapped = rng.below(2) == 0;
        Box::new(FaultyLane {
            lane,
            rng,
            mapped,
            faults: self.clone(),
            broken: false,
            recovering: again,
        })
    }
}

struct FaultyLane {
    lane: Box<dyn ClientLane>,
    rng: Rng,
    faults: Faults,
    broken: bool,
    /// Whether pulls may use mapped memory. On half of the lanes they read, so that failures occur.
    mapped: bool,
    /// No poll yet: a client polls after it has sent the in-flight frames again.
    recovering: bool,
}

/// When an operation fails.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Never,
    Midway,
    After,
}

impl FaultyLane {
    fn error(&self, op: &'static str) -> LaneError {
        LaneError::Broken {
            transport: self.lane.transport(),
            peer: self.lane.peer().to_owned(),
            op,
            why: "cut by the test".into(),
        }
    }

    /// Reads memory without access rights. On verbs this puts the queue pairs of both ends into error.
    fn offend(&mut self) {
        let from = RemoteAddr {
            key: INBOX_KEY,
            addr: 0,
        };
        let op = ReadOp {
            from,
            len: 8,
            head_len: 8,
            head_at: 0,
            body_at: 0,
            fence: false,
        };
        let into = ReadDest {
            head: &mut [0; 8],
            body: &mut [],
        };
        let soon = Deadline::after(Duration::from_secs(10));
        let error = self.lane.read(&[op], into, soon).unwrap_err();
        assert!(error.is_fatal(), "{error}");
    }

    fn draw(&mut self, op: &'static str, one_in: u64) -> Result<When, LaneError> {
        if self.broken {
            return Err(self.error(op));
        }
        if self.rng.below(one_in) != 0 {
            return Ok(When::Never);
        }
        self.broken = true;
        self.faults.broken.fetch_add(1, Ordering::Relaxed);
        let recovering = u64::from(self.recovering);
        self.faults
            .recovering
            .fetch_add(recovering, Ordering::Relaxed);
        match self.rng.below(4) {
            0 => Err(self.error(op)),
            1 => {
                self.offend();
                self.faults.offended.fetch_add(1, Ordering::Relaxed);
                Err(self.error(op))
            }
            2 => Ok(When::Midway),
            _ => Ok(When::After),
        }
    }

    fn ended<T>(&self, op: &'static str, when: When, done: T) -> Result<T, LaneError> {
        match when {
            When::Never => Ok(done),
            When::Midway | When::After => Err(self.error(op)),
        }
    }
}

impl ClientLane for FaultyLane {
    fn transport(&self) -> TransportKind {
        self.lane.transport()
    }

    fn peer(&self) -> &str {
        self.lane.peer()
    }

    fn read(
        &mut self,
        ops: &[ReadOp],
        into: ReadDest<'_>,
        deadline: Deadline,
    ) -> Result<(), LaneError> {
        let when = self.draw("read", self.faults.one_in)?;
        let ops = if when == When::Midway {
            &ops[..ops.len() / 2]
        } else {
            ops
        };
        self.lane.read(ops, into, deadline)?;
        self.ended("read", when, ())
    }

    fn read_unpack(
        &mut self,
        ops: &[ReadOp],
        into: ReadDest<'_>,
        unpacker: &mut dyn Unpack,
        deadline: Deadline,
    ) -> Result<(), LaneError> {
        let when = self.draw("read", self.faults.one_in)?;
        let ops = if when == When::Midway {
            &ops[..ops.len() / 2]
        } else {
            ops
        };
        self.lane.read_unpack(ops, into, unpacker, deadline)?;
        self.ended("read", when, ())
    }

    fn submit_read(&mut self, batch: ReadBatch) -> Result<(), LaneError> {
        let when = self.draw("submit_read", self.faults.one_in)?;
        self.lane.submit_read(batch)?;
        self.ended("submit_read", when, ())
    }

    fn wait_read(
        &mut self,
        tag: u64,
        ops: &[ReadOp],
        body: &mut [u8],
        unpacker: Option<&mut dyn Unpack>,
        deadline: Deadline,
    ) -> Result<Option<ReadBatch>, LaneError> {
        let when = self.draw("wait_read", self.faults.one_in)?;
        let deadline = match when {
            When::Midway => deadline.min(Deadline::after(Duration::from_micros(50))),
            _ => deadline,
        };
        let finished = self.lane.wait_read(tag, ops, body, unpacker, deadline)?;
        self.ended("wait_read", when, finished)
    }

    fn poll_read(&mut self) -> Option<ReadBatch> {
        self.lane.poll_read()
    }

    fn write(&mut self, to: RemoteAddr, bytes: &[u8]) -> Result<(), LaneError> {
        let when = self.draw("write", self.faults.one_in)?;
        let bytes = if when == When::Midway {
            &bytes[..(self.rng.below(bytes.len() as u64 / 8) as usize * 8).max(8)]
        } else {
            bytes
        };
        self.lane.write(to, bytes)?;
        self.ended("write", when, ())
    }

    fn write_signal(&mut self, to: RemoteAddr, bytes: &[u8]) -> Result<(), LaneError> {
        let when = self.draw("write_signal", self.faults.one_in)?;
        let bytes = if when == When::Midway {
            &bytes[..bytes.len() / 2]
        } else {
            bytes
        };
        self.lane.write_signal(to, bytes)?;
        self.ended("write_signal", when, ())
    }

    fn write_signal_count(
        &mut self,
        to: RemoteAddr,
        bytes: &[u8],
        counter: RemoteAddr,
        add: u64,
    ) -> Result<(), LaneError> {
        let when = self.draw("write_signal", self.faults.one_in)?;
        if when == When::Midway {
            self.lane.write_signal(to, &bytes[..bytes.len() / 2])?;
        } else {
            self.lane.write_signal_count(to, bytes, counter, add)?;
        }
        self.ended("write_signal", when, ())
    }

    fn fetch_add(
        &mut self,
        at: RemoteAddr,
        add: u64,
        deadline: Deadline,
    ) -> Result<u64, LaneError> {
        self.lane.fetch_add(at, add, deadline)
    }

    fn compare_swap(
        &mut self,
        at: RemoteAddr,
        expect: u64,
        new: u64,
        deadline: Deadline,
    ) -> Result<u64, LaneError> {
        self.lane.compare_swap(at, expect, new, deadline)
    }

    fn has_atomics(&self) -> bool {
        self.lane.has_atomics()
    }

    fn flush(&mut self) -> Result<(), LaneError> {
        let when = self.draw("flush", self.faults.one_in)?;
        self.lane.flush()?;
        self.ended("flush", when, ())
    }

    fn flush_soon(&mut self) -> Result<(), LaneError> {
        let when = self.draw("flush", self.faults.one_in)?;
        self.lane.flush_soon()?;
        self.ended("flush", when, ())
    }

    fn poll(&mut self) -> Result<bool, LaneError> {
        self.recovering = false;
        // Polls are frequent: a wait spins on them.
        let when = self.draw("poll", self.faults.one_in * 256)?;
        let moved = self.lane.poll()?;
        self.ended("poll", when, moved)
    }

    fn mailbox(&self) -> &Mailbox {
        self.lane.mailbox()
    }

    fn mapping(&self) -> Option<Mapping> {
        self.lane.mapping().filter(|_| self.mapped && !self.broken)
    }
}
