//! What workers that tick together do: ticks alone, barriers, and whole dense steps.

use tidewater::{Client, PullOptions, Table, TableBuilder};
use tidewater_protocol::limits::DATA_DEADLINE;
use tidewater_protocol::table::{Optimizer, PushOp, Reduce};

use crate::error::BenchError;
use crate::measure::Work;
use crate::values::Values;

/// Name of the barrier.
const BARRIER: &str = "bench";
/// Elements after which a gradient repeats.
const CHUNK: usize = 1024;

/// Ticks of some workers of one thread, under BSP. A sample is the last one's tick, until it sees
/// that all have ticked; the others' ticks come before it and are not timed.
#[derive(Debug)]
pub struct Ticks<'c> {
    clients: Vec<(&'c mut Client, Table<f32>)>,
    failed: Option<BenchError>,
}

impl<'c> Ticks<'c> {
    /// Of these workers; no other of the job may be behind.
    ///
    /// # Errors
    /// What creating a table fails with.
    pub fn new(clients: impl IntoIterator<Item = &'c mut Client>) -> Result<Self, BenchError> {
        // An empty pull is how a program waits for a clock: it belongs to a table.
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
        // Their frames are applied before the last one's is timed.
        for (client, _) in &mut self.clients[..others] {
            client.flush()?;
        }
        Ok(())
    }
}

impl Work for Ticks<'_> {
    fn calls(&self) -> u64 {
        1
    }

    fn bytes(&self) -> u64 {
        0
    }

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

    /// The last worker sees its own tick, and nobody sees one that has not been made.
    fn audit(&mut self) -> Result<u64, BenchError> {
        let Some((client, _)) = self.clients.last_mut() else {
            return Ok(0);
        };
        let clock = client.clock();
        Ok(u64::from(client.global_clock()? != clock))
    }
}

/// Barriers of the coordinator: all workers of the job come.
#[derive(Debug)]
pub struct Barrier<'c> {
    client: &'c mut Client,
}

impl<'c> Barrier<'c> {
    /// Of one worker.
    pub const fn new(client: &'c mut Client) -> Self {
        Self { client }
    }
}

impl Work for Barrier<'_> {
    fn calls(&self) -> u64 {
        1
    }

    fn bytes(&self) -> u64 {
        0
    }

    fn sample(&mut self) -> Result<(), BenchError> {
        Ok(self.client.barrier(BARRIER, DATA_DEADLINE)?)
    }
}

/// A step of bulk-synchronous training on a whole dense table: pull all of it, push a gradient for
/// all of it, tick, and wait until all have ticked. Gradients are summed at the clock and taken off
/// with rate 1, so that after `n` ticks an element holds `-n x workers x step`. Workers compare
/// what they pulled between steps and begin the next one together, so no step is timed in which
/// somebody's processor compares.
#[derive(Debug)]
pub struct BspStep<'c> {
    client: &'c mut Client,
    table: Table<f32>,
    workers: u32,
    gradient: Vec<f32>,
    out: Vec<f32>,
    /// Clock at which the last pull was made.
    pulled_at: u64,
    failed: Option<BenchError>,
}

impl<'c> BspStep<'c> {
    /// On a table of `bytes`; all workers of the job make the same number of steps.
    ///
    /// # Errors
    /// What creating the table fails with.
    pub fn new(client: &'c mut Client, bytes: u64, workers: u32) -> Result<Self, BenchError> {
        let elements = (bytes / 4) as usize;
        let spec = TableBuilder::blocks::<f32>("bench-bsp", bytes / 8, 2)
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
    fn calls(&self) -> u64 {
        1
    }

    fn bytes(&self) -> u64 {
        2 * 4 * self.out.len() as u64
    }

    fn prepare(&mut self) {
        let together = self.client.barrier(BARRIER, DATA_DEADLINE);
        self.failed = together.err().map(BenchError::from);
    }

    fn sample(&mut self) -> Result<(), BenchError> {
        if let Some(failed) = self.failed.take() {
            return Err(failed);
        }
        self.pulled_at = self.client.clock();
        let options = PullOptions::default();
        self.client
            .pull_dense(&self.table, 0, &mut self.out, options)?;
        let ticket = self
            .client
            .push_dense(&self.table, 0, &self.gradient, PushOp::Gradient)?;
        self.client.tick()?;
        // Held back frames count as applied; this finds a refused one.
        self.client.wait_applied(&ticket)?;
        // Of no element: waits until all have ticked, and what they pushed has taken effect.
        Ok(self.client.pull_dense(&self.table, 0, &mut [], options)?)
    }

    fn check(&mut self) -> u64 {
        let times = -((self.pulled_at * u64::from(self.workers)) as f32);
        let pairs = self.out.iter().zip(&self.gradient);
        pairs.filter(|(is, step)| **is != **step * times).count() as u64
    }
}
