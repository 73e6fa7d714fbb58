//! Kernels: the loop of each operation over slices.
//!
//! A kernel is a function pointer that an evaluator looks up once. Its loop has no branch on the operation,
//! so that the compiler vectorizes it.

use crate::element::Arithmetic;
use crate::loops::{Binary, Ternary, Unary, each, pairs, triples};
use crate::operation::Operation;

/// Returns the kernel of a unary operation; `None` if the type has no such operation.
pub(crate) fn unary<T: Arithmetic>(operation: Operation) -> Option<Unary<T>> {
    let kernel: Unary<T> = match operation {
        Operation::Negate => |out, a| each(out, a, T::negated),
        Operation::Absolute => |out, a| each(out, a, T::magnitude),
        Operation::Sign => |out, a| each(out, a, T::sign),
        Operation::Not => |out, a| each(out, a, T::not),
        _ => return T::float_unary(operation),
    };
    Some(kernel)
}

/// Returns the kernel of a binary operation; `None` if the type has no such operation.
pub(crate) fn binary<T: Arithmetic>(operation: Operation) -> Option<Binary<T>> {
    let kernel: Binary<T> = match operation {
        Operation::Add => |out, a, b| pairs(out, a, b, T::plus),
        Operation::Subtract => |out, a, b| pairs(out, a, b, T::minus),
        Operation::Multiply => |out, a, b| pairs(out, a, b, T::times),
        Operation::Minimum => |out, a, b| pairs(out, a, b, T::smaller),
        Operation::Maximum => |out, a, b| pairs(out, a, b, T::larger),
        Operation::Less => |out, a, b| pairs(out, a, b, |a, b| T::truth(a < b)),
        Operation::LessOrEqual => |out, a, b| pairs(out, a, b, |a, b| T::truth(a <= b)),
        Operation::Equal => |out, a, b| pairs(out, a, b, |a, b| T::truth(a == b)),
        Operation::NotEqual => |out, a, b| pairs(out, a, b, |a, b| T::truth(a != b)),
        Operation::And => |out, a, b| pairs(out, a, b, T::and),
        Operation::Or => |out, a, b| pairs(out, a, b, T::or),
        _ => return T::float_binary(operation),
    };
    Some(kernel)
}

/// Operation of three operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Triple {
    /// `if(a, b, c)`: b where a is true, else c.
    Select,
    /// `a * b + c`, each operation rounded.
    MultiplyAdd,
    /// `a * b - c`, each operation rounded.
    MultiplySubtract,
    /// `c - a * b`, each operation rounded.
    SubtractProduct,
}

/// Returns the kernel of an operation of three operands.
pub(crate) fn ternary<T: Arithmetic>(operation: Triple) -> Ternary<T> {
    match operation {
        Triple::Select => |out, a, b, c| triples(out, a, b, c, T::select),
        Triple::MultiplyAdd => |out, a, b, c| triples(out, a, b, c, |a, b, c| a.times(b).plus(c)),
        Triple::MultiplySubtract => {
            |out, a, b, c| triples(out, a, b, c, |a, b, c| a.times(b).minus(c))
        }
        Triple::SubtractProduct => {
            |out, a, b, c| triples(out, a, b, c, |a, b, c| c.minus(a.times(b)))
        }
    }
}

/// Returns the kernel that makes elements of truth values.
pub(crate) fn counted<T: Arithmetic>() -> Unary<T> {
    |out, a| each(out, a, T::counted)
}
