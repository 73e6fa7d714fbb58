//! What a client gets again when its lane recovers, and reads of memory that changes meanwhile.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidewater_protocol::ids::{Incarnation, WorkerId};
use tidewater_protocol::layout::frame::{FrameFlags, PARTITION_ANY};
use tidewater_protocol::layout::ring::RingGeometry;
use tidewater_protocol::layout::session::{INBOX_RING_AT, inbox_bytes};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::Region;
use tidewater_runtime::sync::{AtomicU32, Ordering};

use super::*;

const RING_BYTES: usize = 16 << 10;
const SESSION: u64 = 9;
const NOT_FINITE: RejectReason = RejectReason::NotFinite { row: 0, key: 0 };

/// Records the offsets that it was to write.
struct Notes(Arc<Mutex<Vec<usize>>>);

impl ServerLane for Notes {
    fn peer(&self) -> &str {
        "client"
    }

    fn poll(&mut self, _: &mut RegionTableView, _: &Inbox) -> Result<bool, LaneError> {
        Ok(false)
    }

    fn post(&mut self, at: usize, _: &[u8]) -> Result<(), LaneError> {
        self.0.lock().unwrap().push(at);
        Ok(())
    }

    fn signal(&mut self) -> Result<(), LaneError> {
        Ok(())
    }

    fn poll_hint(&self) -> Option<Duration> {
        None
    }

    fn destroy(&mut self) {}
}

fn frame(seq: u64) -> FrameHeader {
    FrameHeader {
        kind: FrameKind::PushRows,
        flags: FrameFlags::default(),
        seq,
        session: SESSION,
        payload_len: 0,
        count: 0,
        table: 1,
        partition: PARTITION_ANY,
        clock: 0,
        user_tag: 0,
        checksum: 0,
    }
}

/// A ring, and the memory that its client writes.
fn ring(check_frames: bool) -> (ServerMemory, Inbox, Ring) {
    let memory = ServerMemory::new(16 << 20, Incarnation(1)).unwrap();
    let geometry = RingGeometry::new(RING_BYTES).unwrap();
    let region = Arc::new(Region::anonymous(inbox_bytes(RING_BYTES)).unwrap());
    let inbox = Inbox::new(region, 0, geometry, SESSION).unwrap();
    let owner = RingOwner {
        session: SessionId(SESSION),
        sender: FrameSender::first(WorkerId(0)),
        check_frames,
    };
    let ring = Ring::new(owner, inbox.clone(), &memory).unwrap();
    (memory, inbox, ring)
}

#[test]
fn a_reject_is_told_again_only_while_its_cell_is_its_own() {
    let (_memory, _, mut ring) = ring(false);
    let (old, new) = (5, 5 + FRAMES_IN_FLIGHT_MAX);
    for seq in 1..=new {
        if seq == old || seq == old + 1 || seq == new {
            let refused = ring.reject(&frame(seq), NOT_FINITE);
            refused.unwrap();
        } else {
            ring.done(&frame(seq));
        }
    }
    let notes = Arc::new(Mutex::new(Vec::new()));
    ring.attach(Box::new(Notes(Arc::clone(&notes)))).unwrap();
    let told = notes.lock().unwrap().clone();
    let expected = [
        mailbox_reject_at(old + 1),
        mailbox_reject_at(new),
        MAILBOX_STATE_AT,
    ];
    assert_eq!(
        told, expected,
        "the old reject of the cell is not told again"
    );
}

const LENS: [usize; 3] = [64, 2048, 3968];

/// Writes a frame at the start of a ring, with `word` in all of its words.
fn write(inbox: &Inbox, word: u64) {
    let len = LENS[word as usize % LENS.len()];
    let payload = word.to_le_bytes().repeat(len / 8);
    let mut header = FrameHeader {
        payload_len: len as u32,
        count: word as u32,
        user_tag: word,
        ..frame(1)
    };
    header.checksum = header.hasher().finish_bytes(&payload);
    write_header(inbox, &header);
    inbox
        .window()
        .copy_in(INBOX_RING_AT + FRAME_HEADER_BYTES, &payload);
    // Most of a read is the payload's; changes of the header must be tried as often.
    for other in LENS.into_iter().cycle().take(30).chain([len]) {
        header.payload_len = other as u32;
        write_header(inbox, &header);
    }
}

fn write_header(inbox: &Inbox, header: &FrameHeader) {
    let line = line_bytes(&header.to_line());
    inbox.window().copy_in(INBOX_RING_AT, &line);
}

/// A poll uses only what it has read once, whatever is written meanwhile: a client of shared memory
/// writes while the applier reads.
fn no_change_inside_a_look_is_seen(check_frames: bool) {
    /// Polls with another result than the one before: so often was written between two reads.
    /// Counting these instead of polls, the test is as hard where the two threads share a core.
    const CHANGES: usize = 5_000;
    let (_memory, inbox, mut ring) = ring(check_frames);
    write(&inbox, 0);
    inbox.reset_tail(RING_BYTES as u64 / 4);
    let done = AtomicU32::new(0);
    let (mut changes, mut frames) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for word in 1u64.. {
                write(&inbox, word);
                if done.load(Ordering::Relaxed) == 1 {
                    break;
                }
            }
        });
        let deadline = Deadline::after(Duration::from_secs(120));
        let (mut payload, mut last, mut bad) = (Vec::new(), None, None);
        // The frame is polled again and again, never taken: each poll reads the same frame again.
        while bad.is_none() && changes < CHANGES && !deadline.passed() {
            let found = match ring.next(&mut payload).unwrap() {
                Next::Frame(header) => Some(header),
                _ => None,
            };
            changes += usize::from(found != last);
            last = found;
            let Some(header) = found else {
                continue;
            };
            frames += 1;
            let len = payload.len();
            let is_one = header.payload_len as usize == len && LENS.contains(&len);
            let checksum_matches = || {
                header.hasher().finish_bytes(&payload) == header.checksum
                    && payload.ends_with(&payload[..8])
            };
            if !is_one || (check_frames && !checksum_matches()) {
                bad = Some((header, len));
            }
        }
        done.store(1, Ordering::Relaxed);
        assert_eq!(
            bad, None,
            "a header, and bytes of a payload that is not its"
        );
    });
    let what = format!("{changes} changes, {frames} frames: hardly tried");
    assert!(changes >= CHANGES && frames >= CHANGES / 10, "{what}");
}

#[test]
fn no_change_inside_a_look_is_seen_on_memory_in_order() {
    no_change_inside_a_look_is_seen(false);
}

#[test]
fn no_change_inside_a_look_is_seen_where_frames_are_checked() {
    no_change_inside_a_look_is_seen(true);
}

#[test]
fn a_frame_that_was_taken_is_what_it_was_whatever_stands_in_the_ring() {
    let (_memory, inbox, mut ring) = ring(false);
    let mut payload = Vec::new();
    for (seq, at) in [(1, 0), (2, 64 + 128)] {
        let header = FrameHeader {
            payload_len: 128,
            ..frame(seq)
        };
        let window = inbox.window();
        window.copy_in(INBOX_RING_AT + at, &line_bytes(&header.to_line()));
        window.copy_in(INBOX_RING_AT + at + FRAME_HEADER_BYTES, &[7; 128]);
        inbox.reset_tail(at as u64 + 64 + 128);
        assert_eq!(ring.next(&mut payload), Ok(Next::Frame(header)));
        // Another frame in its place, longer and with another number; then the frame takes effect.
        let other = FrameHeader {
            payload_len: 1024,
            ..frame(seq + 5)
        };
        window.copy_in(INBOX_RING_AT + at, &line_bytes(&other.to_line()));
        window.copy_in(INBOX_RING_AT + at + FRAME_HEADER_BYTES, &[8; 128]);
        assert_eq!(payload, [7; 128]);
        if seq == 1 {
            ring.done(&header);
        } else {
            let refused = ring.reject(&header, NOT_FINITE);
            refused.unwrap();
        }
        let state = ring.state();
        let head_bytes = at as u64 + 64 + 128;
        assert_eq!((state.applied_seq, state.head_bytes), (seq, head_bytes));
    }
}

/// A tail without its frame is polled again, but not for ever; a lane that recovers has the full
/// time again.
#[test]
fn a_frame_that_does_not_come_ends_its_lane() {
    let (_memory, inbox, mut ring) = ring(true);
    let mut payload = Vec::new();
    inbox.reset_tail(64);
    assert_eq!(ring.next(&mut payload), Ok(Next::Empty));
    let until = ring.late.unwrap();
    assert!(until.left() > FRAME_LATE_MAX / 2 && until.left() <= FRAME_LATE_MAX);
    assert_eq!(ring.next(&mut payload), Ok(Next::Empty));
    assert_eq!(ring.late, Some(until), "its time runs");
    assert_eq!(
        ring.late_frames(),
        1,
        "counted once, however often it is polled"
    );
    ring.late = Some(Deadline::after(Duration::ZERO));
    assert_eq!(ring.next(&mut payload), Err(RingError::Late { at: 0 }));
    ring.rewind();
    ring.attach(Box::new(Notes(Arc::default()))).unwrap();
    inbox.reset_tail(64);
    assert_eq!(ring.next(&mut payload), Ok(Next::Empty));
    // A frame that comes in the end is valid, however late, and the next has the full time.
    ring.late = Some(Deadline::after(Duration::ZERO));
    write(&inbox, 0);
    inbox.reset_tail(64 + LENS[0] as u64);
    assert!(matches!(ring.next(&mut payload), Ok(Next::Frame(_))));
    assert_eq!(ring.late, None);
    assert_eq!(ring.late_frames(), 2, "once for each lane");
}

/// The position behind a PAD or a duplicate outlives the process: the client has read it, and writes from there.
#[test]
fn position_behind_skipped_frames_is_kept() {
    let (memory, inbox, plain) = ring(false);
    let kept = KeptRing::new(&memory).unwrap();
    let state = StateLine::default();
    let status = memory.status_line(&state.to_line(SESSION)).unwrap();
    let owner = RingOwner {
        session: SessionId(SESSION),
        sender: plain.sender,
        check_frames: false,
    };
    let mut ring = Ring::at(owner, inbox.clone(), status, state, Some(kept));
    let mut payload = Vec::new();
    // Frame 1, the same once more, frame 2, and a PAD to the end of the ring.
    for (at, seq) in [(0, 1), (64, 1), (128, 2)] {
        let line = line_bytes(&frame(seq).to_line());
        inbox.window().copy_in(INBOX_RING_AT + at, &line);
    }
    let pad = FrameHeader {
        kind: FrameKind::Pad,
        ..frame(0)
    };
    let line = line_bytes(&pad.to_line());
    inbox.window().copy_in(INBOX_RING_AT + 192, &line);
    inbox.reset_tail(RING_BYTES as u64);
    for (skipped, end) in [
        (false, 64),
        (true, 128),
        (false, 192),
        (true, RING_BYTES as u64),
    ] {
        match ring.next(&mut payload).unwrap() {
            Next::Frame(header) => ring.done(&header),
            next => assert!(skipped && next == Next::Skipped, "{next:?} to {end}"),
        }
        let found = ring.kept.as_ref().unwrap().state();
        assert_eq!(found.head_bytes, end);
        assert_eq!(found.applied_seq, ring.state().applied_seq);
    }
}
