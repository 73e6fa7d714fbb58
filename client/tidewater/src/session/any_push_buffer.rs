//! A push buffer with an element type known at run time, for bindings.

use tidewater_protocol::table::DType;

use super::Client;
use super::push_buffer::PushBuffer;
use crate::error::ClientError;
use crate::push::Ticket;
use crate::table::AnyTable;

/// A [`PushBuffer`] with an element type known at run time. Match on it for [`PushBuffer::add`].
///
/// ```
/// # use tidewater::{AnyPushBuffer, AnyTable, JoinOptions, SyncMode, TableBuilder};
/// # fn main() -> Result<(), tidewater::ClientError> {
/// # let job = JoinOptions::embedded(1, 1).join()?.into_job().expect("a worker");
/// # let mut client = job.client_of(0, SyncMode::Asp)?;
/// let spec = TableBuilder::sparse::<i64>("counts", 1);
/// let table = AnyTable::create(&mut client, spec.spec())?;
/// let mut buffer = AnyPushBuffer::sum(table).rows_max(100);
/// if let AnyPushBuffer::I64(buffer) = &mut buffer {
///     buffer.add(&mut client, &[7, 3, 7], &[1, 1, 1])?;
/// }
/// assert_eq!(buffer.rows(), 2);
/// let ticket = buffer.flush(&mut client)?;
/// client.wait_applied(&ticket)?;
/// # client.finish()
/// # }
/// ```
#[derive(Debug)]
#[must_use = "rows that no flush has pushed are lost"]
#[allow(missing_docs, reason = "named as the types are")]
pub enum AnyPushBuffer {
    F32(PushBuffer<f32>),
    F64(PushBuffer<f64>),
    I32(PushBuffer<i32>),
    I64(PushBuffer<i64>),
}

/// Macro: evaluates an expression with the typed buffer of an `AnyPushBuffer`.
macro_rules! each {
    ($any:expr, $buffer:ident => $do:expr) => {
        match $any {
            AnyPushBuffer::F32($buffer) => $do,
            AnyPushBuffer::F64($buffer) => $do,
            AnyPushBuffer::I32($buffer) => $do,
            AnyPushBuffer::I64($buffer) => $do,
        }
    };
}

/// Macro: applies a call that returns the typed buffer, and wraps the result again.
macro_rules! map {
    ($any:expr, $buffer:ident => $do:expr) => {
        match $any {
            AnyPushBuffer::F32($buffer) => AnyPushBuffer::F32($do),
            AnyPushBuffer::F64($buffer) => AnyPushBuffer::F64($do),
            AnyPushBuffer::I32($buffer) => AnyPushBuffer::I32($do),
            AnyPushBuffer::I64($buffer) => AnyPushBuffer::I64($do),
        }
    };
}

impl AnyPushBuffer {
    /// Makes an empty buffer of values that a flush adds to those of the table.
    pub fn sum(table: AnyTable) -> Self {
        match &table {
            AnyTable::F32(table) => Self::F32(PushBuffer::sum(table)),
            AnyTable::F64(table) => Self::F64(PushBuffer::sum(table)),
            AnyTable::I32(table) => Self::I32(PushBuffer::sum(table)),
            AnyTable::I64(table) => Self::I64(PushBuffer::sum(table)),
        }
    }

    /// Makes an empty buffer of gradients, which a flush pushes to the table's optimizer.
    pub fn gradient(table: AnyTable) -> Self {
        match &table {
            AnyTable::F32(table) => Self::F32(PushBuffer::gradient(table)),
            AnyTable::F64(table) => Self::F64(PushBuffer::gradient(table)),
            AnyTable::I32(table) => Self::I32(PushBuffer::gradient(table)),
            AnyTable::I64(table) => Self::I64(PushBuffer::gradient(table)),
        }
    }

    /// Makes an empty buffer of values; a flush sets each value of the table to the minimum of both.
    pub fn min(table: AnyTable) -> Self {
        match &table {
            AnyTable::F32(table) => Self::F32(PushBuffer::min(table)),
            AnyTable::F64(table) => Self::F64(PushBuffer::min(table)),
            AnyTable::I32(table) => Self::I32(PushBuffer::min(table)),
            AnyTable::I64(table) => Self::I64(PushBuffer::min(table)),
        }
    }

    /// Makes an empty buffer of values; a flush sets each value of the table to the maximum of both.
    pub fn max(table: AnyTable) -> Self {
        match &table {
            AnyTable::F32(table) => Self::F32(PushBuffer::max(table)),
            AnyTable::F64(table) => Self::F64(PushBuffer::max(table)),
            AnyTable::I32(table) => Self::I32(PushBuffer::max(table)),
            AnyTable::I64(table) => Self::I64(PushBuffer::max(table)),
        }
    }

    /// Sets the weight that each push of the buffer carries, as [`PushBuffer::weight`].
    pub fn weight(self, weight: f64) -> Self {
        map!(self, buffer => buffer.weight(weight))
    }

    /// Sets the number of rows at which the buffer is flushed, as [`PushBuffer::rows_max`].
    pub fn rows_max(self, rows: usize) -> Self {
        map!(self, buffer => buffer.rows_max(rows))
    }

    /// Sets the number of bytes at which the buffer is flushed, as [`PushBuffer::bytes_max`].
    pub fn bytes_max(self, bytes: usize) -> Self {
        map!(self, buffer => buffer.bytes_max(bytes))
    }

    /// Sets the least magnitude of the rows that a flush pushes; smaller rows stay, as [`PushBuffer::threshold`].
    pub fn threshold(self, magnitude: f64) -> Self {
        map!(self, buffer => buffer.threshold(magnitude))
    }

    /// Element type of the buffer and its table.
    pub const fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F64(_) => DType::F64,
            Self::I32(_) => DType::I32,
            Self::I64(_) => DType::I64,
        }
    }

    /// Number of distinct rows that are buffered and not pushed.
    pub const fn rows(&self) -> usize {
        each!(self, buffer => buffer.rows())
    }

    /// Bytes of the buffered keys and values.
    pub const fn bytes(&self) -> usize {
        each!(self, buffer => buffer.bytes())
    }

    /// Pushes the buffered rows with a magnitude of at least the threshold; the others stay.
    ///
    /// # Errors
    /// As [`PushBuffer::flush`].
    pub fn flush(&mut self, client: &mut Client) -> Result<Ticket, ClientError> {
        each!(self, buffer => buffer.flush(client))
    }

    /// Pushes all buffered rows, whatever their magnitude.
    ///
    /// # Errors
    /// As [`PushBuffer::flush_all`].
    pub fn flush_all(&mut self, client: &mut Client) -> Result<Ticket, ClientError> {
        each!(self, buffer => buffer.flush_all(client))
    }

    /// Drops all buffered rows without pushing them; returns their number.
    pub fn clear(&mut self) -> usize {
        each!(self, buffer => buffer.clear())
    }
}
