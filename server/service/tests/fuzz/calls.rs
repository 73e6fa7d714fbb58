//! Frames of functions: valid ones for every kind of table, and random ones.

use tidewater_expression::{Program, Reduction};
use tidewater_functions::{Elements, ElementsMut, Function, FunctionError, Functions};
use tidewater_functions::{Piece, register};
use tidewater_protocol::layout::frame::{FrameKind, PARTITION_ANY};
use tidewater_protocol::layout::function::{FunctionBody, FunctionPayload};
use tidewater_protocol::table::DType;

use crate::fuzzing::{EDGES, Random};
use crate::rig::{BLOCKS, Frame, HELD, PARTITIONS, RELEASED, ROWS, SNAPSHOT, SPARSE, TWIN, header};

/// Expressions; `log` gives NaN, which tables of floats refuse.
const TEXTS: [&str; 6] = [
    "x + 1",
    "x * p0",
    "if(x > y, x, y)",
    "x - z",
    "log(x - 1)",
    "p3 + abs(x)",
];

/// Changes floats and refuses integers.
struct Halve;

impl Function for Halve {
    fn update(
        &self,
        arguments: &[u8],
        _: &Piece<'_>,
        target: ElementsMut<'_>,
    ) -> Result<(), FunctionError> {
        let code = arguments.first().copied().ok_or(FunctionError(7))?;
        match target {
            ElementsMut::F32(values) => values.iter_mut().for_each(|v| *v *= 0.5),
            ElementsMut::F64(values) => values.iter_mut().for_each(|v| *v *= 0.5),
            ElementsMut::I32(values) => {
                values.fill(-1); // a refused function has changed its copy
                return Err(FunctionError(code.into()));
            }
            ElementsMut::I64(_) => return Err(FunctionError(code.into())),
        }
        Ok(())
    }

    fn reduce(
        &self,
        arguments: &[u8],
        _: &Piece<'_>,
        target: Elements<'_>,
        result: &mut Vec<u8>,
    ) -> Result<(), FunctionError> {
        // Up to more than a reply holds.
        result.resize(arguments.len() * 11_000, 0);
        match target {
            Elements::I32(_) => Err(FunctionError(1)),
            _ => Ok(()),
        }
    }
}

/// Registers the function "halve" for the engines of this process.
pub(crate) fn register_functions() {
    // Another test of this process may have registered it: the same function.
    let _ = register(Functions::default().with("halve", Halve));
}

fn program(text: &str, dtype: DType) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(program) = Program::parse(text, dtype) {
        program.encode(&mut bytes);
    }
    bytes // empty where the type lacks an operation: a damaged program
}

/// A call of every table's first rows or elements.
struct Call<'a> {
    kind: FrameKind,
    table: u32,
    partition: u32,
    first: u64,
    count: u32,
    body: FunctionBody<'a>,
    reduction: u8,
    inputs: &'a [u32],
    parameters: &'a [f64],
}

impl Call<'_> {
    fn frame(&self) -> Frame {
        let mut header = header(self.kind, self.table, self.count as usize);
        header.partition = self.partition;
        if self.kind == FrameKind::Reduce {
            header.user_tag = 0x103;
        }
        let (inputs, parameters) = (self.inputs, self.parameters);
        let mut payload = FunctionPayload::new(self.body, self.reduction, inputs, parameters);
        let payload = payload.at(self.first).to_vec();
        header.payload_len = payload.len() as u32;
        Frame { header, payload }
    }
}

/// Element type, partition, first element or row, and number of those that a call covers.
const SPANS: [(u32, DType, u32, u64, u32); 8] = [
    (SPARSE, DType::F32, 0, 0, 1),
    (SPARSE, DType::F32, 1, 0, 2),
    (SPARSE, DType::F32, 2, 1, 1),
    (ROWS, DType::F64, PARTITION_ANY, 0, 6),
    (BLOCKS, DType::I32, PARTITION_ANY, 16, 300),
    (BLOCKS, DType::I32, PARTITION_ANY, 1_000, 1_100),
    (SNAPSHOT, DType::F32, PARTITION_ANY, 4, 64),
    (HELD, DType::F32, 1, 0, 1),
];

/// Valid frames of functions, and one of each other body, for every kind of table.
pub(crate) fn corpus() -> Vec<Frame> {
    let mut all = Vec::new();
    for (table, dtype, partition, first, count) in SPANS {
        let (add, scale) = (program("x + 1", dtype), program("x * p0", dtype));
        let inputs = [table];
        let call = |kind, body, reduction| Call {
            kind,
            table,
            partition,
            first,
            count,
            body,
            reduction,
            inputs: &inputs,
            parameters: &[],
        };
        let (update, reduce) = (FrameKind::Update, FrameKind::Reduce);
        let expression = FunctionBody::Expression(&add);
        let halve = FunctionBody::Named {
            name: "halve",
            arguments: &[3],
        };
        all.push(call(update, expression, 0).frame());
        all.push(call(update, halve, 0).frame());
        all.push(call(reduce, expression, Reduction::Sum.code()).frame());
        all.push(call(reduce, halve, 0).frame());
        let body = FunctionBody::Expression(&scale);
        let scaled = Call {
            parameters: &[2.0],
            ..call(update, body, 0)
        };
        all.push(scaled.frame());
        let slots = Call {
            inputs: &[],
            ..call(reduce, FunctionBody::Slots, 0)
        };
        all.push(slots.frame());
    }
    let larger = program("if(x > y, x, y)", DType::F64);
    let twins = Call {
        kind: FrameKind::Update,
        table: ROWS,
        partition: PARTITION_ANY,
        first: 2,
        count: 9,
        body: FunctionBody::Expression(&larger),
        reduction: 0,
        inputs: &[ROWS, TWIN],
        parameters: &[],
    };
    all.push(twins.frame());
    all
}

/// A call of parts that are each likely, but seldom fit each other.
pub(crate) fn random(random: &mut Random) -> Frame {
    let (mut table, dtype, partition, first, count) = SPANS[random.under(SPANS.len())];
    let parameters: Vec<f64> = (0..random.under(4)).map(|n| n as f64 - 0.5).collect();
    let mut inputs = vec![table; random.under(4)];
    for input in &mut inputs {
        if random.under(6) == 0 {
            *input = [ROWS, TWIN, BLOCKS, RELEASED, 99][random.under(5)];
        }
    }
    if random.under(8) == 0 {
        table = 1 + random.under(7) as u32;
    }
    let of = match random.under(8) {
        0 => DType::from_code(1 + random.under(4) as u8).unwrap(),
        _ => dtype,
    };
    let program = program(TEXTS[random.under(TEXTS.len())], of);
    let arguments = vec![9; random.under(8)];
    let name = ["halve", "absent"][random.under(8) / 7];
    let body = match random.under(8) {
        0 => FunctionBody::Slots,
        1 | 2 => FunctionBody::Named {
            name,
            arguments: &arguments,
        },
        _ => FunctionBody::Expression(&program),
    };
    let call = Call {
        kind: [FrameKind::Update, FrameKind::Reduce][random.under(2)],
        table,
        partition: match random.under(4) {
            0 => random.under(PARTITIONS as usize + 1) as u32,
            _ => partition,
        },
        first: match random.under(6) {
            0 => random.under(7_000) as u64,
            1 => EDGES[random.under(EDGES.len())],
            _ => first,
        },
        count: match random.under(6) {
            0 => random.under(3_000) as u32,
            1 => EDGES[random.under(EDGES.len())] as u32,
            _ => count,
        },
        body,
        reduction: random.under(6) as u8,
        inputs: &inputs,
        parameters: &parameters,
    };
    call.frame()
}
