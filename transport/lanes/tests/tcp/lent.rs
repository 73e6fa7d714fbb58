//! Tests of F13, F14: submitted reads received directly into borrowed memory, and held back requests.

use std::time::Duration;

use tidewater_lanes::fabric::{ClientLane, LaneError, ReadBatch, ReadOp, ServerLane};
use tidewater_runtime::clock::Deadline;

use crate::harness::{DATA_BYTES, Dice, Memory, noise, plain, served, soon, unserved};

/// Builds random reads, one after the other in the body.
fn random_batch(memory: &Memory, dice: &mut Dice, tag: u64) -> ReadBatch {
    let mut batch = ReadBatch {
        tag,
        ..ReadBatch::default()
    };
    for _ in 0..=dice.below(12) {
        let shape = [40, 300, 70_000, 300_000][dice.below(4) as usize];
        let len = dice.below(shape) as u32;
        let head_len = (dice.below(3) as u32 * 8).min(len / 8 * 8);
        let addr = dice.below((DATA_BYTES as u64 - u64::from(len)) / 8) * 8;
        batch.ops.push(ReadOp {
            from: memory.at(addr),
            len,
            head_len,
            head_at: batch.head.len(),
            body_at: batch.body.len(),
            fence: dice.below(5) == 0,
        });
        let (head, body) = (batch.head.len(), batch.body.len());
        batch.head.resize(head + head_len as usize, 0xee);
        batch.body.resize(body + (len - head_len) as usize, 0xee);
    }
    batch
}

/// The same reads, in another order and with a gap behind each; also the bytes they take.
fn elsewhere(ops: &[ReadOp]) -> (Vec<ReadOp>, usize) {
    let mut moved = ops.to_vec();
    let mut at = 1;
    for op in moved.iter_mut().rev() {
        op.body_at = at;
        at += (op.len - op.head_len) as usize + 1;
    }
    (moved, at)
}

fn check(ops: &[ReadOp], head: &[u8], body: &[u8], data: &[u8]) {
    for op in ops {
        let from = &data[op.from.addr as usize..][..op.len as usize];
        let (first, rest) = from.split_at(op.head_len as usize);
        assert!(head[op.head_at..][..first.len()] == *first, "{op:?}");
        assert!(body[op.body_at..][..rest.len()] == *rest, "{op:?}");
    }
}

/// The bytes outside the destinations are unchanged.
fn untouched(ops: &[ReadOp], body: &[u8]) {
    let gaps = ops.iter().map(|op| op.body_at - 1);
    assert!(body.last() == Some(&0xee) && gaps.into_iter().all(|gap| body[gap] == 0xee));
}

#[test]
fn f13_f14_posted_reads_land_in_borrowed_memory_and_behind_them_nothing_is_lost() {
    let memory = Memory::new();
    let data = noise(DATA_BYTES);
    let (mut lane, _near, _server, _inbox) = served(&memory);
    let dice = &mut Dice(3);
    let mut under_way = std::collections::VecDeque::new();
    let (mut posted, mut lent) = (0, 0);
    for round in 0..400 {
        // Up to eight in flight, so that answers to several come together.
        while under_way.len() < 1 + dice.below(8) as usize {
            let batch = random_batch(&memory, dice, posted);
            under_way.push_back((posted, batch.ops.clone()));
            lane.submit_read(batch).unwrap();
            lane.flush_soon().unwrap();
            posted += 1;
        }
        if dice.below(6) == 0 {
            lane.poll().unwrap();
        }
        let (tag, ops) = under_way.pop_front().unwrap();
        let (moved, bytes) = elsewhere(&ops);
        let mut body = vec![0xee; bytes];
        if let Some(batch) = lane
            .wait_read(tag, &moved, &mut body, None, soon())
            .unwrap()
        {
            assert_eq!(batch.tag, tag);
            check(&moved, &batch.head, &body, &data);
            untouched(&moved, &body);
            lent += 1;
            continue;
        }
        // It was received into its own memory: a poll did so.
        let batch = lane.poll_read().unwrap();
        assert_eq!(batch.tag, tag, "round {round}");
        check(&ops, &batch.head, &batch.body, &data);
    }
    assert!((100..400).contains(&lent), "{lent} of 400 were lent");
}

#[test]
fn f12_a_lent_batch_that_is_late_goes_on_in_its_own_memory() {
    let memory = Memory::new();
    let data = noise(DATA_BYTES);
    let (mut lane, mut port, inbox, _sleepers) = unserved();
    let mut view = memory.exports.view();
    let rows = 40;
    let len = 65_552;
    let own: Vec<ReadOp> = (0..rows)
        .map(|n| plain(memory.at(n as u64 * 8), len, n * len as usize))
        .collect();
    let (moved, bytes) = elsewhere(&own);
    lane.submit_read(ReadBatch {
        ops: own.clone(),
        head: Vec::new(),
        body: vec![0; rows * len as usize],
        tag: 9,
    })
    .unwrap();
    lane.submit_read(ReadBatch {
        ops: own[..1].to_vec(),
        head: Vec::new(),
        body: vec![0; len as usize],
        tag: 10,
    })
    .unwrap();
    let mut body = vec![0xee; bytes];
    let younger = lane.wait_read(10, &own[..1], &mut body, None, soon());
    assert!(younger.unwrap().is_none(), "it is not the oldest");
    let mut late = 0;
    let batch = loop {
        // Part of it comes each time, into memory that is then no longer writable for the lane.
        let deadline = Deadline::after(Duration::from_millis(2));
        if let Some(batch) = lane
            .wait_read(9, &moved, &mut body, None, deadline)
            .unwrap()
        {
            break batch;
        }
        late += 1;
        if late % 3 == 0 {
            body.fill(0xee);
            lane.poll().unwrap();
            if let Some(batch) = lane.poll_read() {
                // The last part arrived between the two, on a busy machine.
                check(&own, &batch.head, &batch.body, &data);
                assert!(late > 3, "late {late} times: nothing tested");
                return;
            }
        }
        port.poll(&mut view, &inbox).unwrap();
    };
    assert!(late > 3, "late {late} times: nothing tested");
    check(&moved, &batch.head, &body, &data);
    untouched(&moved, &body);
    let second = loop {
        port.poll(&mut view, &inbox).unwrap();
        lane.poll().unwrap();
        if let Some(batch) = lane.poll_read() {
            break batch;
        }
    };
    check(&own[..1], &second.head, &second.body, &data);
}

#[test]
fn other_reads_than_were_posted_are_a_fault_of_the_caller_only() {
    let memory = Memory::new();
    let data = noise(DATA_BYTES);
    let (mut lane, _near, _server, _inbox) = served(&memory);
    let ops = vec![plain(memory.at(0), 64, 0), plain(memory.at(64), 8, 64)];
    lane.submit_read(ReadBatch {
        ops: ops.clone(),
        head: Vec::new(),
        body: vec![0; 72],
        tag: 1,
    })
    .unwrap();
    let mut body = [0; 72];
    let longer = [ops[0], plain(memory.at(64), 16, 64)];
    for (wrong, room) in [(&ops[..1], 72), (&longer[..], 72), (&ops[..], 71)] {
        let e = lane
            .wait_read(1, wrong, &mut body[..room], None, soon())
            .unwrap_err();
        assert!(matches!(e, LaneError::Usage { .. }), "{e}");
    }
    assert!(
        lane.wait_read(2, &ops, &mut body, None, soon())
            .unwrap()
            .is_none()
    );
    let batch = lane
        .wait_read(1, &ops, &mut body, None, soon())
        .unwrap()
        .unwrap();
    check(&ops, &batch.head, &body, &data);
}
