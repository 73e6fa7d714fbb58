//! The lane's protocol on TCP, after the handshake: pure and total.
//!
//! Every message begins with a header of four words:
//! ```text
//! +0  u8 magic 0xd7 | u8 kind | u8 why (REFUSED) | u8 check | u32 key, or entries of a READV
//! +8  u64     +16 u64     +24 u64
//! ```
//! | kind | word 1 | word 2 | word 3 | followed by |
//! |---|---|---|---|---|
//! | 1 READV | bytes in all | cookie | 0 | entries of 16 bytes |
//! | 2 WRITE | addr | len | 0 | payload |
//! | 3 FETCH_ADD | addr | add | 0 | |
//! | 4 COMPARE_SWAP | addr | expect | new | |
//! | 65 READ_REPLY | bytes in all | cookie | 0 | payload, in the order of the entries |
//! | 66 ATOMIC_REPLY | old value | 0 | 0 | |
//! | 67 MAILBOX | at | len | 0 | payload |
//! | 68 REFUSED | addr | len | kind refused | nothing: the lane closes |
//!
//! Entry of a READV: `u32 key | u32 len, bit 31: fence | u64 addr`. Requests are executed and
//! answered in order. Bytes wake a thread that sleeps on the socket, so no message needs a wake-up
//! flag. The check byte is a hash of the rest: it detects an end that is out of step. A header is
//! accepted only if encoding its decoded value gives the same bits; so reserved bits are zero.

use crate::fabric::AccessDenied;
use tidewater_protocol::ids::RegionKey;
use tidewater_protocol::layout::hash::mix64;
use tidewater_protocol::layout::session::inbox_bytes;
use tidewater_protocol::layout::word_at;
use tidewater_protocol::limits::{
    LANE_READV_BYTES_MAX, LANE_READV_ENTRIES_MAX, LANE_WRITE_BYTES_MAX, RING_BYTES_MAX,
};
use tidewater_protocol::wire::decoders::Decode;

/// Bytes of a message header of the TCP lane.
pub const HEADER_BYTES: usize = 32;
/// Bytes of one read entry in the list that follows a READV header.
pub const ENTRY_BYTES: usize = 16;
/// Header of a message in wire format.
pub type HeaderBytes = [u8; HEADER_BYTES];

const MAGIC: u8 = 0xd7;
const FENCE: u32 = 1 << 31;

/// Names and functions of the decoders of this module: the fuzzers call each with arbitrary bytes.
pub const DECODERS: &[(&str, Decode)] = &[
    ("lane-request", |bytes| {
        let _ = bytes.first_chunk().map(Request::from_bytes);
    }),
    ("lane-reply", |bytes| {
        let _ = bytes.first_chunk().map(Reply::from_bytes);
    }),
    ("lane-entry", |bytes| {
        let _ = bytes.first_chunk().map(Entry::from_bytes);
    }),
];

/// Reason why received bytes are not a message of a TCP lane. The peer is out of step or hostile, so the
/// end that received them closes the lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpError {
    /// The first byte, which this contains, is not the magic.
    #[error("no message here: it begins with {0:#04x}")]
    Magic(u8),
    /// A message of a kind, which this contains, that the receiving end does not accept.
    #[error("message of unknown kind {0}")]
    Kind(u8),
    /// A message of the contained kind has a reserved bit set, a wrong check or, if a refusal, an unknown
    /// code.
    #[error("message of kind {0} has reserved bits set or a wrong check")]
    Reserved(u8),
    /// A count or length over its limit.
    #[error("message of kind {kind} asks for {asked}; the limit is {limit}")]
    Limit {
        /// Kind of the message.
        kind: u8,
        /// Count or length that the message requests.
        asked: u64,
        /// Greatest value that is allowed.
        limit: u64,
    },
}

/// Header of a request from a client to a server lane. Request bodies (read entries, payload) follow
/// separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Reads; the list of entries follows.
    ReadV {
        /// Entries of the list, at most 512. A client sends at least 1; the decoder accepts 0.
        entries: u32,
        /// Bytes of all entries together.
        bytes: u32,
        /// Returned with the answer.
        cookie: u64,
    },
    /// A write; the payload follows.
    Write {
        /// Key of the region.
        key: RegionKey,
        /// Address in the region.
        addr: u64,
        /// Bytes of the payload.
        len: u32,
    },
    /// Adds to a counter.
    FetchAdd {
        /// Key of the region.
        key: RegionKey,
        /// Address in the region.
        addr: u64,
        /// Amount to add, wrapping.
        add: u64,
    },
    /// Stores in a counter if it has the expected value.
    CompareSwap {
        /// Key of the region.
        key: RegionKey,
        /// Address in the region.
        addr: u64,
        /// Old value that the store requires.
        expect: u64,
        /// Value to store in the counter.
        new: u64,
    },
}

/// Header of a message from a server lane to its client: an answer, a mailbox post or a refusal. Its
/// payload follows separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// Answer to a READV; its bytes follow.
    Read {
        /// Number of bytes that follow.
        bytes: u32,
        /// Cookie of the request.
        cookie: u64,
    },
    /// Answer to an atomic on a counter.
    Atomic {
        /// Old value of the counter.
        was: u64,
    },
    /// A write into the mailbox; the payload follows.
    Mailbox {
        /// Byte offset in the mailbox.
        at: u32,
        /// Bytes of the payload.
        len: u32,
    },
    /// An access was refused; nothing follows.
    Refused(Refused),
}

/// Content of a refusal: the client's request that the server lane refused, and the access check that
/// failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// Kind of the request.
    pub kind: RequestKind,
    /// Access check that failed.
    pub why: AccessDenied,
    /// Region key of the refused access.
    pub key: RegionKey,
    /// Address of the refused access.
    pub addr: u64,
    /// Length in bytes of the refused access: one entry of a list of reads, a write, or 8 for an atomic.
    pub len: u64,
}

/// Kind of a client's request; the discriminant is its wire code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RequestKind {
    /// A list of reads.
    ReadV = 1,
    /// A write into the inbox.
    Write = 2,
    /// An addition to a counter.
    FetchAdd = 3,
    /// A conditional store in a counter.
    CompareSwap = 4,
}

impl RequestKind {
    const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::ReadV,
            2 => Self::Write,
            3 => Self::FetchAdd,
            4 => Self::CompareSwap,
            _ => return None,
        })
    }

    /// Returns the name of the `ClientLane` call that sends such a request, for errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadV => "read",
            Self::Write => "write",
            Self::FetchAdd => "fetch_add",
            Self::CompareSwap => "compare_swap",
        }
    }
}

const READ_REPLY: u8 = 65;
const ATOMIC_REPLY: u8 = 66;
const MAILBOX: u8 = 67;
const REFUSED: u8 = 68;

/// Fields of a message header before they are interpreted, without the magic and the check byte (a hash
/// of the rest).
struct Header {
    kind: u8,
    why: u8,
    key: u32,
    words: [u64; 3],
}

impl Header {
    const fn new(kind: u8, key: u32, words: [u64; 3]) -> Self {
        Self {
            kind,
            why: 0,
            key,
            words,
        }
    }

    fn to_bytes(&self) -> HeaderBytes {
        let [a, b, c] = self.words;
        let first = u64::from(MAGIC)
            | u64::from(self.kind) << 8
            | u64::from(self.why) << 16
            | u64::from(self.key) << 32;
        let mixed = mix64(first ^ mix64(a ^ mix64(b ^ mix64(c))));
        let first = first | (mixed >> 56) << 24;
        let mut bytes = [0; HEADER_BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip([first, a, b, c]) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &HeaderBytes) -> Result<Self, OpError> {
        let first = word_at(bytes, 0);
        if first as u8 != MAGIC {
            return Err(OpError::Magic(first as u8));
        }
        let header = Self {
            kind: (first >> 8) as u8,
            why: (first >> 16) as u8,
            key: (first >> 32) as u32,
            words: [word_at(bytes, 8), word_at(bytes, 16), word_at(bytes, 24)],
        };
        if header.to_bytes() == *bytes {
            Ok(header)
        } else {
            Err(OpError::Reserved(header.kind))
        }
    }

    /// Returns the decoded value `meaning` if `encode` of it gives the received bytes again. Otherwise
    /// reserved bits are set, and the error is [`OpError::Reserved`].
    fn means<T>(
        &self,
        meaning: T,
        encode: impl Fn(&T) -> HeaderBytes,
        bytes: &HeaderBytes,
    ) -> Result<T, OpError> {
        if encode(&meaning) == *bytes {
            Ok(meaning)
        } else {
            Err(OpError::Reserved(self.kind))
        }
    }

    /// Returns a received count or length, `asked`, as `u32`; [`OpError::Limit`] if it is above `limit`.
    fn bounded(&self, asked: u64, limit: usize) -> Result<u32, OpError> {
        let limit = limit as u64;
        match u32::try_from(asked) {
            Ok(n) if asked <= limit => Ok(n),
            _ => Err(OpError::Limit {
                kind: self.kind,
                asked,
                limit,
            }),
        }
    }
}

impl Request {
    /// Encodes the request's header in wire format.
    pub fn to_bytes(&self) -> HeaderBytes {
        let (kind, key, words) = match *self {
            Self::ReadV {
                entries,
                bytes,
                cookie,
            } => (RequestKind::ReadV, entries, [u64::from(bytes), cookie, 0]),
            Self::Write { key, addr, len } => {
                (RequestKind::Write, key.0, [addr, u64::from(len), 0])
            }
            Self::FetchAdd { key, addr, add } => (RequestKind::FetchAdd, key.0, [addr, add, 0]),
            Self::CompareSwap {
                key,
                addr,
                expect,
                new,
            } => (RequestKind::CompareSwap, key.0, [addr, expect, new]),
        };
        Header::new(kind as u8, key, words).to_bytes()
    }

    /// Decodes the header of a client's request and checks its counts and lengths against their limits.
    ///
    /// # Errors
    /// [`OpError`] when the bytes are not a valid request.
    pub fn from_bytes(bytes: &HeaderBytes) -> Result<Self, OpError> {
        let header = Header::from_bytes(bytes)?;
        let [a, b, c] = header.words;
        let key = RegionKey(header.key);
        let kind = RequestKind::from_code(header.kind).ok_or(OpError::Kind(header.kind))?;
        let request = match kind {
            RequestKind::ReadV => Self::ReadV {
                entries: header.bounded(u64::from(header.key), LANE_READV_ENTRIES_MAX)?,
                bytes: header.bounded(a, LANE_READV_BYTES_MAX)?,
                cookie: b,
            },
            RequestKind::Write => Self::Write {
                key,
                addr: a,
                len: header.bounded(b, LANE_WRITE_BYTES_MAX)?,
            },
            RequestKind::FetchAdd => Self::FetchAdd {
                key,
                addr: a,
                add: b,
            },
            RequestKind::CompareSwap => Self::CompareSwap {
                key,
                addr: a,
                expect: b,
                new: c,
            },
        };
        header.means(request, Self::to_bytes, bytes)
    }
}

impl Reply {
    /// Encodes the reply's header in wire format.
    pub fn to_bytes(&self) -> HeaderBytes {
        match *self {
            Self::Read { bytes, cookie } => {
                Header::new(READ_REPLY, 0, [u64::from(bytes), cookie, 0])
            }
            Self::Atomic { was } => Header::new(ATOMIC_REPLY, 0, [was, 0, 0]),
            Self::Mailbox { at, len } => {
                Header::new(MAILBOX, 0, [u64::from(at), u64::from(len), 0])
            }
            Self::Refused(r) => Header {
                why: r.why as u8,
                ..Header::new(REFUSED, r.key.0, [r.addr, r.len, r.kind as u64])
            },
        }
        .to_bytes()
    }

    /// Decodes the header of a server lane's message, and checks the length of an answer against its
    /// limit.
    ///
    /// # Errors
    /// [`OpError`] when the bytes are not a valid reply.
    pub fn from_bytes(bytes: &HeaderBytes) -> Result<Self, OpError> {
        let header = Header::from_bytes(bytes)?;
        let [a, b, c] = header.words;
        let reply = match header.kind {
            READ_REPLY => Self::Read {
                bytes: header.bounded(a, LANE_READV_BYTES_MAX)?,
                cookie: b,
            },
            ATOMIC_REPLY => Self::Atomic { was: a },
            MAILBOX => Self::Mailbox {
                at: header.bounded(a, u32::MAX as usize)?,
                len: header.bounded(b, u32::MAX as usize)?,
            },
            REFUSED => Self::Refused(Refused {
                kind: RequestKind::from_code(c as u8).ok_or(OpError::Reserved(REFUSED))?,
                why: AccessDenied::from_code(header.why).ok_or(OpError::Reserved(REFUSED))?,
                key: RegionKey(header.key),
                addr: a,
                len: b,
            }),
            other => return Err(OpError::Kind(other)),
        };
        header.means(reply, Self::to_bytes, bytes)
    }
}

/// One read of a READV request (a list of reads): key, address and length of the memory to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Key of the region.
    pub key: RegionKey,
    /// Bytes to read, below 2^31.
    pub len: u32,
    /// Starts the read only after all earlier reads completed (F03).
    pub fence: bool,
    /// Address in the region.
    pub addr: u64,
}

impl Entry {
    /// Encodes the entry in wire format; `len` loses its top bit, which carries the fence.
    pub fn to_bytes(&self) -> [u8; ENTRY_BYTES] {
        let len = self.len & !FENCE | if self.fence { FENCE } else { 0 };
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..4].copy_from_slice(&self.key.0.to_le_bytes());
        bytes[4..8].copy_from_slice(&len.to_le_bytes());
        bytes[8..].copy_from_slice(&self.addr.to_le_bytes());
        bytes
    }

    /// Decodes a read entry. Any 16 bytes are an entry; the access is checked when it is executed.
    pub fn from_bytes(bytes: &[u8; ENTRY_BYTES]) -> Self {
        let first = word_at(bytes, 0);
        let len = (first >> 32) as u32;
        Self {
            key: RegionKey(first as u32),
            len: len & !FENCE,
            fence: len & FENCE != 0,
            addr: word_at(bytes, 8),
        }
    }
}

const _: () = assert!(LANE_WRITE_BYTES_MAX == inbox_bytes(RING_BYTES_MAX));
const _: () = assert!(LANE_READV_BYTES_MAX < FENCE as usize);
const _: () = assert!(LANE_READV_BYTES_MAX.is_multiple_of(8));

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Encodes a header with valid magic and check, and any other fields, for property tests.
    fn plausible(kind: u8, why: u8, key: u32, words: [u64; 3]) -> HeaderBytes {
        Header {
            kind,
            why,
            key,
            words,
        }
        .to_bytes()
    }

    proptest! {
        #[test]
        fn decoding_is_total_and_inverts_encoding(
            raw in any::<[u8; 32]>(),
            kind in prop_oneof![1u8..6, 64u8..70],
            why in 0u8..3,
            key in prop_oneof![0u32..1000, any::<u32>()],
            words in proptest::array::uniform3(prop_oneof![Just(0), 0u64..5, 0u64..2 << 20, any::<u64>()]),
        ) {
            for bytes in [raw, plausible(kind, why, key, words)] {
                if let Ok(request) = Request::from_bytes(&bytes) {
                    prop_assert_eq!(request.to_bytes(), bytes);
                    prop_assert!(Reply::from_bytes(&bytes).is_err());
                }
                if let Ok(reply) = Reply::from_bytes(&bytes) {
                    prop_assert_eq!(reply.to_bytes(), bytes);
                }
            }
            let entry: [u8; 16] = raw[..16].try_into().unwrap();
            prop_assert_eq!(Entry::from_bytes(&entry).to_bytes(), entry);
            for (_, decode) in DECODERS {
                decode(&raw[..usize::from(kind) % 33]);
            }
        }
    }

    #[test]
    fn each_message_survives_and_each_flipped_bit_is_noticed() {
        let key = RegionKey(0x8000_0001);
        let requests = [
            Request::ReadV {
                entries: 3,
                bytes: 800,
                cookie: u64::MAX,
            },
            Request::Write {
                key,
                addr: 4096,
                len: 64,
            },
            Request::FetchAdd {
                key,
                addr: 8,
                add: u64::MAX,
            },
            Request::CompareSwap {
                key,
                addr: 8,
                expect: 1,
                new: 2,
            },
        ];
        let mut noticed = 0;
        for request in requests {
            let bytes = request.to_bytes();
            assert_eq!(Request::from_bytes(&bytes), Ok(request));
            for bit in 0..256 {
                let mut flipped = bytes;
                flipped[bit / 8] ^= 1 << (bit % 8);
                noticed += usize::from(Request::from_bytes(&flipped).is_err());
            }
        }
        // The check has eight bits: it misses about one flip in 256.
        assert!(noticed > 1000, "{noticed} of 1024");
        let refused = Refused {
            kind: RequestKind::Write,
            why: AccessDenied::Misaligned,
            key,
            addr: 3,
            len: 9,
        };
        for reply in [
            Reply::Read {
                bytes: 1 << 20,
                cookie: 1,
            },
            Reply::Atomic { was: 77 },
            Reply::Mailbox { at: 64, len: 64 },
            Reply::Refused(refused),
        ] {
            assert_eq!(Reply::from_bytes(&reply.to_bytes()), Ok(reply));
        }
    }

    #[test]
    fn limits_and_reserved_bits_are_kept() {
        let over = LANE_READV_ENTRIES_MAX as u32 + 1;
        let refused = |bytes| Request::from_bytes(&bytes).unwrap_err();
        assert!(matches!(
            refused(plausible(1, 0, over, [8, 0, 0])),
            OpError::Limit { .. }
        ));
        assert!(matches!(
            refused(plausible(1, 0, 1, [1 << 40, 0, 0])),
            OpError::Limit { .. }
        ));
        assert!(matches!(
            refused(plausible(2, 0, 1, [0, 1 << 33, 0])),
            OpError::Limit { .. }
        ));
        assert_eq!(refused(plausible(1, 0, 1, [8, 0, 1])), OpError::Reserved(1));
        assert_eq!(refused(plausible(3, 1, 1, [8, 0, 0])), OpError::Reserved(3));
        assert_eq!(refused(plausible(9, 0, 1, [8, 0, 0])), OpError::Kind(9));
        assert_eq!(refused([0; 32]), OpError::Magic(0));
    }
}
