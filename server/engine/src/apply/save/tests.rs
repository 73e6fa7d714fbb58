//! Saves while pushes, ticks and removals go on, against a copy of all records at the cut.

use std::collections::BTreeMap;
use std::sync::Arc;

use crossbeam_channel::{Receiver, unbounded};
use tidewater_protocol::ids::{DomainId, Incarnation, PartitionId, TableId, WorkerId};
use tidewater_protocol::layout::frame::{
    FrameFlags, FrameHeader, FrameKind, PARTITION_ANY, RowsPayload,
};
use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::table::{
    Apply, DType, DenseLayout, GradientOptions, Init, KeyOptions, Optimizer, PushOp, Reduce, Shape,
    TableSpec,
};

use super::*;
use crate::apply::engine::Effect;
use crate::apply::records::RecordShape;
use crate::namespace::{FrameSender, NamespaceId};
use crate::store::prealloc::Preallocator;
use crate::store::{ServerMemory, ShardId};

mod incremental;

const PARTITIONS: u32 = 5;
const DIM: u32 = 8;
/// Keys, rows and elements of the tables.
const KEYS: u64 = 3_000;
const ELEMENTS: u64 = 20 * 1024 + 77;
const ADAM: Optimizer = Optimizer::Adam {
    lr: 0.1,
    beta1: 0.9,
    beta2: 0.99,
    eps: 1e-8,
};

/// Each kind of store, with effect on arrival and at the tick.
fn specs() -> Vec<TableSpec> {
    let blocks = |snapshot| Shape::Dense {
        rows: ELEMENTS,
        cols: 1,
        layout: DenseLayout::Blocks {
            block_bytes: 4096,
            snapshot,
        },
    };
    let rows = Shape::Dense {
        rows: KEYS,
        cols: DIM,
        layout: DenseLayout::Rows,
    };
    let sparse = Shape::Sparse { dim: DIM };
    let at_tick = Apply::AtTick(Reduce::Sum);
    let kinds = [
        (sparse, Apply::Immediate),
        (sparse, at_tick),
        (rows, Apply::Immediate),
        (blocks(false), Apply::Immediate),
        (blocks(true), at_tick),
    ];
    let spec = |(n, (shape, effect)): (usize, (Shape, Apply))| TableSpec {
        name: format!("t{n}"),
        shape,
        dtype: DType::F32,
        optimizer: ADAM,
        init: Init::Uniform {
            low: -1.0,
            high: 1.0,
        },
        seed: 3,
        effect,
        finite_check: true,
        domain: DomainId(0),
        partitions: PARTITIONS,
        gradient: GradientOptions::default(),
        redo: false,
        keys: KeyOptions::default(),
        versions: 2,
        durability: Default::default(),
        partition_servers: None,
        partition_starts: None,
    };
    kinds.into_iter().enumerate().map(spec).collect()
}

/// Of each table all records: key to values and state.
type Model = BTreeMap<(u32, u64), Vec<u8>>;

struct Rig {
    engine: Engine,
    specs: Vec<TableSpec>,
    clocks: [u64; 2],
    random: u64,
}

impl Rig {
    fn new(seed: u64) -> Self {
        let memory = Arc::new(ServerMemory::new(256 << 20, Incarnation(5)).unwrap());
        let workers = [WorkerId(0), WorkerId(1)];
        let mut engine = Engine::new(Arc::clone(&memory), 0, workers).unwrap();
        let specs = specs();
        for (id, spec) in (1..).map(TableId).zip(&specs) {
            let (spec, all) = (Arc::new(spec.clone()), (0..PARTITIONS).map(PartitionId));
            let table = Table::new(
                &memory,
                &Preallocator::none(),
                ShardId::new(id, 0),
                &spec,
                all,
            );
            engine.add_table(table.unwrap());
        }
        let mut rig = Self {
            engine,
            specs,
            clocks: [0; 2],
            random: seed,
        };
        for table in [1, 2] {
            for first in (0..KEYS).step_by(500) {
                rig.push_keys(table, 0, first..first + 500);
            }
        }
        rig
    }

    fn under(&mut self, limit: u64) -> u64 {
        self.random = mix64(self.random.wrapping_add(1));
        self.random % limit
    }

    fn frame(&mut self, rank: usize, header: FrameHeader, payload: &[u8]) {
        let sender = FrameSender::first(WorkerId(rank as u32));
        let header = FrameHeader {
            payload_len: payload.len() as u32,
            clock: if header.kind == FrameKind::Clock {
                self.clocks[rank] + 1
            } else {
                self.clocks[rank]
            },
            ..header
        };
        let mut done = self.engine.frame(sender, &header, payload);
        while done == Ok(Effect::Wait) {
            assert!(self.engine.tick_step(), "it waits for a tick");
            done = self.engine.frame(sender, &header, payload);
        }
        assert!(
            matches!(done, Ok(Effect::Applied | Effect::Clock)),
            "{done:?}"
        );
        assert_eq!(self.engine.failed, None);
    }

    fn push_keys(&mut self, table: u32, rank: usize, keys: impl Iterator<Item = u64>) {
        let keys: Vec<u64> = keys.collect();
        let parts = RowsPayload::new(keys.len(), DIM as usize * 4, false);
        let mut payload: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
        payload.resize(parts.values_at, 0);
        let value = self.under(100) as f32;
        payload.extend(value.to_le_bytes().repeat(keys.len() * DIM as usize));
        let header = push(FrameKind::PushRows, table, keys.len());
        self.frame(rank, header, &payload);
    }

    fn push_range(&mut self, table: u32, rank: usize, first: u64, count: u64) {
        let value = self.under(100) as f32;
        let values = value.to_le_bytes().repeat(count as usize);
        let payload = [&first.to_le_bytes()[..], &values].concat();
        let header = push(FrameKind::PushDense, table, count as usize);
        self.frame(rank, header, &payload);
    }

    fn tick(&mut self, rank: usize) {
        let header = FrameHeader {
            partition: 0,
            ..push(FrameKind::Clock, 0, 0)
        };
        self.frame(rank, header, &[]);
        self.clocks[rank] += 1;
    }

    /// A random push, tick or removal.
    fn act(&mut self) {
        let rank = self.under(2) as usize;
        match self.under(8) {
            table @ 1..=3 => {
                let (first, count) = (self.under(KEYS), 1 + self.under(300));
                // Sparse tables get new keys, too.
                let end = if table == 3 { KEYS } else { KEYS + 500 };
                self.push_keys(table as u32, rank, first..end.min(first + count));
            }
            table @ 4..=5 => {
                // Inside one partition, from any element to any.
                let part = self.under(PARTITIONS.into());
                let first = part * 4 * 1024 + self.under(2_000);
                let count = 1 + self.under(2_000);
                self.push_range(table as u32, rank, first, count);
            }
            6 => {
                let key = self.under(KEYS);
                self.engine.remove_row(TableId(1), key).unwrap();
            }
            _ if self.clocks[rank] <= self.clocks[1 - rank] => self.tick(rank),
            _ => self.tick(1 - rank),
        }
    }

    /// All records as they are now.
    fn model(&mut self) -> Model {
        let mut model = Model::new();
        for id in 1..=self.specs.len() as u32 {
            for partition in (0..PARTITIONS).map(PartitionId) {
                let sink = |key, values: &[u8], state: &[u8]| {
                    model.insert((id, key), [values, state].concat());
                    Ok(())
                };
                let copied = self
                    .engine
                    .copy_records(TableId(id), partition, |e| e, sink);
                copied.unwrap();
            }
        }
        model
    }

    fn save(&mut self, limit: usize, clocks: Vec<(DomainId, u64)>) -> Saved {
        self.begin(limit, clocks, None)
    }

    fn begin(
        &mut self,
        limit: usize,
        clocks: Vec<(DomainId, u64)>,
        mark: Option<CheckpointMark>,
    ) -> Saved {
        let (out, pieces) = unbounded();
        let memory = Arc::new(SaveMemory::new(limit));
        let all: Vec<PartitionId> = (0..PARTITIONS).map(PartitionId).collect();
        self.engine.begin_save(SaveOrder {
            applier: 4,
            shares: (1..=self.specs.len() as u32)
                .map(|id| (TableId(id), all.clone()))
                .collect(),
            clocks,
            mark,
            out,
            memory: Arc::clone(&memory),
        });
        Saved { pieces, memory }
    }

    /// The records of a save that is over; checks that each came once, and from its partition.
    fn saved(&self, saved: &Saved) -> Model {
        let (model, removed) = self.copied(saved);
        assert!(removed.is_empty(), "{removed:?}");
        model
    }

    /// The records of a save that is over, and the rows that it names as removed; checks that each record came once,
    /// and from its partition, and that no removed row comes after a record.
    fn copied(&self, saved: &Saved) -> (Model, Vec<(u32, u64)>) {
        let mut model = Model::new();
        let mut removed = Vec::new();
        let mut is_done = false;
        for (applier, piece) in saved.pieces.try_iter() {
            assert!(applier == 4 && !is_done);
            match piece {
                SavePiece::Cut { .. } => assert!(model.is_empty()),
                SavePiece::Records {
                    table,
                    partition,
                    records,
                    bytes,
                } => {
                    let spec = &self.specs[table.0 as usize - 1];
                    let mut rest = &bytes[..];
                    for _ in 0..records {
                        let (key, after) = rest.split_first_chunk().unwrap();
                        let key = u64::from_le_bytes(*key);
                        let shape = RecordShape::of(spec, key).unwrap();
                        assert_eq!(shape.partition, PartitionId(partition), "{table} {key}");
                        let state = shape.state_of(&after[shape.values..]).unwrap();
                        let (record, after) = after.split_at(shape.values + state);
                        let twice = model.insert((table.0, key), record.to_vec());
                        assert!(twice.is_none(), "{table} {key} came twice");
                        rest = after;
                    }
                    assert!(rest.is_empty());
                    saved.memory.written(bytes.len());
                }
                SavePiece::Removed { table, keys } => {
                    assert!(model.is_empty(), "removed rows come first");
                    removed.extend(keys.into_iter().map(|key| (table.0, key)));
                }
                SavePiece::Done => is_done = true,
                SavePiece::Failed { table, why } | SavePiece::ChangesUnknown { table, why } => {
                    panic!("{table}: {why}")
                }
            }
        }
        assert!(is_done, "the save is not over");
        assert_eq!(saved.memory.held(), 0);
        (model, removed)
    }
}

struct Saved {
    pieces: Receiver<(u16, SavePiece)>,
    memory: Arc<SaveMemory>,
}

impl Saved {
    /// Why the save has failed.
    fn failure(&self) -> String {
        let failed = self.pieces.try_iter().find_map(|(_, piece)| match piece {
            SavePiece::Failed { table, why } => Some(format!("{table}: {why}")),
            _ => None,
        });
        failed.expect("the save has not failed")
    }
}

fn push(kind: FrameKind, table: u32, count: usize) -> FrameHeader {
    let is_push = kind.is_push();
    FrameHeader {
        kind,
        flags: FrameFlags {
            op: is_push.then_some(PushOp::Gradient),
            dtype: is_push.then_some(DType::F32),
            ..FrameFlags::default()
        },
        seq: 1,
        session: 0,
        payload_len: 0,
        count: count as u32,
        table,
        partition: PARTITION_ANY,
        clock: 0,
        user_tag: 0,
        checksum: 0,
    }
}

const NO_LIMIT: usize = usize::MAX / 2;

/// Random pushes, ticks, new rows and removals between the steps of a save: the saved model has the bits
/// of the cut. Twice in a row, so that slots are reused and nothing of the first save stays.
#[test]
fn save_has_the_bits_of_its_cut() {
    for seed in 0..12 {
        let mut rig = Rig::new(seed);
        for _ in 0..2 {
            (0..20).for_each(|_| rig.act());
            let saved = rig.save(NO_LIMIT, Vec::new());
            assert!(rig.engine.save_step(), "the cut");
            let expected = rig.model();
            let mut steps = 0;
            loop {
                (0..rig.under(4)).for_each(|_| rig.act());
                if !rig.engine.save_step() {
                    break;
                }
                steps += 1;
            }
            assert!(steps > 20, "{steps} steps: all was copied at once");
            assert!(rig.saved(&saved) == expected, "seed {seed}");
            assert!(rig.model() != expected, "nothing changed meanwhile");
        }
    }
}

/// An order with clocks is carried out at the tick that all workers have reached.
#[test]
fn save_waits_for_its_clocks() {
    let mut rig = Rig::new(1);
    rig.tick(0);
    let saved = rig.save(NO_LIMIT, vec![(DomainId(0), 1)]);
    assert!(!rig.engine.save_step(), "worker 1 has not ticked");
    rig.push_range(5, 1, 0, 100);
    assert!(!rig.engine.save_step());
    rig.tick(1);
    let expected = rig.model();
    // The next iteration is in no save.
    rig.push_range(5, 0, 0, 100);
    while rig.engine.save_step() {}
    assert!(rig.saved(&saved) == expected);
    let late = rig.save(NO_LIMIT, vec![(DomainId(0), 0)]);
    assert!(rig.engine.save_step());
    assert!(late.failure().contains("passed clock 0"));
}

/// A save is not cut while a tick is half done, also one without clocks.
#[test]
fn save_waits_for_the_end_of_a_tick() {
    let mut rig = Rig::new(1);
    rig.engine.set_tick_rows(100);
    rig.tick(0);
    // The rows of table 2 that the rig has pushed.
    let tick = FrameHeader {
        partition: 0,
        clock: 1,
        ..push(FrameKind::Clock, 0, 0)
    };
    let sender = FrameSender::first(WorkerId(1));
    let frame = |rig: &mut Rig| rig.engine.frame(sender, &tick, &[]);
    assert_eq!(frame(&mut rig), Ok(Effect::Wait));
    while !rig.engine.closes(NamespaceId::default()) {
        assert!(rig.engine.tick_step(), "pushes are added");
    }
    let saved = rig.save(NO_LIMIT, Vec::new());
    while rig.engine.closes(NamespaceId::default()) {
        assert!(!rig.engine.save_step(), "a tick is half done");
        rig.engine.tick_step();
    }
    assert_eq!(frame(&mut rig), Ok(Effect::Clock));
    let expected = rig.model();
    while rig.engine.save_step() {}
    assert!(rig.saved(&saved) == expected);
}

/// Copies beyond the limit fail the save, and only that.
#[test]
fn save_beyond_its_memory_fails_alone() {
    let mut rig = Rig::new(1);
    let saved = rig.save(100_000, Vec::new());
    assert!(rig.engine.save_step());
    for first in (0..KEYS).step_by(500) {
        rig.push_keys(3, 0, first..first + 500);
    }
    let failure = saved.failure();
    assert!(failure.contains("the limit is 100000"), "{failure}");
    assert!(
        rig.engine.save_step() && !rig.engine.save_step(),
        "it is over"
    );
    // Nothing of it stays.
    let expected = rig.model();
    let again = rig.save(NO_LIMIT, Vec::new());
    while rig.engine.save_step() {}
    assert!(rig.saved(&again) == expected);
}

/// A second save of a table is refused and leaves the first alone; a released table fails its save.
#[test]
fn second_save_of_a_table_is_refused() {
    let mut rig = Rig::new(1);
    let first = rig.save(NO_LIMIT, Vec::new());
    assert!(rig.engine.save_step());
    let expected = rig.model();
    let second = rig.save(NO_LIMIT, Vec::new());
    assert!(rig.engine.save_step());
    assert!(second.failure().contains("under way"));
    (0..20).for_each(|_| rig.act());
    while rig.engine.save_step() {}
    assert!(rig.saved(&first) == expected);
    let third = rig.save(NO_LIMIT, Vec::new());
    assert!(rig.engine.save_step());
    drop(rig.engine.take_table(TableId(5)));
    while rig.engine.save_step() {}
    assert!(third.failure().contains("released"));
}

/// The cursor waits for a slow writer, in bounded memory; a writer that gives up ends the save.
#[test]
fn slow_writer_delays_the_cursor_only() {
    let mut rig = Rig::new(1);
    let shape = Shape::Dense {
        rows: 4 << 20,
        cols: 1,
        layout: DenseLayout::Blocks {
            block_bytes: 64 << 10,
            snapshot: false,
        },
    };
    let large = TableSpec {
        shape,
        ..rig.specs[3].clone()
    };
    let memory = Arc::clone(&rig.engine.memory);
    let all = (0..PARTITIONS).map(PartitionId);
    let id = TableId(6);
    let table = Table::new(
        &memory,
        &Preallocator::none(),
        ShardId::new(id, 0),
        &Arc::new(large.clone()),
        all,
    );
    rig.engine.add_table(table.unwrap());
    rig.specs.push(large);
    let saved = rig.save(NO_LIMIT, Vec::new());
    while rig.engine.save_step() {}
    let held = saved.memory.held();
    assert!((8 << 20..10 << 20).contains(&held), "{held} bytes wait");
    rig.push_range(4, 0, 5, 100);
    assert!(!rig.engine.save_step(), "a push makes no room");
    for (_, piece) in saved.pieces.try_iter() {
        if let SavePiece::Records { bytes, .. } = piece {
            saved.memory.written(bytes.len());
        }
    }
    assert!(rig.engine.save_step(), "there is room again");
    saved.memory.cancel();
    assert!(rig.engine.save_step() && !rig.engine.save_step());
    assert!(!rig.engine.table(id).unwrap().watch().is_cut());
}

/// A save that another thread ends at any moment, also between two copies of its last step, is done with all of its
/// records or not at all. A part without them was committed in the checkpoint of a job that had just failed.
#[test]
fn save_that_is_ended_is_not_done() {
    /// All in one step of 32 KiB.
    const ROWS: u64 = 150;
    /// More follow until a save was ended between two of its copies, which is a matter of luck.
    const ROUNDS: usize = 3_000;
    const ROUNDS_MAX: usize = 300_000;
    let mut rig = Rig::new(8);
    let memory = Arc::clone(&rig.engine.memory);
    let (id, spec) = (TableId(6), rig.specs[0].clone());
    let all: Vec<PartitionId> = (0..PARTITIONS).map(PartitionId).collect();
    let parts = all.iter().copied();
    let table = Table::new(
        &memory,
        &Preallocator::none(),
        ShardId::new(id, 0),
        &Arc::new(spec.clone()),
        parts,
    );
    rig.engine.add_table(table.unwrap());
    rig.specs.push(spec);
    rig.push_keys(id.0, 0, 0..ROWS);
    let (begin, begun) = crossbeam_channel::bounded::<(Arc<SaveMemory>, usize)>(0);
    let ender = std::thread::spawn(move || {
        for (memory, round) in begun {
            (0..round % 1_000 * 20).for_each(|_| std::hint::spin_loop());
            memory.cancel();
        }
    });
    let (mut done, mut ended, mut between) = (0, 0, 0);
    for round in 0..ROUNDS_MAX {
        if round >= ROUNDS && between > 0 {
            break;
        }
        let (out, pieces) = unbounded();
        let memory = Arc::new(SaveMemory::new(NO_LIMIT));
        rig.engine.begin_save(SaveOrder {
            applier: 4,
            shares: vec![(id, all.clone())],
            clocks: Vec::new(),
            mark: None,
            out,
            memory: Arc::clone(&memory),
        });
        match round {
            0 => {}
            1 => memory.cancel(),
            _ => begin.send((Arc::clone(&memory), round)).unwrap(),
        }
        while rig.engine.save_step() {}
        let pieces: Vec<SavePiece> = pieces.try_iter().map(|(_, piece)| piece).collect();
        let records = pieces.iter().map(|piece| match piece {
            SavePiece::Records { records, .. } => *records,
            _ => 0,
        });
        let records: u64 = records.sum();
        if matches!(pieces.last(), Some(SavePiece::Done)) {
            assert_eq!(records, ROWS, "round {round}");
            done += 1;
        } else {
            ended += 1;
            between += u32::from((1..ROWS).contains(&records));
        }
    }
    drop(begin);
    ender.join().unwrap();
    println!("{done} saves were done, {ended} ended, {between} of them between two copies");
    assert!(done > 0 && ended > 0 && between > 0);
}
