//! What a case measures: a table with known values, calls on it, and the check of every value.
//!
//! Element `i` holds `base(i) + pushes x step(i)`, small integers that f32 adds exactly, so that
//! after any number of pushes a single lost, doubled or torn one is a wrong value.

use serde::Serialize;
use tidewater_client::{Client, PullOptions, Table, TableBuilder, Ticket};
use tidewater_transport::layout::hash::mix64;
use tidewater_transport::table::{Optimizer, PushOp, TableSpec};

use crate::error::BenchError;

/// Longest row: longer messages are several rows. The largest power of two whose rows every mode
/// pulls: the reply to a gather holds less than 128 KiB.
pub const ROW_BYTES_MAX: u64 = 64 << 10;
/// Bytes of an element.
const ELEMENT: u64 = 4;
/// Pushes after which the values are set back: integers stay below 2^24, which f32 holds exactly.
const PUSHES_MAX: u64 = 4_000_000;
/// Words between two that are overwritten before a pull: one in each cache line.
const POISON_STRIDE: usize = 16;

/// A kind of table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Dense, by ranges.
    Dense,
    /// Dense, by rows.
    Rows,
    /// By key.
    Sparse,
}

impl Kind {
    /// Its name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dense => "dense",
            Self::Rows => "rows",
            Self::Sparse => "sparse",
        }
    }
}

/// A table under measurement.
#[derive(Debug)]
pub struct Subject<'a> {
    client: &'a mut Client,
    table: Table<f32>,
    kind: Kind,
    keys: Vec<u64>,
    base: Vec<f32>,
    step: Vec<f32>,
    expected: Vec<f32>,
    out: Vec<f32>,
    pushes: u64,
    poisons: usize,
}

/// Size of a case.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// Bytes of a message.
    pub size: u64,
    /// Messages of a call.
    pub batch: u64,
    /// Seed of keys and values.
    pub seed: u64,
}

impl Extent {
    const fn row_bytes(self) -> u64 {
        if self.size < ROW_BYTES_MAX {
            self.size
        } else {
            ROW_BYTES_MAX
        }
    }

    /// Rows of a call on a table by rows.
    const fn rows(self) -> u64 {
        self.bytes().div_ceil(self.row_bytes())
    }

    /// Bytes that a call moves.
    pub const fn bytes(self) -> u64 {
        self.size * self.batch
    }
}

fn spec(kind: Kind, extent: Extent) -> TableSpec {
    let name = format!("bench-{}-{}x{}", kind.name(), extent.size, extent.batch);
    let dim = (extent.row_bytes() / ELEMENT) as u32;
    let builder = match kind {
        Kind::Dense => TableBuilder::blocks::<f32>(&name, extent.bytes() / (2 * ELEMENT), 2),
        Kind::Rows => TableBuilder::rows::<f32>(&name, extent.rows(), dim),
        Kind::Sparse => TableBuilder::sparse::<f32>(&name, dim),
    };
    builder.optimizer(Optimizer::None).spec().clone()
}

impl<'a> Subject<'a> {
    /// Creates the table and sets its values; with `plant_wrong`, one of them to another value
    /// than it should have.
    ///
    /// # Errors
    /// A size that no row can have; what creating and pushing fail with.
    pub fn new(
        client: &'a mut Client,
        kind: Kind,
        extent: Extent,
        plant_wrong: bool,
    ) -> Result<Self, BenchError> {
        if kind != Kind::Dense && !extent.bytes().is_multiple_of(extent.row_bytes()) {
            let limit = ROW_BYTES_MAX;
            return Err(BenchError::Usage(format!(
                "messages of {} bytes are not whole rows of {limit}: use --table dense",
                extent.size
            )));
        }
        let table = client.create_table::<f32>(&spec(kind, extent))?;
        let elements = match kind {
            Kind::Dense => extent.bytes() / ELEMENT,
            Kind::Rows | Kind::Sparse => extent.rows() * table.dim() as u64,
        };
        let key = |row| match kind {
            Kind::Sparse => mix64(extent.seed.wrapping_add(row)),
            Kind::Dense | Kind::Rows => row,
        };
        let rows = if kind == Kind::Dense {
            0
        } else {
            extent.rows()
        };
        let base: Vec<f32> = (0..elements)
            .map(|i| (mix64(i ^ extent.seed) % 1024) as f32)
            .collect();
        let mut subject = Self {
            client,
            table,
            kind,
            keys: (0..rows).map(key).collect(),
            step: (0..elements).map(|i| (1 + i % 3) as f32).collect(),
            expected: base.clone(),
            out: vec![0.0; elements as usize],
            base,
            pushes: 0,
            poisons: 0,
        };
        subject.reset(plant_wrong)?;
        Ok(subject)
    }

    /// Sets every value to its base.
    fn reset(&mut self, plant_wrong: bool) -> Result<(), BenchError> {
        let mut values = self.base.clone();
        if let (true, Some(value)) = (plant_wrong, values.last_mut()) {
            *value += 0.5;
        }
        let ticket = push(
            self.client,
            &self.table,
            &self.keys,
            &values,
            PushOp::Assign,
        )?;
        self.client.wait_applied(&ticket)?;
        self.expected.copy_from_slice(&self.base);
        self.pushes = 0;
        Ok(())
    }

    /// One pull of everything.
    ///
    /// # Errors
    /// The client's.
    #[inline]
    pub fn pull(&mut self, options: PullOptions) -> Result<(), BenchError> {
        match self.kind {
            Kind::Dense => self
                .client
                .pull_dense(&self.table, 0, &mut self.out, options)?,
            Kind::Rows | Kind::Sparse => {
                self.client
                    .pull_rows(&self.table, &self.keys, &mut self.out, options)?;
            }
        }
        Ok(())
    }

    /// One push to everything, on its way when this returns.
    ///
    /// # Errors
    /// The client's.
    #[inline]
    pub fn push(&mut self) -> Result<Ticket, BenchError> {
        self.pushes += 1;
        push(
            self.client,
            &self.table,
            &self.keys,
            &self.step,
            PushOp::Sum,
        )
    }

    /// Waits until a push is applied.
    ///
    /// # Errors
    /// The client's.
    #[inline]
    pub fn wait(&mut self, ticket: &Ticket) -> Result<(), BenchError> {
        Ok(self.client.wait_applied(ticket)?)
    }

    /// Overwrites what the last pull left behind, so that a pull that does nothing is noticed.
    pub fn poison(&mut self) {
        self.poisons += 1;
        let from = self.poisons % POISON_STRIDE.min(self.out.len().max(1));
        for value in self.out.iter_mut().skip(from).step_by(POISON_STRIDE) {
            *value = f32::NAN;
        }
    }

    /// Values of the last pull that are not what they must be, bit for bit.
    pub fn wrong(&self) -> u64 {
        let pairs = self.out.iter().zip(&self.expected);
        pairs
            .filter(|(is, due)| is.to_bits() != due.to_bits())
            .count() as u64
    }

    /// Pulls and counts wrong values after pushes; all of them must be applied.
    ///
    /// # Errors
    /// The client's.
    pub fn wrong_after_pushes(&mut self) -> Result<u64, BenchError> {
        let pushes = self.pushes as f32;
        let due = self.base.iter().zip(&self.step);
        for (expected, (base, step)) in self.expected.iter_mut().zip(due) {
            *expected = base + pushes * step;
        }
        self.out.fill(f32::NAN);
        self.pull(PullOptions::default())?;
        let wrong = self.wrong();
        if self.pushes > PUSHES_MAX {
            self.reset(false)?;
        }
        Ok(wrong)
    }

    /// Reads repeated and pulls that fell back to the server, since the client was made.
    pub const fn retries_and_fallbacks(&self) -> (u64, u64) {
        let counters = self.client.counters();
        (counters.retries, counters.gather_fallbacks)
    }

    /// Releases the table.
    ///
    /// # Errors
    /// The client's.
    pub fn release(self) -> Result<(), BenchError> {
        Ok(self.client.release_table(self.table)?)
    }
}

fn push(
    client: &mut Client,
    table: &Table<f32>,
    keys: &[u64],
    values: &[f32],
    op: PushOp,
) -> Result<Ticket, BenchError> {
    Ok(if keys.is_empty() {
        client.push_dense(table, 0, values, op)?
    } else {
        client.push_rows(table, keys, values, op)?
    })
}
