//! Payload of UPDATE and REDUCE frames: a function and the elements that it covers.
//!
//! ```text
//! +0  u64 first       element of a range table; row of layout `rows`; slot of a sparse partition
//! +8  u8 body kind | u8 reduction (REDUCE) | u8 inputs | u8 parameters | u32 bytes of the body
//! +16 u32 table of input x | u32 y | u32 z | u32 zero       unused inputs are zero
//! +32 f64 parameters
//! ..  body: an encoded expression; or u16 length of a name, the name, its arguments; or nothing
//! ```
//! The header's `count` is the number of elements, rows or slots from `first` on; its `partition` holds
//! all of them; its `table` is the target. `FUNCTION_BYTES_MAX` and `FRAME_ROWS_MAX` limit the count.

use super::reject::RejectReason;

/// Bytes before the parameters.
const HEAD_BYTES: usize = 32;
/// Most parameters of a call.
pub const FUNCTION_PARAMETERS_MAX: usize = 16;
/// Most input tables of a call.
pub const FUNCTION_INPUTS_MAX: usize = 3;
/// Most bytes of a function's body: an expression, or a name with its arguments.
pub const FUNCTION_BODY_BYTES_MAX: usize = 8 << 10;

/// Function of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FunctionBody<'a> {
    /// Encoded program of an expression.
    Expression(&'a [u8]),
    /// Function that the server's program registered under a name.
    Named {
        /// Name of the function; 1 to 255 bytes of UTF-8.
        name: &'a str,
        /// Arguments in the function's own encoding.
        arguments: &'a [u8],
    },
    /// Number of slots of a sparse partition.
    Slots,
}

/// Decoded payload of a function's frame.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FunctionCall<'a> {
    /// First element, row or slot.
    pub first: u64,
    /// Code of the reduction; 0 in UPDATE frames.
    pub reduction: u8,
    /// Tables of the inputs x, y and z; the first [`Self::inputs`] are in use.
    pub tables: [u32; FUNCTION_INPUTS_MAX],
    /// Number of inputs.
    pub inputs: usize,
    parameters: &'a [u8],
    /// Function to run.
    pub body: FunctionBody<'a>,
}

/// Reason for which a function could not be run. Each has one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FunctionProblem {
    /// The payload is not a call. Number: its bytes.
    Malformed = 1,
    /// The expression is damaged, of another element type, or needs other inputs or parameters than the
    /// call has. Number: bytes of the expression.
    Expression = 2,
    /// An input table does not have the target's shape, element type and partitions. Number: its
    /// position, from 0.
    Input = 3,
    /// The target takes effect at ticks. Number: 0.
    AtTick = 4,
    /// The server's program registered no function of this name. Number: functions that it has.
    Unknown = 5,
    /// The user's function panicked. Number: 0.
    Panicked = 6,
    /// The frame covers more than one frame may. Number: most elements, rows or slots.
    TooLong = 7,
    /// The reduction is unknown, or unsuitable for the element type. Number: its code.
    Reduction = 8,
    /// The user's function refused its arguments or its input. Number: the function's own.
    Refused = 9,
}

impl FunctionProblem {
    /// Returns the problem of a wire code; `None` for an unknown code.
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
            _ => return None,
        })
    }

    /// Returns the reject reason of the problem with its number.
    pub const fn with(self, number: u64) -> RejectReason {
        RejectReason::Function {
            problem: self as u64,
            number,
        }
    }
}

impl<'a> FunctionCall<'a> {
    /// Decodes a frame's payload; `None` if it is not a call.
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
        if body.len() != u32::from_le_bytes(*len) as usize || body.len() > FUNCTION_BODY_BYTES_MAX {
            return None;
        }
        let body = match kind {
            1 => FunctionBody::Expression(body),
            2 => {
                let (len, rest) = body.split_first_chunk::<2>()?;
                let len = usize::from(u16::from_le_bytes(*len));
                let (name, arguments) = rest.split_at_checked(len)?;
                let name = std::str::from_utf8(name).ok()?;
                if name.is_empty() || len > 255 {
                    return None;
                }
                FunctionBody::Named { name, arguments }
            }
            3 if body.is_empty() => FunctionBody::Slots,
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

    /// The parameters p0, p1, ... of the call.
    pub fn parameters(&self) -> impl ExactSizeIterator<Item = f64> + Clone + 'a {
        let (words, _) = self.parameters.as_chunks::<8>();
        words.iter().map(|word| f64::from_le_bytes(*word))
    }
}

/// The part of a call that is the same in all of its frames. Encodes payloads.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionPayload {
    bytes: Vec<u8>,
}

impl FunctionPayload {
    /// Encodes a call of `body` on the tables of its inputs.
    ///
    /// # Panics
    /// If there are more inputs, parameters or bytes than the limits of this module: callers check them.
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

    /// The payload of the frame whose elements, rows or slots begin at `first`.
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
    fn problem_codes_are_dense() {
        let codes: Vec<u8> = (0..64)
            .filter_map(FunctionProblem::from_code)
            .map(|problem| problem as u8)
            .collect();
        assert_eq!(codes, (1..=9).collect::<Vec<u8>>());
    }

    proptest! {
        #[test]
        fn decoding_is_total(bytes in prop::collection::vec(any::<u8>(), 0..96)) {
            if let Some(call) = FunctionCall::decode(&bytes) {
                let tables = &call.tables[..call.inputs];
                let parameters: Vec<f64> = call.parameters().collect();
                let mut again = FunctionPayload::new(call.body, call.reduction, tables, &parameters);
                prop_assert_eq!(again.at(call.first), &bytes[..]);
            }
        }
    }
}
