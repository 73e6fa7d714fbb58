//! Micro-benchmarks of what every pull and push passes through, one list for two users: criterion
//! measures their time, callgrind (`ci/instructions.sh`) counts their instructions, which no
//! neighbour disturbs.
//!
//! `cargo bench -p tidewater-bench --bench parts`; a name after `--` chooses, as `-- 'hints'`.
//!
//! They are a program of their own, so that what else the harness contains does not change how they
//! are compiled.

mod client;
mod layout;
mod server;

use criterion::{Criterion, Throughput};

/// Repetitions before those that are counted, and those.
const WARM: u32 = 64;
const COUNTED: u32 = 256;

/// What is repeated.
type Body = Box<dyn FnMut()>;

/// One micro-benchmark.
#[derive(Clone, Copy)]
struct Micro {
    /// Its name: what, and the size it is done on.
    name: &'static str,
    /// Operations that one call of the body does.
    ops: u64,
    /// Makes the body. Setting up is neither timed nor counted.
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

/// Calls [`tidewater_parts_mark`] before and after the repetitions that count: a tool that counts
/// from mark to mark has what lies between marks 2n and 2n + 1 for benchmark n.
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

/// Where a counter is read.
#[inline(never)]
fn tidewater_parts_mark() {
    std::hint::black_box(());
}
