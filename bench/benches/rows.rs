//! An applier's work on rows in registered memory: find, apply without a redo record, insert.
//!
//! `cargo bench -p tidewater-bench --bench rows`; a name after `--` selects, as `-- 'apply/sgd'`.
#![allow(missing_docs)] // criterion's macros make public functions

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use tidewater::TableBuilder;
use tidewater_engine::store::ServerMemory;
use tidewater_engine::store::ShardId;
use tidewater_engine::store::index::Index;
use tidewater_engine::store::memory::{BlockKind, BlockOwner};
use tidewater_engine::store::prealloc::Preallocator;
use tidewater_engine::store::redo::{Progress, Redo, RowPlace};
use tidewater_engine::store::sparse::SparseShard;
use tidewater_protocol::ids::{Incarnation, PartitionId, TableId};
use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::layout::row::RowLocation;
use tidewater_protocol::table::{Optimizer, PushOp};

/// Elements of a row.
const DIM: usize = 16;
/// Number of rows that fit the second level cache with their state.
const CACHED: u64 = 1_024;
/// Number of rows that exceeds every cache.
const MANY: u64 = 1_000_000;
const PARTITIONS: u32 = 16;
const MEMORY: usize = 2 << 30;

/// A shard of one applier with `rows` rows.
struct Shard {
    redo: Redo,
    shard: SparseShard,
    locs: Vec<RowLocation>,
    lsn: u64,
}

fn key(row: u64) -> u64 {
    mix64(row)
}

fn memory() -> Arc<ServerMemory> {
    Arc::new(ServerMemory::new(MEMORY, Incarnation(5)).expect("reserved address space"))
}

impl Shard {
    fn new(optimizer: Optimizer, rows: u64) -> Self {
        let memory = memory();
        let builder = TableBuilder::sparse::<f32>("bench", DIM as u32);
        let spec = Arc::new(
            builder
                .optimizer(optimizer)
                .partitions(PARTITIONS)
                .spec()
                .clone(),
        );
        let redo = Redo::new(Arc::clone(&memory), 0, 4096, 8192).expect("two pages");
        let all = (0..PARTITIONS).map(PartitionId);
        let preallocator = Preallocator::start().expect("a thread");
        let shard_id = ShardId::new(TableId(1), 0);
        let mut shard =
            SparseShard::new(&memory, &preallocator, shard_id, &spec, all).expect("a shard");
        let create = |row| {
            let progress = Progress { lsn: row, row: 0 };
            let loc = shard.find_or_create(key(row), &redo, progress);
            loc.expect("room for the rows")
        };
        let locs = (0..rows).map(create).collect();
        Self {
            redo,
            shard,
            locs,
            lsn: rows,
        }
    }

    /// Applies one row of a push with a known location.
    fn apply(&mut self, row: u64, values: &[u8]) {
        self.lsn += 1;
        let progress = Progress {
            lsn: self.lsn,
            row: 0,
        };
        let hint = self.locs[row as usize];
        let place = self.shard.find_hinted(key(row), hint).expect("a row");
        let done = self
            .shard
            .rows()
            .apply(&self.redo, progress, place, PushOp::Gradient, values);
        done.expect("a place of this table");
    }

    fn place(&self, row: u64) -> RowPlace {
        self.shard.place(self.locs[row as usize]).expect("a row")
    }
}

/// Next row in an order that no prefetcher follows.
fn scattered(n: &mut u64, rows: u64) -> u64 {
    *n += 1;
    mix64(*n) % rows
}

fn rules() -> [(&'static str, Optimizer); 2] {
    let adagrad = Optimizer::AdaGrad { lr: 0.1, eps: 1e-8 };
    [("sgd", Optimizer::Sgd { lr: 1e-3 }), ("adagrad", adagrad)]
}

fn apply(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("apply");
    group.throughput(Throughput::Elements(1));
    let values: Vec<u8> = [0.5f32; DIM].iter().flat_map(|v| v.to_le_bytes()).collect();
    for (name, rule) in rules() {
        for (size, rows) in [("cached", CACHED), ("memory", MANY)] {
            let mut shard = Shard::new(rule, rows);
            let mut n = 0;
            group.bench_function(format!("{name}/{size}"), |b| {
                b.iter(|| shard.apply(scattered(&mut n, rows), black_box(&values)));
            });
        }
        // Without a lookup of the row: kernel, checksum and stores.
        let mut shard = Shard::new(rule, 1);
        let place = shard.place(0);
        let Shard { redo, shard, .. } = &mut shard;
        let progress = Progress { lsn: 1, row: 0 };
        group.bench_function(format!("{name}/one row, place known"), |b| {
            b.iter(|| {
                let rows = shard.rows();
                rows.apply(redo, progress, black_box(place), PushOp::Gradient, &values)
            });
        });
    }
    group.finish();
}

fn find(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("find");
    group.throughput(Throughput::Elements(1));
    for (size, rows) in [("cached", CACHED), ("memory", MANY)] {
        let shard = Shard::new(Optimizer::None, rows);
        let mut n = 0;
        group.bench_function(format!("present/{size}"), |b| {
            b.iter(|| {
                shard
                    .shard
                    .find(black_box(key(scattered(&mut n, rows))))
                    .is_some()
            });
        });
        group.bench_function(format!("absent/{size}"), |b| {
            b.iter(|| {
                shard
                    .shard
                    .find(black_box(key(MANY + scattered(&mut n, rows))))
                    .is_none()
            });
        });
    }
    group.finish();
}

/// Inserts a thousand keys into an empty index, growth included.
fn insert(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("index");
    group.throughput(Throughput::Elements(CACHED));
    let memory = memory();
    let owner = BlockOwner {
        kind: BlockKind::Index,
        table: 1,
        applier: 0,
        part: 0,
    };
    group.bench_function("insert", |b| {
        b.iter_batched(
            || {
                Index::new(Arc::clone(&memory), Preallocator::none(), owner)
                    .expect("an empty index")
            },
            |mut index| {
                for row in 0..CACHED {
                    let done = index.insert(key(row), row as u32 + 1, |n| key(u64::from(n) - 1));
                    done.expect("room");
                }
                index.release()
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

criterion_group!(benches, apply, find, insert);
criterion_main!(benches);
