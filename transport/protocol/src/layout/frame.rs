//! Frames: the messages that a client writes into an inbox ring.
//!
//! ```text
//! +0  u32 magic 'TWP1' | u16 kind | u16 flags      +32 u32 table | u32 partition
//! +8  u64 seq        per ring, from 1              +40 u64 clock
//! +16 u64 session    nonce of the session          +48 u64 user_tag (reply slot; 0 if none)
//! +24 u32 payload_len | u32 count                  +56 u64 checksum
//! +64 payload, padded with zeros to a multiple of 64
//! ```
//! flags: bits 0-3 operation, 4-7 element type, 8 locations follow the keys, 9 create missing rows, 10 a
//! weight follows the values, 11-12 encoding of the values, 13 part of a task. The rest must be zero. A PAD frame is
//! its header only and uses up no sequence number.

use super::encoding::EncodingCode;
use super::hash::H64;
use super::{LINE_BYTES, Line, pack, unpack};
use crate::table::{DType, PushOp};

/// Bytes of the optional weight at the end of a push's payload: an f64 by which a server multiplies the values.
pub const WEIGHT_BYTES: usize = 8;
/// Bytes of the header of a frame in a ring, before the payload: one line.
pub const FRAME_HEADER_BYTES: usize = LINE_BYTES;
/// Magic number at the start of a frame, the bytes 'TWP1' in memory order.
pub const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"TWP1");
/// Value of the header's `partition` in a frame with rows in any partitions of the applier.
pub const PARTITION_ANY: u32 = u32::MAX;
/// Value of the header's `clock` in a CLOCK frame by which a worker, or a further thread of one, finishes: it
/// leaves all clock domains of its job for good.
pub const CLOCK_FINISHED: u64 = u64::MAX;
/// Value of the header's `clock` in a CLOCK frame by which a further thread of a worker becomes a member of all
/// clock domains of the worker.
pub const CLOCK_JOIN: u64 = u64::MAX - 1;

/// Kind of a frame: the request that a client sends to an applier. Codes are wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum FrameKind {
    /// Rows by key or row index: `count` keys, locations if flagged, the values, the weight if flagged.
    PushRows = 1,
    /// A range of elements: u64 first element, `count` values, the weight if flagged.
    PushDense = 2,
    /// Asks the applier to copy rows or ranges into the reply slot.
    Gather = 3,
    /// Asks the applier to look up keys (and create them, if flagged). Locations go into the reply
    /// slot.
    Resolve = 4,
    /// A worker's tick: `clock` ticks completed in the domain `partition`.
    Clock = 5,
    /// Fills the ring up to the wrap point.
    Pad = 6,
    /// A function that changes elements: see [`super::function`].
    Update = 7,
    /// New hyper-parameters of a table's rule: see [`super::settings`].
    Settings = 8,
    /// A function that reads elements; its result goes into the reply slot.
    Reduce = 9,
    /// Deletes the rows of `count` keys.
    Delete = 10,
    /// Lists the stored keys in some slots of the partition: see [`super::scan`]. The keys go into the reply slot.
    Scan = 11,
    /// Pins version `clock` of a table for the session. The number of its buffer, a u64, goes into the reply slot.
    Pin = 12,
    /// Ends the session's pin of version `clock` of a table.
    Unpin = 13,
    /// Marks the end of a task: the pushes flagged `task` before it are those of delivery `clock`. With
    /// `count` 1 they are held until the task is finished, with 0 they are dropped.
    Task = 14,
}

impl FrameKind {
    /// Whether the kind changes rows of a table: a push, a function that stores, or a deletion. A CLOCK or TASK frame,
    /// which may let earlier pushes take effect, does not count.
    pub const fn is_push(self) -> bool {
        matches!(
            self,
            Self::PushRows | Self::PushDense | Self::Update | Self::Delete
        )
    }

    /// Returns the kind of a wire code; `None` for an unknown code.
    pub const fn from_code(code: u16) -> Option<Self> {
        Some(match code {
            1 => Self::PushRows,
            2 => Self::PushDense,
            3 => Self::Gather,
            4 => Self::Resolve,
            5 => Self::Clock,
            6 => Self::Pad,
            7 => Self::Update,
            8 => Self::Settings,
            9 => Self::Reduce,
            10 => Self::Delete,
            11 => Self::Scan,
            12 => Self::Pin,
            13 => Self::Unpin,
            14 => Self::Task,
            _ => return None,
        })
    }
}

/// Decoded flags of a frame: push operation, element type, encoding and options.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FrameFlags {
    /// Operation of a push; `None` for other kinds.
    pub op: Option<PushOp>,
    /// Element type of the values, if any.
    pub dtype: Option<DType>,
    /// Whether locations follow the keys.
    pub locs: bool,
    /// Whether missing rows are created.
    pub create: bool,
    /// Whether a weight follows the values of a push.
    pub weight: bool,
    /// Lossy encoding of a push's values; `None` for exact elements of the type `dtype`.
    pub encoding: Option<EncodingCode>,
    /// Whether the push is part of a task, and takes effect when the task is finished.
    pub task: bool,
}

impl FrameFlags {
    const LOCS: u16 = 1 << 8;
    const CREATE: u16 = 1 << 9;
    const WEIGHT: u16 = 1 << 10;
    const ENCODING_AT: u32 = 11;
    const TASK: u16 = 1 << 13;
    const KNOWN: u16 = 0x3fff;

    /// Encodes the flags as the 16-bit word of a frame's header.
    pub const fn code(self) -> u16 {
        let op = match self.op {
            Some(op) => op as u16,
            None => 0,
        };
        let dtype = match self.dtype {
            Some(d) => d.code() as u16,
            None => 0,
        };
        let encoding = match self.encoding {
            Some(e) => e as u16,
            None => 0,
        };
        op | dtype << 4
            | encoding << Self::ENCODING_AT
            | if self.locs { Self::LOCS } else { 0 }
            | if self.create { Self::CREATE } else { 0 }
            | if self.weight { Self::WEIGHT } else { 0 }
            | if self.task { Self::TASK } else { 0 }
    }

    /// Decodes the 16-bit word of a frame's header; `None` when a reserved bit is set or a code is unknown.
    pub const fn from_code(code: u16) -> Option<Self> {
        if code & !Self::KNOWN != 0 {
            return None;
        }
        let op = match (code & 15) as u8 {
            0 => None,
            c => match PushOp::from_code(c) {
                Some(op) => Some(op),
                None => return None,
            },
        };
        let dtype = match ((code >> 4) & 15) as u8 {
            0 => None,
            c => match DType::from_code(c) {
                Some(d) => Some(d),
                None => return None,
            },
        };
        Some(Self {
            op,
            dtype,
            locs: code & Self::LOCS != 0,
            create: code & Self::CREATE != 0,
            weight: code & Self::WEIGHT != 0,
            encoding: EncodingCode::from_code((code >> Self::ENCODING_AT & 3) as u8),
            task: code & Self::TASK != 0,
        })
    }
}

/// Decoded 64-byte header of a frame in a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// Kind of the frame.
    pub kind: FrameKind,
    /// Operation, element type and options.
    pub flags: FrameFlags,
    /// Sequence number in its ring, from 1.
    pub seq: u64,
    /// Nonce of the session.
    pub session: u64,
    /// Payload bytes in use after the header, without the padding.
    pub payload_len: u32,
    /// Number of rows, keys, elements or slots; 1 or 0 in a TASK frame.
    pub count: u32,
    /// Number of the table.
    pub table: u32,
    /// Number of the partition, or [`PARTITION_ANY`]; in a CLOCK frame the clock domain.
    pub partition: u32,
    /// Clock of the sender's open iteration. In a CLOCK frame the ticks completed, [`CLOCK_FINISHED`] or
    /// [`CLOCK_JOIN`]; in a PIN or UNPIN frame the version; in a TASK frame the number of the delivery.
    pub clock: u64,
    /// Tag that the reply repeats; 0 when no reply is wanted.
    pub user_tag: u64,
    /// Checksum over header and payload; 0 on sessions over a transport that places bytes in order.
    pub checksum: u64,
}

/// Reason why bytes in a ring are not a frame. The server then ends the session: the ring's positions no longer
/// agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The bytes do not begin with 'TWP1'; they begin with this word.
    #[error("no frame here: magic is {0:#010x}, not 'TWP1'")]
    Magic(u32),
    /// The kind, with this code, is unknown.
    #[error("unknown frame kind {0}")]
    Kind(u16),
    /// A reserved flag bit is set, a code is unknown, or the kind does not have a flag. The number is the flags word.
    #[error("frame flags {0:#06x} use reserved bits, unknown codes, or those of another kind")]
    Flags(u16),
}

impl FrameHeader {
    /// Encodes the header as a line of eight words, with the value of the field `checksum`. It computes no checksum:
    /// the caller stores that of `Self::hasher` and the payload in the field first, or 0.
    #[inline]
    pub const fn to_line(&self) -> Line {
        [
            FRAME_MAGIC as u64 | (self.kind as u64) << 32 | (self.flags.code() as u64) << 48,
            self.seq,
            self.session,
            pack(self.payload_len, self.count),
            pack(self.table, self.partition),
            self.clock,
            self.user_tag,
            self.checksum,
        ]
    }

    /// Decodes a header from a line of eight words. The checksum is not verified here.
    ///
    /// # Errors
    /// [`FrameError`] for a wrong magic, an unknown kind, reserved flags, unknown codes in the flags, or a flag for
    /// values (weight, encoding, task) in a frame that is no `PushRows` or `PushDense`.
    #[inline]
    pub const fn from_line(line: &Line) -> Result<Self, FrameError> {
        let (magic, rest) = unpack(line[0]);
        if magic != FRAME_MAGIC {
            return Err(FrameError::Magic(magic));
        }
        let Some(kind) = FrameKind::from_code(rest as u16) else {
            return Err(FrameError::Kind(rest as u16));
        };
        let Some(flags) = FrameFlags::from_code((rest >> 16) as u16) else {
            return Err(FrameError::Flags((rest >> 16) as u16));
        };
        let carries_values = matches!(kind, FrameKind::PushRows | FrameKind::PushDense);
        if (flags.weight || flags.encoding.is_some() || flags.task) && !carries_values {
            return Err(FrameError::Flags((rest >> 16) as u16));
        }
        let (payload_len, count) = unpack(line[3]);
        let (table, partition) = unpack(line[4]);
        Ok(Self {
            kind,
            flags,
            seq: line[1],
            session: line[2],
            payload_len,
            count,
            table,
            partition,
            clock: line[5],
            user_tag: line[6],
            checksum: line[7],
        })
    }

    /// Returns the bytes that the frame takes in the ring: header and payload, padded to a multiple of 64. Not
    /// valid for PAD, which takes all bytes up to the wrap point.
    pub const fn ring_bytes(&self) -> u64 {
        FRAME_HEADER_BYTES as u64 + (self.payload_len as u64).next_multiple_of(LINE_BYTES as u64)
    }

    /// Returns the hash state after the header, without its field `checksum`. The caller absorbs the payload and
    /// finishes the hash, which is then the frame's checksum. A PAD frame has no payload to absorb.
    pub fn hasher(&self) -> H64 {
        let line = self.to_line();
        let mut h = H64::new([self.session, 0x5457_5031, self.payload_len as u64, 0]);
        h.block(&[
            line[0], line[1], line[2], line[3], line[4], line[5], line[6], 0,
        ]);
        h
    }
}

/// Byte offsets of keys, locations (if flagged) and values within a `PushRows` payload. Keys and locations are
/// each padded to a line; the values are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowsPayload {
    /// Offset of the locations; equals `values_at` when there are none.
    pub locs_at: usize,
    /// Offset of the values in the payload.
    pub values_at: usize,
    /// Bytes of keys, locations and values. A weight, if flagged, comes after them.
    pub len: usize,
}

impl RowsPayload {
    /// Computes the offsets for `count` rows with `row_bytes` bytes of values each. `locs`: locations follow
    /// the keys.
    pub const fn new(count: usize, row_bytes: usize, locs: bool) -> Self {
        let column = (count * 8).next_multiple_of(LINE_BYTES);
        let values_at = if locs { 2 * column } else { column };
        Self {
            locs_at: column,
            values_at,
            len: values_at + count * row_bytes,
        }
    }
}

const _: () = assert!(FRAME_HEADER_BYTES == 64);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn decoding_is_total_and_inverts_encoding(line in any::<[u64; 8]>(), valid in any::<bool>()) {
            let mut line = line;
            if valid {
                line[0] = u64::from(FRAME_MAGIC) | (line[0] % 6 + 1) << 32 | 0x0311 << 48;
            }
            if let Ok(header) = FrameHeader::from_line(&line) {
                prop_assert_eq!(header.to_line(), line);
            } else {
                prop_assert!(!valid);
            }
        }

        #[test]
        fn flags_round_trip(code in any::<u16>()) {
            if let Some(flags) = FrameFlags::from_code(code) {
                prop_assert_eq!(flags.code(), code);
            }
        }
    }
}
