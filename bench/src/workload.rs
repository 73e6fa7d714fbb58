//! A table under measurement, with known values.

use serde::{Deserialize, Serialize};
use tidewater::{Client, PullOptions, PullTicket, RegisteredBuffer, Table, TableBuilder, Ticket};
use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::table::{Optimizer, PushOp, TableSpec};

use crate::error::BenchError;
use crate::measure::Detours;
use crate::values::{PUSHES_MAX, Values};

/// Bytes of the longest row: longer messages are several rows. The largest power of two that every
/// mode pulls, because the reply to a gather holds less than 128 KiB.
pub const ROW_BYTES_MAX: u64 = 64 << 10;
/// Bytes of an element.
const ELEMENT: u64 = 4;
/// Elements of a virtual row in a range table, for the known values.
const CHUNK: usize = 1024;
/// Maximum rows of one call while a table is filled or its locations are cached.
const FILL_ROWS: usize = 4096;
/// Distance in elements of overwrites before a pull: one in each cache line.
const POISON_STRIDE: usize = 16;

/// Kind of table, by its addressing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Dense table addressed by ranges.
    Dense,
    /// Dense table addressed by rows.
    Rows,
    /// Sparse table addressed by keys.
    Sparse,
}

impl Kind {
    /// Name of this kind on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dense => "dense",
            Self::Rows => "rows",
            Self::Sparse => "sparse",
        }
    }
}

/// Shape of a table and of the calls on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadSpec {
    /// Name of the table. Clients with equal specs share the table.
    pub name: String,
    /// Kind of the table.
    pub kind: Kind,
    /// Elements of a row; of a range table, all of its elements.
    pub dim: usize,
    /// Number of rows that this client uses; 1 for a range table.
    pub rows: u64,
    /// First row of this client: clients that push use separate rows.
    pub first: u64,
    /// Number of rows of all clients together.
    pub all_rows: u64,
    /// Number of rows in a call.
    pub call_rows: usize,
    /// Number of distinct calls, used in rotation. A single one takes the rows in order; of several, each takes
    /// rows at random, some of them more than once.
    pub batches: usize,
    /// Seed of keys and values.
    pub seed: u64,
}

impl WorkloadSpec {
    /// Plans a table that every call pulls or pushes complete: `batch` messages of `size` bytes.
    ///
    /// # Errors
    /// [`BenchError::Usage`] if a call, except on a range table, is no multiple of a row. A row has `size`
    /// bytes, at most [`ROW_BYTES_MAX`].
    pub fn full(kind: Kind, size: u64, batch: u64, seed: u64) -> Result<Self, BenchError> {
        let bytes = size * batch;
        let row = size.min(ROW_BYTES_MAX);
        if kind != Kind::Dense && !bytes.is_multiple_of(row) {
            return Err(BenchError::Usage(format!(
                "messages of {size} bytes are not full rows of {ROW_BYTES_MAX}: use --table dense"
            )));
        }
        let (dim, rows) = match kind {
            Kind::Dense => (bytes / ELEMENT, 1),
            Kind::Rows | Kind::Sparse => (row / ELEMENT, bytes / row),
        };
        Ok(Self {
            name: format!("bench-{}-{size}x{batch}", kind.name()),
            kind,
            dim: dim as usize,
            rows,
            first: 0,
            all_rows: rows,
            call_rows: rows as usize,
            batches: 1,
            seed,
        })
    }

    /// Plans a table of `rows` rows of `dim` elements. Each of 64 distinct calls takes `call_rows` rows at
    /// random.
    pub fn scattered(kind: Kind, dim: usize, rows: u64, call_rows: usize, seed: u64) -> Self {
        Self {
            name: format!("bench-{}-{rows}x{dim}-{call_rows}", kind.name()),
            kind,
            dim,
            rows,
            first: 0,
            all_rows: rows,
            call_rows,
            batches: 64,
            seed,
        }
    }

    /// Payload bytes of a call.
    pub const fn bytes(&self) -> u64 {
        self.dim as u64 * self.call_rows as u64 * ELEMENT
    }

    fn table_spec(&self) -> TableSpec {
        let dim = self.dim as u32;
        let builder = match self.kind {
            Kind::Dense => TableBuilder::range::<f32>(&self.name, u64::from(dim) / 2, 2),
            Kind::Rows => TableBuilder::rows::<f32>(&self.name, self.all_rows, dim),
            Kind::Sparse => TableBuilder::sparse::<f32>(&self.name, dim),
        };
        builder.optimizer(Optimizer::None).spec().clone()
    }

    fn key(&self, row: u64) -> u64 {
        match self.kind {
            Kind::Sparse => mix64(self.seed.wrapping_add(row)),
            Kind::Dense | Kind::Rows => row,
        }
    }
}

/// Rows of one call: their numbers, and their keys in the table.
#[derive(Debug)]
struct Batch {
    rows: Vec<u64>,
    keys: Vec<u64>,
}

/// A table under measurement.
#[derive(Debug)]
pub struct Workload<'a> {
    client: &'a mut Client,
    table: Table<f32>,
    spec: WorkloadSpec,
    values: Values,
    batches: Vec<Batch>,
    /// Pushed values of a call: the steps of each of its rows.
    steps: Vec<f32>,
    /// Number of pushes to each row, from `spec.first` on, since the values were set.
    pushes: Vec<u32>,
    most_pushes: u32,
}

impl<'a> Workload<'a> {
    /// Creates the table and sets the values of this client's rows; `plant_wrong` makes one element of the first
    /// call wrong.
    ///
    /// # Errors
    /// Errors of the creation and of the pushes.
    pub fn new(
        client: &'a mut Client,
        spec: WorkloadSpec,
        plant_wrong: bool,
    ) -> Result<Self, BenchError> {
        let table = client.create_table::<f32>(&spec.table_spec())?;
        let scattered = spec.batches > 1;
        let batch = |b: usize| {
            let row = |n: usize| {
                let n = n as u64;
                let at = if scattered {
                    mix64(((b as u64) << 32 | n) ^ spec.seed) % spec.rows
                } else {
                    n
                };
                spec.first + at
            };
            let rows: Vec<u64> = (0..spec.call_rows).map(row).collect();
            let keys = rows.iter().map(|&r| spec.key(r)).collect();
            Batch { rows, keys }
        };
        let mut workload = Self {
            batches: (0..spec.batches).map(batch).collect(),
            steps: row_of_steps(spec.dim).repeat(spec.call_rows),
            pushes: vec![0; spec.rows as usize],
            values: Values::new(spec.seed),
            most_pushes: 0,
            client,
            table,
            spec,
        };
        workload.reset(plant_wrong)?;
        Ok(workload)
    }

    /// Shape of the measured table.
    pub const fn spec(&self) -> &WorkloadSpec {
        &self.spec
    }

    /// Client that makes the calls.
    pub const fn client(&mut self) -> &mut Client {
        self.client
    }

    /// Sets the values of this client's rows and forgets the counted pushes; `plant_wrong` makes one element
    /// of the first call wrong.
    fn reset(&mut self, plant_wrong: bool) -> Result<(), BenchError> {
        let (first, rows) = (self.spec.first, self.spec.rows);
        let mut planted = plant_wrong;
        let mut at = first;
        while at < first + rows {
            let some = (first + rows - at).min(FILL_ROWS as u64);
            let keys: Vec<u64> = (at..at + some).map(|r| self.spec.key(r)).collect();
            let mut values = vec![0.0; some as usize * self.spec.dim];
            for (row, values) in (at..).zip(values.chunks_exact_mut(self.spec.dim)) {
                self.fill(row, 0, values);
            }
            // In a row of the first call, so that every measurement reads it.
            let meets = self.batches[0].rows[0];
            if planted && (at..at + some).contains(&meets) {
                values[(meets - at) as usize * self.spec.dim] += 0.5;
                planted = false;
            }
            let ticket = self.send(&keys, &values, PushOp::Assign)?;
            self.client.wait_applied(&ticket)?;
            at += some;
        }
        self.pushes.fill(0);
        self.most_pushes = 0;
        Ok(())
    }

    /// Pulls all rows of this client once, so that their locations are cached; not for a range table.
    ///
    /// # Errors
    /// Errors of the client's calls.
    pub fn cache_locations(&mut self) -> Result<(), BenchError> {
        let mut out = vec![0.0; FILL_ROWS * self.spec.dim];
        let rows: Vec<u64> = (self.spec.first..self.spec.first + self.spec.rows).collect();
        for rows in rows.chunks(FILL_ROWS) {
            let keys: Vec<u64> = rows.iter().map(|&r| self.spec.key(r)).collect();
            let out = &mut out[..rows.len() * self.spec.dim];
            let options = PullOptions::default();
            self.client.pull_rows(&self.table, &keys, out, options)?;
        }
        Ok(())
    }

    /// Number of distinct calls.
    pub const fn batches(&self) -> usize {
        self.batches.len()
    }

    /// Allocates the destination of a pull: zeros for all rows of a call.
    pub fn destination(&self) -> Vec<f32> {
        vec![0.0; self.spec.dim * self.spec.call_rows]
    }

    /// Allocates a registered destination, which a NIC may write.
    ///
    /// # Errors
    /// If the client cannot register memory.
    pub fn registered_destination(&mut self) -> Result<RegisteredBuffer<f32>, BenchError> {
        let len = self.spec.dim * self.spec.call_rows;
        Ok(self.client.buffer(len)?)
    }

    /// Pulls the rows of call number `batch` into `out`, which must have their length; of a range table all
    /// elements.
    ///
    /// # Errors
    /// Errors of the client's call.
    #[inline]
    pub fn pull(
        &mut self,
        batch: usize,
        out: &mut [f32],
        options: PullOptions,
    ) -> Result<(), BenchError> {
        if self.spec.kind == Kind::Dense {
            self.client.pull_range(&self.table, 0, out, options)?;
        } else {
            let keys = &self.batches[batch].keys;
            self.client.pull_rows(&self.table, keys, out, options)?;
        }
        Ok(())
    }

    /// Whether [`Self::start_pull`] can pull the table: false only for a range table.
    pub fn pulls_later(&self) -> bool {
        self.spec.kind != Kind::Dense
    }

    /// Starts a pull of the rows of call number `batch`; not for a range table.
    ///
    /// # Errors
    /// Errors of the client's call.
    #[inline]
    pub fn start_pull(
        &mut self,
        batch: usize,
        options: PullOptions,
    ) -> Result<PullTicket, BenchError> {
        let keys = &self.batches[batch].keys;
        Ok(self.client.start_pull_rows(&self.table, keys, options)?)
    }

    /// Waits for a started pull and places its values in `out`.
    ///
    /// # Errors
    /// Errors of the client's call.
    #[inline]
    pub fn finish_pull(&mut self, ticket: PullTicket, out: &mut [f32]) -> Result<(), BenchError> {
        Ok(self.client.finish_pull(ticket, out)?)
    }

    /// Pushes the known steps to the rows of call number `batch`, to be added; the push is in flight on
    /// return. The caller then calls [`Self::count_push`], outside of the timed part.
    ///
    /// # Errors
    /// Errors of the client's call.
    #[inline]
    pub fn push(&mut self, batch: usize) -> Result<Ticket, BenchError> {
        Ok(if self.spec.kind == Kind::Dense {
            self.client
                .push_range(&self.table, 0, &self.steps, PushOp::Sum)?
        } else {
            let keys = &self.batches[batch].keys;
            self.client
                .push_rows(&self.table, keys, &self.steps, PushOp::Sum)?
        })
    }

    /// Counts `times` pushes to the rows of call number `batch`, for the checks that follow.
    pub fn count_push(&mut self, batch: usize, times: u32) {
        for row in &self.batches[batch].rows {
            let count = &mut self.pushes[(row - self.spec.first) as usize];
            *count += times;
            self.most_pushes = self.most_pushes.max(*count);
        }
    }

    /// Waits until a push is applied.
    ///
    /// # Errors
    /// Errors of the client's call.
    #[inline]
    pub fn wait(&mut self, ticket: &Ticket) -> Result<(), BenchError> {
        Ok(self.client.wait_applied(ticket)?)
    }

    /// Number of elements of `out`, pulled by call number `batch`, that are wrong after the counted pushes.
    /// They are compared bit for bit.
    pub fn wrong(&self, batch: usize, out: &[f32]) -> u64 {
        let rows = &self.batches[batch].rows;
        let pairs = rows.iter().zip(out.chunks_exact(self.spec.dim));
        pairs
            .map(|(&row, is)| {
                let pushes = self.pushes[(row - self.spec.first) as usize];
                let chunks = is.chunks(CHUNK).zip(first_chunk(&self.spec, row)..);
                chunks
                    .map(|(is, row)| self.values.wrong(row, pushes, is))
                    .sum::<u64>()
            })
            .sum()
    }

    /// Pulls the rows of all calls and returns the number of wrong values; all pushes must be applied and
    /// counted. Sets the values again, with a count of 0, once a row has more than half of [`PUSHES_MAX`]
    /// pushes.
    ///
    /// # Errors
    /// Errors of the client's calls.
    pub fn audit(&mut self) -> Result<u64, BenchError> {
        let mut out = self.destination();
        let mut wrong = 0;
        for batch in 0..self.batches.len() {
            out.fill(f32::NAN);
            self.pull(batch, &mut out, PullOptions::default())?;
            wrong += self.wrong(batch, &out);
        }
        if self.most_pushes > PUSHES_MAX / 2 {
            self.reset(false)?;
        }
        Ok(wrong)
    }

    /// Reads that did not succeed at once, since the client was created.
    pub const fn detours(&self) -> Detours {
        let counters = self.client.counters();
        Detours {
            retries: counters.retries,
            fallbacks: counters.gather_fallbacks,
        }
    }

    /// Releases the table for all workers: the servers free it.
    ///
    /// # Errors
    /// Errors of the client's call.
    pub fn release(self) -> Result<(), BenchError> {
        Ok(self.client.release_table(self.table)?)
    }

    fn fill(&self, row: u64, pushes: u32, out: &mut [f32]) {
        for (out, row) in out.chunks_mut(CHUNK).zip(first_chunk(&self.spec, row)..) {
            self.values.fill(row, pushes, out);
        }
    }

    fn send(&mut self, keys: &[u64], values: &[f32], op: PushOp) -> Result<Ticket, BenchError> {
        Ok(if self.spec.kind == Kind::Dense {
            self.client.push_range(&self.table, 0, values, op)?
        } else {
            self.client.push_rows(&self.table, keys, values, op)?
        })
    }
}

/// Values that a push adds to a row: the known values repeat after each chunk.
fn row_of_steps(dim: usize) -> Vec<f32> {
    let chunk = Values::steps(CHUNK);
    (0..dim).map(|c| chunk[c % CHUNK]).collect()
}

/// Index of a row's first chunk in the known values.
const fn first_chunk(spec: &WorkloadSpec, row: u64) -> u64 {
    row * spec.dim.div_ceil(CHUNK) as u64
}

/// Overwrites one element in 16 of `out` with NaN, from element `turn` modulo 16 on, so that a pull without
/// effect is detected.
pub fn poison(out: &mut [f32], turn: usize) {
    let from = turn % POISON_STRIDE.min(out.len().max(1));
    for value in out.iter_mut().skip(from).step_by(POISON_STRIDE) {
        *value = f32::NAN;
    }
}
