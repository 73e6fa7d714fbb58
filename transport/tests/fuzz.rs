//! Fuzzes every entry of `wire::decoders::DECODERS` and `tcp::op::DECODERS` on stable Rust, from the committed corpus.
//!
//! Executions per decoder: `TIDEWATER_FUZZ_EXECS`, default 20,000. The inputs are a function of
//! `TIDEWATER_SEED` (default 1), the entry's name and the execution's number, so a failure is
//! repeated by the line it prints.
//!
//! The corpus is `tests/corpus/ENTRY/*`; entries without seeds fail the test. New seeds are files
//! put there; `cargo fuzz` finds them too.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test's helpers")]

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use tidewater_transport::tcp::op;
use tidewater_transport::wire::decoders::{DECODERS, Decode};

/// Every decoder of bytes from outside; the fuzz target chains them in the same order.
fn decoders() -> impl Iterator<Item = &'static (&'static str, Decode)> {
    DECODERS.iter().chain(op::DECODERS)
}

/// Longest input: over the limit before the proof, so that limits are met.
const INPUT_BYTES_MAX: usize = 6 << 10;
/// Peak resident memory of the whole run; a decoder that believes a length is far over it.
const PEAK_KIB_MAX: u64 = 256 << 10;

/// xorshift64*: small, seeded, the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn under(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// Values at which lengths and varints change their mind.
const EDGES: &[u64] = &[
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x3fff,
    0x4000,
    0xffff,
    0x1_0000,
    0xf_ffff,
    0x10_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 47,
    1 << 63,
    u64::MAX,
];

/// One change of `input`.
fn mutate(input: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Random) {
    let at = random.under(input.len());
    let end = at + random.under((input.len() - at).min(32) + 1);
    match random.under(9) {
        0 if !input.is_empty() => input[at] ^= 1 << random.under(8),
        1 if !input.is_empty() => input[at] = random.next() as u8,
        2 => input.insert(at, random.next() as u8),
        3 => drop(input.drain(at..end)),
        4 => input.truncate(at),
        5 => {
            let again = input[at..end].to_vec();
            input.splice(at..at, again);
        }
        6 => {
            // The end of another seed behind the start of this one.
            let other = &corpus[random.under(corpus.len())];
            let from = random.under(other.len());
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
        7 => {
            // A fixed-width number at its edge.
            let bytes = EDGES[random.under(EDGES.len())].to_le_bytes();
            let width = (1 << random.under(4)).min(input.len() - at);
            input[at..at + width].copy_from_slice(&bytes[..width]);
        }
        _ => {
            // A varint at its edge, in place of a byte.
            let mut value = EDGES[random.under(EDGES.len())];
            let mut varint = Vec::new();
            while value >= 0x80 {
                varint.push(value as u8 | 0x80);
                value >>= 7;
            }
            varint.push(value as u8);
            input.splice(at..end.min(at + 1), varint);
        }
    }
    input.truncate(INPUT_BYTES_MAX);
}

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
        Err(_) => default,
    }
}

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

/// With `TIDEWATER_FUZZ_EXPORT=DIR`, writes the seeds there as `cargo fuzz` wants them: behind a
/// byte that is the decoder's position.
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
    let name_hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |h: u64, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut input = Vec::new();
    for exec in 0..execs {
        let state = (seed ^ name_hash).wrapping_add(exec.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut random = Random(state | 1);
        random.next();
        input.clear();
        input.extend_from_slice(&corpus[random.under(corpus.len())]);
        for _ in 0..1 + random.under(4) {
            mutate(&mut input, &corpus, &mut random);
        }
        if catch_unwind(AssertUnwindSafe(|| decode(&input))).is_err() {
            panic!(
                "decoder {name} panicked at execution {exec}; repeat with \
                 TIDEWATER_SEED={seed} TIDEWATER_FUZZ_EXECS={} TIDEWATER_FUZZ_ONLY={name} \
                 cargo test --profile ci -p tidewater-transport --test fuzz; input: {input:02x?}",
                exec + 1
            );
        }
    }
    println!("{name}: {} seeds, {execs} executions", corpus.len());
}

/// This process's peak resident memory, where the kernel tells.
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
    let mut ran = 0;
    for (index, (name, decode)) in decoders().enumerate() {
        if !chosen(name) {
            continue;
        }
        export(index, name);
        run(name, *decode, execs, seed);
        ran += 1;
    }
    assert!(ran > 0, "no decoder is named {only:?}");
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

/// The harness itself: a decoder with a defect behind two bytes is caught.
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
