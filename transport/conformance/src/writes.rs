//! Tests of F04 to F08, F15, F17.

use std::time::Duration;

use tidewater_lanes::fabric::*;
use tidewater_protocol::layout::session::{INBOX_RING_AT, INBOX_TAIL_AT};
use tidewater_runtime::clock::{self, Deadline};
use tidewater_runtime::sync::{Arc, AtomicU64, Ordering};

use crate::rig::{Client, ClientTask, Rig, Server, at, late};

const SLOTS: u64 = 8;
const SLOT_BYTES: usize = 256;
/// Limit of a sleep: a longer one was not ended by a wake-up.
const LOST: Duration = Duration::from_secs(5);

const fn slot(n: u64) -> usize {
    INBOX_RING_AT + (n % SLOTS) as usize * SLOT_BYTES
}

/// The present bytes of slot `n`.
fn slot_bytes(server: &Server, n: u64) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    let window = server.lanes[0].inbox.window();
    window.as_read().copy_out(slot(n), &mut bytes);
    bytes
}

/// A client streams slots, each announced by `announce` after its bytes. The server checks that announced
/// slots are complete, at once if `strict` and else some time later, and gives credit back.
fn stream(
    rig: &dyn Rig,
    strict: bool,
    announce: fn(&mut Client, u64) -> Result<(), LaneError>,
    announced: fn(&Server) -> Option<u64>,
) {
    let rounds = rig.rounds() * 10;
    rig.run(
        Box::new(move |mut server| {
            let mut checked = 0;
            while checked < rounds {
                let moved = server.poll();
                // A tail that is just being written has no matching checksum.
                let Some(tail) = announced(&server) else {
                    continue;
                };
                assert!(tail >= checked && tail <= rounds, "{tail} after {checked}");
                let fresh = tail > checked;
                while checked < tail {
                    checked += 1;
                    let end = late();
                    let mut bytes = slot_bytes(&server, checked);
                    while !strict && !bytes.iter().all(|b| *b == checked as u8) && !end.passed() {
                        server.poll();
                        server.machine.nap(Duration::from_micros(20));
                        bytes = slot_bytes(&server, checked);
                    }
                    let all = bytes.iter().all(|b| *b == checked as u8);
                    assert!(all, "write {checked} of {tail} is not complete: {bytes:?}");
                }
                if fresh {
                    server.tell(0, 0, checked);
                    let _ = server.lanes[0].port.signal();
                } else if !moved {
                    server.machine.nap(Duration::from_micros(20));
                }
                assert!(server.clients_left() || checked >= rounds, "{checked}");
            }
            server.serve();
        }),
        vec![Box::new(move |mut client| {
            for n in 1..=rounds {
                let room = |c: &mut Client| n - c.posted(0).unwrap_or(0) <= SLOTS;
                assert!(
                    client.sleep_until(late(), room).unwrap(),
                    "no credit for {n}"
                );
                // In pieces, from memory that is freed at once (F07).
                for piece in 0..4 {
                    let mut bytes = vec![n as u8; SLOT_BYTES / 4];
                    let to = at(INBOX_KEY, slot(n) + piece * SLOT_BYTES / 4);
                    client.lane.write(to, &bytes).unwrap();
                    bytes.fill(0xdd);
                }
                announce(&mut client, n).unwrap();
            }
            let all = |c: &mut Client| c.posted(0) == Some(rounds);
            assert!(client.sleep_until(late(), all).unwrap());
        })],
    );
}

pub(crate) fn in_order(rig: &dyn Rig) {
    stream(rig, rig.in_order(), Client::signal_tail, |server| {
        server.lanes[0].inbox.tail()
    });
}

pub(crate) fn atomic_after_writes(rig: &dyn Rig) {
    // F08 shows that such a lane refuses them.
    if !rig.has_atomics() {
        return;
    }
    stream(
        rig,
        true,
        |client, n| {
            let counter = at(client.keys.counters, 0);
            if n.is_multiple_of(2) {
                // Behind a signal, which itself carries no data for the server.
                let cell = [0; 16];
                let tail = at(INBOX_KEY, INBOX_TAIL_AT);
                return client.lane.write_signal_count(tail, &cell, counter, 1);
            }
            let before = client.lane.fetch_add(counter, 1, late())?;
            assert_eq!(before, n - 1);
            Ok(())
        },
        |server| Some(server.counters.words(0, 8).unwrap().load_acquire(0)),
    );
}

/// The source may be reused as soon as the call returns, on both ends.
pub(crate) fn source_is_copied(rig: &dyn Rig) {
    let rounds = rig.rounds();
    rig.run(
        Box::new(move |mut server| {
            for n in 1..=rounds {
                let mut bytes = crate::rig::checked(n);
                let lane = &mut server.lanes[0];
                lane.port.post(crate::rig::MAIL_AT, &bytes).unwrap();
                bytes.fill(0xdd);
                lane.port.signal().unwrap();
                let end = late();
                while server.tail(0) < n {
                    assert!(!end.passed(), "round {n}");
                    server.poll();
                }
            }
            server.tell(0, 1, rounds);
            server.lanes[0].port.signal().unwrap();
            server.serve();
        }),
        vec![Box::new(move |mut client| {
            for n in 1..=rounds {
                let arrived = |c: &mut Client| c.posted(0) == Some(n);
                assert!(client.sleep_until(late(), arrived).unwrap(), "round {n}");
                let mut bytes = crate::rig::checked(n);
                client.lane.write_signal(at(INBOX_KEY, 0), &bytes).unwrap();
                bytes.fill(0xdd);
            }
            // A lane dropped at once may lose its last write.
            let done = |c: &mut Client| c.posted(1) == Some(rounds);
            assert!(client.sleep_until(late(), done).unwrap());
        })],
    );
}

/// Sleeps once if `quiet` still holds after the announcement; fails without a wake-up.
fn sleep_once(server: &mut Server, quiet: impl Fn(&Server) -> bool) {
    server.parker.prepare_park();
    if !server.poll() && quiet(server) {
        let began = clock::now();
        server.parker.park_until(Deadline::after(2 * LOST));
        let slept = clock::now().duration_since(began);
        assert!(
            slept < LOST || !server.clients_left(),
            "a wake-up was lost: slept {slept:?}"
        );
    }
    server.parker.cancel_park();
}

/// Idle gaps around the spin limit, then a signal: the sleeping owner wakes each time.
pub(crate) fn signal_wakes(rig: &dyn Rig) {
    let rounds = rig.rounds();
    let seen = Arc::new(AtomicU64::new(0));
    let saw = Arc::clone(&seen);
    rig.run(
        Box::new(move |mut server| {
            while server.tail(0) < rounds {
                let before = server.tail(0);
                saw.store(before, Ordering::Release);
                if !server.poll() {
                    sleep_once(&mut server, |s| s.tail(0) == before);
                }
            }
            saw.store(rounds, Ordering::Release);
            server.serve();
        }),
        vec![Box::new(move |mut client| {
            for n in 1..=rounds {
                client.machine.nap(Duration::from_micros(n * 7 % 60));
                client.signal_tail(n).unwrap();
                let end = late();
                while seen.load(Ordering::Acquire) < n {
                    assert!(!end.passed(), "signal {n} was not seen");
                    client.machine.nap(Duration::from_micros(10));
                }
            }
        })],
    );
}

/// A lane without atomics refuses each call that counts, and goes on.
fn refused_atomics(rig: &dyn Rig) {
    let client: ClientTask = Box::new(|mut client| {
        let counter = at(client.keys.counters, 0);
        let tail = at(INBOX_KEY, INBOX_TAIL_AT);
        let lane = &mut client.lane;
        for refused in [
            lane.fetch_add(counter, 1, late()).map(drop),
            lane.compare_swap(counter, 0, 1, late()).map(drop),
            lane.write_signal_count(tail, &[1; 16], counter, 1),
        ] {
            assert!(
                matches!(refused, Err(LaneError::Usage { .. })),
                "{refused:?}"
            );
        }
        client.signal_tail(1).unwrap();
        let arrived = |c: &mut Client| c.posted(0) == Some(1);
        assert!(client.sleep_until(late(), arrived).unwrap());
    });
    rig.run(
        Box::new(|mut server| {
            let end = late();
            while server.tail(0) < 1 {
                assert!(!end.passed());
                server.poll();
            }
            assert_eq!(server.counters.words(0, 8).unwrap().load(0), 0);
            server.tell(0, 0, 1);
            server.lanes[0].port.signal().unwrap();
            server.serve();
        }),
        vec![client],
    );
}

/// Concurrent increments: every old value once, the sum exact; by swaps too.
pub(crate) fn atomics(rig: &dyn Rig) {
    if !rig.has_atomics() {
        return refused_atomics(rig);
    }
    const CLIENTS: u64 = 3;
    let rounds = rig.rounds();
    let sum = Arc::new(AtomicU64::new(0));
    let client = |_| -> ClientTask {
        let sum = Arc::clone(&sum);
        Box::new(move |mut client| {
            let (added, swapped) = (at(client.keys.counters, 64), at(client.keys.counters, 128));
            let mut guess = 0;
            for _ in 0..rounds {
                let old = client.lane.fetch_add(added, 1, late()).unwrap();
                sum.fetch_add(old, Ordering::Relaxed);
                loop {
                    let was = client
                        .lane
                        .compare_swap(swapped, guess, guess + 1, late())
                        .unwrap();
                    if was == std::mem::replace(&mut guess, was) {
                        break;
                    }
                }
            }
        })
    };
    let total = CLIENTS * rounds;
    let olds = Arc::clone(&sum);
    rig.run(
        Box::new(move |server| {
            let counters = Arc::clone(&server.counters);
            server.serve();
            let words = counters.words(0, 256).unwrap();
            assert_eq!((words.load(64), words.load(128)), (total, total));
            assert_eq!(olds.load(Ordering::Relaxed), total * (total - 1) / 2);
        }),
        (0..CLIENTS).map(client).collect(),
    );
}

/// Posts are placed in order where WRITEs are, all of them are placed, and the signal wakes the client.
pub(crate) fn mail_in_order(rig: &dyn Rig) {
    let (rounds, in_order) = (rig.rounds() * 4, rig.in_order());
    rig.run(
        Box::new(move |mut server| {
            for n in 1..=rounds {
                server.poll();
                server.tell(0, 0, n);
                server.tell(0, 1, n);
                server.lanes[0].port.signal().unwrap();
                if n % 16 == 0 {
                    server.machine.nap(Duration::from_micros(50));
                }
            }
            server.serve();
        }),
        vec![Box::new(move |mut client| {
            let began = clock::now();
            let all = client.sleep_until(Deadline::after(2 * LOST), |c| {
                let second = c.posted(1).unwrap_or(0);
                // The first may be under way again, then its checksum does not match.
                let first = c.posted(0);
                if let (Some(first), true) = (first, in_order) {
                    assert!(first >= second, "post {first} after post {second}");
                }
                (first, second) == (Some(rounds), rounds)
            });
            assert!(all.unwrap());
            assert!(
                clock::now().duration_since(began) < LOST,
                "a wake-up was lost"
            );
        })],
    );
}

/// Both ends sleep between turns; then one sleeps idly without any CPU use.
pub(crate) fn sleeping(rig: &dyn Rig) {
    let rounds = rig.rounds();
    rig.run(
        Box::new(move |mut server| {
            let mut seen = 0;
            while seen < rounds {
                server.poll();
                let tail = server.tail(0);
                if tail > seen {
                    seen = tail;
                    server.tell(0, 0, tail);
                    server.lanes[0].port.signal().unwrap();
                } else {
                    sleep_once(&mut server, |s| s.tail(0) == tail);
                }
            }
            server.serve();
        }),
        vec![Box::new(move |mut client| {
            for n in 1..=rounds {
                client.signal_tail(n).unwrap();
                let began = clock::now();
                let arrived = |c: &mut Client| c.posted(0) == Some(n);
                assert!(
                    client
                        .sleep_until(Deadline::after(2 * LOST), arrived)
                        .unwrap()
                );
                assert!(
                    clock::now().duration_since(began) < LOST,
                    "a wake-up was lost"
                );
            }
            let mut looks = 0;
            let idle = Deadline::after(Duration::from_millis(100));
            let nothing = client.sleep_until(idle, |_| {
                looks += 1;
                false
            });
            assert!(!nothing.unwrap());
            assert!(looks < 20, "an idle client looked {looks} times in 100 ms");
        })],
    );
}
