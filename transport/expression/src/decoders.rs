//! Every decoder of bytes from outside, by name. The fuzzers (`transport/expression/tests/fuzz.rs`, `fuzz/`)
//! run exactly this list.
//!
//! An entry takes any bytes. It must return, without a panic and without holding more memory than the
//! decoder's limit. Add new entries at the end: a corpus file of the `fuzz/` crate names its entry by
//! position.

use tidewater_protocol::layout::decoders::Decode;
use tidewater_protocol::table::DType;

use crate::{Element, Evaluator, Partial, Program, Reduction};

/// Name and function of each decoder.
pub const DECODERS: &[(&str, Decode)] = &[
    ("expression-program", program),
    ("expression-text", text),
    ("expression-partial", partial),
];

/// Elements over which a decoded program runs: more than the lanes of a reduction.
const ELEMENTS: usize = 37;

/// A program, which then runs over a few elements.
fn program(bytes: &[u8]) {
    if let Ok(program) = Program::decode(bytes) {
        let mut encoded = Vec::new();
        program.encode(&mut encoded);
        assert_eq!(encoded, bytes, "a decoded program has another encoding");
        run(&program);
    }
}

/// The text of an expression, for the element type of the first byte.
fn text(bytes: &[u8]) {
    let Some((&code, text)) = bytes.split_first() else {
        return;
    };
    let dtype = DType::from_code(code % 4 + 1).unwrap_or(DType::F32);
    let text = String::from_utf8_lossy(text);
    match Program::parse(&text, dtype) {
        Ok(program) => {
            let mut encoded = Vec::new();
            program.encode(&mut encoded);
            assert_eq!(Program::decode(&encoded).as_ref(), Ok(&program), "{text}");
            run(&program);
        }
        Err(error) => assert!(error.position() <= text.len(), "{text}: {error}"),
    }
}

/// A partial result, for the reduction and element type of the first byte.
fn partial(bytes: &[u8]) {
    let Some((&code, bytes)) = bytes.split_first() else {
        return;
    };
    let reduction = Reduction::from_code(code % 4 + 1).unwrap_or(Reduction::Sum);
    let dtype = DType::from_code(code / 4 % 4 + 1).unwrap_or(DType::F32);
    if let Ok(decoded) = Partial::decode(bytes, reduction, dtype) {
        let encoded = decoded.encode();
        let again = Partial::decode(&encoded, reduction, dtype).map(|again| again.encode());
        assert_eq!(again, Ok(encoded), "another encoding of {decoded:?}");
        let mut twice = decoded.clone();
        twice.combine(&decoded);
        assert!(
            twice.value().is_some() || !dtype.is_float() || decoded.value().is_none(),
            "{decoded:?} combined with itself has no value"
        );
    }
}

fn run(program: &Program) {
    match program.dtype() {
        DType::F32 => run_over::<f32>(program),
        DType::F64 => run_over::<f64>(program),
        DType::I32 => run_over::<i32>(program),
        DType::I64 => run_over::<i64>(program),
    }
}

fn run_over<T: Element>(program: &Program) {
    let parameters: Vec<f64> = (0..program.parameters()).map(|p| p as f64 - 3.0).collect();
    let Ok(mut evaluator) = Evaluator::<T>::new(program, &parameters) else {
        return;
    };
    let input = [T::default(); ELEMENTS];
    let mut out = input;
    evaluator.map(&[&input, &input, &input], 1 << 40, &mut out);
    for reduction in Reduction::ALL {
        let mut partial = Partial::empty(reduction, program.dtype());
        evaluator.reduce(&[&out, &out, &input], 7, ELEMENTS, reduction, &mut partial);
        assert!(
            partial.value().is_some() || partial.exact_sum().is_some(),
            "{reduction:?} of {ELEMENTS} elements has no value"
        );
    }
}
