//! Self-checking lines and cells: small facts that one side writes and the other may read at any
//! moment, torn or stale. Each carries a check word over its content and over what it is, so that
//! neither a torn line nor a line of another kind or salt is believed. A line is believed only if it
//! is, to the bit, what encoding its meaning gives; so reserved words are zero.

use super::hash::{line_chk, mix64};
use super::reject::RejectReason;
use super::{Line, pack, unpack};

const STATE: u64 = u64::from_le_bytes(*b"state-ln");
const CLOCK: u64 = u64::from_le_bytes(*b"clock-ln");
const SNAPSHOT: u64 = u64::from_le_bytes(*b"snap-dsc");
const REJECT: u64 = u64::from_le_bytes(*b"reject-c");

/// A 64-bit value that proves itself in 16 bytes: `{v, mix64(v ^ salt)}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckedU64(pub [u64; 2]);

impl CheckedU64 {
    /// Checks a value with a salt.
    #[inline]
    pub const fn new(value: u64, salt: u64) -> Self {
        Self([value, mix64(value ^ salt)])
    }

    /// The value, if the check is right.
    #[inline]
    pub const fn value(self, salt: u64) -> Option<u64> {
        if self.0[1] == mix64(self.0[0] ^ salt) {
            Some(self.0[0])
        } else {
            None
        }
    }
}

/// A ring's state: what the server has done with it. Written by the ring's applier only.
///
/// `applied u64 | durable u64 | head u64 | rejected u64 | chk u64 | 0 | 0 | 0`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StateLine {
    /// Every frame up to this sequence is applied or refused.
    pub applied_seq: u64,
    /// Every frame up to this sequence is safe at its table's durability level.
    pub durable_seq: u64,
    /// Bytes of the ring below this monotonic position are free.
    pub head_bytes: u64,
    /// Frames refused so far: their reject cells were written before this line.
    pub rejected: u64,
}

impl StateLine {
    /// As a line, salted with the session's nonce.
    pub fn to_line(&self, salt: u64) -> Line {
        let w = [
            self.applied_seq,
            self.durable_seq,
            self.head_bytes,
            self.rejected,
        ];
        [w[0], w[1], w[2], w[3], line_chk(salt, STATE, &w), 0, 0, 0]
    }

    /// From a line, if it proves itself.
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

/// A domain's clock on one server: the minimum over live workers. Written by the server only.
///
/// `g u64 | epoch u64 | slowest u32, members u32 | chk u64 | 0 ...`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClockLine {
    /// Ticks that every live worker has completed and whose pushes took effect here. Monotonic.
    pub min: u64,
    /// Counts changes of membership.
    pub epoch: u64,
    /// A worker that is at the minimum; `u32::MAX` when nobody is left.
    pub slowest: u32,
    /// Live workers.
    pub members: u32,
}

impl ClockLine {
    /// As a line; the salt names the table memory or session it is for, the domain is checked too.
    pub fn to_line(&self, salt: u64, domain: u8) -> Line {
        let w = [self.min, self.epoch, pack(self.slowest, self.members)];
        let chk = line_chk(salt, CLOCK ^ u64::from(domain), &w);
        [w[0], w[1], w[2], chk, 0, 0, 0, 0]
    }

    /// From a line, if it proves itself.
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

/// Which of a snapshot table's two buffers may be read. One per partition, server-written.
///
/// `front u64 | building u64 | min_clock u64 | applied u64 | chk u64 | 0 ...`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SnapshotLine {
    /// Epoch of the newest whole buffer; it is buffer `front & 1`.
    pub front: u64,
    /// Epoch being built, or `front` when none is.
    pub building: u64,
    /// The domain's clock at `front`.
    pub min_clock: u64,
    /// Pushes in `front`.
    pub applied: u64,
}

impl SnapshotLine {
    /// As a line, salted with the table's salt.
    pub fn to_line(&self, salt: u64) -> Line {
        let w = [self.front, self.building, self.min_clock, self.applied];
        [
            w[0],
            w[1],
            w[2],
            w[3],
            line_chk(salt, SNAPSHOT, &w),
            0,
            0,
            0,
        ]
    }

    /// Whether the buffer that `self` names, read after it and before `after`, is complete: the buffer of epoch
    /// e is first written again when e + 2 is being built.
    pub const fn accepts(&self, after: &Self) -> bool {
        after.building <= self.front.saturating_add(1)
    }

    /// From a line, if it proves itself.
    pub fn from_line(line: &Line, salt: u64) -> Option<Self> {
        let snapshot = Self {
            front: line[0],
            building: line[1],
            min_clock: line[2],
            applied: line[3],
        };
        (snapshot.to_line(salt) == *line).then_some(snapshot)
    }
}

/// Why a well-framed push was refused: the code of a [`RejectReason`], which has the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum RejectCode {
    /// No such table on this server.
    UnknownTable = 1,
    /// The table was released.
    TableReleased = 2,
    /// A row or element past the table's end.
    IndexOutOfRange = 3,
    /// Values of another type.
    WrongDType = 4,
    /// NaN or infinity where the table checks.
    NotFinite = 5,
    /// The payload is not `count` rows of this table.
    WrongLength = 6,
    /// Rows or elements that another applier owns.
    WrongOwner = 7,
    /// A gradient for a table without an optimizer, or an operation this kind of table lacks.
    WrongOperation = 8,
    /// The server has no memory left for new rows.
    NoMemory = 9,
    /// More held back for early ranks of an iteration than the limit.
    PendingFull = 10,
    /// A reply larger than a slot.
    ReplyTooLarge = 11,
    /// A clock that goes back, skips, or is of an unknown domain.
    BadClock = 12,
}

impl RejectCode {
    /// Of a wire code.
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
            _ => return None,
        })
    }
}

/// One refused frame, kept in cell `seq % FRAMES_IN_FLIGHT_MAX` next to the state line.
///
/// `seq u64 | code u32, table u32 | number u64 | number u64 | chk u64 | 0 ...`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reject {
    /// The frame.
    pub seq: u64,
    /// Its table.
    pub table: u32,
    /// Why.
    pub reason: RejectReason,
}

impl Reject {
    /// Code of the reason.
    pub const fn code(&self) -> RejectCode {
        self.reason.code()
    }

    /// As a line, salted with the session's nonce.
    pub fn to_line(&self, salt: u64) -> Line {
        let [a, b] = self.reason.numbers();
        let w = [self.seq, pack(self.code() as u32, self.table), a, b];
        [w[0], w[1], w[2], w[3], line_chk(salt, REJECT, &w), 0, 0, 0]
    }

    /// From a line, if it proves itself.
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
