//! Small typed expressions that a client sends to servers: functions at the data.
//!
//! A client parses a text such as `max(x * 2 - y, 0)` into a [`Program`] and encodes it. A server decodes and
//! validates it, and an [`Evaluator`] computes it over slices of a table: element by element
//! ([`Evaluator::map`]) or reduced to one value ([`Evaluator::reduce`]).
//!
//! # Grammar
//!
//! Later lines bind tighter. Binary operators group to the left, `^` to the right.
//!
//! ```text
//! expression = expression "or" expression
//!            | expression "and" expression
//!            | "not" expression
//!            | expression ("<" | "<=" | ">" | ">=" | "==" | "!=") expression
//!            | expression ("+" | "-") expression
//!            | expression ("*" | "/") expression
//!            | "-" expression
//!            | expression "^" expression                  a ^ -b is allowed; -a ^ b is -(a ^ b)
//!            | "(" expression ")" | function "(" expression { "," expression } ")"
//!            | number | "inf" | "nan" | "x" | "y" | "z" | "index" | "p0" ... "p15"
//! number     = digits [ "." [ digits ] ] [ ("e" | "E") [ "+" | "-" ] digits ] | "." digits ...
//! ```
//!
//! | function | value |
//! |---|---|
//! | `if(c, a, b)` | a where c is true, else b; both are computed |
//! | `min(a, b)`, `max(a, b)` | NaN if one is NaN; -0 is less than +0 |
//! | `abs(a)`, `sign(a)` | magnitude; -1, 0 or 1 (0 for both zeros, NaN for NaN) |
//! | `signum(a)`, `copysign(a, b)` * | 1 with the sign of a, zeros included; a with the sign of b, plus for NaN |
//! | `sqrt`, `exp`, `expm1`, `log`, `log1p`, `log10`, `pow(a, b)` * | as in C; `a ^ b` is `pow(a, b)`, but `a ^ 2` is `a * a` |
//! | `floor`, `ceil`, `round`, `trunc` * | to an integer; `round` takes halves away from zero |
//! | `is_nan(a)` * | whether a is NaN |
//!
//! # Types
//!
//! Numbers have the element type of the table and booleans are a type of their own; a boolean where a number
//! is needed is an error, and the reverse. A boolean result becomes the element 1 or 0.
//!
//! - Functions marked `*`, `/`, `^` (but for `^ 2`), `inf` and `nan` exist for F32 and F64 only.
//! - I32 and I64: `+`, `-`, `*` and `abs` wrap. Division is refused, because no element can express x / 0.
//! - `index` exists for F64 and I64 only, where every index is exact.
//! - Numbers in the text are rounded once to the element type; a number out of range is an error.
//! - Parameters are `f64`. F32 rounds them, I32 and I64 refuse what is no integer of theirs.
//!
//! # Determinism
//!
//! A program gives the same bits on every host. Each operation rounds in the element type; multiplication and
//! addition are never contracted; `exp`, `log` and `pow` come from the crate `libm`. Each NaN in the output of
//! [`Evaluator::map`] is the positive quiet NaN `0x7fc00000` or `0x7ff8000000000000`.
//!
//! # Limits
//!
//! [`TEXT_BYTES_MAX`], [`NESTING_MAX`], [`OPERATIONS_MAX`], [`CONSTANTS_MAX`], [`PARAMETERS_MAX`] and
//! [`INPUTS_MAX`] bound every program, [`PROGRAM_BYTES_MAX`] its encoding.

#![forbid(unsafe_code)]

pub mod decoders;
mod element;
mod error;
mod evaluator;
mod kernels;
mod lexer;
mod loops;
mod operation;
mod parser;
mod partial;
mod plan;
mod program;
mod reduction;
mod sums;

pub use element::Element;
pub use error::{ExpressionError, ProgramError};
pub use evaluator::Evaluator;
pub use operation::Kind;
pub use partial::Partial;
pub use program::Program;
pub use reduction::{Reduction, Scalar};

/// Most operations of a program, after equal subexpressions are merged.
pub const OPERATIONS_MAX: usize = 256;
/// Most parameters of a program: p0 to p15.
pub const PARAMETERS_MAX: usize = 16;
/// Most inputs of a program: x, y and z.
pub const INPUTS_MAX: usize = 3;
/// Most different numbers in a program.
pub const CONSTANTS_MAX: usize = 256;
/// Longest text of an expression, in bytes.
pub const TEXT_BYTES_MAX: usize = 4096;
/// Deepest nesting of parentheses, functions, signs and powers.
pub const NESTING_MAX: usize = 64;
/// Longest encoding of a program, in bytes: header, constants of 8 bytes, operations of three operands.
pub const PROGRAM_BYTES_MAX: usize = 8 + 8 * CONSTANTS_MAX + 7 * OPERATIONS_MAX;

/// The one NaN in outputs and constants of F32.
pub(crate) const NAN_F32: f32 = f32::from_bits(0x7fc0_0000);
/// The one NaN in outputs and constants of F64.
pub(crate) const NAN_F64: f64 = f64::from_bits(0x7ff8_0000_0000_0000);
