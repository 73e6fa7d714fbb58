//! Exchange of queue pairs and memory between the two ends of a verbs lane.
//!
//! One exchange per lane, on the session's control connection, after Attach or Recover granted it:
//! [`VerbsConnect`] with the client's queue pairs, which are in INIT, and [`VerbsConnected`] with the
//! server's, which are ready to receive. Validation here refuses every wrong value of a peer, so that
//! both ends pass checked numbers to their device.

use serde::{Deserialize, Serialize};

use super::members::applier_id;
use super::server::Remote;
use crate::ids::ApplierId;
use crate::layout::directory::KEY_CELL_BYTES;
use crate::layout::session::mailbox_bytes;
use crate::limits::{RING_BYTES_DEFAULT, RING_BYTES_MIN};
use crate::limits::{VERBS_PAIRS_MAX, VERBS_RECEIVES_MAX, VERBS_RECEIVES_MIN, VERBS_REGIONS_MAX};
use crate::wire::WireError;
use crate::wire::error::at_most;

/// Largest value of a queue pair number and of a packet sequence number, which have 24 bits each.
const NUMBER_MAX: u32 = (1 << 24) - 1;
/// Largest unicast LID of an InfiniBand subnet; larger ones are multicast.
const LID_MAX: u16 = 0xbfff;
/// GID of zeros, an empty entry of a device's GID table.
const NO_GID: [u8; 16] = [0; 16];
/// Number of bits of a GID.
const GID_BITS: u8 = 128;
/// Path MTUs in bytes that verbs support.
const MTUS: [u16; 5] = [256, 512, 1024, 2048, 4096];
/// Mask of the bits of a P_Key that number the partition; they are not 0 in a valid key.
const PKEY_BASE: u16 = 0x7fff;
/// Number of queue pairs of the smallest lane: one that pushes and one that pulls.
const PAIRS_MIN: usize = 2;
/// Bytes of one cell of a server's key directory.
pub const VERBS_DIRECTORY_CELL_BYTES: u64 = KEY_CELL_BYTES as u64;

/// Link layer of an RDMA port. It determines how the other end addresses the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum VerbsLink {
    /// RoCE version 2: paths are addressed by GID.
    Ethernet,
    /// InfiniBand: paths are addressed by LID, and by GID too between subnets.
    InfiniBand,
}

/// An RDMA port that one end offers for a session's lanes, with one of its GIDs, its subnet, rate and rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VerbsPort {
    /// Link layer of the port.
    pub link: VerbsLink,
    /// GID of the port, not all 0: on Ethernet a RoCE v2 entry, on InfiniBand the subnet prefix and the port's GUID.
    pub gid: [u8; 16],
    /// Prefix bits of the GID's subnet, at most 128; of an IPv4 address counted in its 32 bits.
    pub subnet_bits: u8,
    /// LID of the InfiniBand subnet manager; 0 on Ethernet, or if unknown.
    pub sm_lid: u16,
    /// Partition key; 0xffff on Ethernet.
    pub pkey: u16,
    /// Rate in Mb/s, 0 if unknown.
    pub rate_mbps: u32,
    /// Rank in the user's order of preference, 0 first. Other properties of both ends rank ports of one tier.
    pub tier: u8,
    /// Position of the port among those of its host, by name. Equal positions are preferred: where hosts are cabled
    /// alike they lead to one switch.
    pub position: u8,
}

/// Pair of RDMA ports, one of each end, that a session's lanes connect; each is named by its GID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VerbsPath {
    /// GID of the client's port.
    pub client: [u8; 16],
    /// GID of the server's port.
    pub server: [u8; 16],
}

/// How an applier learns of a new tail record, which the client writes after a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum VerbsTails {
    /// The client signals the tail record: it writes it by a WRITE with immediate data.
    Signalled,
    /// The applier polls the tail record and never sleeps: a plain WRITE is enough.
    Polled,
}

/// Address of one queue pair at one end of a lane: its number and its first packet sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PairAddr {
    /// Queue pair number on its device; 24 bits.
    pub qpn: u32,
    /// Sequence number of the first packet that the pair sends; 24 bits, random.
    pub psn: u32,
}

/// Address, limits and queue pairs of one end of a verbs lane, as both ends exchange them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerbsEnd {
    /// Link layer of this end's port; both ends must have equal ones.
    pub link: VerbsLink,
    /// GID of this end's port: on Ethernet the RoCE v2 entry of its IP address. All 0 is valid on InfiniBand only.
    pub gid: [u8; 16],
    /// LID of this end's port, 1 to 0xbfff; 0 on Ethernet.
    pub lid: u16,
    /// Active MTU of this end's port in bytes; packets have the smaller MTU of both ends.
    pub mtu: u16,
    /// Number of READs and atomics that each pair of this end answers at once; not 0 at a server.
    pub reads: u8,
    /// Number of READs and atomics that each pair of this end can have in flight at once; not 0 at a client.
    pub reads_out: u8,
    /// Number of receive requests that this end keeps posted on the first pair: so many signals of the other end it
    /// can take before it looks at them.
    pub receives: u16,
    /// The pair that pushes, then one to four that pull.
    pub pairs: Vec<PairAddr>,
    /// P_Key of this end's pairs: 15 bits of partition number, not 0, and bit 15 for full membership.
    pub pkey: u16,
    /// ECE options: of a client those that its device offers, of a server those of them that its device has taken.
    /// `None`: the pairs connect without ECE.
    pub ece: Option<VerbsEce>,
}

/// Options of enhanced connection establishment (ECE), which devices of one vendor negotiate for queue pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[doc(alias = "ibv_ece")]
pub struct VerbsEce {
    /// PCI vendor id that defines the options.
    pub vendor: u32,
    /// The options, as bits.
    pub options: u32,
}

/// Request of a client to connect a granted verbs lane: its queue pairs and its mailbox. Answer:
/// [`VerbsConnected`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerbsConnect {
    /// Applier of the lane.
    pub applier: ApplierId,
    /// Nonce of the lane from the answer to Attach or Recover; valid once.
    pub nonce: u64,
    /// Client end of the lane.
    pub end: VerbsEnd,
    /// Mailbox of the lane, for the server to write. Its key is an rkey; its length follows from the lane's ring size
    /// ([`mailbox_bytes`]).
    pub mailbox: Remote,
    /// Whether the client asks for atomics on the server's counters: pushes are counted, and the client's device has
    /// atomics.
    pub atomics: bool,
}

/// Answer of a server that connected a verbs lane: its queue pairs, inbox and key directory. Its pairs can
/// receive; it sends nothing before the client's first signal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerbsConnected {
    /// Applier of the lane.
    pub applier: ApplierId,
    /// Server end: as many pairs as the client's, in the same order.
    pub end: VerbsEnd,
    /// Inbox of the lane, for the client to write; its key is an rkey, its address 0.
    pub inbox: Remote,
    /// The key directory, for the client to read: the rkeys of the server's regions, one cell per region.
    pub directory: Remote,
    /// Salt of the checksum of each cell of the directory.
    pub directory_salt: u64,
    /// How the client is to write the tails of its pushes.
    pub tails: VerbsTails,
    /// Whether the lane takes atomics: the client has asked for them, and the server's device has them.
    pub atomics: bool,
}

impl VerbsPort {
    pub(super) fn validate(&self) -> Result<(), WireError> {
        if self.gid == NO_GID {
            return Err(bad_port("has no GID"));
        }
        if self.subnet_bits > GID_BITS {
            return Err(bad_port("has a subnet that is longer than its GID"));
        }
        Ok(())
    }
}

impl VerbsPath {
    pub(super) fn validate(&self) -> Result<(), WireError> {
        if self.client == NO_GID || self.server == NO_GID {
            return Err(bad_port("has no GID"));
        }
        Ok(())
    }
}

impl VerbsEnd {
    fn validate(&self) -> Result<(), WireError> {
        let addressed = match self.link {
            VerbsLink::Ethernet => self.gid != NO_GID && self.lid == 0,
            VerbsLink::InfiniBand => (1..=LID_MAX).contains(&self.lid),
        };
        if !addressed {
            return Err(bad("does not say where its port is"));
        }
        if !MTUS.contains(&self.mtu) {
            return Err(bad("has an MTU that no port has"));
        }
        if self.receives < VERBS_RECEIVES_MIN {
            return Err(bad("has too few receives to be signalled"));
        }
        at_most(
            "receives of a queue pair",
            u64::from(self.receives),
            u64::from(VERBS_RECEIVES_MAX),
        )?;
        if self.pkey & PKEY_BASE == 0 {
            return Err(bad("is in no partition"));
        }
        if self.pairs.len() < PAIRS_MIN {
            return Err(bad("has too few queue pairs"));
        }
        at_most(
            "queue pairs",
            self.pairs.len() as u64,
            VERBS_PAIRS_MAX as u64,
        )?;
        for (n, pair) in self.pairs.iter().enumerate() {
            let largest = pair.qpn.max(pair.psn);
            at_most(
                "queue pair's number",
                u64::from(largest),
                u64::from(NUMBER_MAX),
            )?;
            if self.pairs[..n].iter().any(|other| other.qpn == pair.qpn) {
                return Err(bad("names a queue pair twice"));
            }
        }
        Ok(())
    }
}

impl VerbsConnect {
    /// Checks all fields as the decoder of control frames does. For the receiver of a request in another format.
    ///
    /// # Errors
    /// [`WireError::Malformed`] or another reason why no lane can have these values.
    pub fn validate(&self) -> Result<(), WireError> {
        applier_id(self.applier)?;
        self.end.validate()?;
        if self.end.reads_out == 0 {
            return Err(bad("of a client cannot have a READ out"));
        }
        self.mailbox.validate()?;
        let is_of = |ring_bytes: usize| mailbox_bytes(ring_bytes) as u64 == self.mailbox.len;
        let mut rings = std::iter::successors(Some(RING_BYTES_MIN), |bytes| Some(bytes * 2));
        if !rings
            .by_ref()
            .take_while(|&bytes| bytes <= RING_BYTES_DEFAULT)
            .any(is_of)
        {
            return Err(WireError::Malformed {
                what: "mailbox",
                why: "has another length than a mailbox",
            });
        }
        Ok(())
    }
}

impl VerbsConnected {
    pub(super) fn validate(&self) -> Result<(), WireError> {
        applier_id(self.applier)?;
        self.end.validate()?;
        if self.end.reads == 0 {
            return Err(bad("of a server cannot answer a READ"));
        }
        self.inbox.validate()?;
        self.directory.validate()?;
        let bytes = self.directory.len;
        if bytes == 0 || !bytes.is_multiple_of(VERBS_DIRECTORY_CELL_BYTES) {
            return Err(WireError::Malformed {
                what: "key directory",
                why: "is not made of cells",
            });
        }
        at_most(
            "regions of a key directory",
            bytes / VERBS_DIRECTORY_CELL_BYTES,
            VERBS_REGIONS_MAX as u64,
        )
    }
}

const fn bad_port(why: &'static str) -> WireError {
    let what = "RDMA port of a session";
    WireError::Malformed { what, why }
}

const fn bad(why: &'static str) -> WireError {
    let what = "end of a verbs lane";
    WireError::Malformed { what, why }
}
