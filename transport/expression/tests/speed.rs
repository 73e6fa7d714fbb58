//! Measurements of evaluators next to loops written by hand: `cargo test --release -p tidewater-expression
//! --test speed -- --ignored --nocapture`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement by hand"
)]

use std::hint::black_box;
use std::time::Duration;

use tidewater_expression::{Element, Evaluator, Partial, Program, Reduction};
use tidewater_runtime::clock;

/// Elements of a table far beyond the caches, and of one within them.
const LARGE: usize = 10_000_000;
const SMALL: usize = 16_384;
/// Elements of one measurement over small slices.
const WORK: usize = LARGE;

/// Runs both in turn and prints the best times and their ratio: 1 is as fast as the loop.
fn compare(name: &str, count: usize, mut evaluator: impl FnMut(), mut by_hand: impl FnMut()) {
    let repeats = (WORK / count).max(1);
    let time = |run: &mut dyn FnMut()| {
        let begin = clock::now();
        (0..repeats).for_each(|_| run());
        begin.elapsed()
    };
    let mut best = [Duration::MAX; 2];
    for _ in 0..15 {
        best[0] = best[0].min(time(&mut evaluator));
        best[1] = best[1].min(time(&mut by_hand));
    }
    let ns = best.map(|best| best.as_secs_f64() * 1e9 / (repeats * count) as f64);
    println!(
        "{name:24} {count:9} elements: evaluator {:.3} ns, by hand {:.3} ns, ratio {:.2}",
        ns[0],
        ns[1],
        ns[1] / ns[0]
    );
}

fn numbers<T>(count: usize, of: impl Fn(f64) -> T) -> Vec<T> {
    (0..count).map(|i| of((i % 1000) as f64 / 7.0)).collect()
}

fn map<T: Element>(
    text: &str,
    parameters: &[f64],
    inputs: &[&[T]],
    by_hand: impl Fn(&[&[T]], &mut [T]),
) {
    let count = inputs[0].len();
    let program = Program::parse(text, T::DTYPE).unwrap();
    let mut evaluator = Evaluator::<T>::new(&program, parameters).unwrap();
    let (mut out, mut other) = (vec![T::default(); count], vec![T::default(); count]);
    compare(
        &format!("map {:?} {text}", T::DTYPE),
        count,
        || evaluator.map(inputs, 0, black_box(&mut out)),
        || by_hand(black_box(inputs), black_box(&mut other)),
    );
}

fn reduce<T: Element, R>(
    text: &str,
    reduction: Reduction,
    inputs: &[&[T]],
    by_hand: impl Fn(&[&[T]]) -> R,
) {
    let count = inputs[0].len();
    let program = Program::parse(text, T::DTYPE).unwrap();
    let mut evaluator = Evaluator::<T>::new(&program, &[]).unwrap();
    let mut partial = Partial::empty(reduction, T::DTYPE);
    compare(
        &format!("{reduction:?} {:?} {text}", T::DTYPE),
        count,
        || evaluator.reduce(inputs, 0, count, reduction, black_box(&mut partial)),
        || {
            black_box(by_hand(black_box(inputs)));
        },
    );
}

/// Sum of products in 16 lanes, as a programmer writes it.
#[inline(never)]
fn dot_lanes(x: &[f32], y: &[f32]) -> f64 {
    let mut lanes = [0.0_f64; 16];
    for (x, y) in x.chunks_exact(16).zip(y.chunks_exact(16)) {
        for i in 0..16 {
            lanes[i] += f64::from(x[i] * y[i]);
        }
    }
    lanes.iter().sum()
}

/// Sum of products in the order of the elements.
#[inline(never)]
fn dot(x: &[f32], y: &[f32]) -> f64 {
    x.iter().zip(y).map(|(x, y)| f64::from(x * y)).sum()
}

#[inline(never)]
fn scale_and_add(p0: f32, x: &[f32], y: &[f32], out: &mut [f32]) {
    for ((out, x), y) in out.iter_mut().zip(x).zip(y) {
        *out = p0 * x + y;
    }
}

#[test]
#[ignore = "measures; asserts nothing"]
fn evaluators_next_to_loops() {
    for count in [SMALL, LARGE] {
        let [x, y] = [
            numbers(count, |v| v as f32),
            numbers(count, |v| v as f32 - 50.0),
        ];
        let both: &[&[f32]] = &[&x, &y];
        map("p0*x + y", &[0.5], both, |i, out| {
            scale_and_add(0.5, i[0], i[1], out)
        });
        map("x - p0*y", &[0.5], both, |i, out| {
            scale_and_add(-0.5, i[1], i[0], out)
        });
        map("x * p0", &[0.5], both, |i, out| {
            out.iter_mut().zip(i[0]).for_each(|(out, x)| *out = x * 0.5);
        });
        map("x + y", &[], both, |i, out| {
            out.iter_mut()
                .zip(i[0])
                .zip(i[1])
                .for_each(|((out, x), y)| *out = x + y);
        });
        map("max(x * 2 - y, 0)", &[], both, |i, out| {
            let each = out.iter_mut().zip(i[0]).zip(i[1]);
            each.for_each(|((out, x), y)| *out = (x * 2.0 - y).max(0.0));
        });
        map(
            "if(abs(x) > p0, sign(x) * p0, x)",
            &[9.0],
            both,
            |i, out| {
                out.iter_mut()
                    .zip(i[0])
                    .for_each(|(out, x)| *out = x.clamp(-9.0, 9.0));
            },
        );
        map("floor(x * 3)", &[], both, |i, out| {
            out.iter_mut()
                .zip(i[0])
                .for_each(|(out, x)| *out = (x * 3.0).floor());
        });
        map("1 / (1 + exp(-x))", &[], both, |i, out| {
            let logistic = |x: f32| 1.0 / (1.0 + libm::expf(-x));
            out.iter_mut()
                .zip(i[0])
                .for_each(|(out, x)| *out = logistic(*x));
        });
        reduce("x*y", Reduction::Sum, both, |i| dot(i[0], i[1]));
        reduce("x*y", Reduction::Sum, both, |i| dot_lanes(i[0], i[1]));
        reduce("x*x", Reduction::Sum, both, |i| dot_lanes(i[0], i[0]));
        reduce("(x-y)^2", Reduction::Sum, both, |i| {
            i[0].iter()
                .zip(i[1])
                .map(|(x, y)| f64::from((x - y) * (x - y)))
                .sum::<f64>()
        });
        reduce("abs(x)", Reduction::Max, both, |i| {
            i[0].iter().fold(0.0_f32, |max, x| max.max(x.abs()))
        });
        let wide = numbers(count, |v| v);
        reduce("x*x", Reduction::Sum, &[&wide], |i| {
            i[0].iter().map(|x| x * x).sum::<f64>()
        });
        let whole = numbers(count, |v| v as i64);
        reduce("x", Reduction::Sum, &[&whole], |i| {
            i[0].iter().map(|&x| i128::from(x)).sum::<i128>()
        });
    }
}

#[test]
#[ignore = "measures; asserts nothing"]
fn each_operation() {
    fn run<T: Element>(texts: &[&str], of: impl Fn(f64) -> T) {
        let x = numbers(SMALL, of);
        for text in texts {
            map(text, &[], &[&x, &x, &x], |i, out| out.copy_from_slice(i[0]));
        }
    }
    let common = [
        "x",
        "x + y",
        "x * 2",
        "min(x, y)",
        "max(x, 1)",
        "-x",
        "abs(x)",
        "sign(x)",
        "x < y",
        "x == 1",
        "x < 2 and y < 3",
        "not (x < 2)",
        "x < 2 or y < 3 and z < 1",
        "if(x < 2, x, y)",
        "if(x < 2, 1, 2)",
        "x * y + z",
    ];
    let float = [
        "x / y",
        "x ^ 2",
        "x ^ y",
        "copysign(x, y)",
        "signum(x)",
        "sqrt(x)",
        "exp(x)",
        "expm1(x)",
        "log(x)",
        "log1p(x)",
        "log10(x)",
        "floor(x)",
        "ceil(x)",
        "round(x)",
        "trunc(x)",
        "is_nan(x)",
    ];
    let both = [&common[..], &float[..]].concat();
    run(&both, |v| v as f32);
    run(&both, |v| v);
    run(&common, |v| v as i32);
    run(&common, |v| v as i64);
}
