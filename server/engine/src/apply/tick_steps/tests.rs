//! Ticks in steps, against sums of the pushes of each iteration.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tidewater_protocol::ids::{Incarnation, PartitionId, TableId};
use tidewater_protocol::layout::frame::{
    CLOCK_FINISHED, CLOCK_JOIN, FrameFlags, FrameHeader, FrameKind, PARTITION_ANY, RowsPayload,
};
use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::table::{
    Apply, DType, GradientOptions, Init, KeyOptions, Optimizer, PushOp, Reduce, Shape, TableSpec,
};

use super::*;
use crate::apply::row_sums::RowSums;
use crate::apply::table::Table;
use crate::namespace::FrameSender;
use crate::store::ServerMemory;
use crate::store::ShardId;
use crate::store::prealloc::Preallocator;

const RANKS: u32 = 3;
const ITERATIONS: u64 = 4;
const KEYS: u64 = 60;
const DOMAIN: DomainId = DomainId(0);

type Rows = BTreeMap<u64, f32>;

struct Rig {
    engine: Engine,
    random: u64,
}

fn engine() -> Engine {
    engine_with(KeyOptions::default())
}

fn engine_with(keys: KeyOptions) -> Engine {
    let memory = Arc::new(ServerMemory::new(64 << 20, Incarnation(5)).unwrap());
    let spec = Arc::new(TableSpec {
        name: "t".into(),
        shape: Shape::Sparse { dim: 1 },
        dtype: DType::F32,
        optimizer: Optimizer::Sgd { lr: 1.0 },
        init: Init::Zeros,
        seed: 1,
        effect: Apply::AtTick(Reduce::Sum),
        finite_check: true,
        redo: false,
        domain: DOMAIN,
        partitions: 2,
        gradient: GradientOptions::default(),
        keys,
        versions: 2,
        durability: Default::default(),
        partition_servers: None,
        partition_starts: None,
    });
    let all = (0..2).map(PartitionId);
    let table = Table::new(
        &memory,
        &Preallocator::none(),
        ShardId::new(TableId(1), 0),
        &spec,
        all,
    );
    let mut engine = Engine::new(memory, 0, (0..RANKS).map(WorkerId)).unwrap();
    engine.add_table(table.unwrap());
    engine
}

fn header(kind: FrameKind, clock: u64) -> FrameHeader {
    FrameHeader {
        kind,
        flags: FrameFlags::default(),
        seq: 1,
        session: 0,
        payload_len: 0,
        count: 0,
        table: 0,
        partition: 0,
        clock,
        user_tag: 0,
        checksum: 0,
    }
}

/// A push of 1 << (8 * rank) times -1 for each key.
fn push(keys: &[u64], rank: u32, iteration: u64) -> (FrameHeader, Vec<u8>) {
    let parts = RowsPayload::new(keys.len(), 4, false);
    let mut payload: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
    payload.resize(parts.values_at, 0);
    payload.extend((-value(rank)).to_le_bytes().repeat(keys.len()));
    let header = FrameHeader {
        flags: FrameFlags {
            op: Some(PushOp::Gradient),
            dtype: Some(DType::F32),
            ..FrameFlags::default()
        },
        payload_len: payload.len() as u32,
        count: keys.len() as u32,
        table: 1,
        partition: PARTITION_ANY,
        ..header(FrameKind::PushRows, iteration)
    };
    (header, payload)
}

fn value(rank: u32) -> f32 {
    (1 << (8 * rank)) as f32
}

fn rows(engine: &mut Engine) -> Rows {
    let mut rows = Rows::new();
    for partition in (0..2).map(PartitionId) {
        let sink = |key, values: &[u8], _: &[u8]| {
            let value = f32::from_le_bytes(*values.first_chunk().unwrap());
            // Rows exist from the first push that is held.
            if value != 0.0 {
                rows.insert(key, value);
            }
            Ok(())
        };
        let copied = engine.copy_records(TableId(1), partition, |e| e, sink);
        copied.unwrap();
    }
    rows
}

impl Rig {
    fn under(&mut self, limit: u64) -> u64 {
        self.random = mix64(self.random.wrapping_add(1));
        self.random % limit
    }

    /// The frames of a rank, and the rows after each iteration.
    fn frames(&mut self, rank: u32, sums: &mut [Rows]) -> VecDeque<(FrameHeader, Vec<u8>)> {
        let mut frames = VecDeque::new();
        for iteration in 0..ITERATIONS {
            for _ in 0..self.under(3) {
                let first = self.under(KEYS);
                let keys: Vec<u64> = (first..KEYS.min(first + 20)).collect();
                for sums in &mut sums[iteration as usize + 1..] {
                    for &key in &keys {
                        *sums.entry(key).or_default() += value(rank);
                    }
                }
                frames.push_back(push(&keys, rank, iteration));
            }
            let clock = header(FrameKind::Clock, iteration + 1);
            frames.push_back((clock, Vec::new()));
        }
        // The last one's end closes nothing, that of another one may.
        frames.push_back((header(FrameKind::Clock, CLOCK_FINISHED), Vec::new()));
        frames
    }
}

/// Pushes of ranks that are ahead arrive between the steps of a tick. Whenever no tick is half done, the
/// rows are those of the announced minimum; a CLOCK frame that moved it is done when it is announced.
#[test]
fn ticks_in_steps_are_ticks() {
    let mut waited = [0; 2];
    for seed in 0..300 {
        let mut rig = Rig {
            engine: engine(),
            random: mix64(seed),
        };
        let step = 1 + rig.under(30) as usize;
        rig.engine.set_tick_rows(step);
        rig.engine
            .set_pending_bytes([0, 1 << 20][seed as usize % 2]);
        let mut sums = vec![Rows::new(); ITERATIONS as usize + 1];
        let mut queues: Vec<_> = (0..RANKS).map(|rank| rig.frames(rank, &mut sums)).collect();
        while queues.iter().any(|queue| !queue.is_empty()) || rig.engine.is_ticking() {
            let rank = rig.under(u64::from(RANKS) + 1) as usize;
            match queues.get(rank).and_then(VecDeque::front) {
                Some((header, payload)) => {
                    let sender = FrameSender::first(WorkerId(rank as u32));
                    let done = rig.engine.frame(sender, header, payload).unwrap();
                    let (min, clock) = (min_of(&mut rig.engine), header.clock);
                    let is_clock = header.kind == FrameKind::Clock;
                    match done {
                        Effect::Wait => waited[usize::from(is_clock)] += 1,
                        _ => drop(queues[rank].pop_front()),
                    }
                    if done == Effect::Clock && clock != CLOCK_FINISHED {
                        let slowest = rig.engine.clocks(NamespaceId::default()).min(DOMAIN);
                        assert!(slowest < clock || min >= clock, "{min} of {clock}");
                    }
                }
                None => drop(rig.engine.tick_step()),
            }
            assert_eq!(rig.engine.failed, None);
            rig.engine.moved.clear();
            if !rig.engine.closes(NamespaceId::default()) {
                let min = min_of(&mut rig.engine) as usize;
                assert_eq!(rows(&mut rig.engine), sums[min], "seed {seed} at {min}");
            }
        }
        assert_eq!(min_of(&mut rig.engine), ITERATIONS);
        assert_eq!(rig.engine.held_bytes(), 0);
        let Some(Sums::Rows(all)) = rig.engine.sums.get(&1) else {
            continue;
        };
        assert!(all.iter().flatten().all(RowSums::is_empty), "slots stay");
    }
    assert!(waited.iter().all(|&waited| waited > 100), "{waited:?}");
}

fn min_of(engine: &mut Engine) -> u64 {
    engine.clock_line(NamespaceId::default(), DOMAIN).min
}

/// Slots that only a lost rank's dropped pushes had are free at once; those of others, and sums, stay.
#[test]
fn lost_rank_leaves_no_slots() {
    let mut engine = engine();
    engine.set_tick_rows(5);
    let frame = |engine: &mut Engine, rank, (header, payload): (FrameHeader, Vec<u8>)| {
        let sender = FrameSender::first(WorkerId(rank));
        engine.frame(sender, &header, &payload).unwrap()
    };
    let tick = |clock| (header(FrameKind::Clock, clock), Vec::new());
    let live = |engine: &Engine| match engine.sums.get(&1) {
        Some(Sums::Rows(all)) => all.iter().flatten().map(RowSums::live).sum::<usize>(),
        _ => 0,
    };
    let keys = |keys: std::ops::Range<u64>| keys.collect::<Vec<u64>>();
    // Rank 0 has a sum, rank 1 is ahead, rank 2 is lost in iteration 1.
    frame(&mut engine, 0, push(&keys(0..20), 0, 0));
    frame(&mut engine, 2, push(&keys(10..30), 2, 0));
    frame(&mut engine, 2, tick(1));
    frame(&mut engine, 2, push(&keys(25..60), 2, 1));
    frame(&mut engine, 0, tick(1));
    frame(&mut engine, 1, push(&keys(40..50), 1, 0));
    assert_eq!(live(&engine), 60);
    engine.remove_worker(NamespaceId::default(), WorkerId(2));
    assert_eq!(live(&engine), 30 + 10, "0..30 and 40..50");
    engine.tick_all();
    frame(&mut engine, 1, tick(1));
    engine.tick_all();
    assert_eq!(min_of(&mut engine), 1);
    assert_eq!(live(&engine), 0);
    let mut expected = Rows::new();
    for (rank, keys) in [(0, keys(0..20)), (1, keys(40..50)), (2, keys(10..30))] {
        for key in keys {
            *expected.entry(key).or_default() += value(rank);
        }
    }
    assert_eq!(rows(&mut engine), expected);
}

/// One step of a large tick takes no more than its rows, and others' frames are applied meanwhile.
#[test]
fn large_tick_leaves_the_applier_free() {
    const ROWS: u64 = 10_000;
    let mut engine = engine();
    let keys: Vec<u64> = (0..ROWS).collect();
    for rank in 0..RANKS {
        for keys in keys.chunks(2_000) {
            let (header, payload) = push(keys, rank, 0);
            let sender = FrameSender::first(WorkerId(rank));
            assert_eq!(engine.frame(sender, &header, &payload), Ok(Effect::Applied));
        }
    }
    let clock = header(FrameKind::Clock, 1);
    let tick = |engine: &mut Engine, rank| {
        let sender = FrameSender::first(WorkerId(rank));
        engine.frame(sender, &clock, &[]).unwrap()
    };
    assert_eq!(tick(&mut engine, 0), Effect::Clock);
    assert_eq!(tick(&mut engine, 1), Effect::Clock);
    assert_eq!(tick(&mut engine, 2), Effect::Wait);
    let mut steps = 0;
    let mut before = rows(&mut engine).len();
    while engine.tick_step() {
        steps += 1;
        let after = rows(&mut engine).len();
        assert!(after - before <= TICK_ROWS, "{before} to {after}");
        before = after;
        // The last rank is ahead: its push of the next iteration is taken.
        let (header, payload) = push(&[steps], 2, 1);
        let sender = FrameSender::first(WorkerId(2));
        assert_eq!(engine.frame(sender, &header, &payload), Ok(Effect::Applied));
    }
    // To add each push, and to step each row.
    let least = ROWS * u64::from(RANKS + 1) / TICK_ROWS as u64;
    assert!(steps + 3 >= least, "{steps} of {least}");
    assert_eq!(tick(&mut engine, 2), Effect::Clock);
    let sum = (0..RANKS).map(value).sum::<f32>();
    let rows = rows(&mut engine);
    assert!(rows.values().all(|row| row.to_bits() == sum.to_bits()));
    assert_eq!(rows.len() as u64, ROWS);
}

/// A rank that leaves waits for the ticks that were queued before, and for none that follows.
#[test]
fn finish_waits_for_earlier_ticks_only() {
    let mut engine = engine();
    engine.set_tick_rows(5);
    let frame = |engine: &mut Engine, rank, (header, payload): (FrameHeader, Vec<u8>)| {
        let sender = FrameSender::first(WorkerId(rank));
        engine.frame(sender, &header, &payload).unwrap()
    };
    let clock = |clock| (header(FrameKind::Clock, clock), Vec::new());
    let keys: Vec<u64> = (0..KEYS).collect();
    for rank in 0..RANKS {
        assert_eq!(
            frame(&mut engine, rank, push(&keys, rank, 0)),
            Effect::Applied
        );
    }
    frame(&mut engine, 0, clock(1));
    frame(&mut engine, 1, clock(1));
    assert_eq!(frame(&mut engine, 2, clock(1)), Effect::Wait);
    assert_eq!(frame(&mut engine, 0, clock(CLOCK_FINISHED)), Effect::Wait);
    while frame(&mut engine, 2, clock(1)) == Effect::Wait {
        engine.tick_step();
    }
    // The others close the next iteration before the frame is offered again.
    frame(&mut engine, 1, push(&keys, 1, 1));
    frame(&mut engine, 1, clock(2));
    assert_eq!(frame(&mut engine, 2, clock(2)), Effect::Wait);
    assert_eq!(frame(&mut engine, 0, clock(CLOCK_FINISHED)), Effect::Clock);
    assert_eq!(frame(&mut engine, 2, clock(2)), Effect::Wait);
    engine.tick_all();
    assert_eq!(frame(&mut engine, 2, clock(2)), Effect::Clock);
}

/// The CLOCK frame of a thread waits for its tick. Thread 0 leaves meanwhile, and with it the worker: the
/// frame is accepted all the same.
#[test]
fn waiting_tick_survives_the_worker_end() {
    let mut engine = engine();
    engine.set_tick_rows(5);
    let namespace = NamespaceId::default();
    let frame = |engine: &mut Engine, rank, thread, clock| {
        let thread = WorkerThread {
            rank: WorkerId(rank),
            thread,
        };
        let sender = FrameSender { thread, namespace };
        engine.frame(sender, &header(FrameKind::Clock, clock), &[])
    };
    let keys: Vec<u64> = (0..KEYS).collect();
    let (push, payload) = push(&keys, 1, 0);
    let sender = FrameSender::first(WorkerId(1));
    assert_eq!(engine.frame(sender, &push, &payload), Ok(Effect::Applied));
    assert_eq!(frame(&mut engine, 0, 1, CLOCK_JOIN), Ok(Effect::Clock));
    for rank in 0..RANKS {
        assert_eq!(frame(&mut engine, rank, 0, 1), Ok(Effect::Clock));
    }
    assert_eq!(frame(&mut engine, 0, 1, 1), Ok(Effect::Wait));
    assert_eq!(frame(&mut engine, 0, 0, CLOCK_FINISHED), Ok(Effect::Wait));
    assert_eq!(frame(&mut engine, 0, 1, 1), Ok(Effect::Wait));
    engine.tick_all();
    assert_eq!(frame(&mut engine, 0, 1, 1), Ok(Effect::Clock));
    assert_eq!(frame(&mut engine, 0, 0, CLOCK_FINISHED), Ok(Effect::Clock));
}

/// Offers a frame of a worker's thread, and makes all steps that it causes.
fn offer(engine: &mut Engine, rank: u32, thread: u32, frame: &(FrameHeader, Vec<u8>)) {
    let (namespace, rank) = (NamespaceId::default(), WorkerId(rank));
    let thread = WorkerThread { rank, thread };
    let sender = FrameSender { thread, namespace };
    let (header, payload) = frame;
    while engine.frame(sender, header, payload).unwrap() == Effect::Wait {
        engine.tick_all();
    }
}

fn clock(clock: u64) -> (FrameHeader, Vec<u8>) {
    (header(FrameKind::Clock, clock), Vec::new())
}

/// A rank below the one with a queued turn is admitted before the turn begins. What it pushes is not added in that
/// turn, and is dropped when it is lost.
#[test]
fn queued_turn_spares_later_lower_rank() {
    let mut engine = engine();
    engine.set_tick_rows(5);
    let namespace = NamespaceId::default();
    let keys: Vec<u64> = (0..KEYS).collect();
    engine.remove_worker(namespace, WorkerId(0));
    for rank in 1..RANKS {
        offer(&mut engine, rank, 0, &push(&keys, rank, 0));
    }
    offer(&mut engine, 1, 0, &clock(1));
    let last = FrameSender::first(WorkerId(2));
    let tick = header(FrameKind::Clock, 1);
    assert_eq!(engine.frame(last, &tick, &[]), Ok(Effect::Wait));
    assert_eq!(engine.hold_clocks(namespace), [(DOMAIN, 1)]);
    let first = [(DOMAIN, 1)].into_iter().collect();
    engine.admit_worker(namespace, Some((WorkerId(0), first)));
    let (header, payload) = push(&keys[..10], 0, 1);
    let sender = FrameSender::first(WorkerId(0));
    assert_eq!(engine.frame(sender, &header, &payload), Ok(Effect::Applied));
    assert!(engine.is_ticking(), "the turn of rank 1 has not begun");
    offer(&mut engine, 2, 0, &clock(1));
    engine.tick_all();
    engine.remove_worker(namespace, WorkerId(0));
    for rank in 1..RANKS {
        offer(&mut engine, rank, 0, &clock(2));
    }
    assert_eq!(min_of(&mut engine), 2);
    let sum = value(1) + value(2);
    assert_eq!(rows(&mut engine), keys.iter().map(|&k| (k, sum)).collect());
}

/// A worker is lost when one of two appliers has consumed the last frame of a thread: both count the same pushes.
#[test]
fn finish_at_one_applier_counts_everywhere() {
    let (namespace, lost) = (NamespaceId::default(), WorkerId(0));
    let of_sibling = [(1, clock(CLOCK_JOIN)), (1, push(&[1], 0, 0))];
    let of_first = [(0, push(&[2], 0, 0)), (0, clock(1)), (0, push(&[3], 0, 1))];
    // The sibling does not tick; the first thread has pushed after its last tick.
    let sibling_finishes = [&of_sibling[..], &of_first[..2]].concat();
    for (frames, finishes, counted) in [
        (sibling_finishes, 1, &[1, 2][..]),
        (of_first.to_vec(), 0, &[2, 3]),
    ] {
        let mut appliers = [engine(), engine()];
        for engine in &mut appliers {
            for (thread, frame) in &frames {
                offer(engine, 0, *thread, frame);
            }
        }
        offer(&mut appliers[0], 0, finishes, &clock(CLOCK_FINISHED));
        let mut furthest = BTreeMap::new();
        for engine in &mut appliers {
            for (thread, domain, clock) in engine.clocks_of(namespace, lost) {
                let most = furthest.entry((thread, domain)).or_insert(clock);
                *most = clock.max(*most);
            }
        }
        let expected: Rows = counted.iter().map(|&key| (key, value(0))).collect();
        for engine in &mut appliers {
            for (&(thread, domain), &clock) in &furthest {
                engine.complete_tick(namespace, thread, domain, clock);
            }
            engine.remove_worker(namespace, lost);
            assert_eq!(engine.clocks_of(namespace, lost), []);
            for tick in [1, 2] {
                offer(engine, 1, 0, &clock(tick));
                offer(engine, 2, 0, &clock(tick));
            }
            assert_eq!(min_of(engine), 2);
            assert_eq!(rows(engine), expected);
        }
    }
}

/// A worker finishes, and a later one of its rank begins in the same iteration and is lost: only its pushes are
/// dropped.
#[test]
fn finished_pushes_survive_later_loss() {
    let mut engine = engine();
    let namespace = NamespaceId::default();
    offer(&mut engine, 0, 0, &clock(1));
    offer(&mut engine, 0, 0, &push(&[1], 0, 1));
    offer(&mut engine, 0, 0, &clock(CLOCK_FINISHED));
    engine.remove_worker(namespace, WorkerId(0));
    assert_eq!(engine.hold_clocks(namespace), [(DOMAIN, 1)]);
    let first = [(DOMAIN, 1)].into_iter().collect();
    engine.admit_worker(namespace, Some((WorkerId(0), first)));
    offer(&mut engine, 0, 0, &push(&[2], 0, 1));
    engine.remove_worker(namespace, WorkerId(0));
    for tick in [1, 2] {
        offer(&mut engine, 1, 0, &clock(tick));
        offer(&mut engine, 2, 0, &clock(tick));
    }
    assert_eq!(rows(&mut engine), Rows::from([(1, value(0))]));
}

/// Thread 0 leaves while another thread of its worker has a task: the task is dropped, and so are pushes of a task
/// for an iteration of a thread that is gone. A client that does not keep to the protocol sends both.
#[test]
fn tasks_of_threads_that_left_are_dropped() {
    let namespace = NamespaceId::default();
    let thread = WorkerThread {
        rank: WorkerId(0),
        thread: 1,
    };
    let sender = FrameSender { thread, namespace };
    let with_task = || {
        let mut engine = engine();
        let join = header(FrameKind::Clock, CLOCK_JOIN);
        assert_eq!(engine.frame(sender, &join, &[]), Ok(Effect::Clock));
        let (mut of_task, payload) = push(&[1, 2, 3], 0, 0);
        of_task.flags.task = true;
        let held = engine.frame(sender, &of_task, &payload);
        assert_eq!(held, Ok(Effect::Applied));
        let mark = FrameHeader {
            count: 1,
            ..header(FrameKind::Task, 7)
        };
        assert_eq!(engine.frame(sender, &mark, &[]), Ok(Effect::Applied));
        assert!(engine.held_bytes() > 0);
        engine
    };
    let mut engine = with_task();
    let finish = header(FrameKind::Clock, CLOCK_FINISHED);
    let first = FrameSender::first(WorkerId(0));
    assert!(engine.frame(first, &finish, &[]).is_ok());
    engine.tick_all();
    assert_eq!(engine.held_bytes(), 0, "dropped with their thread");
    engine.finish_task(namespace, thread, 7, &mut || ());
    assert_eq!(engine.failed, None);

    let mut engine = with_task();
    drop(engine.clocks(namespace).remove(WorkerId(0)));
    engine.finish_task(namespace, thread, 7, &mut || ());
    assert_eq!(engine.held_bytes(), 0, "no iteration to join");
    assert_eq!(engine.failed, None);
}

/// One step of a tick deletes no more than its rows of those that expire.
#[test]
fn expiry_leaves_the_applier_free() {
    const ROWS: u64 = 10_000;
    let mut engine = engine_with(KeyOptions {
        expire_after: 1,
        ..KeyOptions::default()
    });
    let tick = |engine: &mut Engine, clock| {
        for rank in 0..RANKS {
            let sender = FrameSender::first(WorkerId(rank));
            engine
                .frame(sender, &header(FrameKind::Clock, clock), &[])
                .unwrap();
        }
    };
    let keys: Vec<u64> = (0..ROWS).collect();
    for keys in keys.chunks(2_000) {
        let (header, payload) = push(keys, 0, 0);
        let sender = FrameSender::first(WorkerId(0));
        assert_eq!(engine.frame(sender, &header, &payload), Ok(Effect::Applied));
    }
    // Their first tick, of partition 0.
    tick(&mut engine, 1);
    engine.tick_all();
    let last = FrameSender::first(WorkerId(2));
    let again = engine.frame(last, &header(FrameKind::Clock, 1), &[]);
    assert_eq!(again, Ok(Effect::Clock));
    let mut before = rows(&mut engine).len();
    assert_eq!(before as u64, ROWS);
    // Rows of partition 1 have expired at the next one.
    tick(&mut engine, 2);
    loop {
        let after = rows(&mut engine).len();
        assert!(
            before - after <= TICK_ROWS + SLOTS_OF_STEP,
            "{before} to {after}"
        );
        before = after;
        if !engine.tick_step() {
            break;
        }
    }
    assert!(
        (4_000..6_000).contains(&before),
        "{before} rows of partition 0"
    );
    assert_eq!(min_of(&mut engine), 2);
}

/// Slots of the last look of a step.
const SLOTS_OF_STEP: usize = 512;
