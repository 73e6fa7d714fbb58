//! Errors of the parser, of the decoder and of evaluators.

use tidewater_protocol::table::DType;

use crate::operation::Kind;
use crate::reduction::Reduction;
use crate::{CONSTANTS_MAX, NESTING_MAX, OPERATIONS_MAX, PARAMETERS_MAX, TEXT_BYTES_MAX};

/// Reason why a text is not an expression. Positions are byte offsets into the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExpressionError {
    /// The text exceeds [`TEXT_BYTES_MAX`].
    #[error(
        "the expression has {bytes} bytes, more than {TEXT_BYTES_MAX}; split it into several calls"
    )]
    TooLong {
        /// Bytes of the text.
        bytes: usize,
    },
    /// Another token stands where the grammar requires `expected`.
    #[error("byte {position}: expected {expected}, found {found}")]
    Unexpected {
        /// Offset of the token.
        position: usize,
        /// Description of what the grammar allows there.
        expected: &'static str,
        /// Token or character at the position, quoted.
        found: String,
    },
    /// A number stands where a boolean is needed, or the reverse.
    #[error("byte {position}: expected {expected}, found {found}")]
    WrongKind {
        /// Offset of the operand.
        position: usize,
        /// Kind that the operation needs.
        expected: Kind,
        /// Kind of the operand.
        found: Kind,
    },
    /// The name is no input, parameter, constant or function.
    #[error(
        "byte {position}: unknown name `{name}`; inputs are x, y, z and index, parameters p0 to p{}",
        PARAMETERS_MAX - 1
    )]
    UnknownName {
        /// Offset of the name.
        position: usize,
        /// Name as the text has it.
        name: String,
    },
    /// A function has another number of arguments.
    #[error("byte {position}: `{function}` takes {expected} arguments, found {found}")]
    ArgumentCount {
        /// Offset of the function's name.
        position: usize,
        /// Name of the function.
        function: &'static str,
        /// Arguments that the function takes.
        expected: usize,
        /// Arguments in the text.
        found: usize,
    },
    /// The operation exists for tables of floating point numbers only.
    #[error(
        "byte {position}: `{operation}` is not defined for {dtype:?}; it needs a table of F32 or F64"
    )]
    NeedsFloat {
        /// Offset of the operation.
        position: usize,
        /// Name of the operation.
        operation: &'static str,
        /// Element type of the table.
        dtype: DType,
    },
    /// The number cannot be an element of the table.
    #[error("byte {position}: `{text}` is not a number that {dtype:?} can hold")]
    Number {
        /// Offset of the number.
        position: usize,
        /// Number as the text has it.
        text: String,
        /// Element type of the table.
        dtype: DType,
    },
    /// The element type cannot hold every index.
    #[error("byte {position}: `index` is not exact in {dtype:?}; it needs a table of F64 or I64")]
    InexactIndex {
        /// Offset of the name `index`.
        position: usize,
        /// Element type of the table.
        dtype: DType,
    },
    /// Parentheses, functions and signs are nested too deeply.
    #[error("byte {position}: nested deeper than {NESTING_MAX} levels; remove parentheses")]
    TooDeep {
        /// Offset of the first token beyond the limit.
        position: usize,
    },
    /// The program exceeds [`OPERATIONS_MAX`].
    #[error(
        "byte {position}: more than {OPERATIONS_MAX} operations; split the expression into several calls"
    )]
    TooManyOperations {
        /// Offset of the first operation beyond the limit.
        position: usize,
    },
    /// The program exceeds [`CONSTANTS_MAX`].
    #[error(
        "byte {position}: more than {CONSTANTS_MAX} different numbers; pass some as parameters"
    )]
    TooManyConstants {
        /// Offset of the first number beyond the limit.
        position: usize,
    },
}

impl ExpressionError {
    /// Returns the byte offset of the error in the text; for a text too long, the limit.
    pub const fn position(&self) -> usize {
        match *self {
            Self::TooLong { .. } => TEXT_BYTES_MAX,
            Self::Unexpected { position, .. }
            | Self::WrongKind { position, .. }
            | Self::UnknownName { position, .. }
            | Self::ArgumentCount { position, .. }
            | Self::NeedsFloat { position, .. }
            | Self::Number { position, .. }
            | Self::InexactIndex { position, .. }
            | Self::TooDeep { position }
            | Self::TooManyOperations { position }
            | Self::TooManyConstants { position } => position,
        }
    }
}

/// Reason why bytes are not a program, or why an evaluator cannot run one.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// The bytes end before the program does.
    #[error("the program ends after {bytes} bytes, within {part}; send it complete")]
    Truncated {
        /// Bytes that are there.
        bytes: usize,
        /// Part of the program that is cut.
        part: &'static str,
    },
    /// Bytes follow the program.
    #[error("{bytes} bytes follow the program of {program} bytes; send nothing after it")]
    Trailing {
        /// Bytes after the program.
        bytes: usize,
        /// Bytes of the program.
        program: usize,
    },
    /// The encoding has another version.
    #[error(
        "the program has format version {found}, this build reads {expected}; update the older end"
    )]
    Version {
        /// Version in the bytes.
        found: u8,
        /// Version of this build.
        expected: u8,
    },
    /// The code of the element type is unknown.
    #[error("unknown element type {code} in a program; update the older end")]
    UnknownDType {
        /// Code in the bytes.
        code: u8,
    },
    /// The program has more operations or constants than the limits allow.
    #[error("the program has {found} {what}, more than {limit}; split it")]
    TooMany {
        /// Parts that are counted: operations or constants.
        what: &'static str,
        /// Number in the bytes.
        found: usize,
        /// Largest number that is allowed.
        limit: usize,
    },
    /// The code of an operation is unknown.
    #[error("operation {operation} has the unknown code {code}; update the older end")]
    UnknownOperation {
        /// Position of the operation in the program.
        operation: usize,
        /// Code in the bytes.
        code: u8,
    },
    /// An operand does not exist: unknown class, or a value that no earlier operation computes.
    #[error("operation {operation} reads operand {index} of class {class}, which does not exist")]
    UnknownOperand {
        /// Position of the operation in the program; the number of operations for the result.
        operation: usize,
        /// Code of the operand's class.
        class: u8,
        /// Index in the class.
        index: u8,
    },
    /// An operand is a boolean instead of a number, or the reverse.
    #[error("operation {operation} needs {expected} as operand {operand}")]
    WrongKind {
        /// Position of the operation in the program.
        operation: usize,
        /// Position of the operand, from 0.
        operand: usize,
        /// Kind that the operation needs.
        expected: Kind,
    },
    /// The operation exists for floating point elements only.
    #[error("operation {operation} is not defined for {dtype:?}; it needs F32 or F64")]
    NeedsFloat {
        /// Position of the operation in the program.
        operation: usize,
        /// Element type of the program.
        dtype: DType,
    },
    /// The element type cannot hold every index.
    #[error("`index` is not exact in {dtype:?}; it needs F64 or I64")]
    InexactIndex {
        /// Element type of the program.
        dtype: DType,
    },
    /// A constant is a NaN with another bit pattern than the canonical one.
    #[error("constant {constant} is a NaN that is not canonical")]
    Constant {
        /// Position of the constant in the program.
        constant: usize,
    },
    /// The result does not depend on an operation or a constant.
    #[error("the result does not depend on {what} {position}; remove it")]
    Unused {
        /// Part that is unused: operation or constant.
        what: &'static str,
        /// Position of the part in the program.
        position: usize,
    },
    /// The evaluator has another element type than the program.
    #[error(
        "the program is for elements of {program:?}, the table has {elements:?}; parse it for that type"
    )]
    WrongDType {
        /// Element type of the program.
        program: DType,
        /// Element type of the evaluator.
        elements: DType,
    },
    /// The call passes another number of parameters than the program needs.
    #[error("the program needs {needed} parameters, the call passes {given}")]
    ParameterCount {
        /// Parameters that the program needs.
        needed: usize,
        /// Parameters that were passed.
        given: usize,
    },
    /// The parameter cannot be an element of the table.
    #[error("parameter p{parameter} is {value}, which {dtype:?} cannot hold")]
    Parameter {
        /// Number of the parameter.
        parameter: usize,
        /// Value that was passed.
        value: f64,
        /// Element type of the program.
        dtype: DType,
    },
    /// Bytes are no partial result of the reduction.
    #[error("{bytes} bytes are no partial result of {reduction:?} over {dtype:?}; {reason}")]
    Partial {
        /// Bytes that were passed.
        bytes: usize,
        /// Reduction that the caller expects.
        reduction: Reduction,
        /// Element type that the caller expects.
        dtype: DType,
        /// Property that the bytes violate.
        reason: &'static str,
    },
}
