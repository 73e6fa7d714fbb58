//! Operations on vectors: element by element, and those with a number as result.

use std::rc::Rc;

use tidewater_protocol::mutants::{Mutant, on};

use crate::float::Float;
use crate::space::Vector;
use tidewater::{ClientError, Reduction};

/// Defines operations with a new vector as result, and the same in place.
macro_rules! maps {
    ($($(#[$doc:meta])* $name:ident, $in_place:ident ($($vector:ident),*; $($number:ident),*) = $text:literal;)*) => {
        impl<T: Float> Vector<T> {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// [`ClientError::Argument`] for a vector of another space; a deadline.
                pub fn $name(&self $(, $vector: &Self)* $(, $number: T)*) -> Result<Self, ClientError> {
                    let result = Self::lease(&self.space)?;
                    result.assign($text, &[self $(, $vector)*], &[$($number.into()),*])?;
                    Ok(result)
                }

                #[doc = concat!("[`Vector::", stringify!($name), "`] in place.")]
                ///
                /// # Errors
                #[doc = concat!("As [`Vector::", stringify!($name), "`].")]
                pub fn $in_place(&mut self $(, $vector: &Self)* $(, $number: T)*) -> Result<(), ClientError> {
                    if Rc::strong_count(&self.lease) > 1 && !on(Mutant::ClonesChange) {
                        *self = self.$name($($vector,)* $($number),*)?;
                        return Ok(());
                    }
                    self.assign($text, &[self $(, $vector)*], &[$($number.into()),*])
                }
            )*
        }
    };
}

maps! {
    /// Sums of the elements of two vectors.
    add, add_assign(other; ) = "x + y";
    /// Differences of the elements of two vectors.
    sub, sub_assign(other; ) = "x - y";
    /// Products of the elements of two vectors.
    mul, mul_assign(other; ) = "x * y";
    /// Quotients of the elements of two vectors; IEEE 754 defines division by zero.
    div, div_assign(other; ) = "x / y";
    /// Smaller elements of two vectors; NaN if either is.
    min, min_assign(other; ) = "min(x, y)";
    /// Larger elements of two vectors; NaN if either is.
    max, max_assign(other; ) = "max(x, y)";
    /// This vector plus a multiple of another: `x + factor y`.
    scaled_add, scaled_add_assign(other; factor) = "x + p0 * y";
    /// This vector minus a multiple of another: `x - factor y`.
    scaled_sub, scaled_sub_assign(other; factor) = "x - p0 * y";
    /// Elements plus a number.
    add_scalar, add_scalar_assign(; number) = "x + p0";
    /// Elements minus a number.
    sub_scalar, sub_scalar_assign(; number) = "x - p0";
    /// A number minus each element.
    rsub_scalar, rsub_scalar_assign(; number) = "p0 - x";
    /// Elements times a number.
    scale, scale_assign(; number) = "x * p0";
    /// Elements divided by a number.
    div_scalar, div_scalar_assign(; number) = "x / p0";
    /// Elements to the power of a number.
    pow, pow_assign(; exponent) = "pow(x, p0)";
    /// Elements with the other sign.
    neg, neg_assign(; ) = "-x";
    /// Absolute values of the elements.
    abs, abs_assign(; ) = "abs(x)";
    /// Signs: -1, 0 or 1; NaN stays.
    sign, sign_assign(; ) = "sign(x)";
    /// Signs as of Rust's `signum`: 1 for +0, -1 for -0.
    signum, signum_assign(; ) = "signum(x)";
    /// Square roots of the elements.
    sqrt, sqrt_assign(; ) = "sqrt(x)";
    /// Exponentials of the elements.
    exp, exp_assign(; ) = "exp(x)";
    /// Exponentials minus 1, exact near 0.
    expm1, expm1_assign(; ) = "expm1(x)";
    /// Natural logarithms of the elements.
    log, log_assign(; ) = "log(x)";
    /// Natural logarithms of 1 plus each element, exact near 0.
    log1p, log1p_assign(; ) = "log1p(x)";
    /// Decimal logarithms of the elements.
    log10, log10_assign(; ) = "log10(x)";
    /// Largest integers that are not above each element.
    floor, floor_assign(; ) = "floor(x)";
    /// Smallest integers that are not below each element.
    ceil, ceil_assign(; ) = "ceil(x)";
    /// Nearest integers, halves away from 0.
    round, round_assign(; ) = "round(x)";
    /// Elements moved towards 0 by `threshold`, and 0 if they are nearer to it (soft threshold); NaN stays.
    soft_threshold, soft_threshold_assign(; threshold) =
        "if(x > p0, x - p0, if(x < -p0, x + p0, if(x == x, 0, x)))";
    /// Elements with an absolute value of at most `tolerance` become 0.
    compress, compress_assign(; tolerance) = "if(abs(x) <= p0, 0, x)";
    /// Elements limited to `[low, high]`; NaN stays.
    clamp, clamp_assign(; low, high) = "max(p0, min(x, p1))";
}

/// Defines operations with a number as result.
macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident($($vector:ident),*) = $reduction:ident $text:literal $(, $then:expr)?;)*) => {
        impl<T: Float> Vector<T> {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// [`ClientError::Argument`] for a vector of another space; the failure of an earlier
                /// operation; a deadline.
                pub fn $name(&self $(, $vector: &Self)*) -> Result<f64, ClientError> {
                    let value = self.combine($text, Reduction::$reduction, &[self $(, $vector)*])?;
                    $(let value = ($then)(value);)?
                    Ok(value)
                }
            )*
        }
    };
}

reductions! {
    /// Inner product. Products are rounded in the element type, and summed in f64 with compensation: the same bits on any
    /// number of servers.
    dot(other) = Sum "x * y";
    /// Sum of the elements.
    sum() = Sum "x";
    /// Sum of the absolute values: the norm L1.
    asum() = Sum "abs(x)";
    /// Euclidean norm. Squares are rounded in the element type: in f32 they overflow above 1.8e19, and are 0 below 1e-23.
    nrm2() = Sum "x * x", f64::sqrt;
    /// Largest element; NaN if one is.
    largest() = Max "x";
    /// Smallest element; NaN if one is.
    smallest() = Min "x";
    /// Largest absolute value: the norm L-infinity.
    amax() = Max "abs(x)";
    /// Smallest absolute value; NaN if one element is.
    amin() = Min "abs(x)";
    /// Number of elements that are not 0.
    nnz() = Sum "if(x != 0, 1, 0)";
    /// Largest difference of two elements of one index.
    distance(other) = Max "abs(x - y)";
}

impl<T: Float> Vector<T> {
    /// Adds a multiple of another vector: `self += factor x`.
    ///
    /// # Errors
    /// [`ClientError::Argument`] for a vector of another space; a deadline.
    pub fn axpy(&mut self, factor: T, x: &Self) -> Result<(), ClientError> {
        self.scaled_add_assign(x, factor)
    }

    /// Sets all elements to a number.
    ///
    /// # Errors
    /// A deadline.
    pub fn fill(&mut self, value: T) -> Result<(), ClientError> {
        if Rc::strong_count(&self.lease) == 1 {
            return self.assign("p0", &[], &[value.into()]);
        }
        let other = Self::lease(&self.space)?;
        other.assign("p0", &[], &[value.into()])?;
        *self = other;
        Ok(())
    }

    /// A vector with the same elements, that does not follow later changes of this one.
    ///
    /// # Errors
    /// A deadline.
    pub fn copy(&self) -> Result<Self, ClientError> {
        let copy = Self::lease(&self.space)?;
        copy.assign("x", &[self], &[])?;
        Ok(copy)
    }

    /// A vector of zeroes in the same space (Angel's `duplicate`).
    ///
    /// # Errors
    /// A deadline.
    pub fn zeros_like(&self) -> Result<Self, ClientError> {
        self.space().zeros()
    }

    /// Whether elements of equal index differ by less than `tolerance`. NaN is equal to nothing.
    ///
    /// # Errors
    /// As [`Vector::dot`].
    pub fn is_near(&self, other: &Self, tolerance: f64) -> Result<bool, ClientError> {
        Ok(self.distance(other)? < tolerance)
    }

    /// Keeps a failed operation's error in the space, and stands in for its result.
    pub(crate) fn or_keep(&self, result: Result<Self, ClientError>) -> Self {
        result.unwrap_or_else(|error| {
            self.space.keep_failure(error);
            self.clone()
        })
    }

    /// Keeps a failed operation's error in the space; the result is NaN then.
    #[cfg_attr(not(feature = "argmin"), allow(dead_code, reason = "for solvers"))]
    pub(crate) fn or_nan(&self, result: Result<f64, ClientError>) -> f64 {
        result.unwrap_or_else(|error| {
            self.space.keep_failure(error);
            f64::NAN
        })
    }
}

/// Defines operators on references. A failure is kept: see the module.
macro_rules! operators {
    ($($trait:ident $method:ident $name:ident $scalar:ident;)*) => {
        $(
            impl<T: Float> std::ops::$trait for &Vector<T> {
                type Output = Vector<T>;

                fn $method(self, other: Self) -> Vector<T> {
                    self.or_keep(self.$name(other))
                }
            }

            impl<T: Float> std::ops::$trait<T> for &Vector<T> {
                type Output = Vector<T>;

                fn $method(self, number: T) -> Vector<T> {
                    self.or_keep(self.$scalar(number))
                }
            }
        )*
    };
}

operators! {
    Add add add add_scalar;
    Sub sub sub sub_scalar;
    Mul mul mul scale;
    Div div div div_scalar;
}

impl<T: Float> std::ops::Neg for &Vector<T> {
    type Output = Vector<T>;

    fn neg(self) -> Vector<T> {
        self.or_keep(Vector::neg(self))
    }
}
