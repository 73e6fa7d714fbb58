//! Torn rows: a writer rewrites rows of equal elements at full speed; a reader accepts only rows with a
//! matching checksum. No accepted row may be a mixture, and some rows must have been refused.

use std::sync::{Mutex, OnceLock};

use tidewater_lanes::fabric::*;
use tidewater_protocol::layout::row::{
    ROW_HEADER_BYTES, RowLayout, RowVersion, row_checksum, row_head, verify_row,
};
use tidewater_runtime::mem::Region;
use tidewater_runtime::sync::{Arc, AtomicBool, Ordering};

use crate::rig::{Client, DATA_AT, Machine, Rig, SALT, Server, at, late};

const ROWS: usize = 4;
const LAYOUT: RowLayout = RowLayout::new(256);

/// Counts of the rows that the readers saw.
#[derive(Debug, Default, Clone, Copy)]
pub struct Seen {
    /// Rows with a matching checksum.
    pub accepted: u64,
    /// Rows that were refused: the read met a write.
    pub rejected: u64,
    /// Accepted rows that mix two versions; a correct transport has none.
    pub torn: u64,
}

/// Writes a row in which all elements are the low half of its update counter.
fn write_row(public: &Region, machine: &dyn Machine, row: usize, counter: u64) {
    let ver = RowVersion::new(1, counter);
    let payload = (counter as u32)
        .to_le_bytes()
        .repeat(LAYOUT.payload_bytes / 4);
    let at = DATA_AT + row * LAYOUT.stride;
    let words = public.words_mut(at, LAYOUT.stride).unwrap();
    for (n, half) in payload.chunks(LAYOUT.payload_bytes / 2).enumerate() {
        words.copy_in(ROW_HEADER_BYTES + n * half.len(), half);
        machine.step();
    }
    let checksum = row_checksum(SALT, row as u64, ver, &payload);
    words.copy_in(0, &row_head(ver, checksum));
}

fn read_rows(client: &mut Client, seen: &mut Seen) {
    let (mut head, mut body) = (
        [0; ROWS * ROW_HEADER_BYTES],
        [0; ROWS * LAYOUT.payload_bytes],
    );
    let ops: [ReadOp; ROWS] = std::array::from_fn(|row| ReadOp {
        from: at(client.keys.data, DATA_AT + row * LAYOUT.stride),
        len: LAYOUT.read_bytes() as u32,
        head_len: ROW_HEADER_BYTES as u32,
        head_at: row * ROW_HEADER_BYTES,
        body_at: row * LAYOUT.payload_bytes,
        fence: false,
    });
    let into = ReadDest {
        head: &mut head,
        body: &mut body,
    };
    client.lane.read(&ops, into, late()).unwrap();
    let rows = head
        .chunks(ROW_HEADER_BYTES)
        .zip(body.chunks(LAYOUT.payload_bytes));
    for (row, (head, payload)) in (0u64..).zip(rows) {
        let Some(ver) = verify_row(SALT, row, head.try_into().unwrap(), payload) else {
            seen.rejected += 1;
            continue;
        };
        let lane = (ver.counter() as u32).to_le_bytes();
        let untorn = payload.chunks(4).all(|l| l == lane);
        seen.accepted += 1;
        seen.torn += u64::from(!untorn);
    }
}

/// Reads about `reads` rows under the writer, which is a task of its own. On tcp the server task executes
/// the reads, and it cannot tear its own writes.
pub(crate) fn rows(rig: &dyn Rig, reads: u64) -> Seen {
    let memory = Arc::new(OnceLock::new());
    let (shared, done) = (Arc::clone(&memory), Arc::new(AtomicBool::new(false)));
    let stop = Arc::clone(&done);
    let total = Arc::new(Mutex::new(Seen::default()));
    let sum = Arc::clone(&total);
    let server = Box::new(move |server: Server| {
        shared.get_or_init(|| Arc::clone(&server.public));
        server.serve();
    });
    let writer = Box::new(move |client: Client| {
        let mut counter = 0;
        while !done.load(Ordering::Acquire) {
            if let Some(public) = memory.get() {
                counter += 1;
                for row in 0..ROWS {
                    write_row(public, &*client.machine, row, counter);
                }
            }
            client.machine.step();
        }
    });
    let reader = Box::new(move |mut client: Client| {
        let _stop = StopAtEnd(stop);
        let mut seen = Seen::default();
        for _ in 0..reads / ROWS as u64 {
            read_rows(&mut client, &mut seen);
        }
        *sum.lock().unwrap() = seen;
    });
    rig.run(server, vec![reader, writer]);
    *total.lock().unwrap()
}

/// Stops the writer, also if the reader panics.
struct StopAtEnd(Arc<AtomicBool>);

impl Drop for StopAtEnd {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
