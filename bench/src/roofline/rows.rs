//! Random rows of another process through a blocking socket, without key, index, table and call. This
//! is the minimum work of a pull of many rows over TCP.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use serde::{Deserialize, Serialize};
use tidewater_protocol::layout::row::{
    ROW_HEADER_BYTES, RowLayout, RowVersion, row_checksum, row_head, verify_row,
};
use tidewater_runtime::mem::Region;

use super::memory::{byte_of, random_batches};
use super::socket::{Job, Wire, wire};
use crate::error::BenchError;
use crate::measure::Work;

/// Bytes of a row request: location and length.
const ASK: usize = 16;
/// Rows prefetched ahead of the one that is copied.
const AHEAD: usize = 32;
/// Bytes sent before the rest is copied, if the receiver has its own core.
const PIECE: usize = 32 << 10;
/// Bytes of one receive call.
const RECEIVE: usize = 64 << 10;
const SALT: u64 = 1;

/// Shape of a table and of its calls.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct RowShape {
    /// Rows of the table.
    pub rows: u64,
    /// Rows of a call.
    pub call_rows: u32,
    /// Payload bytes of a row, without its header.
    pub payload: u32,
}

impl RowShape {
    fn layout(&self) -> RowLayout {
        RowLayout::new(self.payload as usize)
    }

    /// Allocates the table like a server's memory, as one mapped memfd, and fills its rows.
    fn memory(&self) -> io::Result<Region> {
        let layout = self.layout();
        let bytes = self.rows as usize * layout.stride;
        let (memory, _) = Region::memfd("bench-rows", bytes).map_err(io::Error::other)?;
        let words = memory.words_mut(0, bytes).map_err(io::Error::other)?;
        let (mut payload, version) = (vec![0; layout.payload_bytes], RowVersion::new(0, 1));
        for row in 0..self.rows {
            payload.fill(byte_of(row));
            let at = row as usize * layout.stride;
            let head = row_head(version, row_checksum(SALT, row, version, &payload));
            words.copy_in(at, &head);
            words.copy_in(at + ROW_HEADER_BYTES, &payload);
        }
        Ok(memory)
    }
}

/// The remote end: creates the table; then, for each request, copies the rows into a buffer and sends it.
/// Returns only with an error, at the latest when the connection ends.
pub(super) fn answer(peer: &mut TcpStream, shape: RowShape) -> io::Result<()> {
    let (memory, layout) = (shape.memory()?, shape.layout());
    let (calls, read) = (shape.call_rows as usize, layout.read_bytes());
    let (mut asked, mut out) = (vec![0; calls * ASK], vec![0; calls * read]);
    let alone = std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1);
    let piece = if alone { calls } else { (PIECE / read).max(1) };
    let row = |raw: &[u8; ASK]| {
        let (at, _) = raw.split_at(8);
        let at = u64::from_le_bytes(at.try_into().unwrap_or_default());
        memory.words(at as usize, read).map_err(io::Error::other)
    };
    loop {
        peer.read_exact(&mut asked)?;
        let list = asked.as_chunks::<ASK>().0;
        for first in list.iter().take(AHEAD) {
            row(first)?.prefetch();
        }
        for (n, out) in out.chunks_mut(piece * read).enumerate() {
            for (n, out) in (n * piece..).zip(out.chunks_exact_mut(read)) {
                if let Some(later) = list.get(n + AHEAD) {
                    row(later)?.prefetch();
                }
                row(&list[n])?.copy_out(0, out);
            }
            peer.write_all(out)?;
        }
    }
}

/// Calls for random rows, several in flight; each row is verified on arrival, and copied.
#[derive(Debug)]
pub struct RemoteRows {
    wire: Wire,
    shape: RowShape,
    batches: Vec<Vec<u64>>,
    asks: Vec<u8>,
    received: Vec<u8>,
    out: Vec<u8>,
    depth: u64,
    calls: u64,
    turn: usize,
    invalid: u64,
}

impl RemoteRows {
    /// Starts the remote process, on core `pin` if given. A sample is `calls` calls, at most `depth` of them in
    /// flight.
    ///
    /// # Errors
    /// If a process or a connection cannot be created.
    pub fn new(
        shape: RowShape,
        depth: u64,
        calls: u64,
        seed: u64,
        pin: Option<usize>,
    ) -> Result<Self, BenchError> {
        let call_rows = shape.call_rows as usize;
        Ok(Self {
            wire: Wire::open(Job::Rows(shape), pin)?,
            shape,
            batches: random_batches(shape.rows, call_rows, seed),
            asks: vec![0; call_rows * ASK],
            received: vec![0; RECEIVE.max(2 * shape.layout().read_bytes())],
            out: vec![0; call_rows * shape.payload as usize],
            depth: depth.max(1),
            calls,
            turn: 0,
            invalid: 0,
        })
    }

    fn batch(&self, turn: usize) -> &[u64] {
        &self.batches[turn % self.batches.len()]
    }

    fn ask(&mut self, turn: usize) -> io::Result<()> {
        let layout = self.shape.layout();
        let batch = &self.batches[turn % self.batches.len()];
        for (ask, row) in self.asks.chunks_exact_mut(ASK).zip(batch) {
            let (at, len) = ask.split_at_mut(8);
            at.copy_from_slice(&(row * layout.stride as u64).to_le_bytes());
            len.copy_from_slice(&(layout.read_bytes() as u64).to_le_bytes());
        }
        self.wire.peer.write_all(&self.asks)
    }

    fn receive(&mut self, turn: usize) -> io::Result<()> {
        let layout = self.shape.layout();
        let read = layout.read_bytes();
        let batch = &self.batches[turn % self.batches.len()];
        let mut rows = batch
            .iter()
            .zip(self.out.chunks_exact_mut(layout.payload_bytes));
        let (mut left, mut held) = (batch.len() * read, 0);
        while left > 0 {
            let most = self.received.len().min(held + left);
            let got = self.wire.peer.read(&mut self.received[held..most])?;
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            (left, held) = (left - got, held + got);
            let complete = held / read * read;
            for (raw, (row, out)) in self.received[..complete].chunks_exact(read).zip(&mut rows) {
                let (head, payload) = raw.split_at(ROW_HEADER_BYTES);
                let is_valid = head
                    .first_chunk()
                    .is_some_and(|head| verify_row(SALT, *row, head, payload).is_some());
                self.invalid += u64::from(!is_valid);
                out.copy_from_slice(payload);
            }
            self.received.copy_within(complete..held, 0);
            held -= complete;
        }
        Ok(())
    }
}

impl Work for RemoteRows {
    fn calls(&self) -> u64 {
        self.calls
    }

    fn bytes(&self) -> u64 {
        self.out.len() as u64
    }

    fn prepare(&mut self) {
        let first = self.out.iter_mut().step_by(self.shape.payload as usize);
        first.for_each(|byte| *byte = !*byte);
    }

    fn sample(&mut self) -> Result<(), BenchError> {
        let (begin, calls) = (self.turn, self.calls as usize);
        let ahead = (self.depth as usize).min(calls);
        for turn in begin..begin + ahead {
            self.ask(turn).map_err(wire)?;
        }
        for turn in begin..begin + calls {
            self.receive(turn).map_err(wire)?;
            if turn + ahead < begin + calls {
                self.ask(turn + ahead).map_err(wire)?;
            }
        }
        self.turn += calls;
        Ok(())
    }

    fn check(&mut self) -> u64 {
        let rows = self.batch(self.turn.wrapping_sub(1)).iter();
        let pairs = rows.zip(self.out.chunks_exact(self.shape.payload as usize));
        let wrong = pairs.filter(|(row, out)| out.iter().any(|b| *b != byte_of(**row)));
        let wrong = wrong.count() as u64;
        wrong + std::mem::take(&mut self.invalid)
    }
}
