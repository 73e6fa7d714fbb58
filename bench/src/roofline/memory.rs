//! Memory rooflines: a copy, and a bare gather of rows.

use std::sync::Barrier;
use std::time::Duration;

use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::layout::row::{ROW_HEADER_BYTES, RowLayout, RowVersion, row_hasher};
use tidewater_runtime::clock;
use tidewater_runtime::mem::Region;

use crate::error::BenchError;
use crate::measure::Work;

/// `memcpy` from one buffer to another.
#[derive(Debug)]
pub struct Memcpy {
    from: Vec<u8>,
    to: Vec<u8>,
    calls: u64,
    turn: u8,
}

impl Memcpy {
    /// Creates samples of `calls` copies of `bytes` bytes each.
    pub fn new(bytes: u64, calls: u64) -> Self {
        Self {
            from: vec![1; bytes as usize],
            to: vec![0; bytes as usize],
            calls,
            turn: 1,
        }
    }
}

impl Work for Memcpy {
    fn calls(&self) -> u64 {
        self.calls
    }

    fn bytes(&self) -> u64 {
        self.from.len() as u64
    }

    fn prepare(&mut self) {
        self.turn = self.turn.wrapping_add(1);
        self.from
            .iter_mut()
            .step_by(64)
            .for_each(|b| *b = self.turn);
    }

    fn sample(&mut self) -> Result<(), BenchError> {
        for _ in 0..self.calls {
            std::hint::black_box(&mut self.to).copy_from_slice(std::hint::black_box(&self.from));
        }
        Ok(())
    }

    fn check(&mut self) -> u64 {
        self.to
            .iter()
            .step_by(64)
            .filter(|b| **b != self.turn)
            .count() as u64
    }
}

/// Random rows, copied and hashed: no key, no index, no call.
#[derive(Debug)]
pub struct Gather {
    memory: Region,
    layout: RowLayout,
    batches: Vec<Vec<u64>>,
    out: Vec<u8>,
    turn: usize,
    /// Keeps the compiler from removing the hashes.
    sum: u64,
}

/// Rows touched together before they are copied: as many cache misses as the core can keep in flight.
const AHEAD: usize = 16;
const LINE: usize = 64;

impl Gather {
    /// Gathers from `rows` rows of `payload` bytes, `call_rows` a call.
    ///
    /// # Errors
    /// If memory for the rows cannot be allocated.
    pub fn new(payload: usize, rows: u64, call_rows: usize, seed: u64) -> Result<Self, BenchError> {
        let layout = RowLayout::new(payload);
        let bytes = rows as usize * layout.stride;
        let failed = |e| BenchError::system("take memory for a roofline", e);
        // Like a server's memory: one memfd, mapped.
        let (memory, _) = Region::memfd("bench-gather", bytes).map_err(failed)?;
        let words = memory.words_mut(0, bytes).map_err(failed)?;
        let mut content = vec![0; payload];
        for row in 0..rows {
            content.fill(byte_of(row));
            words.copy_in(row as usize * layout.stride + ROW_HEADER_BYTES, &content);
        }
        Ok(Self {
            memory,
            layout,
            batches: random_batches(rows, call_rows, seed),
            out: vec![0; call_rows * payload],
            turn: 0,
            sum: 0,
        })
    }
}

impl Work for Gather {
    fn bytes(&self) -> u64 {
        self.out.len() as u64
    }

    fn prepare(&mut self) {
        self.turn = (self.turn + 1) % self.batches.len();
    }

    fn sample(&mut self) -> Result<(), BenchError> {
        let RowLayout {
            payload_bytes,
            stride,
        } = self.layout;
        let bytes = self.memory.len();
        let words = self
            .memory
            .words(0, bytes)
            .map_err(|e| BenchError::system("look at memory", e))?;
        let version = RowVersion::new(0, 1);
        let read = self.layout.read_bytes();
        let rows = self.batches[self.turn].chunks(AHEAD);
        let outs = self.out.chunks_mut(AHEAD * payload_bytes);
        for (rows, outs) in rows.zip(outs) {
            // Independent loads: a prefetch in safe Rust.
            for row in rows {
                let at = *row as usize * stride;
                for line in (at..at + read).step_by(LINE) {
                    std::hint::black_box(words.load(line));
                }
            }
            for (row, out) in rows.iter().zip(outs.chunks_exact_mut(payload_bytes)) {
                let at = *row as usize * stride + ROW_HEADER_BYTES;
                let hash = row_hasher(1, *row, version, payload_bytes);
                self.sum ^= words.copy_out_hashing(at, out, hash);
            }
        }
        std::hint::black_box(self.sum);
        Ok(())
    }

    fn check(&mut self) -> u64 {
        let rows = self.batches[self.turn].iter();
        let pairs = rows.zip(self.out.chunks_exact(self.layout.payload_bytes));
        pairs
            .filter(|(row, out)| out.iter().any(|b| *b != byte_of(**row)))
            .count() as u64
    }
}

/// Random row numbers below `rows`, `call_rows` for each of 64 distinct calls; a number may repeat.
pub(super) fn random_batches(rows: u64, call_rows: usize, seed: u64) -> Vec<Vec<u64>> {
    let row = |b: u64, n: u64| mix64((b << 32 | n) ^ seed) % rows;
    let batch = |b| (0..call_rows as u64).map(|n| row(b, n)).collect();
    (0..64).map(batch).collect()
}

/// Value that all payload bytes of a row have.
pub(super) fn byte_of(row: u64) -> u8 {
    mix64(row) as u8
}

/// Bytes a second that `threads` threads copy together, each its own `bytes` bytes from memory to memory,
/// again and again for at least `time`: the machine's memory bandwidth, in bytes copied.
pub fn copy_speed(bytes: usize, threads: usize, time: Duration) -> f64 {
    let start = Barrier::new(threads);
    let one = || {
        let (from, mut to) = (vec![1_u8; bytes], vec![0_u8; bytes]);
        to.copy_from_slice(&from);
        start.wait();
        let begin = clock::now();
        let mut copied = 0;
        while copied == 0 || clock::now() - begin < time {
            std::hint::black_box(&mut to).copy_from_slice(std::hint::black_box(&from));
            copied += bytes;
        }
        copied as f64 / (clock::now() - begin).as_secs_f64()
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        all.into_iter().map(|t| t.join().unwrap_or(0.0)).sum()
    })
}
