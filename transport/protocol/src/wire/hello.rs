//! The handshake's five messages: fixed layouts, little-endian, reserved bytes zero and checked.
//!
//! The frame header, the first 8 bytes of [`Hello`] and [`Challenge`] and the first 40 of
//! [`Refused`] never change, so that any two versions can identify each other.
//!
//! ```text
//! Hello (176)                          Challenge (40)          Welcome (80)
//! +0   u32 version | +4 u32 0          +0 u32 version          +0  u64 features offered
//! +8   u64 features offered            +4 u32 0                +8  u64 features required
//! +16  u64 features required           +8 32 B random          +16 u64 cluster
//! +24  u64 cluster                                             +24 u64 epoch
//! +32  u64 epoch                       Proof (32)              +32 u64 incarnation
//! +40  u64 incarnation                 +0 32 B HMAC            +40 u32 number
//! +48  u32 rank                                                +44 u8 role | 3 B 0
//! +52  u8 role | +53 u8 purpose        Refused (40 + n)        +48 32 B HMAC
//! +54  u16 namespace bytes             +0 u32 version
//! +56  u64 session                     +4 u16 code | +6 u16 n
//! +64  u64 lane nonce                  +8 4 x u64 numbers
//! +72  u16 applier | 6 B 0             +40 n B text
//! +80  32 B random
//! +112 64 B namespace, zero padded
//! ```

use super::error::{name_at_most, text_at_most};
use super::refusal::{Refusal, RefusalCode};
use super::{PROTOCOL_VERSION, WireError};
use crate::ids::{ApplierId, ClusterId, Incarnation, SessionId};
use crate::limits::{HANDSHAKE_TEXT_BYTES_MAX, NAMESPACE_BYTES_MAX};

/// Bytes of a random value of the handshake, and of an HMAC-SHA256.
pub const RANDOM_BYTES: usize = 32;
/// Value of a hello's rank by which a process asks the coordinator to assign it one (a worker's or observer's rank,
/// a server's number). Also the value of a process that needs none ([`Role::Admin`]).
pub const RANK_ANY: u32 = u32::MAX;
/// Name of the namespace of a cluster that was started for one job. Processes that belong to no job send it too.
pub const NAMESPACE_DEFAULT: &str = "default";

const HELLO_BYTES: usize = 176;
const CHALLENGE_BYTES: usize = 40;
const WELCOME_BYTES: usize = 80;
const REFUSED_BYTES: usize = 40;

/// Role of the process at one end of a connection. Codes are wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    /// A process that links the client.
    Worker = 1,
    /// A process that owns partitions.
    Server = 2,
    /// The process that keeps membership and catalogue.
    Coordinator = 3,
    /// An administrative command such as `tidewater status`, a launched process that has no number yet, or the
    /// holder of a server.
    Admin = 4,
    /// A process that links the client, only reads, and is a member of no clock.
    Observer = 5,
}

impl Role {
    const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Worker),
            2 => Some(Self::Server),
            3 => Some(Self::Coordinator),
            4 => Some(Self::Admin),
            5 => Some(Self::Observer),
            _ => None,
        }
    }

    /// Returns the wire code of the role.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

/// Set of process roles, as a bit mask: bit `n` is the role of code `n`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Roles(u8);

impl Roles {
    /// Returns the set that contains the given roles.
    pub fn of(roles: &[Role]) -> Self {
        Self(roles.iter().fold(0, |set, role| set | 1 << role.code()))
    }

    /// Whether `role` is in this set.
    pub const fn contains(self, role: Role) -> bool {
        self.0 & (1 << role.code()) != 0
    }
}

/// Purpose of a connection: control messages, or one lane of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// The connection carries control messages.
    Control,
    /// One lane of a session: after the handshake the connection belongs to the lane's applier.
    Lane {
        /// Session of the lane.
        session: SessionId,
        /// Applier of the lane.
        applier: ApplierId,
        /// Nonce that Attach or Recover gave this lane. A lane from before a Recover is refused.
        nonce: u64,
    },
}

/// Identity of a listening process: its cluster, the cluster's epoch, and the start of the process. A client
/// sends the values that it expects; 0 means "unknown", which only a coordinator accepts, on a control connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Ids {
    /// Random number of the cluster.
    pub cluster: ClusterId,
    /// Epoch of the cluster: one more with each change of the servers.
    pub epoch: u64,
    /// Incarnation of the listening process.
    pub incarnation: Incarnation,
}

/// Bit masks of the protocol features that one end offers and requires. Version 1 defines one bit,
/// [`Features::RESUMES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Features {
    /// Features that this end offers.
    pub offered: u64,
    /// Features that this end requires.
    pub required: u64,
}

impl Features {
    /// Feature bit that a coordinator offers if it journals its state. A peer that loses the connection then waits
    /// for the coordinator's restart in place of failing.
    pub const RESUMES: u64 = 1;

    /// Returns the feature bits that either end (`self`, `other`) requires and the opposite one does not offer; 0 if
    /// the ends are compatible.
    pub const fn missing(self, other: Self) -> u64 {
        (self.required & !other.offered) | (other.required & !self.offered)
    }

    /// Returns the feature bits that both ends offer.
    pub const fn shared(self, other: Self) -> u64 {
        self.offered & other.offered
    }
}

/// First message on every connection, from the client: its role, rank, features and purpose, and the identity
/// that it expects of the other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Features of the client.
    pub features: Features,
    /// Ids that the client expects at the other end.
    pub ids: Ids,
    /// Name of the client's job on the service; 1 to 64 bytes without control characters.
    pub namespace: String,
    /// Role of the client.
    pub role: Role,
    /// Rank or number of the client in its role, or [`RANK_ANY`].
    pub rank: u32,
    /// Purpose of the connection.
    pub purpose: Purpose,
    /// Random bytes, fresh on every connection.
    pub random: [u8; RANDOM_BYTES],
}

/// Returns the protocol version in the first four bytes of the body of a [`Hello`], [`Challenge`] or [`Refused`], which
/// every version has there; `None` for a shorter body.
pub fn version_of(body: &[u8]) -> Option<u32> {
    body.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

impl Hello {
    /// Appends the 176 bytes of the message's body to `out`.
    ///
    /// # Errors
    /// The namespace is empty, too long, or holds control characters. `out` is unchanged.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), WireError> {
        name_at_most("namespace", &self.namespace, NAMESPACE_BYTES_MAX)?;
        let (purpose, session, nonce, applier) = match self.purpose {
            Purpose::Control => (1, 0, 0, 0),
            Purpose::Lane {
                session,
                applier,
                nonce,
            } => (2, session.0, nonce, applier.0),
        };
        put_u32(out, &[PROTOCOL_VERSION, 0]);
        let Ids {
            cluster,
            epoch,
            incarnation,
        } = self.ids;
        let Features { offered, required } = self.features;
        put_u64(out, &[offered, required, cluster.0, epoch, incarnation.0]);
        put_u32(out, &[self.rank]);
        out.extend_from_slice(&[self.role.code(), purpose]);
        out.extend_from_slice(&(self.namespace.len() as u16).to_le_bytes());
        put_u64(out, &[session, nonce]);
        out.extend_from_slice(&applier.to_le_bytes());
        out.extend_from_slice(&[0; 6]);
        out.extend_from_slice(&self.random);
        out.extend_from_slice(self.namespace.as_bytes());
        out.resize(out.len() + NAMESPACE_BYTES_MAX - self.namespace.len(), 0);
        Ok(())
    }

    /// Decodes the body of a hello of this protocol version. Call [`version_of`] before, to recognize another
    /// version.
    ///
    /// # Errors
    /// `body` is not a hello of this version.
    pub fn decode(body: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new("hello", body, HELLO_BYTES)?;
        r.version()?;
        let (features, ids) = (r.features()?, r.ids()?);
        let rank = r.u32()?;
        let role = Role::from_code(r.u8()?).ok_or_else(|| r.bad("unknown role"))?;
        let purpose = r.u8()?;
        let namespace_len = usize::from(r.u16()?);
        let (session, nonce, applier) = (r.u64()?, r.u64()?, r.u16()?);
        r.zero(6)?;
        let random = r.array()?;
        let (name, padding) = r
            .take(NAMESPACE_BYTES_MAX)?
            .split_at_checked(namespace_len)
            .ok_or_else(|| r.bad("namespace length"))?;
        if padding.iter().any(|&b| b != 0) {
            return Err(r.bad("bytes after the namespace"));
        }
        let namespace = core::str::from_utf8(name).map_err(|_| r.bad("namespace is not UTF-8"))?;
        name_at_most("namespace", namespace, NAMESPACE_BYTES_MAX)?;
        let purpose = match purpose {
            1 if session == 0 && nonce == 0 && applier == 0 => Purpose::Control,
            2 => Purpose::Lane {
                session: SessionId(session),
                applier: ApplierId(applier),
                nonce,
            },
            _ => return Err(r.bad("purpose")),
        };
        let namespace = namespace.to_owned();
        Ok(Self {
            features,
            ids,
            namespace,
            role,
            rank,
            purpose,
            random,
        })
    }
}

/// Second message of the handshake, from the server: random bytes over which the client must compute its HMAC.
/// It reveals only the version to an unauthenticated peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Challenge {
    /// Random bytes, fresh on every connection.
    pub random: [u8; RANDOM_BYTES],
}

impl Challenge {
    /// Appends the 40 bytes of the message's body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_u32(out, &[PROTOCOL_VERSION, 0]);
        out.extend_from_slice(&self.random);
    }

    /// Decodes the body of a challenge of this protocol version.
    ///
    /// # Errors
    /// `body` is not a challenge of this version.
    pub fn decode(body: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new("challenge", body, CHALLENGE_BYTES)?;
        r.version()?;
        Ok(Self { random: r.array()? })
    }
}

/// Third message of the handshake, from the client: its HMAC over the frames of hello and challenge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proof {
    /// HMAC-SHA256 under the job's token, over the client's label and the frames of hello and challenge.
    pub mac: [u8; RANDOM_BYTES],
}

impl Proof {
    /// Decodes the body of a proof, 32 bytes.
    ///
    /// # Errors
    /// `body` has another length.
    pub fn decode(body: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new("proof", body, RANDOM_BYTES)?;
        Ok(Self { mac: r.array()? })
    }
}

/// Last message of the handshake, from the server: its identity, and its HMAC. It is the first message that
/// identifies the server, and only a peer that holds the token receives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Welcome {
    /// Features of the server.
    pub features: Features,
    /// Ids of the server.
    pub ids: Ids,
    /// Role of the server end: a server or the coordinator.
    pub role: Role,
    /// Number of the process in that role.
    pub number: u32,
    /// HMAC-SHA256 under the job's token, over the server's label, the three frames before and the body's other
    /// bytes.
    pub mac: [u8; RANDOM_BYTES],
}

impl Welcome {
    /// Number of bytes at the start of the body that the HMAC covers: all but the HMAC itself.
    pub const AUTHENTICATED_BYTES: usize = WELCOME_BYTES - RANDOM_BYTES;

    /// Appends the part of the body that the HMAC covers to `out`. `mac` is not used: the caller computes the HMAC
    /// and appends it.
    pub fn encode_authenticated(&self, out: &mut Vec<u8>) {
        let Ids {
            cluster,
            epoch,
            incarnation,
        } = self.ids;
        let Features { offered, required } = self.features;
        put_u64(out, &[offered, required, cluster.0, epoch, incarnation.0]);
        put_u32(out, &[self.number]);
        out.extend_from_slice(&[self.role.code(), 0, 0, 0]);
    }

    /// Decodes the body of a welcome of this protocol version. The HMAC is not verified here.
    ///
    /// # Errors
    /// `body` is not a welcome of this version.
    pub fn decode(body: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new("welcome", body, WELCOME_BYTES)?;
        let (features, ids) = (r.features()?, r.ids()?);
        let number = r.u32()?;
        let role = Role::from_code(r.u8()?).ok_or_else(|| r.bad("unknown role"))?;
        r.zero(3)?;
        Ok(Self {
            features,
            ids,
            role,
            number,
            mac: r.array()?,
        })
    }
}

/// Message by which the server refuses and ends the handshake, with the version of the server. It is not
/// authenticated: an attacker that can forge it can cut the connection as well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Protocol version of the refusing end.
    pub version: u32,
    /// Reason of the refusal.
    pub refusal: Refusal,
}

impl Refused {
    /// Appends the message's body to `out`; a text of over 256 bytes is truncated to at most 256, between
    /// characters.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let text = &self.refusal.text;
        let text = &text[..text.floor_char_boundary(HANDSHAKE_TEXT_BYTES_MAX)];
        put_u32(out, &[self.version]);
        out.extend_from_slice(&self.refusal.code.code().to_le_bytes());
        out.extend_from_slice(&(text.len() as u16).to_le_bytes());
        put_u64(out, &self.refusal.numbers);
        out.extend_from_slice(text.as_bytes());
    }

    /// Decodes the body of a refusal of any protocol version. A code that this version does not know becomes
    /// [`RefusalCode::Unknown`].
    ///
    /// # Errors
    /// `body` is not a refusal.
    pub fn decode(body: &[u8]) -> Result<Self, WireError> {
        let (head, text) = body.split_at_checked(REFUSED_BYTES).unwrap_or((body, &[]));
        let mut r = Reader::new("refused", head, REFUSED_BYTES)?;
        let version = r.u32()?;
        let code = RefusalCode::from(r.u16()?);
        if usize::from(r.u16()?) != text.len() {
            return Err(r.bad("text length"));
        }
        let numbers = [r.u64()?, r.u64()?, r.u64()?, r.u64()?];
        let text = core::str::from_utf8(text).map_err(|_| r.bad("text is not UTF-8"))?;
        text_at_most("refused text", text, HANDSHAKE_TEXT_BYTES_MAX)?;
        Ok(Self {
            version,
            refusal: Refusal {
                code,
                text: text.to_owned(),
                numbers,
            },
        })
    }
}

fn put_u32(out: &mut Vec<u8>, words: &[u32]) {
    words
        .iter()
        .for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
}

fn put_u64(out: &mut Vec<u8>, words: &[u64]) {
    words
        .iter()
        .for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
}

/// Cursor that reads the fields of a message of known length from front to back.
struct Reader<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn new(what: &'static str, body: &'a [u8], bytes: usize) -> Result<Self, WireError> {
        if body.len() != bytes {
            return Err(WireError::Malformed {
                what,
                why: "wrong length",
            });
        }
        Ok(Self { what, rest: body })
    }

    const fn bad(&self, why: &'static str) -> WireError {
        WireError::Malformed {
            what: self.what,
            why,
        }
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], WireError> {
        let (head, rest) = self
            .rest
            .split_at_checked(bytes)
            .ok_or_else(|| self.bad("too short"))?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (head, rest) = self
            .rest
            .split_first_chunk()
            .ok_or_else(|| self.bad("too short"))?;
        self.rest = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, WireError> {
        self.array().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_le_bytes)
    }

    fn features(&mut self) -> Result<Features, WireError> {
        Ok(Features {
            offered: self.u64()?,
            required: self.u64()?,
        })
    }

    fn ids(&mut self) -> Result<Ids, WireError> {
        Ok(Ids {
            cluster: ClusterId(self.u64()?),
            epoch: self.u64()?,
            incarnation: Incarnation(self.u64()?),
        })
    }

    fn zero(&mut self, bytes: usize) -> Result<(), WireError> {
        let bits = self
            .take(bytes)?
            .iter()
            .fold(0, |bits, &b| bits << 8 | u64::from(b));
        if bits != 0 {
            return Err(WireError::Reserved {
                what: self.what,
                bits,
            });
        }
        Ok(())
    }

    fn version(&mut self) -> Result<(), WireError> {
        if self.u32()? != PROTOCOL_VERSION {
            return Err(self.bad("of another version"));
        }
        self.zero(4)
    }
}

#[cfg(test)]
mod tests;
