//! Payload of UPDATE and REDUCE frames: a function and the elements that it covers.
//!
//! ```text
//! +0  u64 first       element of a range table; row of layout `rows`; slot of a sparse partition
//! +8  u8 body kind | u8 reduction (REDUCE) | u8 inputs | u8 parameters | u32 bytes of the body
//! +16 u32 table of input x | u32 y | u32 z | u32 zero       unused inputs are zero
//! +32 f64 parameters
//! ..  body: 1 an encoded expression
//!           2 u16 length of a name, the name, its arguments
//!           3 nothing (number of slots)
//!           4 u16 length of a name, u16 zero, u32 bytes of the arguments, u32 rows, the name, the
//!             arguments, the keys of the rows (u64, ascending), values
//! ```
//! The header's `count` is the number of elements, rows or slots from `first` on; its `partition` holds
//! all of them; its `table` is the target. `FUNCTION_BYTES_MAX` and `FRAME_ROWS_MAX` limit the count.
//! With body 4, `count` is the number of rows, in any partitions of the applier, and `first` is 0.

use super::reject::RejectReason;
use crate::table::{DenseLayout, Shape, TableSpec};

/// Bytes of a function call's payload before its parameters.
const HEAD_BYTES: usize = 32;
/// Maximum number of f64 parameters of a function call.
pub const FUNCTION_PARAMETERS_MAX: usize = 16;
/// Maximum number of input tables of a function call.
pub const FUNCTION_INPUTS_MAX: usize = 3;
/// Maximum bytes of a function call's body: an expression, or a name with its arguments. A body with keys and values
/// ([`NamedRows`]) is limited by its frame only.
pub const FUNCTION_BODY_BYTES_MAX: usize = 8 << 10;
/// Maximum bytes of a function's name. Every refusal repeats the name.
pub const FUNCTION_NAME_BYTES_MAX: usize = 255;

/// The function that a call runs on a server: an expression, a named function, or the count of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FunctionBody<'a> {
    /// Encoded program of an expression.
    Expression(&'a [u8]),
    /// Function that is registered or loaded at the server under a name.
    Named {
        /// Name of the function; 1 to 255 bytes of UTF-8.
        name: &'a str,
        /// Arguments in the function's own encoding.
        arguments: &'a [u8],
    },
    /// Reads the number of slots of a sparse partition; runs no function.
    Slots,
    /// Function that is registered or loaded at the server under a name, on the rows of given keys.
    NamedRows(NamedRows<'a>),
}

/// Call of a named function on the rows of given keys: name, arguments, keys, and values, as in the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedRows<'a> {
    /// Name of the function; 1 to 255 bytes of UTF-8.
    pub name: &'a str,
    /// Arguments in the function's own encoding.
    pub arguments: &'a [u8],
    /// Keys of the rows, little-endian u64, 8 bytes each. Strictly ascending, which the applier checks.
    pub keys: &'a [u8],
    /// Values that come with the call, in the table's element type; may be empty.
    pub values: &'a [u8],
}

impl<'a> NamedRows<'a> {
    fn decode(body: &'a [u8]) -> Option<Self> {
        let (head, rest) = body.split_at_checked(12)?;
        let &[name_low, name_high, 0, 0, ref numbers @ ..] = head else {
            return None;
        };
        let (numbers, _) = numbers.as_chunks::<4>();
        let number = |n: usize| u32::from_le_bytes(numbers[n]) as usize;
        let len = usize::from(u16::from_le_bytes([name_low, name_high]));
        let (name, rest) = rest.split_at_checked(len)?;
        let (arguments, rest) = rest.split_at_checked(number(0))?;
        let (keys, values) = rest.split_at_checked(number(1).checked_mul(8)?)?;
        let name = name_of(name)?;
        Some(Self {
            name,
            arguments,
            keys,
            values,
        })
    }

    /// Number of rows, that is of keys.
    pub const fn rows(&self) -> usize {
        self.keys.len() / 8
    }

    /// Bytes of the encoded payload of this call: the 32 bytes before the parameters, and the body.
    pub const fn payload_bytes(&self) -> usize {
        HEAD_BYTES
            + 12
            + self.name.len()
            + self.arguments.len()
            + self.keys.len()
            + self.values.len()
    }

    /// Encodes this call as the complete payload of a frame into `out`.
    ///
    /// # Panics
    /// If `out` does not have exactly [`Self::payload_bytes`] bytes.
    pub fn encode(&self, out: &mut [u8]) {
        let (head, body) = out.split_at_mut(HEAD_BYTES);
        head.fill(0);
        head[8] = 4;
        head[12..16].copy_from_slice(&(body.len() as u32).to_le_bytes());
        let name = self.name.len() as u16;
        let arguments = self.arguments.len() as u32;
        let rows = self.rows() as u32;
        let parts: [&[u8]; 8] = [
            &name.to_le_bytes(),
            &[0; 2],
            &arguments.to_le_bytes(),
            &rows.to_le_bytes(),
            self.name.as_bytes(),
            self.arguments,
            self.keys,
            self.values,
        ];
        let mut rest = body;
        for part in parts {
            let (now, later) = rest.split_at_mut(part.len());
            now.copy_from_slice(part);
            rest = later;
        }
        assert!(rest.is_empty(), "{} bytes are left", rest.len());
    }
}

/// Checks the bytes of a function's name; `None` unless they are 1 to 255 bytes of UTF-8.
fn name_of(name: &[u8]) -> Option<&str> {
    let fits = (1..=FUNCTION_NAME_BYTES_MAX).contains(&name.len());
    std::str::from_utf8(name).ok().filter(|_| fits)
}

/// Decoded payload of an UPDATE or REDUCE frame: a function, its inputs and parameters, and where it begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FunctionCall<'a> {
    /// Number of the first element, row or slot; 0 for [`FunctionBody::NamedRows`].
    pub first: u64,
    /// Code of the reduction; 0 in UPDATE frames.
    pub reduction: u8,
    /// Numbers of the tables of the inputs x, y and z; the first [`Self::inputs`] are in use, the others are 0.
    pub tables: [u32; FUNCTION_INPUTS_MAX],
    /// Number of inputs in use.
    pub inputs: usize,
    parameters: &'a [u8],
    /// Function that the frame runs.
    pub body: FunctionBody<'a>,
}

/// Reason for which a server refuses to run a function, or for which it failed. Each comes with one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FunctionProblem {
    /// The payload is not a call. Number: bytes of the payload.
    Malformed = 1,
    /// The expression is damaged, of another element type, or needs more inputs or other parameters than
    /// the call has. Number: bytes of the expression.
    Expression = 2,
    /// An input table cannot be combined with the target: other shape, element type or partitions, or a sparse table
    /// that is not the target. For an UPDATE at a tick also a table without ticks or of another clock domain. Number:
    /// position of the input, from 0.
    Input = 3,
    /// The target takes effect at ticks, and the call cannot wait for one. Number: code of the
    /// [`AtTickProblem`].
    AtTick = 4,
    /// The server has no function of this name for the job. Number: count of the functions that the job can call.
    Unknown = 5,
    /// The user's function panicked. Number: 0.
    Panicked = 6,
    /// The frame covers more than one frame may, or nothing, or its `count` is not that of its keys. Number: the most
    /// elements, rows or slots that a frame may cover.
    TooLong = 7,
    /// The reduction is unknown, or unsuitable for the element type. Number: code of the reduction.
    Reduction = 8,
    /// The user's function refused its arguments or its input. Number: error code that the function defines.
    Refused = 9,
    /// Keys are not strictly ascending. Number: position, from 0, of the first key that is not above the key before.
    Order = 10,
    /// A module used up the fuel that one call may use. Number: that fuel, about one unit an instruction.
    OutOfFuel = 11,
    /// A module needs more memory than a call may have. Number: the bytes that it may have.
    OutOfMemory = 12,
    /// A module trapped. Number: code of its [`FunctionTrap`], 0 for another trap.
    Trapped = 13,
    /// A module returned a length that is no length of a result. Number: the returned length.
    WrongResult = 14,
}

/// Why a table that applies pushes at ticks cannot take a function call. It is the number of
/// [`FunctionProblem::AtTick`]. Nothing can be refused at a tick, so a function that could fail there is
/// refused before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum AtTickProblem {
    /// A named function may refuse, trap or panic.
    Named = 1,
    /// The rows that a sparse table has at the tick depend on the order in which pushes arrive.
    Sparse = 2,
    /// The table refuses NaN and infinity, which a result may be.
    Checked = 3,
    /// The version that ends with the tick is complete before functions run.
    Snapshot = 4,
}

impl AtTickProblem {
    /// Returns why a table that applies pushes at ticks refuses a call; `None` if it takes the call. The caller checks
    /// before that `table` is such a table. `is_expression` is true for an expression, false for a named function.
    pub const fn of(table: &TableSpec, is_expression: bool) -> Option<Self> {
        Some(match table.shape {
            _ if !is_expression => Self::Named,
            Shape::Sparse { .. } => Self::Sparse,
            Shape::Dense {
                layout: DenseLayout::Blocks { snapshot: true, .. },
                ..
            } => Self::Snapshot,
            Shape::Dense { .. } if table.finite_check && table.dtype.is_float() => Self::Checked,
            Shape::Dense { .. } => return None,
        })
    }

    /// Returns the reason of a wire number; `None` for an unknown number.
    pub const fn from_code(code: u64) -> Option<Self> {
        Some(match code {
            1 => Self::Named,
            2 => Self::Sparse,
            3 => Self::Checked,
            4 => Self::Snapshot,
            _ => return None,
        })
    }

    /// Describes the reason and its remedy for an error message. The text is a clause in which "it" is the table.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Named => {
                "it takes effect at ticks, where a named function could fail without a caller; use an \
                 expression, define the table with immediate effect, or push the elements as an assignment"
            }
            Self::Sparse => {
                "it is sparse and takes effect at ticks, and the rows that it has at a tick depend on timing; \
                 define it with immediate effect, or push the elements as an assignment"
            }
            Self::Checked => {
                "it takes effect at ticks and refuses NaN and infinity, and nothing can be refused at a tick; \
                 define it with finite_check(false) or immediate effect, or push the elements as an assignment"
            }
            Self::Snapshot => {
                "it is a snapshot table, whose version is complete before functions run; define it without \
                 snapshots, with immediate effect, or push the elements as an assignment"
            }
        }
    }
}

/// Trap of a WebAssembly module, the number of [`FunctionProblem::Trapped`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FunctionTrap {
    /// The instruction `unreachable`; panics of most languages end in it.
    Unreachable = 1,
    /// Access outside of the memory.
    MemoryOutOfBounds = 2,
    /// Access outside of a table, or a table over its limit.
    TableOutOfBounds = 3,
    /// Indirect call of an empty element.
    NullCall = 4,
    /// Indirect call of a function of another type.
    WrongCall = 5,
    /// Integer overflow, also in the conversion of a float.
    Overflow = 6,
    /// Integer division by zero.
    DivisionByZero = 7,
    /// Calls are nested too deeply.
    StackOverflow = 8,
}

impl FunctionTrap {
    /// Returns the trap of a wire number; `None` for 0 (a trap that is not in this list) and unknown numbers.
    pub const fn from_code(code: u64) -> Option<Self> {
        Some(match code {
            1 => Self::Unreachable,
            2 => Self::MemoryOutOfBounds,
            3 => Self::TableOutOfBounds,
            4 => Self::NullCall,
            5 => Self::WrongCall,
            6 => Self::Overflow,
            7 => Self::DivisionByZero,
            8 => Self::StackOverflow,
            _ => return None,
        })
    }
}

impl FunctionProblem {
    /// Returns the problem from the first number of a reject reason; `None` for an unknown code.
    pub const fn from_code(code: u64) -> Option<Self> {
        Some(match code {
            1 => Self::Malformed,
            2 => Self::Expression,
            3 => Self::Input,
            4 => Self::AtTick,
            5 => Self::Unknown,
            6 => Self::Panicked,
            7 => Self::TooLong,
            8 => Self::Reduction,
            9 => Self::Refused,
            10 => Self::Order,
            11 => Self::OutOfFuel,
            12 => Self::OutOfMemory,
            13 => Self::Trapped,
            14 => Self::WrongResult,
            _ => return None,
        })
    }

    /// Builds the reject reason of this problem with its `number`.
    pub const fn with(self, number: u64) -> RejectReason {
        RejectReason::Function {
            problem: self as u64,
            number,
        }
    }
}

impl<'a> FunctionCall<'a> {
    /// Decodes a frame's payload; `None` if it is malformed: wrong lengths, an unknown kind of body, an invalid name, a
    /// nonzero number in an unused place, or more inputs, parameters or bytes than the limits of this module. Keys are
    /// not checked.
    pub fn decode(payload: &'a [u8]) -> Option<Self> {
        let (head, rest) = payload.split_at_checked(HEAD_BYTES)?;
        let first = u64::from_le_bytes(*head.first_chunk()?);
        let &[kind, reduction, inputs, parameters, ref len @ ..] =
            head[8..16].first_chunk::<8>()?;
        let (words, _) = head[16..].as_chunks::<4>();
        let words: [u32; 4] = std::array::from_fn(|n| u32::from_le_bytes(words[n]));
        let (inputs, parameters) = (usize::from(inputs), usize::from(parameters));
        let unused = words.get(inputs..)?;
        let fits = inputs <= FUNCTION_INPUTS_MAX && parameters <= FUNCTION_PARAMETERS_MAX;
        if !fits || unused.iter().any(|&table| table != 0) {
            return None;
        }
        let (parameters, body) = rest.split_at_checked(parameters * 8)?;
        let most = if kind == 4 {
            usize::MAX
        } else {
            FUNCTION_BODY_BYTES_MAX
        };
        if body.len() != u32::from_le_bytes(*len) as usize || body.len() > most {
            return None;
        }
        let body = match kind {
            1 => FunctionBody::Expression(body),
            2 => {
                let (len, rest) = body.split_first_chunk::<2>()?;
                let len = usize::from(u16::from_le_bytes(*len));
                let (name, arguments) = rest.split_at_checked(len)?;
                let name = name_of(name)?;
                FunctionBody::Named { name, arguments }
            }
            3 if body.is_empty() => FunctionBody::Slots,
            4 if first == 0 && reduction == 0 && inputs == 0 && parameters.is_empty() => {
                FunctionBody::NamedRows(NamedRows::decode(body)?)
            }
            _ => return None,
        };
        Some(Self {
            first,
            reduction,
            tables: [words[0], words[1], words[2]],
            inputs,
            parameters,
            body,
        })
    }

    /// Iterates over the f64 parameters p0, p1, ... of the call.
    pub fn parameters(&self) -> impl ExactSizeIterator<Item = f64> + Clone + 'a {
        let (words, _) = self.parameters.as_chunks::<8>();
        words.iter().map(|word| f64::from_le_bytes(*word))
    }
}

/// Encoder of the payloads of one function call that takes several frames: one payload for each. They differ only in
/// the first element, so one buffer is reused.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionPayload {
    bytes: Vec<u8>,
}

impl FunctionPayload {
    /// Encodes a call of `body`; `tables` are the numbers of its input tables, `reduction` is 0 in UPDATE frames.
    ///
    /// # Panics
    /// If there are more inputs, parameters or bytes than the limits of this module, which callers check before. Also
    /// for `FunctionBody::NamedRows`, which `NamedRows::encode` encodes.
    pub fn new(body: FunctionBody<'_>, reduction: u8, tables: &[u32], parameters: &[f64]) -> Self {
        assert!(
            tables.len() <= FUNCTION_INPUTS_MAX && parameters.len() <= FUNCTION_PARAMETERS_MAX,
            "{} inputs and {} parameters are over the limits",
            tables.len(),
            parameters.len()
        );
        let mut encoded = Vec::new();
        let kind = match body {
            FunctionBody::Expression(program) => {
                encoded.extend_from_slice(program);
                1
            }
            FunctionBody::Named { name, arguments } => {
                encoded.extend_from_slice(&(name.len() as u16).to_le_bytes());
                encoded.extend_from_slice(name.as_bytes());
                encoded.extend_from_slice(arguments);
                2
            }
            FunctionBody::Slots => 3,
            FunctionBody::NamedRows(_) => {
                unreachable!("calls with keys are encoded frame by frame")
            }
        };
        assert!(
            encoded.len() <= FUNCTION_BODY_BYTES_MAX,
            "a function of {} bytes is over the limit",
            encoded.len()
        );
        let mut bytes = vec![0; 8];
        bytes.extend_from_slice(&[kind, reduction, tables.len() as u8, parameters.len() as u8]);
        bytes.extend_from_slice(&(encoded.len() as u32).to_le_bytes());
        for n in 0..4 {
            let table = tables.get(n).copied().unwrap_or(0);
            bytes.extend_from_slice(&table.to_le_bytes());
        }
        for parameter in parameters {
            bytes.extend_from_slice(&parameter.to_le_bytes());
        }
        bytes.extend_from_slice(&encoded);
        Self { bytes }
    }

    /// Writes `first`, an element, row or slot, into the payload and returns the payload: that of the frame which
    /// begins there. The next call overwrites it.
    pub fn at(&mut self, first: u64) -> &[u8] {
        self.bytes[..8].copy_from_slice(&first.to_le_bytes());
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn encoded_call_decodes_to_its_parts() {
        let named = FunctionBody::Named {
            name: "scale",
            arguments: &[1, 2, 3],
        };
        let bodies = [
            FunctionBody::Expression(&[9; 5]),
            named,
            FunctionBody::Slots,
        ];
        for body in bodies {
            let mut payload = FunctionPayload::new(body, 2, &[7, 8], &[0.5, -1.0]);
            let bytes = payload.at(1 << 40).to_vec();
            let call = FunctionCall::decode(&bytes).unwrap();
            assert_eq!((call.first, call.reduction), (1 << 40, 2));
            assert_eq!((call.inputs, call.tables), (2, [7, 8, 0]));
            assert_eq!(call.parameters().collect::<Vec<_>>(), [0.5, -1.0]);
            assert_eq!(call.body, body);
            for len in 0..bytes.len() {
                assert_eq!(FunctionCall::decode(&bytes[..len]), None, "{len} bytes");
            }
        }
    }

    #[test]
    fn rows_of_a_call_decode_to_their_parts() {
        let rows = NamedRows {
            name: "handle",
            arguments: &[7],
            keys: &[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0],
            values: &[0, 0, 128, 63],
        };
        let mut bytes = vec![9; rows.payload_bytes()];
        rows.encode(&mut bytes);
        let call = FunctionCall::decode(&bytes).unwrap();
        assert_eq!(call.body, FunctionBody::NamedRows(rows));
        assert_eq!((rows.rows(), call.inputs), (2, 0));
        assert_eq!(FunctionCall::decode(&bytes[..bytes.len() - 1]), None);
    }

    #[test]
    fn problem_codes_are_dense() {
        let codes: Vec<u8> = (0..64)
            .filter_map(FunctionProblem::from_code)
            .map(|problem| problem as u8)
            .collect();
        assert_eq!(codes, (1..=14).collect::<Vec<u8>>());
        let ticks = (0..64).filter_map(AtTickProblem::from_code);
        let ticks: Vec<u8> = ticks.map(|problem| problem as u8).collect();
        assert_eq!(ticks, [1, 2, 3, 4]);
        let traps = (0..64).filter_map(FunctionTrap::from_code);
        let traps: Vec<u8> = traps.map(|trap| trap as u8).collect();
        assert_eq!(traps, (1..=8).collect::<Vec<u8>>());
    }

    proptest! {
        #[test]
        fn decoding_is_total(bytes in prop::collection::vec(any::<u8>(), 0..96)) {
            if let Some(call) = FunctionCall::decode(&bytes) {
                if let FunctionBody::NamedRows(rows) = call.body {
                    let mut again = vec![0; rows.payload_bytes()];
                    rows.encode(&mut again);
                    prop_assert_eq!(again, bytes);
                    return Ok(());
                }
                let tables = &call.tables[..call.inputs];
                let parameters: Vec<f64> = call.parameters().collect();
                let mut again = FunctionPayload::new(call.body, call.reduction, tables, &parameters);
                prop_assert_eq!(again.at(call.first), &bytes[..]);
            }
        }
    }
}
