//! Element types of tables.

use tidewater_protocol::table::DType;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Element type of a table: a number (f32, f64, i32, i64). Slices of it convert to bytes without a copy.
pub trait Element: FromBytes + IntoBytes + Immutable + Copy + Default + Send + 'static {
    /// Code of the element type in table definitions and frames.
    const DTYPE: DType;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}

impl Element for f64 {
    const DTYPE: DType = DType::F64;
}

impl Element for i32 {
    const DTYPE: DType = DType::I32;
}

impl Element for i64 {
    const DTYPE: DType = DType::I64;
}
