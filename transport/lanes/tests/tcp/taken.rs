//! Tests of F01, F13, F14: reads that a unpacker consumes while they arrive.

use std::time::Duration;

use tidewater_lanes::fabric::{ClientLane, ReadBatch, ReadDest, ReadOp, ServerLane, Unpack};
use tidewater_runtime::clock::Deadline;

use crate::harness::{DATA_BYTES, Dice, Memory, noise, served, soon, unserved};

/// Takes some of the reads offered, and records which.
struct Picky<'a> {
    ops: &'a [ReadOp],
    dice: Dice,
    taken: Vec<bool>,
    begun: usize,
}

impl<'a> Picky<'a> {
    fn new(ops: &'a [ReadOp], seed: u64) -> Self {
        let (dice, taken) = (Dice(seed), vec![false; ops.len()]);
        Self {
            ops,
            dice,
            taken,
            begun: 0,
        }
    }

    /// All requested bytes are there, taken or placed, and no other byte changed.
    fn check(&self, head: &[u8], body: &[u8], data: &[u8]) {
        for (op, taken) in self.ops.iter().zip(&self.taken) {
            let from = &data[op.from.addr as usize..][..op.len as usize];
            let (first, rest) = from.split_at(op.head_len as usize);
            assert!(body[op.body_at..][..rest.len()] == *rest, "{op:?} {taken}");
            assert_eq!(body[op.body_at + rest.len()], 0xee, "{op:?} {taken}");
            let landed = &head[op.head_at..][..first.len()];
            let due = [first, &[0xee; 16][..first.len()]][usize::from(*taken)];
            assert!(landed == due, "{op:?} {taken}");
        }
    }
}

impl Unpack for Picky<'_> {
    fn restart(&mut self) {
        self.begun += 1;
        assert!(!self.taken.contains(&true), "begun late");
    }

    fn unpack(&mut self, first: usize, raw: &[u8], body: &mut [u8]) -> usize {
        assert!(raw.len() >= self.ops[first].len as usize, "{first} is cut");
        let most = [0, 1, 7, usize::MAX][self.dice.below(4) as usize];
        let (mut raw, mut taken) = (raw, 0);
        for (op, noted) in self.ops[first..].iter().zip(&mut self.taken[first..]) {
            let Some((read, behind)) = raw.split_at_checked(op.len as usize) else {
                break;
            };
            if taken == most {
                break;
            }
            assert!(!*noted, "offered twice");
            let payload = &read[op.head_len as usize..];
            body[op.body_at..][..payload.len()].copy_from_slice(payload);
            (raw, taken, *noted) = (behind, taken + 1, true);
        }
        taken
    }
}

/// Reads of rows, mostly short ones, with a byte between their destinations; also the bytes they take.
fn rows(memory: &Memory, dice: &mut Dice, most: u64) -> (Vec<ReadOp>, usize, usize) {
    let (mut ops, mut head, mut body) = (Vec::new(), 0, 0);
    for _ in 0..=dice.below(most) {
        let shape = [40, 300, 300, 300, 3000, 9000][dice.below(6) as usize];
        let len = 17 + dice.below(shape) as u32;
        let addr = dice.below((DATA_BYTES as u64 - u64::from(len)) / 8) * 8;
        ops.push(ReadOp {
            from: memory.at(addr),
            len,
            head_len: 16,
            head_at: head,
            body_at: body,
            fence: dice.below(50) == 0,
        });
        head += 16;
        body += len as usize - 16 + 1;
    }
    (ops, head, body)
}

#[test]
fn f01_reads_are_offered_whole_and_land_unless_they_are_taken() {
    let memory = Memory::new();
    let data = noise(DATA_BYTES);
    let (mut lane, _near, _server, _inbox) = served(&memory);
    let dice = &mut Dice(5);
    let (mut taken, mut landed) = (0, 0);
    for round in 0..60 {
        let (ops, h, b) = rows(&memory, dice, 1500);
        let (mut head, mut body) = (vec![0xee; h], vec![0xee; b]);
        let mut picky = Picky::new(&ops, round);
        let into = ReadDest {
            head: &mut head,
            body: &mut body,
        };
        lane.read_unpack(&ops, into, &mut picky, soon()).unwrap();
        picky.check(&head, &body, &data);
        assert_eq!(picky.begun, 1);
        let these = picky.taken.iter().filter(|taken| **taken).count();
        taken += these;
        landed += ops.len() - these;
    }
    assert!(taken > 5000 && landed > 5000, "{taken} taken, {landed} not");
}

/// Reads taken before a deadline are not lost, although the memory they went to is then no longer usable.
#[test]
fn f13_f14_what_was_taken_of_a_late_batch_goes_with_it() {
    let memory = Memory::new();
    let data = noise(DATA_BYTES);
    let (mut lane, mut port, inbox, _sleepers) = unserved();
    let mut view = memory.exports.view();
    let dice = &mut Dice(6);
    let (mut late, mut taken) = (0, 0);
    for tag in 0..20 {
        let (ops, h, b) = rows(&memory, dice, 3000);
        let batch = ReadBatch {
            ops: ops.clone(),
            head: vec![0xee; h],
            body: vec![0xee; b],
            tag,
        };
        lane.submit_read(batch).unwrap();
        let mut picky = Picky::new(&ops, tag);
        let (batch, body) = loop {
            let mut body = vec![0xee; b];
            let deadline = Deadline::after(Duration::from_micros(300));
            let unpacker = Some(&mut picky as &mut dyn Unpack);
            let done = lane.wait_read(tag, &ops, &mut body, unpacker, deadline);
            if let Some(batch) = done.unwrap() {
                break (batch, body);
            }
            late += 1;
            assert!(late < 100_000, "it never comes");
            port.poll(&mut view, &inbox).unwrap();
        };
        picky.check(&batch.head, &body, &data);
        taken += picky.taken.iter().filter(|taken| **taken).count();
    }
    assert!(
        late > 20 && taken > 1000,
        "{late} times late, {taken} taken"
    );
}
