//! Tests of sleeping threads: what wakes them, for how long they sleep, and what one look finds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::Write as _;
use std::os::unix::net::UnixStream;

use super::*;

fn sleep(parker: &mut OsParker, time: Duration) -> Duration {
    let begun = clock::now();
    parker.prepare_park();
    parker.park_until(Deadline::after(time));
    parker.cancel_park();
    clock::now() - begun
}

/// Tests that sleeps are timed in microseconds: of many sleeps of 50 us, five end within 1 ms.
/// Timeouts rounded up to whole milliseconds would never do so.
#[test]
fn some_sleep_of_50_us_ends_within_a_millisecond() {
    let mut parker = OsParker::new(Duration::ZERO).unwrap();
    let limit = Deadline::after(Duration::from_secs(20));
    let mut shortest = Duration::MAX;
    // A single short sleep may have been cut by an interruption.
    let mut short = 0;
    while short < 5 {
        let slept = sleep(&mut parker, Duration::from_micros(50));
        short += u32::from(slept < Duration::from_millis(1));
        shortest = shortest.min(slept);
        assert!(
            !limit.passed(),
            "{short} short sleeps, the shortest {shortest:?}"
        );
    }
    assert!(shortest >= Duration::from_micros(50), "{shortest:?}");
}

#[test]
fn ring_in_a_short_sleep_is_taken_back() {
    let mut parker = OsParker::new(Duration::ZERO).unwrap();
    parker.waker().wake();
    sleep(&mut parker, Duration::from_millis(1));
    let left = rustix::io::read(parker.waker(), &mut [0; 8]);
    assert_eq!(
        left,
        Err(rustix::io::Errno::AGAIN),
        "the ring is still there"
    );
}

/// Sockets of one reactor, with their other ends. None has input, and no flag is set.
fn sockets(reactor: &Reactor, count: usize) -> Vec<(UnixStream, UnixStream, Readiness)> {
    let pairs = (0..count).map(|_| {
        let (near, far) = UnixStream::pair().unwrap();
        let readiness = reactor.add_readiness(&near).unwrap();
        readiness.set(false);
        (near, far, readiness)
    });
    pairs.collect()
}

fn readable(sockets: &[(UnixStream, UnixStream, Readiness)]) -> Vec<usize> {
    let all = sockets.iter().enumerate();
    let readable = all.filter(|(_, (_, _, readiness))| readiness.is_readable());
    readable.map(|(n, _)| n).collect()
}

/// One look says which of many sockets have input. There is none while the sockets are few.
#[test]
fn one_look_finds_all_readable_sockets() {
    let reactor = Reactor::new(false).unwrap();
    let mut few = sockets(&reactor, MANY - 1);
    few[1].1.write_all(b"x").unwrap();
    assert!(!reactor.look());
    assert_eq!((readable(&few), reactor.sleeps()), (vec![], 0));
    let mut many = sockets(&reactor, 3 * EVENTS);
    assert!(reactor.look());
    assert_eq!((readable(&few), readable(&many)), (vec![1], vec![]));
    // More than one call returns: each is found by one of the next looks, though those found stay readable.
    many.iter_mut()
        .step_by(2)
        .for_each(|(_, far, _)| far.write_all(b"x").unwrap());
    for _ in 0..3 {
        assert!(reactor.look());
    }
    let all: Vec<usize> = (0..many.len()).step_by(2).collect();
    assert_eq!(readable(&many), all);
    assert_eq!(reactor.sleeps(), 4);
    // Removed ones do not count.
    for (near, _, readiness) in &many {
        reactor.remove(near, readiness);
    }
    assert!(!reactor.look());
}
