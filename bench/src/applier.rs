//! An applier without a server: looks up, checks and applies push frames, as an applier does with
//! each frame from a ring.

use std::sync::Arc;

use tidewater::TableBuilder;
use tidewater_engine::apply::engine::Engine;
use tidewater_engine::apply::table::{Store, Table};
use tidewater_engine::namespace::FrameSender;
use tidewater_engine::store::prealloc::Preallocator;
use tidewater_engine::store::{ServerMemory, ShardId};
use tidewater_kernels::RowKernel;
use tidewater_protocol::ids::{Incarnation, PartitionId, TableId, WorkerId};
use tidewater_protocol::layout::frame::{
    FrameFlags, FrameHeader, FrameKind, PARTITION_ANY, RowsPayload,
};
use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::layout::row::RowLocation;
use tidewater_protocol::table::{DType, Optimizer, PushOp};

use crate::error::{BenchError, Cause};
use crate::measure::Work;

/// Number of rows that fit the second-level cache with their state.
pub const ROWS_CACHED: u64 = 1_024;
/// Number of rows that exceeds every cache.
pub const ROWS_MANY: u64 = 1_000_000;
/// Maximum rows in a frame. Frames of random rows have fewer, because a row that is drawn twice counts once.
const FRAME_ROWS: usize = 1_024;
/// Distinct frames, used in rotation.
const FRAMES: usize = 64;
const PARTITIONS: u32 = 64;
const TABLE: TableId = TableId(1);
/// Address space of the store, bytes; only touched pages cost memory.
const MEMORY: usize = 4 << 30;
/// Value of every gradient element: exact in f32, and no rule makes it subnormal.
const GRADIENT: f32 = 0.5;

/// An update rule by name: the push operation and the table's optimizer.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// Name of the rule in the results.
    pub name: &'static str,
    /// Operation of every pushed row.
    pub op: PushOp,
    /// Optimizer of the table.
    pub optimizer: Optimizer,
}

/// Returns the measured rules: all optimizers, and the operations sum and assign without one.
pub fn rules() -> Vec<Rule> {
    let momentum = |nesterov| Optimizer::Momentum {
        lr: 1e-3,
        mu: 0.9,
        nesterov,
    };
    let adam = Optimizer::Adam {
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
    };
    let ftrl = Optimizer::Ftrl {
        alpha: 0.1,
        beta: 1.0,
        l1: 1.0,
        l2: 0.1,
    };
    let adagrad = Optimizer::AdaGrad { lr: 0.1, eps: 1e-8 };
    let gradient = PushOp::Gradient;
    [
        ("sum", PushOp::Sum, Optimizer::None),
        ("assign", PushOp::Assign, Optimizer::None),
        ("sgd", gradient, Optimizer::Sgd { lr: 1e-3 }),
        ("momentum", gradient, momentum(false)),
        ("nesterov", gradient, momentum(true)),
        ("adagrad", gradient, adagrad),
        ("adam", gradient, adam),
        ("ftrl", gradient, ftrl),
    ]
    .map(|(name, op, optimizer)| Rule {
        name,
        op,
        optimizer,
    })
    .to_vec()
}

/// One applier with one table and frames for random rows of it. A call is a row, a sample a frame.
#[derive(Debug)]
pub struct Applier {
    engine: Engine,
    sender: FrameSender,
    op: PushOp,
    dim: usize,
    frames: Vec<Frame>,
    next: usize,
    applied: bool,
    /// Number of measured pushes to each row, without those of the last sample if `applied`.
    pushes: Vec<u32>,
    oracle: Oracle,
    row: Vec<u8>,
}

/// A push frame of rows.
#[derive(Debug)]
struct Frame {
    header: FrameHeader,
    payload: Vec<u8>,
    /// Numbers of its rows; in a measured frame ascending by key, each once.
    rows: Vec<u32>,
}

/// Expected bytes of an element after each number of pushes, computed by the kernel on a separate row of one
/// element. The measured applier also looks up rows and stores complete ones.
#[derive(Debug)]
struct Oracle {
    kernel: RowKernel,
    op: PushOp,
    row: Vec<u8>,
    state: Vec<u8>,
    after: Vec<[u8; 4]>,
}

impl Oracle {
    fn after(&mut self, pushes: u32) -> [u8; 4] {
        while self.after.len() <= pushes as usize {
            let value = GRADIENT.to_le_bytes();
            self.kernel
                .apply(self.op, &mut self.row, &mut self.state, &value);
            let element = self.row.first_chunk().copied().unwrap_or_default();
            self.after.push(element);
        }
        self.after[pushes as usize]
    }
}

impl Applier {
    /// Creates a table with all `rows` rows of `dim` f32, and the frames.
    ///
    /// # Errors
    /// [`BenchError::Store`] if memory cannot be allocated or a frame is rejected, [`BenchError::System`] if a
    /// thread cannot be started.
    pub fn new(rule: Rule, dim: usize, rows: u64, seed: u64) -> Result<Self, BenchError> {
        let memory = ServerMemory::new(MEMORY, Incarnation(1)).map_err(store)?;
        let memory = Arc::new(memory);
        let worker = WorkerId(0);
        let mut engine = Engine::new(Arc::clone(&memory), 0, [worker]).map_err(store)?;
        let builder = TableBuilder::sparse::<f32>("bench", dim as u32);
        let builder = builder.optimizer(rule.optimizer).partitions(PARTITIONS);
        let spec = Arc::new(builder.spec().clone());
        let preallocator = Preallocator::start();
        let preallocator = preallocator.map_err(|e| BenchError::system("start a thread", e))?;
        let all = (0..PARTITIONS).map(PartitionId);
        let table = Table::new(&memory, &preallocator, ShardId::new(TABLE, 0), &spec, all);
        engine.add_table(table.map_err(store)?);
        let kernel = RowKernel::new(&rule.optimizer, DType::F32, 1).map_err(store)?;
        let mut applier = Self {
            engine,
            sender: FrameSender::first(worker),
            op: rule.op,
            dim,
            frames: Vec::new(),
            next: 0,
            applied: false,
            pushes: vec![0; rows as usize],
            oracle: Oracle {
                kernel,
                op: rule.op,
                row: vec![0; kernel.row_bytes()],
                state: vec![0; kernel.state_bytes()],
                after: vec![[0; 4]],
            },
            row: vec![0; dim * 4],
        };
        applier.create(rows)?;
        for frame in 0..FRAMES as u64 {
            let row = |n: usize| (mix64((frame << 32 | n as u64) ^ seed) % rows) as u32;
            // Like a client: each key once, ascending.
            let mut numbers: Vec<u32> = (0..FRAME_ROWS).map(row).collect();
            numbers.sort_unstable_by_key(|&n| key_of(n));
            numbers.dedup();
            applier.add_frame(numbers);
        }
        Ok(applier)
    }

    /// Number of rows in the next frame.
    fn frame_rows(&self) -> usize {
        self.frames[self.next].rows.len()
    }

    /// Creates every row by a push that assigns zeros. These pushes are not counted.
    fn create(&mut self, rows: u64) -> Result<(), BenchError> {
        let all: Vec<u32> = (0..rows as u32).collect();
        for numbers in all.chunks(FRAME_ROWS) {
            let frame = frame(numbers.to_vec(), None, PushOp::Assign, self.dim, 0.0);
            self.push(&frame)?;
        }
        Ok(())
    }

    fn add_frame(&mut self, numbers: Vec<u32>) {
        let locs = match self.engine.table(TABLE).map(|t| &t.store) {
            Some(Store::Sparse(shard)) => {
                let found = numbers.iter().map(|&n| shard.find(key_of(n)));
                Some(found.map(|loc| loc.unwrap_or(RowLocation::NONE)).collect())
            }
            _ => None,
        };
        let frame = frame(numbers, locs, self.op, self.dim, GRADIENT);
        self.frames.push(frame);
    }

    fn push(&mut self, frame: &Frame) -> Result<(), BenchError> {
        apply(&mut self.engine, self.sender, frame)
    }
}

impl Work for Applier {
    fn calls(&self) -> u64 {
        self.frame_rows() as u64
    }

    fn bytes(&self) -> u64 {
        self.dim as u64 * 4
    }

    fn prepare(&mut self) {
        if std::mem::take(&mut self.applied) {
            for &row in &self.frames[self.next].rows {
                self.pushes[row as usize] += 1;
            }
            self.next = (self.next + 1) % self.frames.len();
        }
    }

    fn sample(&mut self) -> Result<(), BenchError> {
        self.applied = true;
        apply(&mut self.engine, self.sender, &self.frames[self.next])
    }

    /// Checks one row in sixteen of the last frame; checking all of them takes longer than applying them.
    /// Returns the number of wrong elements; a row that cannot be read counts as one.
    fn check(&mut self) -> u64 {
        let numbers = &self.frames[self.next].rows;
        let extra = u32::from(self.applied);
        let mut wrong = 0;
        for &row in numbers.iter().step_by(16) {
            let due = self.oracle.after(self.pushes[row as usize] + extra);
            let Some(table) = self.engine.table(TABLE) else {
                return numbers.len() as u64;
            };
            let place = table.place(key_of(row));
            let read = place.zip(table.rows()).map(|(place, rows)| {
                self.row.fill(0xff);
                rows.read(place, &mut self.row)
            });
            if !matches!(read, Some(Ok(()))) {
                wrong += 1;
                continue;
            }
            let elements = self.row.chunks_exact(4);
            wrong += elements.filter(|element| **element != due).count() as u64;
        }
        wrong
    }
}

const fn key_of(row: u32) -> u64 {
    mix64(row as u64 + 1)
}

fn apply(engine: &mut Engine, sender: FrameSender, frame: &Frame) -> Result<(), BenchError> {
    let done = engine.frame(sender, &frame.header, &frame.payload);
    done.map(drop)
        .map_err(|refusal| store(format!("a frame was refused: {refusal:?}")))
}

/// Builds a frame that pushes `value` to every element of some rows, with their locations if `locs` has them.
fn frame(
    rows: Vec<u32>,
    locs: Option<Vec<RowLocation>>,
    op: PushOp,
    dim: usize,
    value: f32,
) -> Frame {
    let parts = RowsPayload::new(rows.len(), dim * 4, locs.is_some());
    let mut payload = vec![0; parts.len];
    for (at, row) in rows.iter().enumerate() {
        payload[at * 8..at * 8 + 8].copy_from_slice(&key_of(*row).to_le_bytes());
    }
    for (at, loc) in locs.iter().flatten().enumerate() {
        let at = parts.locs_at + at * 8;
        payload[at..at + 8].copy_from_slice(&loc.0.to_le_bytes());
    }
    for element in payload[parts.values_at..].chunks_exact_mut(4) {
        element.copy_from_slice(&value.to_le_bytes());
    }
    let header = FrameHeader {
        kind: FrameKind::PushRows,
        flags: FrameFlags {
            op: Some(op),
            dtype: Some(DType::F32),
            locs: locs.is_some(),
            create: true,
            ..FrameFlags::default()
        },
        seq: 1,
        session: 1,
        payload_len: payload.len() as u32,
        count: rows.len() as u32,
        table: TABLE.0,
        partition: PARTITION_ANY,
        clock: 0,
        user_tag: 0,
        checksum: 0,
    };
    Frame {
        header,
        payload,
        rows,
    }
}

fn store(e: impl Into<Cause>) -> BenchError {
    BenchError::Store(e.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_applies_and_a_spoiled_row_is_noticed() {
        for rule in rules() {
            let mut applier = Applier::new(rule, 4, 64, 1).unwrap();
            for _ in 0..3 {
                applier.prepare();
                applier.sample().unwrap();
                assert_eq!(applier.check(), 0, "{}", rule.name);
            }
            // A push that is missing in the counts.
            let row = applier.frames[applier.next].rows[0];
            let frame = frame(vec![row], None, PushOp::Sum, 4, 8.0);
            applier.push(&frame).unwrap();
            assert_eq!(applier.check(), 4, "{}", rule.name);
        }
    }
}
