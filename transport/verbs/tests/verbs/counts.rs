//! Cost of operations, in doorbells, work requests and packets.

use tidewater_lanes::fabric::{ClientLane, INBOX_KEY, ReadOp, RemoteAddr, ServerLane};
use tidewater_protocol::layout::session::{INBOX_RING_AT, INBOX_TAIL_AT};
use tidewater_verbs::Counters;

use crate::harness::{Ends, Host, late, noise, row};

/// Bytes of a row: 256 of payload with its head.
const ROW: usize = 272;

/// Cost of `act` for the lane, and for the device in packets.
fn cost(host: &Host, ends: &mut Ends, act: impl FnOnce(&mut Ends)) -> (Counters, Option<u64>) {
    ends.settle();
    let (before, sent) = (ends.lane.counters(), host.sent_packets());
    act(ends);
    let packets = host.sent_packets().zip(sent).map(|(after, b)| after - b);
    (ends.lane.counters() - before, packets)
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_row_is_one_read_and_one_doorbell() {
    let host = Host::new();
    for pulls in [1, 4] {
        let mut ends = host.connect(pulls);
        let want = noise(4096);
        // The first read of a region looks up its key.
        ends.read(&[row(host.at(0), ROW, 0)]).unwrap();
        for n in 1..10 {
            let (cost, packets) = cost(&host, &mut ends, |ends| {
                let (head, body) = ends.read(&[row(host.at(n * 320), ROW, 0)]).unwrap();
                assert_eq!(head, want[n * 320..][..16]);
                assert_eq!(body, want[n * 320 + 16..][..256]);
            });
            assert_eq!(
                (cost.reads, cost.requests, cost.doorbells),
                (1, 1, 1),
                "{cost:?}"
            );
            assert_eq!(packets.unwrap_or(2), 2, "a request and its answer");
        }
    }
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn sixty_four_rows_are_two_doorbells() {
    let host = Host::new();
    for (pulls, fenced) in [(1, false), (2, false), (4, false), (4, true)] {
        let mut ends = host.connect(pulls);
        let mut ops: Vec<ReadOp> = (0..64).map(|n| row(host.at(n * 320), ROW, n)).collect();
        ops[63].fence = fenced;
        ends.read(&ops[..1]).unwrap();
        for _ in 0..3 {
            let (cost, packets) = cost(&host, &mut ends, |ends| {
                let (head, body) = ends.read(&ops).unwrap();
                let want = noise(64 * 320);
                for n in 0..64 {
                    assert_eq!(head[n * 16..][..16], want[n * 320..][..16]);
                    assert_eq!(body[n * 256..][..256], want[n * 320 + 16..][..256]);
                }
            });
            assert_eq!((cost.reads, cost.requests), (64, 64), "{cost:?}");
            // A request that the device must not hold back has a doorbell of its own.
            let waited = u64::from(fenced && !host.fences());
            assert!(
                cost.doorbells <= 2 + waited,
                "{pulls} pairs, fence {fenced}: {cost:?}"
            );
            assert_eq!(packets.unwrap_or(128), 128);
        }
    }
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_push_is_one_doorbell_and_two_requests() {
    let host = Host::new();
    let mut ends = host.connect(1);
    let inbox = |addr| RemoteAddr {
        key: INBOX_KEY,
        addr,
    };
    for n in 1..10u8 {
        let (cost, packets) = cost(&host, &mut ends, |ends| {
            let frame = vec![n; 4096];
            ends.lane
                .write(inbox(INBOX_RING_AT as u64), &frame)
                .unwrap();
            ends.lane
                .write_signal(inbox(INBOX_TAIL_AT as u64), &[n; 16])
                .unwrap();
        });
        assert_eq!((cost.doorbells, cost.requests), (1, 2), "{cost:?}");
        assert_eq!(
            (cost.writes, cost.signals, cost.stalls),
            (2, 1, 0),
            "{cost:?}"
        );
        println!("a push of 4096 bytes: {packets:?} packets");
        ends.settle();
        assert_eq!(
            ends.inbox.window().as_read().load(INBOX_TAIL_AT),
            u64::from_le_bytes([n; 8])
        );
        assert_eq!(
            ends.inbox.window().as_read().load(INBOX_RING_AT + 4088),
            u64::from_le_bytes([n; 8])
        );
    }
}

/// A status record rides in the signal. Longer posts, and all but the last short one, are requests of their
/// own in the same batch.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn an_answer_is_one_doorbell_and_one_request() {
    let host = Host::new();
    let mut ends = host.connect(1);
    ends.settle();
    let mut answer = |posts: &[(usize, Vec<u8>)], due: (u64, u64, u64)| {
        let (before, sent) = (ends.port.counters(), host.sent_packets());
        for (at, bytes) in posts {
            ends.port.post(*at, bytes).unwrap();
        }
        ends.port.signal().unwrap();
        ends.settle();
        let cost = ends.port.counters() - before;
        let packets = host.sent_packets().zip(sent).map(|(after, b)| after - b);
        println!(
            "{} posts: {cost:?}, {packets:?} packets with acknowledgements",
            posts.len()
        );
        assert_eq!(
            (cost.doorbells, cost.requests, cost.writes),
            due,
            "{cost:?}"
        );
        assert_eq!(cost.signals, 1, "{cost:?}");
        for (at, bytes) in posts {
            let mut seen = vec![0; bytes.len()];
            ends.lane
                .mailbox()
                .words(*at, bytes.len())
                .copy_out(0, &mut seen);
            assert!(seen == *bytes, "{} bytes at {at}", bytes.len());
        }
    };
    for n in 1..10u8 {
        answer(&[(0, vec![n; 64])], (1, 1, 1));
    }
    // A refusal with its status; a reply of 4 KiB with its head and the status.
    answer(&[(64, vec![7; 64]), (0, vec![8; 64])], (1, 2, 2));
    let reply = (4096, vec![9; 4096]);
    answer(
        &[reply.clone(), (8192, vec![5; 64]), (0, vec![6; 64])],
        (1, 3, 3),
    );
    answer(&[(0, vec![4; 64]), reply], (1, 3, 2));
    answer(&[], (1, 1, 0));
}

/// Of two posts to one place the later one stands, whether it rides in the signal or not.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn posts_keep_their_order_in_and_before_a_signal() {
    let host = Host::new();
    let mut ends = host.connect(1);
    // Also before the client is known to be there, when posts wait.
    for n in 1..200u64 {
        for last in [2 * n, 2 * n + 1] {
            ends.port.post(0, &last.to_le_bytes()).unwrap();
        }
        if n % 3 == 0 {
            ends.port.post(4096, &[n as u8; 256]).unwrap();
        }
        ends.port.signal().unwrap();
        let end = late();
        while ends.lane.mailbox().words(0, 8).load(0) != 2 * n + 1 {
            assert!(!end.passed(), "post {n} does not come");
            ends.poll_port().unwrap();
            ends.lane.poll().unwrap();
        }
    }
    let cost = ends.port.counters();
    assert!(cost.empty_signals <= 1, "{cost:?}");
}

/// One more request, and no more doorbells or completions.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_counted_push_is_one_doorbell_and_a_fetch_add_more() {
    let host = Host::new();
    let mut ends = host.connect(1);
    let inbox = |addr: usize| RemoteAddr {
        key: INBOX_KEY,
        addr: addr as u64,
    };
    let counter = RemoteAddr {
        key: host.counters_key,
        addr: 8,
    };
    let word = || host.counters.words(8, 8).unwrap().load_acquire(0);
    // The first push looks up its key.
    ends.lane
        .write_signal_count(inbox(INBOX_TAIL_AT), &[0; 16], counter, 0)
        .unwrap();
    for n in 1..200u8 {
        let push = |ends: &mut Ends| {
            let frame = vec![n; 4096];
            ends.lane.write(inbox(INBOX_RING_AT), &frame).unwrap();
            ends.lane
                .write_signal_count(inbox(INBOX_TAIL_AT), &[n; 16], counter, 3)
                .unwrap();
        };
        // Pushes that are not checked closely wrap around the send queue.
        if n > 10 {
            push(&mut ends);
            ends.settle();
            continue;
        }
        let (cost, packets) = cost(&host, &mut ends, push);
        assert_eq!((cost.doorbells, cost.requests), (1, 3), "{cost:?}");
        assert_eq!(
            (cost.writes, cost.signals, cost.atomics, cost.stalls),
            (2, 1, 1, 0),
            "{cost:?}"
        );
        println!("a counted push of 4096 bytes: {packets:?} packets");
        let before = ends.lane.counters();
        ends.settle();
        let after = ends.lane.counters() - before;
        assert!(after.completions <= 1, "{after:?}");
        assert_eq!(word(), 3 * u64::from(n), "what was counted");
    }
    ends.settle();
    assert_eq!(word(), 3 * 199);
}

/// Version words, payload, version words for each window of 256 KiB, as range pulls read them.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_mebibyte_costs_its_packets_and_few_more() {
    const WINDOW: usize = 256 << 10;
    let host = Host::new();
    for pulls in [1, 4] {
        let mut ends = host.connect(pulls);
        let words = ReadOp {
            from: host.at(1 << 20),
            len: 128,
            head_len: 128,
            head_at: 0,
            body_at: 0,
            fence: false,
        };
        ends.read(&[words]).unwrap();
        let want = noise(1 << 20);
        let (cost, packets) = cost(&host, &mut ends, |ends| {
            for window in 0..4 {
                let payload = ReadOp {
                    from: host.at(window * WINDOW),
                    len: WINDOW as u32,
                    head_len: 0,
                    fence: true,
                    ..words
                };
                let after = ReadOp {
                    head_at: 128,
                    fence: true,
                    ..words
                };
                let (_, body) = ends.read(&[words, payload, after]).unwrap();
                assert!(body == want[window * WINDOW..][..WINDOW]);
            }
        });
        // A window is two READs, and uses two of several pairs.
        assert_eq!(cost.reads, 16, "{cost:?}");
        assert!(cost.doorbells <= 16, "{cost:?}");
        let payload = (1u64 << 20) / u64::from(host.open_port.mtu());
        println!("1 MiB: {payload} payload packets, {packets:?} in all, {cost:?}");
        assert!(packets.unwrap_or(0) <= payload + 24, "{packets:?}");
    }
}

/// The steps of a client: the words of all windows, their payload, the words again, each step a call.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_mebibyte_in_three_steps_keeps_all_pairs_busy() {
    const WINDOW: usize = 256 << 10;
    let host = Host::new();
    for pulls in [1, 4] {
        let mut ends = host.connect(pulls);
        let words = |n: usize| ReadOp {
            from: host.at((1 << 20) + n * 128),
            len: 128,
            head_len: 128,
            head_at: n * 128,
            body_at: 0,
            fence: false,
        };
        let payload = |n: usize| ReadOp {
            from: host.at(n * WINDOW),
            len: WINDOW as u32,
            head_len: 0,
            head_at: 0,
            body_at: n * WINDOW,
            fence: false,
        };
        let words: Vec<ReadOp> = (0..4).map(words).collect();
        let payload: Vec<ReadOp> = (0..4).map(payload).collect();
        ends.read(&words[..1]).unwrap();
        let want = noise((1 << 20) + 4 * 128);
        let (cost, packets) = cost(&host, &mut ends, |ends| {
            for _ in 0..2 {
                let (head, _) = ends.read(&words).unwrap();
                assert_eq!(head, want[1 << 20..]);
            }
            let (_, body) = ends.read(&payload).unwrap();
            assert!(body == want[..1 << 20]);
        });
        // A batch is half as long as a window: they go onto all pairs, and each pair rings once. One
        // pair alone has room for two windows at a time.
        assert_eq!((cost.reads, cost.requests), (16, 16), "{cost:?}");
        assert!(cost.doorbells <= 1 + 4 + 1, "{pulls} pairs: {cost:?}");
        let packets_of_payload = (1u64 << 20) / u64::from(host.open_port.mtu());
        println!("1 MiB in three steps: {packets:?} packets, {cost:?}");
        assert!(
            packets.unwrap_or(0) <= packets_of_payload + 24,
            "{packets:?}"
        );
    }
}

/// One call for a mebibyte: split, and spread over the pairs.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_long_read_is_cut_and_spread() {
    let host = Host::new();
    for pulls in [1, 3] {
        let mut ends = host.connect(pulls);
        let long = ReadOp {
            from: host.at(8),
            len: (1 << 20) + 24,
            head_len: 16,
            head_at: 0,
            body_at: 0,
            fence: true,
        };
        let after = ReadOp {
            from: host.at(0),
            body_at: (1 << 20) + 8,
            head_at: 16,
            len: 48,
            ..long
        };
        let want = noise(2 << 20);
        let (head, body) = ends.read(&[long, after]).unwrap();
        assert!(head[..16] == want[8..24] && head[16..] == want[..16]);
        assert!(body[..(1 << 20) + 8] == want[24..(1 << 20) + 32]);
        assert!(body[(1 << 20) + 8..] == want[16..48]);
    }
}
