//! The language: what parses to which value, and what is refused at which byte.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use tidewater_expression::{
    Element, Evaluator, Kind, NESTING_MAX, OPERATIONS_MAX, Program, ProgramError, TEXT_BYTES_MAX,
};
use tidewater_protocol::table::DType;

/// Evaluates over one element at index 5.
fn value<T: Element>(text: &str, inputs: [T; 3], parameters: &[f64]) -> T {
    let program = Program::parse(text, T::DTYPE).unwrap_or_else(|e| panic!("{text}: {e}"));
    let mut evaluator = Evaluator::new(&program, parameters).unwrap();
    let mut out = [T::default()];
    let [x, y, z] = inputs;
    evaluator.map(&[&[x], &[y], &[z]], 5, &mut out);
    out[0]
}

#[test]
fn operators_bind_as_documented() {
    for (text, expected) in [
        ("2 + 3 * 4", 14.0),
        ("2 * 3 + 4", 10.0),
        ("8 - 3 - 2", 3.0),
        ("8 / 4 / 2", 1.0),
        ("2 ^ 3 ^ 2", 512.0),
        ("2 ^ 2 ^ 3", 256.0),
        ("-2 ^ 2", -4.0),
        ("-2 ^ 4", -16.0),
        ("(-2) ^ 2", 4.0),
        ("2 ^ -1", 0.5),
        ("2 ^ -x ^ 2", 1.0 / 512.0),
        ("- - x", 3.0),
        ("x - -1", 4.0),
        ("2 * -x", -6.0),
        ("-x * 2", -6.0),
        ("(2 + x) * 2", 10.0),
        ("x > 2 and y < 0 or 1 < 2", 1.0),
        ("x > 2 and (y < 0 or 1 > 2)", 0.0),
        ("not x > 5 and y == 4", 1.0),
        ("not (x > 2 or y > 2)", 0.0),
        ("x + 1 == y", 1.0),
        ("x != 3", 0.0),
        ("x >= 3 and x <= 3", 1.0),
        ("if(x < y, x, y)", 3.0),
        ("if(x < y, x > y, x < y)", 0.0),
        ("max(min(x, y), z)", 7.0),
        ("index * 2", 10.0),
        ("1e2 + .5 + 1. + 2.5E-1", 101.75),
        ("  x\t+\n y\r", 7.0),
        ("p0 * x + p2", 33.0),
        ("abs(-inf) == inf", 1.0),
        ("is_nan(nan)", 1.0),
        ("pow(x, 2)", 9.0),
    ] {
        let program = Program::parse(text, DType::F64).unwrap_or_else(|e| panic!("{text}: {e}"));
        let parameters = &[10.0, 2.0, 3.0][..program.parameters()];
        assert_eq!(value(text, [3.0, 4.0, 7.0], parameters), expected, "{text}");
    }
}

#[test]
fn integer_limits_can_be_written() {
    let none = [0; 3];
    assert_eq!(value("-9223372036854775808", none, &[]), i64::MIN);
    assert_eq!(value("9223372036854775807 + 1", none, &[]), i64::MIN);
    assert_eq!(
        value("9007199254740993", none, &[]),
        9_007_199_254_740_993_i64
    );
    assert_eq!(value("-2147483648", [0; 3], &[]), i32::MIN);
    assert_eq!(value("abs(-2147483648)", [0; 3], &[]), i32::MIN);
    assert_eq!(value("x ^ 2 - 1", [7_i32, 0, 0], &[]), 48);
}

#[test]
fn inputs_and_parameters_are_counted() {
    for (text, inputs, parameters) in [
        ("1", 0, 0),
        ("x", 1, 0),
        ("y", 2, 0),
        ("z + p3", 3, 4),
        ("p15", 0, 16),
        ("index", 0, 0),
    ] {
        let program = Program::parse(text, DType::F64).unwrap();
        assert_eq!(
            (program.inputs(), program.parameters()),
            (inputs, parameters),
            "{text}"
        );
    }
    let boolean = Program::parse("x > y", DType::I32).unwrap();
    assert_eq!(
        (boolean.kind(), boolean.dtype()),
        (Kind::Boolean, DType::I32)
    );
}

/// Text, byte of the error, and a part of its message.
const REFUSED: &[(DType, &str, usize, &str)] = &[
    (
        DType::F32,
        "",
        0,
        "expected a number, an input, a parameter, a function or `(`",
    ),
    (DType::F32, "  ", 2, "the end of the text"),
    (DType::F32, "x +", 3, "the end of the text"),
    (
        DType::F32,
        "x y",
        2,
        "expected an operator or the end of the text, found `y`",
    ),
    (
        DType::F32,
        "x(2)",
        1,
        "expected an operator or the end of the text, found `(`",
    ),
    (DType::F32, "(x + 1", 6, "expected an operator or `)`"),
    (DType::F32, "x)", 1, "found `)`"),
    (
        DType::F32,
        "x $ y",
        2,
        "expected a number, a name or an operator, found `$`",
    ),
    (DType::F32, "x + \u{b5}", 4, "found `\u{b5}`"),
    (DType::F32, "x = 1", 2, "found `=`"),
    (DType::F32, "x & y", 2, "found `&`"),
    (DType::F32, "+x", 0, "found `+`"),
    (DType::F32, "1 + foo", 4, "unknown name `foo`"),
    (DType::F32, "p16", 0, "unknown name `p16`"),
    (DType::F32, "p01", 0, "unknown name `p01`"),
    (DType::F32, "X", 0, "unknown name `X`"),
    (
        DType::F32,
        "2 + max",
        7,
        "expected `(` after the name of a function",
    ),
    (
        DType::F32,
        "2 + max(x)",
        4,
        "`max` takes 2 arguments, found 1",
    ),
    (DType::F32, "abs()", 0, "`abs` takes 1 arguments, found 0"),
    (DType::F32, "min(x, y, z)", 0, "takes 2 arguments, found 3"),
    (DType::F32, "max(x,)", 6, "found `)`"),
    (
        DType::F32,
        "max(x y)",
        6,
        "expected an operator, `,` or `)`, found `y`",
    ),
    (
        DType::F32,
        "x + (y > 1)",
        4,
        "expected a number, found a boolean",
    ),
    (
        DType::F32,
        "x < y < z",
        0,
        "expected a number, found a boolean",
    ),
    (
        DType::F32,
        "x > (y > z)",
        4,
        "expected a number, found a boolean",
    ),
    (
        DType::F32,
        "x > 1 and y",
        10,
        "expected a boolean, found a number",
    ),
    (DType::F32, "not x", 4, "expected a boolean, found a number"),
    (
        DType::F32,
        "-(x > 1)",
        1,
        "expected a number, found a boolean",
    ),
    (
        DType::F32,
        "(x > 1) ^ 2",
        0,
        "expected a number, found a boolean",
    ),
    (
        DType::F32,
        "if(x, y, z)",
        3,
        "expected a boolean, found a number",
    ),
    (
        DType::F32,
        "if(x > 1, y, z > 1)",
        13,
        "expected a number, found a boolean",
    ),
    (
        DType::F32,
        "abs(x > 1)",
        4,
        "expected a number, found a boolean",
    ),
    (DType::F32, "x + index", 4, "`index` is not exact in F32"),
    (DType::I32, "index", 0, "`index` is not exact in I32"),
    (
        DType::F32,
        "x * 1e39",
        4,
        "`1e39` is not a number that F32 can hold",
    ),
    (
        DType::F64,
        "1e309",
        0,
        "`1e309` is not a number that F64 can hold",
    ),
    (DType::F32, ".", 0, "`.` is not a number"),
    (DType::F32, "1e", 1, "found `e`"),
    (
        DType::I64,
        "1.5",
        0,
        "`1.5` is not a number that I64 can hold",
    ),
    (
        DType::I64,
        "x + 9223372036854775808",
        4,
        "is not a number that I64 can hold",
    ),
    (
        DType::I64,
        "- -9223372036854775809",
        2,
        "`-9223372036854775809` is not a number",
    ),
    (
        DType::I32,
        "2147483648",
        0,
        "is not a number that I32 can hold",
    ),
    (DType::I32, "x / 2", 2, "`/` is not defined for I32"),
    (DType::I64, "x ^ 3", 2, "`pow` is not defined for I64"),
    (
        DType::I64,
        "x + sqrt(x)",
        4,
        "`sqrt` is not defined for I64",
    ),
    (
        DType::I32,
        "is_nan(x)",
        0,
        "`is_nan` is not defined for I32",
    ),
    (DType::I32, "x < inf", 4, "`inf` is not defined for I32"),
];

#[test]
fn wrong_texts_are_refused_with_position() {
    for &(dtype, text, position, message) in REFUSED {
        let error = Program::parse(text, dtype).unwrap_err();
        assert_eq!(error.position(), position, "{text}: {error}");
        assert!(error.to_string().contains(message), "{text}: {error}");
    }
}

#[test]
fn limits_refuse_with_position() {
    let parse = |text: &str| Program::parse(text, DType::F32);
    let nested = |depth| format!("{}x{}", "(".repeat(depth), ")".repeat(depth));
    assert!(parse(&nested(NESTING_MAX)).is_ok());
    let error = parse(&nested(NESTING_MAX + 1)).unwrap_err();
    assert_eq!(error.position(), NESTING_MAX, "{error}");
    // Each level of nesting descends through every strength of operators.
    let level = "x>x or x>x and x>x*-(1+x*x^";
    let deep = level.repeat(2000 / level.len()) + "x";
    assert!(parse(&deep).is_err());
    let deepest = |opening: &str| parse(&opening.repeat(TEXT_BYTES_MAX / opening.len())).is_err();
    assert!(
        ["(", "-", "not ", "abs(", "x^", "if(x>", "x+x*("]
            .into_iter()
            .all(deepest)
    );

    let sum = |operations: usize| {
        (0..operations).fold("x".to_owned(), |text, i| {
            format!("{text}{}{}", ["+", "*"][i % 2], i / 2)
        })
    };
    let constants =
        |count: usize| (0..count).fold("x".to_owned(), |text, i| format!("max({text},{i})"));
    assert!(parse(&sum(OPERATIONS_MAX)).is_ok());
    assert!(parse(&constants(NESTING_MAX)).is_ok());
    let error = parse(&sum(OPERATIONS_MAX + 1)).unwrap_err();
    assert!(
        error.to_string().contains("more than 256 operations"),
        "{error}"
    );
    let numbers: Vec<String> = (0..=256).map(|number| number.to_string()).collect();
    let error = parse(&numbers.join("+")).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("more than 256 different numbers"),
        "{error}"
    );
    assert!(parse(&numbers[1..].join("+")).is_ok());

    let long = format!("{}x", " ".repeat(TEXT_BYTES_MAX));
    assert_eq!(parse(&long).unwrap_err().position(), TEXT_BYTES_MAX);
    assert!(parse(&long[1..]).is_ok());
}

#[test]
fn equal_subexpressions_are_computed_once() {
    let size = |text: &str| {
        let mut bytes = Vec::new();
        Program::parse(text, DType::F32).unwrap().encode(&mut bytes);
        bytes.len()
    };
    assert_eq!(size("(x - y) * (x - y)"), size("(x - y) * x"));
    assert_eq!(size("x > 2 and 2 < x"), size("x > 2 and x > 2"));
}

#[test]
fn wrong_parameters_are_refused() {
    let new = |text: &str, parameters: &[f64]| {
        let program = Program::parse(text, DType::I32).unwrap();
        Evaluator::<i32>::new(&program, parameters).map(drop)
    };
    assert_eq!(
        new("p1", &[1.0]),
        Err(ProgramError::ParameterCount {
            needed: 2,
            given: 1
        })
    );
    assert!(new("p0", &[1.0, 2.0]).is_err());
    for value in [
        0.5,
        2_147_483_648.0,
        -2_147_483_649.0,
        f64::NAN,
        f64::INFINITY,
    ] {
        assert!(new("p0", &[value]).is_err(), "{value}");
    }
    assert_eq!(new("p0", &[-2_147_483_648.0]), Ok(()));
    let program = Program::parse("p0", DType::F32).unwrap();
    assert!(Evaluator::<f32>::new(&program, &[1e39]).is_err());
    assert!(Evaluator::<f32>::new(&program, &[f64::INFINITY]).is_ok());
    assert_eq!(
        Evaluator::<f64>::new(&program, &[1.0]).map(drop),
        Err(ProgramError::WrongDType {
            program: DType::F32,
            elements: DType::F64
        })
    );
    let program = Program::parse("p0", DType::I64).unwrap();
    assert!(Evaluator::<i64>::new(&program, &[9_223_372_036_854_775_808.0]).is_err());
    assert!(Evaluator::<i64>::new(&program, &[-9_223_372_036_854_775_808.0]).is_ok());
}

#[test]
fn indices_wrap_after_the_last() {
    let program = Program::parse("index", DType::I64).unwrap();
    let mut evaluator = Evaluator::<i64>::new(&program, &[]).unwrap();
    let mut out = [7; 3];
    evaluator.map(&[], u64::MAX - 1, &mut out);
    assert_eq!(out, [-2, -1, 0]);
}

#[test]
fn signs_of_zero_and_nan() {
    let of = |text: &str, x: f32| value(text, [x, 0.0, 0.0], &[]).to_bits();
    assert_eq!(of("sign(x)", -0.0), 0.0_f32.to_bits());
    assert_eq!(of("signum(x)", -0.0), (-1.0_f32).to_bits());
    assert_eq!(of("signum(x)", 0.0), 1.0_f32.to_bits());
    assert_eq!(of("min(x, 0)", -0.0), (-0.0_f32).to_bits());
    assert_eq!(of("max(0, x)", -0.0), 0.0_f32.to_bits());
    assert_eq!(of("copysign(2, x)", -f32::NAN), 2.0_f32.to_bits());
    for text in [
        "x",
        "-x",
        "sign(x)",
        "signum(x)",
        "min(x, 1)",
        "max(1, x)",
        "nan",
        "sqrt(-1)",
    ] {
        assert_eq!(of(text, -f32::NAN), 0x7fc0_0000, "{text}");
    }
}
