//! Encodings of the values of a push: 16-bit floats, and bytes with one scale a block.
//!
//! ```text
//! Bf16, F16   2 bytes an element
//! Int8        u32 elements of a block | f32 scale of each block | i8 of each element
//! ```
//! All values of a frame are one sequence; only its last block may be shorter. Element `i` of an Int8
//! block is `i8 x scale`, rounded to f32. A decoded value is an f32, which is exact in f64.
//!
//! The encoder takes finite values. It rounds to nearest and saturates at the largest finite value; an
//! all-zero block has scale 0. What rounding loses is the caller's to keep
//! ([error feedback](https://arxiv.org/abs/1901.09847)).

use crate::limits::{ENCODING_BLOCK_MAX, ENCODING_BLOCK_MIN};
use crate::table::DType;

/// Wire encoding of a push's values, as the caller selects it: exact, 16-bit floats, or 8-bit integers with
/// scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PushEncoding {
    /// Elements of the table's type, exact.
    #[default]
    Exact,
    /// Brain floating point: 8 bits of exponent as `f32`, 7 of mantissa.
    Bf16,
    /// IEEE 754 binary16: 5 bits of exponent, 10 of mantissa, at most 65,504.
    F16,
    /// 8-bit integers in -127..=127, with one f32 scale for each block of `block` elements of a frame.
    Int8 {
        /// Elements of a block, 8 to 65,536.
        block: u32,
    },
}

/// Wire code of a lossy encoding, in the flags of a push frame. Exact values have no code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum EncodingCode {
    /// Two bytes an element, [`PushEncoding::Bf16`].
    Bf16 = 1,
    /// Two bytes an element, [`PushEncoding::F16`].
    F16 = 2,
    /// Scales and a byte an element, [`PushEncoding::Int8`].
    Int8 = 3,
}

/// Bytes before the scales of an Int8 encoding: a u32 with the number of elements of a block.
const INT8_HEAD_BYTES: usize = 4;
/// Largest magnitude of an Int8 element. -128 is not used, so that positive and negative values have the same
/// range.
const INT8_MAX: f64 = 127.0;

impl EncodingCode {
    /// Returns the encoding of a wire code; `None` for 0 (exact values) and unknown codes.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Bf16),
            2 => Some(Self::F16),
            3 => Some(Self::Int8),
            _ => None,
        }
    }
}

impl PushEncoding {
    /// Elements of an Int8 block by default. One f32 scale for 64 elements adds 1/16 to the bytes of the
    /// elements.
    pub const INT8_BLOCK: u32 = 64;

    /// [`PushEncoding::Int8`] with the default block of [`PushEncoding::INT8_BLOCK`] elements.
    pub const INT8: Self = Self::Int8 {
        block: Self::INT8_BLOCK,
    };

    /// Returns the wire code for a frame's flags; `None` for [`PushEncoding::Exact`], which has no code.
    pub const fn code(self) -> Option<EncodingCode> {
        match self {
            Self::Exact => None,
            Self::Bf16 => Some(EncodingCode::Bf16),
            Self::F16 => Some(EncodingCode::F16),
            Self::Int8 { .. } => Some(EncodingCode::Int8),
        }
    }

    /// Whether the block size of [`PushEncoding::Int8`] is within its limits, 8 to 65,536 elements. True for
    /// the encodings without blocks.
    pub const fn is_valid(self) -> bool {
        match self {
            Self::Int8 { block } => is_block(block),
            Self::Exact | Self::Bf16 | Self::F16 => true,
        }
    }
}

const fn is_block(elements: u32) -> bool {
    ENCODING_BLOCK_MIN <= elements && elements <= ENCODING_BLOCK_MAX
}

/// Returns the number of bytes that `elements` encoded values take. `bytes` are the encoded values, of which only the
/// block size of Int8 is read, from the first 4 bytes. `None` if the block size of Int8 is out of range, or if `bytes`
/// has fewer than 4 bytes with Int8.
pub fn encoded_bytes(code: EncodingCode, elements: usize, bytes: &[u8]) -> Option<usize> {
    match code {
        EncodingCode::Bf16 | EncodingCode::F16 => Some(2 * elements),
        EncodingCode::Int8 => {
            let head = bytes.first_chunk::<INT8_HEAD_BYTES>();
            let block = head.map_or(0, |head| u32::from_le_bytes(*head));
            let scales = elements.div_ceil(is_block(block).then_some(block as usize)?);
            Some(INT8_HEAD_BYTES + 4 * scales + elements)
        }
    }
}

/// Decodes `elements` values from `bytes`, which hold them and nothing else, and appends them to `out` as little-endian
/// elements of `dtype`: f64 for [`DType::F64`], else f32. Cost: one pass; at most 8 bytes for each byte of `bytes`.
///
/// # Errors
/// The expected number of bytes, where `bytes` has another; 0 for an Int8 block size that is out of range or missing.
/// `out` is unchanged.
pub fn decode(
    code: EncodingCode,
    elements: usize,
    dtype: DType,
    bytes: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), usize> {
    let expected = encoded_bytes(code, elements, bytes).unwrap_or_default();
    if bytes.len() != expected {
        return Err(expected);
    }
    out.reserve(elements * dtype.size());
    let mut put = |value: f32| match dtype {
        DType::F64 => out.extend_from_slice(&f64::from(value).to_le_bytes()),
        _ => out.extend_from_slice(&value.to_le_bytes()),
    };
    match code {
        EncodingCode::Bf16 => pairs(bytes).for_each(|bits| put(bf16_value(bits))),
        EncodingCode::F16 => pairs(bytes).for_each(|bits| put(f16_value(bits))),
        EncodingCode::Int8 => {
            let (head, rest) = bytes.split_first_chunk::<INT8_HEAD_BYTES>().ok_or(0usize)?;
            let block = u32::from_le_bytes(*head) as usize;
            let (scales, values) = rest.split_at(4 * elements.div_ceil(block));
            let (scales, _) = scales.as_chunks::<4>();
            for (scale, values) in scales.iter().zip(values.chunks(block)) {
                let scale = f32::from_le_bytes(*scale);
                values.iter().for_each(|&v| put(f32::from(v as i8) * scale));
            }
        }
    }
    Ok(())
}

fn pairs(bytes: &[u8]) -> impl Iterator<Item = u16> + '_ {
    let (pairs, _) = bytes.as_chunks::<2>();
    pairs.iter().map(|pair| u16::from_le_bytes(*pair))
}

/// Encodes finite `values` into `out`, which is cleared first. Replaces each of `values` by the value that the receiver
/// decodes, so that the caller can compute the rounding error and keep it. `dtype` matters for [`PushEncoding::Exact`]
/// only, which gives f64 for [`DType::F64`], else f32.
pub fn encode(encoding: PushEncoding, dtype: DType, values: &mut [f64], out: &mut Vec<u8>) {
    out.clear();
    match encoding {
        PushEncoding::Exact if dtype == DType::F64 => {
            out.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        }
        PushEncoding::Exact => each(values, out, |v| {
            let rounded = saturated(v);
            (rounded.to_le_bytes(), rounded)
        }),
        PushEncoding::Bf16 => each(values, out, |v| {
            let bits = bf16_bits(saturated(v));
            (bits.to_le_bytes(), bf16_value(bits))
        }),
        PushEncoding::F16 => each(values, out, |v| {
            let bits = f16_bits(saturated(v));
            (bits.to_le_bytes(), f16_value(bits))
        }),
        PushEncoding::Int8 { block } => {
            out.extend_from_slice(&block.to_le_bytes());
            let block = block.max(1) as usize;
            let scales = values.chunks(block).map(scale_of);
            scales.for_each(|scale| out.extend_from_slice(&scale.to_le_bytes()));
            for values in values.chunks_mut(block) {
                let scale = scale_of(values);
                each(values, out, |v| {
                    let steps = match scale > 0.0 {
                        true => (v / f64::from(scale)).round_ties_even(),
                        false => 0.0,
                    };
                    let steps = steps.clamp(-INT8_MAX, INT8_MAX) as i8;
                    (steps.to_le_bytes(), f32::from(steps) * scale)
                });
            }
        }
    }
}

fn each<const N: usize>(
    values: &mut [f64],
    out: &mut Vec<u8>,
    encode: impl Fn(f64) -> ([u8; N], f32),
) {
    for value in values {
        let (bytes, decoded) = encode(*value);
        out.extend_from_slice(&bytes);
        *value = decoded.into();
    }
}

/// Rounds to the nearest f32. Values beyond the finite range become plus or minus the largest f32; NaN stays NaN.
pub const fn saturated(value: f64) -> f32 {
    value.clamp(-(f32::MAX as f64), f32::MAX as f64) as f32
}

/// Scale of an Int8 block: its largest magnitude divided by 127. Rounded down if 127 times the scale would
/// overflow an f32.
fn scale_of(values: &[f64]) -> f32 {
    let most = values.iter().fold(0.0f64, |most, v| most.max(v.abs()));
    let scale = (f64::from(saturated(most)) / INT8_MAX) as f32;
    match (INT8_MAX as f32 * scale).is_finite() {
        true => scale,
        false => scale.next_down(),
    }
}

/// Bits of the bf16 nearest to a finite value, ties to even. Saturates at the largest finite bf16.
const fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16;
    // Above the largest finite value: the carry made infinity.
    rounded - (rounded & 0x7fff == 0x7f80) as u16
}

/// Decodes the bits of a bf16 to its value, exactly.
const fn bf16_value(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// Bits of the IEEE binary16 nearest to a finite value, ties to even. Saturates at 65,504.
fn f16_bits(value: f32) -> u16 {
    let (bits, sign) = (
        value.to_bits() & 0x7fff_ffff,
        (value.to_bits() >> 16) as u16 & 0x8000,
    );
    let magnitude = match value.abs() < f32::from_bits(0x3880_0000) {
        // Below 2^-14 an f16 is a multiple of 2^-24.
        true => (value.abs() * 16_777_216.0).round_ties_even() as u16,
        // The exponent's bias is 15 in place of 127; the carry of a mantissa raises the exponent.
        false => (((bits + 0xfff + (bits >> 13 & 1)) >> 13) - (112 << 10)).min(0x7bff) as u16,
    };
    sign | magnitude
}

/// Decodes the bits of an IEEE binary16 to its value, exactly; infinity and NaN included.
fn f16_value(bits: u16) -> f32 {
    let (exponent, mantissa) = (u32::from(bits) >> 10 & 31, u32::from(bits) & 0x3ff);
    let magnitude = match exponent {
        0 => mantissa as f32 / 16_777_216.0,
        31 => f32::from_bits(0x7f80_0000 | mantissa << 13),
        _ => f32::from_bits((exponent + 112) << 23 | mantissa << 13),
    };
    f32::from_bits(magnitude.to_bits() | u32::from(bits & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [PushEncoding; 4] = [
        PushEncoding::Bf16,
        PushEncoding::F16,
        PushEncoding::INT8,
        PushEncoding::Int8 { block: 8 },
    ];

    fn decoded(encoding: PushEncoding, elements: usize, bytes: &[u8]) -> Vec<f64> {
        let (mut f64s, mut f32s) = (Vec::new(), Vec::new());
        let code = encoding.code().unwrap();
        decode(code, elements, DType::F64, bytes, &mut f64s).unwrap();
        decode(code, elements, DType::F32, bytes, &mut f32s).unwrap();
        let (f64s, _) = f64s.as_chunks::<8>();
        let (f32s, _) = f32s.as_chunks::<4>();
        let wide = f64s.iter().map(|b| f64::from_le_bytes(*b));
        let narrow = f32s.iter().map(|b| f64::from(f32::from_le_bytes(*b)));
        assert!(wide.clone().eq(narrow), "an f32 in every type");
        wide.collect()
    }

    /// Value of 16 bits by the definition of IEEE 754: sign, exponent, mantissa.
    fn by_definition(bits: u16, mantissa_bits: u32) -> f64 {
        let exponent_bits = 15 - mantissa_bits;
        let bias = (1 << (exponent_bits - 1)) - 1;
        let mantissa = f64::from(bits & ((1 << mantissa_bits) - 1));
        let exponent = i32::from(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
        let one = 2f64.powi(mantissa_bits as i32);
        let magnitude = match exponent {
            0 => mantissa / one * 2f64.powi(1 - bias),
            _ => (1.0 + mantissa / one) * 2f64.powi(exponent - bias),
        };
        if bits >> 15 == 1 {
            -magnitude
        } else {
            magnitude
        }
    }

    /// Every finite pattern of 16 bits has the value of the definition and encodes to itself. Between
    /// two neighbours the nearer one is taken, and the even one in the middle.
    #[test]
    fn all_16_bit_floats_round_to_nearest() {
        type Bits = fn(f32) -> u16;
        type Value = fn(u16) -> f32;
        let formats: [(u32, Bits, Value); 2] =
            [(7, bf16_bits, bf16_value), (10, f16_bits, f16_value)];
        for (mantissa_bits, to_bits, to_value) in formats {
            let infinity = 0x7fff >> mantissa_bits << mantissa_bits;
            for bits in 0..=u16::MAX {
                let (magnitude, value) = (bits & 0x7fff, to_value(bits));
                if magnitude >= infinity {
                    assert_eq!(value.is_nan(), magnitude > infinity, "{bits:#06x}");
                    assert!(!value.is_finite(), "{bits:#06x}");
                    continue;
                }
                assert_eq!(
                    f64::from(value),
                    by_definition(bits, mantissa_bits),
                    "{bits:#06x}"
                );
                assert_eq!(to_bits(value), bits, "{bits:#06x} to itself");
                if magnitude + 1 == infinity {
                    let far = f32::MAX.copysign(value);
                    assert_eq!(to_bits(far), bits, "saturates");
                    continue;
                }
                let sum = f64::from(value) + f64::from(to_value(bits + 1));
                let middle = (sum / 2.0) as f32;
                let even = bits + (bits & 1);
                assert_eq!(to_bits(middle), even, "tie after {bits:#06x}");
                let (up, down) = (middle.abs().next_up(), middle.abs().next_down());
                assert_eq!(to_bits(up.copysign(value)), bits + 1, "above {bits:#06x}");
                assert_eq!(to_bits(down.copysign(value)), bits, "below {bits:#06x}");
            }
        }
    }

    #[test]
    fn encoded_values_decode_to_what_the_encoder_says() {
        for encoding in ALL {
            for elements in [0, 1, 3, 7, 8, 64, 65, 200] {
                let value = |n: usize| (n as f64 * 0.37).sin() * 10f64.powi(n as i32 % 5);
                let given: Vec<f64> = (0..elements).map(value).collect();
                let (mut values, mut bytes) = (given.clone(), vec![9]);
                encode(encoding, DType::F64, &mut values, &mut bytes);
                let code = encoding.code().unwrap();
                assert_eq!(encoded_bytes(code, elements, &bytes), Some(bytes.len()));
                assert_eq!(decoded(encoding, elements, &bytes), values, "{encoding:?}");
                let most = given.iter().fold(0.0f64, |most, v| most.max(v.abs()));
                for (given, got) in given.iter().zip(&values) {
                    let bound = match encoding {
                        PushEncoding::Bf16 => given.abs() / 256.0,
                        PushEncoding::F16 => given.abs() / 2048.0,
                        _ => most / 253.9,
                    };
                    assert!((given - got).abs() <= bound, "{encoding:?}: {given} {got}");
                }
            }
        }
    }

    /// Zero blocks, blocks without room for a scale, and values beyond every range stay finite.
    #[test]
    fn extreme_blocks_stay_finite() {
        let extremes = [
            0.0,
            -0.0,
            1e-45,
            -1e-310,
            1e300,
            f64::MAX,
            -f64::from(f32::MAX),
            65520.0,
        ];
        for encoding in ALL {
            for value in extremes {
                let mut values = [value, 0.0, -value];
                let mut bytes = Vec::new();
                encode(encoding, DType::F32, &mut values, &mut bytes);
                assert_eq!(
                    decoded(encoding, 3, &bytes),
                    values,
                    "{encoding:?} of {value}"
                );
                assert!(
                    values.iter().all(|v| v.is_finite()),
                    "{encoding:?} of {value}"
                );
                let bound = value.abs() * (1.0 + 1.0 / 256.0);
                assert!(
                    values.iter().all(|v| v.abs() <= bound),
                    "{encoding:?} of {value}"
                );
            }
        }
    }

    #[test]
    fn other_lengths_and_blocks_are_refused() {
        let mut out = Vec::new();
        let mut refused = |code, elements, bytes: &[u8]| {
            decode(code, elements, DType::F32, bytes, &mut out).unwrap_err()
        };
        assert_eq!(refused(EncodingCode::F16, 3, &[0; 5]), 6);
        assert_eq!(refused(EncodingCode::Int8, 1, &[]), 0);
        let of = |block: u32| [&block.to_le_bytes()[..], &[0; 9]].concat();
        assert_eq!(refused(EncodingCode::Int8, 5, &of(7)), 0, "block of 7");
        assert_eq!(refused(EncodingCode::Int8, 5, &of(65_537)), 0);
        assert_eq!(refused(EncodingCode::Int8, 6, &of(8)), 14);
        assert_eq!(
            refused(EncodingCode::Int8, usize::MAX / 8, &of(8)).min(14),
            14
        );
        assert!(out.is_empty());
        decode(EncodingCode::Int8, 5, DType::F32, &of(8), &mut out).unwrap();
        assert_eq!(out, [0; 20]);
    }
}
