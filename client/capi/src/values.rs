//! Typed arrays and tables behind one C call.

use tidewater_client::{Client, ClientError, Element, PullOptions, PullTicket, Table, Ticket};
use tidewater_transport::table::{DType, PushOp, TableSpec};

use crate::error::Failure;

/// Elements to be read.
#[derive(Debug)]
pub(crate) enum Values<'a> {
    F32(&'a [f32]),
    F64(&'a [f64]),
    I32(&'a [i32]),
    I64(&'a [i64]),
}

/// Elements to be written.
#[derive(Debug)]
pub(crate) enum ValuesMut<'a> {
    F32(&'a mut [f32]),
    F64(&'a mut [f64]),
    I32(&'a mut [i32]),
    I64(&'a mut [i64]),
}

/// A table of any element type.
#[derive(Debug, Clone, Copy)]
pub(crate) enum AnyTable {
    F32(Table<f32>),
    F64(Table<f64>),
    I32(Table<i32>),
    I64(Table<i64>),
}

/// A pull under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnyPull {
    pub(crate) ticket: PullTicket,
    pub(crate) table: AnyTable,
}

/// Does something with a table, whatever its type.
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

/// Does something with a table and an array of its type; another type is a failure.
macro_rules! with_both {
    ($any:expr, $values:expr, $Values:ident, ($table:ident, $array:ident) => $do:expr) => {
        match ($any, $values) {
            (AnyTable::F32($table), $Values::F32($array)) => Ok($do?),
            (AnyTable::F64($table), $Values::F64($array)) => Ok($do?),
            (AnyTable::I32($table), $Values::I32($array)) => Ok($do?),
            (AnyTable::I64($table), $Values::I64($array)) => Ok($do?),
            (table, values) => Err(Failure::dtype(table.dtype(), values.dtype())),
        }
    };
}

impl Values<'_> {
    const fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F64(_) => DType::F64,
            Self::I32(_) => DType::I32,
            Self::I64(_) => DType::I64,
        }
    }
}

impl ValuesMut<'_> {
    const fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F64(_) => DType::F64,
            Self::I32(_) => DType::I32,
            Self::I64(_) => DType::I64,
        }
    }
}

impl AnyTable {
    /// The type of its elements.
    pub(crate) const fn dtype(self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F64(_) => DType::F64,
            Self::I32(_) => DType::I32,
            Self::I64(_) => DType::I64,
        }
    }

    /// Its number in the cluster.
    pub(crate) const fn number(self) -> u32 {
        with_table!(self, table => table.id().0)
    }

    /// Creates it, or opens the equal one of its name.
    pub(crate) fn create(client: &mut Client, spec: &TableSpec) -> Result<Self, ClientError> {
        Ok(match spec.dtype {
            DType::F32 => Self::F32(client.create_table(spec)?),
            DType::F64 => Self::F64(client.create_table(spec)?),
            DType::I32 => Self::I32(client.create_table(spec)?),
            DType::I64 => Self::I64(client.create_table(spec)?),
        })
    }

    /// Opens one that exists.
    pub(crate) fn open(client: &mut Client, name: &str, dtype: DType) -> Result<Self, ClientError> {
        Ok(match dtype {
            DType::F32 => Self::F32(client.open_table(name)?),
            DType::F64 => Self::F64(client.open_table(name)?),
            DType::I32 => Self::I32(client.open_table(name)?),
            DType::I64 => Self::I64(client.open_table(name)?),
        })
    }

    /// Releases it for everybody.
    pub(crate) fn release(self, client: &mut Client) -> Result<(), ClientError> {
        with_table!(self, table => client.release_table(table))
    }

    /// What it is.
    pub(crate) fn spec(self, client: &Client) -> Option<&TableSpec> {
        fn of<'c, T: Element>(client: &'c Client, table: &Table<T>) -> Option<&'c TableSpec> {
            client.spec(table)
        }
        with_table!(&self, table => of(client, table))
    }

    pub(crate) fn pull_rows(
        self,
        client: &mut Client,
        keys: &[u64],
        out: ValuesMut<'_>,
        options: PullOptions,
    ) -> Result<(), Failure> {
        with_both!(self, out, ValuesMut, (table, out) =>
            client.pull_rows(&table, keys, out, options))
    }

    pub(crate) fn pull_range(
        self,
        client: &mut Client,
        first: u64,
        out: ValuesMut<'_>,
        options: PullOptions,
    ) -> Result<(), Failure> {
        with_both!(self, out, ValuesMut, (table, out) =>
            client.pull_dense(&table, first, out, options))
    }

    pub(crate) fn start_pull(
        self,
        client: &mut Client,
        keys: &[u64],
        options: PullOptions,
    ) -> Result<AnyPull, ClientError> {
        let ticket = with_table!(&self, table => client.start_pull_rows(table, keys, options))?;
        Ok(AnyPull {
            ticket,
            table: self,
        })
    }

    pub(crate) fn push_rows(
        self,
        client: &mut Client,
        keys: &[u64],
        values: Values<'_>,
        op: PushOp,
    ) -> Result<Ticket, Failure> {
        with_both!(self, values, Values, (table, values) =>
            client.push_rows(&table, keys, values, op))
    }

    pub(crate) fn push_range(
        self,
        client: &mut Client,
        first: u64,
        values: Values<'_>,
        op: PushOp,
    ) -> Result<Ticket, Failure> {
        with_both!(self, values, Values, (table, values) =>
            client.push_dense(&table, first, values, op))
    }
}

impl AnyPull {
    /// Waits for it and writes its rows.
    pub(crate) fn finish(self, client: &mut Client, out: ValuesMut<'_>) -> Result<(), Failure> {
        let ticket = self.ticket;
        fn finish<T: Element>(
            client: &mut Client,
            _: Table<T>,
            ticket: PullTicket,
            out: &mut [T],
        ) -> Result<(), ClientError> {
            client.finish_pull(ticket, out)
        }
        with_both!(self.table, out, ValuesMut, (table, out) => finish(client, table, ticket, out))
    }
}
