//! Frames and replies about keys: deletions and lists.

use tidewater_protocol::layout::frame::FrameKind;
use tidewater_protocol::layout::reply::ReplyHeader;
use tidewater_protocol::layout::scan::{ScanReply, ScanRequest};

use crate::structures::{KEY, f32s, frame, header, reply, words};

pub(crate) fn all() -> Vec<(&'static str, Vec<u8>)> {
    let keys = words(&[KEY, KEY + 1]);
    let mut delete = header(FrameKind::Delete, 54);
    (delete.count, delete.clock) = (2, 12);
    let mut scan = header(FrameKind::Scan, 55);
    (scan.count, scan.partition, scan.user_tag) = (100, 3, 0x0506);
    let request = ScanRequest {
        first: 64,
        values: true,
    };
    let head = ScanReply::head(164, 7);
    let listed = [&head[..], &keys, &f32s(&[1.0, 2.0])].concat();
    let answer = ReplyHeader {
        kind: FrameKind::Scan as u16,
        refused: None,
        user_tag: 0x0506,
        payload_len: listed.len() as u32,
        count: 2,
        slot: 6,
        table: 9,
    };
    vec![
        ("frame-delete", frame(delete, &keys)),
        ("frame-scan", frame(scan, &request.encode())),
        ("reply-scan", reply(&answer, &listed)),
    ]
}
