//! Addresses and queue pairs that the two ends of a lane exchange, as numbers for the device.

use super::error::VerbsError;
use super::memory::{Access, ProtectionDomain};
use super::notifier::Queue;
use super::open_port::OpenPort;
use super::pair::{Init, PairOptions, Peer, QueuePair};
use super::path::{PairSettings, Path};
use super::send::RECEIVE;
use super::sysfs::{Gid, Link};
use tidewater_lanes::fabric::SIGNAL_BYTES_MAX;
use tidewater_protocol::limits::{VERBS_RECEIVES, VERBS_SENDS};
use tidewater_protocol::wire::control::{PairAddr, VerbsEce, VerbsEnd, VerbsLink};
use tidewater_runtime::sync::Arc;
use tidewater_topology::PKey;

/// Pairs of this end, in INIT: the one that pushes, with its receives posted, then those that pull.
#[derive(Debug)]
pub(super) struct Pairs {
    pub(super) push: QueuePair<Init>,
    pub(super) pulls: Vec<QueuePair<Init>>,
    negotiates_ece: bool,
}

/// Rights of the peer through an end's pairs, and the number of requests, and pieces of each, that
/// those that pull can have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Roles {
    pub(super) push: Access,
    pub(super) pull: Access,
    pub(super) pull_sends: u32,
    pub(super) pull_elements: u32,
}

impl Pairs {
    /// Creates a pushing pair with send completions in `sends`, and `pulls` pulling ones; everything
    /// else completes in `arrivals`.
    pub(super) fn new(
        pd: &Arc<ProtectionDomain>,
        open_port: &Arc<OpenPort>,
        sends: &Queue,
        arrivals: &Queue,
        pulls: usize,
        roles: Roles,
        settings: &PairSettings,
    ) -> Result<Self, VerbsError> {
        let path = Path::new(open_port, &settings.fabric)?;
        let options = PairOptions {
            sends: VERBS_SENDS,
            receives: u32::from(VERBS_RECEIVES),
            elements: 1,
            inline_bytes: SIGNAL_BYTES_MAX as u32,
            remote: roles.push,
            retry: settings.retry,
        };
        let mut push = QueuePair::new(pd, &path, sends.raw(), arrivals.raw(), &options)?;
        push.post_receives(RECEIVE, usize::from(VERBS_RECEIVES))?;
        let options = PairOptions {
            sends: roles.pull_sends,
            receives: 1,
            elements: roles.pull_elements,
            inline_bytes: 0,
            remote: roles.pull,
            ..options
        };
        let pull = |_| QueuePair::new(pd, &path, arrivals.raw(), arrivals.raw(), &options);
        let pulls = (0..pulls).map(pull).collect::<Result<_, _>>()?;
        Ok(Self {
            push,
            pulls,
            negotiates_ece: settings.fabric.negotiates_ece(),
        })
    }

    /// Completions that can wait in the queue of sends.
    pub(super) const fn sends_capacity() -> usize {
        VERBS_SENDS as usize
    }

    /// Completions that can wait in the other queue.
    pub(super) const fn arrivals_capacity(pulls: usize, roles: Roles) -> usize {
        VERBS_RECEIVES as usize + pulls * (roles.pull_sends as usize + 1)
    }

    /// This end as the peer receives it.
    pub(super) fn end(&self) -> VerbsEnd {
        let (path, open_port) = (self.push.path(), self.push.open_port());
        let port = path.port();
        let pairs = std::iter::once(&self.push).chain(&self.pulls);
        let address = |pair: &QueuePair<Init>| PairAddr {
            qpn: pair.qpn(),
            psn: pair.psn(),
        };
        VerbsEnd {
            link: match port.link {
                Link::Ethernet => VerbsLink::Ethernet,
                Link::InfiniBand => VerbsLink::InfiniBand,
            },
            gid: path.gid().0,
            lid: match port.link {
                Link::Ethernet => 0,
                Link::InfiniBand => port.lid,
            },
            mtu: port.mtu,
            reads: open_port.reads(),
            reads_out: open_port.reads_out(),
            receives: VERBS_RECEIVES,
            pairs: pairs.map(address).collect(),
            pkey: path.settings().pkey.get(),
            ece: self.push.ece().filter(|_| self.negotiates_ece),
        }
    }

    /// Requests the peer's ECE options for all pairs. Returns whether the device has taken them: a device of
    /// another vendor refuses, and the pairs connect without.
    ///
    /// # Errors
    /// [`VerbsError::Call`]: only some pairs have them.
    pub(super) fn set_ece(&self, ece: Option<VerbsEce>) -> Result<bool, VerbsError> {
        let Some(ece) = ece.filter(|_| self.negotiates_ece) else {
            return Ok(false);
        };
        // The reason of a refusal is of no use: both ends go on without.
        if self.push.set_ece(ece).is_err() {
            return Ok(false);
        }
        self.pulls.iter().try_for_each(|pair| pair.set_ece(ece))?;
        Ok(true)
    }
}

/// The other end's pairs, if they can be this end's peers: as many, over the same link layer.
pub(super) fn peers(path: &Path, theirs: &VerbsEnd, pairs: usize) -> Result<Vec<Peer>, VerbsError> {
    let wrong = |what, value: usize| VerbsError::Peer {
        device: Arc::clone(path.open_port().device().name()),
        what,
        value: value as u64,
    };
    let same = matches!(
        (path.port().link, theirs.link),
        (Link::Ethernet, VerbsLink::Ethernet) | (Link::InfiniBand, VerbsLink::InfiniBand)
    );
    if !same {
        return Err(wrong(
            "its port has another link layer",
            theirs.link as usize,
        ));
    }
    let ours = path.settings().pkey;
    if !PKey::new(theirs.pkey).is_some_and(|theirs| ours.reaches(theirs)) {
        return Err(VerbsError::Partition {
            device: Arc::clone(path.open_port().device().name()),
            ours: ours.get(),
            theirs: theirs.pkey,
        });
    }
    if theirs.pairs.len() != pairs {
        return Err(wrong("another number of pairs", theirs.pairs.len()));
    }
    let peer = |pair: &PairAddr| Peer {
        qpn: pair.qpn,
        psn: pair.psn,
        gid: Gid(theirs.gid),
        lid: theirs.lid,
        mtu: theirs.mtu,
        reads: theirs.reads,
        reads_out: theirs.reads_out,
    };
    Ok(theirs.pairs.iter().map(peer).collect())
}
