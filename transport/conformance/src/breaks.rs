//! Tests of F09, F10, F11, F16, and F18.

use std::time::Duration;

use tidewater_lanes::fabric::*;
use tidewater_protocol::ids::RegionKey;
use tidewater_protocol::layout::session::INBOX_RING_AT;
use tidewater_runtime::sync::{Arc, AtomicU64, Ordering};

use crate::rig::{
    COUNTERS_BYTES, Client, ClientTask, DATA_AT, DATA_BYTES, RING_BYTES, Rig, Server, at, late,
    op_at,
};

type Wrong = fn(&mut Client) -> Result<(), LaneError>;

fn read(client: &mut Client, key: RegionKey, addr: usize, len: usize) -> Result<(), LaneError> {
    let mut body = vec![0; len];
    let into = ReadDest {
        head: &mut [],
        body: &mut body,
    };
    client.lane.read(&[op_at(key, addr, len)], into, late())
}

fn write(client: &mut Client, key: RegionKey, addr: usize) -> Result<(), LaneError> {
    client.lane.write(at(key, addr), &[0xbb; 64])?;
    client.lane.flush()
}

fn add(client: &mut Client, key: RegionKey, addr: usize) -> Result<(), LaneError> {
    client.lane.fetch_add(at(key, addr), 1, late()).map(drop)
}

/// Counts where the lane has atomics.
fn count(client: &mut Client) {
    if client.lane.has_atomics() {
        let counters = client.keys.counters;
        add(client, counters, 0).unwrap();
    }
}

const PAST_INBOX: usize = INBOX_RING_AT + RING_BYTES;

const WRONG: &[(&str, Wrong)] = &[
    ("read, unknown key", |c| {
        read(c, RegionKey(c.keys.data.0 ^ 1 << 21), DATA_AT, 64)
    }),
    ("read, no key", |c| read(c, RegionKey(0), DATA_AT, 64)),
    ("read past the end", |c| read(c, c.keys.data, 1 << 20, 64)),
    ("read far away", |c| {
        read(c, c.keys.data, usize::MAX - 7, 64)
    }),
    ("read misaligned", |c| read(c, c.keys.data, DATA_AT + 4, 64)),
    ("read of the inbox", |c| read(c, INBOX_KEY, 0, 64)),
    ("write to parameters", |c| write(c, c.keys.data, DATA_AT)),
    ("write to counters", |c| write(c, c.keys.counters, 0)),
    ("write past the inbox", |c| write(c, INBOX_KEY, PAST_INBOX)),
    ("write across the inbox's end", |c| {
        write(c, INBOX_KEY, PAST_INBOX - 32)
    }),
    ("write far away", |c| write(c, INBOX_KEY, usize::MAX - 63)),
    ("write misaligned", |c| {
        write(c, INBOX_KEY, INBOX_RING_AT + 4)
    }),
    ("add to parameters", |c| add(c, c.keys.data, DATA_AT)),
    ("add past the counters", |c| {
        add(c, c.keys.counters, COUNTERS_BYTES)
    }),
    ("add misaligned", |c| add(c, c.keys.counters, 4)),
    ("swap in the inbox", |c| {
        c.lane
            .compare_swap(at(INBOX_KEY, INBOX_RING_AT), 0, 1, late())
            .map(drop)
    }),
];

/// Each forbidden access fails its own lane with `Access`, and changes nothing.
pub(crate) fn access(rig: &dyn Rig) {
    let atomic = |what: &str| what.starts_with("add") || what.starts_with("swap");
    let wrong = WRONG
        .iter()
        .filter(|(what, _)| rig.has_atomics() || !atomic(what));
    let clients = wrong.map(|(what, wrong)| -> ClientTask {
        Box::new(move |mut client| {
            client.read(DATA_AT, 64).unwrap();
            let error = match wrong(&mut client) {
                Err(error) => error,
                Ok(()) => client.wait_for_the_break(),
            };
            assert!(matches!(error, LaneError::Access { .. }), "{what}: {error}");
            let after = client.read(DATA_AT, 64);
            assert!(after.is_err(), "{what}: the lane goes on");
        })
    });
    rig.run(Box::new(serve_unchanged), clients.collect());
}

fn serve_unchanged(server: Server) {
    let (public, counters) = (Arc::clone(&server.public), Arc::clone(&server.counters));
    let inboxes: Vec<Inbox> = server.lanes.iter().map(|l| l.inbox.clone()).collect();
    server.serve();
    let mut bytes = vec![1; DATA_BYTES];
    public
        .words(DATA_AT, DATA_BYTES)
        .unwrap()
        .copy_out(0, &mut bytes);
    assert!(bytes.iter().all(|b| *b == 0), "parameters were changed");
    counters
        .words(0, COUNTERS_BYTES)
        .unwrap()
        .copy_out(0, &mut bytes[..COUNTERS_BYTES]);
    assert!(bytes.iter().all(|b| *b == 0), "counters were changed");
    for (inbox, (what, _)) in inboxes.iter().zip(WRONG) {
        let ring = ring_of(inbox);
        assert!(ring.iter().all(|b| *b == 0), "{what}: the ring was changed");
    }
}

fn ring_of(inbox: &Inbox) -> Vec<u8> {
    let mut ring = vec![0; RING_BYTES];
    inbox.window().as_read().copy_out(INBOX_RING_AT, &mut ring);
    ring
}

/// After the error no operation is done, and each reports that the lane is broken.
pub(crate) fn nothing_after_the_break(rig: &dyn Rig) {
    let each = u64::from(rig.has_atomics());
    rig.run(
        Box::new(move |server| {
            let (counters, inbox) = (Arc::clone(&server.counters), server.lanes[0].inbox.clone());
            server.serve();
            assert_eq!(counters.words(0, 8).unwrap().load(0), each);
            assert!(ring_of(&inbox).iter().all(|b| *b == 0));
        }),
        vec![Box::new(|mut client| {
            let keys = client.keys;
            count(&mut client);
            let refused = read(&mut client, RegionKey(0x7f), DATA_AT, 8);
            assert!(refused.is_err_and(|e| e.is_fatal()));
            for _ in 0..3 {
                assert!(add(&mut client, keys.counters, 0).is_err());
                assert!(write(&mut client, INBOX_KEY, INBOX_RING_AT).is_err());
                assert!(client.signal_tail(64).is_err());
                assert!(client.lane.poll().is_err());
                assert!(client.lane.flush().is_err());
                assert!(client.read(DATA_AT, 8).is_err());
                client.machine.nap(Duration::from_millis(2));
            }
        })],
    );
}

/// A client writes at full speed while the server destroys its server lane: from then on no byte is placed.
///
/// On shared memory no end can revoke a store. The one write that was under way may still end, in memory
/// that the server no longer reads and never reuses for another lane.
pub(crate) fn destroyed(rig: &dyn Rig) {
    let under_way = usize::from(rig.kind() == TransportKind::Shm);
    let rounds = rig.rounds() * 1000;
    rig.run(
        Box::new(move |mut server| {
            let end = late();
            while server.tail(0) < 20 {
                assert!(!end.passed(), "nothing arrives");
                server.poll();
            }
            let lane = &mut server.lanes[0];
            lane.port.destroy();
            lane.open = false;
            let before = ring_of(&lane.inbox);
            server.machine.nap(Duration::from_millis(20));
            let after = ring_of(&server.lanes[0].inbox);
            let placed = before
                .chunks(64)
                .zip(after.chunks(64))
                .filter(|(b, a)| b != a);
            let placed = placed.count();
            assert!(placed <= under_way, "{placed} writes were placed");
            server.serve();
        }),
        vec![Box::new(move |mut client| {
            let mut failed = None;
            for n in 1..=rounds {
                let to = at(INBOX_KEY, INBOX_RING_AT + (n as usize % 64) * 64);
                let sent = client
                    .lane
                    .write(to, &[n as u8; 64])
                    .and_then(|()| client.signal_tail(n));
                if let Err(error) = sent {
                    failed = Some(error);
                    break;
                }
            }
            let error = failed.unwrap_or_else(|| client.wait_for_the_break());
            assert!(matches!(error, LaneError::Broken { .. }), "{error}");
        })],
    );
}

/// One lane breaks in every round; the others count on.
pub(crate) fn others_live(rig: &dyn Rig) {
    let (rounds, each) = (rig.rounds(), u64::from(rig.has_atomics()));
    let broken = Arc::new(AtomicU64::new(0));
    let mut clients: Vec<ClientTask> = Vec::new();
    for n in 0..4u64 {
        let broken = Arc::clone(&broken);
        clients.push(Box::new(move |mut client| {
            if n < 2 {
                count(&mut client);
                assert!(read(&mut client, RegionKey(0x7f), DATA_AT, 8).is_err());
                broken.fetch_add(1, Ordering::Release);
                return;
            }
            let end = late();
            while broken.load(Ordering::Acquire) < 2 {
                assert!(!end.passed());
                client.machine.nap(Duration::from_micros(50));
            }
            for _ in 0..rounds {
                count(&mut client);
                client.read(DATA_AT, 64).unwrap();
                client.lane.poll().unwrap();
            }
        }));
    }
    rig.run(
        Box::new(move |server| {
            let counters = Arc::clone(&server.counters);
            server.serve();
            let counted = each * (2 + 2 * rounds);
            assert_eq!(counters.words(0, 8).unwrap().load(0), counted);
        }),
        clients,
    );
}

/// Once warm, neither end allocates.
pub(crate) fn allocations_none(rig: &dyn Rig) {
    let allocations = rig.allocations().expect("the program counts allocations");
    const WARM: u64 = 200;
    const MEASURED: u64 = 1000;
    rig.run(
        Box::new(move |mut server| {
            let mut before = 0;
            for n in 1..=WARM + MEASURED {
                if n == WARM {
                    before = allocations();
                }
                let end = late();
                while server.tail(0) < n {
                    assert!(!end.passed());
                    server.poll();
                }
                server.tell(0, 0, n);
                server.lanes[0].port.signal().unwrap();
            }
            assert_eq!(allocations() - before, 0, "of the server's thread");
            server.serve();
        }),
        vec![Box::new(move |mut client| {
            let mut body = [0; 512];
            let op = op_at(client.keys.data, DATA_AT, 512);
            let mut before = 0;
            for n in 1..=WARM + MEASURED {
                if n == WARM {
                    before = allocations();
                }
                client
                    .lane
                    .write(at(INBOX_KEY, INBOX_RING_AT), &[1; 256])
                    .unwrap();
                client.signal_tail(n).unwrap();
                let into = ReadDest {
                    head: &mut [],
                    body: &mut body,
                };
                client.lane.read(&[op], into, late()).unwrap();
                let arrived = |c: &mut Client| c.posted(0) == Some(n);
                assert!(client.sleep_until(late(), arrived).unwrap());
            }
            assert_eq!(allocations() - before, 0, "of the client's thread");
        })],
    );
}
