//! Loads of workers that tick together: ticks alone, barriers, and complete dense steps.

use tidewater::{Client, PullOptions, Table, TableBuilder};
use tidewater_protocol::limits::DATA_DEADLINE;
use tidewater_protocol::table::{Optimizer, PushOp, Reduce};

use crate::error::BenchError;
use crate::measure::Work;
use crate::values::Values;

/// Name of the measured barrier.
const BARRIER: &str = "bench";
/// Period of a gradient, elements.
const CHUNK: usize = 1024;

/// Ticks of several workers on one thread under BSP. A sample lasts from the tick of the last worker of the
/// list until that worker sees that all have ticked. The other workers tick before, untimed.
#[derive(Debug)]
pub struct Ticks<'c> {
    clients: Vec<(&'c mut Client, Table<f32>)>,
    failed: Option<BenchError>,
}

impl<'c> Ticks<'c> {
    /// Takes these workers, and creates a table for their empty pulls, which wait for the clock. No other worker
    /// of the job may be behind.
    ///
    /// # Errors
    /// Errors of the table's creation.
    pub fn new(clients: impl IntoIterator<Item = &'c mut Client>) -> Result<Self, BenchError> {
        // A program waits for a clock by an empty pull, which belongs to a table.
        let table = TableBuilder::sparse::<f32>("bench-ticks", 2);
        let mut all = Vec::new();
        for client in clients {
            let table = client.create_table(table.spec())?;
            all.push((client, table));
        }
        Ok(Self {
            clients: all,
            failed: None,
        })
    }

    fn tick_others(&mut self) -> Result<(), BenchError> {
        let others = self.clients.len().saturating_sub(1);
        for (client, _) in &mut self.clients[..others] {
            client.tick()?;
        }
        // Their frames are applied before the last worker's frame is timed.
        for (client, _) in &mut self.clients[..others] {
            client.flush()?;
        }
        Ok(())
    }
}

impl Work for Ticks<'_> {
    fn prepare(&mut self) {
        self.failed = self.tick_others().err();
    }

    fn sample(&mut self) -> Result<(), BenchError> {
        if let Some(failed) = self.failed.take() {
            return Err(failed);
        }
        if let Some((client, table)) = self.clients.last_mut() {
            client.tick()?;
            client.pull_rows(table, &[], &mut [], PullOptions::default())?;
        }
        Ok(())
    }

    /// Returns 1 if the clock of all workers, as the last worker sees it, is not its own; otherwise 0.
    fn audit(&mut self) -> Result<u64, BenchError> {
        let Some((client, _)) = self.clients.last_mut() else {
            return Ok(0);
        };
        let clock = client.clock();
        Ok(u64::from(client.global_clock()? != clock))
    }
}

/// Coordinator barriers that all workers of the job enter.
#[derive(Debug)]
pub struct Barrier<'c> {
    client: &'c mut Client,
}

impl<'c> Barrier<'c> {
    /// Takes the client of one worker.
    pub const fn new(client: &'c mut Client) -> Self {
        Self { client }
    }
}

impl Work for Barrier<'_> {
    fn sample(&mut self) -> Result<(), BenchError> {
        Ok(self.client.barrier(BARRIER, DATA_DEADLINE)?)
    }
}

/// A BSP training step on a complete dense table: pull, push a gradient for all of it, tick, and
/// wait until all workers have ticked. Gradients are summed at the tick and subtracted with rate 1: after
/// `n` ticks an element holds `-n x workers x step`. Workers compare the pulled values between steps
/// and begin the next step together, so that a comparison takes no processor time from the next timed step.
#[derive(Debug)]
pub struct BspStep<'c> {
    client: &'c mut Client,
    table: Table<f32>,
    workers: u32,
    gradient: Vec<f32>,
    out: Vec<f32>,
    /// Number of ticks before the last pull.
    pulled_at: u64,
    failed: Option<BenchError>,
}

impl<'c> BspStep<'c> {
    /// Creates a table of `bytes` bytes. All `workers` workers of the job must make the same number of steps.
    ///
    /// # Errors
    /// Errors of the table's creation.
    pub fn new(client: &'c mut Client, bytes: u64, workers: u32) -> Result<Self, BenchError> {
        let elements = (bytes / 4) as usize;
        let spec = TableBuilder::range::<f32>("bench-bsp", bytes / 8, 2)
            .optimizer(Optimizer::Sgd { lr: 1.0 })
            .at_clock(Reduce::Sum);
        let table = client.create_table(spec.spec())?;
        let chunk = Values::steps(CHUNK);
        Ok(Self {
            client,
            table,
            workers,
            gradient: (0..elements).map(|i| chunk[i % CHUNK]).collect(),
            out: vec![0.0; elements],
            pulled_at: 0,
            failed: None,
        })
    }
}

impl Work for BspStep<'_> {
    fn bytes(&self) -> u64 {
        2 * 4 * self.out.len() as u64
    }

    fn prepare(&mut self) {
        let opened = self.client.barrier(BARRIER, DATA_DEADLINE);
        self.failed = opened.err().map(BenchError::from);
    }

    fn sample(&mut self) -> Result<(), BenchError> {
        if let Some(failed) = self.failed.take() {
            return Err(failed);
        }
        self.pulled_at = self.client.clock();
        let options = PullOptions::default();
        self.client
            .pull_range(&self.table, 0, &mut self.out, options)?;
        let ticket = self
            .client
            .push_range(&self.table, 0, &self.gradient, PushOp::Gradient)?;
        self.client.tick()?;
        // Held frames count as applied; this detects a rejected frame.
        self.client.wait_applied(&ticket)?;
        // A pull of no elements: waits until all have ticked and their pushes have taken effect.
        self.client.pull_range(&self.table, 0, &mut [], options)?;
        Ok(())
    }

    fn check(&mut self) -> u64 {
        let times = -((self.pulled_at * u64::from(self.workers)) as f32);
        let pairs = self.out.iter().zip(&self.gradient);
        pairs.filter(|(is, step)| **is != **step * times).count() as u64
    }
}
