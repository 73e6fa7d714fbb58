//! Fuzzes every entry of `wire::decoders::DECODERS`, `tcp::op::DECODERS` and `layout::decoders::DECODERS`
//! on stable Rust, from the committed corpus.
//!
//! Executions per decoder: `TIDEWATER_FUZZ_EXECS`, default 20,000. The inputs are a function of
//! `TIDEWATER_SEED` (default 1), the entry's name and the execution's number, so the printed line of a
//! failure repeats it.
//!
//! The corpus is `tests/corpus/ENTRY/*`; entries without seeds fail the test. To add a seed, put a file
//! there; `cargo fuzz` uses it too.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test's helpers")]

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Mutex;

use tidewater_lanes::tcp;
use tidewater_protocol::wire::decoders::Decode;
use tidewater_protocol::{layout, wire};

#[path = "support/fuzzing.rs"]
mod fuzzing;
use fuzzing::{Random, mutate, number};

/// Every decoder of external bytes. The fuzz target chains them in the same order; new registries are added
/// at the end. `tests/decoders.rs` shows that none is missing.
fn decoders() -> impl Iterator<Item = &'static (&'static str, Decode)> {
    wire::decoders::DECODERS
        .iter()
        .chain(tcp::op::DECODERS)
        .chain(layout::decoders::DECODERS)
}

/// Limit of the peak resident memory of the whole run; a decoder that trusts a length far exceeds it.
const PEAK_KIB_MAX: u64 = 256 << 10;

fn corpus_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

fn seeds(name: &str) -> Vec<Vec<u8>> {
    let dir = corpus_dir().join(name);
    let mut files: BTreeMap<PathBuf, Vec<u8>> = BTreeMap::new();
    for entry in fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        files.insert(path, bytes);
    }
    assert!(
        !files.is_empty(),
        "decoder {name} has no seed in its corpus"
    );
    files.into_values().collect()
}

/// With `TIDEWATER_FUZZ_EXPORT=DIR`, writes the seeds there in the format of `cargo fuzz`: after a byte
/// with the decoder's position.
fn export(index: usize, name: &str) {
    let Ok(dir) = std::env::var("TIDEWATER_FUZZ_EXPORT") else {
        return;
    };
    fs::create_dir_all(&dir).unwrap();
    for (number, seed) in seeds(name).into_iter().enumerate() {
        let bytes = [&[index as u8][..], &seed].concat();
        fs::write(PathBuf::from(&dir).join(format!("{name}-{number}")), bytes).unwrap();
    }
}

fn run(name: &str, decode: fn(&[u8]), execs: u64, seed: u64) {
    let corpus = seeds(name);
    for input in corpus.iter().map(Vec::as_slice).chain([&[][..]]) {
        decode(input);
    }
    let mut input = Vec::new();
    for exec in 0..execs {
        let mut random = Random::of(seed, name, exec);
        input.clear();
        input.extend_from_slice(&corpus[random.under(corpus.len())]);
        for _ in 0..1 + random.under(4) {
            mutate(&mut input, &corpus, &mut random);
        }
        if catch_unwind(AssertUnwindSafe(|| decode(&input))).is_err() {
            panic!(
                "decoder {name} panicked at execution {exec}; repeat with \
                 TIDEWATER_SEED={seed} TIDEWATER_FUZZ_EXECS={} TIDEWATER_FUZZ_ONLY={name} \
                 cargo test --profile ci -p tidewater-lanes --test fuzz; input: {input:02x?}",
                exec + 1
            );
        }
    }
    println!("{name}: {} seeds, {execs} executions", corpus.len());
}

/// This process's peak resident memory, where the kernel reports it.
fn peak_kib() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[test]
fn every_decoder_survives() {
    let execs = number("TIDEWATER_FUZZ_EXECS", 20_000);
    let seed = number("TIDEWATER_SEED", 1);
    let only = std::env::var("TIDEWATER_FUZZ_ONLY").ok();
    let chosen = |name: &str| only.as_deref().is_none_or(|only| only == name);
    let all: Vec<_> = decoders()
        .enumerate()
        .filter(|(_, (name, _))| chosen(name))
        .collect();
    let ran = all.len();
    assert!(ran > 0, "no decoder is named {only:?}");
    let queue = Mutex::new(all.into_iter());
    let next = || queue.lock().unwrap().next();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(4) {
            scope.spawn(|| {
                while let Some((index, (name, decode))) = next() {
                    export(index, name);
                    run(name, *decode, execs, seed);
                }
            });
        }
    });
    if let Some(peak) = peak_kib() {
        println!("{ran} decoders, peak memory {peak} KiB");
        assert!(peak < PEAK_KIB_MAX, "peak memory {peak} KiB");
    }
}

#[test]
fn the_corpus_and_the_registry_name_the_same_decoders() {
    let mut names: Vec<&str> = decoders().map(|(name, _)| *name).collect();
    let mut dirs: Vec<String> = fs::read_dir(corpus_dir())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    dirs.sort_unstable();
    assert_eq!(names, dirs);
    names.dedup();
    assert!(names.len() <= 256, "cargo fuzz names a decoder by one byte");
    assert_eq!(names.len(), decoders().count(), "two decoders of one name");
}

/// Test of the harness: a decoder with a defect behind two bytes is caught.
#[test]
fn a_planted_panic_is_found() {
    fn planted(bytes: &[u8]) {
        assert!(
            !(bytes.len() > 40 && bytes[4] == 0xff && bytes[5] == 0xff),
            "planted"
        );
    }
    let found = catch_unwind(|| run("hello", planted, 100_000, 1)).is_err();
    assert!(found);
}
