//! Validated programs and their encoding.
//!
//! All numbers are little-endian:
//!
//! | bytes | contents |
//! |---|---|
//! | 1 | version, [`VERSION`] |
//! | 1 | code of the element type |
//! | 2 | number of constants |
//! | 2 | number of operations |
//! | 2 | result: class and index of an operand |
//! | 4 or 8 each | constants, in the element type |
//! | 1 + 2 for each operand, each | operations: code, then class and index of each operand |
//!
//! Classes of operands: 0 result of an earlier operation, 1 input, 2 parameter, 3 constant, 4 index.

use tidewater_protocol::table::DType;

use crate::error::ProgramError;
use crate::operation::{Instruction, Kind, Mismatch, Operand, Operation};
use crate::{CONSTANTS_MAX, INPUTS_MAX, OPERATIONS_MAX, PARAMETERS_MAX, PROGRAM_BYTES_MAX};

/// Version of the encoding.
const VERSION: u8 = 1;
/// Bytes before the constants.
const HEADER_BYTES: usize = 8;

/// A validated, typed program: one value for each element.
///
/// A program is a sequence of operations; each reads inputs, parameters, constants and results of earlier
/// operations. Equal subexpressions are computed once.
///
/// ```
/// use tidewater_expression::Program;
/// use tidewater_protocol::table::DType;
///
/// let program = Program::parse("max(x * 2 - y, 0)", DType::F32)?;
/// assert_eq!(program.inputs(), 2);
/// let mut bytes = Vec::new();
/// program.encode(&mut bytes);
/// assert_eq!(Program::decode(&bytes).as_ref(), Ok(&program));
/// # Ok::<(), tidewater_expression::ExpressionError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    dtype: DType,
    /// Bits of the constants in the element type, zero-extended.
    constants: Vec<u64>,
    instructions: Vec<Instruction>,
    result: Operand,
    kind: Kind,
    inputs: usize,
    parameters: usize,
}

impl Program {
    /// Appends the encoding, at most [`PROGRAM_BYTES_MAX`] bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend([VERSION, self.dtype.code()]);
        out.extend((self.constants.len() as u16).to_le_bytes());
        out.extend((self.instructions.len() as u16).to_le_bytes());
        out.extend(self.result.code());
        for bits in &self.constants {
            out.extend_from_slice(&bits.to_le_bytes()[..self.dtype.size()]);
        }
        for instruction in &self.instructions {
            out.push(instruction.operation.code());
            out.extend(instruction.operands().iter().flat_map(|o| o.code()));
        }
        debug_assert!(out.len() - start <= PROGRAM_BYTES_MAX, "size of a program");
    }

    /// Decodes and validates a program. Memory is bounded by [`PROGRAM_BYTES_MAX`], whatever the bytes say.
    ///
    /// # Errors
    /// The bytes are not exactly one valid program.
    pub fn decode(bytes: &[u8]) -> Result<Self, ProgramError> {
        let mut reader = Reader { bytes, at: 0 };
        let header = reader.take(HEADER_BYTES, "the header")?;
        if header[0] != VERSION {
            return Err(ProgramError::Version {
                found: header[0],
                expected: VERSION,
            });
        }
        let dtype =
            DType::from_code(header[1]).ok_or(ProgramError::UnknownDType { code: header[1] })?;
        let count = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
        let within = |what, found, limit| match found <= limit {
            true => Ok(found),
            false => Err(ProgramError::TooMany { what, found, limit }),
        };
        let constants = within("constants", count(2), CONSTANTS_MAX)?;
        let operations = within("operations", count(4), OPERATIONS_MAX)?;
        let result = operand(operations, [header[6], header[7]])?;

        let words = reader.take(constants * dtype.size(), "the constants")?;
        let constants = words
            .chunks_exact(dtype.size())
            .map(zero_extended)
            .collect();
        let mut instructions = Vec::with_capacity(operations);
        for number in 0..operations {
            let code = reader.take(1, "the operations")?[0];
            let operation = Operation::from_code(code).ok_or(ProgramError::UnknownOperation {
                operation: number,
                code,
            })?;
            let mut operands = [Operand::Index; crate::operation::ARITY_MAX];
            let codes = reader.take(2 * operation.arity(), "the operations")?;
            for (slot, code) in operands.iter_mut().zip(codes.chunks_exact(2)) {
                *slot = operand(number, [code[0], code[1]])?;
            }
            instructions.push(Instruction::new(operation, &operands[..operation.arity()]));
        }
        match bytes.len() - reader.at {
            0 => Self::validated(dtype, constants, instructions, result),
            trailing => Err(ProgramError::Trailing {
                bytes: trailing,
                program: reader.at,
            }),
        }
    }

    /// Checks every rule that a program keeps; the only way to make one.
    pub(crate) fn validated(
        dtype: DType,
        constants: Vec<u64>,
        instructions: Vec<Instruction>,
        result: Operand,
    ) -> Result<Self, ProgramError> {
        if let Some(constant) = constants.iter().position(|&c| !is_canonical(dtype, c)) {
            return Err(ProgramError::Constant { constant });
        }
        let mut usage = Usage::new(dtype, constants.len(), instructions.len());
        for (number, instruction) in instructions.iter().enumerate() {
            let mut kinds = [Kind::Number; crate::operation::ARITY_MAX];
            for (kind, &operand) in kinds.iter_mut().zip(instruction.operands()) {
                *kind = usage.read(number, operand)?;
            }
            let kinds = &kinds[..instruction.operands().len()];
            let kind = instruction.operation.result(dtype, kinds);
            usage.kinds.push(kind.map_err(|mismatch| match mismatch {
                Mismatch::NeedsFloat => ProgramError::NeedsFloat {
                    operation: number,
                    dtype,
                },
                Mismatch::Operand { operand, expected } => ProgramError::WrongKind {
                    operation: number,
                    operand,
                    expected,
                },
            })?);
        }
        let kind = usage.read(instructions.len(), result)?;
        usage.all_used()?;
        Ok(Self {
            dtype,
            constants,
            instructions,
            result,
            kind,
            inputs: usage.inputs,
            parameters: usage.parameters,
        })
    }

    /// Returns the element type that the program computes in.
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns how many of the inputs x, y, z a call passes: 3 if the program reads z.
    pub const fn inputs(&self) -> usize {
        self.inputs
    }

    /// Returns how many parameters a call passes: 1 more than the largest number that the program reads.
    pub const fn parameters(&self) -> usize {
        self.parameters
    }

    /// Returns the kind of the result; [`Kind::Boolean`] results become the elements 1 and 0.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn constants(&self) -> &[u64] {
        &self.constants
    }

    pub(crate) fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    pub(crate) const fn result(&self) -> Operand {
        self.result
    }
}

/// What the operations of a program have read so far.
struct Usage {
    dtype: DType,
    /// Kinds of the results of the operations before the current one.
    kinds: Vec<Kind>,
    constants: Vec<bool>,
    values: Vec<bool>,
    inputs: usize,
    parameters: usize,
}

impl Usage {
    fn new(dtype: DType, constants: usize, operations: usize) -> Self {
        Self {
            dtype,
            kinds: Vec::with_capacity(operations),
            constants: vec![false; constants],
            values: vec![false; operations],
            inputs: 0,
            parameters: 0,
        }
    }

    /// Records that operation `number` reads the operand; returns the operand's kind.
    fn read(&mut self, number: usize, operand: Operand) -> Result<Kind, ProgramError> {
        let known = match operand {
            Operand::Value(index) => {
                let index = usize::from(index);
                let kind = self.kinds.get(index).copied();
                if kind.is_some() {
                    self.values[index] = true;
                }
                kind
            }
            Operand::Constant(index) => self.constants.get_mut(usize::from(index)).map(|used| {
                *used = true;
                Kind::Number
            }),
            Operand::Input(index) => {
                self.inputs = self.inputs.max(usize::from(index) + 1);
                (self.inputs <= INPUTS_MAX).then_some(Kind::Number)
            }
            Operand::Parameter(index) => {
                self.parameters = self.parameters.max(usize::from(index) + 1);
                (self.parameters <= PARAMETERS_MAX).then_some(Kind::Number)
            }
            Operand::Index if !index_is_exact(self.dtype) => {
                return Err(ProgramError::InexactIndex { dtype: self.dtype });
            }
            Operand::Index => Some(Kind::Number),
        };
        let [class, index] = operand.code();
        known.ok_or(ProgramError::UnknownOperand {
            operation: number,
            class,
            index,
        })
    }

    fn all_used(&self) -> Result<(), ProgramError> {
        for (what, used) in [("constant", &self.constants), ("operation", &self.values)] {
            if let Some(position) = used.iter().position(|used| !used) {
                return Err(ProgramError::Unused { what, position });
            }
        }
        Ok(())
    }
}

/// Whether elements of the type hold every index of a table: 2^53 and 2^63 elements do not fit a server,
/// 2^24 and 2^31 do.
pub(crate) const fn index_is_exact(dtype: DType) -> bool {
    matches!(dtype, DType::F64 | DType::I64)
}

/// Whether the bits are a number or the one NaN that programs use.
fn is_canonical(dtype: DType, bits: u64) -> bool {
    match dtype {
        DType::F32 => {
            let value = f32::from_bits(bits as u32);
            !value.is_nan() || value.to_bits() == crate::NAN_F32.to_bits()
        }
        DType::F64 => {
            let value = f64::from_bits(bits);
            !value.is_nan() || value.to_bits() == crate::NAN_F64.to_bits()
        }
        DType::I32 | DType::I64 => true,
    }
}

fn operand(operation: usize, [class, index]: [u8; 2]) -> Result<Operand, ProgramError> {
    Operand::from_code(class, index).ok_or(ProgramError::UnknownOperand {
        operation,
        class,
        index,
    })
}

fn zero_extended(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// Takes parts from the front of a program's bytes.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize, part: &'static str) -> Result<&'a [u8], ProgramError> {
        let end = self.at + count;
        let taken = self.bytes.get(self.at..end);
        self.at = end;
        taken.ok_or(ProgramError::Truncated {
            bytes: self.bytes.len(),
            part,
        })
    }
}
