//! A cluster with answers from the fuzzer: links and lanes over plain memory.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidewater::link::{CoordinatorLink, Loaded, OpenLane, Saved, ServerLink};
use tidewater::{Client, ClientError, Parts, SyncMode};
use tidewater_lanes::fabric::{
    ClientLane, LaneError, Mailbox, Mapping, Parker, ReadBatch, ReadDest, ReadOp, RemoteAddr,
    TransportKind, Unpack, signal_then_count,
};
use tidewater_protocol::ids::{
    ApplierId, DomainId, RegionKey, SessionId, TableId, WorkerId, WorkerThread,
};
use tidewater_protocol::layout::lines::StateLine;
use tidewater_protocol::layout::session::MAILBOX_BYTES;
use tidewater_protocol::table::TableSpec;
use tidewater_protocol::wire::control::{DomainClock, TableDescriptor, TableInfo};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::Region;

use crate::fuzzing::Random;

pub(crate) const SESSION: SessionId = SessionId(0x5e55);
pub(crate) const RING_BYTES: usize = 16 << 10;

/// Behaviour that the fuzzer gives the cluster.
pub(crate) struct Script {
    pub(crate) random: Random,
    pub(crate) info: Option<TableInfo>,
    pub(crate) descriptor: Option<TableDescriptor>,
    pub(crate) ring_bytes: usize,
    /// Called at each poll, with the mailbox and the frames written so far.
    pub(crate) poll: fn(&mut Random, &Mailbox, &[u8]),
    /// Called for each read.
    pub(crate) read: fn(&mut Random, &ReadOp, &mut [u8], &mut [u8]),
    /// Mean number of operations between lane failures; 0 for none.
    pub(crate) breaks: usize,
    pub(crate) state: StateLine,
}

pub(crate) type Shared = Arc<Mutex<Script>>;

struct HostileLane {
    script: Shared,
    mailbox: Mailbox,
    written: Vec<u8>,
    landed: Vec<ReadBatch>,
}

fn open(script: &Shared) -> OpenLane {
    let region = Arc::new(Region::anonymous(MAILBOX_BYTES).unwrap());
    let lane = HostileLane {
        script: Arc::clone(script),
        mailbox: Mailbox::new(region, 0, MAILBOX_BYTES).unwrap(),
        written: vec![0; RING_BYTES + 4096],
        landed: Vec::new(),
    };
    let state = script.lock().unwrap().state;
    OpenLane {
        lane: Box::new(lane),
        state,
        status: Some(RemoteAddr {
            key: RegionKey(7),
            addr: 4160,
        }),
    }
}

impl HostileLane {
    fn survives(&self, op: &'static str) -> Result<(), LaneError> {
        let mut script = self.script.lock().unwrap();
        let breaks = script.breaks;
        if breaks == 0 || script.random.under(breaks) != 0 {
            return Ok(());
        }
        Err(LaneError::Broken {
            transport: TransportKind::Tcp,
            peer: "hostile".into(),
            op,
            why: "the fuzzer says so".into(),
        })
    }

    fn fill(&self, ops: &[ReadOp], head: &mut [u8], body: &mut [u8]) -> Result<(), LaneError> {
        let mut script = self.script.lock().unwrap();
        let read = script.read;
        for op in ops {
            // The checks of a real lane: addresses are whole words and do not wrap.
            assert!(op.from.addr.is_multiple_of(8), "{op:?}");
            assert!(
                op.from.addr.checked_add(u64::from(op.len)).is_some(),
                "{op:?}"
            );
            assert!(
                op.fits(head.len(), body.len()),
                "{op:?} of {} {}",
                head.len(),
                body.len()
            );
            let n = op.head_len as usize;
            let head = &mut head[op.head_at..op.head_at + n];
            let body = &mut body[op.body_at..op.body_at + op.len as usize - n];
            read(&mut script.random, op, head, body);
        }
        Ok(())
    }
}

impl HostileLane {
    /// Fills all reads, and passes half of them to `unpacker`.
    fn fill_taking(
        &self,
        ops: &[ReadOp],
        head: &mut [u8],
        body: &mut [u8],
        unpacker: &mut dyn Unpack,
    ) -> Result<(), LaneError> {
        for (n, op) in ops.iter().enumerate() {
            self.fill(&ops[n..=n], head, body)?;
            if self.script.lock().unwrap().random.under(2) == 0 {
                let head = &head[op.head_at..][..op.head_len as usize];
                let own = &body[op.body_at..][..(op.len - op.head_len) as usize];
                assert!(unpacker.unpack(n, &[head, own].concat(), body) <= 1);
            }
        }
        Ok(())
    }
}

impl ClientLane for HostileLane {
    fn transport(&self) -> TransportKind {
        TransportKind::Tcp
    }

    fn peer(&self) -> &str {
        "hostile"
    }

    fn read(&mut self, ops: &[ReadOp], into: ReadDest<'_>, _: Deadline) -> Result<(), LaneError> {
        self.survives("read")?;
        self.fill(ops, into.head, into.body)
    }

    fn read_unpack(
        &mut self,
        ops: &[ReadOp],
        into: ReadDest<'_>,
        unpacker: &mut dyn Unpack,
        _: Deadline,
    ) -> Result<(), LaneError> {
        unpacker.restart();
        self.survives("read")?;
        self.fill_taking(ops, into.head, into.body, unpacker)
    }

    fn submit_read(&mut self, mut batch: ReadBatch) -> Result<(), LaneError> {
        self.survives("submit_read")?;
        let (mut head, mut body) = (
            std::mem::take(&mut batch.head),
            std::mem::take(&mut batch.body),
        );
        self.fill(&batch.ops, &mut head, &mut body)?;
        batch.head = head;
        batch.body = body;
        self.landed.push(batch);
        Ok(())
    }

    fn poll_read(&mut self) -> Option<ReadBatch> {
        self.landed.pop()
    }

    fn wait_read(
        &mut self,
        tag: u64,
        ops: &[ReadOp],
        body: &mut [u8],
        unpacker: Option<&mut dyn Unpack>,
        _: Deadline,
    ) -> Result<Option<ReadBatch>, LaneError> {
        self.survives("wait_read")?;
        let lent = self.landed.iter().position(|batch| batch.tag == tag);
        let declines = self.script.lock().unwrap().random.under(3) == 0;
        let Some(at) = lent.filter(|_| !declines) else {
            return Ok(None);
        };
        let mut batch = self.landed.remove(at);
        match unpacker {
            Some(unpacker) => self.fill_taking(ops, &mut batch.head, body, unpacker)?,
            None => self.fill(ops, &mut batch.head, body)?,
        }
        Ok(Some(batch))
    }

    fn write(&mut self, to: RemoteAddr, bytes: &[u8]) -> Result<(), LaneError> {
        let at = to.addr as usize;
        assert!(
            at.is_multiple_of(8) && bytes.len().is_multiple_of(8),
            "{to:?} {}",
            bytes.len()
        );
        // A granted ring may be larger than the one kept here; the rest is ignored.
        if let Some(there) = self.written.get_mut(at..at + bytes.len()) {
            there.copy_from_slice(bytes);
        }
        self.survives("write")
    }

    fn write_signal(&mut self, to: RemoteAddr, bytes: &[u8]) -> Result<(), LaneError> {
        self.write(to, bytes)
    }

    fn write_signal_count(
        &mut self,
        to: RemoteAddr,
        bytes: &[u8],
        counter: RemoteAddr,
        add: u64,
    ) -> Result<(), LaneError> {
        signal_then_count(self, to, bytes, counter, add)
    }

    fn fetch_add(&mut self, _: RemoteAddr, _: u64, _: Deadline) -> Result<u64, LaneError> {
        Ok(0)
    }

    fn compare_swap(
        &mut self,
        _: RemoteAddr,
        _: u64,
        _: u64,
        _: Deadline,
    ) -> Result<u64, LaneError> {
        Ok(0)
    }

    fn has_atomics(&self) -> bool {
        true
    }

    fn flush(&mut self) -> Result<(), LaneError> {
        Ok(())
    }

    fn flush_soon(&mut self) -> Result<(), LaneError> {
        self.flush()
    }

    fn poll(&mut self) -> Result<bool, LaneError> {
        self.survives("poll")?;
        let mut script = self.script.lock().unwrap();
        let poll = script.poll;
        poll(&mut script.random, &self.mailbox, &self.written);
        Ok(true)
    }

    fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    /// No mapping: mapped memory is the transport's own and cannot be hostile.
    fn mapping(&self) -> Option<Mapping> {
        None
    }
}

struct Link(Shared);

impl ServerLink for Link {
    fn name(&self) -> &str {
        "hostile"
    }

    fn session(&self) -> SessionId {
        SESSION
    }

    fn transport(&self) -> TransportKind {
        TransportKind::Tcp
    }

    fn ring_bytes(&self) -> usize {
        self.0.lock().unwrap().ring_bytes
    }

    fn describe(&mut self, _: TableId, _: Deadline) -> Result<TableDescriptor, ClientError> {
        Ok(self.0.lock().unwrap().descriptor.clone().unwrap())
    }

    fn clocks(
        &mut self,
        _: DomainId,
        _: Deadline,
    ) -> Result<Vec<(WorkerThread, u64)>, ClientError> {
        let random = &mut self.0.lock().unwrap().random;
        let workers = random.under(4);
        Ok((0..workers)
            .map(|_| {
                let (rank, thread) = (WorkerId(random.next() as u32), random.next() as u32);
                (WorkerThread { rank, thread }, random.next())
            })
            .collect())
    }

    fn recover(&mut self, _: ApplierId, _: Deadline) -> Result<OpenLane, ClientError> {
        let mut open = open(&self.0);
        let random = &mut self.0.lock().unwrap().random;
        open.state.head_bytes = random.next() >> random.under(64);
        Ok(open)
    }
}

impl CoordinatorLink for Link {
    fn create_table(&mut self, _: &TableSpec, _: Deadline) -> Result<TableInfo, ClientError> {
        Ok(self.0.lock().unwrap().info.clone().unwrap())
    }

    fn open_table(&mut self, _: &str, _: Deadline) -> Result<TableInfo, ClientError> {
        Ok(self.0.lock().unwrap().info.clone().unwrap())
    }

    fn release_table(&mut self, _: TableId, _: Deadline) -> Result<(), ClientError> {
        Ok(())
    }

    fn barrier(&mut self, _: &str, _: u32, _: Deadline) -> Result<(), ClientError> {
        Ok(())
    }

    fn save(&mut self, _: &str, _: &[DomainClock], _: Deadline) -> Result<Saved, ClientError> {
        Ok(Saved { rows: 0, bytes: 0 })
    }

    fn load(&mut self, _: &str, _: Deadline) -> Result<Loaded, ClientError> {
        Ok(Loaded {
            tables: Vec::new(),
            rows: 0,
            clocks: Vec::new(),
        })
    }

    fn load_function(&mut self, _: &str, _: &[u8], _: Deadline) -> Result<(), ClientError> {
        Ok(())
    }

    fn failed(&mut self, _: &str, _: Deadline) -> Result<(), ClientError> {
        Ok(())
    }

    fn finished(&mut self, _: Deadline) -> Result<(), ClientError> {
        Ok(())
    }
}

/// Never sleeps: the lane's mailbox changes at each poll.
struct Awake;

impl Parker for Awake {
    fn prepare_park(&mut self) {}
    fn park_until(&mut self, _: Deadline) {}
    fn cancel_park(&mut self) {}
    fn spin(&self) -> Duration {
        Duration::ZERO
    }
}

/// A client of one hostile server with one applier.
pub(crate) fn client(script: &Shared, sync: SyncMode) -> Result<Client, ClientError> {
    let mut client = Client::from_parts(Parts {
        coordinator: Box::new(Link(Arc::clone(script))),
        servers: vec![(Box::new(Link(Arc::clone(script))), vec![open(script)])],
        parker: Box::new(Awake),
        rank: WorkerId(0),
        workers: 2,
        sync,
    })?;
    client.set_timeout(Duration::from_micros(300));
    client.set_clock_timeout(Duration::from_micros(300));
    Ok(client)
}
