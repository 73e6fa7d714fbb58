//! Unmodified solvers of argmin on vectors of the servers: the same path as on local vectors, and the
//! same bits on any number of servers, with a bounded number of waits.
//!
//! The problem is logistic regression on the public set a9a, with an optimum of about log-loss 0.3228
//! without a penalty. The set is read from `TIDEWATER_TEST_DATA`, or from `../shared/data` next to the
//! workspace.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, reason = "a test says what it measured")]

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use argmin::core::{CostFunction, Error, Executor, Gradient, IterState, State};
use argmin::solver::linesearch::condition::ArmijoCondition;
use argmin::solver::linesearch::{BacktrackingLineSearch, MoreThuenteLineSearch};
use argmin::solver::quasinewton::LBFGS;
use tidewater::{JoinOptions, SyncMode};
use tidewater_train::data::{Dataset, ReadOptions, read};
use tidewater_train::metrics::{Scored, auc_exact};
use tidewater_vectors::{Evaluation, Vector, VectorSpace};

/// Features of a9a, and the intercept.
const DIM: usize = 124;
/// Most calls and waits of rank 0 in an iteration, on average over a run: of LBFGS, and of OWL-QN. The
/// operations that give a number wait twice each, an evaluation some ten times; no other does.
const MOST_OF_LBFGS: [u64; 2] = [45, 62];
const MOST_OF_OWLQN: [u64; 2] = [110, 78];
const L1: f64 = 0.001;
/// Iterations that no run reaches.
const MOST: u64 = 200;

fn a9a() -> Option<Dataset> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    let folder = std::env::var_os("TIDEWATER_TEST_DATA").map_or(beside, PathBuf::from);
    let file = folder.join("a9a.train.libsvm");
    if !file.exists() {
        println!("SKIPPED: no {}", file.display());
        return None;
    }
    Some(read(&file, &ReadOptions::default()).unwrap())
}

/// Rows with 1 to 5 of the features, and labels of a noisy linear model: for hosts without a9a, and for
/// mutants.
fn generated() -> Dataset {
    let mut state = 1_u64;
    let mut next = |n: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % n
    };
    let mut data = Dataset::new();
    for _ in 0..500 {
        let keys: std::collections::BTreeSet<u64> = (0..5).map(|_| next(40)).collect();
        let keys: Vec<u64> = keys.into_iter().collect();
        let margin: i64 = keys.iter().map(|key| *key as i64 - 20).sum();
        let label = f32::from(margin + next(60) as i64 > 30);
        data.push(label, &keys, &vec![1.0; keys.len()]).unwrap();
    }
    data
}

/// Mean log-loss and AUC of weights on all rows.
fn quality(data: &Dataset, w: &[f64]) -> (f64, f64) {
    let mut loss = 0.0;
    let mut scored = Vec::with_capacity(data.rows());
    for row in data.iter() {
        let features = row.keys.iter().zip(row.values);
        let score = features.fold(w[DIM - 1], |sum, (key, value)| {
            sum + w[*key as usize] * f64::from(*value)
        });
        let positive = row.label > 0.5;
        let margin = if positive { score } else { -score };
        loss += (-margin.abs()).exp().ln_1p() + (-margin).max(0.0);
        let score = score as f32;
        scored.push(Scored { score, positive });
    }
    let auc = auc_exact(&mut scored).unwrap();
    (loss / data.rows() as f64, auc)
}

/// Adds gradient and cost of the rows of a part: mean logistic loss over all rows, and a small L2
/// penalty in part 0 that makes the optimum one point.
fn part(data: &Dataset, part: usize, parts: usize, w: &[f64], gradient: &mut [f64]) -> f64 {
    let scale = 1.0 / data.rows() as f64;
    let mut cost = 0.0;
    for row in data.iter().skip(part).step_by(parts) {
        let mut score = w[DIM - 1];
        for (key, value) in row.keys.iter().zip(row.values) {
            score += w[*key as usize] * f64::from(*value);
        }
        let sign = if row.label > 0.5 { 1.0 } else { -1.0 };
        let margin = sign * score;
        cost += scale * ((-margin.abs()).exp().ln_1p() + (-margin).max(0.0));
        let slope = -scale * sign / (1.0 + margin.exp());
        gradient[DIM - 1] += slope;
        for (key, value) in row.keys.iter().zip(row.values) {
            gradient[*key as usize] += slope * f64::from(*value);
        }
    }
    if part == 0 {
        for (g, w) in gradient.iter_mut().zip(w) {
            *g += 1e-6 * w;
            cost += 0.5e-6 * w * w;
        }
    }
    cost
}

struct Local<'a>(&'a Dataset);

impl CostFunction for Local<'_> {
    type Param = Vec<f64>;
    type Output = f64;

    fn cost(&self, w: &Self::Param) -> Result<f64, Error> {
        Ok(part(self.0, 0, 1, w, &mut [0.0; DIM]))
    }
}

impl Gradient for Local<'_> {
    type Param = Vec<f64>;
    type Gradient = Vec<f64>;

    fn gradient(&self, w: &Self::Param) -> Result<Self::Gradient, Error> {
        let mut gradient = vec![0.0; DIM];
        part(self.0, 0, 1, w, &mut gradient);
        Ok(gradient)
    }
}

/// The same problem, evaluated by workers: `RefCell` because argmin's traits take `&self`.
struct Remote<F>(RefCell<Evaluation<f64, F>>);

impl<F: FnMut(&[f64], &mut [f64]) -> f64> CostFunction for &Remote<F> {
    type Param = Vector<f64>;
    type Output = f64;

    fn cost(&self, w: &Self::Param) -> Result<f64, Error> {
        Ok(self.0.borrow_mut().evaluate(w)?.0)
    }
}

impl<F: FnMut(&[f64], &mut [f64]) -> f64> Gradient for &Remote<F> {
    type Param = Vector<f64>;
    type Gradient = Vector<f64>;

    fn gradient(&self, w: &Self::Param) -> Result<Self::Gradient, Error> {
        Ok(self.0.borrow_mut().evaluate(w)?.1)
    }
}

/// Result of a solver.
#[derive(Debug, Clone, PartialEq)]
struct Solved {
    iterations: u64,
    cost: f64,
    weights: Vec<f64>,
}

/// Runs LBFGS, or OWL-QN where the penalty is not 0.
macro_rules! solve {
    ($problem:expr, $start:expr, $l1:expr, $weights:expr) => {{
        let (problem, start, l1): (_, _, f64) = ($problem, $start, $l1);
        if l1 > 0.0 {
            let search = BacktrackingLineSearch::new(ArmijoCondition::new(1e-4)?);
            let solver = LBFGS::new(search, 7).with_l1_regularization(l1)?;
            let solver = solver.with_tolerance_cost(1e-6)?;
            finish!(Executor::new(problem, solver), start, $weights)
        } else {
            let solver = LBFGS::new(MoreThuenteLineSearch::new(), 7);
            let solver = solver.with_tolerance_cost(1e-6)?;
            finish!(Executor::new(problem, solver), start, $weights)
        }
    }};
}

macro_rules! finish {
    ($executor:expr, $start:expr, $weights:expr) => {{
        let configure =
            |state: IterState<_, _, (), (), (), f64>| state.param($start).max_iters(MOST);
        let done = $executor.configure(configure).ctrlc(false).run()?;
        let state = done.state();
        let best = state
            .get_best_param()
            .ok_or_else(|| Error::msg("no result"))?;
        Ok(Solved {
            iterations: state.get_iter(),
            cost: state.get_best_cost(),
            weights: $weights(best),
        })
    }};
}

fn solve_here(data: &Dataset, l1: f64) -> Result<Solved, Error> {
    solve!(Local(data), vec![0.0; DIM], l1, |w: &Vec<f64>| w.clone())
}

/// Solves with `workers` workers on `servers` servers; prints operations and passes over the data.
fn solve_there(data: &Dataset, l1: f64, servers: u32, workers: u32) -> Result<Solved, Error> {
    let cluster = JoinOptions::embedded(servers, workers)
        .join()
        .unwrap()
        .into_job()
        .unwrap();
    let space_of = |rank: u32| {
        let client = cluster.client_of(rank, SyncMode::Asp).unwrap();
        VectorSpace::<f64>::with_partitions(client, "w", DIM as u64, 1).unwrap()
    };
    std::thread::scope(|scope| {
        for rank in 1..workers {
            scope.spawn(move || {
                let share =
                    |w: &[f64], g: &mut [f64]| part(data, rank as usize, workers as usize, w, g);
                let mut evaluation = Evaluation::new(&space_of(rank), share).unwrap();
                evaluation.serve().unwrap();
            });
        }
        let space = space_of(0);
        let share = |w: &[f64], g: &mut [f64]| part(data, 0, workers as usize, w, g);
        let evaluation = Evaluation::new(&space, share).unwrap();
        let problem = Remote(RefCell::new(evaluation));
        let start = space.zeros().unwrap();
        let weights = |w: &Vector<f64>| w.pull().unwrap();
        let solve = || -> Result<Solved, Error> { solve!(&problem, start, l1, weights) };
        let solved = solve();
        let mut evaluation = problem.0.into_inner();
        evaluation.finish().unwrap();
        space.check().unwrap();
        if let Ok(solved) = &solved {
            let iterations = solved.iterations.max(1);
            let counters = *space.client().counters();
            let (calls, waits) = (counters.pushes / iterations, counters.waits / iterations);
            println!(
                "{servers} servers, {workers} workers: {} iterations, cost {:.9}; {} passes over the data; \
                 an iteration: {calls} calls, {} frames, {waits} waits; at most {} vectors",
                solved.iterations,
                solved.cost,
                evaluation.evaluations(),
                counters.frames / iterations,
                space.usage().most
            );
            let most = if l1 > 0.0 {
                MOST_OF_OWLQN
            } else {
                MOST_OF_LBFGS
            };
            assert!(calls <= most[0], "{calls} calls of {most:?}");
            assert!(waits <= most[1], "{waits} waits of {most:?}");
        }
        solved
    })
}

fn same_path(data: &Dataset, l1: f64) {
    let here = solve_here(data, l1).unwrap();
    let (loss, auc) = quality(data, &here.weights);
    println!(
        "local: {} iterations, cost {:.9}, log-loss {loss:.6}, AUC {auc:.6}",
        here.iterations, here.cost
    );
    let mut first: Option<Solved> = None;
    for servers in 1..=3 {
        let there = solve_there(data, l1, servers, 2).unwrap();
        assert_eq!(there.iterations, here.iterations);
        assert!(
            (there.cost - here.cost).abs() < 1e-6,
            "{} {}",
            there.cost,
            here.cost
        );
        let (loss_there, auc_there) = quality(data, &there.weights);
        assert!((loss_there - loss).abs() < 1e-6, "{loss_there} {loss}");
        assert!((auc_there - auc).abs() < 1e-6, "{auc_there} {auc}");
        let zeros = |w: &[f64]| w.iter().filter(|w| **w == 0.0).count();
        assert_eq!(zeros(&there.weights), zeros(&here.weights));
        let first = first.get_or_insert_with(|| there.clone());
        assert_eq!(there, *first, "the same bits on any number of servers");
    }
}

#[test]
fn lbfgs_follows_local_path() {
    if let Some(data) = a9a() {
        same_path(&data, 0.0);
    }
}

#[test]
fn owlqn_follows_local_path() {
    if let Some(data) = a9a() {
        same_path(&data, L1);
    }
}

#[test]
fn solvers_follow_local_path_on_generated_rows() {
    let data = generated();
    for l1 in [0.0, L1] {
        same_path(&data, l1);
    }
}

/// A server that is lost in the middle ends the solver with an error or a reason, in bounded time.
#[test]
fn lost_server_ends_the_solver() {
    let cluster = RefCell::new(Some(
        JoinOptions::embedded(2, 1)
            .join()
            .unwrap()
            .into_job()
            .unwrap(),
    ));
    let mut client = cluster
        .borrow()
        .as_ref()
        .unwrap()
        .client_of(0, SyncMode::Asp)
        .unwrap();
    client.set_timeout(std::time::Duration::from_secs(5));
    let space = VectorSpace::<f64>::new(client, "w", 50).unwrap();
    let mut calls = 0;
    // Rosenbrock's valley takes many iterations.
    let share = |w: &[f64], g: &mut [f64]| {
        calls += 1;
        if calls == 5 {
            drop(cluster.borrow_mut().take());
        }
        let mut cost = 0.0;
        for n in 0..w.len() - 1 {
            let (a, b) = (w[n + 1] - w[n] * w[n], 1.0 - w[n]);
            cost += 100.0 * a * a + b * b;
            g[n] += -400.0 * w[n] * a - 2.0 * b;
            g[n + 1] += 200.0 * a;
        }
        cost
    };
    let problem = Remote(RefCell::new(Evaluation::new(&space, share).unwrap()));
    let start = space.filled(-1.0).unwrap();
    let weights = |_: &Vector<f64>| Vec::new();
    let solve = || -> Result<Solved, Error> { solve!(&problem, start, 0.0, weights) };
    let solved = solve();
    println!("{solved:?}");
    if let Ok(solved) = &solved {
        assert!(solved.iterations < 10, "{solved:?}");
    }
    let again = space.zeros();
    let again = again.and_then(|point| problem.0.borrow_mut().evaluate(&point));
    assert!(again.is_err());
}
