//! Calls of a client on a table with an element type known at run time.

use std::time::Duration;

use tidewater_protocol::table::{DType, TableSpec};

use super::{Client, PendingCall};
use crate::error::ClientError;
use crate::table::any::with_table;
use crate::table::{AnyTable, Element, Table};

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
        with_table!(self, table => client.wait_newer(&table, version, timeout))
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
        with_table!(self, table => client.wait_until(&table, tick, timeout))
    }

    /// Pins a version, or the newest.
    ///
    /// # Errors
    /// As [`Client::pin`].
    pub fn pin(self, client: &mut Client, version: Option<u64>) -> Result<u64, ClientError> {
        with_table!(self, table => client.pin(&table, version))
    }

    /// Ends a pin.
    ///
    /// # Errors
    /// As [`Client::unpin`].
    pub fn unpin(self, client: &mut Client, version: u64) -> Result<(), ClientError> {
        with_table!(self, table => client.unpin(&table, version))
    }

    /// Releases the table for all workers.
    ///
    /// # Errors
    /// As [`Client::release_table`].
    pub fn release(self, client: &mut Client) -> Result<(), ClientError> {
        with_table!(self, table => client.release_table(table))
    }

    /// The table's definition; `None` for a table of another client.
    pub fn spec(self, client: &Client) -> Option<&TableSpec> {
        fn of<'c, T: Element>(client: &'c Client, table: &Table<T>) -> Option<&'c TableSpec> {
            client.spec(table)
        }
        with_table!(&self, table => of(client, table))
    }
}
