//! Tests of F01, F02, F03, F09, F13, F14: reads.

use std::time::Duration;

use tidewater_lanes::fabric::{ClientLane, LaneError, ReadBatch, ReadDest, ReadOp, ServerLane};
use tidewater_protocol::layout::dense::TaggedU32;
use tidewater_protocol::layout::row::{RowLayout, RowVersion, row_checksum, row_hasher};
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::sync::{AtomicBool, Ordering, fence};

use crate::harness::{DATA_BYTES, Dice, Memory, noise, plain, served, soon, unserved};

/// Random reads with gaps of one byte between the destinations, and the lengths of head and body.
fn random_ops(memory: &Memory, dice: &mut Dice) -> (Vec<ReadOp>, usize, usize) {
    let (mut head, mut body, mut ops) = (1, 1, Vec::new());
    for _ in 0..=dice.below(40) {
        let shape = [40, 300, 5000, 200_000][dice.below(4) as usize];
        let len = dice.below(shape) as u32;
        let head_len = (dice.below(4) as u32 * 8).min(len / 8 * 8);
        let addr = dice.below((DATA_BYTES as u64 - u64::from(len)) / 8) * 8;
        let fence = dice.below(5) == 0;
        ops.push(ReadOp {
            from: memory.at(addr),
            len,
            head_len,
            head_at: head,
            body_at: body,
            fence,
        });
        head += head_len as usize + 1;
        body += (len - head_len) as usize + 1;
    }
    (ops, head, body)
}

fn check(ops: &[ReadOp], head: &[u8], body: &[u8], data: &[u8]) {
    let (mut h, mut b) = (1, 1);
    assert_eq!((head[0], body[0]), (0xee, 0xee));
    for op in ops {
        let from = &data[op.from.addr as usize..][..op.len as usize];
        let (first, rest) = from.split_at(op.head_len as usize);
        assert_eq!(&head[op.head_at..][..first.len()], first);
        assert!(body[op.body_at..][..rest.len()] == *rest, "{op:?}");
        h += first.len() + 1;
        b += rest.len() + 1;
        assert_eq!(
            (head[h - 1], body[b - 1]),
            (0xee, 0xee),
            "a byte next to the destination changed"
        );
    }
}

#[test]
fn f01_f14_reads_return_what_was_asked_for_and_touch_nothing_else() {
    let memory = Memory::new();
    let data = noise(DATA_BYTES);
    let (mut lane, _near, server, _inbox) = served(&memory);
    let dice = &mut Dice(1);
    let mut posted = 0;
    for round in 0..60 {
        for _ in 0..dice.below(4) {
            let (ops, h, b) = random_ops(&memory, dice);
            let batch = ReadBatch {
                ops,
                head: vec![0xee; h],
                body: vec![0xee; b],
                tag: posted,
            };
            lane.submit_read(batch).unwrap();
            posted += 1;
        }
        let (ops, h, b) = random_ops(&memory, dice);
        let (mut head, mut body) = (vec![0xee; h], vec![0xee; b]);
        let dest = ReadDest {
            head: &mut head,
            body: &mut body,
        };
        lane.read(&ops, dest, soon())
            .unwrap_or_else(|e| panic!("round {round}: {e}"));
        check(&ops, &head, &body, &data);
    }
    let mut back = 0;
    while back < posted {
        lane.poll().unwrap();
        while let Some(batch) = lane.poll_read() {
            assert_eq!(batch.tag, back);
            check(&batch.ops, &batch.head, &batch.body, &data);
            back += 1;
        }
    }
    drop(lane);
    assert!(server.broken().to_string().contains("closed"));
}

#[test]
fn reads_beyond_every_limit_are_cut_and_put_together() {
    let memory = Memory::new();
    let data = noise(DATA_BYTES);
    let (mut lane, _near, _server, _inbox) = served(&memory);
    let mut body = vec![0; DATA_BYTES + 3];
    // 3 bytes first, so that the parts of the large one would be misaligned if cut carelessly.
    let large = [
        plain(memory.at(0), 3, DATA_BYTES),
        plain(memory.at(0), DATA_BYTES as u32, 0),
    ];
    lane.read(
        &large,
        ReadDest {
            head: &mut [],
            body: &mut body,
        },
        soon(),
    )
    .unwrap();
    assert!(body[..DATA_BYTES] == data[..] && body[DATA_BYTES..] == data[..3]);
    let many: Vec<ReadOp> = (0..5000)
        .map(|i| plain(memory.at(i * 64), 16, i as usize * 16))
        .collect();
    lane.read(
        &many,
        ReadDest {
            head: &mut [],
            body: &mut body,
        },
        soon(),
    )
    .unwrap();
    assert!((0..5000).all(|i| body[i * 16..][..16] == data[i * 64..][..16]));
    lane.read(
        &[],
        ReadDest {
            head: &mut [],
            body: &mut [],
        },
        soon(),
    )
    .unwrap();
    lane.submit_read(ReadBatch {
        tag: 5,
        ..ReadBatch::default()
    })
    .unwrap();
    assert_eq!(lane.poll_read().unwrap().tag, 5);
}

#[test]
fn read_beyond_destination_is_usage_error() {
    let memory = Memory::new();
    let (mut lane, _near, _server, _inbox) = served(&memory);
    let ops = [plain(memory.at(0), 64, 1)];
    let mut body = [0; 64];
    let e = lane
        .read(
            &ops,
            ReadDest {
                head: &mut [],
                body: &mut body,
            },
            soon(),
        )
        .unwrap_err();
    assert!(matches!(e, LaneError::Usage { .. }) && !e.is_fatal());
    let batch = ReadBatch {
        ops: ops.to_vec(),
        ..ReadBatch::default()
    };
    assert!(matches!(
        lane.submit_read(batch),
        Err(LaneError::Usage { .. })
    ));
    let ops = [plain(memory.at(0), 64, 0)];
    lane.read(
        &ops,
        ReadDest {
            head: &mut [],
            body: &mut body,
        },
        soon(),
    )
    .unwrap();
    assert_eq!(body[..], noise(64)[..]);
}

/// Ends the writer when the reader is done, also on a panic.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Blocks behind tagged version words, read as the range protocol does: word, payload, word. Only the first
/// read of each stage is fenced: over TCP a fence holds for the reads after it, too.
#[test]
fn f03_fenced_reads_make_a_seqlock() {
    const BLOCK: usize = 64 << 10;
    let memory = Memory::new();
    let (mut lane, _near, _server, _inbox) = served(&memory);
    let stop = AtomicBool::new(false);
    let (mut accepted, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        let words = memory.data.words_mut(0, 4096 + BLOCK).unwrap();
        words.store(0, TaggedU32::new(0, 9).0);
        (0..BLOCK / 8).for_each(|i| words.store(4096 + i * 8, 0));
        let stop = &stop;
        let _stops = Stops(stop);
        scope.spawn(move || {
            let mut seq = 0u32;
            while !stop.load(Ordering::Relaxed) {
                words.store(0, TaggedU32::new(seq + 1, 9).0);
                fence(Ordering::Release);
                (0..BLOCK / 8).for_each(|i| words.store(4096 + i * 8, u64::from(seq + 2)));
                words.store_release(0, TaggedU32::new(seq + 2, 9).0);
                seq += 2;
                std::thread::sleep(Duration::from_micros(u64::from(seq % 7) * 20));
            }
        });
        let (mut head, mut body) = ([0; 24], vec![0; BLOCK]);
        let word = |head_at, fence| ReadOp {
            head_len: 8,
            head_at,
            fence,
            ..plain(memory.at(0), 8, 0)
        };
        let fenced = |op| ReadOp { fence: true, ..op };
        let ops = [
            word(0, false),
            fenced(plain(memory.at(4096), BLOCK as u32 / 2, 0)),
            plain(
                memory.at(4096 + BLOCK as u64 / 2),
                BLOCK as u32 / 2,
                BLOCK / 2,
            ),
            word(8, true),
            word(16, false),
        ];
        let until = Deadline::after(Duration::from_millis(400));
        while !until.passed() {
            let (head, body) = (&mut head[..], &mut body[..]);
            lane.read(&ops, ReadDest { head, body }, soon()).unwrap();
            let seq = |at: usize| {
                TaggedU32(u64::from_le_bytes(head[at..at + 8].try_into().unwrap())).seq(9)
            };
            match (seq(0), seq(16)) {
                (Some(a), Some(c)) if a == c && a % 2 == 0 => {
                    let whole = u64::from(a).to_le_bytes();
                    assert!(
                        body.chunks_exact(8).all(|w| w == whole),
                        "a torn block was accepted at {a}"
                    );
                    accepted += 1;
                }
                _ => refused += 1,
            }
        }
    });
    println!("seqlock over tcp: {accepted} accepted, {refused} refused");
    assert!(
        accepted > 0 && refused > 0,
        "{accepted} accepted, {refused} refused"
    );
}

/// Rows rewritten at full speed: hashes refuse torn rows, and some rows are complete.
#[test]
fn f02_torn_rows_are_refused_by_their_hash_and_reads_get_on() {
    let memory = Memory::new();
    let layout = RowLayout::new(2032);
    let (mut lane, _near, _server, _inbox) = served(&memory);
    let stop = AtomicBool::new(false);
    let (mut accepted, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        let words = memory.data.words_mut(0, layout.stride * 2).unwrap();
        let stop = &stop;
        let _stops = Stops(stop);
        scope.spawn(move || {
            let mut ver = RowVersion::new(0, 1);
            while !stop.load(Ordering::Relaxed) {
                for row in 0..2 {
                    let payload = [ver.0 as u8; 2032];
                    let at = row * layout.stride;
                    words.copy_in(at + 16, &payload);
                    words.store(at, ver.0);
                    words.store(at + 8, row_checksum(1, row as u64, ver, &payload));
                }
                ver = ver.next();
            }
        });
        // The server lane copies one row; two together are long enough for the kernel to send them.
        let one = layout.read_bytes() as u32;
        let two = (layout.stride + layout.read_bytes()) as u32;
        let mut body = vec![0; two as usize];
        let until = Deadline::after(Duration::from_millis(400));
        while !until.passed() {
            for (len, rows) in [(one, 1), (two, 2)] {
                let ops = [plain(memory.at(0), len, 0)];
                lane.read(
                    &ops,
                    ReadDest {
                        head: &mut [],
                        body: &mut body,
                    },
                    soon(),
                )
                .unwrap();
                for row in 0..rows {
                    let bytes = &body[row * layout.stride..][..one as usize];
                    let word = |at| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
                    let ver = RowVersion(word(0));
                    if row_hasher(1, row as u64, ver, 2032).finish_bytes(&bytes[16..]) == word(8) {
                        assert!(bytes[16..].iter().all(|b| *b == ver.0 as u8));
                        accepted += 1;
                    } else {
                        refused += 1;
                    }
                }
            }
        }
    });
    println!("rows over tcp: {accepted} accepted, {refused} refused");
    assert!(
        accepted > 0 && refused > 0,
        "{accepted} accepted, {refused} refused"
    );
}

#[test]
fn f14_a_lane_dropped_with_batches_on_their_way_disturbs_nothing() {
    let memory = Memory::new();
    let (mut lane, mut port, inbox, _sleepers) = unserved();
    for tag in 0..20 {
        let ops = vec![plain(memory.at(0), 100_000, 0)];
        lane.submit_read(ReadBatch {
            ops,
            body: vec![0; 100_000],
            tag,
            ..ReadBatch::default()
        })
        .unwrap();
    }
    lane.flush().unwrap();
    let mut view = memory.exports.view();
    port.poll(&mut view, &inbox).unwrap();
    lane.poll().unwrap();
    drop(lane);
    let e = (0..1000).find_map(|_| port.poll(&mut view, &inbox).err());
    assert!(matches!(e, Some(LaneError::Broken { .. })), "{e:?}");
}
