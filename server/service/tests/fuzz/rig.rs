//! An engine with a table of each kind, its corpus of frames, and fingerprints of its state.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidewater_engine::apply::engine::Engine;
use tidewater_engine::apply::table::{Store, Table};
use tidewater_engine::store::ServerMemory;
use tidewater_engine::store::ShardId;
use tidewater_engine::store::cursor::RowCursor;
use tidewater_engine::store::prealloc::Preallocator;
use tidewater_protocol::ids::{DomainId, Incarnation, PartitionId, TableId, WorkerId};
use tidewater_protocol::layout::encoding::{PushEncoding, encode};
use tidewater_protocol::layout::frame::{
    FrameFlags, FrameHeader, FrameKind, PARTITION_ANY, RowsPayload,
};
use tidewater_protocol::layout::settings;
use tidewater_protocol::placement::partition_of_key;
use tidewater_protocol::table::{
    Apply, DType, DenseLayout, GradientOptions, Init, KeyOptions, Optimizer, PushOp, Reduce, Shape,
    TableSpec,
};

use crate::calls;

/// Memory of a server in bytes: small enough that random keys exhaust it.
pub(crate) const CAPACITY: usize = 24 << 20;
/// Partitions of each table; the last one belongs to another applier.
pub(crate) const PARTITIONS: u32 = 4;
/// Members of the clock domains; one more rank is no member.
pub(crate) const WORKERS: u32 = 2;

pub(crate) const SPARSE: u32 = 1;
pub(crate) const ROWS: u32 = 2;
pub(crate) const BLOCKS: u32 = 3;
pub(crate) const SNAPSHOT: u32 = 4;
pub(crate) const HELD: u32 = 5;
pub(crate) const RELEASED: u32 = 6;
/// Table like [`ROWS`], as input of functions.
pub(crate) const TWIN: u32 = 7;

fn spec(name: &str, shape: Shape, dtype: DType, effect: Apply) -> TableSpec {
    let float = dtype.is_float();
    TableSpec {
        name: name.into(),
        shape,
        dtype,
        optimizer: if float {
            Optimizer::AdaGrad { lr: 0.1, eps: 1e-8 }
        } else {
            Optimizer::None
        },
        init: if float {
            Init::Uniform {
                low: -0.5,
                high: 0.5,
            }
        } else {
            Init::Zeros
        },
        seed: 7,
        effect,
        finite_check: float,
        domain: DomainId(0),
        partitions: PARTITIONS,
        gradient: GradientOptions::default(),
        redo: false,
        keys: KeyOptions::default(),
        versions: 2,
        durability: Default::default(),
        partition_servers: None,
        partition_starts: None,
    }
}

/// Number and definition of each table.
pub(crate) fn specs() -> Vec<(u32, TableSpec)> {
    let dense = |rows, cols, layout| Shape::Dense { rows, cols, layout };
    let blocks = |snapshot| DenseLayout::Blocks {
        block_bytes: 4096,
        snapshot,
    };
    let at_clock = Apply::AtTick(Reduce::Mean);
    let now = Apply::Immediate;
    vec![
        (
            SPARSE,
            spec("sparse", Shape::Sparse { dim: 4 }, DType::F32, now),
        ),
        (
            ROWS,
            spec("rows", dense(20, 3, DenseLayout::Rows), DType::F64, now),
        ),
        (
            BLOCKS,
            spec("blocks", dense(1000, 6, blocks(false)), DType::I32, now),
        ),
        (
            SNAPSHOT,
            spec(
                "snapshot",
                dense(5, 500, blocks(true)),
                DType::F32,
                at_clock,
            ),
        ),
        (
            HELD,
            spec("held", Shape::Sparse { dim: 2 }, DType::F32, at_clock),
        ),
        (
            RELEASED,
            spec("released", Shape::Sparse { dim: 2 }, DType::F32, now),
        ),
        (
            TWIN,
            spec("twin", dense(20, 3, DenseLayout::Rows), DType::F64, now),
        ),
    ]
}

/// Creates a server's memory and an engine with every table.
pub(crate) fn engine() -> (Arc<ServerMemory>, Engine) {
    let memory = Arc::new(ServerMemory::new(CAPACITY, Incarnation(9)).unwrap());
    let mut engine = Engine::new(Arc::clone(&memory), 0, (0..WORKERS).map(WorkerId)).unwrap();
    add_tables(&memory, &mut engine);
    (memory, engine)
}

pub(crate) fn add_tables(memory: &Arc<ServerMemory>, engine: &mut Engine) {
    for (id, spec) in specs() {
        let mine = (0..PARTITIONS - 1).map(PartitionId);
        let who = ShardId::new(TableId(id), 0);
        let table = Table::new(memory, &Preallocator::none(), who, &Arc::new(spec), mine).unwrap();
        engine.add_table(table);
    }
    engine
        .take_table(TableId(RELEASED))
        .unwrap()
        .release()
        .unwrap();
}

/// A frame and its payload.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub(crate) header: FrameHeader,
    pub(crate) payload: Vec<u8>,
}

pub(crate) fn header(kind: FrameKind, table: u32, count: usize) -> FrameHeader {
    FrameHeader {
        kind,
        flags: FrameFlags::default(),
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

fn push_rows(table: u32, dtype: DType, dim: usize, op: PushOp, locs: bool, keys: &[u64]) -> Frame {
    let row_bytes = dim * dtype.size();
    let parts = RowsPayload::new(keys.len(), row_bytes, locs);
    let mut payload = vec![0; parts.len];
    for (n, key) in keys.iter().enumerate() {
        payload[n * 8..][..8].copy_from_slice(&key.to_le_bytes());
    }
    for (n, value) in payload[parts.values_at..]
        .chunks_exact_mut(dtype.size())
        .enumerate()
    {
        match dtype {
            DType::F64 => value.copy_from_slice(&(n as f64 * 0.25).to_le_bytes()),
            _ => value.copy_from_slice(&(n as f32 * 0.25).to_le_bytes()),
        }
    }
    let mut header = header(FrameKind::PushRows, table, keys.len());
    header.flags = FrameFlags {
        op: Some(op),
        dtype: Some(dtype),
        locs,
        create: false,
        ..FrameFlags::default()
    };
    Frame { header, payload }
}

fn push_range(table: u32, dtype: DType, first: u64, count: usize) -> Frame {
    let mut payload = first.to_le_bytes().to_vec();
    payload.resize(8 + count * dtype.size(), 0);
    let mut header = header(FrameKind::PushDense, table, count);
    header.flags = FrameFlags {
        op: Some(PushOp::Sum),
        dtype: Some(dtype),
        ..FrameFlags::default()
    };
    Frame { header, payload }
}

/// The push with a weight.
fn weighted(mut frame: Frame, weight: f64) -> Frame {
    frame.header.flags.weight = true;
    frame.payload.extend(weight.to_le_bytes());
    frame
}

/// The push with its values encoded; they begin at `values_at`.
fn encoded(mut frame: Frame, encoding: PushEncoding, values_at: usize) -> Frame {
    let mut values: Vec<f64> = (0..frame.payload.len() - values_at)
        .step_by(frame.header.flags.dtype.unwrap().size())
        .map(|n| n as f64)
        .collect();
    let mut bytes = Vec::new();
    encode(encoding, DType::F32, &mut values, &mut bytes);
    frame.payload.truncate(values_at);
    frame.payload.extend(bytes);
    frame.header.flags.encoding = encoding.code();
    frame
}

fn ask(kind: FrameKind, table: u32, create: bool, words: &[u64], count: usize) -> Frame {
    let mut header = header(kind, table, count);
    header.flags.create = create;
    header.user_tag = 0x103;
    Frame {
        header,
        payload: words.iter().flat_map(|w| w.to_le_bytes()).collect(),
    }
}

/// Builds deletions and lists of keys.
fn about_keys(keys: &[u64]) -> Vec<Frame> {
    let mut all = Vec::new();
    for table in [SPARSE, HELD] {
        all.push(ask(FrameKind::Delete, table, false, &keys[..5], 5));
        for (values, count) in [(0, 2_048), (1, 3)] {
            let mut scan = ask(FrameKind::Scan, table, false, &[0, values], count);
            scan.header.partition = 0;
            all.push(scan);
        }
    }
    all
}

/// Builds valid frames of every kind, for every kind of table.
pub(crate) fn corpus() -> Vec<Frame> {
    use FrameKind::{Clock, Gather, Pad, Resolve, Settings};
    let mine = |key: &u64| partition_of_key(*key, PARTITIONS).0 + 1 < PARTITIONS;
    let keys: Vec<u64> = (0..).filter(mine).take(12).collect();
    let rows: Vec<u64> = (0..6).collect();
    let (f32, f64) = (DType::F32, DType::F64);
    let mut all = Vec::new();
    for op in [PushOp::Sum, PushOp::Assign, PushOp::Gradient] {
        all.push(push_rows(SPARSE, f32, 4, op, false, &keys));
        all.push(push_rows(SPARSE, f32, 4, op, true, &keys[..3]));
        all.push(push_rows(ROWS, f64, 3, op, false, &rows));
        all.push(push_rows(HELD, f32, 2, op, false, &keys));
    }
    for op in [PushOp::Sum, PushOp::Gradient] {
        for encoding in [PushEncoding::Bf16, PushEncoding::F16, PushEncoding::INT8] {
            let sparse = push_rows(SPARSE, f32, 4, op, true, &keys[..3]);
            all.push(encoded(sparse, encoding, 128));
            let rows = push_rows(ROWS, f64, 3, op, false, &rows);
            all.push(weighted(encoded(rows, encoding, 64), 0.5));
            let held = push_rows(HELD, f32, 2, op, false, &keys);
            all.push(weighted(encoded(held, encoding, 128), 2.0));
        }
        all.push(weighted(push_rows(SPARSE, f32, 4, op, false, &keys), 0.25));
        all.push(weighted(push_rows(HELD, f32, 2, op, false, &keys), 0.0));
    }
    all.push(weighted(push_range(SNAPSHOT, f32, 4, 64), 3.0));
    all.push(encoded(
        push_range(SNAPSHOT, f32, 4, 64),
        PushEncoding::INT8,
        8,
    ));
    all.push(push_rows(SPARSE, f32, 4, PushOp::Sum, false, &[]));
    all.push(push_rows(RELEASED, f32, 2, PushOp::Sum, false, &keys));
    all.push(push_range(BLOCKS, DType::I32, 0, 7));
    all.push(push_range(BLOCKS, DType::I32, 1500, 1100));
    all.push(push_range(SNAPSHOT, f32, 4, 64));
    for create in [false, true] {
        all.push(ask(Gather, SPARSE, create, &keys, keys.len()));
        all.push(ask(Resolve, SPARSE, create, &keys, keys.len()));
        all.push(ask(Resolve, HELD, create, &keys[..4], 4));
    }
    all.extend(about_keys(&keys));
    all.push(ask(Gather, ROWS, false, &rows, 6));
    all.push(ask(Gather, BLOCKS, false, &[16], 300));
    all.push(ask(Gather, SNAPSHOT, false, &[0], 1024));
    // Of tables that take it, and of one with integers.
    for table in [SPARSE, ROWS, SNAPSHOT, HELD, BLOCKS] {
        let rule = Optimizer::AdaGrad { lr: 0.2, eps: 1e-6 };
        all.push(Frame {
            header: header(Settings, table, 0),
            payload: settings::encode(&rule).to_vec(),
        });
    }
    all.push(Frame {
        header: header(Clock, 0, 0),
        payload: Vec::new(),
    });
    all.push(Frame {
        header: header(Pad, 0, 0),
        payload: Vec::new(),
    });
    all.extend(calls::corpus());
    for frame in &mut all {
        frame.header.payload_len = frame.payload.len() as u32;
        if frame.header.kind == Clock {
            frame.header.partition = 0;
            frame.header.clock = 1;
        }
    }
    all
}

/// Maps table and key (or block) to the version and a hash of the content.
pub(crate) type State = BTreeMap<(u32, u64), (u64, u64)>;

/// Records every row, with its optimizer state, and every block, with all its buffers.
pub(crate) fn fingerprint(memory: &ServerMemory, engine: &mut Engine, out: &mut State) {
    out.clear();
    for id in [SPARSE, ROWS, BLOCKS, SNAPSHOT, HELD, TWIN] {
        let table = engine.table(TableId(id)).unwrap();
        let mut places = Vec::new();
        for partition in 0..PARTITIONS {
            match &table.store {
                Store::Sparse(s) => {
                    let mut cursor = RowCursor::default();
                    places.extend(std::iter::from_fn(|| s.next_row(partition, &mut cursor)));
                }
                Store::Rows(r) => {
                    let mut cursor = 0;
                    places.extend(std::iter::from_fn(|| r.next_row(partition, &mut cursor)));
                }
                Store::Blocks(_) => {}
            }
        }
        if let Store::Blocks(_) = &table.store {
            blocks(memory, id, table, out);
        }
        let (mut payload, mut state) = ([0; 24], [0; 24]);
        let Some(rows) = table.rows() else {
            continue;
        };
        for (key, place) in places {
            let (bytes, kept) = (rows.layout().payload_bytes, rows.layout().payload_bytes);
            rows.read(place, &mut payload[..bytes]).unwrap();
            rows.read_state(place, &mut state[..kept]).unwrap();
            let hash = of_bytes(&payload[..bytes]) ^ of_bytes(&state[..kept]).rotate_left(1);
            let version = rows.version(place).unwrap();
            assert!(
                version.is_valid(),
                "row {key} of table {id} without a version"
            );
            assert!(
                out.insert((id, key), (version.0, hash)).is_none(),
                "key {key} twice"
            );
        }
    }
}

fn blocks(memory: &ServerMemory, id: u32, table: &Table, out: &mut State) {
    let Store::Blocks(blocks) = &table.store else {
        return;
    };
    let size = blocks.layout().block_bytes;
    let region = memory.public.region();
    for part in blocks.partitions() {
        for n in 0..part.blocks {
            let version = region
                .words(part.versions as usize + n as usize * 8, 8)
                .unwrap();
            let mut both = 0;
            // A table without snapshots has one buffer.
            let buffers = if id == SNAPSHOT { 2 } else { 1 };
            for payload in part.payload.into_iter().take(buffers) {
                let at = payload as usize + n as usize * size;
                let words = region.words(at, size).unwrap();
                let buffer = digest((0..size).step_by(8).map(|at| words.load(at)));
                both = buffer ^ u64::rotate_left(both, 1);
            }
            out.insert((id, part.first_block + n), (version.load(0), both));
        }
    }
}

/// Hash of words and their positions. Not the row checksum.
fn digest(words: impl Iterator<Item = u64>) -> u64 {
    let step = |sum: u64, (at, word): (u64, u64)| {
        let mixed =
            (word ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xe703_7ed1_a0b4_28db);
        sum.wrapping_add(mixed ^ mixed >> 32)
    };
    (1u64..).zip(words).fold(0, step)
}

fn of_bytes(bytes: &[u8]) -> u64 {
    let word = |chunk: &[u8]| {
        chunk
            .iter()
            .rev()
            .fold(0, |word, &byte| word << 8 | u64::from(byte))
    };
    digest(bytes.chunks(8).map(word))
}
