//! Results have the same bits on every host and with every compiler: hashes that never change.
//!
//! A host where one differs must not serve a job together with others. A new version of `libm` that changes one
//! changes the results of saved work: it needs an entry in the changelog.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use tidewater_expression::{Element, Evaluator, Partial, Program, Reduction};

/// Programs of every element type.
const COMMON: [&str; 10] = [
    "x * y + z",
    "x - p0 * y",
    "x * y - z * x",
    "min(x, y)",
    "max(max(x, y), z)",
    "abs(x) - sign(y)",
    "-(x ^ 2)",
    "if(x < y and not (z == x) or x != y, x, 1)",
    "x <= y",
    "(x - y) * (x - y)",
];
/// Programs of floating point types only.
const FLOAT: [&str; 16] = [
    "x / y",
    "x ^ y",
    "copysign(x, y) + signum(z)",
    "sqrt(x)",
    "exp(x)",
    "expm1(x)",
    "log(x)",
    "log1p(x)",
    "log10(x)",
    "floor(x) + ceil(y)",
    "round(x) - trunc(y)",
    "is_nan(x)",
    "0.1 * x + 1e-3 * y - 1.7",
    "1 / (1 + exp(-x))",
    "x * 1e-38 * 1e-5",
    "x * y * x * y - z",
];
/// More elements than a chunk holds.
const COUNT: usize = 3000;

/// Continues an FNV-1a hash with more bytes.
fn hash(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Random words of the generator splitmix64.
fn words(seed: u64) -> impl Iterator<Item = u64> {
    (0..COUNT as u64).map(move |i| {
        let word = (seed * COUNT as u64 + i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    })
}

/// Hashes outputs and partial results of the programs.
fn hash_of<T: Element>(texts: &[&str], of: impl Fn(u64) -> T, bits: impl Fn(T) -> u64) -> u64 {
    let inputs = [1, 2, 3].map(|seed| words(seed).map(&of).collect::<Vec<T>>());
    let inputs = inputs.each_ref().map(Vec::as_slice);
    let mut all = 0xcbf2_9ce4_8422_2325;
    for text in texts {
        let program = Program::parse(text, T::DTYPE).unwrap();
        let parameters = &[3.0][..program.parameters()];
        let mut evaluator = Evaluator::new(&program, parameters).unwrap();
        let mut out = vec![T::default(); COUNT];
        evaluator.map(&inputs, 0, &mut out);
        for value in out {
            all = hash(all, &bits(value).to_le_bytes());
        }
        for reduction in Reduction::ALL {
            let mut partial = Partial::empty(reduction, T::DTYPE);
            evaluator.reduce(&inputs, 0, COUNT, reduction, &mut partial);
            all = hash(all, &partial.encode());
        }
    }
    all
}

/// Every fourth element has any bits, the others are between -32 and 32.
fn moderate(word: u64) -> Option<f64> {
    (!word.is_multiple_of(4)).then(|| (word >> 11) as f64 / (1_u64 << 47) as f64 - 32.0)
}

#[test]
fn float_results_have_known_bits() {
    let texts = [&COMMON[..], &FLOAT[..]].concat();
    let single =
        |word: u64| moderate(word).map_or(f32::from_bits((word >> 32) as u32), |v| v as f32);
    let double = |word: u64| moderate(word).unwrap_or(f64::from_bits(word));
    let hashes = [
        hash_of(&texts, single, |v: f32| v.to_bits().into()),
        hash_of(&texts, double, f64::to_bits),
    ];
    assert_eq!(
        hashes.map(|hash| format!("{hash:#018x}")),
        ["0xe4073fd6ec4fb62d", "0x6408a71c00d7f29b"]
    );
}

#[test]
fn integer_results_have_known_bits() {
    let hashes = [
        hash_of(&COMMON, |word| (word >> 32) as i32, |v| v as u64),
        hash_of(&COMMON, |word| word as i64, |v| v as u64),
    ];
    assert_eq!(
        hashes.map(|hash| format!("{hash:#018x}")),
        ["0xdb7be1fdeae85e52", "0x05745dc8a979b21d"]
    );
}
