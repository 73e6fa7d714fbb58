//! Fuzzes the decoders of programs, texts and partial results on stable Rust; what decodes is evaluated.
//!
//! Executions per decoder: `TIDEWATER_FUZZ_EXECS`, default 20,000. The inputs are a function of
//! `TIDEWATER_SEED` (default 1), the entry's name and the execution's number, so the printed line of a
//! failure repeats it.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test's helpers")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use tidewater_expression::decoders::DECODERS;
use tidewater_expression::{PROGRAM_BYTES_MAX, Program};
use tidewater_protocol::layout::decoders::Decode;
use tidewater_protocol::table::DType;

#[path = "../../lanes/tests/support/fuzzing.rs"]
mod fuzzing;
use fuzzing::{Random, mutate, number};

/// Expressions that reach every production and limit.
const TEXTS: [&str; 12] = [
    "max(x * 2 - y, 0)",
    "p0 * x + y",
    "if(abs(x) > p15, sign(x) * p0, min(z, -x))",
    "not (x < 2 and y >= 3 or z != 1) or x == y",
    "x ^ 2 - -1 - 2147483647",
    "if(x < y, x <= y, y < x)",
    "index * 3 - x",
    "1 / (1 + exp(-x)) + expm1(log(log1p(log10(sqrt(x)))))",
    "copysign(floor(x), ceil(y)) + round(z) + trunc(x) + signum(y) ^ 3",
    "is_nan(x) or x == inf or y != nan",
    "((((((((((((((((((((((((((((((((x + 1))))))))))))))))))))))))))))))))",
    "1 + 2",
];

/// Seeds of an entry: for each text and element type that has it.
fn seeds(name: &str) -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (code, text) in (0..4_u8).flat_map(|code| TEXTS.map(|text| (code, text))) {
        let Ok(program) = Program::parse(text, DType::from_code(code + 1).unwrap()) else {
            continue;
        };
        let mut seed = Vec::new();
        match name {
            "expression-program" => program.encode(&mut seed),
            "expression-text" => {
                seed.push(code);
                seed.extend_from_slice(text.as_bytes());
            }
            // Reduction and element type, then numbers of every class.
            "expression-partial" => {
                seed.push(code * 5);
                seed.extend((seeds.len() as f64 - 7.5).to_le_bytes());
                seed.extend(u64::from(code).to_le_bytes());
            }
            _ => panic!("no seeds for {name}"),
        }
        seeds.push(seed);
    }
    seeds
}

/// With `TIDEWATER_FUZZ_EXPORT=DIR`, writes the seeds there in the format of `cargo fuzz`: entries of this crate
/// are numbered down from 255.
fn export(position: usize, name: &str) {
    let Ok(dir) = std::env::var("TIDEWATER_FUZZ_EXPORT") else {
        return;
    };
    std::fs::create_dir_all(&dir).unwrap();
    for (number, seed) in seeds(name).into_iter().enumerate() {
        let bytes = [&[255 - position as u8][..], &seed].concat();
        std::fs::write(PathBuf::from(&dir).join(format!("{name}-{number}")), bytes).unwrap();
    }
}

fn run(name: &str, decode: Decode, execs: u64, seed: u64) {
    let corpus = seeds(name);
    corpus.iter().for_each(|seed| decode(seed));
    let mut input = Vec::new();
    for exec in 0..execs {
        let mut random = Random::of(seed, name, exec);
        input.clone_from(&corpus[random.under(corpus.len())]);
        for _ in 0..1 + random.under(4) {
            mutate(&mut input, &corpus, &mut random);
        }
        if catch_unwind(AssertUnwindSafe(|| decode(&input))).is_err() {
            panic!(
                "decoder {name} panicked at execution {exec}; repeat with TIDEWATER_SEED={seed} \
                 TIDEWATER_FUZZ_EXECS={} cargo test --profile ci -p tidewater-expression --test fuzz; \
                 input: {input:02x?}",
                exec + 1
            );
        }
    }
    println!("{name}: {} seeds, {execs} executions", corpus.len());
}

#[test]
fn every_decoder_survives() {
    let execs = number("TIDEWATER_FUZZ_EXECS", 20_000);
    let seed = number("TIDEWATER_SEED", 1);
    for (position, (name, decode)) in DECODERS.iter().enumerate() {
        export(position, name);
        run(name, *decode, execs, seed);
    }
}

/// Test of the harness: mutated programs decode often enough that evaluators run on unusual ones.
#[test]
fn mutated_programs_decode_sometimes() {
    let corpus = seeds("expression-program");
    let (mut decoded, mut changed) = (0, 0);
    for exec in 0..20_000 {
        let mut random = Random::of(1, "sometimes", exec);
        let seed = &corpus[random.under(corpus.len())];
        let mut input = seed.clone();
        mutate(&mut input, &corpus, &mut random);
        let valid = Program::decode(&input).is_ok();
        decoded += u32::from(valid);
        changed += u32::from(valid && !corpus.contains(&input));
    }
    println!("{decoded} of 20000 programs decode, {changed} are no seed");
    assert!(
        changed > 500,
        "only {changed} of 20000 mutated programs decode"
    );
}

#[test]
fn hostile_lengths_are_refused() {
    // Header: version, F32, 65535 constants, 65535 operations, x.
    let hostile = [1, 1, 0xff, 0xff, 0xff, 0xff, 1, 0];
    assert!(Program::decode(&hostile).is_err());
    let mut longest = hostile.to_vec();
    longest.resize(PROGRAM_BYTES_MAX, 0);
    assert!(Program::decode(&longest).is_err());
    assert!(Program::decode(&[1, 1, 0, 0, 0, 0, 1, 0]).is_ok());
    for (at, value) in [
        (0, 2),
        (1, 0),
        (1, 5),
        (6, 5),
        (7, 3),
        (6, 0),
        (6, 3),
        (6, 4),
    ] {
        let mut bytes = [1, 1, 0, 0, 0, 0, 1, 0];
        bytes[at] = value;
        assert!(Program::decode(&bytes).is_err(), "byte {at} = {value}");
    }
}
