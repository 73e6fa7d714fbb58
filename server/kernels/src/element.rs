//! The element types of rows, and the loops that run over rows of them.
//!
//! Bytes are split into arrays of one element's size, so a loop over elements has no bounds check
//! and no alignment requirement: `from_le_bytes` is a plain (unaligned) load, and the compiler
//! vectorises the loop.

use std::ops::{Add, Div, Mul, Neg, Sub};

/// Element type of rows: an integer or a float, with the arithmetic that kernels need.
pub(super) trait Element: Copy + PartialOrd {
    /// Little-endian bytes of one element, `[u8; size]`.
    type Bytes: Copy;

    /// Splits `bytes` into the bytes of complete elements. An incomplete one at the end is left out.
    fn split(bytes: &[u8]) -> &[Self::Bytes];
    /// Splits `bytes` into the bytes of complete elements, for writing. An incomplete one at the end is left out.
    fn split_mut(bytes: &mut [u8]) -> &mut [Self::Bytes];
    fn load(bytes: Self::Bytes) -> Self;
    fn store(self) -> Self::Bytes;

    /// Returns the sum of both. Integers wrap.
    fn plus(self, other: Self) -> Self;
    /// Returns the lesser of both; NaN if one is NaN, `self` if they are equal.
    fn lesser(self, other: Self) -> Self;
    /// Returns the greater of both; NaN if one is NaN, `self` if they are equal.
    fn greater(self, other: Self) -> Self;
    /// Divides by `by`. A float is divided by `by` rounded to its type; an integer is divided in f64, and the
    /// quotient is converted as by [`Element::nearest`].
    fn divided(self, by: f64) -> Self;
    /// Rounds to the nearest value of the type (ties to even). An integer type saturates, and takes 0 for NaN.
    fn nearest(value: f64) -> Self;
    /// Integer types: rounds down, saturates, and takes 0 for NaN. Floats: rounds as [`Element::nearest`].
    fn floor(value: f64) -> Self;
    /// Returns the smallest value of the type that is not below `bound`. `bound` must be in the type's range.
    fn not_below(bound: f64) -> Self;
    /// Returns the largest value of the type that is below `bound`. `bound` must be in the type's range, and
    /// above its smallest value.
    fn below(bound: f64) -> Self;
    /// Whether the element is neither NaN nor infinite; always true for integers. For a float it compiles to a
    /// mask and a compare on its bits.
    fn is_finite(self) -> bool;
}

/// Floating-point element type, for rows that take gradients.
pub(super) trait Float:
    Element
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    const ZERO: Self;
    fn sqrt(self) -> Self;
    fn abs(self) -> Self;
    /// Returns the magnitude of `self` with the sign of `sign`.
    fn copysign(self, sign: Self) -> Self;
    /// Converts the value to f64, exactly.
    fn widen(self) -> f64;
}

/// Implements the members of `Element` that have the same text for every type.
macro_rules! bytes_of {
    ($t:ty) => {
        type Bytes = [u8; size_of::<$t>()];

        #[inline(always)]
        fn split(bytes: &[u8]) -> &[Self::Bytes] {
            bytes.as_chunks().0
        }
        #[inline(always)]
        fn split_mut(bytes: &mut [u8]) -> &mut [Self::Bytes] {
            bytes.as_chunks_mut().0
        }
        #[inline(always)]
        fn load(bytes: Self::Bytes) -> Self {
            Self::from_le_bytes(bytes)
        }
        #[inline(always)]
        fn store(self) -> Self::Bytes {
            self.to_le_bytes()
        }
    };
}

macro_rules! float {
    ($t:ty, $exponent:expr) => {
        impl Element for $t {
            bytes_of!($t);

            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self + other
            }
            // A NaN in `self` compares false and is kept.
            #[inline(always)]
            fn lesser(self, other: Self) -> Self {
                if other < self || other.is_nan() {
                    other
                } else {
                    self
                }
            }
            #[inline(always)]
            fn greater(self, other: Self) -> Self {
                if other > self || other.is_nan() {
                    other
                } else {
                    self
                }
            }
            #[inline(always)]
            fn divided(self, by: f64) -> Self {
                self / Self::nearest(by)
            }
            #[inline(always)]
            fn nearest(value: f64) -> Self {
                value as $t
            }
            #[inline(always)]
            fn floor(value: f64) -> Self {
                Self::nearest(value)
            }
            fn not_below(bound: f64) -> Self {
                let near = Self::nearest(bound);
                if f64::from(near) < bound {
                    near.next_up()
                } else {
                    near
                }
            }
            fn below(bound: f64) -> Self {
                let near = Self::nearest(bound);
                if f64::from(near) < bound {
                    near
                } else {
                    near.next_down()
                }
            }
            #[inline(always)]
            fn is_finite(self) -> bool {
                self.to_bits() & $exponent != $exponent
            }
        }

        impl Float for $t {
            const ZERO: Self = 0.0;

            #[inline(always)]
            fn sqrt(self) -> Self {
                <$t>::sqrt(self)
            }
            #[inline(always)]
            fn abs(self) -> Self {
                <$t>::abs(self)
            }
            #[inline(always)]
            fn copysign(self, sign: Self) -> Self {
                <$t>::copysign(self, sign)
            }
            #[inline(always)]
            fn widen(self) -> f64 {
                self.into()
            }
        }
    };
}

// `as` between floats and integers is the intended conversion: it rounds or saturates.
#[allow(clippy::cast_possible_truncation)]
mod floats {
    use super::{Element, Float};
    float!(f32, 0x7f80_0000_u32);
    float!(f64, 0x7ff0_0000_0000_0000_u64);
}

macro_rules! integer {
    ($t:ty) => {
        impl Element for $t {
            bytes_of!($t);

            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn lesser(self, other: Self) -> Self {
                self.min(other)
            }
            #[inline(always)]
            fn greater(self, other: Self) -> Self {
                self.max(other)
            }
            #[inline(always)]
            fn divided(self, by: f64) -> Self {
                Self::nearest(self as f64 / by)
            }
            #[inline(always)]
            fn nearest(value: f64) -> Self {
                value.round_ties_even() as $t
            }
            #[inline(always)]
            fn floor(value: f64) -> Self {
                value.floor() as $t
            }
            fn not_below(bound: f64) -> Self {
                bound.ceil() as $t
            }
            fn below(bound: f64) -> Self {
                (bound.ceil() as $t).saturating_sub(1)
            }
            #[inline(always)]
            fn is_finite(self) -> bool {
                true
            }
        }
    };
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_lossless
)]
mod integers {
    use super::Element;
    integer!(i32);
    integer!(i64);
}

// The loops below stay functions of their own, called once a row: the compiler knows that a
// function's slices do not overlap and forgets it when it inlines them. It then guards the vector
// loop with comparisons of addresses, or keeps it scalar. Slices are cut to one length first, so
// that no index needs a check.

/// Sets `w[i] = f(w[i], x[i])` for all elements; the shorter slice bounds their number.
#[inline(never)]
pub(super) fn each<T: Element>(w: &mut [u8], x: &[u8], f: impl Fn(T, T) -> T) {
    let (w, x) = (T::split_mut(w), T::split(x));
    let len = w.len().min(x.len());
    let (w, x) = (&mut w[..len], &x[..len]);
    for i in 0..len {
        w[i] = f(T::load(w[i]), T::load(x[i])).store();
    }
}

/// Sets `(w[i], s[i]) = f(w[i], s[i], x[i])` for all elements: values and one state slot. The shortest slice
/// bounds their number.
#[inline(never)]
pub(super) fn each_with_one<T: Element>(
    w: &mut [u8],
    s: &mut [u8],
    x: &[u8],
    f: impl Fn(T, T, T) -> (T, T),
) {
    let (w, s, x) = (T::split_mut(w), T::split_mut(s), T::split(x));
    let len = w.len().min(s.len()).min(x.len());
    let (w, s, x) = (&mut w[..len], &mut s[..len], &x[..len]);
    for i in 0..len {
        let (new_w, new_s) = f(T::load(w[i]), T::load(s[i]), T::load(x[i]));
        w[i] = new_w.store();
        s[i] = new_s.store();
    }
}

/// Sets `(w[i], [a[i], b[i]]) = f(w[i], [a[i], b[i]], x[i])` for all elements: values and two state slots. The
/// shortest slice bounds their number.
#[inline(never)]
pub(super) fn each_with_two<T: Element>(
    w: &mut [u8],
    a: &mut [u8],
    b: &mut [u8],
    x: &[u8],
    f: impl Fn(T, [T; 2], T) -> (T, [T; 2]),
) {
    let (w, a, b, x) = (
        T::split_mut(w),
        T::split_mut(a),
        T::split_mut(b),
        T::split(x),
    );
    let len = w.len().min(a.len()).min(b.len()).min(x.len());
    let (w, a, b, x) = (&mut w[..len], &mut a[..len], &mut b[..len], &x[..len]);
    for i in 0..len {
        let (new_w, [new_a, new_b]) =
            f(T::load(w[i]), [T::load(a[i]), T::load(b[i])], T::load(x[i]));
        w[i] = new_w.store();
        a[i] = new_a.store();
        b[i] = new_b.store();
    }
}

/// Sets `(w[i], [a[i], b[i], c[i]]) = f(w[i], [a[i], b[i], c[i]], x[i])` for all elements: values and three
/// state slots. The shortest slice bounds their number.
#[inline(never)]
pub(super) fn each_with_three<T: Element>(
    w: &mut [u8],
    [a, b, c]: [&mut [u8]; 3],
    x: &[u8],
    f: impl Fn(T, [T; 3], T) -> (T, [T; 3]),
) {
    let (w, a, b, c, x) = (
        T::split_mut(w),
        T::split_mut(a),
        T::split_mut(b),
        T::split_mut(c),
        T::split(x),
    );
    let shortest = w.len().min(a.len()).min(b.len()).min(c.len());
    let len = shortest.min(x.len());
    let (w, a, b, c, x) = (
        &mut w[..len],
        &mut a[..len],
        &mut b[..len],
        &mut c[..len],
        &x[..len],
    );
    for i in 0..len {
        let state = [T::load(a[i]), T::load(b[i]), T::load(c[i])];
        let (new_w, [new_a, new_b, new_c]) = f(T::load(w[i]), state, T::load(x[i]));
        w[i] = new_w.store();
        a[i] = new_a.store();
        b[i] = new_b.store();
        c[i] = new_c.store();
    }
}
