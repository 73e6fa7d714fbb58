//! What an applier posts into a mailbox, in which order, and that a signal follows.

use std::sync::{Mutex, MutexGuard};

use crossbeam_channel::{Sender, bounded, unbounded};
use tidewater_lanes::fabric::{Inbox, LaneError, ServerLane};
use tidewater_protocol::ids::{Incarnation, PartitionId, TableId};
use tidewater_protocol::layout::frame::{
    FRAME_HEADER_BYTES, FrameFlags, FrameKind, PARTITION_ANY, RowsPayload,
};
use tidewater_protocol::layout::function::{FunctionBody, FunctionPayload};
use tidewater_protocol::layout::lines::StateLine;
use tidewater_protocol::layout::ring::RingGeometry;
use tidewater_protocol::layout::session::{
    INBOX_RING_AT, MAILBOX_CLOCKS_AT, MAILBOX_REJECTS_AT, MAILBOX_REPLIES_AT, MAILBOX_STATE_AT,
    inbox_bytes, reply_slot_bytes,
};
use tidewater_protocol::table::{
    DType, DenseLayout, GradientOptions, Init, KeyOptions, Optimizer, PushOp, Reduce, Shape,
    TableSpec,
};
use tidewater_runtime::mem::Region;
use tidewater_runtime::sync::{AtomicBool, Ordering};

use super::*;
use crate::apply::table::{Store, Table};
use crate::namespace::NamespaceId;
use crate::ring_reader::RingOwner;
use crate::store::ShardId;
use crate::store::prealloc::Preallocator;

const RING_BYTES: usize = 16 << 10;
const TABLE: u32 = 1;
/// No table has this number.
const UNKNOWN: u32 = 9;
const SLOT: usize = 2;
/// Tag of a request with its answer in [`SLOT`].
const TAG: u64 = 0x100 | SLOT as u64;

/// A write that a client's memory sees from the server's lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Event {
    State,
    Clock,
    Reject,
    ReplyPayload,
    ReplyHeader,
    Signal,
}

type Tape = Arc<Mutex<Vec<Event>>>;

fn lock(tape: &Tape) -> MutexGuard<'_, Vec<Event>> {
    tape.lock().unwrap()
}

/// Sessions in the order in which they were signalled.
type Signalled = Arc<Mutex<Vec<SessionId>>>;

/// A lane that records the calls it gets.
struct Recorder {
    tape: Tape,
    session: SessionId,
    signalled: Signalled,
}

impl ServerLane for Recorder {
    fn peer(&self) -> &str {
        "client"
    }

    fn poll(&mut self, _: &mut RegionTableView, _: &Inbox) -> Result<bool, LaneError> {
        Ok(false)
    }

    fn post(&mut self, at: usize, _: &[u8]) -> Result<(), LaneError> {
        let event = match at {
            MAILBOX_STATE_AT => Event::State,
            MAILBOX_CLOCKS_AT..MAILBOX_REJECTS_AT => Event::Clock,
            MAILBOX_REJECTS_AT..MAILBOX_REPLIES_AT => Event::Reject,
            _ if (at - MAILBOX_REPLIES_AT).is_multiple_of(reply_slot_bytes(RING_BYTES)) => {
                Event::ReplyHeader
            }
            _ => Event::ReplyPayload,
        };
        lock(&self.tape).push(event);
        Ok(())
    }

    fn signal(&mut self) -> Result<(), LaneError> {
        lock(&self.tape).push(Event::Signal);
        self.signalled.lock().unwrap().push(self.session);
        Ok(())
    }

    fn poll_hint(&self) -> Option<Duration> {
        None
    }

    fn destroy(&mut self) {}
}

/// A client's end of a lane, driven by the test.
struct Hand {
    session: SessionId,
    inbox: Inbox,
    seq: u64,
    tail: u64,
    tape: Tape,
}

impl Hand {
    /// Writes a frame into the ring, and its tail.
    fn write(&mut self, header: FrameHeader, payload: &[u8]) {
        self.seq += u64::from(header.kind != FrameKind::Pad);
        let header = FrameHeader {
            seq: self.seq.max(1),
            session: self.session.0,
            payload_len: payload.len() as u32,
            ..header
        };
        let at = INBOX_RING_AT + self.tail as usize;
        let window = self.inbox.window();
        window.copy_in(at, &line_bytes(&header.to_line()));
        window.copy_in(at + FRAME_HEADER_BYTES, payload);
        self.tail += match header.kind {
            FrameKind::Pad => self.inbox.ring().to_wrap(self.tail),
            _ => header.ring_bytes(),
        };
        self.inbox.reset_tail(self.tail);
    }

    fn take(&self) -> Vec<Event> {
        std::mem::take(&mut lock(&self.tape))
    }
}

fn header(kind: FrameKind, table: u32) -> FrameHeader {
    let push = kind == FrameKind::PushRows;
    FrameHeader {
        kind,
        flags: FrameFlags {
            op: push.then_some(PushOp::Sum),
            dtype: push.then_some(DType::F32),
            ..FrameFlags::default()
        },
        seq: 0,
        session: 0,
        payload_len: 0,
        count: u32::from(matches!(kind, FrameKind::PushRows | FrameKind::Gather)),
        table,
        partition: if kind == FrameKind::Clock {
            0
        } else {
            PARTITION_ANY
        },
        clock: u64::from(kind == FrameKind::Clock),
        user_tag: if kind == FrameKind::Gather { TAG } else { 0 },
        checksum: 0,
    }
}

/// A push of one row of one element.
fn push(value: f32) -> (FrameHeader, Vec<u8>) {
    let parts = RowsPayload::new(1, 4, false);
    let mut payload = vec![0; parts.len];
    payload[parts.values_at..][..4].copy_from_slice(&value.to_le_bytes());
    (header(FrameKind::PushRows, TABLE), payload)
}

fn gather(table: u32) -> (FrameHeader, Vec<u8>) {
    (header(FrameKind::Gather, table), vec![0; 8])
}

/// An applier with a table, and the lanes of two workers.
struct Rig {
    applier: Applier,
    commands: Sender<Command>,
    hands: [Hand; 2],
    signalled: Signalled,
}

impl Rig {
    fn new() -> Self {
        let memory = Arc::new(ServerMemory::new(16 << 20, Incarnation(1)).unwrap());
        let (commands, rx) = unbounded();
        let workers = [WorkerId(0), WorkerId(1)];
        let mut applier = Applier::new(Arc::clone(&memory), 0, workers, rx).unwrap();
        let spec = TableSpec {
            name: "t".into(),
            shape: Shape::Sparse { dim: 1 },
            dtype: DType::F32,
            optimizer: Optimizer::None,
            init: Init::Zeros,
            seed: 0,
            effect: tidewater_protocol::table::Apply::Immediate,
            finite_check: true,
            domain: DomainId(0),
            partitions: 1,
            gradient: GradientOptions::default(),
            redo: false,
            keys: KeyOptions::default(),
            versions: 2,
            durability: Default::default(),
            partition_servers: None,
            partition_starts: None,
        };
        let (shard_id, mine) = (
            ShardId::new(TableId(TABLE), 0),
            [PartitionId(0)].into_iter(),
        );
        let table = Table::new(
            &memory,
            &Preallocator::none(),
            shard_id,
            &Arc::new(spec),
            mine,
        );
        applier.engine().add_table(table.unwrap());
        let hands = [0, 1].map(|rank| {
            let session = SessionId(u64::from(rank) + 5);
            let region = Arc::new(Region::anonymous(inbox_bytes(RING_BYTES)).unwrap());
            let geometry = RingGeometry::new(RING_BYTES).unwrap();
            let inbox = Inbox::new(region, 0, geometry, session.0).unwrap();
            let owner = RingOwner {
                session,
                sender: FrameSender::first(WorkerId(rank)),
                check_frames: false,
            };
            let ring = Ring::new(owner, inbox.clone(), &memory).unwrap();
            let ring = Command::AddRing(Box::new(ring), bounded(1).0);
            commands.send(ring).unwrap();
            Hand {
                session,
                inbox,
                seq: 0,
                tail: 0,
                tape: Tape::default(),
            }
        });
        let mut rig = Self {
            applier,
            commands,
            hands,
            signalled: Signalled::default(),
        };
        rig.attach(0);
        rig.attach(1);
        rig.applier.step();
        for hand in &rig.hands {
            hand.take();
        }
        rig
    }

    /// Attaches a new lane to a ring.
    fn attach(&mut self, hand: usize) {
        let Hand { session, tape, .. } = &self.hands[hand];
        let port = Box::new(Recorder {
            tape: Arc::clone(tape),
            session: *session,
            signalled: Arc::clone(&self.signalled),
        });
        let attach = Command::AttachPort(*session, port, bounded(1).0);
        self.commands.send(attach).unwrap();
    }

    /// The events that one step of the applier posts to a lane.
    fn step(&mut self, hand: usize) -> Vec<Event> {
        self.applier.step();
        self.hands[hand].take()
    }

    /// The events that one step posts to the lane of the frame's sender.
    fn answers(&mut self, (header, payload): (FrameHeader, Vec<u8>)) -> Vec<Event> {
        self.hands[0].write(header, &payload);
        self.step(0)
    }
}

#[test]
fn a_reply_is_posted_payload_first_and_before_the_state_that_counts_it() {
    use Event::{Reject, ReplyHeader, ReplyPayload, Signal, State};
    let mut rig = Rig::new();
    let posted = rig.answers(gather(TABLE));
    assert_eq!(posted, [ReplyPayload, ReplyHeader, State, Signal]);
    // A refused request gets a reject too; its reply is without payload.
    let posted = rig.answers(gather(UNKNOWN));
    assert_eq!(posted, [ReplyPayload, ReplyHeader, Reject, State, Signal]);
    // For several frames found by one poll, the state is posted once, after everything.
    for (header, payload) in [gather(TABLE), push(f32::NAN), gather(TABLE)] {
        rig.hands[0].write(header, &payload);
    }
    let reply = [ReplyPayload, ReplyHeader];
    let due = [&reply[..], &[Reject], &reply, &[State, Signal]].concat();
    assert_eq!(rig.step(0), due);
}

#[test]
fn every_kind_of_post_is_followed_by_a_signal() {
    use Event::{Clock, Reject, Signal, State};
    let mut rig = Rig::new();
    // A push, applied and refused.
    assert_eq!(rig.answers(push(1.0)), [State, Signal]);
    assert_eq!(rig.answers(push(f32::NAN)), [Reject, State, Signal]);
    // Requests with answers.
    for table in [TABLE, UNKNOWN] {
        let posted = rig.answers(gather(table));
        assert!(
            posted.len() > 2 && posted.ends_with(&[State, Signal]),
            "{posted:?}"
        );
    }
    // A tick: posted to its sender and, when the last worker ticks, to all.
    let tick = || (header(FrameKind::Clock, 0), Vec::new());
    assert_eq!(rig.answers(tick()), [State, Signal]);
    let (clock, payload) = tick();
    rig.hands[1].write(clock, &payload);
    assert_eq!(rig.step(0), [Clock, Signal]);
    let posted = rig.hands[1].take();
    assert_eq!(posted, [State, Clock, Signal], "one signal for both");
    // A clock that moves without a frame: the slowest worker is gone.
    let (clock, payload) = tick();
    rig.hands[0].write(FrameHeader { clock: 2, ..clock }, &payload);
    assert_eq!(rig.step(0), [State, Signal]);
    let job = NamespaceId::default();
    let gone = Command::RemoveWorker(job, WorkerId(1), bounded(1).0);
    rig.commands.send(gone).unwrap();
    assert_eq!(rig.step(0), [Clock, Signal]);
    // A recovered lane gets rejects, state and clocks again.
    rig.attach(0);
    let posted = rig.step(0);
    assert_eq!(posted, [Reject, Reject, State, Clock, Signal]);
}

/// The client with the tick that moves a clock is signalled before the others, in whatever order the rings are.
#[test]
fn client_that_ticks_last_is_signalled_first() {
    let mut rig = Rig::new();
    let order = [rig.hands[0].session, rig.hands[1].session];
    for (n, last) in [1, 0, 1, 1, 0].into_iter().enumerate() {
        for hand in [1 - last, last] {
            let clock = FrameHeader {
                clock: n as u64 + 1,
                ..header(FrameKind::Clock, 0)
            };
            rig.hands[hand].write(clock, &[]);
            rig.signalled.lock().unwrap().clear();
            rig.applier.step();
        }
        let signalled = std::mem::take(&mut *rig.signalled.lock().unwrap());
        assert_eq!(signalled, [order[last], order[1 - last]], "tick {n}");
    }
}

/// A lane that ends when its gate opens, as one over RDMA does, and takes nothing but that.
struct SlowToEnd(Arc<AtomicBool>);

impl ServerLane for SlowToEnd {
    fn peer(&self) -> &str {
        "client"
    }

    fn poll(&mut self, _: &mut RegionTableView, _: &Inbox) -> Result<bool, LaneError> {
        Ok(false)
    }

    fn post(&mut self, _: usize, _: &[u8]) -> Result<(), LaneError> {
        Ok(())
    }

    fn signal(&mut self) -> Result<(), LaneError> {
        Ok(())
    }

    fn poll_hint(&self) -> Option<Duration> {
        None
    }

    fn destroy(&mut self) {
        panic!("the applier waits for a device");
    }

    fn end(&mut self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// While a lane ends, the applier serves the others. What the lane's device places until its end is applied before
/// the recovery is answered, and before the ring of an ended session is dropped.
#[test]
fn lane_that_ends_slowly_stops_no_other() {
    let mut rig = Rig::new();
    let ended = Arc::new(AtomicBool::new(false));
    let port = Box::new(SlowToEnd(Arc::clone(&ended)));
    let session = rig.hands[1].session;
    let attach = Command::AttachPort(session, port, bounded(1).0);
    rig.commands.send(attach).unwrap();
    rig.applier.step();
    let ((tx, recovered), (drop_tx, dropped)) = (bounded(1), bounded(1));
    rig.commands.send(Command::recover(session, tx)).unwrap();
    rig.commands
        .send(Command::DropRing(session, drop_tx))
        .unwrap();
    for seq in 1..=10 {
        assert_eq!(rig.answers(push(1.0)), [Event::State, Event::Signal]);
        assert_eq!(rig.applier.rings[0].state().applied_seq, seq);
        assert!(recovered.try_recv().is_err(), "its device may still write");
    }
    assert!(
        rig.applier.poll_hint() <= ENDING,
        "nothing wakes it when the lane has ended"
    );
    // The last frame arrives late.
    let (header, payload) = push(1.0);
    rig.hands[1].write(header, &payload);
    assert!(dropped.try_recv().is_err());
    ended.store(true, Ordering::Relaxed);
    rig.applier.step();
    let state = recovered.try_recv().unwrap().unwrap();
    assert_eq!(
        state.applied_seq, 1,
        "a frame that came before the end of the lane is lost"
    );
    assert!(dropped.try_recv().is_ok() && rig.applier.rings.len() == 1);
    assert_eq!(rig.applier.poll_hint(), IDLE);
}

#[test]
fn room_in_a_ring_is_told_and_signalled() {
    use Event::{Signal, State};
    let mut rig = Rig::new();
    rig.answers(push(1.0));
    // Padding is no frame: it is consumed, and a client that waits for room must learn of it.
    let posted = rig.answers((header(FrameKind::Pad, 0), Vec::new()));
    assert_eq!(posted, [State, Signal]);
    assert_eq!(rig.hands[0].tail, RING_BYTES as u64);
    let head = |rig: &Rig| -> StateLine { rig.applier.rings[0].state() };
    assert_eq!(head(&rig).head_bytes, RING_BYTES as u64);
    assert_eq!(head(&rig).applied_seq, 1);
    // A step that moves nothing posts nothing.
    assert_eq!(rig.step(0), []);
}

/// A pin ends with its session. A pin with a payload, or of a table without snapshots, is refused.
#[test]
fn pins_end_with_their_session() {
    const RANGES: u32 = 2;
    let mut rig = Rig::new();
    let memory = Arc::clone(&rig.applier.memory);
    let engine = rig.applier.engine();
    let layout = DenseLayout::Blocks {
        block_bytes: 4096,
        snapshot: true,
    };
    let spec = TableSpec {
        name: "ranges".into(),
        shape: Shape::Dense {
            rows: 10,
            cols: 1,
            layout,
        },
        effect: tidewater_protocol::table::Apply::AtTick(Reduce::Sum),
        versions: 4,
        ..(*engine.table(TableId(TABLE)).unwrap().spec).clone()
    };
    let (id, mine) = (
        ShardId::new(TableId(RANGES), 0),
        [PartitionId(0)].into_iter(),
    );
    let table = Table::new(&memory, &Preallocator::none(), id, &Arc::new(spec), mine);
    engine.add_table(table.unwrap());
    let pinned = |rig: &mut Rig| match &rig.applier.engine().table(TableId(RANGES)).unwrap().store {
        Store::Blocks(blocks) => blocks.pinned(),
        _ => unreachable!("table {RANGES} is by ranges"),
    };
    let frame = |kind, table| FrameHeader {
        user_tag: if kind == FrameKind::Pin { TAG } else { 0 },
        ..header(kind, table)
    };
    let pin = frame(FrameKind::Pin, RANGES);
    for (refused, payload) in [
        (frame(FrameKind::Pin, TABLE), 0),
        (frame(FrameKind::Pin, UNKNOWN), 0),
        (pin, 8),
        (FrameHeader { clock: 1, ..pin }, 0),
    ] {
        let posted = rig.answers((refused, vec![0; payload]));
        assert!(posted.contains(&Event::Reject), "{refused:?}");
    }
    for hand in [0, 1] {
        rig.hands[hand].write(pin, &[]);
        assert!(rig.step(hand).contains(&Event::ReplyHeader));
    }
    assert_eq!(pinned(&mut rig), 1, "two sessions pin one version");
    rig.answers((frame(FrameKind::Unpin, RANGES), Vec::new()));
    assert_eq!(pinned(&mut rig), 1, "one session's pin is left");
    let session = rig.hands[1].session;
    rig.commands
        .send(Command::DropRing(session, bounded(1).0))
        .unwrap();
    rig.applier.step();
    assert_eq!(pinned(&mut rig), 0, "the session has ended");
}

/// An applier leaves a ring after each frame of a function, and serves the other ring next.
#[test]
fn rings_are_served_between_functions() {
    let mut rig = Rig::new();
    let applied = |rig: &Rig, ring: usize| rig.applier.rings[ring].state().applied_seq;
    let mut count = FunctionPayload::new(FunctionBody::Slots, 0, &[], &[]);
    let mut reduce = header(FrameKind::Reduce, TABLE);
    (reduce.count, reduce.partition) = (1, 0);
    for _ in 0..3 {
        rig.hands[0].write(reduce, count.at(0));
        let (header, payload) = push(1.0);
        rig.hands[1].write(header, &payload);
    }
    rig.applier.step();
    // All pushes of a ring are one batch.
    assert_eq!((applied(&rig, 0), applied(&rig, 1)), (1, 3));
    rig.applier.step();
    assert_eq!(applied(&rig, 0), 2);
    rig.applier.step();
    assert_eq!(applied(&rig, 0), 3);
}

/// While clocks are held no tick is consumed. Afterwards the new worker is awaited, from its first tick on.
#[test]
fn held_clocks_wait_for_the_new_member() {
    let mut rig = Rig::new();
    let job = NamespaceId::default();
    let domain = DomainId(0);
    let tick = |rig: &mut Rig, clock| {
        for hand in &mut rig.hands {
            let clock = FrameHeader {
                clock,
                ..header(FrameKind::Clock, 0)
            };
            hand.write(clock, &[]);
        }
        rig.applier.step();
    };
    let applied = |rig: &Rig| [0, 1].map(|ring: usize| rig.applier.rings[ring].state().applied_seq);
    tick(&mut rig, 1);
    let (tx, held) = bounded(1);
    rig.commands.send(Command::HoldClocks(job, tx)).unwrap();
    tick(&mut rig, 2);
    assert_eq!(held.recv().unwrap(), [(domain, 1)]);
    assert_eq!(applied(&rig), [1, 1], "ticks wait");
    let first = [(domain, 1)].into_iter().collect();
    let admit = Command::Admit(job, Some((WorkerId(2), first)), bounded(1).0);
    rig.commands.send(admit).unwrap();
    rig.applier.step();
    assert_eq!(applied(&rig), [2, 2]);
    let clocks = rig.applier.engine().clocks(job);
    assert_eq!(
        (clocks.min(domain), clocks.turn(domain)),
        (1, Some(WorkerId(2)))
    );
    let gone = Command::RemoveWorker(job, WorkerId(2), bounded(1).0);
    rig.commands.send(gone).unwrap();
    rig.applier.step();
    assert_eq!(rig.applier.engine().clocks(job).min(domain), 2);
}
