//! A table with an element type known at run time, for bindings and tools.

use tidewater_protocol::ids::TableId;
use tidewater_protocol::table::DType;

use super::Table;

/// Table handle with an element type known at run time. Match on it for calls that move elements.
///
/// # Example
/// ```
/// # use tidewater::{AnyTable, ClientError, JoinOptions, PullOptions, SyncMode, TableBuilder};
/// # fn main() -> Result<(), ClientError> {
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// # let mut client = job.client(SyncMode::Asp)?;
/// let spec = TableBuilder::rows::<f64>("w", 4, 2);
/// let AnyTable::F64(table) = AnyTable::create(&mut client, spec.spec())? else {
///     panic!("the table has another element type");
/// };
/// let mut row = [1.0; 2];
/// client.pull_rows(&table, &[3], &mut row, PullOptions::default())?;
/// assert_eq!(row, [0.0; 2]);
/// # client.finish()
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "named as the types are")]
pub enum AnyTable {
    F32(Table<f32>),
    F64(Table<f64>),
    I32(Table<i32>),
    I64(Table<i64>),
}

/// Macro: evaluates an expression with the typed handle of an `AnyTable`.
macro_rules! with_table {
    ($any:expr, $table:ident => $do:expr) => {
        match $any {
            AnyTable::F32($table) => $do,
            AnyTable::F64($table) => $do,
            AnyTable::I32($table) => $do,
            AnyTable::I64($table) => $do,
        }
    };
}
pub(crate) use with_table;

impl AnyTable {
    /// Element type of the table.
    pub const fn dtype(self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F64(_) => DType::F64,
            Self::I32(_) => DType::I32,
            Self::I64(_) => DType::I64,
        }
    }

    /// Number of the table, unique in the cluster.
    pub const fn id(self) -> TableId {
        with_table!(self, table => table.id())
    }

    /// Number of partitions into which the table is divided over the appliers.
    pub const fn partitions(self) -> u32 {
        with_table!(self, table => table.partitions())
    }
}
