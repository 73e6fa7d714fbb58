//! Modules as functions: their results, their limits, and what is no module.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, reason = "a test says what it saw")]

use tidewater_functions::{
    Elements, ElementsMut, FunctionFailure, NOT_PROVIDED, Piece, ServerFunction,
};
use tidewater_protocol::layout::function::{FunctionProblem, FunctionTrap};
use tidewater_wasm::{Limits, ModuleError, Modules, WasmFunction};

/// Limits that are reached soon.
const LIMITS: Limits = Limits {
    fuel: 1_000_000,
    memory_bytes: 4 << 20,
    table_elements: 100,
    module_bytes: 64 << 10,
};

fn modules() -> Modules {
    Modules::new(LIMITS).unwrap()
}

fn binary(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap()
}

fn compile(text: &str) -> Result<WasmFunction, ModuleError> {
    modules().compile(&binary(text))
}

/// A module with a page of memory, and the body of its update.
fn update_of(body: &str) -> String {
    format!(
        r#"(module (memory (export "memory") 1) (table 1 funcref) (type $none (func))
            (func $deep (call $deep))
            (func (export "update") (param $call i32) (result i64) {body}))"#
    )
}

fn piece<'a>(inputs: &'a [Elements<'a>]) -> Piece<'a> {
    Piece {
        first_index: 1 << 40,
        dim: 3,
        keys: &[7, u64::MAX],
        inputs,
    }
}

/// Runs an update; the elements that it leaves.
fn updated(function: &WasmFunction, values: &[f64]) -> Result<Vec<f64>, FunctionFailure> {
    let mut values = values.to_vec();
    function.update(&[], &piece(&[]), ElementsMut::F64(&mut values), &mut || ())?;
    Ok(values)
}

/// The failure of an update. Its elements stay as they are.
fn failed(function: &WasmFunction) -> (FunctionProblem, u64) {
    let mut values = [1.5, -2.5];
    let failure = function.update(&[], &piece(&[]), ElementsMut::F64(&mut values), &mut || ());
    assert_eq!(values, [1.5, -2.5]);
    let FunctionFailure { problem, number } = failure.unwrap_err();
    (problem, number)
}

/// A module reads every part of a call at its place in the record.
#[test]
fn record_holds_the_call() {
    let copy = compile(
        r#"(module (memory (export "memory") 1)
            (func (export "reduce") (param $call i32) (result i64)
                (local $to i32)
                (local.set $to (i32.load offset=48 (local.get $call)))
                ;; the record, the target, the keys, the arguments, the inputs
                (memory.copy (local.get $to) (local.get $call) (i32.const 56))
                (memory.copy (i32.add (local.get $to) (i32.const 56))
                    (i32.load offset=16 (local.get $call)) (i32.const 24))
                (memory.copy (i32.add (local.get $to) (i32.const 80))
                    (i32.load offset=24 (local.get $call)) (i32.const 16))
                (memory.copy (i32.add (local.get $to) (i32.const 96))
                    (i32.load offset=32 (local.get $call)) (i32.const 3))
                (memory.copy (i32.add (local.get $to) (i32.const 99))
                    (i32.load (i32.load offset=40 (local.get $call))) (i32.const 4))
                (memory.copy (i32.add (local.get $to) (i32.const 103))
                    (i32.load offset=8 (i32.load offset=40 (local.get $call))) (i32.const 8))
                (i32.store offset=111 (local.get $to)
                    (i32.load offset=12 (i32.load offset=40 (local.get $call))))
                (i64.const 115)))"#,
    )
    .unwrap();
    let inputs = [Elements::I32(&[77]), Elements::I32(&[1, -2])];
    let target = [0.5, -1.0, 3.0];
    let mut result = vec![9];
    copy.reduce(
        b"abc",
        &piece(&inputs),
        Elements::F64(&target),
        &mut result,
        &mut || (),
    )
    .unwrap();
    assert_eq!((result.len(), result[0]), (116, 9), "appended");
    let result = &result[1..];
    let word = |at: usize| u32::from_le_bytes(*result[at..].first_chunk().unwrap());
    assert_eq!(result[..8], (1_u64 << 40).to_le_bytes());
    let numbers = [8, 12, 20, 28, 36, 44, 52].map(word);
    assert_eq!(numbers, [2, 3, 3, 2, 3, 2, 65_536]);
    for address in [16, 24, 32, 40, 48].map(word) {
        assert!(address >= 65_536 && address.is_multiple_of(16), "{address}");
    }
    let floats = target.map(f64::to_le_bytes).concat();
    assert_eq!(result[56..80], floats);
    assert_eq!(
        result[80..96],
        [7_u64, u64::MAX].map(u64::to_le_bytes).concat()
    );
    assert_eq!(result[96..99], *b"abc");
    assert_eq!(result[99..103], 77_i32.to_le_bytes());
    assert_eq!(result[103..111], [1_i32, -2].map(i32::to_le_bytes).concat());
    assert_eq!(word(111), 2);
}

/// The example: bits of the same computation here; refusals with the numbers of the module.
#[test]
fn example_matches_local_computation() {
    let axpy = compile(include_str!("../examples/axpy.wat")).unwrap();
    let x: Vec<f64> = (0..1_000).map(|n| f64::from(n).sqrt() - 7.0).collect();
    let mut y: Vec<f64> = (0..1_000).map(|n| f64::from(n) / 3.0).collect();
    let expected: Vec<f64> = x.iter().zip(&y).map(|(x, y)| 0.1 * x + y).collect();
    let (a, inputs) = (0.1_f64.to_le_bytes(), [Elements::F64(&x)]);
    axpy.update(&a, &piece(&inputs), ElementsMut::F64(&mut y), &mut || ())
        .unwrap();
    assert_eq!(y, expected);
    let mut sum = Vec::new();
    axpy.reduce(&[], &piece(&[]), Elements::F64(&y), &mut sum, &mut || ())
        .unwrap();
    let expected: f64 = y.iter().fold(0.0, |sum, y| sum + y);
    assert_eq!(sum, expected.to_le_bytes());
    let refused = |number| {
        Err(FunctionFailure {
            problem: FunctionProblem::Refused,
            number,
        })
    };
    let short = axpy.update(
        &a[1..],
        &piece(&inputs),
        ElementsMut::F64(&mut y),
        &mut || (),
    );
    assert_eq!(short, refused(1));
    let integers = axpy.reduce(&[], &piece(&[]), Elements::I64(&[1]), &mut sum, &mut || ());
    assert_eq!(integers, refused(2));
    let none = compile(&update_of("(i64.const 0)")).unwrap();
    let reduced = none.reduce(&[], &piece(&[]), Elements::F64(&[]), &mut sum, &mut || ());
    assert_eq!(reduced, refused(NOT_PROVIDED));
}

/// Each way of a module to fail is a problem of its own with a number, and changes nothing.
#[test]
fn defects_are_failures_with_numbers() {
    use FunctionProblem::{OutOfFuel, OutOfMemory, Refused, Trapped};
    let written = "(f64.store (i32.load offset=16 (local.get $call)) (f64.const 9))";
    let trap = |trap: FunctionTrap| (Trapped, trap as u64);
    let cases = [
        ("(loop $l (br $l)) (i64.const 0)", (OutOfFuel, LIMITS.fuel)),
        ("(i64.const 5)", (Refused, 5)),
        ("(i64.const -1)", (Refused, u64::MAX)),
        ("unreachable", trap(FunctionTrap::Unreachable)),
        (
            "(i64.load (i32.const -9))",
            trap(FunctionTrap::MemoryOutOfBounds),
        ),
        (
            "(call_indirect (type $none) (i32.const 0)) (i64.const 0)",
            trap(FunctionTrap::NullCall),
        ),
        (
            "(call_indirect (type $none) (i32.const 1)) (i64.const 0)",
            trap(FunctionTrap::TableOutOfBounds),
        ),
        (
            "(i64.div_u (i64.const 1) (i64.const 0))",
            trap(FunctionTrap::DivisionByZero),
        ),
        (
            "(i64.trunc_f64_s (f64.const 1e300))",
            trap(FunctionTrap::Overflow),
        ),
        (
            "(call $deep) (i64.const 0)",
            trap(FunctionTrap::StackOverflow),
        ),
        (
            "(drop (memory.grow (i32.const 100))) (i64.const 0)",
            (OutOfMemory, LIMITS.memory_bytes as u64),
        ),
        (
            "(drop (table.grow 0 (ref.null func) (i32.const 100))) (i64.const 0)",
            trap(FunctionTrap::TableOutOfBounds),
        ),
    ];
    for (body, expected) in cases {
        let function = compile(&update_of(&format!("{written} {body}"))).unwrap();
        assert_eq!(failed(&function), expected, "{body}");
        assert_eq!(failed(&function), expected, "{body}, again");
    }
    // A piece that does not fit behind what the module has.
    let wide = r#"(module (memory (export "memory") 64)
        (func (export "update") (param i32) (result i64) (i64.const 0)))"#;
    let memory = (OutOfMemory, LIMITS.memory_bytes as u64);
    assert_eq!(failed(&compile(wide).unwrap()), memory);
    let narrow = wide.replace("64)\n", "1 1)\n");
    assert_ne!(narrow, wide);
    assert_eq!(failed(&compile(&narrow).unwrap()), (OutOfMemory, 65_536));
}

/// Work that one instruction does takes fuel for its size: a few of them are over the limit.
#[test]
fn bulk_instructions_take_fuel() {
    for (instruction, times) in [
        (
            "(memory.fill (i32.const 0) (i32.const 1) (i32.const 65536))",
            16,
        ),
        (
            "(memory.copy (i32.const 0) (i32.const 8) (i32.const 65528))",
            16,
        ),
        ("(drop (memory.grow (i32.const 0)))", 4_000),
        ("(drop (table.grow 0 (ref.null func) (i32.const 0)))", 4_000),
    ] {
        let run = |times: u32| {
            let body = format!(
                "(local $n i32) (loop $l {instruction}
                    (local.set $n (i32.add (local.get $n) (i32.const 1)))
                    (br_if $l (i32.lt_u (local.get $n) (i32.const {times}))))
                (i64.const 0)"
            );
            updated(&compile(&update_of(&body)).unwrap(), &[1.0])
        };
        let out_of_fuel = FunctionFailure {
            problem: FunctionProblem::OutOfFuel,
            number: LIMITS.fuel,
        };
        assert_eq!(run(times), Err(out_of_fuel), "{instruction}");
        assert_eq!(run(times / 2), Ok(vec![1.0]), "{instruction}");
    }
}

/// The length of a result is checked before it is read.
#[test]
fn wrong_lengths_are_refused() {
    for (returned, expected) in [
        ("65536", Ok(65_536)),
        ("65537", Err((FunctionProblem::WrongResult, 65_537))),
        (
            "0x7fffffffffffffff",
            Err((FunctionProblem::WrongResult, i64::MAX as u64)),
        ),
        ("-3", Err((FunctionProblem::Refused, 3))),
    ] {
        let reduce = compile(&format!(
            r#"(module (memory (export "memory") 1)
                (func (export "reduce") (param i32) (result i64) (i64.const {returned})))"#
        ))
        .unwrap();
        let mut result = Vec::new();
        let reduced = reduce.reduce(
            &[],
            &piece(&[]),
            Elements::F32(&[]),
            &mut result,
            &mut || (),
        );
        let reduced = reduced.map(|()| result.len());
        assert_eq!(
            reduced.map_err(|f| (f.problem, f.number)),
            expected,
            "{returned}"
        );
    }
}

/// NaNs of computations have one pattern of bits, whatever the processor makes of them.
#[test]
fn computed_nan_is_canonical() {
    let nan = "(f64.store (i32.load offset=16 (local.get $call))
            (f64.div (f64.const 0) (f64.load offset=8 (i32.load offset=16 (local.get $call)))))
        (i64.const 0)";
    let function = compile(&update_of(nan)).unwrap();
    for zero in [0.0, -0.0, -f64::NAN, f64::from_bits(0x7ff0_0000_0000_0001)] {
        let values = updated(&function, &[1.0, zero]).unwrap();
        assert_eq!(values[0].to_bits(), 0x7ff8_0000_0000_0000, "{zero}");
    }
}

/// A call sees nothing that an earlier one has left: memory, globals and tables are new.
#[test]
fn calls_share_no_state() {
    let count = compile(
        r#"(module (memory (export "memory") 1) (global $n (mut i64) (i64.const 0))
            (func (export "update") (param $call i32) (result i64)
                (global.set $n (i64.add (global.get $n) (i64.const 1)))
                (i64.store (i32.const 8) (i64.add (i64.load (i32.const 8)) (i64.const 1)))
                (f64.store (i32.load offset=16 (local.get $call)) (f64.convert_i64_u
                    (i64.add (global.get $n) (i64.load (i32.const 8)))))
                (i64.const 0)))"#,
    )
    .unwrap();
    for _ in 0..3 {
        assert_eq!(updated(&count, &[0.0]), Ok(vec![2.0]));
    }
}

/// What is no module of a function is refused by name when it is loaded.
#[test]
fn unsuitable_modules_are_refused() {
    let update = r#"(func (export "update") (param i32) (result i64) (i64.const 0))"#;
    let memory = r#"(memory (export "memory") 1)"#;
    let cases = [
        (
            format!(r#"(module (import "env" "clock" (func (result i64))) {memory} {update})"#),
            r#""env" "clock""#,
        ),
        (format!("(module {update})"), "no memory"),
        (format!("(module {memory})"), "\"update\" or \"reduce\""),
        (
            format!(r#"(module {memory} (func (export "update") (result i64) (i64.const 0)))"#),
            "\"update\"",
        ),
        (
            format!(r#"(module {memory} (global (export "reduce") i32 (i32.const 0)) {update})"#),
            "\"reduce\"",
        ),
        (
            format!(r#"(module (memory (export "memory") 65) {update})"#),
            "OutOfMemory",
        ),
        (
            format!("(module {memory} (table 101 funcref) {update})"),
            "Trapped",
        ),
        (
            format!("(module {memory} (func $s (loop $l (br $l))) (start $s) {update})"),
            "OutOfFuel",
        ),
        (
            format!(r#"(module (memory (export "memory") i64 1) {update})"#),
            "not valid",
        ),
        (
            format!(r#"(module (memory (export "memory") 1 2 shared) {update})"#),
            "not valid",
        ),
    ];
    for (text, expected) in cases {
        let refused = compile(&text).unwrap_err().to_string();
        assert!(refused.contains(expected), "{text}: {refused}");
    }
    let long = modules().compile(&vec![0; (64 << 10) + 1]).unwrap_err();
    assert!(long.to_string().contains("65537 bytes"), "{long}");
    for garbage in [&b""[..], b"\0asm", b"(module)", &[0xff; 100]] {
        let refused = modules().compile(garbage).unwrap_err().to_string();
        assert!(refused.contains("not valid"), "{refused}");
    }
}

/// Any bytes in place of a module are refused, or are a module that keeps to its limits.
#[test]
fn damaged_modules_never_panic() {
    let whole = binary(include_str!("../examples/axpy.wat"));
    let modules = modules();
    let mut state = 1_u64;
    let mut below = |bound: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize % bound
    };
    let (mut refused, mut ran, mut failed) = (0, 0, 0);
    for _ in 0..200 {
        let mut module = whole.clone();
        let at = below(module.len());
        match below(16) {
            0 => module.truncate(at),
            1 => module.insert(at, below(256) as u8),
            2..6 => module[at] = below(256) as u8,
            _ => module[at] ^= 1 << below(8),
        }
        let Ok(function) = modules.compile(&module) else {
            refused += 1;
            continue;
        };
        let (inputs, a) = ([Elements::F64(&[1.0, 2.0])], 2.0_f64.to_le_bytes());
        let mut values = [3.0, 4.0];
        let updated = function.update(
            &a,
            &piece(&inputs),
            ElementsMut::F64(&mut values),
            &mut || (),
        );
        let mut result = Vec::new();
        let reduced = function.reduce(
            &a,
            &piece(&inputs),
            Elements::F64(&values),
            &mut result,
            &mut || (),
        );
        match updated.is_ok() && reduced.is_ok() {
            true => ran += 1,
            false => failed += 1,
        }
    }
    println!("of 200 damaged modules {refused} were refused, {failed} failed, {ran} ran");
    assert!(refused > 50 && failed > 2 && ran > 10);
}
