//! Tests of F06, F15, F17: sleeping ends are woken, and waiting ends sleep.

use std::time::Duration;

use tidewater_lanes::fabric::{ClientLane, Parker, ReadBatch, SPIN, ServerLane};
use tidewater_protocol::layout::session::INBOX_TAIL_AT;
use tidewater_runtime::clock::{self, Deadline};

use crate::harness::{Dice, Memory, plain, served, soon, unserved};
use crate::writes::{inbox_at, tail_cell};

#[test]
fn f06_f15_no_wake_up_is_lost_around_the_spin_limit() {
    let memory = Memory::new();
    let (mut lane, mut near, server, inbox) = served(&memory);
    let dice = &mut Dice(6);
    let mut slowest = Duration::ZERO;
    for round in 1..=400u64 {
        let gap = Duration::from_nanos(dice.below(3 * SPIN.as_nanos() as u64));
        let begin = clock::now();
        while begin.elapsed() < gap {
            std::hint::spin_loop();
        }
        let begin = clock::now();
        lane.write_signal(inbox_at(INBOX_TAIL_AT), &tail_cell(round * 64))
            .unwrap();
        while inbox.tail() != Some(round * 64) {
            assert!(
                begin.elapsed() < Duration::from_secs(2),
                "round {round}: the port sleeps"
            );
            std::thread::yield_now();
        }
        // Now the other way: the client sleeps and the server lane signals.
        let port = std::sync::Arc::clone(&server.port);
        let poster = std::thread::spawn(move || {
            let mut port = port.lock().unwrap();
            port.post(0, &round.to_le_bytes()).unwrap();
            port.signal().unwrap();
        });
        while lane.mailbox().words(0, 8).load(0) != round {
            assert!(
                begin.elapsed() < Duration::from_secs(4),
                "round {round}: the client sleeps"
            );
            near.prepare_park();
            if !lane.poll().unwrap() {
                near.park_until(Deadline::after(Duration::from_secs(2)));
            }
            near.cancel_park();
        }
        slowest = slowest.max(begin.elapsed());
        poster.join().unwrap();
    }
    println!("slowest of 400 wake-ups: {slowest:?}");
}

/// A client that requests much and reads nothing: the server lane stops executing and sleeps, though
/// requests keep coming. When the client reads again, everything arrives.
#[test]
fn f17_a_port_whose_answers_are_not_read_sleeps_and_goes_on_later() {
    let memory = Memory::new();
    let (mut lane, mut port, inbox, [_near, mut far]) = unserved();
    let mut view = memory.exports.view();
    for tag in 0..200 {
        let len = if tag % 2 == 0 { 1 << 20 } else { 1000 };
        let ops = vec![plain(memory.at(0), len, 0)];
        let body = vec![0; len as usize];
        lane.submit_read(ReadBatch {
            ops,
            body,
            tag,
            ..ReadBatch::default()
        })
        .unwrap();
    }
    lane.flush().unwrap();
    let until = soon();
    while port.poll(&mut view, &inbox).unwrap() {
        assert!(!until.passed(), "the port never stops");
    }
    lane.write(inbox_at(4096), &[1; 5000]).unwrap();
    lane.flush().unwrap();
    // The system may have found a little more buffer space, but it is bounded.
    while port.poll(&mut view, &inbox).unwrap() {
        assert!(!until.passed(), "the port never stops");
    }
    let begin = clock::now();
    far.park_until(Deadline::after(Duration::from_millis(100)));
    assert!(
        begin.elapsed() >= Duration::from_millis(90),
        "it was woken for nothing"
    );
    assert_eq!(inbox.header(0), [0; 8], "a write overtook reads that wait");
    let mut back = 0;
    while back < 200 {
        while lane.poll().unwrap() {}
        back += std::iter::from_fn(|| lane.poll_read()).count();
        far.park_until(Deadline::after(Duration::from_millis(20)));
        while port.poll(&mut view, &inbox).unwrap() {}
        assert!(!until.passed(), "{back} of 200");
    }
    lane.poll().unwrap();
    while port.poll(&mut view, &inbox).unwrap() {}
    assert_eq!(inbox.header(0), [0x0101_0101_0101_0101; 8]);
}

#[test]
fn f17_idle_ends_are_not_woken() {
    let memory = Memory::new();
    let (mut lane, mut port, inbox, mut parkers) = unserved();
    let mut view = memory.exports.view();
    lane.write_signal(inbox_at(0), &tail_cell(0)).unwrap();
    while inbox.tail() != Some(0) || port.poll(&mut view, &inbox).unwrap() {}
    port.post(0, &[1; 64]).unwrap();
    port.signal().unwrap();
    while lane.mailbox().line(0)[0] == 0 {
        lane.poll().unwrap();
    }
    for parker in &mut parkers {
        let begin = clock::now();
        parker.prepare_park();
        parker.park_until(Deadline::after(Duration::from_millis(50)));
        parker.cancel_park();
        assert!(
            begin.elapsed() >= Duration::from_millis(45),
            "woken for nothing"
        );
    }
}
