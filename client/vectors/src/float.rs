//! The element types of vectors.

use tidewater::Element;

/// Element type of vectors: f32 or f64.
pub trait Float: Element + Into<f64> + PartialEq + std::fmt::Debug {
    /// Rounds to the type.
    fn nearest(value: f64) -> Self;
}

impl Float for f32 {
    fn nearest(value: f64) -> Self {
        value as Self
    }
}

impl Float for f64 {
    fn nearest(value: f64) -> Self {
        value
    }
}
