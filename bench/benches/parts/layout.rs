//! Formats in memory: row hash, row header, copies, frame header.

use std::hint::black_box;

use tidewater_protocol::layout::frame::{FrameFlags, FrameHeader, FrameKind, PARTITION_ANY};
use tidewater_protocol::layout::row::{RowVersion, row_checksum, row_hasher, row_head, verify_row};
use tidewater_protocol::layout::{line_bytes, line_from_bytes};
use tidewater_protocol::table::{DType, PushOp};
use tidewater_runtime::mem::Region;

use super::{Body, Micro};

const SALT: u64 = 0x5a17;
const KEY: u64 = 7;

pub(super) fn list() -> Vec<Micro> {
    let micro = |name, make| Micro { name, ops: 1, make };
    vec![
        micro("hash.64", || hash(64)),
        micro("hash.256", || hash(256)),
        micro("hash.4096", || hash(4096)),
        micro("row.verify.256", verify),
        micro("row.copy.256", copy),
        micro("row.copy_hash.256", copy_hash),
        micro("frame.encode", encode),
        micro("frame.decode", decode),
    ]
}

fn payload(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 31) as u8).collect()
}

fn hash(bytes: usize) -> Body {
    let row = payload(bytes);
    let version = RowVersion::new(1, 2);
    Box::new(move || {
        black_box(row_checksum(SALT, black_box(KEY), version, black_box(&row)));
    })
}

fn verify() -> Body {
    let row = payload(256);
    let version = RowVersion::new(1, 2);
    let head = row_head(version, row_checksum(SALT, KEY, version, &row));
    Box::new(move || {
        let parsed = verify_row(SALT, black_box(KEY), black_box(&head), black_box(&row));
        assert!(parsed.is_some(), "it is measured accepting");
    })
}

/// Allocates one row in memory that other threads may write.
#[allow(
    clippy::expect_used,
    reason = "a benchmark without memory has nothing to say"
)]
fn shared() -> Region {
    let region = Region::anonymous(256).expect("a page");
    let words = region.words_mut(0, 256).expect("all of it");
    words.copy_in(0, &payload(256));
    region
}

fn copy() -> Body {
    let (region, mut out) = (shared(), vec![0; 256]);
    Box::new(move || {
        if let Ok(words) = region.words(0, 256) {
            words.copy_out(0, black_box(&mut out));
        }
    })
}

fn copy_hash() -> Body {
    let (region, mut out) = (shared(), vec![0; 256]);
    let version = RowVersion::new(1, 2);
    Box::new(move || {
        if let Ok(words) = region.words(0, 256) {
            let hash = row_hasher(SALT, black_box(KEY), version, 256);
            black_box(words.copy_out_hashing(0, black_box(&mut out), hash));
        }
    })
}

/// Frame header of a push of 64 rows.
pub(super) fn header() -> FrameHeader {
    FrameHeader {
        kind: FrameKind::PushRows,
        flags: FrameFlags {
            op: Some(PushOp::Gradient),
            dtype: Some(DType::F32),
            locs: true,
            create: false,
            ..FrameFlags::default()
        },
        seq: 17,
        session: 0x1234_5678,
        payload_len: 4096,
        count: 64,
        table: 3,
        partition: PARTITION_ANY,
        clock: 9,
        user_tag: 0,
        checksum: 0,
    }
}

fn encode() -> Body {
    let header = header();
    Box::new(move || {
        black_box(line_bytes(&black_box(&header).to_line()));
    })
}

fn decode() -> Body {
    let bytes = line_bytes(&header().to_line());
    Box::new(move || {
        let parsed = FrameHeader::from_line(&line_from_bytes(black_box(&bytes)));
        assert!(parsed.is_ok(), "it is measured accepting");
    })
}
