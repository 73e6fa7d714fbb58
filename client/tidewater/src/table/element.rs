//! Element types of tables.

use tidewater_protocol::table::DType;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Element type of a table: a number (f32, f64, i32, i64). Slices of it convert to bytes without a copy.
///
/// # Example
/// ```
/// # use tidewater::{Client, ClientError, Element, JoinOptions};
/// # use tidewater::{PullOptions, SyncMode, Table, TableBuilder};
/// /// Pulls one row of a table, whatever its element type.
/// fn row<T: Element>(client: &mut Client, table: &Table<T>, key: u64) -> Result<Vec<T>, ClientError> {
///     let mut row = vec![T::default(); table.dim()];
///     client.pull_rows(table, &[key], &mut row, PullOptions::default())?;
///     Ok(row)
/// }
///
/// # fn main() -> Result<(), ClientError> {
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// # let mut client = job.client(SyncMode::Asp)?;
/// let table = client.create_table::<i32>(TableBuilder::rows::<i32>("ids", 4, 2).spec())?;
/// assert_eq!(row(&mut client, &table, 1)?, [0, 0]);
/// # client.finish()
/// # }
/// ```
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
