//! Tests of lanes that end, and of the time until the next one is open.

use std::time::Duration;

use tidewater_lanes::fabric::{ClientLane, INBOX_KEY, LaneError, RemoteAddr, ServerLane};
use tidewater_protocol::layout::session::INBOX_RING_AT;
use tidewater_protocol::limits::{VERBS_PROBE_EVERY, VERBS_RECEIVES};
use tidewater_runtime::clock;

use crate::harness::{Ends, Host, late, row};

/// Time limit with a window bound: destroyed in another order, a pair takes rxe of Linux 6.1 50 s.
const SOON: Duration = Duration::from_secs(1);

/// Longer than a signal takes to arrive and be acknowledged, so that no request is in flight.
const QUIET: Duration = Duration::from_millis(500);

/// Time until a lost peer is detected: two seconds, and an emulator's delay; far below the 30 s of a
/// call's own deadline.
const KNOWN: Duration = Duration::from_secs(10);

const RING: RemoteAddr = RemoteAddr {
    key: INBOX_KEY,
    addr: INBOX_RING_AT as u64,
};

/// A server lane is dropped during its client's writes in time, and the next lane opens.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_lane_is_rebuilt_within_a_second() {
    let host = Host::new();
    let mut times = Vec::new();
    for round in 0..20u8 {
        let mut ends = host.connect(2);
        for _ in 0..30 {
            ends.lane.write(RING, &[round; 4096]).unwrap();
        }
        ends.lane.flush().unwrap();
        let began = clock::now();
        ends.port.destroy();
        assert!(ends.poll_port().is_err());
        let mut next = host.connect(2);
        next.lane.write_signal(RING, &[round; 64]).unwrap();
        next.settle();
        assert_eq!(
            next.inbox.window().as_read().load(INBOX_RING_AT),
            u64::from_le_bytes([round; 8])
        );
        times.push(clock::now().duration_since(began));
        // The old client learns of it later; its lane may go now, during the writes.
        drop(ends);
    }
    times.sort_unstable();
    println!("recoveries took {times:?}");
    // Other programs use the processors too: the median decides.
    assert!(times[times.len() / 2] < SOON, "{times:?}");
}

/// A client of a lost server lane gets an error within its retries, and not that it was refused.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_peer_that_is_gone_breaks_the_lane() {
    let host = Host::new();
    for reads in [false, true] {
        let mut ends = host.connect(2);
        ends.read(&[row(host.at(0), 64, 0)]).unwrap();
        ends.port.destroy();
        let error = if reads {
            ends.read(&[row(host.at(0), 64, 0)]).unwrap_err()
        } else {
            let end = late();
            ends.lane.write_signal(RING, &[1; 64]).unwrap();
            loop {
                if let Err(e) = ends.lane.poll() {
                    break e;
                }
                assert!(!end.passed(), "the lane does not break");
            }
        };
        println!("{error}");
        assert!(matches!(error, LaneError::Broken { .. }), "{error}");
        assert!(error.to_string().contains("the server"), "{error}");
        assert!(ends.lane.poll().is_err() && ends.lane.flush().is_err());
    }
}

/// A client that has used up its credit, with everything acknowledged, waits for a lost server lane. No
/// request in flight could fail, and still it soon gets an error.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_client_without_credit_is_told_that_its_port_is_gone() {
    let host = Host::new();
    let mut ends = host.connect(1);
    ends.settle();
    let Ends {
        mut lane,
        mut port,
        inbox,
        ..
    } = ends;
    let client = std::thread::spawn(move || {
        let mut n = 0u64;
        let error = loop {
            n += 1;
            if let Err(error) = lane.write_signal(RING, &n.to_le_bytes()) {
                break error;
            }
        };
        (error, lane.counters(), clock::now())
    });
    let landed = || inbox.window().as_read().load(INBOX_RING_AT);
    let (mut before, end) = (0, late());
    while before == 0 || before != landed() {
        assert!(!end.passed(), "{before} signals, and no end of credit");
        before = landed();
        std::thread::sleep(QUIET);
    }
    let gone = clock::now();
    port.destroy();
    let (error, counters, told) = client.join().unwrap();
    let took = told.duration_since(gone);
    println!("after {took:?}: {error}; {counters:?}");
    assert!(matches!(error, LaneError::Broken { .. }), "{error}");
    assert!(took < KNOWN, "{took:?}");
    assert!(before < u64::from(VERBS_RECEIVES), "it had credit");
    assert!(counters.probes > 0, "{counters:?}");
}

/// A client that only waits for posts of its server gets an error too. While the server lane exists,
/// its probes cost the devices alone.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_client_that_waits_for_word_is_told_that_its_port_is_gone() {
    let host = Host::new();
    let mut ends = host.connect(1);
    ends.settle();
    let poll_for = |ends: &mut Ends, time| {
        let began = clock::now();
        while clock::now().duration_since(began) < time {
            if let Err(error) = ends.lane.poll() {
                return Some(error);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        None
    };
    let before = ends.lane.counters();
    let lost = poll_for(&mut ends, 3 * VERBS_PROBE_EVERY);
    assert!(lost.is_none(), "the port is there: {lost:?}");
    let asked = (ends.lane.counters() - before).probes;
    assert!((1..=3).contains(&asked), "{asked} times");
    assert!(!ends.poll_port().unwrap(), "the server was told of it");
    ends.port.destroy();
    let error = poll_for(&mut ends, KNOWN);
    println!("{error:?}");
    assert!(matches!(error, Some(LaneError::Broken { .. })), "{error:?}");
}

/// A client that disappears with everything in flight leaves a server lane that closes too.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_client_that_is_gone_breaks_the_port() {
    let host = Host::new();
    let mut ends = host.connect(1);
    ends.settle();
    drop(ends.lane);
    let end = late();
    let view = &mut ends.view;
    let error = loop {
        let told = ends
            .port
            .post(0, &[1; 64])
            .and_then(|()| ends.port.signal());
        if let Err(e) = told.and_then(|()| ends.port.poll(view, &ends.inbox)) {
            break e;
        }
        assert!(!end.passed(), "the port does not break");
        std::thread::sleep(Duration::from_millis(20));
    };
    println!("{error}");
    assert!(matches!(error, LaneError::Broken { .. }), "{error}");
    assert!(error.to_string().contains("the client"), "{error}");
    ends.port.destroy();
}
