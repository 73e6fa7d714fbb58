//! Vectors on the servers, against the same operations on vectors here.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "vectors/matrix.rs"]
mod matrix;
#[path = "vectors/sparse.rs"]
mod sparse;

use tidewater::{ClientError, Expression, Init, Job, JoinOptions, SyncMode};
use tidewater_vectors::{Evaluation, SparseVector, Vector, VectorSpace, VectorUsage};

const DIM: usize = 40_003;

fn space(cluster: &Job, name: &str, dim: usize) -> VectorSpace<f64> {
    let client = cluster.client_of(0, SyncMode::Asp).unwrap();
    VectorSpace::new(client, name, dim as u64).unwrap()
}

fn numbers(seed: u64) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 11) as f64 / (1_u64 << 51) as f64 - 2.0
    };
    (0..DIM).map(|_| next()).collect()
}

/// Zeroes of both signs, then the other numbers.
fn with_zeroes(mut numbers: Vec<f64>) -> Vec<f64> {
    numbers[..2].copy_from_slice(&[0.0, -0.0]);
    numbers
}

type Unary = (
    &'static str,
    fn(&Vector<f64>) -> Result<Vector<f64>, ClientError>,
    fn(f64) -> f64,
);
type Binary = (
    &'static str,
    fn(&Vector<f64>, &Vector<f64>) -> Result<Vector<f64>, ClientError>,
    fn(f64, f64) -> f64,
);

/// Every operation gives the bits of its local counterpart.
#[test]
fn operations_match_local_vectors() {
    let cluster = JoinOptions::embedded(2, 1)
        .join()
        .unwrap()
        .into_job()
        .unwrap();
    let space = space(&cluster, "s", DIM);
    let (a, b) = (with_zeroes(numbers(1)), numbers(2));
    let (x, y) = (space.from_slice(&a).unwrap(), space.from_slice(&b).unwrap());
    let same = |name: &str, vector: &Vector<f64>, expected: &dyn Fn(usize) -> f64| {
        let result = vector.pull().unwrap();
        let wrong = (0..DIM).find(|&n| {
            let (have, want) = (result[n], expected(n));
            have.to_bits() != want.to_bits() && !(have.is_nan() && want.is_nan())
        });
        assert_eq!(wrong, None, "{name}");
    };
    let unary: [Unary; 10] = [
        ("neg", Vector::neg, |x| -x),
        ("abs", Vector::abs, f64::abs),
        ("signum", Vector::signum, f64::signum),
        ("sqrt", Vector::sqrt, f64::sqrt),
        ("floor", Vector::floor, f64::floor),
        ("ceil", Vector::ceil, f64::ceil),
        ("round", Vector::round, f64::round),
        ("scale", |x| x.scale(0.3), |x| x * 0.3),
        ("rsub", |x| x.rsub_scalar(1.5), |x| 1.5 - x),
        (
            "soft",
            |x| x.soft_threshold(0.5),
            |x| match x {
                x if x > 0.5 => x - 0.5,
                x if x < -0.5 => x + 0.5,
                _ => 0.0,
            },
        ),
    ];
    for (name, on_servers, here) in unary {
        same(name, &on_servers(&x).unwrap(), &|n| here(a[n]));
    }
    let binary: [Binary; 7] = [
        ("add", Vector::add, |x, y| x + y),
        ("sub", Vector::sub, |x, y| x - y),
        ("mul", Vector::mul, |x, y| x * y),
        ("div", Vector::div, |x, y| x / y),
        ("min", Vector::min, f64::min),
        ("max", Vector::max, f64::max),
        (
            "scaled_add",
            |x, y| x.scaled_add(y, 0.7),
            |x, y| x + 0.7 * y,
        ),
    ];
    for (name, on_servers, here) in binary {
        same(name, &on_servers(&x, &y).unwrap(), &|n| here(a[n], b[n]));
    }
    // The result of an operation in place, also with itself as input.
    let mut z = x.copy().unwrap();
    z.axpy(2.0, &y).unwrap();
    let copy = z.clone();
    z.mul_assign(&copy).unwrap();
    same("in place", &z, &|n| {
        (a[n] + 2.0 * b[n]) * (a[n] + 2.0 * b[n])
    });
    same("clone", &copy, &|n| a[n] + 2.0 * b[n]);
    same("operators", &(&(&x + &y) * 2.0), &|n| (a[n] + b[n]) * 2.0);
    let mut mapped = space.zeros().unwrap();
    let own = Expression::parse("x * y + p0").unwrap();
    mapped.map(&own, &[&x, &y], &[0.125]).unwrap();
    same("map", &mapped, &|n| a[n] * b[n] + 0.125);
    same("x stays", &x, &|n| a[n]);

    space.check().unwrap();
}

/// Numbers that are computed from vectors agree with local sums.
#[test]
fn reductions_match_local_vectors() {
    let cluster = JoinOptions::embedded(2, 1)
        .join()
        .unwrap()
        .into_job()
        .unwrap();
    let space = space(&cluster, "s", DIM);
    let (a, b) = (numbers(1), numbers(2));
    let (x, y) = (space.from_slice(&a).unwrap(), space.from_slice(&b).unwrap());
    let close = |have: f64, want: f64| {
        let error = (have - want).abs() / want.abs().max(1.0);
        assert!(error < 1e-12, "{have} for {want}");
    };
    close(
        x.dot(&y).unwrap(),
        a.iter().zip(&b).map(|(x, y)| x * y).sum(),
    );
    close(x.sum().unwrap(), a.iter().sum());
    close(x.asum().unwrap(), a.iter().map(|x| x.abs()).sum());
    close(
        x.nrm2().unwrap(),
        a.iter().map(|x| x * x).sum::<f64>().sqrt(),
    );
    close(
        x.largest().unwrap(),
        a.iter().copied().fold(f64::MIN, f64::max),
    );
    close(
        x.smallest().unwrap(),
        a.iter().copied().fold(f64::MAX, f64::min),
    );
    close(
        x.amax().unwrap(),
        a.iter().fold(0.0, |most, x| x.abs().max(most)),
    );
    close(
        x.amin().unwrap(),
        a.iter().fold(f64::MAX, |least, x| x.abs().min(least)),
    );
    let differences = a.iter().zip(&b).map(|(x, y)| (x - y).abs());
    close(x.distance(&y).unwrap(), differences.fold(0.0, f64::max));
    assert!(
        x.neg()
            .unwrap()
            .abs()
            .unwrap()
            .neg()
            .unwrap()
            .largest()
            .unwrap()
            < 0.0
    );
    close(x.nnz().unwrap(), DIM as f64);
    assert!(x.is_near(&x.clone(), 1e-300).unwrap());
    assert!(!x.is_near(&y, 1e-3).unwrap());
}

/// Dropped vectors give their tables back at once, and a reused one holds nothing of its last use.
#[test]
fn dropped_vectors_are_reused_empty() {
    let cluster = JoinOptions::embedded(1, 1)
        .join()
        .unwrap()
        .into_job()
        .unwrap();
    let space = space(&cluster, "s", 1_000);
    let keep = space.filled(1.0).unwrap();
    let old = space.filled(5.0).unwrap();
    let id = old.id();
    assert!(space.table_of(id).is_ok());
    drop(old);
    assert!(space.table_of(id).is_err(), "a dropped vector");
    for _ in 0..1_000 {
        let fresh = keep.zeros_like().unwrap();
        assert_eq!(fresh.id().slot, id.slot);
        assert_ne!(fresh.id().generation, id.generation);
    }
    assert_eq!(keep.zeros_like().unwrap().asum().unwrap(), 0.0);
    assert!(space.table_of(id).is_err(), "another use of the slot");
    assert_eq!(space.usage(), VectorUsage { now: 1, most: 2 });
    let busy = space.clone().release().unwrap_err();
    assert!(busy.to_string().contains('1'), "{busy}");
    drop(keep);
    space.into_client().unwrap().finish().unwrap();
}

/// Vectors of two spaces do not lie together: an error before anything is sent, kept by operators.
#[test]
fn foreign_vector_is_refused_and_kept() {
    let cluster = JoinOptions::embedded(1, 1)
        .join()
        .unwrap()
        .into_job()
        .unwrap();
    let one = space(&cluster, "one", 10);
    let two = one.another("two", 10).unwrap();
    let (x, y) = (one.filled(1.0).unwrap(), two.filled(1.0).unwrap());
    let refused = x.add(&y).unwrap_err();
    assert!(refused.to_string().contains("\"two\""), "{refused}");
    assert!(x.dot(&y).is_err());
    one.check().unwrap();
    let _unchanged = &x + &y;
    let kept = one.check().unwrap_err();
    assert!(kept.to_string().contains("\"two\""), "{kept}");
    one.check().unwrap();
}

/// Where a program gives too little, nothing is computed from the elements of another vector.
#[test]
fn missing_inputs_and_refusals_are_errors() {
    let cluster = JoinOptions::embedded(1, 1)
        .join()
        .unwrap()
        .into_job()
        .unwrap();
    let client = cluster.client_of(0, SyncMode::Asp).unwrap();
    let space = VectorSpace::<f32>::new(client, "s", 100).unwrap();
    let mut x = space.filled(2.0).unwrap();
    let clone = x.clone();
    let more = Expression::parse("x + 1").unwrap();
    let missing = x.map(&more, &[], &[]).unwrap_err();
    assert!(missing.to_string().contains("1 inputs"), "{missing}");
    let times = Expression::parse("x * p0").unwrap();
    let wide = x.map(&times, &[&clone], &[1e300]).unwrap_err();
    assert!(wide.to_string().contains("F32"), "{wide}");
    assert_eq!(x.sum().unwrap(), 200.0);
    // An operator's failure is found by the next number.
    let other = space.another("t", 100).unwrap().filled(1.0).unwrap();
    let wrong = &x + &other;
    assert!(wrong.sum().is_err());
    assert_eq!(x.sum().unwrap(), 200.0);
}

/// Runs `solver` as rank 0 of two workers; the other one has `part` and serves as often as asked.
fn two_workers(
    rounds: usize,
    part: impl Fn(&[f64], &mut [f64]) -> f64 + Sync,
    solver: impl Fn(&VectorSpace<f64>, usize),
) -> Vec<bool> {
    let cluster = JoinOptions::embedded(2, 2)
        .join()
        .unwrap()
        .into_job()
        .unwrap();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let client = cluster.client_of(1, SyncMode::Asp).unwrap();
            let space = VectorSpace::new(client, "s", 3).unwrap();
            let serve = |_| Evaluation::new(&space, &part).unwrap().serve().is_ok();
            (0..rounds).map(serve).collect()
        });
        let client = cluster.client_of(0, SyncMode::Asp).unwrap();
        let space = VectorSpace::new(client, "s", 3).unwrap();
        (0..rounds).for_each(|round| solver(&space, round));
        serving.join().unwrap()
    })
}

/// Half of |w|^2 at each of two workers.
fn square(w: &[f64], gradient: &mut [f64]) -> f64 {
    gradient.copy_from_slice(w);
    w.iter().map(|w| w * w / 2.0).sum()
}

/// A vector that was changed in place is another point, a vector of another space is none, and the
/// names may be used again.
#[test]
fn evaluation_follows_changes_in_place() {
    let served = two_workers(3, square, |space, round| {
        let mut evaluation = Evaluation::new(space, square).unwrap();
        let mut w = space.filled(1.0).unwrap();
        for step in 0..4 {
            let (cost, gradient) = evaluation.evaluate(&w).unwrap();
            let scale = 0.25_f64.powi(step);
            assert_eq!(cost, 3.0 * scale, "round {round}, step {step}");
            w.axpy(-0.25, &gradient).unwrap();
        }
        assert_eq!(evaluation.evaluations(), 4);
        evaluation.evaluate(&w).unwrap();
        evaluation.evaluate(&w).unwrap();
        assert_eq!(evaluation.evaluations(), 5);
        let foreign = space.another("t", 3).unwrap().filled(1.0).unwrap();
        assert!(evaluation.evaluate(&foreign).is_err());
        evaluation.finish().unwrap();
        evaluation.finish().unwrap();
        w.fill(7.0).unwrap();
        assert!(evaluation.evaluate(&w).is_err());
    });
    assert_eq!(served, [true; 3]);
}

/// A worker with a part that panics is named to the solver, instead of a wait without end.
#[test]
fn failed_part_is_named() {
    let cluster = JoinOptions::embedded(1, 2)
        .join()
        .unwrap()
        .into_job()
        .unwrap();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let client = cluster.client_of(1, SyncMode::Asp).unwrap();
            let space = VectorSpace::<f64>::new(client, "s", 3).unwrap();
            let part = |_: &[f64], _: &mut [f64]| -> f64 { panic!("no data") };
            let mut evaluation = Evaluation::new(&space, part).unwrap();
            let served =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| evaluation.serve()));
            served.is_err()
        });
        let client = cluster.client_of(0, SyncMode::Asp).unwrap();
        let space = VectorSpace::new(client, "s", 3).unwrap();
        let mut evaluation = Evaluation::new(&space, square).unwrap();
        let failed = evaluation
            .evaluate(&space.filled(1.0).unwrap())
            .unwrap_err();
        assert!(failed.to_string().contains("worker 1"), "{failed}");
        assert!(serving.join().unwrap());
    });
}

/// Single indices come in the caller's order, with repetitions, from both ends of pieces; one outside is an error.
#[test]
fn single_indices_are_pulled_in_order() {
    let cluster = JoinOptions::embedded(2, 1).join().unwrap().into_job();
    let cluster = cluster.unwrap();
    let space = space(&cluster, "s", DIM);
    let numbers = numbers(3);
    let vector = space.from_slice(&numbers).unwrap();
    let last = DIM as u64 - 1;
    let indices = [last, 0, 511, 512, 7, 511, 20_000, 1_023];
    let expected = indices.map(|n| numbers[n as usize]);
    assert_eq!(vector.pull_at(&indices).unwrap(), expected);
    assert!(vector.pull_at(&[]).unwrap().is_empty());
    for outside in [last + 1, u64::MAX] {
        let error = vector.pull_at(&[3, outside]).unwrap_err();
        assert!(matches!(error, ClientError::Argument { .. }), "{error}");
    }
}

/// Random elements follow from seed and index, on any number of servers, and have the distribution asked for.
#[test]
fn random_vectors_have_equal_bits_on_any_servers() {
    let uniform = Init::Uniform {
        low: -1.0,
        high: 3.0,
    };
    let normal = Init::Normal {
        mean: 2.0,
        std: 0.5,
    };
    let mut seen: Vec<Vec<Vec<f64>>> = Vec::new();
    for servers in [1, 2, 3] {
        let cluster = JoinOptions::embedded(servers, 1).join().unwrap().into_job();
        let cluster = cluster.unwrap();
        let space = space(&cluster, "s", DIM);
        let of = |init, seed| space.random(init, seed).unwrap().pull().unwrap();
        seen.push(vec![of(uniform, 1), of(uniform, 2), of(normal, 1)]);
        let usage = VectorUsage { now: 0, most: 1 };
        assert_eq!(space.usage(), usage, "vectors are given back");
    }
    assert!(
        seen[0] == seen[1] && seen[0] == seen[2],
        "the bits depend on the servers"
    );
    let moments = |values: &[f64]| {
        let mean = values.iter().sum::<f64>() / DIM as f64;
        let squares = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>();
        (mean, (squares / DIM as f64).sqrt())
    };
    let [first, second, bell] = &seen[0][..] else {
        unreachable!()
    };
    assert_ne!(first, second, "the seed has no effect");
    assert!(first.iter().all(|v| (-1.0..3.0).contains(v)));
    // Five standard errors of the mean, and as much of the deviation.
    for (values, mean, std) in [(first, 1.0, 4.0 / 12_f64.sqrt()), (bell, 2.0, 0.5)] {
        let found = moments(values);
        let error = 5.0 * std / (DIM as f64).sqrt();
        assert!(
            (found.0 - mean).abs() < error && (found.1 - std).abs() < error,
            "{found:?}"
        );
    }
}
