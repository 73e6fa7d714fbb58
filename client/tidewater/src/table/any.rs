//! A table with an element type known at run time, for bindings and tools.

use tidewater_protocol::ids::TableId;
use tidewater_protocol::table::DType;

use super::Table;

/// A table of any element type. Match on it for calls that move elements.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "named as the types are")]
pub enum AnyTable {
    F32(Table<f32>),
    F64(Table<f64>),
    I32(Table<i32>),
    I64(Table<i64>),
}

/// Evaluates an expression with a table of any type.
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
    /// Type of the table's elements.
    pub const fn dtype(self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F64(_) => DType::F64,
            Self::I32(_) => DType::I32,
            Self::I64(_) => DType::I64,
        }
    }

    /// Number of the table in the cluster.
    pub const fn id(self) -> TableId {
        with_table!(self, table => table.id())
    }

    /// Number of the table's partitions.
    pub const fn partitions(self) -> u32 {
        with_table!(self, table => table.partitions())
    }
}
