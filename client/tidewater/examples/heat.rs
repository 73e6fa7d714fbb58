//! A simulation that learns while it runs: the heat equation, and a surrogate of its solver.
//!
//! Each worker has a strip of the plate. Every step it pulls the model and its neighbours' edges, and
//! advances the heat by one explicit step. It then takes one learning step (nine weights that predict a
//! cell from its surroundings), and pushes gradient, edges and measurements. They take effect at the
//! tick, reduced in rank order, so the numbers do not depend on timing. The programs in C, C++ and
//! Fortran of `client/capi` print the same.
//!
//! ```text
//! cargo build --profile ci -p tidewater --example heat
//! tidewater run --servers 2 --workers 2 -- target/ci/examples/heat
//! mpirun -n 2 tidewater server : -n 2 target/ci/examples/heat
//! ```

#![allow(clippy::print_stdout, reason = "a program")]

use std::time::Duration;

use tidewater::{
    Client, ClientError, JoinOptions, Joined, Optimizer, PullOptions, PushOp, Reduce, SyncMode,
    Table, TableBuilder,
};

const N: usize = 64; // cells of an edge of the plate
const WIDE: usize = N + 2; // with a rim that stays cold
const STEPS: usize = 600;
const CONDUCTIVITY: f64 = 0.2;
const WEIGHTS: usize = 9; // a cell and its eight neighbours
const BINS: usize = 8;
const ROLLOUT: usize = 20;

/// A worker's strip: rows `first .. first + rows` of the plate, and one above and below.
struct Strip {
    first: usize,
    rows: usize,
    heat: Vec<f64>,
    next: Vec<f64>,
}

/// Measurements of a strip in one step.
#[derive(Default)]
struct Seen {
    gradient: [f64; WEIGHTS],
    loss: f64,
    heat: f64,
}

struct Tables {
    model: Table<f64>,     // the surrogate's weights
    edges: Table<f64>,     // rows 2r and 2r + 1: top and bottom row of worker r
    log: Table<f64>,       // row t: loss and heat of step t
    histogram: Table<i64>, // cells by temperature
}

fn main() -> Result<(), ClientError> {
    let Joined::Worker(job) = JoinOptions::default().join()? else {
        return Ok(()); // a server of the job, as by TIDEWATER_SERVERS under mpirun
    };
    simulate(job.client(SyncMode::Bsp)?)?;
    job.leave()
}

/// Simulates as one worker, to the end of its part in the job.
fn simulate(mut client: Client) -> Result<(), ClientError> {
    let (rank, workers) = (client.rank().0 as usize, client.workers() as usize);
    let tables = tables(&mut client, workers)?;
    let mut strip = Strip::new(rank, workers);
    let mut seed = 1;
    let mut weights = [0.0; WEIGHTS];
    for t in 0..STEPS {
        client.pull_range(&tables.model, 0, &mut weights, PullOptions::default())?;
        neighbours(&mut client, &tables.edges, &mut strip, rank, workers)?;
        seed = strip.light(seed);
        let seen = strip.step(&weights);
        push(&mut client, &tables, &strip, &seen, t, rank)?;
        client.tick()?;
    }
    count(&mut client, &tables.histogram, &strip)?;
    client.barrier("counted", Duration::from_secs(30))?;
    if rank == 0 {
        report(&mut client, &tables)?;
    }
    client.finish()
}

fn tables(client: &mut Client, workers: usize) -> Result<Tables, ClientError> {
    let learning = Optimizer::AdaGrad {
        lr: 0.05,
        eps: 1e-10,
    };
    let model = TableBuilder::range::<f64>("model", 1, WEIGHTS as u32);
    let model = model.optimizer(learning).at_clock(Reduce::Sum);
    let edges = TableBuilder::rows::<f64>("edges", 2 * workers as u64, N as u32);
    let log = TableBuilder::rows::<f64>("log", STEPS as u64, 2);
    let histogram = TableBuilder::sparse::<i64>("histogram", 1);
    Ok(Tables {
        model: client.create_table(model.spec())?,
        edges: client.create_table(edges.at_clock(Reduce::Sum).spec())?,
        log: client.create_table(log.at_clock(Reduce::Sum).spec())?,
        histogram: client.create_table(histogram.spec())?,
    })
}

/// Fetches the rows next to the strip. An MPI program would exchange them by `MPI_Sendrecv`.
fn neighbours(
    client: &mut Client,
    edges: &Table<f64>,
    strip: &mut Strip,
    rank: usize,
    workers: usize,
) -> Result<(), ClientError> {
    let last = strip.rows + 1;
    let above = (rank > 0).then(|| (2 * rank - 1, 0));
    let below = (rank + 1 < workers).then(|| (2 * rank + 2, last));
    for (edge, row) in above.into_iter().chain(below) {
        let cells = &mut strip.heat[row * WIDE + 1..][..N];
        client.pull_rows(edges, &[edge as u64], cells, PullOptions::default())?;
    }
    Ok(())
}

impl Strip {
    fn new(rank: usize, workers: usize) -> Self {
        let first = rank * N / workers;
        let rows = (rank + 1) * N / workers - first;
        let cold = vec![0.0; (rows + 2) * WIDE];
        Self {
            first,
            rows,
            heat: cold.clone(),
            next: cold,
        }
    }

    /// Lights two cells of the plate, the same ones on every worker; returns the next seed.
    fn light(&mut self, mut seed: u64) -> u64 {
        for _ in 0..2 {
            seed = (seed * 1_103_515_245 + 12_345) % (1 << 31);
            let cell = (seed / 1024) as usize % (N * N);
            let (row, column) = (cell / N, cell % N);
            // This worker holds rows first - 1 to first + rows.
            if row + 1 >= self.first && row <= self.first + self.rows {
                self.heat[(row + 1 - self.first) * WIDE + column + 1] += 1.0;
            }
        }
        seed
    }

    /// Advances the equation by one step; returns the surrogate's gradient and loss.
    fn step(&mut self, weights: &[f64; WEIGHTS]) -> Seen {
        let mut seen = Seen::default();
        let cells = (N * N) as f64;
        for row in 1..=self.rows {
            for column in 1..=N {
                let at = row * WIDE + column;
                let around = around(&self.heat, at);
                let next = conduct(&around);
                let error = predict(weights, &around) - next;
                for (gradient, x) in seen.gradient.iter_mut().zip(around) {
                    *gradient += error * x / cells;
                }
                seen.loss += error * error / cells;
                seen.heat += next;
                self.next[at] = next;
            }
        }
        std::mem::swap(&mut self.heat, &mut self.next);
        seen
    }

    fn row(&self, row: usize) -> &[f64] {
        &self.heat[row * WIDE + 1..][..N]
    }
}

/// A cell's surroundings, row by row; the cell is in the middle.
fn around(heat: &[f64], at: usize) -> [f64; WEIGHTS] {
    std::array::from_fn(|n| heat[at + n / 3 * WIDE + n % 3 - WIDE - 1])
}

/// Heat of a cell after one step of the solver; `x` is the cell and its surroundings.
fn conduct(x: &[f64; WEIGHTS]) -> f64 {
    x[4] + CONDUCTIVITY * (x[1] + x[3] + x[5] + x[7] - 4.0 * x[4])
}

/// One prediction of the surrogate for a cell.
fn predict(weights: &[f64; WEIGHTS], x: &[f64; WEIGHTS]) -> f64 {
    let mut sum = 0.0;
    for (weight, x) in weights.iter().zip(x) {
        sum += weight * x;
    }
    sum
}

fn push(
    client: &mut Client,
    tables: &Tables,
    strip: &Strip,
    seen: &Seen,
    t: usize,
    rank: usize,
) -> Result<(), ClientError> {
    let gradient = &seen.gradient;
    let mut pushed = client.push_range(&tables.model, 0, gradient, PushOp::Gradient)?;
    let log = [seen.loss, seen.heat];
    pushed.merge(&client.push_rows(&tables.log, &[t as u64], &log, PushOp::Sum)?);
    let edges = [strip.row(1), strip.row(strip.rows)].concat();
    let keys = [2 * rank as u64, 2 * rank as u64 + 1];
    pushed.merge(&client.push_rows(&tables.edges, &keys, &edges, PushOp::Assign)?);
    client.wait_applied(&pushed)
}

/// Counts the strip's cells by temperature.
fn count(client: &mut Client, table: &Table<i64>, strip: &Strip) -> Result<(), ClientError> {
    let cells = (1..=strip.rows).flat_map(|row| strip.row(row));
    let keys: Vec<u64> = cells
        .map(|heat| ((heat * 16.0) as u64).min(BINS as u64 - 1))
        .collect();
    let ticket = client.push_rows(table, &keys, &vec![1; keys.len()], PushOp::Sum)?;
    client.wait_applied(&ticket)
}

/// Prints the results of the job, in lines of a name and a number.
fn report(client: &mut Client, tables: &Tables) -> Result<(), ClientError> {
    let mut weights = [0.0; WEIGHTS];
    client.pull_range(&tables.model, 0, &mut weights, PullOptions::default())?;
    let mut log = [0.0; 4];
    let rows = [0, STEPS as u64 - 1];
    client.pull_rows(&tables.log, &rows, &mut log, PullOptions::default())?;
    let bins: [u64; BINS] = std::array::from_fn(|bin| bin as u64);
    let mut counts = [0; BINS];
    client.pull_rows(
        &tables.histogram,
        &bins,
        &mut counts,
        PullOptions::default(),
    )?;
    println!("loss.first {:.12e}", log[0]);
    println!("loss.last {:.12e}", log[2]);
    println!("heat.last {:.12e}", log[3]);
    for (n, weight) in weights.iter().enumerate() {
        println!("weight.{n} {weight:.12e}");
    }
    println!("rollout.error {:.12e}", rollout(&weights));
    for (bin, count) in counts.iter().enumerate() {
        println!("cells.{bin} {count}");
    }
    Ok(())
}

/// Runs solver and surrogate in parallel from a smooth hill; returns their largest difference.
fn rollout(weights: &[f64; WEIGHTS]) -> f64 {
    let mut solved = vec![0.0; WIDE * WIDE];
    let side = |n: usize| n as f64 / (N + 1) as f64;
    for (row, column) in (1..=N).flat_map(|row| (1..=N).map(move |column| (row, column))) {
        let (y, x) = (side(row), side(column));
        solved[row * WIDE + column] = 16.0 * x * (1.0 - x) * y * (1.0 - y);
    }
    let mut learnt = solved.clone();
    for _ in 0..ROLLOUT {
        let (was_solved, was_learnt) = (solved.clone(), learnt.clone());
        for (row, column) in (1..=N).flat_map(|row| (1..=N).map(move |column| (row, column))) {
            let at = row * WIDE + column;
            solved[at] = conduct(&around(&was_solved, at));
            learnt[at] = predict(weights, &around(&was_learnt, at));
        }
    }
    let differences = solved.iter().zip(&learnt).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, f64::max)
}
