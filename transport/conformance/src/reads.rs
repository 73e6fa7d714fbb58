//! Tests of F01, F02, F03, F12, F13, F14.

use std::time::Duration;

use tidewater_lanes::fabric::*;
use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::layout::lines::CheckedU64;
use tidewater_runtime::clock::{self, Deadline};
use tidewater_runtime::sync::{Arc, AtomicBool, Ordering};

use crate::rig::{Client, ClientTask, DATA_AT, DATA_BYTES, Rig, SALT, Server, at, late, op_at};

fn pattern(addr: usize) -> u8 {
    mix64(addr as u64) as u8
}

fn fill(server: &Server) {
    let bytes: Vec<u8> = (DATA_AT..DATA_AT + DATA_BYTES).map(pattern).collect();
    server
        .public
        .words_mut(DATA_AT, DATA_BYTES)
        .unwrap()
        .copy_in(0, &bytes);
}

/// Starts clients only after the server has written the pattern.
fn with_pattern(rig: &dyn Rig, clients: Vec<ClientTask>) {
    let ready = Arc::new(AtomicBool::new(false));
    let clients = clients.into_iter().map(|task| -> ClientTask {
        let ready = Arc::clone(&ready);
        Box::new(move |client: Client| {
            let end = late();
            while !ready.load(Ordering::Acquire) {
                assert!(!end.passed(), "the pattern does not come");
                client.machine.nap(Duration::from_micros(100));
            }
            task(client);
        })
    });
    let laid = Arc::clone(&ready);
    rig.run(
        Box::new(move |server| {
            fill(&server);
            laid.store(true, Ordering::Release);
            server.serve();
        }),
        clients.collect(),
    );
}

pub(crate) fn exact(rig: &dyn Rig) {
    let rounds = rig.rounds();
    with_pattern(
        rig,
        vec![Box::new(move |mut client| {
            for round in 0..rounds {
                read_some(&mut client, round);
            }
        })],
    );
}

fn read_some(client: &mut Client, round: u64) {
    const GAP: usize = 16;
    let mut random = mix64(round);
    let mut below = |n: usize| {
        random = mix64(random.wrapping_add(1));
        (random % n as u64) as usize
    };
    let mut ops = Vec::new();
    let (mut head_at, mut body_at) = (GAP, GAP);
    for _ in 0..=below(20) {
        let longest = if below(20) == 0 { 64 << 10 } else { 600 };
        let (head, body) = (below(5) * 8, below(longest));
        let addr = DATA_AT + below((DATA_BYTES - head - body) / 8) * 8;
        ops.push(ReadOp {
            from: at(client.keys.data, addr),
            len: (head + body) as u32,
            head_len: head as u32,
            head_at,
            body_at,
            fence: below(4) == 0,
        });
        (head_at, body_at) = (head_at + head + GAP, body_at + body + GAP);
    }
    let (mut head, mut body) = (vec![0xee; head_at], vec![0xee; body_at]);
    let mut want = (head.clone(), body.clone());
    for op in &ops {
        let split = op.head_len as usize;
        for i in 0..op.len as usize {
            let byte = pattern(op.from.addr as usize + i);
            if i < split {
                want.0[op.head_at + i] = byte;
            } else {
                want.1[op.body_at + i - split] = byte;
            }
        }
    }
    let into = ReadDest {
        head: &mut head,
        body: &mut body,
    };
    client.lane.read(&ops, into, late()).unwrap();
    assert!(head == want.0 && body == want.1, "round {round}: {ops:?}");
    let short = ReadDest {
        head: &mut head,
        body: &mut [],
    };
    let mut op = ops[0];
    op.len = op.head_len + 8;
    let refused = client.lane.read(&[op], short, late());
    assert!(
        matches!(refused, Err(LaneError::Usage { .. })),
        "{refused:?}"
    );
}

/// Torn reads have one promise: every byte was there at some time.
pub(crate) fn torn_bytes_are_real(rig: &dyn Rig) {
    let rounds = rig.rounds() * 4;
    rig.run(
        Box::new(|mut server| {
            let mut n = 0u8;
            while server.clients_left() {
                n = n.wrapping_add(1);
                let byte = if n.is_multiple_of(2) { 0x00 } else { 0xff };
                for half in 0..2 {
                    let words = server.public.words_mut(DATA_AT + half * 512, 512).unwrap();
                    words.copy_in(0, &[byte; 512]);
                    server.machine.step();
                }
                server.poll();
            }
        }),
        vec![Box::new(move |mut client| {
            for _ in 0..rounds {
                let body = client.read(DATA_AT, 1024).unwrap();
                assert!(body.iter().all(|b| matches!(b, 0x00 | 0xff)), "{body:?}");
            }
        })],
    );
}

/// The server raises x before y; a client that reads y and then, fenced, x never sees x behind y.
pub(crate) fn fence(rig: &dyn Rig) {
    const X: usize = DATA_AT;
    const Y: usize = DATA_AT + 4096;
    let rounds = rig.rounds() * 10;
    rig.run(
        Box::new(|mut server| {
            let mut n = 0u64;
            while server.clients_left() {
                for _ in 0..8 {
                    n += 1;
                    for place in [X, Y] {
                        publish(&server, place, n);
                        server.machine.step();
                    }
                }
                server.poll();
            }
        }),
        vec![Box::new(move |mut client| {
            // Fewer comparisons suffice on a busy machine.
            let (mut compared, end) = (0, Deadline::after(Duration::from_secs(2)));
            while compared < rounds && !end.passed() {
                let first = op_at(client.keys.data, Y, 16);
                let from = at(client.keys.data, X);
                let (fence, body_at) = (true, 16);
                let second = ReadOp {
                    from,
                    fence,
                    body_at,
                    ..first
                };
                let mut body = [0; 32];
                let into = ReadDest {
                    head: &mut [],
                    body: &mut body,
                };
                client.lane.read(&[first, second], into, late()).unwrap();
                // Cells with a wrong checksum are torn and skipped.
                if let (Some(y), Some(x)) = (validated(&body[..16]), validated(&body[16..])) {
                    assert!(x >= y, "the fenced read is older: y {y}, then x {x}");
                    compared += 1;
                }
            }
            assert!(compared > 0, "no read was untorn");
        })],
    );
}

/// Stores a number with its checksum.
fn publish(server: &Server, place: usize, n: u64) {
    let CheckedU64([v, checksum]) = CheckedU64::new(n, SALT);
    let cell = server.public.words_mut(place, 16).unwrap();
    cell.store_release(0, v);
    cell.store_release(8, checksum);
}

fn validated(bytes: &[u8]) -> Option<u64> {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    CheckedU64([word(0), word(8)]).value(SALT)
}

/// With a server that does not poll, a wait still ends: done (one-sided) or by the deadline.
pub(crate) fn deadline(rig: &dyn Rig) {
    rig.run(
        Box::new(|server| {
            server.machine.nap(Duration::from_millis(300));
            server.serve();
        }),
        vec![Box::new(|mut client| {
            let mut body = [0; 64];
            let op = op_at(client.keys.data, DATA_AT, 64);
            let (began, limit) = (clock::now(), Duration::from_millis(30));
            let into = ReadDest {
                head: &mut [],
                body: &mut body,
            };
            let done = client.lane.read(&[op], into, Deadline::after(limit));
            let took = clock::now().duration_since(began);
            assert!(took < Duration::from_secs(2), "{took:?}");
            let mut lives = true;
            if let Err(error) = done {
                assert!(took >= limit, "{took:?}");
                let (LaneError::Deadline { peer, .. } | LaneError::Late { peer, .. }) = &error
                else {
                    panic!("{error}");
                };
                assert!(!peer.is_empty());
                assert!(error.to_string().contains("read"), "{error}");
                lives = !error.is_fatal();
                assert_eq!(client.lane.poll().is_ok(), lives, "a fatal error is final");
            }
            // F13: a later reply has no destination.
            body.fill(0x77);
            client.machine.nap(Duration::from_millis(400));
            assert_eq!(client.lane.poll().is_ok(), lives);
            assert_eq!(body, [0x77; 64]);
            if lives {
                let into = ReadDest {
                    head: &mut [],
                    body: &mut body,
                };
                let soon = Deadline::after(Duration::from_secs(20));
                client.lane.read(&[op], into, soon).unwrap();
                assert_ne!(body, [0x77; 64], "the next read brings its own answer");
            }
        })],
    );
}

/// Owned batches come back with their data; dropped and forgotten lanes do no harm.
pub(crate) fn owned_batches(rig: &dyn Rig) {
    let rounds = rig.rounds();
    with_pattern(
        rig,
        vec![
            Box::new(move |mut client| {
                for round in 0..rounds {
                    take_batches(&mut client, round);
                }
            }),
            Box::new(|mut client| {
                client.lane.submit_read(batch(&client, 1)).unwrap();
                client.lane.flush().unwrap();
            }),
            Box::new(|mut client| {
                client.lane.submit_read(batch(&client, 2)).unwrap();
                client.lane.flush().unwrap();
                let Client { lane, .. } = client;
                std::mem::forget(lane);
            }),
        ],
    );
}

fn batch(client: &Client, tag: u64) -> ReadBatch {
    let addr = DATA_AT + tag as usize % 1000 * 8;
    let op = ReadOp {
        head_len: 16,
        ..op_at(client.keys.data, addr, 200)
    };
    ReadBatch {
        ops: vec![op],
        head: vec![0; 16],
        body: vec![0; 184],
        tag,
    }
}

fn take_batches(client: &mut Client, round: u64) {
    let mut tags: Vec<u64> = (0..5).map(|n| round * 5 + n).collect();
    for tag in &tags {
        client.lane.submit_read(batch(client, *tag)).unwrap();
    }
    // A borrowed read in between is independent.
    client.read(DATA_AT, 8).unwrap();
    let mut taken = Vec::new();
    let all = client.sleep_until(late(), |c| {
        taken.extend(std::iter::from_fn(|| c.lane.poll_read()));
        taken.len() == 5
    });
    assert!(all.unwrap(), "{} of 5 came back", taken.len());
    for back in taken {
        let at = tags
            .iter()
            .position(|t| *t == back.tag)
            .expect("a batch comes back once");
        tags.swap_remove(at);
        let addr = DATA_AT + back.tag as usize % 1000 * 8;
        let got = back.head.iter().chain(&back.body).copied();
        assert!(
            got.eq((addr..addr + 200).map(pattern)),
            "batch {}",
            back.tag
        );
    }
}
