//! Tests of F09, F10, F12, F16: refusals, silence, streams cut anywhere.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use tidewater_lanes::fabric::{
    ClientLane, INBOX_KEY, Inbox, LaneError, Mailbox, ReadBatch, ReadDest, RemoteAddr,
};
use tidewater_lanes::tcp::{TcpClientLane, TcpServerLane};
use tidewater_lanes::wake::OsParker;
use tidewater_protocol::ids::RegionKey;
use tidewater_protocol::layout::ring::RingGeometry;
use tidewater_protocol::layout::session::{
    INBOX_RING_AT, INBOX_TAIL_AT, MAILBOX_BYTES, inbox_bytes,
};
use tidewater_runtime::clock::{self, Deadline};
use tidewater_runtime::mem::Region;

use crate::harness::{
    DATA_BYTES, Memory, RING, SALT, Served, noise, plain, served, soon, unserved,
};
use crate::writes::{inbox_at, tail_cell};

pub(crate) fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

pub(crate) fn lane_over(stream: TcpStream) -> (TcpClientLane, OsParker) {
    let parker = OsParker::new(Duration::ZERO).unwrap();
    let region = Arc::new(Region::anonymous(MAILBOX_BYTES).unwrap());
    let mailbox = Mailbox::new(region, 0, MAILBOX_BYTES).unwrap();
    let lane =
        TcpClientLane::new(stream, "server".into(), mailbox, parker.reactor().clone()).unwrap();
    (lane, parker)
}

pub(crate) fn port_over(stream: TcpStream) -> (TcpServerLane, Inbox, OsParker) {
    let parker = OsParker::new(Duration::ZERO).unwrap();
    let region = Arc::new(Region::anonymous(inbox_bytes(RING)).unwrap());
    let inbox = Inbox::new(region, 0, RingGeometry::new(RING).unwrap(), SALT).unwrap();
    inbox.reset_tail(0);
    let port = TcpServerLane::new(stream, "client".into(), parker.reactor().clone()).unwrap();
    (port, inbox, parker)
}

fn read(lane: &mut TcpClientLane, from: RemoteAddr, len: u32) -> Result<(), LaneError> {
    let mut body = vec![0; len as usize];
    lane.read(
        &[plain(from, len, 0)],
        ReadDest {
            head: &mut [],
            body: &mut body,
        },
        soon(),
    )
}

/// An access that is to be refused: the call, key, address, and the text of the error.
type Bad = (Try, RegionKey, u64, &'static str, &'static str);
type Try = fn(&mut TcpClientLane, RemoteAddr) -> Result<(), LaneError>;

fn bad_accesses(memory: &Memory) -> Vec<Bad> {
    let (data, counters, inbox) = (memory.data_key, memory.counter_key, INBOX_KEY);
    let read8: Try = |l, at| read(l, at, 8);
    let add: Try = |l, at| l.fetch_add(at, 1, soon()).map(drop);
    let swap: Try = |l, at| l.compare_swap(at, 0, 1, soon()).map(drop);
    // The answer to a write comes with the next operation.
    let write: Try = |l, at| l.write(at, &[1; 64]).and_then(|()| read(l, at, 8));
    let (past, end) = (DATA_BYTES as u64, inbox_bytes(RING) as u64);
    let (stale, right) = (
        "key of another start of this server",
        "no right to do that there",
    );
    let (outside, misaligned) = ("outside the region", "misaligned");
    vec![
        (read8, RegionKey(data.0 + 77), 0, "read", "unknown key"),
        (read8, RegionKey(data.0 ^ 1 << 21), 0, "read", stale),
        (read8, inbox, 0, "read", stale),
        (read8, data, past, "read", outside),
        (read8, data, u64::MAX - 7, "read", outside),
        (read8, data, 4, "read", misaligned),
        (add, data, 0, "fetch_add", right),
        (add, counters, 4096, "fetch_add", outside),
        (add, counters, 12, "fetch_add", misaligned),
        (swap, data, 8, "compare_swap", right),
        (write, data, 0, "write", right),
        (write, counters, 0, "write", right),
        (write, inbox, end - 56, "write", outside),
        (write, inbox, u64::MAX - 7, "write", outside),
        (write, inbox, 4100, "write", misaligned),
    ]
}

#[test]
fn f09_f10_f16_what_is_not_allowed_breaks_its_lane_and_changes_nothing() {
    let memory = Memory::new();
    let (mut other, _s, _other_server, _i) = served(&memory);
    let cases = bad_accesses(&memory);
    for (attempt, key, addr, op, why) in &cases {
        let (mut lane, _near, server, inbox) = served(&memory);
        lane.fetch_add(memory.counter(64), 1, soon()).unwrap();
        let at = RemoteAddr {
            key: *key,
            addr: *addr,
        };
        let e = attempt(&mut lane, at).unwrap_err();
        let LaneError::Access {
            op: o,
            key: k,
            addr: a,
            why: w,
            peer,
            ..
        } = &e
        else {
            panic!("{op} at {addr:#x}: {e}");
        };
        assert_eq!((*o, *k, *a, *w), (*op, key.0, *addr, *why));
        assert_eq!(peer, lane.peer());
        // Broken for good, with the same text.
        let again = [
            lane.poll().map(drop),
            lane.write(inbox_at(0), &[0; 8]),
            lane.fetch_add(memory.counter(64), 1, soon()).map(drop),
        ];
        for result in again {
            assert_eq!(result.unwrap_err().to_string(), e.to_string());
        }
        assert!(server.broken().to_string().contains(why));
        assert_eq!((inbox.header(0), inbox.tail()), ([0; 8], Some(0)));
        read(&mut other, memory.at(0), 8).unwrap();
    }
    let counted = memory.counters.words(64, 8).unwrap().load(0);
    assert_eq!(counted, cases.len() as u64);
    let mut now = vec![0; DATA_BYTES];
    memory
        .data
        .words(0, DATA_BYTES)
        .unwrap()
        .copy_out(0, &mut now);
    assert!(now == noise(DATA_BYTES));
}

#[test]
fn one_bad_read_in_a_list_is_refused_whole_and_earlier_answers_arrive() {
    let memory = Memory::new();
    let (mut lane, _near, _server, _inbox) = served(&memory);
    let batch = |addr, tag| ReadBatch {
        ops: vec![
            plain(memory.at(0), 5000, 0),
            plain(memory.at(addr), 5000, 5000),
        ],
        body: vec![0; 10_000],
        tag,
        ..ReadBatch::default()
    };
    lane.submit_read(batch(8192, 1)).unwrap();
    lane.submit_read(batch(DATA_BYTES as u64, 2)).unwrap();
    let until = soon();
    let e = loop {
        assert!(!until.passed());
        if let Err(e) = lane.poll() {
            break e;
        }
    };
    assert!(matches!(e, LaneError::Access { .. }), "{e}");
    let first = lane.poll_read().expect("the first batch was answered");
    assert!(first.tag == 1 && first.body[..5000] == noise(5000));
    assert!(lane.poll_read().is_none());
}

#[test]
fn f12_a_silent_server_costs_the_deadline_and_no_more() {
    let (mut lane, _port, _inbox, _sleepers) = unserved();
    let before = clock::now();
    let deadline = Deadline::after(Duration::from_millis(50));
    let e = lane.fetch_add(inbox_at(0), 1, deadline).unwrap_err();
    assert!(
        matches!(
            &e,
            LaneError::Deadline {
                op: "fetch_add",
                ..
            }
        ),
        "{e}"
    );
    assert!(before.elapsed() >= Duration::from_millis(50));
    // The answer might still come: the lane is unusable.
    assert!(matches!(lane.poll(), Err(LaneError::Deadline { .. })));
}

/// Operations of a client in the cut sessions; returns the number completed.
fn script(lane: &mut TcpClientLane, memory: &Memory) -> Result<(), (u32, LaneError)> {
    let step = |n, r: Result<(), LaneError>| r.map_err(|e| (n, e));
    step(0, lane.write(inbox_at(INBOX_RING_AT), &[0x11; 128]))?;
    step(
        0,
        lane.write_signal(inbox_at(INBOX_TAIL_AT), &tail_cell(128)),
    )?;
    step(1, read(lane, memory.at(64), 100))?;
    step(2, lane.write(inbox_at(INBOX_RING_AT + 128), &[0x22; 64]))?;
    step(
        2,
        lane.write_signal(inbox_at(INBOX_TAIL_AT), &tail_cell(192)),
    )?;
    step(3, lane.fetch_add(memory.counter(0), 1, soon()).map(drop))
}

/// Copies `limit` bytes, then cuts both directions.
fn copy(mut from: TcpStream, mut to: TcpStream, limit: usize) {
    let (mut left, mut buffer) = (limit, [0; 4096]);
    while left > 0 {
        let most = left.min(buffer.len());
        match from.read(&mut buffer[..most]) {
            Ok(n) if n > 0 && to.write_all(&buffer[..n]).is_ok() => left -= n,
            _ => break,
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

fn cut_session(up: usize, down: usize) -> Result<(), (u32, LaneError)> {
    let memory = Memory::new_small();
    let ((client, a), (b, server)) = (sockets(), sockets());
    let (mut lane, _near) = lane_over(client);
    let (port, inbox, far) = port_over(server);
    let served = Served::new(far, port, memory.exports.view(), inbox.clone());
    let (a2, b2) = (a.try_clone().unwrap(), b.try_clone().unwrap());
    let proxies = [
        std::thread::spawn(move || copy(a, b, up)),
        std::thread::spawn(move || copy(b2, a2, down)),
    ];
    let result = script(&mut lane, &memory);
    if let Err((_, e)) = &result {
        assert!(
            matches!(e, LaneError::Broken { .. }),
            "{up} up, {down} down: {e}"
        );
        assert!(lane.poll().is_err());
    }
    drop(lane);
    assert!(matches!(served.broken(), LaneError::Broken { .. }));
    proxies.into_iter().for_each(|p| p.join().unwrap());
    let (tail, added) = (inbox.tail(), memory.counters.words(0, 8).unwrap().load(0));
    let whole = |at, len, byte| {
        let mut bytes = vec![0; len];
        inbox.payload(at, 0, len).copy_out(0, &mut bytes);
        bytes.iter().all(|b| *b == byte)
    };
    assert!(
        matches!(tail, Some(0 | 128 | 192)),
        "{up} up, {down} down: {tail:?}"
    );
    assert!(
        tail == Some(0) || whole(0, 128, 0x11),
        "{up} up, {down} down"
    );
    assert!(
        tail != Some(192) || whole(128, 64, 0x22),
        "{up} up, {down} down"
    );
    assert!(
        added == 0 || tail == Some(192),
        "an atomic overtook a write"
    );
    assert!(result.is_err() || added == 1);
    result
}

#[test]
fn f10_a_stream_cut_after_every_byte_breaks_the_lane_and_nothing_else() {
    let (up, down) = (
        32 + 128 + 32 + 16 + 48 + 32 + 64 + 32 + 16 + 32,
        32 + 100 + 32,
    );
    cut_session(usize::MAX, usize::MAX).unwrap();
    let mut reached = [0; 4];
    for k in 0..up {
        let (step, _) = cut_session(k, usize::MAX).unwrap_err();
        reached[step as usize] += 1;
    }
    for k in 0..down {
        let (step, _) = cut_session(usize::MAX, k).unwrap_err();
        reached[step as usize] += 1;
    }
    assert!(reached[1] > 100 && reached[3] > 10, "{reached:?}");
}
