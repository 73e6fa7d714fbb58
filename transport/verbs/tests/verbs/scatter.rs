//! Payload that the device writes into the caller's own memory.

use std::time::Duration;

use tidewater_lanes::fabric::{ClientLane, LaneError, ReadDest, ReadOp, ServerLane};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::mem::Buffer;
use tidewater_verbs::Counters;

use crate::harness::{Ends, Host, late, noise, row};

const MIB: usize = 1 << 20;

/// A buffer registered for writes of the lanes of the host's client.
fn registered(host: &Host, bytes: usize) -> Buffer {
    let mut buffer = Buffer::new(bytes).unwrap();
    host.client.register(&mut buffer).unwrap();
    buffer
}

/// Builds a read of a payload alone.
fn payload(host: &Host, from: usize, bytes: usize) -> ReadOp {
    ReadOp {
        from: host.at(from),
        len: bytes as u32,
        head_len: 0,
        head_at: 0,
        body_at: 0,
        fence: false,
    }
}

/// Reads, and returns the cost of that.
fn read(
    ends: &mut Ends,
    ops: &[ReadOp],
    (head, body): (&mut [u8], &mut [u8]),
    deadline: Deadline,
) -> (Counters, Result<(), LaneError>) {
    let before = ends.lane.counters();
    let done = ends.lane.read(ops, ReadDest { head, body }, deadline);
    (ends.lane.counters() - before, done)
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_mebibyte_is_one_read_into_the_callers_memory() {
    let host = Host::new();
    let want = noise(MIB);
    for pulls in [1, 4] {
        let mut ends = host.connect(pulls);
        let mut buffer = registered(&host, MIB);
        let op = [payload(&host, 0, MIB)];
        let (_, first) = read(&mut ends, &op, (&mut [], &mut buffer), late());
        first.unwrap();
        let least = MIB as u64 / u64::from(host.open_port.mtu());
        // A busy host makes the device repeat a READ, which doubles its packets: one of three is not repeated.
        let mut fewest = None;
        for _ in 0..3 {
            buffer.fill(0xff);
            ends.settle();
            let sent = host.sent_packets();
            let (cost, done) = read(&mut ends, &op, (&mut [], &mut buffer), late());
            done.unwrap();
            assert!(buffer[..] == want);
            let counts = (cost.reads, cost.scattered, cost.doorbells);
            assert_eq!(counts, (1, 1, 1), "{cost:?}");
            let packets = host.sent_packets().zip(sent).map(|(after, b)| after - b);
            println!("1 MiB: {packets:?} packets");
            fewest = fewest.into_iter().chain(packets).min();
        }
        assert!(fewest.unwrap_or(0) <= least + 24, "{fewest:?}");
    }
}

/// Heads go to the lane and from there to the caller, bodies to their destination, none next to it. A
/// request longer than a READ is split, also in the middle of a head.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn heads_and_bodies_part() {
    const ROW: usize = 272;
    const SKEW: usize = 13;
    let host = Host::new();
    let want = noise(2 * MIB);
    let mut ends = host.connect(3);
    let mut buffer = registered(&host, 2 * MIB);
    buffer.fill(0xee);
    let ops: Vec<ReadOp> = (0..100).map(|n| row(host.at(n * 320), ROW, n)).collect();
    let mut heads = vec![0; 100 * 16];
    let body = &mut buffer[SKEW..SKEW + 100 * 256];
    let (cost, done) = read(&mut ends, &ops, (&mut heads, body), late());
    done.unwrap();
    // A device with READs of one element reads heads by themselves.
    let parts = host.open_port.device().limits().read_elements.min(2);
    assert_eq!(
        (cost.reads, cost.scattered),
        (1 + 100 * u64::from(3 - parts), 100),
        "and a key's: {cost:?}"
    );
    for n in 0..100 {
        assert!(heads[n * 16..][..16] == want[n * 320..][..16]);
        assert!(buffer[SKEW + n * 256..][..256] == want[n * 320 + 16..][..256]);
    }
    let outside = |at: usize| !(SKEW..SKEW + 100 * 256).contains(&at);
    let mut around = buffer.iter().enumerate().filter(|(at, _)| outside(*at));
    assert!(around.all(|(_, &byte)| byte == 0xee));

    for head_len in [0, 8, MIB, MIB + 8] {
        let long = ReadOp {
            head_len: head_len as u32,
            ..payload(&host, 8, 2 * MIB - 16)
        };
        let mut head = vec![0; head_len];
        let body = &mut buffer[..2 * MIB - 16 - head_len];
        read(&mut ends, &[long], (&mut head, body), late())
            .1
            .unwrap();
        assert!(head == want[8..8 + head_len]);
        assert!(buffer[..2 * MIB - 16 - head_len] == want[8 + head_len..2 * MIB - 8]);
    }
}

/// Memory that the device does not know, or no longer: a slice of the heap, of a buffer that another
/// client has registered, and of memory in a former buffer's place.
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn other_memory_is_copied_to() {
    let host = Host::new();
    let want = noise(MIB);
    let mut ends = host.connect(2);
    let op = [payload(&host, 0, MIB)];
    let mut into = |memory: &mut [u8]| {
        let (cost, done) = read(&mut ends, &op, (&mut [], &mut *memory), late());
        done.unwrap();
        assert!(*memory == want);
        cost.scattered
    };
    assert_eq!(into(&mut vec![0; MIB]), 0);
    assert_eq!(into(&mut Buffer::new(MIB).unwrap()), 0);
    assert_eq!(into(&mut registered(&host, MIB)), 1);
    let gone = registered(&host, MIB).as_ptr();
    let mut next = Buffer::new(MIB).unwrap();
    println!(
        "the next buffer lies where the last one did: {}",
        next.as_ptr() == gone
    );
    assert_eq!(into(&mut next), 0);
}

/// A server lane is dropped while its client reads. The lane breaks, the device writes nothing after
/// the call, the memory may be freed at once, and the next lane is right. (A deadline that passes
/// during a read is impossible here: rxe executes a READ in the very call that posts it.)
#[test]
#[ignore = "needs an RDMA device: ci/softroce.sh"]
fn a_lane_that_breaks_in_mid_read_leaves_the_buffer_alone() {
    const READS: usize = 12;
    let host = Host::new();
    let want = noise(2 * MIB);
    // Takes a large part of a second here.
    let ops: Vec<ReadOp> = (0..READS)
        .map(|n| ReadOp {
            body_at: n * 2 * MIB,
            ..payload(&host, 0, 2 * MIB)
        })
        .collect();
    let mut partly = 0;
    for round in 0..4u64 {
        let mut ends = host.connect(1 + round as usize);
        let mut buffer = registered(&host, READS * 2 * MIB);
        let know = [payload(&host, 0, 64)];
        let (_, first) = read(&mut ends, &know, (&mut [], &mut buffer), late());
        first.unwrap();
        buffer.fill(0);
        let Ends { lane, port, .. } = &mut ends;
        let done = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20 + 20 * round));
                port.destroy();
            });
            let into = ReadDest {
                head: &mut [],
                body: &mut buffer,
            };
            lane.read(&ops, into, late())
        });
        let then = buffer.to_vec();
        std::thread::sleep(Duration::from_millis(60));
        assert!(buffer[..] == then, "round {round}: written behind the call");
        if let Err(error) = done {
            assert!(matches!(error, LaneError::Broken { .. }), "{error}");
            partly += usize::from(then[0..64] == want[0..64] && then != want.repeat(READS));
        }
        // The memory that lies there next belongs to no lane either.
        drop(buffer);
        let next = Buffer::new(READS * 2 * MIB).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        assert!(next.iter().all(|&byte| byte == 0));

        let mut ends = host.connect(2);
        let mut buffer = registered(&host, 2 * MIB);
        let (_, again) = read(&mut ends, &ops[..1], (&mut [], &mut buffer), late());
        again.unwrap();
        assert!(buffer[..] == want);
    }
    println!("{partly} of 4 calls broke in the middle");
    assert!(partly > 0, "no lane broke in the middle");
}
