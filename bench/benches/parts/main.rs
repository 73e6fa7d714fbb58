//! Micro-benchmarks of the code paths that every pull and push passes through, one list for two
//! tools. criterion measures their time; callgrind (`ci/instructions.sh`) counts their instructions,
//! which other processes do not disturb.
//!
//! `cargo bench -p tidewater-bench --bench parts`; a name after `--` selects, as `-- 'hints'`.
//!
//! They are a separate program, so that the rest of the benchmark does not change how they are
//! compiled.

mod client;
mod layout;
mod server;

use criterion::{Criterion, Throughput};

/// Number of warm-up repetitions, and of counted ones.
const WARM: u32 = 64;
const COUNTED: u32 = 256;

/// Repeated body of a micro-benchmark.
type Body = Box<dyn FnMut()>;

/// One micro-benchmark of the list.
#[derive(Clone, Copy)]
struct Micro {
    /// Name: the operation, and the size of its input.
    name: &'static str,
    /// Number of operations in one call of the body.
    ops: u64,
    /// Creates the body. The setup is neither timed nor counted.
    make: fn() -> Body,
}

fn all() -> Vec<Micro> {
    let mut all = layout::list();
    all.extend(client::list());
    all.extend(server::list());
    all
}

#[allow(clippy::print_stdout, reason = "what ci/instructions.sh reads")]
fn main() {
    let has = |flag: &str| std::env::args().any(|arg| arg == flag);
    if has("--list-parts") {
        for micro in all() {
            println!("{}\t{}", micro.name, micro.ops * u64::from(COUNTED));
        }
    } else if has("--count-parts") {
        all().into_iter().for_each(between_marks);
    } else {
        time();
    }
}

fn time() {
    let mut criterion = Criterion::default().configure_from_args();
    for micro in all() {
        let (group, name) = micro.name.split_once('.').unwrap_or((micro.name, ""));
        let mut group = criterion.benchmark_group(group);
        group.throughput(Throughput::Elements(micro.ops));
        let mut body = (micro.make)();
        group.bench_function(name, |b| b.iter(&mut body));
        group.finish();
    }
    criterion.final_summary();
}

/// Calls [`tidewater_parts_mark`] before and after the counted repetitions. For a tool that counts
/// from mark to mark, benchmark n lies between marks 2n and 2n + 1.
fn between_marks(micro: Micro) {
    let mut body = (micro.make)();
    for _ in 0..WARM {
        body();
    }
    tidewater_parts_mark();
    for _ in 0..COUNTED {
        body();
    }
    tidewater_parts_mark();
}

/// Mark at which a tool reads its counter.
#[inline(never)]
fn tidewater_parts_mark() {
    std::hint::black_box(());
}
