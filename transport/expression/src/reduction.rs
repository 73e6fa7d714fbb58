//! Reductions and their results.

/// Operation that makes one value of the values of all elements. Codes are wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reduction {
    /// Sum of all values, 0 of none. The sum of a boolean program counts the elements that are true.
    Sum = 1,
    /// Smallest value; NaN if one is NaN, nothing of no elements.
    Min = 2,
    /// Largest value; NaN if one is NaN, nothing of no elements.
    Max = 3,
    /// 1 if no value is zero, else 0; NaN counts as true, and no elements give 1.
    And = 4,
}

impl Reduction {
    /// Every reduction, in the order of the codes.
    pub const ALL: [Self; 4] = [Self::Sum, Self::Min, Self::Max, Self::And];

    /// Returns the wire code of the reduction.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the reduction of a wire code; `None` for an unknown code.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Sum),
            2 => Some(Self::Min),
            3 => Some(Self::Max),
            4 => Some(Self::And),
            _ => None,
        }
    }
}

/// Result of a reduction, in the wider type of its class.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scalar {
    /// Result over F32 or F64. A NaN is the canonical one.
    Float(f64),
    /// Result over I32 or I64, and of [`Reduction::And`].
    Integer(i64),
}
