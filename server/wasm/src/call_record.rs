//! The call record: how a module sees a call.
//!
//! The server grows the module's memory and places the record and all that it points to behind what the
//! module has. Addresses are multiples of 16. All numbers are little-endian.
//!
//! ```text
//! +0  u64 index of the first element in the table, row-major; 0 in sparse tables
//! +8  u32 element type: 1 f32, 2 f64, 3 i32, 4 i64
//! +12 u32 elements of a row
//! +16 u32 address of the target's elements | u32 elements
//! +24 u32 address of the keys (u64)        | u32 keys; 0 for a range table
//! +32 u32 address of the arguments         | u32 bytes
//! +40 u32 address of the inputs            | u32 inputs; each is u32 address, u32 elements
//! +48 u32 address of the result            | u32 bytes that it may have; 0 in an update
//! ```
//! `update(record)` changes the target's elements in place and returns 0; another number refuses the piece.
//! `reduce(record)` writes a result and returns its bytes; `-n` refuses the piece with number `n`.

use tidewater_functions::{Elements, Piece};

/// Bytes of a call record.
pub const RECORD_BYTES: usize = 56;
/// Alignment of everything that is placed.
const ALIGN: usize = 16;

/// Addresses of a call in a module's memory.
pub(crate) struct Placed {
    pub(crate) record: usize,
    pub(crate) target: usize,
    pub(crate) result: usize,
    keys: usize,
    arguments: usize,
    inputs: usize,
    result_bytes: usize,
    /// First address behind the call.
    pub(crate) end: usize,
}

/// Places `bytes` behind `end`.
fn place(end: &mut usize, bytes: usize) -> usize {
    let at = *end;
    *end = (at + bytes).next_multiple_of(ALIGN);
    at
}

impl Placed {
    /// Places a call from `base` on, which is a multiple of a page.
    pub(crate) fn new(
        base: usize,
        arguments: &[u8],
        piece: &Piece<'_>,
        target: Elements<'_>,
        result_bytes: usize,
    ) -> Self {
        let mut end = base;
        let mut placed = Self {
            record: place(&mut end, RECORD_BYTES),
            target: place(&mut end, target.as_bytes().len()),
            result: place(&mut end, result_bytes),
            keys: place(&mut end, size_of_val(piece.keys)),
            arguments: place(&mut end, arguments.len()),
            inputs: place(&mut end, piece.inputs.len() * 8),
            result_bytes,
            end,
        };
        for input in piece.inputs {
            place(&mut end, input.as_bytes().len());
        }
        placed.end = end;
        placed
    }

    /// Writes the call into a memory that reaches to [`Self::end`].
    pub(crate) fn write(
        &self,
        memory: &mut [u8],
        arguments: &[u8],
        piece: &Piece<'_>,
        target: Elements<'_>,
    ) {
        let mut put = |at: usize, bytes: &[u8]| {
            memory[at..at + bytes.len()].copy_from_slice(bytes);
        };
        let elements = |of: Elements<'_>| of.as_bytes().len() / of.dtype().size();
        let numbers = [
            target.dtype() as usize,
            piece.dim,
            self.target,
            elements(target),
            self.keys,
            piece.keys.len(),
            self.arguments,
            arguments.len(),
            self.inputs,
            piece.inputs.len(),
            self.result,
            self.result_bytes,
        ];
        put(self.record, &piece.first_index.to_le_bytes());
        for (n, number) in numbers.into_iter().enumerate() {
            // Addresses fit, as the memory has 32 bits and has grown to the end of the call.
            put(self.record + 8 + 4 * n, &(number as u32).to_le_bytes());
        }
        put(self.target, target.as_bytes());
        for (n, key) in piece.keys.iter().enumerate() {
            put(self.keys + 8 * n, &key.to_le_bytes());
        }
        put(self.arguments, arguments);
        let mut end = self.inputs;
        place(&mut end, piece.inputs.len() * 8);
        for (n, input) in piece.inputs.iter().enumerate() {
            let at = place(&mut end, input.as_bytes().len());
            put(self.inputs + 8 * n, &(at as u32).to_le_bytes());
            put(
                self.inputs + 8 * n + 4,
                &(elements(*input) as u32).to_le_bytes(),
            );
            put(at, input.as_bytes());
        }
    }
}
