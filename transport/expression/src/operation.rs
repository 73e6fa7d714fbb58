//! Operations, their operands and their types: shared by the parser, the decoder and evaluators.

use std::fmt;

use tidewater_protocol::mutants::{Mutant, on};
use tidewater_protocol::table::DType;

/// Most operands of one operation.
pub(crate) const ARITY_MAX: usize = 3;

/// Kind of a value: elements of the table's type, or truth values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Value of the table's element type.
    Number,
    /// Result of a comparison or of a logical operation.
    Boolean,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Number => "a number",
            Self::Boolean => "a boolean",
        })
    }
}

/// Operation of a program. Codes are wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    Add = 1,
    Subtract = 2,
    Multiply = 3,
    Divide = 4,
    Power = 5,
    Minimum = 6,
    Maximum = 7,
    CopySign = 8,
    Less = 9,
    LessOrEqual = 10,
    Equal = 11,
    NotEqual = 12,
    And = 13,
    Or = 14,
    Not = 15,
    Select = 16,
    Negate = 17,
    Absolute = 18,
    Sign = 19,
    Signum = 20,
    SquareRoot = 21,
    Exp = 22,
    ExpM1 = 23,
    Log = 24,
    Log1p = 25,
    Log10 = 26,
    Floor = 27,
    Ceil = 28,
    Round = 29,
    Trunc = 30,
    IsNan = 31,
}

/// Every operation with its name in the language, in the order of the codes.
const OPERATIONS: [(Operation, &str); 31] = [
    (Operation::Add, "+"),
    (Operation::Subtract, "-"),
    (Operation::Multiply, "*"),
    (Operation::Divide, "/"),
    (Operation::Power, "pow"),
    (Operation::Minimum, "min"),
    (Operation::Maximum, "max"),
    (Operation::CopySign, "copysign"),
    (Operation::Less, "<"),
    (Operation::LessOrEqual, "<="),
    (Operation::Equal, "=="),
    (Operation::NotEqual, "!="),
    (Operation::And, "and"),
    (Operation::Or, "or"),
    (Operation::Not, "not"),
    (Operation::Select, "if"),
    (Operation::Negate, "-"),
    (Operation::Absolute, "abs"),
    (Operation::Sign, "sign"),
    (Operation::Signum, "signum"),
    (Operation::SquareRoot, "sqrt"),
    (Operation::Exp, "exp"),
    (Operation::ExpM1, "expm1"),
    (Operation::Log, "log"),
    (Operation::Log1p, "log1p"),
    (Operation::Log10, "log10"),
    (Operation::Floor, "floor"),
    (Operation::Ceil, "ceil"),
    (Operation::Round, "round"),
    (Operation::Trunc, "trunc"),
    (Operation::IsNan, "is_nan"),
];

/// Reason why operands do not fit an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mismatch {
    /// The operation exists for floating point elements only.
    NeedsFloat,
    /// The operand at this position has the other kind.
    Operand { operand: usize, expected: Kind },
}

impl Operation {
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        let index = usize::from(code).checked_sub(1)?;
        OPERATIONS.get(index).map(|&(operation, _)| operation)
    }

    pub(crate) const fn code(self) -> u8 {
        self as u8
    }

    pub(crate) const fn name(self) -> &'static str {
        OPERATIONS[self as usize - 1].1
    }

    /// Returns the operation that a call `name(...)` means.
    pub(crate) fn from_function(name: &str) -> Option<Self> {
        let name = match on(Mutant::SignumOfZero) && name == Self::Signum.name() {
            true => Self::Sign.name(),
            false => name,
        };
        let (operation, _) = OPERATIONS.into_iter().find(|&(_, known)| known == name)?;
        operation.is_function().then_some(operation)
    }

    const fn is_function(self) -> bool {
        matches!(
            self,
            Self::Power | Self::Minimum | Self::Maximum | Self::CopySign | Self::Select
        ) || self as u8 >= Self::Absolute as u8
    }

    pub(crate) const fn arity(self) -> usize {
        match self {
            Self::Select => 3,
            Self::Not => 1,
            _ if (self as u8) < Self::Not as u8 => 2,
            _ => 1,
        }
    }

    const fn needs_float(self) -> bool {
        match self {
            Self::Divide | Self::Power | Self::CopySign => true,
            _ => self as u8 >= Self::Signum as u8,
        }
    }

    /// Returns the kind of the result.
    pub(crate) fn result(self, dtype: DType, operands: &[Kind]) -> Result<Kind, Mismatch> {
        if self.needs_float() && !dtype.is_float() {
            return Err(Mismatch::NeedsFloat);
        }
        let all = |expected: Kind| {
            let wrong = operands.iter().position(|&kind| kind != expected);
            wrong.map_or(Ok(()), |operand| {
                Err(Mismatch::Operand { operand, expected })
            })
        };
        match self {
            Self::Select => match *operands {
                [Kind::Boolean, then, otherwise] if then == otherwise => Ok(then),
                [Kind::Boolean, then, _] => Err(Mismatch::Operand {
                    operand: 2,
                    expected: then,
                }),
                _ => Err(Mismatch::Operand {
                    operand: 0,
                    expected: Kind::Boolean,
                }),
            },
            Self::And | Self::Or | Self::Not => all(Kind::Boolean).map(|()| Kind::Boolean),
            Self::Less | Self::LessOrEqual | Self::Equal | Self::NotEqual | Self::IsNan => {
                all(Kind::Number).map(|()| Kind::Boolean)
            }
            _ => all(Kind::Number).map(|()| Kind::Number),
        }
    }
}

/// Operand of an operation. Classes and indices are wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operand {
    /// Result of an earlier operation.
    Value(u8),
    /// Input x, y or z.
    Input(u8),
    /// Scalar that the call passes.
    Parameter(u8),
    /// Number in the expression.
    Constant(u8),
    /// Absolute index of the element.
    Index,
}

impl Operand {
    /// Returns class and index in the class.
    pub(crate) const fn code(self) -> [u8; 2] {
        match self {
            Self::Value(index) => [0, index],
            Self::Input(index) => [1, index],
            Self::Parameter(index) => [2, index],
            Self::Constant(index) => [3, index],
            Self::Index => [4, 0],
        }
    }

    pub(crate) const fn from_code(class: u8, index: u8) -> Option<Self> {
        match (class, index) {
            (0, _) => Some(Self::Value(index)),
            (1, _) => Some(Self::Input(index)),
            (2, _) => Some(Self::Parameter(index)),
            (3, _) => Some(Self::Constant(index)),
            (4, 0) => Some(Self::Index),
            _ => None,
        }
    }
}

/// Operation with its operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub(crate) operation: Operation,
    /// Operands beyond the operation's arity are [`Operand::Index`] and mean nothing.
    operands: [Operand; ARITY_MAX],
}

impl Instruction {
    pub(crate) fn new(operation: Operation, operands: &[Operand]) -> Self {
        assert_eq!(
            operands.len(),
            operation.arity(),
            "operands of {operation:?}"
        );
        let mut all = [Operand::Index; ARITY_MAX];
        all[..operands.len()].copy_from_slice(operands);
        Self {
            operation,
            operands: all,
        }
    }

    pub(crate) fn operands(&self) -> &[Operand] {
        &self.operands[..self.operation.arity()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_stand_in_table_order() {
        for (index, (operation, _)) in OPERATIONS.into_iter().enumerate() {
            assert_eq!(usize::from(operation.code()), index + 1);
            assert_eq!(Operation::from_code(operation.code()), Some(operation));
        }
        assert_eq!(Operation::from_code(0), None);
        assert_eq!(Operation::from_code(32), None);
    }

    #[test]
    fn functions_have_names_of_letters() {
        for (operation, name) in OPERATIONS {
            let called = Operation::from_function(name);
            let word = name.starts_with(|c: char| c.is_ascii_alphabetic());
            let logical = matches!(name, "and" | "or" | "not");
            assert_eq!(called == Some(operation), word && !logical, "{name}");
        }
    }
}
