//! Any bytes in a ring, and any tail: `Ring::next` never reads outside, and always terminates.

use std::sync::Arc;

use tidewater_engine::namespace::FrameSender;
use tidewater_engine::ring_reader::{Next, Ring, RingOwner};
use tidewater_engine::store::ServerMemory;
use tidewater_lanes::fabric::Inbox;
use tidewater_protocol::ids::{Incarnation, SessionId, WorkerId};
use tidewater_protocol::layout::LINE_BYTES;
use tidewater_protocol::layout::frame::{FRAME_HEADER_BYTES, FrameHeader, FrameKind};
use tidewater_protocol::layout::line_bytes;
use tidewater_protocol::layout::reject::RejectReason;
use tidewater_protocol::layout::ring::RingGeometry;
use tidewater_protocol::layout::session::{INBOX_RING_AT, inbox_bytes};
use tidewater_runtime::mem::Region;

use crate::fuzzing::{EDGES, Random};
use crate::rig::{self, CAPACITY, Frame};

pub(crate) const RING_BYTES: usize = 4 << 10;
const SESSION: SessionId = SessionId(0xfeed);
/// Memory around the inbox that does not belong to it; every word has this value.
const OUTSIDE: u64 = 0xeeee_eeee_eeee_eeee;

struct Fuzz {
    memory: ServerMemory,
    region: Arc<Region>,
    inbox: Inbox,
    ring: Option<Ring>,
    corpus: Vec<Frame>,
    payload: Vec<u8>,
    taken: u64,
    ended: u64,
}

/// Writes frames into a ring from a position on, complete or damaged. Returns the position after
/// the last.
pub(crate) fn write_frames(
    inbox: &Inbox,
    corpus: &[Frame],
    random: &mut Random,
    (session, mut seq, at): (SessionId, u64, u64),
) -> u64 {
    let geometry = inbox.ring();
    let window = inbox.window();
    let mut tail = at;
    for _ in 0..1 + random.under(4) {
        let frame = &corpus[random.under(corpus.len())];
        let mut header = FrameHeader {
            seq,
            session: session.0,
            ..frame.header
        };
        if random.under(24) == 0 {
            header.payload_len = EDGES[random.under(EDGES.len())] as u32;
        }
        if random.under(24) == 0 {
            header.seq = header
                .seq
                .wrapping_add(random.under(5) as u64)
                .wrapping_sub(2);
        }
        header.checksum = header.hasher().finish_bytes(&frame.payload);
        let len = FRAME_HEADER_BYTES as u64 + frame.payload.len().next_multiple_of(64) as u64;
        if len > geometry.frame_bytes_max() {
            continue;
        }
        let Some(place) = geometry.place(at, tail, len) else {
            break;
        };
        if place.pad > 0 {
            let mut pad = FrameHeader {
                kind: FrameKind::Pad,
                payload_len: 0,
                ..header
            };
            pad.checksum = pad.hasher().finish(&[]);
            let to = INBOX_RING_AT + geometry.offset(tail) as usize;
            window.copy_in(to, &line_bytes(&pad.to_line()));
        }
        let to = INBOX_RING_AT + geometry.offset(place.at) as usize;
        window.copy_in(to, &line_bytes(&header.to_line()));
        window.copy_in(to + FRAME_HEADER_BYTES, &frame.payload);
        tail = place.at + len;
        if header.kind == FrameKind::Pad {
            tail += geometry.to_wrap(place.at) - len;
        }
        seq += u64::from(header.kind != FrameKind::Pad);
    }
    // Damage: a word at a time, mostly in headers.
    for _ in 0..random.under(6).saturating_sub(2) {
        let line = random.under(geometry.bytes() as usize / LINE_BYTES) * LINE_BYTES;
        let word = if random.under(2) == 0 {
            random.under(8)
        } else {
            random.under(2)
        };
        let value = match random.under(3) {
            0 => EDGES[random.under(EDGES.len())],
            1 => window.as_read().load(INBOX_RING_AT + line + 8 * word) ^ (1 << random.under(64)),
            _ => random.next(),
        };
        window.store(INBOX_RING_AT + line + 8 * word, value);
    }
    tail
}

/// A tail as a peer might announce it: mostly the one given.
pub(crate) fn any_tail(tail: u64, random: &mut Random) -> u64 {
    match random.under(24) {
        0 => EDGES[random.under(EDGES.len())],
        1 => tail
            .wrapping_add(64 * random.under(200) as u64)
            .wrapping_sub(6400),
        2 => tail ^ 1 << random.under(64),
        _ => tail,
    }
}

impl Fuzz {
    fn new() -> Self {
        let len = inbox_bytes(RING_BYTES);
        let region = Arc::new(Region::anonymous(len + 8192).unwrap());
        let all = region.words_mut(0, len + 8192).unwrap();
        for at in (0..len + 8192).step_by(8) {
            all.store(at, OUTSIDE);
        }
        let geometry = RingGeometry::new(RING_BYTES).unwrap();
        let inbox = Inbox::new(Arc::clone(&region), 4096, geometry, SESSION.0).unwrap();
        Self {
            memory: ServerMemory::new(CAPACITY, Incarnation(1)).unwrap(),
            region,
            inbox,
            ring: None,
            corpus: rig::corpus(),
            payload: Vec::new(),
            taken: 0,
            ended: 0,
        }
    }

    fn one(&mut self, seed: u64, exec: u64) {
        let mut random = Random::of(seed, "ring", exec);
        let mut ring = self.ring.take().unwrap_or_else(|| {
            let owner = RingOwner {
                session: SESSION,
                sender: FrameSender::first(WorkerId(0)),
                check_frames: random.under(4) == 0,
            };
            Ring::new(owner, self.inbox.clone(), &self.memory).unwrap()
        });
        let state = ring.state();
        let from = (SESSION, state.applied_seq + 1, state.head_bytes);
        let end = write_frames(&self.inbox, &self.corpus, &mut random, from);
        self.inbox.reset_tail(any_tail(end, &mut random));
        // Each call advances by a line at least, or reports the end.
        for look in 0.. {
            assert!(
                look <= RING_BYTES / LINE_BYTES,
                "more frames than the ring has lines"
            );
            let at = ring.state().head_bytes;
            match ring.next(&mut self.payload) {
                Ok(Next::Empty) => break,
                Ok(Next::Skipped) => assert!(ring.state().head_bytes > at),
                Ok(Next::Frame(header)) => {
                    self.taken += 1;
                    self.check(&header, at);
                    match random.under(4) {
                        0 => ring
                            .reject(
                                &header,
                                RejectReason::WrongLength {
                                    bytes: 1,
                                    expected: 2,
                                },
                            )
                            .unwrap(),
                        _ => ring.done(&header),
                    }
                    assert_eq!(ring.state().applied_seq, header.seq);
                    assert_eq!(ring.state().head_bytes, at + header.ring_bytes());
                }
                Err(_) => {
                    self.ended += 1;
                    ring.release(&self.memory).unwrap();
                    return;
                }
            }
        }
        // A ring that checks its frames waits for bytes that never arrive.
        if ring.state() == state {
            ring.release(&self.memory).unwrap();
        } else {
            self.ring = Some(ring);
        }
    }

    /// The payload is the content of the ring after the header.
    fn check(&self, header: &FrameHeader, at: u64) {
        assert_eq!(header.session, SESSION.0);
        assert_eq!(self.payload.len(), header.payload_len as usize);
        let geometry = self.inbox.ring();
        assert!(geometry.offset(at) + header.ring_bytes() <= geometry.bytes());
        let mut there = vec![0; self.payload.len()];
        let from = INBOX_RING_AT + geometry.offset(at) as usize + FRAME_HEADER_BYTES;
        self.inbox.window().as_read().copy_out(from, &mut there);
        assert!(there == self.payload, "the payload is not the ring's");
    }

    fn check_outside(&self) {
        let end = 4096 + inbox_bytes(RING_BYTES);
        let all = self.region.words(0, end + 4096).unwrap();
        for at in (0..4096).chain(end..end + 4096).step_by(8) {
            assert_eq!(
                all.load(at),
                OUTSIDE,
                "a write outside of the inbox at {at}"
            );
        }
    }
}

#[test]
fn any_bytes_in_a_ring_are_frames_or_end_the_session() {
    let (mut taken, mut ended) = (0, 0);
    crate::run("ring", crate::execs(), Fuzz::new, |fuzz, seed, exec| {
        fuzz.one(seed, exec);
        taken += std::mem::take(&mut fuzz.taken);
        ended += std::mem::take(&mut fuzz.ended);
        if exec % 1000 == 0 {
            fuzz.check_outside();
        }
    });
    println!("ring: {taken} frames taken, {ended} sessions ended");
    assert!(taken > crate::execs() / 4 && ended > crate::execs() / 50);
}
