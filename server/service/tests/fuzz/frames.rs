//! Frames against an engine: a refused one changes nothing, an applied one only the rows it names.

use std::collections::BTreeSet;
use std::sync::Arc;

use tidewater_engine::apply::engine::{Effect, Engine};
use tidewater_engine::namespace::{FrameSender, NamespaceId};
use tidewater_engine::store::ServerMemory;
use tidewater_protocol::ids::{DomainId, TableId, WorkerId, WorkerThread};
use tidewater_protocol::layout::frame::{CLOCK_FINISHED, CLOCK_JOIN, FrameFlags, FrameKind};
use tidewater_protocol::layout::function::{FunctionBody, FunctionCall};
use tidewater_protocol::layout::lines::RejectCode;
use tidewater_protocol::layout::reject::RejectReason;
use tidewater_protocol::layout::row::RowVersion;
use tidewater_protocol::layout::session::REPLY_SLOT_BYTES;
use tidewater_protocol::placement::partition_of_key;

use crate::calls;
use crate::fuzzing::{EDGES, Random, mutate};
use crate::rig::{self, BLOCKS, Frame, HELD, PARTITIONS, ROWS, SNAPSHOT, SPARSE, State, TWIN};

/// Most sparse rows before the table is cut back: comparing states costs by the row.
const ROWS_MAX: usize = 30;

const KINDS: [FrameKind; 14] = [
    FrameKind::PushRows,
    FrameKind::PushDense,
    FrameKind::Gather,
    FrameKind::Resolve,
    FrameKind::Clock,
    FrameKind::Pad,
    FrameKind::Update,
    FrameKind::Settings,
    FrameKind::Reduce,
    FrameKind::Delete,
    FrameKind::Scan,
    FrameKind::Pin,
    FrameKind::Unpin,
    FrameKind::Task,
];

struct Fuzz {
    memory: Arc<ServerMemory>,
    engine: Engine,
    corpus: Vec<Frame>,
    payloads: Vec<Vec<u8>>,
    before: State,
    after: State,
    /// Frames applied, frames refused.
    seen: [u64; 2],
    codes: BTreeSet<u32>,
    /// Problems of refused functions.
    problems: BTreeSet<u64>,
    /// Functions that were applied.
    called: u64,
}

impl Fuzz {
    fn new() -> Self {
        calls::register_functions();
        let (memory, mut engine) = rig::engine();
        let corpus = rig::corpus();
        let mut before = State::new();
        rig::fingerprint(&memory, &mut engine, &mut before);
        Self {
            memory,
            engine,
            payloads: corpus.iter().map(|f| f.payload.clone()).collect(),
            corpus,
            before,
            after: State::new(),
            seen: [0; 2],
            codes: BTreeSet::new(),
            problems: BTreeSet::new(),
            called: 0,
        }
    }

    /// A frame of the corpus, changed where a client could change it. The guarantees of the ring
    /// stay: the payload is as long as the header says.
    fn frame(&mut self, random: &mut Random) -> (FrameSender, Frame) {
        let mut frame = match random.under(8) {
            0 => calls::random(random),
            _ => self.corpus[random.under(self.corpus.len())].clone(),
        };
        let rank = WorkerId(random.under(8) as u32 / 3);
        let open = self
            .engine
            .clocks(NamespaceId::default())
            .clock(DomainId(0), WorkerThread::first(rank))
            .unwrap_or(0);
        frame.header.clock = open + u64::from(frame.header.kind == FrameKind::Clock);
        for _ in 0..random.under(4) {
            let header = &mut frame.header;
            match random.under(12) {
                0 => header.table = random.under(8) as u32,
                1 => {
                    header.count = header
                        .count
                        .wrapping_add(random.under(5) as u32)
                        .wrapping_sub(2)
                }
                2 => header.count = EDGES[random.under(EDGES.len())] as u32,
                3 => {
                    header.clock = header
                        .clock
                        .wrapping_add(random.under(5) as u64)
                        .wrapping_sub(2)
                }
                4 => header.clock = EDGES[random.under(EDGES.len() - 1)],
                5 => header.partition = EDGES[random.under(EDGES.len())] as u32,
                6 => {
                    if let Some(flags) = FrameFlags::from_code(random.under(1 << 13) as u16) {
                        header.flags = flags;
                    }
                }
                7 => header.kind = KINDS[random.under(KINDS.len())],
                8 if random.under(500) == 0 => {
                    header.clock = [CLOCK_FINISHED, CLOCK_JOIN][random.under(2)];
                }
                9 if frame.payload.len() >= 8 => {
                    // One word: a nearby key, an edge case, or anything.
                    let word = match random.under(3) {
                        0 => random.under(32) as u64,
                        1 => EDGES[random.under(EDGES.len())],
                        _ => random.next(),
                    };
                    let at = random.under(frame.payload.len() / 8) * 8;
                    frame.payload[at..at + 8].copy_from_slice(&word.to_le_bytes());
                }
                _ => mutate(&mut frame.payload, &self.payloads, random),
            }
        }
        frame.header.payload_len = frame.payload.len() as u32;
        let sender = FrameSender {
            thread: WorkerThread {
                rank,
                // Now and then a thread without a session, which is no member.
                thread: u32::from(random.under(16) == 0),
            },
            ..FrameSender::first(rank)
        };
        (sender, frame)
    }

    fn one(&mut self, seed: u64, exec: u64) {
        let mut random = Random::of(seed, "frames", exec);
        let (sender, frame) = self.frame(&mut random);
        let effect = self.engine.frame(sender, &frame.header, &frame.payload);
        assert!(self.engine.reply.len() <= REPLY_SLOT_BYTES);
        rig::fingerprint(&self.memory, &mut self.engine, &mut self.after);
        let created = match effect {
            Ok(ref effect) => {
                self.seen[0] += 1;
                self.called += u64::from(is_call(frame.header.kind));
                self.check_applied(&frame, effect)
            }
            Err(reason) => {
                self.seen[1] += 1;
                self.codes.insert(reason.code() as u32);
                if let RejectReason::Function { problem, .. } = reason {
                    self.problems.insert(problem);
                }
                self.check_unchanged(&frame);
                matches!(reason.code(), RejectCode::NoMemory | RejectCode::TableFull)
            }
        };
        let more = self.after.len() > self.before.len();
        assert!(created || !more, "{effect:?} made rows of {frame:?}");
        assert!(
            self.engine.failed.is_none() || created,
            "{:?}",
            self.engine.failed
        );
        self.engine.moved.clear();
        self.cut();
    }

    /// Every earlier row is unchanged.
    fn check_unchanged(&self, frame: &Frame) {
        for (at, was) in &self.before {
            assert_eq!(self.after.get(at), Some(was), "{at:?} changed by {frame:?}");
        }
    }

    /// Checks that only what the frame names has changed. Returns whether rows may be new.
    fn check_applied(&self, frame: &Frame, effect: &Effect) -> bool {
        let Frame { header, payload } = frame;
        let held = [SNAPSHOT, HELD].contains(&header.table);
        let words: BTreeSet<u64> = payload
            .chunks_exact(8)
            .take(header.count as usize)
            .map(|w| u64::from_le_bytes(w.try_into().unwrap()))
            .collect();
        let named = |at: &(u32, u64)| match header.kind {
            FrameKind::Clock => [SNAPSHOT, HELD].contains(&at.0),
            FrameKind::PushRows | FrameKind::Delete => {
                !held && at.0 == header.table && words.contains(&at.1)
            }
            FrameKind::Update => at.0 == header.table && covers(frame, at),
            FrameKind::PushDense => {
                let first = u64::from_le_bytes(payload[..8].try_into().unwrap());
                let last = first + u64::from(header.count) - 1;
                !held && at.0 == header.table && (first / 1024..=last / 1024).contains(&at.1)
            }
            _ => false,
        };
        for (at, was) in &self.before {
            let is = self.after.get(at);
            assert!(is == Some(was) || named(at), "{at:?} changed by {frame:?}");
            if let (FrameKind::PushRows, false, true) = (header.kind, held, named(at)) {
                let (was, is) = (RowVersion(was.0), RowVersion(is.unwrap().0));
                assert!(
                    is.counter() > was.counter(),
                    "{at:?} not applied by {frame:?}"
                );
            }
        }
        let update = header.kind == FrameKind::Update;
        if update && header.table == SPARSE {
            let changed = self
                .before
                .iter()
                .filter(|(at, was)| self.after[at] != **was);
            assert!(changed.count() <= header.count as usize, "{frame:?}");
        }
        // A push that is held back creates its rows, with their initial values.
        let creates = header.flags.create && matches!(effect, Effect::Reply { .. })
            || held && header.kind == FrameKind::PushRows;
        for at in self.after.keys().filter(|at| !self.before.contains_key(at)) {
            let asked = creates && at.0 == header.table && words.contains(&at.1);
            assert!(asked || named(at) && !update, "{at:?} made by {frame:?}");
        }
        true
    }

    /// Removes sparse rows when there are many, and updates the expected state.
    fn cut(&mut self) {
        std::mem::swap(&mut self.before, &mut self.after);
        if self.before.len() <= 2 * ROWS_MAX {
            return;
        }
        for id in [SPARSE, HELD] {
            let keys: Vec<u64> = self
                .before
                .keys()
                .filter(|at| at.0 == id)
                .map(|at| at.1)
                .collect();
            for key in keys {
                assert!(self.engine.remove_row(TableId(id), key).unwrap());
            }
        }
        rig::fingerprint(&self.memory, &mut self.engine, &mut self.before);
    }
}

#[test]
fn a_refused_frame_changes_nothing_and_an_applied_one_what_it_names() {
    let (mut seen, mut codes) = ([0; 2], BTreeSet::new());
    let (mut problems, mut called) = (BTreeSet::new(), 0);
    crate::run("frames", crate::execs(), Fuzz::new, |fuzz, seed, exec| {
        fuzz.one(seed, exec);
        seen[0] += std::mem::take(&mut fuzz.seen[0]);
        seen[1] += std::mem::take(&mut fuzz.seen[1]);
        codes.append(&mut fuzz.codes);
        problems.append(&mut fuzz.problems);
        called += std::mem::take(&mut fuzz.called);
    });
    println!(
        "frames: {} applied, {} refused, codes {codes:?}; {called} functions applied, problems \
         {problems:?}",
        seen[0], seen[1]
    );
    // The fuzzer reaches its purpose: both verdicts, and nearly every reason.
    assert!(seen.iter().all(|&n| n > crate::execs() / 20), "{seen:?}");
    assert!(codes.len() >= 10, "{codes:?}");
    assert!(called > crate::execs() / 20, "{called} functions applied");
    // All but the panic, which `tests/functions.rs` has.
    assert!(problems.len() >= 8, "{problems:?}");
}

fn is_call(kind: FrameKind) -> bool {
    matches!(kind, FrameKind::Update | FrameKind::Reduce)
}

/// Whether an UPDATE frame covers a row or block: by slot, of which the partition is known here.
fn covers(frame: &Frame, at: &(u32, u64)) -> bool {
    let Frame { header, payload } = frame;
    let call = FunctionCall::decode(payload).unwrap();
    if call.body == FunctionBody::Slots {
        return false; // answers, whatever the frame covers
    }
    let first = call.first;
    let last = first + u64::from(header.count) - 1;
    match at.0 {
        SPARSE => partition_of_key(at.1, PARTITIONS).0 == header.partition,
        ROWS | TWIN => (first..=last).contains(&at.1),
        BLOCKS => (first / 1024..=last / 1024).contains(&at.1),
        _ => false,
    }
}

/// The oracle itself detects a changed row.
#[test]
fn the_fingerprint_sees_each_table() {
    let mut fuzz = Fuzz::new();
    for id in [ROWS, BLOCKS, SNAPSHOT, TWIN] {
        assert!(
            fuzz.before.keys().any(|at| at.0 == id),
            "table {id} is not seen"
        );
    }
    let frame = fuzz.corpus[0].clone();
    fuzz.engine
        .frame(
            FrameSender::first(WorkerId(0)),
            &frame.header,
            &frame.payload,
        )
        .unwrap();
    rig::fingerprint(&fuzz.memory, &mut fuzz.engine, &mut fuzz.after);
    let made = fuzz.after.keys().filter(|at| at.0 == SPARSE).count();
    assert_eq!(made, frame.header.count as usize);
    fuzz.engine
        .frame(
            FrameSender::first(WorkerId(0)),
            &frame.header,
            &frame.payload,
        )
        .unwrap();
    std::mem::swap(&mut fuzz.before, &mut fuzz.after);
    rig::fingerprint(&fuzz.memory, &mut fuzz.engine, &mut fuzz.after);
    let changed = fuzz
        .before
        .iter()
        .filter(|(at, was)| fuzz.after[at] != **was)
        .count();
    assert_eq!(changed, made);
}
