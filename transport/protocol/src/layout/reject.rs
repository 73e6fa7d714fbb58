//! Reject reasons of frames: a code and two numbers on the wire, named fields in the program.

use super::lines::RejectCode;

/// Reason for which an applier refused a well-formed frame (push or request), with the numbers that explain it.
///
/// On the wire a reason is its [`code`](Self::code) and two [`numbers`](Self::numbers), in the order of
/// the fields; a number that a reason does not have is 0. [`Self::TableFull`] packs two fields into each number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RejectReason {
    /// The server has no such table.
    UnknownTable {
        /// Table number in the frame.
        table: u32,
    },
    /// The table was released.
    TableReleased {
        /// Table number in the frame.
        table: u32,
    },
    /// A row or element is past the table's end.
    IndexOutOfRange {
        /// Index of the row, or first index of the range of elements or slots.
        index: u64,
        /// Number of rows or elements in the table, or of slots in the partition.
        size: u64,
    },
    /// The values have another type than the table.
    WrongDType {
        /// Element type code ([`DType::code`](crate::table::DType::code)) in the frame; 0 if there is none.
        frame: u64,
        /// Element type code of the table.
        table: u64,
    },
    /// A value is NaN or infinite, which the table refuses.
    NotFinite {
        /// Number of the row in the frame, from 0; of a range, number of the element in the frame.
        row: u64,
        /// Key or index of the row; of a range, index of the element in the table.
        key: u64,
    },
    /// The payload does not have the length that the frame's kind and `count` need.
    WrongLength {
        /// Bytes of the payload, or of the checked part of the payload.
        bytes: u64,
        /// Bytes that the payload, or its checked part, should have.
        expected: u64,
    },
    /// Another applier owns the rows or elements.
    WrongOwner {
        /// Key or index of the row; of a range, the first element, row or slot.
        first: u64,
        /// Always 1 for a row; of a range, its number of elements, rows or slots.
        count: u64,
    },
    /// The table does not take the operation (such as a gradient without an optimizer), or its weight.
    WrongOperation {
        /// Code of the frame's kind.
        kind: u64,
        /// Code of the push operation; 0 if the frame has none.
        op: u64,
    },
    /// The server has no memory left for new rows or held pushes.
    NoMemory {
        /// Bytes that are in use of the memory that is full.
        used: u64,
        /// Capacity in bytes of the memory that is full.
        capacity: u64,
    },
    /// More bytes are held back for early ranks of an iteration than the limit.
    PendingFull {
        /// Bytes that the held pushes need, the refused one included.
        needed: u64,
        /// Limit of the applier in bytes.
        limit: u64,
    },
    /// The reply is larger than a slot.
    ReplyTooLarge {
        /// Bytes of the reply's payload, without its header.
        bytes: u64,
        /// Maximum payload bytes of a reply in the slot, or of the result of a function.
        slot: u64,
    },
    /// The clock goes back or skips, or the domain is unknown or does not have the sender as a member.
    BadClock {
        /// Clock of the frame.
        clock: u64,
        /// Expected clock. If the sender has no clock in the domain: 0 for a CLOCK frame, else `u64::MAX`. `u64::MAX`
        /// for an unknown domain.
        expected: u64,
    },
    /// A function could not be run on these elements.
    Function {
        /// Code of a [`FunctionProblem`](super::function::FunctionProblem).
        problem: u64,
        /// Number that belongs to the problem, as it documents.
        number: u64,
    },
    /// The sender is an observer, and the frame would change the model or a clock.
    Observer {
        /// Code of the frame's kind.
        kind: u64,
    },
    /// The version to be pinned is not kept any more, or not yet.
    NotKept {
        /// Oldest kept version: all versions from this one to `newest` are kept.
        oldest: u64,
        /// Newest complete version on the applier.
        newest: u64,
    },
    /// The table has as many pinned versions as it can.
    PinsFull {
        /// Number of pinned versions.
        pinned: u64,
        /// Number of versions that can be pinned: two less than the table's buffers.
        limit: u64,
    },
    /// A limit of the server keeps the partition from getting another row. In the two numbers, `partition`
    /// and `resource` are the low halves.
    TableFull {
        /// Partition of the first key without a row.
        partition: u32,
        /// Number of rows of the table on the applier; `u32::MAX` for more.
        rows: u32,
        /// Code of the [`RowResource`] that is used up.
        resource: u32,
        /// Number of units that there are of the resource; `u32::MAX` for more.
        limit: u32,
    },
}

/// Limited resource of a server that a new row takes in addition to bytes of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[non_exhaustive]
pub enum RowResource {
    /// Blocks in the directory of a server's memory ([`MEMORY_BLOCKS_MAX`](crate::limits::MEMORY_BLOCKS_MAX)).
    Blocks = 1,
    /// Extents of a table on one applier ([`EXTENTS_MAX`](crate::limits::EXTENTS_MAX)).
    Extents = 2,
    /// Slots of a table on one applier: 32 bits number them.
    Slots = 3,
    /// Keys of registered regions of a server.
    Regions = 4,
}

impl RowResource {
    /// Returns the resource of a wire code; `None` for an unknown code.
    pub const fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            1 => Self::Blocks,
            2 => Self::Extents,
            3 => Self::Slots,
            4 => Self::Regions,
            _ => return None,
        })
    }

    /// Returns the name of the resource in the plural, for error messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Blocks => "blocks of memory",
            Self::Extents => "extents",
            Self::Slots => "slots",
            Self::Regions => "registered regions",
        }
    }

    /// Returns what the user can do when the resource is used up, for error messages.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Blocks | Self::Regions => {
                "release tables that are not needed, or start more servers"
            }
            Self::Extents | Self::Slots => {
                "start more servers, or servers with more appliers, and create the table with as many \
                 partitions"
            }
        }
    }
}

impl RejectReason {
    /// Returns the wire code of the reason, without its numbers.
    pub const fn code(&self) -> RejectCode {
        match self {
            Self::UnknownTable { .. } => RejectCode::UnknownTable,
            Self::TableReleased { .. } => RejectCode::TableReleased,
            Self::IndexOutOfRange { .. } => RejectCode::IndexOutOfRange,
            Self::WrongDType { .. } => RejectCode::WrongDType,
            Self::NotFinite { .. } => RejectCode::NotFinite,
            Self::WrongLength { .. } => RejectCode::WrongLength,
            Self::WrongOwner { .. } => RejectCode::WrongOwner,
            Self::WrongOperation { .. } => RejectCode::WrongOperation,
            Self::NoMemory { .. } => RejectCode::NoMemory,
            Self::PendingFull { .. } => RejectCode::PendingFull,
            Self::ReplyTooLarge { .. } => RejectCode::ReplyTooLarge,
            Self::BadClock { .. } => RejectCode::BadClock,
            Self::Function { .. } => RejectCode::Function,
            Self::Observer { .. } => RejectCode::Observer,
            Self::NotKept { .. } => RejectCode::NotKept,
            Self::PinsFull { .. } => RejectCode::PinsFull,
            Self::TableFull { .. } => RejectCode::TableFull,
        }
    }

    /// Returns the two wire numbers of the reason, in the order of the fields; 0 where it has fewer.
    pub const fn numbers(&self) -> [u64; 2] {
        match *self {
            Self::UnknownTable { table } | Self::TableReleased { table } => [table as u64, 0],
            Self::IndexOutOfRange { index, size } => [index, size],
            Self::WrongDType { frame, table } => [frame, table],
            Self::NotFinite { row, key } => [row, key],
            Self::WrongLength { bytes, expected } => [bytes, expected],
            Self::WrongOwner { first, count } => [first, count],
            Self::WrongOperation { kind, op } => [kind, op],
            Self::NoMemory { used, capacity } => [used, capacity],
            Self::PendingFull { needed, limit } => [needed, limit],
            Self::ReplyTooLarge { bytes, slot } => [bytes, slot],
            Self::BadClock { clock, expected } => [clock, expected],
            Self::Function { problem, number } => [problem, number],
            Self::Observer { kind } => [kind, 0],
            Self::NotKept { oldest, newest } => [oldest, newest],
            Self::PinsFull { pinned, limit } => [pinned, limit],
            Self::TableFull {
                partition,
                rows,
                resource,
                limit,
            } => [
                partition as u64 | (rows as u64) << 32,
                resource as u64 | (limit as u64) << 32,
            ],
        }
    }

    /// Builds a reason from its wire code and its two numbers; `None` if the code cannot have these numbers.
    pub fn from_numbers(code: RejectCode, numbers: [u64; 2]) -> Option<Self> {
        let [a, b] = numbers;
        let reason = match code {
            RejectCode::UnknownTable => Self::UnknownTable { table: a as u32 },
            RejectCode::TableReleased => Self::TableReleased { table: a as u32 },
            RejectCode::IndexOutOfRange => Self::IndexOutOfRange { index: a, size: b },
            RejectCode::WrongDType => Self::WrongDType { frame: a, table: b },
            RejectCode::NotFinite => Self::NotFinite { row: a, key: b },
            RejectCode::WrongLength => Self::WrongLength {
                bytes: a,
                expected: b,
            },
            RejectCode::WrongOwner => Self::WrongOwner { first: a, count: b },
            RejectCode::WrongOperation => Self::WrongOperation { kind: a, op: b },
            RejectCode::NoMemory => Self::NoMemory {
                used: a,
                capacity: b,
            },
            RejectCode::PendingFull => Self::PendingFull {
                needed: a,
                limit: b,
            },
            RejectCode::ReplyTooLarge => Self::ReplyTooLarge { bytes: a, slot: b },
            RejectCode::BadClock => Self::BadClock {
                clock: a,
                expected: b,
            },
            RejectCode::Function => Self::Function {
                problem: a,
                number: b,
            },
            RejectCode::Observer => Self::Observer { kind: a },
            RejectCode::NotKept => Self::NotKept {
                oldest: a,
                newest: b,
            },
            RejectCode::PinsFull => Self::PinsFull {
                pinned: a,
                limit: b,
            },
            RejectCode::TableFull => Self::TableFull {
                partition: a as u32,
                rows: (a >> 32) as u32,
                resource: b as u32,
                limit: (b >> 32) as u32,
            },
        };
        // Refuses a table of more than 32 bits, or a number that the reason does not have.
        (reason.numbers() == numbers).then_some(reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each code has one reason; its fields are the numbers in order.
    #[test]
    fn reasons_keep_code_and_numbers() {
        let codes: Vec<_> = (0..64).filter_map(RejectCode::from_code).collect();
        assert_eq!(codes.len(), 17);
        for code in codes {
            let numbers = match code {
                RejectCode::UnknownTable | RejectCode::TableReleased | RejectCode::Observer => {
                    [7, 0]
                }
                _ => [u64::MAX, 3],
            };
            let reason = RejectReason::from_numbers(code, numbers).unwrap();
            assert_eq!((reason.code(), reason.numbers()), (code, numbers));
        }
        for numbers in [[7, 1], [1 << 32, 0]] {
            let refused = RejectReason::from_numbers(RejectCode::UnknownTable, numbers);
            assert_eq!(refused, None);
        }
    }
}
