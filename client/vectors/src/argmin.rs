//! The mathematics of argmin's solvers on vectors of the servers.
//!
//! argmin's traits return values, not errors: a failure is kept in the space, see
//! [`VectorSpace::check`](crate::VectorSpace::check). Cost and gradient of a problem call it first.

use argmin_math::{
    ArgminAdd, ArgminDiv, ArgminDot, ArgminL1Norm, ArgminL2Norm, ArgminMinMax, ArgminMul,
    ArgminSignum, ArgminSub, ArgminZeroLike,
};

use crate::float::Float;
use crate::space::Vector;

/// Defines traits with a vector as result, of two vectors and of a vector and a number.
macro_rules! element_wise {
    ($($trait:ident $method:ident $name:ident $scalar:ident;)*) => {
        $(
            impl<T: Float> $trait<Self, Self> for Vector<T> {
                fn $method(&self, other: &Self) -> Self {
                    self.or_keep(Vector::$name(self, other))
                }
            }

            impl<T: Float> $trait<T, Self> for Vector<T> {
                fn $method(&self, number: &T) -> Self {
                    self.or_keep(Vector::$scalar(self, *number))
                }
            }
        )*
    };
}

element_wise! {
    ArgminAdd add add add_scalar;
    ArgminSub sub sub sub_scalar;
    ArgminMul mul mul scale;
    ArgminDiv div div div_scalar;
}

impl<T: Float> ArgminDot<Self, T> for Vector<T> {
    fn dot(&self, other: &Self) -> T {
        T::nearest(self.or_nan(Self::dot(self, other)))
    }
}

impl<T: Float> ArgminL1Norm<T> for Vector<T> {
    fn l1_norm(&self) -> T {
        T::nearest(self.or_nan(self.asum()))
    }
}

impl<T: Float> ArgminL2Norm<T> for Vector<T> {
    fn l2_norm(&self) -> T {
        T::nearest(self.or_nan(self.nrm2()))
    }
}

impl<T: Float> ArgminMinMax for Vector<T> {
    fn min(x: &Self, y: &Self) -> Self {
        x.or_keep(Self::min(x, y))
    }

    fn max(x: &Self, y: &Self) -> Self {
        x.or_keep(Self::max(x, y))
    }
}

impl<T: Float> ArgminSignum for Vector<T> {
    fn signum(self) -> Self {
        let result = Self::signum(&self);
        self.or_keep(result)
    }
}

impl<T: Float> ArgminZeroLike for Vector<T> {
    fn zero_like(&self) -> Self {
        self.or_keep(self.zeros_like())
    }
}

/// Products of a number and a vector, on which argmin builds its scaled sums.
macro_rules! number_times_vector {
    ($($float:ty)*) => {
        $(
            impl ArgminMul<Vector<$float>, Vector<$float>> for $float {
                fn mul(&self, vector: &Vector<$float>) -> Vector<$float> {
                    vector.or_keep(vector.scale(*self))
                }
            }
        )*
    };
}

number_times_vector!(f32 f64);
