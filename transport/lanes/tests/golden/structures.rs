//! One of each structure, built with the production code, and the numbers of the protocol. (long: one of each.)

use tidewater_lanes::fabric::{AccessDenied, INBOX_KEY, RegionTable};
use tidewater_lanes::tcp::op::{ENTRY_BYTES, HEADER_BYTES, RequestKind};
use tidewater_lanes::tcp::op::{Entry, Refused as NoAccess, Reply, Request};
use tidewater_protocol::ids::{ApplierId, ClusterId, Incarnation, RegionKey, SessionId};
use tidewater_protocol::layout::dense::TaggedU32;
use tidewater_protocol::layout::directory::{KEY_CELL_BYTES, KeyCell};
use tidewater_protocol::layout::encoding::EncodingCode;
use tidewater_protocol::layout::extent::ExtentEntry;
use tidewater_protocol::layout::frame::{
    CLOCK_FINISHED, CLOCK_JOIN, FRAME_HEADER_BYTES, FRAME_MAGIC, FrameFlags, FrameHeader,
    FrameKind, PARTITION_ANY, RowsPayload,
};
use tidewater_protocol::layout::hash::{H64, line_checksum, mix32, mix64};
use tidewater_protocol::layout::lines::{
    CheckedU64, ClockLine, Reject, RejectCode, SnapshotLine, StateLine,
};
use tidewater_protocol::layout::reject::RejectReason;
use tidewater_protocol::layout::reply::{REPLY_HEADER_BYTES, REPLY_MAGIC, ReplyHeader};
use tidewater_protocol::layout::ring::RingGeometry;
use tidewater_protocol::layout::row::{
    COUNTER_BITS, ROW_HEADER_BYTES, RowLayout, RowLocation, RowVersion, row_checksum,
};
use tidewater_protocol::layout::session::{
    ALIVE_AFTER_DOZE, INBOX_DOZE_AT, INBOX_RING_AT, INBOX_TAIL_AT, MAILBOX_BYTES,
    MAILBOX_CLOCKS_AT, MAILBOX_CLOSED_AT, MAILBOX_REJECTS_AT, MAILBOX_REPLIES_AT, MAILBOX_STATE_AT,
    REPLY_SLOT_BYTES, REPLY_SLOTS,
};
use tidewater_protocol::layout::settings;
use tidewater_protocol::layout::{LINE_BYTES, Line, line_bytes};
use tidewater_protocol::limits;
use tidewater_protocol::placement::partition_of_key;
use tidewater_protocol::table::{DType, Optimizer, PushOp};
use tidewater_protocol::wire::hello::{
    Challenge, Features, Hello, Ids, Purpose, Refused, Role, Welcome,
};
use tidewater_protocol::wire::refusal::{Refusal, RefusalCode};
use tidewater_protocol::wire::{PROTOCOL_VERSION, frame};
use tidewater_runtime::liveness::OWNER_DIED;

/// Types of `layout` and `tcp::op` with bytes in [`all`].
pub(crate) const TYPES: &[&str] = &[
    "CheckedU64",
    "ClockLine",
    "Entry",
    "ExtentEntry",
    "FrameHeader",
    "KeyCell",
    "RowLocation",
    "Reject",
    "ReplyHeader",
    "Reply",
    "Request",
    "RowVersion",
    "SnapshotLine",
    "StateLine",
    "TaggedU32",
];

const SALT: u64 = 0x0102_0304_0506_0708;
pub(crate) const SESSION: u64 = 0x1122_3344_5566_7788;
pub(crate) const KEY: u64 = 0xfeed_beef;

/// Name and bytes of each structure.
pub(crate) fn all() -> Vec<(&'static str, Vec<u8>)> {
    let mut all = rows_and_words();
    all.extend(lines());
    all.extend(frames());
    all.extend(replies());
    all.extend(lane_operations());
    all.extend(control());
    all
}

pub(crate) fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

pub(crate) fn line(line: Line) -> Vec<u8> {
    line_bytes(&line).to_vec()
}

fn row(key: u64, ver: RowVersion, payload: &[u8]) -> Vec<u8> {
    let mut bytes = words(&[ver.0, row_checksum(SALT, key, ver, payload)]);
    bytes.extend_from_slice(payload);
    bytes.resize(RowLayout::new(payload.len()).stride, 0);
    bytes
}

pub(crate) fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn rows_and_words() -> Vec<(&'static str, Vec<u8>)> {
    let doubles: Vec<u8> = [1.0f64, -2.0, 0.5]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    vec![
        (
            "row-f32x4",
            row(KEY, RowVersion::new(3, 7), &f32s(&[1.0, 2.0, 3.0, 4.0])),
        ),
        (
            "row-f64x3-first-version",
            row(0, RowVersion::new(0, 1), &doubles),
        ),
        (
            "row-f32x1-counter-wrapped",
            row(5, RowVersion::new(9, u64::MAX).next(), &f32s(&[1.0])),
        ),
        ("loc", words(&[RowLocation::new(3, 2, 0x10).0])),
        ("tagged-u32-stable", words(&[TaggedU32::new(6, SALT).0])),
        (
            "tagged-u32-being-written",
            words(&[TaggedU32::new(7, SALT).0]),
        ),
        ("tail-cell", words(&CheckedU64::new(4096, SESSION).0)),
    ]
}

fn lines() -> Vec<(&'static str, Vec<u8>)> {
    let state = StateLine {
        applied_seq: 41,
        durable_seq: 40,
        head_bytes: 8192,
        rejected: 2,
    };
    let clock = ClockLine {
        min: 12,
        epoch: 1,
        slowest: 3,
        members: 4,
    };
    let snapshot = SnapshotLine {
        front: 12,
        building: 13,
        min_clock: 12,
        applied: 480,
        kept: 12,
        buffers: 3,
    };
    let table = 9;
    let reject = Reject {
        seq: 41,
        table,
        reason: RejectReason::NotFinite { row: 2, key: KEY },
    };
    let extent = ExtentEntry {
        base: 0x40_2000,
        key: RegionKey(0x05a0_0003),
        slots: 1024,
        len: 65_536,
        salt: SALT,
    };
    let cell = KeyCell {
        key: RegionKey(0x05a0_0003),
        rkey: 0x0002_1d17,
    };
    vec![
        ("state-line", line(state.to_line(SESSION))),
        ("clock-line", line(clock.to_line(SESSION, 5))),
        ("snapshot-line", line(snapshot.to_line(SALT))),
        ("reject-cell", line(reject.to_line(SESSION))),
        ("extent-entry", line(extent.to_line(SALT, 2))),
        ("key-cell", cell.to_bytes(SALT, 3).to_vec()),
    ]
}

pub(crate) fn header(kind: FrameKind, seq: u64) -> FrameHeader {
    FrameHeader {
        kind,
        flags: FrameFlags::default(),
        seq,
        session: SESSION,
        payload_len: 0,
        count: 0,
        table: 9,
        partition: PARTITION_ANY,
        clock: 0,
        user_tag: 0,
        checksum: 0,
    }
}

/// Builds a frame with its check word, as in sessions with checked frames.
pub(crate) fn frame(mut header: FrameHeader, payload: &[u8]) -> Vec<u8> {
    header.payload_len = payload.len() as u32;
    header.checksum = header.hasher().finish_bytes(payload);
    let mut bytes = line(header.to_line());
    bytes.extend_from_slice(payload);
    bytes.resize(header.ring_bytes() as usize, 0);
    bytes
}

pub(crate) fn flags(op: PushOp, dtype: DType) -> FrameFlags {
    FrameFlags {
        op: Some(op),
        dtype: Some(dtype),
        locs: false,
        create: false,
        ..FrameFlags::default()
    }
}

fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let mut push = header(FrameKind::PushRows, 42);
    push.flags = flags(PushOp::Gradient, DType::F32);
    (push.count, push.clock) = (2, 12);
    let keys = words(&[KEY, KEY + 1]);
    let values = f32s(&[1.0, 2.0, 3.0, 4.0]);
    let mut located = push;
    (located.seq, located.flags.locs) = (43, true);
    let mut plain = push;
    plain.payload_len = RowsPayload::new(2, 8, false).len as u32;
    let mut dense = header(FrameKind::PushDense, 44);
    dense.flags = flags(PushOp::Sum, DType::F64);
    (dense.count, dense.partition) = (2, 3);
    let range = [words(&[1000]), words(&[1.0f64.to_bits(), 2.0f64.to_bits()])].concat();
    let mut gather = header(FrameKind::Gather, 45);
    (gather.count, gather.user_tag) = (2, 0x0102);
    let mut gather_range = gather;
    (gather_range.seq, gather_range.count, gather_range.user_tag) = (46, 64, 0x0203);
    let mut resolve = header(FrameKind::Resolve, 47);
    resolve.flags.create = true;
    (resolve.count, resolve.user_tag) = (2, 0x0304);
    let mut clock = header(FrameKind::Clock, 48);
    (clock.table, clock.partition, clock.clock) = (0, 5, 13);
    let mut finished = clock;
    (finished.seq, finished.clock) = (49, CLOCK_FINISHED);
    let mut joins = clock;
    (joins.seq, joins.clock) = (1, CLOCK_JOIN);
    let mut pad = header(FrameKind::Pad, 50);
    pad.table = 0;
    let mut set = header(FrameKind::Settings, 51);
    set.clock = 12;
    let rule = settings::encode(&Optimizer::AdamW {
        lr: 0.5,
        beta1: 0.75,
        beta2: 0.875,
        eps: 1.0 / f64::from(1 << 20),
        weight_decay: 0.25,
    });
    let mut unchecked = line(plain.to_line());
    unchecked.extend(rows_payload(&keys, &[], &values));
    unchecked.resize(plain.ring_bytes() as usize, 0);
    vec![
        ("frame-push-rows-unchecked", unchecked),
        (
            "frame-push-rows",
            frame(push, &rows_payload(&keys, &[], &values)),
        ),
        ("frame-push-rows-located", {
            let locs = words(&[RowLocation::new(3, 2, 0x10).0, RowLocation::NONE.0]);
            frame(located, &rows_payload(&keys, &locs, &values))
        }),
        ("frame-push-dense", frame(dense, &range)),
        ("frame-gather-rows", frame(gather, &keys)),
        ("frame-gather-range", frame(gather_range, &words(&[1000]))),
        ("frame-resolve", frame(resolve, &keys)),
        ("frame-clock", frame(clock, &[])),
        ("frame-clock-finished", frame(finished, &[])),
        ("frame-clock-join", frame(joins, &[])),
        ("frame-pad", frame(pad, &[])),
        ("frame-settings", frame(set, &rule)),
    ]
}

/// Builds a payload in which each array begins on a line.
pub(crate) fn rows_payload(keys: &[u8], locs: &[u8], values: &[u8]) -> Vec<u8> {
    let count = keys.len() / 8;
    let parts = RowsPayload::new(count, values.len() / count, !locs.is_empty());
    let mut bytes = vec![0; parts.len];
    bytes[..keys.len()].copy_from_slice(keys);
    bytes[parts.locs_at..parts.locs_at + locs.len()].copy_from_slice(locs);
    bytes[parts.values_at..].copy_from_slice(values);
    bytes
}

pub(crate) fn reply(header: &ReplyHeader, payload: &[u8]) -> Vec<u8> {
    let checksum = header.hasher(SESSION).finish_bytes(payload);
    let mut bytes = line(header.to_line(checksum));
    bytes.extend_from_slice(payload);
    bytes
}

fn replies() -> Vec<(&'static str, Vec<u8>)> {
    let rows = ReplyHeader {
        kind: FrameKind::Gather as u16,
        refused: None,
        user_tag: 0x0102,
        payload_len: 16,
        count: 2,
        slot: 2,
        table: 9,
    };
    let refused = ReplyHeader {
        kind: FrameKind::Resolve as u16,
        refused: Some(RejectReason::TableReleased { table: 9 }),
        user_tag: 0x0304,
        payload_len: 0,
        count: 0,
        slot: 4,
        ..rows
    };
    vec![
        ("reply-gather", reply(&rows, &f32s(&[1.0, 2.0, 3.0, 4.0]))),
        ("reply-refused", reply(&refused, &[])),
    ]
}

fn lane_operations() -> Vec<(&'static str, Vec<u8>)> {
    let key = RegionKey(0x05a0_0003);
    let counter = RegionKey(0x15a0_0000);
    let refused = NoAccess {
        kind: RequestKind::Write,
        why: AccessDenied::Outside,
        key: INBOX_KEY,
        addr: 4096,
        len: 64,
    };
    let read = |len, fence, addr| {
        Entry {
            key,
            len,
            fence,
            addr,
        }
        .to_bytes()
    };
    let mut readv = Request::ReadV {
        entries: 2,
        bytes: 48,
        cookie: 77,
    }
    .to_bytes()
    .to_vec();
    readv.extend([read(32, false, 0x40_2000), read(16, true, 0x40_3000)].concat());
    let request = |r: Request| r.to_bytes().to_vec();
    let answer = |r: Reply| r.to_bytes().to_vec();
    vec![
        ("tcp-readv", readv),
        (
            "tcp-write",
            request(Request::Write {
                key: INBOX_KEY,
                addr: 4096,
                len: 128,
            }),
        ),
        (
            "tcp-fetch-add",
            request(Request::FetchAdd {
                key: counter,
                addr: 64,
                add: 1,
            }),
        ),
        ("tcp-compare-swap", {
            request(Request::CompareSwap {
                key: counter,
                addr: 64,
                expect: 1,
                new: 2,
            })
        }),
        (
            "tcp-read-reply",
            answer(Reply::Read {
                bytes: 48,
                cookie: 77,
            }),
        ),
        ("tcp-atomic-reply", answer(Reply::Atomic { was: 1 })),
        ("tcp-mailbox", answer(Reply::Mailbox { at: 64, len: 64 })),
        ("tcp-refused", answer(Reply::Refused(refused))),
    ]
}

fn control_frame(kind: u16, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::append(&mut out, kind, body).unwrap();
    out
}

fn control() -> Vec<(&'static str, Vec<u8>)> {
    let features = Features {
        offered: 0,
        required: 0,
    };
    let ids = Ids {
        cluster: ClusterId(0x0a0b_0c0d),
        epoch: 2,
        incarnation: Incarnation(0x0e0f_1011),
    };
    let hello = Hello {
        features,
        ids,
        namespace: "default".to_owned(),
        role: Role::Worker,
        rank: 3,
        purpose: Purpose::Lane {
            session: SessionId(SESSION),
            applier: ApplierId(1),
            nonce: 99,
        },
        random: [0x5a; 32],
    };
    let welcome = Welcome {
        features,
        ids,
        role: Role::Server,
        number: 1,
        mac: [0x33; 32],
    };
    let refusal = Refusal::new(RefusalCode::Version, [1, 2, 0, 0]);
    let (mut a, mut b, mut c, mut d) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    hello.encode(&mut a).unwrap();
    Challenge { random: [0xa5; 32] }.encode(&mut b);
    welcome.encode_authenticated(&mut c);
    c.extend(welcome.mac);
    Refused {
        version: PROTOCOL_VERSION,
        refusal,
    }
    .encode(&mut d);
    vec![
        ("control-hello", control_frame(frame::kind::HELLO, &a)),
        (
            "control-challenge",
            control_frame(frame::kind::CHALLENGE, &b),
        ),
        (
            "control-proof",
            control_frame(frame::kind::PROOF, &[0x77; 32]),
        ),
        ("control-welcome", control_frame(frame::kind::WELCOME, &c)),
        ("control-refused", control_frame(frame::kind::REFUSED, &d)),
    ]
}

/// Name and value of each number.
pub(crate) fn numbers() -> Vec<(String, u64)> {
    let mut all: Vec<(String, u64)> = Vec::new();
    let mut add = |names: &[(&str, u64)]| {
        all.extend(names.iter().map(|&(name, value)| (name.to_owned(), value)));
    };
    add(&hash_vectors());
    add(&places());
    add(&limits_and_magics());
    all.extend(codes());
    all
}

fn hash_vectors() -> Vec<(&'static str, u64)> {
    let bytes: Vec<u8> = (0..100).collect();
    let of = |seed, n: usize| H64::new(seed).finish_bytes(&bytes[..n]);
    vec![
        ("mix64(1)", mix64(1)),
        ("mix64(0xfeedbeef)", mix64(KEY)),
        ("mix32(1)", u64::from(mix32(1))),
        ("h64(0,0,0,0;)", of([0; 4], 0)),
        ("h64(1,2,3,4;)", of([1, 2, 3, 4], 0)),
        ("h64(1,2,3,4;0..8)", of([1, 2, 3, 4], 8)),
        ("h64(1,2,3,4;0..20)", of([1, 2, 3, 4], 20)),
        ("h64(1,2,3,4;0..64)", of([1, 2, 3, 4], 64)),
        ("h64(1,2,3,4;0..100)", of([1, 2, 3, 4], 100)),
        ("line_checksum(1,2;[3,4])", line_checksum(1, 2, &[3, 4])),
        (
            "partition_of_key(0,256)",
            u64::from(partition_of_key(0, 256).0),
        ),
        (
            "partition_of_key(0xfeedbeef,256)",
            u64::from(partition_of_key(KEY, 256).0),
        ),
        (
            "partition_of_key(max,1000)",
            u64::from(partition_of_key(u64::MAX, 1000).0),
        ),
        ("stride(4)", RowLayout::new(4).stride as u64),
        ("stride(16)", RowLayout::new(16).stride as u64),
        ("stride(64)", RowLayout::new(64).stride as u64),
        (
            "memory_of(0x15a00003)",
            u64::from(RegionTable::memory_of(RegionKey(0x15a0_0003))),
        ),
        (
            "check_of(0x15a00003)",
            u64::from(RegionTable::check_of(RegionKey(0x15a0_0003))),
        ),
        (
            "frame_bytes_max(1048576)",
            RingGeometry::new(1 << 20).unwrap().frame_bytes_max(),
        ),
    ]
}

fn places() -> Vec<(&'static str, u64)> {
    let places = [
        ("LINE_BYTES", LINE_BYTES),
        ("ROW_HEADER_BYTES", ROW_HEADER_BYTES),
        ("COUNTER_BITS", COUNTER_BITS as usize),
        ("FRAME_HEADER_BYTES", FRAME_HEADER_BYTES),
        ("REPLY_HEADER_BYTES", REPLY_HEADER_BYTES),
        ("INBOX_TAIL_AT", INBOX_TAIL_AT),
        ("INBOX_DOZE_AT", INBOX_DOZE_AT),
        ("INBOX_RING_AT", INBOX_RING_AT),
        ("ALIVE_AFTER_DOZE", ALIVE_AFTER_DOZE),
        ("OWNER_DIED", OWNER_DIED as usize),
        ("MAILBOX_STATE_AT", MAILBOX_STATE_AT),
        ("MAILBOX_CLOCKS_AT", MAILBOX_CLOCKS_AT),
        ("MAILBOX_CLOSED_AT", MAILBOX_CLOSED_AT),
        ("MAILBOX_REJECTS_AT", MAILBOX_REJECTS_AT),
        ("MAILBOX_REPLIES_AT", MAILBOX_REPLIES_AT),
        ("MAILBOX_BYTES", MAILBOX_BYTES),
        ("REPLY_SLOTS", REPLY_SLOTS),
        ("REPLY_SLOT_BYTES", REPLY_SLOT_BYTES),
        ("KEY_CELL_BYTES", KEY_CELL_BYTES),
        ("VERBS_RECEIVES", usize::from(limits::VERBS_RECEIVES)),
        ("VERBS_CHAIN_REQUESTS", limits::VERBS_CHAIN_REQUESTS),
        ("VERBS_READ_BYTES", limits::VERBS_READ_BYTES),
        ("VERBS_WRITE_BYTES", limits::VERBS_WRITE_BYTES),
        ("CONTROL_HEADER_BYTES", frame::HEADER_BYTES),
        ("TCP_HEADER_BYTES", HEADER_BYTES),
        ("TCP_ENTRY_BYTES", ENTRY_BYTES),
    ];
    places.map(|(name, value)| (name, value as u64)).to_vec()
}

fn limits_and_magics() -> Vec<(&'static str, u64)> {
    vec![
        ("FRAME_MAGIC", u64::from(FRAME_MAGIC)),
        ("REPLY_MAGIC", u64::from(REPLY_MAGIC)),
        ("CONTROL_MAGIC", u64::from(frame::MAGIC)),
        ("PROTOCOL_VERSION", u64::from(PROTOCOL_VERSION)),
        ("VERBS_PAIRS_MAX", limits::VERBS_PAIRS_MAX as u64),
        ("VERBS_RECEIVES_MIN", u64::from(limits::VERBS_RECEIVES_MIN)),
        ("VERBS_RECEIVES_MAX", u64::from(limits::VERBS_RECEIVES_MAX)),
        ("VERBS_REGIONS_MAX", limits::VERBS_REGIONS_MAX as u64),
        ("INBOX_KEY", u64::from(INBOX_KEY.0)),
        ("PARTITION_ANY", u64::from(PARTITION_ANY)),
        ("DOMAINS_MAX", limits::DOMAINS_MAX as u64),
        ("FRAMES_IN_FLIGHT_MAX", limits::FRAMES_IN_FLIGHT_MAX),
        ("RING_BYTES_MIN", limits::RING_BYTES_MIN as u64),
        ("RING_BYTES_DEFAULT", limits::RING_BYTES_DEFAULT as u64),
        ("RING_BYTES_MAX", limits::RING_BYTES_MAX as u64),
        ("PULL_RETRIES_MAX", u64::from(limits::PULL_RETRIES_MAX)),
        ("APPLY_BATCH_BYTES", limits::APPLY_BATCH_BYTES as u64),
        (
            "LANE_READV_ENTRIES_MAX",
            limits::LANE_READV_ENTRIES_MAX as u64,
        ),
        ("LANE_READV_BYTES_MAX", limits::LANE_READV_BYTES_MAX as u64),
        ("LANE_WRITE_BYTES_MAX", limits::LANE_WRITE_BYTES_MAX as u64),
        (
            "UNAUTHENTICATED_BYTES_MAX",
            limits::UNAUTHENTICATED_BYTES_MAX as u64,
        ),
        ("CONTROL_BYTES_MAX", limits::CONTROL_BYTES_MAX as u64),
    ]
}

/// Every code that decodes, so that no new one is missed.
fn codes() -> Vec<(String, u64)> {
    let mut all = Vec::new();
    for code in 0..=u8::MAX {
        let dtype = DType::from_code(code).map(|c| format!("DType::{c:?}"));
        let op = PushOp::from_code(code).map(|c| format!("PushOp::{c:?}"));
        let encoding = EncodingCode::from_code(code).map(|c| format!("EncodingCode::{c:?}"));
        all.extend(
            [dtype, op, encoding]
                .into_iter()
                .flatten()
                .map(|name| (name, u64::from(code))),
        );
    }
    for code in 0..=u16::MAX {
        let kind = FrameKind::from_code(code).map(|c| format!("FrameKind::{c:?}"));
        let reject = RejectCode::from_code(code.into()).map(|c| format!("RejectCode::{c:?}"));
        all.extend(
            [kind, reject]
                .into_iter()
                .flatten()
                .map(|name| (name, u64::from(code))),
        );
    }
    let refusals = RefusalCode::ALL.iter();
    all.extend(refusals.map(|c| (format!("RefusalCode::{c:?}"), u64::from(c.code()))));
    for code in 0..=u8::MAX {
        let denied = AccessDenied::from_code(code);
        all.extend(denied.map(|c| (format!("AccessDenied::{c:?}"), u64::from(code))));
    }
    let roles = [
        Role::Worker,
        Role::Server,
        Role::Coordinator,
        Role::Admin,
        Role::Observer,
    ];
    all.extend(roles.map(|r| (format!("Role::{r:?}"), u64::from(r.code()))));
    all
}
