//! Contests of functions at the data: an element map and an inner product, by the same loops over local
//! arrays on as many threads.

use std::thread;

use tidewater::{
    Client, Expression, FunctionArgs, PushOp, Reduction, Scalar, SyncMode, Table, TableBuilder,
};

use super::comparison::{Baseline, Comparison, Metric, Ours};
use crate::cluster::{Cluster, ClusterConfig};
use crate::error::BenchError;
use crate::measure::Work;

/// Elements of each table: 64 MiB of f32, beyond the caches.
const ELEMENTS: usize = 16 << 20;
const BYTES: u64 = ELEMENTS as u64 * 4;
/// Appliers of the server, and threads of the loops.
const THREADS: usize = 2;
/// Values of the elements of both inputs: sums of their products are exact in f64.
const X: f32 = 1.5;
const Y: f32 = 0.25;

/// Runs the contests.
///
/// # Errors
/// The error of the first call that fails.
pub(super) fn contests(comparison: &mut Comparison<'_>, transport: &str) -> Result<(), BenchError> {
    let ids = ["dot", "map"].map(|name| format!("{transport}.function.{name}"));
    if !comparison.wants(&[&ids[0], &ids[1]]) {
        return Ok(());
    }
    let mut cluster = Cluster::start(ClusterConfig {
        appliers: THREADS as u16,
        ..ClusterConfig::single(comparison.args.transport)
    })?;
    let mut client = cluster.client(0, SyncMode::Asp)?;
    let x = table(&mut client, "x", X)?;
    let y = table(&mut client, "y", Y)?;
    let (mut local_x, mut local_y) = (vec![X; ELEMENTS], vec![Y; ELEMENTS]);
    let mut dot = Dot {
        client: &mut client,
        x,
        y,
        product: Expression::parse("x * y")?,
        last: 0.0,
    };
    let mut loop_dot = LocalDot {
        x: &local_x,
        y: &local_y,
        last: 0.0,
    };
    comparison.head_to_head(
        &ids[0],
        "inner product of two tables of 64 MiB, 2 appliers",
        Ours::new(&mut dot, Metric::GbPerSAtP50, &mut cluster),
        Some(Baseline::new("loop over arrays, 2 threads", &mut loop_dot)),
    )?;
    let mut map = Map {
        client: &mut client,
        x,
        y,
        function: Expression::parse("p0 * x + y")?,
    };
    let mut loop_map = LocalMap {
        x: &local_x,
        y: &mut local_y,
    };
    comparison.head_to_head(
        &ids[1],
        "y = y + 0 x of two tables of 64 MiB, 2 appliers",
        Ours::new(&mut map, Metric::GbPerSAtP50, &mut cluster),
        Some(Baseline::new("loop over arrays, 2 threads", &mut loop_map)),
    )?;
    local_x.clear();
    client.release_table(x)?;
    client.release_table(y)?;
    Ok(client.finish()?)
}

fn table(client: &mut Client, name: &str, value: f32) -> Result<Table<f32>, BenchError> {
    let spec = TableBuilder::range::<f32>(name, ELEMENTS as u64, 1).block_bytes(256 << 10);
    let table = client.create_table::<f32>(spec.spec())?;
    let ticket = client.push_range(&table, 0, &vec![value; ELEMENTS], PushOp::Assign)?;
    client.wait_applied(&ticket)?;
    Ok(table)
}

/// Inner product on the servers.
struct Dot<'a> {
    client: &'a mut Client,
    x: Table<f32>,
    y: Table<f32>,
    product: Expression<f32>,
    last: f64,
}

impl Work for Dot<'_> {
    fn bytes(&self) -> u64 {
        2 * BYTES
    }

    fn sample(&mut self) -> Result<(), BenchError> {
        let args = FunctionArgs {
            inputs: &[&self.x, &self.y],
            ..FunctionArgs::default()
        };
        let sum = self
            .client
            .reduce(&self.x, &self.product, Reduction::Sum, &args)?;
        self.last = match sum {
            Some(Scalar::Float(sum)) => sum,
            _ => f64::NAN,
        };
        Ok(())
    }

    fn check(&mut self) -> u64 {
        u64::from(self.last != ELEMENTS as f64 * f64::from(X * Y))
    }
}

/// Inner product over local arrays, half of them in each of two threads: sixteen sums in f32 for each 4,096
/// elements, so that the loop is vectorised.
struct LocalDot<'a> {
    x: &'a [f32],
    y: &'a [f32],
    last: f64,
}

impl Work for LocalDot<'_> {
    fn bytes(&self) -> u64 {
        2 * BYTES
    }

    fn sample(&mut self) -> Result<(), BenchError> {
        let half = ELEMENTS / THREADS;
        self.last = thread::scope(|scope| {
            let parts = self.x.chunks(half).zip(self.y.chunks(half));
            let threads: Vec<_> = parts.map(|(x, y)| scope.spawn(|| dot(x, y))).collect();
            let sums = threads.into_iter().map(|thread| thread.join());
            sums.map(|sum| sum.unwrap_or(f64::NAN)).sum()
        });
        Ok(())
    }
}

fn dot(x: &[f32], y: &[f32]) -> f64 {
    let (x, y) = (x.chunks(4096), y.chunks(4096));
    let chunk = |(x, y): (&[f32], &[f32])| {
        let mut sums = [0.0_f32; 16];
        for (x, y) in x.chunks_exact(16).zip(y.chunks_exact(16)) {
            for lane in 0..16 {
                sums[lane] += x[lane] * y[lane];
            }
        }
        f64::from(sums.iter().sum::<f32>())
    };
    x.zip(y).map(chunk).sum()
}

/// Element map on the servers.
struct Map<'a> {
    client: &'a mut Client,
    x: Table<f32>,
    y: Table<f32>,
    function: Expression<f32>,
}

impl Work for Map<'_> {
    fn bytes(&self) -> u64 {
        3 * BYTES
    }

    fn sample(&mut self) -> Result<(), BenchError> {
        let args = FunctionArgs {
            inputs: &[&self.x, &self.y],
            parameters: &[0.0],
            range: None,
        };
        let ticket = self.client.update(&self.y, &self.function, &args)?;
        Ok(self.client.wait_applied(&ticket)?)
    }

    fn audit(&mut self) -> Result<u64, BenchError> {
        let wrong = Expression::parse("y != p0")?;
        let args = FunctionArgs {
            inputs: &[&self.x, &self.y],
            parameters: &[f64::from(Y)],
            range: None,
        };
        let count = self.client.reduce(&self.y, &wrong, Reduction::Sum, &args)?;
        Ok(match count {
            Some(Scalar::Float(count)) => count as u64,
            Some(Scalar::Integer(count)) => count as u64,
            None => 1,
        })
    }
}

/// Element map over local arrays, half of them in each of two threads. Its values are not checked.
struct LocalMap<'a> {
    x: &'a [f32],
    y: &'a mut [f32],
}

impl Work for LocalMap<'_> {
    fn bytes(&self) -> u64 {
        3 * BYTES
    }

    fn sample(&mut self) -> Result<(), BenchError> {
        let half = ELEMENTS / THREADS;
        let factor = std::hint::black_box(0.0);
        thread::scope(|scope| {
            for (x, y) in self.x.chunks(half).zip(self.y.chunks_mut(half)) {
                scope.spawn(move || {
                    for (x, y) in x.iter().zip(y) {
                        *y += factor * x;
                    }
                });
            }
        });
        Ok(())
    }
}
