//! Frames of functions with their replies and refusals, encoded programs and partial results.

use tidewater_expression::{
    CONSTANTS_MAX, Evaluator, OPERATIONS_MAX, PROGRAM_BYTES_MAX, Partial, Program, Reduction,
};
use tidewater_protocol::layout::frame::FrameKind;
use tidewater_protocol::layout::function::{
    FUNCTION_BODY_BYTES_MAX, FUNCTION_INPUTS_MAX, FUNCTION_PARAMETERS_MAX, FunctionBody,
    FunctionPayload, FunctionProblem, FunctionTrap,
};
use tidewater_protocol::layout::lines::Reject;
use tidewater_protocol::layout::reply::ReplyHeader;
use tidewater_protocol::limits;
use tidewater_protocol::table::DType;

use crate::structures::{SESSION, frame, header, line, reply};

/// Name and bytes of each structure of functions.
pub(crate) fn all() -> Vec<(&'static str, Vec<u8>)> {
    let mut all = frames();
    all.extend(answers());
    all.extend(partials());
    all.push(("program", program("max(p0 * x + y, 2.5)", DType::F32)));
    all
}

fn program(text: &str, dtype: DType) -> Vec<u8> {
    let mut bytes = Vec::new();
    Program::parse(text, dtype).unwrap().encode(&mut bytes);
    bytes
}

fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let mut update = header(FrameKind::Update, 51);
    (update.count, update.partition) = (64, 3);
    let axpy = program("x + p0 * y", DType::F64);
    let body = FunctionBody::Expression(&axpy);
    let mut axpy = FunctionPayload::new(body, 0, &[9, 10], &[0.5]);
    let mut reduce = update;
    (reduce.kind, reduce.seq, reduce.user_tag) = (FrameKind::Reduce, 52, 0x0405);
    let square = program("x * x", DType::F64);
    let sum = Reduction::Sum.code();
    let body = FunctionBody::Expression(&square);
    let mut square = FunctionPayload::new(body, sum, &[9], &[]);
    let mut named = update;
    named.seq = 53;
    let body = FunctionBody::Named {
        name: "ramp",
        arguments: &[1, 2, 3],
    };
    let mut ramp = FunctionPayload::new(body, 0, &[], &[]);
    let mut slots = reduce;
    (slots.seq, slots.count, slots.user_tag) = (54, 1, 0x0506);
    let mut count = FunctionPayload::new(FunctionBody::Slots, 0, &[], &[]);
    vec![
        ("frame-update", frame(update, axpy.at(1000))),
        ("frame-reduce", frame(reduce, square.at(1000))),
        ("frame-update-named", frame(named, ramp.at(1000))),
        ("frame-reduce-slots", frame(slots, count.at(0))),
    ]
}

fn answers() -> Vec<(&'static str, Vec<u8>)> {
    let partial = reduced("x * x", DType::F64, Reduction::Sum).encode();
    let done = ReplyHeader {
        kind: FrameKind::Reduce as u16,
        refused: None,
        user_tag: 0x0405,
        payload_len: 16,
        count: 1,
        slot: 5,
        table: 9,
    };
    let unknown = FunctionProblem::Unknown.with(2);
    let refused = ReplyHeader {
        refused: Some(unknown),
        payload_len: 0,
        count: 0,
        ..done
    };
    let reject = Reject {
        seq: 53,
        table: 9,
        reason: unknown,
    };
    vec![
        ("reply-reduce", reply(&done, &partial)),
        ("reply-reduce-refused", reply(&refused, &[])),
        ("reject-function", line(reject.to_line(SESSION))),
    ]
}

/// The partial result of an expression over the elements 1, 2 and -3.
fn reduced(text: &str, dtype: DType, reduction: Reduction) -> Partial {
    let program = Program::parse(text, dtype).unwrap();
    let mut partial = Partial::empty(reduction, dtype);
    if dtype == DType::F64 {
        let mut evaluator = Evaluator::<f64>::new(&program, &[]).unwrap();
        evaluator.reduce(&[&[1.0, 2.0, -3.0]], 0, 3, reduction, &mut partial);
    } else {
        let mut evaluator = Evaluator::<i64>::new(&program, &[]).unwrap();
        evaluator.reduce(&[&[1, 2, -3]], 0, 3, reduction, &mut partial);
    }
    partial
}

fn partials() -> Vec<(&'static str, Vec<u8>)> {
    let encoded = |text, dtype, reduction| reduced(text, dtype, reduction).encode().to_vec();
    let (float, integer) = (DType::F64, DType::I64);
    vec![
        (
            "partial-sum-f64",
            encoded("if(x < 2, 1e16, 1)", float, Reduction::Sum),
        ),
        ("partial-sum-i64", encoded("x - 1", integer, Reduction::Sum)),
        ("partial-min-f64", encoded("x", float, Reduction::Min)),
        ("partial-max-i64", encoded("x", integer, Reduction::Max)),
        ("partial-and", encoded("x != 0", float, Reduction::And)),
    ]
}

/// Name and value of each number of functions.
pub(crate) fn numbers() -> Vec<(String, u64)> {
    let named = |(name, value): (&str, usize)| (name.to_owned(), value as u64);
    let mut all: Vec<(String, u64)> = [
        ("FUNCTION_BYTES_MAX", limits::FUNCTION_BYTES_MAX),
        ("FRAME_ROWS_MAX", limits::FRAME_ROWS_MAX),
        ("FUNCTION_INPUTS_MAX", FUNCTION_INPUTS_MAX),
        ("FUNCTION_PARAMETERS_MAX", FUNCTION_PARAMETERS_MAX),
        ("FUNCTION_BODY_BYTES_MAX", FUNCTION_BODY_BYTES_MAX),
        ("PROGRAM_BYTES_MAX", PROGRAM_BYTES_MAX),
        ("OPERATIONS_MAX", OPERATIONS_MAX),
        ("CONSTANTS_MAX", CONSTANTS_MAX),
    ]
    .map(named)
    .to_vec();
    for code in 0..=u8::MAX {
        let problem = FunctionProblem::from_code(code.into());
        let problem = problem.map(|p| format!("FunctionProblem::{p:?}"));
        let reduction = Reduction::from_code(code).map(|r| format!("Reduction::{r:?}"));
        let trap = FunctionTrap::from_code(code.into()).map(|t| format!("FunctionTrap::{t:?}"));
        let names = [problem, reduction, trap].into_iter().flatten();
        all.extend(names.map(|name| (name, u64::from(code))));
    }
    all.extend(operations());
    all
}

/// Code of each operation: that of the last operation in the encoding of an expression.
fn operations() -> Vec<(String, u64)> {
    let binary = ["+", "-", "*", "/", "<", "<=", "==", "!="];
    let calls = ["pow", "min", "max", "copysign"];
    let unary = [
        "abs", "sign", "signum", "sqrt", "exp", "expm1", "log", "log1p", "log10", "floor", "ceil",
        "round", "trunc", "is_nan",
    ];
    let mut all: Vec<(&str, String, usize)> = Vec::new();
    all.extend(binary.map(|name| (name, format!("x {name} y"), 2)));
    all.extend(calls.map(|name| (name, format!("{name}(x, y)"), 2)));
    all.extend(["and", "or"].map(|name| (name, format!("x < y {name} x == y"), 2)));
    all.extend(unary.map(|name| (name, format!("{name}(x)"), 1)));
    all.push(("not", "not is_nan(x)".into(), 1));
    all.push(("neg", "-x".into(), 1));
    all.push(("if", "if(x < y, x, y)".into(), 3));
    let code = |(name, text, operands): (&str, String, usize)| {
        let bytes = program(&text, DType::F64);
        let last = bytes[bytes.len() - 1 - 2 * operands];
        (format!("op({name})"), u64::from(last))
    };
    all.into_iter().map(code).collect()
}
