//! The path of every pull: row checksum, copy out of shared memory. Frames are in `parts`.
//!
//! `cargo bench -p tidewater-bench --bench wire`; a name after `--` selects, as `-- 'verify/256'`.
#![allow(missing_docs)] // criterion's macros make public functions

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tidewater_protocol::layout::row::{RowVersion, row_checksum, row_hasher, row_head, verify_row};
use tidewater_runtime::mem::Region;

/// Payload bytes of rows, from 8 f32 to 1,024.
const SIZES: [usize; 8] = [32, 64, 128, 256, 512, 1024, 2048, 4096];
const SALT: u64 = 0x5a17;
const KEY: u64 = 7;

fn payload(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 31) as u8).collect()
}

fn hash(criterion: &mut Criterion) {
    let version = RowVersion::new(1, 2);
    let mut group = criterion.benchmark_group("row");
    for bytes in SIZES {
        let row = payload(bytes);
        let head = row_head(version, row_checksum(SALT, KEY, version, &row));
        assert!(
            verify_row(SALT, KEY, &head, &row).is_some(),
            "it is measured accepting"
        );
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(BenchmarkId::new("chk", bytes), |b| {
            b.iter(|| row_checksum(SALT, black_box(KEY), version, black_box(&row)));
        });
        group.bench_function(BenchmarkId::new("verify", bytes), |b| {
            b.iter(|| verify_row(SALT, black_box(KEY), black_box(&head), black_box(&row)));
        });
    }
    group.finish();
}

fn copy(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("copy out");
    let most = SIZES[SIZES.len() - 1];
    let region = Region::anonymous(most).expect("a few kilobytes");
    let words = region.words_mut(0, most).expect("all of it");
    words.copy_in(0, &payload(most));
    let version = RowVersion::new(1, 2);
    for bytes in SIZES {
        let from = payload(bytes);
        let mut out = vec![0; bytes];
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(BenchmarkId::new("words", bytes), |b| {
            b.iter(|| words.as_read().copy_out(0, black_box(&mut out)));
        });
        group.bench_function(BenchmarkId::new("words hashing", bytes), |b| {
            b.iter(|| {
                let hash = row_hasher(SALT, black_box(KEY), version, bytes);
                words
                    .as_read()
                    .copy_out_hashing(0, black_box(&mut out), hash)
            });
        });
        group.bench_function(BenchmarkId::new("memcpy", bytes), |b| {
            b.iter(|| black_box(&mut out).copy_from_slice(black_box(&from)));
        });
    }
    group.finish();
}

criterion_group!(benches, hash, copy);
criterion_main!(benches);
