//! A table with an element type known at run time, for bindings and tools.

use std::time::Duration;

use tidewater_protocol::ids::TableId;
use tidewater_protocol::table::{DType, TableSpec};

use super::{Element, Table};
use crate::error::ClientError;
use crate::session::{Client, PendingCall};

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
macro_rules! each {
    ($any:expr, $table:ident => $do:expr) => {
        match $any {
            AnyTable::F32($table) => $do,
            AnyTable::F64($table) => $do,
            AnyTable::I32($table) => $do,
            AnyTable::I64($table) => $do,
        }
    };
}

impl AnyTable {
    /// Creates the table, or opens the one of that name if its definition is equal.
    ///
    /// # Errors
    /// As [`Client::create_table`].
    pub fn create(client: &mut Client, spec: &TableSpec) -> Result<Self, ClientError> {
        Ok(match spec.dtype {
            DType::F32 => Self::F32(client.create_table(spec)?),
            DType::F64 => Self::F64(client.create_table(spec)?),
            DType::I32 => Self::I32(client.create_table(spec)?),
            DType::I64 => Self::I64(client.create_table(spec)?),
        })
    }

    /// Waits for a table with element type `dtype` that [`Client::start_create_table`] creates.
    ///
    /// # Errors
    /// As [`Client::finish_create_table`].
    pub fn finish_create(
        client: &mut Client,
        call: PendingCall,
        dtype: DType,
    ) -> Result<Self, ClientError> {
        Ok(match dtype {
            DType::F32 => Self::F32(client.finish_create_table(call)?),
            DType::F64 => Self::F64(client.finish_create_table(call)?),
            DType::I32 => Self::I32(client.finish_create_table(call)?),
            DType::I64 => Self::I64(client.finish_create_table(call)?),
        })
    }

    /// Opens an existing table with element type `dtype`.
    ///
    /// # Errors
    /// As [`Client::open_table`].
    pub fn open(client: &mut Client, name: &str, dtype: DType) -> Result<Self, ClientError> {
        Ok(match dtype {
            DType::F32 => Self::F32(client.open_table(name)?),
            DType::F64 => Self::F64(client.open_table(name)?),
            DType::I32 => Self::I32(client.open_table(name)?),
            DType::I64 => Self::I64(client.open_table(name)?),
        })
    }

    /// Waits for a version that is newer than `version`.
    ///
    /// # Errors
    /// As [`Client::wait_newer`].
    pub fn wait_newer(
        self,
        client: &mut Client,
        version: u64,
        timeout: Duration,
    ) -> Result<u64, ClientError> {
        each!(self, table => client.wait_newer(&table, version, timeout))
    }

    /// Waits for version `tick` or a newer one.
    ///
    /// # Errors
    /// As [`Client::wait_until`].
    pub fn wait_until(
        self,
        client: &mut Client,
        tick: u64,
        timeout: Duration,
    ) -> Result<u64, ClientError> {
        each!(self, table => client.wait_until(&table, tick, timeout))
    }

    /// Pins a version, or the newest.
    ///
    /// # Errors
    /// As [`Client::pin`].
    pub fn pin(self, client: &mut Client, version: Option<u64>) -> Result<u64, ClientError> {
        each!(self, table => client.pin(&table, version))
    }

    /// Ends a pin.
    ///
    /// # Errors
    /// As [`Client::unpin`].
    pub fn unpin(self, client: &mut Client, version: u64) -> Result<(), ClientError> {
        each!(self, table => client.unpin(&table, version))
    }

    /// Releases the table for all workers.
    ///
    /// # Errors
    /// As [`Client::release_table`].
    pub fn release(self, client: &mut Client) -> Result<(), ClientError> {
        each!(self, table => client.release_table(table))
    }

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
        each!(self, table => table.id())
    }

    /// Number of the table's partitions.
    pub const fn partitions(self) -> u32 {
        each!(self, table => table.partitions())
    }

    /// The table's definition; `None` for a table of another client.
    pub fn spec(self, client: &Client) -> Option<&TableSpec> {
        fn of<'c, T: Element>(client: &'c Client, table: &Table<T>) -> Option<&'c TableSpec> {
            client.spec(table)
        }
        each!(&self, table => of(client, table))
    }
}
