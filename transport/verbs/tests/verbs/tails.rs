//! Tails that the applier polls: written, not signalled.

use tidewater_lanes::fabric::{ClientLane, INBOX_KEY, RemoteAddr, ServerLane};
use tidewater_lanes::wake::OsParker;
use tidewater_protocol::layout::lines::CheckedU64;
use tidewater_protocol::layout::session::{INBOX_RING_AT, INBOX_TAIL_AT};
use tidewater_protocol::limits::VERBS_RECEIVES;
use tidewater_protocol::wire::control::VerbsTails;
use tidewater_verbs::Notifier;

use crate::harness::{Ends, Host, SALT, late};

const TAIL: RemoteAddr = RemoteAddr {
    key: INBOX_KEY,
    addr: INBOX_TAIL_AT as u64,
};

fn cell(tail: u64) -> Vec<u8> {
    let words = CheckedU64::new(tail, SALT).0;
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Writes a frame of 4,096 bytes and its tail.
fn push(ends: &mut Ends, tail: u64) {
    let frame = RemoteAddr {
        addr: INBOX_RING_AT as u64,
        ..TAIL
    };
    ends.lane.write(frame, &[tail as u8; 4096]).unwrap();
    ends.lane.write_signal(TAIL, &cell(tail)).unwrap();
}

/// Polls only the tail record, as an applier does.
fn until_tail(ends: &Ends, tail: u64) {
    let end = late();
    while ends.inbox.tail() != Some(tail) {
        assert!(!end.passed(), "tail {tail} does not land");
    }
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_push_whose_tail_is_polled_is_one_doorbell_and_two_requests() {
    let host = Host::new();
    let mut ends = host.connect_polled();
    ends.settle();
    let received = ends.port.counters().received;
    for n in 1..10 {
        let (before, sent) = (ends.lane.counters(), host.sent_packets());
        push(&mut ends, n);
        let cost = ends.lane.counters() - before;
        assert_eq!((cost.doorbells, cost.requests), (1, 2), "{cost:?}");
        assert_eq!((cost.writes, cost.signals), (2, 0), "{cost:?}");
        until_tail(&ends, n);
        let packets = host.sent_packets().zip(sent).map(|(after, b)| after - b);
        println!("a push of 4096 bytes, its tail polled: {packets:?} packets");
        ends.settle();
    }
    assert_eq!(
        ends.port.counters().received,
        received,
        "nothing was signalled"
    );
}

/// A tail takes no receive at the other end: the send queue bounds tails, and above it the ring.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn tails_that_are_polled_do_not_wait_for_receives() {
    let host = Host::new();
    let mut ends = host.connect_polled();
    ends.settle();
    let tails = 40 * u64::from(VERBS_RECEIVES);
    let before = ends.lane.counters();
    for n in 1..=tails {
        ends.lane.write_signal(TAIL, &cell(n)).unwrap();
    }
    until_tail(&ends, tails);
    let cost = ends.lane.counters() - before;
    assert_eq!((cost.signals, cost.requests), (0, tails), "{cost:?}");
    assert!(cost.completions <= cost.doorbells, "{cost:?}");
}

/// A polling end signals all the same. Credit for these signals returns with tails, which makes some of
/// them signals, and adds no request.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn credit_comes_back_with_tails_that_are_polled() {
    const ROUNDS: u64 = 300;
    let host = Host::new();
    let mut ends = host.connect_polled();
    ends.settle();
    let (before, told) = (ends.lane.counters(), ends.port.counters());
    for n in 1..=ROUNDS {
        push(&mut ends, n);
        until_tail(&ends, n);
        ends.poll_port().unwrap();
        ends.port.post(0, &n.to_le_bytes()).unwrap();
        ends.port.signal().unwrap();
        let end = late();
        // A client that handles its arrivals, so that the server has credit for each signal.
        while ends.lane.counters().received - before.received < n {
            assert!(!end.passed(), "signal {n} does not come");
            ends.poll_port().unwrap();
            ends.lane.poll().unwrap();
        }
        assert_eq!(ends.lane.mailbox().words(0, 8).load(0), n);
    }
    ends.settle();
    let (cost, told) = (ends.lane.counters() - before, ends.port.counters() - told);
    println!("{ROUNDS} rounds: the client {cost:?}, the server {told:?}");
    assert_eq!(cost.requests, 2 * ROUNDS + cost.empty_signals, "{cost:?}");
    assert!(cost.empty_signals <= 1, "{cost:?}");
    assert!(cost.signals <= ROUNDS / 8 + 2, "{cost:?}");
    assert_eq!((cost.received, told.signals), (ROUNDS, ROUNDS));
    assert_eq!(told.stalls, 0, "{told:?}");
}

/// Also on a device that promises no order, as Soft-RoCE: tails and frames carry checksums.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn tails_are_polled_where_the_applier_never_sleeps() {
    let mut host = Host::new();
    assert_eq!(
        host.connect(1).told.tails,
        VerbsTails::Signalled,
        "its applier sleeps"
    );
    let awake = OsParker::awake().unwrap();
    host.applier = Notifier::new(&host.open_port, awake.reactor(), awake.arms()).unwrap();
    let ends = host.connect(1);
    assert_eq!(ends.told.tails, VerbsTails::Polled);
}
