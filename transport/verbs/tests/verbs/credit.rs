//! Tests of flow control: signals in excess, parkers, and waits for credit.

use std::time::Duration;

use tidewater_lanes::fabric::{ClientLane, INBOX_KEY, Parker, RemoteAddr, ServerLane};
use tidewater_lanes::wake::OsParker;
use tidewater_protocol::layout::session::INBOX_TAIL_AT;
use tidewater_protocol::limits::VERBS_RECEIVES;
use tidewater_runtime::clock::{self, Deadline};

use crate::harness::{Ends, Host, late};

/// Time after which a sleep was not ended by a wake-up.
const LOST: Duration = Duration::from_secs(5);

const TAIL: RemoteAddr = RemoteAddr {
    key: INBOX_KEY,
    addr: INBOX_TAIL_AT as u64,
};

/// The client computes without polling, while the server posts far more than there are receives.
/// Nothing breaks, nothing is lost, and the signal that is owed wakes it later.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_client_that_does_not_look_is_told_all_the_same() {
    let mut host = Host::new();
    let mut ends = host.connect(1);
    ends.settle();
    for n in 1..=200u64 {
        ends.port.post(0, &n.to_le_bytes()).unwrap();
        ends.port.signal().unwrap();
        ends.poll_port().unwrap();
    }
    let signals = ends.port.counters().signals;
    assert!(
        signals < u64::from(VERBS_RECEIVES),
        "{signals} signals unseen"
    );
    let end = late();
    while ends.lane.mailbox().words(0, 8).load(0) != 200 {
        assert!(!end.passed(), "the last post did not land");
        ends.poll_port().unwrap();
    }
    // The server sleeps. The client handles its arrivals, which returns credit, and sleeps.
    host.owner.prepare_park();
    assert!(!ends.poll_port().unwrap(), "nothing came yet");
    ends.lane.poll().unwrap();
    let received = ends.lane.counters().received;
    ends.parker.prepare_park();
    ends.lane.poll().unwrap();
    assert_eq!(ends.lane.counters().received, received);
    // The credit wakes the server, which sends the owed signal; and that wakes the client.
    sleep_until_woken(&mut host.owner);
    assert!(ends.poll_port().unwrap());
    sleep_until_woken(&mut ends.parker);
    ends.lane.poll().unwrap();
    assert!(ends.lane.counters().received > received);
}

fn sleep_until_woken(parker: &mut OsParker) {
    let began = clock::now();
    parker.park_until(Deadline::after(2 * LOST));
    let slept = clock::now().duration_since(began);
    assert!(slept < LOST, "a wake-up was lost: slept {slept:?}");
    parker.cancel_park();
}

/// An applier that is busy elsewhere handles no arrivals: the client waits for it, and continues when
/// it polls again.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_client_out_of_credit_waits_for_the_applier() {
    let host = Host::new();
    let mut ends = host.connect(1);
    ends.settle();
    let Ends {
        mut lane,
        mut port,
        inbox,
        mut view,
        ..
    } = ends;
    let signals = u64::from(VERBS_RECEIVES) * 3;
    let tail = inbox.clone();
    let client = std::thread::spawn(move || {
        for n in 1..=signals {
            lane.write_signal(TAIL, &n.to_le_bytes()).unwrap();
        }
        lane
    });
    let busy = Duration::from_millis(300);
    std::thread::sleep(busy);
    let seen = tail.window().as_read().load(INBOX_TAIL_AT);
    assert!(
        seen > 0 && seen < signals,
        "{seen} of {signals} without a look"
    );
    let end = late();
    while tail.window().as_read().load(INBOX_TAIL_AT) < signals {
        assert!(!end.passed());
        port.poll(&mut view, &inbox).unwrap();
    }
    let lane = client.join().unwrap();
    assert!(lane.counters().stalls > 0, "{:?}", lane.counters());
    assert_eq!(
        lane.counters().signals,
        signals + 1,
        "and the first of the lane"
    );
}

/// An applier answers with more than its memory for copies holds, and sleeps. The rest goes when
/// completions make room, and they wake it.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_long_answer_goes_out_while_the_applier_sleeps() {
    const ANSWER: usize = 256 << 10;
    const SLOTS: usize = 8;
    let mut host = Host::new();
    for round in 1..=5u64 {
        let mut ends = host.connect(1);
        ends.settle();
        for slot in 0..SLOTS {
            let bytes = round.to_le_bytes().repeat(ANSWER / 8);
            ends.port.post(8192 + slot * ANSWER, &bytes).unwrap();
        }
        ends.port.signal().unwrap();
        let last = 8192 + SLOTS * ANSWER - 8;
        let mut looks = 0;
        while ends.lane.mailbox().words(last, 8).load(0) != round {
            host.owner.prepare_park();
            if !ends.poll_port().unwrap() {
                sleep_until_woken(&mut host.owner);
                looks += 1;
            }
            host.owner.cancel_park();
            assert!(looks < 200, "it does not come");
        }
        ends.parker.prepare_park();
        if !ends.lane.poll().unwrap() {
            sleep_until_woken(&mut ends.parker);
        }
        assert!(
            ends.port.counters().stalls > 0,
            "{:?}",
            ends.port.counters()
        );
    }
}

/// Both ends signal as fast as they can, each in its own thread: credit returns without further calls.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn signals_of_both_ends_cross_for_ever() {
    let host = Host::new();
    let ends = host.connect(1);
    let Ends {
        mut lane,
        mut port,
        inbox,
        mut view,
        mut parker,
        ..
    } = ends;
    const ROUNDS: u64 = 3000;
    let client = std::thread::spawn(move || {
        for n in 1..=ROUNDS {
            lane.write_signal(TAIL, &n.to_le_bytes()).unwrap();
            if n.is_multiple_of(3) {
                lane.poll().unwrap();
            }
        }
        let end = late();
        while lane.mailbox().words(0, 8).load(0) != ROUNDS {
            parker.prepare_park();
            lane.poll().unwrap();
            if lane.mailbox().words(0, 8).load(0) != ROUNDS {
                parker.park_until(Deadline::after(LOST));
            }
            parker.cancel_park();
            assert!(!end.passed(), "{:?}", lane.counters());
        }
        lane
    });
    let (mut told, end) = (0, late());
    while told < ROUNDS {
        assert!(!end.passed(), "{:?}", port.counters());
        port.poll(&mut view, &inbox).unwrap();
        let tail = inbox.window().as_read().load(INBOX_TAIL_AT);
        if tail > told {
            told = tail;
            port.post(0, &told.to_le_bytes()).unwrap();
            port.signal().unwrap();
        }
    }
    while !client.is_finished() {
        port.poll(&mut view, &inbox).unwrap();
        std::thread::sleep(Duration::from_micros(200));
    }
    let lane = client.join().unwrap();
    println!("client {:?}\nserver {:?}", lane.counters(), port.counters());
}
