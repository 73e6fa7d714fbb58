//! Arithmetic of one element, written without the crate: the standard library, and case by case.

use std::fmt::Debug;

use proptest::prelude::*;
use tidewater_expression::Element;

/// Element type of the oracle.
pub(crate) trait Number: Element + PartialOrd + Debug {
    /// Whether the type is floating point.
    const FLOAT: bool;
    /// Whether programs of the type read `index`.
    const HAS_INDEX: bool;
    /// Numbers as a program writes them.
    const LITERALS: &'static [&'static str];
    /// Unary operations with a number as result.
    const UNARY: &'static [&'static str];
    /// Binary operations with a number as result, besides sum, difference and product.
    const BINARY: &'static [&'static str];

    fn of_text(text: &str) -> Self;
    fn of_index(index: u64) -> Self;
    fn of_parameter(value: f64) -> Self;
    fn of_truth(truth: bool) -> Self;
    fn unary(name: &str, a: Self) -> Self;
    fn binary(name: &str, a: Self, b: Self) -> Self;
    fn is_nan(self) -> bool;
    /// Bits as outputs have them.
    fn canonical_bits(self) -> u64;
    fn bits(self) -> u64;
    /// Elements of every class of numbers.
    fn elements() -> BoxedStrategy<Self>;
    /// Parameters that the type holds.
    fn parameter_values() -> BoxedStrategy<f64>;
    /// Sum of one call as documented: the value in `f64` for floats.
    fn sum(values: &[Self]) -> Sum;
}

/// Sum of one call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Sum {
    Float(f64),
    Integer(i128),
}

/// Adds with compensation in Neumaier's form.
fn neumaier(sum: &mut f64, value: f64) -> f64 {
    let rounded = *sum + value;
    let lost = if sum.abs() >= value.abs() {
        (*sum - rounded) + value
    } else {
        (value - rounded) + *sum
    };
    *sum = rounded;
    lost
}

/// Adds lanes in order.
fn of_lanes(lanes: &[(f64, f64)]) -> Sum {
    let (mut high, mut low) = (0.0, 0.0);
    for &(sum, error) in lanes {
        let lost = neumaier(&mut high, sum);
        low += lost + error;
    }
    Sum::Float(if high.is_finite() { high + low } else { high })
}

macro_rules! float {
    ($type:ident, $index:expr, $nan:expr, $sum:ident,
     $exp:path, $expm1:path, $log:path, $log1p:path, $log10:path, $pow:path) => {
        impl Number for $type {
            const FLOAT: bool = true;
            const HAS_INDEX: bool = $index;
            const LITERALS: &'static [&'static str] = &[
                "0", "1", "-1", "2", "0.1", ".5", "3.", "-2.5e-3", "1e30", "-0", "1e-40", "16777217",
                "9007199254740993", "inf", "nan", "-0.0",
            ];
            const UNARY: &'static [&'static str] = &[
                "-", "abs", "sign", "signum", "sqrt", "exp", "expm1", "log", "log1p", "log10",
                "floor", "ceil", "round", "trunc",
            ];
            const BINARY: &'static [&'static str] =
                &["/", "^", "pow", "min", "max", "copysign"];

            fn of_text(text: &str) -> Self {
                text.parse().unwrap()
            }

            fn of_index(index: u64) -> Self {
                index as Self
            }

            fn of_parameter(value: f64) -> Self {
                value as Self
            }

            fn of_truth(truth: bool) -> Self {
                u8::from(truth).into()
            }

            fn unary(name: &str, a: Self) -> Self {
                match name {
                    "-" if a.is_sign_negative() => a.abs(),
                    "-" => a.copysign(-1.0),
                    "abs" => a.abs(),
                    "sign" if a > 0.0 => 1.0,
                    "sign" if a < 0.0 => -1.0,
                    "sign" if a == 0.0 => 0.0,
                    "sign" => a,
                    "signum" => a.signum(),
                    "sqrt" => a.sqrt(),
                    "exp" => $exp(a),
                    "expm1" => $expm1(a),
                    "log" => $log(a),
                    "log1p" => $log1p(a),
                    "log10" => $log10(a),
                    "floor" => a.floor(),
                    "ceil" => a.ceil(),
                    "round" => a.round(),
                    "trunc" => a.trunc(),
                    _ => panic!("no operation {name}"),
                }
            }

            fn binary(name: &str, a: Self, b: Self) -> Self {
                match name {
                    "+" => a + b,
                    "-" => a - b,
                    "*" => a * b,
                    "/" => a / b,
                    "^" | "pow" => $pow(a, b),
                    "min" | "max" if a.is_nan() || b.is_nan() => Self::NAN,
                    // The order of the bits, in which -0 is less than +0.
                    "min" => if a.total_cmp(&b).is_lt() { a } else { b },
                    "max" => if a.total_cmp(&b).is_gt() { a } else { b },
                    "copysign" if b.is_nan() => a.abs(),
                    "copysign" => a.copysign(b),
                    _ => panic!("no operation {name}"),
                }
            }

            fn is_nan(self) -> bool {
                self.is_nan()
            }

            fn canonical_bits(self) -> u64 {
                if self.is_nan() { $nan } else { self.bits() }
            }

            fn bits(self) -> u64 {
                self.to_bits().into()
            }

            fn elements() -> BoxedStrategy<Self> {
                prop_oneof![
                    4 => proptest::num::$type::ANY,
                    2 => (-64_i8..64).prop_map(|n| Self::from(n) / 4.0),
                    2 => proptest::sample::select(vec![
                        0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, Self::NAN, -Self::NAN,
                        Self::INFINITY, Self::NEG_INFINITY, Self::MIN_POSITIVE, Self::MIN_POSITIVE / 4.0,
                        -Self::from_bits(1), Self::MAX, Self::MIN, Self::EPSILON, 0.5 / Self::EPSILON, 0.5 / Self::EPSILON - 0.5, 1.0 / Self::EPSILON, 1.0 / Self::EPSILON - 1.0, 1.5, 0.5 - Self::EPSILON / 4.0,
                    ]),
                ]
                .boxed()
            }

            fn parameter_values() -> BoxedStrategy<f64> {
                prop_oneof![
                    -1e6_f64..1e6,
                    proptest::sample::select(vec![
                        0.0, -0.0, 1.0, -1.0, 0.1, 1e-300, f64::NAN, f64::INFINITY, -3e38
                    ]),
                ]
                .boxed()
            }

            fn sum(values: &[Self]) -> Sum {
                $sum(values)
            }
        }
    };
}

fn sum_f32(values: &[f32]) -> Sum {
    let mut lanes = [(0.0, 0.0); 16];
    for (i, &value) in values.iter().enumerate() {
        lanes[i % 16].0 += f64::from(value);
    }
    of_lanes(&lanes)
}

fn sum_f64(values: &[f64]) -> Sum {
    let mut lanes = [(0.0, 0.0); 8];
    for (i, &value) in values.iter().enumerate() {
        let (sum, error) = &mut lanes[i % 8];
        *error += neumaier(sum, value);
    }
    of_lanes(&lanes)
}

float!(
    f32,
    false,
    0x7fc0_0000,
    sum_f32,
    libm::expf,
    libm::expm1f,
    libm::logf,
    libm::log1pf,
    libm::log10f,
    libm::powf
);
float!(
    f64,
    true,
    0x7ff8_0000_0000_0000,
    sum_f64,
    libm::exp,
    libm::expm1,
    libm::log,
    libm::log1p,
    libm::log10,
    libm::pow
);

macro_rules! integer {
    ($type:ident, $index:expr, $literals:expr) => {
        impl Number for $type {
            const FLOAT: bool = false;
            const HAS_INDEX: bool = $index;
            const LITERALS: &'static [&'static str] = $literals;
            const UNARY: &'static [&'static str] = &["-", "abs", "sign"];
            const BINARY: &'static [&'static str] = &["min", "max"];

            fn of_text(text: &str) -> Self {
                text.parse().unwrap()
            }

            fn of_index(index: u64) -> Self {
                index as Self
            }

            fn of_parameter(value: f64) -> Self {
                value as Self
            }

            fn of_truth(truth: bool) -> Self {
                truth.into()
            }

            fn unary(name: &str, a: Self) -> Self {
                let a = i128::from(a);
                (match name {
                    "-" => -a,
                    "abs" if a < 0 => -a,
                    "abs" => a,
                    "sign" => i128::from(a > 0) - i128::from(a < 0),
                    _ => panic!("no operation {name}"),
                }) as Self
            }

            fn binary(name: &str, a: Self, b: Self) -> Self {
                let (a, b) = (i128::from(a), i128::from(b));
                (match name {
                    "+" => a + b,
                    "-" => a - b,
                    "*" => a * b,
                    "min" => {
                        if a < b {
                            a
                        } else {
                            b
                        }
                    }
                    "max" => {
                        if a > b {
                            a
                        } else {
                            b
                        }
                    }
                    _ => panic!("no operation {name}"),
                }) as Self
            }

            fn is_nan(self) -> bool {
                false
            }

            fn canonical_bits(self) -> u64 {
                self.bits()
            }

            fn bits(self) -> u64 {
                self as u64
            }

            fn elements() -> BoxedStrategy<Self> {
                prop_oneof![
                    any::<Self>(),
                    -8..8 as Self,
                    proptest::sample::select(vec![Self::MIN, Self::MIN + 1, Self::MAX, 0, 1, -1]),
                ]
                .boxed()
            }

            fn parameter_values() -> BoxedStrategy<f64> {
                prop_oneof![
                    (-1000_i32..1000).prop_map(f64::from),
                    Just(Self::MIN as f64),
                    Just(f64::from(i32::MAX)),
                ]
                .boxed()
            }

            fn sum(values: &[Self]) -> Sum {
                Sum::Integer(values.iter().copied().map(i128::from).sum())
            }
        }
    };
}

integer!(
    i32,
    false,
    &["0", "1", "-1", "7", "2147483647", "-2147483648"]
);
integer!(
    i64,
    true,
    &[
        "0",
        "1",
        "-1",
        "7",
        "9007199254740993",
        "9223372036854775807",
        "-9223372036854775808"
    ]
);
