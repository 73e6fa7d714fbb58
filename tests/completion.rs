// long: tests of one rig, in which appliers stall and lanes break.

//! Completion calls: flush, tick, barrier, finish. None succeeds after the refusal of a push that no
//! ticket has claimed. A tick ends an iteration on every lane or on none. A failed call can be
//! repeated.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails; what it saw is part of its result"
)]

#[path = "completion/callbacks.rs"]
mod callbacks;

use std::sync::Arc;
use std::time::Duration;
use tidewater_runtime::sync::{AtomicBool, Ordering};

use tidewater::{
    Client, ClientError, Expression, FunctionArgs, PullOptions, PushBuffer, SyncMode, Table,
    TableBuilder, Ticket,
};
use tidewater_engine::apply::command::Command;
use tidewater_engine::apply::engine::Engine;
use tidewater_engine::namespace::NamespaceId;
use tidewater_lanes::fabric::TransportKind::{Shm, Tcp, Verbs};
use tidewater_lanes::fabric::{
    ClientLane, LaneError, Mailbox, Mapping, ReadBatch, ReadDest, ReadOp, RemoteAddr,
    TransportKind, Unpack,
};
use tidewater_protocol::ids::{DomainId, WorkerId, WorkerThread};
use tidewater_protocol::layout::reject::RejectReason;
use tidewater_protocol::layout::session::MAILBOX_BYTES;
use tidewater_protocol::placement::partition_of_key;
use tidewater_protocol::table::{PushOp, Reduce};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::Region;
use tidewater_testkit::threads::Cluster;

/// Keeps the applier of a server busy for `time`; afterwards it serves the pending frames.
fn stall(cluster: &Cluster, server: usize, time: Duration) {
    let (begun, begins) = std::sync::mpsc::channel();
    let nap = Command::With(Box::new(move |_| {
        begun.send(()).unwrap();
        std::thread::sleep(time);
    }));
    cluster.servers[server].applier(0).send(nap).unwrap();
    begins.recv().unwrap();
}

/// The clock of worker 0 at a server.
fn clock_at(cluster: &Cluster, server: usize) -> Option<u64> {
    let of = |engine: &mut Engine| {
        let clocks = engine.clocks(NamespaceId::default());
        clocks.clock(DomainId(0), WorkerThread::first(WorkerId(0)))
    };
    cluster.servers[server].applier(0).with(of).unwrap()
}

fn pull(client: &mut Client, table: &Table<f32>, keys: &[u64]) -> Vec<f32> {
    let mut out = vec![0.0; keys.len() * table.dim()];
    client
        .pull_rows(table, keys, &mut out, PullOptions::default())
        .unwrap();
    out
}

/// Key of the push that a server refused.
fn refused_key(done: Result<(), ClientError>) -> u64 {
    match done {
        Err(ClientError::Rejected { table, reject, .. }) => {
            assert_eq!(table, "t");
            match reject.reason {
                RejectReason::NotFinite { key, .. } => key,
                other => panic!("another refusal: {other:?}"),
            }
        }
        other => panic!("a refusal is due: {other:?}"),
    }
}

fn push(client: &mut Client, table: &Table<f32>, key: u64, value: f32) -> Ticket {
    client
        .push_rows(table, &[key], &[value], PushOp::Sum)
        .unwrap()
}

/// Each completion call returns the refusal of the earliest push that no ticket has claimed, one push
/// a call.
#[test]
fn completion_calls_return_unclaimed_refusals() {
    for transport in [Shm, Tcp] {
        let cluster = Cluster::start(transport, 2, 2, 1);
        let mut client = cluster.client(0, SyncMode::Asp);
        let spec = TableBuilder::sparse::<f32>("t", 1);
        let table = client.create_table::<f32>(spec.spec()).unwrap();
        client.flush().unwrap();

        for (key, value) in [(1, 1.0), (2, f32::NAN), (3, 1.0), (4, f32::NAN)] {
            drop(push(&mut client, &table, key, value));
        }
        assert_eq!(refused_key(client.flush()), 2, "{transport}");
        assert_eq!(refused_key(client.flush()), 4, "{transport}");
        client.flush().unwrap();

        let asked = push(&mut client, &table, 5, f32::NAN);
        assert_eq!(refused_key(client.wait_applied(&asked)), 5);
        client.flush().unwrap();
        assert_eq!(refused_key(client.wait_applied(&asked)), 5);

        drop(push(&mut client, &table, 6, f32::NAN));
        assert_eq!(refused_key(client.barrier("b", Duration::from_secs(20))), 6);
        client.barrier("b", Duration::from_secs(20)).unwrap();

        // Under ASP a tick returns the refusals known at the call.
        let before = client.counters().rejects;
        drop(push(&mut client, &table, 7, f32::NAN));
        let deadline = Deadline::after(Duration::from_secs(60));
        while client.counters().rejects == before {
            assert!(!deadline.passed(), "the refusal does not arrive");
            client.progress().unwrap();
        }
        assert_eq!(refused_key(client.tick()), 7, "{transport}");
        assert_eq!(client.clock(), 0);
        client.tick().unwrap();
        assert_eq!(client.clock(), 1);

        drop(push(&mut client, &table, 8, f32::NAN));
        assert_eq!(refused_key(client.finish()), 8, "{transport}");
        assert_eq!(clock_at(&cluster, 0), Some(1), "it has not left");
        drop(push(&mut client, &table, 8, 1.0));
        client.finish().unwrap();
        assert_eq!(clock_at(&cluster, 0), None);
        assert_eq!(
            pull(&mut client, &table, &[1, 2, 3, 8]),
            [1.0, 0.0, 1.0, 1.0]
        );
    }
}

/// A push with frames on every lane is refused once.
#[test]
fn a_push_of_many_frames_is_refused_once() {
    let cluster = Cluster::start(Shm, 2, 1, 1);
    let mut client = cluster.client(0, SyncMode::Asp);
    let elements = 1 << 19;
    let spec = TableBuilder::range::<f32>("t", elements as u64, 1).partitions(4);
    let table = client.create_table::<f32>(spec.spec()).unwrap();
    for _ in 0..3 {
        drop(
            client
                .push_range(&table, 0, &vec![f32::NAN; elements], PushOp::Sum)
                .unwrap(),
        );
    }
    let of_frames = client.counters().frames;
    for n in 0..3 {
        let refused = client.flush();
        assert!(
            matches!(refused, Err(ClientError::Rejected { .. })),
            "push {n}: {refused:?}"
        );
    }
    client.flush().unwrap();
    assert_eq!(client.counters().rejects, of_frames);
    assert!(of_frames > 6, "{of_frames} frames");
}

/// A refused push leaves the iteration open on every lane; a repaired push completes it.
#[test]
fn a_refused_push_keeps_the_iteration_open() {
    for transport in [Shm, Tcp] {
        let cluster = Cluster::start(transport, 2, 1, 1);
        let mut client = cluster.client(0, SyncMode::Bsp);
        let spec = TableBuilder::rows::<f32>("t", 2, 1)
            .at_clock(Reduce::Sum)
            .partitions(2);
        let table = client.create_table::<f32>(spec.spec()).unwrap();
        drop(push(&mut client, &table, 0, 1.0));
        drop(push(&mut client, &table, 1, f32::NAN));
        assert_eq!(refused_key(client.tick()), 1, "{transport}");
        assert_eq!(client.clock(), 0);
        assert_eq!(pull(&mut client, &table, &[0, 1]), [0.0, 0.0]);
        drop(push(&mut client, &table, 1, 2.0));
        client.tick().unwrap();
        assert_eq!(client.clock(), 1);
        assert_eq!(
            pull(&mut client, &table, &[0, 1]),
            [1.0, 2.0],
            "{transport}"
        );
    }
}

/// One server answers late: no server receives a CLOCK before that answer.
#[test]
fn a_tick_waits_for_every_answer() {
    let cluster = Cluster::start(Shm, 2, 1, 1);
    let mut client = cluster.client(0, SyncMode::Bsp);
    let spec = TableBuilder::rows::<f32>("t", 2, 1)
        .at_clock(Reduce::Sum)
        .partitions(2);
    let table = client.create_table::<f32>(spec.spec()).unwrap();
    stall(&cluster, 1, Duration::from_secs(2));
    drop(push(&mut client, &table, 0, 1.0));
    drop(push(&mut client, &table, 1, f32::NAN));
    client.set_clock_timeout(Duration::from_millis(200));
    // A deadline, or the refusal if the host was busy for two seconds.
    let ticked = client.tick();
    assert!(ticked.is_err(), "it did not wait for server 1");
    assert_eq!(client.clock(), 0);
    client.set_clock_timeout(Duration::from_secs(20));
    if let Err(ClientError::Deadline { missing, .. }) = ticked {
        assert!(
            missing.contains("applier 0 has applied 0 of 1"),
            "{missing}"
        );
        assert_eq!(refused_key(client.tick()), 1);
    }
    for server in 0..2 {
        assert_eq!(clock_at(&cluster, server), Some(0), "server {server}");
    }
    drop(push(&mut client, &table, 1, 2.0));
    client.tick().unwrap();
    assert_eq!(pull(&mut client, &table, &[0, 1]), [1.0, 2.0]);
}

/// An asynchronous worker does not wait for answers.
#[test]
fn an_asynchronous_tick_waits_for_nothing() {
    let cluster = Cluster::start(Shm, 2, 1, 1);
    let mut client = cluster.client(0, SyncMode::Asp);
    let spec = TableBuilder::rows::<f32>("t", 2, 1).partitions(2);
    let table = client.create_table::<f32>(spec.spec()).unwrap();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let nap = Command::With(Box::new(move |_| released.recv().unwrap()));
    cluster.servers[1].applier(0).send(nap).unwrap();
    for _ in 0..10 {
        drop(push(&mut client, &table, 1, 1.0));
        client.tick().unwrap();
    }
    assert_eq!(client.clock(), 10);
    release.send(()).unwrap();
    client.flush().unwrap();
    assert_eq!(clock_at(&cluster, 1), Some(10));
    assert_eq!(pull(&mut client, &table, &[1]), [10.0]);
}

/// Lanes that reject writes: those of server 1 while the flag is set.
struct Cut {
    lane: Box<dyn ClientLane>,
    cut: Arc<AtomicBool>,
    /// Mailbox that the client sees in place of the real one.
    old_mailbox: Option<Mailbox>,
}

impl Cut {
    fn check(&self, op: &'static str) -> Result<(), LaneError> {
        match self.cut.load(Ordering::SeqCst) {
            false => Ok(()),
            true => Err(LaneError::Broken {
                transport: self.lane.transport(),
                peer: self.lane.peer().to_owned(),
                op,
                why: "cut by the test".into(),
            }),
        }
    }
}

impl ClientLane for Cut {
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
        self.lane.read(ops, into, deadline)
    }

    fn read_unpack(
        &mut self,
        ops: &[ReadOp],
        into: ReadDest<'_>,
        unpacker: &mut dyn Unpack,
        deadline: Deadline,
    ) -> Result<(), LaneError> {
        self.lane.read_unpack(ops, into, unpacker, deadline)
    }

    fn submit_read(&mut self, batch: ReadBatch) -> Result<(), LaneError> {
        self.lane.submit_read(batch)
    }

    fn poll_read(&mut self) -> Option<ReadBatch> {
        self.lane.poll_read()
    }

    fn wait_read(
        &mut self,
        tag: u64,
        ops: &[ReadOp],
        body: &mut [u8],
        unpacker: Option<&mut dyn Unpack>,
        deadline: Deadline,
    ) -> Result<Option<ReadBatch>, LaneError> {
        self.lane.wait_read(tag, ops, body, unpacker, deadline)
    }

    fn write(&mut self, to: RemoteAddr, bytes: &[u8]) -> Result<(), LaneError> {
        self.check("write")?;
        self.lane.write(to, bytes)
    }

    fn write_signal(&mut self, to: RemoteAddr, bytes: &[u8]) -> Result<(), LaneError> {
        self.check("write_signal")?;
        self.lane.write_signal(to, bytes)
    }

    fn write_signal_count(
        &mut self,
        to: RemoteAddr,
        bytes: &[u8],
        counter: RemoteAddr,
        add: u64,
    ) -> Result<(), LaneError> {
        self.check("write_signal_count")?;
        self.lane.write_signal_count(to, bytes, counter, add)
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
        self.lane.flush()
    }

    fn flush_soon(&mut self) -> Result<(), LaneError> {
        self.lane.flush_soon()
    }

    fn poll(&mut self) -> Result<bool, LaneError> {
        self.lane.poll()
    }

    fn mailbox(&self) -> &Mailbox {
        self.old_mailbox
            .as_ref()
            .unwrap_or_else(|| self.lane.mailbox())
    }

    fn mapping(&self) -> Option<Mapping> {
        self.lane.mapping()
    }
}

/// The CLOCK of a tick reaches one server; the lane to the other is cut until the deadline. The
/// repeated tick resumes there, and pushes made meanwhile belong to the next iteration on every lane.
#[test]
fn a_tick_goes_on_where_it_was() {
    for sync in [SyncMode::Asp, SyncMode::Bsp] {
        let cluster = Cluster::start(Shm, 2, 1, 1);
        let cut = Arc::new(AtomicBool::new(false));
        let opened = Arc::new(std::sync::Mutex::new(0));
        let flag = Arc::clone(&cut);
        let mut client = cluster.client_with(0, sync, move |lane| {
            // The first two lanes are those of servers 0 and 1; later ones replace the second.
            let mut opened = opened.lock().unwrap();
            *opened += 1;
            match *opened {
                1 => lane,
                _ => Box::new(Cut {
                    lane,
                    cut: Arc::clone(&flag),
                    old_mailbox: None,
                }),
            }
        });
        let spec = TableBuilder::rows::<f32>("t", 2, 1)
            .at_clock(Reduce::Sum)
            .partitions(2);
        let table = client.create_table::<f32>(spec.spec()).unwrap();
        drop(push(&mut client, &table, 0, 1.0));
        drop(push(&mut client, &table, 1, 1.0));
        client.flush().unwrap();
        cut.store(true, Ordering::SeqCst);
        client.set_clock_timeout(Duration::from_millis(300));
        for _ in 0..2 {
            let ticked = client.tick();
            assert!(
                matches!(ticked, Err(ClientError::Deadline { .. })),
                "{sync}: {ticked:?}"
            );
            assert_eq!(client.clock(), 0);
        }
        cut.store(false, Ordering::SeqCst);
        client.set_clock_timeout(Duration::from_secs(20));
        drop(push(&mut client, &table, 0, 10.0));
        drop(push(&mut client, &table, 1, 10.0));
        client.tick().unwrap();
        assert_eq!(client.clock(), 1, "{sync}");
        client.flush().unwrap();
        assert_eq!(pull(&mut client, &table, &[0, 1]), [1.0, 1.0], "{sync}");
        for clock in 2..5 {
            client.tick().unwrap();
            assert_eq!(client.clock(), clock, "{sync}");
        }
        client.flush().unwrap();
        assert_eq!(pull(&mut client, &table, &[0, 1]), [11.0, 11.0], "{sync}");
        client.finish().unwrap();
    }
}

/// A range push meets its deadline at one server after frames for another are built: the next
/// completion call sends them.
#[test]
fn a_flush_sends_what_a_failed_push_left() {
    let cluster = Cluster::start(Shm, 2, 1, 1);
    let mut client = cluster.client(0, SyncMode::Asp);
    let elements = 1u64 << 20;
    let spec = TableBuilder::range::<f32>("b", elements, 1).partitions(2);
    let table = client.create_table::<f32>(spec.spec()).unwrap();
    let half = elements / 2;
    stall(&cluster, 1, Duration::from_secs(3));
    client.set_timeout(Duration::from_millis(100));
    let some = [1.0; 4096];
    let full = (0..200).any(|_| {
        let pushed = client.push_range(&table, half, &some, PushOp::Sum);
        pushed.is_err()
    });
    assert!(full, "a ring takes 3 MiB");
    // A function's frames of both lanes are sent together: those of the first are built and not sent.
    let function = Expression::parse("x + 1").unwrap();
    let over = |range| FunctionArgs {
        range: Some(range),
        ..FunctionArgs::default()
    };
    let second = over(half..half + 1);
    while client.update(&table, &function, &second).is_ok() {}
    let across = client.update(&table, &function, &over(half - 100..half + 1));
    assert!(
        matches!(across, Err(ClientError::Deadline { .. })),
        "{across:?}"
    );
    client.set_timeout(Duration::from_secs(20));
    client.flush().unwrap();
    let mut out = [0.0; 100];
    client
        .pull_range(&table, half - 100, &mut out, PullOptions::default())
        .unwrap();
    assert_eq!(out, [1.0; 100]);
}

/// The ring of one lane is full. A push of rows and ranges of both lanes fails at its deadline, but what
/// the other lane owns is applied by then.
#[test]
fn a_full_ring_holds_no_other_lane() {
    let cluster = Cluster::start(Shm, 2, 1, 2);
    let mut client = cluster.client(0, SyncMode::Asp);
    let mut other = cluster.client(1, SyncMode::Asp);
    let elements = 1u64 << 20;
    let range = TableBuilder::range::<f32>("range", elements, 1).partitions(2);
    let range = client.create_table::<f32>(range.spec()).unwrap();
    let rows = TableBuilder::rows::<f32>("rows", 2, 64).partitions(2);
    let rows = client.create_table::<f32>(rows.spec()).unwrap();
    let half = elements / 2;
    // Rows and elements of the first half belong to server 0.
    stall(&cluster, 0, Duration::from_secs(3));
    client.set_timeout(Duration::from_millis(100));
    let some = [1.0; 4096];
    let full = (0..200).any(|_| client.push_range(&range, 0, &some, PushOp::Sum).is_err());
    assert!(full, "a ring takes 3 MiB");
    while client
        .push_rows(&rows, &[0], &[1.0; 64], PushOp::Sum)
        .is_ok()
    {}
    let more = vec![1.0; 4096 + 100];
    let across = client.push_range(&range, half - 4096, &more, PushOp::Sum);
    let both = client.push_rows(&rows, &[0, 1], &[1.0; 128], PushOp::Sum);
    for pushed in [across, both] {
        assert!(
            matches!(pushed, Err(ClientError::Deadline { .. })),
            "{pushed:?}"
        );
    }
    let range = other.open_table::<f32>("range").unwrap();
    let rows = other.open_table::<f32>("rows").unwrap();
    let limit = Deadline::after(Duration::from_secs(5));
    let (mut out, mut row) = ([0.0; 100], [0.0; 64]);
    while (out, row) != ([1.0; 100], [1.0; 64]) {
        assert!(!limit.passed(), "{out:?}, {row:?}");
        let options = PullOptions::default();
        other.pull_range(&range, half, &mut out, options).unwrap();
        other.pull_rows(&rows, &[1], &mut row, options).unwrap();
    }
}

/// A connection swallows all bytes from some moment on, without an end, like a failed path of one flow.
/// The next connection works.
#[test]
fn a_lane_that_swallows_is_replaced() {
    use std::io::{Read as _, Write as _};
    use std::net::{Shutdown, TcpStream};

    let cluster = Cluster::start(Tcp, 1, 1, 1);
    let dead = Arc::new(AtomicBool::new(false));
    let is_first = Arc::new(AtomicBool::new(true));
    let flag = Arc::clone(&dead);
    let through = move |server: TcpStream| {
        let swallows = is_first.swap(false, Ordering::SeqCst);
        let (here, there) = tidewater_testkit::threads::connection();
        let pump = |mut from: TcpStream, mut to: TcpStream| {
            let dead = Arc::clone(&flag);
            std::thread::spawn(move || {
                let mut buffer = vec![0; 1 << 16];
                while let Ok(n @ 1..) = from.read(&mut buffer) {
                    if swallows && dead.load(Ordering::SeqCst) {
                        continue;
                    }
                    if to.write_all(&buffer[..n]).is_err() {
                        break;
                    }
                }
                // Either end may have closed it before.
                drop(to.shutdown(Shutdown::Both));
            });
        };
        pump(there.try_clone().unwrap(), server.try_clone().unwrap());
        pump(server, there);
        here
    };
    let wiring = tidewater_testkit::threads::Wiring {
        through: Arc::new(through),
        ..tidewater_testkit::threads::Wiring::default()
    };
    let mut client = cluster.client_over(0, SyncMode::Bsp, &wiring);
    let spec = TableBuilder::rows::<f32>("t", 1, 1);
    let table = client.create_table::<f32>(spec.spec()).unwrap();
    let before = push(&mut client, &table, 0, 1.0);
    client.wait_applied(&before).unwrap();
    client.tick().unwrap();
    dead.store(true, Ordering::SeqCst);
    client.set_timeout(Duration::from_secs(1));
    client.set_clock_timeout(Duration::from_secs(1));
    let lost = push(&mut client, &table, 0, 1.0);
    // Calls with short deadlines detect the failure like one with a long deadline.
    let soon = Deadline::after(Duration::from_secs(60));
    while client.wait_applied(&lost).is_err() && !soon.passed() {}
    client.wait_applied(&lost).unwrap();
    assert_eq!(client.counters().recoveries, 1);
    client.tick().unwrap();
    assert_eq!(client.clock(), 2);
    assert_eq!(pull(&mut client, &table, &[0]), [2.0]);
}

/// Wraps a lane so that its mailbox keeps the initial content: no status reaches it.
fn with_old_mailbox(lane: Box<dyn ClientLane>) -> Box<dyn ClientLane> {
    let region = Arc::new(Region::anonymous(MAILBOX_BYTES).unwrap());
    Box::new(Cut {
        lane,
        cut: Arc::default(),
        old_mailbox: Some(Mailbox::new(region, 0, MAILBOX_BYTES).unwrap()),
    })
}

/// Completion calls end within their deadline through the public copy of the status, without a recovery.
fn completes_without_mailbox(transport: TransportKind) {
    let cluster = Cluster::start(transport, 2, 1, 2);
    let mut client = cluster.client_with(0, SyncMode::Asp, with_old_mailbox);
    client.set_timeout(Duration::from_secs(20));
    let spec = TableBuilder::sparse::<f32>("t", 1).partitions(2);
    let table = client.create_table::<f32>(spec.spec()).unwrap();
    let keys: Vec<u64> = (0..32).collect();
    for round in 0..6 {
        let pushed = client.push_rows(&table, &keys, &[1.0; 32], PushOp::Sum);
        match round % 3 {
            0 => client.wait_applied(&pushed.unwrap()).unwrap(),
            1 => client.flush().unwrap(),
            _ => client.tick().unwrap(),
        }
    }
    assert_eq!(client.counters().recoveries, 0, "{transport}");
    let mut other = cluster.client(1, SyncMode::Asp);
    let table = other.open_table::<f32>("t").unwrap();
    assert_eq!(pull(&mut other, &table, &keys), [6.0; 32], "{transport}");
}

#[test]
fn old_mailbox_status_delays_no_completion() {
    for transport in [Shm, Tcp] {
        completes_without_mailbox(transport);
    }
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn old_mailbox_status_delays_no_completion_on_verbs() {
    completes_without_mailbox(Verbs);
}

/// Frames that the applier has taken. Several answers of its thread lie between a frame that arrived before
/// the call and the count.
fn frames_taken(cluster: &Cluster) -> u64 {
    let lsn = |engine: &mut Engine| engine.lsn();
    let looks = (0..8).map(|_| cluster.servers[0].applier(0).with(lsn).unwrap());
    looks.last().unwrap()
}

/// A call of the client after some pushes, with the ticket of the last one.
type Call = Box<dyn Fn(&mut Client, &Table<f32>, &Ticket)>;

/// Held pushes leave when their batch is full, and with every call that is not a push. Until then they
/// stay.
#[test]
fn held_pushes_leave_with_other_calls() {
    for transport in [Shm, Tcp] {
        let cluster = Cluster::start(transport, 1, 1, 1);
        let mut client = cluster.client(0, SyncMode::Asp);
        let spec = TableBuilder::sparse::<f32>("t", 1);
        let table = client.create_table::<f32>(spec.spec()).unwrap();
        client.set_timeout(Duration::from_secs(10));
        let first = push(&mut client, &table, 1, 1.0);
        client.wait_applied(&first).unwrap();
        client.batch_pushes(4);
        let options = PullOptions::default();
        let calls: [(&str, Call); 8] = [
            ("a full batch", Box::new(|c, t, _| drop(push(c, t, 1, 1.0)))),
            (
                "a wait",
                Box::new(|c, _, last| c.wait_applied(last).unwrap()),
            ),
            (
                "a look",
                Box::new(|c, _, last| assert!(c.try_applied(last).is_ok())),
            ),
            ("a pull", Box::new(|c, t, _| drop(pull(c, t, &[1])))),
            (
                "a pull that is started",
                Box::new(move |c, t, _| {
                    let started = c.start_pull_rows(t, &[1], options).unwrap();
                    c.finish_pull(started, &mut [0.0_f32]).unwrap();
                }),
            ),
            ("progress", Box::new(|c, _, _| c.progress().unwrap())),
            ("a tick", Box::new(|c, _, _| c.tick().unwrap())),
            ("a flush", Box::new(|c, _, _| c.flush().unwrap())),
        ];
        for (name, call) in calls {
            client.flush().unwrap();
            let before = frames_taken(&cluster);
            let tickets = [(); 3].map(|()| push(&mut client, &table, 1, 1.0));
            client.wait_applied(&first).unwrap();
            assert_eq!(
                frames_taken(&cluster),
                before,
                "{transport}, {name}: not held"
            );
            call(&mut client, &table, &tickets[2]);
            let deadline = Deadline::after(Duration::from_secs(10));
            while frames_taken(&cluster) < before + 3 {
                assert!(!deadline.passed(), "{transport}, {name}: they stay");
            }
        }
        client.flush().unwrap();
        assert_eq!(pull(&mut client, &table, &[1]), [1.0 + 8.0 * 3.0 + 1.0]);
        client.finish().unwrap();
    }
}

/// The ticket of a push buffer drops the frames that are answered, while those of another server never are.
#[test]
fn buffer_ticket_stays_short() {
    let cluster = Cluster::start(Shm, 2, 1, 1);
    let mut client = cluster.client(0, SyncMode::Asp);
    let spec = TableBuilder::sparse::<i64>("sums", 1).partitions(2);
    let table = client.create_table::<i64>(spec.spec()).unwrap();
    let owners = client.partition_owners(&table).unwrap();
    let [near, far] = [0, 1].map(|server| {
        let is_there = |&key: &u64| owners[partition_of_key(key, 2).0 as usize].server.0 == server;
        (0..).find(is_there).unwrap()
    });
    let (release, released) = std::sync::mpsc::channel::<()>();
    let nap = Command::With(Box::new(move |_| released.recv().unwrap()));
    cluster.servers[1].applier(0).send(nap).unwrap();
    let mut buffer = PushBuffer::sum(&table).rows_max(1);
    buffer.add(&mut client, &[far], &[1]).unwrap();
    for _ in 0..50 {
        buffer.add(&mut client, &[near], &[1]).unwrap();
        // Its frame ends the run of those of the buffer.
        let direct = client.push_rows(&table, &[near], &[1], PushOp::Sum);
        client.wait_applied(&direct.unwrap()).unwrap();
    }
    release.send(()).unwrap();
    let ticket = buffer.flush(&mut client).unwrap();
    let runs = format!("{ticket:?}").matches("LaneSeqs").count();
    assert!(runs < 10, "{runs} runs of frames");
    client.wait_applied(&ticket).unwrap();
    let (mut out, pull) = ([0; 2], PullOptions::default());
    client
        .pull_rows(&table, &[near, far], &mut out, pull)
        .unwrap();
    assert_eq!(out, [100, 1]);
}
