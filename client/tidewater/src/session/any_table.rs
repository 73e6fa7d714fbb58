//! Calls of a client on a table with an element type known at run time.

use std::ops::Range;
use std::time::Duration;

use tidewater_protocol::placement::Owner;
use tidewater_protocol::table::{DType, TableSpec};

use super::{Client, PendingCall};
use crate::error::ClientError;
use crate::table::any::with_table;
use crate::table::{AnyTable, Element, Table};

impl AnyTable {
    /// Creates a table with the element type of `spec`, or opens the one of that name if its definition is equal.
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

    /// Blocks until [`Client::start_create_table`] has created a table with element type `dtype`, and returns it.
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

    /// Server and applier that own each partition of the table, by partition number.
    ///
    /// # Errors
    /// As [`Client::partition_owners`].
    pub fn partition_owners(self, client: &Client) -> Result<Vec<Owner>, ClientError> {
        with_table!(self, table => client.partition_owners(&table))
    }

    /// Rows or elements of each partition of a dense table, by partition number.
    ///
    /// # Errors
    /// As [`Client::partition_ranges`].
    pub fn partition_ranges(self, client: &Client) -> Result<Vec<Range<u64>>, ClientError> {
        with_table!(self, table => client.partition_ranges(&table))
    }

    /// Opens an existing table by name, with element type `dtype`.
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

    /// Blocks until a version (tick) of the table newer than `version` is complete; returns the newest complete one.
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

    /// Blocks until version `tick` of the table, or a newer one, is complete; returns the newest complete one.
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

    /// Pins a version of the table, so that servers keep it until `unpin`; `None` pins the newest. Returns the
    /// pinned version.
    ///
    /// # Errors
    /// As [`Client::pin`].
    pub fn pin(self, client: &mut Client, version: Option<u64>) -> Result<u64, ClientError> {
        with_table!(self, table => client.pin(&table, version))
    }

    /// Ends the pin of a version: the servers may overwrite it.
    ///
    /// # Errors
    /// As [`Client::unpin`].
    pub fn unpin(self, client: &mut Client, version: u64) -> Result<(), ClientError> {
        with_table!(self, table => client.unpin(&table, version))
    }

    /// Releases the table for all workers: the servers free it.
    ///
    /// # Errors
    /// As [`Client::release_table`].
    pub fn release(self, client: &mut Client) -> Result<(), ClientError> {
        with_table!(self, table => client.release_table(table))
    }

    /// Definition of the table; `None` for a table of another client, and for a released one.
    pub fn spec(self, client: &Client) -> Option<&TableSpec> {
        fn of<'c, T: Element>(client: &'c Client, table: &Table<T>) -> Option<&'c TableSpec> {
            client.spec(table)
        }
        with_table!(&self, table => of(client, table))
    }
}
