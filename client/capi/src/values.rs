//! Arrays with a type known at run time, and the client's calls that move them.

use tidewater::{
    AnyPushBuffer, AnyTable, Client, ClientError, Element, GroupRange, PullOptions, PullTicket,
    Pulled, PushOptions, ReduceOp, ScanCursor, Table, Ticket,
};
use tidewater_protocol::table::{DType, PushOp};
use zerocopy::IntoBytes as _;

use crate::error::Failure;

/// Elements for reading, by type.
#[derive(Debug)]
pub(crate) enum Values<'a> {
    F32(&'a [f32]),
    F64(&'a [f64]),
    I32(&'a [i32]),
    I64(&'a [i64]),
}

/// Elements for writing, by type.
#[derive(Debug)]
pub(crate) enum ValuesMut<'a> {
    F32(&'a mut [f32]),
    F64(&'a mut [f64]),
    I32(&'a mut [i32]),
    I64(&'a mut [i64]),
}

/// A pull under way, with its table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnyPull {
    pub(crate) ticket: PullTicket,
    pub(crate) table: AnyTable,
}

/// The values of an all-gather, for the call that repeats it with more room.
#[derive(Debug)]
pub(crate) struct Gathered {
    pub(crate) dtype: DType,
    /// The bytes that this worker gave.
    pub(crate) own: Vec<u8>,
    /// Those of all workers, in rank order.
    pub(crate) all: Vec<u8>,
}

/// Evaluates an expression with a table and an array of its type; another type is a failure.
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

/// Lists keys from a cursor on, with their rows if there is room for them.
pub(crate) fn scan(
    table: AnyTable,
    client: &mut Client,
    cursor: &mut ScanCursor,
    keys: &mut [u64],
    values: Option<ValuesMut<'_>>,
) -> Result<usize, Failure> {
    match values {
        None => Ok(table.scan_keys(client, cursor, keys)?),
        Some(values) => with_both!(table, values, ValuesMut, (table, values) =>
            client.scan_rows(&table, cursor, keys, values)),
    }
}

pub(crate) fn pull_rows(
    table: AnyTable,
    client: &mut Client,
    keys: &[u64],
    out: ValuesMut<'_>,
    options: PullOptions,
) -> Result<Pulled, Failure> {
    with_both!(table, out, ValuesMut, (table, out) =>
        client.pull_rows(&table, keys, out, options))
}

pub(crate) fn pull_range(
    table: AnyTable,
    client: &mut Client,
    first: u64,
    out: ValuesMut<'_>,
    options: PullOptions,
) -> Result<Pulled, Failure> {
    with_both!(table, out, ValuesMut, (table, out) =>
        client.pull_range(&table, first, out, options))
}

pub(crate) fn group_range(
    table: AnyTable,
    first: u64,
    out: ValuesMut<'_>,
) -> Result<GroupRange<'_>, Failure> {
    with_both!(table, out, ValuesMut, (table, out) =>
        Ok::<_, Failure>(GroupRange::new(&table, first, out)))
}

pub(crate) fn pull_pinned(
    table: AnyTable,
    client: &mut Client,
    version: u64,
    first: u64,
    out: ValuesMut<'_>,
    options: PullOptions,
) -> Result<Pulled, Failure> {
    with_both!(table, out, ValuesMut, (table, out) =>
        client.pull_pinned(&table, version, first, out, options))
}

pub(crate) fn start_pull(
    table: AnyTable,
    client: &mut Client,
    keys: &[u64],
    options: PullOptions,
) -> Result<AnyPull, ClientError> {
    let ticket = match &table {
        AnyTable::F32(table) => client.start_pull_rows(table, keys, options),
        AnyTable::F64(table) => client.start_pull_rows(table, keys, options),
        AnyTable::I32(table) => client.start_pull_rows(table, keys, options),
        AnyTable::I64(table) => client.start_pull_rows(table, keys, options),
    }?;
    Ok(AnyPull { ticket, table })
}

pub(crate) fn start_pull_range(
    table: AnyTable,
    client: &mut Client,
    first: u64,
    elements: usize,
    options: PullOptions,
) -> Result<AnyPull, ClientError> {
    let ticket = match &table {
        AnyTable::F32(table) => client.start_pull_range(table, first, elements, options),
        AnyTable::F64(table) => client.start_pull_range(table, first, elements, options),
        AnyTable::I32(table) => client.start_pull_range(table, first, elements, options),
        AnyTable::I64(table) => client.start_pull_range(table, first, elements, options),
    }?;
    Ok(AnyPull { ticket, table })
}

pub(crate) fn push_rows(
    table: AnyTable,
    client: &mut Client,
    keys: &[u64],
    values: Values<'_>,
    op: PushOp,
    options: PushOptions,
) -> Result<Ticket, Failure> {
    with_both!(table, values, Values, (table, values) =>
        client.push_rows_with(&table, keys, values, op, options))
}

pub(crate) fn push_range(
    table: AnyTable,
    client: &mut Client,
    first: u64,
    values: Values<'_>,
    op: PushOp,
    options: PushOptions,
) -> Result<Ticket, Failure> {
    with_both!(table, values, Values, (table, values) =>
        client.push_range_with(&table, first, values, op, options))
}

/// Adds updates of rows to a push buffer.
pub(crate) fn add(
    buffer: &mut AnyPushBuffer,
    client: &mut Client,
    keys: &[u64],
    values: Values<'_>,
) -> Result<(), Failure> {
    use AnyPushBuffer::{F32, F64, I32, I64};
    Ok(match (buffer, values) {
        (F32(buffer), Values::F32(values)) => buffer.add(client, keys, values),
        (F64(buffer), Values::F64(values)) => buffer.add(client, keys, values),
        (I32(buffer), Values::I32(values)) => buffer.add(client, keys, values),
        (I64(buffer), Values::I64(values)) => buffer.add(client, keys, values),
        (buffer, values) => return Err(Failure::dtype(buffer.dtype(), values.dtype())),
    }?)
}

/// `kept` is of a call that found no room, for its repetition.
pub(crate) fn all_gather(
    client: &mut Client,
    kept: &mut Option<Gathered>,
    values: Values<'_>,
    all: ValuesMut<'_>,
) -> Result<(), Failure> {
    fn gather<T: Element>(
        client: &mut Client,
        kept: &mut Option<Gathered>,
        values: &[T],
        all: &mut [T],
    ) -> Result<(), Failure> {
        let own = values.as_bytes();
        let earlier = kept.take();
        let earlier = earlier.filter(|call| call.dtype == T::DTYPE && call.own == own);
        let room = |workers: usize, all: &[T]| {
            Failure::argument(format_args!(
                "all has room for {} elements; {workers} workers give {} each",
                all.len(),
                values.len()
            ))
        };
        let workers = client.workers() as usize;
        if workers > 0 && values.len().checked_mul(workers) != Some(all.len()) {
            return Err(room(workers, all));
        }
        let given = match earlier {
            Some(call) => call.all,
            None => client.all_gather(values)?.as_bytes().to_vec(),
        };
        // In a job of open size the workers are known now, and have completed the call.
        let Some(to) = all.as_mut_bytes().get_mut(..given.len()) else {
            let refusal = room(client.collective_ranks().len(), all);
            *kept = Some(Gathered {
                dtype: T::DTYPE,
                own: own.to_vec(),
                all: given,
            });
            return Err(refusal);
        };
        to.copy_from_slice(&given);
        Ok(())
    }
    match (values, all) {
        (Values::F32(values), ValuesMut::F32(all)) => gather(client, kept, values, all),
        (Values::F64(values), ValuesMut::F64(all)) => gather(client, kept, values, all),
        (Values::I32(values), ValuesMut::I32(all)) => gather(client, kept, values, all),
        (Values::I64(values), ValuesMut::I64(all)) => gather(client, kept, values, all),
        (values, all) => Err(Failure::dtype(values.dtype(), all.dtype())),
    }
}

pub(crate) fn all_reduce(
    client: &mut Client,
    values: ValuesMut<'_>,
    op: ReduceOp,
) -> Result<(), Failure> {
    Ok(match values {
        ValuesMut::F32(values) => client.all_reduce(values, op),
        ValuesMut::F64(values) => client.all_reduce(values, op),
        ValuesMut::I32(values) => client.all_reduce(values, op),
        ValuesMut::I64(values) => client.all_reduce(values, op),
    }?)
}

pub(crate) fn broadcast(
    client: &mut Client,
    root: u32,
    values: ValuesMut<'_>,
) -> Result<(), Failure> {
    Ok(match values {
        ValuesMut::F32(values) => client.broadcast(root, values),
        ValuesMut::F64(values) => client.broadcast(root, values),
        ValuesMut::I32(values) => client.broadcast(root, values),
        ValuesMut::I64(values) => client.broadcast(root, values),
    }?)
}

impl AnyPull {
    /// Waits for the pull and writes its rows.
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

/// Lists of a table's options, with an entry for each partition; `None` where the options have a null list without
/// entries.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PartitionLists<'a> {
    pub(crate) servers: Option<&'a [u32]>,
    pub(crate) starts: Option<&'a [u64]>,
}
