//! Deaths after any word that an applier stores. (long: one simulation.) The memory files are all that its
//! successor has. In the end each row has the bits of a run without a death, and each refused push was refused once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use crossbeam_channel::{Sender, bounded, unbounded};
use tidewater_lanes::fabric::{Inbox, LaneError, RegionTableView, ServerLane};
use tidewater_protocol::ids::{DomainId, Incarnation, WorkerId};
use tidewater_protocol::layout::frame::{
    FRAME_HEADER_BYTES, FrameFlags, FrameKind, PARTITION_ANY, RowsPayload,
};
use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::layout::lines::Reject;
use tidewater_protocol::layout::ring::RingGeometry;
use tidewater_protocol::layout::session::{
    INBOX_RING_AT, MAILBOX_REJECTS_AT, MAILBOX_REPLIES_AT, MAILBOX_STATE_AT, inbox_bytes,
};
use tidewater_protocol::layout::{LINE_BYTES, line_bytes, line_from_bytes};
use tidewater_protocol::table::{
    Apply, DType, DenseLayout, GradientOptions, Init, KeyOptions, PushOp, Reduce, Shape,
};
use tidewater_runtime::mem::Region;
use tidewater_runtime::mem::crash::run_for;

use super::*;
use crate::apply::Refusal;
use crate::apply::applier::Applier;
use crate::apply::command::Command;
use crate::namespace::FrameSender;
use crate::ring_reader::{Ring, RingOwner};
use crate::store::ShardId;
use crate::store::{Backing, Hugepages, MemoryFiles};

const RING_BYTES: usize = 16 << 10;
const CAPACITY: usize = 24 << 20;
const SPARSE: u32 = 1;
const ROWS: u32 = 2;
const RANGES: u32 = 3;
const DIM: usize = 3;
const COLS: usize = 5;
/// Rows of a step of a tick: a tick takes many.
const TICK_ROWS: usize = 7;
const JOB: NamespaceId = NamespaceId(4);

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 += 1;
        mix64(self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)) % n
    }
}

fn rules() -> [Optimizer; 7] {
    [
        Optimizer::None,
        Optimizer::AdaGrad { lr: 0.1, eps: 1e-8 },
        Optimizer::Adam {
            lr: 0.1,
            beta1: 0.9,
            beta2: 0.99,
            eps: 1e-8,
        },
        Optimizer::Ftrl {
            alpha: 0.1,
            beta: 1.0,
            l1: 0.1,
            l2: 0.1,
        },
        Optimizer::Momentum {
            lr: 0.1,
            mu: 0.9,
            nesterov: true,
        },
        Optimizer::AdaDelta {
            lr: 1.0,
            rho: 0.9,
            eps: 1e-6,
        },
        Optimizer::ProximalAdaGrad {
            lr: 0.1,
            eps: 1e-8,
            l1: 0.1,
        },
    ]
}

const AT_ONCE: (Optimizer, Apply) = (Optimizer::None, Apply::Immediate);

fn effect_of(seed: u64) -> Apply {
    match seed % 4 {
        0 | 2 => Apply::Immediate,
        1 => Apply::AtTick(Reduce::Sum),
        _ => Apply::AtTick(Reduce::Mean),
    }
}

fn spec(id: u32, (optimizer, effect): (Optimizer, Apply)) -> TableSpec {
    let dense = |rows, cols, layout| Shape::Dense { rows, cols, layout };
    let blocks = DenseLayout::Blocks {
        block_bytes: 4096,
        snapshot: false,
    };
    TableSpec {
        name: format!("t{id}"),
        shape: match id {
            SPARSE => Shape::Sparse { dim: DIM as u32 },
            ROWS => dense(40, COLS as u32, DenseLayout::Rows),
            _ => dense(4, 1024, blocks),
        },
        dtype: DType::F32,
        optimizer,
        init: Init::Uniform {
            low: -1.0,
            high: 1.0,
        },
        seed: 7,
        effect,
        finite_check: true,
        domain: DomainId(0),
        partitions: if id == RANGES { 2 } else { 3 },
        gradient: GradientOptions::default(),
        redo: false,
        keys: KeyOptions::default(),
        versions: 2,
        durability: Durability::Warm,
        partition_servers: None,
        partition_starts: None,
    }
}

/// What a client has received.
#[derive(Default)]
struct Mail {
    state: StateLine,
    refused: BTreeSet<u64>,
}

/// A lane that keeps what the client needs.
struct Lane(SessionId, Arc<Mutex<Mail>>);

impl ServerLane for Lane {
    fn peer(&self) -> &str {
        "client"
    }

    fn poll(&mut self, _: &mut RegionTableView, _: &Inbox) -> Result<bool, LaneError> {
        Ok(false)
    }

    fn post(&mut self, at: usize, bytes: &[u8]) -> Result<(), LaneError> {
        let mut mail = self.1.lock().unwrap();
        let line = bytes.first_chunk::<LINE_BYTES>().map(line_from_bytes);
        match (at, line) {
            (MAILBOX_STATE_AT, Some(line)) => {
                mail.state = StateLine::from_line(&line, self.0.0).unwrap();
            }
            (MAILBOX_REJECTS_AT..MAILBOX_REPLIES_AT, Some(line)) => {
                let reject = Reject::from_line(&line, self.0.0).unwrap();
                mail.refused.insert(reject.seq);
            }
            _ => {}
        }
        Ok(())
    }

    fn signal(&mut self) -> Result<(), LaneError> {
        Ok(())
    }

    fn poll_hint(&self) -> Option<Duration> {
        None
    }

    fn destroy(&mut self) {}
}

/// A client with all frames that it will send.
struct Sending {
    session: SessionId,
    inbox: Inbox,
    frames: Vec<(FrameHeader, Vec<u8>)>,
    next: usize,
    tail: u64,
    mail: Arc<Mutex<Mail>>,
}

fn inbox(session: u64) -> Inbox {
    let region = Arc::new(Region::anonymous(inbox_bytes(RING_BYTES)).unwrap());
    Inbox::new(region, 0, RingGeometry::new(RING_BYTES).unwrap(), session).unwrap()
}

impl Sending {
    fn mail(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap()
    }

    fn is_done(&self) -> bool {
        self.mail().state.applied_seq == self.frames.len() as u64
    }

    /// Writes up to `count` frames, as far as the ring has room.
    fn write(&mut self, count: u64) {
        let ring = self.inbox.ring();
        for _ in 0..count {
            let Some((header, payload)) = self.frames.get(self.next) else {
                break;
            };
            let (len, to_wrap) = (header.ring_bytes(), ring.to_wrap(self.tail));
            let pad = if len > to_wrap { to_wrap } else { 0 };
            let head = self.mail().state.head_bytes;
            if self.tail + pad + len > head + ring.bytes() {
                break;
            }
            let window = self.inbox.window();
            let place = |tail: u64| INBOX_RING_AT + ring.offset(tail) as usize;
            if pad > 0 {
                let kind = FrameKind::Pad;
                let header = FrameHeader { kind, ..*header };
                window.copy_in(place(self.tail), &line_bytes(&header.to_line()));
                self.tail += pad;
            }
            window.copy_in(place(self.tail), &line_bytes(&header.to_line()));
            window.copy_in(place(self.tail) + FRAME_HEADER_BYTES, payload);
            self.tail += len;
            self.next += 1;
        }
        self.inbox.reset_tail(self.tail);
    }
}

/// Kind, table, count and payload of a client's frame. Where pushes take effect on arrival, clients share no row, so
/// that their order does not matter. `values` makes the values of a number of elements.
fn body(
    client: u64,
    (seq, share): (u64, bool),
    mut values: impl FnMut(usize) -> Vec<u8>,
) -> (FrameKind, u32, usize, Vec<u8>) {
    let own = if share { 0 } else { client };
    let sparse = |row: u64| mix64(seq + row * 77) % 60 * 2 + own;
    match mix64(seq * 2 + client) % 8 {
        _ if seq.is_multiple_of(10) => (FrameKind::Clock, 0, 0, Vec::new()),
        0..4 => {
            let n = 1 + (seq % 7) as usize;
            let payload = rows(n, sparse, DIM, &values(n * DIM));
            (FrameKind::PushRows, SPARSE, n, payload)
        }
        4 => {
            let n = 1 + (seq % 3) as usize;
            let keys = (0..n as u64).flat_map(|row| sparse(row).to_le_bytes());
            (FrameKind::Delete, SPARSE, n, keys.collect())
        }
        5 | 6 => {
            let n = 1 + (seq % 5) as usize;
            let key = |row: u64| mix64(seq + row * 5) % 20 * 2 + own;
            let payload = rows(n, key, COLS, &values(n * COLS));
            (FrameKind::PushRows, ROWS, n, payload)
        }
        _ => {
            // Over the border of two blocks.
            let first = own * 2048 + 1024 - mix64(seq) % 40;
            let n = 1 + (seq % 80) as usize;
            let payload = [first.to_le_bytes().to_vec(), values(n)].concat();
            (FrameKind::PushDense, RANGES, n, payload)
        }
    }
}

/// Frames of a client, and the numbers of those that are refused.
fn frames(
    client: u64,
    rng: &mut Rng,
    count: u64,
    (gradients, share): (bool, bool),
) -> (Vec<(FrameHeader, Vec<u8>)>, BTreeSet<u64>) {
    let mut refused = BTreeSet::new();
    let mut all = Vec::new();
    for seq in 1..=count {
        let is_bad = rng.below(9) == 0;
        let op = match rng.below(if share { 3 } else { 5 }) {
            0 => PushOp::Sum,
            1 => PushOp::Assign,
            3 => PushOp::Min,
            4 => PushOp::Max,
            _ if gradients => PushOp::Gradient,
            _ => PushOp::Sum,
        };
        let mut value = |n: usize| match is_bad && n == 0 {
            true => f32::NAN,
            false => rng.below(1000) as f32 / 64.0 - 5.0,
        };
        let values = |n: usize| {
            let values = (0..n).rev().map(&mut value);
            values.flat_map(f32::to_le_bytes).collect()
        };
        let (kind, table, count, payload) = body(client, (seq, share), values);
        let is_push = matches!(kind, FrameKind::PushRows | FrameKind::PushDense);
        if is_bad && is_push {
            refused.insert(seq);
        }
        let header = FrameHeader {
            kind,
            flags: FrameFlags {
                op: is_push.then_some(op),
                dtype: is_push.then_some(DType::F32),
                ..FrameFlags::default()
            },
            seq,
            session: client + 5,
            payload_len: payload.len() as u32,
            count: count as u32,
            table,
            partition: match kind {
                FrameKind::Clock => 0,
                _ => PARTITION_ANY,
            },
            clock: seq / 10,
            user_tag: 0,
            checksum: 0,
        };
        all.push((header, payload));
    }
    (all, refused)
}

fn rows(n: usize, key: impl Fn(u64) -> u64, dim: usize, values: &[u8]) -> Vec<u8> {
    let parts = RowsPayload::new(n, dim * 4, false);
    let mut payload = vec![0; parts.len];
    for row in 0..n {
        payload[row * 8..][..8].copy_from_slice(&key(row as u64).to_le_bytes());
    }
    payload[parts.values_at..][..values.len()].copy_from_slice(values);
    payload
}

/// A server of one applier, its clients, and the files that outlive it.
struct World {
    files: MemoryFiles,
    incarnation: u64,
    applier: Option<Applier>,
    commands: Sender<Command>,
    clients: Vec<Sending>,
    deaths: u32,
}

impl World {
    fn new(rule: (Optimizer, Apply), clients: Vec<Vec<(FrameHeader, Vec<u8>)>>) -> Self {
        let backing = Backing {
            hugepages: Hugepages::Off,
            ..Backing::default()
        };
        let (files, _) = MemoryFiles::reserve(CAPACITY, &backing).unwrap();
        let memory = ServerMemory::held(files.share().unwrap(), Incarnation(1)).unwrap();
        let memory = Arc::new(memory);
        let (commands, rx) = unbounded();
        let mut applier = Applier::new(Arc::clone(&memory), 0, [], rx).unwrap();
        applier.engine().set_tick_rows(TICK_ROWS);
        for id in [SPARSE, ROWS, RANGES] {
            applier.engine().add_table(table(&memory, id, rule));
        }
        let sending = |(n, frames): (u64, _)| Sending {
            session: SessionId(n + 5),
            inbox: inbox(n + 5),
            frames,
            next: 0,
            tail: 0,
            mail: Arc::default(),
        };
        let clients: Vec<Sending> = (0..).zip(clients).map(sending).collect();
        for (rank, client) in (0..).zip(&clients) {
            let owner = RingOwner {
                session: client.session,
                sender: FrameSender {
                    namespace: JOB,
                    ..FrameSender::first(WorkerId(rank))
                },
                check_frames: false,
            };
            let ring = Ring::new(owner, client.inbox.clone(), &memory).unwrap();
            let add = Command::AddRing(Box::new(ring), bounded(1).0);
            commands.send(add).unwrap();
        }
        let mut world = Self {
            files,
            incarnation: 1,
            applier: Some(applier),
            commands,
            clients,
            deaths: 0,
        };
        world.attach();
        world
    }

    fn applier(&mut self) -> &mut Applier {
        self.applier.as_mut().unwrap()
    }

    fn attach(&mut self) {
        for client in &self.clients {
            let lane = Lane(client.session, Arc::clone(&client.mail));
            let attach = Command::AttachPort(client.session, Box::new(lane), bounded(1).0);
            self.commands.send(attach).unwrap();
        }
        self.applier().step();
        assert_eq!(self.applier().failure(), None);
    }

    /// A step that may store this number of words; the applier dies in it if that is too few.
    fn step(&mut self, words: u64) {
        let mut applier = self.applier.take().unwrap();
        // The heap of a dead process is gone; nothing of it is dropped.
        let step = run_for(words, || {
            applier.step();
        });
        if step.is_none() {
            std::mem::forget(applier);
            self.deaths += 1;
            return;
        }
        assert_eq!(applier.failure(), None);
        self.applier = Some(applier);
    }

    /// Starts a successor that may store this number of words. False if it dies.
    fn resume(&mut self, words: u64) -> bool {
        self.incarnation += 1;
        let files = self.files.share().unwrap();
        let incarnation = Incarnation(self.incarnation);
        let (commands, rx) = unbounded();
        let resumed = run_for(words, || {
            let memory = Arc::new(ServerMemory::resume(files, incarnation).unwrap());
            let none = Preallocator::none();
            Applier::resume(memory, 0, [], rx, &none, |record| {
                Ok(inbox(record.session.0))
            })
            .unwrap()
        });
        let Some((mut applier, _)) = resumed else {
            self.deaths += 1;
            return false;
        };
        applier.engine().set_tick_rows(TICK_ROWS);
        self.applier = Some(applier);
        self.commands = commands;
        true
    }

    /// Gives each client a new lane; it sends again what was not applied.
    fn recover(&mut self) {
        let sessions: Vec<SessionId> = self.applier().rings().map(|ring| ring.session).collect();
        assert_eq!(sessions.len(), self.clients.len());
        for n in 0..self.clients.len() {
            let session = self.clients[n].session;
            let new = inbox(session.0);
            let (tx, asked) = bounded(1);
            self.commands.send(Command::recover(session, tx)).unwrap();
            self.applier().step();
            let state = asked.recv().unwrap().unwrap();
            let client = &mut self.clients[n];
            assert!(
                state.applied_seq >= client.mail().state.applied_seq,
                "{state:?}"
            );
            let lane = Lane(session, Arc::clone(&client.mail));
            (client.inbox, client.next, client.tail) =
                (new.clone(), state.applied_seq as usize, state.head_bytes);
            client.mail().state = state;
            let renew = Command::Renew(session, new, Box::new(lane), bounded(1).0);
            self.commands.send(renew).unwrap();
            self.applier().step();
        }
    }

    /// Runs until all frames are applied or refused. `limit` is the number of words of each step.
    fn run(&mut self, rng: &mut Rng, mut limit: impl FnMut(&mut Rng) -> u64) {
        while !self.clients.iter().all(Sending::is_done) {
            for client in &mut self.clients {
                let frames = 1 + rng.below(4);
                client.write(frames);
            }
            let words = limit(rng);
            self.step(words);
            if self.applier.is_none() {
                while !self.resume(limit(rng)) {}
                self.recover();
            }
        }
    }

    /// Values and state of all records.
    fn records(&mut self) -> Records {
        let mut all = BTreeMap::new();
        for id in [SPARSE, ROWS, RANGES] {
            for partition in 0..3 {
                let copied = self.applier().engine().copy_records(
                    TableId(id),
                    PartitionId(partition),
                    |e| e,
                    |key, values, state| {
                        let before = all.insert((id, key), (values.to_vec(), state.to_vec()));
                        assert_eq!(before, None, "key {key} comes twice");
                        Ok(())
                    },
                );
                copied.unwrap();
            }
        }
        all
    }
}

/// Values and state by table and key.
type Records = BTreeMap<(u32, u64), (Vec<u8>, Vec<u8>)>;

fn assert_same(there: &Records, here: &Records, what: &str) {
    let keys: BTreeSet<_> = there.keys().chain(here.keys()).collect();
    let others = keys
        .into_iter()
        .filter(|key| there.get(key) != here.get(key));
    let others: Vec<_> = others
        .map(|key| (key, there.get(key), here.get(key)))
        .collect();
    let few = &others[..others.len().min(3)];
    assert!(
        few.is_empty(),
        "{what}: {} other records: {few:?}",
        others.len()
    );
}

fn table(memory: &Arc<ServerMemory>, id: u32, rule: (Optimizer, Apply)) -> Table {
    let spec = Arc::new(spec(id, rule));
    let all = (0..spec.partitions).map(PartitionId);
    let made = Table::new(
        memory,
        &Preallocator::none(),
        ShardId::new(TableId(id), 0),
        &spec,
        all,
    );
    made.unwrap().of(JOB)
}

const WITHOUT_LIMIT: u64 = u64::MAX / 2;

/// Each row has the bits of a run without a death, each push counts once, and each refusal arrives, whatever
/// word the applier or its successor dies after.
#[test]
fn every_death_leaves_the_bits_of_a_run_without_one() {
    let mut deaths = 0;
    for seed in 0..40 {
        let mut rng = Rng(seed << 32);
        let rule = (rules()[seed as usize % rules().len()], effect_of(seed));
        let both = || {
            let mut rng = Rng(seed << 32 | 1 << 20);
            let kinds = (rule.0 != Optimizer::None, rule.1 != Apply::Immediate);
            [0, 1].map(|client| frames(client, &mut rng, 60, kinds))
        };
        let sent = || both().map(|(frames, _)| frames).to_vec();
        let mut calm = World::new(rule, sent());
        calm.run(&mut rng, |_| WITHOUT_LIMIT);
        let mut world = World::new(rule, sent());
        world.run(&mut rng, |rng| match rng.below(3) {
            0 => rng.below(600),
            1 => rng.below(60),
            _ => WITHOUT_LIMIT,
        });
        assert_same(&world.records(), &calm.records(), &format!("seed {seed}"));
        let [there, here] = [&mut world, &mut calm].map(|world| {
            let clocks = world.applier().engine().clocks(JOB);
            (clocks.clone(), clocks.min(DomainId(0)))
        });
        assert_eq!((&there, here.1), (&here, 6), "seed {seed}");
        let refused = both().map(|(_, refused)| refused);
        for (client, refused) in world.clients.iter().zip(refused) {
            assert_eq!(client.mail().refused, refused, "seed {seed}");
            assert_eq!(client.mail().state.rejected, refused.len() as u64);
        }
        deaths += world.deaths;
    }
    assert!(deaths > 400, "{deaths} deaths");
}

/// A worker is lost while its iteration is open, and the applier dies after any word of that: its pushes of the
/// iteration are gone, and those of the other worker count.
#[test]
fn worker_lost_at_any_word_leaves_no_push() {
    let rule = (rules()[1], Apply::AtTick(Reduce::Sum));
    let frames = [0, 1].map(|client| frames(client, &mut Rng(client), 20, (true, true)).0);
    let run = |words: Option<u64>| {
        let mut world = World::new(rule, frames.to_vec());
        // The second worker stops before its first tick: it is in iteration 0 for ever.
        world.clients[1].frames.truncate(9);
        while !world.clients[1].is_done() || world.clients[0].mail().state.applied_seq < 9 {
            world.clients.iter_mut().for_each(|client| client.write(1));
            world.step(WITHOUT_LIMIT);
        }
        let mut applier = world.applier.take().unwrap();
        let cut = run_for(words.unwrap_or(WITHOUT_LIMIT), || {
            applier.engine().remove_worker(JOB, WorkerId(1));
        });
        if words.is_some() {
            std::mem::forget(applier);
            assert!(world.resume(WITHOUT_LIMIT));
            world.recover();
            // The coordinator says it again.
            world.applier().engine().remove_worker(JOB, WorkerId(1));
        } else {
            world.applier = Some(applier);
        }
        world.run(&mut Rng(1), |_| WITHOUT_LIMIT);
        (world.records(), cut.is_some())
    };
    let (calm, _) = run(None);
    for words in 0..200 {
        let (records, is_done) = run(Some(words));
        assert_same(&records, &calm, &format!("{words} words"));
        if is_done {
            return;
        }
    }
    panic!("200 words");
}

/// A death in the creation or release of a table leaves all of it or nothing: no block is lost.
#[test]
fn table_cut_in_creation_or_release_leaves_no_block() {
    for id in [SPARSE, ROWS] {
        for n in 0..60 {
            let mut world = World::new(AT_ONCE, Vec::new());
            let mut applier = world.applier.take().unwrap();
            let (memory, other) = (applier.memory_of(), id + 10);
            let cut = run_for(n * n * 3, || {
                let spec = Arc::new(spec(id, AT_ONCE));
                let own = (0..spec.partitions).map(PartitionId);
                let shard_id = ShardId::new(TableId(other), 0);
                let table =
                    Table::new(&memory, &Preallocator::none(), shard_id, &spec, own).unwrap();
                applier.engine().add_table(table);
                let table = applier.engine().take_table(TableId(other)).unwrap();
                table.release().unwrap();
            });
            std::mem::forget(applier);
            assert!(world.resume(WITHOUT_LIMIT));
            let has_table = world.applier().engine().table(TableId(other)).is_some();
            let memory = world.applier().memory_of();
            let mut blocks = memory.public.directory().unwrap();
            blocks.extend(memory.private.directory().unwrap());
            let is_of = |[kind, table, ..]: &[u32; 4]| *kind != 0 && *table == other;
            let of_table = blocks.iter().filter(|(_, words)| is_of(words));
            assert_eq!(of_table.count() > 0, has_table, "cut {cut:?} at {n}");
            assert!(!(cut.is_some() && has_table));
        }
    }
}

/// A successor has no held pushes: those of a task are refused, whatever the table's shape.
#[test]
fn pushes_of_tasks_are_refused() {
    let mut world = World::new(AT_ONCE, Vec::new());
    let (all, bad) = frames(0, &mut Rng(1), 60, (false, false));
    let sender = FrameSender {
        namespace: JOB,
        ..FrameSender::first(WorkerId(0))
    };
    let mut tables = BTreeSet::new();
    for (mut header, payload) in all {
        let is_push = matches!(header.kind, FrameKind::PushRows | FrameKind::PushDense);
        if !is_push || bad.contains(&header.seq) {
            continue;
        }
        header.flags.task = true;
        let refused = world.applier().engine().frame(sender, &header, &payload);
        let reason = refused.unwrap_err();
        let is_it = matches!(reason, Refusal::WrongOperation { .. });
        assert!(is_it, "table {}: {reason:?}", header.table);
        tables.insert(header.table);
    }
    assert_eq!(tables, BTreeSet::from([SPARSE, ROWS, RANGES]));
}

/// Memory of another layout, version or incarnation is refused, and both sides are named.
#[test]
fn memory_of_another_layout_is_refused() {
    let world = World::new(AT_ONCE, Vec::new());
    let refusal = |incarnation| {
        let files = world.files.share().unwrap();
        ServerMemory::resume(files, Incarnation(incarnation))
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    assert!(refusal(1).contains("incarnation 0x1"), "{}", refusal(1));
    let (_, _, private) = world.files.iter().nth(1).unwrap();
    let record = private.region.words_mut(128, 64).unwrap();
    let write = |layout: u64, version: u64| {
        let magic = record.as_read().load(0);
        let words = [magic, layout, version];
        record.store(8, layout);
        record.store(16, version);
        record.store(
            24,
            tidewater_protocol::layout::hash::line_checksum(magic, layout, &words),
        );
    };
    let version = record.as_read().load(16);
    write(77, version);
    assert!(
        refusal(2).contains("layout 77, this server has"),
        "{}",
        refusal(2)
    );
    write(2, 9 << 32);
    let text = refusal(2);
    assert!(
        text.contains("version 9.0.0") && text.contains(env!("CARGO_PKG_VERSION")),
        "{text}"
    );
    record.store(0, 5);
    assert!(refusal(2).contains("no valid superblock"), "{}", refusal(2));
}

/// Without a holder a table that should outlive its process is refused.
#[test]
fn warm_table_without_holder_is_refused() {
    let memory = Arc::new(ServerMemory::new(16 << 20, Incarnation(1)).unwrap());
    for id in [SPARSE, ROWS, RANGES] {
        let spec = Arc::new(spec(id, AT_ONCE));
        let all = (0..spec.partitions).map(PartitionId);
        let refused = Table::new(
            &memory,
            &Preallocator::none(),
            ShardId::new(TableId(id), 0),
            &spec,
            all,
        );
        let text = refused.map(|_| ()).unwrap_err().to_string();
        assert!(text.contains("no holder keeps the memory"), "{text}");
    }
}
