//! Pushes with a weight, and pushes of encoded values.

use tidewater_protocol::layout::encoding::{PushEncoding, encode};
use tidewater_protocol::layout::frame::FrameKind;
use tidewater_protocol::table::{DType, PushOp};

use crate::structures::{KEY, f32s, flags, frame, header, rows_payload, words};

pub(crate) fn all() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("frame-push-rows-weighted", weighted_rows()),
        ("frame-push-bf16", encoded(53, PushEncoding::Bf16)),
        ("frame-push-f16", encoded(54, PushEncoding::F16)),
        (
            "frame-push-int8",
            encoded(55, PushEncoding::Int8 { block: 8 }),
        ),
    ]
}

fn weighted_rows() -> Vec<u8> {
    let mut push = header(FrameKind::PushRows, 52);
    push.flags = flags(PushOp::Gradient, DType::F32);
    push.flags.weight = true;
    (push.count, push.clock) = (2, 12);
    let values = f32s(&[1.0, 2.0, 3.0, 4.0]);
    let rows = rows_payload(&words(&[KEY, KEY + 1]), &[], &values);
    frame(push, &[rows, words(&[0.75f64.to_bits()])].concat())
}

fn encoded(seq: u64, encoding: PushEncoding) -> Vec<u8> {
    let mut push = header(FrameKind::PushDense, seq);
    push.flags = flags(PushOp::Sum, DType::F64);
    (push.flags.weight, push.flags.encoding) = (true, encoding.code());
    (push.count, push.partition) = (9, 3);
    let mut values = [-4.0, 1.0, 0.0, 2.0, -0.5, 3.0, 0.25, 127.0, 5.0];
    let mut bytes = Vec::new();
    encode(encoding, DType::F64, &mut values, &mut bytes);
    frame(
        push,
        &[words(&[1000]), bytes, words(&[2.5f64.to_bits()])].concat(),
    )
}
