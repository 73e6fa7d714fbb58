//! What a client is told again when its lane comes back.

use std::sync::{Arc, Mutex};

use tidewater_transport::ids::{Incarnation, WorkerId};
use tidewater_transport::layout::frame::{FrameFlags, PARTITION_ANY};
use tidewater_transport::layout::ring::RingGeometry;
use tidewater_transport::layout::session::inbox_bytes;
use tidewater_transport::mem::Region;

use super::*;

const RING_BYTES: usize = 16 << 10;

/// Notes where it was told to write.
struct Notes(Arc<Mutex<Vec<usize>>>);

impl Port for Notes {
    fn peer(&self) -> &str {
        "client"
    }

    fn poll(&mut self, _: &mut ExportView, _: &Inbox) -> Result<bool, LaneError> {
        Ok(false)
    }

    fn post(&mut self, at: usize, _: &[u8]) -> Result<(), LaneError> {
        self.0.lock().unwrap().push(at);
        Ok(())
    }

    fn signal(&mut self) -> Result<(), LaneError> {
        Ok(())
    }

    fn destroy(&mut self) {}
}

fn frame(seq: u64) -> FrameHeader {
    FrameHeader {
        kind: FrameKind::PushRows,
        flags: FrameFlags::default(),
        seq,
        session: 9,
        payload_len: 0,
        count: 0,
        table: 1,
        partition: PARTITION_ANY,
        clock: 0,
        user_tag: 0,
        chk: 0,
    }
}

#[test]
fn a_reject_is_told_again_only_while_its_cell_is_its_own() {
    let memory = ServerMemory::new(16 << 20, Incarnation(1)).unwrap();
    let geometry = RingGeometry::new(RING_BYTES).unwrap();
    let region = Arc::new(Region::anonymous(inbox_bytes(RING_BYTES)).unwrap());
    let inbox = Inbox::new(region, 0, geometry, 9).unwrap();
    let owner = RingOwner {
        session: SessionId(9),
        sender: FrameSender::clocked(WorkerId(0)),
        check_frames: false,
    };
    let mut ring = Ring::new(owner, inbox, &memory, 0).unwrap();
    let (old, new) = (5, 5 + FRAMES_IN_FLIGHT_MAX);
    for seq in 1..=new {
        if seq == old || seq == old + 1 || seq == new {
            let refused = ring.reject(&frame(seq), RejectCode::NotFinite, [0, 0]);
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
