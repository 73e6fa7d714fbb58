//! Self-validating records: small facts that one side writes and the other may read at any moment, torn
//! or stale. Each carries a checksum over its content and its kind. A torn record, or one of another
//! kind or salt, is therefore never accepted. A record is accepted only if it equals, to the bit, the
//! encoding of its meaning; so reserved words are zero.

use super::hash::{line_checksum, mix64};
use super::reject::RejectReason;
use super::{Line, pack, unpack};
use crate::limits::VERSIONS_MAX;

const STATE: u64 = u64::from_le_bytes(*b"state-ln");
const CLOCK: u64 = u64::from_le_bytes(*b"clock-ln");
const SNAPSHOT: u64 = u64::from_le_bytes(*b"snap-dsc");
const REJECT: u64 = u64::from_le_bytes(*b"reject-c");

/// Self-validating 64-bit value in two words, 16 bytes: the value and its keyed checksum, `{v, mix64(v ^
/// salt)}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckedU64(pub [u64; 2]);

impl CheckedU64 {
    /// Pairs a value with its checksum word under `salt`.
    #[inline]
    pub const fn new(value: u64, salt: u64) -> Self {
        Self([value, mix64(value ^ salt)])
    }

    /// Returns the value if its checksum word matches under `salt`; `None` if the pair is torn or of another
    /// salt.
    #[inline]
    pub const fn value(self, salt: u64) -> Option<u64> {
        if self.0[1] == mix64(self.0[0] ^ salt) {
            Some(self.0[0])
        } else {
            None
        }
    }
}

/// Status record of a ring: how far the server has applied the client's frames. Written only by the applier
/// that reads the ring.
///
/// `applied u64 | durable u64 | head u64 | rejected u64 | checksum u64 | 0 | 0 | 0`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StateLine {
    /// Every frame up to this sequence number is applied, held for a tick or a task, or refused.
    pub applied_seq: u64,
    /// Every frame up to this sequence number has reached its table's durability level.
    pub durable_seq: u64,
    /// Bytes of the ring below this monotonic position are free.
    pub head_bytes: u64,
    /// Number of frames refused so far; their reject records were written before this record.
    pub rejected: u64,
}

impl StateLine {
    /// Encodes the record as a line with its checksum; `salt` is the session's nonce.
    pub fn to_line(&self, salt: u64) -> Line {
        let w = [
            self.applied_seq,
            self.durable_seq,
            self.head_bytes,
            self.rejected,
        ];
        [
            w[0],
            w[1],
            w[2],
            w[3],
            line_checksum(salt, STATE, &w),
            0,
            0,
            0,
        ]
    }

    /// Decodes a line that a client read; `None` if its checksum does not match: torn or of another session.
    pub fn from_line(line: &Line, salt: u64) -> Option<Self> {
        let state = Self {
            applied_seq: line[0],
            durable_seq: line[1],
            head_bytes: line[2],
            rejected: line[3],
        };
        (state.to_line(salt) == *line).then_some(state)
    }
}

/// Clock record of a clock domain on one applier: the minimum clock, in ticks, over the client threads of live workers.
/// Written by the server only.
///
/// `g u64 | epoch u64 | slowest u32, members u32 | checksum u64 | 0 ...`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClockLine {
    /// Number of ticks completed by every live client thread, with all their pushes applied here. Monotonic.
    pub min: u64,
    /// Number of changes of the domain's members so far.
    pub epoch: u64,
    /// Rank of a worker with a thread at the minimum; `u32::MAX` when no member is left.
    pub slowest: u32,
    /// Number of live members. Each client thread of a worker is one.
    pub members: u32,
}

impl ClockLine {
    /// Encodes the record as a line with its checksum. `salt` is the session's nonce; the checksum also covers
    /// the number of the domain.
    pub fn to_line(&self, salt: u64, domain: u8) -> Line {
        let w = [self.min, self.epoch, pack(self.slowest, self.members)];
        let checksum = line_checksum(salt, CLOCK ^ u64::from(domain), &w);
        [w[0], w[1], w[2], checksum, 0, 0, 0, 0]
    }

    /// Decodes a line that a client read; `None` if its checksum does not match: torn, or of another session or
    /// domain.
    pub fn from_line(line: &Line, salt: u64, domain: u8) -> Option<Self> {
        let (slowest, members) = unpack(line[2]);
        let clock = Self {
            min: line[0],
            epoch: line[1],
            slowest,
            members,
        };
        (clock.to_line(salt, domain) == *line).then_some(clock)
    }
}

/// Snapshot record of one partition of a snapshot table: which of its buffers hold which versions. Written by
/// the server; a reader needs it to select a complete buffer.
///
/// `front u64 | building u64 | min_clock u64 | applied u64 | kept u64 | buffers u64 | checksum u64 | 0`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SnapshotLine {
    /// Epoch of the newest complete buffer.
    pub front: u64,
    /// Epoch being built; `front` when none is being built.
    pub building: u64,
    /// Version of `front`: the clock of the domain, in ticks, that `front` stands for.
    pub min_clock: u64,
    /// Number (lsn) of the applier's last step when `front` was completed; 0 while it holds the initial values.
    pub applied: u64,
    /// Oldest kept epoch: all epochs from `kept` to `front` are complete.
    pub kept: u64,
    /// Number of the buffer of epoch `front - i` in bits `4 i .. 4 i + 4`, for epochs from `kept` on.
    pub buffers: u64,
}

impl SnapshotLine {
    /// Whether the buffer of this epoch is kept and complete, so that clients may read it: `kept <= epoch <= front`.
    #[inline]
    pub const fn holds(&self, epoch: u64) -> bool {
        self.kept <= epoch && epoch <= self.front
    }

    /// Number of the buffer that holds epoch `epoch`; `None` if that epoch is not kept, or 16 or more before `front`.
    #[inline]
    pub const fn buffer_of(&self, epoch: u64) -> Option<usize> {
        if !self.holds(epoch) || self.front - epoch >= VERSIONS_MAX as u64 {
            return None;
        }
        Some((self.buffers >> (4 * (self.front - epoch)) & 15) as usize)
    }

    /// Epoch that holds the version `version`, whether it is kept or not. A version is a clock of the domain; epochs
    /// also count loads of saved models.
    #[inline]
    pub const fn epoch_of(&self, version: u64) -> u64 {
        version.saturating_add(self.front.saturating_sub(self.min_clock))
    }

    /// Returns the oldest and the newest kept version, as clocks of the domain. All versions between are kept
    /// too.
    pub const fn versions(&self) -> (u64, u64) {
        let older = self.front.saturating_sub(self.kept);
        (self.min_clock.saturating_sub(older), self.min_clock)
    }

    /// Encodes the record as a line with its checksum; `salt` is the table's.
    pub fn to_line(&self, salt: u64) -> Line {
        let w = [
            self.front,
            self.building,
            self.min_clock,
            self.applied,
            self.kept,
            self.buffers,
        ];
        let checksum = line_checksum(salt, SNAPSHOT, &w);
        [w[0], w[1], w[2], w[3], w[4], w[5], checksum, 0]
    }

    /// Whether what a client read from the newest buffer (`front`) is complete. `self` was read before the
    /// buffer and `after` afterwards. An epoch with a buffer that is being overwritten is not kept in `after`.
    pub const fn accepts(&self, after: &Self) -> bool {
        after.holds(self.front)
    }

    /// Decodes a line that a client read; `None` if its checksum does not match: torn or of another table.
    pub fn from_line(line: &Line, salt: u64) -> Option<Self> {
        let snapshot = Self {
            front: line[0],
            building: line[1],
            min_clock: line[2],
            applied: line[3],
            kept: line[4],
            buffers: line[5],
        };
        (snapshot.to_line(salt) == *line).then_some(snapshot)
    }
}

/// Wire code of the reason for which an applier refused a frame. [`RejectReason`] adds the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum RejectCode {
    /// The server has no such table.
    UnknownTable = 1,
    /// The table was released.
    TableReleased = 2,
    /// A row or element is past the table's end.
    IndexOutOfRange = 3,
    /// The values have another type than the table.
    WrongDType = 4,
    /// A value is NaN or infinite, which the table refuses.
    NotFinite = 5,
    /// The payload does not have the length that the frame's kind and `count` need.
    WrongLength = 6,
    /// Another applier owns the rows or elements.
    WrongOwner = 7,
    /// The table does not take the operation (such as a gradient without an optimizer), or its weight.
    WrongOperation = 8,
    /// The server has no memory left for new rows or held pushes.
    NoMemory = 9,
    /// More bytes are held back for early ranks of an iteration than the limit.
    PendingFull = 10,
    /// The reply is larger than a slot.
    ReplyTooLarge = 11,
    /// The clock goes back or skips, or the domain is unknown or does not have the sender as a member.
    BadClock = 12,
    /// A function could not be run on these elements.
    Function = 13,
    /// An observer's frame would change the model or a clock.
    Observer = 14,
    /// The version to be pinned is not kept any more, or not yet.
    NotKept = 15,
    /// The table has as many pinned versions as it can.
    PinsFull = 16,
    /// A limit of the server keeps the partition from getting another row.
    TableFull = 17,
}

impl RejectCode {
    /// Returns the reason's code from its wire number; `None` for an unknown number.
    pub const fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            1 => Self::UnknownTable,
            2 => Self::TableReleased,
            3 => Self::IndexOutOfRange,
            4 => Self::WrongDType,
            5 => Self::NotFinite,
            6 => Self::WrongLength,
            7 => Self::WrongOwner,
            8 => Self::WrongOperation,
            9 => Self::NoMemory,
            10 => Self::PendingFull,
            11 => Self::ReplyTooLarge,
            12 => Self::BadClock,
            13 => Self::Function,
            14 => Self::Observer,
            15 => Self::NotKept,
            16 => Self::PinsFull,
            17 => Self::TableFull,
            _ => return None,
        })
    }
}

/// Reject record of one refused frame, which the server writes into cell `seq % FRAMES_IN_FLIGHT_MAX` of the
/// client's mailbox.
///
/// `seq u64 | code u32, table u32 | number u64 | number u64 | checksum u64 | 0 ...`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reject {
    /// Sequence number of the refused frame.
    pub seq: u64,
    /// Table of the refused frame.
    pub table: u32,
    /// Reason of the refusal.
    pub reason: RejectReason,
}

impl Reject {
    /// Returns the wire code of the refusal's reason.
    pub const fn code(&self) -> RejectCode {
        self.reason.code()
    }

    /// Encodes the record as a line with its checksum; `salt` is the session's nonce.
    pub fn to_line(&self, salt: u64) -> Line {
        let [a, b] = self.reason.numbers();
        let w = [self.seq, pack(self.code() as u32, self.table), a, b];
        [
            w[0],
            w[1],
            w[2],
            w[3],
            line_checksum(salt, REJECT, &w),
            0,
            0,
            0,
        ]
    }

    /// Decodes a line that a client read; `None` if its checksum does not match or the reason is unknown.
    pub fn from_line(line: &Line, salt: u64) -> Option<Self> {
        let (code, table) = unpack(line[1]);
        let reject = Self {
            seq: line[0],
            table,
            reason: RejectReason::from_numbers(RejectCode::from_code(code)?, [line[2], line[3]])?,
        };
        (reject.to_line(salt) == *line).then_some(reject)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_mixture_of_two_lines_is_believed(a in any::<[u64; 4]>(), b in any::<[u64; 4]>(), mask in 1u8..255) {
            let of = |w: [u64; 4]| StateLine {
                applied_seq: w[0], durable_seq: w[1], head_bytes: w[2], rejected: w[3],
            };
            let (x, y) = (of(a).to_line(9), of(b).to_line(9));
            let mut torn = x;
            for (i, word) in torn.iter_mut().enumerate() {
                if mask >> i & 1 == 1 {
                    *word = y[i];
                }
            }
            if torn != x && torn != y {
                prop_assert_eq!(StateLine::from_line(&torn, 9), None);
            }
            prop_assert_eq!(StateLine::from_line(&x, 9), Some(of(a)));
            prop_assert_eq!(StateLine::from_line(&x, 8), None);
            prop_assert_eq!(SnapshotLine::from_line(&x, 9), None);
        }

        #[test]
        fn cells_are_total(line in any::<[u64; 8]>()) {
            prop_assert!(Reject::from_line(&line, 1).is_none());
            prop_assert!(ClockLine::from_line(&line, 1, 0).is_none());
        }
    }

    #[test]
    fn a_clock_of_another_domain_is_refused() {
        let line = ClockLine {
            min: 4,
            epoch: 1,
            slowest: 2,
            members: 3,
        }
        .to_line(7, 1);
        assert!(ClockLine::from_line(&line, 7, 1).is_some());
        assert!(ClockLine::from_line(&line, 7, 2).is_none());
    }
}
