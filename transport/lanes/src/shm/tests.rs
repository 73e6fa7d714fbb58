//! Tests of the contract's clauses between two threads of one process.

use std::thread;
use std::time::Duration;

use super::*;
use crate::fabric::{
    ClientLane, INBOX_KEY, Inbox, LaneError, Mailbox, ReadBatch, ReadDest, ReadOp, RegionTable,
    RemoteAddr, SPIN, ServerLane,
};
use crate::wake::OsParker;
use tidewater_protocol::ids::RegionKey;
use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::layout::lines::{CheckedU64, StateLine};
use tidewater_protocol::layout::session::{
    INBOX_RING_AT, INBOX_TAIL_AT, MAILBOX_BYTES, MAILBOX_STATE_AT, inbox_bytes, mailbox_bytes,
};
use tidewater_protocol::layout::{line_bytes, word_at};
use tidewater_protocol::limits::RING_BYTES_MIN;
use tidewater_runtime::clock::{self, Deadline};
use tidewater_runtime::mem::Region;
use tidewater_runtime::sync::Arc;
use tidewater_runtime::wait::wait_until;

const CHECK: u8 = 0x5a;
const SALT: u64 = 0x7157;
const PUBLIC_BYTES: usize = 64 << 10;
/// The applier's parked flag: the last line of public memory.
const DOZE_AT: usize = PUBLIC_BYTES - 64;

/// A server with one applier and one client thread, connected.
struct World {
    server: Arc<ServerMemory>,
    applier: OsParker,
    client: OsParker,
    end: ApplierEnd,
    pair: ShmPair,
}

fn world() -> World {
    let (public, public_fd) = Region::memfd("public", PUBLIC_BYTES).unwrap();
    let (counters, counters_fd) = Region::memfd("counters", 4096).unwrap();
    let public = Arc::new(public);
    for at in (0..DOZE_AT).step_by(8) {
        public.words_mut(at, 8).unwrap().store(0, mix64(at as u64));
    }
    let counters = (Arc::new(counters), counters_fd);
    let server = ServerMemory::new((Arc::clone(&public), public_fd), counters, CHECK).unwrap();
    let server = Arc::new(server);
    let mut applier = OsParker::new(SPIN).unwrap();
    applier.add_parked_flag(public, DOZE_AT);
    let mut client = OsParker::new(SPIN).unwrap();
    let end = ApplierEnd {
        parked_flag_at: DOZE_AT as u64,
        waker: applier.waker().clone(),
    };
    let pair = pair(&server, &end, client.waker(), RING_BYTES_MIN, SALT).unwrap();
    let (region, at) = pair.lane.parked_flag();
    client.add_parked_flag(region, at);
    World {
        server,
        applier,
        client,
        end,
        pair,
    }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(5))
}

const fn at(memory: u32, addr: u64) -> RemoteAddr {
    let key = RegionKey(memory << 28 | (CHECK as u32) << 20);
    RemoteAddr { key, addr }
}

const fn inbox(addr: usize) -> RemoteAddr {
    RemoteAddr {
        key: INBOX_KEY,
        addr: addr as u64,
    }
}

const fn op(from: RemoteAddr, len: u32) -> ReadOp {
    ReadOp {
        from,
        len,
        head_len: 0,
        head_at: 0,
        body_at: 0,
        fence: false,
    }
}

fn tail_cell(tail: u64) -> Vec<u8> {
    let CheckedU64(words) = CheckedU64::new(tail, SALT);
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// Reads one word through a lane.
fn read_word(lane: &mut ShmClientLane, from: RemoteAddr) -> Result<u64, LaneError> {
    let mut body = [0; 8];
    let head = &mut [];
    let body_of = &mut body;
    lane.read(
        &[op(from, 8)],
        ReadDest {
            head,
            body: body_of,
        },
        soon(),
    )?;
    Ok(word_at(&body, 0))
}

#[test]
fn f01_reads_return_the_bytes_asked_for_and_touch_no_other() {
    let mut w = world();
    let ops = [
        ReadOp {
            head_len: 16,
            head_at: 8,
            body_at: 3,
            ..op(at(0, 64), 41)
        },
        ReadOp {
            body_at: 40,
            fence: true,
            ..op(at(0, 1024), 7)
        },
        ReadOp {
            head_len: 8,
            head_at: 32,
            ..op(at(0, 2048), 8)
        },
    ];
    let (mut head, mut body) = ([0xee; 48], [0xee; 50]);
    let dest = ReadDest {
        head: &mut head,
        body: &mut body,
    };
    w.pair.lane.read(&ops, dest, soon()).unwrap();
    let memory: Vec<u8> = (0..4096u64)
        .step_by(8)
        .flat_map(|at| mix64(at).to_le_bytes())
        .collect();
    let (mut want_head, mut want_body) = ([0xee; 48], [0xee; 50]);
    want_head[8..24].copy_from_slice(&memory[64..80]);
    want_head[32..40].copy_from_slice(&memory[2048..2056]);
    want_body[3..28].copy_from_slice(&memory[80..105]);
    want_body[40..47].copy_from_slice(&memory[1024..1031]);
    assert_eq!((head, body), (want_head, want_body));
}

#[test]
fn f03_a_fenced_read_is_not_older_than_the_read_before_it() {
    // The server stores n in the first word, then (released) in the second. A client that reads the second
    // and then, fenced, the first may not find the first behind.
    let mut w = world();
    let public = Arc::clone(w.server.public());
    let writer = thread::spawn(move || {
        let words = public.words_mut(0, 16).unwrap();
        for n in 1..=200_000 {
            words.store(0, n);
            words.store_release(8, n);
        }
    });
    let ops = [
        ReadOp {
            body_at: 0,
            ..op(at(0, 8), 8)
        },
        ReadOp {
            body_at: 8,
            fence: true,
            ..op(at(0, 0), 8)
        },
    ];
    let mut body = [0; 16];
    while !writer.is_finished() {
        let dest = ReadDest {
            head: &mut [],
            body: &mut body,
        };
        w.pair.lane.read(&ops, dest, soon()).unwrap();
        let (second, first) = (word_at(&body, 0), word_at(&body, 8));
        assert!(
            second > 200_000 || first >= second,
            "{first} behind {second}"
        );
    }
    writer.join().unwrap();
}

#[test]
fn f04_f05_who_sees_a_later_write_or_atomic_sees_the_earlier_writes() {
    const ROUNDS: u64 = 20_000;
    let World {
        server, mut pair, ..
    } = world();
    let watcher = {
        let (inbox, server) = (pair.inbox.clone(), Arc::clone(&server));
        thread::spawn(move || {
            let (mut seen, deadline) = (0, soon());
            while seen < ROUNDS && !deadline.passed() {
                let count = server.counters().words(8, 8).unwrap().load_acquire(0);
                let by_count = inbox.payload(0, 0, 8).load(0);
                assert!(
                    by_count >= count,
                    "atomic {count} overtook write {by_count}"
                );
                if let Some(tail) = inbox.tail() {
                    let frame = inbox.payload(0, 64, 8).load(0);
                    assert!(frame >= tail, "tail {tail} overtook frame {frame}");
                    seen = tail.min(count);
                }
            }
            seen
        })
    };
    for n in 1..=ROUNDS {
        pair.lane
            .write(inbox(INBOX_RING_AT), &n.to_le_bytes())
            .unwrap();
        assert_eq!(pair.lane.fetch_add(at(1, 8), 1, soon()).unwrap(), n - 1);
        pair.lane
            .write(inbox(INBOX_RING_AT + 64), &n.to_le_bytes())
            .unwrap();
        pair.lane
            .write(inbox(INBOX_TAIL_AT), &tail_cell(n))
            .unwrap();
    }
    assert_eq!(watcher.join().unwrap(), ROUNDS);
}

/// Waits for the tail to reach `tail`.
fn await_tail(parker: &mut OsParker, inbox: &Inbox, tail: u64) -> Option<u64> {
    let look = || Ok::<_, LaneError>(inbox.tail().filter(|t| *t >= tail));
    wait_until(parker, soon(), look).unwrap()
}

/// Waits for a status record with `seq` as applied.
fn await_applied(parker: &mut OsParker, mailbox: &Mailbox, seq: u64) -> Option<u64> {
    wait_until(parker, soon(), || {
        let line = StateLine::from_line(&mailbox.line(MAILBOX_STATE_AT), SALT);
        Ok::<_, LaneError>(line.map(|l| l.applied_seq).filter(|s| *s >= seq))
    })
    .unwrap()
}

#[test]
fn f06_f15_f17_no_wake_up_is_lost_around_the_spin_limit() {
    const SIGNALS: u64 = 1_000;
    // A signal that is lost costs the whole deadline; a busy machine costs tenths of a second.
    const LATE: Duration = Duration::from_secs(2);
    let World {
        mut applier,
        mut client,
        pair,
        ..
    } = world();
    let ShmPair {
        mut lane,
        mut port,
        inbox: received,
        session,
    } = pair;
    // Most gaps end within half a spin of the limit, when the other end is about to sleep. One in eight is
    // up to eight times as long; the other end then sleeps.
    let idle = |n: u64| {
        let (draw, spin) = (mix64(n ^ 0x1d1e), SPIN.as_nanos() as u64);
        let around = spin / 2 + draw % spin;
        let gap = Duration::from_nanos(if (draw >> 60) < 2 { 8 * around } else { around });
        let until = Deadline::after(gap);
        while !until.passed() {
            std::hint::spin_loop();
        }
    };
    let server = thread::spawn(move || {
        for n in 1..=SIGNALS {
            await_tail(&mut applier, &received, n * 64).expect("a signal of the client was lost");
            idle(n << 32);
            let state = StateLine {
                applied_seq: n,
                ..StateLine::default()
            };
            port.post(MAILBOX_STATE_AT, &line_bytes(&state.to_line(SALT)))
                .unwrap();
            port.signal().unwrap();
        }
    });
    let mut slowest = Duration::ZERO;
    for n in 1..=SIGNALS {
        idle(n);
        let start = clock::now();
        lane.write_signal(inbox(INBOX_TAIL_AT), &tail_cell(n * 64))
            .unwrap();
        let mailbox = lane.mailbox().clone();
        await_applied(&mut client, &mailbox, n).expect("a signal of the port was lost");
        slowest = slowest.max(start.elapsed());
    }
    server.join().unwrap();
    drop(session);
    assert!(slowest < LATE, "a round trip took {slowest:?}");
}

#[test]
fn f08_atomics_of_all_lanes_add_up() {
    const EACH: u64 = 20_000;
    let mut w = world();
    let second = pair(&w.server, &w.end, w.client.waker(), RING_BYTES_MIN, SALT).unwrap();
    let counters = Arc::clone(w.server.counters());
    let mut other = second.lane;
    let thread = thread::spawn(move || {
        for _ in 0..EACH {
            other.fetch_add(at(1, 64), 1, soon()).unwrap();
        }
        other
    });
    for _ in 0..EACH {
        w.pair.lane.fetch_add(at(1, 64), 1, soon()).unwrap();
    }
    let mut other = thread.join().unwrap();
    assert_eq!(counters.words(64, 8).unwrap().load(0), 2 * EACH);
    assert_eq!(
        other.compare_swap(at(1, 64), 0, 7, soon()).unwrap(),
        2 * EACH
    );
    assert_eq!(
        w.pair
            .lane
            .compare_swap(at(1, 64), 2 * EACH, 7, soon())
            .unwrap(),
        2 * EACH
    );
    assert_eq!(read_word(&mut other, at(1, 64)).unwrap(), 7);
}

type Act = fn(&mut ShmClientLane) -> Result<(), LaneError>;

#[test]
fn f09_f10_f16_a_refused_access_changes_nothing_and_breaks_its_lane_only() {
    const OTHER_START: RemoteAddr = RemoteAddr {
        key: RegionKey(0x0010_0000),
        addr: 0,
    };
    const UNKNOWN: RemoteAddr = at(2, 0);
    const END: u64 = PUBLIC_BYTES as u64;
    let acts: &[Act] = &[
        |l| read_word(l, OTHER_START).map(drop),
        |l| read_word(l, UNKNOWN).map(drop),
        |l| read_word(l, inbox(0)).map(drop),
        |l| read_word(l, at(0, END)).map(drop),
        |l| read_word(l, at(0, END - 4)).map(drop),
        |l| read_word(l, at(0, 12)).map(drop),
        |l| read_word(l, at(0, u64::MAX - 7)).map(drop),
        |l| l.write(at(0, 0), &[1; 8]),
        |l| l.write(at(1, 0), &[1; 8]),
        |l| l.write(inbox(4), &[1; 8]),
        |l| l.write(inbox(inbox_bytes(RING_BYTES_MIN)), &[1; 8]),
        |l| l.write(inbox(inbox_bytes(RING_BYTES_MIN) - 8), &[1; 9]),
        |l| l.write_signal(inbox(usize::MAX - 7), &[1; 16]),
        |l| l.fetch_add(at(0, 0), 1, soon()).map(drop),
        |l| l.fetch_add(at(1, 4096), 1, soon()).map(drop),
        |l| l.fetch_add(at(1, 4), 1, soon()).map(drop),
        |l| l.fetch_add(inbox(0), 1, soon()).map(drop),
        |l| l.compare_swap(OTHER_START, 0, 1, soon()).map(drop),
    ];
    for (i, act) in acts.iter().enumerate() {
        let mut w = world();
        let neighbour = pair(&w.server, &w.end, w.client.waker(), RING_BYTES_MIN, SALT).unwrap();
        let image = |w: &World| -> Vec<u64> {
            let window = w.pair.inbox.window();
            let inbox = (0..window.len())
                .step_by(8)
                .map(|at| window.as_read().load(at));
            let counters = w.server.counters().words(0, 4096).unwrap();
            inbox
                .chain((0..4096).step_by(8).map(|at| counters.load(at)))
                .collect()
        };
        let before = image(&w);
        let error = act(&mut w.pair.lane).unwrap_err();
        assert!(
            matches!(error, LaneError::Access { .. }),
            "act {i}: {error}"
        );
        assert_eq!(image(&w), before, "act {i} changed something");
        let later = w
            .pair
            .lane
            .write(inbox(INBOX_TAIL_AT), &tail_cell(64))
            .unwrap_err();
        assert!(
            matches!(later, LaneError::Broken { .. }),
            "act {i}: {later}"
        );
        assert_eq!(image(&w), before, "act {i}: the lane still writes");
        let mut lane = neighbour.lane;
        lane.write(inbox(INBOX_TAIL_AT), &tail_cell(64)).unwrap();
        assert_eq!(neighbour.inbox.tail(), Some(64));
    }
}

#[test]
fn a_fault_of_the_caller_is_told_and_breaks_nothing() {
    let mut w = world();
    let lane = &mut w.pair.lane;
    let mut body = [0; 8];
    for op in [
        op(at(0, 0), 16),
        ReadOp {
            head_len: 16,
            ..op(at(0, 0), 8)
        },
        ReadOp {
            body_at: usize::MAX,
            ..op(at(0, 0), 8)
        },
        ReadOp {
            head_len: 4,
            ..op(at(0, 0), 8)
        },
    ] {
        let dest = ReadDest {
            head: &mut [0; 64],
            body: &mut body,
        };
        let error = lane.read(&[op], dest, soon()).unwrap_err();
        assert!(matches!(error, LaneError::Usage { .. }), "{op:?}: {error}");
    }
    assert!(
        !lane
            .write_signal(inbox(0), &[0; 65])
            .unwrap_err()
            .is_fatal()
    );
    for place in [MAILBOX_BYTES, MAILBOX_BYTES - 4, 4, usize::MAX - 3] {
        let error = w.pair.port.post(place, &[0; 8]).unwrap_err();
        assert!(!error.is_fatal(), "{place}: {error}");
    }
    assert_eq!(read_word(lane, at(0, 8)).unwrap(), mix64(8));
}

#[test]
fn f07_the_source_is_copied_before_the_call_returns() {
    let mut w = world();
    let mut source = vec![5; 64];
    w.pair.lane.write(inbox(INBOX_RING_AT), &source).unwrap();
    w.pair.port.post(MAILBOX_STATE_AT, &source).unwrap();
    source.fill(9);
    let fives = u64::from_le_bytes([5; 8]);
    assert_eq!(w.pair.inbox.header(0), [fives; 8]);
    assert_eq!(w.pair.lane.mailbox().line(MAILBOX_STATE_AT), [fives; 8]);
}

#[test]
fn f11_a_destroyed_port_closes_the_lane_and_wakes_its_client() {
    let World {
        mut client,
        mut pair,
        ..
    } = world();
    let waiting = {
        let mut lane = pair.lane;
        thread::spawn(move || {
            // Long enough to be asleep, so that only the waker can end it in time.
            let deadline = Deadline::after(Duration::from_secs(60));
            let error = wait_until(&mut client, deadline, || {
                lane.poll().map(|moved| moved.then_some(()))
            });
            (error, lane)
        })
    };
    thread::sleep(Duration::from_millis(5));
    let start = clock::now();
    pair.port.destroy();
    let (error, mut lane) = waiting.join().unwrap();
    assert!(matches!(error, Err(LaneError::Broken { .. })), "{error:?}");
    assert!(
        start.elapsed() < Duration::from_secs(30),
        "the waker did not ring"
    );
    assert!(
        lane.write_signal(inbox(INBOX_TAIL_AT), &tail_cell(64))
            .is_err()
    );
    assert_eq!(pair.inbox.tail(), Some(0));
    let error = pair.port.post(MAILBOX_STATE_AT, &[0; 8]).unwrap_err();
    assert!(matches!(error, LaneError::Broken { .. }), "{error}");
}

#[test]
fn a_recovered_lane_works_again_on_the_same_memory() {
    let mut w = world();
    let write = |lane: &mut ShmClientLane, tail| lane.write(inbox(INBOX_TAIL_AT), &tail_cell(tail));
    write(&mut w.pair.lane, 128).unwrap();
    w.pair.port.destroy();
    assert!(write(&mut w.pair.lane, 192).is_err());
    assert_eq!(w.pair.inbox.tail(), Some(128));
    w.pair.inbox.reset_tail(64);
    let port = w.pair.session.port(0, "client", w.client.waker()).unwrap();
    // The old end's drop must not close the new one.
    drop(std::mem::replace(&mut w.pair.port, port));
    assert!(
        write(&mut w.pair.lane, 192).is_err(),
        "a broken lane stays broken"
    );
    let mut lane = w.pair.lane.recovered();
    write(&mut lane, 192).unwrap();
    assert_eq!(w.pair.inbox.tail(), Some(192));
    w.pair.port.post(MAILBOX_STATE_AT, &[3; 64]).unwrap();
    assert_eq!(
        lane.mailbox().line(MAILBOX_STATE_AT)[7],
        u64::from_le_bytes([3; 8])
    );
}

#[test]
fn f14_owned_batches_come_back_filled() {
    let mut w = world();
    for tag in 0..3 {
        let ops = vec![op(at(0, 8 * tag), 8)];
        let batch = ReadBatch {
            ops,
            head: Vec::new(),
            body: vec![0; 8],
            tag,
        };
        w.pair.lane.submit_read(batch).unwrap();
    }
    w.pair.lane.flush().unwrap();
    let mut tags: Vec<u64> = std::iter::from_fn(|| w.pair.lane.poll_read())
        .map(|b| {
            assert_eq!(word_at(&b.body, 0), mix64(8 * b.tag));
            b.tag
        })
        .collect();
    tags.sort_unstable();
    assert_eq!(tags, [0, 1, 2]);
}

#[test]
fn f10_a_lane_marked_broken_does_nothing_more() {
    let mut w = world();
    let mapping = w.pair.lane.mapping().unwrap();
    assert!(mapping.look().is_some());
    w.pair.lane.mark_broken("the control connection closed");
    assert!(w.pair.lane.mapping().is_none());
    let error = w.pair.lane.fetch_add(at(1, 0), 1, soon()).unwrap_err();
    assert!(
        error.to_string().contains("the control connection closed"),
        "{error}"
    );
    assert_eq!(w.server.counters().words(0, 8).unwrap().load(0), 0);
    // Mapped memory is not used once the server has closed the lane.
    w.pair.port.destroy();
    assert!(mapping.look().is_none());
}

#[test]
fn a_session_has_a_lane_for_each_applier_and_they_do_not_touch() {
    let w = world();
    let ends = vec![w.end.clone(); 3];
    let session = SessionMemory::create(&w.server, &ends, RING_BYTES_MIN, SALT).unwrap();
    let mut lanes = session.attach_here("server").unwrap();
    assert_eq!((lanes.len(), session.lanes()), (3, 3));
    assert!(session.inbox(3).is_err() && session.mailbox(usize::MAX).is_err());
    for (i, lane) in lanes.iter_mut().enumerate() {
        let last = inbox_bytes(RING_BYTES_MIN) - 8;
        lane.write(inbox(INBOX_TAIL_AT), &tail_cell(64 * (1 + i as u64)))
            .unwrap();
        lane.write(inbox(last), &[i as u8; 8]).unwrap();
        let mut port = session.port(i, "client", w.client.waker()).unwrap();
        port.post(mailbox_bytes(RING_BYTES_MIN) - 8, &[i as u8; 8])
            .unwrap();
    }
    for (i, lane) in lanes.iter().enumerate() {
        let received = session.inbox(i).unwrap();
        assert_eq!(received.tail(), Some(64 * (1 + i as u64)));
        let want = u64::from_le_bytes([i as u8; 8]);
        assert_eq!(
            received.payload(RING_BYTES_MIN as u64 - 8, 0, 8).load(0),
            want
        );
        assert_eq!(
            lane.mailbox()
                .words(mailbox_bytes(RING_BYTES_MIN) - 8, 8)
                .load(0),
            want
        );
    }
    let check = RegionTable::new(CHECK).check_bits();
    assert_eq!((session.numbers().key_check, check), (CHECK, CHECK));
}
