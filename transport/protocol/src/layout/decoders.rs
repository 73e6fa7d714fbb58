//! Every decoder of shared memory, by name. The fuzzers run this list, like those of `wire` and `tcp`.
//!
//! An entry takes any bytes, never panics and holds no memory. It encodes accepted input again and
//! compares: a format has one encoding of a value and no other. A fuzzer cannot guess a checksum of 64
//! bits. Entries of checked formats therefore also put the right one on their input and expect
//! acceptance.

use super::dense::TaggedU32;
use super::directory::{KEY_CELL_BYTES, KeyCell};
use super::encoding::{self, EncodingCode};
use super::extent::ExtentEntry;
use super::frame::{FrameFlags, FrameHeader, FrameKind, RowsPayload};
use super::function::{
    AtTickProblem, FunctionBody, FunctionCall, FunctionPayload, FunctionProblem, FunctionTrap,
};
use super::lines::{CheckedU64, ClockLine, Reject, RejectCode, SnapshotLine, StateLine};
use super::reject::{RejectReason, RowResource};
use super::reply::ReplyHeader;
use super::ring::RingGeometry;
use super::row::{
    ROW_HEADER_BYTES, RowVersion, copy_verifying, row_checksum, row_head, verify_row,
};
use super::scan::{ScanReply, ScanRequest};
use super::settings;
use super::{LINE_BYTES, Line, line_bytes, line_from_bytes, unpack, word_at};
use crate::ids::RegionKey;
use crate::limits::{RING_BYTES_MAX, ROW_BYTES_MAX};
use crate::table::DType;

/// Function that runs one decoder on arbitrary bytes and drops its result; it panics only on a defect.
pub type Decode = fn(&[u8]);

/// Name and function of each decoder of shared memory, for fuzzing. New entries go to the end: the `fuzz/`
/// crate names an entry by its position.
pub const DECODERS: &[(&str, Decode)] = &[
    ("frame-header", frame_header),
    ("frame-flags", frame_flags),
    ("rows-payload", rows_payload),
    ("reply-header", reply_header),
    ("state-line", state_line),
    ("clock-line", clock_line),
    ("snapshot-line", snapshot_line),
    ("reject-line", reject_line),
    ("checked-u64", checked_u64),
    ("tagged-u32", tagged_u32),
    ("extent-entry", extent_entry),
    ("row", row),
    ("ring-tail", ring_tail),
    ("key-cell", key_cell),
    ("function-call", function_call),
    ("settings", settings_payload),
    ("encoded-values", encoded_values),
    ("scan", scan),
];

/// Salt of all records in these decoders' inputs, fixed so that the checksums of recorded fuzzing seeds still match.
pub const SALT: u64 = 0x7469_6465;

/// Returns the first 64 bytes of `bytes` as a line, padded with zeros.
fn line_of(bytes: &[u8]) -> Line {
    let mut raw = [0; LINE_BYTES];
    for (to, from) in raw.iter_mut().zip(bytes) {
        *to = *from;
    }
    let line = line_from_bytes(&raw);
    debug_assert_eq!(line_bytes(&line), raw, "a line's bytes changed");
    line
}

fn frame_header(bytes: &[u8]) {
    let line = line_of(bytes);
    if let Ok(header) = FrameHeader::from_line(&line) {
        debug_assert_eq!(header.to_line(), line, "two encodings of {header:?}");
        debug_assert!(header.ring_bytes() >= LINE_BYTES as u64 + u64::from(header.payload_len));
        // The checksum covers the payload as it was announced; here it is the rest of the input.
        let payload = bytes.get(LINE_BYTES..).unwrap_or_default();
        let _ = header.hasher().finish_bytes(payload);
    }
}

fn scan(bytes: &[u8]) {
    if let Some(request) = ScanRequest::decode(bytes) {
        debug_assert_eq!(request.encode()[..], *bytes, "two encodings");
    }
    for row_bytes in [0, 4, ROW_BYTES_MAX] {
        if let Some(reply) = ScanReply::decode(bytes, row_bytes) {
            let head = ScanReply::head(reply.next, reply.stored);
            let again = [&head, reply.keys.as_flattened(), reply.values].concat();
            debug_assert_eq!(again, bytes, "two encodings");
        }
    }
}

fn settings_payload(bytes: &[u8]) {
    if let Some(optimizer) = settings::decode(bytes) {
        debug_assert_eq!(settings::encode(&optimizer)[..], *bytes, "two encodings");
    }
    // With a length that a fuzzer does not guess.
    let mut cut = [0; settings::SETTINGS_BYTES];
    for (to, from) in cut.iter_mut().zip(bytes) {
        *to = *from;
    }
    if let Some(optimizer) = settings::decode(&cut) {
        debug_assert_eq!(settings::encode(&optimizer), cut, "two encodings");
    }
}

/// Decodes as many encoded elements as the input has bytes for, at most 8 times the first byte, which also selects the
/// encoding. The length of the encoded bytes is computed, because a fuzzer would not guess it.
fn encoded_values(bytes: &[u8]) {
    let [first, rest @ ..] = bytes else { return };
    let Some(code) = EncodingCode::from_code(first % 5) else {
        return;
    };
    let mut out = Vec::new();
    let guess = usize::from(*first) << 3;
    let mut elements = rest.len().min(guess);
    while let Some(len) = encoding::encoded_bytes(code, elements, rest) {
        if len > rest.len() {
            elements -= 1;
            continue;
        }
        for dtype in [DType::F32, DType::F64] {
            out.clear();
            let done = encoding::decode(code, elements, dtype, &rest[..len], &mut out);
            debug_assert_eq!(done, Ok(()), "{len} bytes were expected");
            debug_assert_eq!(out.len(), elements * dtype.size());
        }
        break;
    }
    out.clear();
    if encoding::decode(code, guess, DType::F32, rest, &mut out).is_err() {
        debug_assert!(out.is_empty(), "refused values are decoded");
    }
}

fn frame_flags(bytes: &[u8]) {
    let code = word_at(bytes, 0) as u16;
    if let Some(flags) = FrameFlags::from_code(code) {
        debug_assert_eq!(flags.code(), code, "two encodings of {flags:?}");
    }
    if let Some(kind) = FrameKind::from_code(code) {
        debug_assert_eq!(kind as u16, code, "two encodings of {kind:?}");
    }
}

fn rows_payload(bytes: &[u8]) {
    let (count, row_bytes) = unpack(word_at(bytes, 0));
    let (count, row_bytes) = (count as usize, row_bytes as usize % (ROW_BYTES_MAX + 1));
    let locs = bytes.len().is_multiple_of(2);
    let parts = RowsPayload::new(count, row_bytes, locs);
    debug_assert!(parts.locs_at >= count * 8 && parts.locs_at <= parts.values_at);
    debug_assert!(!locs || parts.values_at - parts.locs_at >= count * 8);
    debug_assert!(parts.values_at.is_multiple_of(LINE_BYTES));
    debug_assert_eq!(parts.len - parts.values_at, count * row_bytes);
}

fn reply_header(bytes: &[u8]) {
    let line = line_of(bytes);
    if let Some((header, checksum)) = ReplyHeader::from_line(&line) {
        debug_assert_eq!(
            header.to_line(checksum),
            line,
            "two encodings of {header:?}"
        );
        let payload = bytes.get(LINE_BYTES..).unwrap_or_default();
        let _ = header.hasher(SALT).finish_bytes(payload);
    }
}

fn state_line(bytes: &[u8]) {
    let line = line_of(bytes);
    if let Some(state) = StateLine::from_line(&line, SALT) {
        debug_assert_eq!(state.to_line(SALT), line, "two encodings of {state:?}");
    }
    let state = StateLine {
        applied_seq: line[0],
        durable_seq: line[1],
        head_bytes: line[2],
        rejected: line[3],
    };
    debug_assert_eq!(
        StateLine::from_line(&state.to_line(SALT), SALT),
        Some(state)
    );
}

fn clock_line(bytes: &[u8]) {
    let line = line_of(bytes);
    let domain = line[4] as u8;
    if let Some(clock) = ClockLine::from_line(&line, SALT, 0) {
        debug_assert_eq!(clock.to_line(SALT, 0), line, "two encodings of {clock:?}");
    }
    let (slowest, members) = unpack(line[2]);
    let clock = ClockLine {
        min: line[0],
        epoch: line[1],
        slowest,
        members,
    };
    let sealed = clock.to_line(SALT, domain);
    debug_assert_eq!(ClockLine::from_line(&sealed, SALT, domain), Some(clock));
    debug_assert_eq!(ClockLine::from_line(&sealed, SALT, domain ^ 1), None);
}

fn snapshot_line(bytes: &[u8]) {
    let line = line_of(bytes);
    if let Some(snapshot) = SnapshotLine::from_line(&line, SALT) {
        debug_assert_eq!(
            snapshot.to_line(SALT),
            line,
            "two encodings of {snapshot:?}"
        );
    }
    let snapshot = SnapshotLine {
        front: line[0],
        building: line[1],
        min_clock: line[2],
        applied: line[3],
        kept: line[4],
        buffers: line[5],
    };
    for epoch in [line[6], snapshot.kept, snapshot.front] {
        let buffer = snapshot.buffer_of(epoch);
        debug_assert!(buffer.is_none() || snapshot.holds(epoch), "{snapshot:?}");
        debug_assert!(snapshot.epoch_of(epoch) >= epoch, "{snapshot:?}");
    }
    debug_assert_eq!(snapshot.versions().1, snapshot.min_clock);
    let sealed = snapshot.to_line(SALT);
    debug_assert_eq!(SnapshotLine::from_line(&sealed, SALT), Some(snapshot));
}

fn reject_line(bytes: &[u8]) {
    let line = line_of(bytes);
    if let Some(reject) = Reject::from_line(&line, SALT) {
        debug_assert_eq!(reject.to_line(SALT), line, "two encodings of {reject:?}");
    }
    let (code, table) = unpack(line[1]);
    if let Some(resource) = RowResource::from_code(code) {
        debug_assert_eq!(resource as u32, code);
    }
    let reason = RejectCode::from_code(code % 32)
        .and_then(|code| RejectReason::from_numbers(code, [line[2], line[3]]));
    if let Some(reason) = reason {
        let reject = Reject {
            seq: line[0],
            table,
            reason,
        };
        debug_assert_eq!(Reject::from_line(&reject.to_line(SALT), SALT), Some(reject));
    }
}

fn checked_u64(bytes: &[u8]) {
    let cell = CheckedU64([word_at(bytes, 0), word_at(bytes, 8)]);
    if let Some(value) = cell.value(SALT) {
        debug_assert_eq!(CheckedU64::new(value, SALT), cell);
    }
    let sealed = CheckedU64::new(cell.0[0], SALT);
    debug_assert_eq!(sealed.value(SALT), Some(cell.0[0]));
}

fn tagged_u32(bytes: &[u8]) {
    let word = TaggedU32(word_at(bytes, 0));
    if let Some(seq) = word.seq(SALT) {
        debug_assert_eq!(TaggedU32::new(seq, SALT), word);
    }
    let (seq, _) = unpack(word.0);
    debug_assert_eq!(TaggedU32::new(seq, SALT).seq(SALT), Some(seq));
}

fn extent_entry(bytes: &[u8]) {
    let line = line_of(bytes);
    if let Some(entry) = ExtentEntry::from_line(&line, SALT, 1) {
        debug_assert_eq!(entry.to_line(SALT, 1), line, "two encodings of {entry:?}");
    }
    let (key, slots) = unpack(line[1]);
    let entry = ExtentEntry {
        base: line[0],
        key: RegionKey(key),
        slots,
        len: line[2],
        salt: line[3],
    };
    let number = line[4] as u16;
    let sealed = entry.to_line(SALT, number);
    debug_assert_eq!(ExtentEntry::from_line(&sealed, SALT, number), Some(entry));
    debug_assert_eq!(ExtentEntry::from_line(&sealed, SALT, number ^ 1), None);
}

fn key_cell(bytes: &[u8]) {
    let line = line_bytes(&line_of(bytes));
    let Some((raw, rest)) = line.split_first_chunk::<KEY_CELL_BYTES>() else {
        return;
    };
    let index = word_at(rest, 0) as u32;
    if let Some(cell) = KeyCell::from_bytes(raw, SALT, index) {
        let encoded = cell.to_bytes(SALT, index);
        debug_assert_eq!(encoded, *raw, "two encodings of {cell:?}");
    }
    let (key, rkey) = (word_at(raw, 0) as u32, word_at(raw, 8) as u32);
    let key = RegionKey(key);
    let cell = KeyCell { key, rkey };
    let sealed = cell.to_bytes(SALT, index);
    debug_assert_eq!(KeyCell::from_bytes(&sealed, SALT, index), Some(cell));
    debug_assert_eq!(KeyCell::from_bytes(&sealed, SALT, index ^ 1), None);
}

fn function_call(bytes: &[u8]) {
    let code = word_at(bytes, 0);
    if let Some(problem) = FunctionProblem::from_code(code) {
        debug_assert_eq!(problem as u64, code, "two encodings of {problem:?}");
    }
    if let Some(problem) = AtTickProblem::from_code(code) {
        debug_assert_eq!(problem as u64, code, "two encodings of {problem:?}");
    }
    if let Some(trap) = FunctionTrap::from_code(code) {
        debug_assert_eq!(trap as u64, code, "two encodings of {trap:?}");
    }
    if let Some(call) = FunctionCall::decode(bytes) {
        if let FunctionBody::NamedRows(rows) = call.body {
            let mut encoded = vec![0; rows.payload_bytes()];
            rows.encode(&mut encoded);
            debug_assert_eq!(encoded, bytes, "two encodings of {call:?}");
            return;
        }
        let tables = &call.tables[..call.inputs];
        let parameters: Vec<f64> = call.parameters().collect();
        let mut encoded = FunctionPayload::new(call.body, call.reduction, tables, &parameters);
        debug_assert_eq!(encoded.at(call.first), bytes, "two encodings of {call:?}");
    }
}

/// Verifies and copies one row. Input: `key u64 | head 16 bytes | payload`.
fn row(bytes: &[u8]) {
    let key = word_at(bytes, 0);
    let rest = bytes.get(8..).unwrap_or_default();
    let Some((head, payload)) = rest.split_first_chunk::<ROW_HEADER_BYTES>() else {
        return;
    };
    if let Some(ver) = verify_row(SALT, key, head, payload) {
        debug_assert!(ver.is_valid());
        let encoded = row_head(ver, row_checksum(SALT, key, ver, payload));
        debug_assert!(encoded == *head, "a row with a wrong checksum");
    }
    let mut out = vec![0; payload.len()];
    let copy = copy_verifying(SALT, key, head, payload, &mut out);
    let verified = verify_row(SALT, key, head, payload);
    debug_assert!(copy.validated.then_some(copy.ver) == verified && out == payload);
    let ver = RowVersion::of_head(head);
    let sealed = row_head(ver, row_checksum(SALT, key, ver, payload));
    let found = verify_row(SALT, key, &sealed, payload);
    debug_assert!(found == ver.is_valid().then_some(ver));
}

/// Checks which tails a ring's geometry accepts. Input: `size u64 | consumed u64 | tail u64`.
fn ring_tail(bytes: &[u8]) {
    let [size, consumed, tail] = [0, 8, 16].map(|at| word_at(bytes, at));
    let Some(ring) = RingGeometry::new(size as usize % (2 * RING_BYTES_MAX)) else {
        return;
    };
    if !ring.tail_is_sane(consumed, tail) {
        return;
    }
    debug_assert!(tail - consumed <= ring.bytes());
    debug_assert_eq!(ring.offset(tail) + ring.to_wrap(tail), ring.bytes());
    // A client places frames behind its own tail, which counts up from 0.
    let len = ring.frame_bytes_max();
    if tail < 1 << 62
        && let Some(place) = ring.place(consumed, tail, len)
    {
        debug_assert!(place.at == tail + place.pad && ring.to_wrap(place.at) >= len);
        debug_assert!(place.at + len - consumed <= ring.bytes());
    }
}
