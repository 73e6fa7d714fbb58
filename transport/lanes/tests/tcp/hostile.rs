//! Bytes from hostile peers, into both ends.

use std::io::Write;
use std::net::Shutdown;

use tidewater_lanes::fabric::{
    ClientLane, INBOX_KEY, LaneError, ReadBatch, RemoteAddr, ServerLane,
};
use tidewater_lanes::tcp::op::{Entry, Reply, Request};

use crate::faults::{lane_over, port_over, sockets};
use crate::harness::{Dice, Memory, noise, plain, soon};

/// Builds bytes with a valid start and a corruption somewhere.
fn corrupt(dice: &mut Dice, valid: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..=dice.below(6) {
        bytes.extend_from_slice(&valid[dice.below(valid.len() as u64) as usize]);
    }
    for _ in 0..dice.below(4) {
        let at = dice.below(bytes.len() as u64) as usize;
        match dice.below(3) {
            0 => bytes[at] ^= 1 << dice.below(8),
            1 => bytes.truncate(at + 1),
            _ => bytes[at..].fill_with(|| dice.below(256) as u8),
        }
    }
    bytes
}

#[test]
fn hostile_clients_cannot_harm_a_port() {
    let memory = Memory::new_small();
    let dice = &mut Dice(99);
    let mut broken = 0;
    for _ in 0..1500 {
        let (mut client, server) = sockets();
        let (mut port, inbox, _far) = port_over(server);
        let (addr, key) = (dice.below(5000), memory.data_key);
        let entry = Entry {
            key,
            len: dice.below(3000) as u32,
            fence: dice.below(2) == 0,
            addr: addr & !7,
        };
        let list = Request::ReadV {
            entries: 1,
            bytes: entry.len,
            cookie: 1,
        };
        let inbox_key = INBOX_KEY;
        let write = Request::Write {
            key: inbox_key,
            addr: addr & !7,
            len: 100,
        };
        let valid = [
            [&list.to_bytes()[..], &entry.to_bytes()].concat(),
            [&write.to_bytes()[..], &[7; 100]].concat(),
            Request::FetchAdd {
                key: memory.counter_key,
                addr,
                add: 1,
            }
            .to_bytes()
            .to_vec(),
            Request::CompareSwap {
                key,
                addr,
                expect: 0,
                new: 1,
            }
            .to_bytes()
            .to_vec(),
        ];
        client.write_all(&corrupt(dice, &valid)).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut view = memory.exports.view();
        let e = (0..1000).find_map(|_| port.poll(&mut view, &inbox).err());
        let e = e.expect("the stream ends");
        broken += usize::from(!e.to_string().contains("closed"));
    }
    let mut now = vec![0; memory.data.len()];
    memory
        .data
        .words(0, now.len())
        .unwrap()
        .copy_out(0, &mut now);
    assert!(now == noise(now.len()), "parameters changed");
    assert!(broken > 500, "{broken} of 1500 were noticed");
}

#[test]
fn hostile_servers_cannot_harm_a_lane() {
    let memory = Memory::new_small();
    let dice = &mut Dice(77);
    let mut noticed = 0;
    for _ in 0..1500 {
        let (client, mut server) = sockets();
        let (mut lane, _near) = lane_over(client);
        let ops = vec![plain(memory.at(0), 300, 1)];
        lane.submit_read(ReadBatch {
            ops,
            body: vec![0xee; 302],
            ..ReadBatch::default()
        })
        .unwrap();
        let (at, len) = (dice.below(1 << 21) as u32 & !7, dice.below(9000) as u32);
        let post = Reply::Mailbox { at, len };
        let valid = [
            [
                &Reply::Read {
                    bytes: 300,
                    cookie: 0,
                }
                .to_bytes()[..],
                &[9; 300],
            ]
            .concat(),
            [&post.to_bytes()[..], &vec![5; len as usize]].concat(),
            Reply::Atomic { was: 3 }.to_bytes().to_vec(),
        ];
        server.write_all(&corrupt(dice, &valid)).unwrap();
        server.shutdown(Shutdown::Write).unwrap();
        let until = soon();
        let e = loop {
            assert!(!until.passed());
            if let Err(e) = lane.poll() {
                break e;
            }
        };
        noticed += usize::from(!e.to_string().contains("closed"));
        if let Some(batch) = lane.poll_read() {
            assert_eq!((batch.body[0], batch.body[301]), (0xee, 0xee));
        }
    }
    assert!(noticed > 500, "{noticed} of 1500 were noticed");
}

/// A server that goes on to post but takes no byte: writes of either size end at the deadline of data, 30 s, and posts
/// that come meanwhile put it off no further.
#[test]
fn f12_writes_to_a_server_that_only_posts_end() {
    let write = |bytes: usize| {
        let (client, mut server) = sockets();
        let post = [&Reply::Mailbox { at: 0, len: 8 }.to_bytes()[..], &[0; 8]].concat();
        // Without a pause: each look of the lane finds input.
        let posts = post.repeat(1 << 14);
        std::thread::spawn(move || while server.write_all(&posts).is_ok() {});
        let (mut lane, _near) = lane_over(client);
        let at = RemoteAddr {
            key: INBOX_KEY,
            addr: 0,
        };
        // More than the sockets and the lane hold.
        (0..1 << 20).find_map(|_| lane.write(at, &vec![0; bytes]).err())
    };
    std::thread::scope(|scope| {
        let writers = [1 << 10, 1 << 20].map(|bytes| scope.spawn(move || write(bytes)));
        for writer in writers {
            let error = writer.join().unwrap().expect("no byte is taken");
            assert!(matches!(error, LaneError::Deadline { .. }), "{error:?}");
        }
    });
}
