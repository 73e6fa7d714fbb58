//! The server's parts: its half of a ring, each optimizer's kernel, a frame applied.

use std::hint::black_box;
use std::sync::Arc;

use tidewater_engine::namespace::FrameSender;
use tidewater_engine::ring_reader::{Next, Ring, RingOwner};
use tidewater_engine::store::ServerMemory;
use tidewater_kernels::RowKernel;
use tidewater_lanes::fabric::Inbox;
use tidewater_protocol::ids::{Incarnation, SessionId, WorkerId};
use tidewater_protocol::layout::frame::{FRAME_HEADER_BYTES, FrameFlags, FrameHeader, FrameKind};
use tidewater_protocol::layout::line_bytes;
use tidewater_protocol::layout::ring::RingGeometry;
use tidewater_protocol::layout::session::{INBOX_RING_AT, inbox_bytes};
use tidewater_protocol::table::DType;
use tidewater_runtime::mem::Region;

use super::layout::header;
use super::{Body, Micro};
use tidewater_bench::applier::{Applier, ROWS_CACHED, rules};
use tidewater_bench::measure::Work;

/// Elements of a row.
const DIM: usize = 16;
/// Number of rows in a kernel's repetition.
const ROWS: usize = 64;
const RING_BYTES: usize = 64 << 10;
/// Address space of a ring's state, bytes; only touched pages cost memory.
const MEMORY: usize = 16 << 20;
const SESSION: u64 = 9;

macro_rules! kernels {
    ($($rule:literal $name:literal)*) => {
        vec![$(Micro { name: $name, ops: ROWS as u64, make: || kernel($rule) },)*]
    };
}

pub(super) fn list() -> Vec<Micro> {
    let mut list = kernels!(
        "sum" "kernel.sum.16"
        "assign" "kernel.assign.16"
        "sgd" "kernel.sgd.16"
        "momentum" "kernel.momentum.16"
        "nesterov" "kernel.nesterov.16"
        "adagrad" "kernel.adagrad.16"
        "adam" "kernel.adam.16"
        "ftrl" "kernel.ftrl.16"
    );
    let micro = |name, ops, make| Micro { name, ops, make };
    list.push(micro("ring.take.256", 1, || take(256)));
    list.push(micro("ring.take.4096", 1, || take(4096)));
    list.push(micro("apply.sgd.16", APPLIED, || apply("sgd")));
    list.push(micro("apply.adagrad.16", APPLIED, || apply("adagrad")));
    list
}

/// Applies a rule to rows that stay in cache.
fn kernel(name: &str) -> Body {
    let rule = rules().into_iter().find(|rule| rule.name == name);
    let made = rule.map(|rule| (rule, RowKernel::new(&rule.optimizer, DType::F32, DIM)));
    let Some((rule, Ok(kernel))) = made else {
        return Box::new(|| {});
    };
    let mut payloads = vec![0; ROWS * kernel.row_bytes()];
    let mut states = vec![0; ROWS * kernel.state_bytes()];
    // Nonzero and not shrinking: otherwise subnormal numbers would be measured.
    let values: Vec<u8> = (0..DIM).flat_map(|_| 0.5_f32.to_le_bytes()).collect();
    Box::new(move || {
        let mut states = &mut states[..];
        for payload in payloads.chunks_exact_mut(kernel.row_bytes()) {
            let (state, rest) = states.split_at_mut(kernel.state_bytes());
            states = rest;
            kernel.apply(rule.op, payload, state, black_box(&values));
        }
    })
}

/// Writes a frame into a ring and reads it back.
#[allow(
    clippy::expect_used,
    reason = "a benchmark without memory has nothing to say"
)]
fn take(bytes: usize) -> Body {
    let memory = ServerMemory::new(MEMORY, Incarnation(1)).expect("address space");
    let geometry = RingGeometry::new(RING_BYTES).expect("a power of two");
    let region = Arc::new(Region::anonymous(inbox_bytes(RING_BYTES)).expect("some pages"));
    let inbox = Inbox::new(Arc::clone(&region), 0, geometry, SESSION).expect("all of it");
    let owner = RingOwner {
        session: SessionId(SESSION),
        sender: FrameSender::first(WorkerId(0)),
        check_frames: false,
    };
    let mut ring = Ring::new(owner, inbox, &memory).expect("a line");
    let header = FrameHeader {
        session: SESSION,
        payload_len: bytes as u32,
        ..header()
    };
    let frame = (FRAME_HEADER_BYTES + bytes).next_multiple_of(64) as u64;
    let (mut tail, mut seq, mut payload) = (0_u64, 0, Vec::with_capacity(bytes));
    let values = vec![5; bytes];
    Box::new(move || {
        if geometry.to_wrap(tail) < frame {
            skip_to_wrap(
                &region,
                &mut ring,
                &header,
                geometry,
                &mut tail,
                &mut payload,
            );
        }
        seq += 1;
        let at = INBOX_RING_AT + geometry.offset(tail) as usize;
        if let Ok(words) = region.words_mut(0, region.len()) {
            words.copy_in(at, &line_bytes(&FrameHeader { seq, ..header }.to_line()));
            words.copy_in(at + FRAME_HEADER_BYTES, &values);
        }
        tail += frame;
        ring.inbox().reset_tail(tail);
        match ring.next(&mut payload) {
            Ok(Next::Frame(taken)) => ring.done(black_box(&taken)),
            other => panic!("a frame is there: {other:?}"),
        }
    })
}

/// Writes a PAD frame, as a client does if a frame would cross the end.
fn skip_to_wrap(
    region: &Region,
    ring: &mut Ring,
    header: &FrameHeader,
    geometry: RingGeometry,
    tail: &mut u64,
    payload: &mut Vec<u8>,
) {
    let pad = FrameHeader {
        kind: FrameKind::Pad,
        flags: FrameFlags::default(),
        payload_len: 0,
        count: 0,
        table: 0,
        clock: 0,
        ..*header
    };
    let at = INBOX_RING_AT + geometry.offset(*tail) as usize;
    if let Ok(words) = region.words_mut(0, region.len()) {
        words.copy_in(at, &line_bytes(&pad.to_line()));
    }
    *tail += geometry.to_wrap(*tail);
    ring.inbox().reset_tail(*tail);
    assert!(matches!(ring.next(payload), Ok(Next::Skipped)));
}

/// Mean number of rows in the frames that one repetition applies: the distinct rows of 1,024 draws from
/// as many rows.
const APPLIED: u64 = 647;

/// Complete frames: rows found, checked, applied, without a redo record.
#[allow(
    clippy::expect_used,
    reason = "a benchmark without memory has nothing to say"
)]
fn apply(name: &str) -> Body {
    let rule = rules().into_iter().find(|rule| rule.name == name);
    let rule = rule.expect("a rule of the list");
    let mut applier = Applier::new(rule, DIM, ROWS_CACHED, 1).expect("memory");
    Box::new(move || {
        applier.prepare();
        applier.sample().expect("a good frame");
    })
}
