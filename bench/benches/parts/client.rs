//! The client's parts: key combine, location cache, its half of a ring.
//!
//! They are private to the client, and stay private: their source files are compiled here a second
//! time. The measured code is therefore the production code.

use std::hint::black_box;

use tidewater_bookkeeping::combine::Combiner;
use tidewater_bookkeeping::locations::Locations;
use tidewater_protocol::ids::SessionId;
use tidewater_protocol::layout::frame::FRAME_HEADER_BYTES;
use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::layout::lines::StateLine;
use tidewater_protocol::layout::ring::RingGeometry;
use tidewater_protocol::layout::row::RowLocation;
use tidewater_protocol::limits::RING_BYTES_DEFAULT;
use tidewater_protocol::table::{DType, PushOp};

use super::layout::header;
use super::{Body, Micro};

#[allow(dead_code, unused_imports, unreachable_pub, unused_qualifications)]
#[path = "../../../client/tidewater/src/push/ring.rs"]
mod ring;

/// Lookups of cached locations in one repetition.
const HINTS: u64 = 64;
/// Number of cached locations.
const HINTS_KNOWN: u64 = 10_000;
const ROW_BYTES: usize = 64;

pub(super) fn list() -> Vec<Micro> {
    let micro = |name, ops, make| Micro { name, ops, make };
    vec![
        micro("combine.64", 64, || keys(64, 64)),
        micro("combine.64_twice", 64, || keys(64, 32)),
        micro("combine.1024", 1024, || keys(1024, 1024)),
        micro("hints.get", HINTS, hints_get),
        micro("hints.put_again", HINTS, hints_put),
        micro("ring.build.256", 1, || build(256)),
        micro("ring.build.4096", 1, || build(4096)),
    ]
}

/// Combines `count` keys, of which `distinct` differ.
fn keys(count: u64, distinct: u64) -> Body {
    let keys: Vec<u64> = (0..count).map(|n| mix64(n % distinct)).collect();
    let values = vec![1; count as usize * ROW_BYTES];
    let mut combiner = Combiner::default();
    Box::new(move || {
        let op = PushOp::Gradient;
        combiner.combine(DType::F32, op, black_box(&keys), &values, ROW_BYTES);
        black_box(combiner.keys.len());
    })
}

fn known() -> Locations {
    let hints = Locations::default();
    for n in 0..HINTS_KNOWN {
        hints.put(mix64(n), RowLocation::new(0, 1, n as u32));
    }
    hints
}

fn hints_get() -> Body {
    let hints = known();
    let mut from = 0;
    Box::new(move || {
        from = (from + HINTS) % HINTS_KNOWN;
        for n in from..from + HINTS {
            black_box(hints.get(mix64(n % HINTS_KNOWN)));
        }
    })
}

fn hints_put() -> Body {
    let hints = known();
    let mut from = 0;
    Box::new(move || {
        from = (from + HINTS) % HINTS_KNOWN;
        for n in from..from + HINTS {
            let n = n % HINTS_KNOWN;
            hints.put(mix64(n), RowLocation::new(0, 2, n as u32));
        }
    })
}

/// Builds a frame, and receives its acknowledgement.
fn build(bytes: usize) -> Body {
    let Some(geometry) = RingGeometry::new(RING_BYTES_DEFAULT) else {
        return Box::new(|| {});
    };
    let mut ring = ring::PushRing::new(SessionId(9), geometry, false, None);
    let values = vec![3; bytes];
    let (mut seq, mut head) = (0, 0);
    let frame = (FRAME_HEADER_BYTES + bytes).next_multiple_of(64) as u64;
    Box::new(move || {
        let built = ring.build(header(), bytes, |to| to.copy_from_slice(black_box(&values)));
        assert!(built.is_some(), "there is room");
        // Placed like in the ring: a frame does not cross the end.
        let pad = match geometry.to_wrap(head) {
            left if left < frame => left,
            _ => 0,
        };
        (seq, head) = (seq + 1, head + pad + frame);
        let mut state = *ring.state();
        state.applied_seq = seq;
        state.durable_seq = seq;
        state.head_bytes = head;
        let _: StateLine = state;
        assert!(ring.learn(state), "it is news");
    })
}
