//! Arithmetic of the four element types.
//!
//! Every operation is a function of its operands' bits: no operation depends on the host. Functions are inline
//! because kernels in other codegen units vectorize them.

use std::fmt::Debug;

use tidewater_protocol::table::DType;

use crate::loops::{Binary, Unary, each, pairs};
use crate::operation::Operation;
use crate::reduction::Scalar;
use crate::sums::{CompensatedSums, IntegerSums, Sums, WideSums};

/// Element type of a table that programs compute over: `f32`, `f64`, `i32` or `i64`.
///
/// The trait is sealed: other crates cannot implement it.
pub trait Element: Arithmetic {
    /// Element type of tables with such elements.
    const DTYPE: DType;
}

impl<T: Arithmetic> Element for T {
    const DTYPE: DType = T::TYPE;
}

/// Operations that kernels and reductions are made of; seals [`Element`].
#[allow(unreachable_pub, reason = "seals a public trait")]
pub trait Arithmetic: Copy + Default + PartialOrd + Debug + Send + Sync + 'static {
    /// Element type of the tables.
    const TYPE: DType;
    /// Number 0; false in registers and results.
    const ZERO: Self;
    /// Number 1; true in results.
    const ONE: Self;
    /// Neutral element of `larger`.
    const LEAST: Self;
    /// Neutral element of `smaller`.
    const GREATEST: Self;
    /// Accumulators of a sum.
    type Sums: Sums<Self>;

    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn negated(self) -> Self;
    fn magnitude(self) -> Self;
    fn sign(self) -> Self;
    /// Returns the kernel of a unary operation that only floating point has.
    fn float_unary(operation: Operation) -> Option<Unary<Self>>;
    /// Returns the kernel of a binary operation that only floating point has.
    fn float_binary(operation: Operation) -> Option<Binary<Self>>;
    /// Replaces each NaN by the canonical one.
    fn canonicalize(values: &mut [Self]);
    /// Reads the bits of a constant.
    fn from_constant(bits: u64) -> Self;
    /// Converts a parameter; `None` if the type cannot hold it.
    fn from_parameter(value: f64) -> Option<Self>;
    /// Converts an index; exact in F64 and I64, where programs use it.
    fn from_index(index: u64) -> Self;
    /// Widens to the type of results.
    fn widened(self) -> Scalar;

    /// Returns a truth value as registers hold it: all bits set or none, as vector comparisons give it.
    fn truth(value: bool) -> Self;
    /// Whether a truth value is true.
    fn is_true(self) -> bool;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn not(self) -> Self;

    /// Chooses by a truth value.
    #[inline]
    fn select(self, then: Self, otherwise: Self) -> Self {
        self.and(then).or(self.not().and(otherwise))
    }

    /// Returns a truth value as results have it: 1 or 0.
    #[inline]
    fn counted(self) -> Self {
        self.and(Self::ONE)
    }
}

/// Implements the trait for a floating point type. Numbers of at least `$whole` have no fraction.
macro_rules! float {
    ($type:ident, $bits:ident, $dtype:expr, $nan:expr, $whole:expr, $sums:ty, $math:ident) => {
        mod $math {
            /// Rounds towards zero. Adding and subtracting `$whole` rounds to the nearest integer.
            #[inline]
            pub(super) fn trunc(x: $type) -> $type {
                let magnitude = x.abs();
                let nearest = (magnitude + $whole) - $whole;
                let down = if nearest > magnitude {
                    nearest - 1.0
                } else {
                    nearest
                };
                if magnitude < $whole {
                    down.copysign(x)
                } else {
                    x
                }
            }

            #[inline]
            pub(super) fn floor(x: $type) -> $type {
                let towards_zero = trunc(x);
                if towards_zero > x {
                    towards_zero - 1.0
                } else {
                    towards_zero
                }
            }

            #[inline]
            pub(super) fn ceil(x: $type) -> $type {
                -floor(-x)
            }

            #[inline]
            pub(super) fn round(x: $type) -> $type {
                let towards_zero = trunc(x);
                let fraction = (x - towards_zero).abs();
                let away = towards_zero + (1.0 as $type).copysign(x);
                if fraction >= 0.5 { away } else { towards_zero }
            }

            #[inline]
            pub(super) fn signum(x: $type) -> $type {
                if x.is_nan() {
                    x
                } else {
                    (1.0 as $type).copysign(x)
                }
            }

            /// The sign of a NaN differs between processors, so that it counts as plus.
            #[inline]
            pub(super) fn copysign(x: $type, sign: $type) -> $type {
                if sign.is_nan() {
                    x.abs()
                } else {
                    x.copysign(sign)
                }
            }
        }

        impl Arithmetic for $type {
            const TYPE: DType = $dtype;
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LEAST: Self = Self::NEG_INFINITY;
            const GREATEST: Self = Self::INFINITY;
            type Sums = $sums;

            #[inline]
            fn plus(self, other: Self) -> Self {
                self + other
            }

            #[inline]
            fn minus(self, other: Self) -> Self {
                self - other
            }

            #[inline]
            fn times(self, other: Self) -> Self {
                self * other
            }

            #[inline]
            fn smaller(self, other: Self) -> Self {
                // Equal numbers with different bits are the two zeros.
                let zero = Self::from_bits(self.to_bits() | other.to_bits());
                let less = if self < other { self } else { other };
                let number = if self == other { zero } else { less };
                if self.is_nan() { self } else { number }
            }

            #[inline]
            fn larger(self, other: Self) -> Self {
                let zero = Self::from_bits(self.to_bits() & other.to_bits());
                let more = if self > other { self } else { other };
                let number = if self == other { zero } else { more };
                if self.is_nan() { self } else { number }
            }

            #[inline]
            fn negated(self) -> Self {
                -self
            }

            #[inline]
            fn magnitude(self) -> Self {
                self.abs()
            }

            #[inline]
            fn sign(self) -> Self {
                let positive = if self > 0.0 { 1.0 } else { 0.0 };
                let number = if self < 0.0 { -1.0 } else { positive };
                if self.is_nan() { self } else { number }
            }

            fn float_unary(operation: Operation) -> Option<Unary<Self>> {
                let kernel: Unary<Self> = match operation {
                    Operation::SquareRoot => |out, a| each(out, a, Self::sqrt),
                    Operation::Exp => |out, a| each(out, a, libm_of::$type::exp),
                    Operation::ExpM1 => |out, a| each(out, a, libm_of::$type::expm1),
                    Operation::Log => |out, a| each(out, a, libm_of::$type::log),
                    Operation::Log1p => |out, a| each(out, a, libm_of::$type::log1p),
                    Operation::Log10 => |out, a| each(out, a, libm_of::$type::log10),
                    Operation::Floor => |out, a| each(out, a, $math::floor),
                    Operation::Ceil => |out, a| each(out, a, $math::ceil),
                    Operation::Round => |out, a| each(out, a, $math::round),
                    Operation::Trunc => |out, a| each(out, a, $math::trunc),
                    Operation::Signum => |out, a| each(out, a, $math::signum),
                    Operation::IsNan => |out, a| each(out, a, |a| Self::truth(a.is_nan())),
                    _ => return None,
                };
                Some(kernel)
            }

            fn float_binary(operation: Operation) -> Option<Binary<Self>> {
                let kernel: Binary<Self> = match operation {
                    Operation::Divide => |out, a, b| pairs(out, a, b, |a, b| a / b),
                    Operation::Power => |out, a, b| pairs(out, a, b, libm_of::$type::pow),
                    Operation::CopySign => |out, a, b| pairs(out, a, b, $math::copysign),
                    _ => return None,
                };
                Some(kernel)
            }

            fn canonicalize(values: &mut [Self]) {
                // NaN is rare: the first loop only reads, and compiles to three vector operations. The
                // difference is negative for bits above those of infinity.
                const INFINITE: $bits = <$type>::INFINITY.to_bits();
                let differences = values.iter().fold(0, |all, value| {
                    all | INFINITE.wrapping_sub(value.to_bits() & <$bits>::MAX >> 1)
                });
                if differences >> (<$bits>::BITS - 1) != 0 {
                    for value in values {
                        *value = if value.is_nan() { $nan } else { *value };
                    }
                }
            }

            #[inline]
            fn truth(value: bool) -> Self {
                Self::from_bits((value as $bits).wrapping_neg())
            }

            #[inline]
            fn is_true(self) -> bool {
                self.to_bits() != 0
            }

            #[inline]
            fn and(self, other: Self) -> Self {
                Self::from_bits(self.to_bits() & other.to_bits())
            }

            #[inline]
            fn or(self, other: Self) -> Self {
                Self::from_bits(self.to_bits() | other.to_bits())
            }

            #[inline]
            fn not(self) -> Self {
                Self::from_bits(!self.to_bits())
            }

            #[inline]
            fn from_constant(bits: u64) -> Self {
                Self::from_bits(bits as $bits)
            }

            #[inline]
            fn from_parameter(value: f64) -> Option<Self> {
                let converted = value as Self;
                (converted.is_infinite() == value.is_infinite()).then_some(converted)
            }

            #[inline]
            fn from_index(index: u64) -> Self {
                index as Self
            }

            #[inline]
            fn widened(self) -> Scalar {
                Scalar::Float(if self.is_nan() {
                    crate::NAN_F64
                } else {
                    self.into()
                })
            }
        }
    };
}

/// Functions of `libm` under one name for both widths.
mod libm_of {
    pub(super) mod f32 {
        pub(crate) use libm::{
            expf as exp, expm1f as expm1, log1pf as log1p, log10f as log10, logf as log,
            powf as pow,
        };
    }
    pub(super) mod f64 {
        pub(crate) use libm::{exp, expm1, log, log1p, log10, pow};
    }
}

float!(
    f32,
    u32,
    DType::F32,
    crate::NAN_F32,
    8_388_608.0,
    WideSums,
    math_f32
);
float!(
    f64,
    u64,
    DType::F64,
    crate::NAN_F64,
    4_503_599_627_370_496.0,
    CompensatedSums,
    math_f64
);

/// Implements the trait for an integer type.
macro_rules! integer {
    ($type:ident, $dtype:expr) => {
        impl Arithmetic for $type {
            const TYPE: DType = $dtype;
            const ZERO: Self = 0;
            const ONE: Self = 1;
            const LEAST: Self = Self::MIN;
            const GREATEST: Self = Self::MAX;
            type Sums = IntegerSums;

            #[inline]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline]
            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }

            #[inline]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline]
            fn smaller(self, other: Self) -> Self {
                if self < other { self } else { other }
            }

            #[inline]
            fn larger(self, other: Self) -> Self {
                if self > other { self } else { other }
            }

            #[inline]
            fn negated(self) -> Self {
                self.wrapping_neg()
            }

            #[inline]
            fn magnitude(self) -> Self {
                self.wrapping_abs()
            }

            #[inline]
            fn sign(self) -> Self {
                Self::from(self > 0) - Self::from(self < 0)
            }

            fn float_unary(_: Operation) -> Option<Unary<Self>> {
                None
            }

            fn float_binary(_: Operation) -> Option<Binary<Self>> {
                None
            }

            fn canonicalize(_: &mut [Self]) {}

            #[inline]
            fn truth(value: bool) -> Self {
                (value as Self).wrapping_neg()
            }

            #[inline]
            fn is_true(self) -> bool {
                self != 0
            }

            #[inline]
            fn and(self, other: Self) -> Self {
                self & other
            }

            #[inline]
            fn or(self, other: Self) -> Self {
                self | other
            }

            #[inline]
            fn not(self) -> Self {
                !self
            }

            #[inline]
            fn from_constant(bits: u64) -> Self {
                bits as Self
            }

            #[inline]
            fn from_parameter(value: f64) -> Option<Self> {
                // The bounds are powers of two, exact in f64.
                let least = Self::MIN as f64;
                let integer = value >= least && value < -least && value.trunc() == value;
                integer.then_some(value as Self)
            }

            #[inline]
            fn from_index(index: u64) -> Self {
                index as Self
            }

            #[inline]
            fn widened(self) -> Scalar {
                Scalar::Integer(self.into())
            }
        }
    };
}

integer!(i32, DType::I32);
integer!(i64, DType::I64);
