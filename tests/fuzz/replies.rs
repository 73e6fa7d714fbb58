//! A client with a server that writes arbitrary mailboxes and read data: calls end in time, and only
//! data with a matching checksum is accepted.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidewater::{ClientError, PullMode, PullOptions, SyncMode};
use tidewater_lanes::fabric::Mailbox;
use tidewater_protocol::ids::RegionKey;
use tidewater_protocol::layout::extent::ExtentEntry;
use tidewater_protocol::layout::frame::{FrameHeader, FrameKind};
use tidewater_protocol::layout::lines::{ClockLine, Reject, RejectCode, SnapshotLine, StateLine};
use tidewater_protocol::layout::reject::RejectReason;
use tidewater_protocol::layout::reply::{REPLY_HEADER_BYTES, ReplyHeader};
use tidewater_protocol::layout::session::{
    INBOX_RING_AT, MAILBOX_BYTES, MAILBOX_STATE_AT, REPLY_SLOTS, mailbox_clock_at,
    mailbox_reject_at, mailbox_reply_at,
};
use tidewater_protocol::layout::{Line, line_bytes, line_from_bytes};
use tidewater_protocol::table::PushOp;

use crate::fuzzing::{EDGES, Random};
use crate::hostile::{RING_BYTES, SESSION, Shared, client};
use crate::tables::{SALT, script, use_table};

fn any(random: &mut Random) -> u64 {
    match random.under(3) {
        0 => random.under(40) as u64,
        1 => EDGES[random.under(EDGES.len())],
        _ => random.next(),
    }
}

/// The newest request in the client's frames: its tag, kind and count.
fn request(random: &mut Random, written: &[u8]) -> Option<FrameHeader> {
    let lines = written.get(INBOX_RING_AT..)?.chunks_exact(64);
    let asks = lines.filter_map(|raw| {
        let header = FrameHeader::from_line(&line_from_bytes(raw.try_into().ok()?)).ok()?;
        [FrameKind::Gather, FrameKind::Resolve]
            .contains(&header.kind)
            .then_some(header)
    });
    let all: Vec<FrameHeader> = asks.collect();
    all.get(random.under(all.len())).copied()
}

fn put(mailbox: &Mailbox, at: usize, line: &Line) {
    let (region, base) = mailbox.region();
    region.words_mut(base + at, 64).unwrap().store_line(0, line);
}

/// Writes arbitrary data into the mailbox, with or without the seal of the claimed server.
fn scribble(random: &mut Random, mailbox: &Mailbox, written: &[u8]) {
    let salt = if random.under(8) == 0 {
        random.next()
    } else {
        SESSION.0
    };
    let mut w = || any(random);
    match w() % 5 {
        0 => {
            let line = StateLine {
                applied_seq: w(),
                durable_seq: w() % 4,
                head_bytes: w() % 128 * 64,
                rejected: w(),
            };
            put(mailbox, MAILBOX_STATE_AT, &line.to_line(salt));
        }
        1 => {
            let (seq, code) = (w(), RejectCode::from_code(1 + w() as u32 % 12).unwrap());
            let (table, numbers) = (w() as u32, [w(), w()]);
            let reason = RejectReason::from_numbers(code, numbers);
            let reason = reason.unwrap_or(RejectReason::TableReleased { table });
            let line = Reject { seq, table, reason };
            put(mailbox, mailbox_reject_at(seq), &line.to_line(salt));
        }
        2 => {
            let domain = w() as u8 % 64;
            let line = ClockLine {
                min: w(),
                epoch: w(),
                slowest: w() as u32,
                members: w() as u32,
            };
            put(
                mailbox,
                mailbox_clock_at(domain),
                &line.to_line(salt, domain),
            );
        }
        3 => reply(random, mailbox, written, salt),
        _ => {
            let line = std::array::from_fn(|_| w());
            put(mailbox, w() as usize % (MAILBOX_BYTES / 64) * 64, &line);
        }
    }
}

fn reply(random: &mut Random, mailbox: &Mailbox, written: &[u8], salt: u64) {
    let Some(asked) = request(random, written) else {
        return;
    };
    let slot = (asked.user_tag & 0xff) as usize % REPLY_SLOTS;
    let due = match asked.kind {
        FrameKind::Resolve => asked.count * 8,
        _ => asked.count * if random.under(2) == 0 { 16 } else { 4 },
    };
    let payload_len = if random.under(4) == 0 {
        any(random) as u32
    } else {
        due
    };
    let code = random.under(20) as u32;
    let mut header = ReplyHeader {
        kind: asked.kind as u16,
        refused: RejectCode::from_code(code)
            .and_then(|code| RejectReason::from_numbers(code, [1, 0])),
        user_tag: asked.user_tag,
        payload_len,
        count: asked.count,
        slot: slot as u32,
        table: asked.table,
    };
    if random.under(4) == 0 {
        header.user_tag = any(random);
    }
    let len = (payload_len as usize).min(4096);
    let mut payload = Vec::with_capacity(len);
    while payload.len() < len {
        // Locations near the existing extents, or anywhere.
        let extent = random.under(4) as u64;
        let loc = if random.under(4) == 0 {
            random.next()
        } else {
            extent << 32 | random.under(64) as u64
        };
        payload.extend_from_slice(&loc.to_le_bytes());
    }
    payload.truncate(len);
    let at = mailbox_reply_at(slot, RING_BYTES);
    let (region, base) = mailbox.region();
    let to = base + at + REPLY_HEADER_BYTES;
    region
        .words_mut(to, len.next_multiple_of(8))
        .unwrap()
        .copy_in(0, &payload);
    let checksum = header.hasher(salt).finish_bytes(&payload);
    put(mailbox, at, &header.to_line(checksum));
}

/// Bytes for a read: for a line mostly data with a matching checksum, otherwise noise.
fn land(random: &mut Random, len: u32, head: &mut [u8], body: &mut [u8]) {
    for word in head.chunks_mut(8).chain(body.chunks_mut(8)) {
        let bytes = any(random).to_le_bytes();
        word.copy_from_slice(&bytes[..word.len()]);
    }
    if len != 64 || head.len() != 64 || random.under(4) == 0 {
        return;
    }
    let mut w = || any(random);
    let line = if w() % 2 == 0 {
        let line = SnapshotLine {
            front: w(),
            building: w(),
            min_clock: w(),
            applied: w(),
            kept: w(),
            buffers: w(),
        };
        line.to_line(SALT)
    } else {
        let line = ExtentEntry {
            base: w(),
            key: RegionKey(1),
            slots: w() as u32,
            len: w(),
            salt: w(),
        };
        line.to_line(SALT, 1 + (w() % 3) as u16)
    };
    head.copy_from_slice(&line_bytes(&line));
}

fn hostile(random: &mut Random) -> Shared {
    let mut script = script(random);
    script.poll = |random, mailbox, written| {
        for _ in 0..random.under(3) {
            scribble(random, mailbox, written);
        }
    };
    script.read = |random, op, head, body| land(random, op.len, head, body);
    script.breaks = [0, 0, 40, 4][random.under(4)];
    Arc::new(Mutex::new(script))
}

#[test]
fn any_mailbox_and_any_memory_end_in_time() {
    let execs = crate::execs() / 50;
    let (mut good, mut slowest) = (0u64, Duration::ZERO);
    crate::run("replies", execs, |random| {
        let script = hostile(random);
        let sync = [SyncMode::Asp, SyncMode::Bsp, SyncMode::Ssp(1)][random.under(3)];
        let mut client = client(&script, sync).unwrap();
        let table = client.open_table::<f32>("t").unwrap();
        for _ in 0..4 {
            let began = tidewater_runtime::clock::now();
            good += u64::from(use_table(&mut client, &table, random));
            slowest = slowest.max(began.elapsed());
        }
        let _ = client.global_clock();
    });
    println!("replies: {good} calls succeeded, the slowest took {slowest:.1?}");
    // Deadlines are 300 us each; the machine may be busy.
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
    assert!(good > execs / 20, "{good}");
}

/// No checksum matches noise: no row of it is accepted, however often it is read.
#[test]
fn no_row_of_noise_is_believed() {
    let execs = crate::execs() / 50;
    crate::run("noise", execs, |random| {
        let mut script = script(random);
        script.breaks = 0;
        let shared = Arc::new(Mutex::new(script));
        let mut client = client(&shared, SyncMode::Asp).unwrap();
        let table = client.open_table::<f32>("t").unwrap();
        let options = PullOptions {
            mode: [PullMode::Consistent, PullMode::Snapshot, PullMode::Gather][random.under(3)],
            timeout: Duration::from_micros(100),
            ..PullOptions::default()
        };
        let mut rows = [0.0; 8];
        client
            .pull_rows(&table, &[1, 2], &mut rows, options)
            .unwrap_err();
        client
            .pull_range(&table, 0, &mut rows, options)
            .unwrap_err();
        let counters = client.counters();
        assert_eq!(
            counters.rows_consistent + counters.blocks_consistent + counters.rows_gathered,
            0
        );
    });
}

/// A status that counts a refused frame before its record has arrived is ignored. The push is neither
/// applied nor refused, and the wait ends by its deadline.
#[test]
fn a_refusal_without_its_cell_leaves_the_outcome_unknown() {
    let mut random = Random::of(1, "rejects", 0);
    let mut script = script(&mut random);
    script.poll = |_, mailbox, _| put(mailbox, MAILBOX_STATE_AT, &one_refused().to_line(SESSION.0));
    let shared = Arc::new(Mutex::new(script));
    let mut client = client(&shared, SyncMode::Asp).unwrap();
    client.set_timeout(Duration::from_millis(100));
    let table = client.open_table::<f32>("t").unwrap();
    let row = vec![1.0; table.dim()];
    let pushed = client.push_rows(&table, &[1], &row, PushOp::Sum).unwrap();
    for _ in 0..2 {
        match client.wait_applied(&pushed) {
            Err(ClientError::Deadline { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    // The record comes after the status that counts it.
    shared.lock().unwrap().poll = |_, mailbox, _| {
        let reject = Reject {
            seq: 1,
            table: 1,
            reason: RejectReason::NotFinite { row: 0, key: 1 },
        };
        put(mailbox, mailbox_reject_at(1), &reject.to_line(SESSION.0));
    };
    client.set_timeout(Duration::from_secs(30));
    for _ in 0..2 {
        match client.wait_applied(&pushed) {
            Err(ClientError::Rejected { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Status of a ring with a single frame, which was refused.
fn one_refused() -> StateLine {
    StateLine {
        applied_seq: 1,
        durable_seq: 1,
        head_bytes: 0,
        rejected: 1,
    }
}
