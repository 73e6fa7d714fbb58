//! Addresses and queue pairs that the two ends of a lane exchange, as numbers for the device.

use super::adapter::Adapter;
use super::error::VerbsError;
use super::memory::{Access, ProtectionDomain};
use super::notifier::Queue;
use super::pair::{Init, PairOptions, Peer, QueuePair, RetryTimeout};
use super::send::RECEIVE;
use super::sysfs::{Gid, Link};
use tidewater_lanes::fabric::SIGNAL_BYTES_MAX;
use tidewater_protocol::limits::{VERBS_RECEIVES, VERBS_SENDS};
use tidewater_protocol::wire::control::{PairAddr, VerbsEnd, VerbsLink};
use tidewater_runtime::sync::Arc;

/// Pairs of this end, in INIT: the one that pushes, with its receives posted, then those that pull.
#[derive(Debug)]
pub(super) struct Pairs {
    pub(super) push: QueuePair<Init>,
    pub(super) pulls: Vec<QueuePair<Init>>,
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
        adapter: &Arc<Adapter>,
        (sends, arrivals): (&Queue, &Queue),
        pulls: usize,
        (roles, patience): (Roles, RetryTimeout),
    ) -> Result<Self, VerbsError> {
        let options = PairOptions {
            sends: VERBS_SENDS,
            receives: u32::from(VERBS_RECEIVES),
            elements: 1,
            inline_bytes: SIGNAL_BYTES_MAX as u32,
            remote: roles.push,
            traffic_class: 0,
            patience,
        };
        let mut push = QueuePair::new(pd, adapter, sends.raw(), arrivals.raw(), &options)?;
        push.post_receives(RECEIVE, usize::from(VERBS_RECEIVES))?;
        let options = PairOptions {
            sends: roles.pull_sends,
            receives: 1,
            elements: roles.pull_elements,
            inline_bytes: 0,
            remote: roles.pull,
            ..options
        };
        let pull = |_| QueuePair::new(pd, adapter, arrivals.raw(), arrivals.raw(), &options);
        let pulls = (0..pulls).map(pull).collect::<Result<_, _>>()?;
        Ok(Self { push, pulls })
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
    pub(super) fn end(&self, adapter: &Adapter) -> VerbsEnd {
        let pairs = std::iter::once(&self.push).chain(&self.pulls);
        let address = |pair: &QueuePair<Init>| PairAddr {
            qpn: pair.qpn(),
            psn: pair.psn(),
        };
        VerbsEnd {
            link: match adapter.link() {
                Link::Ethernet => VerbsLink::Ethernet,
                Link::InfiniBand => VerbsLink::InfiniBand,
            },
            gid: adapter.gid().0,
            lid: match adapter.link() {
                Link::Ethernet => 0,
                Link::InfiniBand => adapter.lid(),
            },
            mtu: adapter.mtu(),
            reads: adapter.reads(),
            reads_out: adapter.reads_out(),
            receives: VERBS_RECEIVES,
            pairs: pairs.map(address).collect(),
        }
    }
}

/// The other end's pairs, if they can be this end's peers: as many, over the same link layer.
pub(super) fn peers(
    adapter: &Adapter,
    theirs: &VerbsEnd,
    pairs: usize,
) -> Result<Vec<Peer>, VerbsError> {
    let wrong = |what, value: usize| VerbsError::Peer {
        device: Arc::clone(adapter.device().name()),
        what,
        value: value as u64,
    };
    let same = matches!(
        (adapter.link(), theirs.link),
        (Link::Ethernet, VerbsLink::Ethernet) | (Link::InfiniBand, VerbsLink::InfiniBand)
    );
    if !same {
        return Err(wrong(
            "its port has another link layer",
            theirs.link as usize,
        ));
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
