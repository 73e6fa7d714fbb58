//! Tests of F04, F05, F07, F08, F11, F15: writes, atomics, posts.

use tidewater_lanes::fabric::{
    ClientLane, INBOX_KEY, Inbox, LaneError, ReadBatch, ReadDest, RegionTable, RemoteAddr,
    ServerLane,
};
use tidewater_protocol::layout::lines::{CheckedU64, StateLine};
use tidewater_protocol::layout::session::{
    INBOX_RING_AT, INBOX_TAIL_AT, MAILBOX_STATE_AT, mailbox_reject_at, mailbox_reply_at,
};
use tidewater_protocol::layout::{LINE_BYTES, line_bytes};
use tidewater_protocol::limits::RING_BYTES_DEFAULT;
use tidewater_runtime::clock::Deadline;

use crate::harness::{Dice, Memory, RING, SALT, noise, plain, served, soon, unserved};

pub(crate) fn inbox_at(addr: usize) -> RemoteAddr {
    RemoteAddr {
        key: INBOX_KEY,
        addr: addr as u64,
    }
}

pub(crate) fn tail_cell(tail: u64) -> Vec<u8> {
    CheckedU64::new(tail, SALT)
        .0
        .iter()
        .flat_map(|w| w.to_le_bytes())
        .collect()
}

fn wait_tail(inbox: &Inbox, tail: u64) {
    let until = soon();
    while inbox.tail() != Some(tail) {
        assert!(!until.passed(), "tail {tail} never came");
        std::thread::yield_now();
    }
}

#[test]
fn f04_f07_frames_are_whole_when_their_tail_is_seen() {
    let memory = Memory::new();
    let (mut lane, _near, _server, inbox) = served(&memory);
    let dice = &mut Dice(4);
    let mut tail = 0u64;
    for round in 0..400u64 {
        let len = [64, 640, 8192, 8256, 70_016, RING as u64 / 4][dice.below(6) as usize];
        let placed = inbox.ring().place(tail, tail, len).unwrap();
        let mut frame = vec![round as u8 ^ 0x5a; len as usize];
        let at = INBOX_RING_AT + inbox.ring().offset(placed.at) as usize;
        lane.write(inbox_at(at), &frame).unwrap();
        let sent = frame.clone();
        frame.fill(0);
        tail = placed.at + len;
        lane.write_signal(inbox_at(INBOX_TAIL_AT), &tail_cell(tail))
            .unwrap();
        wait_tail(&inbox, tail);
        let mut landed = vec![1; len as usize];
        inbox
            .payload(placed.at, 0, len as usize)
            .copy_out(0, &mut landed);
        assert!(landed == sent, "round {round}, {len} bytes");
    }
}

#[test]
fn writes_of_any_length_touch_no_byte_beside_them() {
    let memory = Memory::new();
    let (mut lane, _near, _server, inbox) = served(&memory);
    for len in [1, 7, 9, 63, 8191, 8193, 100_001] {
        lane.write(inbox_at(INBOX_RING_AT), &vec![0xaa; len + 16])
            .unwrap();
        lane.write(inbox_at(INBOX_RING_AT), &vec![0xbb; len])
            .unwrap();
        // An atomic is done after the writes before it (F05), so its answer confirms them.
        lane.fetch_add(memory.counter(0), 1, soon()).unwrap();
        let mut landed = vec![0; len + 16];
        inbox.payload(0, 0, len + 16).copy_out(0, &mut landed);
        assert!(landed[..len].iter().all(|b| *b == 0xbb), "{len}");
        assert_eq!(landed[len..], [0xaa; 16], "{len}");
    }
}

#[test]
fn f08_atomics_of_many_lanes_lose_nothing_and_return_each_old_value_once() {
    const EACH: u64 = 500;
    let memory = Memory::new();
    let mut seen: Vec<u64> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let (mut lane, _near, _server, _inbox) = served(&memory);
                    (0..EACH)
                        .map(|_| lane.fetch_add(memory.counter(8), 1, soon()).unwrap())
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        clients
            .into_iter()
            .flat_map(|c| c.join().unwrap())
            .collect()
    });
    seen.sort_unstable();
    assert!(seen.iter().copied().eq(0..4 * EACH));
    let (mut lane, _near, _server, _inbox) = served(&memory);
    let at = memory.counter(8);
    assert_eq!(lane.compare_swap(at, 1, 5, soon()).unwrap(), 4 * EACH);
    assert_eq!(
        lane.compare_swap(at, 4 * EACH, 5, soon()).unwrap(),
        4 * EACH
    );
    assert_eq!(lane.fetch_add(at, u64::MAX, soon()).unwrap(), 5);
    assert_eq!(memory.counters.words(8, 8).unwrap().load(0), 4);
}

#[test]
fn f11_nothing_lands_after_the_port_is_destroyed() {
    let (mut lane, mut port, inbox, _sleepers) = unserved();
    let mut view = std::sync::Arc::new(RegionTable::new(1)).view();
    lane.write(inbox_at(INBOX_RING_AT), &[1; 64]).unwrap();
    lane.write_signal(inbox_at(INBOX_TAIL_AT), &tail_cell(64))
        .unwrap();
    port.destroy();
    assert!(matches!(
        port.poll(&mut view, &inbox),
        Err(LaneError::Broken { .. })
    ));
    assert!(port.post(0, &[0; 64]).is_err() && port.signal().is_err());
    assert_eq!((inbox.tail(), inbox.header(0)[0]), (Some(0), 0));
    let e = lane.read(
        &[plain(inbox_at(0), 8, 0)],
        ReadDest {
            head: &mut [],
            body: &mut [0; 8],
        },
        soon(),
    );
    assert!(matches!(e, Err(LaneError::Broken { .. })), "{e:?}");
}

#[test]
fn f15_posts_land_in_order_whole_and_superseded_states_coalesce() {
    let (mut lane, mut port, _inbox, _sleepers) = unserved();
    let state = |n| StateLine {
        applied_seq: n,
        ..StateLine::default()
    };
    let reply = vec![0x77; 100_000];
    let until = soon();
    for n in 1..=200u64 {
        for older in 0..n % 3 {
            port.post(MAILBOX_STATE_AT, &line_bytes(&state(older).to_line(SALT)))
                .unwrap();
        }
        port.post(mailbox_reject_at(n), &line_bytes(&[n; 8]))
            .unwrap();
        if n % 10 == 0 {
            port.post(mailbox_reply_at(3, RING_BYTES_DEFAULT), &reply)
                .unwrap();
        }
        port.post(MAILBOX_STATE_AT, &line_bytes(&state(n).to_line(SALT)))
            .unwrap();
        port.signal().unwrap();
        loop {
            lane.poll().unwrap();
            port.signal().unwrap();
            let line = lane.mailbox().line(MAILBOX_STATE_AT);
            if StateLine::from_line(&line, SALT) == Some(state(n)) {
                break;
            }
            assert!(!until.passed());
        }
        // A reader that sees the state sees the posts before it.
        assert_eq!(lane.mailbox().line(mailbox_reject_at(n)), [n; 8]);
        if n % 10 == 0 {
            let mut got = vec![0; reply.len()];
            lane.mailbox()
                .words(mailbox_reply_at(3, RING_BYTES_DEFAULT), reply.len())
                .copy_out(0, &mut got);
            assert!(got == reply);
        }
    }
}

#[test]
fn posts_do_not_cut_an_answer_in_two() {
    let memory = Memory::new();
    let (mut lane, mut port, inbox, _sleepers) = unserved();
    let mut view = memory.exports.view();
    // Answers of small reads, copied, far more than the server lane holds: it stops inside one.
    for tag in 0..20 {
        let ops = (0..500)
            .map(|i| plain(memory.at(i * 2048), 2000, i as usize * 2000))
            .collect();
        let body = vec![0; 1_000_000];
        let head = Vec::new();
        lane.submit_read(ReadBatch {
            ops,
            head,
            body,
            tag,
        })
        .unwrap();
    }
    lane.flush().unwrap();
    while port.poll(&mut view, &inbox).unwrap() {}
    for n in 1..=1000u64 {
        port.post(MAILBOX_STATE_AT, &line_bytes(&[n; 8])).unwrap();
        port.signal().unwrap();
    }
    let until = soon();
    let mut back = 0;
    while back < 20 || lane.mailbox().line(MAILBOX_STATE_AT) != [1000; 8] {
        port.poll(&mut view, &inbox).unwrap();
        lane.poll().unwrap();
        while let Some(batch) = lane.poll_read() {
            let data = noise(500 * 2048);
            let whole =
                (0..500).all(|i| batch.body[i * 2000..][..2000] == data[i * 2048..][..2000]);
            assert!(whole, "batch {}", batch.tag);
            back += 1;
        }
        assert!(!until.passed(), "{back} of 20");
    }
}

#[test]
fn a_client_that_never_polls_costs_a_bounded_backlog_and_then_its_lane() {
    let (_lane, mut port, _inbox, _sleepers) = unserved();
    // The same line posted repeatedly is one line.
    for n in 0..100_000u64 {
        port.post(MAILBOX_STATE_AT, &line_bytes(&[n; 8])).unwrap();
    }
    let limit = 64 << 20;
    let sent = (0..limit / LINE_BYTES)
        .find(|n| {
            let at = mailbox_reject_at(*n as u64);
            port.post(at, &[1; LINE_BYTES])
                .and_then(|()| port.signal())
                .is_err()
        })
        .expect("the backlog is bounded");
    println!("{sent} lines until a silent client lost its lane");
    assert!(sent > 10_000, "{sent}");
    assert!(port.post(0, &[0; 64]).is_err());
}

#[test]
fn two_full_ends_do_not_wait_for_each_other() {
    let memory = Memory::new();
    let (mut lane, _near, _server, inbox) = served(&memory);
    let frame = vec![3; RING / 4];
    // Answers of 64 MiB are unread while 32 MiB are written.
    for tag in 0..64 {
        let ops = vec![plain(memory.at(0), 1 << 20, 0)];
        let body = vec![0; 1 << 20];
        let batch = ReadBatch {
            ops,
            body,
            tag,
            ..Default::default()
        };
        lane.submit_read(batch).unwrap();
    }
    lane.flush().unwrap();
    for _ in 0..128 {
        lane.write(inbox_at(INBOX_RING_AT), &frame).unwrap();
    }
    let until = Deadline::after(std::time::Duration::from_secs(20));
    let mut back = 0;
    while back < 64 {
        lane.poll().unwrap();
        back += std::iter::from_fn(|| lane.poll_read()).count();
        assert!(!until.passed(), "{back} of 64");
    }
    lane.fetch_add(memory.counter(0), 1, soon()).unwrap();
    assert_eq!(inbox.header(0), [0x0303_0303_0303_0303; 8]);
}
