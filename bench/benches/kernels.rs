//! Row kernels, cache resident: rows a second on one core.
//!
//! `cargo bench -p tidewater-bench --bench kernels`; a name after `--` selects, as
//! `-- 'adagrad/F32/16'`.
#![allow(missing_docs)] // criterion's macros make public functions

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tidewater_bench::applier::{Rule, rules};
use tidewater_kernels::init::fill_row;
use tidewater_kernels::{RowKernel, accumulate};
use tidewater_protocol::table::{DType, Init, Optimizer, PushOp};

/// Rows of one measurement: with state and gradients they fit the first or second level cache.
const ROWS: usize = 64;

/// A small table and one frame of values for all of its rows.
struct Table {
    kernel: RowKernel,
    payloads: Vec<u8>,
    states: Vec<u8>,
    values: Vec<u8>,
}

impl Table {
    fn new(rule: &Optimizer, dtype: DType, dim: usize) -> Self {
        let kernel = RowKernel::new(rule, dtype, dim).expect("a typical rule");
        let mut table = Self {
            payloads: vec![0; ROWS * kernel.row_bytes()],
            states: vec![0; ROWS * kernel.state_bytes()],
            values: vec![0; ROWS * kernel.row_bytes()],
            kernel,
        };
        // Nonzero and not shrinking: otherwise subnormal numbers would be measured.
        let gradients = Init::Uniform {
            low: 0.5,
            high: 1.0,
        };
        fill_row(&gradients, 1, 1, dtype, &mut table.values);
        table
    }

    fn apply_all(&mut self, op: PushOp) {
        let (row_bytes, state_bytes) = (self.kernel.row_bytes(), self.kernel.state_bytes());
        let payloads = self.payloads.chunks_exact_mut(row_bytes);
        let mut states = &mut self.states[..];
        for (payload, values) in payloads.zip(self.values.chunks_exact(row_bytes)) {
            let (state, rest) = states.split_at_mut(state_bytes);
            states = rest;
            self.kernel.apply(op, payload, state, black_box(values));
        }
    }
}

fn kernels(criterion: &mut Criterion) {
    for Rule {
        name,
        op,
        optimizer,
    } in rules()
    {
        for (dtype, dims) in [(DType::F32, &[1, 16, 64, 256][..]), (DType::F64, &[16][..])] {
            let mut group = criterion.benchmark_group(format!("{name}/{dtype:?}"));
            group.throughput(Throughput::Elements(ROWS as u64));
            for &dim in dims {
                let mut table = Table::new(&optimizer, dtype, dim);
                group.bench_function(dim.to_string(), |b| b.iter(|| table.apply_all(op)));
            }
            group.finish();
        }
    }
}

/// Row operations besides rules; f32, 16 elements, rows a second.
fn others(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("row of 16 f32");
    group.throughput(Throughput::Elements(1));
    let kernel = RowKernel::new(&Optimizer::None, DType::F32, 16).expect("no rule");
    let (mut row, values) = ([0; 64], [0; 64]);
    group.bench_function("all_finite", |b| {
        b.iter(|| kernel.all_finite(black_box(&values)))
    });
    group.bench_function("accumulate", |b| {
        b.iter(|| accumulate(DType::F32, black_box(&mut row), black_box(&values)));
    });
    let inits = [
        (
            "uniform",
            Init::Uniform {
                low: -1.0,
                high: 1.0,
            },
        ),
        (
            "normal",
            Init::Normal {
                mean: 0.0,
                std: 1.0,
            },
        ),
    ];
    for (name, init) in inits {
        let mut key = 0;
        group.bench_function(name, |b| {
            b.iter(|| {
                key += 1;
                fill_row(&init, 1, key, DType::F32, black_box(&mut row));
            });
        });
    }
    group.finish();
}

criterion_group!(benches, kernels, others);
criterion_main!(benches);
