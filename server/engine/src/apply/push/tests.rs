//! Tests of pushes and of what they are refused for.

use std::sync::Arc;

use tidewater_protocol::ids::{DomainId, Incarnation, PartitionId, TableId, WorkerId};
use tidewater_protocol::layout::encoding::EncodingCode;
use tidewater_protocol::layout::frame::{CLOCK_FINISHED, CLOCK_JOIN, FrameFlags, FrameKind};
use tidewater_protocol::layout::function::{
    AtTickProblem, FunctionBody, FunctionPayload, FunctionProblem,
};
use tidewater_protocol::table::{
    DType, DenseLayout, GradientOptions, Init, KeyOptions, Optimizer, Reduce, TableSpec,
};

use super::*;
use crate::store::ServerMemory;
use crate::store::ShardId;
use crate::store::prealloc::Preallocator;

/// Elements of each of the two partitions.
const PART: u64 = 2 * 1024;

/// An applier with partition 0 of two.
fn engine() -> Engine {
    let memory = Arc::new(ServerMemory::new(64 << 20, Incarnation(5)).unwrap());
    let spec = Arc::new(TableSpec {
        name: "t".into(),
        shape: Shape::Dense {
            rows: 2 * PART,
            cols: 1,
            layout: DenseLayout::Blocks {
                block_bytes: 4096,
                snapshot: false,
            },
        },
        dtype: DType::F32,
        optimizer: Optimizer::None,
        init: Init::Zeros,
        seed: 1,
        effect: tidewater_protocol::table::Apply::Immediate,
        finite_check: true,
        domain: DomainId(0),
        partitions: 2,
        gradient: GradientOptions::default(),
        redo: false,
        keys: KeyOptions::default(),
        versions: 2,
        durability: Default::default(),
        partition_servers: None,
        partition_starts: None,
    });
    let mine = [PartitionId(0)].into_iter();
    let table = Table::new(
        &memory,
        &Preallocator::none(),
        ShardId::new(TableId(1), 0),
        &spec,
        mine,
    );
    let mut engine = Engine::new(memory, 0, [WorkerId(0)]).unwrap();
    engine.add_table(table.unwrap());
    engine
}

fn push(engine: &mut Engine, first: u64, values: &[f32]) -> Result<Effect, Refusal> {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let plain = FrameFlags::default();
    push_bytes(engine, first, values.len(), plain, &bytes)
}

/// Pushes a sum of `count` elements with the weight and encoding of `flags`.
fn push_bytes(
    engine: &mut Engine,
    first: u64,
    count: usize,
    flags: FrameFlags,
    bytes: &[u8],
) -> Result<Effect, Refusal> {
    let payload = [&first.to_le_bytes(), bytes].concat();
    let header = FrameHeader {
        kind: FrameKind::PushDense,
        flags: FrameFlags {
            op: Some(PushOp::Sum),
            dtype: Some(DType::F32),
            ..flags
        },
        seq: 1,
        session: 0,
        payload_len: payload.len() as u32,
        count: count as u32,
        table: 1,
        partition: 9,
        clock: 0,
        user_tag: 0,
        checksum: 0,
    };
    engine.frame(FrameSender::first(WorkerId(0)), &header, &payload)
}

/// A refused range is named by its first element and its length.
#[test]
fn refused_range_names_its_elements() {
    let mut engine = engine();
    assert_eq!(push(&mut engine, 5, &[1.0; 3]), Ok(Effect::Applied));
    for first in [PART - 1, PART] {
        let refused = push(&mut engine, first, &[1.0; 3]);
        assert_eq!(refused, Err(RejectReason::WrongOwner { first, count: 3 }));
    }
    let refused = push(&mut engine, 2 * PART - 2, &[1.0; 3]);
    let (index, size) = (2 * PART - 2, 2 * PART);
    assert_eq!(refused, Err(RejectReason::IndexOutOfRange { index, size }));
    let refused = push(&mut engine, 5, &[1.0, 2.0, f32::NAN]);
    assert_eq!(refused, Err(RejectReason::NotFinite { row: 2, key: 7 }));
    assert_eq!(values(&mut engine), [0.0, 1.0, 1.0, 1.0]);
}

fn values(engine: &mut Engine) -> Vec<f32> {
    let table = engine.table(TableId(1)).unwrap();
    let Store::Blocks(blocks) = &table.store else {
        panic!("a table of blocks");
    };
    let mut out = [0; 16];
    blocks.read_range(4, &mut out).unwrap();
    let (values, _) = out.as_chunks();
    values.iter().map(|raw| f32::from_le_bytes(*raw)).collect()
}

/// A client that does not check: weights that are none, and values of another length.
#[test]
fn impossible_weights_and_encodings_are_refused() {
    let mut engine = engine();
    let (kind, op) = (FrameKind::PushDense as u64, PushOp::Sum as u64);
    let weighted = FrameFlags {
        weight: true,
        ..FrameFlags::default()
    };
    let row = 2f32.to_le_bytes();
    for weight in [f64::NAN, f64::INFINITY, -1.0, 1e39] {
        let bytes = [&row[..], &weight.to_le_bytes()].concat();
        let refused = push_bytes(&mut engine, 5, 1, weighted, &bytes);
        assert_eq!(refused, Err(RejectReason::WrongOperation { kind, op }));
    }
    let refused = push_bytes(&mut engine, 5, 1, weighted, &row);
    let length = |bytes, expected| Err(RejectReason::WrongLength { bytes, expected });
    assert_eq!(refused, length(4, 12));
    for (code, len, expected) in [
        (EncodingCode::Bf16, 5, 14),
        (EncodingCode::F16, 7, 14),
        (EncodingCode::Int8, 3, 8),
        (EncodingCode::Int8, 12, 8 + 4 + 4 + 3),
    ] {
        let encoded = FrameFlags {
            encoding: Some(code),
            ..FrameFlags::default()
        };
        let bytes = [8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let refused = push_bytes(&mut engine, 5, 3, encoded, &bytes[..len]);
        assert_eq!(refused, length(8 + len as u64, expected), "{code:?}");
        // More elements than bytes, of any number.
        let refused = push_bytes(&mut engine, 5, u32::MAX as usize, encoded, &bytes[..len]);
        assert_eq!(refused, length(8 + len as u64, u32::MAX.into()), "{code:?}");
    }
    assert_eq!(values(&mut engine), [0.0; 4], "nothing was applied");
    let bytes = [&row[..], &0.75f64.to_le_bytes()].concat();
    let applied = push_bytes(&mut engine, 5, 1, weighted, &bytes);
    assert_eq!(applied, Ok(Effect::Applied));
    assert_eq!(values(&mut engine), [0.0, 1.5, 0.0, 0.0]);
    // An infinity of bf16 is one of the table.
    let infinite = FrameFlags {
        encoding: Some(EncodingCode::Bf16),
        ..FrameFlags::default()
    };
    let refused = push_bytes(&mut engine, 5, 2, infinite, &[0, 0, 0x80, 0x7f]);
    assert_eq!(refused, Err(RejectReason::NotFinite { row: 1, key: 6 }));
}

/// The check is of what is stored or added: finite values may overflow with their weight, on arrival and
/// at the tick.
#[test]
fn weighted_values_are_finite_too() {
    let weighted = FrameFlags {
        weight: true,
        ..FrameFlags::default()
    };
    let bytes = |weight: f64| {
        let values = [1.0, 3e38].map(f32::to_le_bytes).concat();
        [values, weight.to_le_bytes().to_vec()].concat()
    };
    for at_tick in [false, true] {
        let mut engine = engine();
        if at_tick {
            let table = engine.table(TableId(1)).unwrap();
            let mut spec = TableSpec::clone(&table.spec);
            spec.effect = tidewater_protocol::table::Apply::AtTick(Reduce::Sum);
            table.spec = Arc::new(spec);
        }
        let refused = push_bytes(&mut engine, 5, 2, weighted, &bytes(2.0));
        assert_eq!(refused, Err(RejectReason::NotFinite { row: 1, key: 6 }));
        // In f32 the last one is 0, and a mean would divide by it.
        for weight in [f64::NAN, -1.0, 1e39, 1e-50] {
            let refused = push_bytes(&mut engine, 5, 2, weighted, &bytes(weight));
            assert!(refused.is_err(), "{weight}");
        }
        for weight in [1.0, 0.5] {
            let applied = push_bytes(&mut engine, 5, 2, weighted, &bytes(weight));
            assert_eq!(applied, Ok(Effect::Applied), "{weight}");
        }
    }
}

/// An UPDATE that another client sends for a table of ticks is refused, whatever its function.
#[test]
fn update_of_table_of_ticks_is_refused() {
    let mut engine = engine();
    let table = engine.table(TableId(1)).unwrap();
    let mut spec = TableSpec::clone(&table.spec);
    spec.effect = tidewater_protocol::table::Apply::AtTick(Reduce::Sum);
    table.spec = Arc::new(spec);
    let body = FunctionBody::Named {
        name: "any",
        arguments: &[],
    };
    let mut payload = FunctionPayload::new(body, 0, &[1], &[]);
    let payload = payload.at(0);
    let header = FrameHeader {
        kind: FrameKind::Update,
        flags: FrameFlags::default(),
        seq: 1,
        session: 0,
        payload_len: payload.len() as u32,
        count: 3,
        table: 1,
        partition: 0,
        clock: 0,
        user_tag: 0,
        checksum: 0,
    };
    let refused = engine.frame(FrameSender::first(WorkerId(0)), &header, payload);
    let problem = AtTickProblem::Named as u64;
    assert_eq!(refused, Err(FunctionProblem::AtTick.with(problem)));
}

/// A request that ends before its first element's number is refused like any other bad length.
#[test]
fn short_range_request_is_refused() {
    let mut engine = engine();
    for bytes in [0, 7, 9] {
        let header = FrameHeader {
            kind: FrameKind::Gather,
            flags: FrameFlags::default(),
            seq: 1,
            session: 0,
            payload_len: bytes as u32,
            count: 1,
            table: 1,
            partition: 0,
            clock: 0,
            user_tag: 0,
            checksum: 0,
        };
        let sender = FrameSender::first(WorkerId(0));
        let refused = engine.frame(sender, &header, &[0; 9][..bytes]);
        let bytes = bytes as u64;
        let reason = RejectReason::WrongLength { bytes, expected: 8 };
        assert_eq!(refused, Err(reason));
    }
}

/// No frame of an observer changes the model or a clock, whatever its bytes say; requests are served.
#[test]
fn observers_frames_change_nothing() {
    let mut engine = engine();
    let observer = FrameSender::first(WorkerId::of_observer(3));
    let before = values(&mut engine);
    let clocks = engine.clocks(observer.namespace).line(DomainId(0));
    let header = |kind, clock| FrameHeader {
        kind,
        flags: FrameFlags {
            op: Some(PushOp::Sum),
            dtype: Some(DType::F32),
            ..FrameFlags::default()
        },
        seq: 1,
        session: 0,
        payload_len: 12,
        count: 1,
        table: 1,
        partition: 0,
        clock,
        user_tag: 0,
        checksum: 0,
    };
    let payload = [&5_u64.to_le_bytes()[..], &1_f32.to_le_bytes()].concat();
    let changing = [
        header(FrameKind::PushRows, 0),
        header(FrameKind::PushDense, 0),
        header(FrameKind::Clock, 1),
        header(FrameKind::Clock, CLOCK_JOIN),
        header(FrameKind::Clock, CLOCK_FINISHED),
        header(FrameKind::Settings, 0),
        header(FrameKind::Update, 0),
    ];
    let creating = [FrameKind::Resolve, FrameKind::Gather].map(|kind| {
        let mut header = header(kind, 0);
        header.flags.create = true;
        header
    });
    for header in changing.into_iter().chain(creating) {
        let kind = header.kind as u64;
        let refused = engine.frame(observer, &header, &payload);
        assert_eq!(refused, Err(RejectReason::Observer { kind }), "{header:?}");
    }
    assert_eq!(values(&mut engine), before);
    let after = engine.clocks(observer.namespace).line(DomainId(0));
    assert_eq!(after, clocks);
    let read = FrameHeader {
        flags: FrameFlags::default(),
        payload_len: 8,
        ..header(FrameKind::Gather, 0)
    };
    let read = engine.frame(observer, &read, &5_u64.to_le_bytes());
    assert_eq!(read, Ok(Effect::Reply { count: 1 }));
}
